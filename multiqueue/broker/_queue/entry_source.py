"""The entries of a broker queue that keeps all of them in memory: which is due, and which a reader is given next.

Promise     As `EntrySource`. Strict order: an entry keeps its place for its whole life, and a reader is given the first
            entry, in service order, that it may have. Nothing is overlooked that comes back behind a reader: see
            `consumer`.
State       As in `life`: guarded by the queue's lock, without user code and I/O.
Source      Broker-J, AbstractQueue and its entry lists; readers and their return log are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias

from .._base.ports import After
from .._base.settings import QueueKind
from .consumer import ConsumerState, QueueConsumer, Reader, ReturnLog
from .entry import Entry, EntryState, Position
from .entry_list import EntryList, FairEntryList, StandardEntryList
from .life import Life
from .ports import Doubt, EntrySource

_AVAILABLE: Final = EntryState.AVAILABLE
_LEAST_SWEEP: Final = 1024  # deadlines; fewer are not worth sweeping
_HEAD_IS_LEAST: Final = (QueueKind.STANDARD, QueueKind.LAST_VALUE)

_CanHave: TypeAlias = Callable[[Entry, Reader, After], bool]


def _is_available(entry: Entry, reader: Reader, after: After) -> bool:
    return entry.state is _AVAILABLE


@dataclass(eq=False, repr=False, slots=True)
class Deadlines:
    """Which entries are due, soonest first: when they expire, and when their holds end."""

    _get: Callable[[Position], Entry | None]  # the entry that is at a position, if it is in memory
    _count: Callable[[], int]  # of the entries in memory
    _heap: list[tuple[float, Position]] = field(default_factory=list)

    @property
    def first(self) -> float:
        """The soonest deadline, infinity for none; perhaps of an entry that is gone."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, when: float, entry: Entry) -> None:
        """Remember an entry that is in the list. Memory follows the depth: what others left behind is swept."""
        if len(self._heap) > 2 * self._count() + _LEAST_SWEEP:
            self._heap = [*{item for item in self._heap if self._get(item[1]) is not None}]
            heapify(self._heap)
        heappush(self._heap, (when, entry.position))

    def due(self, now: float, most: int) -> list[Entry]:
        """Take out the next `most` due entries, without those already gone."""
        due: list[Entry] = []
        while len(due) < most and self.first <= now:
            entry = self._get(heappop(self._heap)[1])
            if entry is not None:
                due.append(entry)
        return due


class ResidentEntries(EntrySource):
    """All entries of one broker queue, in memory."""

    has_all = True

    def __init__(self, life: Life, entries: EntryList, departed: dict[int, None] | None = None) -> None:
        self._life = life
        # Numbers of stored messages that have left, and that the store shows still; None where no one asks for them.
        # Added under the queue's lock; taken out, on the store's thread, when their deletion is committed.
        self._departed = departed
        self._is_plain = not life.settings.has_groups
        self.entries: EntryList = entries
        # Where the list is a log and nothing more, runs go past it in one call.
        self._log = entries if type(entries) is StandardEntryList else None
        self._only_log = entries.only_log if isinstance(entries, FairEntryList) else self._log
        self._deadlines = Deadlines(entries.get, entries.__len__)
        self.expires_at_head: bool = life.settings.expires_at_head and life.settings.kind in (
            QueueKind.STANDARD,
            QueueKind.PRIORITY,
        )
        self._late: set[Position] = set()  # of ready entries past their time that were not at the head
        self._head = Reader(entries.start)  # to find what is
        self.returns: ReturnLog = ReturnLog()  # for readers that acquire
        self._browsers: list[QueueConsumer] = []  # they are told of late arrivals, and not of what is released
        self.getter: Reader = Reader(entries.start)  # for gets without a consumer, and to find what a ring evicts
        # Invariant: no reader's cursor is behind this position.
        self._furthest = entries.start
        self._walked: Position = entries.start  # of a deleted queue: how far it was sent on, or let go of
        for consumer in life.consumers:  # they read another source before; nothing is on the queue
            self.reader_joined(consumer)
        if life.groups is not None:
            life.groups.on_freed = self.returns.restart_all

    # -- entries

    @property
    def has_late(self) -> bool:
        return bool(self._late)

    def add(self, entries: Sequence[Entry], after: After) -> Entry | None:
        if self._log is not None:  # behind everything, so behind each reader
            self._log.append_all(entries)
            return None
        (entry,) = entries
        superseded = self.entries.add(entry)
        if entry.position <= self._furthest and entry.held_until is None:
            self.give_back(entry, is_new=True)
        return superseded

    def take(self, entries: Sequence[Entry], owner: object) -> None:
        if self._late:  # one of them may be at the head now
            self._life.visit_by(self._life.clock())

    def remove(self, entries: Sequence[Entry], *, taker: object = None) -> None:
        departed = self._departed
        if self._late:
            self._late.difference_update(entry.position for entry in entries)
            self._life.visit_by(self._life.clock())
        if departed is not None:
            for entry in entries:
                if entry.is_stored and not entry.is_settled_elsewhere:
                    departed[entry.number] = None
        if self._only_log is not None:
            self._only_log.discard_all(entries)
        else:
            for entry in entries:
                self.entries.remove(entry)

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        depth = self._life.figures.depth
        self.returns.add(entry.position, depth)
        for browser in self._browsers if is_new else ():
            browser.revisit(entry)
            if len(browser.revisits) > 2 * depth + _LEAST_SWEEP:
                browser.prune(self.entries)

    def remind(self, when: float, entry: Entry, *, holds: bool) -> bool:
        self._deadlines.add(when, entry)
        return True

    def due(self, now: float, most: int, after: After) -> list[Entry]:
        due = self._deadlines.due(now, most)
        if not self.expires_at_head:
            return due
        self._late.update(each.position for each in due if each.state is _AVAILABLE)
        due = [each for each in due if each.state is EntryState.HELD]
        while self._late and len(due) < most:
            entry = self.next_for(self._head, after, _is_available)
            if entry is None or entry.expires_at is None or entry.expires_at > now:
                break
            self.pass_over(self._head, entry)
            due.append(entry)
        return due

    def next_time(self) -> float:
        return self._deadlines.first

    def surplus(self, after: After) -> Entry | None:
        # The reader saves a walk over what consumers have at the head.
        settings = self._life.settings
        if not settings.has_groups and settings.kind in _HEAD_IS_LEAST:
            first = self.next_for(self.getter, after)
            if first is not None:
                return first
        return next((entry for entry in self.entries.least_significant() if entry.is_ready), None)

    def oldest_age(self, now: float) -> float:
        if self._log is not None:
            first = self.entries.after(self.entries.start)
            return now - first.arrived_at if first is not None else 0.0
        return now - min((entry.arrived_at for entry in self.entries), default=now)

    def deliveries(self) -> list[tuple[int, int]]:
        return self.entries.deliveries()

    # -- readers

    def next_for(self, reader: Reader, after: After, can_have: _CanHave | None = None) -> Entry | None:
        # The reader passes over what it cannot have: what comes back is in the log.
        if reader.acquires and reader.returns_seen != self.returns.end:
            reader.merge(self.returns, self.entries.start)
        can_have, entries = can_have or self._life.can_have, self.entries
        while reader.revisits:
            entry = entries.get(reader.revisits[0])
            if entry is not None and can_have(entry, reader, after):
                return entry
            heappop(reader.revisits)
        cursor = reader.cursor
        is_plain = self._is_plain and not reader.no_local
        while (entry := entries.after(cursor)) is not None:
            if is_plain and entry.state is _AVAILABLE and entry.expires_at is None and entry.refused_by is None:
                break  # as `can_have`, without a call for each message
            if can_have(entry, reader, after):
                break
            cursor = entry.position
        if cursor != reader.cursor:
            reader.cursor = cursor
            if cursor > self._furthest:
                self._furthest = cursor
        return entry

    def next_run(self, reader: Reader, most: int, after: After) -> list[Entry]:
        first = self.next_for(reader, after)
        if first is None:
            return []
        run = [first]
        if most > 1 and self._log is not None and self._is_plain and not reader.no_local and not reader.revisits:
            for entry in self._log.following(first.position, most - 1):
                if entry.state is not _AVAILABLE or entry.expires_at is not None or entry.refused_by is not None:
                    break
                run.append(entry)
        return run

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        position = entry.position
        if reader.revisits and reader.revisits[0] == position:
            heappop(reader.revisits)
            return
        reader.cursor = position
        if position > self._furthest:
            self._furthest = position

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        reader.pass_revisits(entries)

    def reader_joined(self, consumer: QueueConsumer) -> None:
        consumer.cursor, consumer.returns_seen = self.entries.start, self.returns.end
        consumer.revisits.clear()
        if not consumer.acquires:
            self._browsers.append(consumer)

    def reader_left(self, consumer: QueueConsumer) -> None:
        if not consumer.acquires:
            self._browsers.remove(consumer)

    def take_first(self, owner: object, after: After) -> tuple[Entry | None, bool]:
        # With groups, what one owner passes over another may have: no shared place in the queue.
        reader = Reader(self.entries.start, owner) if self._life.settings.has_groups else self.getter
        entry = self.next_for(reader, after)
        if entry is not None:
            self.pass_over(reader, entry)
            self.take((entry,), owner)
        return entry, False

    def has_seen(self, browser: QueueConsumer) -> Callable[[Position], bool]:
        """Whether a browser was given what stands at a position."""
        cursor, to_come = browser.cursor, frozenset(browser.revisits)
        return lambda position: bool(position <= cursor) and position not in to_come

    # -- its end, and what must hold

    def close(self, after: After) -> None:
        self._departed = None  # the store drops all of the queue
        self._browsers.clear()

    def some_left(self, most: int) -> tuple[list[Any], bool]:
        ready: list[Any] = []
        for _ in range(most):
            entry = self.entries.after(self._walked)
            if entry is None:
                return ready, False
            self._walked = entry.position
            if entry.is_ready:
                ready.append(entry)
        return ready, True

    def check(self, consumers: Sequence[QueueConsumer]) -> list[Doubt]:
        self.entries.check_invariants()
        figures, entries = self._life.figures, list(self.entries)
        for entry in entries:
            entry.check_invariants()
            assert entry.state < EntryState.DEQUEUED, f"{entry!r} is gone but still listed"
        ready = [entry for entry in entries if entry.is_ready]
        assert figures.depth == len(entries)
        assert figures.depth_bytes == sum(entry.size for entry in entries)
        assert figures.ready == len(ready)
        assert figures.ready_bytes == sum(entry.size for entry in ready)
        assert figures.held == sum(entry.state is EntryState.HELD for entry in entries)
        available = [entry for entry in entries if entry.state is EntryState.AVAILABLE]
        acquiring = [consumer for consumer in consumers if consumer.acquires and not consumer.pulling]
        doubts = [
            (entry, consumer, f"{consumer!r} at {consumer.cursor} has overlooked {entry!r}")
            for consumer in acquiring
            for entry in self._overlooked(consumer, available)
        ]
        if not any(consumer.pulling or consumer.state is ConsumerState.NOTIFIED for consumer in consumers):
            doubts += [
                (entry, consumer, f"{consumer!r} waits beside {entry!r} and no consumer is notified")
                for consumer in acquiring
                if consumer.state is ConsumerState.INTERESTED
                for entry in available
                if self._life.notifier.suits(entry, consumer)
            ]
        return doubts

    def _overlooked(self, reader: Reader, available: list[Entry]) -> list[Entry]:
        unmerged = self.returns.since(reader.returns_seen)
        if unmerged is None:
            return []  # it will start over
        known: set[Position] = {*reader.revisits, *unmerged}
        return [
            entry
            for entry in available
            if entry.position <= reader.cursor
            and entry.position not in known
            and self._life.notifier.suits(entry, reader)
        ]
