"""How far a consumer has read, and how it learns what became takeable behind its back.

Promise     Every entry that is available at or before a reader's cursor was refused by it, is among its revisits, or is
            named in the part of the return log it has not merged yet.
State       Guarded by the queue's lock.
Cost        A return costs one append, however many readers there are; each merges when it next reads.
            "Where a consumer stands" in docs/design/broker-queue.md says when the log is cut.
Source      The lastSeen and released pointers of Broker-J's QueueContext, for the promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappush
from typing import Final

from .entry import Entry, Position
from .entry_list import EntryList

_LEAST_CUT: Final = 1024  # positions; below this a log is too short to be worth cutting


@dataclass(slots=True, eq=False)
class ReturnLog:
    """Positions in the order in which they became takeable behind somebody's cursor."""

    # Invariant: end == _base + len(_positions). Both only grow.
    _positions: list[Position] = field(default_factory=list)
    _base: int = 0
    end: int = 0

    def add(self, position: Position) -> None:
        """Tell every reader that has passed this position."""
        self._positions.append(position)
        self.end += 1

    def is_longer_than(self, length: int) -> bool:
        """True when there is more to forget than `length`, and enough to be worth it."""
        return len(self._positions) > max(length, _LEAST_CUT)

    def restart_all(self) -> None:
        self._positions.clear()
        self.end += 1
        self._base = self.end

    def since(self, seen: int) -> Sequence[Position] | None:
        """The entries that were added after a reader last looked; None when they are forgotten."""
        return self._positions[seen - self._base :] if seen >= self._base else None


@dataclass(slots=True, eq=False)
class Reader:
    """A place in a queue: everything up to `cursor` was seen, but for `revisits`."""

    cursor: Position
    owner_of_get: object = None
    # A heap of positions at or before the cursor that are to be looked at (again).
    revisits: list[Position] = field(default_factory=list)
    returns_seen: int = 0
    # The rules about what it may have; a consumer has its own.
    acquires: bool = True
    number: int = -1
    no_local: bool = False
    connection: object = None

    @property
    def owner(self) -> object:
        """The owner of the entries that are read, as message groups see it."""
        return self.owner_of_get or self

    def revisit(self, entry: Entry) -> None:
        """Look at an entry again that was passed over; one behind the cursor will be met anyway."""
        if entry.position <= self.cursor:
            heappush(self.revisits, entry.position)

    def merge(self, log: ReturnLog, start: Position) -> None:
        news = log.since(self.returns_seen)
        self.returns_seen = log.end
        if news is None:
            self.cursor = start
            self.revisits.clear()
            return
        for position in news:
            if position <= self.cursor:
                heappush(self.revisits, position)

    def prune(self, entries: EntryList) -> None:
        self.revisits = [position for position in set(self.revisits) if entries.get(position) is not None]
        heapify(self.revisits)
