"""Bytes to events: whole methods, each with its content. No I/O; one thread uses an assembler.

However the bytes were cut, the same events come out, in the order in which they were complete. A frame that does not
fit raises `ConnectionFault` 505; heartbeats are no events. A `basic.deliver` that is followed by its header and by its
body in one frame, as nearly every one is, becomes an event in one step, at a third of the cost of its three frames.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from ...amqp.wire import (
    DELIVER,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_TYPES,
    ConnectionFault,
    Deliver,
    FrameSplitter,
    GetOk,
    Return,
    decode_header,
    decode_hot,
    decode_method,
)
from .link import Event

_WITH_CONTENT: Final = (Deliver, GetOk, Return)
_MOST_NAMES: Final = 1024  # different ones that are remembered; more are forgotten together
_SIZE: Final = Struct(">Q")
_TAG: Final = Struct(">QB")
_NOT_YET: Final = -1
_new = tuple.__new__


class _Content:
    __slots__ = ("left", "method", "pieces", "properties")

    def __init__(self, method: Any) -> None:
        self.method = method
        self.properties: bytes | None = None
        self.pieces: list[bytes] = []
        self.left = 0


class Assembler:
    """Makes events of what a server sends; `frame_max` bounds the payload of a frame."""

    def __init__(self, frame_max: int) -> None:
        self.frame_max = frame_max
        self._rest = b""  # the beginning of a frame, or of a delivery, that has not come whole
        self._contents: dict[int, _Content] = {}
        self._names: dict[bytes, tuple[str, str, str]] = {}  # consumer tag, exchange and routing key, as on the wire

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now. Raises AmqpError: the bytes are no frames, a frame does not decode, or does
        not fit where it stands. The events before it are lost with the connection."""
        if self._rest:
            data = self._rest + data
        events: list[Event] = []
        unpack, end, at = FRAME_HEAD.unpack_from, len(data), 0
        largest = self.frame_max
        while end - at >= 7:
            kind, channel, size = unpack(data, at)
            stop = at + 7 + size
            if size > largest or kind not in FRAME_TYPES or (stop < end and data[stop] != FRAME_END):
                FrameSplitter(largest).feed(data[at:])  # raises, and says why
            if stop >= end:
                break
            if kind == FRAME_METHOD and data[at + 7 : at + 11] == DELIVER and channel not in self._contents:
                body, last = self._content(data, stop + 1, end, channel)
                if last == _NOT_YET:
                    break
                if last:
                    method = self._decode(data, at + 7, stop)
                    content = (channel, method, data[stop + 20 : body - 1], data[body + 7 : last])
                    events.append(_new(Event, content))
                    at = last + 1
                    continue
            event = self._receive(kind, channel, data[at + 7 : stop])
            if event is not None:
                events.append(event)
            at = stop + 1
        self._rest = data[at:] if at else data
        return events

    def _receive(self, kind: int, number: int, payload: bytes) -> Event | None:
        """The event that a frame completes."""
        if kind == FRAME_HEARTBEAT:
            return None
        content = self._contents.get(number)
        if kind == FRAME_METHOD:
            method = decode_method(payload)
            if content is not None:
                raise ConnectionFault(505, f"a method on channel {number} in the middle of a content")
            if not isinstance(method, _WITH_CONTENT):
                return Event(number, method)
            self._contents[number] = _Content(method)
            return None
        if content is None or (content.properties is None) != (kind == FRAME_HEADER):
            name = "header" if kind == FRAME_HEADER else "body"
            raise ConnectionFault(505, f"a {name} frame on channel {number}, where none is expected")
        if kind == FRAME_HEADER:
            _, content.left, content.properties = decode_header(payload)
        else:
            content.left -= len(payload)
            content.pieces.append(payload)
        if content.left < 0:
            raise ConnectionFault(501, f"the body on channel {number} is longer than its header says")
        if content.left:
            return None
        del self._contents[number]
        return Event(number, content.method, content.properties or b"", b"".join(content.pieces))

    def _content(self, data: bytes, header: int, end: int, channel: int) -> tuple[int, int]:
        """Where the body frame begins and ends whose header frame begins at `header`. It ends at `_NOT_YET` when more
        must come to say so, at 0 when it is not as simple as that."""
        if end - header < 19:
            return 0, _NOT_YET
        kind, header_channel, size = FRAME_HEAD.unpack_from(data, header)
        if kind != FRAME_HEADER or header_channel != channel or not 14 <= size <= self.frame_max:
            return 0, 0
        body_size = _SIZE.unpack_from(data, header + 11)[0]
        if not 0 < body_size <= self.frame_max:
            return 0, 0
        body = header + 8 + size
        last = body + 7 + body_size
        if last >= end:
            return 0, _NOT_YET
        if data[body - 1] != FRAME_END or data[last] != FRAME_END:
            return 0, 0
        is_simple = FRAME_HEAD.unpack_from(data, body) == (FRAME_BODY, channel, body_size)
        return body, last if is_simple else 0

    def _decode(self, data: bytes, start: int, stop: int) -> Deliver:
        """The method in a payload that is a `basic.deliver`."""
        at = start + 5 + data[start + 4]
        block = data[start + 4 : at] + data[at + 9 : stop]
        names = self._names.get(block)
        if names is not None:
            delivery_tag, bits = _TAG.unpack_from(data, at)
            return _new(Deliver, (names[0], delivery_tag, bits & 1 != 0, names[1], names[2]))
        method = decode_hot(data[start:stop])
        assert isinstance(method, Deliver)
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        self._names[block] = method.consumer_tag, method.exchange, method.routing_key
        return method
