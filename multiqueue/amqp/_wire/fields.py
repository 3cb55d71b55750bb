"""Field values: the tables, lists and scalars inside methods and properties.

Promise     Bytes decode to values or raise `MalformedFrame`; nothing is read past its end, and nesting is bounded
            before it is followed. An encoded value decodes to an equal one, integers and doubles in full.
Types       Those of RabbitMQ's errata. `S` that is no UTF-8 and `x` are bytes; `L` is signed, as every client writes
            it; a time that no `datetime` holds is the integer. Integers are written as `I` or `l`, floats as `d`,
            where the wire did not bring them otherwise: `encode_table` takes over unchanged bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Final

from ..._carried import DEEPEST, check_depth, decimal_parts, long_string, seconds, short_string, whole_number
from .errors import MalformedFrame

_LONG: Final = Struct(">I")
_LONGLONG: Final = Struct(">Q")
_DECIMAL: Final = Struct(">BI")
_EMPTY_TABLE: Final = bytes(4)

Decoded = tuple[object, int]


def scalar(format: str) -> Callable[[bytes, int], Decoded]:
    codec = Struct(format)

    def decode(data: bytes, at: int) -> Decoded:
        return codec.unpack_from(data, at)[0], at + codec.size

    return decode


def _decode_decimal(data: bytes, at: int) -> Decoded:
    scale, digits = _DECIMAL.unpack_from(data, at)
    return Decimal(digits).scaleb(-scale), at + 5


def decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + 4
    stop = start + _LONG.unpack_from(data, at)[0]
    if stop > len(data):
        raise MalformedFrame(f"a value of {stop - start} bytes, where {len(data) - start} are left")
    return data[start:stop], stop


def _decode_string(data: bytes, at: int) -> Decoded:
    raw, at = decode_bytes(data, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        return raw, at


def _decode_time(data: bytes, at: int) -> Decoded:
    seconds = _LONGLONG.unpack_from(data, at)[0]
    try:
        return datetime.fromtimestamp(seconds, UTC), at + 8
    except (ValueError, OverflowError, OSError):
        return seconds, at + 8


_SCALARS: Final[dict[int, Callable[[bytes, int], Decoded]]] = {
    ord("t"): lambda data, at: (data[at] != 0, at + 1),
    ord("b"): scalar(">b"),
    ord("B"): scalar(">B"),
    ord("s"): scalar(">h"),
    ord("u"): scalar(">H"),
    ord("I"): scalar(">i"),
    ord("i"): scalar(">I"),
    ord("l"): scalar(">q"),
    ord("L"): scalar(">q"),
    ord("f"): scalar(">f"),
    ord("d"): scalar(">d"),
    ord("D"): _decode_decimal,
    ord("S"): _decode_string,
    ord("x"): decode_bytes,
    ord("T"): _decode_time,
    ord("V"): lambda data, at: (None, at),
    0: lambda data, at: (None, at),  # not in the errata, seen in the wild
}
_TABLE: Final = ord("F")
_LIST: Final = ord("A")


def decode_short_string(data: bytes, at: int) -> tuple[str, int]:
    """A string of up to 255 bytes, and where it ends.

    Raises:
        MalformedFrame: it is cut off, or no UTF-8.
    """
    start = at + 1
    try:
        stop = start + data[at]
        if stop > len(data):
            raise MalformedFrame(f"a short string of {data[at]} bytes, where {len(data) - start} are left")
        return data[start:stop].decode(), stop
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"a short string does not decode: {error}") from None


def decode_table(data: bytes, at: int, depth: int = DEEPEST) -> tuple[dict[str, object], int]:
    """A field table, and where it ends. Raises MalformedFrame: it does not decode, or is nested deeper than `depth`."""
    try:
        return _decode_table(data, at, depth)
    except (struct.error, IndexError) as error:
        raise MalformedFrame(f"a field table is cut off: {error}") from None


def _decode_table(data: bytes, at: int, depth: int) -> tuple[dict[str, object], int]:
    at, stop = _bounds(data, at, depth)
    table: dict[str, object] = {}
    while at < stop:
        name, at = decode_short_string(data, at)
        table[name], at = _decode_value(data, at, depth)
    _check_end(at, stop)
    return table, at


def _decode_list(data: bytes, at: int, depth: int) -> tuple[list[object], int]:
    at, stop = _bounds(data, at, depth)
    values: list[object] = []
    while at < stop:
        value, at = _decode_value(data, at, depth)
        values.append(value)
    _check_end(at, stop)
    return values, at


def _bounds(data: bytes, at: int, depth: int) -> tuple[int, int]:
    if depth <= 0:
        raise MalformedFrame("field tables are nested too deep")
    stop = at + 4 + _LONG.unpack_from(data, at)[0]
    if stop > len(data):
        raise MalformedFrame(f"a table or list of {stop - at - 4} bytes, where {len(data) - at - 4} are left")
    return at + 4, stop


def _check_end(at: int, stop: int) -> None:
    if at != stop:
        raise MalformedFrame("a value is longer than the table or list it is in")


def _decode_value(data: bytes, at: int, depth: int) -> Decoded:
    kind = data[at]
    at += 1
    if kind == _TABLE:
        return _decode_table(data, at, depth - 1)
    if kind == _LIST:
        return _decode_list(data, at, depth - 1)
    decode = _SCALARS.get(kind)
    if decode is None:
        raise MalformedFrame(f"field type {bytes([kind])!r} is not known")
    return decode(data, at)


def encode_short_string(text: str) -> bytes:
    """Length and UTF-8. Raises as `short_string`."""
    try:
        raw = text.encode()
        return bytes((len(raw),)) + raw
    except (AttributeError, ValueError):
        short_string(text)  # says what is wrong
        raise


class Long(int):
    """An integer that is written as `l`, however small."""


_Came = tuple[object, bytes]
"""A value as it came over a wire: decoded, and its bytes, the type first."""


def encode_table(table: Mapping[str, object], came: bytes = _EMPTY_TABLE, depth: int = DEEPEST) -> bytes:
    """A field table with its length; a value that is still the one in the table `came` keeps its bytes.

    Raises:
        ValueError: a value that no field type holds, or a table that is nested deeper than `depth`.
    """
    if depth <= 0:
        raise ValueError(f"tables and lists are nested deeper than {DEEPEST}")
    known: dict[str, _Came] = {}
    if len(came) > len(_EMPTY_TABLE):
        check_depth(table, depth)  # before its values are compared with those that came
        known = _pairs(came)
    pieces: list[bytes] = []
    for name, value in table.items():
        pieces.append(encode_short_string(name))
        pieces.append(_encode_value(value, depth, known.get(name)))
    raw = b"".join(pieces)
    return _LONG.pack(len(raw)) + raw


def _pairs(table: bytes) -> dict[str, _Came]:
    found: dict[str, _Came] = {}
    at = 4
    while at < len(table):
        name, at = decode_short_string(table, at)
        start = at
        value, at = _decode_value(table, at, DEEPEST)
        found[name] = value, table[start:at]
    return found


def _encode_list(values: list[object] | tuple[object, ...], depth: int, came: bytes) -> bytes:
    """A list; an element that is among those of a list that came has its bytes from there, wherever it stands now."""
    if depth <= 1:
        raise ValueError(f"tables and lists are nested deeper than {DEEPEST}")
    known: dict[str, bytes] = {}
    at = 4
    while at < len(came):
        start = at
        value, at = _decode_value(came, at, DEEPEST)
        known[repr(value)] = came[start:at]
    raw = b"".join((known and known.get(repr(each))) or _encode_value(each, depth - 1) for each in values)
    return b"A" + _LONG.pack(len(raw)) + raw


def _encode_value(value: object, depth: int, came: _Came | None = None) -> bytes:
    """A value, with as much as possible of the bytes of the one that came in its place."""
    before = b""
    if came is not None:
        if repr(value) == repr(came[0]):  # its type too, and NaN
            return came[1]
        before = came[1]
    if isinstance(value, str):
        raw = long_string(value)
        return b"S" + _LONG.pack(len(raw)) + raw
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return _encode_integer(value)
    if value is None:
        return b"V"
    if isinstance(value, float):
        return struct.pack(">cd", b"d", value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b"x" + _LONG.pack(len(value)) + value
    if isinstance(value, Mapping):
        return b"F" + encode_table(value, before[1:] if before[:1] == b"F" else _EMPTY_TABLE, depth - 1)
    if isinstance(value, list | tuple):
        return _encode_list(value, depth, before[1:] if before[:1] == b"A" else _EMPTY_TABLE)
    if isinstance(value, datetime):
        return b"T" + _LONGLONG.pack(seconds(value))
    if isinstance(value, Decimal):
        return b"D" + _DECIMAL.pack(*decimal_parts(value))
    raise ValueError(f"no field type holds a {type(value).__name__}: {value!r}")


def _encode_integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31 and type(value) is not Long:
        return struct.pack(">ci", b"I", value)
    return struct.pack(">cq", b"l", whole_number(value))
