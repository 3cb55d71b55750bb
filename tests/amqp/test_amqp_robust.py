"""Peers that are slow, silent, cut off or hostile: they cost themselves, and no other client."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amqp_parts_support import SessionTransaction, encode_ack, encode_nack
from amqp_parts_support import methods as wire_methods
from amqp_raw_support import SHUTDOWN, Closed, RawClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Server, ServerSettings
from multiqueue.broker import Broker, Message
from multiqueue.testing import wait_until_blocked

Gate = tuple[threading.Event, threading.Event]


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    with amqp.serve(broker, settings=ServerSettings(write_buffer_bytes=20_000)) as started:
        yield started


def wait_until_nobody_is_connected(server: Server) -> None:
    """Until every connection has ended, or the test's timeout."""
    wait_until_blocked(lambda: not server.connections())


def connected(server: Server) -> socket.socket:
    """A socket, and nothing said."""
    return socket.create_connection((server.host, server.port), 20)


# -- bytes


def conversation(queue: str) -> bytes:
    """All a client says, from the protocol header to the close."""
    login = {"client_properties": {"capabilities": {}}, "mechanism": "PLAIN", "response": b"\0guest\0guest"}
    return b"".join(
        (
            amqp.PROTOCOL_HEADER,
            amqp.encode_method(0, commands.Connection.StartOk, **login, locale="en_US"),
            amqp.encode_method(0, commands.Connection.TuneOk, channel_max=9, frame_max=131072, heartbeat=0),
            amqp.encode_method(0, commands.Connection.Open, virtual_host="/"),
            amqp.encode_method(1, commands.Channel.Open),
            amqp.encode_method(1, commands.Confirm.Select),
            amqp.encode_method(1, commands.Queue.Declare, queue=queue),
            amqp.encode_publish(
                1, "", queue, amqp.encode_properties({"headers": {"a": [1, {"b": "c"}]}}), b"x" * 30, 4096
            ),
            amqp.encode_method(1, commands.Basic.Consume, queue=queue, consumer_tag="t"),
            encode_ack(1, 0, True),
            amqp.HEARTBEAT,
            amqp.encode_method(1, commands.Channel.Close),
            amqp.encode_method(0, commands.Connection.Close, reply_code=200, reply_text="bye"),
        )
    )


def test_a_whole_conversation_may_come_at_once(server: Server) -> None:
    """A client need not wait for answers: everything in one piece is done in order, and answered in order."""
    with connected(server) as client:
        client.sendall(conversation("q"))
        data = b""
        while more := client.recv(65536):
            data += more
    names = [
        type(amqp.decode_method(payload)).__name__ for kind, _, payload in amqp.FrameSplitter().feed(data) if kind == 1
    ]
    assert names[:8] == ["Start", "Tune", "OpenOk", "OpenOk", "SelectOk", "DeclareOk", "ConsumeOk", "Ack"]
    assert names[-2:] == ["CloseOk", "CloseOk"]


def test_a_connection_cut_at_every_byte(broker: Broker, server: Server) -> None:
    """Wherever a conversation is cut off, the connection ends, its queue is whole, and nothing is held."""
    data = conversation("q")
    for length in range(0, len(data), 3):
        with connected(server) as client:
            client.sendall(data[:length])
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
    wait_until_nobody_is_connected(server)
    broker.virtual_host().check_invariants()
    assert broker.queue("q").statistics().unacked == 0
    assert broker.queue("q").statistics().consumers == 0


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 700), st.randoms(use_true_random=False))
def test_any_bytes_end_cleanly_or_are_accepted(server: Server, noise: bytes, at: int, chance: random.Random) -> None:
    """Noise inside a conversation ends in a close or is taken; either way the server lets go, and logs no failure."""
    data = bytearray(conversation("noise"))
    data[at : at + chance.randrange(8)] = noise
    with connected(server) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except ConnectionError:
            pass  # it was cut off while we spoke
    wait_until_nobody_is_connected(server)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_methods_in_any_order(server: Server, caplog: pytest.LogCaptureFixture, data: st.DataObject) -> None:
    """Methods with any fields, on any channel, are answered or refused: never by an internal error."""
    values = {
        "bit": st.booleans(),
        "octet": st.integers(0, 255),
        "short": st.integers(0, 65535),
        "long": st.integers(0, 2**32 - 1),
        "longlong": st.integers(0, 2**63),
        "shortstr": st.sampled_from(["", "q", "amq.direct", "amq.rabbitmq.reply-to", "x" * 255, "é"]),
        "longstr": st.binary(max_size=9),
        "table": st.dictionaries(
            st.sampled_from(["x-max-length", "x-priority", "x-match", "alternate-exchange", "x-dead-letter-exchange"]),
            st.none() | st.integers(-(2**40), 2**40) | st.text(max_size=3) | st.lists(st.booleans(), max_size=2),
            max_size=2,
        ),
    }
    known: list[Any] = list(commands.INDEX_MAPPING.values())
    methods = [method for method in known if method.index >> 16 != 10]
    with RawClient(server.url, opens=False) as client:
        client.handshake()
        client.send_method(1, commands.Channel.Open)
        for _ in range(data.draw(st.integers(1, 6))):
            method = data.draw(st.sampled_from(methods))
            fields = {name: data.draw(values[kind]) for name, kind in wire_methods._fields(method)}
            try:
                client.send_method(data.draw(st.integers(1, 2)), method, **fields)
            except OSError:
                break
    wait_until_nobody_is_connected(server)
    assert not [record for record in caplog.records if record.exc_info], caplog.text


# -- time


def test_a_slow_handshake_is_cut(broker: Broker) -> None:
    """A client that has not opened its connection in time is cut, however it spends that time; others go on."""
    with amqp.serve(broker) as server, RawClient(server.url) as good:
        server.settings = ServerSettings(handshake_timeout=0.3)
        silent, begun, trickling = (connected(server) for _ in range(3))
        begun.sendall(amqp.PROTOCOL_HEADER)
        for byte in amqp.PROTOCOL_HEADER:
            trickling.sendall(bytes((byte,)))
        for client in (silent, begun, trickling):
            with client:
                while client.recv(4096):
                    pass
        assert isinstance(good.declare("q"), commands.Queue.DeclareOk)


def test_a_peer_that_is_gone_without_a_word(broker: Broker, server: Server) -> None:
    """Heartbeats come from our side; after two periods of silence what it held is back on the queue (P14, P15)."""
    broker.declare_queue("q")
    broker.publish(Message(b"x", routing_key="q"))
    client = RawClient(server.url, heartbeat=1)
    assert client.get("q") is not None
    frames = []
    try:
        while True:
            frames.append(client.frame()[0])
    except Closed:
        pass
    assert frames.count(amqp.FRAME_HEARTBEAT) >= 2
    wait_until_nobody_is_connected(server)
    received = broker.get("q")
    assert received is not None
    assert received.redelivered


def test_a_client_that_does_not_answer_the_close(broker: Broker) -> None:
    """Closing the server cuts it; everybody else is told."""
    server = amqp.serve(broker)
    told, silent = RawClient(server.url), RawClient(server.url)
    closing = threading.Thread(target=server.close, args=(0.5,))
    closing.start()
    assert told.connection_error() == (320, SHUTDOWN)
    closing.join()
    assert silent.is_cut()
    with pytest.raises(OSError, match=r"refused|reset"):
        connected(server)


# -- back-pressure


def test_a_client_that_never_reads(broker: Broker, server: Server) -> None:
    """A bounded number of messages waits for it, and the others are for a consumer that does read."""
    broker.declare_queue("q")
    keen = RawClient(server.url)
    server._listeners[0].socket.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
    )  # or the kernel keeps megabytes of it
    lazy = RawClient(server.url)
    lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.send_method(1, commands.Basic.Consume, queue="q", no_ack=False)
    count = 2000
    for _ in range(count):
        broker.publish(Message(b"x" * 10_000, routing_key="q"))
    keen.consume("q", no_ack=True)
    queue = broker.queue("q")
    while queue.statistics().available:
        keen.content()
    held = queue.statistics().unacked
    assert 0 < held < count / 2
    port = f":{lazy.socket.getsockname()[1]} "
    (slow,) = [each for each in server.connections() if port in each.name]
    assert slow.is_held_back
    # What stopped it: the mark and a turn, of messages that are not large. Its own acks were none.
    assert slow._transport.get_write_buffer_size() < 20_000 + 256 * 10_100
    lazy.socket.close()
    keen.bodies(held)
    keen.close()


def test_replies_that_nobody_reads(broker: Broker, server: Server) -> None:
    """A client that asks and asks without reading is not read from, and gets every answer when it reads."""
    broker.declare_queue("q")
    broker.publish(Message(b"x" * 50_000, routing_key="q"))
    client = RawClient(server.url)
    asked = 400
    ask = amqp.encode_method(1, commands.Basic.Get, queue="q") + encode_nack(1, 0, True)

    def keep_asking() -> None:
        for _ in range(asked):
            client.socket.sendall(ask)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    (connection,) = server.connections()
    wait_until_blocked(lambda: "replies" in connection.gate.reasons)
    # The mark, one reply that went beyond it, and what was written when the mark was first looked at.
    assert connection._transport.get_write_buffer_size() < 6 * 20_000 + 50_200
    for _ in range(asked):
        assert len(client.content().body) == 50_000
    asking.join()
    client.close()


def test_a_full_queue_stops_its_publisher(broker: Broker, server: Server) -> None:
    """With flow control, a publisher is not read from until there is room; another connection goes on."""
    arguments = {"qpid.policy_type": "producer_flow_control", "qpid.max_count": 10}
    broker.declare_queue("q", arguments=arguments)
    publisher, other = RawClient(server.url), RawClient(server.url)
    for _ in range(200):
        publisher.publish("", "q", b"x" * 1000)
    publisher.send_method(1, commands.Basic.Qos)
    wait_until_blocked(lambda: broker.queue("q").is_throttled)
    assert other.ready("q") < 200
    other.consume("q", no_ack=True)
    other.bodies(200)
    assert isinstance(publisher.method(), commands.Basic.QosOk)
    publisher.close()
    other.close()


def test_who_makes_the_room_is_read_from(broker: Broker, server: Server) -> None:
    """A connection that consumes from the full queue it publishes to is not stopped: its acks make the room."""
    arguments = {"qpid.policy_type": "producer_flow_control", "qpid.max_count": 2}
    broker.declare_queue("q", arguments=arguments)
    with RawClient(server.url) as both:
        both.call(1, commands.Basic.Qos, prefetch_count=1)
        both.consume("q")
        for number in range(50):
            both.publish("", "q", b"%d" % number)
        for number in range(50):
            delivery = both.content()
            assert delivery.body == b"%d" % number
            both.ack(delivery.method.delivery_tag)


def test_alarms(broker: Broker) -> None:
    """Low on memory, a publisher is told and not read from, a consumer goes on; afterwards all is as before."""
    low = {"memory", "disk"}
    measured = ServerSettings(alarm_interval=0.01)
    broker.declare_queue("q")
    broker.publish(Message(b"old", routing_key="q"))
    with amqp.serve(broker, settings=measured, measure=lambda: set(low)) as server:
        wait_until_blocked(lambda: bool(server.alarms))
        with RawClient(server.url) as publisher, RawClient(server.url) as consumer:
            publisher.publish("", "q", b"first")
            blocked = publisher.method()
            assert blocked.reason == "low on disk & memory"
            publisher.publish("", "q", b"second")
            consumer.consume("q", no_ack=True)
            assert consumer.bodies(2) == [b"old", b"first"]
            assert consumer.is_silent()
            low.clear()
            assert isinstance(publisher.method(), commands.Connection.Unblocked)
            assert consumer.bodies(1) == [b"second"]


def test_a_method_sees_the_publishes_before_it(tmp_path: Path) -> None:
    """A declare, a get and a close come after the commits of what the channel published before them."""
    with Broker(data=tmp_path) as broker, amqp.serve(broker) as server, RawClient(server.url) as client:
        client.declare("q", durable=True)
        for round in range(1, 20):
            for _ in range(5):
                client.publish("", "q", b"x", delivery_mode=2)
            assert client.declare("q", durable=True, passive=True).message_count == 5 * round
        client.publish("", "q", b"last", delivery_mode=2)
        client.call(1, commands.Channel.Close)
        client.channel(1)
        assert client.ready("q") == 96


# -- numbers


@pytest.mark.slow(selected=True)
def test_ten_thousand_channels(server: Server) -> None:
    """Channels are opened and closed again, ten thousand of them, and nothing is left."""
    with RawClient(server.url) as client:
        for _ in range(5):
            for number in range(2, 2002):
                client.send_method(number, commands.Channel.Open)
            for _ in range(2000):
                assert isinstance(client.method(), commands.Channel.OpenOk)
            (connection,) = server.connections()
            assert len(connection.sessions) == 2001
            for number in range(2, 2002):
                client.send_method(number, commands.Channel.Close)
            for _ in range(2000):
                assert isinstance(client.method(), commands.Channel.CloseOk)
            assert len(connection.sessions) == 1


def test_too_many_connections(broker: Broker) -> None:
    """The one beyond the limit is cut before it says a word; when one goes, there is a place."""
    with amqp.serve(broker, settings=ServerSettings(max_connections=2, handshake_timeout=3600)) as server:
        first, second = RawClient(server.url), RawClient(server.url)
        with connected(server) as third:
            assert third.recv(10) == b""
        first.close()
        wait_until_blocked(lambda: len(server.connections()) < 2)
        RawClient(server.url).close()
        second.close()


def test_several_io_threads(broker: Broker) -> None:
    """With three I/O threads, a message goes from a connection on one to a consumer on another."""
    with amqp.serve(broker, settings=ServerSettings(io_threads=3)) as server:
        clients = [RawClient(server.url) for _ in range(3)]
        assert len({connection.io for connection in server.connections()}) == 3
        for number, client in enumerate(clients):
            client.declare(f"q{number}")
            client.consume(f"q{number}", no_ack=True)
        for number, client in enumerate(clients):
            for _ in range(100):
                client.publish("", f"q{(number + 1) % 3}", b"x")
        for client in clients:
            assert client.bodies(100) == [b"x"] * 100
            client.close()
        names = {thread.name for thread in threading.enumerate()}
        assert {f"multiqueue-amqp-{number}" for number in range(3)} <= names
    assert not any(thread.name.startswith("multiqueue-amqp") for thread in threading.enumerate())


def test_an_error_of_ours_costs_one_connection(server: Server, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What no one thought of is logged with its traceback and answered with 541; the server goes on."""
    from amqp_parts_support import HANDLERS

    def fail(channel: object, method: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setitem(HANDLERS, commands.Queue.Purge.index.to_bytes(4), fail)
    client = RawClient(server.url)
    client.send_method(1, commands.Queue.Purge, queue="q")
    assert client.connection_error()[0] == 541
    assert "nobody thought of this" in caplog.text
    RawClient(server.url).close()


@pytest.fixture
def commit_gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Commits of transactions set the first event, and wait for the second."""
    begun, gate = threading.Event(), threading.Event()
    commit = SessionTransaction.commit

    def slow_commit(transaction: SessionTransaction) -> None:
        begun.set()
        gate.wait()
        commit(transaction)

    monkeypatch.setattr(SessionTransaction, "commit", slow_commit)
    return begun, gate


def test_a_close_waits_for_a_commit_under_way(broker: Broker, commit_gate: Gate) -> None:
    """While a transaction is committed on another thread, its channel is not touched; the close follows it."""
    begun, gate = commit_gate
    broker.declare_queue("q")
    server = amqp.serve(broker)
    client = RawClient(server.url)
    client.call(1, commands.Tx.Select)
    client.publish("", "q", b"x")
    client.send_method(1, commands.Tx.Commit)
    begun.wait()
    closing = threading.Thread(target=server.close, args=(10,))
    closing.start()
    (connection,) = server.connections()
    wait_until_blocked(lambda: connection.late_fault is not None)
    gate.set()
    assert client.connection_error()[0] == 320
    closing.join()
    assert len(broker.queue("q")) == 1


def test_a_client_that_leaves_during_its_commit(broker: Broker, server: Server, commit_gate: Gate) -> None:
    """Its commit is finished, and then its channels end: no thread rolls back what another one commits."""
    begun, gate = commit_gate
    broker.declare_queue("q")
    client = RawClient(server.url)
    client.call(1, commands.Tx.Select)
    client.publish("", "q", b"x")
    client.send_method(1, commands.Tx.Commit)
    begun.wait()
    (connection,) = server.connections()
    connection.io.post(connection.abort)
    wait_until_blocked(lambda: connection.is_lost)
    gate.set()
    wait_until_nobody_is_connected(server)
    assert len(broker.queue("q")) == 1
