"""The locks of the house: after a strike, wherever it comes, nobody holds them."""

from __future__ import annotations

import _thread
import ast
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_parts_support import polled

import multiqueue
from multiqueue import _locks

HOUSE = Path(multiqueue.__file__).parent
STRIKES = 300  # of a `threading.Condition` on any CPython, and of a lock on 3.14, about a half leaves it held


class Struck(Exception):
    """What the signal handler raises."""


def strike(*_: object) -> None:
    raise Struck


@pytest.fixture
def strikes() -> Iterator[None]:
    """A signal handler that raises; nothing strikes afterwards.

    No garbage is collected: Hypothesis has itself called by the collector, which drops what strikes there.
    """
    before = signal.signal(signal.SIGALRM, strike)
    gc.disable()
    yield
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def queue_lock() -> Any:
    """The lock of a broker queue, and the raw one in it, which tells whether it is held."""
    raw = _thread.allocate_lock()
    return polled(raw), raw


class Timed:
    """A lock that is had within a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.locked = self.lock.locked

    def hold(self) -> None:
        if not _locks.acquired(self.lock, 5.0):
            raise AssertionError
        try:
            pass
        finally:
            self.lock.release()


def plain(make: Callable[[], Any]) -> Any:
    lock = make()
    return lock, lock


MAKERS: dict[str, Callable[[], Any]] = {
    "Lock": lambda: plain(_locks.Lock),
    "RLock": lambda: plain(_locks.RLock),
    "Condition": lambda: plain(_locks.Condition),
    "Condition of a Lock": lambda: (_locks.Condition(lock := _locks.Lock()), lock),
    "Guard": lambda: plain(lambda: _locks.Guard(threading.Lock())),
    "Guard of an RLock": lambda: plain(lambda: _locks.Guard(threading.RLock())),
    "queue lock": queue_lock,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_a_strike_leaves_no_lock_held(make: Callable[[], Any], strikes: None) -> None:
    """An exception of a signal handler that arrives anywhere around a `with` leaves its lock free."""
    left_held = 0
    for _ in range(STRIKES):
        lock, inner = make()
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            while True:
                for _ in range(1000):
                    with lock:
                        pass
                time.sleep(0)  # CPython 3.11 does not see a signal when another thread has had the GIL meanwhile
        except Struck:
            pass
        left_held += inner._is_owned() if hasattr(inner, "_is_owned") else inner.locked()
    assert left_held == 0


def test_a_strike_leaves_no_turn_held(strikes: None) -> None:
    """As for a `with`, where a lock is waited for within a time."""
    left_held = 0
    for _ in range(STRIKES):
        timed = Timed()
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            while True:
                for _ in range(1000):
                    timed.hold()
                time.sleep(0)
        except Struck:
            pass
        left_held += timed.locked()
    assert left_held == 0


def test_a_guard_that_is_held_keeps_others_out() -> None:
    """As the lock in it."""
    guard = _locks.Guard(threading.Lock())
    with guard:
        assert guard.locked()
        assert not guard.acquire(False)
    assert not guard.locked()


def test_a_condition_waits_and_wakes() -> None:
    """A condition on each kind of lock is `threading`'s: who waits lets go of the lock and has it again."""
    for lock in (None, _locks.Lock(), _locks.Guard(threading.Lock()), _locks.Guard(threading.RLock())):
        meet(_locks.Condition(lock))


def meet(condition: _locks.Condition) -> None:
    """Two threads wait for each other on it."""
    seen: list[str] = []

    def wait() -> None:
        with condition:
            seen.append("waits")
            condition.notify()
            condition.wait_for(lambda: "told" in seen)
            seen.append("woken")

    with condition:
        thread = threading.Thread(target=wait)
        thread.start()
        condition.wait_for(lambda: "waits" in seen)
        seen.append("told")
        condition.notify()
    thread.join()
    assert seen == ["waits", "told", "woken"]


# Those that are no locks for `with`: a thread acquires, another one releases; and the rooms with locks of their own.
OTHERS = {
    "_locks.py": "these are they",
    "broker/_queue/queue.py": "polled, by `attempts`",
    "client/_channel/lifecycle.py": "the turn and the gate of a channel",
    "store/_wake_chain.py": "a turn that is handed on",
}


def test_each_room_takes_its_locks_here() -> None:
    """No room makes a lock of `threading` by itself; core's are its `_sync`'s."""
    found = set()
    for path in HOUSE.rglob("*.py"):
        name = path.relative_to(HOUSE).as_posix()
        if name.startswith(("core/", "testing/", "bench/")):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("threading."):
                named = {node.attr}
            elif isinstance(node, ast.ImportFrom) and node.module == "threading":
                named = {one.name for one in node.names}
            else:
                continue
            if named & {"Lock", "RLock", "Condition"}:
                found.add(name)
    assert found == set(OTHERS)
