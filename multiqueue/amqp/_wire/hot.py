"""The ten frames that every message costs, encoded and decoded by hand.

Publish, deliver, get-ok, ack, nack, reject, return, and the header, body and heartbeat frames (`frames`). Each
decoder takes the payload of a method frame, the four bytes of class and method included, and returns a
tuple with names. They are some ten times as fast as a codec that walks a description, and tested against one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Final, NamedTuple

from .errors import ConnectionFault, MalformedFrame
from .fields import decode_short_string, encode_short_string
from .frames import (
    FRAME_BODY,
    FRAME_END_BYTE,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_METHOD,
    HEADER_START,
    Frame,
    content_frames,
    method_frame,
)

PUBLISH: Final = b"\x00\x3c\x00\x28"
RETURN: Final = b"\x00\x3c\x00\x32"
DELIVER: Final = b"\x00\x3c\x00\x3c"
GET_OK: Final = b"\x00\x3c\x00\x47"
ACK: Final = b"\x00\x3c\x00\x50"
REJECT: Final = b"\x00\x3c\x00\x5a"
NACK: Final = b"\x00\x3c\x00\x78"

_SETTLEMENT: Final = Struct(">BHI4sQBB")
_TAG_AND_BITS: Final = Struct(">4xQB")
_DELIVERY: Final = Struct(">QB")
_LONG: Final = Struct(">I")

Content = tuple[bytes, bytes, bytes]
"""Of a publish the payload of its method, of what a server sends exchange and routing key as on the wire; then the
block of properties, and the body."""


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


def acks_in_a_row(frames: Sequence[Frame], at: int, most: int) -> list[int]:
    """The delivery tags of up to `most` acks of single messages, all of one channel, that the frames from `at` on begin
    with."""
    tags: list[int] = []
    channel = frames[at][1]
    for index in range(at, min(len(frames), at + most)):
        kind, number, payload = frames[index]
        if kind != FRAME_METHOD or number != channel or payload[:4] != ACK or len(payload) != 13 or payload[12]:
            break
        tags.append(_TAG_AND_BITS.unpack_from(payload)[0])
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
        if kind != FRAME_BODY or number != channel or header[:12] != HEADER_START.pack(60, 0, len(body)):
            break
        contents.append((method, header[12:], body))
    return contents


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


_CONTENT: Final = Struct(">cBHIHHQ")  # the method frame's end, then the header frame's beginning
_BODY: Final = Struct(">cBHI")  # the header frame's end, then the body frame's beginning


def encode_deliver(
    channel: int, prefix: bytes, delivery_tag: int, redelivered: bool, content: Content, frame_max: int
) -> bytes:
    """All frames of a delivery. `prefix` comes from `deliver_prefix`."""
    names, properties, body = content
    size = len(body)
    head = FRAME_HEAD.pack(FRAME_METHOD, channel, len(prefix) + 9 + len(names)) + prefix
    tag = _DELIVERY.pack(delivery_tag, redelivered)
    if 0 < size <= frame_max - 8:  # one join for what nearly every delivery is
        return b"".join(
            (
                head,
                tag,
                names,
                _CONTENT.pack(FRAME_END_BYTE, FRAME_HEADER, channel, 12 + len(properties), 60, 0, size),
                properties,
                _BODY.pack(FRAME_END_BYTE, 3, channel, size),
                body,
                FRAME_END_BYTE,
            )
        )
    return b"".join((head, tag, names, FRAME_END_BYTE, *content_frames(channel, properties, body, frame_max)))


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
