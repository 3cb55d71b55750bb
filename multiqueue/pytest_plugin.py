"""A broker for each test that asks for one: the fixture `multiqueue_broker`, there as soon as multiqueue is installed.

    def test_an_order_is_booked(multiqueue_broker):
        book_orders(url=multiqueue_broker.url)

Nothing of multiqueue is loaded before a test asks. The broker runs in the test's own process, listens on a free port of
the loopback interface, and is gone with its messages after the test: no test sees another's queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from multiqueue.amqp import Server
    from multiqueue.broker import Broker
    from multiqueue.client import Connection


class BrokerForTests:
    """What the fixture gives. `url`, `host` and `port` are for clients, `broker` for looking from the inside."""

    def __init__(self, broker: Broker, server: Server, stack: ExitStack) -> None:
        self.broker = broker
        self.server = server
        self.host = "127.0.0.1"
        self.port: int = server.port
        self.url: str = server.url
        self._stack = stack

    def connect(self, **options: Any) -> Connection:
        """A connection of `multiqueue.client` over TCP, closed after the test; `options` are those of `connect`."""
        from multiqueue.client import connect

        return self._stack.enter_context(connect(self.url, **options))

    def bodies(self, queue: str) -> list[object]:
        """Take everything off a queue, and return the bodies in order: what a program under test has published."""
        found: list[object] = []
        while (received := self.broker.get(queue, auto_accept=True)) is not None:
            found.append(received.body)
        return found

    def __repr__(self) -> str:
        return f"<broker for tests at {self.url}>"


@pytest.fixture
def multiqueue_broker() -> Iterator[BrokerForTests]:
    """A broker that AMQP 0-9-1 clients reach at `.url`, empty, for this test alone."""
    from multiqueue.broker import Broker

    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        yield BrokerForTests(broker, broker.listen(), stack)
