"""A program's calls to a virtual host: publish, get, consume, subscribe; declaring and binding come from below.

A `VirtualHost` has these verbs, and a `Broker` has them for its virtual host `/`: both by this class, over the same
parts. The parts have the state: see `publishing`, and `Receiving` for how messages come out.

State       `Receiving._lock`, a leaf, guards the subscriptions that are open. Only `end_subscriptions` blocks, for
            callbacks that run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict, Unpack

from ..._kinds import check_kind, check_seconds
from ..._locks import Lock
from .._base.credit import Credit
from .._base.message import Message, plain_name
from .._delivery.received import Getter, Received
from .._delivery.subscription import (
    CallbackSubscription,
    FailureHandler,
    MessageCallback,
    PullSubscription,
    Scheduler,
    Subscription,
    runs_callback,
)
from .._queue.consumer import Predicate
from .._routing.arguments import CONSUMER_ARGUMENTS, consumer_arguments
from .._routing.compat import Compat
from .._routing.topology import Topology
from .._selector.selector import compile_selector
from .dead_letters import DeadLetterRouting
from .declarations import Declarations, MakeQueue
from .host_limits import HostLimits
from .host_metadata import KeptMetadata
from .host_state import HostState
from .policies import Policies
from .publishing import Published, Publishing, remaining
from .transaction import Transaction


class ConsumerOptions(TypedDict, total=False):
    """How a subscription consumes.

    `selector` is text or a predicate over messages; a higher `priority` (0) is served first; `browse` sees messages
    without taking them; `auto_accept` settles on delivery; `exclusive` refuses other consumers; `no_local` passes
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


class Receiving:
    """The consumers of one virtual host."""

    def __init__(self) -> None:
        self.getter: Getter = Getter()
        self._lock = Lock()
        self._subscriptions: dict[Subscription, None] = {}

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions[subscription] = None

    def forget(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.pop(subscription, None)

    def subscriptions(self) -> list[Subscription]:
        """Those that are open, in the order in which they began."""
        with self._lock:
            return list(self._subscriptions)

    def end_subscriptions(self, deadline: float | None) -> None:
        """Close each; callbacks that run are waited for until the deadline, None for as long as they run."""
        for subscription in self.subscriptions():
            subscription.close(remaining(deadline))


class HostParts(NamedTuple):
    """The parts of one virtual host, made by it. Without a `scheduler` it has no threads for callbacks."""

    topology: Topology
    policies: Policies
    limits: HostLimits
    metadata: KeptMetadata
    make_queue: MakeQueue
    host_state: HostState
    publishing: Publishing
    dead_letters: DeadLetterRouting
    receiving: Receiving
    scheduler: Scheduler | None
    compat: Compat


class Verbs(Declarations):
    """The verbs of one virtual host. Any thread may call any of them."""

    def __init__(self, parts: HostParts) -> None:
        self.parts = parts
        self._publishing = parts.publishing
        said = parts.policies, parts.limits, parts.metadata
        super().__init__(parts.topology, parts.make_queue, parts.host_state, parts.compat, *said)

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
            MessageTooLarge: it would take more than a quarter of the memory limit. No queue has it.
            MessageRefused: queues at their limit refused it; the others have it.
            TypeError: it is no `Message`; or it is persistent, and no store can keep its body or headers.
            StoreFull: the store has no room; no durable queue has it, every other one does.
            StoreFailed: the store failed. It is not known whether it has the message.
        """
        return self._publishing.publish(message, mandatory, immediate, True)

    def publish_nowait(self, message: Message, *, mandatory: bool = False, immediate: bool = False) -> Published:
        """As `publish`, but the commit is the caller's to wait for: `Published.wait` or `add_done_callback`.

        If it raises, nothing was stored. It blocks only while too many bytes wait for their
        commit.
        """
        return self._publishing.publish(message, mandatory, immediate, False)

    def wait_for_room(self, published: Published, timeout: float | None = None) -> bool:
        """Block until the queues that a publish throttled have room; False when `timeout` seconds passed first.

        In a callback it returns at once: the room may be for that very thread to make.
        """
        if not isinstance(published, Published):
            raise TypeError(f"{published!r} is nothing that was published; give what `publish_nowait` returned")
        check_seconds("timeout", timeout)
        if runs_callback():
            return not published.throttled
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(queue.wait_for_room(remaining(deadline)) for queue in published.throttled)

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """Block until the store has everything that was published and settled before; False when `timeout` passed.

        Raises:
            StoreFailed, StoreClosed: the store came to its end first.
            StoreFull: it has no room even to delete what was settled. It tries again; till then that may come back.
            RuntimeError: called by something that follows a commit, on the store's own thread.
        """
        check_seconds("timeout", timeout)
        journal = self._host_state.journal
        return journal is None or journal.wait_for_commits(timeout)

    def get(self, queue: str, *, auto_accept: bool = False, owner: object = None) -> Received | None:
        """The first ready message of a queue, or None. Does not block, except to read the message from the store.

        Raises:
            NotFound: no such queue.  ResourceLocked: it belongs to another owner.
            ConsumerNotAdmitted: the queue is paged, and unsettled messages leave no memory for its next one.
            StoreError: the store cannot be read.
        """
        received = self.parts.receiving.getter.get(self.queue(queue, owner=owner), auto_accept=auto_accept)
        if received is None:
            self.queue(queue, owner=owner)  # raises where it is gone meanwhile: that is not to be empty
        return received

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

        The callback settles its messages, then or later; at most `prefetch` messages and `prefetch_bytes`
        are unsettled at once. When it raises, `on_error(received, error)` is called, by default the log has it, and the
        message stays unsettled. Two subscriptions may run at once, one never twice.

        Raises:
            NotFound: no such queue.  ResourceLocked: it belongs to another owner.
            AccessRefused: exclusive use by another consumer, or asked for beside others.
            PreconditionFailed, SelectorError: an argument or the selector does not fit.
            RuntimeError: this virtual host was made without a scheduler.
        """
        self._host_state.check()
        scheduler = self.parts.scheduler
        if scheduler is None:
            raise RuntimeError(f"vhost '{self._name}' has no threads for callbacks; use subscribe, or a Broker")
        credit, forget = _credit(prefetch, prefetch_bytes), self.parts.receiving.forget
        subscription = CallbackSubscription(
            scheduler, callback, credit=credit, name=name, on_error=on_error, on_closed=forget
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
        Raises as `consume`; it needs no scheduler.
        """
        self._host_state.check()
        credit, forget = _credit(prefetch, prefetch_bytes), self.parts.receiving.forget
        subscription = PullSubscription(credit=credit, name=name, on_closed=forget)
        self._start(subscription, queues, options)
        return subscription

    def _start(self, subscription: Subscription, queues: str | Iterable[str], options: ConsumerOptions) -> None:
        """Have it consume from the queues; when one of them refuses, it is closed."""
        owner = options.pop("owner", None)
        self.parts.receiving.add(subscription)
        try:
            plain_name("a consumer's name", subscription.target.name)
            given = options.pop("arguments", {})
            arguments = consumer_arguments(f"a consumer in vhost '{self._name}'", given, self.compat)
            if (selector := compile_selector(options.pop("selector", None))) is None:
                selector = arguments.selector
            options.setdefault("priority", arguments.priority)
            check_kind("queues", queues, Iterable, "a queue's name, or several")
            for name in [queues] if isinstance(queues, str) else queues:
                queue, cancelled = self.queue(name, owner=owner), subscription.queue_deleted
                self.compat.check_consumer(queue.label, queue.settings.type, given, CONSUMER_ARGUMENTS)
                subscription.target.consume(
                    queue, on_cancelled=cancelled, selector=selector, connection=owner, **options
                )
            subscription.has_all_queues()
            self._host_state.check()  # what has ended all subscriptions since may not have seen this one
        except BaseException:
            subscription.close()
            raise

    def transaction(self) -> Transaction:
        """A new transaction over publishes to this virtual host and settlements of its deliveries."""
        return Transaction(self.parts.host_state, self._publishing, self.parts.dead_letters)


def _credit(prefetch: int | None, prefetch_bytes: int | None) -> Credit:
    for name, value in (("prefetch", prefetch), ("prefetch_bytes", prefetch_bytes)):
        check_kind(name, value, (int, type(None)), "a whole number, or None")
    return Credit(prefetch, prefetch_bytes)
