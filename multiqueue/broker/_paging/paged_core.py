"""A broker queue whose messages are in the store, and in memory as far as the virtual host's budget goes.

Promise     As `_queue/core`, of which this is a kind: who is notified, who may take, the baton, settling. What differs
            is where entries come from: a consumer is given the first direct reference of its target list, which was
            matched against its selector when it came into the list.
State       Guarded by the queue's lock, except for the lists themselves, which the memory manager's lock guards.
Waiting     A pull that finds no direct reference ends as one that finds nothing: the consumer is INTERESTED, and its
            list wants a load. No wake-up is lost: a loader installs what it has read and only then takes this queue's
            lock to notify. The pull held that lock from looking into the list to leaving NOTIFIED: if it looked
            before the installing, the loader meets an INTERESTED consumer and notifies it; if after, it has found
            what was installed.
Source      "Durable Queue Memory Management" (Apache ActiveMQ); `_queue/core` for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from multiqueue.store import StoreDamaged

from .._base.outcome import DeadLetterReason, PutOutcome
from .._base.settings import MessageGroups, QueueKind, QueueSettings
from .._queue.consumer import ConsumerState, QueueConsumer
from .._queue.core import Clearing, QueueCore
from .._queue.entry import SETTLE, Entry, EntryState
from .._queue.entry_list import EntryList
from .._queue.stock import After
from .assignments import Feed, Feeds
from .paged_entries import PagedEntries, levels_of
from .target_list import LEVEL_SHIFT, Area, TargetList

if TYPE_CHECKING:
    from multiqueue.store import Level

    from .._queue.base import QueueBase
    from .._queue.cursor import Reader
    from .._queue.entry import Position
    from .memory import MemoryManager


_GETTER_STAYS: Final = 10.0  # seconds that gets without a consumer keep their list after the last one


class PagingQueue(Protocol):
    """What a paged queue does when its lock is free."""

    def write_out(self) -> None:
        """Give the store what is in memory alone."""

    def trim(self) -> None:
        """Evict what is above the limit of a ring."""

    def report_loss(self, consumer: QueueConsumer) -> None:
        """What is counted is not to be had: tell, and cancel the consumers that would wait for it."""


def may_page(settings: QueueSettings) -> bool:
    """True for the kinds of queue that page. The others need all their entries to know who is next."""
    in_order = settings.kind in (QueueKind.STANDARD, QueueKind.PRIORITY)
    return in_order and settings.groups is MessageGroups.NONE


class PagedCore(QueueCore):
    """One paged broker queue under its lock."""

    entries: PagedEntries

    def __init__(
        self,
        queue: QueueBase,
        settings: QueueSettings,
        clock: Callable[[], float],
        memory: MemoryManager,
        paging_queue: PagingQueue,
    ) -> None:
        self.memory = memory
        self._paging_queue = paging_queue
        self.area = Area(queue.name, levels_of(settings))
        self.feeds = Feeds(self.area, memory)
        self.last_get = 0.0
        super().__init__(queue, settings, clock)

    is_paged = True

    def _make_entries(self, settings: QueueSettings) -> EntryList:
        return PagedEntries(settings, self.area, self.memory)

    def recover(self, levels: Iterable[Level]) -> bool:
        """Take in what the store has, by its figures."""
        for level in levels:
            if not 0 <= level.level < len(self.area.last):
                raise StoreDamaged(
                    f"the store has messages on level {level.level} of {self.queue.label}, which has"
                    f" {len(self.area.last)}; `multiqueue store check` says more"
                )
            self.area.last[level.level] = level.level << LEVEL_SHIFT | level.last
            self.enqueued += level.messages
            self.enqueued_bytes += level.bytes
            self.depth += level.messages
            self.depth_bytes += level.bytes
            self.ready += level.messages
            self.ready_bytes += level.bytes
        self.highest_depth, self.highest_depth_bytes = self.depth, self.depth_bytes
        self.highest_ready, self.highest_ready_bytes = self.ready, self.ready_bytes
        return True

    # -- putting

    def append(self, entry: Entry, after: After) -> PutOutcome:
        outcome = super().append(entry, after)
        if not entry.is_stored and self.memory.writes_too_much:
            after.append(self._paging_queue.write_out)
        return outcome

    def choose(self, entry: Entry, after: After) -> list[QueueConsumer]:
        """Notify the first interested consumer that is given something. Selectors are asked by a load."""
        self.tell_browsers(after)
        for consumer in self.consumers.interested():
            if consumer.selector is None and self.next_for(consumer, after) is not None:
                self.notify(consumer, after)
                break
        return []

    # -- reading

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        """The first direct reference of the reader's list that it can have; None when there is none now."""
        feed = self.feeds.of(reader)
        position = -1
        while feed is not None:
            with self.memory as paging:
                slot = paging.after(feed.target, position)
                entry = slot.payload if slot is not None else None
            if not isinstance(entry, Entry):
                return None
            position = entry.position
            self.entries.remember(entry)
            if entry.held_until is not None and entry.held_until > self.clock():
                self._hold(entry, entry.held_until)  # it was held when the process that had it ended
            elif self.can_have(entry, reader, after):
                return entry
            elif entry.state is EntryState.AVAILABLE:
                feed = self._without(reader, feed, entry)
        return None

    def _without(self, reader: Reader, feed: Feed, entry: Entry) -> Feed | None:
        """The reader goes on without an entry that it may not have; None when it starts over with its own list."""
        if feed.key is None:
            with self.memory as paging:
                paging.refuse(feed.target, entry.position)
            return feed
        return None if self.feeds.separate(reader) else feed

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        """A browser has seen it. For others it leaves the lists when it is acquired."""
        target = None if reader.acquires else self.feeds.target_of(reader)
        if target is not None:
            with self.memory as paging:
                paging.refuse(target, entry.position)

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        """The selector, asked once more, has refused what it had matched."""
        target = self.feeds.target_of(reader)
        if target is not None:
            with self.memory as paging:
                for entry in entries:
                    paging.refuse(target, entry.position)

    def examine(self, consumer: QueueConsumer, count: int, after: After) -> list[Entry]:
        """The next entry, which stays in the list: it was matched already."""
        if not consumer.is_willing:
            return []
        entry = self.next_for(consumer, after)
        if entry is None:
            self._found_nothing(consumer, after)
            return []
        return [entry]

    def has_lost(self, reader: Reader) -> bool:
        """True when there is nothing left for a reader that may have everything, and yet messages are counted.

        Whatever is ready stands in a list that has looked at all of its area. What does not is gone from the store.
        """
        if not self.available or self.deleted or self.area.unreadable or reader.no_local:
            return False
        feed = self.feeds.of(reader)
        if feed is None or feed.target.selective or feed.target.browses:
            return False
        if feed.key is None and reader is not self.getter:
            return False  # it has refused something
        with self.memory as paging:
            return paging.is_at_end(feed.target)

    def _found_nothing(self, consumer: QueueConsumer, after: After) -> None:
        super()._found_nothing(consumer, after)
        self._look_for_loss(consumer, after)

    def _look_for_loss(self, consumer: QueueConsumer, after: After) -> None:
        if self.available and self.has_lost(consumer):
            after.append(partial(self._paging_queue.report_loss, consumer))

    def oldest_age(self, now: float) -> float:
        """The age of the oldest entry that is in memory: when the others came is not known."""
        slots = list(self.area.slots.values())
        entries = [slot.payload for slot in slots if isinstance(slot.payload, Entry)]
        return now - min((entry.arrived_at for entry in entries), default=now)

    # -- taking and settling

    def acquire(self, entry: Entry, owner: object, after: After, *, locked: bool) -> None:
        taken = self.entries.take(entry, self.feeds.share_of(owner))
        assert taken, f"{entry!r} was offered and is gone"
        super().acquire(entry, owner, after, locked=locked)

    def consume(self, entry: Entry, owner: object, after: After) -> None:
        consumed = self.entries.consume(entry)
        assert consumed, f"{entry!r} was offered and is gone"
        super().acquire(entry, owner, after, locked=False)
        entry.apply(SETTLE, owner)
        self._has_left(entry, owner, after)

    def seize(self, entry: Entry, after: After, *, steal: bool = False) -> bool:
        holder = self.entries.taken.get(entry.position)
        if holder is None:
            self.entries.remember(entry)
            if entry.state is not EntryState.AVAILABLE or not self.entries.take(entry):
                return False
        elif holder is not entry:
            return False
        return super().seize(entry, after, steal=steal)

    def purge_stored(self, rows: Iterable[tuple[int, int]], after: After) -> list[int]:
        """Take out those of these messages, by position and size, that nobody has; returns their positions."""
        gone, size = self.entries.consume_all(rows)
        if gone:
            self.have_gone(len(gone), size, after)
        return gone

    def beside_the_store(self, ends: Sequence[int]) -> list[int]:
        """Where messages stand that are in memory alone, or held until their time, up to the end of each level."""
        held = [entry.position for entry in self.entries if entry.is_ready]
        with self.memory:
            alone = [
                each for end in ends for each in self.area.unbacked.between(end >> LEVEL_SHIFT << LEVEL_SHIFT, end)
            ]
        return alone + [position for position in held if position <= ends[position >> LEVEL_SHIFT]]

    def purge_known(self, positions: Iterable[int], now: float, after: After) -> list[Entry]:
        """Take out those that are in memory, nobody has, and are within their time."""
        gone: list[Entry] = []
        for position in positions:
            entry = self.entries.get(position)
            if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
                continue
            if self.seize(entry, after):
                self.accept(entry, None, after)
                gone.append(entry)
        return gone

    def _reappeared(self, entry: Entry, *, is_new: bool) -> None:
        self.entries.give_back(entry, is_new=is_new)

    def _hold(self, entry: Entry, until: float) -> None:
        if entry.position in self.entries.taken or self.entries.take(entry):
            super()._hold(entry, until)

    def _note_expiry(self, when: float, entry: Entry) -> None:
        if not entry.is_stored:  # else the store knows
            super()._note_expiry(when, entry)

    def _least_significant(self, after: After) -> Entry | None:
        """The entry that a ring evicts, if it is in memory; else it is read, and evicted, once the lock is free."""
        if self.settings.kind is QueueKind.STANDARD:
            first = self.next_for(self.getter, after)
            if first is not None:
                return first
        after.append(self._paging_queue.trim)
        return None

    # -- writing out

    def begin_writing_out(self, most: int) -> list[Entry]:
        """Up to `most` that are in memory alone, and not on their way already. Called without the lock."""
        with self.memory as paging:
            return [self.area.slots[position].payload for position in paging.begin_writing_out(self.area, most)]

    def keep(self, entry: Entry) -> None:
        """No store can keep it, so memory does. Called without the lock."""
        with self.memory as paging:
            paging.keep(self.area, entry.position)

    def written_out(self, entry: Entry) -> bool:
        """The store has it; False when it was settled meanwhile, and must be deleted there."""
        with self.memory as paging:
            entry.is_stored = paging.backed(self.area, entry.position)
        return entry.is_stored

    def writing_failed(self, entries: Sequence[Entry]) -> None:
        """They stay in memory. Called without the lock."""
        with self.memory as paging:
            for entry in entries:
                paging.writing_failed(self.area, entry.position)

    # -- consumers

    def add_consumer(self, consumer: QueueConsumer) -> None:
        self.feeds.enter(consumer)
        super().add_consumer(consumer)

    def remove_consumer(self, consumer: QueueConsumer, after: After) -> bool:
        self.feeds.leave(consumer)
        return super().remove_consumer(consumer, after)

    def update_interest(self, consumer: QueueConsumer, after: After) -> None:
        if not consumer.is_closed and consumer.wants_work:
            self.feeds.note_hunger(consumer, willing=True)
        super().update_interest(consumer, after)
        if self.available and consumer.state is ConsumerState.INTERESTED:
            self._look_for_loss(consumer, after)

    def _lose_interest(self, consumer: QueueConsumer, after: After) -> None:
        self.feeds.note_hunger(consumer, willing=False)
        super()._lose_interest(consumer, after)

    def begin_get(self) -> None:
        if self.deleted:
            return
        self.feeds.enter_once(self.getter)
        self.last_get = self.clock()
        self.queue.visit_by(self.last_get + _GETTER_STAYS)
        self.feeds.note_hunger(self.getter, willing=True)

    def end_get(self, *, found: bool) -> bool:
        target = self.list_for_get
        if found or self.deleted or target is None:
            self.feeds.note_hunger(self.getter, willing=False)
            return False
        with self.memory:  # a loader may be just about to turn what was unknown into something to have
            return target.is_incomplete or target.direct > 0

    @property
    def list_for_get(self) -> TargetList | None:
        """The list that gets without a consumer have, None when there were none lately."""
        return self.feeds.target_of(self.getter)

    def fed(self, target: TargetList, after: After) -> None:
        """A load has brought something, or all that there is: notify as many as it may be enough for."""
        if target.browses:
            self.tell_browsers(after)
            return
        count = target.direct
        for consumer in list(self.consumers.interested()):
            if self.feeds.target_of(consumer) is not target:
                continue
            if count <= 0:
                self._look_for_loss(consumer, after)
                return
            self.notify(consumer, after)
            count -= 1

    def cancel_fed(self, target: TargetList, after: After) -> None:
        """Remove the consumers of a list, and tell them."""
        for consumer in [each for each in self.consumers if self.feeds.target_of(each) is target]:
            self.remove_consumer(consumer, after)
            after.append(consumer.cancelled)

    def keep_time(self, now: float, after: After) -> bool:
        if now - self.last_get > _GETTER_STAYS:
            self.feeds.leave(self.getter)
        return super().keep_time(now, after)

    def next_visit(self) -> float:
        when = super().next_visit()
        return when if self.list_for_get is None else min(when, self.last_get + _GETTER_STAYS)

    # -- the queue

    def delete(self, reason: DeadLetterReason | None, after: After) -> int:
        self.deleted, self.reason_of_deletion = True, reason
        for consumer in list(self.consumers):
            self.consumers.remove(consumer)
            after.append(consumer.cancelled)
        self.browsers.clear()
        for entry in self.entries:
            if entry.is_ready:
                del self.entries.taken[entry.position]
        count = self.ready
        self.depth -= self.ready
        self.depth_bytes -= self.ready_bytes
        self.ready = self.ready_bytes = self.held = 0
        self.feeds.clear()
        self.memory.close_area(self.area)
        after.append(partial(self.queue.clear, Clearing(self)))
        self.end_throttling(after)
        return count

    def clear_some(self, position: Position, most: int) -> tuple[Position | None, list[object]]:
        """As `QueueStock.clear_some`, of what is in memory, in any order."""
        gone = self.memory.clear_some(self.area, most)
        return (position if len(gone) == most else None), gone
