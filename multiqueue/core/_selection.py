"""Whose turn it is, decided by the user instead of by priority and round-robin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from ._sub_queue import SubQueue

T = TypeVar("T")


@runtime_checkable
class SubQueueSelection(Protocol[T]):
    """A policy that a `LinkedBlockingMultiQueue(selection=...)` asks whose element is taken next.

    Both methods run on the taker's thread, several takers at a time, and without any lock of the multi-queue
    held. What one of them raises reaches that taker, and no element is lost.
    """

    def select(self, ready: Sequence[SubQueue[T]]) -> SubQueue[T]:
        """The one of `ready` to take from. Must change nothing: `peek()` asks as well, and a take may ask again.

        `ready` is a snapshot, not empty, of the sub-queues that can be taken from, in the order in which they
        would be served otherwise: by priority, then the one that has waited for its turn longest. Any other answer
        raises `InvalidSelection` in the taker.
        """
        ...

    def taken(self, subqueue: SubQueue[Any]) -> None:
        """An element has been taken from `subqueue`: the place to count, to charge, to move a cursor."""
        ...
