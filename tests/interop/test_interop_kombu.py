"""Programs written with kombu, and with py-amqp below it, on both brokers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest
from interop_proxy_support import Proxy
from rabbitmq_support import Peer

from multiqueue.testing import PATIENCE

# Both are typed in parts, which is of less use than not at all.
amqp: Any = import_module("amqp")
kombu: Any = import_module("kombu")
mixins: Any = import_module("kombu.mixins")
Connection, Consumer, Exchange, Producer, Queue = (
    getattr(kombu, each) for each in ("Connection", "Consumer", "Exchange", "Producer", "Queue")
)

Name = Callable[[str], str]


@pytest.fixture
def connection(peer: Peer) -> Iterator[Any]:
    with Connection(peer.url, transport_options={"confirm_publish": True}) as connection:
        yield connection


def receive(connection: Any, queues: list[Any], count: int, **settings: Any) -> list[tuple[Any, Any]]:
    """The bodies and messages that come from the queues, acknowledged."""
    came: list[tuple[Any, Any]] = []

    def on_message(body: Any, message: Any) -> None:
        came.append((body, message))
        message.ack()

    with Consumer(connection, queues, callbacks=[on_message], **settings):
        while len(came) < count:
            connection.drain_events(timeout=PATIENCE)
    return came


def test_a_topic_exchange_with_two_readers(connection: Any, name: Name) -> None:
    """What was declared once is bound, and each queue gets what its pattern says, with its content type."""
    events = Exchange(name("events"), "topic", auto_delete=True)
    europe = Queue(name("eu"), events, routing_key="order.eu.#", exclusive=True)
    everything = Queue(name("all"), events, routing_key="#", exclusive=True)
    with connection.Producer(serializer="json") as producer:
        for place in ("eu.paris", "us"):
            producer.publish({"to": place}, exchange=events, routing_key=f"order.{place}", declare=[europe, everything])
    assert [body for body, _ in receive(connection, [europe], 1)] == [{"to": "eu.paris"}]
    came = receive(connection, [everything], 2)
    assert [body for body, _ in came] == [{"to": "eu.paris"}, {"to": "us"}]
    assert came[0][1].content_type == "application/json"


def test_priorities(connection: Any, name: Name) -> None:
    """x-max-priority: the larger number first."""
    queue = Queue(name("p"), routing_key=name("p"), max_priority=10, exclusive=True)
    queue.routing_key = queue.name
    with connection.Producer() as producer:
        for priority in (1, 5, 3):
            producer.publish(priority, routing_key=queue.name, priority=priority, declare=[queue])
    assert [body for body, _ in receive(connection, [queue], 3)] == [5, 3, 1]


def test_a_message_is_given_back_or_refused(connection: Any, name: Name) -> None:
    """requeue brings it again; reject sends it to the dead-letter exchange that the queue names."""
    letters = Queue(name("letters"), exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters.name}
    queue = Queue(name("q"), exclusive=True, queue_arguments=arguments)
    seen: list[bool] = []

    def on_message(body: Any, message: Any) -> None:
        seen.append(message.delivery_info["redelivered"])
        message.reject() if message.delivery_info["redelivered"] else message.requeue()

    with connection.Producer() as producer:
        producer.publish("hot", routing_key=queue.name, declare=[letters, queue])
    with Consumer(connection, [queue], callbacks=[on_message]):
        while len(seen) < 2:
            connection.drain_events(timeout=PATIENCE)
    assert seen == [False, True]
    ((body, message),) = receive(connection, [letters], 1)
    assert (body, message.headers["x-first-death-reason"]) == ("hot", "rejected")


def test_a_simple_queue(connection: Any, name: Name) -> None:
    """SimpleQueue puts, gets with a time-out, and counts."""
    with connection.SimpleQueue(name("simple"), queue_opts={"durable": False}) as simple:
        for number in range(3):
            simple.put({"n": number})
        got = simple.get(timeout=PATIENCE)
        got.ack()
        assert got.payload == {"n": 0}
    simple.queue(connection.channel()).delete()


def test_buffers_and_compression(connection: Any, name: Name) -> None:
    """A large compressed body, split over many frames, arrives whole."""
    queue = Queue(name("large"), exclusive=True)
    text = "many words " * 100_000
    with connection.Producer() as producer:
        producer.publish({"text": text}, routing_key=queue.name, compression="zlib", declare=[queue])
        producer.publish(text.encode(), routing_key=queue.name, content_encoding="binary")
    (first, _), (second, message) = receive(connection, [queue], 2)
    assert first == {"text": text}
    assert bytes(second) == text.encode()
    assert message.delivery_info["routing_key"] == queue.name


class Doubler(mixins.ConsumerProducerMixin):  # type: ignore[misc]
    """A service: it consumes requests, answers them, and connects again when it has to."""

    def __init__(self, connection: Any, queue: Any) -> None:
        self.connection, self.queue = connection, queue
        self.connects = 0

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        self.connects += 1
        return [consumer(queues=[self.queue], on_message=self.on_request, accept=["json"], prefetch_count=1)]

    def on_request(self, message: Any) -> None:
        self.producer.publish(
            2 * message.payload,
            exchange="",
            routing_key=message.properties["reply_to"],
            correlation_id=message.properties["correlation_id"],
            retry=True,
        )
        message.ack()

    def on_connection_error(self, error: BaseException, interval: float) -> None:
        """Said in silence: the test counts the connects."""


def test_a_service_connects_again(connection: Any, peer: Peer, name: Name) -> None:
    """ConsumerProducerMixin goes on after its connection was cut, and answers what came meanwhile."""
    requests, answers = Queue(name("requests")), Queue(name("answers"), exclusive=True)
    answered: list[int] = []

    def on_answer(body: Any, message: Any) -> None:
        answered.append(body)
        message.ack()

    def ask(number: int) -> None:
        with connection.Producer() as producer:
            producer.publish(
                number,
                routing_key=requests.name,
                reply_to=answers.name,
                correlation_id="c",
                declare=[requests, answers],
            )

    with Proxy(peer.port) as proxy, Connection(proxy.url()) as own:
        service = Doubler(own, requests)
        thread = threading.Thread(target=service.run)
        thread.start()
        with Consumer(connection, [answers], callbacks=[on_answer]):
            for number in (1, 2):
                ask(number)
                while 2 * number not in answered:
                    connection.drain_events(timeout=PATIENCE)
                proxy.cut()
        service.should_stop = True
        thread.join()
        service.producer_connection.close()
    assert set(answered) == {2, 4}  # the first one twice, where the cut was faster than its acknowledgement
    assert service.connects >= 2
    requests(connection.channel()).delete()


# -- py-amqp, without kombu


@pytest.fixture
def plain(peer: Peer) -> Iterator[Any]:
    with amqp.Connection(urlsplit(peer.url).netloc.rpartition("@")[2], confirm_publish=True) as connection:
        yield connection


def test_tables_and_properties(plain: Any, name: Name) -> None:
    """What py-amqp encodes it gets back."""
    channel, queue = plain.channel(), name("q")
    channel.queue_declare(queue, exclusive=True)
    headers = {"int": 1, "big": 2**40, "half": 0.5, "text": "é", "list": [1, [2]], "table": {"a": True}, "none": None}
    channel.basic_publish(
        amqp.Message(b"body", application_headers=headers, delivery_mode=2, priority=3), routing_key=queue
    )
    got = channel.basic_get(queue, no_ack=True)
    assert (got.body, got.headers, got.properties["priority"]) == (b"body", headers, 3)


def test_errors_are_exceptions_of_their_code(plain: Any, name: Name) -> None:
    """404 is NotFound, 406 PreconditionFailed, 403 AccessRefused."""
    queue = name("q")
    plain.channel().queue_declare(queue, exclusive=True)
    wrongs: list[tuple[Any, Callable[[Any], object]]] = [
        (amqp.NotFound, lambda channel: channel.queue_declare("nope", passive=True)),
        (amqp.PreconditionFailed, lambda channel: channel.queue_declare(queue, exclusive=True, auto_delete=False)),
        (amqp.AccessRefused, lambda channel: channel.exchange_declare("amq.mine", "direct")),
    ]
    for error, wrong in wrongs:
        channel: Any = plain.channel()
        with pytest.raises(error):
            wrong(channel)


def test_a_nack_of_a_publish_raises(plain: Any, name: Name) -> None:
    """MessageNacked, from a queue that is full."""
    channel, queue = plain.channel(), name("full")
    channel.queue_declare(queue, exclusive=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(import_module("amqp.exceptions").MessageNacked):
        channel.basic_publish(amqp.Message(b"!"), routing_key=queue)


def test_transactions(plain: Any, name: Name) -> None:
    """tx.commit and tx.rollback."""
    publishing = amqp.Connection(plain.transport.host + f":{plain.transport.port}")
    publishing.connect()
    channel, queue = publishing.channel(), name("q")
    channel.queue_declare(queue, auto_delete=False)
    channel.tx_select()
    for body, end in ((b"no", channel.tx_rollback), (b"yes", channel.tx_commit)):
        channel.basic_publish(amqp.Message(body), routing_key=queue)
        end()
    publishing.close()
    reading = plain.channel()
    assert reading.basic_get(queue, no_ack=True).body == b"yes"
    assert reading.basic_get(queue, no_ack=True) is None
    reading.queue_delete(queue)


def test_waiting_ends_with_its_time(plain: Any) -> None:
    """drain_events raises when nothing comes, and the connection is still good."""
    with pytest.raises(socket.timeout):
        plain.drain_events(timeout=0.01)
    plain.channel().close()


def test_publishing_through_a_producer_that_retries(peer: Peer, connection: Any, name: Name) -> None:
    """kombu connects again inside publish(retry=True) when the connection was cut."""
    queue = Queue(name("q"))
    with Proxy(peer.port) as proxy, Connection(proxy.url(), transport_options={"confirm_publish": True}) as own:
        producer = Producer(own)
        producer.publish(1, routing_key=queue.name, declare=[queue])
        proxy.cut()
        producer.publish(2, routing_key=queue.name, declare=[queue], retry=True, retry_policy={"interval_start": 0})
        assert proxy.connections == 2
    assert [body for body, _ in receive(connection, [queue], 2)] == [1, 2]
    queue(connection.channel()).delete()
