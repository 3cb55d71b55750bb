"""What a store that cannot do its work costs a client: the channel that asked, and no message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from client_contract_support import Seen
from client_server_support import playing

from multiqueue.broker import Broker, Message, VirtualHost
from multiqueue.client import Channel, ChannelClosed, Connection, ConnectionClosed, connect
from multiqueue.store import MemoryStore, StoreDamaged, StoreFailed, StoreFull
from multiqueue.testing import PATIENCE, wait_until_blocked

BUDGET = 100_000  # bytes: less than the messages take, so that most are in the store alone
MESSAGES = 100
BODY = b"x" * 2000


class FailingStore(MemoryStore):
    """A store that cannot be read while `is_readable` is False."""

    is_readable = True

    def _check(self) -> None:
        if not self.is_readable:
            raise StoreDamaged("row 7 cannot be read")

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        self._check()
        return super().read(ids)

    def outlines(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().outlines(*arguments, **options)

    def page(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().page(*arguments, **options)


class StoredBroker(Broker):
    """A broker with `memory`, its store."""

    memory: FailingStore

    def _open(self, name: str, *, again: bool = False) -> VirtualHost:
        self.memory = FailingStore()
        self._data: Any = SimpleNamespace(open=lambda name, again: self.memory)  # while the host is made
        try:
            return super()._open(name, again=again)
        finally:
            self._data = None


@pytest.fixture
def stored() -> Iterator[StoredBroker]:
    broker = StoredBroker(housekeeping_interval=60, memory_limit=BUDGET)
    with broker:
        broker.declare_queue("paged", durable=True)
        broker.declare_queue("other")
        yield broker


@pytest.fixture(params=["in process", "server"])
def connection(request: pytest.FixtureRequest, stored: StoredBroker) -> Iterator[Connection]:
    with connect(stored.listen().url if request.param == "server" else stored) as made:
        yield made


@pytest.fixture
def channel(connection: Connection) -> Channel:
    """A channel that has filled the queue `paged`."""
    made = connection.channel()
    for _ in range(MESSAGES):
        made.publish(BODY, routing_key="paged", delivery_mode=2)
    assert made.queue_declare("paged", passive=True).message_count == MESSAGES
    return made


ASKING: dict[str, Callable[[Channel], object]] = {
    "get": lambda channel: [channel.basic_get("paged") for _ in range(MESSAGES)],
    "purge": lambda channel: channel.queue_purge("paged"),
}


@pytest.mark.parametrize("what", ASKING)
def test_a_store_that_cannot_be_read(connection: Connection, channel: Channel, stored: StoredBroker, what: str) -> None:
    """The caller is told why and loses the channel; other channels go on, and what is stored is there later."""
    stored.memory.is_readable = False
    with pytest.raises(ChannelClosed, match="INTERNAL_ERROR - row 7 cannot be read") as caught:
        ASKING[what](channel)
    assert caught.value.reply_code == 541
    other = connection.channel()
    assert other.basic_get("other") is None
    assert other.queue_declare("paged", passive=True).message_count == MESSAGES
    stored.memory.is_readable = True
    taken = 0
    while message := other.basic_get("paged"):
        message.ack()
        taken += 1
    assert taken == MESSAGES


def test_a_commit_that_the_store_refuses(connection: Connection, stored: StoredBroker) -> None:
    """The channel is closed with the store's words, and its transaction undone."""
    channel = connection.channel()
    channel.publish_confirmed(b"old", routing_key="paged", delivery_mode=2).result(30)
    channel = connection.channel()
    channel.tx_select()
    message = channel.basic_get("paged")
    assert message is not None
    message.ack()
    channel.publish(b"new", routing_key="paged", delivery_mode=2)
    stored.memory.fail_at(1, StoreFull("there is no room"))
    with pytest.raises(ChannelClosed, match="INTERNAL_ERROR - there is no room") as caught:
        channel.tx_commit()
    assert caught.value.reply_code == 541
    assert connection.is_open
    assert [each.body for each in stored.queue("paged").browse()] == [b"old"]


def test_a_store_that_fails_between_a_publish_and_a_call(stored: StoredBroker) -> None:
    """In process, the publish costs the connection, and nothing further is done on its channels."""
    closed, gate = Seen(), threading.Event()
    with connect(stored) as connection:
        channel = connection.channel(on_closed=closed)
        channel.publish_confirmed(b"old", routing_key="paged", delivery_mode=2).result(PATIENCE)
        message = channel.basic_get("paged")
        assert message is not None
        link: Any = connection._link
        link.post(gate.wait, PATIENCE)
        wait_until_blocked(lambda: not link._outbox._pieces)  # what follows is one turn of the link's thread
        channel.publish(b"new", routing_key="paged", delivery_mode=2)
        stored.memory.fail_at(1, StoreFailed("the disk is gone"))
        other = Message(b"", routing_key="paged", persistent=True)
        link.post(partial(pytest.raises, StoreFailed, stored.publish, other))
        message.ack()
        with playing(lambda: pytest.raises(ConnectionClosed, channel.basic_qos, 7)):
            wait_until_blocked(lambda: len(link._outbox._pieces) == 4)
            gate.set()
        assert isinstance(closed.wait_for(1)[0], ConnectionClosed)
