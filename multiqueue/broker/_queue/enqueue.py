"""Arriving: how a message comes onto a queue, at once or after its commit.

Promise     No consumer sees a message that a store keeps before its commit, and joins its queue in the order of the
            commits. Another message for a durable queue does not overtake one that is on its way there. A queue without
            a store never waits.
State       `_admitted` and its bytes, guarded by the queue's lock, count what was admitted and is not here yet: depth
            limits count it as if it were.
Order       "A message on a durable queue" in docs/design/broker-durability.md has the steps, a transient one's too.
Lock order  queue lock -> the store's (`allocate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from multiqueue.store import Header, Level, Put, StoreDamaged

from .._base.alerts import AlertMonitor
from .._base.message import Message, PutOutcome
from .._base.message_codec import decode_stored
from .._base.ports import After
from .._base.settings import Overflow, QueueKind
from .callbacks import Callbacks
from .consumer import QueueConsumer
from .entry import Entry, EntryState
from .entry_list import plain_key
from .ports import Pager, Rows, WholeQueue
from .state import Offers, QueueState

_PAGE: Final = 1000  # headers read at once when a queue is opened
# Seconds. A time to live of zero means now or never: the consumer that waits is told, and pulls a little later.
_TIME_TO_PULL: Final = 1.0


class Enqueuer:
    """How messages come onto one broker queue."""

    def __init__(self, queue: WholeQueue, state: QueueState, callbacks: Callbacks, alerts: AlertMonitor | None) -> None:
        self._queue = queue
        self._state = state
        self._lock = state.lock
        self._callbacks = callbacks
        self._alerts = alerts
        self.pager: Pager | None = None  # set once, before anybody knows the queue
        # Invariant: the number, and the bodies' bytes, of the entries that `admit` gave out and that did not come back.
        self._admitted = self._admitted_bytes = 0
        settings = self._settings = state.settings
        self._has_keys = settings.kind is not QueueKind.STANDARD
        # An entry of this queue is more than a message and its size.
        self.needs_more: bool = (
            self._has_keys or settings.has_groups or settings.message_ttl is not None or alerts is not None
        )
        # Messages without times of their own may come in runs, unless `limit.may_refuse` one of them.
        self.takes_runs: bool = not self.needs_more and not state.limit.may_overflow

    # -- durable queues

    def put_in_order(self, journal: Rows, message: Message, *, immediate: bool) -> PutOutcome:
        """As `BrokerQueue.put`, of a durable queue."""
        if message.persistent:
            batch = journal.batch()
            outcome = batch.put(self._queue, message, immediate=immediate)
            batch.submit()
            return outcome
        entry = self._stored_entry(message)
        willing = self.willing(entry) if immediate else None
        after: After = []
        offers: Offers = []
        with self._lock:
            outcome = self._admit_locked(entry, willing, False, after)
            must_wait = outcome.accepted and self._admitted > 0
            if must_wait:
                self._count_admitted_locked(1, entry.size)
            elif outcome.accepted:
                entry.number = journal.store.allocate()
                outcome = self._state.append(entry, after)
                offers = self._state.choose_for((entry,), after)
        if must_wait:
            self._take_turn(journal, entry)
        self.have_arrived((entry,), offers, after)
        return outcome

    def admit(
        self, message: Message, *, immediate: bool = False, unlimited: bool = False
    ) -> tuple[PutOutcome, Entry | None]:
        """Decide about a message that is to be committed before it joins, and keep its room.

        The entry, if any, must come back: by `hand_over` or by `withdraw`.
        """
        entry = self._stored_entry(message)
        willing = self.willing(entry) if immediate else None
        after: After = []
        with self._lock:
            outcome = self._admit_locked(entry, willing, unlimited, after)
            accepted = outcome is PutOutcome.ENQUEUED or outcome is PutOutcome.THROTTLED
            if accepted:
                self._count_admitted_locked(1, entry.size)
        if after:
            self._callbacks.act(after)
        return outcome, entry if accepted else None

    def admit_all(self, messages: Sequence[Message]) -> list[Entry] | None:
        """`admit` messages without times of their own, in one hold; None, and nothing was done: admit each."""
        if not self.takes_runs:
            return None
        entries = [Entry(self._queue, message, message.size) for message in messages]
        if self.pager is not None:
            self.pager.check_size(max([entry.size for entry in entries]))
        with self._lock:
            state = self._state
            if state.deleted or state.limit.may_refuse or state.limit.short_of_memory:
                return None
            self._count_admitted_locked(len(entries), sum([entry.size for entry in entries]))
        return entries

    def hand_over(self, entries: Sequence[Entry], puts: Sequence[Put]) -> None:
        """Let entries join that were admitted one by one, or together: their commits are there."""
        for entry, put in zip(entries, puts, strict=True):
            entry.number, entry.is_stored = put.id, True
        self._join(entries)

    def join_in_turn(self, entry: Entry, turn: Put) -> None:
        """Let an admitted entry join that is not stored: its turn has come."""
        journal = self._queue.journal
        assert journal is not None, "only a message for a durable queue takes its turn"
        entry.number = turn.id
        # First: joining may write the entry out, as a row with this very number.
        journal.delete((turn.id,))
        self._join((entry,))

    def withdraw(self, entry: Entry) -> None:
        """Give back the room of an admitted entry that will not come."""
        with self._lock:
            self._count_admitted_locked(-1, -entry.size)

    def _take_turn(self, journal: Rows, entry: Entry) -> None:
        """Send an empty row after what is on its way, and join when it is there."""

        def join_anyway(turn: Put) -> None:
            # A full store has no room for an empty row. The message needs none, and the turn is as good.
            if journal.host.is_at_end:
                self.withdraw(entry)
            else:
                self.join_in_turn(entry, turn)

        batch = journal.batch()
        batch.take_turn(partial(self.join_in_turn, entry), join_anyway)
        batch.submit()

    def _join(self, entries: Sequence[Entry]) -> None:
        """The second half of a put. On a queue that was deleted meanwhile it is the store's, which drops the queue."""
        after: After = []
        with self._lock:
            state = self._state
            self._count_admitted_locked(-len(entries), -sum([entry.size for entry in entries]))
            if state.deleted:
                return
            if len(entries) == 1:
                state.append(entries[0], after)
            else:
                state.append_all(entries, after)
            offers = state.choose_for(entries, after)
        self.have_arrived(entries, offers, after)

    def _admit_locked(
        self, entry: Entry, willing: list[QueueConsumer] | None, unlimited: bool, after: After
    ) -> PutOutcome:
        state, limit = self._state, self._state.limit
        if state.deleted:
            return PutOutcome.DELETED
        if willing is not None and not any(each.is_willing for each in willing):
            return PutOutcome.NO_CONSUMER
        if limit.may_refuse and not unlimited and limit.refuses(entry.size, self._admitted, self._admitted_bytes):
            return state.refuse(entry, after)
        if limit.short_of_memory or limit.is_behind:
            return PutOutcome.THROTTLED
        if unlimited or self._settings.overflow is not Overflow.FLOW_CONTROL:
            return PutOutcome.ENQUEUED
        is_full = limit.throttled or limit.is_exceeded(self._admitted + 1, self._admitted_bytes + entry.size)
        return PutOutcome.THROTTLED if is_full else PutOutcome.ENQUEUED

    def _count_admitted_locked(self, count: int, size: int) -> None:
        self._admitted += count
        self._admitted_bytes += size

    # -- opening

    def recover(self, levels: Iterable[Level]) -> None:
        """Take in what the store has on this queue, which no other thread knows yet. Raises StoreDamaged."""
        if self.pager is not None and self.pager.recover(levels):
            return
        rows = self._queue.journal
        assert rows is not None, "only a durable queue is opened with what a store has"
        for level in levels:
            after: After = []
            last = 0
            while headers := rows.store.page(level.queue, last, _PAGE, level=level.level):
                last = headers[-1].id
                bodies = rows.store.read([header.id for header in headers])
                for header in headers:
                    if header.id not in bodies:
                        raise StoreDamaged(
                            f"the body of message {header.id} of {self._queue.label} is gone from the store;"
                            " `multiqueue store check` looks for more"
                        )
                    entry = self.recovered(rows, header, bodies[header.id])
                    with self._lock:
                        self._state.append(entry, after)
            self._callbacks.act(after)

    def recovered(self, rows: Rows, header: Header, body: bytes) -> Entry:
        """The entry that a row is of; not on the queue yet."""
        host = rows.host
        message, held_until, in_doubt = decode_stored(header.properties, body)
        entry = Entry(self._queue, message, header.size)
        self._key(entry)
        entry.number, entry.is_stored = header.id, True
        entry.delivery_count = header.deliveries
        entry.maybe_delivered = in_doubt or header.id < rows.store.redeliver_floor
        if header.expires_at is not None:
            entry.expires_at = host.queue_time(header.expires_at)
        if held_until is not None and held_until > host.wall_clock():
            entry.held_until = host.queue_time(held_until)
        return entry

    # -- making an entry

    def complete(self, entry: Entry) -> None:
        """Set what follows from the message's headers. They are the user's objects, so no lock is held."""
        message = entry.message
        self._key(entry)
        expiration, settings = message.expiration, self._settings
        if expiration is not None and settings.minimum_message_ttl is not None:
            expiration = max(expiration, settings.minimum_message_ttl)
        if settings.message_ttl is not None:
            expiration = settings.message_ttl if expiration is None else min(expiration, settings.message_ttl)
        if expiration is not None:
            if expiration <= 0:
                with self._lock:
                    expiration = _TIME_TO_PULL if self._state.consumers.willing() else expiration
            entry.expires_at = self._state.clock() + expiration
        if message.delay is not None and message.delay > 0:
            entry.held_until = self._state.clock() + message.delay

    def _stored_entry(self, message: Message) -> Entry:
        entry = Entry(self._queue, message, message.size)
        if self.pager is not None:
            self.pager.check_size(entry.size)
        if self.needs_more or message.expiration is not None or message.delay is not None:
            self.complete(entry)
        if self._settings.kind is QueueKind.PRIORITY:
            assert isinstance(entry.key, int)
            entry.level = entry.key
        return entry

    def _key(self, entry: Entry) -> None:
        message = entry.message
        if self._has_keys:
            entry.key = self._state.source.key_of(message)
        if self._settings.has_groups:
            entry.group = plain_key(message.headers.get(self._settings.group_key or ""))
        if self._alerts is not None:
            entry.arrived_at = self._state.clock()

    # -- telling consumers

    def willing(self, entry: Entry) -> list[QueueConsumer]:
        """The consumers with credit that want this entry now."""
        with self._lock:
            candidates = [each for each in self._state.consumers.willing() if self._state.suits(entry, each)]
        return [each for each in candidates if self._callbacks.matches(each.selector, entry.message)]

    def have_arrived(self, entries: Sequence[Entry], offers: Offers, after: After) -> None:
        """Finish a put, the lock being free; `offers` are those of `QueueState.choose_for`."""
        after += [partial(self.offer, entry, candidates) for entry, candidates in offers]
        if after:
            self._callbacks.act(after)
        if self._alerts is not None:
            for entry in entries:
                self.watch(self._alerts, entry)

    def watch(self, alerts: AlertMonitor, entry: Entry) -> None:
        counters = self._state.counters
        alerts.look_at(message_bytes=entry.size, depth=counters.depth, depth_bytes=counters.depth_bytes)
        with self._lock:
            self._state.visit_by(alerts.next_look(depth=counters.depth, depth_bytes=counters.depth_bytes, age=0.0))

    def offer(self, entry: Entry, candidates: Iterable[QueueConsumer]) -> None:
        """Notify the first candidate whose selector matches.

        The candidates are a snapshot, so the walk ends. A consumer that became interested after it was taken has
        looked at the queue since, and the entry was there by then.
        """
        matches, act = self._callbacks.matches, self._callbacks.act
        try:
            for consumer in candidates:
                if not matches(consumer.selector, entry.message):
                    continue
                after: After = []
                with self._lock:
                    is_done = entry.state is not EntryState.AVAILABLE or self._state.notify(consumer, after)
                act(after)
                if not is_done:
                    continue
                return
        except BaseException:
            # Say, KeyboardInterrupt in a selector. The message is on the queue, so a consumer must be told.
            with self._callbacks.deciding() as after:
                self._state.pass_baton(after)
            raise
