"""A virtual host: one name space of queues, exchanges and bindings, with its store and its memory; its life.

It makes its parts and gives each the others that it needs. Their locks are leaves: no queue is called with one of them
held. "Closing" in docs/design/broker-durability.md has the order in which they end.

State       `_scratch_lock` guards `_scratch` and `_next_try`, and is held while that store is made, so that there is
            one. It is taken under no other lock.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from multiqueue.store import Delivered, MessageStore, SqliteStore, StoreClosed, StoreError, StoreFailed

from ..._kinds import check_function, check_seconds
from ..._locks import Lock
from .._base.alerts import Alert
from .._base.message import Message
from .._base.settings import QueueSettings
from .._delivery.housekeeping import Housekeeping
from .._delivery.subscription import Scheduler, Subscription, call_back
from .._durable.journal import Journal
from .._durable.stored_topology import StoredTopology
from .._durable.submission import QueueJournal, Tell
from .._paging.memory import MemoryManager, MemoryStatistics
from .._paging.spill import Spill
from .._queue.figures import QueueStatistics
from .._queue.queue import BrokerQueue
from .._routing.compat import Compat
from .._routing.exchange import Binding, Exchange, ExchangeStatistics
from .._routing.topology import DeclaredQueue, Topology
from .dead_letters import DeadLetterRouting
from .declarations import PREDECLARED, TRACE_EXCHANGE
from .host_limits import HostLimits
from .host_metadata import GlobalParameters, KeptMetadata
from .host_state import HostState, VirtualHostPast
from .policies import Policies
from .publishing import Published, Publisher, Publishing
from .verbs import HostParts, Receiving, Verbs

MEMORY_LIMIT: Final = 256 << 20  # bytes of messages a virtual host with a store keeps in memory
CONSUMER_TIMEOUT: Final = 1800.0  # seconds, RabbitMQ's
_BETWEEN_TRIES: Final = 10.0  # seconds: publishers would try to make a store, and log, with every message

_log = logging.getLogger("multiqueue.broker")


def _log_alert(alert: Alert) -> None:
    _log.warning("%s", alert, extra={"queue": alert.queue})


@dataclass(frozen=True, slots=True)
class VirtualHostStatistics:
    """A snapshot: every queue and exchange by name, and the counts of dead letters."""

    queues: Mapping[str, QueueStatistics]
    exchanges: Mapping[str, ExchangeStatistics]
    dead_letters_routed: int
    dead_letters_lost: int

    @property
    def depth(self) -> int:
        """Messages on all queues, those that consumers have included."""
        return sum(queue.depth for queue in self.queues.values())


class VirtualHost(Verbs):
    """One name space of queues and exchanges.

    `clock` gives seconds that never go back, `wall_clock` seconds since 1970 for the record of dead letters.

    With a `store`, which it closes with itself, it begins with what the store has: durable exchanges, queues and
    bindings, and the persistent messages on them. `memory_limit` is in bytes. `on_store_failure` is called once, when
    the store fails, on the thread that notices, and must not wait. `compat` says which RabbitMQ's rules hold; by
    those of 4.3 a consumer of a quorum queue settles a message within `consumer_timeout` seconds.

    Raises:
        StoreDamaged: the store has something that cannot be read.  StoreFailed: it failed meanwhile.
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
        on_store_failure: Callable[[VirtualHost], object] = lambda host: None,
        compat: Compat | None = None,
        consumer_timeout: float = CONSUMER_TIMEOUT,
    ) -> None:
        self._on_alert = _log_alert if on_alert is None else on_alert
        functions = {"clock": clock, "wall_clock": wall_clock, "on_alert": self._on_alert}
        for what, function in functions.items():
            check_function(what, function)
        check_seconds("consumer_timeout", consumer_timeout)
        self.name: Final = name
        self._memory = MemoryManager(memory_limit, name=name)
        self._make_journal = partial(Journal, memory=self._memory, clock=clock, wall_clock=wall_clock)
        self._journal = None if store is None else self._make_journal(store)
        self._scratch_lock = Lock()
        self._scratch: Journal | None = None  # of the store that `_spill_rows` made
        self._next_try = -math.inf  # on the clock
        compat = compat or Compat()
        topology = Topology(name) if self._journal is None else StoredTopology(name, self._journal)
        for exchange, type in PREDECLARED.items():
            topology.add_exchange(Exchange(exchange, type, durable=True, internal=exchange == TRACE_EXCHANGE))
        host_state = HostState(name, self._journal)
        dead_letters = DeadLetterRouting(topology, host_state, wall_clock, compat)
        publishing = Publishing(topology, self._memory, host_state)
        super().__init__(
            HostParts(
                topology,
                Policies(topology, self._journal, compat),
                HostLimits(self._journal),
                KeptMetadata(name, self._journal),
                self._new_queue,
                host_state,
                publishing,
                dead_letters,
                Receiving(),
                scheduler,
                compat,
            )
        )
        self.parameters: Final = GlobalParameters(self._journal)  # used of `/` alone
        self._clock = clock
        self._consumer_timeout = consumer_timeout
        self._on_store_failure = on_store_failure
        self._housekeeping = housekeeping
        if self._journal is not None and isinstance(topology, StoredTopology):
            topology.recover(lambda kept: self._make(kept.name, kept.settings, kept.number))
            definitions = self._journal.store.definitions()
            self.policies.recover(definitions)
            self.limits.recover(definitions)
            self.metadata.recover(definitions)
            self.parameters.recover(definitions)
            self._journal.on_failed = self._store_failed
            self._journal.check()  # it was told nobody of a failure until now
            if housekeeping is not None:  # not before: it would look at queues that are half opened
                for queue in self.queues():
                    housekeeping.add(queue)
                housekeeping.add(self._journal)
            self._pid = os.getpid()
            atexit.register(self._close_at_exit)  # after the store's own, so it comes before that
            self._memory.refill_heads()

    def _new_queue(self, name: str, settings: QueueSettings) -> BrokerQueue:
        number = None
        if self._journal is not None and settings.durable and not settings.exclusive:
            self._journal.check()
            number = self._journal.store.allocate()
        queue = self._make(name, settings, number)
        if self._housekeeping is not None:
            self._housekeeping.add(queue)
        return queue

    def _make(self, name: str, settings: QueueSettings, number: int | None) -> BrokerQueue:
        """`number` is the queue's in the store, None for one that no store keeps."""
        journal = None
        if self._journal is not None and number is not None:
            journal = QueueJournal(self._journal, number, self.parts.dead_letters.send_on)
        return BrokerQueue(
            name,
            settings=settings,
            clock=self._clock,
            dead_letter=self.parts.dead_letters.send,
            on_deleted=self._forget,
            on_alert=lambda alert: call_back(self._on_alert, alert),
            vhost=self.name,
            journal=journal,
            pager_of=lambda queue: Spill(queue, self._memory, self._spill_rows),
            consumer_timeout=self._consumer_timeout if settings.counts_failures else None,
        )

    def _store_failed(self) -> None:
        """Nothing is accepted any more: subscriptions would go on with what cannot be settled."""
        self.parts.receiving.end_subscriptions(time.monotonic())
        self._on_store_failure(self)

    def _spill_rows(self) -> QueueJournal | None:
        """A place for the rows of a queue that is not durable; None when this is closed, or a try has failed lately.

        The host's store has them as transient rows. Without one, a store in the directory for temporary files does: it
        is made when it is first needed, and removed by `close`, or after a crash by the host that makes the next one.
        Raises StoreError, OSError: no store can be made, or it is at its end. For some seconds it is not tried again.
        """
        with self._scratch_lock:
            if self.is_closed or self._clock() < self._next_try:
                return None
            try:
                journal = self._journal or self._scratch
                if journal is None:
                    journal = self._scratch = self._make_journal(SqliteStore.scratch())
                    if self._housekeeping is not None:
                        self._housekeeping.add(journal)
                return QueueJournal(journal, journal.store.allocate(), self.parts.dead_letters.send_on)
            except (StoreError, OSError):
                self._next_try = self._clock() + _BETWEEN_TRIES
                raise

    @property
    def memory_limit(self) -> int:
        """Bytes of messages that are kept in memory; the others are in the store alone. Can be assigned."""
        return self._memory.limit

    @memory_limit.setter
    def memory_limit(self, limit: int) -> None:
        self._memory.limit = limit

    def memory_statistics(self) -> MemoryStatistics:
        """The users of the memory, and how far each consumer's list is in it."""
        return self._memory.statistics()

    @property
    def store(self) -> MessageStore | None:
        """The store that keeps this virtual host, None when it lives in memory."""
        return None if self._journal is None else self._journal.store

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store of this virtual host is at its end, None while it is not."""
        return None if self._journal is None else self._journal.failure

    def check_open(self) -> None:
        """Return when the virtual host can be used.

        Raises:
            BrokerClosed: it was closed.
            StoreFailed: its store failed; close it and open it again.
        """
        self._host_state.check()

    def _forget(self, queue: BrokerQueue) -> None:
        if self._topology.remove_queue(queue):
            self._host_state.past.deleted(queue.statistics())

    def publisher(self, tell: Tell) -> Publisher:
        """A publisher that hands its messages to the store in runs.

        `tell` is called on the store's thread with tags of messages and whether they were refused, in the order in
        which they were published. It must not block: other commits wait for it.
        """
        return Publisher(self._publishing, tell)

    def route(self, message: Message, further_keys: Sequence[str] = ()) -> list[BrokerQueue]:
        """The queues that `publish` would put the message on, were these its keys too. Raises as `publish`."""
        return self._publishing.route(message, further_keys)

    def delayed(self, message: Message) -> Message:
        """The message as its queues get it: held for its `x-delay`, where its exchange is one that delays."""
        return self._publishing.topology.delayed(message)

    def put_on(self, queues: list[BrokerQueue], message: Message, *, mandatory: bool = False) -> Published:
        """As `publish_nowait`, on the queues to which `route` led."""
        return self._publishing.put_on(queues, message, mandatory=mandatory)

    # What there is

    def has_queue(self, name: str) -> bool:
        """True when there is a queue of this name, also another connection's."""
        return self._topology.find_queue(name) is not None

    def has_exchange(self, name: str) -> bool:
        """True when there is an exchange of this name."""
        return self._topology.find_exchange(name) is not None

    def exchanges(self) -> list[Exchange]:
        """All exchanges, the predeclared ones first."""
        return self._topology.exchanges()

    def exchange_statistics(self) -> list[ExchangeStatistics]:
        """The figures of every exchange."""
        return self._topology.exchange_statistics()

    def queues(self) -> list[BrokerQueue]:
        """All queues, in the order they were declared."""
        return [declared.queue for declared in self._topology.queues()]

    def declared_queues(self) -> list[DeclaredQueue]:
        """All queues with the arguments they were declared with, and their owners."""
        return self._topology.queues()

    def bindings(self) -> list[Binding]:
        """All bindings, those of the default exchange included."""
        return self._topology.bindings()

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions that are open, in the order in which they began."""
        return self.parts.receiving.subscriptions()

    def release_owner(self, owner: object) -> None:
        """The owner is gone: its exclusive queues go too, each of them even if another raises."""
        for declared in self._topology.queues():
            if owner is not None and declared.owner is owner:
                try:
                    declared.queue.delete()
                except Exception:  # noqa: BLE001  # logged; the others must not stay for it
                    label, extra = declared.queue.label, {"queue": declared.name}
                    _log.exception("%s cannot be deleted, whose owner is gone", label, extra=extra)

    # The virtual host itself

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r} queues={len(self.queues())}{' closed' if self.is_closed else ''}>"

    def statistics(self) -> VirtualHostStatistics:
        """Figures of every queue and exchange; each queue's are taken at a different moment."""
        queues = {each.name: each.queue.statistics() for each in self._topology.queues()}
        exchanges = {each.name: each for each in self._topology.exchange_statistics()}
        return VirtualHostStatistics(queues, exchanges, *self._host_state.past.dead_letters())

    def past(self) -> VirtualHostPast:
        """How many queues were created and deleted, with the counters of the deleted ones."""
        received, unroutable = self._topology.gone_through_exchanges()
        return self._host_state.past.figures(received=received, unroutable=unroutable)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._host_state.is_closed

    def close(self, timeout: float | None = None) -> None:
        """Close every subscription and queue, and refuse further calls; closing twice is harmless.

        Callbacks that run are waited for, `timeout` seconds at most; a callback that closes waits for none. What
        a store has stays there, and the store is closed; all other messages are gone.

        Raises:
            StoreFailed: the disk failed at the very end. Nothing that was committed is lost.
            RuntimeError: called by something that follows a commit, on the store's own thread. Nothing was done.
        """
        check_seconds("timeout", timeout)
        self.check_closable()
        atexit.unregister(self._close_at_exit)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._host_state.is_closed = True
        self.parts.receiving.end_subscriptions(deadline)
        self.parts.receiving.getter.close()
        for queue in self.queues():
            if not queue.is_stored:
                queue.delete()
        if self._journal is not None:
            self._close_store(self._journal)
        self._memory.close()
        with self._scratch_lock:
            scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.store.close()
        for queue in self.queues():
            queue.delete()

    def check_closable(self) -> None:
        """Return when `close` may be called on this thread.

        Raises:
            RuntimeError: it follows a commit, on the store's own thread.
        """
        if self._journal is not None and not self._journal.may_wait:
            raise RuntimeError(
                f"vhost '{self.name}' cannot be closed by a callback of a commit: its store waits for the callback"
            )

    def _close_at_exit(self) -> None:
        if os.getpid() == self._pid:  # in a forked child the locks may be held by threads that it does not have
            self.close(0.0)

    def _close_store(self, journal: Journal) -> None:
        """Let what is under way arrive, note how often messages were delivered, and let go of the store."""
        if self._housekeeping is not None:
            self._housekeeping.remove(journal)
        stored = [queue for queue in self.queues() if queue.is_stored]
        # The waiting caller was told why; what it has is delivered again, flagged.
        with suppress(StoreFailed, StoreClosed):
            journal.hand_in_again()
            journal.submit(()).wait()
            journal.submit([Delivered(number, count) for queue in stored for number, count in queue.deliveries()])
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
