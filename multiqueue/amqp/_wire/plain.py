"""The functions that run for every message, in Python: `_frames.c` gives the same answers.

Promise     Pure functions; nothing is read past the end of what is given. What is not plain stands where they end, for
            the caller to look at: they raise nothing about what a peer has sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from struct import Struct
from typing import Any, Final

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_BYTE: Final = b"\xce"
FRAME_OVERHEAD: Final = 8  # bytes around a payload: type, channel, size, end
FRAME_HEAD: Final = Struct(">BHI")  # type, channel, size of the payload
HEADER_START: Final = Struct(">HHQ")  # of a content header: class, weight, size of the body
EARLY: Final = 64  # a body gets its memory once one part in so many has come
FRAME_TYPES: Final = frozenset({FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT})
PUBLISH: Final = b"\x00\x3c\x00\x28"
ACK: Final = b"\x00\x3c\x00\x50"
_TAG: Final = Struct(">4xQ")
_DELIVERY: Final = Struct(">QB")
_CONTENT: Final = Struct(">cBHIHHQ")  # the method frame's end, then the header frame's beginning
_BODY: Final = Struct(">cBHI")  # the header frame's end, then the body frame's beginning

Frame = tuple[int, int, bytes]
"""Type, channel, payload."""
Content = tuple[bytes, bytes, bytes]
"""Of a publish the payload of its method, of what a server sends exchange and routing key as on the wire; then the
block of properties, and the body."""


def whole_frames(data: Any, at: int, largest: int, most: int, frames: list[Frame]) -> tuple[int, int, Any]:
    """Append the frames that follow each other from `at` on, whole and with payloads of up to `largest` bytes. Returns
    where they end, how many they were, and None.

    With `most` of -1 each stands alone; else frames of one body that stand next to each other are one. They end behind
    the header of a body of up to `most` bytes that has not come whole, but a sixty-fourth of it; then the last in the
    answer is the memory that `fill_body` fills.
    """
    unpack, found, end, begun = FRAME_HEAD.unpack_from, 0, len(data), 0
    cut: list[tuple[int, int, Any]] = []
    while not begun and end - at >= FRAME_OVERHEAD:
        kind, channel, size = unpack(data, at)
        stop = at + 7 + size
        if size > largest or kind not in FRAME_TYPES or stop >= end or data[stop] != FRAME_END:
            break
        cut.append((kind, channel, data[at + 7 : stop]))
        at = stop + 1
        found += 1
        if most > 0 and kind == FRAME_HEADER and size >= HEADER_START.size:
            body = HEADER_START.unpack_from(data, stop - size)[2]
            begun = body if most >= body > end - at >= body // EARLY else 0
    frames += _joined(cut) if most >= 0 else [(kind, channel, bytes(payload)) for kind, channel, payload in cut]
    return at, found, bytearray(begun) if begun else None


def fill_body(
    body: Any, filled: int, left: int, data: Any, at: int, channel: int, largest: int
) -> tuple[int, int, int]:
    """Copy the payloads of this channel's body frames from `at` on into a body of which `filled` bytes are there.
    The present frame lacks `left` bytes; -1: it is between frames. It stops before anything else: another frame, one
    that is longer than what the body lacks, a wrong end. Returns the new `filled`, `left` and `at`.
    """
    while left >= 0 or filled < len(body):
        if left < 0:
            if len(data) - at < FRAME_HEAD.size:
                break
            kind, number, size = FRAME_HEAD.unpack_from(data, at)
            if kind != FRAME_BODY or number != channel or not 0 < size <= min(largest, len(body) - filled):
                break
            left, at = size, at + FRAME_HEAD.size
        here = min(left, len(data) - at)
        body[filled : filled + here] = data[at : at + here]
        filled, left, at = filled + here, left - here, at + here
        if left or at == len(data) or data[at] != FRAME_END:
            break
        left, at = -1, at + 1
    return filled, left, at


def _joined(frames: list[tuple[int, int, Any]]) -> list[Frame]:
    joined: list[Frame] = []
    at, of, left = 0, -1, 0  # the channel whose header came last, and what its content lacks
    while at < len(frames):
        kind, channel, payload = frames[at]
        at += 1
        if kind == FRAME_HEADER and len(payload) >= HEADER_START.size:
            of, left = channel, HEADER_START.unpack_from(payload)[2]
        elif kind == FRAME_BODY and channel == of:
            parts, start = [payload], at
            left -= len(payload)  # below 0: too much, as the frames after it
            while at < len(frames) and frames[at][:2] == (kind, of) and 0 < len(frames[at][2]) <= left:
                parts.append(frames[at][2])
                left -= len(frames[at][2])
                at += 1
            if at > start:
                payload = b"".join(parts)
        joined.append((kind, channel, bytes(payload)))
    return joined


def acks_in_a_row(frames: Sequence[Frame], at: int, most: int) -> list[int]:
    """The delivery tags of up to `most` acks of single messages, all of one channel, that the frames from `at` on begin
    with."""
    tags: list[int] = []
    channel = frames[at][1]
    for index in range(at, min(len(frames), at + most)):
        kind, number, payload = frames[index]
        if kind != FRAME_METHOD or number != channel or payload[:4] != ACK or len(payload) != 13 or payload[12]:
            break
        tags.append(_TAG.unpack_from(payload)[0])
    return tags


def contents_in_a_row(frames: Sequence[Frame], at: int, most: int) -> list[Content]:
    """Up to `most` publishes of one channel that the frames from `at` on begin with, each of three frames: whole."""
    contents: list[Content] = []
    channel = frames[at][1]
    for index in range(at, min(len(frames) - 2, at + 3 * most), 3):
        kind, number, method = frames[index]
        if kind != FRAME_METHOD or number != channel or method[:4] != PUBLISH:
            break
        kind, number, header = frames[index + 1]
        if kind != FRAME_HEADER or number != channel or len(header) < 14:
            break
        kind, number, body = frames[index + 2]
        if not body or kind != FRAME_BODY or number != channel or header[:12] != HEADER_START.pack(60, 0, len(body)):
            break
        contents.append((method, header[12:], body))
    return contents


def deliver_frames(
    channel: int, prefix: bytes, first_tag: int, redelivered: list[bool], contents: list[Content]
) -> bytes:
    """The frames of deliveries by one consumer, whose tags rise by one, each with its body in one frame."""
    pieces: list[bytes] = []
    for tag, flag, (names, properties, body) in zip(count(first_tag), redelivered, contents):
        pieces += (
            FRAME_HEAD.pack(FRAME_METHOD, channel, len(prefix) + 9 + len(names)),
            prefix,
            _DELIVERY.pack(tag, flag),
            names,
            _CONTENT.pack(FRAME_END_BYTE, FRAME_HEADER, channel, 12 + len(properties), 60, 0, len(body)),
            properties,
            _BODY.pack(FRAME_END_BYTE, FRAME_BODY, channel, len(body)),
            body,
            FRAME_END_BYTE,
        )
    return b"".join(pieces)


def plain_properties(block: bytes) -> dict[str, Any] | None:
    """The properties in a block, if they are found at once; None if `decode_properties` has to look."""
    return None
