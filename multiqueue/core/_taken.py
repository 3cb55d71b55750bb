"""`Taken`: what a take that says where an element came from returns. The same for both engines. No state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ._sub_queue import SubQueue

T = TypeVar("T")


class Taken(NamedTuple, Generic[T]):
    """An element and the sub-queue it was taken from."""

    subqueue: SubQueue[T]
    item: T
