"""`Queue`, over both engines: a drop-in for the standard library's `queue.Queue`.

Promise     It is a `queue.Queue`, for `isinstance` and for type checkers. Nothing of ours stands in its namespace but
            the names of `queue.Queue`'s and of a sub-queue's methods: a subclass may call its own what it likes.
            A subclass that makes another order, by overriding `_init`, `_put`, `_get` or `_qsize`, is a `HookedQueue`:
            `put`, `get` and the rest are `queue.Queue`'s there, on its mutex and its conditions, so that the hooks are
            called when and how they are there. What that class has not is refused in a sentence, except `shutdown`,
            `offer` and `poll`. A hook that is assigned to an instance later has `put` and `get` of that one lead there
            too, on the elements where they are; a put or get that waits in the engine at that moment goes on as it
            began.
Attributes  `mutex`, `not_empty`, `not_full`, `all_tasks_done` and `queue` are made when a program first asks for one of
            them, and stand in its dict from then on. From then on the mutex is the *gate* of the engine: each
            operation passes it, so that no other thread puts, takes or counts while a program holds it, and each
            operation notifies the conditions. They are `threading`'s own.
State       The engine's. Of a `HookedQueue` that of `queue.Queue`, in the instance's dict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from functools import partial
from threading import Condition, RLock
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..errors import Empty, Full, ShutDown
from ._engines import chosen as _engine
from ._engines import engine
from ._settings import capacity_of, check_unfinished
from ._standard_queue import HOOKS, StandardLifoQueue, StandardPriorityQueue, StandardQueue
from ._sub_queue import Puts, set_gate
from ._sync import holding

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

T = TypeVar("T")
C = TypeVar("C", bound="SupportsRichComparison")

ATTRIBUTES = ("mutex", "not_empty", "not_full", "all_tasks_done", "queue")


class Queue(Puts[T], StandardQueue[T]):
    """A stand-alone FIFO queue: `queue.Queue`, with the methods of a sub-queue that make sense alone.

    Thread-safe throughout; unlike `queue.Queue` also against puts from signal handlers and `__del__`, against
    exceptions that arrive anywhere, and against `fork`.

    A subclass may override `_init`, `_put`, `_get` and `_qsize`, as those of `queue.Queue` do to make another order. It
    then is the standard library's queue: it has `offer`, `poll` and, on each CPython, `shutdown` besides that one's
    methods, and none of the promises above.
    """

    __slots__ = ()

    def __init__(self, maxsize: int = 0) -> None:
        """`maxsize` is the capacity in elements; 0 or less means unbounded, a fraction is rounded up."""
        if isinstance(self, HookedQueue):
            _engine.set_hooked(self)  # `Queue.put(self, item)` and `Queue.get(self)` lead to the standard library's
            StandardQueue.__init__(self, maxsize)
            if not hasattr(StandardQueue, "shutdown"):  # before CPython 3.13
                for name in ("not_full", "not_empty"):
                    setattr(self, name, EndingCondition(self.mutex))
        else:
            _engine.assign(self, "capacity", capacity_of(maxsize))
            set_gate(self)

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if any(getattr(cls, name) is not getattr(StandardQueue, name) for name in HOOKS):
            _run_by_hooks(cls)

    def __bool__(self) -> bool:
        """True, as for every `queue.Queue`: `queue or Queue()` keeps an empty one. Ask `empty()` for elements.

        Of a subclass with a `__len__` of its own, that decides, as there.
        """
        return type(self).__len__ in (Queue.__len__, HookedQueue.__len__) or len(self) != 0

    @property
    def unfinished_tasks(self) -> int:
        """Elements put for which `task_done()` has not been called, as in `queue.Queue`. Can be assigned."""
        return _engine.figures(self)[2]

    @unfinished_tasks.setter
    def unfinished_tasks(self, count: int) -> None:
        _engine.assign(self, "unfinished", check_unfinished(count))

    @property
    def maxsize(self) -> int:
        """The capacity in elements; 0 means unbounded. Can be assigned, as in `queue.Queue`."""
        return _engine.figures(self)[1] or 0

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        _engine.assign(self, "capacity", capacity_of(maxsize))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "queue" and not isinstance(self, HookedQueue):
            raise AttributeError(
                "the elements of a Queue cannot be replaced by another object; use queue.clear() and queue.extend(), "
                "or override _init, _put, _get and _qsize to keep them elsewhere"
            )
        if name in HOOKS:
            _engine.set_hooked(self)  # `put` and `get` are the standard library's from now on, and call it
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """The attributes of `queue.Queue`, at the first use of one of them."""
        if name not in ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        gate = _engine.set_gate(self, Gate(self))
        if not isinstance(gate, Gate):  # one of multiqueue.testing
            raise AttributeError(f"{name} is not available under the locks of multiqueue.testing")
        for attribute in ATTRIBUTES:
            self.__dict__.setdefault(
                attribute, Contents(self, gate) if attribute == "queue" else getattr(gate, attribute)
            )
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        """The attributes too that are made at their first use."""
        return sorted({*super().__dir__(), *ATTRIBUTES})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} size={self.qsize()} maxsize={self.maxsize}>"


class Mutex:
    """A lock as `queue.Queue.mutex`, but re-entrant: `threading.RLock` with `locked`, which that has since 3.14."""

    __slots__ = ("_acquire_restore", "_at_fork_reinit", "_is_owned", "_release_save", "acquire", "release")

    def __init__(self, lock: Any) -> None:
        self.acquire = lock.acquire
        self.release = lock.release
        self._is_owned = lock._is_owned
        self._release_save = lock._release_save
        self._acquire_restore = lock._acquire_restore
        self._at_fork_reinit = lock._at_fork_reinit

    def locked(self) -> bool:
        if self._is_owned() or not self.acquire(False):
            return True
        self.release()
        return False

    def __enter__(self) -> bool:
        return bool(self.acquire())

    def __exit__(self, *error: object) -> None:
        self.release()


class Gate:
    """The mutex and the conditions of a `Queue`, as the gate that each operation of the engine passes."""

    def __init__(self, queue: Queue[Any]) -> None:
        import weakref

        self.mutex = Mutex(RLock() if engine == "c" else _engine.lock_of(queue))
        self.not_empty = Condition(self.mutex)  # type: ignore[arg-type]
        self.not_full = Condition(self.mutex)  # type: ignore[arg-type]
        self.all_tasks_done = Condition(self.mutex)  # type: ignore[arg-type]
        self._queue = weakref.ref(queue)
        self.acquire = self.mutex.acquire

    def release(self) -> None:
        """After an operation of the engine: tell those who wait on a condition to look again."""
        try:
            self.tell()
        finally:
            self.mutex.release()

    def tell(self) -> None:
        """Have those who wait on a condition look again. With the mutex held."""
        queue = self._queue()
        if queue is not None:
            size, capacity, unfinished, *_ = _engine.figures(queue)
            if size:
                self.not_empty.notify_all()
            if capacity is None or size < capacity:
                self.not_full.notify_all()
            if not unfinished:
                self.all_tasks_done.notify_all()

    def _is_owned(self) -> bool:
        """Asked by the engine after an exception: whether its own `acquire` or `release` is to be undone. Never."""
        return False

    def _at_fork_reinit(self) -> None:
        self.mutex._at_fork_reinit()
        for condition in (self.not_empty, self.not_full, self.all_tasks_done):
            condition._at_fork_reinit()  # type: ignore[attr-defined]


def _changing(name: str) -> Callable[..., Any]:
    """A deque's method that changes it, as one of `Contents`. It runs no user's code: iterables come as lists."""
    change = getattr(deque, name)

    def method(self: Contents[Any], *of: Any) -> Any:
        return self._edit(lambda elements: change(elements, *of))

    method.__name__ = name
    return method


class Contents(MutableSequence[T]):
    """The elements of a queue, as the deque `queue.Queue.queue`: read and changed where they are, from any thread."""

    __slots__ = ("_mutex", "_queue")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, queue: Queue[T], gate: Gate) -> None:
        self._queue = queue
        self._mutex = gate.mutex

    @property
    def maxlen(self) -> None:
        """None, as of every `queue.Queue`'s deque."""

    def copy(self) -> deque[T]:
        """A deque of the elements that are here now."""
        return deque(_engine.snapshot(self._queue))

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> deque[T]:
        import copy

        return copy.deepcopy(self.copy(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.copy().__reduce_ex__(protocol)

    def __len__(self) -> int:
        return len(self._queue)

    def __getitem__(self, index: Any) -> Any:
        return self.copy()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(_engine.snapshot(self._queue))

    def __contains__(self, item: object) -> bool:
        return item in _engine.snapshot(self._queue)

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if isinstance(other, Contents) else other)

    def __add__(self, other: Any) -> deque[T]:
        return self.copy() + (other.copy() if isinstance(other, Contents) else other)

    def __repr__(self) -> str:
        return repr(self.copy())

    def _edit(self, change: Callable[[deque[T]], Any]) -> Any:
        """Change a deque of the elements with the mutex held, and have them be these. `change` runs no user's code."""
        before, result = holding(self._mutex, self._edit_locked, change)
        del before  # without the mutex: dropping an element may run code of the user
        return result

    def _edit_locked(self, change: Callable[[deque[T]], Any]) -> tuple[deque[T], Any]:
        before = self.copy()
        elements = before.copy()
        result = change(elements)
        _engine.replace(self._queue, list(elements))
        return before, result

    __setitem__ = _changing("__setitem__")
    __delitem__ = _changing("__delitem__")
    append = _changing("append")
    appendleft = _changing("appendleft")
    clear = _changing("clear")
    insert = _changing("insert")
    pop = _changing("pop")
    popleft = _changing("popleft")
    reverse = _changing("reverse")
    rotate = _changing("rotate")

    def __iadd__(self, items: Iterable[T]) -> Contents[T]:  # type: ignore[misc]
        self.extend(items)
        return self

    def extend(self, items: Iterable[T]) -> None:
        new = list(items)
        self._edit(lambda elements: elements.extend(new))

    def extendleft(self, items: Iterable[T]) -> None:
        """Put `items` at the head, one before the other."""
        new = list(items)
        self._edit(lambda elements: elements.extendleft(new))

    def remove(self, item: T) -> None:
        for candidate in self.copy():
            if (candidate is item or candidate == item) and self._edit(partial(_leaves, item=candidate)):
                return
        raise ValueError(f"{item!r} is not in the queue")


def _leaves(elements: deque[Any], item: object) -> bool:
    """Remove `item`, this very object; False if it is not there."""
    for index, each in enumerate(elements):
        if each is item:
            del elements[index]
            return True
    return False


class EndingCondition(Condition):
    """Before CPython 3.13 the condition of a `HookedQueue`'s puts, or its gets: it raises `ShutDown` when they end."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.is_over: Callable[[], bool] = bool  # False until `shutdown` assigns another one; asked with the lock held

    def _check_locked(self) -> None:
        if self.is_over():
            raise ShutDown

    def __enter__(self) -> bool:
        is_held = super().__enter__()
        try:
            self._check_locked()
        except BaseException:
            self.release()
            raise
        return is_held

    def wait(self, timeout: float | None = None) -> bool:
        """As that of `Condition`."""
        is_notified = super().wait(timeout)
        self._check_locked()
        return is_notified


def _shut_down_locked(queue: Any, immediate: bool) -> None:
    queue.is_shutdown = True
    queue.not_full.is_over = lambda: True
    queue.not_empty.is_over = lambda: not queue._qsize()
    while immediate and queue._qsize():
        queue._get()
        queue.unfinished_tasks = max(0, queue.unfinished_tasks - 1)
    for condition in (queue.not_full, queue.not_empty, queue.all_tasks_done):
        condition.notify_all()


class HookedQueue(Queue[T]):
    """The base of a subclass of `Queue` that decides the order of its elements."""

    __slots__ = ()

    # Properties of `Queue`, attributes here.
    maxsize: int = 0
    unfinished_tasks: int = 0

    # `put` and `get` are `Queue`'s, which lead to the standard library's: one that is patched there is called.
    qsize = __len__ = StandardQueue.qsize
    empty = StandardQueue.empty
    full = StandardQueue.full
    task_done = StandardQueue.task_done
    join = StandardQueue.join
    __reduce_ex__ = object.__reduce_ex__  # type: ignore[assignment]
    is_shutdown: bool = False

    def shutdown(self, immediate: bool = False) -> None:
        """As `queue.Queue.shutdown` of CPython 3.13."""
        self.mutex.acquire()
        try:
            _shut_down_locked(self, immediate)
        finally:
            self.mutex.release()

    if hasattr(StandardQueue, "shutdown"):
        shutdown = StandardQueue.shutdown

    def offer(self, item: T, timeout: float | None = 0.0) -> bool:
        """Put `item` and return True, or return False when there was no room within `timeout` seconds."""
        try:
            self.put(item, timeout is None or timeout != 0, timeout)
        except Full:
            return False
        return True

    def poll(self, timeout: float | None = 0.0, default: Any = None) -> Any:
        """Take an element, or return `default` when none comes within `timeout` seconds, or can come any more."""
        try:
            return self.get(timeout is None or timeout != 0, timeout)
        except (Empty, ShutDown):
            return default

    def __getattr__(self, name: str) -> NoReturn:
        refused = getattr(type(self), name, None)
        raise AttributeError(
            refused.sentence(type(self))
            if isinstance(refused, Refused)
            else f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def __dir__(self) -> list[str]:
        """What can be used: that is what a `multiprocessing` manager offers of it."""
        names = super().__dir__()
        return [name for name in names if not isinstance(getattr(type(self), name, None), Refused)]


class Refused:
    """In the place of a method that the standard library's queue has not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, queue: object, kind: type[Any]) -> Any:
        if queue is None:
            return self
        raise AttributeError(self.sentence(kind))

    def sentence(self, kind: type[Any]) -> str:
        overridden = [name for name in HOOKS if getattr(kind, name) is not getattr(StandardQueue, name)]
        return (
            f"{kind.__name__} overrides {', '.join(overridden)} and so runs on the standard library's queue, which has "
            f"not {self._name}(); use what queue.Queue has, offer() and poll()"
        )


def _refuse_the_rest() -> None:
    for kind in Queue.__mro__[:-1]:
        for name in vars(kind):
            is_public = not name.startswith("_") or name in ("__iter__", "__contains__")
            if is_public and name not in vars(HookedQueue) and not hasattr(StandardQueue, name):
                setattr(HookedQueue, name, Refused(name))


_refuse_the_rest()


def _run_by_hooks(kind: type[Queue[Any]]) -> None:
    """Have a subclass of `Queue` that overrides hooks run on the standard library's methods."""
    if issubclass(kind, HookedQueue):
        return
    bases = tuple(HookedQueue if base is Queue else base for base in kind.__bases__)
    kind.__bases__ = bases if HookedQueue in bases else (*bases, HookedQueue)


class LifoQueue(StandardLifoQueue[T], Queue[T]):
    """The standard library's `LifoQueue`, which is a `Queue` here too: the last element put is the first."""


class PriorityQueue(StandardPriorityQueue[C], Queue[C]):
    """The standard library's `PriorityQueue`, which is a `Queue` here too: the least element is the first."""
