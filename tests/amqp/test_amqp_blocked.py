"""Connections that the server holds, by an alarm or at a full queue, and that close all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pika
import pytest
from amqp_desk_support import Desk, desk
from amqp_parts_support import IoThread
from amqp_raw_support import RawClient
from pamqp import commands

from multiqueue import amqp, client
from multiqueue.amqp import Server, ServerSettings
from multiqueue.broker import Broker, Overflow, QueueSettings
from multiqueue.testing import wait_until_blocked

low: set[str] = set()  # what the server of the test is low on


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    """One that is low on memory, with a queue that is full after one message."""
    broker.declare_queue("q")
    broker.declare_queue("full", settings=QueueSettings(max_length=1, overflow=Overflow.FLOW_CONTROL))
    low.clear()
    with amqp.serve(broker, settings=ServerSettings(alarm_interval=0.005), measure=lambda: set(low)) as started:
        yield started


def alarm(server: Server, on: bool) -> None:
    if on:
        low.add("memory")
    else:
        low.clear()
    wait_until_blocked(lambda: bool(server.alarms) is on)


def blocked_client(server: Server) -> RawClient:
    """Its second publish is held."""
    publisher = RawClient(server.url)
    publisher.channel(2)
    alarm(server, True)
    publisher.publish("", "q", b"1")
    assert isinstance(publisher.method(), commands.Connection.Blocked)
    publisher.publish("", "q", b"2")
    return publisher


def test_a_blocked_connection_closes(broker: Broker, server: Server) -> None:
    """Its close is answered while the alarm goes on, and what it published before is there."""
    publisher = blocked_client(server)
    publisher.send_method(0, commands.Connection.Close, reply_code=200)
    assert isinstance(publisher.method(), commands.Connection.CloseOk)
    assert publisher.is_cut()
    assert server.alarms
    assert len(broker.queue("q")) == 2


def test_of_publishes_that_come_together_an_alarm_lets_one_pass(broker: Broker, server: Server) -> None:
    """The first is what shows that the connection publishes; those behind it wait for the end of the alarm."""
    alarm(server, True)
    with desk(server) as peer:
        peer.say(
            b"".join(amqp.encode_publish(1, "", "q", amqp.NO_PROPERTIES, b"%d" % number, 4096) for number in (1, 2, 3))
        )
        assert len(broker.queue("q")) == 1
        low.clear()
        wait_until_blocked(lambda: not server.alarms)
        peer.connection.alarm_changed()
        assert len(broker.queue("q")) == 3


def test_a_channel_of_a_blocked_connection_closes(broker: Broker, server: Server) -> None:
    """Its close is answered with what stands before it; what follows waits for the end of the alarm."""
    publisher = blocked_client(server)
    publisher.publish("", "q", b"3", channel=2)
    publisher.send_method(1, commands.Channel.Close)
    publisher.publish("", "q", b"4", channel=2)
    publisher.send_method(2, commands.Queue.Declare, queue="q", passive=True)
    assert isinstance(publisher.method(), commands.Channel.CloseOk)
    assert len(broker.queue("q")) == 3
    alarm(server, False)
    assert isinstance(publisher.method(), commands.Connection.Unblocked)
    answer = publisher.method()
    assert isinstance(answer, commands.Queue.DeclareOk)
    assert answer.message_count == 4
    publisher.close()


def test_a_connection_at_a_full_queue_closes(broker: Broker, server: Server) -> None:
    """As one that an alarm holds."""
    publisher = RawClient(server.url)
    for body in (b"1", b"2", b"3"):
        publisher.publish("", "full", body)
    (connection,) = server.connections()
    wait_until_blocked(lambda: bool(connection.gate.reasons))
    publisher.send_method(1, commands.Channel.Close)
    assert isinstance(publisher.method(), commands.Channel.CloseOk)
    publisher.send_method(0, commands.Connection.Close, reply_code=200)
    assert isinstance(publisher.method(), commands.Connection.CloseOk)
    assert len(broker.queue("full")) == 3


def test_a_blocked_peer_that_leaves_is_noticed(server: Server) -> None:
    """Its connection ends while the alarm goes on, without a word of it."""
    publisher = blocked_client(server)
    publisher.socket.close()
    wait_until_blocked(lambda: not server.connections())
    assert server.alarms


def test_a_close_whose_methods_wait_for_a_commit(broker: Broker, server: Server) -> None:
    """A commit in front of the close is done first, and answered first."""
    publisher = blocked_client(server)
    publisher.send_method(2, commands.Tx.Select)
    publisher.publish("", "q", b"3", channel=2)
    publisher.send_method(2, commands.Tx.Commit)
    publisher.send_method(2, commands.Channel.Close)
    publisher.send_method(1, commands.Channel.Close)
    said = [type(publisher.method()) for _ in range(4)]
    assert said == [commands.Tx.SelectOk, commands.Tx.CommitOk, commands.Channel.CloseOk, commands.Channel.CloseOk]
    assert len(broker.queue("q")) == 3
    publisher.socket.close()


def test_what_a_blocked_connection_may_send_is_bounded(broker: Broker) -> None:
    """It is read from until 64 KiB wait, and not at all from then on; after the alarm all of it is done."""
    broker.declare_queue("q")
    low.clear()
    with amqp.serve(broker, measure=lambda: set(low)) as server:
        io = IoThread("desk")
        peer = Desk(server, io)
        try:
            peer.open()
            server.alarms = frozenset({"memory"})
            publish = amqp.encode_publish(1, "", "q", amqp.NO_PROPERTIES, b"x" * 1000, 131072)
            sent = 0
            while peer.transport.is_read_from:
                peer.say(publish)
                sent += 1
            assert 60 <= sent <= 66
            assert len(broker.queue("q")) == 1
            server.alarms = frozenset()
            peer.connection.alarm_changed()
            assert peer.transport.is_read_from
            assert peer.connection.gate.pending_bytes == 0
            assert len(broker.queue("q")) == sent
        finally:
            peer.close()
            io.loop.close()


def test_what_a_blocked_connection_may_send_of_one_body_is_bounded(broker: Broker) -> None:
    """64 KiB of a large body are read behind the alarm, whatever came before it; after the alarm the rest is."""
    broker.declare_queue("q")
    low.clear()
    with amqp.serve(broker, measure=lambda: set(low)) as server, desk(server) as peer:
        gate, splitter = peer.connection.gate, peer.connection.reader.splitter
        body = bytes(range(256)) * 4096
        publish = amqp.encode_publish(1, "", "q", amqp.NO_PROPERTIES, body, 131072)
        peer.say(publish)
        half = len(publish) // 2
        peer.say(publish[:half])
        assert splitter.begun_bytes > 400_000
        gate.pause("alarm", softly=True)
        sent = half
        while peer.transport.is_read_from and sent < len(publish):
            peer.say(publish[sent : sent + 10_000])
            sent += 10_000
        assert 64 * 1024 <= sent - half <= 80_000
        assert splitter.begun_bytes > half  # it is in the body that is put together
        gate.resume("alarm")
        assert peer.transport.is_read_from
        peer.say(publish[sent:])
        assert [bytes(broker.get("q").body) for _ in range(2)] == [body, body]  # type: ignore[union-attr]


def pika_program(url: str, begin_alarm: Callable[[], None]) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channels = [connection.channel() for _ in range(3)]
    for channel in channels:
        channel.basic_consume("other", lambda *_: None)
    begin_alarm()
    for channel in channels:
        channel.basic_publish("", "q", b"x")
    connection.close()


def our_program(url: str, begin_alarm: Callable[[], None]) -> None:
    blocked = threading.Event()
    with client.connect(url, on_blocked=lambda *_: blocked.set()) as connection:
        channels = [connection.channel() for _ in range(3)]
        begin_alarm()
        for channel in channels:
            channel.publish(b"x", routing_key="q")
        assert blocked.wait(60)
        channels[0].close()


@pytest.mark.parametrize("program", [pika_program, our_program])
def test_programs_that_close_while_they_are_blocked(
    broker: Broker, server: Server, program: Callable[[str, Callable[[], None]], None]
) -> None:
    """pika and our client close channels and connection of a blocked connection, and wait for no time-out."""
    broker.declare_queue("other")
    program(server.url, lambda: alarm(server, True))
    wait_until_blocked(lambda: not server.connections())
    assert server.alarms
    assert len(broker.queue("q")) == 3
