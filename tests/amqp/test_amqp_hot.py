"""The functions that run for every message: whatever bytes come, C and Python give the same answer."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from importlib import import_module, util
from types import ModuleType
from typing import Any

import pytest
from amqp_parts_support import plain
from amqp_strategies_support import properties
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples

from multiqueue import amqp

HAS_C = "MULTIQUEUE_REQUIRE_ENGINE" in os.environ or util.find_spec("multiqueue.amqp._wire._frames") is not None
FORMS: list[ModuleType] = [plain]
if HAS_C:
    FORMS.append(import_module("multiqueue.amqp._wire._frames"))
both = pytest.mark.skipif(not HAS_C, reason="_frames.c was not built")
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition(".")[2])
PUBLISH = b"\x00\x3c\x00\x28\x00\x00\x00\x01q\x00"


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


def header(size: int, block: bytes = b"\x00\x00", class_id: int = 60, weight: int = 0) -> bytes:
    return struct.pack(">HHQ", class_id, weight, size) + block


# Frames that are nearly right: types, channels and sizes of bodies that fit each other, or do not.
channels = st.sampled_from([0, 1, 1, 1, 65535])
bodies = st.binary(max_size=12)
headers = st.builds(
    header,
    st.integers(0, 30) | st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
    st.sampled_from([b"\x00\x00", b"\x10\x00\x02", b""]),
    st.sampled_from([60, 60, 60, 61]),
    st.sampled_from([0, 0, 0, 1]),
)
acks = st.builds(
    lambda tag, bits, more: b"\x00\x3c\x00\x50" + tag.to_bytes(8) + bytes((bits,)) + more,
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([b"", b"", b"x"]),
)
payloads = st.one_of(st.just(PUBLISH), st.sampled_from([PUBLISH[:3], b"\x00\x3c\x00\x28"]), headers, bodies, acks)
kinds = st.sampled_from([1, 2, 3, 8])
frames = st.tuples(kinds, channels, payloads)
messages = st.builds(
    lambda channel, block, body: [(1, channel, PUBLISH), (2, channel, header(len(body), block)), (3, channel, body)],
    channels,
    st.sampled_from([b"\x00\x00", b"\x10\x00\x02"]),
    bodies,
)
runs = st.lists(frames.map(lambda one: [one]) | messages | acks.map(lambda ack: [(1, 1, ack)]), max_size=8).map(
    lambda each: [one for some in each for one in some]
)


@both
@settings(max_examples=examples(1000))
@given(runs, st.binary(max_size=9), st.integers(0, 40), st.integers(0, 3), st.booleans(), st.sampled_from([0, 8, 4096]))
@example([(3, 1, b"x")], b"\x03\x00\x01\xff\xff\xff\xff\xce", 0, 0, True, 2**32 - 1)
def test_frames_are_cut_alike(
    run: list[tuple[int, int, bytes]], tail: bytes, cut_off: int, spoiled: int, joins: bool, largest: int
) -> None:
    """Of whole frames, cut ones, and bytes that are none both forms make the same frames, and stop at the same byte."""
    data = bytearray(b"".join(frame(*each) for each in run) + tail)
    del data[len(data) - min(cut_off, len(data)) :]
    for number in range(spoiled):
        if data:
            data[(7919 * (number + 1)) % len(data)] ^= 0x81
    answers: list[object] = []
    for form in FORMS:
        for given_as in (bytes(data), memoryview(data)):
            found: list[tuple[int, int, bytes]] = []
            answers.append((form.whole_frames(given_as, 0, largest, joins, found), found))
            assert all(type(payload) is bytes for _, _, payload in found)
    assert all(answer == answers[0] for answer in answers)


@both
@settings(max_examples=examples(500))
@given(runs.filter(bool), st.integers(0, 10), st.integers(-1, 5))
def test_runs_are_found_alike(run: list[tuple[int, int, bytes]], at: int, most: int) -> None:
    """Acks and publishes that stand next to each other are found by both forms."""
    at %= len(run)
    for name in ("acks_in_a_row", "contents_in_a_row"):
        one, other = (getattr(form, name)(run, at, most) for form in FORMS)
        assert one == other


@both
@settings(max_examples=examples(500))
@given(
    st.integers(0, 65535),
    bodies,
    st.integers(0, 2**64 - 10),
    st.lists(st.tuples(st.booleans(), st.tuples(bodies, bodies, st.binary())), max_size=9),
)
def test_deliveries_are_written_alike(
    channel: int, prefix: bytes, first: int, run: list[tuple[bool, tuple[bytes, bytes, bytes]]]
) -> None:
    """Both forms write the same frames for deliveries."""
    flags, contents = [flag for flag, _ in run], [content for _, content in run]
    one, other = (form.deliver_frames(channel, prefix, first, flags, contents) for form in FORMS)
    assert one == other


@both
@settings(max_examples=examples(1000))
@given(properties, st.integers(0, 60), st.integers(0, 255), st.booleans())
@example({"headers": {"a": "b"}}, 6, 255, False)
@example({"headers": {"a": "b"}}, 7, 1, True)
def test_properties_are_those_that_python_finds(wanted: dict[str, Any], at: int, byte: int, is_cut: bool) -> None:
    """A block that C decodes at once has the properties that Python finds; one that Python refuses is left to it."""
    block = bytearray(amqp.encode_properties(wanted))
    if is_cut:
        del block[at:]
    elif at < len(block):
        block[at] = byte
    found = FORMS[1].plain_properties(bytes(block))
    in_python = decoded_in_python(bytes(block))
    assert found is None or (found == in_python and repr(found) == repr(in_python))


def decoded_in_python(block: bytes) -> dict[str, object] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiqueue.amqp._wire.properties.plain_properties", plain.plain_properties)
        try:
            return dict(amqp.decode_properties(block))
        except amqp.AmqpError:
            return None


@both
def test_plain_properties_are_found_at_once() -> None:
    """Text, whole numbers and booleans need no second look; a nested table does."""
    plain_ones = {"content_type": "a/b", "headers": {"t": "x", "n": -1, "m": 2**40, "y": True}, "timestamp": 2**63}
    assert FORMS[1].plain_properties(amqp.encode_properties(plain_ones)) == plain_ones
    assert FORMS[1].plain_properties(amqp.encode_properties({"headers": {"t": {"u": 1}}})) is None


@forms
def test_a_body_of_many_frames_is_joined_once(form: ModuleType) -> None:
    """Frames of one body become one, up to what its header says; those of other channels and bodies stay apart."""
    sent = [(2, 1, header(6)), (3, 1, b"ab"), (3, 1, b"cd"), (3, 2, b"no"), (3, 1, b"ef"), (3, 1, b"more")]
    found: list[tuple[int, int, bytes]] = []
    data = b"".join(frame(*each) for each in sent)
    assert form.whole_frames(memoryview(data), 0, 4096, True, found) == (len(data), 6)
    assert found == [sent[0], (3, 1, b"abcd"), *sent[3:]]


@forms
@pytest.mark.parametrize(
    "call",
    [
        ("whole_frames", (b"", 1, 0, True, [])),
        ("whole_frames", (b"", -1, 0, True, [])),
        ("contents_in_a_row", ([], 0, 1)),
        ("acks_in_a_row", ([(1, 1, b"")], 1, 1)),
        ("deliver_frames", (65536, b"", 1, [False], [(b"", b"", b"x")])),
        ("deliver_frames", (1, b"", 2**64, [False], [(b"", b"", b"x")])),
        ("deliver_frames", (1, b"", -1, [False], [(b"", b"", b"x")])),
    ],
)
def test_a_mistake_of_the_house_raises(form: ModuleType, call: tuple[str, Sequence[Any]]) -> None:
    """Arguments that no caller may give raise, and nothing is read or written beside what is there."""
    name, arguments = call
    if form is plain and name == "whole_frames":
        return  # slices of Python read nothing beside it
    with pytest.raises((IndexError, ValueError, OverflowError, struct.error)):
        getattr(form, name)(*arguments)
