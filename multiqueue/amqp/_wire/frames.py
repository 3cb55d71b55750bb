"""Frames: where one ends and the next begins, when one is due, and the ten that messages are made of.

Promise     Bytes in, whole frames out, however the bytes were cut. What cannot be a frame raises `FrameError` as soon
            as its first seven bytes show it: a peer that announces more than `frame_max` is refused before any
            of it is kept. So the splitter never holds more than one frame and what arrived with it. With `in_pieces`
            it hands out a large body frame as it comes, each piece a body frame, so that no byte of it is joined to
            the next read. The last piece comes when the frame's end was seen. Body frames are cut and joined; what is
            one for the peer need not be one here. A body of up to `most_body` bytes that a large read begins is copied
            into memory of its size, as it comes, and handed out as one; it has this memory once 1/64 of it is there.
State       The beginning of a frame that has not come whole, what a body frame lacks, or a body that is put together.
            One thread uses a splitter.
By hand     Publish, deliver, get-ok, ack, nack, reject, return, and the header, body and heartbeat frames. Each decoder
            takes the payload of a method frame, the four bytes of class and method included, and returns a tuple with
            names. They are some ten times as fast as a codec that walks a description, and tested against one.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any, Final, NamedTuple

from .errors import ConnectionFault, FrameError, MalformedFrame
from .fields import decode_short_string, encode_short_string
from .hot import acks_in_a_row as acks_in_a_row
from .hot import contents_in_a_row as contents_in_a_row
from .hot import deliver_frames as deliver_frames
from .hot import fill_body, whole_frames
from .plain import ACK as ACK
from .plain import FRAME_BODY as FRAME_BODY
from .plain import FRAME_END as FRAME_END
from .plain import FRAME_END_BYTE as FRAME_END_BYTE
from .plain import FRAME_HEAD as FRAME_HEAD
from .plain import FRAME_HEADER as FRAME_HEADER
from .plain import FRAME_HEARTBEAT as FRAME_HEARTBEAT
from .plain import FRAME_METHOD as FRAME_METHOD
from .plain import FRAME_OVERHEAD as FRAME_OVERHEAD
from .plain import FRAME_TYPES as FRAME_TYPES
from .plain import HEADER_START as HEADER_START
from .plain import PUBLISH as PUBLISH
from .plain import Content as Content
from .plain import Frame as Frame

MIN_FRAME_MAX: Final = 4096  # the least a peer may ask for, and what holds until it has asked
DEFAULT_FRAME_MAX: Final = 131072
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# What older clients begin with, and the version that they are told; as RabbitMQ, they get 0-9-1 all the same.
PROTOCOL_HEADERS: Final = {PROTOCOL_HEADER: (0, 9), b"AMQP\x01\x01\x00\x09": (0, 9)}
OLD_PROTOCOL_HEADERS: Final = {b"AMQP\x01\x01\x09\x01": (8, 0), b"AMQP\x01\x01\x08\x00": (8, 0)}

_PIECE: Final = 16 * 1024  # bytes; of a body frame less than that is not handed out: a peer may send single bytes
_MUCH: Final = 64 * 1024  # and of a read of so many, any piece is


class FrameSplitter:
    """Cuts a stream of bytes into frames; `frame_max` bounds the payload of one.

    By the specification it bounds the whole frame, and that is how large ours are. But AMQPStorm and rabbitpy fill
    payloads with it, and RabbitMQ takes them.
    """

    def __init__(self, frame_max: int = DEFAULT_FRAME_MAX, *, in_pieces: bool = False) -> None:
        self.frame_max = frame_max
        self.most_body: int = 0  # bytes of a body that is put together here, of large reads
        self._least_piece = _PIECE if in_pieces else 1 << 62
        self.frame_bytes: int = 0  # of a frame of the last ones, on average
        self._rest = b""
        self._left = 0  # bytes of a body frame's payload that come before anything else; at least 1 if it has begun
        self._channel = 0  # of that frame, or of the body
        self._body: Any = None  # memory of a body's size; bytes that nobody else has, or without C a bytearray
        self._filled, self._lacks = 0, -1  # bytes of it that are there, and that its present frame lacks; -1: in none

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that are whole now, and the pieces of a body frame that have come, in order.

        Of a view nothing is kept: each payload is copied out of it once, as suits large ones.

        Raises:
            FrameError: the bytes are no frame. `frames` of the error are those that were whole before it; the
                splitter is of no further use.
        """
        frames: list[Frame] = []
        most = -1 if type(data) is bytes else self.most_body
        if self._rest:
            data = b"".join((self._rest, data))
        at, count, end = 0, 0, len(data)
        if self._left:
            at = self._go_on(data, frames)
            count = len(frames)
        while not self._left:
            if self._body is not None:
                at = self._fill(data, at, frames)
                if self._body is not None:
                    break
                count += 1
            at, more, self._body = whole_frames(data, at, self.frame_max, most, frames)
            count += more
            if self._body is not None:
                self._filled, self._channel = 0, frames[-1][1]
                continue
            if end - at >= 7:
                count += self._begin(data, at, frames)
                at = end if self._left else at
            break
        self._rest = bytes(data[at:])
        if frames:
            self.frame_bytes = end // max(count, 1)
        return frames

    def _fill(self, data: Any, at: int, frames: list[Frame]) -> int:
        """Copy what has come of the body; returns where in `data` that ends. A body that is whole is handed out. So is
        the part that has come, where another frame comes between."""
        body, channel = self._body, self._channel
        largest = min(self.frame_max, len(body))
        filled, lacks, at = fill_body(body, self._filled, self._lacks, data, at, channel, largest)
        left = len(data) - at
        if lacks >= 0 and left:
            raise FrameError(_wrong_end("body frame", channel, data[at]), frames)
        self._filled, self._lacks = filled, lacks
        is_whole = filled == len(body)
        if lacks < 0 and (is_whole or left >= FRAME_HEAD.size):
            self._body = None
            frames.append((FRAME_BODY, channel, bytes(body if is_whole else body[:filled])))
        return at

    def _begin(self, data: Any, at: int, frames: list[Frame]) -> bool:
        """Check a frame that has not come whole. True: it is of a body, and the part that came is in `frames`."""
        kind, channel, size = FRAME_HEAD.unpack_from(data, at)
        if size > self.frame_max or kind not in FRAME_TYPES:
            raise FrameError(self._describe(kind, channel, size), frames)
        end, stop = len(data), at + 7 + size
        if stop < end:
            raise FrameError(_wrong_end(f"frame of {size} bytes", channel, data[stop]), frames)
        least = self._least_piece if end < _MUCH else min(self._least_piece, 1)
        if kind != FRAME_BODY or end - at - 7 < least or stop == end:
            return False
        frames.append((kind, channel, bytes(data[at + 7 :])))
        self._left, self._channel = stop - end, channel
        return True

    def _go_on(self, data: Any, frames: list[Frame]) -> int:
        """Hand out what has come of a body frame; how many bytes of `data` that were."""
        left = self._left
        if len(data) > left:
            if data[left] != FRAME_END:
                raise FrameError(_wrong_end("body frame", self._channel, data[left]), frames)
            frames.append((FRAME_BODY, self._channel, bytes(data[:left])))
            self._left = 0
            return left + 1
        if not _PIECE <= len(data) < left:
            return 0
        frames.append((FRAME_BODY, self._channel, bytes(data)))
        self._left -= len(data)
        return len(data)

    @property
    def pending_bytes(self) -> int:
        """How many bytes of a frame that is not whole have come, at least; 0 before the first byte of a frame."""
        return len(self._rest) or min(self._left, 1) or min(self._lacks + 1, 1)

    @property
    def begun_bytes(self) -> int:
        """How many bytes have come of a body that is not handed out yet."""
        return 0 if self._body is None else self._filled

    def _describe(self, kind: int, channel: int, size: int) -> str:
        if kind not in FRAME_TYPES:
            return f"type {kind} is no frame type"
        return f"frame with {size} bytes of payload on channel {channel} is too large, frame_max is {self.frame_max}"


def _wrong_end(what: str, channel: int, found: int) -> str:
    return f"{what} on channel {channel} ends with {found:#04x}, not 0xce"


class HeartbeatMonitor:
    """The silence of the peer, in half periods. Driven by `tick`, once per half a period.

    Any frame counts as a heartbeat. A peer that sent nothing for two whole periods is gone. We send a heartbeat with
    every tick, even if other frames were sent: one that was left out for something sent just after the last tick would
    leave a whole period without a byte. Any thread sets `heard`; one that is lost because `tick` resets it then costs
    half a period of the four.
    """

    __slots__ = ("_silent", "heard")

    def __init__(self) -> None:
        self.heard: bool = True  # something came since the last tick
        self._silent = 0

    def tick(self, *, listening: bool) -> bool:
        """Whether the peer is gone; if it is not, send a heartbeat. A peer we do not read is not judged."""
        self._silent = 0 if self.heard or not listening else self._silent + 1
        self.heard = False
        return self._silent >= 4


RETURN: Final = b"\x00\x3c\x00\x32"
DELIVER: Final = b"\x00\x3c\x00\x3c"
GET_OK: Final = b"\x00\x3c\x00\x47"
REJECT: Final = b"\x00\x3c\x00\x5a"
NACK: Final = b"\x00\x3c\x00\x78"

_SETTLEMENT: Final = Struct(">BHI4sQBB")
_TAG_AND_BITS: Final = Struct(">4xQB")
_DELIVERY: Final = Struct(">QB")
_LONG: Final = Struct(">I")


class Publish(NamedTuple):
    """`basic.publish`."""

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool


class Deliver(NamedTuple):
    """`basic.deliver`."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class GetOk(NamedTuple):
    """`basic.get-ok`."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


class Return(NamedTuple):
    """`basic.return`."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class Ack(NamedTuple):
    """`basic.ack`."""

    delivery_tag: int
    multiple: bool


class Nack(NamedTuple):
    """`basic.nack`."""

    delivery_tag: int
    multiple: bool
    requeue: bool


class Reject(NamedTuple):
    """`basic.reject`."""

    delivery_tag: int
    requeue: bool


Settlement = Ack | Nack | Reject


class ContentHeader(NamedTuple):
    """A header frame; `properties` are its flags and values as they were on the wire."""

    class_id: int
    body_size: int
    properties: bytes


# Decoding


def _decode_publish(payload: bytes) -> Publish:
    exchange, at = decode_short_string(payload, 6)  # after class, method and a reserved short
    routing_key, at = decode_short_string(payload, at)
    bits = payload[at]
    _check_end(payload, at + 1)
    return Publish(exchange, routing_key, bits & 1 != 0, bits & 2 != 0)


def _decode_deliver(payload: bytes) -> Deliver:
    consumer_tag, at = decode_short_string(payload, 4)
    tag, bits = _DELIVERY.unpack_from(payload, at)
    exchange, at = decode_short_string(payload, at + 9)
    routing_key, at = decode_short_string(payload, at)
    return Deliver(consumer_tag, tag, bits & 1 != 0, exchange, routing_key)


def _decode_get_ok(payload: bytes) -> GetOk:
    tag, bits = _TAG_AND_BITS.unpack_from(payload)
    exchange, at = decode_short_string(payload, 13)
    routing_key, at = decode_short_string(payload, at)
    return GetOk(tag, bits & 1 != 0, exchange, routing_key, _LONG.unpack_from(payload, at)[0])


def _decode_return(payload: bytes) -> Return:
    code = int.from_bytes(payload[4:6])
    text, at = decode_short_string(payload, 6)
    exchange, at = decode_short_string(payload, at)
    routing_key, at = decode_short_string(payload, at)
    return Return(code, text, exchange, routing_key)


def _decode_settlement(payload: bytes) -> Settlement:
    tag, bits = _TAG_AND_BITS.unpack_from(payload)
    _check_end(payload, 13)
    if payload[:4] == NACK:
        return Nack(tag, bits & 1 != 0, bits & 2 != 0)
    return (Ack if payload[:4] == ACK else Reject)(tag, bits & 1 != 0)


def _check_end(payload: bytes, at: int) -> None:
    if len(payload) != at:
        raise MalformedFrame(f"{len(payload) - at} bytes after the last field of method {payload[:4].hex()}")


HotMethod = Publish | Deliver | GetOk | Return | Settlement

_DECODERS: Final[dict[bytes, Callable[[bytes], HotMethod]]] = {
    PUBLISH: _decode_publish,
    DELIVER: _decode_deliver,
    GET_OK: _decode_get_ok,
    RETURN: _decode_return,
    **dict.fromkeys((ACK, NACK, REJECT), _decode_settlement),
}


def decode_hot(payload: bytes) -> HotMethod | None:
    """The hot method in this payload; None when it holds another one.

    Raises:
        MalformedFrame: it is cut off, a string is no UTF-8, or bytes follow in one that a client sends.
    """
    decode = _DECODERS.get(payload[:4])
    if decode is None:
        return None
    try:
        return decode(payload)
    except (error, IndexError):
        raise MalformedFrame(f"method {payload[:4].hex()} is cut off after {len(payload)} bytes") from None


def decode_header(payload: bytes) -> ContentHeader:
    """The header frame's size of body, and its properties as they are.

    Raises:
        MalformedFrame: it is cut off.  ConnectionFault: its weight is not 0.
    """
    if len(payload) < 14:
        raise MalformedFrame(f"a content header of {len(payload)} bytes; the least is 14")
    class_id, weight, body_size = HEADER_START.unpack_from(payload)
    if weight:
        raise ConnectionFault(505, f"expected a content header of weight 0, got one of weight {weight} instead")
    return ContentHeader(class_id, body_size, payload[12:])


# Encoding


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


def encode_settlement(channel: int, settled: Settlement) -> bytes:
    """The frame of one of the three."""
    bits: int
    if isinstance(settled, Ack):
        method, bits = ACK, settled.multiple
    elif isinstance(settled, Nack):
        method, bits = NACK, settled.multiple | settled.requeue << 1
    else:
        method, bits = REJECT, settled.requeue
    return _SETTLEMENT.pack(FRAME_METHOD, channel, 13, method, settled.delivery_tag, bits, 0xCE)


def encode_publish(
    channel: int,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes,
    frame_max: int,
    *,
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    """All frames of a publish. `properties` come from `encode_properties`.

    Raises:
        ValueError: a name of more than 255 bytes.
    """
    payload = encode_publish_method(exchange, routing_key, mandatory=mandatory, immediate=immediate)
    return _encode(channel, payload, properties, body, frame_max)


def encode_publish_method(
    exchange: str, routing_key: str, *, mandatory: bool = False, immediate: bool = False
) -> bytes:
    """The payload of a publish's method frame. Raises as `encode_publish`."""
    names = encode_short_string(exchange) + encode_short_string(routing_key)
    return PUBLISH + b"\x00\x00" + names + bytes((mandatory | immediate << 1,))


def _encode(channel: int, payload: bytes, properties: bytes, body: bytes, frame_max: int) -> bytes:
    return b"".join((method_frame(channel, payload), *content_frames(channel, properties, body, frame_max)))


def deliver_prefix(consumer_tag: str) -> bytes:
    """The part of a delivery that is the same for all of a consumer's: keep it."""
    return DELIVER + encode_short_string(consumer_tag)


def encode_deliver(
    channel: int, prefix: bytes, delivery_tag: int, redelivered: bool, content: Content, frame_max: int
) -> bytes:
    """All frames of a delivery. `prefix` comes from `deliver_prefix`."""
    return b"".join(deliver_pieces(channel, prefix, delivery_tag, redelivered, content, frame_max))


def deliver_pieces(
    channel: int, prefix: bytes, delivery_tag: int, redelivered: bool, content: Content, frame_max: int
) -> list[bytes | memoryview]:
    """As `encode_deliver`, in pieces that are to be joined; the body is not copied."""
    names, properties, body = content
    method = method_frame(channel, prefix + _DELIVERY.pack(delivery_tag, redelivered) + names)
    return [method, *content_frames(channel, properties, body, frame_max)]


def encode_get_ok(
    channel: int, delivery_tag: int, redelivered: bool, message_count: int, content: Content, frame_max: int
) -> bytes:
    """All frames of a `basic.get-ok`."""
    names, properties, body = content
    payload = GET_OK + _DELIVERY.pack(delivery_tag, redelivered) + names + _LONG.pack(message_count)
    return _encode(channel, payload, properties, body, frame_max)


def encode_return(channel: int, reply_code: int, reply_text: str, content: Content, frame_max: int) -> bytes:
    """All frames of a `basic.return`."""
    names, properties, body = content
    payload = RETURN + reply_code.to_bytes(2) + encode_short_string(reply_text) + names
    return _encode(channel, payload, properties, body, frame_max)
