"""Deadlines of entries: when they expire, and when a hold ends.

A heap of times and positions, guarded by the queue's lock. An entry that goes before its time leaves its item
behind; when more than half of the items are such, they are swept, so memory follows the queue's depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from .entry import Entry, Position

_LEAST_SWEEP: Final = 1024  # items; fewer are not worth sweeping


class Entries(Protocol):
    """As `EntryList`, or what of a queue that pages is in memory."""

    def get(self, position: Position) -> Entry | None: ...

    def __len__(self) -> int: ...


class Deadlines:
    """Which entries are due, soonest first."""

    __slots__ = ("_entries", "_heap")

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._heap: list[tuple[float, Position]] = []

    @property
    def first(self) -> float:
        """The soonest deadline, infinity for none; perhaps of an entry that is gone."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, when: float, entry: Entry) -> None:
        """Remember an entry that is in the list."""
        if len(self._heap) > 2 * len(self._entries) + _LEAST_SWEEP:
            self._heap = [item for item in self._heap if self._entries.get(item[1]) is not None]
            heapify(self._heap)
        heappush(self._heap, (when, entry.position))

    def due(self, now: float) -> Iterator[Entry]:
        """Take out what is due, entries already gone left aside. The caller may remove entries meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            entry = self._entries.get(heappop(self._heap)[1])
            if entry is not None:
                yield entry
