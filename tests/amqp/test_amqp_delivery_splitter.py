"""The splitter for clients gives what the splitter for everybody gives, in fewer pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from multiqueue.amqp import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    NO_PROPERTIES,
    AmqpError,
    DeliverySplitter,
    Frame,
    FrameError,
    FrameSplitter,
    WholeDelivery,
    decode_header,
    decode_hot,
    deliver_prefix,
    encode_deliver,
    encode_method,
    encode_properties,
    encode_short_string,
)

FRAME_MAX = 4096

_names = st.sampled_from(["", "a", "ein Schlüssel", "k" * 255])
_deliveries = st.builds(
    lambda channel, consumer, tag, redelivered, exchange, key, properties, body: encode_deliver(
        channel,
        deliver_prefix(consumer),
        tag,
        redelivered,
        encode_short_string(exchange) + encode_short_string(key),
        properties,
        body,
        FRAME_MAX,
    ),
    st.integers(1, 3),
    _names,
    st.integers(0, 2**64 - 1),
    st.booleans(),
    _names,
    _names,
    st.sampled_from([NO_PROPERTIES, encode_properties({"message_id": "m", "headers": {"a": 1}})]),
    st.one_of(st.binary(max_size=50), st.just(b"x" * 10_000)),
)
_others = st.sampled_from(
    [encode_method(1, commands.Queue.PurgeOk), encode_method(0, commands.Connection.Blocked, reason="r")]
)


def frames_of(item: WholeDelivery | Frame) -> list[tuple[int, int, object]]:
    """What a whole delivery was cut from, decoded; a frame as it is."""
    if isinstance(item, WholeDelivery):
        header = (len(item.body), item.properties)
        channel = item.channel
        return [(FRAME_METHOD, channel, item.method), (FRAME_HEADER, channel, header), (FRAME_BODY, channel, item.body)]
    kind, channel, payload = item
    if kind == FRAME_METHOD:
        return [(kind, channel, decode_hot(payload) or payload)]
    return [(kind, channel, decode_header(payload)[1:] if kind == FRAME_HEADER else payload)]


@given(st.lists(st.one_of(_deliveries, _others), max_size=8), st.integers(1, 200))
def test_it_gives_the_same_frames(pieces: list[bytes], step: int) -> None:
    """Whatever is sent, however it is cut."""
    data = b"".join(pieces)
    ours, plain = DeliverySplitter(FRAME_MAX), FrameSplitter(FRAME_MAX)
    cuts = (data[at : at + step] for at in range(0, len(data), step))
    got = [part for cut in cuts for item in ours.feed_deliveries(cut) for part in frames_of(item)]
    expected = [part for frame in plain.feed(data) for part in frames_of(frame)]
    assert got == expected
    assert ours.pending_bytes == 0


@given(st.binary(max_size=300), st.integers(1, 100), st.lists(_deliveries, max_size=2))
def test_any_bytes_are_split_or_refused(noise: bytes, step: int, before: list[bytes]) -> None:
    """Nothing but an AmqpError comes of bytes that are no frames, alone or behind deliveries."""
    splitter = DeliverySplitter(FRAME_MAX)
    data = b"".join(before) + noise
    try:
        for at in range(0, len(data), step):
            splitter.feed_deliveries(data[at : at + step])
    except AmqpError:
        return
    assert splitter.pending_bytes <= 3 * FRAME_MAX


@given(_deliveries, st.data())
def test_a_changed_byte_does_no_harm(delivery: bytes, data: st.DataObject) -> None:
    """A delivery with one wrong byte is frames, another delivery, or refused."""
    at = data.draw(st.integers(0, len(delivery) - 1))
    changed = delivery[:at] + bytes((data.draw(st.integers(0, 255)),)) + delivery[at + 1 :]
    try:
        DeliverySplitter(FRAME_MAX).feed_deliveries(changed + delivery)
    except AmqpError:
        pass


def test_what_is_no_frame_is_refused_at_once() -> None:
    """As by the other splitter: a frame that is announced too large, before any of it is kept."""
    for data in (b"\x09\x00\x01\x00\x00\x00\x01", b"\x01\x00\x01\x00\x10\x00\x00", b"\x01\x00\x01\x00\x00\x00\x01xy"):
        with pytest.raises(FrameError):
            DeliverySplitter(FRAME_MAX).feed_deliveries(data)


def test_many_names_are_not_kept_for_ever() -> None:
    """A thousand routing keys cost the memory of 256."""
    splitter = DeliverySplitter(FRAME_MAX)
    for number in range(1000):
        names = encode_short_string("") + encode_short_string(str(number))
        frames = encode_deliver(1, deliver_prefix("t"), number, False, names, NO_PROPERTIES, b"x", FRAME_MAX)
        (item,) = splitter.feed_deliveries(frames)
        assert isinstance(item, WholeDelivery)
        assert item.method.routing_key == str(number)
    assert len(splitter._names) <= 256
