"""How messages come out of a virtual host: the consumer of its `get`, and its subscriptions.

`_lock`, a leaf, guards the subscriptions that are open. Only `end_subscriptions` blocks, for callbacks that run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypedDict

from .._delivery.received import Getter
from .._delivery.subscription import Subscription
from .._queue.consumer import Predicate
from .publishing import remaining


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
    """Who consumes in one virtual host."""

    def __init__(self) -> None:
        self.getter: Getter = Getter()
        self._lock = threading.Lock()
        self._subscriptions: dict[Subscription, None] = {}

    def add(self, subscription: Subscription) -> None:
        """The subscription begins."""
        with self._lock:
            self._subscriptions[subscription] = None

    def forget(self, subscription: Subscription) -> None:
        """The subscription has ended."""
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
