"""The fifty methods that are not hot: described by pamqp, encoded and decoded by that description.

pamqp (`pamqp.commands`) knows every method's fields and types. The bytes are our own affair (`fields`): strict about
values that are cut off, bounded in depth, in full width for numbers, and without a ban on names that RabbitMQ takes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from pamqp.base import Frame as Command

from .errors import ConnectionFault, MalformedFrame
from .fields import decode_bytes, decode_short_string, decode_table, encode_short_string, encode_table, scalar
from .frames import HotMethod, decode_hot, method_frame

try:
    from pamqp import commands as commands
except ImportError as missing:
    raise ImportError("multiqueue.amqp needs pamqp: pip install 'blocking-multiqueue[amqp]'") from missing


@cache
def _fields(method: Any) -> tuple[tuple[str, str], ...]:
    """Names and types of a method's fields, in wire order."""
    return tuple((name, method.amqp_type(name)) for name in method.__slots__)


def decode_method(payload: bytes) -> HotMethod | Command:
    """The method in a method frame: a tuple of `frames` for a hot one, else an object of `pamqp.commands`.

    Long strings are bytes. A reserved field has what the peer sent.

    Raises:
        MalformedFrame: it does not decode.  ConnectionFault: there is no such method.
    """
    hot = decode_hot(payload)
    if hot is not None:
        return hot
    method: Any = commands.INDEX_MAPPING.get(int.from_bytes(payload[:4]))
    if method is None or len(payload) < 4:
        raise ConnectionFault(503, f"there is no method of {method_name(payload[:4])}")
    command: Command = method.__new__(method)
    try:
        at, bit = 4, 0
        for name, kind in _fields(method):
            if kind == "bit":
                value: object = payload[at] & 1 << bit != 0
                bit += 1
            else:
                at, bit = at + (bit > 0), 0
                value, at = _KINDS[kind].decode(payload, at)
            setattr(command, name, value)
    except (IndexError, struct.error):
        raise MalformedFrame(f"{method.name} is cut off after {len(payload)} bytes") from None
    if at + (bit > 0) != len(payload):
        raise MalformedFrame(f"{len(payload) - at - (bit > 0)} bytes after the last field of {method.name}")
    return command


def method_name(method: bytes) -> str:
    """`Queue.DeclareOk`, for its class and number."""
    known: Any = commands.INDEX_MAPPING.get(int.from_bytes(method))
    return str(known.name) if known else f"class {int.from_bytes(method[:2])}, method {int.from_bytes(method[2:])}"


def encode_method(channel: int, method: Any, /, **fields: Any) -> bytes:
    """The frame of a method, a class of `pamqp.commands`; a field that is not given is zero, empty or false.

        encode_method(1, commands.Queue.DeclareOk, queue="orders", message_count=3, consumer_count=0)

    Raises:
        ValueError: a value does not fit its field.  TypeError: it is of the wrong type, or there is no such field.
    """
    pieces = [method.index.to_bytes(4)]
    bits, count = 0, 0
    for name, kind in _fields(method):
        if kind == "bit":
            bits |= bool(fields.pop(name, False)) << count
            count += 1
            continue
        if count:
            pieces.append(bytes((bits,)))
            bits = count = 0
        field = _KINDS[kind]
        pieces.append(_encode_field(name, field, fields.pop(name, field.zero)))
    if fields:
        raise TypeError(f"{method.name} has no field {', '.join(fields)}")
    if count:
        pieces.append(bytes((bits,)))
    return method_frame(channel, b"".join(pieces))


def _encode_field(name: str, kind: _Kind, value: Any) -> bytes:
    try:
        return kind.encode(value)
    except OverflowError:
        raise ValueError(f"{name} is {value}; it is from 0 to {256 ** len(kind.encode(0)) - 1}") from None
    except (AttributeError, TypeError):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}; {kind.wanted} is needed") from None


class _Kind(NamedTuple):
    """A type of fields: its value where none is given, what is wanted for it, and its bytes."""

    zero: object
    wanted: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], tuple[object, int]]


def _integer(size: int, format: str) -> _Kind:
    return _Kind(0, "a whole number", lambda value: int(value).to_bytes(size), scalar(format))


def _encode_long_string(value: Any) -> bytes:
    raw = value.encode() if isinstance(value, str) else bytes(value)
    return len(raw).to_bytes(4) + raw


_KINDS: Final[Mapping[str, _Kind]] = {  # but for bits, of which eight are one byte
    "octet": _integer(1, ">B"),
    "short": _integer(2, ">H"),
    "long": _integer(4, ">I"),
    "longlong": _integer(8, ">Q"),
    "shortstr": _Kind("", "a string", encode_short_string, decode_short_string),
    "longstr": _Kind(b"", "text or bytes", _encode_long_string, decode_bytes),
    "table": _Kind({}, "a mapping", encode_table, decode_table),
}
