"""Programs written with pika, as its users write them, on both brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from interop_proxy_support import Proxy
from pika.adapters.blocking_connection import BlockingChannel
from rabbitmq_support import Peer

from multiqueue.testing import wait_until_blocked

Name = Callable[[str], str]


def blocking(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


@pytest.fixture
def connection(peer: Peer) -> Iterator[pika.BlockingConnection]:
    connection = blocking(peer.url)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


def test_a_work_queue(channel: BlockingChannel, name: Name) -> None:
    """Jobs are published with confirms, worked on one by one, acknowledged late; one that fails is tried again."""
    queue = name("work")
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number, persistent, mandatory=True)
    channel.basic_qos(prefetch_count=1)
    worked: list[tuple[bytes, bool]] = []

    def work(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        worked.append((body, method.redelivered))
        if body == b"2" and not method.redelivered:
            channel.basic_nack(method.delivery_tag)
            return
        channel.basic_ack(method.delivery_tag)
        if body == b"4":
            channel.stop_consuming()

    channel.basic_consume(queue, work)
    channel.start_consuming()
    assert worked == [(b"0", False), (b"1", False), (b"2", False), (b"2", True), (b"3", False), (b"4", False)]
    assert channel.queue_delete(queue).method.message_count == 0


def test_what_cannot_be_routed_comes_back(channel: BlockingChannel) -> None:
    """With confirms a mandatory message that reaches no queue raises, and says why."""
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as error:
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    (returned,) = error.value.messages
    assert (returned.body, returned.method.reply_code, returned.method.reply_text) == (b"lost", 312, "NO_ROUTE")


def test_a_full_queue_raises_in_the_publisher(channel: BlockingChannel, name: Name) -> None:
    """reject-publish is a NackError."""
    queue = name("full")
    channel.queue_declare(queue, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"in")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue, b"out")


def test_a_channel_error_names_its_code(channel: BlockingChannel, connection: pika.BlockingConnection) -> None:
    """ChannelClosedByBroker with 404; the connection is still good."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("nope", passive=True)
    assert closed.value.reply_code == 404
    assert connection.channel().is_open


def test_a_wrong_password_is_told(peer: Peer) -> None:
    """ProbableAuthenticationError: pika says that it wants connection.close for that."""
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        blocking(peer.url.replace("guest:guest", "guest:wrong"))


def test_an_unknown_virtual_host_is_told(peer: Peer) -> None:
    """ProbableAccessDeniedError, with the broker's 530."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"\(530\) 'NOT_ALLOWED - vhost nope not found"):
        blocking(peer.url.replace("%2F", "nope"))


def test_a_consumer_ends_when_its_queue_is_deleted(channel: BlockingChannel, peer: Peer, name: Name) -> None:
    """consume() stops iterating, and the cancel callback is told the tag."""
    queue = name("short")
    channel.queue_declare(queue)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume(queue, lambda *_: None, consumer_tag="me")
    other = blocking(peer.url)
    other.channel().queue_delete(queue)
    other.close()
    channel.start_consuming()  # returns when it has no consumer left
    assert cancelled == ["me"]


def test_acknowledgements_from_another_thread(
    channel: BlockingChannel, connection: pika.BlockingConnection, name: Name
) -> None:
    """A job runs in a thread while the connection is served; its acknowledgement is handed back to it."""
    queue = name("threads")
    channel.queue_declare(queue, exclusive=True)
    for _ in range(3):
        channel.basic_publish("", queue, b"job")
    channel.basic_qos(prefetch_count=3)
    threads: list[threading.Thread] = []
    acknowledged: list[int] = []

    def acknowledge(tag: int) -> None:
        channel.basic_ack(tag)
        acknowledged.append(tag)

    def on_message(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        hand_back = connection.add_callback_threadsafe
        threads.append(threading.Thread(target=hand_back, args=(lambda: acknowledge(method.delivery_tag),)))
        threads[-1].start()

    channel.basic_consume(queue, on_message)
    while len(acknowledged) < 3:
        connection.process_data_events(time_limit=5)
    for each in threads:
        each.join()
    assert sorted(acknowledged) == [1, 2, 3]
    connection.close()


def test_a_request_and_its_answer(peer: Peer, name: Name) -> None:
    """Direct reply-to: the answer comes to the channel that asked, without a queue."""
    queue = name("rpc")
    server, client = blocking(peer.url), blocking(peer.url)
    answering, asking = server.channel(), client.channel()
    answering.queue_declare(queue, exclusive=True)

    def answer(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        reply = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body.upper(), reply)
        channel.stop_consuming()

    answering.basic_consume(queue, answer, auto_ack=True)
    got: list[tuple[str, bytes]] = []
    asking.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda _, method, properties, body: got.append((properties.correlation_id, body)),
        auto_ack=True,
    )
    asking.basic_publish(
        "", queue, b"hello", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    )
    answering.start_consuming()
    while not got:
        client.process_data_events(time_limit=5)
    assert got == [("1", b"HELLO")]
    server.close()
    client.close()


def test_a_program_that_reconnects(peer: Peer, name: Name) -> None:
    """When the connection is cut the consumer connects again; what it had not acknowledged is redelivered."""
    queue = name("again")
    first = blocking(peer.url)
    first.channel().queue_declare(queue)
    for number in range(3):
        first.channel().basic_publish("", queue, b"%d" % number)
    seen: list[tuple[bytes, bool]] = []
    with Proxy(peer.port) as proxy:
        wait_until_blocked(lambda: consumed(proxy, queue, seen))
        assert proxy.connections == 2
    # The acknowledgement of 0 may or may not have been faster than the cut.
    assert seen[:2] == [(b"0", False), (b"1", False)]
    assert seen[2:-1] in ([(b"1", True)], [(b"0", True), (b"1", True)])
    assert seen[-1][0] == b"2"
    assert first.channel().queue_delete(queue).method.message_count == 0
    first.close()


def consumed(proxy: Proxy, queue: str, seen: list[tuple[bytes, bool]]) -> bool:
    """Consume, and be cut with the second message in hand; true when the last one was acknowledged."""
    try:
        connection = blocking(proxy.url())
        channel = connection.channel()
        for method, _, body in channel.consume(queue):
            seen.append((body, method.redelivered))
            if len(seen) == 2:
                proxy.cut()
            channel.basic_ack(method.delivery_tag)
            if body == b"2":
                break
        connection.close()
    except pika.exceptions.AMQPConnectionError:
        return False
    return True


class SelectProgram:
    """pika's asynchronous connection: publishes `count` messages with confirms and consumes them with late acks."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        self.queue, self.count = queue, count
        self.confirmed: set[int] = set()
        self.got: list[bytes] = []
        self.returned: list[bytes] = []
        self.connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=lambda connection, error: connection.ioloop.stop(),
            on_close_callback=lambda connection, reason: connection.ioloop.stop(),
        )

    def run(self) -> SelectProgram:
        self.connection.ioloop.start()
        self.connection.ioloop.close()
        return self

    def opened(self, channel: Any) -> None:
        self.channel = channel
        channel.add_on_return_callback(lambda _, method, properties, body: self.returned.append(body))
        channel.confirm_delivery(self.on_confirm)
        channel.basic_qos(prefetch_count=20)
        channel.queue_declare(self.queue, exclusive=True, callback=self.declared)

    def declared(self, _: Any) -> None:
        self.channel.basic_consume(self.queue, self.on_message)
        self.channel.basic_publish("", "nowhere", b"lost", mandatory=True)
        for number in range(self.count):
            self.channel.basic_publish("", self.queue, b"%d" % number)

    def on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        self.confirmed |= set(range(1, tag + 1)) if frame.method.multiple else {tag}
        self.end()

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append(body)
        if len(self.got) % 10 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        self.end()

    def end(self) -> None:
        if len(self.got) == self.count and len(self.confirmed) == self.count + 1:
            self.connection.close()


def test_an_event_driven_program(peer: Peer, name: Name) -> None:
    """Everything arrives in order, everything is confirmed, and the unroutable one comes back."""
    program = SelectProgram(peer.url, name("select"), 200).run()
    assert program.got == [b"%d" % number for number in range(200)]
    assert program.confirmed == set(range(1, 202))
    assert program.returned == [b"lost"]


@pytest.mark.slow(selected=True)
def test_heartbeats_keep_a_quiet_connection(peer: Peer) -> None:
    """With a heartbeat of one second, three seconds of silence from the program are no reason to end it."""
    connection = blocking(peer.url + "?heartbeat=1")
    connection.process_data_events(time_limit=0)
    done = threading.Event()
    connection.call_later(3.2, done.set)
    while not done.is_set():
        connection.process_data_events(time_limit=0.5)
    assert connection.channel().is_open
    connection.close()
