"""Frames: where one ends and the next begins, and when one is due. Nothing here knows what a method means.

Promise     Bytes in, whole frames out, however the bytes were cut. What cannot be a frame raises `FrameError` as soon
            as its first seven bytes show it: a peer that announces more than `frame_max` is refused before any
            of it is kept. So the splitter never holds more than one frame and what arrived with it.
State       The beginning of a frame that has not come whole. One thread uses a splitter.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from .errors import FrameError

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_BYTE: Final = b"\xce"
FRAME_OVERHEAD: Final = 8  # bytes around a payload: type, channel, size, end
MIN_FRAME_MAX: Final = 4096  # the least a peer may ask for, and what holds until it has asked
DEFAULT_FRAME_MAX: Final = 131072
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# What older clients begin with, and the version that they are told; as RabbitMQ, they get 0-9-1 all the same.
PROTOCOL_HEADERS: Final = {
    PROTOCOL_HEADER: (0, 9),
    b"AMQP\x01\x01\x00\x09": (0, 9),
    b"AMQP\x01\x01\x09\x01": (8, 0),
    b"AMQP\x01\x01\x08\x00": (8, 0),
}

FRAME_HEAD: Final = Struct(">BHI")  # type, channel, size of the payload
HEADER_START: Final = Struct(">HHQ")  # of a content header: class, weight, size of the body

FRAME_TYPES: Final = frozenset({FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT})

Frame = tuple[int, int, bytes]
"""Type, channel, payload."""


class FrameSplitter:
    """Cuts a stream of bytes into frames; `frame_max` bounds the payload of one.

    By the specification it bounds the whole frame, and that is how large ours are. But AMQPStorm and rabbitpy fill
    payloads with it, and RabbitMQ takes them.
    """

    def __init__(self, frame_max: int = DEFAULT_FRAME_MAX) -> None:
        self.frame_max = frame_max
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now, in order.

        Raises:
            FrameError: the bytes are no frame. `frames` of the error are those that were whole before it; the
                splitter is of no further use.
        """
        if self._rest:
            data = self._rest + data
        frames: list[Frame] = []
        unpack = FRAME_HEAD.unpack_from
        append = frames.append
        largest = self.frame_max
        at, end = 0, len(data)
        while end - at >= 7:
            kind, channel, size = unpack(data, at)
            if size > largest or kind not in FRAME_TYPES:
                raise FrameError(self._describe(kind, channel, size), frames)
            stop = at + 7 + size
            if stop >= end:
                break
            if data[stop] != FRAME_END:
                wrong = f"frame of {size} bytes on channel {channel} ends with {data[stop]:#04x}, not 0xce"
                raise FrameError(wrong, frames)
            append((kind, channel, data[at + 7 : stop]))
            at = stop + 1
        self._rest = data[at:] if at else data
        return frames

    @property
    def pending_bytes(self) -> int:
        """How many bytes of a frame that is not whole are kept."""
        return len(self._rest)

    def _describe(self, kind: int, channel: int, size: int) -> str:
        if kind not in FRAME_TYPES:
            return f"type {kind} is no frame type"
        return f"frame with {size} bytes of payload on channel {channel} is too large, frame_max is {self.frame_max}"


def method_frame(channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(FRAME_METHOD, channel, len(payload)) + payload + FRAME_END_BYTE


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> list[bytes | memoryview]:
    """Header frame and body frames, as pieces to be joined. `properties` are flags and values, as on the wire."""
    head = FRAME_HEAD.pack
    size = len(body)
    pieces: list[bytes | memoryview] = [
        head(FRAME_HEADER, channel, 12 + len(properties)),
        HEADER_START.pack(60, 0, size),
        properties,
        FRAME_END_BYTE,
    ]
    room = frame_max - FRAME_OVERHEAD
    view = body if size <= room else memoryview(body)
    for at in range(0, size, room):
        piece = view[at : at + room]
        pieces += (head(FRAME_BODY, channel, len(piece)), piece, FRAME_END_BYTE)
    return pieces


class HeartbeatMonitor:
    """The silence of both sides, in half periods. Told of time by `tick`, once per half a period.

    Any frame counts as a heartbeat. A peer that sent nothing for two whole periods is gone; we send a heartbeat
    in a half period in which we sent nothing else. Any thread sets `heard` and `said`; one that is lost because `tick`
    resets it then costs half a period of the four.
    """

    __slots__ = ("_silent", "heard", "said")

    def __init__(self) -> None:
        self.heard: bool = True  # something came since the last tick
        self.said: bool = True  # something was sent since the last tick
        self._silent = 0

    def tick(self, *, listening: bool) -> tuple[bool, bool]:
        """Whether to send a heartbeat now, and whether the peer is gone. A peer we do not read is not judged."""
        send = not self.said
        self.said = False
        self._silent = 0 if self.heard or not listening else self._silent + 1
        self.heard = False
        return send, self._silent >= 4
