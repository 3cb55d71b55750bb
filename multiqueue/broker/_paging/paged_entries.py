"""The entries of a broker queue that pages: in the store, and in memory as far as the virtual host's budget goes.

Promise     As `EntrySource`. A consumer is given the first direct reference of its target list, which was matched
            against its selector when it came into the list. Positions are the store's: level, then number. An entry
            that somebody has taken, or that is held until its time, is an object here from then until it is settled or
            back; everything else is in memory only while paging keeps it.
State       Guarded by the queue's lock, except for the lists themselves, which the memory manager's lock guards.
Waiting     A pull that finds no direct reference leaves its consumer INTERESTED, and its list wants a load; "Why each
            wait ends" in docs/design/bounded-memory.md says why no wake-up is lost.
Lock order  queue lock -> the memory manager's; queue lock -> the store's (`allocate`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from multiqueue.store import Held as StoredHeld

from .._base.message import MESSAGE_BYTES, Message
from .._base.ports import AT_ONCE, After
from .._base.settings import QueueKind
from .._queue.consumer import ConsumerState, QueueConsumer, Reader
from .._queue.entry import HOLD, SEIZE, SETTLE, UNHOLD, Entry, EntryState, Position
from .._queue.entry_list import levels_of
from .._queue.entry_source import Deadlines, ResidentEntries
from .._queue.life import Life
from .._queue.ports import Doubt, EntrySource
from .assignments import Assignments
from .coming import Coming
from .held import Held
from .memory import ENTRY_BYTES, MemoryManager
from .target_list import LEVEL_SHIFT, Area, TargetList, number_of

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal
    from .spill import Spill

_ADOPTED_BY_A_PUT: Final = 2  # so that a queue that goes on being filled is adopted whole all the same
_ADOPTED_BY_A_READER: Final = 64
_Matched = Mapping[TargetList, Collection[int]]  # of lists with selectors, positions that are theirs
_GETTER_STAYS: Final = 10.0  # seconds that gets without a consumer keep their list after the last one


def cost_of(message: Message, size: int) -> int:
    """Bytes that a message takes in memory; long headers of plain types count."""
    headers = message.headers
    cost = size + MESSAGE_BYTES
    if type(headers) is dict:
        for value in headers.values():
            cost += 64 + (len(value) if type(value) in (str, bytes) else 0)
    return cost


class PagedEntries(EntrySource):
    """One queue's. `own_rows` is where a queue that is not durable has its rows; entries get their numbers there."""

    has_all = False

    def __init__(
        self, life: Life, name: str, memory: MemoryManager, paged: Spill, own_rows: QueueJournal | None
    ) -> None:
        settings = life.settings
        self._life = life
        self._memory = memory
        self._paged = paged
        self._own_rows = own_rows
        self._has_levels = settings.kind is QueueKind.PRIORITY
        self.area: Area = self._new_area(name)
        self.assignments: Assignments = Assignments(self.area, memory)
        self.held: Held = Held(self.area, memory)
        self.taken: dict[int, Entry] = {}  # by position: with consumers, seized, or held and near their time
        # Of what is ready and has a past: deliveries, which consumers refused it, doubt. The store may not know of it.
        self._returned: dict[int, tuple[int, int, set[int] | None, bool]] = {}
        self._deadlines = Deadlines(self.get, self._count_in_memory)
        # What was in memory when the queue began to page and is not adopted yet; None when that is nothing.
        self._coming: Coming | None = None
        self._getter = Reader()
        self._last_get = 0.0

    def _new_area(self, name: str) -> Area:
        return Area(name, levels_of(self._life.settings) if self._has_levels else 1)

    # -- entries

    def add(self, entries: Sequence[Entry], after: After) -> Entry | None:
        coming = self._coming
        if coming is not None and not coming.goes_before(entries[0]):  # of several, none does, or each
            coming.add(entries)
            self._count_all(entries)
            self.adopt_some(_ADOPTED_BY_A_PUT * len(entries))
        else:
            self._count_all(entries)
            self._give_numbers(entries)
            self._arrive(entries)
        if not (entries[0].is_stored and self._coming is None) and self._memory.writes_too_much:
            after.append(self._paged.catch_up)
        return None

    def _count_all(self, entries: Sequence[Entry]) -> None:
        """New entries have come."""

    # -- taking over what was in memory

    def adopt(self, old: ResidentEntries, consumers: Sequence[QueueConsumer]) -> None:
        """Take over the readers of a queue that begins to page; its entries follow, by `adopt_some`."""
        for consumer in consumers:
            self.assignments.enter(consumer, is_here=True)
        if len(old.entries):
            browsers = [consumer for consumer in consumers if not consumer.acquires]
            seen = [(target, old.has_seen(each)) for each in browsers if (target := self.assignments.target_of(each))]
            figures = self._life.figures
            cost = figures.depth_bytes + MESSAGE_BYTES * figures.depth
            self._coming = Coming(old, seen, self._memory, self.area, cost)

    def adopt_some(self, most: int) -> int:
        """Adopt the next entries, as if they came now; how many that were."""
        coming = self._coming
        if coming is None or self.area.is_closed:
            return 0
        entries = coming.first(most)
        self._give_numbers(entries)  # while they are still there: a store that has ended raises
        for state, alike in groupby(entries, attrgetter("state")):
            some = list(alike)
            if state is EntryState.AVAILABLE:
                self._arrive(some, coming)
            for entry in some:
                if state is EntryState.AVAILABLE:
                    self.held.may_end(entry)  # nothing is far yet
                else:
                    self._adopt(entry, coming)
                if entry.expires_at is not None and self.remind(entry.expires_at, entry, holds=False):
                    self._life.visit_by(entry.expires_at)
        if not len(coming):
            self._coming = None
            self._let_surplus_go()
        return len(entries)

    @property
    def is_whole(self) -> bool:
        return self._coming is None

    def _adopt(self, entry: Entry, coming: Coming) -> None:
        """Adopt an entry that is not ready."""
        share, cost = self.assignments.share_of(entry.owner), cost_of(entry.message, entry.size)
        self._find_level(entry)
        with self._memory as paging:
            coming.leave(entry, paging)
            self.taken[self._place(entry)] = entry
            paging.arrive_taken(self.area, entry.position, cost, entry, share, backed=entry.is_stored)
        if entry.state is EntryState.HELD and entry.held_until is not None:
            self._deadlines.add(entry.held_until, entry)
            self._keep(entry)

    def _arrive(self, entries: Sequence[Entry], coming: Coming | None = None) -> None:
        """Have entries stand behind all others, ready; those that leave what is coming are adopted."""
        for entry in entries:
            self._find_level(entry)
        with self._memory as paging:
            for entry in entries:
                seen_by = () if coming is None else coming.leave(entry, paging)
                position, cost = self._place(entry), cost_of(entry.message, entry.size)
                self._keep_past(entry)
                paging.arrive(self.area, position, cost, entry, backed=entry.is_stored, seen_by=seen_by)

    def _give_numbers(self, entries: Sequence[Entry]) -> None:
        if self._own_rows is not None:
            for entry in entries:
                entry.number = self._own_rows.store.allocate()

    def _find_level(self, entry: Entry) -> None:
        if self._own_rows is not None and self._has_levels:
            assert isinstance(entry.key, int)
            entry.level = entry.key

    @staticmethod
    def _place(entry: Entry) -> int:
        position: int = entry.level << LEVEL_SHIFT | entry.number
        entry.position = position
        return position

    def take(self, entries: Sequence[Entry], owner: object) -> None:
        for entry in entries:
            taken = self._take(entry, owner)
            assert taken, f"{entry!r} was offered and is gone"

    def _take(self, entry: Entry, owner: object = None) -> bool:
        """Take a ready entry; False when it is gone, or there is no room for a record."""
        position, share = entry.position, self.assignments.share_of(owner)
        with self._memory as paging:
            if not paging.take(self.area, position, cost_of(entry.message, entry.size), entry, share):
                return False
        self.taken[position] = entry
        self._returned.pop(position, None)
        return True

    def claim(self, entry: Entry) -> bool:
        if self._coming is not None and self._coming.has(entry):
            return True
        holder = self.taken.get(entry.position)
        is_far = self.held.is_far(entry.held_until_ms, entry.position)
        is_held = is_far if holder is None else holder.state is EntryState.HELD
        if entry.is_ready and is_held is not (entry.state is EntryState.HELD):  # it was read before that changed
            entry.apply(HOLD if is_held else UNHOLD)
        if holder is not None:
            if holder is not entry and not (is_held and entry.is_ready):
                return False
            self.taken[entry.position] = entry
            self.held.leave(entry.position)
            return True
        self._remember(entry)
        if not (entry.is_ready and self._take(entry)):
            return False
        self.held.far -= is_far
        return True

    def remove(self, entries: Sequence[Entry], *, taker: object = None) -> None:
        if taker is not None:
            gone, _ = self._consume((entry.position, entry.size) for entry in entries)
            assert len(gone) == len(entries), f"of {entries!r}, which were offered, some are gone"
        for entry in entries if taker is None else ():
            if (coming := self._coming) is not None and coming.has(entry):
                coming.remove(entry)
                if not len(coming):
                    self._coming = None
                continue
            position = entry.position
            self.taken.pop(position, None)
            with self._memory as paging:
                paging.settle(self.area, position, is_deleted=entry.is_settled_elsewhere)
        if not self._life.figures.depth:
            self._life.visit_by(AT_ONCE)

    def consume_all(self, rows: Sequence[tuple[int, int, int | None]]) -> tuple[list[int], int]:
        """Take messages, by position, size, and until when they are held, that are settled at once: those that were
        there, and their bytes.
        """
        gone, total = self._consume([row[:2] for row in rows])
        were_there = set(gone)
        for position, size, held_until_ms in rows:
            if position in were_there and self.held.is_far(held_until_ms, position):
                self._end_far(position, size)
        return gone, total

    def _end_far(self, position: int, size: int) -> None:
        """A far message is gone, or cannot be read."""
        self.held.far -= 1
        self._life.figures.held -= 1

    def _consume(self, rows: Iterable[tuple[int, int]]) -> tuple[list[int], int]:
        gone: list[int] = []
        total = 0
        with self._memory as paging:
            for position, size in rows:
                if paging.consume(self.area, position, size):
                    gone.append(position)
                    total += size
        for position in gone:
            self._returned.pop(position, None)
        return gone, total

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        if (coming := self._coming) is not None and coming.has(entry):
            coming.give_back(entry, is_new=is_new)
            return
        if not self.held.may_end(entry):
            self._life.hold(entry, self._life.clock())
            return
        position = entry.position
        self.taken.pop(position, None)
        self._keep_past(entry)
        with self._memory as paging:
            paging.requeue(self.area, position, entry, is_new=is_new)

    def remind(self, when: float, entry: Entry, *, holds: bool) -> bool:
        if (coming := self._coming) is not None and coming.has(entry):
            return coming.old.remind(when, entry, holds=holds)
        if not holds and entry.is_stored:
            return False  # the store knows
        if holds and entry.position not in self.taken and not self._take(entry):
            if not self.held.may_go(entry):
                return False
            self._let_go(entry)  # there is no room for a record
        elif not holds or self._keep(entry):
            self._deadlines.add(when, entry)
        return True

    # -- what is held: see `held`

    def stored(self, entry: Entry) -> None:
        """The store has an entry now, and its row says until when it is held."""
        is_early = entry.held_until is not None and entry.held_until > self._life.clock()
        if entry.state is EntryState.HELD:
            self._keep(entry)
        elif entry.state is EntryState.AVAILABLE and (is_early or not self.held.may_end(entry)):
            self._life.hold(entry, entry.held_until or 0.0)

    def _keep(self, entry: Entry) -> bool:
        """Keep an entry that is held in memory, or let it go, if the store has it: then False. Or let others go."""
        if not self.held.may_go(entry):  # it is due, or waits for another reason than its row's
            return True
        if not self.held.keep(entry, cost_of(entry.message, entry.size) + ENTRY_BYTES):
            self._let_go(entry)
        else:
            self._let_surplus_go()
        return entry.position in self.taken

    def _let_surplus_go(self) -> None:
        for entry in self.held.surplus() if self._coming is None else ():
            self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        self.held.let_go(entry)
        self.taken.pop(entry.position, None)
        with self._memory as paging:
            paging.let_wait(self.area, entry.position)
        self._life.visit_by(self.held.next_time(self._life.clock()))

    def recover_held(self, now_ms: int, held: Iterable[StoredHeld]) -> None:
        """So many wait on each level of a queue that is opened."""
        far = sum(each.messages for each in held)
        self.held.recover(now_ms, far)
        self._life.figures.held += far

    def take_held(self, sizes: Mapping[int, int], found: Mapping[int, Entry], matched: _Matched) -> int | None:
        """Have far messages near: entries, where they could be read. The first for which there is no room, if any."""
        for position, size in sizes.items():
            entry, cost = found.get(position), 0
            with self._memory as paging:
                is_far = position not in self.area.slots and paging.is_ready(self.area, position)
                if is_far and entry is not None:
                    cost = cost_of(entry.message, entry.size)
                    if not paging.take(self.area, position, cost, entry):
                        return position
                # What came near by an earlier read, too: no load may show it to a list that is there since.
                for target in [each for each, positions in matched.items() if position in positions]:
                    paging.note_match(target, self.area.slots.get(position))
            if not is_far:
                continue
            if entry is None:
                self._end_far(position, size)
                continue
            entry.apply(HOLD)
            self._remember(entry)
            self._returned.pop(position, None)
            self.taken[position] = entry
            self.held.bring(entry, cost + ENTRY_BYTES)
            self._deadlines.add(entry.held_until or self._life.clock(), entry)
            self._came_near(entry)
        return None

    def _came_near(self, entry: Entry) -> None:
        """An entry was read that is held."""

    def due(self, now: float, most: int, after: After) -> list[Entry]:
        if self._last_get + _GETTER_STAYS <= now:  # as `next_time` has it
            self.assignments.leave(self._getter)
        if not self._life.figures.depth:
            after.append(self._paged.keep_in_memory)
        due = [] if self._coming is None else self._coming.old.due(now, most, after)
        return due + self._deadlines.due(now, most - len(due))

    def next_time(self) -> float:
        when = min(self._deadlines.first, self.held.next_time(self._life.clock()))
        if self._coming is not None:
            when = min(when, self._coming.old.next_time())
        return when if self.list_for_get is None else min(when, self._last_get + _GETTER_STAYS)

    def surplus(self, after: After) -> Entry | None:
        """As `EntrySource.surplus`. Entries that are not in memory are read, and evicted, once the lock is free."""
        if not self._has_levels:
            first = self.next_for(self._getter, after)
            if first is not None:
                return first
        after.append(self._paged.trim)
        return None

    def next_to_go(self, after: After) -> tuple[Entry | None, bool]:
        """The entry that goes first at a limit, if it is in memory; and whether a load may bring it."""
        if not self._life.is_above_limit():
            return None, False
        first = self.next_for(self._begin_get(), after)
        return first, self._end_get(found=first is not None)

    def place_to_cut(self) -> int | None:
        """The level, of an area by key, on which something is to go; None: the first to go is on the lowest."""
        return None

    def oldest_age(self, now: float) -> float:
        # Of what is in memory: when the others came is not known.
        if self._coming is not None:
            return self._coming.old.oldest_age(now)
        slots = list(self.area.slots.values())
        entries = [slot.payload for slot in slots if isinstance(slot.payload, Entry)]
        return now - min((entry.arrived_at for entry in entries), default=now)

    def deliveries(self) -> list[tuple[int, int]]:
        unbacked = self.area.unbacked
        returned = self._returned.items()
        counts = {position: count for position, (count, *_) in returned if count and position not in unbacked}
        for position, entry in self.taken.items():
            if entry.is_stored and entry.delivery_count:
                counts[position] = entry.delivery_count
        adopted = [(number_of(position), count) for position, count in counts.items()]
        return adopted if self._coming is None else adopted + self._coming.old.deliveries()

    def get(self, position: Position) -> Entry | None:
        """The entry at this position if it is in memory."""
        entry = self.taken.get(position)
        if entry is not None:
            return entry
        slot = self.area.slots.get(position)
        payload = slot.payload if slot is not None else None
        return payload if isinstance(payload, Entry) else None

    def _count_in_memory(self) -> int:
        """How many are in memory, at a guess: what bounds the deadlines that are kept."""
        return len(self.taken) + len(self.area.slots)

    def _keep_past(self, entry: Entry) -> None:
        if entry.delivery_count or entry.refused_by or entry.maybe_delivered:
            past = (entry.delivery_count, entry.failures, entry.refused_by, entry.maybe_delivered)
            self._returned[entry.position] = past

    def _remember(self, entry: Entry) -> None:
        """Tell an entry that was read from the store what has happened to it since."""
        past = self._returned.get(entry.position)
        if past is not None:
            entry.delivery_count, entry.failures, entry.refused_by, entry.maybe_delivered = past

    # -- readers

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        """The first direct reference of the reader's list that it can have, or None."""
        entry = self._next_adopted(reader, after)
        if entry is None and self._coming is not None:
            target = self.assignments.target_of(reader)
            with self._memory as paging:
                is_at_end = target is not None and paging.is_at_end(target)
            if is_at_end:
                self.adopt_some(_ADOPTED_BY_A_READER)
                entry = self._next_adopted(reader, after)
        if entry is None:
            self.look_for_loss(reader, after)
        return entry

    def _next_adopted(self, reader: Reader, after: After) -> Entry | None:
        target = self.assignments.target_of(reader)
        position = -1
        while target is not None:
            with self._memory as paging:
                slot = paging.first(target, position)
                entry = slot.payload if slot is not None else None
            if not isinstance(entry, Entry):
                return None
            position = entry.position
            self._remember(entry)
            if entry.held_until is not None and entry.held_until > self._life.clock():
                self._life.hold(entry, entry.held_until)  # it was held when the process that had it ended
            elif self._life.can_have(entry, reader, after):
                return entry
            elif entry.state is EntryState.AVAILABLE:
                if target.key is None:
                    with self._memory as paging:
                        paging.refuse(target, position)
                elif self.assignments.separate(reader):
                    return None  # it starts over with its own list
        return None

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        """A browser has seen it. For others it leaves the lists when it is acquired."""
        if not reader.acquires:
            self.turn_down(reader, (entry,))

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        target = self.assignments.target_of(reader)
        if target is not None:
            with self._memory as paging:
                for entry in entries:
                    paging.refuse(target, entry.position)

    def reader_joined(self, consumer: QueueConsumer) -> None:
        self.assignments.enter(consumer)

    def reader_left(self, consumer: QueueConsumer) -> None:
        self.assignments.leave(consumer)

    def demand_changed(self, reader: Reader, *, willing: bool) -> None:
        self.assignments.note_demand(reader, willing=willing)

    def look_for_loss(self, reader: Reader, after: After) -> None:
        """There is nothing for a reader: see that no consumer waits for a lost message."""
        if isinstance(reader, QueueConsumer) and self.has_lost(reader):
            after.append(partial(self._paged.report_loss, reader))

    def has_lost(self, reader: Reader | None = None) -> bool:
        """True when there is nothing left for a reader that may have everything, although messages are counted.

        None stands for the reader of gets. Each ready message stands in a list that has looked at all of its area, or
        is gone from the store.
        """
        reader, figures = reader or self._getter, self._life.figures
        if figures.ready <= figures.held or self.area.is_closed or self.area.unreadable or reader.no_local:
            return False
        target = self.assignments.target_of(reader)
        if self._coming is not None or target is None or target.selector is not None or target.browses:
            return False
        if target.key is None and reader is not self._getter:
            return False  # it has refused something
        with self._memory as paging:
            return paging.is_at_end(target)

    def take_first(self, owner: object, after: After) -> tuple[Entry | None, bool]:
        entry = self.next_for(self._begin_get(), after)
        if entry is not None:
            self.take((entry,), owner)
        return entry, self._end_get(found=entry is not None)

    def _begin_get(self) -> Reader:
        self.assignments.enter_once(self._getter)
        self._last_get = self._life.clock()
        self._life.visit_by(self._last_get + _GETTER_STAYS)
        self.demand_changed(self._getter, willing=True)
        return self._getter

    def _end_get(self, *, found: bool) -> bool:
        """It has what is in memory; True when there may be more that is not."""
        target = self.list_for_get
        if found or target is None:
            self.demand_changed(self._getter, willing=False)
            return False
        with self._memory:  # a loader may be just about to turn what was unknown into something to have
            return target.is_incomplete or target.direct > 0 or self._coming is not None

    @property
    def list_for_get(self) -> TargetList | None:
        """The list that gets without a consumer have, None when there were none lately."""
        return self.assignments.target_of(self._getter)

    # -- its end, and what must hold

    @property
    def is_overfull(self) -> bool:
        """True when what no store can keep has filled the memory."""
        return bool(self.area.kept) and self._memory.is_exhausted

    def close(self, after: After) -> None:
        self.held.close()
        for position in [position for position, entry in self.taken.items() if entry.is_ready]:
            del self.taken[position]
        self.assignments.clear()
        if self._coming is not None:
            self._coming.close()
        if self._own_rows is not None:
            after.append(self._own_rows.drop_queue)
        self._memory.close_area(self.area)

    def some_left(self, most: int) -> tuple[list[Any], bool]:
        if self._coming is not None:
            ready, is_more = self._coming.old.some_left(most)
            for entry in ready:
                entry.apply(SEIZE)
                entry.apply(SETTLE)
            self._coming.old.remove(ready)
            if ready or is_more:
                return ready, True
        with self._memory as paging:
            gone = paging.clear_some(self.area, most)  # to be forgotten without this lock
        return gone, len(gone) == most

    def check(self, consumers: Sequence[QueueConsumer]) -> list[Doubt]:
        for position, entry in self.taken.items():
            entry.check_invariants()
            assert entry.position == position
            assert entry.state is not EntryState.AVAILABLE, f"{entry!r} is kept as taken"
            assert position not in self._returned
            slot = self.area.slots.get(position)
            assert self.area.is_closed or (slot is not None and slot.in_flight), f"{entry!r} has no record"
        figures = self._life.figures
        coming = [] if self._coming is None else list(self._coming.old.entries)
        taken = [entry for entry in [*self.taken.values(), *coming] if not entry.is_ready]
        assert figures.depth - figures.ready == len(taken), f"{len(taken)} are taken, not as many as are counted"
        assert figures.depth_bytes - figures.ready_bytes == sum(entry.size for entry in taken)
        held = sum(entry.state is EntryState.HELD for entry in [*self.taken.values(), *coming])
        assert figures.held == held + self.held.far
        if any(consumer.pulling or consumer.state is ConsumerState.NOTIFIED for consumer in consumers):
            return []
        for consumer in consumers:
            if consumer.state is ConsumerState.INTERESTED:
                found = self.next_for(consumer, [])
                # What a load has just brought: its loader waits for the lock that the caller holds.
                is_told = found is None or self._memory.paging.served
                assert is_told, f"{consumer!r} waits beside {found!r} and no consumer is notified"
        return []
