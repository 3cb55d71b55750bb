"""What `drain_to` can give elements to. The same for both engines. No state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

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


def acceptor(target: Any, is_itself: Callable[[object], bool]) -> tuple[Callable[[Any], object], Any]:
    """How `target` is given an element; and the list, deque or set that it is or appends or adds to, if any.

    An exception can strike when a call of something in C has returned, before the next instruction; neither after
    `+=` and `|=` of these three, nor between the return of a function in Python and what follows it.
    """
    owner = getattr(target, "__self__", target)  # of a bound method
    if is_itself(owner):
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
