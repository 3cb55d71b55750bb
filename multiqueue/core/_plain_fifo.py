"""One tail of the engine in Python: its elements, counts and settings, and the operations on it under its head's lock.

State       Guarded by the lock of the head: `items`; how many ever arrived, were taken and were finished; the settings.
            The numbers in flight, unfinished or discarded are computed from these, so that no count can be left behind.
            `limit` is what `len(items)` must be below for a put: the capacity, UNBOUNDED, or -1 once closed.
Why apart   A `Queue` is subclassed by programs, with attributes and a `__setattr__` of their own. So nothing of this
            is in its namespace.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, TypeAlias

from ._parking import Line, acquire_before
from ._plain_head import END, Group, Head, shim

UNBOUNDED = sys.maxsize
OPEN, SHUT, DETACHED = 0, 1, 2
PUT, CLOSED = 0, 1  # what came of a put; None: it is full

# What `figures` tells: size, capacity, unfinished, finished, discarded, waiting putters and takers, whether it is
# enabled and attached, how it is closed, priority, weight, the in-flight limit, in flight.
Figures: TypeAlias = tuple[int, int | None, int, int, int, int, int, bool, bool, int, int, int, int | None, int]


class Fifo:
    """The state of a sub-queue or a stand-alone queue. Methods that end in `_locked` need the head's lock."""

    __slots__ = (
        "arrived",
        "attached",
        "capacity",
        "closed",
        "disabled_by",
        "finished",
        "group",
        "head",
        "items",
        "joiners",
        "limit",
        "max_in_flight",
        "next",
        "previous",
        "priority",
        "putters",
        "tail",
        "taken",
        "takers",
        "turn",
        "weight",
    )

    def __init__(self) -> None:
        self.head = Head()
        self.tail: Any = None  # the sub-queue; of a stand-alone queue None, for it would never go
        self.items: deque[Any] = deque()
        self.arrived = self.taken = self.finished = 0
        self.limit = UNBOUNDED
        self.capacity: int | None = None
        self.max_in_flight: int | None = None
        self.priority = 0
        self.weight = 1
        self.turn = 0  # elements it has given in its present turn
        self.disabled_by: frozenset[Any] | None = None
        self.attached: bool | None = None  # whether the multi-queue takes from it; None: it never did
        self.closed = OPEN
        self.group: Group | None = None  # the one it is linked in
        self.next: Any = None  # those beside it there
        self.previous: Any = None
        self.takers, self.putters, self.joiners = Line(), Line(), Line()

    # ---- looks ------------------------------------------------------------------------------------------------

    def named(self, queue: Any, item: Any) -> tuple[type[tuple[Any, ...]], tuple[Any, Any]]:
        """What is made of `item`, taken from `queue`, where a take says where it came from."""
        return shim.taken, (queue if self.tail is None else self.tail, item)

    def is_ready(self) -> bool:
        """May the multi-queue take from it now? The one place where that is decided."""
        return (
            bool(self.items and self.attached)
            and not self.disabled_by
            and (self.max_in_flight is None or self.taken - self.finished < self.max_in_flight)
        )

    def unfinished(self) -> int:
        """Elements that were put, and neither finished nor discarded. Below 0 while task_done() is ahead of a take."""
        return len(self.items) + self.taken - self.finished

    def look_locked(self) -> Any:
        """What a taker of this queue alone waits for: an element in it, or the END."""
        return self if self.items else END if self.closed else None

    def room_locked(self) -> int | None:
        """What a putter waits for: room, or the end."""
        if len(self.items) < self.limit:
            return PUT
        return CLOSED if self.closed else None

    def done_locked(self) -> bool | None:
        """What a joiner waits for."""
        return self.unfinished() <= 0 or None

    def done_or_detached_locked(self) -> bool | None:
        """What a joiner of the multi-queue waits for."""
        return self.unfinished() <= 0 or not self.attached or None

    # ---- elements ---------------------------------------------------------------------------------------------

    def put(self, item: object, block: bool = True, deadline: float | None = None) -> int | None:
        """Put one element: PUT, CLOSED, or None when there was no room in time."""
        head = self.head
        lock = head.lock
        one = (item,)
        try:
            if deadline is None:
                lock.acquire()
            elif not acquire_before(lock, deadline):
                return None
            outcome: int | None = PUT
            if len(self.items) >= self.limit:
                outcome = head.wait_locked(self.putters, self.room_locked, block, deadline)
            if outcome is PUT:
                items = self.items
                items += one  # no call, so nothing comes in between it and the look for room
                self.arrived += 1
                if (
                    (self.group is None and self.attached)
                    or self.takers
                    or self.putters
                    or head.takers
                    or head.gate is not None
                ):
                    head.settle_locked(self)
            lock.release()
        except BaseException:
            head.mend(self)
            raise
        return outcome

    def put_some_locked(self, batch: list[Any], deadline: float | None) -> tuple[int, int]:
        """Put as much of `batch` as there is room for, waiting for the first: how many, and whether it is closed."""
        outcome = self.head.wait_locked(self.putters, self.room_locked, True, deadline)
        if outcome is not PUT:
            return 0, outcome is CLOSED
        count = min(len(batch), self.limit - len(self.items))
        some = batch[:count]
        items = self.items
        if count <= 0 or self.closed:  # by a signal handler
            return 0, self.closed
        items += some
        self.arrived += count
        return count, 0

    def put_first_locked(self, item: object) -> int:
        if self.closed:
            return CLOSED
        self.arrived += 1
        self.items.appendleft(item)
        return PUT

    def remove_locked(self, item: object) -> bool:
        """Remove the element that is `item`, the same object, if it is there."""
        while True:
            there = [each is item for each in list(self.items)]
            if True not in there:
                return False
            index = there.index(True)
            items = self.items
            try:
                if items[index] is item:  # else a signal handler took from it: look again
                    del items[index]
                    return True
            except IndexError:
                pass

    def sweep_locked(self) -> deque[Any]:
        """Take all elements out, to be dropped without the lock: dropping one may run code of the user."""
        empty: deque[Any] = deque()
        swept = self.items
        self.items = empty
        return swept

    def replace_locked(self, items: list[Any]) -> deque[Any]:
        """Have these elements. What it counts as unfinished stays as it is."""
        new = deque(items)
        more = len(new) - len(self.items)
        before = self.items
        self.items = new
        self.taken -= more
        return before

    def task_done_locked(self) -> bool:
        if self.unfinished() <= 0:
            return False
        self.finished += 1
        return True

    # ---- settings and endings ---------------------------------------------------------------------------------

    def assign_locked(self, name: str, value: Any) -> bool | None:
        if name == "capacity":
            self.capacity = value
            self.limit = -1 if self.closed else UNBOUNDED if value is None else value
        elif name == "unfinished":
            self.finished += self.unfinished() - value
        else:
            setattr(self, name, value)
        return None

    def replace_reasons_locked(self, before: frozenset[Any] | None, after: frozenset[Any]) -> bool:
        if self.disabled_by is not before:
            return False
        self.disabled_by = after
        return True

    def attach_locked(self) -> bool:
        head = self.head
        if head.is_closed and self.attached is None:
            return False
        if self.closed == DETACHED:
            self.closed = SHUT if head.is_closed else OPEN
            self.assign_locked("capacity", self.capacity)
        self.attached = True
        head.tails[self] = None
        return True

    def detach_locked(self, unused: bool) -> bool:
        is_used = unused and self.unfinished() > 0
        if self.attached and not is_used and not (unused and self.items):
            if not self.closed:
                self.closed = DETACHED
                self.limit = -1
            self.attached = False
            del self.head.tails[self]
        return not self.attached

    def close_locked(self, immediate: bool) -> deque[Any] | None:
        if not self.closed:
            self.closed = SHUT
            self.limit = -1
        return self.sweep_locked() if immediate else None

    # ---- looking at it ----------------------------------------------------------------------------------------

    def list_locked(self) -> list[Any]:
        return list(self.items)

    def figures_locked(self) -> Figures:
        size, unfinished = len(self.items), self.unfinished()
        return (
            size,
            self.capacity,
            unfinished,
            self.finished,
            self.arrived - self.taken - size,
            len(self.putters),
            len(self.takers),
            not self.disabled_by,
            bool(self.attached),
            self.closed,
            self.priority,
            self.weight,
            self.max_in_flight,
            unfinished - size,
        )

    def check_locked(self) -> None:
        """Assert what must be true between operations."""
        group = self.group
        lone = self.next is self and not self.items
        assert (group is not None and not lone) == self.is_ready(), "what is ready is linked, and nothing else"
        assert self.next is None or self.next.previous is self, "the ring of turns is closed"
        assert group is None or group.priority == self.priority, "it is in the group of its priority"
        assert bool(self.closed) == (self.limit == -1), "closed means that no length is low enough"
        assert not (self.putters and self.room_locked() is not None), "no putter waits for room while there is room"
        assert not (self.takers and self.look_locked()), "no taker waits for an element while there is one"
        assert not (self.joiners and self.unfinished() <= 0), "no joiner waits for a join that is fulfilled"
