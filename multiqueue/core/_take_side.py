"""The take side of the multi-queue: one head, many tails.

Promise     1. An element put is taken by exactly one taker, in put order within its sub-queue.
            2. An element whose put has returned is seen by every take that begins later.
            3. A take that raises has taken nothing: an interrupted one gives its element back to the head.
            4. No taker sleeps while there is something to take and no other taker is awake to take it.
State       The take lock guards everything in this module: who is parked (`_takers`, and each sub-queue's `_own_takers`
            and `_joiners`), and on every sub-queue `_in_flight`, `_finished`, `_turn`, `_plain` and the removal of
            elements; also who is ready, and how puts tell it: `_readiness`.
Lock order  take lock -> put lock; docs/design/locks.md has the whole house. A put holds no lock when it turns to the
            take side, and there it never waits.
Waiting     A taker parks only after it found nothing ready. A thread that makes a sub-queue ready wakes one taker of it
            and one of the multi-queue; a taker that leaves more behind wakes the next.
            A wake-up belongs to no taker: a taker that an exception ends looks, by `_mend`, for another one to wake.
            Only takers, `_locked` and `_read_stale` change the ready sets, and each of them wakes a taker.
Hazards     What the interpreter may do between two bytecodes, and what is done about it:
            - a signal handler raises, or an exception arrives from another thread: CPython delivers both at a
              function's entry, after a call of something in C and at a backward jump, and nowhere else.
              1. What an operation does to the elements and counts, it does in one run of statements without such
              an instruction in between. Local names that are set in the same run (`sub`, `taken`, `runs`) tell what it
              has done; elements are never compared for that, for two of them can be one object.
              2. All else (who is ready, who wakes, who holds the lock) follows from the elements, the counts, the
              settings and the lines of those who wait. Every operation has one handler. It writes a debt into the
              stale list: the sub-queues that the operation changed and the elements that it took. The next reader of
              that list gives them back, and wakes those whose wait is over. From a strike to this note is no such
              instruction, so no number of strikes loses an element.
              3. Then the handler calls `_mend`, which lets go of the lock and reads the list, and once more if that
              is interrupted. `_mend` itself begins anew when it is interrupted. So the lock is free and the debt is
              paid after any two strikes, and after more unless they hit the entry of `_mend` twice.
              4. No waiter stays in a line after its thread has gone: it is in line only inside a `try`.
              4 also asks for loops that the compiler leaves whole. It puts the jump back of a `while condition`
              outside of the `try` around it (3.12, 3.13), and that of an `if` at the end of a loop (3.14). So a loop in
              a `try` is a `while True` that begins with its `break` and ends with a statement without a condition.
              tests/core/test_protection.py reads the compiled code of every function, on the CPython that runs it.
            - code of the user runs where we hold a lock (a signal handler, `__del__`): the locks are re-entrant,
              a put never waits for the take lock, and a wait in such a place is refused instead of hanging.
            - `x += 1` is not atomic: every count has one lock. Emptiness is never counted, but read from the deque.
            - the thread switches inside a critical section: sections are a few microseconds.
            - fork: the child gets new locks, no parked threads, and ready sets made anew.
            What is left: a signal handler that itself takes from the queue it interrupted, and is itself ended by
            an exception at the one instruction after its release, releases the lock of the take it interrupted.
Assumes     What `_readiness` does of a deque.
Source      Doug Lea, LinkedBlockingQueue; M. Barrios, LinkedBlockingMultiQueue: two locks, cascading wake-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat, starmap
from typing import Any, TypeVar, cast

from ..errors import InvalidSelection, ShutDown
from . import _sync
from ._parking import (
    AsyncWaiter,
    Waiters,
    acquire_before,
    deadline_after,
    leave,
    seconds_left,
    wake_one,
)
from ._priority_groups import Tail
from ._readiness import Readiness
from ._selection import SubQueueSelection
from ._sync import Parking

T = TypeVar("T")

LONGEST_RUN = 1024  # elements taken at once: bounds how long others wait for the take lock, to about 40 us


class TakeSide(Readiness[T]):
    """The common part of takes, from the multi-queue or from one sub-queue alone."""

    __slots__ = ()

    # ---- taking ---------------------------------------------------------------------------------------------

    def _take_one(
        self, own: Tail[T] | None, block: bool = True, timeout: float | None = None
    ) -> tuple[Tail[T], T] | None:
        """Take the element that is due, from `own` alone if given; None when the time is up.

        Raises:
            ShutDown: nothing is left, and nothing can come any more.
        """
        if self._selection is not None and own is None:
            return self._take_selected(block, timeout)
        deadline = None if timeout is None or not block else deadline_after(timeout)
        lock = self._take_lock
        sub: Tail[T] | None = None
        item: Any = None
        try:
            if deadline is None:
                lock.acquire()
            elif not acquire_before(lock, deadline):
                return None
            if self._stale:
                self._read_stale_locked()
            chosen = own if own is not None else self._groups[0].cursor
            if chosen is None or not (items := chosen._items):
                chosen = self._wait_locked(own, block, deadline)
                if chosen is not None:
                    items = chosen._items
            full = False
            if chosen is not None:
                item = items[0]
                sub = chosen
                sub._in_flight += 1
                del items[0]
                if not sub._plain:
                    self._served_locked(sub, own is None)
                elif (following := sub._next) is not sub and following is not None:
                    if own is None:
                        sub._group.cursor = following  # type: ignore[union-attr]
                    if not items:
                        self._refresh_locked(sub)
                if self._takers:
                    self._wake_taker_locked()
                if sub._putters:
                    full = len(items) == sub._limit - 1
            lock.release()
            if full:  # it was, and somebody waits for room
                sub._wake_putter()  # type: ignore[union-attr]
            if self._stale:
                self._read_stale()
        except BaseException:
            changed = own if own is not None else sub
            runs = () if changed is None else ((changed, 0),)
            taken: list[T] = [] if sub is None else [item]
            try:
                self._stale.extend((None, (runs, taken)))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        return None if sub is None else (sub, item)

    def _take_many(self, own: Tail[T] | None, max_items: int, block: bool, timeout: float | None) -> list[T]:
        """As `_take_one`, up to `max_items` in service order; waits only for the first. [] when the time is up."""
        pair = self._take_one(own, block, timeout)
        if pair is None:
            return []
        taken = [pair[1]]
        runs = [(pair[0], 0)]  # who gave what: the sub-queue, and where in `taken` its run begins
        try:
            if own is None and self._selection is not None:
                while True:
                    waiter = len(taken)
                    if waiter >= max_items or (pair := self._take_one(None, False)) is None:
                        break
                    runs += [(pair[0], waiter)]
                    taken += [pair[1]]
            else:
                more = True
                while True:
                    if not more or len(taken) >= max_items:
                        break
                    more = self._locked(own, self._take_runs_locked, own, max_items, taken, runs)
                for sub, _ in runs:
                    sub._wake_putter()
        except ShutDown:
            pass  # nothing is left; what was taken counts
        except BaseException:
            try:
                self._stale.extend((None, (runs, taken)))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        return taken

    def _take_runs_locked(
        self, own: Tail[T] | None, max_items: int, taken: list[T], runs: list[tuple[Tail[T], int]]
    ) -> bool:
        """Append up to LONGEST_RUN elements to `taken`; False when nothing more is ready."""
        end = min(max_items, len(taken) + LONGEST_RUN)
        while len(taken) < end:
            sub = self._due_locked(own)
            if sub is None:
                return False
            runs.append((sub, len(taken)))
            items = sub._items
            alone = sub._plain and (own is not None or sub._next is sub)
            count = min(end - len(taken), len(items)) if alone else 1
            run = starmap(items.popleft, repeat((), count))
            sub._in_flight += count
            try:
                taken.extend(run)  # in C: nothing comes in between
            except IndexError:  # a signal handler took from it
                sub._in_flight -= count - (len(taken) - runs[-1][1])
            self._turn_locked(sub, own is None)
        return True

    def _take_selected(self, block: bool, timeout: float | None) -> tuple[Tail[T], T] | None:
        """Take from the sub-queue that the user's selection names. It is asked without any lock held."""
        selection = cast("SubQueueSelection[T]", self._selection)
        deadline = deadline_after(timeout) if block else None
        taken: list[T] = []
        runs: list[tuple[Tail[T], int]] = []
        try:
            while True:
                if taken:  # else it is the first time, or somebody was faster
                    break
                ready = self._locked(None, self._wait_ready_locked, block, deadline)
                if not ready:
                    return None
                chosen = self._checked(selection.select(cast(Any, ready)), ready)
                runs = [(chosen, 0)]
                self._locked(chosen, self._take_chosen_locked, chosen, taken)
            runs[0][0]._wake_putter()
            selection.taken(cast(Any, runs[0][0]))
        except BaseException:
            try:
                self._stale.extend((None, (runs, taken)))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        return runs[0][0], taken[0]

    def _checked(self, answer: object, ready: Sequence[Tail[T]]) -> Tail[T]:
        """The user's answer, if it is one of the choices."""
        for sub in ready:
            if sub is answer:
                return sub
        raise InvalidSelection(
            f"{type(self._selection).__name__}.select() answered {answer!r}, which is not one of the "
            f"{len(ready)} ready sub-queues it was given"
        )

    def _wait_ready_locked(self, block: bool, deadline: float | None) -> tuple[Tail[T], ...]:
        if self._wait_locked(None, block, deadline) is None:
            return ()
        return self._ready_locked()

    def _ready_locked(self) -> tuple[Tail[T], ...]:
        return tuple([sub for sub in self._ready if sub._items])

    def _take_chosen_locked(self, sub: Tail[T], taken: list[T]) -> None:
        """Append one element from `sub` to `taken` if it still is ready, and move it to the end of the round."""
        if sub._next is None or not sub._items:
            return
        self._stale.append(sub)
        sub._group.unlink(sub)  # type: ignore[union-attr]
        self._stale.append(sub)  # the first note is read if a signal handler took before it was unlinked
        if not sub._items:  # it took from this one
            return
        item = sub._items[0]
        sub._in_flight += 1
        del sub._items[0]
        taken.append(item)

    def _served_locked(self, sub: Tail[T], in_turn: bool) -> None:
        """After a take from a sub-queue with a weight, an in-flight limit, or takers of its own."""
        items = sub._items
        drained = not items or not sub._is_eligible()
        following = sub._next
        if drained or in_turn:
            sub._turn = 0 if drained else sub._turn + 1
            if in_turn and following is not None and (drained or sub._turn >= sub._weight):
                sub._turn = 0
                sub._group.cursor = following  # type: ignore[union-attr]
        if drained:
            self._refresh_locked(sub)
        else:
            wake_one(sub._own_takers)

    def _turn_locked(self, sub: Tail[T], in_turn: bool) -> None:
        """After a take: the next one's turn, and out of the ring if it is empty. `_take_one` has it written out.

        Its turn ends before it is looked at once more: a put that comes in between keeps its place, not its turn.
        """
        if not sub._plain:
            self._served_locked(sub, in_turn)
        elif (following := sub._next) is not sub and following is not None:
            if in_turn:
                sub._group.cursor = following  # type: ignore[union-attr]
            if not sub._items:
                self._refresh_locked(sub)

    # ---- waiting --------------------------------------------------------------------------------------------

    def _due_locked(self, own: Tail[T] | None) -> Tail[T] | None:
        """The sub-queue to take from, with an element in it; None when there is none."""
        if self._stale:
            self._read_stale_locked()
        if own is None:
            return self._best_locked()
        if not own._items:
            self._refresh_locked(own)
        return own if own._items else None

    def _wait_locked(self, own: Tail[T] | None, block: bool, deadline: float | None) -> Tail[T] | None:
        """Wait until there is something to take; None when the time is up. Lets go of the lock while it waits.

        Raises:
            ShutDown: nothing is left, and nothing can come any more.
        """
        waiters = self._takers if own is None else own._own_takers
        waited = False
        while (sub := self._due_locked(own)) is None:
            if own is not None or self._is_shutdown:
                self._check_open_locked(own)
            if not block:
                return None
            waiter = _sync.allocate_lock()
            waiter.acquire()
            try:
                if own is not None:
                    own._plain = False
                if waited:
                    waiters.insert(0, waiter)  # it was its turn; somebody who had not waited was faster
                else:
                    waiters.append(waiter)
                waited = True
                if own is not None:
                    own._plain = False  # again: a signal handler may have settled it in between
                block = self._park(waiter, deadline) or not leave(waiters, waiter)
            except BaseException:
                try:
                    self._abandon(waiters, waiter)
                except BaseException:  # interrupted again
                    self._abandon(waiters, waiter)
                    raise
                raise
            if own is not None:
                own._settle_locked()
        return sub

    def _abandon(self, waiters: Waiters, waiter: Parking) -> None:
        """After an exception that ended a wait: leave, and hold the lock again. May be repeated.

        If it was woken, the handler of the take, which looks for who can be woken, passes that on.
        """
        if not self._take_lock._is_owned():
            self._take_lock.acquire()
        leave(waiters, waiter)

    def _park(self, waiter: Parking, deadline: float | None) -> bool:
        """Sleep on `waiter` without the take lock, which is held again afterwards; was it a wake-up?"""
        lock = self._take_lock
        lock.release()
        if lock._is_owned():
            lock.acquire()
            raise RuntimeError(
                "a blocking take inside a signal handler or __del__ that interrupted this very multi-queue "
                "would wait for ever; use get_nowait() or poll() there"
            )
        if self._stale:
            self._read_stale()
        woken = waiter.acquire() if deadline is None else waiter.acquire(True, seconds_left(deadline))
        lock.acquire()
        return woken

    def _check_open_locked(self, own: Tail[T] | None) -> None:
        """Raise when `own`, which is empty, or the whole multi-queue can have no element any more."""
        if own is not None:
            if own._closed is not None:
                raise own._closed_error()
        elif self._is_shutdown and self._is_finished_locked():
            raise ShutDown("the multi-queue is shut down, and nothing is left in it")

    # ---- coroutines -----------------------------------------------------------------------------------------

    async def _take_async(self, own: Tail[T] | None) -> tuple[Tail[T], T]:
        """`_take_one` for a coroutine, from any event loop; a cancelled one has taken nothing."""
        waiters = self._takers if own is None else own._own_takers
        waiter: AsyncWaiter | None = None
        try:
            parked = False
            while True:
                if waiter is not None and parked:
                    await waiter.woken
                pair = self._take_one(own, False)
                if pair is not None:
                    break
                waiter = AsyncWaiter()
                parked = self._locked(own, self._enter_locked, own, waiters, waiter)
        except BaseException:
            try:
                self._locked(own, self._leave_locked, own, waiters, waiter)
            except BaseException:  # interrupted again
                self._locked(own, self._leave_locked, own, waiters, waiter)
                raise
            raise
        return pair

    def _enter_locked(self, own: Tail[T] | None, waiters: Waiters, waiter: AsyncWaiter) -> bool:
        """Park `waiter`, unless there is something to take or the end has come."""
        if self._due_locked(own) is not None:
            return False
        self._check_open_locked(own)
        waiters.append(waiter)
        if own is not None:
            own._settle_locked()
        return True

    def _leave_locked(self, own: Tail[T] | None, waiters: Waiters, waiter: AsyncWaiter | None) -> None:
        """Take `waiter` away. If it was woken, somebody else is woken by the look at `own`, or by `_locked`."""
        if waiter is not None:
            leave(waiters, waiter)
        if own is not None:
            own._settle_locked()
            self._stale.append(own)
