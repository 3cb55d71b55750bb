"""How threads wait for the lock of a queue, and which threads must not wait: very many depend on each of their turns.

A store's thread makes the commits that others wait for, and an I/O thread serves many connections. What takes long is
done by another thread where they meet it, and publishers are held back instead of the thread.

Polled lock One thread has it at a time. One that waits asks again and gets it while it has the interpreter, or not at
            all. With the GIL a plain lock makes a convoy: docs/decisions/0511-the-lock-of-a-queue-is-polled.md.
Fairness    None; a plain lock has none. A thread that waits asks three times on average: holds are microseconds.
Assumes     that a hold of such a lock is short, and that no thread blocks in it.
"""

from __future__ import annotations

import sys
import threading
from _thread import LockType
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Final

from multiqueue.store import Commit, StoreFull
from multiqueue.store import give_way as give_way_to_writers

from ..._locks import attempts

_NAP: Final = 0.0002  # seconds, between two slices of work
_PAUSE: Final = 50e-6  # seconds; shorter ones come back before the thread that has the lock has the GIL
_HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()

HeldLock = AbstractContextManager[object]


class _PolledLock:
    """A context manager whose two methods are its own values: one call in Python for a hold, and none to find it."""

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, lock: LockType) -> None:
        asked = attempts(lock.acquire, blocking=False)

        def enter() -> None:
            for is_ours in asked:
                if is_ours:
                    break
                sleep(_PAUSE)

        self.__enter__: Callable[[], None] = enter
        self.__exit__: Callable[..., None] = lock.__exit__


def polled(lock: LockType) -> HeldLock:
    """The lock, waited for by asking again; the lock itself without a GIL, or if it is one that a test made."""
    return _PolledLock(lock) if _HAS_GIL and type(lock) is LockType else lock


@dataclass(slots=True, eq=False)
class PutOff:
    """A wait for a commit that is left to the caller of a change; none while `commit` is None."""

    commit: Commit | None = None
    is_own: bool = False  # of the change itself; a refusal of another one is no error of this one

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """As `Commit.add_done_callback`, with the error that the change would have raised."""
        assert self.commit is not None, "there is nothing to wait for"
        self.commit.add_done_callback(
            lambda error: callback(None if isinstance(error, StoreFull) and not self.is_own else error)
        )


class Here(threading.local):
    """The role of the present thread."""

    follows_commit = 0  # a store's, running what follows a commit, so many calls deep
    serves_many = False
    put_off: PutOff | None = None  # takes the waits for changes of definitions


here = Here()


def serve_many() -> None:
    """The present thread serves many from now on: nothing on it may wait for commits, or do what takes long."""
    here.serves_many = True


@contextmanager
def without_waiting() -> Iterator[PutOff]:
    """In this block one call that declares, binds or deletes does not wait for its commit, which is put off.

    For a thread that serves many. What others declared meanwhile, and the call met, is waited for in the same way.
    """
    before, here.put_off = here.put_off, PutOff()
    try:
        yield here.put_off
    finally:
        here.put_off = before


def may_take_long() -> bool:
    """False on a thread that others depend on."""
    return not (here.serves_many or here.follows_commit)


def nap() -> None:
    """Let others have the interpreter between two slices, so that they need not ask for it, and wait 5 ms."""
    sleep(_NAP)


def give_way() -> None:
    """Let a store's thread that commits have the interpreter, for a moment: many wait for it."""
    if _HAS_GIL:
        give_way_to_writers(_NAP)


class InPieces:
    """Work that is done in steps: all of them on a thread that may take long, else one, and another thread goes on.

    `do_later` has a piece called elsewhere, again and again while it returns True.
    """

    def __init__(self, do_later: Callable[[Callable[[], bool]], None]) -> None:
        self._do_later = do_later
        self._goes_on = False  # elsewhere
        self._again: Callable[[], object] | None = None  # called by who went on, once it is set that he no longer does

    def run(self, steps: Iterator[None]) -> None:
        """Do the steps, or the first of them; no other thread goes on while one does."""
        if may_take_long():
            for _ in steps:
                pass
        elif _step(steps) and not self._goes_on:
            self._goes_on = True
            self._do_later(partial(self._go_on, steps))

    def leave_to_other(self, again: Callable[[], object]) -> bool:
        """True while another thread goes on: it calls `again` when it is done, for it may have been about to end."""
        self._again = again
        if self._goes_on:
            return True
        self._again = None
        return False

    def _go_on(self, steps: Iterator[None]) -> bool:
        is_more = False
        try:
            is_more = _step(steps)
        finally:
            self._goes_on = is_more
            again = None if is_more else self._again
            if again is not None:
                self._again = None
                again()
        return is_more


def _step(steps: Iterator[None]) -> bool:
    """False when that was all."""
    return next(steps, steps) is not steps
