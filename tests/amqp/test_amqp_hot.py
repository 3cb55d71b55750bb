"""The functions that run for every message: whatever bytes come, C and Python give the same answer."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module, util
from types import ModuleType
from typing import Any

import pytest
from amqp_parts_support import ChannelMachine, FrameError, plain
from amqp_parts_support import frames as splitting
from amqp_strategies_support import properties
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples

from multiqueue import amqp
from multiqueue.amqp.wire import ChannelFault, ConnectionFault

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
@given(
    runs,
    st.binary(max_size=9),
    st.integers(0, 40),
    st.integers(0, 3),
    st.sampled_from([-1, 0, 10, 2**62]),
    st.sampled_from([0, 8, 4096]),
)
@example([(3, 1, b"x")], b"\x03\x00\x01\xff\xff\xff\xff\xce", 0, 0, 0, 2**32 - 1)
@example([(2, 1, header(64)), (3, 1, b"x")], b"", 9, 0, 64, 4096)
def test_frames_are_cut_alike(
    run: list[tuple[int, int, bytes]], tail: bytes, cut_off: int, spoiled: int, most: int, largest: int
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
            at, count, body = form.whole_frames(given_as, 0, largest, most, found)
            answers.append((at, count, body and len(body), found))
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
    assert form.whole_frames(memoryview(data), 0, 4096, 0, found) == (len(data), 6, None)
    assert found == [sent[0], (3, 1, b"abcd"), *sent[3:]]


@forms
def test_bodies_of_very_many_long_frames_are_those_that_were_sent(form: ModuleType) -> None:
    """However many copies that takes, made together or not."""
    bodies = [bytes((number,)) * (3000 * (number % 3) + number) for number in range(1, 200)]
    data, expected = b"", []
    for body in bodies:
        pieces = [body[at : at + 700] for at in range(0, len(body), 700)]
        data += frame(2, 1, header(len(body))) + b"".join(frame(3, 1, piece) for piece in pieces)
        expected += [(2, 1, header(len(body))), (3, 1, body)]
    found: list[tuple[int, int, bytes]] = []
    at, _, begun = form.whole_frames(memoryview(data), 0, 4096, 1 << 20, found)
    assert (at, begun, found) == (len(data), None, expected)


@both
@settings(max_examples=examples(500))
@given(
    runs,
    st.integers(0, 40),
    st.integers(1, 40),
    st.integers(0, 3),
    st.sampled_from([3, 4096]),
    st.sampled_from([-1, -1, -1, 0, 1, 5]),
)
@example([(3, 1, b"ab"), (3, 1, b""), (3, 1, b"c")], 0, 3, 0, 4096, -1)
@example([(3, 1, b"abc"), (3, 1, b"abcd")], 0, 9, 0, 3, -1)
def test_bodies_are_filled_alike(
    run: list[tuple[int, int, bytes]], cut_off: int, size: int, spoiled: int, largest: int, lacks: int
) -> None:
    """From any bytes both forms copy the same into a body, up to its end, and stop at the same byte."""
    data = bytearray(b"".join(frame(*each) for each in run))
    del data[len(data) - min(cut_off, len(data)) :]
    for number in range(spoiled if data else 0):
        data[(7919 * (number + 1)) % len(data)] ^= 0x81
    answers: list[object] = []
    for form in FORMS:
        body = begun(form, size)
        filled, *where = form.fill_body(body, 0, min(lacks, size), memoryview(bytes(data)), 0, 1, largest)
        answers.append((filled, where, bytes(body[:filled])))
    assert answers[0] == answers[1]


def begun(form: ModuleType, size: int) -> Any:
    """The memory for a body of this size, as `whole_frames` gives it."""
    return form.whole_frames(frame(2, 1, header(size)) + b"x" * (size - 1), 0, 4096, size, [])[2]


# A stream of frames that a body of theirs goes through: whole messages in frames of some bytes, what comes between, and
# what may not.
def cut_body(channel: int, body: bytes, step: int, said: int) -> list[tuple[int, int, bytes]]:
    pieces = [(3, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return [(1, channel, PUBLISH), (2, channel, header(len(body) + said)), *pieces]


large_messages = st.builds(
    cut_body,
    st.sampled_from([1, 1, 1, 2]),
    st.integers(1, 400).map(lambda size: bytes(number % 251 for number in range(size))),
    st.sampled_from([7, 50, 400]),
    st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
)
others = st.sampled_from(
    [(8, 0, b""), (3, 1, b""), (3, 2, b"abc"), (1, 1, PUBLISH), (1, 2, b"\0\x14\0\x28"), (2, 1, b"x")]
)
streams = st.lists(
    st.tuples(large_messages, st.lists(st.tuples(st.integers(0, 20), others), max_size=1)), min_size=1, max_size=4
)


@forms
@settings(max_examples=examples(1000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams, st.lists(st.integers(1, 90), min_size=1), st.booleans(), st.integers(0, 400), st.integers(-1, 3000))
def test_a_body_that_is_put_together_is_the_one_of_its_frames(
    form: ModuleType, sent: list[Any], cuts: list[int], views: bool, most: int, spoiled: int
) -> None:
    """However a stream is cut, and whatever comes between the frames of a body, the same contents and methods come out
    in the same order, up to the same error, if bodies are put together as they come or from their frames."""
    run: list[tuple[int, int, bytes]] = []
    for message, between in sent:
        for at, other in between:
            message.insert(at, other)
        run += message
    data = bytearray(b"".join(frame(*each) for each in run))
    if 0 <= spoiled < len(data):
        data[spoiled] ^= 0x81
    with pytest.MonkeyPatch.context() as patch:
        for name in ("whole_frames", "fill_body"):
            patch.setattr(splitting, name, getattr(form, name))
        patch.setattr(splitting, "_PIECE", 16)
        patch.setattr(splitting, "_MUCH", 64)
        shorter, longer = sorted((effects_of(bytes(data), cuts, views, size) for size in (0, most)), key=len)
    # A frame that goes beyond its body may come in pieces, so that the body is whole before that is seen.
    is_too_long = shorter[:-1] == longer[: len(shorter) - 1] and longer[len(shorter) :] == ["the end"]
    assert shorter == longer or (is_too_long and shorter[-1] == "the end" and most >= 0)


def effects_of(data: bytes, cuts: list[int], views: bool, most_body: int) -> list[object]:
    """What channels 1 and 2 make of a stream that comes in such parts, as views or every third as bytes."""
    channels = {number: ChannelMachine(350) for number in (1, 2)}
    for machine in channels.values():
        machine.receive(1, b"\0\x14\0\x0a")
    found: list[object] = []
    try:
        for kind, number, payload in frames_of(data, cuts, views, most_body):
            found += [number] if kind == 8 else take(channels[number], kind, payload)
    except (FrameError, ConnectionFault, KeyError):  # what is wrong twice is the one or the other, as it is cut
        found.append("the end")
    return found


def frames_of(data: bytes, cuts: list[int], views: bool, most_body: int) -> Iterator[tuple[int, int, bytes]]:
    splitter = amqp.FrameSplitter(4096, in_pieces=True)
    splitter.most_body = most_body
    at, turn = 0, 0
    while at < len(data):
        part = data[at : at + cuts[turn % len(cuts)]]
        try:
            yield from splitter.feed(memoryview(bytearray(part)) if views or turn % 3 else part)
        except FrameError as error:
            yield from error.frames
            raise
        at, turn = at + len(part), turn + 1
        assert splitter.begun_bytes <= most_body


def take(machine: ChannelMachine, kind: int, payload: bytes) -> list[object]:
    try:
        effect = machine.receive(kind, payload)
    except ChannelFault as error:
        machine.close()
        return [str(error)]
    return [] if effect is None else [effect]


def test_memory_for_a_body_is_had_when_a_part_of_it_is_there() -> None:
    """A header that announces much reserves nothing: 1/64 of the body has to be behind it, and none is above the
    limit."""
    for size, behind, has_body in [(6400, 99, False), (6400, 100, True), (6401, 6400, False), (2**63, 100, False)]:
        splitter = amqp.FrameSplitter()
        splitter.most_body = 6400
        splitter.feed(memoryview(frame(2, 1, header(size)) + (frame(3, 1, bytes(200)) * 40)[:behind]))
        assert (splitter.begun_bytes > 0) is has_body


@forms
@pytest.mark.parametrize(
    "call",
    [
        ("whole_frames", (b"", 1, 0, 0, [])),
        ("whole_frames", (b"", -1, 0, 0, [])),
        ("fill_body", (b"ab", 3, -1, b"", 0, 1, 9)),
        ("fill_body", (b"ab", -1, -1, b"", 0, 1, 9)),
        ("fill_body", (b"ab", 1, 2, b"", 0, 1, 9)),
        ("fill_body", (b"ab", 1, -2, b"", 0, 1, 9)),
        ("fill_body", (b"ab", 0, -1, b"", 1, 1, 9)),
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
    if form is plain and name in ("whole_frames", "fill_body"):
        return  # slices of Python read nothing beside it
    with pytest.raises((IndexError, ValueError, OverflowError, struct.error)):
        getattr(form, name)(*arguments)


def test_functions_that_were_built_from_an_older_source_are_passed_over() -> None:
    """An extension that lacks a function warns, with the remedy, and what is in Python runs."""
    code = (
        "import sys, types, warnings\n"
        "old = types.ModuleType('multiqueue.amqp._wire._frames')\n"
        "old.__file__, old.whole_frames = '_frames.so', None\n"
        "sys.modules[old.__name__] = old\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    from multiqueue.amqp._wire import hot, plain\n"
        "print(*[each.message for each in caught])\n"
        "print(all(getattr(hot, name) is getattr(plain, name) for name in hot.NAMES))\n"
    )
    environment = {**os.environ, "MULTIQUEUE_PURE": ""}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    warning, same = ended.stdout.splitlines() or ["", ended.stderr]
    assert warning.startswith("_frames.so was built from an older source and has no acks_in_a_row, contents_in_a_row,")
    assert "pip install -e ." in warning
    assert same == "True"
