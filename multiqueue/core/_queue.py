"""`Queue`: a drop-in for the standard library's `queue.Queue`, on the engine of the multi-queue."""

from __future__ import annotations

from typing import TypeVar

from ._fifo import Fifo
from ._fork import renew_after_fork
from ._take_side import TakeSide

T = TypeVar("T")


class Queue(Fifo[T]):
    """A stand-alone FIFO queue: `queue.Queue`, with what a sub-queue has that can be had alone.

    Thread-safe throughout; unlike `queue.Queue` also against puts from signal handlers and `__del__`, against
    exceptions that arrive anywhere, and against `fork`.
    """

    __slots__ = ()

    def __init__(self, maxsize: int = 0) -> None:
        """`maxsize` is the capacity in elements; 0 or less means unbounded."""
        super().__init__(TakeSide(), maxsize if maxsize > 0 else None)
        renew_after_fork(self)

    @property
    def unfinished_tasks(self) -> int:
        """Elements put for which `task_done()` has not been called, as in `queue.Queue`."""
        return self._unfinished()

    @property
    def maxsize(self) -> int:
        """The capacity in elements; 0 means unbounded. Can be assigned, as in `queue.Queue`."""
        return self._capacity or 0

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        self._with_both_locks(self._set_limit_locked, maxsize if maxsize > 0 else None)

    def _renew_after_fork(self) -> None:
        self._take_side._renew_locks_of([self])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} size={len(self._items)} maxsize={self.maxsize}>"
