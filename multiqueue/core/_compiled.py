"""`LinkedBlockingMultiQueue` and `SubQueue` over the engine in C: what is not worth being in C, and the doors.

Promise     Those of `_engine.c`, and: adding a sub-queue registers it completely, or raises and registers nothing; a
            removal that raises has removed nothing.
State       The elements, turns, lines and settings are the engine's. Here stand the registry of keys, changed under its
            own lock, which is held while the user's `__hash__` and `__eq__` of keys run; reading one entry needs none.
Doors       `due`, `get`, `poll`, `take`, `pair` and `many` of the engine are subscribed, `due[self]`, for after a
            subscription CPython delivers neither a signal nor an exception; and each method that takes returns
            what its door gives, with no instruction in between. So what a method has taken its caller has.
Lock order  registry lock -> the engine's.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping
from queue import Queue as StandardQueue
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from ..errors import Detached, Empty, Full, InvalidSelection, ShutDown, SubQueueExists
from . import _engine, _sync
from ._engine import drop, due, many, pair, poll, take
from ._engine import get as get_door
from ._fork import renew_after_fork
from ._notebook import notebook_table
from ._parking import AsyncWaiter, deadline_after
from ._selection import SubQueueSelection
from ._settings import check_count, check_max_items, check_optional, check_priority
from ._sync import ReentrantLock, cannot_copy, holding
from ._taken import Taken
from ._targets import DrainTarget, acceptor

if TYPE_CHECKING:
    from ._statistics import MultiQueueStatistics, SubQueueStatistics

T = TypeVar("T")


# ---- what all three kinds of queues have -----------------------------------------------------------------------------


class Waiter(AsyncWaiter):
    """Where a coroutine waits: the engine wakes all its waiters by `release`."""

    __slots__ = ()

    release = AsyncWaiter.wake


async def take_async(queue: Any) -> Any:
    """The pair of sub-queue and element that is due, for a coroutine; a cancelled one has taken nothing."""
    while True:
        taken = pair[queue]
        if taken is not None:
            return taken
        waiter = Waiter()
        try:
            if _engine.park(queue, waiter, False):
                await waiter.woken
        finally:
            _engine.unpark(queue, waiter, False)


def drain(queue: Any, own: Any, target: Any, max_items: int | None) -> int:
    """`drain_to`: what is there now, one at a time; what the target does not accept goes back to its head."""
    accept, container = acceptor(target, lambda owner: owner is queue or (own is None and _is_part(owner, queue)))
    most = None if max_items is None else check_max_items(max_items, 0)
    is_set = type(container) is set
    count = 0
    limit = queue.qsize()
    if most is not None:
        limit = min(limit, most)
    while count < limit:
        taken = None
        try:
            taken = pair[queue]
            if taken is None:
                break
            if container is None:
                accept(taken[1])
            elif is_set:
                container |= {taken[1]}
                taken = None
            else:
                container += (taken[1],)
                taken = None
        except BaseException as error:
            if taken is not None:
                _engine.give_back(taken[0], taken[1])
            elif isinstance(error, ShutDown):
                break
            raise
        count += 1
    return count


def _is_part(tail: Any, multi_queue: Any) -> bool:
    return isinstance(tail, SubQueue) and tail._multi_queue is multi_queue


def put_batch(tail: _engine.Tail, items: Iterable[Any], timeout: float | None) -> int:
    """`put_many`."""
    batch = list(items)
    deadline = deadline_after(timeout)
    accepted = 0
    while accepted < len(batch):
        count, closed = _engine.put_some(tail, batch, accepted, deadline)
        accepted += count
        if closed:
            error = refusal(tail, 1, batch[accepted], timeout)
            vars(error).update(accepted=accepted, rest=batch[accepted:])
            raise error
        if not count:
            break
    return accepted


async def put_async(tail: Any, item: Any) -> None:
    """`async_put`."""
    while not tail.offer(item):
        waiter = Waiter()
        try:
            if _engine.park(tail, waiter, True):
                await waiter.woken
        finally:
            _engine.unpark(tail, waiter, True)


def find_and_remove(tail: _engine.Tail, item: object) -> bool:
    """`remove`."""
    for candidate in _engine.snapshot(tail):
        if (candidate is item or candidate == item) and _engine.remove(tail, candidate):
            return True
    return False


def statistics_of(tail: _engine.Tail, key: Hashable) -> SubQueueStatistics:
    """The figures of one tail, at one moment."""
    from ._statistics import SubQueueStatistics

    size, capacity, unfinished, finished, discarded, putters, takers, enabled, attached, closed, *_ = _engine.figures(
        tail
    )
    ahead = max(0, size - unfinished)  # task_done() was called before the take
    return SubQueueStatistics(
        key=key,
        size=size,
        capacity=capacity,
        put=finished + unfinished + discarded,
        taken=finished + unfinished - size,
        completed=finished - ahead,
        in_flight=unfinished - size + ahead,
        discarded=discarded,
        waiting_putters=putters,
        waiting_takers=takers,
        is_enabled=bool(enabled),
        is_attached=bool(attached),
        is_shutdown=bool(closed),
    )


def set_gate(queue: Any) -> None:
    """Under `multiqueue.testing`, which puts locks of its own in the place of RLock: have it decide who goes on."""
    if _sync.RLock is not RLock:
        _engine.set_gate(queue, _sync.RLock())


# ---- what the engine calls, outside of its sections ------------------------------------------------------------------


def refusal(tail: Any, closed: int, item: object, timeout: float | None) -> Full | ShutDown:
    """The error for an element that was not put; the element is on it."""
    if closed:
        error: Full | ShutDown = ending(tail)
    else:
        size, capacity, *_ = _engine.figures(tail)
        waited = f" after waiting {timeout} s" if timeout else ""
        error = Full(
            f"{name_of(tail)} is full: {size} of {capacity} items{waited}; raise its capacity or slow the producer"
        )
    vars(error)["item"] = item
    return error


def ending(queue: Any) -> ShutDown:
    """The error for a take from a queue that will have no element any more, or a put to it."""
    if isinstance(queue, _engine.Multi):
        return ShutDown("the multi-queue is shut down, and nothing is left in it")
    if _engine.figures(queue)[9] and isinstance(queue, SubQueue) and not _engine.figures(queue)[8]:
        return Detached(f"{name_of(queue)} was removed from its multi-queue")
    return ShutDown(f"{name_of(queue)} is shut down")


def name_of(tail: Any) -> str:
    """How error messages call it."""
    return f"sub-queue {tail.key!r}" if isinstance(tail, SubQueue) else "the queue"


def select(selection: SubQueueSelection[Any], ready: tuple[Any, ...]) -> Any:
    """The user's answer, if it is one of the choices."""
    answer = selection.select(ready)
    for sub in ready:
        if sub is answer:
            return sub
    raise InvalidSelection(
        f"{type(selection).__name__}.select() answered {answer!r}, which is not one of the "
        f"{len(ready)} ready sub-queues it was given"
    )


def selected(selection: SubQueueSelection[Any], subqueue: Any) -> None:
    """Tell the user's selection what was taken."""
    selection.taken(subqueue)


_engine.configure(
    _sync, Lock, Empty, ShutDown, Taken, refusal, ending, select, selected, StandardQueue.put, StandardQueue.get
)
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_engine.after_fork)


# ---- the sub-queue ---------------------------------------------------------------------------------------------------


class Puts(_engine.Tail, Generic[T]):
    """What a sub-queue and a stand-alone queue have in common beyond what the engine has."""

    __slots__ = ()

    def put_nowait(self, item: T) -> None:
        """`put(item, block=False)`."""
        self.put(item, block=False)

    def put_many(self, items: Iterable[T], timeout: float | None = None) -> int:
        """Put `items` in order, as many at once as there is room for; how many were accepted.

        That is all of them, unless `timeout` seconds were over before: then the rest was not put. Elements of
        other threads may come in between where it had to wait. `items` is read to its end first.

        Raises:
            ShutDown: as for `put`. The exception's `accepted` is the number of those put, its `rest` a list of
                the others.
            ValueError: `timeout` is negative.
        """
        return put_batch(self, items, timeout)

    async def async_put(self, item: T) -> None:
        """`put(item)` for a coroutine, from any event loop; one that is cancelled while it waits has put nothing.

        Raises:
            ShutDown: as for `put`.
        """
        await put_async(self, item)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the element at the head, waiting while there is none; enabled or not, it is this queue's alone.

        Ends by an element, by shutdown or removal once nothing is left, or after `timeout` seconds; with
        `block=False` at once. Any thread. It counts as in flight until `task_done()`.

        Raises:
            Empty: there was none in time.
            ShutDown: nothing is left and nothing can come any more (`Detached` for a removed sub-queue).
            ValueError: `timeout` is negative.
        """
        if timeout is None and block is True:
            return due[self]  # type: ignore[no-any-return]
        return get_door[self, block, timeout]  # type: ignore[no-any-return]

    def get_nowait(self) -> T:
        """`get(block=False)`."""
        return self.get(block=False)

    def poll(self, timeout: float | None = 0.0, default: Any = None) -> Any:
        """Take the element at the head, or return `default` when there is none within `timeout` seconds, or ever."""
        try:
            return poll[self, timeout, default]
        except ShutDown:
            return default

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Take 1 to `max_items` elements in order; waits only for the first.

        Raises:
            Empty, ShutDown: as for `get`.
            ValueError: `max_items` is less than 1, or `timeout` is negative.
        """
        return many[self, check_max_items(max_items, 1), block, timeout]  # type: ignore[no-any-return]

    def drain_to(self, target: DrainTarget[T], max_items: int | None = None) -> int:
        """Take what is here now, `max_items` at most, and hand it to `target` in order; how many it accepted.

        `target` is a callable, or has `append`, `add`, `put_nowait` or `put`. It is called without a lock held,
        once for each element. Does not wait for elements.

        Raises:
            ValueError: `target` is this very queue.
            What `target` raises: the element in hand and all behind it are still here, in order.
        """
        return drain(self, self, target, max_items)

    async def async_get(self) -> T:
        """`get()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return (await take_async(self))[1]  # type: ignore[no-any-return]

    @property
    def maxsize(self) -> int:
        """The capacity as `queue.Queue` has it: 0 means unbounded."""
        return _engine.figures(self)[1] or 0

    def remaining_capacity(self) -> int | None:
        """How many elements there was room for, at this moment; None means any number."""
        size, capacity, *_ = _engine.figures(self)
        return None if capacity is None else max(0, capacity - size)

    @property
    def in_flight(self) -> int:
        """Elements that were taken and for which `task_done()` has not been called."""
        return max(0, _engine.figures(self)[13])

    def __iter__(self) -> Iterator[T]:
        """The elements that were here when the iteration began, in order, each once, taken since or not."""
        return iter(_engine.snapshot(self))

    def __contains__(self, item: object) -> bool:
        """Was an element here that is or equals `item`? `==` runs without a lock held."""
        return item in _engine.snapshot(self)

    def remove(self, item: object) -> bool:
        """Remove the first element that is or equals `item`; False if there was none. `==` runs without a lock held."""
        return find_and_remove(self, item)

    def clear(self) -> int:
        """Discard all elements; how many. Putters that wait for room go on."""
        return _engine.discard(self)

    @property
    def is_shutdown(self) -> bool:
        """Is it closed, by `shutdown()` or by its removal?"""
        return bool(_engine.figures(self)[9])

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse puts; takes go on until nothing is left.

        Putters that wait are woken with `ShutDown`; with `immediate` all elements are discarded, so that takers
        are too. Any thread; again has no effect.
        """
        _engine.close(self, immediate)

    def statistics(self) -> SubQueueStatistics:
        """Its figures, as one consistent snapshot."""
        return statistics_of(self, getattr(self, "key", None))

    def check_invariants(self) -> None:
        """Assert what must be true whenever no operation is under way. For tests."""
        _engine.check(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        cannot_copy(self)


class SubQueue(Puts[T]):
    """One of a multi-queue's sub-queues. Made by `LinkedBlockingMultiQueue.add_subqueue`, not directly.

    Every method and every assignment may be used from any thread at any time.
    """

    __slots__ = ("__weakref__", "_key", "_multi_queue")

    def __init__(
        self,
        multi_queue: LinkedBlockingMultiQueue[T],
        key: Hashable,
        priority: int,
        capacity: int | None,
        max_in_flight: int | None,
        weight: int,
    ) -> None:
        _engine.bind(self, multi_queue, priority, capacity, max_in_flight, weight)
        self._key = key
        self._multi_queue = multi_queue

    @property
    def key(self) -> Hashable:
        """The key that it was registered under."""
        return self._key

    @property
    def priority(self) -> int:
        """The group it is served in: lower numbers first. Assigned, it goes to the end of the new group's round."""
        return _engine.figures(self)[10]

    @priority.setter
    def priority(self, priority: int) -> None:
        _engine.assign(self, "priority", check_priority(priority))

    @property
    def capacity(self) -> int | None:
        """How many elements it accepts; None means any number.

        Assigned, elements that are here stay, also when they are more than the new capacity; putters that now have
        room go on.
        """
        return _engine.figures(self)[1]

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        _engine.assign(self, "capacity", check_optional("capacity", capacity))

    @property
    def weight(self) -> int:
        """How many elements it gives when it is its turn. Can be assigned."""
        return _engine.figures(self)[11]

    @weight.setter
    def weight(self, weight: int) -> None:
        _engine.assign(self, "weight", check_count("weight", weight))

    @property
    def max_in_flight(self) -> int | None:
        """How many elements may be in flight before the multi-queue passes it over; None means any number.

        Can be assigned; one that is at its new limit is passed over from then on.
        """
        return _engine.figures(self)[12]

    @max_in_flight.setter
    def max_in_flight(self, max_in_flight: int | None) -> None:
        _engine.assign(self, "max_in_flight", check_optional("max_in_flight", max_in_flight))

    @property
    def enabled(self) -> bool:
        """Does the multi-queue take from it? False while any reason to disable it stands."""
        return bool(_engine.figures(self)[7])

    def enable(self, reason: Hashable = None) -> None:
        """Withdraw `reason`. When no other one stands, the multi-queue takes from it again, last in the round.

        Without effect if `reason` does not stand; only the reason that was given to `disable` withdraws it.
        """
        while True:  # the sets are made without a lock held: hashing and comparing may run code of the user
            before = _engine.reasons(self)
            if before is None or _engine.replace_reasons(self, before, before - {reason}):
                return

    def disable(self, reason: Hashable = None) -> None:
        """Have the multi-queue pass it over while `reason` stands.

        No take from the multi-queue that begins after this returns takes from it. Puts are accepted up to its
        capacity, and its own `get` goes on. Again with the same reason has no effect.
        """
        while True:
            before = _engine.reasons(self)
            if _engine.replace_reasons(self, before, (before or frozenset()) | {reason}):
                return

    @property
    def _reasons(self) -> frozenset[Hashable]:
        return _engine.reasons(self) or frozenset()

    def _wake_putter(self) -> None:
        _engine.stir(self)

    # ---- for `_lane_waiting`: tickets, each with a job of its own or worth any of `jobs` ------------------------

    def _enter_line(self, jobs: MutableMapping[Any, None]) -> None:
        """Enter the jobs of all tickets into `jobs`. Each is entered once: this costs nothing in the long run."""
        tickets: list[Any] = []
        while True:
            ticket: Any = _engine.item(self, len(tickets))
            if not ticket:  # none is left, or one that was entered
                break
            tickets.append(ticket)
        for ticket in reversed(tickets):
            try:
                job = ticket[0]
                del ticket[0]
                jobs[job] = None
            except IndexError:  # a worker has taken it meanwhile; or a put has moved it, and it stands here twice
                pass

    def _leave_line(self, jobs: MutableMapping[Any, None], job: Any, left: list[Any]) -> None:
        """Move `job` from `jobs` to `left` if it is there, and one ticket out with it."""
        self._enter_line(jobs)
        if job in jobs:
            del jobs[job]
            left += [job]
            drop[self]  # a subscription, as a take is: nothing comes in between

    def __repr__(self) -> str:
        size, capacity, *_, enabled, attached, _, priority, _, _, _ = _engine.figures(self)
        states = ("" if attached else " detached") + ("" if enabled else " disabled")
        return f"<SubQueue {self._key!r} priority={priority} size={size} capacity={capacity}{states}>"


# ---- the multi-queue -------------------------------------------------------------------------------------------------


class LinkedBlockingMultiQueue(_engine.Multi, Generic[T]):
    """A set of FIFO queues with independent tails and one head on which a taker waits for all of them at once.

    Elements are put into sub-queues (`add_subqueue`) and taken from the multi-queue: by priority, and in turns
    among those of equal priority, so that a prolific producer does not starve an occasional one. Each sub-queue
    can be bounded, weighted, limited in flight, disabled and removed at any time. Every method may be called from
    any thread.
    """

    __slots__ = ("__weakref__", "_registry_lock", "_subqueues")

    def __init__(self, *, selection: SubQueueSelection[T] | None = None) -> None:
        """`selection` decides whose turn it is in the place of priorities, weights and round-robin."""
        if selection is not None and not isinstance(selection, SubQueueSelection):
            raise TypeError(f"'selection' must have the methods select and taken; {selection!r} has not")
        _engine.set_selection(self, selection)
        self._registry_lock: ReentrantLock = cast(ReentrantLock, _sync.RLock())
        self._subqueues: dict[Hashable, SubQueue[T]] = {}
        set_gate(self)
        renew_after_fork(self)

    # ---- sub-queues -----------------------------------------------------------------------------------------

    def add_subqueue(
        self,
        key: Hashable,
        priority: int = 0,
        capacity: int | None = None,
        *,
        max_in_flight: int | None = None,
        weight: int = 1,
    ) -> SubQueue[T]:
        """A new, enabled, empty sub-queue; it joins at the end of its priority's round.

        Lower `priority` is served first. `capacity` is in elements, None for unbounded. At `max_in_flight` elements
        taken and not yet `task_done()` it is passed over. `weight` elements are taken from it at each turn.

        Raises:
            SubQueueExists: `key` is in use (a `ValueError`).
            ValueError: `capacity`, `max_in_flight` or `weight` is less than 1.
            ShutDown: the multi-queue is shut down.
        """
        subqueue = self._make(key, priority, capacity, max_in_flight, weight)
        try:
            if not holding(self._registry_lock, self._register_locked, subqueue):
                raise SubQueueExists(
                    f"there is a sub-queue {key!r} already; get_subqueue() returns it, or use another key"
                )
        except BaseException:
            try:
                holding(self._registry_lock, self._undo_register_locked, subqueue)
            except BaseException:  # interrupted again
                holding(self._registry_lock, self._undo_register_locked, subqueue)
                raise
            raise
        return subqueue

    def get_or_add_subqueue(
        self,
        key: Hashable,
        priority: int = 0,
        capacity: int | None = None,
        *,
        max_in_flight: int | None = None,
        weight: int = 1,
    ) -> SubQueue[T]:
        """The sub-queue registered under `key`, added with these settings if there is none.

        Threads that ask at the same time get the same one. One that is there keeps its settings. If another thread
        removes it meanwhile, a put to it raises `Detached`: ask again.

        Raises:
            ValueError, ShutDown: as for `add_subqueue`, if there is none.
        """
        while (found := self._subqueues.get(key)) is None:
            subqueue = self._make(key, priority, capacity, max_in_flight, weight)
            # An interrupt leaves it registered or not: another thread may have it already, so it does not leave again.
            if holding(self._registry_lock, self._register_locked, subqueue):
                return subqueue
        return found

    def get_subqueue(self, key: Hashable) -> SubQueue[T]:
        """The sub-queue registered under `key`.

        Raises:
            KeyError: there is none.
        """
        try:
            return self._subqueues[key]
        except KeyError:
            raise self._unknown(key) from None

    def _unknown(self, key: Hashable) -> KeyError:
        keys = list(self._subqueues)
        there = ", ".join(map(repr, keys[:5])) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        return KeyError(f"there is no sub-queue {key!r}; there is {there or 'none at all'}")

    def remove_subqueue(self, key: Hashable) -> SubQueue[T]:
        """Detach the sub-queue registered under `key`, and return it with the elements that it holds.

        Its putters that wait, and all later puts, raise `Detached`. Its elements can be iterated, taken by its own
        methods, drained and cleared; the multi-queue never serves it again. The key can be used again.

        Raises:
            KeyError: there is none.
        """
        removed: list[SubQueue[T]] = []  # what is to be put back if this is interrupted
        try:
            holding(self._registry_lock, self._unregister_locked, key, removed)
            if not removed:
                raise self._unknown(key)
            return removed[0]
        except BaseException:
            try:
                holding(self._registry_lock, self._undo_unregister_locked, removed)
            except BaseException:  # interrupted again
                holding(self._registry_lock, self._undo_unregister_locked, removed)
                raise
            raise

    @property
    def subqueues(self) -> Mapping[Hashable, SubQueue[T]]:
        """A live, read-only view of the sub-queues by key. Iterating it goes over a snapshot of the keys."""
        return _SubQueuesView(self._subqueues)

    def _make(
        self, key: Hashable, priority: int, capacity: int | None, max_in_flight: int | None, weight: int
    ) -> SubQueue[T]:
        """A new sub-queue, not registered."""
        return SubQueue(
            self,
            key,
            check_priority(priority),
            check_optional("capacity", capacity),
            check_optional("max_in_flight", max_in_flight),
            check_count("weight", weight),
        )

    def _register_locked(self, subqueue: SubQueue[T]) -> bool:
        if not _engine.attach(subqueue):  # first: whoever finds it in the registry can put
            raise ShutDown("the multi-queue is shut down and accepts no new sub-queue")
        if self._subqueues.setdefault(subqueue.key, subqueue) is subqueue:
            return True
        _engine.detach(subqueue, False)
        return False

    def _undo_register_locked(self, subqueue: SubQueue[T]) -> None:
        """After an exception the caller does not have it: it leaves again, unless another thread has used it."""
        if self._subqueues.get(subqueue.key) is subqueue and _engine.detach(subqueue, True):
            del self._subqueues[subqueue.key]

    def _unregister_locked(self, key: Hashable, removed: list[SubQueue[T]]) -> None:
        if key not in self._subqueues:
            return
        removed.append(self._subqueues[key])
        _engine.detach(removed[0], False)
        del self._subqueues[key]

    def _undo_unregister_locked(self, removed: list[SubQueue[T]]) -> None:
        """After an exception: no queue would have its elements, so it comes back; unless another has its key now."""
        for subqueue in removed:
            if self._subqueues.setdefault(subqueue.key, subqueue) is subqueue:
                _engine.attach(subqueue)

    # ---- taking ---------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the element that is due, waiting while there is none in any enabled sub-queue.

        Ends by an element, by shutdown once nothing is left, or after `timeout` seconds; with `block=False` at
        once. Any thread. FIFO within a sub-queue; across sub-queues by priority and turn. It counts as in flight
        for its sub-queue until that one's `task_done()`.

        Raises:
            Empty: there was none in time.
            ShutDown: the multi-queue is shut down, and nothing is left in any sub-queue.
            ValueError: `timeout` is negative.
        """
        if timeout is None and block is True:
            return due[self]  # type: ignore[no-any-return]
        return get_door[self, block, timeout]  # type: ignore[no-any-return]

    def get_nowait(self) -> T:
        """`get(block=False)`."""
        return self.get(False)

    def take(self, block: bool = True, timeout: float | None = None) -> Taken[T]:
        """`get`, with the sub-queue that the element came from."""
        return take[self, block, timeout]  # type: ignore[no-any-return]

    def poll(self, timeout: float | None = 0.0, default: Any = None) -> Any:
        """Take the element that is due, or return `default` when there is none within `timeout` seconds, or ever."""
        try:
            return poll[self, timeout, default]
        except ShutDown:
            return default

    def peek(self, default: Any = None) -> Any:
        """The element that would be taken now, or `default`. It stays, and so does the order of service."""
        selection = _engine.selection(self)
        if selection is None:
            return _engine.peek(self, default)
        ready = _engine.ready(self)
        return select(selection, ready).peek(default) if ready else default

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Take 1 to `max_items` elements in the order of service; waits only for the first.

        Raises:
            Empty, ShutDown: as for `get`.
            ValueError: `max_items` is less than 1, or `timeout` is negative.
        """
        return many[self, check_max_items(max_items, 1), block, timeout]  # type: ignore[no-any-return]

    def drain_to(self, target: DrainTarget[T], max_items: int | None = None) -> int:
        """Take what could be taken now, `max_items` at most, and hand it to `target` in the order of service.

        `target` is a callable, or has `append`, `add`, `put_nowait` or `put`. It is called without a lock held,
        once for each element. Does not wait for elements. Returns how many were accepted.

        Raises:
            ValueError: `target` is this multi-queue or one of its sub-queues.
            What `target` raises: the element in hand and all behind it are still here, in order.
        """
        return drain(self, None, target, max_items)

    async def async_get(self) -> T:
        """`get()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return (await take_async(self))[1]  # type: ignore[no-any-return]

    async def async_take(self) -> Taken[T]:
        """`take()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return await take_async(self)  # type: ignore[no-any-return]

    # ---- the whole ------------------------------------------------------------------------------------------

    @property
    def is_shutdown(self) -> bool:
        """Was `shutdown()` called?"""
        return _engine.is_closed(self)

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse puts to all sub-queues, and new sub-queues; takes go on until nothing is left.

        Putters that wait raise `ShutDown`; so do takers once nothing is left in any sub-queue, disabled ones
        included. With `immediate` all elements are discarded, so that takers raise at once. Again has no effect.
        """
        _engine.close_all(self, immediate)

    def _snapshot(self) -> list[SubQueue[T]]:
        """The attached sub-queues. Copying the dict first is atomic, on free-threaded builds too."""
        return list(self._subqueues.copy().values())

    def statistics(self) -> MultiQueueStatistics:
        """The figures of all sub-queues. Consistent for each sub-queue, not across them."""
        from ._statistics import MultiQueueStatistics

        return MultiQueueStatistics(
            size=self.qsize(),
            waiting_takers=_engine.waiting_takers(self),
            is_shutdown=self.is_shutdown,
            subqueues=tuple([sub.statistics() for sub in self._snapshot()]),
        )

    def check_invariants(self) -> None:
        """Assert what must be true whenever no operation is under way. For tests."""
        _engine.check(self)

    def _renew_after_fork(self) -> None:
        self._registry_lock = cast(ReentrantLock, _sync.RLock())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        cannot_copy(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} subqueues={len(self._subqueues)} size={self.qsize()}>"

    def _repr_html_(self) -> str:
        """For notebooks: its sub-queues in figures."""
        rows = ((s.key, s.size, s.capacity, s.in_flight, s.put, s.taken) for s in self.statistics().subqueues)
        return notebook_table(repr(self), ("sub-queue", "size", "capacity", "in flight", "put", "taken"), rows)


class _SubQueuesView(Mapping[Hashable, SubQueue[T]]):
    """A mapping that cannot be written to, over a dict that others change."""

    __slots__ = ("_subqueues",)

    def __init__(self, subqueues: dict[Hashable, SubQueue[T]]) -> None:
        self._subqueues = subqueues

    def __getitem__(self, key: Hashable) -> SubQueue[T]:
        return self._subqueues[key]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._subqueues))

    def __len__(self) -> int:
        return len(self._subqueues)

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}({self._subqueues.copy()!r})"
