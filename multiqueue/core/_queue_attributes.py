"""The attributes of a `queue.Queue` as programs use them: its mutex, its conditions, its deque, its count.

Promise     1. While a thread holds the mutex, no other thread puts, takes or counts.
            2. A change of `queue` leaves `unfinished_tasks` as it is, wakes those who wait for room or an element, and
               is seen by every take.
            3. A wait on a condition ends at the latest when its predicate becomes true; it may end before.
            Not promised is what an exception in the middle of these leaves: as in `queue.Queue`.
State       None: these are made when they are asked for. The fields are those of the queue.
Lock order  The mutex is the take lock and then the put lock, held together; re-entrant as they are. Puts that need no
            lock are switched off first: `_lock_free` is False while it is held.
Waiting     `QueueCondition.wait` parks in the list of those who wait for the same in `get`, `put` or `join`, and is
            woken as they are. It passes the wake-up on: the program may neither take nor put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, TypeVar

from . import _sync
from ._parking import Waiters, deadline_after, leave, seconds_left, wake_all, wake_one
from ._put_side import WITH_GIL
from ._sync import holding

if TYPE_CHECKING:
    from ._fifo import Fifo

T = TypeVar("T")


class Mutex:
    """The lock of a queue, as `queue.Queue.mutex`, but re-entrant."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Fifo[Any]) -> None:
        self._queue = queue

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        queue = self._queue
        take_lock = queue._take_side._take_lock
        deadline = deadline_after(timeout) if blocking and timeout >= 0 else None
        if not take_lock.acquire(blocking, timeout):
            return False
        try:
            if queue._put_lock.acquire(blocking, timeout if deadline is None else seconds_left(deadline)):
                queue._lock_free = False
                return True
        except BaseException:
            take_lock.release()
            raise
        take_lock.release()
        return False

    def release(self) -> None:
        queue = self._queue
        queue._put_lock.release()
        queue._take_side._take_lock.release()
        if not self._is_owned():
            holding(queue._put_lock, self._allow_free_puts_locked)
            queue._take_side._read_stale()

    def _allow_free_puts_locked(self) -> None:
        queue = self._queue
        queue._lock_free = WITH_GIL and queue._capacity is None and queue._closed is None

    def locked(self) -> bool:
        if self._is_owned() or not self.acquire(False):
            return True
        self.release()
        return False

    def _is_owned(self) -> bool:
        """For `threading.Condition`."""
        return self._queue._put_lock._is_owned() and self._queue._take_side._take_lock._is_owned()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class QueueCondition:
    """A condition of a queue, as `queue.Queue.not_empty`. `waiters` names the list of those who wait for it."""

    __slots__ = ("_mutex", "_queue", "_waiters")

    def __init__(self, queue: Fifo[Any], waiters: str) -> None:
        self._queue = queue
        self._waiters = waiters
        self._mutex = Mutex(queue)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._mutex.acquire(blocking, timeout)

    def release(self) -> None:
        self._mutex.release()

    def __enter__(self) -> bool:
        return self._mutex.acquire()

    def __exit__(self, *error: object) -> None:
        self._mutex.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait without the mutex until notified; False after `timeout` seconds.

        Raises:
            RuntimeError: the caller does not hold the mutex, or holds it more than once.
        """
        self._check_owned("wait on")
        if self._holds_locked():
            return True
        deadline = None if timeout is None else deadline_after(max(timeout, 0.0))
        waiters: Waiters = getattr(self._queue, self._waiters)
        waiter = _sync.allocate_lock()
        waiter.acquire()
        waiters.append(waiter)
        self._queue._plain = False
        self._mutex.release()
        woken = False
        try:
            if self._mutex._is_owned():
                raise RuntimeError("cannot wait on a condition whose mutex is held more than once")
            woken = waiter.acquire() if deadline is None else waiter.acquire(True, seconds_left(deadline))
        finally:
            self._mutex.acquire()
            woken = not leave(waiters, waiter) or woken
            self._pass_on_locked()
        return woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until `predicate()` is true, which is asked with the mutex held; its last answer."""
        deadline = None if timeout is None else deadline_after(max(timeout, 0.0))
        while not (answer := predicate()):
            left = None if deadline is None else seconds_left(deadline)
            if left == 0.0:
                break
            self.wait(left)
        return answer

    def notify(self, n: int = 1) -> None:
        """Wake `n` of those who wait. They look for themselves, and wait on when there is nothing for them."""
        self._check_owned("notify")
        for _ in range(n):
            wake_one(getattr(self._queue, self._waiters))

    def notify_all(self) -> None:
        """Wake all who wait."""
        self._check_owned("notify")
        wake_all(getattr(self._queue, self._waiters))

    def _holds_locked(self) -> bool:
        queue = self._queue
        if self._waiters == "_joiners":
            return queue._unfinished() <= 0
        if self._waiters == "_putters":
            return len(queue._items) < queue._limit or queue._closed is not None
        return bool(queue._items) or queue._closed is not None

    def _pass_on_locked(self) -> None:
        queue = self._queue
        queue._settle_locked()
        queue._wake_putter_locked()
        queue._take_side._stale.append(queue)

    def _check_owned(self, what: str) -> None:
        if not self._mutex._is_owned():
            raise RuntimeError(f"cannot {what} a condition of a queue without holding its mutex")


class Contents(MutableSequence[T]):
    """The elements of a queue, as the deque `queue.Queue.queue`: read and changed where they are, from any thread."""

    __slots__ = ("_queue",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, queue: Fifo[T]) -> None:
        self._queue = queue

    # ---- reading --------------------------------------------------------------------------------------------

    @property
    def maxlen(self) -> None:
        """None, as of every `queue.Queue`'s deque."""

    def copy(self) -> deque[T]:
        """A deque of the elements that are here now."""
        return deque(self._queue._snapshot())

    __copy__ = copy

    def __len__(self) -> int:
        return len(self._queue._items)

    def __getitem__(self, index: Any) -> Any:
        return self._queue._items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._queue._snapshot())

    def __contains__(self, item: object) -> bool:
        return item in self._queue._snapshot()

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if isinstance(other, Contents) else other)

    def __repr__(self) -> str:
        return repr(self.copy())

    # ---- changing -------------------------------------------------------------------------------------------

    def _edit(self, change: Callable[..., Any], *args: Any) -> Any:
        """`change(deque, *args)` with the mutex held. What it removes it returns, for no `__del__` to run meanwhile."""
        queue = self._queue
        with Mutex(queue):
            queue._take_side._stale.append(queue)
            before = len(queue._items)
            try:
                result = change(queue._items, *args)
            finally:
                queue._in_flight += before - len(queue._items)
                queue._take_side._stale.append(queue)
                queue._wake_putter_locked()
        return result

    def __setitem__(self, index: Any, item: Any) -> None:
        self._edit(_replace_at, index, item)

    def __delitem__(self, index: Any) -> None:
        self._edit(_remove_at, index)

    def __iadd__(self, items: Iterable[T]) -> Contents[T]:
        self.extend(items)
        return self

    def append(self, item: T) -> None:
        self._edit(deque.append, item)

    def appendleft(self, item: T) -> None:
        """Put `item` at the head."""
        self._edit(deque.appendleft, item)

    def clear(self) -> None:
        self._edit(_remove_all)

    def extend(self, items: Iterable[T]) -> None:
        self._edit(deque.extend, list(items))

    def extendleft(self, items: Iterable[T]) -> None:
        """Put `items` at the head, one before the other."""
        self._edit(deque.extendleft, list(items))

    def insert(self, index: int, item: T) -> None:
        self._edit(deque.insert, index, item)

    def pop(self, index: int = -1) -> T:
        """Take the last element."""
        if index != -1:
            raise TypeError("pop() takes the last element; `del queue[index]` removes another one")
        item: T = self._edit(deque.pop)
        return item

    def popleft(self) -> T:
        """Take the first element."""
        item: T = self._edit(deque.popleft)
        return item

    def remove(self, item: T) -> None:
        """Remove the first element that is or equals `item`; `==` runs without the mutex."""
        for candidate in self:
            if (candidate is item or candidate == item) and self._edit(_remove_this, candidate):
                return
        raise ValueError("deque.remove(x): x not in deque")

    def reverse(self) -> None:
        self._edit(deque.reverse)

    def rotate(self, n: int = 1) -> None:
        """Move the last `n` elements to the head."""
        self._edit(deque.rotate, n)


def _replace_at(items: deque[Any], index: int, item: object) -> object:
    before = items[index]
    items[index] = item
    return before


def _remove_at(items: deque[Any], index: int) -> object:
    before = items[index]
    del items[index]
    return before


def _remove_all(items: deque[Any]) -> deque[Any]:
    return deque(starmap(items.popleft, repeat((), len(items))))


def _remove_this(items: deque[Any], item: object) -> bool:
    for index, candidate in enumerate(list(items)):
        if candidate is item:
            del items[index]
            return True
    return False


def set_unfinished(queue: Fifo[Any], count: int) -> None:
    """Say how many elements that were put are not done with."""
    with Mutex(queue):
        change = count - queue._unfinished()
        queue._in_flight += change
        queue._finished -= change
        queue._wake_joiners_locked()
