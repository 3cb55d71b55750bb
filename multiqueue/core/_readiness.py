"""Which sub-queues are ready: what the take side knows of its tails, and how a put tells it.

Promise     1. A thread that holds the take lock and has read the stale list knows every element whose put has returned.
            2. A put never waits here, even while its own thread holds the take lock.
State       All of it is guarded by the take lock but `_stale`, a deque that anybody may append to: sub-queues whose
            place in the ready sets may be out of date, and debts, each behind a None that announces it. On every
            sub-queue `_announced`, and its place in a ring, are ours.
Lock order  Of `_take_side`. A put takes its put lock alone and lets go of it before it comes here, and here it never
            waits: it leaves a note in `_stale` and reads that list if the take lock is free. So a put made by a signal
            handler, by `__del__` or by a weakref callback in the middle of any operation of this module has
            nothing to wait for.
Announcing  A put tells the take side only when `_announced` is False, that is, once after the sub-queue was found
            empty. It appends the element, then reads `_announced`; the take side clears `_announced`, then looks for
            elements: one of the two sees the other. A thread reads the stale list after it acquires the take lock
            and once more after releasing it, so that a note whose writer found the lock taken is read by its
            holder: the note was written before the attempt, and the attempt failed before the release.
Ready       Eligible is one predicate, `_is_eligible`: attached, enabled, below its in-flight limit; ready is
            eligible and not empty. Every ready sub-queue is linked, or stale. A linked one has elements, except
            one that is alone in its group: emptying it and filling it again then costs no relinking. A thread that
            links another one to the group unlinks it first; so does a taker that finds it empty, unless no other
            group is listed. Either way that taker clears its `_announced`, so that the next put tells.
Waking      `_refresh_locked`, which alone makes a sub-queue ready, wakes one taker of it and one of the multi-queue.
Membership  A sub-queue that is removed, closed or cleared is written into the stale list like any other change. The
            reader unlinks it, and wakes those for whom the wait has become hopeless.
Hazards     Those of `_take_side`, which says what is done about them.
Assumes     `deque.append`, `len` and truth of a deque are atomic, and a deque is safe to append to at its tail while
            its head is read and deleted; both hold on free-threaded builds too, whose deque methods lock the
            deque. `rotate(0)` is there for that lock: it orders the write of `_announced` before the look at the
            elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

from . import _sync
from ._parking import Waiters, wake_all, wake_one
from ._priority_groups import ActiveGroups, Debt, Tail
from ._selection import SubQueueSelection
from ._sync import ReentrantLock, insist, release_owned

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

ONE_GROUP = 2  # the length of the list of groups when there is one: it, and the end


class Readiness(Generic[T]):
    """The take lock, the stale list, and the sub-queues that are ready, by priority group and turn."""

    __slots__ = ("__weakref__", "_groups", "_is_shutdown", "_ready", "_selection", "_stale", "_take_lock", "_takers")

    def __init__(self) -> None:
        self._take_lock: ReentrantLock = cast(ReentrantLock, _sync.RLock())
        self._stale: deque[Any] = deque()
        self._ready: ActiveGroups[T] = ActiveGroups()
        self._groups = self._ready.groups  # the same list, one step nearer
        self._takers: Waiters = []
        self._selection: SubQueueSelection[T] | None = None
        self._is_shutdown = False  # of the multi-queue; a stand-alone queue has its own `_closed`

    # ---- looking ---------------------------------------------------------------------------------------------

    def _best_locked(self) -> Tail[T] | None:
        """The ready sub-queue whose turn it is. None when nothing is ready, and then nothing is linked."""
        while True:
            sub = self._groups[0].cursor
            if sub is None and (sub := self._ready.best()) is None:
                return None
            if sub._items:
                return sub
            self._refresh_locked(sub)
            if sub._next is sub and not sub._items and len(self._groups) == ONE_GROUP:
                return None  # the only one stays

    def _wake_taker_locked(self) -> None:
        """Wake a taker of the multi-queue, if there is something for it."""
        if self._takers and self._best_locked() is not None:
            wake_one(self._takers)

    def _size_locked(self) -> int:
        """The number of elements that could be taken now."""
        return sum([len(sub._items) for sub in self._ready])

    def _is_finished_locked(self) -> bool:
        """Is the multi-queue shut down with nothing left in any of its sub-queues?"""
        return False

    # ---- holding the take lock -------------------------------------------------------------------------------

    def _locked(self, sub: Tail[T] | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` with the take lock held and the stale list read, and read the list after it.

        `sub` is the sub-queue that it changes, if any: it is mended when an exception strikes.
        """
        lock = self._take_lock
        try:
            lock.acquire()
            if self._stale:
                self._read_stale_locked()
            result = function(*args, **kwargs)
            if self._stale:
                self._read_stale_locked()
            if self._takers:
                self._wake_taker_locked()
            lock.release()
            if self._stale:
                self._read_stale()
        except BaseException:
            runs: Sequence[tuple[Tail[T], int]] = () if sub is None else ((sub, 0),)
            try:
                self._stale.extend((None, (runs, [])))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        return result

    def _mend(self) -> None:
        """After an exception in any operation but a put, whose debt is in the stale list: pay it, let go of the lock.

        May be repeated when it is interrupted itself.
        """
        insist(self._mend_once)

    def _mend_once(self) -> None:
        lock = self._take_lock
        if not lock._is_owned():
            lock.acquire()
        self._read_stale_locked()
        self._wake_taker_locked()
        lock.release()
        self._read_stale()

    def _pay_locked(self, runs: Sequence[tuple[Tail[T], int]], taken: list[T]) -> None:
        """Give back `taken`, and wake everybody whose wait for one of the sub-queues in `runs` is over.

        May be repeated: what was given back is no longer in `taken`, and the rest is read from the state that the
        operation has left, not from what it was about to do.
        """
        last = len(runs) - 1
        while taken:
            if runs[last][1] >= len(taken):
                last -= 1
                continue
            sub = runs[last][0]
            item = taken[-1]
            del taken[-1]
            sub._in_flight -= 1
            sub._items.appendleft(item)
        for sub, _ in runs:
            sub._mend_locked()
            self._refresh_locked(sub)
            sub._wake_putter()

    # ---- stale list ------------------------------------------------------------------------------------------------

    def _tell(self, sub: Tail[T]) -> None:
        """Have `sub` looked at again: now, or by the thread that holds the take lock. Never waits."""
        self._stale.append(sub)
        self._read_stale()

    def _read_stale(self) -> None:
        """Read the stale list unless another thread holds the take lock: that one will read it. Never waits."""
        lock = self._take_lock
        try:
            while True:
                if not self._stale or lock._is_owned() or not lock.acquire(False):
                    break
                self._read_stale_locked()
                lock.release()
        except BaseException:
            try:
                release_owned(lock)
            except BaseException:  # interrupted again
                release_owned(lock)
                raise
            raise

    def _read_stale_locked(self) -> None:
        stale = self._stale
        while True:  # not `while stale`: that tests before it jumps back, and a signal handler could read in between
            if not stale:
                break
            sub = stale[0]
            del stale[0]
            if sub is None:
                debt = stale[0]
                del stale[0]
            try:
                if sub is None:
                    self._pay_locked(*debt)
                else:
                    self._refresh_locked(sub)
            except BaseException:
                stale.extend((sub,) if sub is not None else (None, debt))  # for the next reader
                raise

    def _refresh_locked(self, sub: Tail[T]) -> None:
        """Put `sub` where it belongs, in a ring or in none; wake a taker if it is ready, and those who wait in vain."""
        try:
            sub._announced = False
            sub._items.rotate(0)  # the fence between the write above and the look below
            if sub._items:
                sub._announced = True
                if sub._own_takers:
                    wake_one(sub._own_takers)
            while True:  # until a look finds it where it belongs; a signal handler's take may have moved it
                belongs = (
                    sub._announced or (sub._next is sub and len(self._groups) == ONE_GROUP)
                ) and sub._is_eligible()
                group = sub._group
                if sub._next is None or group is None:
                    if not belongs:
                        break
                    self._link_locked(sub)
                elif belongs and group.priority == sub._priority:
                    break
                else:
                    sub._turn = 0
                    group.unlink(sub)
            if belongs and sub._announced and self._takers:
                wake_one(self._takers)
            if sub._closed is not None:
                if not sub._announced:
                    wake_all(sub._own_takers)
                if self._takers and self._is_finished_locked():
                    wake_all(self._takers)
        except BaseException:
            self._stale.append(sub)
            raise

    def _link_locked(self, sub: Tail[T]) -> None:
        linked = False
        while not linked:  # once, unless a signal handler's take comes in between
            group = self._ready.group(sub._priority, sub._group)
            alone = group.cursor
            if alone is not None and alone._next is alone and not alone._items:
                self._stale.append(alone)
                group.unlink(alone)
                self._stale.append(alone)  # the first note is read if a signal handler took before it was unlinked
            linked = group.link(sub)

    # ---- after a fork ----------------------------------------------------------------------------------------

    def _renew_locks_of(self, subqueues: Sequence[Tail[T]]) -> None:
        """In the child: the other threads are gone, with the locks they held and the waiters they were parked on."""
        self._take_lock = cast(ReentrantLock, _sync.RLock())
        self._takers.clear()
        self._ready.clear()
        debts: list[Debt[T]] = [entry for entry in self._stale if isinstance(entry, tuple)]
        self._stale.clear()
        for sub in [*subqueues, *(sub for runs, _ in debts for sub, _ in runs)]:
            sub._next = sub._previous = sub._group = None
            sub._renew_locks()
            self._stale.append(sub)
        for debt in debts:
            self._stale.extend((None, debt))
        self._read_stale()
