"""The ring: whose turn it is among many tails, by strict priority, then in turns by weight and cost.

Promise     That of `_ring.h`, which has the algorithm and its proof: each operation costs O(1), however many tails
            there are, and what two tails of a level are served, by cost / weight, differs by at most one message each
            of the greatest cost / weight.
            No element and no lock: a tail is its owner's, who says when it can be served and how much it is charged.
State       `Level` has the fields of the `Level` in `_ring.h`, and `Turn` those of its `Place`. The lock of the owner
            guards a ring and the rings that it is nested in.
Membership  A turn that joins twice, or leaves twice, is where it is. One that stands for a ring is in its level while
            that ring has a turn in it and no call of `leave` has taken it out.
Source      Elastic round robin: see `_ring.h`.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Any, NoReturn, Protocol
from weakref import WeakValueDictionary

from ._settings import check_number, check_priority

_priority = attrgetter("priority")


class Place(Protocol):
    """Where one stands in the circle of its level; all 0 and None while it is new."""

    _next: Any  # None: not in the circle
    _previous: Any
    _served: float
    _round: int


class Level:
    """The places of one priority, as a circle that is read from `cursor`: each change is a run of statements in which
    nothing strikes, so that an exception leaves it done or not done."""

    __slots__ = ("__weakref__", "cursor", "least", "line", "over", "priority", "round")

    def __init__(self, priority: int, least: float) -> None:
        self.priority = priority
        self.least = least
        self.cursor: Any = None  # whose turn it is; None: nobody is here
        self.line = 0.0
        self.over = 0.0
        self.round = 0

    def join(self, place: Place, is_resumed: bool) -> None:
        """`ring_join`, or `ring_resume`; without effect for one that is here."""
        cursor = self.cursor
        if place._next is not None:
            return
        if cursor is not None and is_resumed and place._round == self.round and place._served <= self.line:
            following = cursor._next
            place._previous, place._next = cursor, following
            cursor._next = following._previous = place
            return
        over = place._served - self.line
        if over < 0:
            place._served = self.line
        elif over > self.over:
            self.over = over
        place._round = self.round + 1
        if cursor is None:
            self.cursor = place._next = place._previous = place
            self.line += self.over if self.over > self.least else self.least
            self.over = 0.0
            self.round += 1
        else:
            last = cursor._previous
            place._previous, place._next = last, cursor
            last._next = cursor._previous = place

    def leave(self, place: Place) -> None:
        """`ring_leave`; without effect for one that is not here."""
        following, previous = place._next, place._previous
        if following is None:
            return
        if following is place:
            self.cursor = None
        else:
            previous._next, following._previous = following, previous
            if self.cursor is place:
                self.cursor = following
                if following._round != self.round:
                    self.line += self.over if self.over > self.least else self.least
                    self.over = 0.0
                    self.round += 1
        place._next = place._previous = None

    def charge(self, place: Place, step: float) -> None:
        """`ring_charge`."""
        place._served += step
        over = place._served - self.line
        if over < 0:
            return
        following, previous = place._next, place._previous
        if following is not None and over > self.over:
            self.over = over
        if place._round != self.round:
            return
        place._round += 1  # its turn is over
        if following is None:
            return
        cursor = self.cursor
        if cursor is place:
            cursor = self.cursor = following
        else:  # out of turn: to the end of the round
            previous._next, following._previous = following, previous
            last = cursor._previous
            place._previous, place._next = last, cursor
            last._next = cursor._previous = place
        if cursor._round != self.round:
            self.line += self.over if self.over > self.least else self.least
            self.over = 0.0
            self.round += 1


class Turn:
    """A tail's place among others. Make a class of yours from it: `Ring.due` answers with the very object.

    It begins outside of the ring.
    """

    __slots__ = ("_inner", "_is_held", "_level", "_next", "_previous", "_ring", "_round", "_served", "_weight")

    def __init__(self, ring: Ring, *, weight: float = 1.0, priority: int = 0) -> None:
        """Lower `priority` is served first, strictly; within one, `weight` is the share beside others.

        Raises:
            ValueError: `weight` is not a number above 0.
        """
        if not isinstance(ring, Ring):
            raise TypeError(f"'ring' must be a Ring, not {ring!r}")
        if hasattr(self, "_ring"):
            raise TypeError("a Turn is initialized once")
        self._weight = check_number("weight", weight)
        self._ring = ring
        self._level = ring._level(check_priority(priority))
        self._inner: Ring | None = None
        self._is_held = False
        self._next: Turn | None = None  # None: not in the ring
        self._previous: Turn | None = None
        self._served = 0.0
        self._round = 0

    @property
    def ring(self) -> Ring:
        """The ring it was made for."""
        return self._ring

    @property
    def is_in(self) -> bool:
        """Does it take turns now?"""
        return self._next is not None

    @property
    def weight(self) -> float:
        """Its share beside others of its priority. Assigned, it counts from the next charge on."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = check_number("weight", weight)

    @property
    def priority(self) -> int:
        """Lower ones are served first. Assigned, it joins at the end of the other level's round."""
        return self._level.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        new, old = self._ring._level(check_priority(priority)), self._level
        was_in = self.is_in
        self._take_out()
        self._served = new.line + max(0.0, self._served - old.line)
        self._round = 0
        self._level = new
        if was_in:
            self._put_in(False)

    def join(self) -> None:
        """It can be served from now on, last in the round that goes on."""
        self._is_held = False
        if self._inner is None or self._inner._active:
            self._put_in(False)

    def resume(self) -> None:
        """As `join`, after a pause: with a turn in this round still, it is the next to be served."""
        self._is_held = False
        if self._inner is None or self._inner._active:
            self._put_in(True)

    def leave(self) -> None:
        """It can not be served: nothing waits, it is at a limit, or paused. If it was its turn, its follower has it."""
        self._is_held = True
        self._take_out()

    def charge(self, cost: float = 1.0) -> None:
        """It was served a message of this cost, in its turn or out of it, and so were the rings that it stands in.

        Raises:
            ValueError: `cost` is not a number above 0.
        """
        cost = check_number("cost", cost)
        turn: Turn | None = self
        while turn is not None:
            turn._level.charge(turn, cost / turn._weight)
            turn = turn._ring._outer

    def _put_in(self, is_resumed: bool) -> None:
        turn: Turn | None = self
        while turn is not None and turn._next is None:
            ring, level = turn._ring, turn._level
            was_empty = not ring._active
            if level.cursor is None:
                ring._active.insert(bisect_left(ring._active, level.priority, key=_priority), level)
            level.join(turn, is_resumed)
            outer = ring._outer
            turn = outer if was_empty and outer is not None and not outer._is_held else None

    def _take_out(self) -> None:
        turn: Turn | None = self
        while turn is not None and turn._next is not None:
            ring, level = turn._ring, turn._level
            level.leave(turn)
            if level.cursor is None:
                del ring._active[bisect_left(ring._active, level.priority, key=_priority)]
            turn = None if ring._active else ring._outer

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle or copy a {type(self).__name__}: a ring and its turns refer to one another")


class Ring:
    """Many turns, of which one is due: by strict priority, and within one in turns by weight and cost."""

    __slots__ = ("_active", "_least", "_levels", "_outer")

    def __init__(self, outer: Turn | None = None, *, least: float = 0.0) -> None:
        """`outer` is the turn that this whole ring has in another one: nested turns.

        `least` is how much a turn serves by cost / weight, at least. 0 gives the smallest turns: one message each
        where costs and weights are equal. 1 gives `weight` messages of cost 1 at each turn.

        Raises:
            ValueError: `outer` stands for another ring, or is in its own already; `least` is negative.
        """
        if outer is not None and not isinstance(outer, Turn):
            raise TypeError(f"'outer' must be a Turn, not {outer!r}")
        if outer is not None and (outer._inner is not None or outer.is_in):
            raise ValueError("'outer' must be a turn that stands for no ring yet and has not joined its own")
        if hasattr(self, "_active"):
            raise TypeError("a Ring is initialized once")
        self._least = check_number("least", least, can_be_0=True)
        self._levels: WeakValueDictionary[int, Level] = WeakValueDictionary()  # by priority: those that a turn names
        self._active: list[Level] = []  # those with a cursor, by ascending priority
        self._outer = outer
        if outer is not None:
            outer._inner = self

    def due(self) -> Turn | None:
        """Whose turn it is: one that stands for no ring. None when the ring is empty. Asking changes nothing."""
        active = self._active
        while active:
            turn: Turn | None = active[0].cursor
            if turn is None or turn._inner is None:
                return turn
            active = turn._inner._active
        return None

    def check_invariants(self) -> None:
        """Assert what `_ring.h` proves of each level. For tests."""
        levels = sorted(self._levels.values(), key=_priority)
        assert self._active == [level for level in levels if level.cursor is not None]
        for level in self._active:
            turn = level.cursor
            assert turn is not None
            assert turn._round == level.round
            is_past = False
            while True:
                following = turn._next
                assert following is not None
                assert following._previous is turn
                assert turn._level is level
                is_past = is_past or turn._round != level.round
                assert turn._round == level.round + is_past
                limit = level.line + (max(level.over, self._least) if is_past else 0)
                assert turn._served <= limit * (1 + 1e-12) + 1e-9
                if following is level.cursor:
                    break
                turn = following

    def _level(self, priority: int) -> Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Level(priority, self._least)
        return level

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle or copy a {type(self).__name__}: a ring and its turns refer to one another")
