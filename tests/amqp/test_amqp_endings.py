"""A connection that ends while something of it is under way: nothing of it stays."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from amqp_desk_support import Desk
from amqp_parts_support import ConnectionState, IoThread, ServerConnection
from amqp_raw_support import Closed, RawClient
from amqp_stored_support import StoredBroker
from pamqp import commands

from multiqueue import amqp, client
from multiqueue.amqp import Server, User
from multiqueue.broker import Broker, BrokerQueue, IllegalStep, Message, VirtualHost
from multiqueue.testing import PATIENCE, Threads, switch_interval, wait_until_blocked


@pytest.fixture
def broker() -> Iterator[StoredBroker]:
    """One whose commits the test can hold; with queues of both kinds."""
    with StoredBroker(housekeeping_interval=0.02) as started:
        started.declare_queue("stored", durable=True)
        started.declare_queue("kept")
        yield started
        started.memory.release()


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    with amqp.serve(broker) as started:
        yield started


def fill(broker: Broker, count: int = 6) -> None:
    for queue in ("stored", "kept"):
        for number in range(count):
            broker.publish(Message(b"%d" % number, routing_key=queue, persistent=True))


def busy_client(server: Server) -> RawClient:
    """Three acks from each queue wait for a commit on channel 1, and what else a connection can have is on others."""
    client = RawClient(server.url)
    client.call(1, commands.Tx.Select)
    for queue in ("stored", "kept"):
        for _ in range(3):
            got = client.get(queue)
            assert got is not None
            client.ack(got.method.delivery_tag)
        unacked = client.get(queue)
        assert unacked is not None
    client.declare("own", exclusive=True)
    client.declare("passing", auto_delete=True)
    client.consume("passing")
    client.channel(2)
    client.call(2, commands.Basic.Qos, prefetch_count=1)
    for queue in ("stored", "kept"):
        client.consume(queue, channel=2)
        assert client.content().body == b"4"
    client.consume("amq.rabbitmq.reply-to", channel=2, no_ack=True)
    return client


def reset(client: RawClient) -> None:
    """The peer's machine says that there is no such connection."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def wait_until_nobody_is_connected(server: Server) -> None:
    wait_until_blocked(lambda: not server.connections())


def assert_nothing_is_left(broker: Broker, left: list[bytes]) -> None:
    """No consumer, no queue of a connection's own, nothing unacked; what was acked in the commit is gone."""
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["kept", "stored"]
    for name in ("stored", "kept"):
        queue = broker.queue(name)
        figures = queue.statistics()
        assert (figures.consumers, figures.unacked, figures.available) == (0, 0, len(left)), name
        entries = [queue.get(broker) for _ in left]
        assert [entry.message.body for entry in entries if entry is not None] == left
        assert [entry.redelivered for entry in entries if entry is not None] == [True, True, False]


def be_reset(server: Server, connection: ServerConnection, client: RawClient) -> None:
    reset(client)
    connection.io.post(connection.abort)  # nothing is read now, so the news would wait


def be_cut_by_heartbeats(server: Server, connection: ServerConnection, client: RawClient) -> None:
    connection.io.post(connection.abort)


def fail(server: Server, connection: ServerConnection, client: RawClient) -> None:
    connection.io.post(connection.failed, RuntimeError("nobody thought of this"))
    client.send_method(0, commands.Connection.CloseOk)


def fail_and_be_reset(server: Server, connection: ServerConnection, client: RawClient) -> None:
    connection.io.post(connection.failed, RuntimeError("nobody thought of this"))
    be_reset(server, connection, client)


def be_told_that_the_server_goes(server: Server, connection: ServerConnection, client: RawClient) -> None:
    connection.io.post(connection.shut_down)
    client.send_method(0, commands.Connection.CloseOk)


def leave_with_a_close(server: Server, connection: ServerConnection, client: RawClient) -> None:
    client.send_method(0, commands.Connection.Close, reply_code=200)


def close_the_channel_and_leave(server: Server, connection: ServerConnection, client: RawClient) -> None:
    client.send_method(1, commands.Channel.Close)
    client.socket.shutdown(socket.SHUT_WR)


ENDS = [
    be_reset,
    be_cut_by_heartbeats,
    fail,
    fail_and_be_reset,
    be_told_that_the_server_goes,
    leave_with_a_close,
    close_the_channel_and_leave,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: str(end.__name__))
def test_an_end_during_a_commit_is_whole(
    broker: StoredBroker, server: Server, end: Callable[[Server, ServerConnection, RawClient], None]
) -> None:
    """The commit is done, and then channels, consumers, queues and unacked messages of the connection are not."""
    fill(broker)
    client = busy_client(server)
    (connection,) = server.connections()
    broker.memory.hold()
    client.send_method(1, commands.Tx.Commit)
    wait_until_blocked(lambda: broker.memory.statistics().pending_operations > 0)
    end(server, connection, client)
    broker.memory.release()
    wait_until_nobody_is_connected(server)
    assert_nothing_is_left(broker, [b"3", b"4", b"5"])


@pytest.mark.parametrize("end", ENDS, ids=lambda end: str(end.__name__))
def test_an_end_while_a_method_waits_for_a_publish_is_whole(
    broker: StoredBroker, server: Server, end: Callable[[Server, ServerConnection, RawClient], None]
) -> None:
    """As during a commit: a queue.declare that stands behind a publish keeps nothing from ending."""
    fill(broker)
    client = busy_client(server)
    (connection,) = server.connections()
    client.call(1, commands.Tx.Commit)
    client.channel(3)
    broker.memory.hold()
    client.publish("", "stored", b"behind", channel=3, delivery_mode=2)
    client.send_method(3, commands.Queue.Declare, queue="late", exclusive=True)
    wait_until_blocked(lambda: bool(connection.postponed))
    end(server, connection, client)
    broker.memory.release()
    wait_until_nobody_is_connected(server)
    broker.wait_for_commits()
    figures = {name: broker.queue(name).statistics() for name in ("stored", "kept")}
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["kept", "stored"]
    assert [(each.consumers, each.unacked) for each in figures.values()] == [(0, 0), (0, 0)]
    assert (figures["stored"].available, figures["kept"].available) == (4, 3)


def test_nobody_waits_for_a_commit_of_a_peer_that_left(broker: StoredBroker, server: Server) -> None:
    """Other channels of its connection end at once: their messages go to others while the commit takes its time."""
    fill(broker)
    client = busy_client(server)
    (connection,) = server.connections()
    broker.memory.hold()
    client.send_method(1, commands.Tx.Commit)
    wait_until_blocked(lambda: broker.memory.statistics().pending_operations > 0)
    be_reset(server, connection, client)
    with RawClient(server.url) as other:
        wait_until_blocked(lambda: broker.queue("kept").statistics().consumers == 0)
        other.consume("kept")
        assert other.bodies(2) == [b"4", b"5"]
    broker.memory.release()
    wait_until_nobody_is_connected(server)
    assert_nothing_is_left_but_order(broker)


def assert_nothing_is_left_but_order(broker: Broker) -> None:
    for name in ("stored", "kept"):
        figures = broker.queue(name).statistics()
        assert (figures.consumers, figures.unacked, figures.available) == (0, 0, 3), name


@pytest.mark.parametrize("leave", [lambda client: client.socket.close(), reset], ids=["end", "reset"])
def test_a_client_that_does_not_wait_for_close_ok_is_no_failure(
    broker: StoredBroker, server: Server, leave: Callable[[RawClient], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It sends its close and leaves. Its machine answers ours with a reset, which is no line of the log."""
    client = RawClient(server.url)
    (connection,) = server.connections()
    client.send_method(0, commands.Connection.Close, reply_code=200)
    leave(client)
    wait_until_nobody_is_connected(server)
    assert connection.is_lost
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("broken", ["remove_consumer", "fail", "delete"])
def test_a_part_that_cannot_end_keeps_no_other(
    broker: StoredBroker, server: Server, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception while one consumer, message or queue ends is logged, and everything else ends."""
    fill(broker)
    client = busy_client(server)
    client.declare("own2", exclusive=True)
    works = getattr(BrokerQueue, broken)

    def fail(queue: BrokerQueue, *arguments: object, **options: object) -> object:
        if queue.name in ("stored", "own"):
            raise ZeroDivisionError("nobody thought of this")
        return works(queue, *arguments, **options)

    monkeypatch.setattr(BrokerQueue, broken, fail)
    reset(client)
    wait_until_nobody_is_connected(server)
    assert "nobody thought of this" in caplog.text
    names = {queue.name for queue in broker.virtual_host().queues()}
    assert names == {"kept", "stored"} | ({"own"} if broken == "delete" else set())
    figures = {name: broker.queue(name).statistics() for name in ("kept", "stored")}
    assert (figures["kept"].consumers, figures["kept"].unacked) == (0, 0)
    assert figures["stored"].consumers == (broken == "remove_consumer")
    assert (figures["stored"].unacked > 0) == (broken == "fail")
    monkeypatch.undo()


@pytest.mark.parametrize("broken", ["fail", "delete"])
def test_a_part_that_cannot_end_in_the_process_keeps_no_other(
    broker: StoredBroker, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As over a wire: a connection to a broker of this process ends all of its channels, whatever one of them meets."""
    fill(broker)
    connection = client.connect(broker)
    for name in ("stored", "kept"):
        channel = connection.channel()
        channel.queue_declare(f"own-{name}", exclusive=True)
        assert channel.basic_get(name) is not None
    works = getattr(BrokerQueue, broken)

    def fail(queue: BrokerQueue, *arguments: object, **options: object) -> object:
        if queue.name in ("stored", "own-stored"):
            raise ZeroDivisionError("nobody thought of this")
        return works(queue, *arguments, **options)

    monkeypatch.setattr(BrokerQueue, broken, fail)
    connection.close()
    assert "nobody thought of this" in caplog.text
    assert broker.queue("kept").statistics().unacked == 0
    assert {queue.name for queue in broker.virtual_host().queues()} - {"own-stored"} == {"kept", "stored"}
    monkeypatch.undo()


def test_a_commit_for_which_there_is_no_thread(
    broker: StoredBroker, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs the connection, which ends as any other; the messages of the transaction are back."""

    def fail(work: Callable[[], object]) -> None:
        raise RuntimeError("can't start new thread")

    fill(broker)
    client = busy_client(server)
    monkeypatch.setattr(server, "offload", fail)
    client.send_method(1, commands.Tx.Commit)
    assert client.connection_error()[0] == 541
    wait_until_nobody_is_connected(server)
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["kept", "stored"]
    for name in ("stored", "kept"):
        figures = broker.queue(name).statistics()
        assert (figures.consumers, figures.unacked, figures.available) == (0, 0, 6), name


def test_what_is_not_the_channels_any_more_keeps_nothing_from_going_back(
    broker: StoredBroker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that failed in its middle leaves the books of the channel wrong: what is left goes back."""
    fill(broker)
    accept = BrokerQueue.accept

    def fail_after(queue: BrokerQueue, entries: object, owner: object) -> int:
        done = accept(queue, entries, owner)  # type: ignore[arg-type]
        if queue.name == "stored":
            raise IllegalStep("struck in the middle of a commit")
        return done

    client = busy_client(server)
    monkeypatch.setattr(BrokerQueue, "accept", fail_after)
    client.send_method(1, commands.Tx.Commit)
    close = client.method()
    assert (type(close), close.reply_code) == (commands.Channel.Close, 541)
    monkeypatch.undo()
    client.close()
    wait_until_nobody_is_connected(server)
    figures = [broker.queue(name).statistics() for name in ("stored", "kept")]
    assert [(each.consumers, each.unacked) for each in figures] == [(0, 0), (0, 0)]
    assert figures[0].available == 3  # its three were accepted before it struck


@pytest.mark.parametrize("interval", [0.005, 1e-6], ids=["", "1 us"])
def test_two_hundred_resets_during_a_commit(broker: StoredBroker, server: Server, interval: float) -> None:
    """None of them leaves a consumer, a queue or an unacked message, whatever moment it strikes."""
    fill(broker, 500)

    def come_and_be_reset(worker: int) -> None:
        for number in range(50):
            with ExitStack() as stack:
                client = RawClient(server.url)
                stack.callback(reset, client)
                client.call(1, commands.Tx.Select)
                for queue in ("stored", "kept"):
                    got = client.get(queue)
                    if got is not None:
                        client.ack(got.method.delivery_tag)
                client.declare(f"own{worker}", exclusive=True)
                client.channel(2)
                client.call(2, commands.Basic.Qos, prefetch_count=2)
                client.consume("stored", channel=2)
                client.consume("kept", channel=2)
                client.send_method(1, commands.Tx.Commit)
                if number % 3 == 0:
                    client.send_method(0, commands.Connection.Close, reply_code=200)
                elif number % 3 == 1:
                    threading.Event().wait(worker / 2000)  # 0 to 1.5 ms: before, in and after the commit

    with switch_interval(interval), Threads() as threads:
        for worker in range(4):
            threads.start(come_and_be_reset, worker)
    wait_until_nobody_is_connected(server)
    broker.wait_for_commits()
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["kept", "stored"]
    for name in ("stored", "kept"):
        figures = broker.queue(name).statistics()
        assert (figures.consumers, figures.unacked) == (0, 0)
        assert 300 <= figures.available <= 500
    with RawClient(server.url) as client:
        assert client.ready("kept") >= 300


def test_a_connection_that_is_closed_before_its_header_stays_closed(server: Server) -> None:
    """A client whose connection an operator closes before its first byte is not let in by the header it sends then."""
    io = IoThread("desk")
    peer = Desk(server, io)
    try:
        peer.connection.close_by_operator("maintenance")
        peer.say(amqp.PROTOCOL_HEADER)
        assert peer.connection.machine.state is ConnectionState.CLOSING
        peer.say_method(0, commands.Connection.CloseOk)
        assert peer.transport.is_closing()
    finally:
        peer.close()
        io.loop.close()


def test_a_client_that_writes_behind_its_close(server: Server) -> None:
    """A client may write publishes behind its close, as Node's amqplib does. It gets the answer, then the end, and no
    reset. The server drops what came behind the close."""
    with RawClient(server.url) as client:
        client.send_method(0, commands.Connection.Close, reply_code=200)
        assert select.select([client.socket], [], [], PATIENCE)[0]  # the answer is there, and unread
        for _ in range(3):
            client.publish("", "kept", b"late")
            time.sleep(0.01)  # a reset would come in this time
        assert isinstance(client.method(), commands.Connection.CloseOk)
        with pytest.raises(Closed):
            client.frame()
    with RawClient(server.url) as client:
        assert client.ready("kept") == 0


def test_a_server_closes_under_commits(broker: StoredBroker) -> None:
    """`Server.close` while commits of many connections are under way ends every one of them."""
    fill(broker, 60)
    with amqp.serve(broker) as server:
        clients = [RawClient(server.url) for _ in range(6)]
        for client in clients:
            client.call(1, commands.Tx.Select)
            for queue in ("stored", "kept"):
                got = client.get(queue)
                assert got is not None
                client.ack(got.method.delivery_tag)
            client.declare(f"own{id(client)}", exclusive=True)
            client.channel(2)
            client.call(2, commands.Basic.Qos, prefetch_count=1)
            client.consume("kept", channel=2)
        broker.memory.hold()
        for client in clients:
            client.send_method(1, commands.Tx.Commit)
        wait_until_blocked(lambda: broker.memory.statistics().pending_operations == len(clients))
        with Threads(PATIENCE) as threads:
            threads.start(server.close, 5)
            wait_until_blocked(lambda: all(connection.late_fault is not None for connection in server.connections()))
            broker.memory.release()
            for client in clients:
                try:
                    while not isinstance(client.method(), commands.Connection.Close):
                        pass
                except (Closed, AssertionError):
                    pass
                client.socket.close()
        assert server.connections() == []
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["kept", "stored"]
    for name in ("stored", "kept"):
        figures = broker.queue(name).statistics()
        assert (figures.consumers, figures.unacked, figures.available) == (0, 0, 54)


def test_a_get_whose_queue_goes_meanwhile_is_not_told_that_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages may be there still, as when a virtual host is closed to be opened again."""
    get = BrokerQueue.get

    def late(queue: BrokerQueue, owner: object, *, auto_accept: bool = False) -> object:
        broker.virtual_host().delete_queue("q")
        return get(queue, owner, auto_accept=auto_accept)

    with Broker() as broker, client.connect(broker.listen().url, recover=False) as connection:
        broker.declare_queue("q")
        broker.publish(Message(b"x", routing_key="q"))
        monkeypatch.setattr(BrokerQueue, "get", late)
        with pytest.raises(client.ChannelClosed, match="no queue 'q'"):
            connection.channel().basic_get("q")


def test_a_purge_whose_queue_goes_meanwhile_is_not_told_that_nothing_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a get."""
    purge = BrokerQueue.purge

    def late(queue: BrokerQueue) -> int:
        broker.virtual_host().delete_queue("q")
        return purge(queue)

    with Broker() as broker, client.connect(broker.listen().url, recover=False) as connection:
        broker.declare_queue("q")
        monkeypatch.setattr(BrokerQueue, "purge", late)
        with pytest.raises(client.ChannelClosed, match="no queue 'q'"):
            connection.channel().queue_purge("q")


def test_a_declaration_whose_queue_goes_before_it_is_counted_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A passive one misses it: it says how many messages are there, or that there is no queue."""
    statistics = BrokerQueue.statistics

    def late(queue: BrokerQueue) -> object:
        monkeypatch.undo()
        broker.virtual_host().delete_queue("q")
        return statistics(queue)

    with Broker() as broker, client.connect(broker.listen().url, recover=False) as connection:
        broker.declare_queue("q")
        monkeypatch.setattr(BrokerQueue, "statistics", late)
        assert connection.channel().queue_declare("q").message_count == 0
        assert broker.virtual_host().has_queue("q")
        monkeypatch.setattr(BrokerQueue, "statistics", late)
        with pytest.raises(client.ChannelClosed, match="no queue 'q'"):
            connection.channel().queue_declare("q", passive=True)


def test_a_connection_that_opens_a_virtual_host_as_that_is_deleted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has its connections closed, and does not find it among them yet."""
    check = Server.check_connections

    def late(server: Server, user: User, host: VirtualHost) -> None:
        check(server, user, host)
        if broker.virtual_hosts()[1:]:
            broker.delete_virtual_host("x")

    with Broker() as broker, broker.listen() as server:
        broker.add_virtual_host("x")
        monkeypatch.setattr(Server, "check_connections", late)
        with pytest.raises(client.ConnectionFailed, match="vhost x not found"):
            client.connect(server.url.replace("%2F", "x"), recover=False)


def test_a_server_lets_nobody_in_before_its_broker_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a virtual host that is deleted just then would leave a connection behind."""
    add, seen = Broker.add_server, []

    async def accepting(server: Server) -> int:
        return len(server._accepting)

    def looked_at(broker: Broker, server: Server) -> None:
        seen.append(asyncio.run_coroutine_threadsafe(accepting(server), server._threads[0].loop).result(PATIENCE))
        add(broker, server)

    monkeypatch.setattr(Broker, "add_server", looked_at)
    with Broker() as broker, client.connect(broker.listen().url, recover=False):
        assert seen == [0]
