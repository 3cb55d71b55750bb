"""The properties of a content header: flags, then the values whose flag is set, in one order.

A block of properties stays bytes until somebody must look inside. `decode_properties` gives the present properties as a
dictionary; `encode_properties` makes a block. The words are the specification's, with underscores.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict, cast

from .errors import MalformedFrame
from .fields import decode_short_string, decode_table, encode_short_string, encode_table, scalar
from .hot import plain_properties

FLAG_HEADERS: Final = 0x2000
FLAG_DELIVERY_MODE: Final = 0x1000
FLAG_EXPIRATION: Final = 0x0100
FLAG_CLUSTER_ID: Final = 0x0004
NO_PROPERTIES: Final = b"\x00\x00"


class Properties(TypedDict, total=False):
    """Those that are set. `expiration` is milliseconds as text, `timestamp` seconds since 1970."""

    content_type: str
    content_encoding: str
    headers: Mapping[str, object]
    delivery_mode: int
    priority: int
    correlation_id: str
    reply_to: str
    expiration: str
    message_id: str
    timestamp: int
    type: str
    user_id: str
    app_id: str
    cluster_id: str


def _encode_octet(value: int) -> bytes:
    if isinstance(value, bool):
        raise TypeError
    if not 0 <= value <= 255:
        raise ValueError(f"{value} does not fit in an octet: from 0 to 255")
    return bytes((value,))


def _encode_timestamp(value: float) -> bytes:
    if isinstance(value, bool):
        raise TypeError
    if not 0 <= value < 2**64:
        raise ValueError(f"{value} is not a time in seconds since 1970")
    return int(value).to_bytes(8)


_Kind = tuple[str, Callable[[Any], bytes], Callable[[bytes, int], tuple[Any, int]]]  # wanted, encoder, decoder
_TEXT: Final[_Kind] = ("a string", encode_short_string, decode_short_string)
_OCTET: Final[_Kind] = ("a whole number", _encode_octet, scalar(">B"))
_TABLE: Final[_Kind] = ("a mapping", encode_table, decode_table)
_TIME: Final[_Kind] = ("a number of seconds since 1970", _encode_timestamp, scalar(">Q"))
# Flag, name and kind, in wire order.
_FIELDS: Final[tuple[tuple[int, str, _Kind], ...]] = (
    (0x8000, "content_type", _TEXT),
    (0x4000, "content_encoding", _TEXT),
    (FLAG_HEADERS, "headers", _TABLE),
    (FLAG_DELIVERY_MODE, "delivery_mode", _OCTET),
    (0x0800, "priority", _OCTET),
    (0x0400, "correlation_id", _TEXT),
    (0x0200, "reply_to", _TEXT),
    (FLAG_EXPIRATION, "expiration", _TEXT),
    (0x0080, "message_id", _TEXT),
    (0x0040, "timestamp", _TIME),
    (0x0020, "type", _TEXT),
    (0x0010, "user_id", _TEXT),
    (0x0008, "app_id", _TEXT),
    (FLAG_CLUSTER_ID, "cluster_id", _TEXT),
)


def property_flags(data: bytes) -> int:
    return int.from_bytes(data[:2])


def decode_properties(data: bytes) -> Properties:
    """The properties that are set in a block.

    Raises:
        MalformedFrame: it is cut off, does not decode, or goes on after its last value.
    """
    known = plain_properties(data)
    if known is not None:
        return cast(Properties, known)
    found: dict[str, object] = {}
    try:
        flags = data[0] << 8 | data[1]
        at = 2
        if flags & 0x3:  # a second word of flags would follow, of properties that do not exist
            raise MalformedFrame(f"property flags {flags:#06x} are not known")
        for flag, name, (_, _, decode) in _FIELDS:
            if flags & flag:
                found[name], at = decode(data, at)
    except (struct.error, IndexError):
        raise MalformedFrame(f"properties are cut off after {len(data)} bytes") from None
    if at != len(data):
        raise MalformedFrame(f"{len(data) - at} bytes after the last property")
    return cast(Properties, found)


def encode_properties(properties: Mapping[str, object], came: bytes = NO_PROPERTIES) -> bytes:
    """A block of these properties; None is not set. Headers that are still those of the block `came` keep their bytes.

    Raises:
        ValueError: a value does not fit.  TypeError: it is of the wrong type, or there is no property of a name.
    """
    flags = 0
    pieces = [b""]
    left = len(properties)
    for flag, name, (wanted, encode, _) in _FIELDS:
        if name in properties:
            left -= 1
            value: Any = properties[name]
            if value is not None:
                flags |= flag
                try:
                    is_table = encode is encode_table
                    pieces.append(encode_table(value, headers_in(came)) if is_table else encode(value))
                except ValueError as error:
                    raise ValueError(f"property {name}: {error}") from None
                except (AttributeError, TypeError):
                    found = f"property {name} is {value!r}, a {type(value).__name__}"
                    raise TypeError(f"{found}; {wanted} is needed") from None
    if left:
        unknown = properties.keys() - Properties.__annotations__.keys()
        raise TypeError(f"there is no property {', '.join(sorted(unknown))}")
    pieces[0] = flags.to_bytes(2)
    return b"".join(pieces)


def headers_in(data: bytes) -> bytes:
    """The encoded table of headers in a block that is known to decode; an empty one where the message has none."""
    flags, at = property_flags(data), 2
    if not flags & FLAG_HEADERS:
        return bytes(4)
    for flag in (0x8000, 0x4000):  # content type and encoding stand before it
        if flags & flag:
            at += 1 + data[at]
    return data[at : at + 4 + int.from_bytes(data[at : at + 4])]


def rewritten(data: bytes, **changes: object) -> bytes:
    """The block with other values for some properties, None for none. The headers keep their bytes where they can."""
    return encode_properties({**decode_properties(data), **changes}, data)
