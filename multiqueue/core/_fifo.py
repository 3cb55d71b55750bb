"""One queue with its own tail, taken from through a take side: what `SubQueue` and `Queue` have in common.

State       The fields named here belong to the take side and are guarded by its lock: see `_take_side`, State.
            `_items` is appended to under the put lock, deleted from under the take lock, and never replaced.
            Counts: every element ever put is in `_items`, or was taken (`_in_flight` + `_finished`), or was
            discarded. `task_done()` moves one from `_in_flight` to `_finished`; what `join()` waits for is that
            `len(_items) + _in_flight` is 0, so that `_in_flight` is below 0 for as long as `task_done()` is ahead.
            `_swept` holds what was taken out to be discarded until it is counted: an exception can strike in `len`.
Waiting     `join()` parks in `_joiners`, the multi-queue's in `_joiners_of_all` of one sub-queue after the other, both
            under the take lock. `task_done()` and calls that discard elements wake all; removal wakes the latter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from ..errors import Empty, ShutDown
from . import _sync
from ._draining import drain_to, get_many
from ._parking import Waiters, leave, wake_all
from ._priority_groups import PriorityGroup, Tail
from ._put_side import Head, PutSide
from ._sync import ReentrantLock, cannot_copy, holding
from ._targets import DrainTarget

if TYPE_CHECKING:
    from ._statistics import SubQueueStatistics

T = TypeVar("T")
D = TypeVar("D")


class Fifo(PutSide[T]):
    """A queue that can be put to, taken from, inspected and closed."""

    __slots__ = (
        "__weakref__",
        "_attached",
        "_discarded",
        "_finished",
        "_group",
        "_in_flight",
        "_joiners",
        "_joiners_of_all",
        "_max_in_flight",
        "_next",
        "_own_takers",
        "_plain",
        "_previous",
        "_priority",
        "_reasons",
        "_swept",
        "_turn",
        "_weight",
    )

    def __init__(self, take_side: Head[T], capacity: int | None) -> None:
        super().__init__(take_side, capacity)
        self._own_takers: Waiters = []
        self._joiners: Waiters = []  # wait for this queue alone
        self._joiners_of_all: Waiters = []  # wait for all of the multi-queue's; this is the one they wait for now
        self._in_flight = 0
        self._finished = 0
        self._discarded = 0
        self._swept: deque[T] | None = None  # taken out to be discarded, and not counted yet
        self._attached = False  # whether the multi-queue takes from it
        self._reasons: frozenset[Hashable] = frozenset()  # why it is disabled
        self._priority = 0
        self._weight = 1
        self._max_in_flight: int | None = None
        self._turn = 0  # elements it has given in its present turn
        # Weight 1, no in-flight limit, no thread parked on it alone, open: little to do after a take. False is never
        # wrong, only slower; so it is set first, then what it depends on is changed, then it is settled.
        self._plain = True
        self._group: PriorityGroup[T] | None = None  # the one it is or was linked in
        self._next: Tail[T] | None = None  # in the ring; None when it is in none
        self._previous: Tail[T] | None = None

    # ---- taking ---------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the element at the head, waiting while there is none; enabled or not, it is this queue's alone.

        Ends by an element, by shutdown or removal once nothing is left, or after `timeout` seconds; with
        `block=False` at once. Any thread. It counts as in flight until `task_done()`.

        Raises:
            Empty: there was none in time.
            ShutDown: nothing is left and nothing can come any more (`Detached` for a removed sub-queue).
            ValueError: `timeout` is negative.
        """
        pair = self._take_side._take_one(self, block, timeout)
        if pair is None:
            raise Empty
        return pair[1]

    def get_nowait(self) -> T:
        """`get(block=False)`."""
        return self.get(block=False)

    @overload
    def poll(self, timeout: float | None = 0.0) -> T | None: ...
    @overload
    def poll(self, timeout: float | None = 0.0, *, default: D) -> T | D: ...
    @overload
    def poll(self, timeout: float | None, default: D) -> T | D: ...
    def poll(self, timeout: float | None = 0.0, default: Any = None) -> Any:
        """Take the element at the head, or return `default` when there is none within `timeout` seconds, or ever."""
        try:
            pair = self._take_side._take_one(self, timeout is None or timeout != 0, timeout)
        except ShutDown:
            return default
        return default if pair is None else pair[1]

    @overload
    def peek(self) -> T | None: ...
    @overload
    def peek(self, default: D) -> T | D: ...
    def peek(self, default: Any = None) -> Any:
        """The element at the head, which stays where it is, or `default`. It may be taken at any time."""
        try:
            return self._items[0]
        except IndexError:
            return default

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Take 1 to `max_items` elements in order; waits only for the first.

        Raises:
            Empty, ShutDown: as for `get`.
            ValueError: `max_items` is less than 1, or `timeout` is negative.
        """
        return get_many(self._take_side, self, max_items, block, timeout)

    def drain_to(self, target: DrainTarget[T], max_items: int | None = None) -> int:
        """Take what is here now, `max_items` at most, and hand it to `target` in order; how many it accepted.

        `target` is a callable, or has `append`, `add`, `put_nowait` or `put`. It is called without a lock held,
        once for each element. Does not wait for elements.

        Raises:
            ValueError: `target` is this very queue.
            What `target` raises: the element in hand and all behind it are still here, in order.
        """
        return drain_to(self._take_side, self, target, max_items)

    async def async_get(self) -> T:
        """`get()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return (await self._take_side._take_async(self))[1]

    def put_first(self, item: T) -> None:
        """Put `item` at the head, capacity notwithstanding: for an element that was taken and is given back.

        Does not wait. The take that it undoes still counts as in flight until `task_done()`.

        Raises:
            ShutDown: as for `put`. The exception's `item` is the element.
        """
        self._take_side._locked(self, self._put_first_locked, item)

    def _put_first_locked(self, item: T) -> None:
        if self._closed is not None:
            raise self._refusal(self._closed, item, None)
        self._items.appendleft(item)
        self._take_side._stale.append(self)

    # ---- what is here ---------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """The number of elements here, at this moment."""
        return len(self._items)

    __len__ = qsize

    def empty(self) -> bool:
        """Was there nothing here, at this moment?"""
        return not self._items

    def full(self) -> bool:
        """Was there no room, at this moment?"""
        return self._capacity is not None and len(self._items) >= self._capacity

    @property
    def maxsize(self) -> int:
        """The capacity as `queue.Queue` has it: 0 means unbounded."""
        return self._capacity or 0

    def remaining_capacity(self) -> int | None:
        """How many elements there was room for, at this moment; None means any number."""
        return None if self._capacity is None else max(0, self._capacity - len(self._items))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        cannot_copy(self)

    def __iter__(self) -> Iterator[T]:
        """The elements that were here when the iteration began, in order, each once, taken since or not."""
        return iter(self._snapshot())

    def __contains__(self, item: object) -> bool:
        """Was an element here that is or equals `item`? `==` runs without a lock held."""
        return item in self._snapshot()

    def remove(self, item: object) -> bool:
        """Remove the first element that is or equals `item`; False if there was none. `==` runs without a lock held."""
        for candidate in self._snapshot():
            if (candidate is item or candidate == item) and self._with_both_locks(self._remove_locked, candidate):
                return True
        return False

    def clear(self) -> int:
        """Discard all elements; how many. Putters that wait for room go on."""
        items = self._with_both_locks(self._discard_locked)
        return len(items)

    def _snapshot(self) -> list[T]:
        return cast("list[T]", self._with_both_locks(self._list_locked))

    def _list_locked(self) -> list[T]:
        return list(self._items)

    def _remove_locked(self, wanted: T) -> bool:
        """Remove the element that is `wanted`, the same object, unless it has been taken."""
        while True:
            items = list(self._items)  # a copy: a put may append meanwhile
            index = 0
            while index < len(items) and items[index] is not wanted:
                index += 1
            if index == len(items):
                return False
            try:
                if self._items[index] is wanted:  # else a signal handler took from the head: look again
                    self._discarded += 1
                    del self._items[index]
                    break
            except IndexError:
                continue
        self._take_side._stale.append(self)
        self._wake_putter_locked()
        self._wake_joiners_locked()
        return True

    def _discard_locked(self) -> deque[T]:
        """Empty the queue; its elements are the caller's, to be dropped without a lock held."""
        items = self._items
        self._swept = swept = deque[T]()
        try:
            swept.extend(starmap(items.popleft, repeat((), len(items))))  # in C: nothing comes in between
        except IndexError:
            pass  # a signal handler took from it
        self._take_side._stale.append(self)
        self._count_swept_locked()
        self._wake_putter_locked()
        self._wake_joiners_locked()
        return swept

    def _count_swept_locked(self) -> None:
        if self._swept is not None:
            count = len(self._swept)
            self._discarded += count
            self._swept = None

    # ---- completion -----------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Elements that were taken and for which `task_done()` has not been called."""
        return max(0, self._in_flight)

    def task_done(self) -> None:
        """Say that an element that was taken is dealt with. Any thread.

        Raises:
            ValueError: called more often than there were elements.
        """
        self._take_side._locked(self, self._task_done_locked)

    def join(self) -> None:
        """Wait until `task_done()` was called for every element that was put and not discarded."""
        self._join(self._joiners)

    def _join(self, joiners: Waiters) -> None:
        """Wait in one of the two lines of joiners."""
        locked = self._take_side._locked
        waiter = _sync.allocate_lock()
        waiter.acquire()
        try:
            while True:
                if not locked(self, self._enter_joiners_locked, joiners, waiter):
                    break
                waiter.acquire()
        except BaseException:
            try:
                locked(self, leave, joiners, waiter)
            except BaseException:  # interrupted again
                locked(self, leave, joiners, waiter)
                raise
            raise

    def _task_done_locked(self) -> None:
        if self._unfinished() <= 0:
            raise ValueError("task_done() called too many times")
        self._in_flight -= 1
        self._finished += 1
        if self._max_in_flight is not None:
            self._take_side._stale.append(self)
        self._wake_joiners_locked()

    def _unfinished(self) -> int:
        return len(self._items) + self._in_flight

    def _enter_joiners_locked(self, joiners: Waiters, waiter: _sync.Parking) -> bool:
        """Park `waiter`, unless there is nothing to wait for in this line."""
        if self._unfinished() <= 0 or (joiners is self._joiners_of_all and not self._attached):
            return False
        joiners.append(waiter)
        return True

    def _wake_joiners_locked(self) -> None:
        """Wake those whose wait is over."""
        if self._joiners or self._joiners_of_all:
            done = self._unfinished() <= 0
            if done:
                wake_all(self._joiners)
            if done or not self._attached:
                wake_all(self._joiners_of_all)

    # ---- closing --------------------------------------------------------------------------------------------

    @property
    def is_shutdown(self) -> bool:
        """Does it refuse every put, because of `shutdown()` or of its removal?"""
        return self._closed is not None

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse puts from now on; takes go on until nothing is left. As CPython 3.13's `queue.Queue`.

        Putters that wait are woken with `ShutDown`; with `immediate` all elements are discarded, so that takers
        are too. Any thread; again has no effect.
        """
        self._note_name()
        items = self._with_both_locks(self._shutdown_locked, immediate)
        del items  # outside the locks: dropping an element may run code of the user

    def _shutdown_locked(self, immediate: bool) -> deque[T] | None:
        if self._closed is None:
            self._plain = False
            self._close_locked(ShutDown)
            self._settle_locked()
            self._take_side._stale.append(self)
        return self._discard_locked() if immediate else None

    # ---- for the take side ----------------------------------------------------------------------------------

    def _is_eligible(self) -> bool:
        """May the multi-queue take from it, when it has elements? The one place where that is decided."""
        return (
            self._attached
            and not self._reasons
            and (self._max_in_flight is None or self._in_flight < self._max_in_flight)
        )

    def _settle_locked(self) -> None:
        self._plain = (
            self._weight == 1 and self._max_in_flight is None and not self._own_takers and self._closed is None
        )

    def _mend_locked(self) -> None:
        """After an exception: what `_refresh_locked` and `_wake_putter` do not look at. May be repeated."""
        self._count_swept_locked()
        self._settle_locked()
        self._wake_joiners_locked()

    def _renew_locks(self) -> None:
        """In the child after a fork."""
        self._put_lock = cast(ReentrantLock, _sync.RLock())
        self._putters.clear()
        self._own_takers.clear()
        self._joiners.clear()
        self._joiners_of_all.clear()
        self._settle_locked()

    def _with_both_locks(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._take_side._locked(self, holding, self._put_lock, function, *args)

    # ---- looking at it --------------------------------------------------------------------------------------

    def statistics(self) -> SubQueueStatistics:
        """Its figures, as one consistent snapshot."""
        from ._statistics import SubQueueStatistics

        return SubQueueStatistics(**self._with_both_locks(self._figures_locked))

    def _figures_locked(self) -> dict[str, object]:
        taken = self._finished + self._in_flight
        in_flight = self.in_flight
        size = len(self._items)
        return {
            "key": getattr(self, "key", None),
            "size": size,
            "capacity": self._capacity,
            "put": taken + self._discarded + size,
            "taken": taken,
            "completed": taken - in_flight,
            "in_flight": in_flight,
            "discarded": self._discarded,
            "waiting_putters": len(self._putters),
            "waiting_takers": len(self._own_takers),
            "is_enabled": not self._reasons,
            "is_attached": self._attached,
            "is_shutdown": self._closed is not None,
        }

    def check_invariants(self) -> None:
        """Assert what must be true whenever no operation is under way. For tests; takes both locks."""
        self._with_both_locks(self._check_locked)

    def _check_locked(self) -> None:
        linked = self._next is not None
        assert self._announced or not self._items, "a queue with elements has told its take side"
        assert (self._closed is not None) == (self._limit == -1), "closed means that no length is low enough"
        assert self._open_ended == (self._closed is None and self._capacity is None), (
            "a put that does not look at the length"
        )
        plain = self._plain
        self._settle_locked()
        assert self._plain or not plain, "one that is taken for plain is plain"
        assert not (self._putters and len(self._items) < self._limit), "no putter waits for room while there is room"
        assert not (self._own_takers and self._items), "no taker waits for an element while there is one"
        assert self._swept is None, "what was discarded is counted"
        assert not (self._joiners and self._unfinished() <= 0), "no joiner waits for a join that is fulfilled"
        assert not (self._joiners_of_all and (self._unfinished() <= 0 or not self._attached)), "nor for one removed"
        if self._items:
            assert linked == self._is_eligible(), "what is ready is linked, and nothing else"
        if linked:
            assert self._is_eligible()
            assert self._group is not None
            assert self._group.priority == self._priority
            assert self._next._previous is self, "the ring is closed"  # type: ignore[union-attr]
            assert self._items or self._next is self, "a linked one without elements is alone"
