"""`Queue`: a drop-in for the standard library's `queue.Queue`, on the engine of the multi-queue.

Promise     It is a `queue.Queue`, for `isinstance` and for type checkers, and has that class's attributes:
            `_queue_attributes`. A subclass that makes another order, by overriding `_init`, `_put`, `_get` or `_qsize`,
            is a `HookedQueue`: `put`, `get` and the rest are `queue.Queue`'s there, on its mutex and its conditions, so
            that the hooks are called when and how they are there. What that class has not is refused in a
            sentence, except `offer` and `poll`, which are made of `put` and `get`.
            It promises what `queue.Queue` does: nothing of signal handlers, exceptions anywhere, and `fork`.
State       That of `Fifo`. Of a `HookedQueue` that of `queue.Queue`, in the instance's dict, and those of the engine's
            fields that `Queue.put(self, item)` and `Queue.get(self)` look at, which subclasses write where
            `super().put(item)` would do: they lead to the hooks.
Membership  A class that overrides hooks gets `HookedQueue` for its base in the place of `Queue`, when it is defined.
            Not seen is a hook that is assigned later, to a class or an instance that had none.
"""

from __future__ import annotations

from collections import deque
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from ..errors import Empty, Full, ShutDown
from ._fifo import Fifo
from ._fork import renew_after_fork
from ._parking import seconds_left
from ._queue_attributes import Contents, Mutex, QueueCondition, set_unfinished
from ._settings import capacity_of
from ._standard_queue import HOOKS, standard_queue
from ._take_side import TakeSide

if TYPE_CHECKING:
    from queue import Queue as StandardQueue
else:
    StandardQueue = standard_queue()

T = TypeVar("T")


class Queue(Fifo[T], StandardQueue[T]):
    """A stand-alone FIFO queue: `queue.Queue`, with the methods of a sub-queue that make sense alone.

    Thread-safe throughout; unlike `queue.Queue` also against puts from signal handlers and `__del__`, against
    exceptions that arrive anywhere, and against `fork`.

    A subclass may override `_init`, `_put`, `_get` and `_qsize`, as those of `queue.Queue` do to make another order. It
    then is the standard library's queue: it has `offer` and `poll` besides that one's methods, and none of the
    promises above.
    """

    __slots__ = ()

    def __init__(self, maxsize: int = 0) -> None:
        """`maxsize` is the capacity in elements; 0 or less means unbounded, a fraction is rounded up."""
        self._begin(maxsize)

    def _begin(self, maxsize: int) -> None:
        super().__init__(TakeSide(), capacity_of(maxsize))
        renew_after_fork(self)

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if any(getattr(cls, name) is not getattr(StandardQueue, name) for name in HOOKS):
            _run_by_hooks(cls)

    def __bool__(self) -> bool:
        """True, as for every `queue.Queue`: `queue or Queue()` keeps an empty one. Ask `empty()` for elements.

        Of a subclass with a `__len__` of its own, that decides, as there.
        """
        return type(self).__len__ in (Queue.__len__, HookedQueue.__len__) or len(self) != 0  # type: ignore[misc]

    # ---- the attributes of `queue.Queue` --------------------------------------------------------------------

    @property
    def unfinished_tasks(self) -> int:
        """Elements put for which `task_done()` has not been called, as in `queue.Queue`. Can be assigned."""
        return self._unfinished()

    @unfinished_tasks.setter
    def unfinished_tasks(self, count: int) -> None:
        set_unfinished(self, count)

    @property
    def maxsize(self) -> int:
        """The capacity in elements; 0 means unbounded. Can be assigned, as in `queue.Queue`."""
        return self._capacity or 0

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        self._with_both_locks(self._set_limit_locked, capacity_of(maxsize))

    @property
    def mutex(self) -> Lock:  # type: ignore[override]
        """While it is held, no other thread puts, takes or counts, as in `queue.Queue`. It is re-entrant."""
        return cast(Lock, Mutex(self))

    @property
    def queue(self) -> Any:
        """The elements, as in `queue.Queue`: what can be done to that deque can be done to this."""
        return Contents(self)

    @queue.setter
    def queue(self, elements: Any) -> None:
        raise AttributeError(
            "the elements of a Queue cannot be replaced by another object; use queue.clear() and queue.extend(), or "
            "override _init, _put, _get and _qsize to keep them elsewhere"
        )

    @property
    def not_empty(self) -> Condition:  # type: ignore[override]
        """Notified when there is an element. With `mutex` as its lock, as in `queue.Queue`."""
        return cast(Condition, QueueCondition(self, "_own_takers"))

    @property
    def not_full(self) -> Condition:  # type: ignore[override]
        """Notified when there is room. With `mutex` as its lock, as in `queue.Queue`."""
        return cast(Condition, QueueCondition(self, "_putters"))

    @property
    def all_tasks_done(self) -> Condition:  # type: ignore[override]
        """Notified when `unfinished_tasks` is 0. With `mutex` as its lock, as in `queue.Queue`."""
        return cast(Condition, QueueCondition(self, "_joiners"))

    def _renew_after_fork(self) -> None:
        self._take_side._renew_locks_of([self])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} size={self.qsize()} maxsize={self.maxsize}>"


class HookedQueue(Queue[T]):
    """The base of a subclass of `Queue` with an order of its own."""

    __slots__ = ()

    # Properties of `Queue`, attributes here.
    maxsize: int = 0
    unfinished_tasks: int = 0
    mutex: Lock = cast(Lock, None)
    queue: Any = None
    not_empty: Condition = cast(Condition, None)
    not_full: Condition = cast(Condition, None)
    all_tasks_done: Condition = cast(Condition, None)

    put = StandardQueue.put
    put_nowait = StandardQueue.put_nowait
    get = StandardQueue.get
    get_nowait = StandardQueue.get_nowait
    qsize = __len__ = StandardQueue.qsize
    empty = StandardQueue.empty
    full = StandardQueue.full
    task_done = StandardQueue.task_done
    join = StandardQueue.join
    __reduce_ex__ = object.__reduce_ex__  # type: ignore[assignment]
    if hasattr(StandardQueue, "shutdown"):  # CPython 3.13 and later
        is_shutdown: bool = False
        shutdown = StandardQueue.shutdown

    def _begin(self, maxsize: int) -> None:
        StandardQueue.__init__(self, maxsize)
        self._take_side = cast(Any, _Head(self))
        self._items = cast(Any, _Tail(self))
        self._put_lock = cast(Any, self.mutex)
        self._capacity = capacity_of(maxsize)
        self._limit = -1  # so that `_wait_for_room_locked` is asked
        self._open_ended = False
        self._lock_free = False
        self._closed = None
        self._announced = True

    # ---- for `Queue.put(self, item)` ------------------------------------------------------------------------

    def _wait_for_room_locked(self, block: bool, deadline: float | None) -> type[Full] | type[ShutDown] | None:
        try:
            while True:
                if getattr(self, "is_shutdown", False) or not 0 < self.maxsize <= self._qsize():
                    break
                left = None if deadline is None else seconds_left(deadline)
                if not block or left == 0.0:
                    return Full
                self.not_full.wait(left)
            return ShutDown if getattr(self, "is_shutdown", False) else None
        except BaseException:
            self.mutex.release()
            raise

    def _mend_put(self, *args: object) -> None:
        """The mutex is free already."""

    def _refusal(self, refused: type[Full] | type[ShutDown], item: object, timeout: float | None) -> Full | ShutDown:
        return refused()


class _Tail:
    """In the place of the engine's deque: what `Queue.put(self, item)` appends to, with the mutex held."""

    __slots__ = ("_queue",)

    def __init__(self, queue: HookedQueue[Any]) -> None:
        self._queue = queue

    def append(self, item: Any) -> None:
        queue = self._queue
        try:
            queue._put(item)
            queue.unfinished_tasks += 1
            queue.not_empty.notify()
        except BaseException:
            queue.mutex.release()
            raise

    def __len__(self) -> int:
        return self._queue._qsize()


class _Head:
    """In the place of the engine's take side: what `Queue.get(self)` takes from. All else is refused."""

    def __init__(self, queue: HookedQueue[Any]) -> None:
        self._queue = queue
        self._stale: deque[object] = deque(maxlen=0)  # there is nothing to tell

    def _take_one(self, own: HookedQueue[T], block: bool = True, timeout: float | None = None) -> tuple[Any, T] | None:
        try:
            return own, StandardQueue.get(own, block, timeout)
        except Empty:
            return None

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(_sentence(type(self._queue), "this method of Queue"))


class _Refused:
    """In the place of a method that the standard library's queue has not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, queue: object, kind: type[Any]) -> Any:
        if queue is None:
            return self
        raise AttributeError(_sentence(kind, f"{self._name}()"))


def _sentence(kind: type[Any], what: str) -> str:
    overridden = [name for name in HOOKS if getattr(kind, name) is not getattr(StandardQueue, name)]
    return (
        f"{kind.__name__} overrides {', '.join(overridden)} and so runs on the standard library's queue, which has not "
        f"{what}; use what queue.Queue has, offer() and poll()"
    )


KEPT = frozenset({"offer", "poll"})


def _refuse_the_rest() -> None:
    special = {"__iter__", "__contains__"}
    for kind in Queue.__mro__[:-1]:
        for name in vars(kind):
            is_public = not name.startswith("_") or name in special
            if is_public and name not in KEPT and name not in vars(HookedQueue) and not hasattr(StandardQueue, name):
                setattr(HookedQueue, name, _Refused(name))


_refuse_the_rest()


def _run_by_hooks(kind: type[Queue[Any]]) -> None:
    """Have a subclass of `Queue` that overrides hooks run on the standard library's methods."""
    if issubclass(kind, HookedQueue):
        return
    bases = tuple(HookedQueue if base is Queue else base for base in kind.__bases__)
    kind.__bases__ = bases if HookedQueue in bases else (*bases, HookedQueue)
