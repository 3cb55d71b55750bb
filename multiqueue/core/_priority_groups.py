"""The ready sets: which sub-queues are served next, in O(1) however many there are.

Promise     Groups are served in ascending order of priority; within a group the members take turns, and one
            that joins stands at the end of the round. Removing one never costs another its turn.
State       A group's members form a ring of doubly linked sub-queues. The ring is read from `cursor`, whose turn
            it is; the end of the round is the place before it. A sub-queue is in a ring if and only if its
            `_next` is not None. `ActiveGroups` lists, by ascending priority, the groups that have members; one
            that has lost its last member leaves lazily, when it is met.
            All of it is guarded by the take lock of the side that owns it.
Assumes     Linking and unlinking change several fields, but contain neither a call nor a backward jump, and so
            nothing can interrupt them half-way: see `_parking`. They look once more whether there is something to do,
            for the call that led here can be interrupted, by a signal handler that takes.
Source      The ready list of a weighted round-robin scheduler; the original scans all of a group's members.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ..errors import ShutDown
from ._parking import Waiters

T = TypeVar("T")

_priority = attrgetter("priority")


class Tail(Protocol[T]):
    """A queue, as the side knows it that takes from it: a `Fifo`, which says what each field is."""

    _items: deque[T]
    _limit: int
    _announced: bool
    _closed: type[ShutDown] | None
    _putters: Waiters
    _own_takers: Waiters
    _in_flight: int
    _priority: int
    _weight: int
    _turn: int
    _plain: bool
    _group: PriorityGroup[T] | None
    _next: Tail[T] | None
    _previous: Tail[T] | None

    def _is_eligible(self) -> bool: ...
    def _settle_locked(self) -> None: ...
    def _mend_locked(self) -> None: ...
    def _renew_locks(self) -> None: ...
    def _wake_putter(self) -> None: ...
    def _closed_error(self) -> ShutDown: ...


# What an interrupted operation leaves to be done: the sub-queues that it changed, each with the place where its run
# begins in the elements that it took; and these elements.
Debt: TypeAlias = tuple[Sequence[tuple[Tail[T], int]], list[T]]


class PriorityGroup(Generic[T]):
    """The ready sub-queues of one priority, as a ring."""

    __slots__ = ("cursor", "is_active", "priority")

    def __init__(self, priority: float) -> None:
        self.priority = priority
        self.cursor: Tail[T] | None = None  # None: no members
        self.is_active = False  # listed in ActiveGroups

    def link(self, member: Tail[T]) -> bool:
        """Add `member` at the end of the round, unless it is in a ring already. False if this is no longer listed."""
        cursor = self.cursor
        if member._next is not None:
            return True
        if not self.is_active:
            return False
        if cursor is None:
            member._next = member._previous = member
            self.cursor = member
        else:
            last = cursor._previous
            member._previous, member._next = last, cursor
            last._next = cursor._previous = member  # type: ignore[union-attr]
        member._group = self
        return True

    def unlink(self, member: Tail[T]) -> None:
        """Remove `member`, if it is here; if it was its turn, it is now its follower's."""
        following, previous = member._next, member._previous
        if following is None or member._group is not self:
            return
        if following is member:
            self.cursor = None
        else:
            if self.cursor is member:
                self.cursor = following
            previous._next, following._previous = following, previous  # type: ignore[union-attr]
        member._next = member._previous = None


class ActiveGroups(Generic[T]):
    """The groups that have members, by ascending priority; behind them a group that never has any, as the end."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: list[PriorityGroup[T]] = [PriorityGroup(math.inf)]

    def group(self, priority: int, spare: PriorityGroup[T] | None) -> PriorityGroup[T]:
        """The listed group of `priority`; when there is none, `spare` or a new group is listed."""
        groups = self.groups
        if spare is None or spare.priority != priority or spare.is_active:
            spare = PriorityGroup(priority)
        while True:
            index = bisect_left(groups, priority, key=_priority)
            # A signal handler's take may have shortened the list up to here; from here to the insertion is no call.
            try:
                follower = groups[index]
                fits = index == 0 or groups[index - 1].priority < priority
            except IndexError:
                continue
            if follower.priority == priority:
                return follower
            if fits and priority < follower.priority:
                spare.is_active = True
                groups.insert(index, spare)
                return spare

    def best(self) -> Tail[T] | None:
        """The sub-queue whose turn it is in the best group that has members."""
        groups = self.groups
        while True:
            first = groups[0]
            if first.cursor is not None:
                return first.cursor
            if first.priority == math.inf:
                return None
            first.is_active = False
            del groups[0]

    def __iter__(self) -> Iterator[Tail[T]]:
        """All members in the order in which they would be served, each once."""
        for group in self.groups:
            member: Any = group.cursor
            while member is not None:
                yield member
                member = member._next
                if member is group.cursor:
                    break

    def clear(self) -> None:
        """Unlink everybody, whatever state the rings are in."""
        for group in self.groups:
            group.cursor = None
            group.is_active = False
        del self.groups[:-1]
