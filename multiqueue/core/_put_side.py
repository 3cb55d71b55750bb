"""The put side: one tail, with a lock of its own.

Promise     1. An element is in the queue whole or not at all. Of elements put by one thread, none overtakes another.
            2. A put that raises `Full`, `ShutDown` or `Detached` has put nothing, and the element is on the exception.
            3. No putter sleeps while there is room and no putter awake to use it.
State       The put lock guards the append of elements, `_limit` and `_putters`. `_limit` is what `len(_items)` must be
            below: the capacity, or a number that is never reached, or -1 once closed, so that an open queue pays
            one comparison for all of it. `_closed` is the error that puts raise, None while open. Setting `_limit`,
            `_capacity` or `_closed` takes both locks; so either is enough to read them.
            `_open_ended` is True while the queue is open and unbounded: a put looks at nothing else then. `_lock_free`
            is True then on a build with a GIL, unless a program holds the `mutex` of a `Queue`. A put needs no lock
            there: it looks at `_lock_free` and appends in one expression, with no call in between, where the GIL lets
            no other thread run and nothing else happen; tests/core/test_interpreter.py reads the bytecode to pin that.
            But a profile function (`sys.setprofile`, `sys.monitoring`) runs before the call of `append`. So elements
            are discarded where they are, not with their deque; and a put that finds the queue closed, and its elements
            not announced, takes its own out again, for takers may have been told that nothing is left.
Lock order  take lock -> put lock. A put never asks for the take lock while it holds this one.
Waiting     Putters wait for room, each parked on a waiter of its own. A take from a full queue wakes one putter once
            it has let go of the take lock; a putter that leaves room behind wakes the next. A putter registers
            first and then looks again, a taker deletes first and then looks for putters: one sees the other. Closing
            wakes all; so does raising the capacity. One that an exception ends looks for another one to wake.
Hazards     As in `_take_side`. An interrupted put writes the queue into the stale list; then `_mend_put`, which never
            waits for the take lock, does again what follows from the state. In operations that hold both locks `_mend`
            does. A put by a signal handler in the middle of a put of the same thread to the same queue goes ahead of
            it, and may exceed the capacity by this one element.
Source      Doug Lea, LinkedBlockingQueue. Waking on the change from full to not full, and then in a cascade, instead
            of for each element taken: 5 instead of 63 thread switches per 1000 elements.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from ..errors import Full, ShutDown
from . import _sync
from ._parking import (
    AsyncWaiter,
    Waiters,
    acquire_before,
    deadline_after,
    leave,
    seconds_left,
    wake_all,
    wake_one,
)
from ._priority_groups import Tail
from ._sync import ReentrantLock, holding, insist, release_owned

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

UNBOUNDED = sys.maxsize
WITH_GIL = "free-threading" not in sys.version  # as sysconfig says, which costs three milliseconds to load


class Head(Protocol[T]):
    """The side that takes from a queue, as the queue knows it: a `TakeSide`, which says what each method does."""

    _take_lock: ReentrantLock
    _stale: deque[Any]

    def _take_one(
        self, own: Tail[T] | None, block: bool = True, timeout: float | None = None
    ) -> tuple[Tail[T], T] | None: ...
    def _take_many(self, own: Tail[T] | None, max_items: int, block: bool, timeout: float | None) -> list[T]: ...
    async def _take_async(self, own: Tail[T] | None) -> tuple[Tail[T], T]: ...
    def _locked(self, sub: Tail[T] | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def _size_locked(self) -> int: ...
    def _mend(self) -> None: ...
    def _tell(self, sub: Tail[T]) -> None: ...
    def _read_stale(self) -> None: ...
    def _renew_locks_of(self, subqueues: Sequence[Tail[T]]) -> None: ...


class PutSide(Generic[T]):
    """The operations at the tail."""

    __slots__ = (
        "_announced",
        "_called",
        "_capacity",
        "_closed",
        "_items",
        "_limit",
        "_lock_free",
        "_open_ended",
        "_put_lock",
        "_putters",
        "_take_side",
    )

    def __init__(self, take_side: Head[T], capacity: int | None) -> None:
        self._take_side = take_side
        self._items: deque[T] = deque()
        self._put_lock: ReentrantLock = cast(ReentrantLock, _sync.RLock())
        self._putters: Waiters = []
        self._capacity = capacity
        self._limit = UNBOUNDED if capacity is None else capacity
        self._open_ended = capacity is None
        self._lock_free = WITH_GIL and capacity is None
        self._closed: type[ShutDown] | None = None
        self._called = "the queue"  # in the errors of a closed one: `_note_name` is called before it is closed
        self._announced = False  # the take side knows that this is not empty; guarded by its lock

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Put `item` at the tail, waiting while the queue is full.

        Any object, None too. Waits until there is room, the queue is closed, or `timeout` seconds are over; with
        `block=False` not at all. Any thread; also from a signal handler, `__del__` or a weakref callback, except
        that it can not wait for room there if it interrupted a put to this very queue.

        Raises:
            Full: there was no room in time. The exception's `item` is the element.
            ShutDown: `shutdown()` was called, before or while waiting. `Detached` (a `ShutDown`): the sub-queue was
                removed from its multi-queue. The exception's `item` is the element.
            ValueError: `timeout` is negative.
        """
        try:
            if timeout is None and self._lock_free and self._items.append(item) is None:  # type: ignore[func-returns-value]
                if self._announced:
                    return
                if self._closed is None or not self._take_back(item):
                    self._take_side._tell(self)  # type: ignore[arg-type]
                    return
            deadline = deadline_after(timeout) if block and timeout is not None else None
            lock = self._put_lock
            refused = None
            if deadline is None:
                lock.acquire()
            elif not acquire_before(lock, deadline):
                raise self._refusal(Full, item, timeout)
            if (
                self._open_ended
                or len(self._items) < self._limit
                or (refused := self._wait_for_room_locked(block, deadline)) is None
            ):
                self._items.append(item)
            lock.release()
            if not self._announced:
                if self._closed is not None and refused is None and self._take_back(item):
                    refused = self._closed or ShutDown
                self._take_side._tell(self)  # type: ignore[arg-type]
        except BaseException:
            try:
                self._take_side._stale.append(self)
                self._mend_put()
            except BaseException:  # interrupted again
                self._mend_put()
                raise
            raise
        if refused is not None:
            raise self._refusal(refused, item, timeout if block else 0.0)

    def _take_back(self, item: T) -> bool:
        """After a put to a queue that was closed between its look and the append: take the element out again.

        A put without a lock is overtaken by a profile function, one that holds the lock by a signal handler of its own
        thread. False if the element has been taken: then it came before the end.
        """
        if WITH_GIL:  # a taker looks at an element and removes it in one run, and so does this: the put lock will do
            return holding(self._put_lock, self._take_back_locked, item)
        return self._take_side._locked(self, holding, self._put_lock, self._take_back_locked, item)  # type: ignore[arg-type]

    def _take_back_locked(self, item: T) -> bool:
        items = self._items
        try:
            if items[-1] is item:
                del items[-1]
                return True
        except IndexError:
            pass
        return False

    def put_nowait(self, item: T) -> None:
        """`put(item, block=False)`."""
        self.put(item, block=False)

    def offer(self, item: T, timeout: float | None = 0.0) -> bool:
        """Put `item` and return True, or return False when there was no room within `timeout` seconds.

        Raises:
            ShutDown: as for `put`.
        """
        try:
            self.put(item, timeout is None or timeout != 0, timeout)
        except Full:
            return False
        return True

    def put_many(self, items: Iterable[T], timeout: float | None = None) -> int:
        """Put `items` in order, as many at once as there is room for; how many were accepted.

        That is all of them, unless `timeout` seconds were over before: then the rest was not put. Elements of
        other threads may come in between where it had to wait. `items` is read to its end first.

        Raises:
            ShutDown: as for `put`. The exception's `accepted` is the number of those put, its `rest` a list of
                the others.
            ValueError: `timeout` is negative.
        """
        batch = list(items)
        deadline = deadline_after(timeout)
        accepted = 0
        while accepted < len(batch):
            count, refused = self._put_some(batch, accepted, deadline)
            accepted += count
            if refused is Full:
                break
            if refused is not None:
                error = self._refusal(refused, batch[accepted], timeout)
                vars(error).update(accepted=accepted, rest=batch[accepted:])
                raise error
        return accepted

    async def async_put(self, item: T) -> None:
        """`put(item)` for a coroutine, from any event loop; one that is cancelled while it waits has put nothing.

        Raises:
            ShutDown: as for `put`.
        """
        waiter: AsyncWaiter | None = None
        try:
            parked = False
            while True:
                if waiter is not None and parked:
                    await waiter.woken
                if self.offer(item):
                    break
                waiter = AsyncWaiter()
                parked = holding(self._put_lock, self._enter_putters_locked, waiter)
            if waiter is not None:
                self._wake_putter()  # it may leave room behind
        except BaseException:
            try:
                self._take_side._stale.append(self)
                self._mend_put(waiter)
            except BaseException:  # interrupted again
                self._mend_put(waiter)
                raise
            raise

    def _put_some(
        self, batch: list[T], start: int, deadline: float | None
    ) -> tuple[int, type[Full] | type[ShutDown] | None]:
        """Put as much of `batch` from `start` on as there is room for, waiting for the first."""
        lock = self._put_lock
        count, refused = 0, None
        try:
            if not acquire_before(lock, deadline):
                return 0, Full
            if len(self._items) >= self._limit:
                refused = self._wait_for_room_locked(True, deadline)
            if refused is None:
                count = min(len(batch) - start, self._limit - len(self._items))
                if count > 0:
                    self._items.extend(batch[start : start + count])
                else:  # a signal handler has filled or closed it
                    count = 0
            lock.release()
            if not self._announced:
                if self._closed is not None:
                    while True:
                        if count == 0 or not self._take_back(batch[start + count - 1]):
                            break
                        refused, count = ShutDown, count - 1
                self._take_side._tell(self)  # type: ignore[arg-type]
        except BaseException:
            try:
                self._take_side._stale.append(self)
                self._mend_put()
            except BaseException:  # interrupted again
                self._mend_put()
                raise
            raise
        return count, refused

    # ---- waiting for room -----------------------------------------------------------------------------------

    def _wait_for_room_locked(self, block: bool, deadline: float | None) -> type[Full] | type[ShutDown] | None:
        """Wait until there is room, and answer None, or why there will not be. Lets go of the lock meanwhile."""
        putters = self._putters
        waited = False
        while len(self._items) >= self._limit:
            if self._closed is not None:
                return self._closed
            if not block:
                return Full
            waiter = _sync.allocate_lock()
            waiter.acquire()
            try:
                if waited:
                    putters.insert(0, waiter)  # it was its turn; somebody who had not waited was faster
                else:
                    putters.append(waiter)
                waited = True
                if len(self._items) < self._limit:  # a take that did not see this waiter has made room
                    leave(putters, waiter)
                    break
                block = self._park(waiter, deadline) or not leave(putters, waiter)
            except BaseException:
                try:
                    self._abandon(waiter)
                except BaseException:  # interrupted again
                    self._abandon(waiter)
                    raise
                raise
        if waited and len(self._items) + 1 < self._limit:
            wake_one(putters)
        return None

    def _park(self, waiter: _sync.Parking, deadline: float | None) -> bool:
        """Sleep on `waiter` without the put lock, which is held again afterwards; was it a wake-up?"""
        lock = self._put_lock
        lock.release()
        if lock._is_owned():
            lock.acquire()
            raise RuntimeError(
                "a blocking put inside a signal handler or __del__ that interrupted a put to this very queue, which "
                "is full, would wait for ever; use put_nowait() or offer() there"
            )
        woken = waiter.acquire() if deadline is None else waiter.acquire(True, seconds_left(deadline))
        lock.acquire()
        return woken

    def _abandon(self, waiter: _sync.Parking) -> None:
        """After an exception that ended a wait: leave, and hold the lock again. May be repeated."""
        if not self._put_lock._is_owned():
            self._put_lock.acquire()
        leave(self._putters, waiter)

    def _enter_putters_locked(self, waiter: AsyncWaiter) -> bool:
        """Park `waiter`, unless there is room or the queue is closed."""
        self._putters.append(waiter)
        if len(self._items) < self._limit or self._closed is not None:
            leave(self._putters, waiter)
            return False
        return True

    def _wake_putter(self) -> None:
        """Wake a putter if one waits and there is room. The caller holds no lock, or the take lock."""
        if self._putters:
            holding(self._put_lock, self._wake_putter_locked)

    def _wake_putter_locked(self) -> None:
        if len(self._items) < self._limit:
            wake_one(self._putters)
        elif self._closed is not None:
            wake_all(self._putters)

    def _mend_put(self, waiter: AsyncWaiter | None = None) -> None:
        """After an exception in a put: let go of the lock, and look for those whose wait may be over.

        A thread that was woken and does not put passes the wake-up on by this call. `waiter` is where a coroutine
        waited. May be repeated.
        """
        insist(self._mend_put_once, waiter)

    def _mend_put_once(self, waiter: AsyncWaiter | None) -> None:
        release_owned(self._put_lock)
        if waiter is not None:
            holding(self._put_lock, leave, self._putters, waiter)
        self._wake_putter()
        self._take_side._read_stale()

    # ---- closing, clearing: with both locks -----------------------------------------------------------------

    def _set_limit_locked(self, capacity: int | None) -> None:
        self._capacity = capacity
        if self._closed is None:
            self._limit = UNBOUNDED if capacity is None else capacity
            self._open_ended = capacity is None
            self._lock_free = WITH_GIL and capacity is None
        self._wake_putter_locked()

    def _close_locked(self, error: type[ShutDown]) -> None:
        self._closed = error
        self._limit = -1
        self._open_ended = False
        self._lock_free = False
        wake_all(self._putters)

    # ---- errors ---------------------------------------------------------------------------------------------

    def _name(self) -> str:
        """How error messages call this queue."""
        return "the queue"

    def _note_name(self) -> None:
        """Make the name for errors that are raised with a lock held, where no `__repr__` of a key may run."""
        try:
            self._called = self._name()
        except Exception:  # noqa: BLE001  # of the key's `__repr__`: it keeps no queue from being closed
            pass

    def _closed_error(self) -> ShutDown:
        return ShutDown(f"{self._called} is shut down")

    def _refusal(self, refused: type[Full] | type[ShutDown], item: object, timeout: float | None) -> Full | ShutDown:
        """The error for an element that was not put; the element is on it."""
        error: Full | ShutDown
        if refused is Full:
            waited = f" after waiting {timeout} s" if timeout else ""
            error = Full(
                f"{self._name()} is full: {len(self._items)} of {self._capacity} items{waited}; "
                "raise its capacity or slow the producer"
            )
        else:
            error = self._closed_error()
        vars(error)["item"] = item
        return error
