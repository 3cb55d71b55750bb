"""What the client's suites share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multiqueue.testing import PATIENCE

if TYPE_CHECKING:
    from multiqueue.client import Channel, Message

# A broker in the process, our server over TCP, RabbitMQ over TCP: the names of what `peer` gives.
PEERS = ["in_process", "server", "rabbitmq"]


class Seen:
    """Collects what callbacks are called with, and lets a test wait for as many as it needs."""

    def __init__(self, then: Callable[[Any], object] = lambda argument: None) -> None:
        self._then = then
        self._changed = threading.Condition()
        self.all: list[Any] = []
        self.threads: list[str] = []

    def __call__(self, argument: Any) -> None:
        self._then(argument)
        with self._changed:
            self.all.append(argument)
            self.threads.append(threading.current_thread().name)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[Any]:
        """The first `count`, when they are there."""
        with self._changed:
            there = self._changed.wait_for(lambda: len(self.all) >= count, PATIENCE)
        assert there, f"{len(self.all)} of {count} came: {self.all}"
        return self.all[:count]

    def bodies(self, count: int) -> list[bytes]:
        return [message.body for message in self.wait_for(count)]


def publish(channel: Channel, queue: str, *bodies: bytes) -> None:
    """Publish and know that the messages are on the queue."""
    for body in bodies:
        channel.publish_confirmed(body, routing_key=queue).result(PATIENCE)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def ack(message: Message) -> None:
    message.ack()
