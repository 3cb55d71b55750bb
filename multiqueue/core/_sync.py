"""Where the core gets its locks and its clock from.

The other modules look these names up here at each use (`_sync.RLock()`), never by `from ._sync import`, so that
`multiqueue.testing` can put locks that yield where told, and a clock that it moves, in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import TIMEOUT_MAX, Lock, RLock
from time import monotonic
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

__all__ = [
    "TIMEOUT_MAX",
    "Guard",
    "RLock",
    "ReentrantLock",
    "allocate_lock",
    "cannot_copy",
    "holding",
    "monotonic",
]

allocate_lock = Lock


class ReentrantLock(Protocol):
    """A `threading.RLock` as the core uses it.

    `_is_owned` is what `threading.Condition` asks a lock as well: does the calling thread hold it?
    """

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...
    def _is_owned(self) -> bool: ...


class Guard:
    """A re-entrant lock for `with`, which is free again after the block, also when an exception arrives anywhere.

    CPython 3.14 delivers exceptions right after a call of a lock's own `__enter__`, when the block has not begun
    (CPython issue 148874). It delivers none when a function in Python has returned, so `__enter__` is one; and one at
    the entry of a function in Python, so `__exit__` is the lock's own, in C.
    """

    __slots__ = ("__exit__", "_lock")

    __exit__: Callable[..., None]

    def __init__(self) -> None:
        self._lock: ReentrantLock = cast(ReentrantLock, RLock())
        self.__exit__ = self._lock.__exit__

    def __enter__(self) -> None:
        lock = self._lock
        try:
            lock.acquire()
        except BaseException:
            release_owned(lock)
            raise

    def _is_owned(self) -> bool:
        return self._lock._is_owned()


P = ParamSpec("P")
R = TypeVar("R")


def holding(lock: ReentrantLock, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` with `lock` held. After any exception, at any point, the lock is let go of once."""
    try:
        lock.acquire()
        result = function(*args, **kwargs)
        lock.release()
    except BaseException:  # it may be that of `function`, and the next one strikes here
        try:
            release_owned(lock)
        except BaseException:
            release_owned(lock)
            raise
        raise
    return result


def release_owned(lock: ReentrantLock) -> None:
    """Release `lock` if the calling thread holds it. For handlers of exceptions; may be repeated."""
    if lock._is_owned():
        lock.release()


def cannot_copy(queue: object) -> NoReturn:
    """Refuse to be pickled or copied: a copy would share elements and locks."""
    raise TypeError(f"cannot pickle or copy a {type(queue).__name__}: its locks and waiting threads stay here")
