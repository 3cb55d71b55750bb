"""The gate at which many wait for one commit: everybody comes through, one lets through the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from store_parts_support import WakeChain

from multiqueue.testing import wait_until_blocked

LONG = 10  # seconds: who is forgotten is answered False after them


class Turn:
    """A lock that does something when an acquisition has ended, before its caller knows."""

    def __init__(self, lock: threading.Lock, then: Callable[[], object]) -> None:
        self._lock = lock
        self._then = then

    def acquire(self, blocking: bool, timeout: float) -> bool:
        acquired = self._lock.acquire(blocking, timeout)
        self._then()
        return acquired

    def release(self) -> None:
        self._lock.release()


@contextmanager
def waiting(gate: WakeChain, count: int) -> Iterator[list[bool | str]]:
    """Threads that wait at the gate, and what becomes of them; joined at the end."""
    outcomes: list[bool | str] = []

    def wait() -> None:
        try:
            outcomes.append(gate.wait(LONG))
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait_until_blocked(thread)
    yield outcomes
    for thread in threads:
        thread.join()


def test_everybody_comes_through() -> None:
    """One opening lets all through that wait, and all that come later, with or without a timeout."""
    gate = WakeChain()
    with waiting(gate, 8) as outcomes:
        gate.open()
    assert outcomes == [True] * 8
    assert gate.wait()
    assert gate.wait(0)


def test_a_wait_that_ends_before_the_opening() -> None:
    """After its timeout a wait answers False, with a negative one at once; the others come through later."""
    gate = WakeChain()
    with waiting(gate, 2) as outcomes:
        assert not gate.wait(0.001)
        assert not gate.wait(-1)
        gate.open()
    assert outcomes == [True, True]


def test_an_interruption_on_the_way_through() -> None:
    """Who is interrupted in the moment it is let through still lets the next one through."""
    gate = WakeChain()
    interruptions = iter([KeyboardInterrupt()])

    def interrupt_the_first() -> None:
        for interruption in interruptions:
            raise interruption

    gate._turn = Turn(gate._turn, interrupt_the_first)  # type: ignore[assignment]
    with waiting(gate, 3) as outcomes:
        gate.open()
    assert sorted(map(str, outcomes)) == ["True", "True", "interrupted"]


def test_a_timeout_in_the_moment_of_the_opening() -> None:
    """A wait whose time is over as the gate opens answers False or True, and no turn is lost or doubled."""
    gate = WakeChain()
    gate._turn = Turn(gate._turn, lambda: WakeChain.open(gate))  # type: ignore[assignment]
    assert not gate.wait(0)
    assert gate.wait(0)
    gate.open()
    with pytest.raises(RuntimeError):
        gate._turn.release()
