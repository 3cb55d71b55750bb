"""How messages come out of a virtual host: gets and subscriptions.

State       `_lock`, a leaf, guards the subscriptions that are open.
Who runs    Any thread may call anything, and nothing here blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

from .._base.credit import Credit
from .._delivery.received import Getter, Received
from .._delivery.scheduler import Scheduler
from .._delivery.subscription import (
    CallbackSubscription,
    FailureHandler,
    MessageCallback,
    PullSubscription,
    Subscription,
)
from .._queue.consumer import Predicate
from .._routing.arguments import consumer_arguments
from .._selector.selector import compile_selector
from .dead_letters import HostDeadLetters


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


class HostReceiving(HostDeadLetters):
    """The part of `VirtualHost` that gives messages out."""

    _lock: threading.Lock
    _scheduler: Scheduler | None
    _getter: Getter
    _subscriptions: dict[Subscription, None]

    def get(self, queue: str, *, auto_accept: bool = False, owner: object = None) -> Received | None:
        """The first message of a queue that nobody has, or None. Does not block, but for reading what is in the store.

        Raises:
            NotFound: no such queue.  ResourceLocked: it belongs to another owner.
            ConsumerNotAdmitted: the queue is paged, and what is unsettled leaves no memory for its next message.
            StoreError: the store cannot be read.
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
