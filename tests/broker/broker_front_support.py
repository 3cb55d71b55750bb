"""What the tests of the broker's front share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from multiqueue.broker._binding import Binding
from multiqueue.broker._exchange import Exchange
from multiqueue.broker._topology import DeclaredQueue, Topology

if TYPE_CHECKING:
    from multiqueue.broker._queue import BrokerQueue


class NamedQueue:
    """As much of a broker queue as routing looks at."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def named_queue(name: str) -> BrokerQueue:
    """A queue that is never put to."""
    return cast("BrokerQueue", NamedQueue(name))


class RoutingPlan:
    """A topology to which exchanges, queues and bindings are added by name."""

    def __init__(self) -> None:
        self.topology = Topology("/")
        self.default = self.topology.add_exchange(Exchange(""))

    def exchange(self, name: str, type: str = "direct", **settings: Any) -> Exchange:
        return self.topology.add_exchange(Exchange(name, type, **settings))

    def queue(self, name: str) -> BrokerQueue:
        return self.topology.add_queue(DeclaredQueue(named_queue(name), {}), self.default).queue

    def bind(self, source: Exchange, destination: BrokerQueue | Exchange, key: str = "") -> Binding:
        binding = Binding(source, destination, key)
        assert self.topology.bind(binding)
        return binding


HANG = 60.0  # seconds after which a test that waits for another thread has failed


def until(condition: Callable[[], object]) -> None:
    """Let other threads run until the condition holds."""
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def bodies(queue: BrokerQueue) -> list[object]:
    """The bodies of the messages on a queue that nobody has, in order."""
    return [message.body for message in queue.browse()]
