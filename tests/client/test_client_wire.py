"""What only a server that misbehaves, or answers when the test wants it to, can show."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from amqp_parts_support import Publish
from client_contract_support import Seen
from client_parts_support import Agreement, Assembler, Event, Link, ReceiveBuffer, Settings, WireLink
from client_server_support import Conversation, Listener, playing
from pamqp import commands

from multiqueue.amqp import HEARTBEAT, Ack, encode_method
from multiqueue.client import (
    CallTimeout,
    Channel,
    ChannelClosed,
    Connection,
    ConnectionClosed,
    ConnectionFailed,
    PublishTimeout,
    connect,
)
from multiqueue.testing import PATIENCE, TestToolError, wait_until_blocked


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def close(connection: Connection, conversation: Conversation) -> None:
    """Close the client's side, with the server agreeing."""
    with playing(conversation.agree_to_close):
        connection.close()
    assert connection.is_closed


def open_channel(connection: Connection, conversation: Conversation) -> Channel:
    with playing(conversation.open_channel):
        return connection.channel()


def test_confirms_count_from_the_request_for_them(listener: Listener) -> None:
    """A message that another thread publishes before confirm.select is answered has the number 1 (client 6)."""
    connection, server = listener.connect()
    channel = open_channel(connection, server)
    with playing(channel.confirm_select):
        server.expect(commands.Confirm.Select)
        channel.publish(b"before the answer", routing_key="q")
        server.send(1, commands.Confirm.SelectOk)
    confirm = channel.publish_confirmed(b"after it", routing_key="q")
    for _ in range(2):
        server.expect(Publish)
    server.send(1, commands.Basic.Nack, delivery_tag=1)
    server.send(1, commands.Basic.Ack, delivery_tag=2)
    confirm.result(PATIENCE)
    assert not channel.wait_for_confirms(PATIENCE)
    close(connection, server)


def test_a_call_without_an_answer_closes_its_channel(listener: Listener) -> None:
    """C12: after the timeout; the late answer is dropped, and other channels go on (client 5)."""
    connection, server = listener.connect()
    channel, other = open_channel(connection, server), open_channel(connection, server)
    with pytest.raises(CallTimeout, match=r"Queue\.Declare was not answered within 0\.05 s"):
        channel.call(commands.Queue.Declare, queue="q", timeout=0.05)
    server.expect(commands.Queue.Declare, 1)
    closing = server.expect(commands.Channel.Close, 1)
    assert closing.reply_code == 541
    server.send(1, commands.Queue.DeclareOk, queue="q", message_count=7)
    server.send(1, commands.Channel.CloseOk)
    with pytest.raises(ChannelClosed, match="was closed here"):
        channel.queue_declare("q")
    with playing(lambda: server.answer(commands.Queue.Purge, commands.Queue.PurgeOk, message_count=1)):
        assert other.queue_purge("q") == 1
    close(connection, server)


def test_a_channel_that_is_not_opened_in_time_keeps_its_number(listener: Listener) -> None:
    """Until the server has closed it: to the server, another one of this number would be the same."""
    connection, server = listener.connect(call_timeout=0.05)
    patient = replace(connection.settings, call_timeout=PATIENCE)
    with pytest.raises(CallTimeout, match=r"Channel\.Open was not answered"):
        connection.channel()
    connection.settings = patient
    server.expect(commands.Channel.Open, 1)
    server.expect(commands.Channel.Close, 1)
    assert open_channel(connection, server).number == 2
    server.send(1, commands.Channel.CloseOk)
    wait_until_blocked(lambda: len(connection.statistics().channels) == 1)
    assert open_channel(connection, server).number == 1
    close(connection, server)


def test_acknowledgements_do_not_wait_for_a_call(listener: Listener) -> None:
    """C13: while a call is not answered, another thread's ack and publish are on the wire (client 4)."""
    connection, server = listener.connect()
    channel = open_channel(connection, server)
    seen, tags = Seen(), []
    with playing(lambda: tags.append(server.consume())):
        channel.basic_consume("q", seen)
    server.deliver(1, tags[0], 1, b"x")
    (message,) = seen.wait_for(1)
    caller = threading.Thread(target=channel.queue_declare, args=("slow",))
    caller.start()
    server.expect(commands.Queue.Declare)
    message.ack()
    channel.publish(b"x", routing_key="q")
    assert server.expect(Ack) == Ack(1, False)
    server.expect(Publish)
    server.send(1, commands.Queue.DeclareOk, queue="slow")
    caller.join(PATIENCE)
    close(connection, server)


def test_one_call_at_a_time_per_channel(listener: Listener) -> None:
    """C12: the second of two threads sends nothing before the first is answered; another channel is not held up.

    (client 5)
    """
    connection, server = listener.connect()
    channel, other = open_channel(connection, server), open_channel(connection, server)
    threads = [threading.Thread(target=channel.queue_purge, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    assert server.expect(commands.Queue.Purge, 1).queue == "first"
    threads[1].start()
    wait_until_blocked(threads[1])
    overlapping = threading.Thread(target=other.queue_purge, args=("other",))
    overlapping.start()
    assert server.expect(commands.Queue.Purge, 2).queue == "other"
    server.send(2, commands.Queue.PurgeOk)
    server.send(1, commands.Queue.PurgeOk)
    assert server.answer(commands.Queue.Purge, commands.Queue.PurgeOk).queue == "second"
    for thread in (*threads, overlapping):
        thread.join(PATIENCE)
    close(connection, server)


def test_contents_of_one_channel_are_in_one_piece(listener: Listener) -> None:
    """C14: eight threads publish bodies of several frames on one channel, and no frame comes between (client 6)."""
    connection, server = listener.connect()
    channel = open_channel(connection, server)
    body = b"x" * 300_000

    def work() -> None:
        for _ in range(5):
            channel.publish(body, routing_key="q")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        assert server.frame()[0] == 1
        assert server.frame()[0] == 2
        left = len(body)
        while left:
            kind, _, payload = server.frame()
            assert kind == 3
            left -= len(payload)
    for thread in threads:
        thread.join(PATIENCE)
    close(connection, server)


def test_every_wait_ends_with_the_connection(listener: Listener) -> None:
    """C15: calls on several channels, a wait for confirms and one for a confirm raise when the socket dies.

    (client 5)
    """
    connection, server = listener.connect(recover=False)
    channels = [open_channel(connection, server) for _ in range(3)]
    with playing(lambda: server.answer(commands.Confirm.Select, commands.Confirm.SelectOk)):
        channels[2].confirm_select()
    confirm = channels[2].publish_confirmed(b"x")
    ended: list[Exception] = []

    def wait(what: object) -> None:
        try:
            what()  # type: ignore[operator]
        except (ConnectionClosed, ChannelClosed) as error:
            ended.append(error)

    waits = [
        lambda: channels[0].queue_purge("q"),
        lambda: channels[1].queue_purge("q"),
        channels[2].wait_for_confirms,
        confirm.result,
    ]
    threads = [threading.Thread(target=wait, args=(each,)) for each in waits]
    for thread in threads:
        thread.start()
        wait_until_blocked(thread)
    server.socket.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == 4
    assert all("was lost" in str(error) for error in ended), ended
    connection.close()


def test_what_ended_a_connection_is_raised_anew_by_each_wait(listener: Listener) -> None:
    """One error for all inboxes would have all their tracebacks, and lose the cause that `on_closed` is to show."""
    ended = Seen()
    connection, server = listener.connect(recover=False, on_closed=lambda connection, error: ended(error))
    inboxes = []
    for channel in (open_channel(connection, server), open_channel(connection, server)):
        with playing(server.consume):
            inboxes.append(channel.consume("q"))

    def fail(*arrived: Any) -> None:
        raise LookupError("a defect")

    connection.arrived = fail  # type: ignore[method-assign]
    server.send(0, commands.Connection.Unblocked)
    (error,) = ended.wait_for(1)
    raised = []
    for inbox in inboxes * 2:
        with pytest.raises(ConnectionClosed, match="a defect") as caught:
            inbox.get(PATIENCE)
        raised.append(caught.value)
    assert len(set(map(id, [error, *raised]))) == 5
    assert isinstance(error.__cause__, LookupError)
    connection.close()


def test_heartbeats_go_on_while_a_callback_runs(listener: Listener) -> None:
    """C7: the peer hears from us for as long as a callback does not return (client 7)."""
    connection, server = listener.connect(heartbeat=1)
    assert connection.statistics().state == "open"
    channel = open_channel(connection, server)
    gate, tags = threading.Event(), []
    seen = Seen(lambda message: gate.wait(PATIENCE))
    with playing(lambda: tags.append(server.consume())):
        channel.basic_consume("q", seen)
    server.deliver(1, tags[0], 1, b"x")
    while server.heartbeats < 3:
        server.socket.sendall(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        server._frames += server._splitter.feed(server.socket.recv(8))
        server.heartbeats += len(server._frames)
        server._frames.clear()
    assert connection.is_open
    gate.set()
    seen.wait_for(1)
    close(connection, server)


class Deaf:
    """A listener to which nothing is said."""

    receive_buffer = ReceiveBuffer(1)

    def arrived(self, link: Link, events: list[Event]) -> None: ...

    def lost(self, link: Link, error: ConnectionClosed) -> None: ...


class Ticks(threading.Event):
    """The end of a link, which the test makes time pass for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._ticks: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def tick(self) -> None:
        self._ticks.put(False)

    def set(self) -> None:
        super().set()
        self._ticks.put(True)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self._ticks.get()


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_heartbeat_leaves_every_half_period(is_busy: bool) -> None:
    """The peer never waits a whole period for a byte: neither our last heartbeat nor a message of ours puts the next
    heartbeat off."""
    ours, peer = socket.socketpair()
    with peer:
        peer.settimeout(PATIENCE)
        agreement = Agreement(frame_max=4096, channel_max=9, heartbeat=2, server_properties={}, early=[])
        link = WireLink(ours, Assembler(4096), agreement, Settings(), Deaf(), "peer")
        link._over = over = Ticks()
        link.start()
        for _ in range(3):
            if is_busy:
                link.send(1, recover := encode_method(1, commands.Basic.Recover))
                peer.recv(len(recover), socket.MSG_WAITALL)
            over.tick()
            assert peer.recv(len(HEARTBEAT), socket.MSG_WAITALL) == HEARTBEAT
        link.end(ConnectionClosed("that was all"))
        link.join(PATIENCE)
    assert set(over.waits) == {1.0}


def test_a_link_that_is_closed_by_what_came_with_its_opening_ends_all_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader, which ends it, waits for the writer's last words: it does not run before that can be waited for."""

    class Answering(Deaf):
        def arrived(self, link: Link, events: list[Event]) -> None:
            link.end(ConnectionClosed("closed by the server"), linger=1.0)

    start = threading.Thread.start

    def started_first(thread: threading.Thread) -> None:
        """Start it, and let it run as far as it can before anything else."""
        start(thread)
        try:
            wait_until_blocked(thread)
        except TestToolError:
            pass  # it has ended

    monkeypatch.setattr(threading.Thread, "start", started_first)
    ours, peer = socket.socketpair()
    with peer:
        early = [Event(0, commands.Connection.Close())]
        agreement = Agreement(frame_max=4096, channel_max=9, heartbeat=2, server_properties={}, early=early)
        link = WireLink(ours, Assembler(4096), agreement, Settings(), Answering(), "peer")
        link.start()
        is_over = link._over.is_set()
        link._over.set()
        link.join(PATIENCE)
    assert is_over


def test_a_silent_peer_is_found_dead(listener: Listener) -> None:
    """Two intervals without a byte end the connection, with that reason."""
    ended = Seen()
    connection, _ = listener.connect(heartbeat=1, recover=False, on_closed=lambda connection, error: ended(error))
    assert "missed its heartbeats" in str(ended.wait_for(1)[0])
    connection.close()


def test_a_full_buffer_stops_the_reader_and_nothing_else(listener: Listener) -> None:
    """C8: at the limit the socket is read no further, until half is done with; acks and calls go on meanwhile.

    (client 8)
    """
    connection, server = listener.connect(buffer_bytes=10_000, threads=1)
    channel = open_channel(connection, server)
    gate, tags = threading.Semaphore(0), []
    seen = Seen(lambda message: gate.acquire(timeout=PATIENCE))
    with playing(lambda: tags.append(server.consume())):
        channel.basic_consume("q", seen)
    for tag in range(1, 12):
        server.deliver(1, tags[0], tag, b"x" * 1000)
    wait_until_blocked(lambda: not connection.statistics().is_reading)
    held = connection.statistics().buffered_bytes
    for tag in range(12, 101):
        server.deliver(1, tags[0], tag, b"x" * 1000)
    reader = next(thread for thread in threading.enumerate() if thread.name == "multiqueue-reader")
    wait_until_blocked(reader)
    assert connection.statistics().buffered_bytes <= held + 66_000  # one read at most was under way
    other = threading.Thread(target=channel.queue_purge, args=("q",))
    other.start()
    assert server.answer(commands.Queue.Purge, commands.Queue.PurgeOk).queue == "q"
    other.join(PATIENCE)  # the answer stands behind a hundred deliveries
    assert not other.is_alive()
    for _ in range(100):
        gate.release()
    seen.wait_for(100)
    assert connection.statistics().is_reading
    assert connection.statistics().buffered_bytes == 0
    close(connection, server)


def test_the_server_may_stop_the_flow_of_a_channel(listener: Listener) -> None:
    """C20: publishing waits until it goes on, within its timeout; other channels and calls do not."""
    connection, server = listener.connect()
    channel, other = open_channel(connection, server), open_channel(connection, server)
    server.send(1, commands.Channel.Flow, active=False)
    assert server.expect(commands.Channel.FlowOk, 1).active is False
    with pytest.raises(PublishTimeout, match="has stopped the flow"):
        channel.publish(b"x", timeout=0.01)
    assert channel.statistics().blocked_for is not None
    other.publish(b"other")
    server.expect(Publish, 2)
    publisher = threading.Thread(target=channel.publish, args=(b"x",))
    publisher.start()
    wait_until_blocked(publisher)
    server.send(1, commands.Channel.Flow, active=True)
    server.expect(commands.Channel.FlowOk, 1)
    server.expect(Publish, 1)
    publisher.join(PATIENCE)
    close(connection, server)


def test_nothing_follows_the_close_of_a_channel(listener: Listener) -> None:
    """Not even the answer to what has crossed it: to the server, that is on a channel that is not open."""
    connection, server = listener.connect()
    channel = open_channel(connection, server)
    closing = threading.Thread(target=channel.close)
    closing.start()
    server.expect(commands.Channel.Close, 1)
    server.send(1, commands.Channel.Flow, active=False)
    server.send(1, commands.Channel.CloseOk)
    closing.join(PATIENCE)
    with playing(lambda: server.answer(commands.Connection.Close, commands.Connection.CloseOk)):
        connection.close()


def test_blocked_is_told_and_shown(listener: Listener) -> None:
    """C20: the listener is called on the work pool, and statistics say for how long."""
    told = Seen()
    connection, server = listener.connect(on_blocked=lambda connection, reason: told(reason))
    channel = open_channel(connection, server)
    server.send(0, commands.Connection.Blocked, reason="low on memory")
    assert told.wait_for(1) == ["low on memory"]
    assert connection.blocked_reason == "low on memory"
    assert channel.statistics().blocked_for is not None
    channel.publish(b"x")
    server.send(0, commands.Connection.Unblocked)
    assert told.wait_for(2)[1] is None
    assert channel.statistics().blocked_for is None
    close(connection, server)


def test_a_server_that_reads_nothing_is_felt_by_publishers(listener: Listener) -> None:
    """What the socket does not take is bounded: then a publish waits, within its timeout, and nothing was sent.

    (client 8)
    """
    connection, server = listener.connect(outbox_bytes=100_000)
    channel = open_channel(connection, server)

    def flood() -> None:
        for _ in range(2000):
            channel.publish(b"x" * 50_000, timeout=0.05)

    with pytest.raises(PublishTimeout, match="accepted nothing for"):
        flood()
    close(connection, server)


def test_a_delivery_for_nobody_does_no_harm(listener: Listener) -> None:
    """C11: neither for an unknown consumer nor on a channel that is closed."""
    connection, server = listener.connect()
    channel = open_channel(connection, server)
    server.deliver(1, "nobody", 1, b"x")
    server.deliver(77, "nobody", 1, b"x")
    with playing(lambda: server.answer(commands.Queue.Purge, commands.Queue.PurgeOk)):
        channel.queue_purge("q")
    close(connection, server)


@pytest.mark.parametrize(
    ("bytes_sent", "complaint"),
    [
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x3c\x00", "no AMQP"),
        (b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + b"\x00" * 10 + b"\xce", "none is expected"),
        (b"\x03\x00\x01\x00\x00\x00\x01x\xce", "none is expected"),
        (b"GET / HTTP/1.1\r\n\r\n", "no AMQP"),
    ],
)
def test_what_is_no_amqp_ends_the_connection(listener: Listener, bytes_sent: bytes, complaint: str) -> None:
    """With a reason, and without recovery: the server would send it again."""
    ended = Seen()
    connection, server = listener.connect(on_closed=lambda connection, error: ended(error))
    server.socket.sendall(bytes_sent)
    assert complaint in str(ended.wait_for(1)[0])
    assert connection.is_closed
    connection.close()


def test_the_first_connect_says_why_it_failed(listener: Listener) -> None:
    """C22: it is tried once; every host with its own reason."""
    dead = Listener()
    dead.close()

    def refuse() -> None:
        conversation = listener.accept()
        conversation.socket.recv(8)
        conversation.socket.sendall(b"AMQP\x00\x01\x00\x00")

    with playing(refuse), pytest.raises(ConnectionFailed) as caught:
        connect(f"amqp://guest:guest@127.0.0.1:{dead.port},127.0.0.1:{listener.port}/%2F")
    assert f"127.0.0.1:{dead.port}: " in str(caught.value)
    assert "speaks another version of AMQP" in str(caught.value)
    assert "guest:guest" not in str(caught.value)


def test_the_next_host_is_tried(listener: Listener) -> None:
    """A list of addresses, or one with several hosts: the first that agrees."""
    dead = Listener()
    dead.close()
    for target in ([dead.url, listener.url], f"amqp://guest@127.0.0.1:{dead.port},127.0.0.1:{listener.port}/%2F"):
        accepted: list[Conversation] = []

        def agree(accepted: list[Conversation] = accepted) -> None:
            accepted.append(listener.accept())
            accepted[0].handshake()

        with playing(agree):
            connection = connect(target)
        close(connection, accepted[0])


def test_an_answer_that_stays_out_ends_close(listener: Listener) -> None:
    """C17: channel and connection close without the server after `close_timeout`."""
    connection, server = listener.connect(close_timeout=0.05)
    channel = open_channel(connection, server)
    channel.close()
    connection.close()
    assert not channel.is_open
    assert connection.is_closed
