"""The way out of a connection: frames are collected until a turn ends, and written at once.

The bytes that wait for a slow reader are bounded: its consumers want nothing while it is behind, and when its replies
are more than four times the write buffer, nothing further is read from it. All of it belongs to the connection's I/O
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .._session.confirms import Confirms
from .._session.consumer import SessionConsumer
from .._wire.errors import REPLY_NAMES
from .._wire.frames import HeartbeatMonitor
from .._wire.hot import Content, encode_deliver, encode_get_ok, encode_return, encode_settlement
from .._wire.methods import encode_method

_LARGE: Final = 16 * 1024  # bytes; a piece beyond that is written at once: nothing is won by collecting such
FLUSH_PIECES: Final = 64  # frames of replies before they are written, so that a slow reader is noticed
_REPLIES: Final = 4  # times the write buffer that replies may wait in before nothing further is read


@dataclass(eq=False, repr=False)
class FrameWriter:
    """The way out of a connection; `too_far_behind` is called when its peer does not fetch its replies."""

    _of: object
    frame_max: int
    _buffer_bytes: int
    _monitor: HeartbeatMonitor
    _too_far_behind: Callable[[], None]
    pieces: list[bytes] = field(default_factory=list)  # to be written; always the same list
    confirming: dict[Confirms, None] = field(default_factory=dict)
    is_held_back: bool = False  # the peer reads too slowly: its consumers want nothing
    sent_bytes: int = 0
    transport: asyncio.Transport | None = None  # while there is one to write to
    _unread_bytes: int = 0  # written since `is_held_back`: replies, for no consumer wants anything then

    def lose(self) -> None:
        self.transport = None
        self.pieces.clear()

    def send(self, data: bytes) -> None:
        """Frames to be written when the present turn ends, or now if they are large."""
        self.pieces.append(data)
        if len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Write what there is to write. A turn on the I/O thread ends with this."""
        while self.confirming:
            self.confirm(self.confirming.popitem()[0])
        if self.pieces and self.transport is not None:
            data = b"".join(self.pieces)
            self.pieces.clear()
            self._monitor.said = True
            self.sent_bytes += len(data)
            if self.is_held_back:
                self._count_unread(len(data))
            self.transport.write(data)

    def _count_unread(self, size: int) -> None:
        """A peer that asks and asks and does not read is not read from, until it does."""
        self._unread_bytes += size
        if self._unread_bytes > _REPLIES * self._buffer_bytes:
            self._too_far_behind()

    def caught_up(self) -> None:
        self.is_held_back = False
        self._unread_bytes = 0

    def reply(self, number: int, method: Any, /, **fields: Any) -> None:
        self.send(encode_method(number, method, **fields))

    def deliver(self, number: int, consumer: SessionConsumer, tag: int, redelivered: bool, content: Content) -> None:
        data = encode_deliver(number, consumer.prefix, tag, redelivered, content, self.frame_max)
        self.pieces.append(data)  # as `send`, without a call for each message
        if len(data) > _LARGE:
            self.flush()

    def got(self, number: int, tag: int, redelivered: bool, left: int, content: Content) -> None:
        self.send(encode_get_ok(number, tag, redelivered, left, content, self.frame_max))

    def returned(self, number: int, code: int, content: Content) -> None:
        self.send(encode_return(number, code, REPLY_NAMES[code], content, self.frame_max))

    def confirm(self, confirms: Confirms) -> None:
        number = confirms.number
        for each in confirms.take():
            self.pieces.append(encode_settlement(number, each))

    def __repr__(self) -> str:
        return repr(self._of)
