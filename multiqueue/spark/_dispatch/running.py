"""Which items run, and which may still begin.

Promise     An item that was submitted before `cancel` is not begun after it, and what runs is asked to end: none slips
            between the two, though a worker may have taken it out of its lane and not yet begun it.
State       `_lock` guards the running futures by group, `_closed`, `_floor` and every `Group.floor`.
Lock order  `_lock` alone; futures are cancelled after it.
Membership  An item gets a number when it is made. It enters before it begins, if its number is above the floor, and
            leaves when its future is resolved. `cancel` raises the floor to the next number, and asks for the end of
            those that have entered: 1. enter, then cancel -> asked; 2. cancel, then enter -> refused.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..._locks import RLock
from .future import SparkFuture


class Group:
    """The items of one lane."""

    __slots__ = ("floor",)

    def __init__(self) -> None:
        self.floor: int = -1  # items with this number or a lower one do not begin any more


class Running:
    """The futures of the items of one dispatcher that run."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may call `cancel`
        self._futures: dict[SparkFuture[Any], Group] = {}
        self._numbers = itertools.count()
        self._floor = -1
        self._closed = False

    def number(self) -> int:
        """The number of a new item."""
        return next(self._numbers)

    def enter(self, future: SparkFuture[Any], number: int, group: Group) -> bool:
        """Whether the item may begin; it is among the running ones then."""
        with self._lock:
            may = not self._closed and number > self._floor and number > group.floor
            if may:
                self._futures[future] = group
            return may

    def leave(self, future: SparkFuture[Any]) -> None:
        with self._lock:
            self._futures.pop(future, None)

    def of(self, group: Group | None = None) -> list[SparkFuture[Any]]:
        """Those that run now, of one lane or of all."""
        with self._lock:
            return [future for future, its in self._futures.items() if group is None or its is group]

    def hold_back(self, group: Group | None = None) -> list[SparkFuture[Any]]:
        """Let no item that has a number begin any more, of one lane or of all; those that have begun."""
        with self._lock:
            floor = self.number()
            if group is None:
                self._floor = floor
            else:
                group.floor = floor
            return self.of(group)

    def close(self) -> None:
        """Let no further item begin, and ask for the end of those that run."""
        with self._lock:
            self._closed = True
        cancel(self.of())


def cancel(futures: list[SparkFuture[Any]]) -> int:
    """Ask for the end of each; how many had not ended. One that has ended may not have left yet."""
    return sum(not future.done() and future.cancel() for future in futures)
