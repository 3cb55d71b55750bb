"""An inbox over many queues: turns, queues that come and go, and what one of them costs the others."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from client_contract_support import publish
from client_proxy_support import Proxy
from rabbitmq_support import NoPeer, free_ports, rabbitmq

from multiqueue import Empty
from multiqueue.broker import Broker
from multiqueue.client import Connection, ConnectionClosed, ConnectionFailed, FairInbox, connect
from multiqueue.testing import PATIENCE


class Place:
    """A broker to connect to, and where its queues are listed."""

    def __init__(self, target: Any, api: str | None, stack: ExitStack, http: Any = None) -> None:
        self.target, self.api, self._stack, self.http = target, api, stack, http

    def connect(self, target: Any = None, **options: Any) -> Connection:
        connection = connect(self.target if target is None else target, **options)
        self._stack.callback(connection.close)
        return connection

    def declare(self, *names: str) -> Connection:
        """A connection to a broker with these queues, which are empty, and go with the test."""
        connection = self.connect()
        channel = connection.channel()
        for name in names:
            channel.queue_delete(name)
            channel.queue_declare(name, durable=True)
            self._stack.callback(self._delete, name)
        return connection

    def _delete(self, name: str) -> None:
        with connect(self.target) as connection, connection.channel() as channel:
            channel.queue_delete(name)


@pytest.fixture(scope="module")
def rabbitmq_with_api() -> Iterator[tuple[str, str]]:
    """A RabbitMQ whose HTTP API answers."""
    (port,) = free_ports(1)
    settings = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\n"
    with ExitStack() as stack:
        try:
            peer = stack.enter_context(rabbitmq(settings, plugins=["rabbitmq_management"]))
        except NoPeer as error:
            if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
                pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {error}", pytrace=False)
            pytest.skip(str(error))
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
                break
            except OSError:
                time.sleep(0.1)
        yield peer.url, f"http://guest:guest@127.0.0.1:{port}"


@pytest.fixture(params=["in_process", "server", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param == "rabbitmq":
            yield Place(*request.getfixturevalue("rabbitmq_with_api"), stack)
        elif request.param == "server":
            yield _our_server(stack)
        else:
            yield Place(stack.enter_context(Broker()), None, stack)


@pytest.fixture
def server_place() -> Iterator[Place]:
    with ExitStack() as stack:
        yield _our_server(stack)


def _our_server(stack: ExitStack) -> Place:
    broker = stack.enter_context(Broker())
    server = stack.enter_context(broker.listen())
    http = stack.enter_context(broker.listen_http(amqp=server))
    return Place(server.url, http.url.replace("//", "//guest:guest@"), stack, http)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def take(inbox: FairInbox, count: int) -> list[str]:
    """The queues of the next messages, which are acknowledged."""
    taken = []
    for _ in range(count):
        message = inbox.get(PATIENCE)
        message.ack()
        taken.append(message.routing_key)
    return taken


def test_queues_take_turns(place: Place) -> None:
    """A message of a queue with one waits behind one of a queue with many, not behind all that came before it; a queue
    that does not match is left alone (client 14)."""
    connection = place.declare("jobs.flood", "jobs.quiet", "other")
    channel = connection.channel()
    publish(channel, "jobs.flood", *[b"job"] * 20)
    publish(channel, "jobs.quiet", b"job")
    publish(channel, "other", b"job")
    with place.connect().inbox("jobs.*", api=place.api, prefetch=5, every=60) as inbox:
        assert inbox.queues == {"jobs.flood", "jobs.quiet"}
        wait_for(lambda: inbox.qsize() == 6)
        assert "jobs.quiet" in take(inbox, 2)
        assert take(inbox, 19) == ["jobs.flood"] * 19
        with pytest.raises(Empty):
            inbox.get(0.01)


def test_queues_have_shares(place: Place) -> None:
    """A queue of weight 3 is served three times as often as one of weight 1 (client 14)."""
    connection = place.declare("jobs.free", "jobs.gold")
    for name in ("jobs.free", "jobs.gold"):
        publish(connection.channel(), name, *[b"job"] * 20)
    weights = {"jobs.gold": 3}
    with place.connect().inbox("jobs.*", api=place.api, prefetch=20, weights=weights, every=60) as inbox:
        wait_for(lambda: inbox.qsize() == 40)
        assert take(inbox, 20).count("jobs.gold") == 15


def test_a_list_names_the_queues(place: Place) -> None:
    """With `queues` nobody is asked which there are, and one that is not there yet is tried again."""
    connection = place.declare("jobs.a", "jobs.b")
    names = ["jobs.a", "jobs.later"]
    with place.connect().inbox(queues=names, api="http://127.0.0.1:1", every=60) as inbox:
        assert inbox.queues == {"jobs.a"}
        place.declare("jobs.later")
        inbox.look()
        publish(connection.channel(), "jobs.later", b"job")
        assert take(inbox, 1) == ["jobs.later"]


def test_a_queue_that_comes_is_found(place: Place) -> None:
    """Within `every` seconds, without a call."""
    place.declare()
    with place.connect().inbox("jobs.*", api=place.api, every=0.01) as inbox:
        publish(place.declare("jobs.new").channel(), "jobs.new", b"job")
        assert take(inbox, 1) == ["jobs.new"]


def test_a_queue_that_goes_costs_the_others_nothing(place: Place) -> None:
    """A message of a queue that was deleted can still be settled; its channel is closed when it is. If the queue comes
    back, it is consumed from again (client 14)."""
    channel = place.declare("jobs.a", "jobs.b").channel()
    consumer = place.connect()
    with consumer.inbox("jobs.*", api=place.api, every=60) as inbox:
        publish(channel, "jobs.a", b"job")
        message = inbox.get(PATIENCE)
        channel.queue_delete("jobs.a")
        wait_for(lambda: inbox.queues == {"jobs.b"})
        inbox.look()
        message.ack()
        inbox.look()
        wait_for(lambda: len(consumer.statistics().channels) == 1)
        channel.queue_declare("jobs.a", durable=True)
        inbox.look()
        for name in ("jobs.a", "jobs.b"):
            publish(channel, name, b"job")
        assert sorted(take(inbox, 2)) == ["jobs.a", "jobs.b"]


def test_a_queue_that_is_refused_costs_the_others_nothing(place: Place) -> None:
    """One that has an exclusive consumer is consumed from when that has gone."""
    connection = place.declare("jobs.hers", "jobs.ours")
    hers = connection.channel().consume("jobs.hers", exclusive=True)
    with place.connect().inbox("jobs.*", api=place.api, every=60) as inbox:
        assert inbox.queues == {"jobs.ours"}
        hers.close()
        inbox.look()
        assert inbox.queues == {"jobs.hers", "jobs.ours"}


def test_what_is_not_settled_goes_back_at_the_end(place: Place) -> None:
    """What waits in the inbox, and what was taken. A take that waits, or comes later, ends."""
    channel = place.declare("jobs.a").channel()
    publish(channel, "jobs.a", *[b"job"] * 5)
    consumer = place.connect()
    inbox = consumer.inbox("jobs.*", api=place.api, prefetch=3, every=60)
    inbox.get(PATIENCE)
    inbox.close()
    inbox.close()
    assert list(inbox) == []
    assert channel.queue_declare("jobs.a", passive=True).message_count == 5
    assert consumer.statistics().channels == ()
    consumer.check_invariants()


def test_it_ends_with_its_connection(place: Place) -> None:
    """Also one that has found no queue."""
    place.declare()
    consumer = place.connect()
    inbox = consumer.inbox("nobody.*", api=place.api, every=60)
    consumer.close()
    assert list(inbox) == []
    with pytest.raises(ConnectionClosed):
        consumer.inbox(queues=[])


def test_a_closed_channel_comes_back(place: Place) -> None:
    """A message that is settled twice on the wire, say, closes the channel of one queue until the next look."""
    channel = place.declare("jobs.a").channel()
    publish(channel, "jobs.a", b"job")
    with place.connect().inbox("jobs.*", api=place.api, every=60) as inbox:
        inbox.get(PATIENCE).channel.close()
        inbox.look()
        assert take(inbox, 1) == ["jobs.a"]


def test_a_lost_connection_comes_back(server_place: Place) -> None:
    """What waited in the inbox is not given out twice: it comes again over the new connection."""
    channel = server_place.declare("jobs.a", "jobs.b").channel()
    for name in ("jobs.a", "jobs.b"):
        publish(channel, name, *[b"job"] * 3)
    proxy = Proxy(server_place.target)
    consumer = server_place.connect(proxy.url, recovery_interval=0.01)
    with consumer.inbox("jobs.*", api=server_place.api, every=60) as inbox:
        wait_for(lambda: inbox.qsize() == 6)
        proxy.cut()
        wait_for(lambda: consumer.statistics().recoveries == 1)
        assert sorted(take(inbox, 6)) == ["jobs.a"] * 3 + ["jobs.b"] * 3
        assert inbox.queues == {"jobs.a", "jobs.b"}
    for name in ("jobs.a", "jobs.b"):
        assert channel.queue_declare(name, passive=True).message_count == 0
    proxy.close()


def test_an_api_that_does_not_answer(server_place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """At the call it is an error, which says what to say instead; later it is a warning, and all goes on."""
    channel = server_place.declare("jobs.a").channel()
    consumer = server_place.connect()
    for api in ("http://127.0.0.1:1", "nowhere", server_place.api.replace("guest@", "wrong@")):
        with pytest.raises(ConnectionFailed, match=r"does not list the queues: .*; api= says where") as error:
            consumer.inbox("jobs.*", api=api)
        assert "wrong" not in str(error.value)
    assert consumer.statistics().channels == ()
    with consumer.inbox("jobs.*", api=server_place.api, every=0.01) as inbox:
        server_place.http.close()
        wait_for(lambda: "looking again in 0.01 s" in caplog.text)
        publish(channel, "jobs.a", b"job")
        assert take(inbox, 1) == ["jobs.a"]


@pytest.mark.parametrize("every", [0, -1.0, float("nan")])
def test_a_wrong_interval_is_refused(every: float) -> None:
    with Broker() as broker, connect(broker) as connection, pytest.raises(ValueError, match="above 0"):
        connection.inbox(every=every)
