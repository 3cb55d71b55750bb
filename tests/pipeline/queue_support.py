"""A broker with a queue for a run without Spark, whose dead letters go to the queue `dead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from multiqueue.broker import Broker
from multiqueue.client import Connection, connect


class Dead(BaseException):
    """The process is gone."""


class Host:
    """Somebody who publishes to the queue `work` of a broker, and looks at it."""

    def __init__(self, target: Broker | str) -> None:
        self.target = target
        self.connection: Connection = connect(target)
        self.channel = self.connection.channel()
        self.channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.channel.queue_declare("work", durable=True, arguments=arguments)

    def publish(self, *bodies: str | bytes, **properties: Any) -> None:
        for body in bodies:
            raw = body if isinstance(body, bytes) else body.encode()
            self.channel.publish_confirmed(raw, routing_key="work", **properties).result(30)

    def depth(self, queue: str = "work") -> int:
        """Messages that are in the queue and that no consumer has."""
        return self.channel.queue_declare(queue, passive=True).message_count

    def connect(self, url: str) -> Connection:
        return connect(self.target)


@pytest.fixture
def host() -> Iterator[Host]:
    with Broker() as broker:
        made = Host(broker)
        yield made
        made.connection.close()


def words(count: int) -> list[str]:
    return [f"w{number:03}" for number in range(count)]
