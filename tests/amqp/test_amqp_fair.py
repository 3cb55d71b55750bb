"""Fair queues over AMQP, as a program with pika declares and uses them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from multiqueue import amqp
from multiqueue.broker import Broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """A channel of pika's to a server of its own."""
    with amqp.serve(broker) as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.url))
        yield connection.channel()
        if connection.is_open:
            connection.close()


def test_one_argument_and_one_header(channel: BlockingChannel) -> None:
    """A flood of one tenant and a job of another: the other's is delivered second; options come as a table."""
    options = {"weights": {"gold": Decimal("2.5")}, "max_in_flight": 2, "key": ["header:customer", "header:project"]}
    channel.queue_declare("nested", arguments={"x-queue-kind": "fair", "x-queue-kind-options": options})
    channel.queue_declare("jobs", arguments={"x-queue-kind": "fair"})
    channel.confirm_delivery()
    for number, tenant in enumerate(["flood"] * 50 + ["quiet"]):
        properties = pika.BasicProperties(headers={"tenant": tenant})
        channel.basic_publish("", "jobs", b"%d" % number, properties)
    channel.basic_qos(prefetch_count=1)
    got = []
    for method, _, body in channel.consume("jobs", inactivity_timeout=10):
        assert method is not None
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) == 51:
            break
    channel.cancel()
    assert got[:3] == [b"0", b"50", b"1"]
    assert got[3:] == [b"%d" % number for number in range(2, 50)]


def test_what_comes_back_is_the_first_of_its_tenant(channel: BlockingChannel) -> None:
    """A nack with requeue, and a channel that closes, return messages to their places, flagged."""
    channel.queue_declare("jobs", arguments={"x-queue-kind": "fair"})
    for number, tenant in enumerate("aabb"):
        channel.basic_publish("", "jobs", b"%d" % number, pika.BasicProperties(headers={"tenant": tenant}))
    first, _, body = channel.basic_get("jobs")
    assert (first and first.redelivered, body) == (False, b"0")
    assert channel.basic_get("jobs")[2] == b"2"
    assert first is not None
    channel.basic_nack(first.delivery_tag, requeue=True)
    again, _, body = channel.basic_get("jobs")
    assert (again and again.redelivered, body) == (True, b"0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"x-queue-kind-options": {"weights": {"a": -1}}}, "tenant 'a': weight is -1; a number above 0 is needed"),
        (
            {"x-queue-kind-options": {"shares": {}}},
            "kind_options has no option 'shares' for a fair queue; there are key",
        ),
        ({"qpid.group_header_key": "group"}, "a fair queue takes no message groups"),
    ],
)
def test_a_wrong_option_closes_the_channel(
    channel: BlockingChannel, broker: Broker, arguments: dict[str, object], said: str
) -> None:
    """With 406 and the sentence; nothing is declared."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as told:
        channel.queue_declare("jobs", arguments={"x-queue-kind": "fair", **arguments})
    assert (told.value.reply_code, said in told.value.reply_text) == (406, True)
    assert broker.virtual_host().queues() == []
