"""The broker queue: messages in strict order, pulled by consumers that the queue notifies of work.

Promise     A message put is given to one acquiring consumer at a time, in order, until one settles it; a message that
            is given back returns to its place. A call that raises has changed nothing.
State       `_lock` guards `life` and everything in it. It is not reentrant, and nothing of the user's runs under it,
            so a selector or a callback may call the queue that calls it.
Selectors   are asked between two holds of the lock: see `FilteredPull`.
Lock order  queue lock -> credit lock. Never two queue locks. `_turn` -> queue lock, the store's.
Waiting     No call blocks in here, except `wait_for_room`, which `DepthLimit.end_throttling` ends.
Assumes     that the clock, which is asked under the lock, is a plain function; no call from a signal handler, `__del__`
            or weakref callback that interrupts a call of the same thread: the lock would never come free; and no
            asynchronous exception while the lock is held. The threads of `_delivery` get none; a main thread that must
            survive Ctrl-C anywhere leaves the broker to them.
Source      "Consumer-Queue Interactions" (Apache Qpid wiki) for the algorithm and the names.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock  # by name, so that tests can put another one in its place
from typing import TYPE_CHECKING, Any, Final, TypeVar

from multiqueue.core import notebook_table

from .._base.alerts import Alert, AlertMonitor
from .._base.credit import Credit
from .._base.errors import AccessRefused, BrokerClosed, NotFound, PreconditionFailed
from .._base.message import DeadLetterReason, Message, PutOutcome, plain_name
from .._base.ports import AT_ONCE, After
from .._base.settings import Governing, QueueSettings
from .._base.waits import nap, polled
from .administration import Administration, ResidentWalk
from .callbacks import Callbacks
from .consumer import Predicate, QueueConsumer
from .entry import LOCK, SETTLE, UNLOCK, Entries, Entry
from .entry_list import FairEntryList, make_entry_list
from .entry_source import ResidentEntries
from .fair_entries import FairEntries
from .figures import QueueStatistics
from .filtered import FilteredPull
from .life import Life
from .tenants import FairStatistics, Tenants

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal
    from .._paging.spill import Spill

Item = TypeVar("Item")
DeadLetterCallback = Callable[["BrokerQueue", Message, DeadLetterReason], object]
ErrorHandler = Callable[["BrokerQueue", str, BaseException], object]

_SLICE: Final = 512  # entries that are settled in one hold of the lock: a millisecond
_SLICES_A_VISIT: Final = 128  # in which a deleted queue is cleared: some 70 ms without visits to others
_log = logging.getLogger("multiqueue.broker")


def _log_error(queue: BrokerQueue, action: str, error: BaseException) -> None:
    _log.error("queue %r: %s failed", queue.name, action, exc_info=error, extra={"queue": queue.name})


class BrokerQueue(Administration):
    """One queue of the broker, without exchanges and without I/O.

    `clock` gives seconds that never go back. `dead_letter(queue, message, reason)` gets what expired, was evicted,
    rejected or delivered too often; `on_deleted(queue)` is called once; `on_alert(alert)` of thresholds reached;
    `on_error(queue, action, error)` of callbacks that failed, by default through the log. All of them run on the
    thread that caused them, without any lock, and may call any queue. `journal` is where a durable queue has its
    rows; `pager_of(queue)` makes what lets it page; `consumer_timeout` holds where the settings name none.
    """

    def __init__(
        self,
        name: str,
        *,
        settings: QueueSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        dead_letter: DeadLetterCallback | None = None,
        on_deleted: Callable[[BrokerQueue], object] | None = None,
        on_alert: Callable[[Alert], object] | None = None,
        on_error: ErrorHandler = _log_error,
        vhost: str = "/",
        journal: QueueJournal | None = None,
        pager_of: Callable[[BrokerQueue], Spill | None] | None = None,
        consumer_timeout: float | None = None,
    ) -> None:
        self.name: str = plain_name("name", name)
        self.vhost = vhost
        self.label: str = f"queue {name!r} in vhost {vhost!r}"  # as error messages name it
        self.journal = journal
        self.is_stored: bool = journal is not None  # a store keeps the queue and its persistent messages
        # Has what is changed of them stored with the queue; calls what it is given where that is refused.
        self.keep_tenants: Callable[[Callable[[], object]], object] = lambda undo: None
        self.store_number: int = 0 if journal is None else journal.number
        settings = settings or QueueSettings()
        self.settings: QueueSettings = settings
        self.governing: Governing = Governing()
        self._clock = clock
        self._on_deleted = on_deleted
        self._lock = polled(Lock())
        self._turn = Lock()  # of a change of a tenant
        # The first time that housekeeping was asked to come at, infinity for none. Guarded by the lock.
        self._next_visit = math.inf
        self._request: Callable[[Any, float], object] | None = None
        self.callbacks: Callbacks = Callbacks(partial(on_error, self), self._lock)
        self._act = self.callbacks.act
        self._alerts: AlertMonitor | None = None
        if settings.alerts is not None and on_alert is not None:
            guard = self.callbacks.guard
            self._alerts = AlertMonitor(
                name, settings.alerts, clock, lambda alert: guard("alert callback", partial(on_alert, alert))
            )
        send = None if dead_letter is None else partial(dead_letter, self)
        self.life: Life = Life(self, clock, self._lock, self.callbacks, self._alerts, send, consumer_timeout)
        self._filtered = FilteredPull(self.life, self.callbacks)
        self._pager = self.life.pager = None if pager_of is None else pager_of(self)
        if self._pager is None:
            self.keep_in_memory()

    # -- putting

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
        if self.journal is not None and message.persistent:
            batch = self.journal.batch()
            outcome = batch.put(self, message, immediate=immediate)
            batch.submit()
            return outcome
        put = self.life.put((self.life.entry_of(message),), immediate=immediate)
        assert put is not None, "one message is always decided about"
        return put

    def put_many(self, messages: Iterable[Message]) -> list[PutOutcome]:
        """`put` each of the messages, in order, in as few holds of the lock as may be; what became of each.

        Raises:
            TypeError, StoreFailed, StoreClosed: as `put`; the messages before the one that failed are on the queue.
        """
        outcomes: list[PutOutcome] = []
        for run in _slices_of(list(messages)):
            has_times = any(message.expiration is not None or message.delay is not None for message in run)
            outcome = None if has_times else self.put_all(run)
            outcomes += [self.put(message) for message in run] if outcome is None else [outcome] * len(run)
        return outcomes

    def put_all(self, messages: Sequence[Message]) -> PutOutcome | None:
        """`put` of messages without expiration or delay, in one hold; None, and nothing was done: put each."""
        entries = None if self.journal is not None else self.life.entries_of(messages)
        return None if entries is None else self.life.put(entries)

    # -- delivering

    def deliver_single_message(self, consumer: QueueConsumer, *, may_end: bool = False) -> Entry | None:
        """The next entry for this consumer, now its own unless it browses, or None: as `deliver_messages` of one."""
        entries = self.deliver_messages(consumer, 1, may_end=may_end)
        return entries[0] if entries else None

    def deliver_messages(
        self, consumer: QueueConsumer, most: int, most_bytes: int = sys.maxsize, *, may_end: bool = False
    ) -> list[Entry]:
        """The next entries for this consumer, now its own unless it browses: up to `most`, in one hold of the lock.

        One where a selector is asked, or while consumers of higher priority want work. The entry with which their
        sizes reach `most_bytes` is the last.
        After an empty list, and when it is `at_end`, the consumer will be notified again; else it must call again: it
        will not be. With `may_end` it is at the end after the last entry, without another look.

        Raises:
            RuntimeError: another call for this consumer is under way, perhaps one that runs its selector.
        """
        after: After = []
        entries: list[Entry] = []
        higher: Sequence[QueueConsumer] = ()
        asks = False
        with self._lock:
            if not consumer.is_willing:
                return entries
            life = self.life
            if consumer.selector is not None or len(life.consumers.levels) > 1:
                higher = life.notifier.higher_priority(consumer)
                # What pages was matched before, but for what a browser is shown when its delay ends.
                asks = consumer.selector is not None and (life.source.has_all or not consumer.acquires)
                asks = asks or any(other.selector is not None for other in higher)
            if asks:
                if consumer.pulling:
                    raise RuntimeError(f"{consumer!r} is being pulled already; one thread at a time may do that")
                consumer.pulling = True
            else:
                entries = life.pull(consumer, 1 if higher else most, most_bytes, higher, after)
                if may_end and entries:
                    life.notifier.end_if_empty(consumer)
        if after:
            self._act(after)
        if asks:
            try:
                entries = self._filtered.pull(consumer)
            finally:
                consumer.pulling = False
        return entries

    def get(self, owner: object, *, auto_accept: bool = False) -> Entry | None:
        """The first available entry, for an owner that is no consumer, or None.

        Does not block, but for reading what a store alone has.

        Raises:
            ConsumerNotAdmitted: the queue is paged, and unsettled messages leave no memory for its next one.
            StoreError: the store cannot be read.
        """
        while True:
            after: After = []
            with self._lock:
                entry, may_come = self.life.get(owner, after, auto_accept=auto_accept)
            self._act(after)
            if entry is not None or self._pager is None or not self._pager.load_for_get(may_come=may_come):
                return entry

    # -- settling

    def accept(self, entries: Entries, consumer: object) -> int:
        """Delete entries the consumer (or owner of a `get`) has; returns how many were still its own.

        Messages stolen from it meanwhile do not count. All or nothing otherwise; but of more than 512 entries, some
        that another thread settles meanwhile are found too late: others are settled then.

        Raises:
            IllegalStep: it never had one of them, or has settled it already.
            ValueError: an entry of another queue.
        """
        if not isinstance(entries, Entry):
            entries = tuple(entries)
            if len(entries) > _SLICE:
                return self._settle_slices(entries, consumer, self.accept)
        after: After = []
        with self._lock:
            life = self.life
            owned = self._owned_locked(entries, consumer)
            life.end(owned, consumer, after)
            life.figures.acked += len(owned)
            if life.settling_frees and owned:
                life.notifier.pass_baton(after, len(owned))
        if after:
            self._act(after)
        return len(owned)

    def release(
        self,
        entries: Entries,
        consumer: object,
        *,
        refused: bool = False,
        counted: bool = True,
        failed: bool = False,
    ) -> int:
        """Give entries back to their places in the queue; returns how many were still the consumer's.

        `refused`: not to this consumer again. `counted=False`: the delivery never reached it and is not counted.
        `failed`: it was rejected, or its consumer lost: what `DeliveryCounting.FAILURES` counts.
        A message that has expired meanwhile or was delivered `max_delivery_attempts` times is dead-lettered instead.
        Raises as `accept`.
        """

        def give_back(entry: Entry, after: After) -> None:
            if refused and isinstance(consumer, QueueConsumer):
                entry.refused_by = {consumer.number, *(entry.refused_by or ())}
            self.life.release(entry, consumer, after, counted=counted, failed=failed)

        return self._settle(entries, consumer, give_back, is_end=True)

    def fail(self, entries: Entries, consumer: object) -> int:
        """As `release`, `failed`."""
        return self.release(entries, consumer, failed=True)

    def reject(self, entries: Entries, consumer: object) -> int:
        """Dead-letter entries the consumer has; returns how many were still its own. Raises as `accept`.

        The deliveries have failed, as with `release`: a quorum queue that a dead letter comes to goes on counting.
        """

        def fail(entry: Entry, after: After) -> None:
            entry.failures += 1
            self.life.reject(entry, consumer, DeadLetterReason.REJECTED, after)

        return self._settle(entries, consumer, fail, is_end=True)

    def discard(self, entries: Entries, consumer: object) -> int:
        """As `reject`, and no failure."""
        reject, reason = self.life.reject, DeadLetterReason.REJECTED
        return self._settle(entries, consumer, lambda entry, after: reject(entry, consumer, reason, after), is_end=True)

    def lock(self, entries: Entries, consumer: object) -> int:
        """Make entries the consumer has impossible to steal, as a transaction needs; returns how many it has."""
        return self._settle(entries, consumer, lambda entry, _: entry.apply(LOCK, consumer))

    def unlock(self, entries: Entries, consumer: object) -> int:
        """End a `lock`, or the one a delivery came with."""
        return self._settle(entries, consumer, lambda entry, _: entry.apply(UNLOCK, consumer))

    def _settle(
        self, entries: Entries, consumer: object, settle: Callable[[Entry, After], object], *, is_end: bool = False
    ) -> int:
        """Have this done, under the lock, to each of the entries that the consumer has; returns how many."""
        if not isinstance(entries, Entry):
            entries = tuple(entries)
            if len(entries) > _SLICE:
                again = partial(self._settle, settle=settle, is_end=is_end)
                return self._settle_slices(entries, consumer, again)
        with self.callbacks.deciding() as after:
            owned = self._owned_locked(entries, consumer)
            for entry in owned:
                settle(entry, after)
            if is_end:  # somebody else may have them, or others of their groups
                self.life.notifier.pass_baton(after, len(owned))
        return len(owned)

    def _settle_slices(
        self, entries: tuple[Entry, ...], consumer: object, settle: Callable[[Entries, object], int]
    ) -> int:
        """Check all of very many entries, then settle them in order, slice by slice."""
        distinct: dict[Entry, None] = {}
        for each in _slices_of(entries):  # not at once: that would keep the interpreter
            distinct |= dict.fromkeys(each)
        slices = _slices_of(list(distinct))
        for each in slices:
            with self._lock:
                self._owned_locked(tuple(each), consumer)
        count = 0
        for each in slices:
            count += settle(each, consumer)
            nap()
        return count

    def _owned_locked(self, entries: Entry | tuple[Entry, ...], consumer: object) -> Sequence[Entry]:
        """Those of the entries that the consumer has; raises before anything is changed."""
        if isinstance(entries, Entry):
            if entries.owner is consumer and entries.queue is self and consumer is not None:
                return (entries,)
            entries = (entries,)
        owned: list[Entry] = []
        for entry in dict.fromkeys(entries):
            if entry.queue is not self:
                raise ValueError(f"{entry!r} does not stand on {self.label}")
            if entry.owner is consumer and consumer is not None:
                owned.append(entry)
            elif not entry.was_stolen:
                raise entry.illegal(SETTLE, consumer)
        return owned

    # -- room

    def when_room(self, callback: Callable[[], object]) -> bool:
        """While the queue is throttled, have `callback` called once it no longer is; False when there is room."""
        with self._lock:
            is_full = self.life.limit.throttled and not self.life.deleted
            if is_full:
                self.life.limit.room_waiters.append(callback)
            return is_full

    def when_caught_up(self, callback: Callable[[], object]) -> bool:
        """While publishers wait for messages on their way to a store, have `callback` called once they need not.

        False when they do not wait now. The store's commits end this wait; no consumer has to take anything for it.
        """
        with self._lock:
            is_behind = self.life.limit.is_behind and not self.life.deleted
            if is_behind:
                self.life.limit.catch_up_waiters.append(callback)
            return is_behind

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Block while the queue is throttled: until its depth is down to 80 % of the limit, or it is deleted.

        Returns False when `timeout` seconds have passed first.
        """
        room = threading.Event()
        if not self.when_room(room.set):
            return True
        try:
            return room.wait(timeout)
        finally:
            with self._lock:
                if room.set in self.life.limit.room_waiters:
                    self.life.limit.room_waiters.remove(room.set)

    # -- consumers

    def add_consumer(
        self,
        on_work: Callable[[QueueConsumer], object],
        *,
        tag: str = "",
        credit: Credit | None = None,
        selector: Predicate | None = None,
        priority: int = 0,
        browse: bool = False,
        auto_accept: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
        connection: object = None,
        lock_deliveries: bool = False,
        on_cancelled: Callable[[QueueConsumer], object] | None = None,
        timeout: float | None = None,
        on_timed_out: Callable[[float], object] | None = None,
    ) -> QueueConsumer:
        """Register a consumer. It gets nothing until `set_notify_work_desired(consumer, True)`.

        `on_work(consumer)` is called when there may be something to pull, on any thread, under no lock; higher
        `priority` is served first. A browser (`browse`) sees messages without taking them. `auto_accept` settles
        on delivery. With `lock_deliveries` delivered messages cannot be stolen until `unlock`. Of a queue that has a
        `consumer_timeout`, a consumer that keeps a message for longer, or than its own `timeout` seconds, loses it and
        gets nothing further; `on_timed_out(seconds)` is called like `on_work`.

        Raises:
            NotFound: the queue was deleted.
            AccessRefused: somebody has it exclusively, or has it at all when `exclusive` is asked for; or it is for a
                single active consumer, which is the other way to have one at a time. Of a quorum queue `exclusive`
                means nothing, as in RabbitMQ.
        """
        with self.callbacks.deciding() as after:
            self.check_open()
            life = self.life
            if life.deleted:
                raise NotFound(f"no {self.label}: it was deleted")
            exclusive = exclusive and self.settings.type != "quorum"
            if exclusive and self.settings.single_active_consumer:
                raise AccessRefused(f"{self.label} has a single active consumer, so no consumer can be exclusive")
            if len(life.consumers) and (exclusive or any(each.exclusive for each in life.consumers)):
                raise AccessRefused(f"{self.label} in exclusive use")
            consumer = QueueConsumer(
                queue=self,
                number=next(life.consumer_numbers),
                tag=tag,
                on_work=on_work,
                on_cancelled=on_cancelled,
                credit=credit,
                selector=selector,
                priority=priority,
                acquires=not (browse or self.settings.browse_only),
                auto_accept=auto_accept,
                exclusive=exclusive,
                no_local=no_local,
                connection=connection,
                lock_deliveries=lock_deliveries,
                timeout=timeout,
                on_timed_out=on_timed_out,
            )
            life.notifier.add(consumer, after)
        return consumer

    def timeout_of(self, consumer: QueueConsumer) -> float | None:
        """Seconds that a consumer may keep a message, None without a limit: its own, or the queue's."""
        return self.life.timeout_of(consumer)

    def set_notify_work_desired(self, consumer: QueueConsumer, desired: bool) -> None:
        """The consumer does, or does not, want to be notified of work: suspension, back-pressure, start."""
        with self.callbacks.deciding() as after:
            consumer.desired = desired
            self.life.notifier.update_interest(consumer, after)

    def credit_changed(self, consumer: QueueConsumer) -> None:
        """Look again whether the consumer's credit lets it work."""
        after: After = []
        with self._lock:
            self.life.notifier.update_interest(consumer, after)
        self._act(after)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Unregister a consumer; removing it twice is harmless.

        Its unsettled messages stay with it: settle or release that too. The last one to go takes an auto-delete
        queue along.
        """
        with self.callbacks.deciding() as after:
            removed = self.life.remove_consumer(consumer, after)
            if removed and self.settings.auto_delete and not len(self.life.consumers):
                self._delete_locked(after)

    # -- tenants of a fair queue

    def change_tenant(self, name: str, changes: Mapping[str, object] | None, *, anew: bool = False) -> None:
        """Let a tenant of a fair queue have other options from now on, kept as the queue is; None: as declared.

        Options are those of `tenants` at the declaration; None is no limit, `paused` passes it over. With `anew` what
        was changed before is forgotten, as by a backup. Waits for the commit, as a declaration does.

        Raises:
            PreconditionFailed: this is no fair queue, or an option does not fit. Nothing was changed.
            StoreFull: it cannot be kept, and was undone.
            RuntimeError: called by what follows a commit, on the store's own thread.
        """
        if self.journal is not None and not self.journal.host.may_wait:
            raise RuntimeError("a callback of a commit cannot change a tenant: it would wait for itself")
        with self._turn:  # its commit included: a change that is undone leaves what is kept
            self._change_tenant(name, changes, anew=anew)

    def _change_tenant(self, name: str, changes: Mapping[str, object] | None, *, anew: bool) -> None:
        with self._lock:
            tenants, before = self._tenants_locked(), self.life.changed_tenants.get(name)
            try:
                tenants.note(name, changes, anew=anew)
            except (ValueError, TypeError) as error:
                raise PreconditionFailed(f"{self.label}: {error}") from None

        def undo() -> None:
            with self._lock:
                tenants.note(name, before, anew=True)

        try:
            self.keep_tenants(undo)  # first: what a limit drops does not come back where the store refuses it
        finally:
            with self.callbacks.deciding() as after:
                self.life.change_tenant(name, after)

    @property
    def changed_tenants(self) -> dict[str, Mapping[str, object]]:
        """What tenants of a fair queue were given since its declaration, for a backup: options of each's own."""
        return dict(self.life.changed_tenants)

    def tenants(self, most: int | None = None) -> FairStatistics:
        """The tenants of a fair queue that have messages, in figures; `most` of them, those with the most waiting.

        Walks all tenants under the lock: a microsecond each.

        Raises:
            PreconditionFailed: this is no fair queue.
        """
        with self._lock:
            return self._tenants_locked().figures(most)

    def _tenants_locked(self) -> Tenants:
        if self.life.tenants is None:
            raise PreconditionFailed(f"{self.label} is a {self.settings.kind_name} queue; it has no tenants")
        return self.life.tenants

    # -- what a store has

    def deliveries(self) -> list[tuple[int, int]]:
        """Of what the store has and consumers had: number, and how often. For a clean close."""
        with self._lock:
            return self.life.source.deliveries()

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """As `VirtualHost.wait_for_commits`; with no store it has nothing to wait for."""
        return self.journal is None or self.journal.host.wait_for_commits(timeout)

    # -- the queue itself

    def delete(self, *, if_unused: bool = False, if_empty: bool = False, dead_letter: bool = False) -> int:
        """Delete the queue; returns how many ready messages were on it.

        Consumers are removed and told. They may still settle their messages; released ones are gone. With
        `dead_letter` the messages go to the dead-letter callback. Deleting twice is harmless.

        Raises:
            PreconditionFailed: it has consumers (`if_unused`), or messages (`if_empty`).
        """
        with self._lock:
            self._check_deletable_locked(if_unused, if_empty)
        # A paged queue's messages are read for that, which must not be done under the lock.
        sent_on = self._pager.drop_each(DeadLetterReason.QUEUE_DELETED) if dead_letter and self._pager else 0
        with self.callbacks.deciding() as after:
            if self.life.deleted:
                return sent_on
            self._check_deletable_locked(if_unused, if_empty)
            return sent_on + self._delete_locked(after, dead_letter=dead_letter)

    def close(self) -> None:
        """End the queue without deleting what a store has of it: the virtual host is closed. Consumers learn it."""
        with self.callbacks.deciding() as after:
            if not self.life.deleted:
                self.life.is_closed = True
                self.life.delete(None, after)

    def housekeeping(self) -> float | None:
        """Do what time asks for: expire messages, end holds, delete a queue that is not used, alert.

        Returns when time asks for something next, on the queue's clock; None: not before something happens to the
        queue. Called by `Housekeeping`, then and at first, or by a test with its own clock.
        """
        if self.life.deleted:
            is_more = self.life.is_let_go and self.in_slices(self.life.clear_some, _SLICES_A_VISIT)
            return AT_ONCE if is_more else None
        now = self._clock()
        if self._pager is not None:
            self._pager.keep_time()
        if self.life.limit.short_of_memory:
            self.relieve()  # what kept it from paging may have ended
        self.in_slices(partial(self._keep_time_locked, now))
        if self._alerts is not None:
            with self._lock:
                figures = self._alert_figures_locked()
            self._alerts.look_at(**figures)
        with self._lock:  # what happened in the middle of the visit is seen here, so nothing is missed
            life = self.life
            if life.deleted:
                return None
            self._next_visit = life.next_time()
            if self._alerts is not None and life.figures.depth:
                self._next_visit = min(self._next_visit, self._alerts.next_look(**self._alert_figures_locked()))
            if life.is_to_be_watched:
                self.visit_by(AT_ONCE)
            return None if self._next_visit == math.inf else self._next_visit

    def _alert_figures_locked(self) -> dict[str, float]:
        """What alerts are about."""
        figures, oldest = self.life.figures, self.life.source.oldest_age(self._clock())
        return {"depth": figures.depth, "depth_bytes": figures.depth_bytes, "age": oldest}

    def _keep_time_locked(self, now: float, after: After) -> bool:
        """Some of what is due; True when there may be more."""
        life = self.life
        there_is_more = life.keep_time(now, after)
        expires = life.settings.expires
        is_idle = not life.deleted and not len(life.consumers)
        if expires is not None and is_idle and life.last_used + expires <= now:  # as `next_time` has it
            self._delete_locked(after)
        return there_is_more

    @property
    def effective_settings(self) -> QueueSettings:
        """Its settings, with what policies add to them: how it behaves now."""
        return self.life.settings

    def govern(self, settings: QueueSettings, governing: Governing) -> None:
        """Behave by these settings from now on, as policies say; only limits, times and dead letters may differ.

        Messages that are on the queue keep their time; a ring that has become smaller drops the surplus, in slices.
        """
        self.governing = governing
        with self.callbacks.deciding() as after:
            if not self.life.deleted and settings != self.life.settings:
                self.life.govern(settings, after)

    def touch(self) -> None:
        """The queue is in use: its `expires` counts from now."""
        with self._lock:
            self.life.last_used = self._clock()

    @property
    def is_throttled(self) -> bool:
        """True while producers should wait for room."""
        return self.life.limit.throttled

    @property
    def is_short_of_memory(self) -> bool:
        """True while the virtual host's memory has no more for it, and it cannot page."""
        return self.life.limit.short_of_memory

    def __len__(self) -> int:
        return self.life.figures.depth

    def statistics(self) -> QueueStatistics:
        """The queue in figures, at one moment."""
        with self._lock:
            consumers, limit = self.life.consumers, self.life.limit
            return self.life.figures.statistics(
                consumers=len(consumers),
                consumers_willing=len(consumers) - len(consumers.not_interested),
                is_throttled=limit.throttled,
            )

    def reset_statistics(self) -> None:
        """Start new high-water marks from the present figures."""
        with self._lock:
            self.life.figures.reset_high_water_marks()

    def head(self) -> Message | None:
        """The message that a get would have next; None if there is none in memory, or groups decide.

        It stays, and costs no walk over what consumers have.
        """
        with self.callbacks.deciding() as after:
            source, entry = self.life.source, None
            # With groups there is no reader that has passed over what consumers have: a walk from the beginning.
            if isinstance(source, ResidentEntries | FairEntries) and not (
                self.settings.has_groups or self.life.deleted
            ):
                entry = source.next_for(source.getter, after)
        return None if entry is None else entry.message

    def consumers(self) -> list[QueueConsumer]:
        """The consumers, highest priority first."""
        with self._lock:
            return list(self.life.consumers)

    def check_invariants(self) -> None:
        """Raise AssertionError when the queue contradicts itself, or somebody waits who should not.

        Walks the whole queue under its lock; for tests. Calls selectors, without the lock.
        """
        with self._lock:
            doubtful = self.life.check_invariants()
        for entry, consumer, claim in doubtful:
            assert not self.callbacks.matches(consumer.selector, entry.message), claim

    # -- details

    def _check_deletable_locked(self, if_unused: bool, if_empty: bool) -> None:
        if self.life.deleted:
            return
        if if_unused and len(self.life.consumers):
            raise PreconditionFailed(f"{self.label} in use")
        if if_empty and self.life.figures.ready:
            raise PreconditionFailed(f"{self.label} not empty")

    def _delete_locked(self, after: After, *, dead_letter: bool = False) -> int:
        count = self.life.delete(DeadLetterReason.QUEUE_DELETED if dead_letter else None, after)
        if self._on_deleted is not None:
            after.append(partial(self._on_deleted, self))
        return count

    def relieve(self) -> None:
        """As `Spill.relieve`."""
        if self._pager is not None:
            self._pager.relieve()

    def keep_in_memory(self, departed: dict[int, None] | None = None) -> None:
        """Keep everything in memory from now on; `departed` is called with stored messages that leave. Nothing is on
        the queue, and the lock is held.
        """
        entries = make_entry_list(self.settings, self.label)
        source: FairEntries | ResidentEntries
        if isinstance(entries, FairEntryList) and self.life.is_fair:
            source = FairEntries(self.life, entries, departed)
        else:
            source, self.life.key_of = ResidentEntries(self.life, entries, departed), entries.key_of
        self.life.read_from(source, ResidentWalk(self.life, entries, self.callbacks))

    @property
    def is_deleted(self) -> bool:
        """True once it was deleted, or closed."""
        return self.life.deleted

    def check_open(self) -> None:
        """Return unless it was closed: what a store has of it is not gone then. Raises as `VirtualHost.check_open`."""
        if self.life.is_closed and self.journal is not None:
            self.journal.host.check()  # first: a virtual host that is closed to be opened again is down
            raise BrokerClosed(f"{self.label} is closed")

    def in_slices(self, do_some_locked: Callable[[After], bool], most: float = math.inf) -> bool:
        """Have some of it done in each of up to `most` holds of the lock; True when there is more after those."""
        while most > 0:
            with self.callbacks.deciding() as after:
                is_more = do_some_locked(after)
            if not is_more:
                return False
            nap()
            most -= 1
        return True

    def in_visits(self, do_some_locked: Callable[[After], bool], at_once: int) -> None:
        """As `in_slices`: so many now, the others by visits of housekeeping, or now if nothing visits the queue."""
        request = self._request
        self.in_slices(do_some_locked, math.inf if request is None else at_once)
        if request is not None:  # though nothing may be left: what was planned would keep a queue that is deleted
            request(self, AT_ONCE)

    def attend(self, ask: Callable[[Any, float], object] | None) -> None:
        """For `Housekeeping`: from now on, `ask(queue, when)` has this queue's `housekeeping` called."""
        with self._lock:
            self._request, self._next_visit = ask, math.inf
            self.visit_by(self.life.next_time())

    def visit_by(self, when: float) -> None:
        """Have housekeeping come at this time, or AT_ONCE. The lock is held."""
        if when < self._next_visit:
            if when != AT_ONCE:  # which puts off no time that is named later
                self._next_visit = when
            if self._request is not None:
                self._request(self, when)

    def __repr__(self) -> str:
        return f"<broker {self.label}>"

    def _repr_html_(self) -> str:
        """For notebooks: its figures."""
        its = self.statistics()
        columns = ("ready", "unacked", "consumers", "bytes", "in", "out", "acked", "redelivered")
        ready = its.available + its.held
        row = (ready, its.unacked, its.consumers, its.depth_bytes, its.enqueued, its.delivered, its.acked)
        return notebook_table(f"broker {self.label}", columns, [(*row, its.redelivered)])


def _slices_of(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[begin : begin + _SLICE] for begin in range(0, len(items), _SLICE)]
