"""What a queue that has begun to page keeps in memory still, until it is adopted piece by piece.

Promise     It stands behind all that was adopted: of a level, what is here came later, and levels before its first
            entry's were adopted whole. So what readers are given first is first, and order is what it was.
            No reader is given any of this. Consumers settle what they had before; expiry and management take from it
            as from any list.
State       Guarded by the queue's lock. What is here is charged to W.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.message import MESSAGE_BYTES
from .._queue.entry import Entry, Position
from .._queue.entry_list_kinds import newcomers
from .._queue.entry_source import ResidentEntries
from .target_list import Account, Area, TargetList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .memory import MemoryManager


class Coming:
    """The entries of one queue, `old` being their source until now. `seen` says what each browser has seen of them."""

    def __init__(
        self,
        old: ResidentEntries,
        seen: list[tuple[TargetList, Callable[[Position], bool]]],
        memory: MemoryManager,
        area: Area,
        cost: int,
    ) -> None:
        self._old = old
        self._entries = old.entries
        self._seen = seen
        self._is_new = newcomers(old.entries)
        self._unseen: set[Position] = set()  # of what was held, and can be had since
        self._memory = memory
        self._area = area
        self._cursor: Position = old.start  # Invariant: nothing is left up to here
        self._cost = 0  # bytes that are charged
        self._charge(cost)

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, entry: Entry) -> bool:
        """True for an entry that was not adopted yet."""
        return self._entries.get(entry.position) is entry

    def goes_before(self, entry: Entry) -> bool:
        """True when a new entry stands before all that is here: it is adopted at once."""
        first = self._entries.after(self._cursor)
        return first is None or (isinstance(entry.key, int) and isinstance(first.key, int) and entry.key < first.key)

    def add(self, entry: Entry) -> None:
        """A new entry comes behind those of its level."""
        self._entries.add(entry)
        self._charge(_cost_of(entry))

    def take(self, most: int) -> list[tuple[Entry, list[TargetList]]]:
        """The first entries, which are here no longer, each with the lists whose browsers have seen it."""
        taken: list[tuple[Entry, list[TargetList]]] = []
        cost = 0
        while len(taken) < most and (entry := self._entries.after(self._cursor)) is not None:
            self._cursor = entry.position
            self._entries.remove(entry)
            cost += _cost_of(entry)
            taken.append((entry, self._seen_by(entry) if self._seen else []))
        self._charge(-cost)
        return taken

    def _seen_by(self, entry: Entry) -> list[TargetList]:
        position = entry.position
        if position in self._unseen or self._is_new(entry):
            return []
        return [target for target, has_seen in self._seen if has_seen(position)]

    def remove(self, entry: Entry) -> None:
        """It is gone for good. The store may show its row still."""
        self._entries.remove(entry)
        self._charge(-_cost_of(entry))
        if entry.is_stored:
            with self._memory as paging:
                paging.leave_unadopted(self._area, entry.number, is_deleted=entry.is_settled_elsewhere)

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        """It can be had again, when it is adopted; `is_new`: browsers have not seen it."""
        if is_new and self._seen:
            self._unseen.add(entry.position)

    def hold(self, entry: Entry, until: float) -> None:
        """Keep an entry aside until its time."""
        self._old.hold(entry, until)

    def note_expiry(self, entry: Entry, when: float) -> None:
        """Find an entry when it is past its time."""
        self._old.note_expiry(entry, when)

    def expired(self, now: float, most: int) -> list[Entry]:
        """As `EntrySource.expired`."""
        return self._old.expired(now, most)

    def due(self, now: float, most: int) -> list[Entry]:
        """As `EntrySource.due`."""
        return self._old.due(now, most)

    def next_time(self) -> float:
        """As `EntrySource.next_time`."""
        return self._old.next_time()

    def deliveries(self) -> list[tuple[int, int]]:
        """As `EntrySource.deliveries`."""
        return self._entries.deliveries()

    def oldest_age(self, now: float) -> float:
        """As `EntrySource.oldest_age`."""
        return self._old.oldest_age(now)

    def entries(self) -> Iterator[Entry]:
        """All of them. For tests."""
        return iter(self._entries)

    def close(self) -> None:
        """The queue is deleted: what is here is no part of the memory that others need."""
        self._charge(-self._cost)

    def clear_some(self, most: int) -> tuple[list[object], bool]:
        """As `EntrySource.clear_some`."""
        return self._old.clear_some(most)

    def _charge(self, cost: int) -> None:
        cost = max(cost, -self._cost)
        self._cost += cost
        with self._memory as paging:
            paging.room(max(cost, 0), first=True)  # it stays whether there is or not
            paging.charge(Account.WRITING, cost)


def _cost_of(entry: Entry) -> int:
    return entry.size + MESSAGE_BYTES
