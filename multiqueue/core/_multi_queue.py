"""`LinkedBlockingMultiQueue`: the registry of sub-queues, and the head; the same over both engines.

Promise     Those of the engine, and: adding a sub-queue registers it completely, or raises and registers nothing; a
            removal that raises has removed nothing.
State       The elements, turns, lines and settings are the engine's. Here stands the registry of keys, changed under
            its own lock, which is held while `__hash__` and `__eq__` of keys run; reading one entry needs none.
Lock order  registry lock -> the engine's.
Source      M. Barrios, LinkedBlockingMultiQueue: sub-queues, priorities, enabling, the one blocking head.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from ..errors import Empty, InvalidSelection, ShutDown, SubQueueExists
from . import _sync
from ._engines import chosen as _engine
from ._fork import renew_after_fork
from ._notebook import notebook_table
from ._selection import SubQueueSelection
from ._settings import check_count, check_optional, check_priority
from ._standard_queue import StandardQueue
from ._sub_queue import Gets, SubQueue, drain, ending, refusal, set_gate, take, take_async
from ._sync import ReentrantLock, holding
from ._taken import FairTaken, Taken
from ._targets import DrainTarget

if TYPE_CHECKING:
    from ._statistics import MultiQueueStatistics

T = TypeVar("T")
D = TypeVar("D")


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
    """Tell the user's selection which sub-queue was served."""
    selection.taken(subqueue)


_engine.configure(
    _sync,
    Lock,
    Empty,
    ShutDown,
    Taken,
    FairTaken,
    refusal,
    ending,
    select,
    selected,
    StandardQueue.put,
    StandardQueue.get,
)
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_engine.after_fork)


class Takes(Gets[T], _engine.Multi):
    """One head over many tails: what a multi-queue and a fair queue have in common."""

    __slots__ = ("__weakref__",)

    @property
    def is_shutdown(self) -> bool:
        """Was `shutdown()` called?"""
        return _engine.is_closed(self)


class LinkedBlockingMultiQueue(Takes[T]):
    """A set of FIFO queues with independent tails and one head on which a taker waits for all of them at once.

    Elements are put into sub-queues (`add_subqueue`) and taken from the multi-queue: by priority, and in turns
    among those of equal priority, so that a prolific producer does not starve an occasional one. Each sub-queue
    can be bounded, weighted, limited in flight, disabled and removed at any time. Every method may be called from
    any thread.
    """

    __slots__ = ("_registry_lock", "_subqueues")

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
            holding(self._registry_lock, self._undo_register_locked, subqueue)
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
        """The sub-queue registered under `key`, added with these settings if it is missing.

        Threads that ask at the same time get the same one. An existing one keeps its settings. If another thread
        removes it meanwhile, a put to it raises `Detached`: ask again.

        Raises:
            ValueError, ShutDown: as for `add_subqueue`, if it adds one.
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
            KeyError: no sub-queue has this key.
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
            KeyError: no sub-queue has this key.
        """
        removed: list[SubQueue[T]] = []  # what is to be put back if this is interrupted
        try:
            holding(self._registry_lock, self._unregister_locked, key, removed)
            if not removed:
                raise self._unknown(key)
            return removed[0]
        except BaseException:
            holding(self._registry_lock, self._undo_unregister_locked, removed)
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

    def _undo_register_locked(self, subqueue: SubQueue[T]) -> bool:
        """It leaves, unless it has elements or some in flight: after an exception the caller does not have it."""
        is_removed = self._subqueues.get(subqueue.key) is subqueue and _engine.detach(subqueue, True)
        if is_removed:
            del self._subqueues[subqueue.key]
        return is_removed

    def _remove_unused(self, subqueue: SubQueue[T]) -> bool:
        """Remove it if it has no elements, nor any in flight; whether this call did."""
        return holding(self._registry_lock, self._undo_register_locked, subqueue)

    def _unregister_locked(self, key: Hashable, removed: list[SubQueue[T]]) -> None:
        if key not in self._subqueues:
            return
        removed.append(self._subqueues[key])
        del self._subqueues[key]  # first: a sub-queue that is found in the registry accepts puts
        _engine.detach(removed[0], False)

    def _undo_unregister_locked(self, removed: list[SubQueue[T]]) -> None:
        """After an exception: no queue would have its elements, so it comes back; unless another has its key now."""
        for subqueue in removed:
            if self._subqueues.setdefault(subqueue.key, subqueue) is subqueue:
                _engine.attach(subqueue)

    # ---- taking ---------------------------------------------------------------------------------------------

    def take(self, block: bool = True, timeout: float | None = None) -> Taken[T]:
        """`get`, with the sub-queue that the element came from."""
        return take[self, block, timeout]  # type: ignore[no-any-return]

    @overload
    def peek(self) -> T | None: ...
    @overload
    def peek(self, default: D) -> T | D: ...
    def peek(self, default: Any = None) -> Any:
        """The element that would be taken now, or `default`. It stays, and so does the order of service."""
        selection = _engine.selection(self)
        if selection is None:
            return _engine.peek(self, default)
        ready = _engine.ready(self)
        return select(selection, ready).peek(default) if ready else default

    def drain_to(self, target: DrainTarget[T], max_items: int | None = None) -> int:
        """Take what could be taken now, `max_items` at most, and hand it to `target` in the order of service.

        `target` is a callable, or has `append`, `add`, `put_nowait` or `put`. It is called without a lock held,
        once for each element. Does not wait for elements. Returns how many were accepted.

        Raises:
            ValueError: `target` is this multi-queue or one of its sub-queues.
            What `target` raises: the element in hand and all behind it are still here, in order.
        """
        return drain(self, None, target, max_items)

    async def async_take(self) -> Taken[T]:
        """`take()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return await take_async(self)  # type: ignore[no-any-return]

    # ---- the whole ------------------------------------------------------------------------------------------

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

    def _renew_after_fork(self) -> None:
        self._registry_lock = cast(ReentrantLock, _sync.RLock())

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
