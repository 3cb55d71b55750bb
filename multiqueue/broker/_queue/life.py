"""A message's life on one broker queue: how it arrives, is delivered, is settled, and ends.

Promise     No consumer sees a message that a store keeps before its commit, and joins its queue in the order of the
            commits. Another message for a durable queue does not overtake one that is on its way there. A queue without
            a store never waits. An entry that leaves for good is deleted where it is stored; the dead letter of a
            stored message and the end of its row are one commit, and one that cannot be dead-lettered stays stored.
State       Guarded by the queue's lock, which the caller holds unless a method says otherwise. No user code and no I/O
            under it: a method appends to `after` what its caller does once the lock is free. That list also keeps an
            entry alive that was dropped, so that no message's body ends under the lock.
Order       "A message on a durable queue" in docs/design/broker-durability.md has the steps, a transient one's too.
Lock order  queue lock -> the store's (`allocate`).
Source      Broker-J, AbstractQueue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from multiqueue.store import Header, Level, Put, StoreDamaged, StoreFailed

from ..._copies import Copier
from .._base.alerts import AlertMonitor
from .._base.errors import BrokerClosed
from .._base.fair_options import FairKey, place_of
from .._base.message import MESSAGE_BYTES, DeadLetterReason, Message, PutOutcome
from .._base.message_codec import decode_stored
from .._base.ports import After
from .._base.settings import DelayedRetry, Overflow, QueueKind, QueueSettings
from .._base.waits import HeldLock
from .callbacks import Callbacks
from .consumer import ConsumerState, Interest, QueueConsumer, QueueConsumerManager, Reader, SharedGroups
from .entry import ACQUIRE, DELIVER, HOLD, RELEASE, SEIZE, SETTLE, STEAL, UNHOLD, Entry, EntryState, Move
from .entry_list import plain_key
from .figures import Figures
from .limits import DepthLimit
from .notifier import Notifier
from .ports import Doubt, EntrySource, Walk
from .tenants import FairEntry, Lane, Tenants
from .timeouts import ConsumerTimeouts

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal, Submission
    from .._paging.spill import Spill
    from .queue import BrokerQueue

_CLEARED: Final = 256  # entries of a deleted queue that go in one hold: some hundred microseconds
FEW: Final = 64  # entries that may go to dead letters, in one hold: 70 us each, the lock being free
_PAGE: Final = 1000  # headers read at once when a queue is opened
# Seconds. RabbitMQ hands a message to the consumer that waits, however short its life. Ours is told and pulls a little
# later: so long the message lives at least. A time to live of zero means now or never.
_TIME_TO_PULL: Final = 1.0
_WALL_CLOCK_STEP: Final = 0.1  # seconds that the times of a store may be wrong by
_AVAILABLE: Final = EntryState.AVAILABLE
_DROPS: Final = (Overflow.NONE, Overflow.RING)
_ENQUEUED, _THROTTLED = PutOutcome.ENQUEUED, PutOutcome.THROTTLED
_NO_MESSAGE: Final = Message()
_entries: Final[Copier[Entry]] = Copier(Entry, ("message", "size"))
_fair_entries: Final[Copier[Entry]] = Copier(FairEntry, ("message", "size", "key"), ("arrived_at",))


class Life:
    """The entries of one broker queue, under its lock. `send(message, reason)` is its dead-letter callback."""

    # CPython shares the names of at most 30 attributes; with more, each one is looked up in a dict of the object's own.
    __slots__ = (
        "_admitted",
        "_admitted_bytes",
        "_alerts",
        "_callbacks",
        "_counts_failures",
        "_cuts_once",
        "_has_keys",
        "_is_to_evict",
        "_make",
        "_needs_more",
        "_queue",
        "_retries",
        "_send",
        "_settling_frees",
        "_takes_runs",
        "_template",
        "_timeouts",
        "_usual_timeout",
        "changed_tenants",
        "clock",
        "consumer_numbers",
        "consumers",
        "deleted",
        "figures",
        "groups",
        "is_closed",
        "is_fair",
        "is_let_go",
        "key_of",
        "keys_of",
        "last_used",
        "limit",
        "lock",
        "notifier",
        "pager",
        "pins",
        "reason_of_deletion",
        "rows",
        "settings",
        "settling_frees",
        "source",
        "tenants",
        "visit_by",
        "walk",
    )

    source: EntrySource  # set before anybody knows the queue, and when it begins or ceases to page
    walk: Walk  # through the entries of the source; set with it
    key_of: Callable[[Message], Any]  # as `EntryList.key_of`, which the queue's first list has; under no lock
    keys_of: Callable[[Sequence[Message]], list[FairKey | str]]  # of a fair queue instead, of many

    def __init__(
        self,
        queue: BrokerQueue,
        clock: Callable[[], float],
        lock: HeldLock,
        callbacks: Callbacks,
        alerts: AlertMonitor | None,
        send: Callable[[Message, DeadLetterReason], object] | None,
        consumer_timeout: float | None = None,
    ) -> None:
        self._queue = queue
        self.lock: HeldLock = lock
        self.settings: QueueSettings = queue.settings
        self.clock: Callable[[], float] = clock
        self._callbacks = callbacks
        self._alerts = alerts
        self._send = send
        self.visit_by: Callable[[float], None] = queue.visit_by
        # Of a durable queue its journal, of another one where it had its rows when it last began to page.
        self.rows: QueueJournal | None = queue.journal
        self.pager: Spill | None = None  # set once, before anybody knows the queue
        self.figures: Figures = Figures()
        self.limit: DepthLimit = DepthLimit(self.settings, self.figures)
        self.notifier: Notifier = Notifier(self.settings, self.figures, callbacks, lock)
        self.groups: SharedGroups | None = self.notifier.groups
        self.consumers: QueueConsumerManager = self.notifier.consumers
        self.last_used: float = clock()
        self.deleted: bool = False
        self.is_closed: bool = False  # it is deleted here, and not where it is stored: its figures stay
        self.is_let_go: bool = False  # it is deleted, and what is left on it goes piece by piece
        self.reason_of_deletion: DeadLetterReason | None = None  # None: what was on the queue is simply gone
        self.consumer_numbers: Iterator[int] = count(1)  # each is one consumer's
        self._cuts_once = False  # Invariant: implies _is_to_evict, but for the moment of a change
        self._is_to_evict = False  # a ring may have more above its limit than was dropped at once
        self.pins: set[object] = set()  # one for each block that looks at everything on the queue, by position
        # Invariant: the number, and the bodies' bytes, of the entries that `admit` gave out and that did not come back.
        self._admitted = self._admitted_bytes = 0
        self._has_keys = self.settings.kind is not QueueKind.STANDARD
        self._usual_timeout = self.settings.consumer_timeout if consumer_timeout is None else consumer_timeout
        self._timeouts = None if self._usual_timeout is None else ConsumerTimeouts(self._usual_timeout)
        self.is_fair: bool = self.settings.kind is QueueKind.FAIR
        self._make: type[Entry] = FairEntry if self.is_fair else Entry
        self._template = self._make(queue, _NO_MESSAGE, 0)  # of entries that come in runs
        # With an entry that is settled a group, a tenant at its `max_in_flight` or the next active consumer may be due.
        self._settling_frees = self.groups is not None or self.settings.single_active_consumer
        self.settling_frees: bool = self._settling_frees
        self.changed_tenants: dict[str, dict[str, object]] = {}  # of a fair queue, since its declaration; kept with it
        self.tenants: Tenants | None = None  # of a fair queue; set with its first source
        self._look_at_settings()

    def _look_at_settings(self) -> None:
        settings = self.settings
        self._counts_failures = settings.counts_failures
        self._retries = settings.delayed_retry
        timeout = self._usual_timeout if settings.consumer_timeout is None else settings.consumer_timeout
        if self._timeouts is not None and timeout is not None:
            self._timeouts.usual = timeout
        # An entry of this queue is more than a message and its size.
        is_more = settings.has_groups or settings.message_ttl is not None or self._alerts is not None
        self._needs_more = self._has_keys or is_more
        # Messages without times of their own may come in runs, where none is dropped for them; `limit.takes_runs` says
        # whether one is taken now.
        self._takes_runs = not is_more and (self.is_fair or not (self._has_keys or self.limit.may_overflow))

    def govern(self, settings: QueueSettings, after: After) -> None:
        """Behave by other settings. A limit that refuses from now on cuts once what was not refused, as RabbitMQ."""
        was, self.settings = self.settings, settings
        self._cuts_once = was.overflow in _DROPS and settings.overflow not in _DROPS and settings.type == "classic"
        self.limit.govern(settings, after)
        self.limit_tenants()
        self._look_at_settings()
        self._apply_overflow(after)
        self._cuts_once = self._cuts_once and self._is_to_evict
        if settings.expires is not None:
            self.last_used = self.clock()  # as RabbitMQ: what is idle has all of its time from now on
            self.visit_by(self.last_used + settings.expires)

    def read_from(self, source: EntrySource, walk: Walk) -> None:
        """Have the entries in this source from now on; the queue's entries are in it."""
        self.source = self.notifier.source = source
        self.walk = walk

    @contextmanager
    def pinned(self) -> Iterator[Walk]:
        """A block in which the source stays, and the walk: read entries are claimed there. Under no lock."""
        pin = object()
        self.pins.add(pin)
        try:
            with self.lock:  # or the source might be exchanged by somebody that did not see the pin
                walk = self.walk
            yield walk
        finally:
            self.pins.discard(pin)  # without the lock: a generator may end anywhere

    # -- arriving: an entry is made, under no lock

    def entry_of(self, message: Message) -> Entry:
        """An entry for a message that is to be put. Raises MessageTooLarge."""
        body = message.body
        entry = self._make(self._queue, message, len(body) if type(body) is bytes else message.size)
        if self._queue.is_stored and self.pager is not None:
            self.pager.check_size(entry.size)
        if self._needs_more or message.expiration is not None or message.delay is not None or message.failures:
            self._complete(entry)
        return entry

    def entries_of(self, messages: Sequence[Message]) -> list[Entry] | None:
        """Entries for messages without expiration or delay, which can be put together; None: put each."""
        if not self._takes_runs or (self.is_fair and self.limit.may_overflow):
            return None
        sizes = [len(body) if type(body := message.body) is bytes else message.size for message in messages]
        if self.is_fair:
            keys = self.keys_of(messages)
            entries = _fair_entries.copies(self._template, list(messages), sizes, keys, self.clock())
            self._place_all(entries)
        else:
            entries = _entries.copies(self._template, list(messages), sizes)
        if self._queue.is_stored and self.pager is not None:
            self.pager.check_size(max(sizes))
        return entries

    def _complete(self, entry: Entry) -> None:
        """Set what follows from the message's headers. They are the user's objects."""
        message = entry.message
        self._key(entry)
        entry.take_failures()
        expiration = self._lifetime_of(message)
        if expiration is not None:
            if expiration < _TIME_TO_PULL:
                with self.lock:
                    is_next = expiration <= 0 or not (self.figures.ready or self._admitted)
                    expiration = _TIME_TO_PULL if is_next and self.consumers.willing() else expiration
            entry.expires_at = self.clock() + expiration
        if message.delay is not None and message.delay > 0:
            entry.held_until = self.clock() + message.delay

    def _key(self, entry: Entry) -> None:
        message, settings = entry.message, self.settings
        if self.is_fair:
            (entry.key,) = self.keys_of((message,))
            entry.arrived_at = self.clock()
            self._place_all((entry,))
        elif self._has_keys:
            entry.key = self.key_of(message)
            if self._queue.is_stored and settings.kind is QueueKind.PRIORITY:
                assert isinstance(entry.key, int)
                entry.level = entry.key
        if self.groups is not None:
            entry.group = plain_key(message.headers.get(settings.group_key or ""))
        if self._alerts is not None:
            entry.arrived_at = self.clock()

    def _place_all(self, entries: Sequence[Entry]) -> None:
        """Have a store that keeps a fair queue's entries find each by its tenant."""
        for entry in entries if self._queue.is_stored else ():
            key = entry.key
            entry.level = place_of(0, key) if type(key) is str else place_of(key[1], key[0])

    # -- arriving: now, after a commit, or at the opening

    def put(self, entries: Sequence[Entry], *, immediate: bool = False, unlimited: bool = False) -> PutOutcome | None:
        """Have an entry that no store is to keep join now, or in its turn; `unlimited`: beyond limits. Under no lock.

        Or several, that `entries_of` made; None, and nothing was done: put each.
        """
        willing = self.notifier.willing(entries[0]) if immediate else None
        after: After = []
        takes_turn, is_refused = False, False
        with self.lock:
            is_run = len(entries) > 1
            may_refuse = self.limit.may_refuse and not (is_run and self.limit.takes_runs)
            if self.deleted or may_refuse or self._admitted or willing is not None:
                if is_run:
                    return None
                outcome = self._admit(entries[0], willing, after, unlimited=unlimited)
                is_refused = not outcome.accepted
                takes_turn = not is_refused and self._admitted > 0
                if takes_turn:
                    self._expect(entries[0], 1)
            if not (is_refused or takes_turn):
                if self._queue.journal is not None:
                    entries[0].number = self._queue.journal.store.allocate()
                outcome = self.arrive(entries, after)
        if takes_turn:
            self._take_turn(entries[0])
        if after:
            self._callbacks.act(after)
        if self._alerts is not None:
            self._watch(self._alerts, entries)
        return outcome

    def admit(
        self, message: Message, *, immediate: bool = False, like: Entry | None = None
    ) -> tuple[PutOutcome, Entry | None]:
        """Decide about a message that is to be committed before it joins, and keep its room. Under no lock.

        The entry, if any, must come back: by `join`, `join_in_turn` or `withdraw`. With `like` it takes the place of
        that one, beyond limits.
        """
        entry = self.entry_of(message)
        willing = self.notifier.willing(entry) if immediate else None
        after: After = []
        with self.lock:
            outcome = self._admit(entry, willing, after, unlimited=like is not None)
            accepted = outcome is _ENQUEUED or outcome is _THROTTLED
            if accepted:
                self._expect(entry, 1)
        if after:
            self._callbacks.act(after)
        if like is not None:
            entry.take_after(like)
        return outcome, entry if accepted else None

    def admit_all(self, messages: Sequence[Message]) -> list[Entry] | None:
        """`admit` messages without expiration or delay, in one hold; None, and nothing was done: admit each."""
        entries = self.entries_of(messages)
        if entries is None:
            return None
        with self.lock:
            if self.deleted or (self.limit.may_refuse and not self.limit.takes_runs):
                return None
            self._admitted += len(entries)
            self._admitted_bytes += sum([entry.size for entry in entries])
        return entries

    def join(self, entries: Sequence[Entry], puts: Sequence[Put] | None = None) -> None:
        """Let admitted entries join: the commits of their `puts` are there, or it is their turn. Under no lock.

        On a queue that was deleted meanwhile they are the store's, which drops the queue.
        """
        for entry, put in zip(entries, puts or (), strict=puts is not None):
            entry.number, entry.is_stored, entry.held_until_ms = put.id, True, put.held_until_ms
        after: After = []
        with self.lock:
            if len(entries) == 1:
                self._expect(entries[0], -1)
            else:
                self._admitted -= len(entries)
                self._admitted_bytes -= sum([entry.size for entry in entries])
            if self.deleted:
                return
            if len(entries) == 1 or self._are_alike(entries):
                self.arrive(entries, after)
            else:
                for entry in entries:
                    self.arrive((entry,), after)
        if after:
            self._callbacks.act(after)
        if self._alerts is not None:
            self._watch(self._alerts, entries)

    def _are_alike(self, entries: Sequence[Entry]) -> bool:
        """True when the entries are such as `entries_of` makes."""
        if not self._takes_runs or (self.is_fair and self.limit.may_overflow):
            return False
        for entry in entries:
            if entry.expires_at is not None or entry.held_until is not None:
                return False
        return True

    def join_in_turn(self, entry: Entry, turn: Put) -> None:
        """Let an admitted entry join that is not stored: its turn is now. Under no lock."""
        assert self._queue.journal is not None, "only a message for a durable queue takes its turn"
        entry.number = turn.id
        # First: joining may write the entry out, as a row with this very number.
        self._queue.journal.delete((turn.id,))
        self.join((entry,))

    def withdraw(self, entry: Entry) -> None:
        """Give back the room of an admitted entry that will not come. Under no lock."""
        with self.lock:
            self._expect(entry, -1)

    def _take_turn(self, entry: Entry) -> None:
        """Send an empty row after what is on its way, and join when it is there. Under no lock."""
        journal = self._queue.journal
        assert journal is not None

        def join_anyway(turn: Put) -> None:
            # A full store has no room for an empty row. The message needs none, and the turn is as good.
            if journal.host.is_at_end:
                self.withdraw(entry)
            else:
                self.join_in_turn(entry, turn)

        batch = journal.batch()
        batch.take_turn(partial(self.join_in_turn, entry), join_anyway)
        batch.submit()

    def _admit(
        self, entry: Entry, willing: Sequence[QueueConsumer] | None, after: After, *, unlimited: bool = False
    ) -> PutOutcome:
        """Whether an entry may come; what is refused may go to the dead letters."""
        limit = self.limit
        if self.deleted:
            self._queue.check_open()
            return PutOutcome.DELETED
        if willing is not None and not any(each.is_willing for each in willing):
            return PutOutcome.NO_CONSUMER
        refusal: Overflow | None = None
        if limit.may_refuse and not unlimited:
            is_refused = limit.refuses(entry.size, self._admitted, self._admitted_bytes)
            tenants = self.tenants
            refusal = self.settings.overflow if is_refused else None if tenants is None else tenants.refusal(entry)
        if refusal is not None:
            self.figures.rejected += 1
            if refusal is Overflow.REJECT_DEAD_LETTER:
                self._send_on(entry, DeadLetterReason.MAXLEN, after)
            return PutOutcome.REJECTED
        if limit.short_of_memory or limit.is_behind:
            return _THROTTLED
        if unlimited or self.settings.overflow is not Overflow.FLOW_CONTROL:
            return _ENQUEUED
        is_full = limit.throttled or limit.is_exceeded(self._admitted + 1, self._admitted_bytes + entry.size)
        return _THROTTLED if is_full else _ENQUEUED

    def _expect(self, entry: Entry, count: int) -> None:
        """It is admitted, and comes later; or, with -1, it comes now, or not at all."""
        self._admitted += count
        self._admitted_bytes += count * entry.size
        if self.tenants is not None:
            self.tenants.expect(entry, count)

    def recover(self, levels: Sequence[Level]) -> None:
        """Take in what the store has on this queue, which no other thread knows yet. Raises StoreDamaged."""
        if self.pager is not None and self.pager.recover(levels):
            for level in levels:
                self.figures.arrived(level.messages, level.bytes)
            self._is_to_evict = self.limit.may_overflow  # what consumers had is ready again, and may be too much
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
                    with self.lock:
                        self.arrive((entry,), after)
            self._callbacks.act(after)

    def recovered(self, rows: QueueJournal, header: Header, body: bytes) -> Entry:
        """The entry that a row is of; not on the queue yet. Under no lock."""
        host = rows.host
        message, held_until, in_doubt = decode_stored(header.properties, body)
        if header.held_until_ms is not None:
            held_until = header.held_until_ms / 1000
        entry = self._make(self._queue, message, header.size)
        self._key(entry)
        entry.number, entry.is_stored, entry.held_until_ms = header.id, True, header.held_until_ms
        entry.delivery_count = header.deliveries
        entry.maybe_delivered = in_doubt or header.id < rows.store.redeliver_floor
        entry.take_failures()
        if header.expires_at is not None:
            entry.expires_at = host.queue_time(header.expires_at)
        if held_until is not None and held_until > host.wall_clock():
            entry.held_until = host.queue_time(held_until)
        return entry

    def arrive(self, entries: Sequence[Entry], after: After) -> PutOutcome:
        """Have entries join, apply the overflow policy, which may drop these very entries, and tell consumers.

        Several are such as `entries_of` makes, and come to a standard or a fair queue.
        """
        limit, figures, outcome = self.limit, self.figures, _ENQUEUED
        entry = entries[0]
        if len(entries) == 1:
            figures.arrived(1, entry.size)
            superseded = self.source.add(entries, after)
            if entry.expires_at is not None and self.source.remind(entry.expires_at, entry, holds=False):
                self.visit_by(entry.expires_at)
            if entry.held_until is not None:
                self.hold(entry, entry.held_until)
            if superseded is not None and superseded.is_ready:
                self.drop(superseded, None, after)
            if limit.may_overflow:
                outcome = self._apply_overflow(after)
        else:
            figures.arrived(len(entries), sum([each.size for each in entries]))
            self.source.add(entries, after)
        if figures.depth_bytes + MESSAGE_BYTES * figures.depth > limit.reserved and self._lacks_memory(after):
            outcome = _THROTTLED
        for entry in entries if self.consumers.idle else ():
            if entry.state is _AVAILABLE and (self.tenants is None or self.tenants.may_go(entry)):
                self.notifier.choose(entry, after)
                if not self.consumers.idle:
                    break
        return outcome

    def _lacks_memory(self, after: After) -> bool:
        """True when there is no memory for what has come, and the queue cannot page."""
        limit = self.limit
        if limit.reserve():
            return False
        after.append(self._queue.relieve)
        return limit.short_of_memory or not limit.can_page

    def _watch(self, alerts: AlertMonitor, entries: Sequence[Entry]) -> None:
        """Look whether an alert is due. Under no lock."""
        figures = self.figures
        for entry in entries:
            alerts.look_at(message_bytes=entry.size, depth=figures.depth, depth_bytes=figures.depth_bytes)
        with self.lock:
            self.visit_by(alerts.next_look(depth=figures.depth, depth_bytes=figures.depth_bytes, age=0.0))

    def _apply_overflow(self, after: After) -> PutOutcome:
        limit, overflow = self.limit, self.settings.overflow
        limit.watch()
        if self._has_surplus():
            self.evict_surplus(after)
        if overflow is Overflow.FLOW_CONTROL:
            limit.throttled = limit.throttled or limit.is_exceeded()
            return _THROTTLED if limit.throttled else _ENQUEUED
        return _THROTTLED if limit.is_behind else _ENQUEUED

    def hold(self, entry: Entry, until: float) -> None:
        """Keep an entry aside until its time."""
        if self.source.remind(until, entry, holds=True):
            entry.apply(HOLD)
            self.figures.held += 1
            self.visit_by(until)

    # -- delivering

    def can_have(self, entry: Entry, reader: Reader, after: After) -> bool:
        """True when the entry is available, within its time, and suits. One that is past its time is dropped."""
        if entry.state is not _AVAILABLE:
            return False
        if entry.expires_at is not None and entry.expires_at <= self.clock():
            self.drop(entry, DeadLetterReason.EXPIRED, after)
            return False
        if entry.refused_by is None and self.groups is None and not reader.no_local:
            return True  # as `suits`, without a call for each message
        return self.notifier.suits(entry, reader)

    def pull(
        self, consumer: QueueConsumer, most: int, most_bytes: int, higher: Iterable[QueueConsumer], after: After
    ) -> list[Entry]:
        """As `BrokerQueue.deliver_messages`, of a willing consumer, if no selector is asked; `higher` go before it."""
        source, notifier = self.source, self.notifier
        if self.is_fair and source.has_all and consumer.acquires:
            credit = None if consumer.auto_accept else consumer.credit
            at_once = most if credit is None else min(most, credit.of_any_size)
            if at_once > 1:
                return self._pull_turns(consumer, at_once, most_bytes, after)
        entries: list[Entry] = []
        while most_bytes > 0:
            if most > 1:
                run = source.next_run(consumer, most, after)
                if len(run) > 1:
                    run = _within(run, most_bytes)
            else:
                run = [] if (entry := source.next_for(consumer, after)) is None else [entry]
            if not run:
                notifier.found_nothing(consumer, after)
                break
            for other in higher:
                if notifier.suits(run[0], other):
                    notifier.leave_to(other, consumer, run[0], after)
                    return entries
            run = self.give(consumer, run, after)
            entries += run
            most -= len(run)
            if most <= 0 or not run or not consumer.is_willing:
                break
            most_bytes -= sum([entry.size for entry in run])
        return entries

    def _pull_turns(self, consumer: QueueConsumer, most: int, most_bytes: int, after: After) -> list[Entry]:
        """As `pull`, of a fair queue in memory, where the credit says that it covers so many."""
        source, credit, figures = self.source, consumer.credit, self.figures
        consumer.at_end = False
        run = source.take_turns(consumer, most, most_bytes, after)
        sizes = [entry.size for entry in run]
        is_more = len(run) == most or sum(sizes) >= most_bytes
        if credit is not None and not consumer.auto_accept:
            count = credit.take_run(sizes)
            for entry in run[count:]:  # a consumer of another queue has used the credit meanwhile
                source.give_back(entry, is_new=False)
            del run[count:]
        if run:
            figures.delivered += len(run)
            self._acquired(run, consumer, after, ACQUIRE if consumer.lock_deliveries else DELIVER)
            if consumer.auto_accept:
                figures.delivered_no_ack += len(run)
                self.end(run, consumer, after)
        if credit is not None and not credit.is_open:
            self.notifier.lose_interest(consumer, after)
        elif run and consumer.state is ConsumerState.INTERESTED:
            self.consumers.move(consumer, Interest.NOTIFY)
        if not is_more:
            self.notifier.found_nothing(consumer, after)
        return run

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
        self.figures.delivered += len(run)
        if consumer.auto_accept:
            self.figures.delivered_no_ack += len(run)
        if run and not is_past:
            self.source.pass_over(consumer, run[-1])
        if run and consumer.acquires:
            if consumer.auto_accept:
                self._acquired(run, consumer, after)
                self.end(run, consumer, after, taker=consumer)
            else:
                self.source.take(run, consumer)
                self._acquired(run, consumer, after, ACQUIRE if consumer.lock_deliveries else DELIVER)
        if not run or (credit is not None and not credit.is_open):
            self.notifier.lose_interest(consumer, after)
        elif consumer.state is ConsumerState.INTERESTED:
            self.consumers.move(consumer, Interest.NOTIFY)
        return run

    def get(self, owner: object, after: After, *, auto_accept: bool) -> tuple[Entry | None, bool]:
        """An entry in memory for an owner that is no consumer, and whether a look into a store may bring more."""
        if self.deleted:
            self._queue.check_open()
            return None, False
        figures = self.figures
        self.last_used = self.clock()
        entry, may_come = self.source.take_first(owner, after)
        if entry is not None:
            self._acquired((entry,), owner, after)
            figures.delivered += 1
            if auto_accept:
                figures.got_no_ack += 1
                self.end((entry,), owner, after)
            else:
                figures.got += 1
            if self.source.has_late:  # it may be at the head until the entry comes back; RabbitMQ looks here too
                self.keep_time(self.clock(), after)
        elif not may_come:
            figures.got_empty += 1
        return entry, may_come

    def _acquired(self, entries: Sequence[Entry], owner: object, after: After, move: Move = DELIVER) -> None:
        """AVAILABLE to LOCKED, or on to UNLOCKED, by `owner`."""
        figures, groups, limit, size = self.figures, self.groups, self.limit, 0
        for entry in entries:
            entry.apply(move, owner)
            size += entry.size
            if entry.delivery_count > 1:
                figures.redelivered += 1
            if groups is not None:
                groups.acquired(entry.group, owner)
        if self._timeouts is not None and owner is not None:
            self.visit_by(self._timeouts.took(entries, owner, self.clock()))
        figures.ready -= len(entries)  # as `_left_ready`, without a call for each message
        figures.ready_bytes -= size
        if limit.throttled and limit.has_room():
            limit.end_throttling(after)

    def _left_ready(self, count: int, size: int, after: After) -> None:
        """So many entries, with bodies of `size` bytes together, are no longer ready."""
        self.figures.ready -= count
        self.figures.ready_bytes -= size
        if self.limit.throttled and self.limit.has_room():
            self.limit.end_throttling(after)

    # -- settling

    def _lifetime_of(self, message: Message) -> float | None:
        """Seconds; None without an end."""
        lifetime, settings = message.expiration, self.settings
        if lifetime is not None and settings.minimum_message_ttl is not None:
            lifetime = max(lifetime, settings.minimum_message_ttl)
        if settings.message_ttl is None:
            return lifetime
        return settings.message_ttl if lifetime is None else min(lifetime, settings.message_ttl)

    def release(self, entry: Entry, owner: object, after: After, *, counted: bool, failed: bool) -> None:
        """Give an entry back to its place, or take it out when it has no place any more."""
        if self._timeouts is not None:
            self._timeouts.left((entry,))
        is_shorter = entry.expires_at is not None and self._had_time_to_pull(entry, entry.expires_at)
        if not counted:
            entry.delivery_count -= 1
        entry.failures += failed
        attempts = entry.failures if self._counts_failures else entry.delivery_count
        limit, reason = self.settings.max_delivery_attempts, None
        is_late = entry.expires_at is not None and entry.expires_at <= self.clock()
        if limit is not None and owner is not None and attempts >= limit:
            reason = DeadLetterReason.DELIVERY_LIMIT
        elif is_late and not self.source.expires_at_head:
            reason = DeadLetterReason.EXPIRED
        if reason is not None or entry.superseded or self.deleted:
            self.reject(entry, owner, reason, after)
            return
        entry.apply(RELEASE, owner)
        if self.groups is not None and owner is not None:
            self.groups.left(entry.group)
        self.limit.watch()
        self.figures.returned(1, entry.size)
        self.limit.watch()
        if self._retries is not DelayedRetry.NONE and owner is not None and counted:
            self._put_off(entry, failed)
        if entry.held_until is not None and entry.held_until > self.clock():
            self.hold(entry, entry.held_until)
        else:
            self.source.give_back(entry, is_new=False)
        if (
            (is_late or is_shorter)
            and entry.expires_at is not None
            and self.source.remind(entry.expires_at, entry, holds=False)
        ):
            self.visit_by(entry.expires_at)
        if self._has_surplus():
            self._apply_overflow(after)

    def _had_time_to_pull(self, entry: Entry, expires_at: float) -> bool:
        """Whether a delivered entry was to live longer so that its consumer could pull it: it is not any more."""
        lifetime = self._lifetime_of(entry.message)
        if lifetime is None or lifetime >= min(_TIME_TO_PULL, expires_at - self.clock() - _WALL_CLOCK_STEP):
            return False
        entry.expires_at = expires_at - (_TIME_TO_PULL - lifetime)
        return True

    def _put_off(self, entry: Entry, failed: bool) -> None:
        """Have a message that came back wait, longer with each failure. Source: RabbitMQ 4.3, quorum queues."""
        settings = self.settings
        is_chosen = self._retries is DelayedRetry.ALL or failed is (self._retries is DelayedRetry.FAILED)
        least = settings.delayed_retry_min
        if least and is_chosen:
            delay = min(least * max(1, entry.failures), settings.delayed_retry_max or least)
            entry.held_until = self.clock() + delay

    def reject(self, entry: Entry, owner: object, reason: DeadLetterReason | None, after: After) -> None:
        """End an entry of its owner; dead-letter it for a reason, on a deleted queue for that of the deletion."""
        if self.deleted:
            reason = self.reason_of_deletion
        if reason is DeadLetterReason.EXPIRED:
            self.figures.expired += 1
            if not self.settings.expired_to_dead_letter:
                reason = None
        # The row of a dead letter goes in the commit that sends it on, that of a deleted queue goes, or stays, with it.
        is_others = self._queue.is_stored and (reason is not None or self.deleted)
        self.end((entry,), owner, after, keeps_rows=is_others)
        self._send_on(entry, reason, after)

    def seize(self, entry: Entry, after: After, *, steal: bool = False) -> bool:
        """Take an entry for no consumer; with `steal`, also from an owner that has it unlocked."""
        if not self.source.claim(entry):
            return False
        if entry.is_ready:
            self.figures.held -= entry.state is EntryState.HELD
            entry.apply(SEIZE)
            self._left_ready(1, entry.size, after)
            return True
        if steal and entry.state is EntryState.UNLOCKED:
            if self._timeouts is not None:
                self._timeouts.left((entry,))
            entry.apply(STEAL)
            entry.was_stolen = True
            if self.groups is not None:
                self.groups.left(entry.group)
            return True
        return False

    def drop(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> bool:
        """Seize and end; False when it is somebody's."""
        if not self.seize(entry, after):
            return False
        self.reject(entry, None, reason, after)
        return True

    def purge(self, entries: Iterable[Entry], after: After) -> int:
        """Take out those of these entries that are ready; returns how many."""
        gone = [entry for entry in entries if self.seize(entry, after)]
        self.end(gone, None, after)
        return len(gone)

    # -- the end of an entry

    def end(
        self, entries: Sequence[Entry], owner: object, after: After, *, taker: object = None, keeps_rows: bool = False
    ) -> None:
        """Take out entries of their owner, None if seized: here at once, in the store by one of the next commits.

        With a `taker` they are taken by that in this step. `keeps_rows`: something else has the rows deleted.
        """
        figures = self.figures
        for entry in entries:
            entry.apply(SETTLE, owner)
            figures.depth -= 1
            figures.depth_bytes -= entry.size
        self.source.remove(entries, taker=taker)
        if self._timeouts is not None:
            self._timeouts.left(entries)
        if self.groups is not None and owner is not None:
            for entry in entries:
                self.groups.left(entry.group)
        if self.limit.short_of_memory and self.limit.has_room():
            self.limit.end_throttling(after)
        if self.rows is not None and not keeps_rows:
            numbers: list[int] = []
            for entry in entries:
                if entry.is_stored and not entry.is_settled_elsewhere:
                    numbers.append(entry.number)
            if numbers:
                after.append(partial(self.rows.delete, numbers))

    def have_gone(self, count: int, size: int, after: After) -> None:
        """So many ready entries were taken out of a store at once, with bodies of `size` bytes together."""
        self.figures.depth -= count
        self.figures.depth_bytes -= size
        self._left_ready(count, size, after)

    def _send_on(self, entry: Entry, reason: DeadLetterReason | None, after: After) -> None:
        """Dead-letter the message of an entry that has left, or was turned away, if there is a reason."""
        self.figures.dead_lettered += reason is not None
        # Without a reason too: what is in `after` does not end under the lock.
        after.append(partial(self._send_letter, entry, reason))

    def _send_letter(self, entry: Entry, reason: DeadLetterReason | None) -> None:
        """The second half of `_send_on`, under no lock."""
        journal = self._queue.journal
        if reason is None:
            return
        if journal is None or not entry.is_stored:
            if self._send is not None:
                send = partial(self._send, entry.letter(), reason)
                dying.run(partial(self._callbacks.guard, "dead letter callback", send))
        elif not entry.is_settled_elsewhere:
            batch = journal.batch(is_owed=True)
            batch.delete(entry.number)
            dying.run(partial(self._store_letter, entry.letter(), reason, batch))

    def _store_letter(self, message: Message, reason: DeadLetterReason, batch: Submission) -> None:
        assert self._queue.journal is not None
        store = partial(self._queue.journal.dead_letter, self._queue, message, reason, batch)
        if self._callbacks.guard("dead letter callback", store, untold=(BrokerClosed, StoreFailed)):
            batch.submit_if_open()
        else:
            # It stays where it is stored, and comes back when that is opened: its next queue may be closed already.
            batch.withdraw()

    # -- limits and time

    def is_above_limit(self) -> bool:
        """True when a ring has more than it may."""
        return (self.settings.overflow is Overflow.RING or self._cuts_once) and self.limit.is_exceeded()

    def _has_surplus(self) -> bool:
        """True when something is above the queue's limit, or may be above a tenant's."""
        return self.is_above_limit() or (self.tenants is not None and self.tenants.has_surplus)

    def lane_to_cut(self) -> Lane | None:
        """The lane of a fair queue whose head goes first at a limit."""
        assert self.tenants is not None, "only a fair queue has tenants"
        return self.tenants.longest() if self.is_above_limit() else self.tenants.surplus()

    def limit_tenants(self) -> None:
        """The queue, or a tenant, has other limits now."""
        if self.tenants is not None:
            self.tenants.know_ring(self.settings.overflow is Overflow.RING)
            self.limit.ask_tenants(refuse=self.tenants.may_refuse, overflow=self.tenants.may_overflow)
            self.settling_frees = self._settling_frees or self.tenants.may_be_capped

    def change_tenant(self, name: str, after: After) -> None:
        """Let a tenant have its options as they are noted."""
        assert self.tenants is not None, "only a fair queue has tenants"
        self.tenants.follow(name)
        self.limit_tenants()
        if self.tenants.has_surplus:
            self.evict_surplus(after)
        self.notifier.pass_baton(after, len(self.consumers))

    def evict_surplus(self, after: After) -> None:
        """Drop entries above a limit: some now, and the rest soon."""
        self._is_to_evict = True
        if self.evict_some(after):
            after.append(partial(self._queue.in_visits, self.evict_some, 0))

    def evict_some(self, after: After) -> bool:
        """Drop some of what a ring, or a tenant, has above its limit; True when there is more."""
        for _ in range(FEW if self._is_to_evict else 0):
            victim = self.source.surplus(after) if self._has_surplus() else None
            if victim is None or not self._has_surplus():  # what had expired has made room
                self._is_to_evict = self._cuts_once = False
                break
            self.drop(victim, DeadLetterReason.MAXLEN, after)
        return self._is_to_evict

    def keep_time(self, now: float, after: After) -> bool:
        """Expire some overdue entries, end some holds that are over; True when there may be more."""
        if self.deleted:
            return False
        is_more = self._timeouts is not None and self._time_out(self._timeouts, now, after)
        source = self.source
        due, ended = source.due(now, FEW, after), 0
        for entry in due:
            if entry.expires_at is not None and entry.expires_at <= now:
                self.drop(entry, DeadLetterReason.EXPIRED, after)
            elif entry.state is EntryState.HELD:
                entry.apply(UNHOLD)
                self.figures.held -= 1
                source.give_back(entry, is_new=True)
                ended += 1
        if ended:
            self.notifier.tell_browsers(after)
            self.notifier.pass_baton(after, ended)
        return self.evict_some(after) or is_more or len(due) == FEW

    def timeout_of(self, owner: object) -> float | None:
        """Seconds that this owner may keep a message, None without a limit. Any thread, without the lock."""
        return None if self._timeouts is None else self._timeouts.of(owner)

    def _time_out(self, timeouts: ConsumerTimeouts, now: float, after: After) -> bool:
        """Take away some of what owners have kept for too long; True when there may be more. Such a consumer gets
        nothing further, and is told."""
        due = timeouts.due(now)[:FEW]
        for owner in {id(entry.owner): entry.owner for entry in due}.values():  # a hash may be the user's
            if isinstance(owner, QueueConsumer):
                self.notifier.retire(owner, after)
            after.append(partial(_tell_late, owner, timeouts.of(owner)))
        for entry in due:
            if self.seize(entry, after, steal=True):
                self.release(entry, None, after, counted=True, failed=False)
            else:  # a transaction settles it
                timeouts.left((entry,))
        if due:
            self.notifier.pass_baton(after, len(due))
        return len(due) == FEW

    @property
    def is_to_be_watched(self) -> bool:
        """True while there is something to do of which no time is known."""
        is_empty = not self.source.has_all and not self.figures.depth  # so that it keeps everything in memory again
        return self.limit.short_of_memory or self._is_to_evict or is_empty

    def next_time(self) -> float:
        """When time asks for something next, infinity for never."""
        expires = self.settings.expires
        when = self.source.next_time()
        if self._timeouts is not None:
            when = min(when, self._timeouts.next_time())
        return when if expires is None or len(self.consumers) else min(when, self.last_used + expires)

    # -- the end of the queue

    def remove_consumer(self, consumer: QueueConsumer, after: After) -> bool:
        """A consumer goes; False when it was gone."""
        if not self.notifier.remove(consumer, after):
            return False
        self.last_used = self.clock()
        if self.settings.expires is not None:
            self.visit_by(self.last_used + self.settings.expires)
        return True

    def delete(self, reason: DeadLetterReason | None, after: After) -> int:
        """Remove the consumers, drop the ready entries; returns how much that was. Without a reason that takes no
        time.
        """
        self.deleted, self.reason_of_deletion = True, reason
        for consumer in list(self.consumers):
            self.consumers.remove(consumer)
            after.append(consumer.cancelled)
        self.limit.release_memory()
        count = self.figures.ready
        if reason is None or not self.source.has_all:  # what a store has was sent on before
            self._let_go(after)
        else:
            after.append(partial(self._queue.in_slices, self._send_on_some))
        self.limit.end_throttling(after)
        return count

    def _send_on_some(self, after: After) -> bool:
        """Send some of what was ready to the dead letters; True when there is more."""
        ready, is_more = self.source.some_left(FEW)
        for entry in ready:
            self.drop(entry, self.reason_of_deletion, after)
        if not is_more:
            self._let_go(after)
        return is_more

    def _let_go(self, after: After) -> None:
        """Make what is ready unavailable: it goes when the lock is free."""
        figures = self.figures
        if not self.is_closed:
            figures.depth -= figures.ready
            figures.depth_bytes -= figures.ready_bytes
            figures.ready = figures.ready_bytes = figures.held = 0
        self.source.close(after)
        if self.tenants is not None:
            self.tenants.close()
        self.is_let_go = True
        after.append(partial(self._queue.in_visits, self.clear_some, 1))

    def clear_some(self, after: After) -> bool:
        """Let go of some entries of a deleted queue; True when there is more."""
        gone, is_more = self.source.some_left(_CLEARED)
        if self.source.has_all:
            for entry in gone:
                entry.apply(SEIZE)
                entry.apply(SETTLE)
            self.source.remove(gone)
        after.append(gone.clear)  # the messages end here, and their memory is free: under no lock
        return is_more

    def check_invariants(self) -> list[Doubt]:
        """As `BrokerQueue.check_invariants`; what a selector may excuse is returned. Says nothing about consumers that
        are being pulled, nor, while any is, about who was notified.
        """
        doubts = self.source.check(list(self.consumers))
        self.notifier.check_invariants()
        assert self.figures.highest_depth >= self.figures.depth
        assert self.figures.highest_ready >= self.figures.ready
        return doubts


def _tell_late(owner: object, timeout: float) -> None:
    """Tell who had a message for too long, if it can be told."""
    tell = getattr(owner, "timed_out", None)
    if tell is not None:
        tell(timeout)


class _Chain(threading.local):
    """The entries that a thread still has to dead-letter, in a line: a long chain of queues is a loop, not a stack."""

    def __init__(self) -> None:
        self.pending: deque[Callable[[], object]] = deque()
        self.is_running = self.is_held = False

    def run(self, action: Callable[[], object]) -> None:
        self.pending.append(action)
        if not self.is_held and not self.is_running:
            self._go_on()

    def hold(self) -> None:
        """A message comes to several queues: it is on all of them before what died of it goes on, by `let_go`."""
        self.is_held = True

    def let_go(self) -> None:
        self.is_held = False
        if self.pending and not self.is_running:
            self._go_on()

    def _go_on(self) -> None:
        self.is_running = True
        try:
            while True:  # CPython 3.12 and 3.13 have a condition's jump outside of the try
                more = bool(self.pending)
                if not more:
                    break
                self.pending.popleft()()
        finally:
            self.is_running = False
            if self.pending:  # one was interrupted; the others must not be lost with it
                self._go_on()


dying: Final = _Chain()


def _within(run: list[Entry], most_bytes: int) -> list[Entry]:
    """The first of these entries, up to the one with which their sizes reach `most_bytes`."""
    for length, entry in enumerate(run, start=1):
        most_bytes -= entry.size
        if most_bytes <= 0:
            return run[:length]
    return run
