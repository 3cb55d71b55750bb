"""The codec against pamqp as oracle, and against bytes that no client would send."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from amqp_parts_support import (
    FrameError,
    MalformedFrame,
    decode_table,
    deliver_prefix,
    encode_ack,
    encode_deliver,
    encode_get_ok,
    encode_nack,
    encode_reject,
    encode_return,
    encode_short_string,
)
from amqp_parts_support import frames as _frames
from amqp_parts_support import methods as _methods
from amqp_strategies_support import octets, properties, short_text, tables
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from pamqp import body as pamqp_body
from pamqp import commands, frame, header

from multiqueue import amqp
from multiqueue.broker import PreconditionFailed, VirtualHost

channels = st.integers(0, 65535)
tags = st.integers(0, 2**63 - 1)
# Names that pamqp takes too.
names = st.text("abcXYZ019-_.:@#,/+ ", max_size=60)


def feed_view(splitter: amqp.FrameSplitter, data: bytes) -> list[tuple[int, int, bytes]]:
    """Feed a view of a buffer that holds other bytes afterwards, as the one that a server reads into."""
    buffer = bytearray(data)
    try:
        return splitter.feed(memoryview(buffer))
    finally:
        buffer[:] = bytes(len(buffer))


def first_payload(data: bytes) -> bytes:
    return amqp.FrameSplitter().feed(data)[0][2]


@given(channels, names, names, st.booleans(), st.booleans())
def test_publish_is_what_the_oracle_reads_and_writes(
    channel: int, exchange: str, key: str, mandatory: bool, immediate: bool
) -> None:
    """A publish of ours is pamqp's, and the reverse."""
    theirs = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
    marshalled = frame.marshal(theirs, channel)
    assert amqp.decode_method(first_payload(marshalled)) == (exchange, key, mandatory, immediate)
    ours = amqp.encode_publish(
        channel, exchange, key, amqp.NO_PROPERTIES, b"", 131072, mandatory=mandatory, immediate=immediate
    )
    assert ours.startswith(marshalled)


@given(channels, tags, st.booleans(), st.booleans())
def test_settlements_are_what_the_oracle_reads_and_writes(channel: int, tag: int, first: bool, second: bool) -> None:
    """Ack, nack and reject of ours are pamqp's, and the reverse."""
    pairs: list[tuple[Any, bytes, tuple[object, ...]]] = [
        (commands.Basic.Ack(tag, first), encode_ack(channel, tag, first), (tag, first)),
        (commands.Basic.Nack(tag, first, second), encode_nack(channel, tag, first, second), (tag, first, second)),
        (commands.Basic.Reject(tag, first), encode_reject(channel, tag, first), (tag, first)),
    ]
    for theirs, ours, decoded in pairs:
        assert ours == frame.marshal(theirs, channel)
        assert amqp.decode_method(first_payload(ours)) == decoded


@given(channels, names, tags, st.booleans(), names, names, st.integers(0, 2**32 - 1), st.integers(200, 599))
def test_content_methods_are_what_the_oracle_reads_and_writes(
    channel: int, consumer: str, tag: int, redelivered: bool, exchange: str, key: str, count: int, code: int
) -> None:
    """Deliver, get-ok and return of ours are pamqp's, and the reverse."""
    content = (encode_short_string(exchange) + encode_short_string(key), amqp.NO_PROPERTIES, b"")
    pairs: list[tuple[Any, bytes, tuple[object, ...]]] = [
        (
            commands.Basic.Deliver(consumer, tag, redelivered, exchange, key),
            encode_deliver(channel, deliver_prefix(consumer), tag, redelivered, content, 4096),
            (consumer, tag, redelivered, exchange, key),
        ),
        (
            commands.Basic.GetOk(tag, redelivered, exchange, key, count),
            encode_get_ok(channel, tag, redelivered, count, content, 4096),
            (tag, redelivered, exchange, key, count),
        ),
        (
            commands.Basic.Return(code, "why", exchange, key),
            encode_return(channel, code, "why", content, 4096),
            (code, "why", exchange, key),
        ),
    ]
    for theirs, ours, decoded in pairs:
        assert ours.startswith(frame.marshal(theirs, channel))
        assert amqp.decode_method(first_payload(ours)) == decoded


@given(channels, properties, st.binary(max_size=9000), st.sampled_from([4096, 8192, 131072]))
def test_content_is_split_as_the_oracle_expects(
    channel: int, wanted: dict[str, Any], body: bytes, frame_max: int
) -> None:
    """Header and body frames of a content decode to the same content, none larger than the peer takes."""
    raw = amqp.encode_publish(channel, "", "q", amqp.encode_properties(wanted), body, frame_max)
    frames = amqp.FrameSplitter(frame_max).feed(raw)
    assert all(len(payload) + 8 <= frame_max for _, _, payload in frames)
    found = amqp.decode_header(frames[1][2])
    assert (found.class_id, found.body_size) == (60, len(body))
    assert b"".join(payload for kind, _, payload in frames if kind == amqp.FRAME_BODY) == body
    assert amqp.decode_properties(found.properties) == wanted


@given(properties)
def test_properties_are_what_the_oracle_reads(wanted: dict[str, Any]) -> None:
    """Properties encoded here have pamqp's values."""
    theirs = commands.Basic.Properties()
    data = amqp.encode_properties(wanted)
    theirs.unmarshal(int.from_bytes(data[:2]), data[2:])
    for name, value in wanted.items():
        expected = datetime.fromtimestamp(value, UTC) if name == "timestamp" else value
        assert getattr(theirs, "message_type" if name == "type" else name) == expected


@given(st.sampled_from(["content_type", "correlation_id", "message_id"]), names.filter(bool), octets)
def test_properties_of_the_oracle_are_read(name: str, text: str, priority: int) -> None:
    """Properties that pamqp encoded are what they were."""
    theirs = header.ContentHeader(0, 3, commands.Basic.Properties(**{name: text, "priority": priority}))  # type: ignore[arg-type]
    found = amqp.decode_header(first_payload(frame.marshal(theirs, 1)))
    assert amqp.decode_properties(found.properties) == {name: text, "priority": priority}


@given(tables)
def test_tables_survive(table: dict[str, Any]) -> None:
    """A table decodes to what was encoded, with full integers and doubles."""
    assert decode_table(amqp.encode_table(table), 0) == (table, len(amqp.encode_table(table)))


FIELD_VALUES = {
    "bit": st.booleans(),
    "octet": octets,
    "short": st.integers(0, 65535),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": short_text,
    "longstr": st.binary(max_size=40),
    "table": tables,
}


def _index(method: Any) -> int:
    return int(method.index)


ALL_METHODS: list[Any] = sorted(commands.INDEX_MAPPING.values(), key=_index)
COLD = [method for method in ALL_METHODS if method.index.to_bytes(4) not in _frames._DECODERS]


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("method", COLD, ids=lambda method: method.name)
def test_every_cold_method_survives(method: Any) -> None:
    """A method decodes to the fields it was encoded from, and pamqp reads the same."""

    @settings(max_examples=examples(25))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        fields = {name: data.draw(FIELD_VALUES[kind], name) for name, kind in _methods._fields(method)}
        raw = amqp.encode_method(7, method, **fields)
        ours = amqp.decode_method(first_payload(raw))
        assert {name: getattr(ours, name) for name in fields} == fields
        _, channel, theirs = frame.unmarshal(raw)
        assert channel == 7
        for name, value in fields.items():
            seen = getattr(theirs, name)
            assert (seen.encode() if isinstance(seen, str) and isinstance(value, bytes) else seen) == value

    check()


def test_a_method_tells_what_does_not_fit() -> None:
    """Encoding refuses a field that is unknown, too long or too large, and says which."""
    with pytest.raises(TypeError, match="no field queues"):
        amqp.encode_method(1, commands.Queue.Declare, queues="x")
    with pytest.raises(ValueError, match="255"):
        amqp.encode_method(1, commands.Queue.Declare, queue="x" * 256)
    with pytest.raises(ValueError, match="channel_max is 70000"):
        amqp.encode_method(0, commands.Connection.Tune, channel_max=70000)


def conversation() -> bytes:
    """Some of every kind of frame."""
    return b"".join(
        (
            amqp.encode_method(1, commands.Channel.Open),
            amqp.encode_method(1, commands.Queue.Declare, queue="q", arguments={"x-max-length": 3}),
            amqp.encode_publish(
                1, "", "q", amqp.encode_properties({"headers": {"a": [1, {"b": "c"}]}}), b"x" * 300, 4096
            ),
            amqp.HEARTBEAT,
            encode_ack(1, 1),
            frame.marshal(pamqp_body.ContentBody(b"abc"), 2),
        )
    )


@given(st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_whole_however_they_are_cut(cuts: list[int]) -> None:
    """The splitter gives the same frames for any cut of the stream, and keeps less than one frame."""
    data = conversation()
    whole = amqp.FrameSplitter().feed(data)
    splitter = amqp.FrameSplitter()
    found, at, turn = [], 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        found += splitter.feed(data[at : at + step])
        at, turn = at + step, turn + 1
        assert splitter.pending_bytes < 340
    assert found == whole
    assert splitter.pending_bytes == 0


@given(st.lists(st.sampled_from([1, 6, 7, 8, 900, 16383, 16384, 20_000, 49_993, 60_000]), min_size=1))
def test_a_large_body_frame_comes_in_pieces_however_it_is_cut(cuts: list[int]) -> None:
    """Pieces have 16 KiB at least, but for a frame's last one, and for one of each 64 KiB that are there; joined they
    are the frame, and nothing else is cut. Of the last piece nothing is handed out before the frame's end. Of a view,
    every second time, nothing is kept."""
    bodies = [bytes([number]) * size for number, size in enumerate((100_000, 16_392, 50_000, 16_384, 300), 65)]
    data = b"".join(amqp.encode_publish(1, "", "q", b"\x00\x00", body, 131_072) + amqp.HEARTBEAT for body in bodies)
    splitter = amqp.FrameSplitter(in_pieces=True)
    joined: list[tuple[int, int, bytes]] = []
    pieces: list[list[int]] = []
    at, turn = 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        for frame_ in (feed_view if turn % 2 else amqp.FrameSplitter.feed)(splitter, data[at : at + step]):
            if frame_[0] == amqp.FRAME_BODY and joined[-1][0] == amqp.FRAME_BODY:
                joined[-1] = (*frame_[:2], joined[-1][2] + frame_[2])
                pieces[-1].append(len(frame_[2]))
            else:
                joined.append(frame_)
                pieces.append([len(frame_[2])])
        at, turn = at + step, turn + 1
    assert joined == amqp.FrameSplitter().feed(data)
    few = [size for each in pieces for size in each[:-1] if size < 16_384]
    assert len(few) * (65_536 - 16_391) <= len(data)  # what was not handed out is there twice
    assert splitter.pending_bytes == 0
    splitter = amqp.FrameSplitter(in_pieces=True)
    whole = frame.marshal(pamqp_body.ContentBody(b"x" * 40_000), 2)
    assert [len(piece) for _, _, piece in splitter.feed(whole[:20_007])] == [20_000]
    assert splitter.feed(whole[20_007:-1]) == []
    assert splitter.pending_bytes
    with pytest.raises(FrameError, match="body frame on channel 2 ends with 0xcd") as refused:
        splitter.feed(b"\xcd")
    assert refused.value.frames == []
    begun = amqp.FrameSplitter()
    begun.most_body = 100_000
    header = amqp.FRAME_HEAD.pack(2, 2, 14) + _frames.HEADER_START.pack(60, 0, 60_000) + b"\x00\x00\xce"
    feed_view(begun, header + frame.marshal(pamqp_body.ContentBody(b"x" * 10_000), 2) + whole[:20_007])
    with pytest.raises(FrameError, match="body frame on channel 2 ends with 0xcd"):
        feed_view(begun, whole[20_007:-1] + b"\xcd")


@given(st.lists(st.integers(1, 90), min_size=1), st.integers(0, 5))
def test_body_frames_that_come_together_are_one_up_to_the_size_in_their_header(sizes: list[int], more: int) -> None:
    """Of a view, the frames of a body are one, what is too much of it is not; another channel's are left alone."""
    head = amqp.FRAME_HEAD.pack
    data = [head(2, 1, 14), _frames.HEADER_START.pack(60, 0, sum(sizes)), b"\x00\x00\xce"]
    for channel, size in [(1, each) for each in sizes] + [(1, 7)] * more + [(2, 3), (2, 4)]:
        data += (head(3, channel, size), bytes([size]) * size, b"\xce")
    found = [payload for _, _, payload in feed_view(amqp.FrameSplitter(), b"".join(data))][1:]
    whole = b"".join(bytes([each]) * each for each in sizes)
    assert found == [whole, *[b"\x07" * 7] * more, b"\x03" * 3, b"\x04" * 4]
    assert type(found[0]) is bytes


def test_what_is_no_frame_is_refused_at_its_head() -> None:
    """A wrong type or an announced size beyond frame_max raises before the payload is there; a wrong end at the end."""
    large = amqp.FrameSplitter(4096)
    with pytest.raises(FrameError, match=r"4097 bytes .* frame_max is 4096") as refused:
        large.feed(amqp.HEARTBEAT + b"\x03\x00\x01" + (4097).to_bytes(4))
    assert refused.value.reply_code == 501
    assert refused.value.frames == [(8, 0, b"")]
    with pytest.raises(FrameError) as refused:
        feed_view(amqp.FrameSplitter(), b"\x03\x00\x01\x00\x00\x00\x01x\xce\x04" + bytes(6))
    assert refused.value.frames == [(3, 1, b"x")]
    with pytest.raises(FrameError, match="type 4"):
        amqp.FrameSplitter().feed(b"\x04\x00\x01\x00\x00\x00\x00")
    with pytest.raises(FrameError, match="ends with 0xcd"):
        amqp.FrameSplitter().feed(amqp.HEARTBEAT[:-1] + b"\xcd")
    assert len(amqp.FrameSplitter(4096).feed(b"\x03\x00\x01" + (4096).to_bytes(4) + b"x" * 4096 + b"\xce")) == 1


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    """The splitter raises `FrameError` or nothing."""
    try:
        amqp.FrameSplitter(4096).feed(data)
    except FrameError:
        pass


@given(st.sampled_from(ALL_METHODS), st.binary(max_size=120))
def test_any_payload_is_a_method_or_refused(method: Any, rest: bytes) -> None:
    """A method frame decodes or raises an `AmqpError`; no other exception, no loop."""
    code = 501
    try:
        amqp.decode_method(method.index.to_bytes(4) + rest)
    except amqp.AmqpError as error:
        code = error.reply_code
    assert code == 501


@given(st.binary(max_size=120))
def test_any_block_is_properties_or_refused(data: bytes) -> None:
    """A property block decodes or raises `MalformedFrame`."""
    try:
        amqp.decode_properties(data)
    except MalformedFrame:
        pass


@given(tables, st.data())
def test_a_table_with_a_flipped_byte_is_a_table_or_refused(table: dict[str, Any], data: st.DataObject) -> None:
    """Damage to a table is noticed, or gives another table: nothing else."""
    raw = bytearray(amqp.encode_table(table))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(octets)
    try:
        decode_table(bytes(raw), 0)
    except MalformedFrame:
        pass


def test_every_cut_of_a_method_is_refused() -> None:
    """A method that is cut off anywhere raises, hot or cold."""
    for raw in (
        encode_ack(1, 2**40),
        amqp.encode_publish(1, "exchange", "key", amqp.NO_PROPERTIES, b"", 4096),
        amqp.encode_method(1, commands.Queue.Declare, queue="q", arguments={"a": [1, "b"]}),
        amqp.encode_method(0, commands.Connection.StartOk, mechanism="PLAIN", response=b"abc", locale="en_US"),
    ):
        payload = first_payload(raw)
        for length in range(len(payload)):
            with pytest.raises(amqp.AmqpError):
                amqp.decode_method(payload[:length])


def test_nesting_is_bounded() -> None:
    """A table nested a thousand deep is refused, not followed; no stack overflows."""
    deep = b""
    for _ in range(1000):
        inner = b"\x01aF" + len(deep).to_bytes(4) + deep
        deep = inner
    with pytest.raises(MalformedFrame, match="too deep"):
        decode_table(len(deep).to_bytes(4) + deep, 0)
    table: dict[str, object] = {}
    for _ in range(40):
        table = {"a": table}
    with pytest.raises(ValueError, match="deeper"):
        amqp.encode_table(table)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters()),
        st.binary(),
        st.decimals(),
        st.datetimes(),
        st.sampled_from([{1}, object(), 1j, 2**63, -(2**63), "\ud800", Decimal("1E+9"), datetime.min, datetime.max]),
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(), max_size=3) | st.integers(), inner),
    max_leaves=20,
)


@settings(max_examples=examples(200))
@given(st.dictionaries(st.text(max_size=3), VALUES))
def test_what_the_broker_keeps_as_arguments_is_what_the_wire_can_carry(table: dict[str, object]) -> None:
    """A declaration in the process takes a table, or refuses it, as the encoder would. (broker-front 9)"""
    host = VirtualHost()
    try:
        amqp.encode_table(table)
    except (ValueError, TypeError):
        with pytest.raises(PreconditionFailed, match="invalid args for exchange 'x'"):
            host.declare_exchange("x", arguments=table)
    else:
        host.declare_exchange("x", arguments=table)
    host.close()


@pytest.mark.parametrize("text", ["0", "4294967295", "4E+9", "0." + "0" * 250 + "42949", "1E-255"])
def test_a_decimal_that_fits_comes_back_equal(text: str) -> None:
    """32 bits of digits, 255 places: the edges are carried."""
    assert decode_table(amqp.encode_table({"a": Decimal(text)}), 0)[0] == {"a": Decimal(text)}


@pytest.mark.parametrize("text", ["4294967296", "1E+10", "1E+999999999", "1E-256", "-1", "NaN", "Infinity"])
def test_a_decimal_that_does_not_fit_is_refused(text: str) -> None:
    """Beyond the edges, and at once for a number that would take the memory of the machine."""
    with pytest.raises(ValueError, match="does not fit; 0 to 4294967295 with 255 places at most"):
        amqp.encode_table({"a": Decimal(text)})


@pytest.mark.parametrize("depth", [32, 33, 900])
@pytest.mark.parametrize("deeper", [lambda value: {"a": value}, lambda value: [value]], ids=["tables", "lists"])
def test_tables_are_as_deep_in_the_process_as_on_the_wire(depth: int, deeper: Callable[[object], object]) -> None:
    """32 tables and lists within each other, and no more: for the encoder, the decoder and a declaration."""
    value: object = 1
    for _ in range(depth - 1):
        value = deeper(value)
    table = {"a": value}
    host = VirtualHost()
    if depth == 32:
        assert decode_table(amqp.encode_table(table), 0)[0] == table
        host.declare_exchange("x", arguments=table)
    else:
        with pytest.raises(ValueError, match="nested deeper than 32"):
            amqp.encode_table(table)
        with pytest.raises(PreconditionFailed, match="nested deeper than 32"):
            host.declare_exchange("x", arguments=table)
    host.close()
