"""A virtual host: queues, exchanges and bindings, and the way of a message into queues.

Promise     A message is put once on every queue that its exchange and routing key lead to, and a dead letter goes
            on until it is lost or would go round for ever. A call that raises has changed nothing,
            `MessageRefused` apart.
State       `_lock` guards the subscriptions and the two counters of dead letters. It is a leaf, like the
            topology's: no queue is called with either of them held.
Who runs    Any thread may call anything. Only `wait_for_room` blocks, and closing waits for callbacks that run; with
            a store also whatever promises that something is stored: see docs/design/broker-durability.md.
            Conditions of bindings read header values on the publisher's thread, dead letters go on on the thread
            that caused them, both under no lock.
Membership  A message routed to a queue that is deleted before it is put there counts as not routed there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, TypedDict, Unpack

from multiqueue.store import Commit, Delivered, MessageStore, StoreClosed, StoreFailed

from ._alerts import Alert
from ._arguments import consumer_arguments
from ._consumer import Predicate
from ._credit import Credit
from ._dead_letter import dead_letter, is_cycle
from ._declarations import Declarations
from ._definitions import KeptQueue
from ._errors import MessageRefused, NoConsumers, NotFound, Unroutable
from ._exchange import ExchangeStatistics
from ._housekeeping import Housekeeping
from ._journal import Journal, QueueJournal, follow
from ._memory import MemoryManager, MemoryStatistics
from ._message import Message
from ._overflow import Overflow
from ._queue import BrokerQueue
from ._queue_base import QueueBase
from ._queue_outcome import DeadLetterReason, PutOutcome
from ._queue_settings import QueueSettings
from ._queue_statistics import QueueStatistics
from ._received import Getter, Received
from ._recovery import recover
from ._scheduler import Scheduler
from ._selector import compile_selector
from ._stored_expiry import StoredExpiry
from ._stored_topology import StoredTopology
from ._submission import Submission
from ._subscription import (
    CallbackSubscription,
    FailureHandler,
    MessageCallback,
    PullSubscription,
    Subscription,
    call_back,
    runs_callback,
)
from ._topology import Topology
from ._transaction import Transaction
from ._watched_store import WatchedStore

MEMORY_LIMIT: Final = 256 << 20  # bytes of messages a virtual host with a store keeps in memory

_log = logging.getLogger("multiqueue.broker")


def _log_alert(alert: Alert) -> None:
    _log.warning("%s", alert)


class ConsumerOptions(TypedDict, total=False):
    """How a subscription consumes.

    `selector` is text or a predicate over messages; a higher `priority` (0) is served first; `browse` sees messages
    without taking them; `auto_accept` settles on delivery; `exclusive` lets nobody beside it; `no_local` passes
    over messages whose `publisher` is the `owner`, the connection that consumes. `arguments` are a wire's way to
    say some of this: `x-priority` and `x-filter-jms-selector`, where priority and selector are not given.
    """

    selector: str | Predicate | None
    priority: int
    browse: bool
    auto_accept: bool
    exclusive: bool
    no_local: bool
    owner: object
    arguments: Mapping[str, object]


class Published(NamedTuple):
    """How many queues have the message, and which of them ask the producer to wait for room.

    `commit` is on its way while durable queues wait for their store; None where there is nothing to wait for.
    """

    queues: int
    throttled: tuple[BrokerQueue, ...] = ()
    commit: Commit | None = None

    @property
    def is_confirmed(self) -> bool:
        """True when every queue has what it was promised, or never will; `wait` says which."""
        return self.commit is None or self.commit.is_done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until durable queues have the message; False when `timeout` seconds passed first.

        Raises:
            StoreFull: there was no room; no durable queue has it.
            StoreFailed, StoreClosed: it is not known to be stored, and the store is at its end.
        """
        return self.commit is None or self.commit.wait(timeout)

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Have `callback(None)`, or `callback(error)` of `wait`, called once: now if it is known, else on the store's
        thread, in the order in which messages were published. It must not block: other commits wait for it. What it
        raises is logged.
        """
        if self.commit is None:
            callback(None)
        else:
            self.commit.add_done_callback(lambda error: follow(lambda: callback(error)))


# What most publishes come to, made once: a tenth of their cost.
_ON_ONE_QUEUE = Published(1)
_ENQUEUED = PutOutcome.ENQUEUED


@dataclass(frozen=True, slots=True)
class VirtualHostStatistics:
    """A snapshot: every queue and exchange by name, and what became of dead letters."""

    queues: Mapping[str, QueueStatistics]
    exchanges: Mapping[str, ExchangeStatistics]
    dead_letters_routed: int
    dead_letters_lost: int

    @property
    def depth(self) -> int:
        """Messages on all queues, those that consumers have included."""
        return sum(queue.depth for queue in self.queues.values())


class VirtualHost(Declarations):
    """One name space of queues and exchanges.

    `clock` gives seconds that never go back, `wall_clock` seconds since 1970 for the record of dead letters.

    With a `store`, which it closes with itself, it begins with what the store has: durable exchanges, queues and
    bindings, and the persistent messages on them. `memory_limit` is in bytes.

    Raises:
        StoreDamaged: the store has something that cannot be read.
    """

    def __init__(
        self,
        name: str = "/",
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        on_alert: Callable[[Alert], None] | None = None,
        scheduler: Scheduler | None = None,
        housekeeping: Housekeeping | None = None,
        store: MessageStore | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        self._store = store
        self._memory = MemoryManager(memory_limit, name=name)
        self._journal = None
        if store is not None:
            self._journal = Journal(WatchedStore(store, self._memory), clock=clock, wall_clock=wall_clock)
        self._overflow = Overflow(self._memory, self._journal, self._bury, clock=clock, wall_clock=wall_clock)
        topology = Topology(name) if self._journal is None else StoredTopology(name, self._journal)
        super().__init__(name, self._new_queue, topology)
        self._clock = clock
        self._wall_clock = wall_clock
        self._on_alert = on_alert or _log_alert
        self._scheduler = scheduler
        self._housekeeping = housekeeping
        self._getter = Getter()
        self._lock = threading.Lock()
        self._subscriptions: dict[Subscription, None] = {}
        self._dead_letters_routed = 0
        self._dead_letters_lost = 0
        if self._journal is not None and isinstance(topology, StoredTopology):
            self._memory.expiry = StoredExpiry(self._journal, self._memory)
            recover(self._journal.store, topology, self._kept_queue)
            self._journal.on_failed = self._store_failed
            if housekeeping is not None:
                housekeeping.add(self._journal)

    def _new_queue(self, name: str, settings: QueueSettings) -> BrokerQueue:
        journal = None
        if self._journal is not None and settings.durable and not settings.exclusive:
            self._journal.check()
            journal = QueueJournal(self._journal, self._journal.store.allocate(), self._bury)
        return self._make(name, settings, journal)

    def _kept_queue(self, kept: KeptQueue) -> BrokerQueue:
        assert self._journal is not None
        return self._make(kept.name, kept.settings, QueueJournal(self._journal, kept.number, self._bury))

    def _make(self, name: str, settings: QueueSettings, journal: QueueJournal | None) -> BrokerQueue:
        queue = BrokerQueue(
            name,
            settings=settings,
            clock=self._clock,
            dead_letter=self._dead_letter,
            on_deleted=self._forget,
            on_alert=self._alert,
            vhost=self.name,
            journal=journal,
            memory=self._memory,
            overflow=self._overflow.rows,
        )
        if journal is not None:
            self._memory.lending.relieve()  # with a queue that pages there is less to lend
        if self._housekeeping is not None:
            self._housekeeping.add(queue)
        return queue

    @property
    def memory_limit(self) -> int:
        """Bytes of messages that are kept in memory; what is more is in the store alone. Can be assigned."""
        return self._memory.limit

    @memory_limit.setter
    def memory_limit(self, limit: int) -> None:
        self._memory.limit = limit

    def memory_statistics(self) -> MemoryStatistics:
        """Who uses the memory, and how far each consumer's list is in it."""
        return self._memory.statistics()

    @property
    def store(self) -> MessageStore | None:
        """What keeps this virtual host, None when it lives in memory."""
        return self._store

    def check_open(self) -> None:
        """Return when the virtual host can be used.

        Raises:
            BrokerClosed: it was closed.
            StoreFailed: its store failed; close it and open it again.
        """
        super().check_open()
        if self._journal is not None:
            self._journal.check()

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """Block until the store has everything that was published and settled before; False when `timeout` passed.

        Raises:
            StoreFailed, StoreClosed: the store came to its end first.
            RuntimeError: called by something that follows a commit, on the store's own thread.
        """
        return self._journal is None or self._journal.wait_for_commits(timeout)

    def _alert(self, alert: Alert) -> None:
        call_back(self._on_alert, alert)

    def _forget(self, queue: BrokerQueue) -> None:
        self._topology.remove_queue(queue)

    # Messages

    def publish(self, message: Message, *, mandatory: bool = False, immediate: bool = False) -> Published:
        """Put the message on every queue that its exchange and routing key lead to, once each.

        Blocks only when the message is persistent and a durable queue is among them: until it is committed there,
        on all of them or on none. On other queues it is at once.

        Order: two messages of one thread to one queue keep theirs. Queues are served one after the other, so
        another thread may see the message on one of them before the next has it.

        Raises:
            NotFound: no such exchange.  AccessRefused: an internal one.
            Unroutable: `mandatory`, and no queue has it.
            NoConsumers: `immediate`, and no queue had a consumer with credit that wanted it.
            MessageRefused: queues at their limit refused it; the others have it.
            TypeError: it is persistent, and body or headers are nothing that a durable queue's store can keep.
            StoreFull: the store has no room; no durable queue has it, every other one does.
            StoreFailed: the store failed. It is not known whether it has the message.
        """
        if self._closed or self._journal is not None:
            self.check_open()
        queues = self._topology.route(message)
        return self.put_on(queues, message, mandatory=mandatory, immediate=immediate, wait=True)

    def publish_nowait(self, message: Message, *, mandatory: bool = False, immediate: bool = False) -> Published:
        """As `publish`, but the commit is the caller's to wait for: `Published.wait` or `add_done_callback`.

        What it raises was decided before anything was stored. It blocks only while too many bytes wait for their
        commit.
        """
        self.check_open()
        return self.put_on(self._topology.route(message), message, mandatory=mandatory, immediate=immediate)

    def route(self, message: Message) -> list[BrokerQueue]:
        """The queues that `publish` would put the message on now. Raises as `publish` for its exchange."""
        self.check_open()
        return self._topology.route(message)

    def put_on(
        self,
        queues: list[BrokerQueue],
        message: Message,
        *,
        mandatory: bool = False,
        immediate: bool = False,
        wait: bool = False,
    ) -> Published:
        """The second half of `publish`, which says what it raises; without `wait`, of `publish_nowait`."""
        if self._journal is not None and message.persistent:
            return self._put_persistent(self._journal, queues, message, mandatory, immediate, wait)
        accepted = 0
        otherwise: list[tuple[BrokerQueue, PutOutcome]] = []
        for queue in queues:
            outcome = queue.put(message, immediate=immediate)
            if outcome is _ENQUEUED:
                accepted += 1
            else:
                otherwise.append((queue, outcome))
        if otherwise or (mandatory and not accepted):
            return self.account_for(message, accepted, otherwise, mandatory)
        return _ON_ONE_QUEUE if accepted == 1 else Published(accepted)

    def _put_persistent(
        self,
        journal: Journal,
        queues: list[BrokerQueue],
        message: Message,
        mandatory: bool,
        immediate: bool,
        wait: bool,
    ) -> Published:
        """Durable queues get it in one commit; the others when that is under way."""
        submission = Submission(journal)
        outcomes = submission.put_on([queue for queue in queues if queue.is_stored], message, immediate=immediate)
        commit = submission.submit()
        for queue in queues:
            if not queue.is_stored:
                outcomes.append((queue, queue.put(message, immediate=immediate)))
        if commit is not None and wait and journal.may_wait:
            commit.wait()
        if outcomes and all(outcome is _ENQUEUED for _, outcome in outcomes):
            return Published(len(outcomes), (), commit)
        return self.account_for(message, 0, outcomes, mandatory, commit)

    def account_for(
        self,
        message: Message,
        accepted: int,
        otherwise: list[tuple[BrokerQueue, PutOutcome]],
        mandatory: bool,
        commit: Commit | None = None,
    ) -> Published:
        """What a put came to when it is not simply on every queue; raises as `publish`.

        `accepted` queues have it, besides those that `otherwise` says have.
        """
        throttled = tuple(queue for queue, outcome in otherwise if outcome is PutOutcome.THROTTLED)
        refused = tuple(queue.name for queue, outcome in otherwise if outcome is PutOutcome.REJECTED)
        accepted += sum(outcome.accepted for _, outcome in otherwise)
        if refused:
            names = ", ".join(f"'{name}'" for name in refused)
            detail = f"at their limit in vhost '{self.name}': {names}; consume from them or raise the limit"
            raise MessageRefused(detail, message=message, queues=refused)
        if not accepted and any(outcome is PutOutcome.NO_CONSUMER for _, outcome in otherwise):
            raise NoConsumers(f"no consumer wants the message now in vhost '{self.name}'", message=message)
        if not accepted and mandatory:
            raise Unroutable(
                f"exchange '{message.exchange}' in vhost '{self.name}' leads"
                f" routing key '{message.routing_key}' to no queue",
                message=message,
            )
        return Published(accepted, throttled, commit)

    def wait_for_room(self, published: Published, timeout: float | None = None) -> bool:
        """Block until the queues that a publish throttled have room; False when `timeout` seconds passed first.

        In a callback it returns at once: the room may be for that very thread to make.
        """
        if runs_callback():
            return not published.throttled
        deadline = None if timeout is None else time.monotonic() + timeout
        for queue in published.throttled:
            if not queue.wait_for_room(_remaining(deadline)):
                return False
        return True

    # Receiving

    def get(self, queue: str, *, auto_accept: bool = False, owner: object = None) -> Received | None:
        """The first message of a queue that nobody has, or None. Does not block.

        Raises:
            NotFound: no such queue.  ResourceLocked: it belongs to another owner.
        """
        return self._getter.get(self.queue(queue, owner=owner), auto_accept=auto_accept)

    def consume(
        self,
        queues: str | Iterable[str],
        callback: MessageCallback,
        *,
        on_error: FailureHandler | None = None,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        name: str = "",
        **options: Unpack[ConsumerOptions],
    ) -> Subscription:
        """Let messages of the queues go to `callback`, one at a time, until the subscription is closed.

        The callback settles what it receives, then or later; at most `prefetch` messages and `prefetch_bytes`
        are unsettled at once. When it raises, `on_error(received, error)` is told, by default the log, and the
        message stays unsettled. Two subscriptions may run at once, one never twice.

        Raises:
            NotFound: no such queue.  ResourceLocked: it belongs to another owner.
            AccessRefused: exclusive use by another consumer, or asked for beside others.
            PreconditionFailed, SelectorError: an argument or the selector does not fit.
            RuntimeError: this virtual host was made without a scheduler.
        """
        self.check_open()
        if self._scheduler is None:
            raise RuntimeError(f"vhost '{self.name}' has no threads for callbacks; use subscribe, or a Broker")
        subscription = CallbackSubscription(
            self._scheduler,
            callback,
            credit=Credit(prefetch, prefetch_bytes),
            name=name,
            on_error=on_error,
            on_closed=self._ended,
        )
        self._start(subscription, queues, options)
        return subscription

    def subscribe(
        self,
        queues: str | Iterable[str],
        *,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        name: str = "",
        **options: Unpack[ConsumerOptions],
    ) -> PullSubscription:
        """A subscription to block on: `get` and iteration give messages of all the queues, in turn.

        Raises:
            NotFound, ResourceLocked, AccessRefused, PreconditionFailed, SelectorError: as `consume`.
        """
        self.check_open()
        subscription = PullSubscription(credit=Credit(prefetch, prefetch_bytes), name=name, on_closed=self._ended)
        self._start(subscription, queues, options)
        return subscription

    def _start(self, subscription: Subscription, queues: str | Iterable[str], options: ConsumerOptions) -> None:
        owner = options.pop("owner", None)
        with self._lock:
            self._subscriptions[subscription] = None
        try:
            arguments = consumer_arguments(f"a consumer in vhost '{self.name}'", options.pop("arguments", {}))
            selector = compile_selector(options.pop("selector", None)) or arguments.selector
            options.setdefault("priority", arguments.priority)
            for name in [queues] if isinstance(queues, str) else queues:
                subscription.target.consume(
                    self.queue(name, owner=owner),
                    on_cancelled=subscription.queue_deleted,
                    selector=selector,
                    connection=owner,
                    **options,
                )
        except BaseException:
            subscription.close()
            raise

    def _ended(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.pop(subscription, None)

    def submission(self) -> Submission | None:
        """What is to be stored together; None when this virtual host lives in memory."""
        return None if self._journal is None else Submission(self._journal)

    def transaction(self) -> Transaction:
        """A new transaction over publishes to this virtual host and settlements of its deliveries."""
        return Transaction(self)

    def _dead_letter(self, queue: BrokerQueue, message: Message, reason: DeadLetterReason) -> None:
        """Send a dead letter on. Called by the queue it left, on any thread, under no lock."""
        if self._journal is None:
            self.send_on(queue, message, reason, None)
        else:
            submission = Submission(self._journal, is_owed=True)
            self.send_on(queue, message, reason, submission)
            submission.submit_if_open()

    def _bury(self, queue: QueueBase, message: Message, reason: DeadLetterReason, submission: Submission) -> None:
        """Send a dead letter on in the commit that deletes it where it was."""
        self.send_on(queue, message, reason, submission)

    def send_on(
        self, queue: QueueBase, message: Message, reason: DeadLetterReason, submission: Submission | None
    ) -> None:
        """Send a dead letter where its queue says: with a submission, when that is committed."""
        settings = queue.settings
        if settings.dead_letter_exchange is None or (self._closed and submission is None):
            return
        letter = dead_letter(
            message,
            queue=queue.name,
            reason=reason,
            exchange=settings.dead_letter_exchange,
            routing_key=settings.dead_letter_routing_key,
            now=datetime.fromtimestamp(self._wall_clock(), UTC),
        )
        reached = 0
        for target in self._routes_of_dead_letter(letter):
            if reason is not DeadLetterReason.REJECTED and is_cycle(letter, target.name):
                continue
            if submission is None:
                reached += target.put(letter).accepted
            elif target.is_stored and letter.persistent:
                reached += self._put_letter(submission, target, letter)
            else:
                submission.then(partial(target.put, letter))
                reached += not target.is_deleted
        with self._lock:
            if reached:
                self._dead_letters_routed += 1
            else:
                self._dead_letters_lost += 1

    def _put_letter(self, submission: Submission, target: BrokerQueue, letter: Message) -> bool:
        """False when the target has no room for it, or its store cannot keep what was in memory so far."""
        try:
            return submission.put(target, letter).accepted
        except TypeError as error:
            _log.error("a dead letter for %s is lost: %s", target.label, error)
            return False

    def _routes_of_dead_letter(self, letter: Message) -> list[BrokerQueue]:
        try:
            return self._topology.route(letter, internal=True)
        except NotFound:
            return []  # as in RabbitMQ, the exchange need not exist; the letter is counted as lost

    # The virtual host itself

    def statistics(self) -> VirtualHostStatistics:
        """Every queue and exchange in figures; each queue at a moment of its own."""
        queues = {each.name: each.queue.statistics() for each in self._topology.queues()}
        exchanges = {each.name: each for each in self._topology.exchange_statistics()}
        with self._lock:
            return VirtualHostStatistics(queues, exchanges, self._dead_letters_routed, self._dead_letters_lost)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def close(self, timeout: float | None = None) -> None:
        """End every subscription, end every queue, refuse everything further; closing twice is harmless.

        Callbacks that run are waited for, `timeout` seconds at most; a callback that closes waits for none. What
        a store has stays there, and the store is closed; all other messages are gone.

        Raises:
            StoreFailed: the disk failed at the very end. Nothing that was committed is lost.
            RuntimeError: called by something that follows a commit, on the store's own thread. Nothing was done.
        """
        if self._journal is not None and not self._journal.may_wait:
            raise RuntimeError(
                f"vhost '{self.name}' cannot be closed by what follows a commit: its store waits for that"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        self._closed = True
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close(_remaining(deadline))
        self._getter.close()
        for queue in self.queues():
            if not queue.is_stored:
                queue.delete()
        if self._journal is not None:
            self._close_store(self._journal)
        self._memory.close()
        self._overflow.close()
        for queue in self.queues():
            queue.delete()

    def _store_failed(self) -> None:
        """Nothing is accepted any more; end the subscriptions, or they would go on with what cannot be settled."""
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close(0.0)

    def _close_store(self, journal: Journal) -> None:
        """Let what is under way arrive, note how often messages were delivered, and let go of the store."""
        if self._housekeeping is not None:
            self._housekeeping.remove(journal)
        stored = [queue for queue in self.queues() if queue.is_stored]
        try:
            journal.wait_for_commits()
            journal.submit([Delivered(number, count) for queue in stored for number, count in queue.deliveries()])
        except (StoreFailed, StoreClosed):
            pass
        for queue in stored:
            queue.close()
        self._memory.close()
        journal.store.close()

    def check_invariants(self) -> None:
        """Raise AssertionError when topology or a queue contradicts itself. For tests."""
        self._topology.check_invariants()
        self._memory.check_invariants()
        for queue in self.queues():
            queue.check_invariants()


def _remaining(deadline: float | None) -> float | None:
    """Seconds until a deadline, None for none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
