"""`explore` and `replay`: what they try, what they find, and what they say about it."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from multiqueue.testing import (
    PATIENCE,
    Deadlock,
    Livelock,
    NotDeterministic,
    Run,
    ScheduleFailed,
    TestToolError,
    TooManySchedules,
    explore,
    replay,
)

MODULES = [threading, queue]  # those whose locks the scenarios here use

Scenario = Callable[[Run], None]


class Counter:
    """Adds up under a lock: in one step, or with a gap between reading and writing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0

    def add(self) -> None:
        with self.lock:
            self.value += 1

    def add_with_gap(self) -> None:
        with self.lock:
            value = self.value
        with self.lock:
            self.value = value + 1

    def add_without_lock(self) -> None:
        value = self.value
        self.value = value + 1


def adding(method: Callable[[Counter], None], times: int = 2) -> Scenario:
    def scenario(run: Run) -> None:
        counter = Counter()
        for _ in range(times):
            run.spawn(method, counter)
        run.join()
        assert counter.value == times

    return scenario


# What is tried


def test_every_order_of_critical_sections_is_tried() -> None:
    """Three threads with one critical section each are run in all six orders, and no order twice (testing 1)."""
    seen: list[tuple[str, ...]] = []

    def scenario(run: Run) -> None:
        lock = threading.Lock()
        order: list[str] = []

        def enter(name: str) -> None:
            with lock:
                order.append(name)

        for name in "abc":
            run.spawn(enter, name)
        run.join()
        seen.append(tuple(order))

    result = explore(scenario, modules=MODULES)
    finished = [order for order in seen if len(order) == 3]
    assert sorted(finished) == sorted(permutations("abc"))
    assert result.schedules == 6


def test_orders_that_nobody_can_tell_apart_are_tried_once() -> None:
    """Two threads that use different locks need a single schedule, however many steps they take."""

    def scenario(run: Run) -> None:
        def work() -> None:
            lock = threading.Lock()
            for _ in range(5):
                with lock:
                    pass

        run.spawn(work)
        run.spawn(work)
        run.join()

    assert explore(scenario, modules=MODULES).schedules == 1


def test_all_interleavings_are_counted_when_nothing_is_left_out() -> None:
    """Two threads of three steps each have 6!/(3! 3!) = 20 interleavings, 6 of them with at most one stop.

    (testing 1)
    """
    steps: list[str] = []

    def scenario(run: Run) -> None:
        locks = [threading.Lock(), threading.Lock()]

        def work(lock: Any) -> None:
            with lock:
                steps.append("inside")

        for lock in locks:
            run.spawn(work, lock)
        run.join()

    # start, acquire and release of each thread, on locks of their own: nothing is impossible
    assert explore(scenario, preemptions=99, modules=MODULES).schedules == math.comb(6, 3)
    # one after the other in two ways, and one of them stopped in one of two places
    assert explore(scenario, preemptions=1, modules=MODULES).schedules == 2 + 2 * 2


def test_preemptions_bound_what_is_tried() -> None:
    """Without a preemption threads run one after the other; with one a lost update is found."""
    assert explore(adding(Counter.add_with_gap), preemptions=0, modules=MODULES).schedules == 2
    with pytest.raises(ScheduleFailed):
        explore(adding(Counter.add_with_gap), preemptions=1, modules=MODULES)


def test_a_race_without_locks_is_found_between_lines() -> None:
    """Code that does without locks is stopped between its lines, if its module is named."""
    scenario = adding(Counter.add_without_lock)
    explore(scenario, modules=MODULES)  # has no lock operation to stop at
    with pytest.raises(ScheduleFailed) as failure:
        explore(scenario, preemptions=1, within=[__name__], modules=MODULES)
    with pytest.raises(ScheduleFailed, match="AssertionError"):
        replay(scenario, failure.value.schedule, every_release=True, within=[__name__], modules=MODULES)


def test_a_timed_wait_expires_or_not() -> None:
    """A wait with a timeout is tried with both ends, on a clock that stands still otherwise."""
    ends: set[tuple[bool, float]] = set()

    def scenario(run: Run) -> None:
        lock = threading.Lock()
        lock.acquire()
        started = run.monotonic()
        waiter = run.spawn(lock.acquire, timeout=60.0)
        run.spawn(lock.release)
        run.join()
        ends.add((waiter.result, run.monotonic() - started))

    explore(scenario, modules=MODULES)
    assert ends == {(True, 0.0), (False, 60.0)}


def test_an_interruption_strikes_before_and_after_the_lock_is_taken() -> None:
    """An interrupted `acquire` raises without the lock, or just after it has got it, or is not struck."""
    ends: set[tuple[bool, bool]] = set()

    def scenario(run: Run) -> None:
        lock = threading.Lock()
        lock.acquire()
        waiter = run.spawn_interrupted(KeyboardInterrupt, lock.acquire)
        run.spawn(lock.release)
        run.join()
        ends.add((waiter.error is not None, lock.locked()))

    explore(scenario, modules=MODULES)
    assert ends == {(False, True), (True, False), (True, True)}


def test_the_standard_library_can_be_explored() -> None:
    """`queue.Queue` hands its elements over in every order; its lost lock is found when it is interrupted."""

    def hand_over(run: Run) -> None:
        peer: queue.Queue[str] = queue.Queue(1)
        run.spawn(peer.put, "a")
        run.spawn(peer.put, "b")
        taker = run.spawn(peer.get)
        run.join()
        assert {taker.result, peer.get()} == {"a", "b"}

    def interrupt(run: Run) -> None:
        peer: queue.Queue[str] = queue.Queue()
        run.spawn_interrupted(KeyboardInterrupt, peer.get)
        run.spawn(peer.put, "a")
        run.join()

    assert explore(hand_over, modules=MODULES).schedules > 1
    with pytest.raises(ScheduleFailed) as failure:
        explore(interrupt, modules=MODULES)
    assert isinstance(failure.value.__cause__, RuntimeError | Deadlock)


# What is found and said


def test_a_failure_names_its_schedule_and_can_be_replayed() -> None:
    """The message shows each step with thread, lock and line, and the schedule fails again when replayed.

    (testing 2)
    """
    scenario = adding(Counter.add_with_gap)
    with pytest.raises(ScheduleFailed) as failure:
        explore(scenario, modules=MODULES)
    message = str(failure.value)
    assert f"replay(scenario, {failure.value.schedule!r})" in message
    assert "acquire lock 1" in message
    assert "test_testing_explore.py" in message
    assert "in add_with_gap" in message
    assert isinstance(failure.value.__cause__, AssertionError)
    with pytest.raises(ScheduleFailed):
        replay(scenario, failure.value.schedule, modules=MODULES)


def test_a_schedule_that_holds_can_be_read() -> None:
    """`replay` returns the steps of a schedule in words."""
    words = replay(adding(Counter.add), [], modules=MODULES)
    assert [line.split()[1:3] for line in words.splitlines()] == [
        ["add", "start"],
        ["add", "acquire"],
        ["add-2", "start"],
        ["add-2", "acquire"],
    ]


def test_a_deadlock_names_who_waits_for_whom() -> None:
    """Two threads that take two locks in opposite orders are found, with the holders of both locks."""

    def scenario(run: Run) -> None:
        first, second = threading.Lock(), threading.Lock()

        def forwards() -> None:
            with first, second:
                pass

        def backwards() -> None:
            with second, first:
                pass

        run.spawn(forwards)
        run.spawn(backwards)
        run.join()

    with pytest.raises(ScheduleFailed) as failure:
        explore(scenario, modules=MODULES)
    assert isinstance(failure.value.__cause__, Deadlock)
    assert "forwards: acquire lock 2, held by backwards" in str(failure.value)
    assert "backwards: acquire lock 1, held by forwards" in str(failure.value)


def test_a_scenario_that_waits_for_itself_is_a_deadlock() -> None:
    """A scenario that takes a lock it holds, while no thread runs, is told so instead of hanging."""

    def scenario(run: Run) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    with pytest.raises(ScheduleFailed, match="the scenario waits for lock 1, held by the scenario"):
        explore(scenario, modules=MODULES)


def test_threads_that_never_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that goes round in circles ends the exploration after a number of steps."""
    monkeypatch.setattr("multiqueue.testing._explore.MAX_STEPS", 100)

    def scenario(run: Run) -> None:
        lock = threading.Lock()

        def spin() -> None:
            while True:
                with lock:
                    pass

        run.spawn(spin)
        run.join()

    with pytest.raises(ScheduleFailed) as failure:
        explore(scenario, modules=MODULES)
    assert isinstance(failure.value.__cause__, Livelock)


def test_an_exception_of_a_thread_fails_unless_expected() -> None:
    """An unexpected exception fails the schedule; an expected one is kept on the thread."""

    def empty(run: Run) -> None:
        peer: queue.Queue[str] = queue.Queue()
        run.spawn(peer.get_nowait)
        run.join()

    def expected(run: Run) -> None:
        peer: queue.Queue[str] = queue.Queue()
        taker = run.spawn_expecting(queue.Empty, peer.get_nowait)
        run.join()
        assert isinstance(taker.error, queue.Empty)

    with pytest.raises(ScheduleFailed, match="Empty"):
        explore(empty, modules=MODULES)
    explore(expected, modules=MODULES)


def test_a_thread_that_waits_outside_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for a real lock does not hang the exploration: it is named with its place."""
    monkeypatch.setattr("multiqueue.testing._run.HANG_AFTER", 0.05)
    outside = threading.Lock()
    outside.acquire()

    def scenario(run: Run) -> None:
        run.spawn(outside.acquire)
        run.join()

    try:
        with pytest.raises(TestToolError, match="a thread waits for something the exploration does not know"):
            explore(scenario, modules=MODULES)
    finally:
        outside.release()


outside = threading.Lock()  # made before any run
stopped: list[str] = []


def hold_outside() -> None:
    with outside:
        stopped.append("in")


def test_locks_that_are_globals_are_explored() -> None:
    """With `within`, a global lock of those modules is a step as any other; a real one would stop the run for good."""
    before = outside

    def scenario(run: Run) -> None:
        for _ in range(2):
            run.spawn(hold_outside)
        run.join()
        assert outside is not before

    assert explore(scenario, preemptions=1, within=[__name__], modules=MODULES).schedules > 10
    assert outside is before
    assert not outside.locked()


@pytest.mark.parametrize("place", ["in the block", "at its end"])
def test_a_hang_leaves_no_real_lock_held(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A thread that was stopped while it held a real lock goes on and releases it, and the one that hung ends too."""
    monkeypatch.setattr("multiqueue.testing._run.HANG_AFTER", 0.1)
    real = threading.Lock()

    def hold() -> None:
        with real:
            stopped.append("in")

    def scenario(run: Run) -> None:
        run.spawn(hold)
        run.spawn(hold)
        run.join()

    before = set(threading.enumerate())
    with pytest.raises(TestToolError, match="a thread waits for something"):
        replay(scenario, [f"{2 + (place == 'at its end')}:hold-2"], within=[__name__], modules=MODULES)
    assert real.acquire(timeout=PATIENCE)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)


# What is refused


def test_a_scenario_that_changes_its_mind_is_refused() -> None:
    """A scenario that does something else the second time is told that it must not."""
    runs: list[int] = []

    def scenario(run: Run) -> None:
        runs.append(1)
        lock = threading.Lock()

        def one() -> None:
            with lock:
                pass

        def other() -> None:
            with lock:
                pass

        run.spawn(one)
        run.spawn(other if len(runs) == 1 else one)
        run.join()

    with pytest.raises(NotDeterministic, match="must do the same each time"):
        explore(scenario, modules=MODULES)


def test_an_exploration_that_does_not_end_says_so() -> None:
    """`max_schedules` is an error, not a result that looks like success (testing 1)."""
    with pytest.raises(TooManySchedules, match="bound its preemptions"):
        explore(adding(Counter.add, 4), max_schedules=3, modules=MODULES)


def test_a_module_without_locks_is_refused() -> None:
    """Replacing locks where there are none would explore nothing."""
    with pytest.raises(TestToolError, match="names no lock and no clock"):
        explore(adding(Counter.add), modules=[math])


def test_lines_without_a_bound_are_refused() -> None:
    """Trying all interleavings of all lines would never end."""
    with pytest.raises(TestToolError, match="pass preemptions"):
        explore(adding(Counter.add), within=["queue"], modules=MODULES)


def test_threads_are_spawned_by_the_scenario_alone() -> None:
    """A thread of the run can not spawn another: the schedule would not decide on it."""

    def scenario(run: Run) -> None:
        def spawn() -> None:
            run.spawn(print)

        run.spawn(spawn)
        run.join()

    with pytest.raises(TestToolError, match="spawn threads in the scenario itself"):
        explore(scenario, modules=MODULES)


def test_everything_is_put_back() -> None:
    """After an exploration, also one that failed, the modules have their own locks and no thread is left.

    (testing 4, 5)
    """
    before = (threading.Lock, threading.RLock, queue.time)  # type: ignore[attr-defined]
    threads = set(threading.enumerate())
    with pytest.raises(ScheduleFailed):
        explore(adding(Counter.add_with_gap), modules=MODULES)
    after = (threading.Lock, threading.RLock, queue.time)  # type: ignore[attr-defined]
    assert after == before
    assert set(threading.enumerate()) <= threads
