"""Publishes whose commit takes its time: when they are confirmed, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from amqp_raw_support import RawClient
from amqp_stored_support import StoredBroker, held_broker
from pamqp import commands

from multiqueue import amqp
from multiqueue.broker import Broker
from multiqueue.store import StoreFull
from multiqueue.testing import wait_until_blocked


@pytest.fixture
def broker() -> Iterator[StoredBroker]:
    with held_broker(housekeeping_interval=0.02) as held:
        yield held


@pytest.fixture
def client(url: str) -> Iterator[RawClient]:
    """A client whose channel 1 confirms."""
    with RawClient(url) as client:
        client.call(1, commands.Confirm.Select)
        yield client


def published(client: RawClient, broker: StoredBroker, count: int) -> None:
    """Publish, each a run of its own: a method of channel 1 would wait for the commit, one of another does not."""
    for _ in range(count):
        client.publish("", "q", b"x", delivery_mode=2)
        client.channel(9)
        client.call(9, commands.Channel.Close)


def test_a_confirm_follows_the_commit(client: RawClient, broker: StoredBroker) -> None:
    """Nothing is said before it; one that failed is a nack."""
    published(client, broker, 3)
    assert not client._frames  # what was said before the answers of channel 9
    broker.memory.release(1)
    assert client.method() == amqp.Ack(1, False)
    broker.memory.fail_at(1, StoreFull("no room"))
    broker.memory.release(1)
    assert client.method() == amqp.Nack(2, False, False)
    broker.memory.release(1)
    assert client.method() == amqp.Ack(3, False)


def test_a_commit_that_ends_after_its_channel(client: RawClient, broker: StoredBroker) -> None:
    """No channel hears of it: neither the one that was closed, nor its successor."""
    published(client, broker, 1)
    client.publish("nonesuch", "", b"x")
    assert client.channel_error()[0] == 404
    client.call(1, commands.Confirm.Select)
    broker.memory.release()
    broker.wait_for_commits()
    assert client.is_silent()


def wait_until_held(broker: Broker) -> None:
    """Until a connection is not read from."""
    while not [each for each in broker._servers[0].connections() if each.gate.reasons]:  # type: ignore[attr-defined]
        pass


def test_a_method_waits_for_the_last_commit(client: RawClient, broker: StoredBroker) -> None:
    """It is answered after the confirms of everything before it, and what follows it comes after it."""
    published(client, broker, 2)
    client.send_method(1, commands.Queue.Declare, queue="q", durable=True)
    client.publish("", "q", b"later", delivery_mode=2)
    wait_until_held(broker)
    assert broker.memory.statistics().pending_operations == 2
    broker.memory.release(2)
    said = [client.method() for _ in range(2)]
    acks = [each for each in said if isinstance(each, amqp.Ack)]
    assert acks
    answer = said[-1] if len(acks) == 1 else client.method()
    assert isinstance(answer, commands.Queue.DeclareOk)
    assert answer.message_count == 2
    wait_until_blocked(lambda: broker.memory.statistics().pending_operations == 1)
    broker.memory.release()
    assert client.method() == amqp.Ack(3, False)


def test_a_fault_while_a_method_waits(client: RawClient, broker: StoredBroker) -> None:
    """The connection is closed, and the method is not called when the commit ends."""
    published(client, broker, 1)
    client.send_method(1, commands.Queue.Declare, queue="late")
    wait_until_held(broker)
    (connection,) = broker._servers[0].connections()  # type: ignore[attr-defined]
    connection.io.post(connection.failed, RuntimeError("no matter what"))
    close = client.method()
    assert close.reply_code == 541
    broker.memory.release()
    client.send_method(0, commands.Connection.CloseOk)
    assert client.is_cut()
    assert [queue.name for queue in broker.virtual_host().queues()] == ["q"]
