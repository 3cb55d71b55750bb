"""What the tests of the broker's front share."""

from __future__ import annotations

from typing import Any, cast

from broker_parts_support import Topology

from multiqueue.broker import Binding, BrokerQueue, DeclaredQueue, Exchange


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


def bodies(queue: BrokerQueue) -> list[object]:
    """The bodies of the ready messages on a queue, in order."""
    return [message.body for message in queue.browse()]
