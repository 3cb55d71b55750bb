"""A channel's protocol as a table: which frame may come when. No I/O, no threads, no broker.

Promise     A frame that the table does not allow raises, in RabbitMQ's words, and changes nothing. Frames on a channel
            that the server is closing are dropped until the close is answered.
State       `state`, and the content that is being put together: never larger than its header said, and the header never
            more than `max_message_bytes`. A publish is method, header, and body frames; an empty body has none.
Source      AMQP 0-9-1, sections 2.2 and 4.2; h11 for the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PUBLISH, Content, decode_header

CHANNEL_OPEN: Final = b"\x00\x14\x00\x0a"
CHANNEL_CLOSE: Final = b"\x00\x14\x00\x28"
CHANNEL_CLOSE_OK: Final = b"\x00\x14\x00\x29"
CANCEL: Final = b"\x00\x3c\x00\x1e"


class ChannelState(IntEnum):
    """Where a channel is in its life. IntEnum, because the states index the table."""

    CLOSED = 0
    OPEN = 1
    HEADER = 2  # a publish waits for its header
    BODY = 3  # a publish waits for the rest of its body
    CLOSING = 4  # the server has closed it and waits for close-ok


class ChannelEvent(IntEnum):
    """The frames that can arrive on a channel."""

    OPEN = 0
    CLOSE = 1
    CLOSE_OK = 2
    PUBLISH = 3
    METHOD = 4  # any other
    HEADER = 5
    BODY = 6


_S, _E = ChannelState, ChannelEvent

# A frame that no cell of the table allows costs the connection: reply code and text.
EXPECTED_OPEN: Final = (504, "expected 'channel.open'")
SECOND_OPEN: Final = (504, "second 'channel.open' seen")
EXPECTED_METHOD: Final = (505, "expected method frame, got non method frame instead")
EXPECTED_HEADER: Final = (505, "expected content header for class 60, got non content header frame instead")
EXPECTED_BODY: Final = (505, "expected content body, got non content body frame instead")
NO_SUCH_CLOSE: Final = (503, "channel.close-ok without a channel.close")

Cell = ChannelState | tuple[int, str]

# The whole state machine: the state that follows, or the error. HEADER to OPEN (an empty body) and BODY to OPEN
# (the last of it) are the content's to decide, see `_header` and `_body`.
MOVES: Final[Mapping[ChannelState, Mapping[ChannelEvent, Cell]]] = {
    _S.CLOSED: {
        **dict.fromkeys(_E, EXPECTED_OPEN),
        _E.OPEN: _S.OPEN,
        _E.CLOSE_OK: _S.CLOSED,  # the answer to a close that crossed with ours
        _E.HEADER: EXPECTED_METHOD,
        _E.BODY: EXPECTED_METHOD,
    },
    _S.OPEN: {
        _E.OPEN: SECOND_OPEN,
        _E.CLOSE: _S.CLOSED,
        _E.CLOSE_OK: NO_SUCH_CLOSE,
        _E.PUBLISH: _S.HEADER,
        _E.METHOD: _S.OPEN,
        _E.HEADER: EXPECTED_METHOD,
        _E.BODY: EXPECTED_METHOD,
    },
    _S.HEADER: {**dict.fromkeys(_E, EXPECTED_HEADER), _E.HEADER: _S.BODY},
    _S.BODY: {**dict.fromkeys(_E, EXPECTED_BODY), _E.BODY: _S.BODY},
    _S.CLOSING: {**dict.fromkeys(_E, _S.CLOSING), _E.OPEN: SECOND_OPEN, _E.CLOSE_OK: _S.CLOSED},
}

_OF_METHOD: Final = {CHANNEL_OPEN: _E.OPEN, CHANNEL_CLOSE: _E.CLOSE, CHANNEL_CLOSE_OK: _E.CLOSE_OK, PUBLISH: _E.PUBLISH}
_OF_FRAME: Final = {FRAME_HEADER: _E.HEADER, FRAME_BODY: _E.BODY}
_TABLE: Final = [[MOVES[state][event] for event in _E] for state in _S]


class ChannelMachine:
    """The protocol of one channel. One thread at a time."""

    __slots__ = ("_body", "_left", "_max", "_method", "_properties", "state")

    def __init__(self, max_message_bytes: int) -> None:
        self.state: ChannelState = _S.CLOSED
        self._max = max_message_bytes
        self._method = b""
        self._properties = b""
        # Invariant: sizes in _body + _left is the header's size, while the state is BODY.
        self._body: list[bytes] = []
        self._left = 0

    def receive(self, kind: int, payload: bytes) -> bytes | Content | None:
        """Take a frame. A method to be executed now (its payload), a whole content, or nothing yet. Raises
        ConnectionFault: it may not come now, or does not decode. ChannelFault: the content is too large."""
        event = _OF_METHOD.get(payload[:4], _E.METHOD) if kind == FRAME_METHOD else _OF_FRAME[kind]
        state = self.state
        to = _TABLE[state][event]
        if isinstance(to, tuple):
            raise ConnectionFault(*to)
        if state is _S.CLOSING:  # everything is dropped, but a close that has crossed with ours is to be answered
            self.state = to
            return payload if event is _E.CLOSE or event is _E.CLOSE_OK else None
        if event is _E.HEADER:
            return self._header(payload)
        if event is _E.BODY:
            return self._more_body(payload)
        self.state = to
        if event is _E.PUBLISH:
            self._method = payload
            return None
        return payload

    def takes(self, size: int) -> bool:
        """Whether a whole publish with a body of this size may come now; False while everything is dropped. Raises as
        `receive`."""
        if self.state is _S.CLOSING:
            return False
        if self.state is not _S.OPEN:
            raise ConnectionFault(*EXPECTED_OPEN)
        self._check_size(size)
        return True

    def _check_size(self, size: int) -> None:
        if size > self._max:
            raise ChannelFault(406, f"message size {size} is larger than configured max size {self._max}")

    def close(self) -> None:
        """The server has sent a close; an incomplete content is dropped."""
        self.state = _S.CLOSING
        self._body, self._left = [], 0

    def _header(self, payload: bytes) -> Content | None:
        class_id, size, properties = decode_header(payload)
        if class_id != 60:
            raise ConnectionFault(505, f"expected content header for class 60, got one for class {class_id} instead")
        self._check_size(size)
        if size == 0:
            self.state = _S.OPEN
            return self._method, properties, b""
        self.state = _S.BODY
        self._properties, self._left = properties, size
        return None

    def _more_body(self, payload: bytes) -> Content | None:
        left = self._left - len(payload)
        if left > 0:
            self._left = left
            self._body.append(payload)
            return None
        if left < 0:
            raise ConnectionFault(501, f"content body is {-left} bytes longer than its header said")
        self.state = _S.OPEN
        if not self._body:
            return self._method, self._properties, payload
        self._body.append(payload)
        pieces, self._body = self._body, []
        return self._method, self._properties, b"".join(pieces)
