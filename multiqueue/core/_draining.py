"""Taking many: `get_many` and `drain_to`, the same for the multi-queue and for one queue alone. No state.

Promise     What a target did not accept is back at the head that it came from, in order; what it accepted is not, also
            when an exception strikes right after that. Of a target in C that is no list, deque or set nothing tells
            whether it accepted, when an exception strikes right after its call: the element is in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from ..errors import Empty, ShutDown
from ._parking import at_least
from ._priority_groups import Tail
from ._put_side import Head

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class HasAppend(Protocol[T_contra]):
    """A target of `drain_to`, such as a list or a deque."""

    def append(self, item: T_contra, /) -> object: ...


class HasAdd(Protocol[T_contra]):
    """A target of `drain_to`, such as a set."""

    def add(self, item: T_contra, /) -> object: ...


class HasPutNowait(Protocol[T_contra]):
    """A target of `drain_to`, such as a sub-queue or an `asyncio.Queue`."""

    def put_nowait(self, item: T_contra, /) -> object: ...


class HasPut(Protocol[T_contra]):
    """A target of `drain_to`, such as a queue of `multiprocessing`."""

    def put(self, item: T_contra, /) -> object: ...


# What `drain_to` can give elements to; the first of these that a target has is called.
DrainTarget: TypeAlias = Callable[[T], object] | HasAppend[T] | HasAdd[T] | HasPutNowait[T] | HasPut[T]


def get_many(take_side: Head[T], own: Tail[T] | None, max_items: int, block: bool, timeout: float | None) -> list[T]:
    """`get_many` of a queue (`own`) or of the multi-queue."""
    if not at_least(1, max_items, "max_items"):
        raise ValueError(f"'max_items' must be at least 1, not {max_items!r}")
    taken = take_side._take_many(own, max_items, block, timeout)
    if not taken:
        raise Empty
    return taken


def drain_to(take_side: Head[T], own: Tail[T] | None, target: Any, max_items: int | None) -> int:
    """`drain_to` of a queue (`own`) or of the multi-queue: what is there now, one at a time."""
    accept, container = _acceptor(take_side, own, target)
    if max_items is not None and not at_least(0, max_items, "max_items"):
        raise ValueError(f"'max_items' must be at least 0 or None, not {max_items!r}")
    is_set = type(container) is set
    count = 0
    limit = take_side._locked(None, take_side._size_locked) if own is None else len(own._items)
    if max_items is not None:
        limit = min(limit, max_items)
    while count < limit:
        pair = None
        try:
            pair = take_side._take_one(own, False)
            if pair is None:
                break
            if container is None:
                accept(pair[1])
            elif is_set:
                container |= {pair[1]}
                pair = None
            else:
                container += (pair[1],)
                pair = None
        except BaseException as error:
            if pair is not None:
                try:
                    take_side._stale.extend((None, (((pair[0], 0),), [pair[1]])))
                    take_side._mend()
                except BaseException:  # interrupted again
                    take_side._mend()
                    raise
            elif isinstance(error, ShutDown):
                break
            raise
        count += 1
    return count


def _acceptor(take_side: Head[Any], own: Tail[Any] | None, target: Any) -> tuple[Callable[[Any], object], Any]:
    """How `target` is given an element; and the list, deque or set that it is or appends or adds to, if any.

    An exception can strike when a call of something in C has returned, before the next instruction; neither after
    `+=` and `|=` of these three, nor between the return of a function in Python and what follows it.
    """
    owner = getattr(target, "__self__", target)  # of a bound method
    if owner is (take_side if own is None else own) or (
        own is None and getattr(owner, "_take_side", None) is take_side
    ):
        raise ValueError(f"cannot drain {target!r} into itself: use another queue or a list")
    accept = target
    if not callable(target):
        for name in ("append", "add", "put_nowait", "put"):
            if (accept := getattr(target, name, None)) is not None:
                break
        else:
            raise TypeError(
                f"cannot drain to {target!r}: it is not callable and has none of append, add, put_nowait and put"
            )
    is_container = type(owner) in (list, deque, set) and accept.__name__ in ("append", "add")
    return accept, owner if is_container else None
