"""What the fuzzer's target takes, found by Hypothesis: the same promise without atheris."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from amqp_fuzz_support import Target, seeds
from amqp_parts_support import HANDLERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([b"\x00", b"\x50", b"\x90"]), st.binary(max_size=400))
def test_any_input(target: Target, kind: bytes, rest: bytes) -> None:
    """Bytes, frames and payloads of methods: a clean close, or they are taken; the broker stays whole."""
    target.take(kind + rest)


def test_the_seeds_do_what_they_are_for(target: Target) -> None:
    """The inputs that a fuzzer begins with get as far as a queue."""
    for data in seeds().values():
        target.take(data)
    assert "q" in target.declared()


def test_a_fault_of_ours_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that fails ends the run: the target would notice."""

    def fail(channel: object, method: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setitem(HANDLERS, b"\x00\x32\x00\x0a", fail)  # queue.declare
    with pytest.raises(AssertionError, match="the server failed"):
        target.take(seeds()["methods"])


def test_a_conversation_cut_at_every_byte(target: Target) -> None:
    """Whatever the last byte was that came, the connection lets go of all it had, and nothing fails."""
    for seed in seeds().values():
        for length in range(1, len(seed)):
            target.take(seed[:length])
