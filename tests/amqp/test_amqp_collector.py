"""The garbage collector in the process of `multiqueue broker`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from multiqueue.amqp import patient_collector


class _Knot:
    """An object in a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """The collector as a new interpreter has it: the run of the tests has frozen what it collected."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.slow(selected=True)
def test_the_collector_is_as_before_when_the_block_ends() -> None:
    """A broker in a program's process changes nothing that outlives it."""
    before = gc.get_threshold()
    with patient_collector():
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.slow(selected=True)
def test_cycles_are_still_found() -> None:
    """A cycle that is made while the broker runs goes before many others have been made."""
    with patient_collector():
        gone: list[object] = []
        knot = _Knot()
        reference = weakref.ref(knot, gone.append)  # which is not called below: that would keep the knot
        del knot
        others: list[object] = []
        for _ in range(200_000):
            others.append([others])
            if gone:
                break
        assert gone == [reference]
        others.clear()
