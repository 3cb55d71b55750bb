"""What a take that says where an element came from returns. The same for both engines. No state."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ._sub_queue import SubQueue

T = TypeVar("T")


class Taken(NamedTuple, Generic[T]):
    """An element and the sub-queue it was taken from."""

    subqueue: SubQueue[T]
    item: T


class FairTaken(NamedTuple, Generic[T]):
    """An element of a `FairQueue`, and its key, or an equal one."""

    key: Hashable
    item: T
