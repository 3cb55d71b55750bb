"""Which comes first: what a client consumes of its own publishes, or their confirms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from amqp_desk_support import Desk, desk
from amqp_raw_support import RawClient
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import NO_PROPERTIES, Server
from multiqueue.broker import Broker

_NAMES = {b"\x00\x3c\x00\x3c": "deliver", b"\x00\x3c\x00\x50": "confirm"}


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    broker.declare_queue("q")
    broker.declare_queue("elsewhere")
    with amqp.serve(broker) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Desk]:
    with desk(server) as opened:
        opened.say_method(1, commands.Confirm.Select)
        opened.say_method(1, commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True)
        told(opened)
        yield opened


def publish(queue: str, *bodies: bytes, channel: int = 1) -> bytes:
    return b"".join(amqp.encode_publish(channel, "", queue, NO_PROPERTIES, body, 4096) for body in bodies)


def told(client: Desk) -> list[str]:
    """What was written since the last time, when all turns were taken."""
    for _ in range(3):
        client.run()
    frames = amqp.FrameSplitter().feed(client.transport.read())
    return [_NAMES.get(payload[:4], "other") for kind, _, payload in frames if kind == amqp.FRAME_METHOD]


def test_what_it_consumes_comes_before_the_confirm(client: Desk) -> None:
    """A client that waits for the confirm of a transient message has it by then, as with RabbitMQ."""
    for _ in range(3):
        client.say(publish("q", b"1"))
        assert told(client) == ["deliver", "confirm"]


def test_of_many_publishes_in_one_read_all_are_delivered_first(client: Desk) -> None:
    """They are confirmed in one frame behind the last of them, whether they came in a row or between other methods."""
    client.say(publish("q", *[b"%d" % number for number in range(100)]))
    assert told(client) == ["deliver"] * 100 + ["confirm"]
    qos = amqp.encode_method(1, commands.Basic.Qos)
    client.say(publish("q", b"1") + qos + publish("q", b"2"))
    assert [each for each in told(client) if each != "other"] == ["deliver", "deliver", "confirm"]


def test_a_consumer_on_another_channel_counts_as_well(client: Desk) -> None:
    """The client is one: its handler may be on any channel of the connection."""
    client.say_method(2, commands.Channel.Open)
    client.say_method(2, commands.Confirm.Select)
    told(client)
    client.say(publish("q", b"1", channel=2))
    assert told(client) == ["deliver", "confirm"]


def test_what_nobody_here_consumes_is_confirmed_with_the_read(client: Desk) -> None:
    """The confirm waits for no consumer of others, nor for one of its own that has its fill."""
    client.say(publish("elsewhere", b"1"))
    assert client.transport.read(), "it was not confirmed at the end of the read"
    client.say_method(1, commands.Basic.Cancel, consumer_tag="c")
    client.say_method(1, commands.Basic.Qos, prefetch_count=1)
    client.say_method(1, commands.Basic.Consume, queue="q", consumer_tag="full")
    client.say(publish("q", b"1"))
    told(client)
    client.say(publish("q", b"2"))
    assert told(client) == ["confirm"]


def test_a_consumer_that_goes_meanwhile_holds_no_confirm(client: Desk) -> None:
    """A cancel, or the end of the channel, in the same read as the publish: everything is confirmed all the same."""
    client.say(publish("q", b"1") + amqp.encode_method(1, commands.Basic.Cancel, consumer_tag="c"))
    assert "confirm" in told(client)
    client.say_method(1, commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True)
    told(client)
    client.say(publish("q", b"2") + amqp.encode_method(1, commands.Channel.Close))
    assert "confirm" in told(client)


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_over_a_socket(tmp_path: Path, mode: int) -> None:
    """A publish whose answer is awaited, 50 times: the delivery is there each time."""
    with Broker(data=tmp_path, durability="relaxed") as broker, broker.listen() as server:
        broker.declare_queue("q", durable=True)
        with RawClient(server.url) as client:
            client.call(1, commands.Confirm.Select)
            client.call(1, commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True)
            for _ in range(50):
                client.publish("", "q", b"x", delivery_mode=mode)
                assert client.content().body == b"x"
                assert isinstance(client.method(), amqp.Ack)
