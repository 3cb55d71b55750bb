"""The tree of schedules: which thread goes next, and which orders are still to be tried.

Promise     `EveryOrder` proposes at least one schedule of every class of schedules that differ only in the
            order of steps that touch different locks. `FewPreemptions` proposes every schedule that takes the
            processor from a running thread at most `bound` times. `Replay` proposes the one it was given.
State       the path of nodes from the root to the end of the schedule that is running or ran last. No
            thread, lock or clock is touched here: options go in, a choice comes out.
Waiting     nothing here waits.
Assumes     the same choices lead to the same options. A path that meets other options than the last time
            raises `NotDeterministic`.
Source      stateless search with sleep sets: P. Godefroid, Partial-Order Methods (1996);
            bounded preemptions: M. Musuvathi and S. Qadeer, CHESS (2007).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ._errors import NotDeterministic

GO, EXPIRE, INTERRUPT = "go", "expire", "interrupt"

# What a step touches, beside the number of a lock: nothing that is shared, or possibly everything.
NOTHING, EVERYTHING = 0, -1


@dataclass(frozen=True, slots=True)
class Choice:
    """One step that could come next: a thread, what happens to it, and the lock it touches."""

    thread: str
    verdict: str
    touches: int

    def __str__(self) -> str:
        return self.thread if self.verdict == GO else f"{self.thread}!{self.verdict}"


def commute(one: Choice, other: Choice) -> bool:
    """True if the two steps lead to the same state in either order.

    They do if they touch different locks, because shared state belongs to a lock. A wait that expires moves
    the clock, which every thread may read.
    """
    if one.thread == other.thread or EXPIRE in (one.verdict, other.verdict):
        return False
    if EVERYTHING in (one.touches, other.touches):
        return False
    return one.touches != other.touches or one.touches == NOTHING


class Walk(Protocol):
    """Proposes one schedule after the other. Options come with the one that needs no switch first."""

    # True if a holder's release needs no step of its own: among steps that commute by their locks it moves
    # freely towards the acquire before it.
    merges_releases: bool

    def choose(self, options: Sequence[Choice], running: str | None) -> Choice | None:
        """The step to take, or None if all that follows has been seen in another order."""

    def goes_on(self, running: str) -> bool:
        """True if `running`, which could go on, is to go on: a short cut, `choose` is not called then."""

    def advance(self) -> bool:
        """Move on to the next schedule; False after the last one."""


@dataclass(slots=True)
class _Node:
    options: tuple[Choice, ...]
    index: int
    asleep: frozenset[Choice] = frozenset()  # their continuations were shown by a sibling of an ancestor
    costs: tuple[int, ...] = ()  # of each option, in preemptions

    @property
    def chosen(self) -> Choice:
        return self.options[self.index]


class _Tree(ABC):
    """A path through the tree of schedules, and the step to the next path."""

    merges_releases = False

    def __init__(self) -> None:
        self._path: list[_Node] = []
        self._depth = 0

    def choose(self, options: Sequence[Choice], running: str | None) -> Choice | None:
        if self._depth < len(self._path):
            node = self._path[self._depth]
            # Only what was chosen is compared: a bounded walk keeps fewer options than it was offered.
            if node.chosen not in options:
                raise NotDeterministic.at_step(self._depth, str(node.chosen), [str(o) for o in options])
        else:
            grown = self._grow(tuple(options), running)
            if grown is None:
                return None
            self._path.append(grown)
            node = grown
        self._depth += 1
        return node.chosen

    def advance(self) -> bool:
        self._depth = 0
        while self._path:
            node = self._path[-1]
            following = self._awake(node.options, node.asleep, node.index + 1)
            if following is not None:
                node.index = following
                return True
            self._path.pop()
        return False

    def goes_on(self, running: str) -> bool:
        if self._depth == len(self._path):
            return False
        chosen = self._path[self._depth].chosen
        if chosen.verdict != GO or chosen.thread != running:
            return False
        self._depth += 1
        return True

    @abstractmethod
    def _grow(self, options: tuple[Choice, ...], running: str | None) -> _Node | None:
        """A node for these options, to be put at the end of the path; None when they lead to known schedules."""

    @staticmethod
    def _awake(options: Sequence[Choice], asleep: frozenset[Choice], start: int) -> int | None:
        for index in range(start, len(options)):
            if options[index] not in asleep:
                return index
        return None


class EveryOrder(_Tree):
    """Every schedule, but of those that differ only in the order of commuting steps just one.

    A step whose continuations have been shown is put to sleep in its later siblings, until a step that does
    not commute with it wakes it. A schedule all of whose next steps are asleep is cut: it is a known one.
    """

    merges_releases = True

    def _grow(self, options: tuple[Choice, ...], running: str | None) -> _Node | None:
        asleep: frozenset[Choice] = frozenset()
        if self._path:
            parent = self._path[-1]
            shown = parent.asleep.union(parent.options[: parent.index])
            asleep = frozenset(choice for choice in shown if commute(choice, parent.chosen))
        first = self._awake(options, asleep, 0)
        return None if first is None else _Node(options, first, asleep)


class FewPreemptions(_Tree):
    """Every schedule with at most `bound` surprises.

    A surprise is that a thread which could go on is stopped, that a wait expires although some thread could go
    on, or that an interruption goes off. Which thread comes next when the running one cannot go on is free.
    """

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound
        self._spent = 0  # on the path down to `_depth`

    def choose(self, options: Sequence[Choice], running: str | None) -> Choice | None:
        chosen = super().choose(options, running)
        node = self._path[self._depth - 1]
        self._spent += node.costs[node.index]
        return chosen

    def advance(self) -> bool:
        self._spent = 0
        return super().advance()

    def goes_on(self, running: str) -> bool:
        return self._spent >= self._bound or super().goes_on(running)

    def _grow(self, options: tuple[Choice, ...], running: str | None) -> _Node | None:
        costs = {choice: self._cost(choice, options[0], running) for choice in options}
        affordable = tuple(choice for choice in options if self._spent + costs[choice] <= self._bound)
        return _Node(affordable, 0, costs=tuple(costs[choice] for choice in affordable)) if affordable else None

    @staticmethod
    def _cost(choice: Choice, first: Choice, running: str | None) -> int:
        if choice.verdict == INTERRUPT:
            return 1
        if choice.verdict == EXPIRE:
            return int(first.verdict == GO)
        return int(first.thread == running and choice.thread != running)


class Replay:
    """One schedule, given by its surprises: `"12:put"` says that step 12 is one of the thread `put`."""

    def __init__(self, schedule: Sequence[str], *, merges_releases: bool) -> None:
        self.merges_releases = merges_releases
        self._surprises = dict(self._parse(entry) for entry in schedule)
        self._step = 0

    def choose(self, options: Sequence[Choice], running: str | None) -> Choice | None:
        wanted = self._surprises.get(self._step, str(options[0]))
        for choice in options:
            if str(choice) == wanted:
                self._step += 1
                return choice
        raise NotDeterministic.at_step(self._step, wanted, [str(o) for o in options])

    def goes_on(self, running: str) -> bool:
        return False

    def advance(self) -> bool:
        return False

    @staticmethod
    def _parse(entry: str) -> tuple[int, str]:
        step, _, choice = entry.partition(":")
        return int(step), choice
