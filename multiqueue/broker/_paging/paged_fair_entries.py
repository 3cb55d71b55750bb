"""The entries of a fair queue that pages: in the store by tenant, and in memory some of the first of each.

Promise     As `PagedEntries`, and turns are those of `FairEntries`: a tenant of which nothing is in memory keeps its
            turn, and a pull that meets it waits for its load. `Tenants` counts messages in the store too.
Limits      A ring drops the head of its longest lane, and a tenant that drops heads its own, wherever they are.
State       As in `PagedEntries`. A tenant's messages of one priority are one level of the area, `place_of` both. An
            entry has a lane from when it is known here; one that was just read has none yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from multiqueue.store import Held as StoredHeld

from .._base.fair_options import fair_key, place_of
from .._base.ports import After
from .._queue.consumer import Reader
from .._queue.entry import Entry, EntryState
from .._queue.fair_runs import ASIDE, HELD, WAITING
from .._queue.life import Life
from .._queue.tenants import Lane, Tenants
from .memory import MemoryManager
from .paged_entries import PagedEntries
from .target_list import LEVEL_SHIFT, Area, TargetList

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal
    from .spill import Spill

_ADOPTED_BY_A_READER: Final = 64


class PagedFairEntries(PagedEntries):
    """One queue's; `tenants` are those it had in memory, and has there again."""

    def __init__(
        self, life: Life, name: str, memory: MemoryManager, paged: Spill, own_rows: QueueJournal | None
    ) -> None:
        super().__init__(life, name, memory, paged, own_rows)
        assert life.tenants is not None, "a fair queue has tenants before it pages"
        self.tenants: Tenants = life.tenants
        self._lanes: dict[int, Lane] = {}  # by their levels in the store
        self.tenants.listen(forgotten=self._forget)
        self.tenants.have_objects(has_all=False)
        for lane in self.tenants.lanes():
            self._lanes[_place(lane)] = lane

    def _new_area(self, name: str) -> Area:
        return Area(name, 0, is_keyed=True)

    # -- tenants

    def _lane_of(self, entry: Any) -> Lane:
        """The lane of an entry, which may have just been read."""
        lane: Lane | None = entry.lane
        if lane is None:
            name, level, cost, is_odd = fair_key(entry.key)
            lane = entry.lane = self.tenants.lane_of(name, level)
            self._lanes[_place(lane)] = lane
            entry.cost = -cost if entry.delivery_count % 2 else cost
            self.tenants.misread += is_odd
        return lane

    def _find_level(self, entry: Any) -> None:
        entry.level = _place(self._lane_of(entry))

    def _count_all(self, entries: Sequence[Any]) -> None:
        for entry in entries:
            self.tenants.count(self._lane_of(entry), 1, entry.size)

    def open_tenant(self, entry: Any, messages: int, size: int) -> None:
        """So many messages of the tenant of this one are in the store."""
        self.tenants.count(self._lane_of(entry), messages, size)

    def _forget(self, lane: Lane) -> None:
        place = _place(lane)
        self._lanes.pop(place, None)
        with self._memory as paging:
            paging.forget_level(self.area, place)

    def close(self, after: After) -> None:
        super().close(after)
        self._lanes.clear()

    # -- entries

    def take(self, entries: Sequence[Entry], owner: object) -> None:
        super().take(entries, owner)
        for entry in entries:
            self.tenants.take(entry)

    def claim(self, entry: Any) -> bool:
        if not super().claim(entry):
            return False
        self._lane_of(entry)
        if entry.is_ready:
            if entry.state is EntryState.HELD:
                entry.where = HELD  # as it is counted, though this object may be new
            self.tenants.move(entry, ASIDE)
        return True

    def remove(self, entries: Sequence[Entry], *, taker: object = None) -> None:
        super().remove(entries, taker=taker)
        for entry in entries if taker is not None else ():
            self.tenants.take(entry)
        self.tenants.end(entries)

    def consume_all(self, rows: Sequence[tuple[int, int, int | None]]) -> tuple[list[int], int]:
        gone, total = super().consume_all(rows)
        sizes = {position: size for position, size, _ in rows}
        for position in gone:
            lane = self._lanes.get(position >> LEVEL_SHIFT)
            if lane is not None:
                self.tenants.count(lane, -1, -sizes[position])
        return gone, total

    def give_back(self, entry: Any, *, is_new: bool) -> None:
        super().give_back(entry, is_new=is_new)
        if entry.state is EntryState.AVAILABLE:
            self.tenants.move(entry, WAITING)

    def recover_held(self, now_ms: int, held: Iterable[StoredHeld]) -> None:
        held = list(held)
        super().recover_held(now_ms, held)
        for each in held:
            if (lane := self._lanes.get(each.level)) is not None:
                self.tenants.count(lane, -each.messages, -each.bytes, is_aside=True)

    def _end_far(self, position: int, size: int) -> None:
        super()._end_far(position, size)
        if (lane := self._lanes.get(position >> LEVEL_SHIFT)) is not None:
            self.tenants.count(lane, 1, size, is_aside=True)

    def _came_near(self, entry: Any) -> None:
        self._lane_of(entry)
        entry.where = HELD

    def remind(self, when: float, entry: Any, *, holds: bool) -> bool:
        is_kept = super().remind(when, entry, holds=holds)
        if holds and is_kept:
            self._lane_of(entry)
            self.tenants.move(entry, HELD)
        return is_kept

    def due(self, now: float, most: int, after: After) -> list[Entry]:
        if woken := self.tenants.wake(now):
            self._life.notifier.pass_baton(after, woken)
        return super().due(now, most, after)

    def next_time(self) -> float:
        return min(super().next_time(), self.tenants.next_wake)

    # -- what the queue, and one tenant, may have waiting

    def surplus(self, after: After) -> Entry | None:
        """The head of a lane that is too long. Entries that are not in memory are read, and evicted, once the lock is
        free.
        """
        lane, target, entry = self._life.lane_to_cut(), self.list_for_get, None
        if lane is not None and target is not None and self._coming is None:
            entry, _ = self._first_of(lane, target, self._getter, after)
        if entry is None:
            after.append(self._paged.trim)
        return entry

    def next_to_go(self, after: After) -> tuple[Entry | None, bool]:
        lane = self._life.lane_to_cut()
        if lane is None:
            return None, False
        target = self.assignments.target_of(self._begin_get())
        assert target is not None, "gets have a list now"
        entry, may_come = self._first_of(lane, target, self._getter, after)
        self.demand_changed(self._getter, willing=may_come)
        return entry, may_come

    def place_to_cut(self) -> int | None:
        lane = self._life.lane_to_cut()
        return None if lane is None else _place(lane)

    # -- readers

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        target, tenants = self.assignments.target_of(reader), self.tenants
        if target is None:
            return None
        if not reader.acquires:
            return super().next_for(reader, after)
        if tenants.wakes:
            tenants.wake(self._life.clock())
        passed: list[Lane] = []
        try:
            entry = self._find(reader, target, passed, after)
        finally:
            for lane in reversed(passed):
                if lane.live and not lane.tenant.is_blocked:
                    lane.resume()
        if entry is None:
            self.look_for_loss(reader, after)
        return entry

    def _find(self, reader: Reader, target: TargetList, passed: list[Lane], after: After) -> Entry | None:
        """The next entry for a reader; lanes that have nothing for it have left the ring, and are in `passed`."""
        ring, may_adopt, looked_at = self.tenants.ring, self._coming is not None, target
        while (lane := ring.due()) is not None:
            assert isinstance(lane, Lane)
            entry, may_come = self._first_of(lane, looked_at, reader, after)
            if entry is not None:
                return entry
            there = self.assignments.target_of(reader)
            if may_come or there is None:
                return None  # it keeps its turn
            looked_at = there
            if self._coming is not None:
                if not may_adopt or not self.adopt_some(_ADOPTED_BY_A_READER):
                    return None  # a loader goes on, and tells who may have it
                may_adopt = False
            elif lane.is_in:  # there is nothing for this reader
                passed.append(lane)
                lane.leave()
        return None

    def _first_of(self, lane: Lane, target: TargetList, reader: Reader, after: After) -> tuple[Entry | None, bool]:
        """The first entry of a lane that a reader can have, and whether a load may bring one."""
        place, position = _place(lane), -1
        while True:
            with self._memory as paging:
                slot = paging.first_of(target, place, position)
                entry = slot.payload if slot is not None else None
                may_come = target.windows is not None and target.windows.due == place
            if not isinstance(entry, Entry):
                return None, may_come
            position = entry.position
            self._remember(entry)
            self._lane_of(entry)
            if entry.held_until is not None and entry.held_until > self._life.clock():
                self._life.hold(entry, entry.held_until)  # it was held when the process that had it ended
            elif self._life.can_have(entry, reader, after):
                return entry, False
            elif entry.state is EntryState.AVAILABLE:
                if target.key is None:
                    with self._memory as paging:
                        paging.refuse(target, position)
                elif self.assignments.separate(reader):
                    return None, True  # it starts over with its own list

    def _end_get(self, *, found: bool) -> bool:
        target = self.list_for_get
        if found or target is None or target.windows is None:
            return super()._end_get(found=found)
        lane = self.tenants.ring.due()
        with self._memory as paging:  # a loader may have brought what is due just now
            is_here = isinstance(lane, Lane) and paging.first_of(target, _place(lane)) is not None
            return target.windows.due is not None or is_here or self._coming is not None


def _place(lane: Lane) -> int:
    return place_of(lane.level, lane.tenant.name)
