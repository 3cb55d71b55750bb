"""Arriving: how a message comes onto a queue, at once or after its commit.

Promise     A message that a store keeps is seen by nobody before its commit, and joins its queue in the order of the
            commits. Another message for a durable queue does not overtake one that is on its way there. A queue without
            a store never waits.
State       `_on_the_way` and its bytes, guarded by the queue's lock, count what was admitted and is not here yet: depth
            limits count it as if it were.
Order       1. Under the lock: is it admitted? Then its room is kept.  2. The store gives it its number, in the order
            of the submissions, and commits.  3. On the store's thread, under the lock: it joins, or its room is free
            again. A transient message that comes while something is between 1 and 3 takes the same way with an empty
            row, which gives it its number and its turn; at any other time it takes a number in the hold in which it
            joins. So numbers rise on every durable queue.
Lock order  queue lock -> the store's (`allocate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from multiqueue.store import Put, StoreDamaged

from .._base.message_codec import decode_stored
from .._base.outcome import PutOutcome
from .._base.settings import Overflow, QueueKind
from .._delivery.housekeeping import AT_ONCE
from .._durable.batch import Submission
from .consumer import QueueConsumer
from .delivery import QueueDelivery
from .entry import Entry, EntryState
from .entry_list_kinds import plain_key
from .stock import After

if TYPE_CHECKING:
    from multiqueue.store import Header, Level

    from .._base.alerts import AlertMonitor
    from .._base.message import Message

_PAGE: Final = 1000  # headers read at once when a queue is opened
# Seconds. A time to live of zero means now or never: the consumer that waits is told, and pulls a little later.
_TIME_TO_PULL: Final = 1.0


class QueueArrival(QueueDelivery):
    """The part of `BrokerQueue` that takes messages in."""

    def put(self, message: Message, *, immediate: bool = False) -> PutOutcome:
        """Put a message at its place and notify one interested consumer. Never waits for a commit.

        With `immediate` the message is refused (NO_CONSUMER) unless a consumer with credit wants it now; the
        decision and the put are one step, so it cannot be both delivered and returned. A persistent message on a
        durable queue is admitted now and on the queue when it is committed. An exception that is not an
        `Exception` may come out of a selector or callback when the message is on the queue already.

        Raises:
            TypeError: a persistent message that the store of this queue cannot keep.
            StoreFailed, StoreClosed: the store of this queue is at its end.
        """
        if self._journal is not None:
            return self._put_in_order(message, immediate)
        entry = Entry(self, message, message.size)  # type: ignore[arg-type]
        if self._needs_more or message.expiration is not None or message.delay is not None:
            self._complete(entry)
        willing = self._willing(entry) if immediate else None
        after: After = []
        choosy: Sequence[QueueConsumer] = ()
        with self._lock:
            core = self._core
            if core.deleted:
                return PutOutcome.DELETED
            if willing is not None and not any(each.is_willing for each in willing):
                return PutOutcome.NO_CONSUMER
            if core.may_refuse and core.is_too_full_for(entry.size):
                outcome = core.refuse(entry, after)
            else:
                outcome = core.append(entry, after)
                if core.consumers.idle and entry.state is EntryState.AVAILABLE:
                    choosy = core.choose(entry, after)
        if after:  # as `_arrived`, written out: a tenth of a put
            self._act(after)
        if choosy:
            self._offer(entry, choosy)
        if self._alerts is not None:
            self._watch(self._alerts, entry)
        return outcome

    # -- durable queues

    def admit(
        self, message: Message, *, immediate: bool = False, unlimited: bool = False
    ) -> tuple[PutOutcome, Entry | None]:
        """Decide about a message that is to be committed before it joins, and keep its room.

        The entry, if any, must come back: by `hand_over` or by `withdraw`.
        """
        entry = self._stored_entry(message)
        willing = self._willing(entry) if immediate else None
        after: After = []
        with self._lock:
            outcome = self._admit_locked(entry, willing, unlimited, after)
            if outcome.accepted:
                self._keep_room_locked(entry)
        self._act(after)
        return outcome, entry if outcome.accepted else None

    def hand_over(self, entry: Entry, put: Put) -> None:
        """Let an admitted entry join: its commit is there."""
        entry.number, entry.is_stored = put.id, True
        self._join(entry)

    def join_in_turn(self, entry: Entry, turn: Put) -> None:
        """Let an admitted entry join that is not stored: its turn has come."""
        entry.number = turn.id
        # First: joining may write the entry out, as a row with this very number.
        self._journal_of().delete((turn.id,))
        self._join(entry)

    def withdraw(self, entry: Entry) -> None:
        """Give back the room of an admitted entry that will not come."""
        with self._lock:
            self._on_the_way -= 1
            self._on_the_way_bytes -= entry.size

    def _put_in_order(self, message: Message, immediate: bool) -> PutOutcome:
        journal = self._journal_of()
        if message.persistent:
            submission = Submission(journal.host)
            outcome = submission.put(self, message, immediate=immediate)
            submission.submit()
            return outcome
        entry = self._stored_entry(message)
        willing = self._willing(entry) if immediate else None
        after: After = []
        choosy: Sequence[QueueConsumer] = ()
        with self._lock:
            core = self._core
            outcome = self._admit_locked(entry, willing, False, after)
            must_wait = outcome.accepted and self._on_the_way > 0
            if must_wait:
                self._keep_room_locked(entry)
            elif outcome.accepted:
                entry.number = journal.store.allocate()
                outcome = core.append(entry, after)
                if core.consumers.idle and entry.state is EntryState.AVAILABLE:
                    choosy = core.choose(entry, after)
        if must_wait:
            self._take_turn(entry)
        self._arrived(entry, after, choosy)
        return outcome

    def _take_turn(self, entry: Entry) -> None:
        """Send an empty row after what is on its way, and join when it is there."""
        host = self._journal_of().host

        def join_anyway(turn: Put) -> None:
            # A full store has no room for an empty row. The message needs none, and the turn is as good.
            if host.is_at_end:
                self.withdraw(entry)
            else:
                self.join_in_turn(entry, turn)

        submission = Submission(host)
        submission.take_turn(self, entry, otherwise=join_anyway)
        submission.submit()

    def _join(self, entry: Entry) -> None:
        """The second half of a put. On a queue that was deleted meanwhile it is the store's, which drops the queue."""
        after: After = []
        choosy: Sequence[QueueConsumer] = ()
        with self._lock:
            core = self._core
            self._on_the_way -= 1
            self._on_the_way_bytes -= entry.size
            if core.deleted:
                return
            core.append(entry, after)
            if core.consumers.idle and entry.state is EntryState.AVAILABLE:
                choosy = core.choose(entry, after)
        self._arrived(entry, after, choosy)

    def _admit_locked(
        self, entry: Entry, willing: list[QueueConsumer] | None, unlimited: bool, after: After
    ) -> PutOutcome:
        core, settings = self._core, self.settings
        if core.deleted:
            return PutOutcome.DELETED
        if willing is not None and not any(each.is_willing for each in willing):
            return PutOutcome.NO_CONSUMER
        if core.short_of_memory and core.is_too_full_for(entry.size) and not unlimited:
            return core.refuse(entry, after)
        if core.short_of_memory:
            return PutOutcome.THROTTLED
        if unlimited or settings.overflow in (Overflow.NONE, Overflow.RING):
            return PutOutcome.ENQUEUED
        length = core.ready + self._on_the_way + 1
        size = core.ready_bytes + self._on_the_way_bytes + entry.size
        is_full = (settings.max_length is not None and length > settings.max_length) or (
            settings.max_length_bytes is not None and size > settings.max_length_bytes
        )
        if core.may_refuse:
            return core.refuse(entry, after) if is_full else PutOutcome.ENQUEUED
        return PutOutcome.THROTTLED if is_full or core.throttled else PutOutcome.ENQUEUED

    def _keep_room_locked(self, entry: Entry) -> None:
        self._on_the_way += 1
        self._on_the_way_bytes += entry.size

    # -- opening and closing

    def recover(self, levels: Iterable[Level]) -> None:
        """Take in what the store has on this queue; nobody else may know the queue yet. Reads.

        Raises:
            StoreDamaged: a message is not whole, or stands where none of this queue can.
        """
        after: After = []
        if self._core.recover(levels):
            return
        for level in levels:
            for entry in self._read_level(level):
                with self._lock:
                    self._core.append(entry, after)
            self._act(after)
            after.clear()

    def deliveries(self) -> list[tuple[int, int]]:
        """Of what the store has and consumers had: number, and how often. For a clean close."""
        with self._lock:
            return self._core.entries.deliveries()

    def _read_level(self, level: Level) -> Iterator[Entry]:
        store = self._journal_of().store
        last = 0
        while headers := store.page(level.queue, last, _PAGE, level=level.level):
            last = headers[-1].id
            bodies = store.read([header.id for header in headers])
            for header in headers:
                if header.id not in bodies:
                    raise StoreDamaged(
                        f"the body of message {header.id} of {self.label} is gone from the store;"
                        " `multiqueue store check` looks for more"
                    )
                yield self.recovered(header, bodies[header.id])

    def recovered(self, header: Header, body: bytes) -> Entry:
        """The entry that a row of the store is of; not on the queue yet."""
        journal = self._rows_of().host
        message, held_until, in_doubt = decode_stored(header.properties, body)
        entry = Entry(self, message, header.size)  # type: ignore[arg-type]
        self._key(entry)
        entry.number, entry.is_stored = header.id, True
        entry.delivery_count = header.deliveries
        entry.maybe_delivered = in_doubt or header.id < journal.store.redeliver_floor
        if header.expires_at is not None:
            entry.expires_at = journal.queue_time(header.expires_at)
        if held_until is not None and held_until > journal.wall_clock():
            entry.held_until = journal.queue_time(held_until)
        return entry

    # -- details

    def _arrived(self, entry: Entry, after: After, choosy: Sequence[QueueConsumer]) -> None:
        """What follows a put, the lock being free."""
        if after:
            self._act(after)
        if choosy:
            self._offer(entry, choosy)
        if self._alerts is not None:
            self._watch(self._alerts, entry)

    def _watch(self, alerts: AlertMonitor, entry: Entry) -> None:
        """Alert of what has arrived, and have housekeeping look as long as something is there."""
        with self._lock:
            self.visit_by(AT_ONCE)
        alerts.arrived(entry.size, self._core.depth, self._core.depth_bytes)

    def _stored_entry(self, message: Message) -> Entry:
        entry = Entry(self, message, message.size)  # type: ignore[arg-type]
        if self._reading is not None and self._memory is not None:
            self._memory.check_size(entry.size, self.label)
        self._complete(entry)
        if self.settings.kind is QueueKind.PRIORITY:
            assert isinstance(entry.key, int)
            entry.level = entry.key
        return entry

    def _complete(self, entry: Entry) -> None:
        """Everything that reads the message's headers, which are the user's objects, happens here."""
        message = entry.message
        self._key(entry)
        if self.settings.message_ttl is not None or message.expiration is not None:
            self._set_expiry(entry, message.expiration)
        if message.delay is not None and message.delay > 0:
            entry.held_until = self._clock() + message.delay

    def _key(self, entry: Entry) -> None:
        message = entry.message
        if self._core.is_keyed:
            entry.key = self._core.entries.key_of(message)
        if self._core.groups is not None:
            entry.group = plain_key(message.headers.get(self.settings.group_key or ""))
        if self._alerts is not None:
            entry.arrived_at = self._clock()

    def _set_expiry(self, entry: Entry, expiration: float | None) -> None:
        longest, shortest = self.settings.message_ttl, self.settings.minimum_message_ttl
        if expiration is not None and shortest is not None:
            expiration = max(expiration, shortest)
        if longest is not None:
            expiration = longest if expiration is None else min(expiration, longest)
        if expiration is not None:
            if expiration <= 0 and self._is_awaited():
                expiration = _TIME_TO_PULL
            entry.expires_at = self._clock() + expiration

    def _is_awaited(self) -> bool:
        with self._lock:
            return any(True for _ in self._core.consumers.willing())

    def _willing(self, entry: Entry) -> list[QueueConsumer]:
        with self._lock:
            candidates = [each for each in self._core.consumers.willing() if self._core.suits(entry, each)]
        return self._wanting(candidates, entry)

    def _offer(self, entry: Entry, candidates: Iterable[QueueConsumer]) -> None:
        """Notify the first candidate whose selector matches.

        The candidates are a snapshot, so the walk ends. Whoever became interested after it was taken has looked
        at the queue since, and the entry was there by then.
        """
        try:
            for consumer in candidates:
                if consumer.selector is not None and not self._matches(consumer.selector, entry.message):
                    continue
                after: After = []
                with self._lock:
                    if entry.state is not EntryState.AVAILABLE:
                        return
                    notified = self._core.notify(consumer, after)
                self._act(after)
                if notified:
                    return
        except BaseException:
            # Say, KeyboardInterrupt in a selector. The message is on the queue, so somebody must be told.
            self._pass_baton()
            raise
