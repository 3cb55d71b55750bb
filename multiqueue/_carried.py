"""What AMQP 0-9-1 can carry: the limits that every way into the broker keeps to, so that every stored message can be
sent.

The wire's encoders are made of these functions, and its decoders bound incoming values. HTTP, definitions,
configuration and Python's API bring values of any kind: the broker checks them here before it keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

SHORT_BYTES: Final = 255  # of a short string: names, routing keys, names in tables, most properties
DEEPEST: Final = 32  # tables and lists within each other; RabbitMQ's own headers need three
_BITS: Final = 64  # of a whole number, with its sign
_MOST_DIGITS: Final = 2**32 - 1  # of a decimal, which has no sign
_MOST_PLACES: Final = 255


def short_string(text: str) -> bytes:
    """The UTF-8 of a short string. Raises ValueError: it has none, or too many bytes. TypeError: it is no string."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is of type {type(text).__name__}; a string is needed")
    raw = long_string(text)
    if len(raw) > SHORT_BYTES:
        raise ValueError(f"{text[:40]!r}... has {len(raw)} bytes; {SHORT_BYTES} are the most")
    return raw


def long_string(text: str) -> bytes:
    """The UTF-8 of a string. Raises ValueError: it has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[:40]!r} is no Unicode text: character {error.start} is a surrogate") from None


def whole_number(value: int) -> int:
    """The number itself. Raises ValueError: it has too many bits."""
    if value.bit_length() >= _BITS and value != -(1 << _BITS - 1):
        raise ValueError(f"a whole number of {value.bit_length() + 1} bits; {_BITS} are the most")
    return value


def decimal_parts(value: Decimal) -> tuple[int, int]:
    """A decimal's places and its digits as a whole number. Raises ValueError: it has a sign, or too many of them."""
    sign, _, exponent = value.as_tuple()
    if not sign and isinstance(exponent, int) and -_MOST_PLACES <= exponent <= 9:
        whole = int(value.scaleb(max(-exponent, 0)))
        if whole <= _MOST_DIGITS:
            return max(-exponent, 0), whole
    raise ValueError(f"decimal {value} does not fit; 0 to {_MOST_DIGITS} with {_MOST_PLACES} places at most")


def seconds(value: datetime) -> int:
    """A time as seconds since 1970, and no less. Raises ValueError: this machine cannot count them."""
    try:
        return max(int(value.timestamp()), 0)
    except (OverflowError, OSError) as error:
        raise ValueError(f"time {value} does not fit: {error}") from None


def check_depth(value: object, depth: int = DEEPEST) -> None:
    """Nothing, when tables and lists are not nested too deep in a value. Raises ValueError: they are."""
    if isinstance(value, Mapping | list | tuple):
        if depth <= 0:
            raise ValueError(f"tables and lists are nested deeper than {DEEPEST}")
        for each in value.values() if isinstance(value, Mapping) else value:
            check_depth(each, depth - 1)


def check_value(value: object) -> None:
    """Nothing, when a table can have this value; a table itself is one.

    Raises:
        ValueError, TypeError: it cannot.
    """
    check_depth(value)
    _check_content(value)


def _check_content(value: object) -> None:
    if isinstance(value, str):
        long_string(value)
    elif isinstance(value, int):
        whole_number(value)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            short_string(name)
            _check_content(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_content(each)
    elif isinstance(value, Decimal):
        decimal_parts(value)
    elif isinstance(value, datetime):
        seconds(value)
    elif value is not None and not isinstance(value, float | bytes):
        raise TypeError(f"a {type(value).__name__} cannot be in a table: {value!r}")
