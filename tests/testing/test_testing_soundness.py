"""The explorer leaves out no behaviour: what it takes for commuting commutes, and nothing else is.

Each scenario is run twice: with the orders that `explore` tries, and with every order there is. Both must come to the
same ends. And relations that are wider than the right one must each lose an end, or this file would prove nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from importlib import import_module
from itertools import product
from typing import Any

import pytest

from multiqueue import Empty, LinkedBlockingMultiQueue
from multiqueue.testing import Run, explore

walk: Any = import_module("multiqueue.testing._walk")

Relation = Callable[[Any, Any], bool]
Scenario = Callable[[Run], Hashable]

RIGHT: Relation = walk.commute
GO, EXPIRE, INTERRUPT = walk.GO, walk.EXPIRE, walk.INTERRUPT


def sections_of_one_lock(run: Run) -> Hashable:
    """Three threads go through one lock: six orders."""
    lock, order = threading.Lock(), list[str]()

    def enter(name: str) -> None:
        with lock:
            order.append(name)

    for name in "abc":
        run.spawn(enter, name)
    run.join()
    return tuple(order)


def sections_of_two_locks(run: Run) -> Hashable:
    """Two threads go through two locks, one in the opposite order: what each finds in the two places."""
    locks, seen = (threading.Lock(), threading.Lock()), ([], [])  # type: tuple[Any, Any], tuple[list[str], list[str]]

    def enter(name: str, *places: int) -> None:
        for place in places:
            with locks[place]:
                seen[place].append(name)

    run.spawn(enter, "a", 0, 1)
    run.spawn(enter, "b", 1, 0)
    run.join()
    return tuple(seen[0]), tuple(seen[1])


def a_clock_that_others_read(run: Run) -> Hashable:
    """A wait expires, and moves the clock that a thread reads under another lock."""
    held, other = threading.Lock(), threading.Lock()
    held.acquire()

    def read() -> float:
        with other:
            return run.monotonic() - 1000

    waiter = run.spawn(held.acquire, timeout=60.0)
    reader = run.spawn(read)
    run.join()
    return waiter.result, reader.result


def two_waits_that_expire(run: Run) -> Hashable:
    """Two waits for two locks expire in either order: each thread says what the clock shows then."""
    locks = [threading.Lock(), threading.Lock()]

    def wait(lock: Any, seconds: float) -> float:
        lock.acquire(timeout=seconds)
        return run.monotonic() - 1000

    for lock in locks:
        lock.acquire()
    waiters = [run.spawn(wait, lock, seconds) for lock, seconds in zip(locks, (10.0, 20.0), strict=True)]
    run.join()
    return tuple(waiter.result for waiter in waiters)


def an_interruption(run: Run) -> Hashable:
    """A thread is interrupted while or after it takes a lock, beside one that looks whether it is held."""
    lock, looked = threading.Lock(), list[bool]()

    def look() -> None:
        looked.append(lock.acquire(False))

    taker = run.spawn_interrupted(KeyboardInterrupt, lock.acquire)
    run.spawn(look)
    run.join()
    return taker.error is not None, lock.locked(), tuple(looked)


def a_timed_get(run: Run) -> Hashable:
    """A timed get of a multi-queue beside a put."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane", capacity=1)
    getter = run.spawn_expecting(Empty, multi_queue.get, timeout=1.0)
    run.spawn(lane.put, "a")
    run.join()
    return getter.result, lane.qsize(), run.monotonic() - 1000


SCENARIOS: dict[Scenario, int] = {  # and how many ends each has
    sections_of_one_lock: 6,
    sections_of_two_locks: 3,
    a_clock_that_others_read: 2,
    two_waits_that_expire: 4,
    an_interruption: 3,
    a_timed_get: 3,
}

WIDER: dict[str, Relation] = {
    "an expiry commutes with everything": lambda a, b: EXPIRE in (a.verdict, b.verdict) or RIGHT(a, b),
    "an expiry commutes with another": lambda a, b: a.verdict == b.verdict == EXPIRE or RIGHT(a, b),
    "an expiry commutes with steps on other locks": lambda a, b: (
        (a.thread != b.thread and a.touches != b.touches) or RIGHT(a, b)
    ),
    "steps on one lock commute": lambda a, b: a.thread != b.thread and EXPIRE not in (a.verdict, b.verdict),
    "steps on the first lock commute": lambda a, b: (
        (a.thread != b.thread and a.touches == b.touches == 1) or RIGHT(a, b)
    ),
    "an interruption commutes with everything": lambda a, b: INTERRUPT in (a.verdict, b.verdict) or RIGHT(a, b),
    "everything commutes": lambda a, b: True,
}


def ends_of(scenario: Scenario) -> set[Hashable]:
    """The ends that a scenario comes to in the orders that are tried."""
    ends: set[Hashable] = set()
    modules = [threading, import_module("multiqueue.core._sync")]
    explore(lambda run: ends.add(scenario(run)), modules=modules)
    return ends


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_end_of_every_order_is_come_to(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """`explore` comes to each end that some order of all steps, releases too, comes to."""
    tried = ends_of(scenario)
    monkeypatch.setattr(walk, "commute", lambda one, other: False)
    monkeypatch.setattr(walk.EveryOrder, "merges_releases", False)
    assert tried == ends_of(scenario)
    assert len(tried) == SCENARIOS[scenario]


@pytest.mark.parametrize("name", WIDER)
def test_a_relation_that_is_too_wide_loses_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any wider relation some scenario comes to fewer ends than there are: the test above would fail."""
    monkeypatch.setattr(walk, "commute", WIDER[name])
    assert any(len(ends_of(scenario)) < ends for scenario, ends in SCENARIOS.items())


def test_which_steps_commute() -> None:
    """Steps commute if they are of two threads, touch two locks or none, and no wait expires with them."""
    places = (walk.NOTHING, walk.EVERYTHING, 1, 2)
    steps = [walk.Choice(*step) for step in product("ab", (GO, EXPIRE, INTERRUPT), places)]
    for one, other in product(steps, steps):
        apart = one.touches != other.touches or one.touches == walk.NOTHING
        known = walk.EVERYTHING not in (one.touches, other.touches)
        expires = EXPIRE in (one.verdict, other.verdict)
        assert RIGHT(one, other) == (one.thread != other.thread and apart and known and not expires), (one, other)
