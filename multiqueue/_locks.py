"""Locks for `with` that an exception of a signal handler, wherever it arrives, leaves free.

Promise     After `with lock:` was left, by whatever exception, the thread does not hold the lock any more: `Lock`,
            `RLock` and `Condition` of here, on each CPython. They are `threading`'s otherwise.
Reason      CPython delivers signals, and exceptions from other threads, after a call of a function in C and at the
            entry of one in Python. It delivers none within an instruction, nor when a function in Python returns.
            A `threading.Condition` has `__enter__` and `__exit__` in Python, around the lock's own: a strike in between
            leaves the lock held for ever. And CPython 3.14 calls a lock's own `__enter__` as a function in C, when the
            block has not begun (CPython issue 148874); the others make it part of an instruction.
Source      docs/decisions/0007-locks-that-are-left.md has how often.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

__all__ = ["Condition", "Guard", "Lock", "RLock", "acquired", "attempts", "hold"]


def attempts(acquire: Callable[..., bool], *, blocking: bool = True) -> Iterator[bool]:
    """Endless attempts at a lock, for `for`, which makes each within an instruction: a strike comes before it or later.

    Threads may share it.
    """
    return map(acquire, repeat(blocking))


def hold(attempts: Iterator[bool]) -> None:
    """Wait for a lock, and return holding it, or raise without it; `attempts` are blocking ones."""
    for _ in attempts:
        break


def acquired(lock: threading.Lock, timeout: float) -> bool:
    """Whether a lock could be had within `timeout` seconds: for a call right before the `try` that releases it."""
    for is_ours in map(lock.acquire, (True,), (timeout,)):
        return is_ours
    raise AssertionError("there was one attempt")


class Guard:
    """A lock of `threading` whose `__enter__` is in Python, for CPython 3.14."""

    __slots__ = (
        *("__exit__", "acquire", "locked", "release"),
        *("_acquire_restore", "_attempts", "_is_owned", "_release_save"),
    )

    def __init__(self, lock: Any) -> None:
        self.acquire = lock.acquire
        self.release = lock.release
        if hasattr(lock, "locked"):  # an RLock has it since 3.14
            self.locked = lock.locked
        self.__exit__ = lock.__exit__
        self._attempts = attempts(lock.acquire)
        if hasattr(lock, "_is_owned"):  # what a Condition asks a lock for, if that is re-entrant
            self._is_owned = lock._is_owned
            self._release_save = lock._release_save
            self._acquire_restore = lock._acquire_restore

    def __enter__(self) -> bool:
        for _ in self._attempts:
            break
        return True


if TYPE_CHECKING or sys.version_info[:2] != (3, 14):
    Lock = threading.Lock
    RLock = threading.RLock
else:

    class Lock(Guard):
        """`threading.Lock`."""

        __slots__ = ()

        def __init__(self) -> None:
            super().__init__(threading.Lock())

    class RLock(Guard):
        """`threading.RLock`."""

        __slots__ = ()

        def __init__(self) -> None:
            super().__init__(threading.RLock())


class Condition(threading.Condition):
    """`threading.Condition`, whose `with` is the lock's own."""

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, lock: Any = None) -> None:
        if lock is None:
            lock = RLock()
        super().__init__(lock)
        for name in Condition.__slots__:
            setattr(self, name, getattr(lock, name))
