"""A lock that a thread waits for by asking again, so that no convoy forms behind it.

Promise     One thread has the lock at a time. A thread that waits gets it while it has the interpreter, or not at all.
Reason      With the GIL a plain lock makes a convoy: docs/decisions/0511-the-lock-of-a-queue-is-polled.md.
Fairness    None; a plain lock has none. A thread that waits asks three times on average: holds are microseconds.
Assumes     that a hold is short, and that no thread blocks in it.
"""

from __future__ import annotations

import sys
from _thread import LockType
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import sleep
from typing import Final

_PAUSE: Final = 50e-6  # seconds; shorter ones come back before the thread that has the lock has the GIL
_HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()

HeldLock = AbstractContextManager[object]


class _PolledLock:
    """A context manager whose two methods are its own values: one call in Python for a hold, and none to find it."""

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, lock: LockType) -> None:
        attempt = lock.acquire

        def enter() -> None:
            while not attempt(False):
                sleep(_PAUSE)

        self.__enter__: Callable[[], None] = enter
        self.__exit__: Callable[..., None] = lock.__exit__


def polled(lock: LockType) -> HeldLock:
    """The lock, waited for by asking again; the lock itself without a GIL, or if it is one that a test made."""
    return _PolledLock(lock) if _HAS_GIL and type(lock) is LockType else lock
