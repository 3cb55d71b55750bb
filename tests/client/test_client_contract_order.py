"""What a channel asks for comes after what it published: calls see publishes that are not confirmed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from client_contract_support import PEERS, Seen
from client_parts_support import DirectLink, Event, Link, ReceiveBuffer, Settings
from pamqp import commands

from multiqueue.amqp import NO_PROPERTIES, encode_method
from multiqueue.broker import Broker, VirtualHost
from multiqueue.client import Channel, ChannelClosed, Connection, ConnectionClosed, connect
from multiqueue.store import MemoryStore
from multiqueue.testing import PATIENCE, wait_until_blocked

MANY = 30


@pytest.fixture(params=PEERS)
def durable_peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A peer that keeps durable queues on a disk."""
    if request.param == "rabbitmq":
        yield request.getfixturevalue("rabbitmq_url")
        return
    with Broker(data=tmp_path) as broker:
        yield broker if request.param == "in_process" else broker.listen().url


@pytest.fixture
def channel(durable_peer: Any) -> Iterator[Channel]:
    with connect(durable_peer) as connection:
        yield connection.channel()


@pytest.fixture
def durable_queue(channel: Channel) -> Iterator[str]:
    name = channel.queue_declare("client-order", durable=True).queue
    yield name
    with channel.connection.channel() as last:
        last.queue_delete(name)


def publish_many(channel: Channel, queue: str) -> None:
    for number in range(MANY):
        channel.publish(b"%d" % number, routing_key=queue, delivery_mode=2)


@pytest.mark.parametrize("durable_peer", PEERS[:2], indirect=True)
def test_a_declare_counts_what_was_published(channel: Channel, durable_queue: str) -> None:
    """A passive declare behind unconfirmed persistent publishes counts all of them; RabbitMQ lets it overtake them."""
    for round in range(1, 4):
        publish_many(channel, durable_queue)
        assert channel.queue_declare(durable_queue, passive=True).message_count == round * MANY


def test_a_get_finds_what_was_published(channel: Channel, durable_queue: str) -> None:
    """So does a get, and its acknowledgement and the next publish keep their places behind it."""
    for number in range(10):
        channel.publish(b"%d" % number, routing_key=durable_queue, delivery_mode=2)
        message = channel.basic_get(durable_queue)
        assert message is not None
        assert message.body == b"%d" % number
        message.ack()
    assert channel.queue_declare(durable_queue, passive=True).message_count == 0


def test_a_purge_takes_what_was_published(channel: Channel, durable_queue: str) -> None:
    """And whatever else is asked of the queue."""
    publish_many(channel, durable_queue)
    assert channel.queue_purge(durable_queue) == MANY


def test_a_close_comes_after_what_was_published(channel: Channel, durable_queue: str) -> None:
    """When a channel has closed, another one finds what it published."""
    with channel.connection.channel() as other:
        publish_many(other, durable_queue)
        other.basic_get(durable_queue)
    assert channel.queue_purge(durable_queue) == MANY


@pytest.mark.parametrize("durable_peer", PEERS[:2], indirect=True)
def test_a_close_comes_after_confirms(channel: Channel, durable_queue: str) -> None:
    """What a channel published is answered for before its close; RabbitMQ keeps back what it has not confirmed yet."""
    with channel.connection.channel() as other:
        confirms = [other.publish_confirmed(b"x", routing_key=durable_queue, delivery_mode=2) for _ in range(MANY)]
    for confirm in confirms:
        confirm.result(PATIENCE)


# ---- in process, with a store that commits when it is told


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def held(store: MemoryStore) -> Iterator[Callable[[], Connection]]:
    """Connections to a virtual host over that store; nothing is committed until `store.release`."""
    with ExitStack() as stack:
        host = VirtualHost("/", store=store)
        stack.callback(host.close)
        host.declare_queue("q", durable=True)
        store.hold()
        stack.callback(store.release)
        yield lambda: stack.enter_context(connect(host))


def test_only_the_channel_that_published_waits(store: MemoryStore, held: Callable[[], Connection]) -> None:
    """A call behind a commit holds up its own channel, and neither other channels nor acknowledgements of theirs."""
    connection = held()
    waiting, other = connection.channel(), connection.channel()
    waiting.publish(b"1", routing_key="q", delivery_mode=2)
    counts = Seen()
    asking = threading.Thread(target=lambda: counts(waiting.queue_declare("q", passive=True).message_count))
    asking.start()
    for _ in range(5):
        assert other.queue_declare("q", passive=True).message_count == 0
    mine = other.queue_declare(exclusive=True).queue
    other.publish(b"2", routing_key=mine)
    message = other.basic_get(mine)
    assert message is not None
    message.ack()
    assert other.queue_declare(mine, passive=True).message_count == 0
    assert counts.all == []
    store.release()
    assert counts.wait_for(1) == [1]
    asking.join()


def test_only_the_channel_that_declares_waits(store: MemoryStore, held: Callable[[], Connection]) -> None:
    """A durable declaration is answered after its commit, and holds up its own channel alone."""
    connection = held()
    waiting, other = connection.channel(), connection.channel()
    declared = Seen()
    asking = threading.Thread(target=lambda: declared(waiting.queue_declare("new", durable=True).queue))
    asking.start()
    wait_until_blocked(lambda: store.statistics().pending_operations == 1)
    mine = other.queue_declare(exclusive=True).queue
    other.publish(b"2", routing_key=mine)
    assert other.basic_get(mine, auto_ack=True) is not None
    assert declared.all == []
    store.release()
    assert declared.wait_for(1) == ["new"]
    asking.join()


def test_a_late_commit_confirms_nothing_of_a_later_channel(store: MemoryStore, held: Callable[[], Connection]) -> None:
    """A channel is closed for a fault while its publish is committed: the next of its number hears nothing of it."""
    connection = held()
    first, other = connection.channel(), connection.channel()
    lost = first.publish_confirmed(b"1", routing_key="q", delivery_mode=2)
    first.publish(b"!", exchange="no such exchange")
    with pytest.raises(ChannelClosed, match="no such exchange"):
        lost.result(PATIENCE)
    second = connection.channel()
    assert second.number == first.number
    behind = other.publish_confirmed(b"2", routing_key="q", delivery_mode=2)
    waits = second.publish_confirmed(b"3", routing_key="q", delivery_mode=2)
    store.release(2)
    behind.result(PATIENCE)  # commits end, and are told, in order
    assert other.queue_declare("q", passive=True).message_count == 2
    assert not waits.done()
    store.release()
    waits.result(PATIENCE)


class Listening:
    """The receiver of a link's events, which writes down what kind of methods come."""

    receive_buffer = ReceiveBuffer(1 << 20)

    def __init__(self) -> None:
        self.came: Queue[str] = Queue()

    def arrived(self, link: Link, events: list[Event]) -> None:
        for event in events:
            self.came.put(type(event.method).__name__)

    def lost(self, link: Link, error: ConnectionClosed) -> None: ...


def test_in_process_a_delivery_comes_before_the_confirm() -> None:
    """What a client consumes of its own transient publishes is there before they are confirmed, as over a socket
    (client 12)."""
    with Broker() as broker:
        broker.declare_queue("q")
        listener = Listening()
        link = DirectLink(broker.virtual_host(), Settings(), listener)
        link.start()
        for method, fields in (
            (commands.Channel.Open, {}),
            (commands.Confirm.Select, {}),
            (commands.Basic.Consume, {"queue": "q", "consumer_tag": "c", "no_ack": True}),
        ):
            link.send(1, encode_method(1, method, **fields))
            listener.came.get(timeout=PATIENCE)
        for _ in range(20):
            link.publish(link.prepare(1, "", "q", False, NO_PROPERTIES, b"x"))
            assert [listener.came.get(timeout=PATIENCE) for _ in range(2)] == ["Deliver", "Ack"]
        link.end(ConnectionClosed("that was all"))
        link.join(PATIENCE)
