"""`LinkedBlockingMultiQueue`: many tails that meet at one blocking head.

Promise     1. A take serves the ready sub-queue of the lowest priority number whose turn it is; its cost does not
               depend on how many sub-queues there are.
            2. Adding a sub-queue registers it completely, or raises and registers nothing.
            3. A shutdown is one moment for takers: after one was told that nothing is left, no sub-queue accepts an
               element. So nothing is left only when every sub-queue is closed and empty: they close one by one.
            4. A removed sub-queue keeps its elements for its remover and is never served again. A removal that
               raises has removed nothing: else no queue would have the elements. A shutdown that raises has shut down.
State       `_subqueues`, by key, and `_is_shutdown` are changed under the registry lock, which is held while the
            user's `__hash__` and `__eq__` of keys run; reading one entry needs no lock. For the rest see
            `_take_side` and `_put_side`, whose locks come after the registry lock.
Membership  A removed sub-queue goes on using the take lock it was born with, and nothing else of the multi-queue.
Source      M. Barrios, LinkedBlockingMultiQueue: sub-queues, priorities, enabling, the one blocking head.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from ..errors import Empty, ShutDown, SubQueueExists
from . import _sync
from ._draining import drain_to, get_many
from ._fork import renew_after_fork
from ._notebook import notebook_table
from ._parking import wake_all
from ._priority_groups import Tail
from ._selection import SubQueueSelection
from ._settings import check_count, check_optional, check_priority
from ._sub_queue import SubQueue
from ._sync import ReentrantLock, cannot_copy, holding
from ._take_side import TakeSide
from ._taken import Taken
from ._targets import DrainTarget

if TYPE_CHECKING:
    from ._statistics import MultiQueueStatistics

T = TypeVar("T")
D = TypeVar("D")


class LinkedBlockingMultiQueue(TakeSide[T]):
    """A set of FIFO queues with independent tails and one head on which a taker waits for all of them at once.

    Elements are put into sub-queues (`add_subqueue`) and taken from the multi-queue: by priority, and in turns
    among those of equal priority, so that a prolific producer does not starve an occasional one. Each sub-queue
    can be bounded, weighted, limited in flight, disabled and removed at any time. Every method may be called from
    any thread.
    """

    __slots__ = ("_registry_lock", "_subqueues")

    def __init__(self, *, selection: SubQueueSelection[T] | None = None) -> None:
        """`selection` decides whose turn it is in the place of priorities, weights and round-robin."""
        super().__init__()
        if selection is not None and not isinstance(selection, SubQueueSelection):
            raise TypeError(f"'selection' must have the methods select and taken; {selection!r} has not")
        self._selection = selection
        self._registry_lock: ReentrantLock = cast(ReentrantLock, _sync.RLock())
        self._subqueues: dict[Hashable, SubQueue[T]] = {}
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
            self.get_subqueue(key)._note_name()
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
        if self._is_shutdown:
            raise ShutDown("the multi-queue is shut down and accepts no new sub-queue")
        return self._subqueues.setdefault(subqueue.key, subqueue) is subqueue

    def _undo_register_locked(self, subqueue: SubQueue[T]) -> None:
        """After an exception the caller does not have it: it leaves again, unless another thread has used it."""
        if self._subqueues.get(subqueue.key) is subqueue and subqueue._with_both_locks(subqueue._detach_unused_locked):
            del self._subqueues[subqueue.key]

    def _unregister_locked(self, key: Hashable, removed: list[SubQueue[T]]) -> None:
        if key not in self._subqueues:
            return
        removed.append(self._subqueues[key])
        removed[0]._with_both_locks(removed[0]._detach_locked)
        del self._subqueues[key]

    def _undo_unregister_locked(self, removed: list[SubQueue[T]]) -> None:
        """After an exception: no queue would have its elements, so it comes back; unless another has its key now."""
        for subqueue in removed:
            if self._subqueues.setdefault(subqueue.key, subqueue) is subqueue:
                closed = ShutDown if self._is_shutdown else None
                subqueue._with_both_locks(subqueue._attach_locked, closed)

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
        if timeout is not None or self._selection is not None:
            pair = self._take_one(None, block, timeout)
            if pair is None:
                raise Empty
            return pair[1]
        # From here on `_take_one`, written out for the most frequent call: docs/decisions/0105-get-is-written-out.md.
        lock = self._take_lock
        sub: Tail[T] | None = None
        item: Any = None
        try:
            lock.acquire()
            if self._stale:
                self._read_stale_locked()
            chosen = self._groups[0].cursor
            if chosen is None or not (items := chosen._items):
                chosen = self._wait_locked(None, block, None)
                if chosen is not None:
                    items = chosen._items
            full = False
            if chosen is not None:
                item = items[0]
                sub = chosen
                sub._in_flight += 1
                del items[0]
                if not sub._plain:
                    self._served_locked(sub, True)
                elif (following := sub._next) is not sub and following is not None:
                    sub._group.cursor = following  # type: ignore[union-attr]
                    if not items:
                        self._refresh_locked(sub)
                if self._takers:
                    self._wake_taker_locked()
                if sub._putters:
                    full = len(items) == sub._limit - 1
            lock.release()
            if full:
                sub._wake_putter()  # type: ignore[union-attr]
            if self._stale:
                self._read_stale()
        except BaseException:
            runs = () if sub is None else ((sub, 0),)
            taken: list[T] = [] if sub is None else [item]
            try:
                self._stale.extend((None, (runs, taken)))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        if sub is None:
            raise Empty
        return item  # type: ignore[no-any-return]

    def get_nowait(self) -> T:
        """`get(block=False)`."""
        return self.get(False)

    def take(self, block: bool = True, timeout: float | None = None) -> Taken[T]:
        """`get`, with the sub-queue that the element came from."""
        pair = self._take_one(None, block, timeout)
        if pair is None:
            raise Empty
        try:
            result = tuple.__new__(Taken, pair)  # what Taken(*pair) does, in a third of the time
        except BaseException:
            try:
                self._stale.extend((None, (((pair[0], 0),), [pair[1]])))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        return result

    @overload
    def poll(self, timeout: float | None = 0.0) -> T | None: ...
    @overload
    def poll(self, timeout: float | None = 0.0, *, default: D) -> T | D: ...
    @overload
    def poll(self, timeout: float | None, default: D) -> T | D: ...
    def poll(self, timeout: float | None = 0.0, default: Any = None) -> Any:
        """Take the element that is due, or return `default` when there is none within `timeout` seconds, or ever."""
        try:
            pair = self._take_one(None, timeout is None or timeout != 0, timeout)
        except ShutDown:
            return default
        return default if pair is None else pair[1]

    @overload
    def peek(self) -> T | None: ...
    @overload
    def peek(self, default: D) -> T | D: ...
    def peek(self, default: Any = None) -> Any:
        """The element that would be taken now, or `default`. It stays, and so does the order of service."""
        selection = self._selection
        if selection is None:
            return self._locked(None, self._peek_locked, default)
        ready = self._locked(None, self._ready_locked)
        if not ready:
            return default
        return cast(Any, self._checked(selection.select(cast(Any, ready)), ready)).peek(default)

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Take 1 to `max_items` elements in the order of service; waits only for the first.

        Raises:
            Empty, ShutDown: as for `get`.
            ValueError: `max_items` is less than 1, or `timeout` is negative.
        """
        return get_many(self, None, max_items, block, timeout)

    def drain_to(self, target: DrainTarget[T], max_items: int | None = None) -> int:
        """Take what could be taken now, `max_items` at most, and hand it to `target` in the order of service.

        `target` is a callable, or has `append`, `add`, `put_nowait` or `put`. It is called without a lock held,
        once for each element. Does not wait for elements. Returns how many were accepted.

        Raises:
            ValueError: `target` is this multi-queue or one of its sub-queues.
            What `target` raises: the element in hand and all behind it are still here, in order.
        """
        return drain_to(self, None, target, max_items)

    async def async_get(self) -> T:
        """`get()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return (await self._take_async(None))[1]

    async def async_take(self) -> Taken[T]:
        """`take()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        pair = await self._take_async(None)
        try:
            result = tuple.__new__(Taken, pair)  # what Taken(*pair) does, in a third of the time
        except BaseException:
            try:
                self._stale.extend((None, (((pair[0], 0),), [pair[1]])))
                self._mend()
            except BaseException:  # interrupted again
                self._mend()
                raise
            raise
        return result

    def _peek_locked(self, default: Any) -> Any:
        sub = self._best_locked()
        return default if sub is None else sub._items[0]

    # ---- the whole ------------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """How many elements could be taken now: of sub-queues that are enabled and below their in-flight limit."""
        return self._locked(None, self._size_locked)

    def empty(self) -> bool:
        """Could nothing be taken, at this moment?"""
        return self._locked(None, self._best_locked) is None

    def join(self) -> None:
        """Wait until `task_done()` was called for every element that was put into the sub-queues attached now or
        added meanwhile, and not discarded."""
        while True:
            waiting = [sub for sub in self._snapshot() if sub._unfinished() > 0 and sub._attached]
            for sub in waiting:
                sub._join(sub._joiners_of_all)  # which its removal ends as well
            if not waiting and self._locked(None, self._is_all_done_locked):  # the look above was without the lock
                return

    def _is_all_done_locked(self) -> bool:
        for sub in self._snapshot():
            if sub._unfinished() > 0 and sub._attached:
                return False
        return True

    @property
    def is_shutdown(self) -> bool:
        """Was `shutdown()` called?"""
        return self._is_shutdown

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse puts to all sub-queues, and new sub-queues; takes go on until nothing is left.

        Putters that wait raise `ShutDown`; so do takers once nothing is left in any sub-queue, disabled ones
        included. With `immediate` all elements are discarded, so that takers raise at once. Again has no effect.
        """
        try:
            self._shutdown(immediate)
        except BaseException:  # half of it would be no end for anybody; all of it again has no effect
            try:
                self._shutdown(immediate)
            except BaseException:  # interrupted again
                self._shutdown(immediate)
                raise
            raise

    def _shutdown(self, immediate: bool) -> None:
        holding(self._registry_lock, self._set_shutdown_locked)
        for sub in self._snapshot():
            sub.shutdown(immediate)
        self._locked(None, self._wake_finished_locked)

    def _set_shutdown_locked(self) -> None:
        self._is_shutdown = True

    def _wake_finished_locked(self) -> None:
        if self._is_finished_locked():
            wake_all(self._takers)

    def _is_finished_locked(self) -> bool:
        if not self._is_shutdown:
            return False
        for sub in self._snapshot():  # no generator: an exception that strikes while one is closed is swallowed
            if sub._attached and (sub._closed is None or sub._items):
                return False
        return True

    def _snapshot(self) -> list[SubQueue[T]]:
        """The attached sub-queues. Copying the dict first is atomic, on free-threaded builds too."""
        return list(self._subqueues.copy().values())

    def statistics(self) -> MultiQueueStatistics:
        """The figures of all sub-queues. Consistent for each sub-queue, not across them."""
        from ._statistics import MultiQueueStatistics

        return MultiQueueStatistics(
            size=self.qsize(),
            waiting_takers=len(self._takers),
            is_shutdown=self._is_shutdown,
            subqueues=tuple([sub.statistics() for sub in self._snapshot()]),
        )

    def check_invariants(self) -> None:
        """Assert what must be true whenever no operation is under way. For tests."""
        for sub in self._snapshot():
            sub.check_invariants()
        self._locked(None, self._check_ready_locked)

    def _check_ready_locked(self) -> None:
        attached = self._snapshot()
        linked = list(self._ready)
        assert len(set(map(id, linked))) == len(linked), "each sub-queue is linked once"
        assert all(any(sub is one for one in attached) for sub in linked), "a removed sub-queue is not linked"
        priorities = [group.priority for group in self._ready.groups]  # the last one is the end
        assert priorities == sorted(set(priorities)), "groups stand in ascending order, each once"
        ready = [sub for sub in attached if sub._items and sub._is_eligible()]
        assert all(sub._next is not None for sub in ready), "what is ready is linked"
        assert not (self._takers and ready), "no taker waits while something is ready"

    def _renew_after_fork(self) -> None:
        self._registry_lock = cast(ReentrantLock, _sync.RLock())
        self._renew_locks_of(cast(Any, self._snapshot()))

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
