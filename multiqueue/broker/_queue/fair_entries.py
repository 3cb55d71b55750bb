"""The entries of a fair queue: of the tenant whose turn it is, the one that arrived first.

Promise     As `EntrySource`, but for one thing: an entry keeps its place among those of its tenant and level, and a
            reader is given the first one of the tenant whose turn it is. A reader that has a selector, or has refused
            something, takes separate turns, among the entries it has not refused.
            Browsers and administrators see everything in the order of arrival, the highest level first.
State       As in `life`: guarded by the queue's lock, without user code and I/O. Its entries are `FairEntry`s: `Any`
            here, for the protocols do not know these. `log` has all entries, their times and the readers that browse;
            `tenants` has those that wait, and the turns.
Cost        A turn costs the same for any number of tenants. A new entry costs a little more for each consumer that has
            a selector, or has refused something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from multiqueue.core import Ring, Turn

from .._base.fair_options import FairOptions
from .._base.ports import After
from .consumer import ConsumerState, QueueConsumer, Reader
from .entry import Entry, EntryState, Position
from .entry_list import FairEntryList
from .entry_source import ResidentEntries
from .fair_runs import ASIDE, HELD, TAKEN, WAITING
from .life import Life
from .ports import Doubt, EntrySource
from .tenants import Lane, Tenant, Tenants

_AVAILABLE: Final = EntryState.AVAILABLE


class Look(Turn):
    """One lane as a choosy reader sees it: the entries it has looked at there, and its turn among the others."""

    __slots__ = ("cursor", "inner", "lane", "revisits")

    def __init__(self, ring: Ring, lane: Lane) -> None:
        super().__init__(ring, weight=lane.weight, priority=lane.priority)
        self.lane = lane
        self.inner: Ring | None = None
        self.cursor: Position = -1
        self.revisits: list[
            Position
        ] = []  # a heap of those up to the cursor, or that came back, to be looked at (again)

    def first(self, get: Callable[[Position], Any]) -> Entry | None:
        """The first entry of the lane that it has not looked at."""
        following = self.lane.after(self.cursor)
        while self.revisits:
            entry = get(self.revisits[0])
            if entry is not None and entry.where == WAITING:
                # A delay that ended may stand behind what was never looked at.
                return entry if following is None or entry.position < following.position else following
            heappop(self.revisits)
        return following

    def passed(self, entry: Any) -> None:
        if self.revisits and self.revisits[0] == entry.position:
            heappop(self.revisits)
        elif entry.position > self.cursor:
            self.cursor = entry.position


class View:
    """The turns of one choosy reader."""

    def __init__(self, get: Callable[[Position], Any], lanes: Iterable[Lane]) -> None:
        self._get = get
        self._ring = Ring()
        self._looks: dict[Lane, Look] = {}
        for lane in lanes:
            if lane.inner is None:
                self.look(lane).revisits = sorted(lane.returned)
                self.note(lane)

    def look(self, lane: Lane) -> Look:
        look = self._looks.get(lane)
        if look is None:
            ring = self._ring
            if lane.outer is not None:
                outer = self.look(lane.outer)
                ring = outer.inner = outer.inner or Ring(outer=outer)
            look = self._looks[lane] = Look(ring, lane)
        return look

    def note(self, lane: Lane) -> None:
        """There may be something to look at."""
        look = self.look(lane)
        if not look.is_in:
            look.join()

    def reweigh(self, tenant: Tenant) -> None:
        """A tenant may have another weight or priority."""
        for lane in tenant.lanes:
            look = self._looks.get(lane)
            if look is not None:
                look.weight, look.priority = lane.weight, lane.priority

    def forget(self, lane: Lane) -> None:
        look = self._looks.pop(lane, None)
        if look is not None:
            look.leave()

    def again(self, entry: Any) -> None:
        """Take note of an entry that came back, which it may have looked at."""
        heappush(self.look(entry.lane).revisits, entry.position)
        self.note(entry.lane)

    def first(self) -> Entry | None:
        """The first entry of those that it has not looked at."""
        while (look := self._ring.due()) is not None:
            assert isinstance(look, Look)
            closed = look.lane.closed()
            entry = look.first(self._get) if closed is None else None
            if entry is not None:
                return entry
            (look if closed is None else self._looks[closed]).leave()
        return None

    def passed(self, entry: Any) -> None:
        self.look(entry.lane).passed(entry)

    def turn_down(self, entries: Sequence[Any]) -> None:
        """It will not look at these again."""
        for entry in entries:
            revisits = self.look(entry.lane).revisits
            if revisits and revisits[0] == entry.position:
                heappop(revisits)
            elif entry.position in revisits:
                revisits.remove(entry.position)
                revisits.sort()

    def has_overlooked(self, entry: Any) -> bool:
        """True when it will not look at an entry that waits; for tests."""
        look = self._looks.get(entry.lane)
        if look is None or not look.is_in:
            return True
        return entry.position not in look.revisits and entry.position <= look.cursor


class FairEntries(EntrySource):
    """All entries of one fair queue, in memory."""

    has_all = True

    def __init__(
        self,
        life: Life,
        entries: FairEntryList,
        departed: dict[int, None] | None = None,
    ) -> None:
        self._life = life
        self.entries = entries
        self.log: ResidentEntries = ResidentEntries(life, entries, departed)
        # Where there is one level, its log is asked without those in between.
        self._one_level = entries.only_log
        self._views: dict[Reader, View] = {}
        if life.tenants is None:
            options = FairOptions.of(life.settings.kind_options)
            life.tenants = Tenants(options, life.clock, life.visit_by, life.changed_tenants)
            life.limit_tenants()
        self.tenants: Tenants = life.tenants
        life.keys_of = entries.read
        self.tenants.have_objects(has_all=True)
        self.tenants.listen(self._lane_opened, self._lane_forgotten, self._reweighed)
        self._woken = 0  # tenants that a reader found to be no longer above their rates; housekeeping tells the others
        self.getter: Reader = Reader(entries.start)
        for consumer in life.consumers:
            if consumer.acquires:
                self.reader_joined(consumer)

    # -- entries

    def add(self, entries: Sequence[Any], after: After) -> Entry | None:
        if self._one_level is not None:  # behind everything, so behind each browser
            self._one_level.append_all(entries)
        else:
            for entry in entries:
                self.log.add((entry,), after)
        self.tenants.arrive(entries)
        for view in self._views.values() if self._views else ():
            for entry in entries:
                view.note(entry.lane)
        return None

    def take(self, entries: Sequence[Any], owner: object) -> None:
        view = self._views.get(owner) if self._views and isinstance(owner, Reader) else None
        for entry in entries:
            if view is not None and entry.cost > 0:
                view.look(entry.lane).charge(entry.cost)
            self.tenants.take(entry)

    def claim(self, entry: Entry) -> bool:
        if entry.is_ready:
            self.tenants.move(entry, ASIDE)
        return True

    def remove(self, entries: Sequence[Entry], *, taker: object = None) -> None:
        if taker is not None:
            self.take(entries, taker)
        self.log.remove(entries)
        self.tenants.end(entries)

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        if is_new:
            self.log.give_back(entry, is_new=True)
        self.tenants.move(entry, WAITING)
        for view in self._views.values():
            view.again(entry)

    def remind(self, when: float, entry: Entry, *, holds: bool) -> bool:
        if holds:
            self.tenants.move(entry, HELD)
        return self.log.remind(when, entry, holds=holds)

    def due(self, now: float, most: int, after: After) -> list[Entry]:
        woken, self._woken = self._woken + self.tenants.wake(now), 0
        if woken:
            self._life.notifier.pass_baton(after, woken)
        return self.log.due(now, most, after)

    def next_time(self) -> float:
        return min(self.log.next_time(), self.tenants.next_wake)

    def surplus(self, after: After) -> Entry | None:
        # Of a ring it is the head of what is longest on the lowest level: a flood drops its own.
        while (lane := self._life.lane_to_cut()) is not None:
            entry = lane.first
            if entry is not None and self._life.can_have(entry, self.getter, after):
                return entry
        others = self.entries.least_significant() if self._life.is_above_limit() else ()
        return next((entry for entry in others if entry.is_ready), None)

    def oldest_age(self, now: float) -> float:
        return now - min((entry.arrived_at for entry in self.entries.heads()), default=now)

    def deliveries(self) -> list[tuple[int, int]]:
        return self.log.deliveries()

    # -- readers

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        if not reader.acquires:
            return self.log.next_for(reader, after)
        tenants, can_have = self.tenants, self._life.can_have
        if tenants.wakes:
            self._woken += tenants.wake(self._life.clock())
        view = self._views.get(reader) if self._views else None
        while view is None:
            lane = tenants.ring.due()
            if lane is None:
                return None
            assert isinstance(lane, Lane)
            entry: Entry | None = lane.first
            assert entry is not None, "what is in the ring has something"
            if entry.expires_at is None and entry.refused_by is None and not reader.no_local:
                return entry  # as `can_have`, without a call for each message
            if can_have(entry, reader, after):
                return entry
            if entry.state is _AVAILABLE:  # or it was past its time, and is gone
                view = self._choosy(reader)
        while (entry := view.first()) is not None and not can_have(entry, reader, after):
            view.passed(entry)
        return entry

    def take_turns(self, consumer: QueueConsumer, most: int, most_bytes: int, after: After) -> list[Entry]:
        tenants = self.tenants
        if tenants.wakes:
            self._woken += tenants.wake(self._life.clock())
        run: list[Entry] = []
        while True:
            if not (consumer.no_local or (self._views and consumer in self._views)):
                most_bytes = tenants.take_turns(run, most, most_bytes)
            if len(run) == most or most_bytes <= 0:
                break
            entry = self.next_for(consumer, after)  # nothing, or what can only be had with a look
            if entry is None:
                break
            self.pass_over(consumer, entry)
            self.take((entry,), consumer)
            run.append(entry)
            most_bytes -= entry.size
        return run

    def _choosy(self, reader: Reader) -> View:
        view = self._views[reader] = View(self.entries.get, self.tenants.lanes())
        return view

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        if not reader.acquires:
            self.log.pass_over(reader, entry)
        elif self._views and (view := self._views.get(reader)) is not None:
            view.passed(entry)

    def look_again(self, reader: Reader, entries: Sequence[Entry]) -> None:
        if not reader.acquires:
            self.log.look_again(reader, entries)
        elif (view := self._views.get(reader)) is not None:
            for entry in entries:
                view.again(entry)

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        if not reader.acquires:
            self.log.turn_down(reader, entries)
        elif (view := self._views.get(reader)) is not None:
            view.turn_down(entries)

    def reader_joined(self, consumer: QueueConsumer) -> None:
        if not consumer.acquires:
            self.log.reader_joined(consumer)
        elif consumer.selector is not None:
            self._choosy(consumer)

    def reader_left(self, consumer: QueueConsumer) -> None:
        if not consumer.acquires:
            self.log.reader_left(consumer)
        self._views.pop(consumer, None)

    def take_first(self, owner: object, after: After) -> tuple[Entry | None, bool]:
        entry = self.next_for(self.getter, after)
        if entry is not None:
            self.pass_over(self.getter, entry)
            self.tenants.take(entry)
        return entry, False

    def _lane_opened(self, lane: Lane) -> None:
        for view in self._views.values():
            view.note(lane)

    def _lane_forgotten(self, lane: Lane) -> None:
        for view in self._views.values():
            view.forget(lane)

    def _reweighed(self, tenant: Tenant) -> None:
        for view in self._views.values():
            view.reweigh(tenant)

    # -- its end, and what must hold

    def close(self, after: After) -> None:
        self.log.close(after)

    def some_left(self, most: int) -> tuple[list[Any], bool]:
        return self.log.some_left(most)

    def check(self, consumers: Sequence[QueueConsumer]) -> list[Doubt]:
        self.log.check([])
        self.tenants.check_invariants()
        entries: list[Any] = list(self.entries)
        for entry in entries:
            where = entry.where
            assert (where == WAITING) == (entry.state is _AVAILABLE), f"{entry!r} is at {where}"
            assert (where == HELD) == (entry.state is EntryState.HELD), f"{entry!r} is at {where}"
            assert where in (TAKEN, ASIDE) or entry.is_ready
        for tenant in self.tenants.by_name.values():
            own = [entry for entry in entries if tenant in entry.lane.tenant.chain()]
            assert tenant.all_in_flight == sum(entry.where == TAKEN for entry in own)
            waiting = [entry.size for entry in own if entry.where == WAITING and entry.lane.tenant is tenant]
            assert (tenant.waiting, tenant.all_waiting_bytes) == (len(waiting), sum(waiting))
            aside = sum(entry.where in (HELD, ASIDE) and entry.lane.tenant is tenant for entry in own)
            assert aside == sum(lane.aside for lane in tenant.lanes)
        suits = self._life.notifier.suits
        open_entries = [entry for entry in entries if entry.where == WAITING and self.tenants.may_go(entry)]
        acquiring = [each for each in consumers if each.acquires and not each.pulling]
        doubts: list[Doubt] = []
        for consumer in acquiring:
            view = self._views.get(consumer)
            for entry in open_entries if view is not None else ():
                if suits(entry, consumer) and view is not None and view.has_overlooked(entry):
                    doubts.append((entry, consumer, f"{consumer!r} has overlooked {entry!r}"))
        if not any(consumer.pulling or consumer.state is ConsumerState.NOTIFIED for consumer in consumers):
            doubts += [
                (entry, consumer, f"{consumer!r} waits beside {entry!r} and no consumer is notified")
                for consumer in acquiring
                if consumer.state is ConsumerState.INTERESTED
                for entry in open_entries
                if suits(entry, consumer)
            ]
        return doubts
