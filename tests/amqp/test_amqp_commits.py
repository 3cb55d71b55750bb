"""Publishes whose commit takes its time: when they are confirmed, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from amqp_desk_support import desk
from amqp_parts_support import ServerConnection, connection
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


def test_a_cancel_follows_the_deletion_that_caused_it(client: RawClient, broker: StoredBroker) -> None:
    """A channel that consumes a durable queue and deletes it gets delete-ok first, as at RabbitMQ: a client that ends
    the channel at the cancel would never see the answer. Another channel hears of it without waiting."""
    client.consume("q", tag="own")
    client.channel(2)
    client.consume("q", tag="other", channel=2)
    client.send_method(1, commands.Queue.Delete, queue="q")
    assert client.method().consumer_tag == "other"
    broker.memory.release()
    assert isinstance(client.method(), commands.Queue.DeleteOk)
    assert client.method().consumer_tag == "own"


def connections(broker: Broker) -> list[ServerConnection]:
    """Those of its server."""
    return broker._servers[0].connections()  # type: ignore[attr-defined,no-any-return]


def wait_until_held(broker: Broker) -> None:
    """Until a connection is not read from."""
    while not [each for each in connections(broker) if each.gate.reasons]:
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
    (connection,) = connections(broker)
    connection.io.post(connection.failed, RuntimeError("no matter what"))
    close = client.method()
    assert close.reply_code == 541
    broker.memory.release()
    client.send_method(0, commands.Connection.CloseOk)
    assert client.is_cut()
    assert [queue.name for queue in broker.virtual_host().queues()] == ["q"]


CHANGES = [
    (commands.Queue.Declare, {"queue": "new", "durable": True}),
    (commands.Queue.Bind, {"queue": "d", "exchange": "e", "routing_key": "new"}),
    (commands.Queue.Unbind, {"queue": "d", "exchange": "e", "routing_key": "key"}),
    (commands.Queue.Delete, {"queue": "d"}),
    (commands.Exchange.Declare, {"exchange": "new", "exchange_type": "fanout", "durable": True}),
    (commands.Exchange.Bind, {"source": "e", "destination": "amq.topic", "routing_key": "new"}),
    (commands.Exchange.Unbind, {"source": "e", "destination": "amq.topic", "routing_key": "key"}),
    (commands.Exchange.Delete, {"exchange": "e"}),
]
NAMES = [method.name for method, _ in CHANGES]


@pytest.fixture
def declared(broker: StoredBroker) -> StoredBroker:
    """The broker with a durable queue and exchange, bound; what comes is held again."""
    broker.memory.release()
    broker.declare_queue("d", durable=True)
    broker.declare_exchange("e", durable=True)
    broker.bind_queue("d", "e", "key")
    broker.bind_exchange("amq.topic", "e", "key")
    broker.memory.hold()
    return broker


@pytest.mark.parametrize(("method", "fields"), CHANGES, ids=NAMES)
def test_a_durable_change_holds_up_its_own_connection_alone(
    url: str, declared: StoredBroker, method: Any, fields: dict[str, Any]
) -> None:
    """While it waits for its commit, another connection of the same I/O thread publishes, gets and declares. It is
    answered after the commit, and what its channel sends meanwhile is done after it (amqp)."""
    with RawClient(url) as one, RawClient(url) as other:
        other.declare("passing", exclusive=True)
        one.send_method(1, method, **fields)
        one.send_method(1, commands.Queue.Declare, queue="later", exclusive=True)
        wait_until_held(declared)
        other.publish("", "passing", b"x")
        got = other.get("passing")
        assert got is not None
        assert got.body == b"x"
        assert "later" not in shape(declared)[0]
        declared.memory.release()
        assert one.method().name == f"{method.name}Ok"
        assert one.method().queue == "later"


@pytest.mark.parametrize(("method", "fields"), [CHANGES[0], CHANGES[1], CHANGES[4], CHANGES[5]])
def test_a_change_that_a_full_store_refuses_costs_its_channel(
    url: str, declared: StoredBroker, method: Any, fields: dict[str, Any]
) -> None:
    """The channel is closed with the method that asked, nothing of the change is left, and it can be tried again."""
    before = shape(declared)
    with RawClient(url) as client:
        declared.memory.fail_at(1, StoreFull("no room"))
        client.send_method(1, method, **fields)
        wait_until_held(declared)
        declared.memory.release(1)
        close = client.method()
        assert (close.reply_code, close.class_id << 16 | close.method_id) == (541, method.index)
        assert shape(declared) == before
        client.send_method(1, commands.Channel.CloseOk)
        declared.memory.release()
        client.channel(1)
        assert client.call(1, method, **fields).name == f"{method.name}Ok"


def shape(broker: StoredBroker) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    host = broker.virtual_host()
    bindings = [(each.source.name, each.routing_key) for each in host.bindings()]
    return [each.name for each in host.queues()], [each.name for each in host.exchanges()], bindings


def test_a_declaration_behind_a_publish_waits_for_both_commits(client: RawClient, broker: StoredBroker) -> None:
    """For that of the publish before it is done, for its own before it is answered."""
    published(client, broker, 1)
    client.send_method(1, commands.Queue.Declare, queue="new", durable=True)
    client.send_method(1, commands.Queue.Declare, queue="later")
    wait_until_held(broker)
    assert [queue.name for queue in broker.virtual_host().queues()] == ["q"]
    broker.memory.release(1)
    assert client.method() == amqp.Ack(1, False)
    wait_until_blocked(lambda: [queue.name for queue in broker.virtual_host().queues()] == ["q", "new"])
    broker.memory.release()
    assert [client.method().queue for _ in range(2)] == ["new", "later"]


def test_a_second_declaration_is_answered_after_the_commit_of_the_first(url: str, broker: StoredBroker) -> None:
    """A client that declares the queue of another's declaration is not told before it is kept, and it is stored once
    (broker-durability 8)."""
    with RawClient(url) as one, RawClient(url) as other:
        for each in (one, other):
            each.send_method(1, commands.Queue.Declare, queue="new", durable=True)
        wait_until_blocked(lambda: all(each.gate.reasons for each in connections(broker)))
        broker.memory.release(1)
        assert [each.method().queue for each in (one, other)] == ["new", "new"]
        assert len(broker.memory.definitions()) == 2


def test_a_client_that_leaves_while_its_declaration_waits(url: str, broker: StoredBroker) -> None:
    """The queue is kept all the same, and nothing of the connection is left."""
    with RawClient(url) as one:
        one.send_method(1, commands.Queue.Declare, queue="new", durable=True)
        wait_until_held(broker)
        (connection,) = connections(broker)
        connection.io.post(connection.abort)
    wait_until_blocked(lambda: not connections(broker))
    broker.memory.release()
    with RawClient(url) as other:
        assert other.declare("new", durable=True, passive=True).queue == "new"


def test_little_that_was_read_gives_way_to_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """After reads of less than 16 KiB, and not while a peer sends all it can (docs/decisions/0511)."""
    ways: list[None] = []
    monkeypatch.setattr(connection, "give_way", lambda: ways.append(None))
    with Broker() as broker, amqp.serve(broker) as server, desk(server) as one:
        ways.clear()
        one.say_method(1, commands.Basic.Qos, prefetch_count=1)
        assert len(ways) == 1
        one.say(amqp.encode_method(1, commands.Basic.Qos, prefetch_count=1) * 1000)
    assert len(ways) == 1
