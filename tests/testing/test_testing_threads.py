"""`Threads`, `stress`, `switch_interval` and `wait_until_blocked`: real threads, none of them forgotten."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from multiqueue.testing import (
    Handle,
    StillBlocked,
    TestToolError,
    Threads,
    stress,
    switch_interval,
    wait_until_blocked,
)


def test_results_and_errors_come_back() -> None:
    """A thread's result is returned and its exception raised where `result` is called."""
    with Threads() as threads:
        assert threads.start(int, "7").result() == 7
        with pytest.raises(ValueError, match="seven"):
            threads.start(int, "seven").result()


def test_errors_that_nobody_asked_for_are_raised_at_the_end() -> None:
    """A thread that fails fails the test, one as it is and several as a group."""

    def fail(*numbers: str) -> None:
        with Threads() as threads:
            for number in numbers:
                threads.start(int, number)

    with pytest.raises(ValueError, match="one"):
        fail("one")
    with pytest.raises(ExceptionGroup, match="2 threads failed"):
        fail("one", "two")


def test_the_error_of_the_block_comes_first() -> None:
    """If the block fails as well, its own error is raised, with the threads' in its notes."""

    def fail_twice() -> None:
        with Threads() as threads:
            threads.start(int, "one").thread.join()
            raise LookupError

    with pytest.raises(LookupError) as failure:
        fail_twice()
    assert any("invalid literal" in note for note in failure.value.__notes__)


def test_a_thread_that_hangs_is_shown() -> None:
    """A thread that does not end is reported with its name and the line on which it stands (testing 3, 5)."""
    lock = threading.Lock()
    lock.acquire()

    def wait_for_lock() -> None:
        lock.acquire()

    try:
        with pytest.raises(StillBlocked) as failure, Threads(timeout=0.05) as threads:
            handle = threads.start(wait_for_lock)
        assert "1 threads not ended" in str(failure.value)
        assert "in wait_for_lock" in str(failure.value)
        with pytest.raises(StillBlocked):
            handle.result(timeout=0.01)
    finally:
        lock.release()
        handle.thread.join()


def test_threads_can_start_together() -> None:
    """None of the functions is called before every thread has been started."""
    started: list[str] = []
    seen: list[int] = []

    class Counting(Threads):
        def start(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Handle[Any]:
            started.append(function.__name__)
            return super().start(function, *args, **kwargs)

    with Counting() as threads:
        threads.start_together(*[lambda: seen.append(len(started))] * 3)
    assert seen == [3, 3, 3]


def test_the_switch_interval_is_put_back() -> None:
    """Inside the block threads switch as often as asked for, afterwards as before, also after an error (testing 4)."""
    before = sys.getswitchinterval()

    def fail_inside() -> None:
        with switch_interval(1e-5):
            assert sys.getswitchinterval() == pytest.approx(1e-5)
            raise LookupError

    with pytest.raises(LookupError):
        fail_inside()
    assert sys.getswitchinterval() == before


def test_stress_names_the_round_that_failed() -> None:
    """A failure says in which round of which seed; the random numbers of a round are always the same."""
    seen: list[float] = []

    def scenario(threads: Threads, random: Random) -> Callable[[], None]:
        seen.append(random.random())
        number = len(seen)

        def check() -> None:
            assert number < 3

        return check

    for _ in range(2):
        seen.clear()
        with pytest.raises(AssertionError) as failure:
            stress(scenario, rounds=10, seed="named")
        assert failure.value.__notes__ == ["in round 2 of seed 'named'"]
        assert seen == [Random(f"named/{number}").random() for number in range(3)]


# Waiting until a thread is blocked


def test_a_blocked_thread_is_waited_for() -> None:
    """The wait ends when the thread is parked in a lock, however late it gets there (testing 3)."""
    lock, start = threading.Lock(), threading.Event()
    lock.acquire()

    def work_and_wait() -> None:
        start.wait()
        sum(range(100_000))
        lock.acquire()

    with Threads() as threads:
        worker = threads.start(work_and_wait)
        wait_until_blocked(worker.thread)  # at the event
        start.set()
        wait_until_blocked(lambda: not worker.thread.is_alive() or lock.locked())
        wait_until_blocked(worker.thread)  # at the lock
        lock.release()


def test_a_thread_that_computes_is_not_blocked() -> None:
    """A thread that runs, or waits for its turn to run, is not taken for a blocked one."""
    stop: list[bool] = []

    def compute() -> None:
        while not stop:
            pass

    with Threads() as threads:
        first, second = threads.start(compute), threads.start(compute)
        for handle in (first, second):
            with pytest.raises(StillBlocked, match="'compute' was not blocked within"):
                wait_until_blocked(handle.thread, timeout=0.2)
        stop.append(True)


def test_a_condition_of_ones_own_is_waited_for() -> None:
    """A predicate is asked until it is true; one that never is ends in an error."""
    peer: queue.Queue[str] = queue.Queue()
    with Threads() as threads:
        threads.start(peer.put, "a")
        wait_until_blocked(lambda: peer.qsize() == 1)
    with pytest.raises(StillBlocked, match="was not true within"):
        wait_until_blocked(lambda: False, timeout=0.01)


def test_a_thread_that_has_ended_is_refused() -> None:
    """A thread that is over will never block: waiting for it is a mistake."""
    with Threads() as threads:
        handle = threads.start(int)
        handle.join()
        with pytest.raises(TestToolError, match="is not running"):
            wait_until_blocked(handle.thread)
