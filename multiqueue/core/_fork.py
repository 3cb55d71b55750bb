"""The needs of a child process after `fork`: locks that no thread holds, and no parked threads.

Of all threads only the one that forked goes on in the child. The locks the others held would stay held for ever,
and wake-ups would go to threads that are gone. So the child gives every queue new locks and empties the lists of
those who wait. A thread that forks in the middle of an operation (from a signal handler) ends that operation with
the lock it began with, which it holds in a local variable.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Renewable(Protocol):
    def _renew_after_fork(self) -> None: ...


class _ByIdentity(weakref.ref[T]):
    """A reference that equals itself alone: the user's `__hash__` and `__eq__` are not asked."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Alive(Generic[T]):
    """The objects that were added and are alive. Any thread.

    No code in Python runs when one of them goes, as it does for a `WeakSet`: an exception that a signal handler raises
    in such code, for a Ctrl-C too, is printed and lost.
    """

    def __init__(self) -> None:
        self._references: set[_ByIdentity[T]] = set()

    def add(self, each: T) -> None:
        """Have `each` among them for as long as it lives."""
        self._references.add(_ByIdentity(each, self._references.discard))

    def __iter__(self) -> Iterator[T]:
        for reference in list(self._references):
            each = reference()
            if each is not None:
                yield each


_renewable: Alive[Any] = Alive()


def renew_after_fork(queue: Renewable) -> None:
    """Have `queue._renew_after_fork()` called in every child process, for as long as `queue` lives."""
    _renewable.add(queue)


def _renew_all() -> None:
    for queue in _renewable:
        queue._renew_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)
