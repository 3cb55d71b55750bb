"""What a broker queue knows and decides; everything here runs under the queue's lock.

Promise     Strict order: an entry keeps its place for its whole life, and a consumer is given the first entry,
            in service order, that it may have. No lost wake-up: while an entry is available and an interested
            consumer could take it, some consumer is NOTIFIED, and the NOTIFIED one either takes an entry or
            passes the baton.
State       All of it is guarded by the lock of `BrokerQueue`, which is the only caller. No lock, no user code,
            no I/O in here: what is to be done afterwards (wake, dead-letter, tell) is appended to `after`, and
            the caller runs it once the lock is free. A dropped entry is kept alive by `after`, so that even
            the end of a message's body does not run under the lock.
Waiting     Who must be woken, and by whom: a put chooses one interested consumer; a consumer that becomes
            interested looks for itself; a release, a freed group and the end of a hold pass the baton; so do a
            pull that found nothing, a consumer that lost its credit or its interest, and a removal. Because a
            scan that found nothing and the move from NOTIFIED to INTERESTED are one hold, there is no moment
            between them in which a put could go unseen.
Membership  Removal frees the consumer's standard groups, promotes a waiting consumer, passes the baton. Deletion
            drops what is ready; what consumers hold is theirs to settle, and goes when they do.
Source      Broker-J, AbstractQueue; the readers and the one lock are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from ._consumer import ConsumerState, Interest, QueueConsumer
from ._consumer_manager import QueueConsumerManager
from ._entry import Entry, EntryState, Step
from ._entry_list_kinds import KINDS
from ._groups import make_groups
from ._queue_outcome import DeadLetterReason, PutOutcome
from ._queue_reader import Reader, ReturnLog
from ._queue_settings import Overflow, QueueKind, QueueSettings
from ._queue_timers import Deadlines

if TYPE_CHECKING:
    from ._entry import Position
    from ._queue import BrokerQueue

After = list[Callable[[], object]]
_HEAD_IS_LEAST = (QueueKind.STANDARD, QueueKind.LAST_VALUE)


class Pull(Enum):
    """What became of a pull that asked selectors."""

    TAKEN = 1
    NOTHING = 2
    AGAIN = 3


class QueueCore:
    """The state of one broker queue and its transitions."""

    # Invariants, recounted by check_invariants: depth counts the list; ready those of it that nobody has;
    # held those of the ready that wait for their time. The _bytes are the sums of the same entries' sizes.
    def __init__(self, queue: BrokerQueue, settings: QueueSettings, clock: Callable[[], float]) -> None:
        self.queue = queue
        self.settings = settings
        self.clock = clock
        self.entries = KINDS[settings.kind](settings)
        self.is_keyed = settings.kind is not QueueKind.STANDARD
        self.consumers = QueueConsumerManager()
        self.groups = make_groups(settings.groups)
        self.expiries = Deadlines(self.entries)
        self.holds = Deadlines(self.entries)
        self.returns = ReturnLog()  # for acquiring readers
        self.late_arrivals = ReturnLog()  # for browsers, which do not see what is released
        self.browsers = 0
        self.getter = Reader(self.entries.start)  # reads for consumerless gets and for evictions
        # No reader's cursor is behind this position.
        self.furthest = self.entries.start

        self.depth = self.depth_bytes = 0
        self.ready = self.ready_bytes = 0
        self.held = 0
        self.enqueued = self.enqueued_bytes = 0
        self.expired = self.dead_lettered = self.rejected = self.redelivered = 0
        self.highest_depth = self.highest_depth_bytes = 0
        self.highest_ready = self.highest_ready_bytes = 0

        self._consumer_numbers = 0
        self.deleted = False
        self.last_used = clock()
        self.throttled = False
        self.room_waiters: list[Callable[[], None]] = []

    @property
    def available(self) -> int:
        """Entries that could be taken now. 0 means that there is nothing to find."""
        return self.ready - self.held

    # -- putting

    def refuses(self, size: int) -> bool:
        """True when the overflow policy refuses one more message of this size."""
        settings = self.settings
        if settings.overflow is not Overflow.REJECT and settings.overflow is not Overflow.REJECT_DEAD_LETTER:
            return False
        return _exceeds(self.ready + 1, settings.max_length) or _exceeds(
            self.ready_bytes + size, settings.max_length_bytes
        )

    def append(self, entry: Entry, after: After) -> PutOutcome:
        """Add an entry, then apply the overflow policy."""
        superseded = self.entries.add(entry)
        size = entry.size
        self.enqueued += 1
        self.enqueued_bytes += size
        self.depth += 1
        self.depth_bytes += size
        self.ready += 1
        self.ready_bytes += size
        if self.depth > self.highest_depth:
            self.highest_depth = self.depth
        if self.depth_bytes > self.highest_depth_bytes:
            self.highest_depth_bytes = self.depth_bytes
        if self.ready > self.highest_ready:
            self.highest_ready = self.ready
        if self.ready_bytes > self.highest_ready_bytes:
            self.highest_ready_bytes = self.ready_bytes
        if entry.expires_at is not None:
            self.expiries.add(entry.expires_at, entry)
        if entry.held_until is not None:
            self._hold(entry, entry.held_until)
        elif entry.position <= self.furthest:
            self._reappeared(entry, is_new=True)
        if superseded is not None and superseded.is_ready:
            self.drop(superseded, None, after)
        if self.settings.overflow is not Overflow.NONE:
            return self._apply_overflow(after)
        return PutOutcome.ENQUEUED

    def choose(self, entry: Entry, after: After) -> list[QueueConsumer]:
        """Notify the first interested consumer that can take a new entry, and every browser.

        Where consumers with selectors stand before it, they are returned, in order and with the first one
        that has no selector, and nobody is notified: their selectors must be asked without the lock.
        """
        for browser in self.consumers.non_acquiring:
            after.append(browser.notify_work)
        choosy: list[QueueConsumer] = []
        for lists in self.consumers.levels:
            for consumer in lists.interested:
                if not self.suits(entry, consumer):
                    continue
                if consumer.selector is None:
                    if choosy:
                        choosy.append(consumer)
                    else:
                        self.notify(consumer, after)
                    return choosy
                choosy.append(consumer)
        return choosy

    def notify(self, consumer: QueueConsumer, after: After) -> bool:
        """INTERESTED to NOTIFIED, with the call that goes with it; False when it was not INTERESTED."""
        if not self.consumers.move(consumer, Interest.NOTIFY):
            return False
        after.append(consumer.notify_work)
        return True

    def pass_baton(self, after: After, count: int = 1) -> None:
        """Notify up to `count` interested consumers that have something to look at."""
        for _ in range(min(count, self.available)):
            for consumer in self.consumers.interested():
                if self.next_for(consumer, after) is not None:
                    self.notify(consumer, after)
                    break
            else:
                return

    # -- reading

    def suits(self, entry: Entry, reader: Reader) -> bool:
        """True when the rules let this reader have the entry; its selector is not asked."""
        if entry.refused_by is None and self.groups is None and not reader.no_local:
            return True
        return self._obeys_rules(entry, reader)

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        """The first available entry for this reader, which stays where it is; its selector is not asked.

        Passes over what cannot be had: that will be in the return log if it comes back.
        """
        log = self.returns if reader.acquires else self.late_arrivals
        if reader.returns_seen != log.end:
            reader.merge(log, self.entries.start)
        if reader.revisits:
            entry = self._next_revisit(reader, after)
            if entry is not None:
                return entry
        cursor = reader.cursor
        while (entry := self.entries.after(cursor)) is not None:
            if self._can_have(entry, reader, after):
                break
            cursor = entry.position
        self._advance(reader, cursor)
        return entry

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        """Move a reader past the entry that `next_for` just gave it."""
        if reader.revisits and reader.revisits[0] == entry.position:
            reader.drop_revisit()
        else:
            self._advance(reader, entry.position)

    def found_nothing(self, consumer: QueueConsumer, after: After) -> None:
        """A pull ended empty: back to the end of the interested, and on with the baton."""
        consumer.at_end = True
        if consumer.acquires:
            self.consumers.move(consumer, Interest.UNNOTIFY)
            self.pass_baton(after)

    def found_rival(self, consumer: QueueConsumer, rival: QueueConsumer, after: After) -> None:
        """A consumer of higher priority would take the entry. It is NOTIFIED, or will be now."""
        self.consumers.move(consumer, Interest.UNNOTIFY)
        self.notify(rival, after)

    def rivals(self, consumer: QueueConsumer) -> tuple[QueueConsumer, ...]:
        """The consumers of higher priority that want work."""
        if not consumer.acquires or self.consumers.levels[0].priority <= consumer.priority:
            return ()
        return self.consumers.willing_above(consumer.priority)

    # -- pulling

    def pull(self, consumer: QueueConsumer, rivals: Iterable[QueueConsumer], after: After) -> Entry | None:
        """The whole pull of a willing consumer, where no selector has to be asked."""
        entry = self.next_for(consumer, after)
        if entry is None:
            self.found_nothing(consumer, after)
            return None
        for rival in rivals:
            if self.suits(entry, rival):
                self.found_rival(consumer, rival, after)
                return None
        self.pass_over(consumer, entry)
        if self.take(consumer, entry, after):
            return entry
        consumer.revisit(entry)
        return None

    def examine(self, consumer: QueueConsumer, count: int, after: After) -> list[Entry]:
        """Up to `count` entries to ask the selector about; the consumer is past them all.

        What it does not refuse must go back by `Reader.revisit`. Finding nothing ends the pull.
        """
        batch: list[Entry] = []
        if not consumer.is_willing:
            return batch
        while len(batch) < count:
            entry = self.next_for(consumer, after)
            if entry is None:
                break
            self.pass_over(consumer, entry)
            batch.append(entry)
        if not batch:
            self.found_nothing(consumer, after)
        return batch

    def pull_matched(
        self,
        consumer: QueueConsumer,
        entry: Entry,
        asked: Sequence[QueueConsumer],
        claimants: Sequence[QueueConsumer],
        after: After,
    ) -> Pull:
        """Take an entry the consumer's selector chose, unless somebody or something has come between.

        `asked` are the rivals whose selectors were asked, `claimants` those of them that want the entry.
        """
        if not consumer.is_willing:
            consumer.revisit(entry)
            return Pull.NOTHING
        if not self._can_have(entry, consumer, after):
            return Pull.AGAIN
        for rival in self.rivals(consumer):
            if rival in claimants and self.suits(entry, rival):
                consumer.revisit(entry)
                self.found_rival(consumer, rival, after)
                return Pull.NOTHING
            if rival not in asked:
                consumer.revisit(entry)
                return Pull.AGAIN
        if self.take(consumer, entry, after):
            return Pull.TAKEN
        consumer.revisit(entry)
        return Pull.NOTHING

    # -- taking and settling

    def take(self, consumer: QueueConsumer, entry: Entry, after: After) -> bool:
        """Give an available entry that suits to a willing consumer; False when its credit is too small.

        Whoever has no credit, or too little for what comes next, is not interested until it has more: it
        stands in nobody's way.
        """
        consumer.at_end = False
        credit = consumer.credit
        if credit is not None and not credit.take(entry.size):
            self._lose_interest(consumer, after)
            return False
        if consumer.acquires:
            self.acquire(entry, consumer, after)
            if consumer.auto_accept:
                self._delete(entry, consumer)
            elif not consumer.lock_deliveries:
                entry.apply(Step.UNLOCK, consumer)
        if credit is not None:
            if consumer.auto_accept:
                credit.settled(1, entry.size)
            if not credit.is_open:
                self._lose_interest(consumer, after)
                return True
        if consumer.state is ConsumerState.INTERESTED:
            self.consumers.move(consumer, Interest.NOTIFY)
        return True

    def acquire(self, entry: Entry, owner: object, after: After) -> None:
        """AVAILABLE to LOCKED by `owner`."""
        entry.apply(Step.ACQUIRE, owner)
        self._left_ready(entry, after)
        if entry.delivery_count > 1:
            self.redelivered += 1
        if self.groups is not None:
            self.groups.acquired(entry.group, owner)

    def accept(self, entry: Entry, owner: object) -> None:
        """Delete an entry its owner is done with."""
        self._delete(entry, owner)

    def reject(self, entry: Entry, owner: object, reason: DeadLetterReason, after: After) -> None:
        """Delete an entry of its owner and dead-letter its message."""
        self._delete(entry, owner)
        self._dropped(entry, reason, after)

    def release(self, entry: Entry, owner: object, after: After, *, counted: bool) -> None:
        """Give an entry back to its place, or take it out when it has no place any more."""
        reason: DeadLetterReason | None = None
        limit = self.settings.max_delivery_attempts
        if not counted:
            entry.delivery_count -= 1
        if limit is not None and owner is not None and entry.delivery_count >= limit:
            reason = DeadLetterReason.DELIVERY_LIMIT
        elif entry.expires_at is not None and entry.expires_at <= self.clock():
            reason = DeadLetterReason.EXPIRED
        elif self.deleted:
            reason = DeadLetterReason.QUEUE_DELETED
        if reason is not None or entry.superseded:
            self._delete(entry, owner)
            self._dropped(entry, reason, after)
            return
        entry.apply(Step.RELEASE, owner)
        if owner is not None:
            self._end_acquisition(entry)
        self.ready += 1
        self.ready_bytes += entry.size
        self.highest_ready = max(self.highest_ready, self.ready)
        self.highest_ready_bytes = max(self.highest_ready_bytes, self.ready_bytes)
        if entry.held_until is not None and entry.held_until > self.clock():
            self._hold(entry, entry.held_until)
        else:
            self._reappeared(entry, is_new=False)
        if self.settings.overflow is Overflow.RING:
            self._apply_overflow(after)

    def seize(self, entry: Entry, after: After, *, steal: bool = False) -> bool:
        """Take an entry for no consumer; with `steal`, also from an owner that has it unlocked."""
        if entry.is_ready:
            was_held = entry.state is EntryState.HELD
            entry.apply(Step.SEIZE)
            self.held -= was_held
            self._left_ready(entry, after)
            return True
        if steal and entry.state is EntryState.UNLOCKED:
            entry.apply(Step.STEAL)
            self._end_acquisition(entry)
            return True
        return False

    def drop(self, entry: Entry, reason: DeadLetterReason | None, after: After, *, steal: bool = False) -> bool:
        """Seize and delete; False when somebody has it."""
        if not self.seize(entry, after, steal=steal):
            return False
        self._delete(entry, None)
        self._dropped(entry, reason, after)
        return True

    # -- the queue

    def refuse(self, entry: Entry, after: After) -> PutOutcome:
        """Turn a message away, as the overflow policy says."""
        self.rejected += 1
        if self.settings.overflow is Overflow.REJECT_DEAD_LETTER:
            self._dropped(entry, DeadLetterReason.MAXLEN, after)
        return PutOutcome.REJECTED

    def delete(self, reason: DeadLetterReason | None, after: After) -> int:
        """Remove the consumers, drop what is ready; returns how much that was."""
        self.deleted = True
        for consumer in list(self.consumers):
            self.consumers.remove(consumer)
            after.append(consumer.cancelled)
        dropped = [entry for entry in self.entries if entry.is_ready]
        for entry in dropped:
            self.drop(entry, reason, after)
        after.extend(self.room_waiters)
        self.room_waiters.clear()
        return len(dropped)

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest entry arrived; 0 when there is none."""
        if self.settings.kind is QueueKind.STANDARD:
            first = self.entries.after(self.entries.start)
            return now - first.arrived_at if first is not None else 0.0
        return now - min((entry.arrived_at for entry in self.entries), default=now)

    # -- consumers

    def next_consumer_number(self) -> int:
        """A number no other consumer of this queue has or had."""
        self._consumer_numbers += 1
        return self._consumer_numbers

    def update_interest(self, consumer: QueueConsumer, after: After) -> None:
        """Move a consumer to where its desire, activity and credit say it belongs."""
        if consumer.is_closed:
            return
        if not consumer.wants_work:
            self._lose_interest(consumer, after)
        elif self.consumers.move(consumer, Interest.WANT):
            if not consumer.acquires:
                after.append(consumer.notify_work)
            elif self.next_for(consumer, after) is not None:
                self.notify(consumer, after)

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """Put it into the lists; it wants nothing yet."""
        consumer.returns_seen = (self.returns if consumer.acquires else self.late_arrivals).end
        self.browsers += not consumer.acquires
        limit = self.settings.active_consumer_limit
        consumer.active = limit is None or self._active_consumers() < limit
        self.consumers.add(consumer)

    def remove_consumer(self, consumer: QueueConsumer, after: After) -> bool:
        """Take it out of the lists and let the others have what it would have had."""
        if not self.consumers.remove(consumer):
            return False
        self.last_used = self.clock()
        self.browsers -= not consumer.acquires
        if self.groups is not None and self.groups.consumer_removed(consumer):
            self.returns.restart_all()
        self._promote(after)
        self.pass_baton(after)
        return True

    # -- time

    def keep_time(self, now: float, after: After) -> None:
        """Expire what is past its time and end the holds that are over."""
        for entry in self.expiries.due(now):
            if entry.expires_at is not None and entry.expires_at <= now:
                self.drop(entry, DeadLetterReason.EXPIRED, after)
        ended = 0
        for entry in self.holds.due(now):
            if entry.state is EntryState.HELD:
                entry.apply(Step.UNHOLD)
                self.held -= 1
                self._reappeared(entry, is_new=True)
                ended += 1
        if ended:
            for browser in self.consumers.non_acquiring:
                after.append(browser.notify_work)
            self.pass_baton(after, ended)

    # -- details

    def _obeys_rules(self, entry: Entry, reader: Reader) -> bool:
        if entry.refused_by is not None and reader.number in entry.refused_by:
            return False
        if reader.no_local and entry.message.publisher is reader.connection:
            return False
        if self.groups is None or not reader.acquires:
            return True
        return self.groups.accepts(entry.group, reader.owner)

    def _can_have(self, entry: Entry, reader: Reader, after: After) -> bool:
        if entry.state is not EntryState.AVAILABLE:
            return False
        if entry.expires_at is not None and entry.expires_at <= self.clock():
            self.drop(entry, DeadLetterReason.EXPIRED, after)
            return False
        return self.suits(entry, reader)

    def _next_revisit(self, reader: Reader, after: After) -> Entry | None:
        while reader.revisits:
            entry = self.entries.get(reader.revisits[0])
            if entry is not None and self._can_have(entry, reader, after):
                return entry
            reader.drop_revisit()
        return None

    def _advance(self, reader: Reader, position: Position) -> None:
        reader.cursor = position
        if position > self.furthest:
            self.furthest = position

    def _reappeared(self, entry: Entry, *, is_new: bool) -> None:
        self.returns.add(entry.position)
        if self.returns.is_longer_than(self.depth):
            self.returns.restart_all()
        if is_new and self.browsers:
            self.late_arrivals.add(entry.position)
            if self.late_arrivals.is_longer_than(self.depth):
                self._bring_browsers_up_to_date()

    def _bring_browsers_up_to_date(self) -> None:
        # A browser that started over would see messages twice.
        browsers = [consumer for consumer in self.consumers if not consumer.acquires]
        for browser in browsers:
            browser.merge(self.late_arrivals, self.entries.start)
            browser.prune(self.entries)
        self.late_arrivals.restart_all()
        for browser in browsers:
            browser.returns_seen = self.late_arrivals.end

    def _hold(self, entry: Entry, until: float) -> None:
        entry.apply(Step.HOLD)
        self.held += 1
        self.holds.add(until, entry)

    def _left_ready(self, entry: Entry, after: After) -> None:
        self.ready -= 1
        self.ready_bytes -= entry.size
        if self.throttled and self._has_room():
            self.throttled = False
            after.extend(self.room_waiters)
            self.room_waiters.clear()

    def _has_room(self) -> bool:
        settings, ratio = self.settings, self.settings.flow_resume_ratio
        length, size = settings.max_length, settings.max_length_bytes
        return not (
            (length is not None and self.ready > math.ceil(length * ratio))
            or (size is not None and self.ready_bytes > math.ceil(size * ratio))
        )

    def _is_over_limit(self) -> bool:
        settings = self.settings
        return _exceeds(self.ready, settings.max_length) or _exceeds(self.ready_bytes, settings.max_length_bytes)

    def _apply_overflow(self, after: After) -> PutOutcome:
        policy = self.settings.overflow
        if policy is Overflow.RING:
            while self._is_over_limit():
                victim = self._least_significant(after)
                if victim is None:
                    break
                self.drop(victim, DeadLetterReason.MAXLEN, after)
        elif policy is Overflow.FLOW_CONTROL:
            self.throttled = self.throttled or self._is_over_limit()
            if self.throttled:
                return PutOutcome.THROTTLED
        return PutOutcome.ENQUEUED

    def _least_significant(self, after: After) -> Entry | None:
        if self.groups is None and self.settings.kind in _HEAD_IS_LEAST:
            first = self.next_for(self.getter, after)
            if first is not None:
                return first
        return next((entry for entry in self.entries.least_significant() if entry.is_ready), None)

    def _end_acquisition(self, entry: Entry) -> None:
        if self.groups is not None and self.groups.left(entry.group):
            self.returns.restart_all()

    def _delete(self, entry: Entry, owner: object) -> None:
        entry.apply(Step.DEQUEUE, owner)
        entry.apply(Step.DELETE)
        if owner is not None:
            self._end_acquisition(entry)
        self.entries.remove(entry)
        self.depth -= 1
        self.depth_bytes -= entry.size

    def _dropped(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> None:
        if reason is DeadLetterReason.EXPIRED:
            self.expired += 1
            if not self.settings.expired_to_dead_letter:
                reason = None
        if reason is not None:
            self.dead_lettered += 1
        after.append(partial(self.queue.entry_dropped, entry, reason))

    def _lose_interest(self, consumer: QueueConsumer, after: After) -> None:
        if self.consumers.move(consumer, Interest.UNWANT) and consumer.acquires:
            self.pass_baton(after)

    def _active_consumers(self) -> int:
        return sum(consumer.active for consumer in self.consumers)

    def _promote(self, after: After) -> None:
        limit = self.settings.active_consumer_limit
        if limit is None or self._active_consumers() >= limit:
            return
        for consumer in self.consumers:
            if not consumer.active:
                consumer.active = True
                self.update_interest(consumer, after)
                return


def _exceeds(amount: int, limit: int | None) -> bool:
    return limit is not None and amount > limit
