"""The entry list of a paged queue: most of what it lists is in the store alone.

Promise     Positions are the store's: level, then number. What somebody has taken, or is held until its time, is an
            object here from then until it is settled or back; everything else is in memory only while paging keeps it.
State       Guarded by the queue's lock; calls the memory manager's under it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .._base.message import MESSAGE_BYTES
from .._base.settings import QueueKind
from .._queue.entry import Entry, EntryState, Key, Position
from .._queue.entry_list import EntryList
from .._queue.entry_list_kinds import make_entry_list
from .target_list import LEVEL_SHIFT, Area, Share, TargetList

if TYPE_CHECKING:
    from .._base.message import Message
    from .._base.settings import QueueSettings
    from .memory import MemoryManager


class _Past(NamedTuple):
    """What has happened to an entry."""

    deliveries: int
    refused_by: set[int] | None
    maybe_delivered: bool


class PagedEntries(EntryList):
    """Entries by position, in the store and in memory."""

    def __init__(self, settings: QueueSettings, area: Area, memory: MemoryManager) -> None:
        self._keys = make_entry_list(settings, area.name)
        self._area = area
        self._memory = memory
        self.taken: dict[int, Entry] = {}  # by position: with consumers, seized, or held until their time
        # Of what is ready and has a past: deliveries, who refused it, doubt. The store may not know of that.
        self.returned: dict[int, _Past] = {}

    def key_of(self, message: Message) -> Key:
        return self._keys.key_of(message)

    def add(self, entry: Entry) -> Entry | None:
        position = entry.position = entry.level << LEVEL_SHIFT | entry.number
        self._keep_past(entry)
        with self._memory as paging:
            paging.arrive(self._area, position, cost_of(entry.message, entry.size), entry, backed=entry.is_stored)
        return None

    def adopt(self, entry: Entry, seen_by: Container[TargetList]) -> None:
        """Take in a ready entry of a queue that begins to page; browsers that have seen it do not see it again."""
        position = entry.position = entry.level << LEVEL_SHIFT | entry.number
        self._keep_past(entry)
        with self._memory as paging:
            cost = cost_of(entry.message, entry.size)
            paging.arrive(self._area, position, cost, entry, backed=False, seen_by=seen_by)

    def adopt_taken(self, entry: Entry, share: Share | None) -> None:
        """As `adopt`, of an entry that somebody has, or that is held until its time."""
        position = entry.position = entry.level << LEVEL_SHIFT | entry.number
        self.taken[position] = entry
        with self._memory as paging:
            paging.arrive_taken(self._area, position, cost_of(entry.message, entry.size), entry, share)

    def take(self, entry: Entry, share: Share | None = None) -> bool:
        """Somebody takes a ready entry, or holds it; False when it is gone, or there is no room for a record.

        `share`: what is set aside for a consumer that takes it.
        """
        position = entry.position
        with self._memory as paging:
            if not paging.take(self._area, position, cost_of(entry.message, entry.size), entry, share):
                return False
        self.taken[position] = entry
        self.returned.pop(position, None)
        return True

    def consume(self, entry: Entry) -> bool:
        """Somebody takes a ready entry and settles it at once; False when it is gone."""
        position = entry.position
        self.returned.pop(position, None)
        with self._memory as paging:
            return paging.consume(self._area, position, entry.size)

    def consume_all(self, rows: Iterable[tuple[int, int]]) -> tuple[list[int], int]:
        """As `consume`, of messages by position and size; returns where those were that were there, and their bytes."""
        gone: list[int] = []
        total = 0
        with self._memory as paging:
            for position, size in rows:
                if paging.consume(self._area, position, size):
                    gone.append(position)
                    total += size
        for position in gone:
            self.returned.pop(position, None)
        return gone, total

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        """A taken entry is ready again, at its place."""
        position = entry.position
        self.taken.pop(position, None)
        self._keep_past(entry)
        with self._memory as paging:
            paging.requeue(self._area, position, entry, is_new=is_new)

    def _keep_past(self, entry: Entry) -> None:
        if entry.delivery_count or entry.refused_by or entry.maybe_delivered:
            self.returned[entry.position] = _Past(entry.delivery_count, entry.refused_by, entry.maybe_delivered)

    def remove(self, entry: Entry) -> None:
        position = entry.position
        self.taken.pop(position, None)
        with self._memory as paging:
            paging.settle(self._area, position, is_deleted=entry.is_buried)

    def remember(self, entry: Entry) -> None:
        """Tell an entry that was read from the store what has happened to it since."""
        past = self.returned.get(entry.position)
        if past is not None:
            entry.delivery_count, entry.refused_by, entry.maybe_delivered = past

    def deliveries(self) -> list[tuple[int, int]]:
        """Of what the store has and consumers had: its number, and how often. For a clean close."""
        unbacked = self._area.unbacked
        counts = {
            position: past.deliveries
            for position, past in self.returned.items()
            if past.deliveries and position not in unbacked
        }
        for position, entry in self.taken.items():
            if entry.is_stored and entry.delivery_count:
                counts[position] = entry.delivery_count
        return [(number_of(position), count) for position, count in counts.items()]

    def get(self, position: Position) -> Entry | None:
        """The entry at this position if it is in memory."""
        entry = self.taken.get(position)
        if entry is not None:
            return entry
        slot = self._area.slots.get(position)
        payload = slot.payload if slot is not None else None
        return payload if isinstance(payload, Entry) else None

    def after(self, position: Position) -> Entry | None:
        raise NotImplementedError("a paged queue is read in pages")

    def check_invariants(self) -> None:
        for position, entry in self.taken.items():
            assert entry.position == position
            assert entry.state is not EntryState.AVAILABLE, f"{entry!r} is kept as taken"
            assert position not in self.returned
            slot = self._area.slots.get(position)
            assert self._area.is_closed or (slot is not None and slot.in_flight), f"{entry!r} has no record"

    def __len__(self) -> int:
        """How many are in memory, at a guess: what bounds the deadlines that are kept."""
        return len(self.taken) + len(self._area.slots)

    def __iter__(self) -> Iterator[Entry]:
        """What is taken or held."""
        return iter(list(self.taken.values()))


def number_of(position: int) -> int:
    """The store's id of a message at a position."""
    return position & ((1 << LEVEL_SHIFT) - 1)


def cost_of(message: Message, size: int) -> int:
    """Bytes that a message takes in memory; long headers of plain types count."""
    headers = message.headers
    cost = size + MESSAGE_BYTES
    if headers and isinstance(headers, Mapping) and type(headers) is dict:
        for value in headers.values():
            cost += 64 + (len(value) if type(value) in (str, bytes) else 0)
    return cost


def levels_of(settings: QueueSettings) -> int:
    """How many levels the store has of a queue."""
    if settings.kind is not QueueKind.PRIORITY:
        return 1
    return settings.max_priority + 1 if settings.max_priority is not None else settings.priority_levels or 10
