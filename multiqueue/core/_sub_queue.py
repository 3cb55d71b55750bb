"""`SubQueue`, the parts that it shares with `Queue`, and those of the engine that all queues need; the same over both
engines.

Doors       `due`, `get`, `poll`, `take`, `pair` and `many` of the engine are subscribed, `due[self]`, for after a
            subscription CPython delivers neither a signal nor an exception; and each method that takes returns
            what its door gives, with no instruction in between. So what a method has taken its caller has.
State       The engine's: elements, turns, lines and settings.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, MutableMapping
from threading import RLock
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from ..errors import Detached, Full, ShutDown
from . import _sync
from ._engines import chosen as _engine
from ._engines import engine
from ._parking import AsyncWaiter, deadline_after
from ._settings import check_count, check_max_items, check_optional, check_priority
from ._sync import cannot_copy
from ._targets import DrainTarget, acceptor

if TYPE_CHECKING:
    from ._statistics import SubQueueStatistics

T = TypeVar("T")
D = TypeVar("D")

due, get_door, poll, take = _engine.due, _engine.get, _engine.poll, _engine.take
pair, many, drop = _engine.pair, _engine.many, _engine.drop

if TYPE_CHECKING or engine == "python":
    from ._plain import give_back
else:

    def give_back(taken: list[Any]) -> None:
        """Undo the takes of `pair` in this list; it may be repeated."""
        while taken:
            tail, item = taken[-1]
            del taken[-1]
            _engine.give_back(tail, item)


if TYPE_CHECKING:
    from ._plain import Tail
else:
    Tail = GenericAlias(_engine.Tail, (T,))  # that in C is not generic: an alias of it can be subscribed

# ---- what all three kinds of queues have -----------------------------------------------------------------------------


class Waiter(AsyncWaiter):
    """Where a coroutine waits: the engine wakes all its waiters by `release`."""

    __slots__ = ()

    release = AsyncWaiter.wake


async def wait_in_line(queue: Any, putting: bool) -> None:
    """Wait until there may be something to take, or room."""
    waiter = Waiter()
    try:
        if _engine.park(queue, waiter, putting):
            await waiter.woken
    finally:  # a cancelled one may be struck here
        try:
            _engine.unpark(queue, waiter, putting)
        except BaseException:
            _engine.unpark(queue, waiter, putting)
            raise


async def take_async(queue: Any) -> Any:
    """The pair of sub-queue and element that is due, for a coroutine; a cancelled one has taken nothing."""
    while True:
        taken = pair[queue]
        if taken is not None:
            return taken
        await wait_in_line(queue, False)


def drain(queue: Any, own: Any, target: Any, max_items: int | None) -> int:
    """`drain_to`: the present elements, one at a time; what the target does not accept goes back to its head."""
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
                back = [taken]
                try:
                    give_back(back)
                except BaseException:
                    give_back(back)
                    raise
            elif isinstance(error, ShutDown):
                break
            raise
        count += 1
    return count


def _is_part(tail: Any, multi_queue: Any) -> bool:
    return isinstance(tail, SubQueue) and tail._multi_queue is multi_queue


def set_gate(queue: Any) -> None:
    """Under `multiqueue.testing`, which puts other locks in the place of RLock: have it decide who goes on.

    The engine in Python has one of those already.
    """
    if _sync.RLock is not RLock and engine == "c":
        _engine.set_gate(queue, _sync.RLock())


# ---- what the engine calls, outside of its sections ------------------------------------------------------------------


def refusal(tail: Any, closed: int, item: object, timeout: float | None) -> Full | ShutDown:
    """The error for an element that was not put; the element is on it."""
    if isinstance(tail, _engine.Multi):
        error: Full | ShutDown = ShutDown("the fair queue is shut down")
    elif closed:
        error = ending(tail)
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
    if isinstance(tail, SubQueue):
        return f"sub-queue {tail.key!r}"
    key = _engine.key_of(tail)
    return "the queue" if key is None else f"key {key!r}"


# ---- the sub-queue ---------------------------------------------------------------------------------------------------


class Gets(Generic[T]):
    """How elements are taken from any of them."""

    __slots__ = ()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the element that is due, waiting while there is none.

        Of a sub-queue or a stand-alone queue that is the one at its head, enabled or not; of several it is by priority
        and turn, first in first out within each, of those that are enabled. It counts as in flight until `task_done()`.
        Ends by an element, by shutdown or removal once nothing is left, or after `timeout` seconds; with
        `block=False` at once. Any thread.

        Raises:
            Empty: there was none in time.
            ShutDown: nothing is left and nothing can come any more (`Detached` for a removed sub-queue).
            ValueError: `timeout` is negative.
        """
        if block and timeout is None:
            return due[self]  # type: ignore[no-any-return]
        return get_door[self, block, timeout]  # type: ignore[no-any-return]

    def get_nowait(self) -> T:
        """`get(block=False)`."""
        return self.get(False)

    @overload
    def poll(self, timeout: float | None = 0.0) -> T | None: ...
    @overload
    def poll(self, timeout: float | None = 0.0, *, default: D) -> T | D: ...
    @overload
    def poll(self, timeout: float | None, default: D) -> T | D: ...
    def poll(self, timeout: float | None = 0.0, default: Any = None) -> Any:
        """Take the element that is due, or return `default` when none comes within `timeout` seconds, or can come any
        more.
        """
        try:
            return poll[self, timeout, default]
        except ShutDown:
            return default

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Take 1 to `max_items` elements in the order of service; waits only for the first.

        Raises:
            Empty, ShutDown: as for `get`.
            ValueError: `max_items` is less than 1, or `timeout` is negative.
        """
        return many[self, check_max_items(max_items, 1), block, timeout]  # type: ignore[no-any-return]

    async def async_get(self) -> T:
        """`get()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return (await take_async(self))[1]  # type: ignore[no-any-return]

    def check_invariants(self) -> None:
        """Assert what must be true whenever no operation is under way. For tests."""
        _engine.check(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        cannot_copy(self)


class Puts(Gets[T], Tail[T]):
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
        batch = list(items)
        deadline = None if timeout is None else deadline_after(timeout)
        accepted = 0
        while accepted < len(batch):
            count, closed = _engine.put_some(self, batch, accepted, deadline)
            accepted += count
            if closed:
                error = refusal(self, 1, batch[accepted], timeout)
                vars(error).update(accepted=accepted, rest=batch[accepted:])
                raise error
            if not count:
                break
        return accepted

    async def async_put(self, item: T) -> None:
        """`put(item)` for a coroutine, from any event loop; one that is cancelled while it waits has put nothing.

        Raises:
            ShutDown: as for `put`.
        """
        while not self.offer(item):
            await wait_in_line(self, True)

    def drain_to(self, target: DrainTarget[T], max_items: int | None = None) -> int:
        """Take the present elements, `max_items` at most, and hand them to `target` in order; how many it accepted.

        `target` is a callable, or has `append`, `add`, `put_nowait` or `put`. It is called without a lock held,
        once for each element. Does not wait for elements.

        Raises:
            ValueError: `target` is this very queue.
            What `target` raises: the element in hand and all behind it are still here, in order.
        """
        return drain(self, self, target, max_items)

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
        for candidate in _engine.snapshot(self):
            if (candidate is item or candidate == item) and _engine.remove(self, candidate):
                return True
        return False

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
        from ._statistics import SubQueueStatistics

        size, capacity, unfinished, finished, discarded, putters, takers, enabled, attached, closed, *_ = (
            _engine.figures(self)
        )
        ahead = max(0, size - unfinished)  # task_done() was called before the take
        return SubQueueStatistics(
            key=getattr(self, "key", None),
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


class SubQueue(Puts[T]):
    """One of a multi-queue's sub-queues. Made by `LinkedBlockingMultiQueue.add_subqueue`, not directly.

    Every method and every assignment may be used from any thread at any time.
    """

    __slots__ = ("__weakref__", "_key", "_multi_queue")

    def __init__(
        self,
        multi_queue: _engine.Multi,
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
            drop[self]  # a subscription, as a take is: nothing comes in between
            del jobs[job]
            left += [job]

    def __repr__(self) -> str:
        size, capacity, *_, enabled, attached, _, priority, _, _, _ = _engine.figures(self)
        states = ("" if attached else " detached") + ("" if enabled else " disabled")
        return f"<SubQueue {self._key!r} priority={priority} size={size} capacity={capacity}{states}>"
