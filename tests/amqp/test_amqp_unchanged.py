"""An unchanged message leaves in the bytes it came in: through dead letters, stores, restarts and rewritten headers."""

from __future__ import annotations

import dataclasses
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from amqp_parts_support import digest, encode_short_string, rewritten, without_header
from amqp_raw_support import RawClient
from broker_parts_support import dead_letter, decode_message, encode_message
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import properties_of
from multiqueue.broker import Broker, DeadLetterReason, Message


def _long(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(4) + content


def _table(pairs: list[tuple[str, bytes]]) -> bytes:
    return b"".join(encode_short_string(name) + value for name, value in pairs)


def _packed(kind: bytes, format: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: kind + struct.pack(format, value))


_scalars = st.one_of(
    st.sampled_from([b"t\0", b"t\1", b"t\2", b"V", b"\0"]),
    _packed(b"b", ">b", st.integers(-128, 127)),
    _packed(b"B", ">B", st.integers(0, 255)),
    _packed(b"s", ">h", st.integers(-(2**15), 2**15 - 1)),
    _packed(b"u", ">H", st.integers(0, 2**16 - 1)),
    _packed(b"I", ">i", st.integers(-(2**31), 2**31 - 1)),
    _packed(b"i", ">I", st.integers(0, 2**32 - 1)),
    _packed(b"l", ">q", st.integers(-(2**63), 2**63 - 1)),
    _packed(b"L", ">q", st.integers(-(2**63), 2**63 - 1)),
    _packed(b"f", ">f", st.floats(width=32)),
    _packed(b"d", ">d", st.floats()),
    _packed(b"T", ">Q", st.integers(0, 2**64 - 1)),
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1)).map(lambda d: struct.pack(">cBI", b"D", *d)),
    st.binary(max_size=12).map(lambda raw: _long(b"S", raw)),
    st.text(max_size=12).map(lambda text: _long(b"S", text.encode())),
    st.binary(max_size=12).map(lambda raw: _long(b"x", raw)),
)
_names = st.text(max_size=8)


def _pairs(inner: st.SearchStrategy[bytes], most: int) -> st.SearchStrategy[list[tuple[str, bytes]]]:
    return st.lists(st.tuples(_names, inner), max_size=most, unique_by=lambda pair: pair[0])


_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: _long(b"A", b"".join(each)))
        | _pairs(inner, 3).map(lambda each: _long(b"F", _table(each)))
    ),
    max_leaves=8,
)
_headers = _pairs(_values, 5)


def block_of(headers: list[tuple[str, bytes]] | None, others: dict[str, Any]) -> bytes:
    """A block of properties: these headers as they stand, None for no table at all."""
    if headers is None:
        return amqp.encode_properties(others)
    placed = amqp.encode_properties({**others, "headers": {}})
    at = 3 + placed[2] if "content_type" in others else 2  # the only one that stands before the headers
    return placed[:at] + _long(b"", _table(headers)) + placed[at + 4 :]


blocks = st.builds(
    block_of,
    st.none() | _headers,
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.text(max_size=8),
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 255),
            "expiration": st.integers(0, 10**9).map(str) | st.just("0060000"),
            "timestamp": st.integers(0, 2**64 - 1),
            "cluster_id": st.text(max_size=8),
            "app_id": st.text(max_size=8),
        },
    ),
)


def came(block: bytes) -> Message:
    """A message as the server makes it."""
    names = encode_short_string("") + encode_short_string("k")
    return amqp.wire_message(b"m", "", "k", names, block, digest(block), None)


@given(blocks)
def test_a_store_gives_back_the_bytes(block: bytes) -> None:
    """A message that was stored and read again has the properties it came with, byte for byte (B61)."""
    back = decode_message(encode_message(came(block)), b"m")
    assert properties_of(back) == block
    assert properties_of(decode_message(encode_message(back), b"m")) == block


_FAR = [("far", struct.pack(">cQ", b"T", 2**63))]  # a time that no clock, and no whole number of AMQP, has


@given(blocks)
@example(block_of(_FAR, {}))
def test_a_copy_keeps_the_bytes(block: bytes) -> None:
    """A message with another address has the properties it came with."""
    assert properties_of(dataclasses.replace(came(block), routing_key="other")) == block


@given(_headers)
@example(_FAR)
def test_a_dead_letter_keeps_every_header(headers: list[tuple[str, bytes]]) -> None:
    """`x-death` is added, in memory and through a store; every header of the publisher's is there in its bytes."""
    where: dict[str, Any] = {"queue": "q", "reason": DeadLetterReason.EXPIRED, "exchange": "", "routing_key": None}
    for message in (came(block_of(headers, {})), decode_message(encode_message(came(block_of(headers, {}))), b"m")):
        letter = dead_letter(message, now=datetime(2026, 1, 1, tzinfo=UTC), **where)
        for each in (letter, decode_message(encode_message(letter), b"m")):
            table = properties_of(each)
            for name, value in headers:
                if name != "x-death":  # a list that the broker adds to
                    assert encode_short_string(name) + value in table, name


def test_a_record_of_deaths_keeps_what_is_not_touched() -> None:
    """A second death changes its own table of the record, and adds to no other; their values keep their types."""
    odd = _long(b"F", _table([("queue", _long(b"S", b"other")), ("count", b"s\0\2"), ("x", b"f" + bytes(4))]))
    message = came(block_of([("x-death", _long(b"A", odd))], {}))
    letter = dead_letter(
        message, queue="q", reason=DeadLetterReason.EXPIRED, exchange="", routing_key=None, now=datetime.now(UTC)
    )
    assert odd in properties_of(letter)


@given(_headers)
@example(_FAR)
def test_a_header_that_is_taken_out_leaves_the_others_alone(headers: list[tuple[str, bytes]]) -> None:
    """BCC goes, and every other header and property stays in its bytes; so it is where a reply address is written."""
    headers = [pair for pair in headers if pair[0] != "BCC"]
    others = {"priority": 3, "reply_to": "a"}
    with_bcc = block_of([("BCC", _long(b"A", b"")), *headers], others)
    assert without_header(with_bcc, "BCC") == block_of(headers, others)
    assert rewritten(with_bcc, reply_to="b") == block_of(
        [("BCC", _long(b"A", b"")), *headers], {**others, "reply_to": "b"}
    )


def test_a_changed_header_is_written_anew() -> None:
    """A value that somebody changed has the type of the new one, and its neighbours in the same table keep theirs."""
    inner = _long(b"F", _table([("a", b"s\0\1"), ("b", b"s\0\2")]))
    message = came(block_of([("n", b"l" + (7).to_bytes(8)), ("t", inner)], {}))
    changed = dataclasses.replace(message, headers={"n": 8, "t": {"a": 1, "b": 3}})
    assert encode_short_string("n") + b"I\0\0\0\x08" in properties_of(changed)
    assert _table([("a", b"s\0\1"), ("b", b"I\0\0\0\x03")]) in properties_of(changed)


# Written by 0.x before messages kept their wire's bytes: properties, and what was delivered for them.
OLD_ROWS: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"k":"orders"}', {"delivery_mode": 2}),
    (b"{}", {"delivery_mode": 2}),
    (b'{"k":"q","h":{"n":7,"f":1.5,"b":{"~b":"//4="}},"v":true}', {"headers": {"n": 7, "f": 1.5, "b": b"\xff\xfe"}}),
    (
        b'{"k":"q","x":"e","p":4,"e":1.5,"ct":"a","ts":7,"h":{"at":{"~t":"2026-01-01T00:00:00+00:00"}}}',
        {
            "content_type": "a",
            "headers": {"at": datetime(2026, 1, 1, tzinfo=UTC)},
            "delivery_mode": 2,
            "priority": 4,
            "expiration": "1500",
            "timestamp": 7,
        },
    ),
]


@pytest.mark.parametrize(("row", "delivered"), OLD_ROWS, ids=range(len(OLD_ROWS)))
def test_rows_of_older_versions_are_read(row: bytes, delivered: dict[str, Any]) -> None:
    """A store that was written before is delivered as it was then."""
    wanted = {"delivery_mode": 1, **delivered}
    assert amqp.decode_properties(properties_of(decode_message(row, b"m"))) == wanted


def test_a_restart_keeps_the_bytes(tmp_path: Path) -> None:
    """Over sockets: a persistent message with odd headers, BCC and no more properties than it needs, before and after
    the broker was closed and opened again; and its dead letter goes to its BCC key, which no consumer was shown."""
    odd = _long(b"", _table([("l", b"l" + (7).to_bytes(8)), ("s", _long(b"S", b"\xff"))]))
    bcc = _long(b"", _table([("BCC", _long(b"A", _long(b"S", b"hidden")))]))[4:]
    sent = b"\x30\x04" + (int.from_bytes(odd[:4]) + len(bcc)).to_bytes(4) + odd[4:] + bcc + b"\x02" + b"\x01c"
    kept = b"\x30\x04" + odd + b"\x02" + b"\x01c"
    with Broker(data=tmp_path) as broker, RawClient(broker.listen().url) as client:
        client.exchange("letters", durable=True)
        client.declare("q", durable=True, arguments={"x-dead-letter-exchange": "letters"})
        client.declare("dead", durable=True)
        client.bind("dead", "letters", "hidden")
        client.send(amqp.encode_publish(1, "", "q", sent, b"m", 131072))
        assert client.ready("q") == 1
    with Broker(data=tmp_path) as broker, RawClient(broker.listen().url) as client:
        client.send_method(1, commands.Basic.Get, queue="q")
        assert isinstance(client.method(), amqp.GetOk)
        header = amqp.decode_header(client.frame_of_channel()[1])
        assert header.properties == kept
        client.frame_of_channel()
        client.nack(1, requeue=False)
        client.consume("dead", no_ack=True)
        assert client.bodies(1) == [b"m"]
