"""A virtual host: queues, exchanges and bindings, and the way of a message into queues.

Promise     A message is put once on every queue that its exchange and routing key lead to, and a dead letter goes
            on until it is lost or would go round for ever. A call that raises has changed nothing,
            `MessageRefused` apart.
State       `_lock` guards the subscriptions and the two counters of dead letters. It is a leaf, like the
            topology's: no queue is called with either of them held.
Who runs    Any thread may call anything. Only `wait_for_room` blocks, and closing waits for callbacks that run.
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
from typing import NamedTuple, TypedDict, Unpack

from ._alerts import Alert
from ._arguments import consumer_arguments
from ._consumer import Predicate
from ._credit import Credit
from ._dead_letter import dead_letter, is_cycle
from ._declarations import Declarations
from ._errors import MessageRefused, NoConsumers, NotFound, Unroutable
from ._exchange import ExchangeStatistics
from ._housekeeping import Housekeeping
from ._message import Message
from ._queue import BrokerQueue
from ._queue_outcome import DeadLetterReason, PutOutcome
from ._queue_settings import QueueSettings
from ._queue_statistics import QueueStatistics
from ._received import Getter, Received
from ._scheduler import Scheduler
from ._selector import compile_selector
from ._subscription import (
    CallbackSubscription,
    FailureHandler,
    MessageCallback,
    PullSubscription,
    Subscription,
    call_back,
    runs_callback,
)
from ._transaction import Transaction

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
    """How many queues have the message, and which of them ask the producer to wait for room."""

    queues: int
    throttled: tuple[BrokerQueue, ...] = ()


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
    ) -> None:
        super().__init__(name, self._new_queue)
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

    def _new_queue(self, name: str, settings: QueueSettings) -> BrokerQueue:
        queue = BrokerQueue(
            name,
            settings=settings,
            clock=self._clock,
            dead_letter=self._dead_letter,
            on_deleted=self._forget,
            on_alert=self._alert,
            vhost=self.name,
        )
        if self._housekeeping is not None:
            self._housekeeping.add(queue)
        return queue

    def _alert(self, alert: Alert) -> None:
        call_back(self._on_alert, alert)

    def _forget(self, queue: BrokerQueue) -> None:
        self._topology.remove_queue(queue)

    # Messages

    def publish(self, message: Message, *, mandatory: bool = False, immediate: bool = False) -> Published:
        """Put the message on every queue that its exchange and routing key lead to, once each. Never blocks.

        Order: two messages of one thread to one queue keep theirs. Queues are served one after the other, so
        another thread may see the message on one of them before the next has it.

        Raises:
            NotFound: no such exchange.  AccessRefused: an internal one.
            Unroutable: `mandatory`, and no queue has it.
            NoConsumers: `immediate`, and no queue had a consumer with credit that wanted it.
            MessageRefused: queues at their limit refused it; the others have it.
        """
        if self._closed:
            self.check_open()
        return self.put_on(self._topology.route(message), message, mandatory=mandatory, immediate=immediate)

    def route(self, message: Message) -> list[BrokerQueue]:
        """The queues that `publish` would put the message on now. Raises as `publish` for its exchange."""
        self.check_open()
        return self._topology.route(message)

    def put_on(
        self, queues: list[BrokerQueue], message: Message, *, mandatory: bool = False, immediate: bool = False
    ) -> Published:
        """The second half of `publish`: put a message on the queues it was routed to."""
        accepted = 0
        otherwise: list[tuple[BrokerQueue, PutOutcome]] = []
        for queue in queues:
            outcome = queue.put(message, immediate=immediate)
            if outcome is _ENQUEUED:
                accepted += 1
            else:
                otherwise.append((queue, outcome))
        if otherwise or (mandatory and not accepted):
            return self._account_for(message, accepted, otherwise, mandatory)
        return _ON_ONE_QUEUE if accepted == 1 else Published(accepted)

    def _account_for(
        self, message: Message, accepted: int, otherwise: list[tuple[BrokerQueue, PutOutcome]], mandatory: bool
    ) -> Published:
        """What a put came to when it is not simply on every queue."""
        throttled = tuple(queue for queue, outcome in otherwise if outcome is PutOutcome.THROTTLED)
        refused = tuple(queue.name for queue, outcome in otherwise if outcome is PutOutcome.REJECTED)
        accepted += len(throttled)
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
        return Published(accepted, throttled)

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

    def transaction(self) -> Transaction:
        """A new transaction over publishes to this virtual host and settlements of its deliveries."""
        return Transaction(self)

    def _dead_letter(self, queue: BrokerQueue, message: Message, reason: DeadLetterReason) -> None:
        """Send a dead letter on. Called by the queue it left, on any thread, under no lock."""
        settings = queue.settings
        if settings.dead_letter_exchange is None or self._closed:
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
            if reason is DeadLetterReason.REJECTED or not is_cycle(letter, target.name):
                reached += target.put(letter).accepted
        with self._lock:
            if reached:
                self._dead_letters_routed += 1
            else:
                self._dead_letters_lost += 1

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
        return self._closed

    def close(self, timeout: float | None = None) -> None:
        """End every subscription, delete every queue, refuse everything further; closing twice is harmless.

        Callbacks that run are waited for, `timeout` seconds at most; a callback that closes waits for none.
        Messages are gone: this virtual host lives in memory.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._closed = True
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close(_remaining(deadline))
        self._getter.close()
        for queue in self.queues():
            queue.delete()

    def check_invariants(self) -> None:
        """Raise AssertionError when topology or a queue contradicts itself. For tests."""
        self._topology.check_invariants()
        for queue in self.queues():
            queue.check_invariants()


def _remaining(deadline: float | None) -> float | None:
    """Seconds until a deadline, None for none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
