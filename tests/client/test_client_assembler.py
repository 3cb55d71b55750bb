"""The client's assembler makes of any bytes what frames, decoded one by one, make."""

from __future__ import annotations

import pytest
from amqp_parts_support import FrameError, deliver_prefix, encode_deliver, encode_short_string
from client_parts_support import Assembler, Event
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from multiqueue.amqp import (
    FRAME_HEADER,
    FRAME_METHOD,
    NO_PROPERTIES,
    AmqpError,
    FrameSplitter,
    decode_header,
    decode_hot,
    decode_method,
    encode_method,
    encode_properties,
)

FRAME_MAX = 4096

_names = st.sampled_from(["", "a", "ein Schlüssel", "k" * 255])
_deliveries = st.builds(
    lambda channel, consumer, tag, redelivered, exchange, key, properties, body: encode_deliver(
        channel,
        deliver_prefix(consumer),
        tag,
        redelivered,
        (encode_short_string(exchange) + encode_short_string(key), properties, body),
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


def events_of(data: bytes) -> list[Event]:
    """What the frames say, each decoded by itself; a body is as many frames as it needs."""
    events: list[Event] = []
    for kind, channel, payload in FrameSplitter(FRAME_MAX).feed(data):
        if kind == FRAME_METHOD:
            events.append(Event(channel, decode_hot(payload) or decode_method(payload).name))
        elif kind == FRAME_HEADER:
            _, _, properties = decode_header(payload)
            events[-1] = events[-1]._replace(properties=properties)
        else:
            events[-1] = events[-1]._replace(body=events[-1].body + payload)
    return events


@given(st.lists(st.one_of(_deliveries, _others), max_size=8), st.integers(1, 200))
def test_it_gives_what_the_frames_say(pieces: list[bytes], step: int) -> None:
    """Whatever is sent, however it is cut."""
    data = b"".join(pieces)
    assembler = Assembler(FRAME_MAX)
    cuts = (data[at : at + step] for at in range(0, len(data), step))
    got = [event for cut in cuts for event in assembler.feed(cut)]
    named = [each._replace(method=getattr(each.method, "name", each.method)) for each in got]
    assert named == events_of(data)
    assert not assembler._rest


@given(st.binary(max_size=300), st.integers(1, 100), st.lists(_deliveries, max_size=2))
def test_any_bytes_are_split_or_refused(noise: bytes, step: int, before: list[bytes]) -> None:
    """Nothing but an AmqpError comes of bytes that are no frames, alone or behind deliveries."""
    assembler = Assembler(FRAME_MAX)
    data = b"".join(before) + noise
    try:
        for at in range(0, len(data), step):
            assembler.feed(data[at : at + step])
    except AmqpError:
        return
    assert len(assembler._rest) <= 3 * FRAME_MAX


@given(_deliveries, st.data())
def test_a_changed_byte_does_no_harm(delivery: bytes, data: st.DataObject) -> None:
    """A delivery with one wrong byte is frames, another delivery, or refused."""
    at = data.draw(st.integers(0, len(delivery) - 1))
    changed = delivery[:at] + bytes((data.draw(st.integers(0, 255)),)) + delivery[at + 1 :]
    try:
        Assembler(FRAME_MAX).feed(changed + delivery)
    except AmqpError:
        pass


def test_what_is_no_frame_is_refused_at_once() -> None:
    """As by the splitter of the server: a frame that is announced too large, before any of it is kept."""
    for data in (b"\x09\x00\x01\x00\x00\x00\x01", b"\x01\x00\x01\x00\x10\x00\x00", b"\x01\x00\x01\x00\x00\x00\x01xy"):
        with pytest.raises(FrameError):
            Assembler(FRAME_MAX).feed(data)


def test_many_names_are_not_kept_for_ever() -> None:
    """Two thousand routing keys cost the memory of 1024."""
    assembler = Assembler(FRAME_MAX)
    for number in range(2000):
        names = encode_short_string("") + encode_short_string(str(number))
        frames = encode_deliver(1, deliver_prefix("t"), number, False, (names, NO_PROPERTIES, b"x"), FRAME_MAX)
        (event,) = assembler.feed(frames)
        assert event.method.routing_key == str(number)
    assert len(assembler._names) <= 1024
