"""What a message becomes in a store, and back."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from broker_parts_support import decode_message, decode_stored, dump, encode_message, load
from hypothesis import given
from hypothesis import strategies as st

from multiqueue.broker import Message

zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.datetimes(timezones=zones)
)
keys = st.text() | st.sampled_from(["~b", "~i", "~m", "~d", "~t", "~"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
texts = st.none() | st.text()


def same(left: object, right: object) -> bool:
    """Equal, and of one type all the way down: True is not 1, 1 is not 1.0, 1.0 is not 1.00."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Decimal | datetime | float):
        return repr(left) == repr(right) or (isinstance(left, datetime) and left.isoformat() == right.isoformat())  # type: ignore[attr-defined]
    return left == right


@given(values)
def test_values_come_back_as_they_were(value: object) -> None:
    """Everything that an AMQP table can hold keeps its value and its type."""
    text = dump(value)
    assert text.isascii()
    assert same(load(text), value)
    assert same(load(text.encode()), value)


@given(
    st.builds(
        Message,
        st.binary(),
        routing_key=st.text(),
        exchange=st.text(),
        headers=st.dictionaries(keys, values, max_size=3),
        persistent=st.booleans(),
        priority=st.none() | st.integers(),
        expiration=st.none() | st.floats(0, 1e9),
        delay=st.none() | st.floats(0, 1e9),
        content_type=texts,
        content_encoding=texts,
        correlation_id=texts,
        reply_to=texts,
        message_id=texts,
        timestamp=st.none() | st.floats(0, 1e12) | st.integers(),
        type=texts,
        user_id=texts,
        app_id=texts,
    ),
    st.booleans(),
)
def test_messages_come_back_as_they_were(message: Message, in_doubt: bool) -> None:
    """Every property, set to anything or left alone."""
    properties = encode_message(message, in_doubt=in_doubt)
    back, *rest = decode_stored(properties, message.body)  # type: ignore[arg-type]
    assert rest == [None, in_doubt]
    assert same(dict(back.headers), dict(message.headers))
    for name in set(Message.__slots__) - {"headers"}:
        assert same(getattr(back, name), getattr(message, name)), name


def test_a_usual_message_takes_few_bytes() -> None:
    """What is as usual is not written."""
    assert encode_message(Message(b"body", routing_key="orders", persistent=True)) == b'{"k":"orders"}'
    assert encode_message(Message(persistent=True)) == b"{}"


def test_numbers_may_be_of_any_size() -> None:
    """Python refuses to write or read more than 4300 digits in decimal; here they are hexadecimal."""
    for number in (10**5000, -(10**5000), 2**63, -(2**63)):
        assert load(dump([number])) == [number]


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    pass


def test_subclasses_and_views_come_back_as_plain_values() -> None:
    """What only looks different in Python is the same on a wire."""
    value: Any = {Name("who"): (Colour.RED, Name("a"), bytearray(b"b"), memoryview(b"c"), MappingProxyType({"d": 1}))}
    back = load(dump(value))
    assert back == {"who": [1, "a", b"b", b"c", {"d": 1}]}
    assert same(back, {"who": [1, "a", b"b", b"c", {"d": 1}]})


@pytest.mark.parametrize("deeper", [lambda value: [value], lambda value: {"a": value}])
def test_what_is_nested_too_deep_is_refused_as_what_cannot_be_stored(deeper: Callable[[object], object]) -> None:
    """Not by a recursion without an end: 64 tables and lists within each other are kept, and 5,000 are not."""
    value: object = 1
    for _ in range(64):
        value = deeper(value)
    assert load(dump(value)) == value
    for _ in range(5000):
        value = deeper(value)
    with pytest.raises(TypeError, match="too many tables and lists within each other to be stored"):
        dump(value)


def test_a_value_that_cannot_be_kept_says_where_it_stands() -> None:
    """The error names the place, the value and its type."""
    with pytest.raises(TypeError, match=r"headers\['a'\]\[1\]\['b'\] is \{1\}, a set, which cannot be stored"):
        encode_message(Message(headers={"a": [0, {"b": {1}}]}))
    with pytest.raises(TypeError, match=r"a key of headers\['a'\] is 1, a int; keys are strings"):
        encode_message(Message(headers={"a": {1: 2}}))
    with pytest.raises(TypeError, match="a value is <object"):
        dump(object())


def test_what_is_no_message_is_refused() -> None:
    """Bytes that the codec did not write are an error, not an empty message."""
    for properties in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            decode_message(properties, b"")


def test_a_property_of_a_later_version_is_passed_over() -> None:
    """A store that a later version wrote in the same format can be read."""
    assert decode_message(b'{"k":"a","zz":1}', b"").routing_key == "a"


def test_times_keep_their_offset() -> None:
    """A moment with a zone is the same moment, and no zone stays none."""
    moments = [datetime(2026, 3, 29, 2, 30), datetime(2026, 3, 29, 2, 30, tzinfo=UTC)]
    assert load(dump(moments)) == moments


def test_until_when_a_message_was_held_is_read_from_its_properties() -> None:
    """Stores up to format 3 have it there."""
    assert decode_stored(b'{"k":"orders","u":1700000000.5}', b"body").held_until == 1700000000.5
