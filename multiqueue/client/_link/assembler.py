"""Bytes to events: whole methods, each with its content. No I/O; one thread uses an assembler.

However the bytes were cut, the same events come out, in the order in which they were complete. A frame that does not
fit raises `ConnectionFault` 505; heartbeats are no events.
"""

from __future__ import annotations

from typing import Any

from ...amqp.wire import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    ConnectionFault,
    Deliver,
    DeliverySplitter,
    GetOk,
    Return,
    decode_header,
    decode_method,
)
from .link import Event

_WITH_CONTENT = (Deliver, GetOk, Return)


class _Content:
    __slots__ = ("left", "method", "pieces", "properties")

    def __init__(self, method: Any) -> None:
        self.method = method
        self.properties: bytes | None = None
        self.pieces: list[bytes] = []
        self.left = 0


class Assembler:
    """Makes events of what a server sends."""

    def __init__(self, frame_max: int) -> None:
        self.splitter: DeliverySplitter = DeliverySplitter(frame_max)
        self._contents: dict[int, _Content] = {}

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now. Raises AmqpError: the bytes are no frames, a frame does not decode, or does
        not fit where it stands."""
        events: list[Event] = []
        contents = self._contents
        for item in self.splitter.feed_deliveries(data):
            if len(item) == 4:
                if item[0] in contents:
                    raise ConnectionFault(505, f"a method on channel {item[0]} in the middle of a content")
                events.append(tuple.__new__(Event, item))
                continue
            kind, number, payload = item
            if kind == FRAME_METHOD:
                method = decode_method(payload)
                if number in contents:
                    raise ConnectionFault(505, f"a method on channel {number} in the middle of a content")
                if isinstance(method, _WITH_CONTENT):
                    contents[number] = _Content(method)
                else:
                    events.append(Event(number, method))
            elif kind == FRAME_HEADER:
                content = self._expecting(number, "header", is_header=True)
                _, content.left, content.properties = decode_header(payload)
                if not content.left:
                    del contents[number]
                    events.append(Event(number, content.method, content.properties))
            elif kind == FRAME_BODY:
                content = self._expecting(number, "body", is_header=False)
                content.left -= len(payload)
                if content.left > 0:
                    content.pieces.append(payload)
                elif content.left < 0:
                    raise ConnectionFault(501, f"the body on channel {number} is longer than its header says")
                else:
                    del contents[number]
                    body = b"".join((*content.pieces, payload)) if content.pieces else payload
                    events.append(Event(number, content.method, content.properties or b"", body))
        return events

    def _expecting(self, number: int, kind: str, *, is_header: bool) -> _Content:
        content = self._contents.get(number)
        if content is None or (content.properties is None) != is_header:
            raise ConnectionFault(505, f"a {kind} frame on channel {number}, where none is expected")
        return content
