"""Messages that a queue which has begun to page still keeps in memory, until it adopts them piece by piece.

Promise     All of it stands behind the adopted entries, so readers get the first entries first. No reader is given any
            of this; consumers settle their earlier messages, and expiry and management take from it as from any list.
State       Guarded by the queue's lock. Its entries are charged to W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from .._base.message import MESSAGE_BYTES
from .._queue.entry import Entry, Position
from .._queue.entry_list import newcomers
from .._queue.entry_source import ResidentEntries
from .lists import Paging
from .memory import MemoryManager
from .target_list import Account, Area, TargetList


@dataclass(eq=False)
class Coming:
    """The entries of one queue, which cost so many bytes together."""

    old: ResidentEntries  # their source until now, which still knows their times and deliveries
    _seen: list[tuple[TargetList, Callable[[Position], bool]]]  # what each browser has seen of them
    _memory: MemoryManager
    _area: Area
    cost: InitVar[int]
    _unseen: set[Position] = field(default_factory=set)  # of what was held, and can be had since
    _cost: int = 0  # bytes that are charged

    def __post_init__(self, cost: int) -> None:
        self._entries = self.old.entries
        self._is_new = newcomers(self._entries)
        self._cursor: Position = self._entries.start  # Invariant: nothing is left up to here
        self._charge(cost)

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, entry: Entry) -> bool:
        return self._entries.get(entry.position) is entry

    def goes_before(self, entry: Entry) -> bool:
        """True when a new entry stands before all that is here: it is adopted at once."""
        first = self._entries.after(self._cursor)
        return first is None or (isinstance(entry.key, int) and isinstance(first.key, int) and entry.key < first.key)

    def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._entries.add(entry)
        self._charge(sum(map(_cost_of, entries)))

    def first(self, most: int) -> list[Entry]:
        """The next to leave."""
        found: list[Entry] = []
        position = self._cursor
        while len(found) < most and (entry := self._entries.after(position)) is not None:
            found.append(entry)
            position = entry.position
        return found

    def leave(self, entry: Entry, paging: Paging) -> list[TargetList]:
        """The first entry is here no longer; the lists whose browsers have seen it. In a hold of the memory's lock."""
        self._cursor = position = entry.position
        self._entries.remove(entry)
        self._charge_locked(-_cost_of(entry), paging)
        is_unseen = not self._seen or position in self._unseen or self._is_new(entry)
        return [] if is_unseen else [target for target, has_seen in self._seen if has_seen(position)]

    def remove(self, entry: Entry) -> None:
        """It is gone for good. The store may show its row still."""
        self._entries.remove(entry)
        self._charge(-_cost_of(entry))
        if entry.is_stored:
            with self._memory as paging:
                paging.have_gone(self._area, entry.number, is_shown=not entry.is_settled_elsewhere)

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        """It can be had again, when it is adopted; `is_new`: browsers have not seen it."""
        if is_new and self._seen:
            self._unseen.add(entry.position)

    def close(self) -> None:
        """The queue is deleted: its entries are no part of the memory that others need."""
        self._charge(-self._cost)

    def _charge(self, cost: int) -> None:
        with self._memory as paging:
            self._charge_locked(cost, paging)

    def _charge_locked(self, cost: int, paging: Paging) -> None:
        cost = max(cost, -self._cost)
        self._cost += cost
        paging.room(max(cost, 0), first=True)  # it stays whether there is or not
        paging.charge(Account.WRITING, cost)


def _cost_of(entry: Entry) -> int:
    return entry.size + MESSAGE_BYTES
