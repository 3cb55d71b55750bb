"""Methods whose work has no bound: another thread does it, and no other connection waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from amqp_raw_support import PATIENCE, RawClient
from amqp_stored_support import StoredBroker
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Server
from multiqueue.broker import Broker, BrokerQueue, Message
from multiqueue.store import StoreDamaged
from multiqueue.testing import Threads, wait_until_blocked

COUNT = 1500


@pytest.fixture
def broker() -> Iterator[StoredBroker]:
    """One with long queues of both kinds."""
    with StoredBroker(housekeeping_interval=60) as started:
        for name, durable in (("stored", True), ("kept", False)):
            started.declare_queue(name, durable=durable)
            for number in range(COUNT):
                started.publish_nowait(Message(b"%d" % number, routing_key=name, persistent=durable))
        started.wait_for_commits()
        yield started


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    with amqp.serve(broker) as started:
        yield started


class Gate:
    """A purge stops in it, after it has begun, until it is opened."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def wait(self, stop: Callable[[], bool]) -> bool:
        self.begun.set()
        assert self.opened.wait(PATIENCE)
        return stop()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, purge = Gate(), BrokerQueue.purge
    monkeypatch.setattr(BrokerQueue, "purge", lambda queue, stop: purge(queue, lambda: made.wait(stop)))
    yield made
    made.opened.set()


@pytest.mark.parametrize("queue", ["stored", "kept"])
def test_nobody_else_waits_for_a_long_purge(broker: Broker, server: Server, gate: Gate, queue: str) -> None:
    """Another connection is served while a long queue is purged; what it publishes there meanwhile stays."""
    with RawClient(server.url) as client, RawClient(server.url) as other:
        client.send_method(1, commands.Queue.Purge, queue=queue)
        assert gate.begun.wait(PATIENCE)
        other.publish("", queue, b"new")
        other.call(1, commands.Basic.Qos, prefetch_count=1)
        assert other.ready(queue) == COUNT + 1
        gate.opened.set()
        answer = client.method()
        assert (type(answer), answer.message_count) == (commands.Queue.PurgeOk, COUNT)
        assert other.ready(queue) == 1


def test_what_comes_behind_a_long_purge_sees_it_done(server: Server, gate: Gate) -> None:
    """A connection's own methods keep their order; one that asks for no answer gets none."""
    with RawClient(server.url) as client:
        client.send_method(1, commands.Queue.Purge, queue="kept", nowait=True)
        client.send_method(1, commands.Queue.Declare, queue="kept", passive=True)
        assert gate.begun.wait(PATIENCE)
        gate.opened.set()
        answer = client.method()
        assert (type(answer), answer.message_count) == (commands.Queue.DeclareOk, 0)


def test_a_connection_may_end_in_the_middle_of_its_purge(broker: Broker, server: Server, gate: Gate) -> None:
    """Nothing of it stays, its exclusive queue and its unacked messages included; the purge goes on for itself."""
    client = RawClient(server.url)
    client.declare("own", exclusive=True)
    unacked = client.get("stored")
    assert unacked is not None
    (connection,) = server.connections()
    client.send_method(1, commands.Queue.Purge, queue="kept")
    assert gate.begun.wait(PATIENCE)
    connection.io.post(connection.abort)
    wait_until_blocked(lambda: not server.connections())
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["kept", "stored"]
    assert broker.queue("stored").statistics().unacked == 0
    gate.opened.set()
    wait_until_blocked(lambda: len(broker.queue("kept")) == 0)
    client.socket.close()


def test_a_purge_that_fails_costs_its_channel(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that cannot be read closes the channel that asked, with the method that did, and no other."""

    def fail(queue: BrokerQueue, stop: Callable[[], bool]) -> int:
        raise StoreDamaged("a page is gone")

    monkeypatch.setattr(BrokerQueue, "purge", fail)
    with RawClient(server.url) as client:
        client.channel(2)
        client.send_method(1, commands.Queue.Purge, queue="stored")
        code, text = client.channel_error()
        assert (code, "a page is gone" in text) == (541, True)
        client.call(2, commands.Basic.Qos, prefetch_count=1)
    assert "a page is gone" in caplog.text


def test_a_server_that_closes_ends_long_work_after_a_slice(broker: Broker, server: Server, gate: Gate) -> None:
    """The end of the server does not wait for the whole of a long purge, nor for those that have not begun."""
    clients = [RawClient(server.url) for _ in range(4)]
    for client in clients:
        client.send_method(1, commands.Queue.Purge, queue="kept")
    assert gate.begun.wait(PATIENCE)
    with Threads() as threads:
        threads.start(lambda: server.close(timeout=0.1))
        wait_until_blocked(lambda: server.is_closed)
        gate.opened.set()
    assert len(broker.queue("kept")) > 0
    for client in clients:
        client.socket.close()
