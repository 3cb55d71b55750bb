"""A broker queue's entries: putting, finding, taking and settling them, and counting it all.

Promise     Strict order: an entry keeps its place for its whole life, and a reader is given the first entry, in
            service order, that it may have. Counters change in the hold that changes what they count, so
            `available == 0` means that there is nothing to find.
State       All of it is guarded by the lock of `BrokerQueue`. No lock, no user code, no I/O in here: what is to
            be done once the lock is free is appended to `after`. A dropped entry is kept alive by `after`, so
            that even the end of a message's body does not run under the lock.
Time        An entry past its time is dropped by whoever meets it, by `expire`, and by a release.
Source      Broker-J, AbstractQueue and its entry lists; readers and their return log are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from .._base.message import MESSAGE_BYTES
from .._base.outcome import DeadLetterReason, PutOutcome
from .._base.settings import Overflow, QueueKind, QueueSettings
from .cursor import Reader, ReturnLog
from .deadlines import Deadlines
from .entry import ACQUIRE, DELIVER, HOLD, RELEASE, SEIZE, SETTLE, STEAL, UNHOLD, Entry, EntryState
from .entry_list_kinds import make_entry_list
from .message_groups import make_groups
from .room import After as After
from .room import QueueRoom

if TYPE_CHECKING:
    from .base import QueueBase
    from .entry import Position
    from .entry_list import EntryList

_SLICE: Final = 256  # entries in one hold of the lock: some hundred microseconds
_HEAD_IS_LEAST: Final = (QueueKind.STANDARD, QueueKind.LAST_VALUE)
_AVAILABLE: Final = EntryState.AVAILABLE


class QueueStock(QueueRoom):
    """The entries of one broker queue, and what is known about them."""

    def __init__(self, queue: QueueBase, settings: QueueSettings, clock: Callable[[], float]) -> None:
        super().__init__(queue, settings)
        self.clock = clock
        self.entries = self._make_entries(settings)
        self.groups = make_groups(settings.groups)
        self.expiries = Deadlines(self.entries)
        self.holds = Deadlines(self.entries)
        self.returns = ReturnLog()  # for readers that acquire
        self.late_arrivals = ReturnLog()  # for browsers, which do not see what is released
        self.browsers: list[Reader] = []
        self.getter = Reader(self.entries.start)  # for consumerless gets, and to find whom a ring evicts
        # Invariant: no reader's cursor is behind this position.
        self.furthest = self.entries.start

    # True where most entries are in a store alone.
    is_paged = False

    def _make_entries(self, settings: QueueSettings) -> EntryList:
        return make_entry_list(settings, self.queue.label)

    # -- putting

    def refuse(self, entry: Entry, after: After) -> PutOutcome:
        """Turn a message away, as the overflow policy says."""
        self.rejected += 1
        if self.settings.overflow is Overflow.REJECT_DEAD_LETTER:
            self._dropped(entry, DeadLetterReason.MAXLEN, after)
        return PutOutcome.REJECTED

    def append(self, entry: Entry, after: After) -> PutOutcome:
        """Add an entry, then apply the overflow policy, which may drop this very entry."""
        superseded = self.entries.add(entry)
        size = entry.size
        self.enqueued += 1
        self.enqueued_bytes += size
        depth = self.depth = self.depth + 1
        depth_bytes = self.depth_bytes = self.depth_bytes + size
        if depth > self.highest_depth:
            self.highest_depth = depth
        if depth_bytes > self.highest_depth_bytes:
            self.highest_depth_bytes = depth_bytes
        self._joined_ready(entry)
        if entry.expires_at is not None:
            self._note_expiry(entry.expires_at, entry)
        if entry.held_until is not None:
            self._hold(entry, entry.held_until)
        elif entry.position <= self.furthest:
            self._reappeared(entry, is_new=True)
        if superseded is not None and superseded.is_ready:
            self.drop(superseded, None, after)
        outcome = self._apply_overflow(after) if self.may_overflow else PutOutcome.ENQUEUED
        if depth_bytes + MESSAGE_BYTES * depth > self.lent and not self._borrow():
            return self._lacks_memory(outcome, after)
        return outcome

    # -- reading

    def suits(self, entry: Entry, reader: Reader) -> bool:
        """True when the rules let this reader have the entry; its selector is not asked."""
        if entry.refused_by is None and self.groups is None and not reader.no_local:
            return True
        return self._obeys_rules(entry, reader)

    def can_have(self, entry: Entry, reader: Reader, after: After) -> bool:
        """True when the entry is available, within its time, and suits. One that is past its time is dropped."""
        if entry.state is not _AVAILABLE:
            return False
        if entry.expires_at is not None and entry.expires_at <= self.clock():
            self.drop(entry, DeadLetterReason.EXPIRED, after)
            return False
        if entry.refused_by is None and self.groups is None and not reader.no_local:
            return True
        return self._obeys_rules(entry, reader)

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        """The first entry this reader can have; it stays before that one.

        It passes over what it cannot have: what comes back of that will be in the return log.
        """
        log = self.returns if reader.acquires else self.late_arrivals
        if reader.returns_seen != log.end:
            reader.merge(log, self.entries.start)
        while reader.revisits:
            entry = self.entries.get(reader.revisits[0])
            if entry is not None and self.can_have(entry, reader, after):
                return entry
            reader.drop_revisit()
        cursor = reader.cursor
        while (entry := self.entries.after(cursor)) is not None:
            if self.can_have(entry, reader, after):
                break
            cursor = entry.position
        if cursor != reader.cursor:
            reader.cursor = cursor
            if cursor > self.furthest:
                self.furthest = cursor
        return entry

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        """Move a reader past the entry that `next_for` just gave it."""
        position = entry.position
        if reader.revisits and reader.revisits[0] == position:
            reader.drop_revisit()
            return
        reader.cursor = position
        if position > self.furthest:
            self.furthest = position

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest entry arrived; 0 when there is none. Walks all but a standard queue."""
        if self.settings.kind is QueueKind.STANDARD:
            first = self.entries.after(self.entries.start)
            return now - first.arrived_at if first is not None else 0.0
        return now - min((entry.arrived_at for entry in self.entries), default=now)

    # -- taking and settling

    def acquire(self, entry: Entry, owner: object, after: After, *, locked: bool) -> None:
        """AVAILABLE to LOCKED, or on to UNLOCKED, by `owner`."""
        entry.apply(ACQUIRE if locked else DELIVER, owner)
        if entry.delivery_count > 1:
            self.redelivered += 1
        self._left_ready(entry, after)
        if self.groups is not None:
            self.groups.acquired(entry.group, owner)

    def accept(self, entry: Entry, owner: object, after: After) -> None:
        """Delete an entry its owner is done with; of an entry that was seized the owner is None."""
        entry.apply(SETTLE, owner)
        self.entries.remove(entry)
        self._has_left(entry, owner, after)

    def consume(self, entry: Entry, owner: object, after: After) -> None:
        """Acquire and accept in one step, for who settles on delivery."""
        self.acquire(entry, owner, after, locked=False)
        self.accept(entry, owner, after)

    def reject(self, entry: Entry, owner: object, reason: DeadLetterReason | None, after: After) -> None:
        """Delete an entry of its owner and, for a reason, dead-letter its message.

        On a deleted queue the reason is that of the deletion, or none.
        """
        if self.deleted:
            reason = self.reason_of_deletion
        self.accept(entry, owner, after)
        self._dropped(entry, reason, after)

    def release(self, entry: Entry, owner: object, after: After, *, counted: bool) -> None:
        """Give an entry back to its place, or take it out when it has no place any more."""
        if not counted:
            entry.delivery_count -= 1
        reason = self._reason_not_to_release(entry, owner)
        if reason is not None or entry.superseded or self.deleted:
            self.reject(entry, owner, reason, after)
            return
        entry.apply(RELEASE, owner)
        if self.groups is not None and owner is not None:
            self._left_group(entry)
        self._joined_ready(entry)
        if entry.held_until is not None and entry.held_until > self.clock():
            self._hold(entry, entry.held_until)
        else:
            self._reappeared(entry, is_new=False)
        if self.settings.overflow is Overflow.RING:
            self._apply_overflow(after)

    def seize(self, entry: Entry, after: After, *, steal: bool = False) -> bool:
        """Take an entry for no consumer; with `steal`, also from an owner that has it unlocked."""
        if entry.is_ready:
            self.held -= entry.state is EntryState.HELD
            entry.apply(SEIZE)
            self._left_ready(entry, after)
            return True
        if steal and entry.state is EntryState.UNLOCKED:
            entry.apply(STEAL)
            entry.was_stolen = True
            if self.groups is not None:
                self._left_group(entry)
            return True
        return False

    def drop(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> bool:
        """Seize and delete; False when somebody has it."""
        if not self.seize(entry, after):
            return False
        self.reject(entry, None, reason, after)
        return True

    def purge_some(
        self, position: Position, is_new: Callable[[Entry], bool], now: float, after: After
    ) -> tuple[Position | None, list[Entry]]:
        """Take out what nobody has of the next entries behind a position, those apart that are new or past their time.

        Returns where to go on, None at the end, and what was taken out.
        """
        gone: list[Entry] = []
        for _ in range(_SLICE):
            entry = self.entries.after(position)
            if entry is None:
                return None, gone
            position = entry.position
            if is_new(entry) or (entry.expires_at is not None and entry.expires_at <= now):
                continue
            if self.seize(entry, after):
                self.accept(entry, None, after)
                gone.append(entry)
        return position, gone

    def clear_some(self, position: Position, most: int) -> tuple[Position | None, list[object]]:
        """Take out, of a deleted queue, what nobody has of the next entries behind a position; and where to go on."""
        gone: list[object] = []
        for _ in range(most):
            entry = self.entries.after(position)
            if entry is None:
                return None, gone
            position = entry.position
            if entry.is_ready:
                entry.apply(SEIZE)
                entry.apply(SETTLE)
                self.entries.remove(entry)
                gone.append(entry)
        return position, gone

    def have_gone(self, count: int, size: int, after: After) -> None:
        """So many ready entries were taken out of a store at once, with bodies of `size` bytes together."""
        self.depth -= count
        self.depth_bytes -= size
        self.ready -= count
        self.ready_bytes -= size
        if self.throttled and self.has_room():
            self.end_throttling(after)

    # -- time

    def next_visit(self) -> float:
        """When time asks for something again, infinity for never."""
        return min(self.expiries.first, self.holds.first)

    def expire(self, now: float, most: int, after: After) -> None:
        """Drop what is past its time and nobody has, of the first `most`."""
        for entry in islice(self.expiries.due(now), most):
            self.drop(entry, DeadLetterReason.EXPIRED, after)

    def end_holds(self, now: float, most: int) -> int:
        """Make available what was held until now, of the first `most`; returns how many that are."""
        ended = 0
        for entry in islice(self.holds.due(now), most):
            if entry.state is EntryState.HELD:
                entry.apply(UNHOLD)
                self.held -= 1
                self._reappeared(entry, is_new=True)
                ended += 1
        return ended

    # -- details

    def _has_left(self, entry: Entry, owner: object, after: After) -> None:
        self.depth -= 1
        self.depth_bytes -= entry.size
        if self.groups is not None and owner is not None:
            self._left_group(entry)
        if self.short_of_memory and self.has_room():
            self.end_throttling(after)

    def _obeys_rules(self, entry: Entry, reader: Reader) -> bool:
        if entry.refused_by is not None and reader.number in entry.refused_by:
            return False
        if reader.no_local and entry.message.publisher is reader.connection:
            return False
        if self.groups is None or not reader.acquires:
            return True
        return self.groups.accepts(entry.group, reader.owner)

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
        for browser in self.browsers:
            browser.merge(self.late_arrivals, self.entries.start)
            browser.prune(self.entries)
        self.late_arrivals.restart_all()
        for browser in self.browsers:
            browser.returns_seen = self.late_arrivals.end

    def _note_expiry(self, when: float, entry: Entry) -> None:
        self.expiries.add(when, entry)
        self.queue.visit_by(when)

    def _hold(self, entry: Entry, until: float) -> None:
        entry.apply(HOLD)
        self.held += 1
        self.holds.add(until, entry)
        self.queue.visit_by(until)

    def _joined_ready(self, entry: Entry) -> None:
        self.ready += 1
        self.ready_bytes += entry.size
        if self.ready > self.highest_ready:
            self.highest_ready = self.ready
        if self.ready_bytes > self.highest_ready_bytes:
            self.highest_ready_bytes = self.ready_bytes

    def _left_ready(self, entry: Entry, after: After) -> None:
        self.ready -= 1
        self.ready_bytes -= entry.size
        if self.throttled and self.has_room():
            self.end_throttling(after)

    def _left_group(self, entry: Entry) -> None:
        assert self.groups is not None
        if self.groups.left(entry.group):
            self.returns.restart_all()

    def _reason_not_to_release(self, entry: Entry, owner: object) -> DeadLetterReason | None:
        limit = self.settings.max_delivery_attempts
        if limit is not None and owner is not None and entry.delivery_count >= limit:
            return DeadLetterReason.DELIVERY_LIMIT
        if entry.expires_at is not None and entry.expires_at <= self.clock():
            return DeadLetterReason.EXPIRED
        return None

    def _dropped(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> None:
        if reason is DeadLetterReason.EXPIRED:
            self.expired += 1
            if not self.settings.expired_to_dead_letter:
                reason = None
        if reason is not None:
            self.dead_lettered += 1
        after.append(partial(self.queue.entry_dropped, entry, reason))

    def _apply_overflow(self, after: After) -> PutOutcome:
        policy = self.settings.overflow
        if policy is Overflow.RING:
            while self.is_over_limit:
                victim = self._least_significant(after)
                if victim is None:
                    break
                self.drop(victim, DeadLetterReason.MAXLEN, after)
        elif policy is Overflow.FLOW_CONTROL:
            self.throttled = self.throttled or self.is_over_limit
            if self.throttled:
                return PutOutcome.THROTTLED
        return PutOutcome.ENQUEUED

    def _least_significant(self, after: After) -> Entry | None:
        """The ready entry a ring evicts. The reader saves a walk over what consumers have at the head."""
        if self.groups is None and self.settings.kind in _HEAD_IS_LEAST:
            first = self.next_for(self.getter, after)
            if first is not None:
                return first
        return next((entry for entry in self.entries.least_significant() if entry.is_ready), None)
