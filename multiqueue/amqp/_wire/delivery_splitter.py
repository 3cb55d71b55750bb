"""A splitter for clients: deliveries that have come whole are put together in one step.

As `FrameSplitter`, with the same refusals; a `basic.deliver` that is followed by its header and by its body in one
frame, as nearly every one is, comes as a `WholeDelivery` instead of three frames, at a third of the cost.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from .frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    Frame,
    FrameSplitter,
)
from .hot import DELIVER, Deliver, decode_hot

_MOST_NAMES: Final = 256  # different ones that are remembered; more are forgotten together
_SIZE: Final = Struct(">Q")
_TAG: Final = Struct(">QB")
_KNOWN: Final = frozenset({FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT})
_NOT_YET: Final = -1
_new = tuple.__new__


class WholeDelivery(NamedTuple):
    """A delivery with its content; `properties` are a block as on the wire."""

    channel: int
    method: Deliver
    properties: bytes
    body: bytes


class DeliverySplitter(FrameSplitter):
    """Cuts a stream of bytes into whole deliveries, and into frames what is none."""

    def __init__(self, frame_max: int) -> None:
        super().__init__(frame_max)
        self._names: dict[bytes, tuple[str, str]] = {}
        self._tags: dict[bytes, str] = {}

    def feed_deliveries(self, data: bytes) -> list[Frame | WholeDelivery]:
        """What is whole now, in order.

        Raises:
            FrameError: the bytes are no frame. What was whole before it is lost with the connection.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        found: list[Frame | WholeDelivery] = []
        unpack, end, at = FRAME_HEAD.unpack_from, len(data), 0
        largest = self.frame_max
        while end - at >= 7:
            kind, channel, size = unpack(data, at)
            stop = at + 7 + size
            if size > largest or kind not in _KNOWN or (stop < end and data[stop] != FRAME_END):
                self.feed(data[at:])  # raises, and says why
            if stop >= end:
                break
            if kind == FRAME_METHOD and data[at + 7 : at + 11] == DELIVER:
                body, last = self._content(data, stop + 1, end, channel)
                if last == _NOT_YET:
                    break
                if last:
                    method = self._decode(data, at + 7, stop)
                    content = (channel, method, data[stop + 20 : body - 1], data[body + 7 : last])
                    found.append(_new(WholeDelivery, content))
                    at = last + 1
                    continue
            found.append((kind, channel, data[at + 7 : stop]))
            at = stop + 1
        self._rest = data[at:] if at else data
        return found

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
        tag = self._tags.get(data[start + 4 : at])
        names = self._names.get(data[at + 9 : stop])
        if tag is None or names is None:
            return self._decode_new(data[start:stop], at - start)
        delivery_tag, bits = _TAG.unpack_from(data, at)
        return _new(Deliver, (tag, delivery_tag, bits & 1 != 0, *names))

    def _decode_new(self, payload: bytes, at: int) -> Deliver:
        method = decode_hot(payload)
        assert isinstance(method, Deliver)
        if len(self._tags) >= _MOST_NAMES or len(self._names) >= _MOST_NAMES:
            self._tags.clear()
            self._names.clear()
        self._tags[payload[4:at]] = method.consumer_tag
        self._names[payload[at + 9 :]] = (method.exchange, method.routing_key)
        return method
