"""The decisions of a broker queue: which consumer is notified of an entry, which may take it, which gets the baton.

Promise     No lost wake-up: while an entry is available and an interested consumer could take it, some consumer is
            NOTIFIED; and a NOTIFIED one either takes an entry or passes the baton. "Who is told" in
            docs/design/broker-queue.md has the proof.
State       Guarded by the queue's lock. No user code and no I/O in here: a method appends to `after` what its caller
            does once the lock is free. That list also keeps a dropped entry alive, so that no message's body ends
            under the lock.
Source      Broker-J, AbstractQueue; "Consumer-Queue Interactions".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final

from .._base.message import MESSAGE_BYTES, DeadLetterReason, PutOutcome
from .._base.ports import After
from .._base.settings import Overflow, QueueSettings
from .._base.waits import HeldLock
from .consumer import ConsumerState, Interest, QueueConsumer, QueueConsumerManager, Reader, SharedGroups, make_groups
from .counters import Counters, DepthLimit
from .entry import ACQUIRE, DELIVER, HOLD, RELEASE, SEIZE, SETTLE, STEAL, UNHOLD, Entry, EntryState, Move
from .ports import Doubt, EntrySource, Rows, Walk, WholeQueue

_NAP: Final = 0.0002  # seconds, between two slices of work
_CLEARED: Final = 256  # entries of a deleted queue that go in one hold: some hundred microseconds
FEW: Final = 64  # entries that may go to dead letters, in one hold: 70 us each, the lock being free
_AVAILABLE: Final = EntryState.AVAILABLE

Offers = list[tuple[Entry, list[QueueConsumer]]]  # new entries, and the consumers whose selectors must be asked


def nap() -> None:
    """Let others have the interpreter between two slices, so that they need not ask for it, and wait 5 ms."""
    time.sleep(_NAP)


class QueueState:
    """One broker queue under its lock: its parts, and what happens to entries and consumers."""

    source: EntrySource  # set before anybody knows the queue, and when it begins or ceases to page
    walk: Walk  # through the entries of the source; set with it

    def __init__(self, queue: WholeQueue, clock: Callable[[], float], lock: HeldLock) -> None:
        self._queue = queue
        # Of a durable queue its journal, of another one where it had its rows when it last began to page.
        self.rows: Rows | None = queue.journal
        self.lock = lock
        self.settings: QueueSettings = queue.settings
        self.clock = clock
        self.visit_by: Callable[[float], None] = queue.visit_by
        self.counters: Counters = Counters()
        self.limit: DepthLimit = DepthLimit(self.settings, self.counters)
        self.groups: SharedGroups | None = make_groups(self.settings.groups)
        self.consumers: QueueConsumerManager = QueueConsumerManager()
        self.last_used: float = clock()
        self.deleted: bool = False
        self.is_let_go: bool = False  # it is deleted, and what is left on it goes piece by piece
        self.reason_of_deletion: DeadLetterReason | None = None  # None: what was on the queue is simply gone
        self.consumer_numbers: Iterator[int] = count(1)  # each is one consumer's
        self._is_to_evict = False  # a ring may have more above its limit than was dropped at once
        self.pins: set[object] = set()  # one for each block that looks at everything on the queue, by position

    @contextmanager
    def pinned(self) -> Iterator[Walk]:
        """A block in which the source stays, and the walk: what is read is claimed there. Under no lock."""
        pin = object()
        self.pins.add(pin)
        try:
            with self.lock:  # or the source might be exchanged by somebody that did not see the pin
                walk = self.walk
            yield walk
        finally:
            self.pins.discard(pin)  # without the lock: a generator may end anywhere

    # -- putting

    def refuse(self, entry: Entry, after: After) -> PutOutcome:
        """Turn a message away, as the overflow policy says."""
        self.counters.rejected += 1
        if self.settings.overflow is Overflow.REJECT_DEAD_LETTER:
            self._send_on(entry, DeadLetterReason.MAXLEN, after)
        return PutOutcome.REJECTED

    def append(self, entry: Entry, after: After) -> PutOutcome:
        """Add an entry, then apply the overflow policy, which may drop this very entry."""
        counters, limit = self.counters, self.limit
        counters.arrived(1, entry.size)
        superseded = self.source.add(entry, after)
        if entry.expires_at is not None and self.source.note_expiry(entry, entry.expires_at):
            self.visit_by(entry.expires_at)
        if entry.held_until is not None:
            self.hold(entry, entry.held_until)
        if superseded is not None and superseded.is_ready:
            self.drop(superseded, None, after)
        outcome = self._apply_overflow(after) if limit.may_overflow else PutOutcome.ENQUEUED
        if counters.depth_bytes + MESSAGE_BYTES * counters.depth > limit.reserved:  # or a call each time
            return PutOutcome.THROTTLED if self._lacks_memory(after) else outcome
        return outcome

    def _lacks_memory(self, after: After) -> bool:
        """True when there is no memory for what has come, and the queue cannot page."""
        limit = self.limit
        if limit.in_use <= limit.reserved or limit.reserve():
            return False
        after.append(self._queue.relieve)
        return limit.short_of_memory or not limit.can_page

    def append_all(self, entries: Sequence[Entry], after: After) -> PutOutcome:
        """`append` each of the entries, on a queue that `takes_runs`."""
        self.counters.arrived(len(entries), sum([entry.size for entry in entries]))
        self.source.add_all(entries, after)
        return PutOutcome.THROTTLED if self._lacks_memory(after) else PutOutcome.ENQUEUED

    def choose_for(self, entries: Sequence[Entry], after: After) -> Offers:
        """`choose` for each of new entries; what it returns for each."""
        offers: Offers = []
        for entry in entries:
            if not self.consumers.idle:
                break
            if entry.state is EntryState.AVAILABLE and (candidates := self.choose(entry, after)):
                offers.append((entry, candidates))
        return offers

    # -- notifying

    def choose(self, entry: Entry, after: After) -> list[QueueConsumer]:
        """Notify the first interested consumer that can take a new entry, and every browser.

        Where consumers with selectors stand before it, they are returned, in order and with the first one
        that has no selector, and no consumer is notified: their selectors must be asked without the lock.
        """
        if self.consumers.non_acquiring:
            self.tell_browsers(after)
        if not self.source.asks_selectors:  # a load has matched what the consumer can have, and tells those that chose
            for consumer in self.consumers.interested():
                if consumer.selector is None and self.source.next_for(consumer, after) is not None:
                    self.notify(consumer, after)
                    break
            return []
        with_selector: list[QueueConsumer] = []
        is_plain = entry.refused_by is None and self.groups is None
        for consumer in self.consumers.interested():
            if not (is_plain and not consumer.no_local) and not self.suits(entry, consumer):
                continue
            if consumer.selector is None and not with_selector:
                self.notify(consumer, after)
                break
            with_selector.append(consumer)
            if consumer.selector is None:
                break
        return with_selector

    def tell_browsers(self, after: After) -> None:
        """Something has arrived, and browsers are told of everything."""
        for browser in self.consumers.non_acquiring:
            after.append(browser.notify_work)

    def notify(self, consumer: QueueConsumer, after: After) -> bool:
        """INTERESTED to NOTIFIED, with the call that goes with it; False when it was not INTERESTED."""
        if not self.consumers.move(consumer, Interest.NOTIFY):
            return False
        after.append(consumer.notify_work)
        return True

    def pass_baton(self, after: After, count: int = 1) -> None:
        """Notify up to `count` interested consumers that have something to look at."""
        counters = self.counters
        for _ in range(min(count, counters.ready - counters.held)):
            for consumer in self.consumers.interested():
                if self.source.next_for(consumer, after) is not None:
                    self.notify(consumer, after)
                    break
            else:
                return

    # -- what a reader may have

    def suits(self, entry: Entry, reader: Reader) -> bool:
        """True when refusals, `no_local` and groups let this reader have the entry; its selector is not asked."""
        if entry.refused_by is not None and reader.number in entry.refused_by:
            return False
        if reader.no_local and entry.message.publisher is reader.connection:
            return False
        if self.groups is None or not reader.acquires:
            return True
        return self.groups.accepts(entry.group, reader.owner)

    def can_have(self, entry: Entry, reader: Reader, after: After) -> bool:
        """True when the entry is available, within its time, and suits. One that is past its time is dropped."""
        if entry.state is not _AVAILABLE:
            return False
        if entry.expires_at is not None and entry.expires_at <= self.clock():
            self.drop(entry, DeadLetterReason.EXPIRED, after)
            return False
        if entry.refused_by is None and self.groups is None and not reader.no_local:
            return True  # as `suits`, without a call for each message
        return self.suits(entry, reader)

    # -- pulling

    def higher_priority(self, consumer: QueueConsumer) -> Sequence[QueueConsumer]:
        if self.consumers.levels[0].priority <= consumer.priority or not consumer.acquires:
            return ()
        return self.consumers.willing(consumer.priority)

    def pull(
        self, consumer: QueueConsumer, most: int, most_bytes: int, higher: Iterable[QueueConsumer], after: After
    ) -> list[Entry]:
        """As `BrokerQueue.deliver_messages`, of a willing consumer, if no selector is asked; `higher` go before it."""
        source = self.source
        entries: list[Entry] = []
        while most_bytes > 0:
            if most > 1:
                run = _within(source.next_run(consumer, most, after), most_bytes)
            else:
                run = [] if (entry := source.next_for(consumer, after)) is None else [entry]
            if not run:
                self.found_nothing(consumer, after)
                break
            for other in higher:
                if self.suits(run[0], other):
                    self.leave_to(other, consumer, run[0], after)
                    return entries
            run = self.give(consumer, run, after)
            entries += run
            most -= len(run)
            if most <= 0 or not run or not consumer.is_willing:
                break
            most_bytes -= sum([entry.size for entry in run])
        return entries

    def end_if_empty(self, consumer: QueueConsumer) -> None:
        """After a pull that brought something: end as the next one would, if nothing is left for anybody."""
        counters = self.counters
        if counters.ready == counters.held and consumer.acquires:
            consumer.at_end = True
            self.consumers.move(consumer, Interest.UNNOTIFY)

    def get(self, owner: object, after: After, *, auto_accept: bool) -> tuple[Entry | None, bool]:
        """An entry in memory for an owner that is no consumer, and whether a look into a store may bring more."""
        if self.deleted:
            return None, False
        source = self.source
        self.last_used = self.clock()
        reader = source.begin_get(owner)
        entry = source.next_for(reader, after)
        if entry is not None:
            source.pass_over(reader, entry)
            source.take((entry,), owner)
            self._acquired((entry,), owner, after)
            counters = self.counters
            counters.delivered += 1
            if auto_accept:
                counters.got_no_ack += 1
                self.end((entry,), owner, after)
            else:
                counters.got += 1
        may_come = source.end_get(found=entry is not None)
        if entry is None and not may_come:
            self.counters.got_empty += 1
        return entry, may_come

    def evict_head(self, after: After) -> tuple[Entry | None, bool]:
        """Drop the first ready entry that is in memory; and whether a look into a store may bring one."""
        source = self.source
        victim = source.next_for(source.begin_get(None), after)
        if victim is not None:
            self.drop(victim, DeadLetterReason.MAXLEN, after)
        return victim, source.end_get(found=victim is not None)

    # -- taking and settling

    def end(
        self, entries: Sequence[Entry], owner: object, after: After, *, is_taken: bool = True, keeps_rows: bool = False
    ) -> None:
        """Take out entries of their owner, None if seized: here at once, in the store by one of the next commits.

        Unless they are `is_taken`, they are taken in this step. `keeps_rows`: something else has the rows deleted.
        """
        counters = self.counters
        for entry in entries:
            entry.apply(SETTLE, owner)
            counters.depth -= 1
            counters.depth_bytes -= entry.size
        if is_taken:
            self.source.remove(entries)
        else:
            self.source.consume(entries)
        if self.groups is not None and owner is not None:
            for entry in entries:
                self._left_group(entry)
        if self.limit.short_of_memory and self.limit.has_room():
            self.limit.end_throttling(after)
        if self.rows is not None and not keeps_rows:
            numbers = [entry.number for entry in entries if entry.is_stored and not entry.is_settled_elsewhere]
            if numbers:
                after.append(partial(self.rows.delete, numbers))

    def reject(self, entry: Entry, owner: object, reason: DeadLetterReason | None, after: After) -> None:
        """End an entry of its owner; dead-letter it for a reason, on a deleted queue for that of the deletion."""
        if self.deleted:
            reason = self.reason_of_deletion
        if reason is DeadLetterReason.EXPIRED:
            self.counters.expired += 1
            if not self.settings.expired_to_dead_letter:
                reason = None
        # The row of a dead letter goes in the commit that sends it on, that of a deleted queue goes, or stays, with it.
        is_others = self._queue.is_stored and (reason is not None or self.deleted)
        self.end((entry,), owner, after, keeps_rows=is_others)
        self._send_on(entry, reason, after)

    def release(self, entry: Entry, owner: object, after: After, *, counted: bool) -> None:
        """Give an entry back to its place, or take it out when it has no place any more."""
        if not counted:
            entry.delivery_count -= 1
        limit, reason = self.settings.max_delivery_attempts, None
        if limit is not None and owner is not None and entry.delivery_count >= limit:
            reason = DeadLetterReason.DELIVERY_LIMIT
        elif entry.expires_at is not None and entry.expires_at <= self.clock():
            reason = DeadLetterReason.EXPIRED
        if reason is not None or entry.superseded or self.deleted:
            self.reject(entry, owner, reason, after)
            return
        entry.apply(RELEASE, owner)
        if self.groups is not None and owner is not None:
            self._left_group(entry)
        self.counters.returned(1, entry.size)
        if entry.held_until is not None and entry.held_until > self.clock():
            self.hold(entry, entry.held_until)
        else:
            self.source.give_back(entry, is_new=False)
        if self.settings.overflow is Overflow.RING:
            self._apply_overflow(after)

    def seize(self, entry: Entry, after: After, *, steal: bool = False) -> bool:
        """Take an entry for no consumer; with `steal`, also from an owner that has it unlocked."""
        if not self.source.claim(entry):
            return False
        if entry.is_ready:
            self.counters.held -= entry.state is EntryState.HELD
            entry.apply(SEIZE)
            self._left_ready(1, entry.size, after)
            return True
        if steal and entry.state is EntryState.UNLOCKED:
            entry.apply(STEAL)
            entry.was_stolen = True
            if self.groups is not None:
                self._left_group(entry)
            return True
        return False

    def drop(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> bool:
        """Seize and delete; False when it is somebody's."""
        if not self.seize(entry, after):
            return False
        self.reject(entry, None, reason, after)
        return True

    def purge(self, entries: Iterable[Entry], after: After) -> list[Entry]:
        """Take out those of these entries that are ready; returns which."""
        gone = [entry for entry in entries if self.seize(entry, after)]
        self.end(gone, None, after)
        return gone

    def have_gone(self, count: int, size: int, after: After) -> None:
        """So many ready entries were taken out of a store at once, with bodies of `size` bytes together."""
        self.counters.depth -= count
        self.counters.depth_bytes -= size
        self._left_ready(count, size, after)

    # -- consumers

    def add_consumer(self, consumer: QueueConsumer) -> None:
        self.source.reader_joined(consumer)
        consumer.active = self._may_activate()
        self.consumers.add(consumer)

    def remove_consumer(self, consumer: QueueConsumer, after: After) -> bool:
        """Take it out of the lists and let the others have what it would have had."""
        if not self.consumers.remove(consumer):
            return False
        self.last_used = self.clock()
        if self.settings.expires is not None:
            self.visit_by(self.last_used + self.settings.expires)
        self.source.reader_left(consumer)
        if self.groups is not None and self.groups.consumer_removed(consumer):
            self.source.restart_readers()
        others = () if self.settings.active_consumer_limit is None else self.consumers  # or each that goes looks at all
        waiting = next((each for each in others if not each.active), None)
        if waiting is not None and self._may_activate():
            waiting.active = True
            self.update_interest(waiting, after)
        self.pass_baton(after)
        return True

    def update_interest(self, consumer: QueueConsumer, after: After) -> None:
        """Move a consumer to where its desire, activity and credit say it belongs."""
        if consumer.is_closed:
            return
        if not consumer.wants_work:
            self._lose_interest(consumer, after)
            return
        self.source.demand_changed(consumer, willing=True)
        if self.consumers.move(consumer, Interest.WANT):
            if not consumer.acquires:
                after.append(consumer.notify_work)
            elif self.source.next_for(consumer, after) is not None:
                self.notify(consumer, after)
        if consumer.state is ConsumerState.INTERESTED and self.counters.ready > self.counters.held:
            self.source.look_for_loss(consumer, after)

    # -- the queue

    def keep_time(self, now: float, after: After) -> bool:
        """Expire some of what is past its time, end some holds that are over; True when there may be more."""
        if self.deleted:
            return False
        source = self.source
        source.keep_time(now, after)
        due, ended = source.due(now, FEW), 0
        for entry in due:
            if entry.expires_at is not None and entry.expires_at <= now:
                self.drop(entry, DeadLetterReason.EXPIRED, after)
            elif entry.state is EntryState.HELD:
                entry.apply(UNHOLD)
                self.counters.held -= 1
                source.give_back(entry, is_new=True)
                ended += 1
        if ended:
            self.tell_browsers(after)
            self.pass_baton(after, ended)
        return self.evict_some(after) or len(due) == FEW

    @property
    def is_to_be_watched(self) -> bool:
        """True while there is something to do of which no time is known."""
        return self.limit.short_of_memory or self._is_to_evict or self.source.is_to_be_watched

    def next_time(self) -> float:
        """When time asks for something next, infinity for never."""
        expires = self.settings.expires
        when = self.source.next_time()
        return when if expires is None or len(self.consumers) else min(when, self.last_used + expires)

    def delete(self, reason: DeadLetterReason | None, after: After) -> int:
        """Remove the consumers, drop what is ready; returns how much that was. Without a reason that takes no time."""
        self.deleted, self.reason_of_deletion = True, reason
        for consumer in list(self.consumers):
            self.consumers.remove(consumer)
            after.append(consumer.cancelled)
        self.limit.release_memory()
        count = self.counters.ready
        if reason is None:
            self._let_go(after)
        else:
            after.append(partial(self._queue.in_slices, self._send_on_some))
        self.limit.end_throttling(after)
        return count

    def _send_on_some(self, after: After) -> bool:
        """Send some of what was ready to the dead letters; True when there is more."""
        ready, is_more = self.source.some_ready(FEW)
        for entry in ready:
            self.drop(entry, self.reason_of_deletion, after)
        if not is_more:
            self._let_go(after)
        return is_more

    def _let_go(self, after: After) -> None:
        """Make what is ready unavailable: it goes when the lock is free."""
        counters = self.counters
        counters.depth -= counters.ready
        counters.depth_bytes -= counters.ready_bytes
        counters.ready = counters.ready_bytes = counters.held = 0
        self.source.close(after)
        self.is_let_go = True
        after.append(partial(self._queue.in_visits, self.clear_some, 1))

    def clear_some(self, after: After) -> bool:
        """Let go of some of what is left on a deleted queue; True when there is more."""
        gone, is_more = self.source.clear_some(_CLEARED)
        after.append(gone.clear)  # the messages end here, and their memory is free: under no lock
        return is_more

    def evict_some(self, after: After) -> bool:
        """Drop some of what a ring has above its limit; True when there is more."""
        for _ in range(FEW if self._is_to_evict else 0):
            victim = self.source.least_significant(after) if self.limit.is_exceeded() else None
            if victim is None:
                self._is_to_evict = False
                break
            self.drop(victim, DeadLetterReason.MAXLEN, after)
        return self._is_to_evict

    def check_invariants(self) -> list[Doubt]:
        """As `BrokerQueue.check_invariants`; what a selector may excuse is returned. Says nothing about consumers that
        are being pulled, nor, while any is, about who was notified.
        """
        self.source.check_structure()
        self.consumers.check_invariants()
        assert self.counters.highest_depth >= self.counters.depth
        assert self.counters.highest_ready >= self.counters.ready
        for consumer in self.consumers:
            assert consumer.is_willing <= consumer.wants_work or consumer.credit is not None
            if consumer.credit is not None:
                consumer.credit.check_invariants()
        return self.source.check_liveness(list(self.consumers))

    # -- details

    def hold(self, entry: Entry, until: float) -> None:
        if self.source.hold(entry, until):
            entry.apply(HOLD)
            self.counters.held += 1
            self.visit_by(until)

    def give(self, consumer: QueueConsumer, run: list[Entry], after: After, *, is_past: bool = False) -> list[Entry]:
        """Give a willing consumer what its credit covers, from the first; it passes that, unless it `is_past` it."""
        consumer.at_end = False
        credit = consumer.credit
        # Credit bounds what is unsettled; what is settled on delivery never is.
        if credit is not None and not consumer.auto_accept:
            sizes = (run[0].size,) if len(run) == 1 else [entry.size for entry in run]
            count = credit.take_run(sizes)
            if count < len(run):
                run = run[:count]
        self.counters.delivered += len(run)
        if consumer.auto_accept:
            self.counters.delivered_no_ack += len(run)
        if run and not is_past:
            self.source.pass_over(consumer, run[-1])
        if run and consumer.acquires:
            if consumer.auto_accept:
                self._acquired(run, consumer, after)
                self.end(run, consumer, after, is_taken=False)
            else:
                self.source.take(run, consumer)
                self._acquired(run, consumer, after, ACQUIRE if consumer.lock_deliveries else DELIVER)
        if not run or (credit is not None and not credit.is_open):
            self._lose_interest(consumer, after)
        elif consumer.state is ConsumerState.INTERESTED:
            self.consumers.move(consumer, Interest.NOTIFY)
        return run

    def _acquired(self, entries: Sequence[Entry], owner: object, after: After, move: Move = DELIVER) -> None:
        """AVAILABLE to LOCKED, or on to UNLOCKED, by `owner`."""
        counters, groups, limit, size = self.counters, self.groups, self.limit, 0
        for entry in entries:
            entry.apply(move, owner)
            size += entry.size
            if entry.delivery_count > 1:
                counters.redelivered += 1
            if groups is not None:
                groups.acquired(entry.group, owner)
        counters.ready -= len(entries)  # as `_left_ready`, without a call for each message
        counters.ready_bytes -= size
        if limit.throttled and limit.has_room():
            limit.end_throttling(after)

    def _left_ready(self, count: int, size: int, after: After) -> None:
        """So many entries, with bodies of `size` bytes together, are no longer ready."""
        self.counters.ready -= count
        self.counters.ready_bytes -= size
        if self.limit.throttled and self.limit.has_room():
            self.limit.end_throttling(after)

    def _left_group(self, entry: Entry) -> None:
        assert self.groups is not None
        if self.groups.left(entry.group):
            self.source.restart_readers()

    def _send_on(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> None:
        self.counters.dead_lettered += reason is not None
        # Without a reason too: what is in `after` does not end under the lock.
        after.append(partial(self._queue.send_on, entry, reason))

    def _apply_overflow(self, after: After) -> PutOutcome:
        limit, overflow = self.limit, self.settings.overflow
        if overflow is Overflow.FLOW_CONTROL:
            limit.throttled = limit.throttled or limit.is_exceeded()
            return PutOutcome.THROTTLED if limit.throttled else PutOutcome.ENQUEUED
        if overflow is Overflow.RING and limit.is_exceeded():
            self._is_to_evict = True
            if self.evict_some(after):
                after.append(partial(self._queue.in_visits, self.evict_some, 0))
        return PutOutcome.THROTTLED if limit.is_behind else PutOutcome.ENQUEUED

    def found_nothing(self, consumer: QueueConsumer, after: After) -> None:
        """A pull ends without an entry: the baton goes on."""
        consumer.at_end = True
        if consumer.acquires:
            self.consumers.move(consumer, Interest.UNNOTIFY)
            self.pass_baton(after)
        if self.counters.ready > self.counters.held:
            self.source.look_for_loss(consumer, after)

    def leave_to(self, other: QueueConsumer, consumer: QueueConsumer, entry: Entry, after: After) -> None:
        """A pull ends before an entry that another consumer goes first for. That one is NOTIFIED, or is now."""
        self.consumers.move(consumer, Interest.UNNOTIFY)  # the baton would only wake others that it stops as well
        if other.selector is not None:
            other.revisit(entry)  # it may have refused the entry before it changed its mind
        self.notify(other, after)

    def _lose_interest(self, consumer: QueueConsumer, after: After) -> None:
        self.source.demand_changed(consumer, willing=False)
        if self.consumers.move(consumer, Interest.UNWANT) and consumer.acquires:
            self.pass_baton(after)

    def _may_activate(self) -> bool:
        limit = self.settings.active_consumer_limit
        return limit is None or sum(consumer.active for consumer in self.consumers) < limit


def _within(run: list[Entry], most_bytes: int) -> list[Entry]:
    """The first of these entries, up to the one with which their sizes reach `most_bytes`."""
    for length, entry in enumerate(run, start=1):
        most_bytes -= entry.size
        if most_bytes <= 0:
            return run[:length]
    return run
