"""Alarms, blocked connections, redelivery loops and messages without an ack: seen wherever one looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import monitor_parts_support as parts
import pika
import pytest
from click.testing import CliRunner
from monitor_parts_support import Api, Census
from monitor_support import Client

from multiqueue.amqp import ServerSettings
from multiqueue.broker import Broker, Message
from multiqueue.cli import main
from multiqueue.monitor import Sampler
from multiqueue.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def short_of() -> set[str]:
    """What the process is short of."""
    return set()


@pytest.fixture
def server(broker: Broker, short_of: set[str]) -> Any:
    return broker.listen(settings=ServerSettings(alarm_interval=0.01), measure=lambda: set(short_of))


@pytest.fixture
def census(broker: Broker, server: Any, clock: FakeClock) -> Census:
    return Census(broker, server, wall_clock=clock)


@pytest.fixture
def connection(server: Any) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(server.url)
    parameters.client_properties = {"connection_name": "shop 17"}
    with pika.BlockingConnection(parameters) as connection:
        yield connection


def until(holds: Callable[[], Any]) -> Any:
    """What it gives once it is true; a test that waits for ever is ended by its timeout."""
    while not (found := holds()):
        pass
    return found


def test_a_blocked_connection_is_not_running(
    many_samples: None, client: Client, short_of: set[str], connection: Any
) -> None:
    """Under an alarm the state is RabbitMQ's: `blocking` until the client publishes, then `blocked`. (monitor 19)"""
    channel = connection.channel()
    channel.queue_declare("q")

    def states() -> list[str]:
        return [each["state"] for each in client.get("/api/connections")]

    assert states() == ["running"]
    short_of.add("memory")
    until(lambda: states() == ["blocking"])
    channel.basic_publish("", "q", b"x")
    until(lambda: states() == ["blocked"])
    troubles = client.get("/api/overview")["troubles"]
    assert (troubles["alarms"], troubles["connections_blocked"]) == (["memory"], 1)
    short_of.clear()
    until(lambda: states() == ["running"])


def test_a_redelivery_loop_is_told_from_a_consumer_that_begins_anew(
    broker: Broker, census: Census, clock: FakeClock
) -> None:
    """More redeliveries than messages that leave are a loop, from the sample that saw it first until as many leave."""
    broker.declare_queue("mail")
    for _ in range(9):
        broker.publish(Message(b"poison", routing_key="mail"))

    def since() -> list[float | None]:
        clock.advance(1.0)
        return [each.redelivering_since for each in census.take(clock()).queues.values()]

    def redeliver(count: int = 2) -> None:
        for _ in range(count):
            received = broker.get("mail")
            assert received is not None
            received.release()

    def serve(count: int) -> None:
        for _ in range(count):
            assert broker.get("mail", auto_accept=True) is not None

    assert since() == [None]
    redeliver()
    assert since() == [first := clock()]
    assert since() == [first]  # nothing happened: it may come again
    redeliver()
    assert since() == [first]
    assert [each.key for each in census.take(clock()).redelivering] == [("/", "mail")]
    serve(1)
    redeliver(1)
    assert since() == [None]  # as many go as come back
    assert census.take(clock()).redelivering == ()
    redeliver()
    serve(1)
    assert since() == [again := clock()]
    redeliver()
    assert since() == [again]
    serve(1)  # nothing came back
    assert since() == [None]
    redeliver()
    serve(6)
    assert since() == [None]


def test_the_oldest_message_without_an_ack_is_told(
    broker: Broker, census: Census, clock: FakeClock, connection: Any
) -> None:
    """Since the first sample that saw its delivery, though the consumer acks all that came later. (monitor 19)"""
    channel = connection.channel()
    channel.queue_declare("q")
    for _ in range(5):
        channel.basic_publish("", "q", b"x")

    def since() -> dict[tuple[str, str], float]:
        clock.advance(1.0)
        connection.process_data_events(0)
        return dict(census.take(clock()).held_since)

    assert since() == {}
    held = channel.basic_get("q")[0].delivery_tag
    first = {("/", "q"): clock() + 1.0}
    assert since() == first
    for _ in range(3):
        until(lambda: channel.basic_get("q", auto_ack=True))
        assert since() == first
    later = channel.basic_get("q")[0].delivery_tag
    second = {("/", "q"): clock() + 1.0}
    assert since() == first
    channel.basic_ack(held)
    channel.queue_declare("q", passive=True)
    assert since() == second
    channel.basic_ack(later)
    channel.queue_declare("q", passive=True)
    assert since() == {}


def test_troubles_keep_their_age_when_the_wall_clock_is_set_back(
    broker: Broker, server: Any, clock: FakeClock, connection: Any
) -> None:
    """What has lasted for a minute began a minute ago by the new time too, and a queue that rests still does."""
    steps = [0.0]
    sampler = Sampler(broker, server, clock=clock, wall_clock=lambda: clock() + steps[0])
    for name in ("mail", "orders", "rests"):
        broker.declare_queue(name)
        broker.publish(Message(b"x", routing_key=name))
    connection.channel().basic_get("orders")
    sampler.refresh()
    received = broker.get("mail")
    assert received is not None
    received.release()
    broker.get("mail")
    clock.advance(1.0)
    sampler.refresh()
    for steps[0] in (0.0, -3600.0, -3600.0):
        clock.advance(30.0)
        pair = sampler.refresh()
    troubles = parts._views.troubles_view(pair, ["/"])
    now = clock() - 3600.0
    assert [now - each["since"] / 1000 for each in troubles["redelivering"]] == [90.0]
    assert now - troubles["oldest_unacknowledged"]["since"] / 1000 == 91.0
    rests = parts._views.queue_view(pair, pair.latest.queues["/", "rests"])
    assert datetime.fromisoformat(rests["idle_since"]).timestamp() == now - 91.0


@pytest.fixture
def troubled(
    many_samples: None,
    broker: Broker,
    client: Client,
    short_of: set[str],
    connection: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Client:
    """A broker with an alarm, a blocked connection, a redelivery loop and a message that nobody acks."""
    monkeypatch.setattr(parts._views, "LOOP", 0.0)
    monkeypatch.setattr(parts._troubles, "OLD", 0.0)
    for name in ("mail", "orders"):
        broker.declare_queue(name)
        broker.publish(Message(b"x", routing_key=name))
    channel = connection.channel()
    channel.basic_get("orders")
    client.get("/api/overview")
    for _ in range(3):
        received = broker.get("mail")
        assert received is not None
        received.release()
    short_of.add("disk")
    until(lambda: client.get("/api/overview")["troubles"]["alarms"])
    channel.basic_publish("", "mail", b"x")
    until(lambda: client.get("/api/overview")["troubles"]["connections_blocked"])
    return client


def test_the_api_tells_all_of_it(troubled: Client) -> None:
    """Of the whole, of queues, connections and channels, for virtual hosts that the user may see. (monitor 19)"""
    troubles = troubled.get("/api/overview")["troubles"]
    assert [each["queue"] for each in troubles["redelivering"]] == ["mail"]
    assert troubles["oldest_unacknowledged"]["queue"] == "orders"
    mail, orders = troubled.get("/api/queues")
    assert (mail["redelivering_since"] is None, orders["redelivering_since"]) == (False, None)
    since = orders["oldest_unacknowledged_since"]
    assert [
        each["oldest_unacknowledged_since"]
        for path in ("connections", "channels")
        for each in troubled.get(f"/api/{path}")
    ] == [since, since]
    troubled("PUT", "/api/users/ada", {"password": "lovelace", "tags": "management"})
    elsewhere = troubled.as_user("ada:lovelace").get("/api/overview")["troubles"]
    assert elsewhere == {
        "virtual_hosts_down": {},
        "alarms": ["disk"],
        "connections_blocked": 0,
        "connections_blocking": 0,
        "queues_redelivering": 0,
        "redelivering": [],
        "oldest_unacknowledged": None,
    }


def test_the_shell_tells_all_of_it(troubled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` in sentences, the lists on standard error: their tables stay tables. (monitor 19)"""

    def shell(*words: str) -> Any:
        return CliRunner().invoke(main, [*words, "--url", troubled.url])

    sentences = shell("status").stdout.splitlines()[3:]
    assert sentences[:2] == ["ALARM: low on disk, publishers are blocked", "1 connection blocked"]
    assert sentences[2].startswith("queue 'mail' in '/' redelivers the same messages for ")
    assert sentences[3].startswith("queue 'orders' in '/' has a message without an ack for ")
    listed = shell("queue", "list")
    assert len(listed.stdout.splitlines()) == 3
    assert [line.split(" for ")[0] for line in listed.stderr.splitlines()] == [
        "queue 'mail': redelivers",
        "queue 'orders': no ack",
    ]
    (line,) = shell("connection", "list").stderr.splitlines()
    assert line.startswith("connection 'shop 17': blocked by an alarm, no ack for ")
    assert "redelivers" in shell("queue", "show", "mail").stdout


@pytest.mark.parametrize(("count", "more"), [(1, []), (2, ["so does 1 other queue"]), (3, ["so do 2 other queues"])])
def test_queues_that_are_not_named_are_counted(count: int, more: list[str]) -> None:
    """Of many queues in a loop the answer names some. (monitor 19)"""
    told = {"queues_redelivering": count, "redelivering": [{"queue": "mail", "vhost": "/", "since": 0}]}
    first, *rest = parts._troubles.of_the_whole({"troubles": told}, [], now=60.0)
    assert first == "queue 'mail' in '/' redelivers the same messages for 1 min 0 s"
    assert rest == more


def test_the_metrics_tell_all_of_it(troubled: Client) -> None:
    """Under names of ours, in the sums and for each queue. (monitor 19)"""
    whole, each = (troubled("GET", path).text for path in ("/metrics", "/metrics/per-object"))
    assert 'multiqueue_connections{state="blocked"} 1.0' in whole
    for name in ("redelivering", "oldest_unacked"):
        assert f"\nmultiqueue_queue_{name}_seconds " in whole
    assert '\nmultiqueue_queue_redelivering_seconds{queue="mail",vhost="/"} ' in each
    assert '\nmultiqueue_queue_oldest_unacked_seconds{queue="orders",vhost="/"} ' in each


@pytest.mark.parametrize("columns", [40, 100])
def test_a_watched_list_tells_all_of_it(troubled: Client, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 40 columns too: what is wrong with the whole above the table, with its rows below. (monitor 19)"""
    monkeypatch.setenv("COLUMNS", str(columns))
    api = Api(troubled.url.replace("http://", "http://guest:guest@"))
    lines = list(parts._watch.screen(parts._watch.QUEUES, api, None, "", None))
    alarm, blocked, loop, more, *_, redelivers, no_ack = lines
    assert alarm.startswith("ALARM: low on disk")
    assert (blocked, more) == ("1 connection blocked", "and 1 more")
    assert loop.startswith("queue 'mail' in")
    assert redelivers.startswith("queue 'mail': redelivers for")
    assert no_ack.startswith("queue 'orders': no ack for")
    assert max(map(len, lines)) <= columns


def test_a_rate_is_there_for_a_command_of_cron(broker: Broker, clock: FakeClock) -> None:
    """`status` that nobody called before shows the rate of the last second. (monitor 3)"""
    sampler = Sampler(broker, clock=clock, wall_clock=clock)
    broker.declare_queue("q")
    for _ in range(3):
        sampler.refresh()  # as the sampler's thread does
        clock.advance(1.0)
        broker.publish(Message(b"", routing_key="q"))
    pair = sampler.look()
    assert pair.rate(pair.latest.total.published, pair.previous.total.published) == 1.0
