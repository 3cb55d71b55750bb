"""`FakeClock` and `Sequencer`: time and turns, decided by the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from multiqueue import Empty, LinkedBlockingMultiQueue
from multiqueue.testing import FakeClock, Sequencer, StillBlocked, TestToolError, Threads


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock().installed() as installed:
        yield installed


def test_time_stands_still() -> None:
    """The clock shows what it was given, until it is moved."""
    clock = FakeClock(start=5.0)
    assert (clock(), clock.monotonic()) == (5.0, 5.0)
    clock.advance(1.5)
    assert clock() == 6.5
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_a_take_times_out_when_the_clock_says_so(clock: FakeClock) -> None:
    """A `get(timeout=60)` waits through 59.9 seconds and raises `Empty` at 60, in no time."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    with Threads() as threads:
        taker = threads.start(multi_queue.get, timeout=60.0)
        clock.wait_for_waiters(1)
        clock.advance(59.9)
        assert clock.waiting == 1
        clock.advance(0.1)
        with pytest.raises(Empty):
            taker.result()
    assert clock.waiting == 0


def test_a_put_ends_a_wait_by_the_clock(clock: FakeClock) -> None:
    """A waiter on a fake clock is woken by what it waits for, with time left."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane")
    with Threads() as threads:
        taker = threads.start(multi_queue.get, timeout=60.0)
        clock.wait_for_waiters(1)
        lane.put("a")
        assert taker.result() == "a"
    assert clock() == 0.0


def test_the_clock_fits_the_standard_library() -> None:
    """Conditions, and queues made of them, wait by the fake clock when `threading` is named."""
    clock = FakeClock()
    with clock.installed([threading, queue]):
        peer: queue.Queue[str] = queue.Queue()

        def get() -> str:
            try:
                return peer.get(timeout=5.0)
            except queue.Empty:
                return "empty"

        # The threads of the test need real locks: `Threads` makes them from the same, replaced names.
        with Threads() as threads:
            taker = threads.start(get)
            clock.wait_for_waiters(1)
            clock.advance(5.0)
            assert taker.result() == "empty"


def test_sleep_follows_the_clock() -> None:
    """`clock.sleep` returns when the clock has moved on far enough."""
    clock = FakeClock()
    with Threads() as threads:
        sleeper = threads.start(clock.sleep, 10.0)
        clock.wait_for_waiters(1)
        clock.advance(10.0)
        sleeper.result()


def test_a_missing_waiter_is_told() -> None:
    """`wait_for_waiters` does not wait for ever."""
    with pytest.raises(StillBlocked, match="0 instead of 1"):
        FakeClock().wait_for_waiters(1, timeout=0.01)


def test_a_fake_lock_is_a_lock(clock: FakeClock) -> None:
    """The locks answer as real ones do: held, free, re-entrant, released without a holder."""
    from multiqueue.core import _sync

    lock = _sync.allocate_lock()
    assert lock.acquire()
    assert not lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    rlock = _sync.RLock()
    with rlock, rlock, Threads() as threads:
        assert threads.start(rlock.acquire, blocking=False).result() is False
    with pytest.raises(RuntimeError):
        rlock.release()


# Sequencer


def test_points_are_passed_in_the_order_of_their_names() -> None:
    """However the threads arrive, the blocks run in the order in which the points were named."""
    order = Sequencer("first", "second", "third")
    passed: list[str] = []

    def go(name: str) -> None:
        with order(name):
            passed.append(name)

    with Threads() as threads:
        for name in ("third", "second", "first"):
            threads.start(go, name)
    assert passed == ["first", "second", "third"] == order.passed()


def test_a_point_that_raises_gives_its_turn_on() -> None:
    """An exception in a block does not stop those that come after it."""
    order = Sequencer("first", "second")
    with pytest.raises(ZeroDivisionError), order("first"):
        _ = 1 / 0
    with order("second"):
        assert order.passed() == ["first"]


def test_a_point_nobody_passes_is_named() -> None:
    """A thread that waits too long says which point it waits for."""
    order = Sequencer("first", "second", timeout=0.01)
    with pytest.raises(StillBlocked, match=r"'second' waited .* for point 'first'"), order("second"):
        pass


def test_unknown_and_repeated_points_are_refused() -> None:
    """A misspelt point, one passed already, and a name given twice are mistakes of the test."""
    order = Sequencer("only")
    with pytest.raises(TestToolError, match="no point 'onyl'"), order("onyl"):
        pass
    with order("only"):
        pass
    with pytest.raises(TestToolError, match="passed already"), order("only"):
        pass
    with pytest.raises(TestToolError, match="different names"):
        Sequencer("same", "same")
