"""RabbitMQ's direct reply-to, CC and BCC, over every peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_contract_support import Seen

from multiqueue.broker import Broker
from multiqueue.client import Channel, ChannelClosed, Connection, Message, connect
from multiqueue.testing import PATIENCE

REPLY_TO = "amq.rabbitmq.reply-to"


def answer_one(responder: Channel, queue: str) -> Message:
    """Answer the first request of a queue with its body in capitals."""
    with responder.consume(queue, auto_ack=True) as requests:
        request = requests.get(PATIENCE)
    properties = request.properties
    responder.publish(
        request.body.upper(), routing_key=properties["reply_to"], correlation_id=properties["correlation_id"]
    )
    return request


def test_an_answer_needs_no_queue(channel: Channel, opened: Callable[..., Connection], queue: str) -> None:
    """A request that names amq.rabbitmq.reply-to is answered straight to the channel that asked."""
    answers = channel.consume(REPLY_TO, auto_ack=True)
    channel.publish(b"question", routing_key=queue, reply_to=REPLY_TO, correlation_id="7")
    request = answer_one(opened().channel(), queue)
    assert request.properties["reply_to"].startswith(f"{REPLY_TO}.")
    answer = answers.get(PATIENCE)
    assert (answer.body, answer.properties, answer.exchange) == (b"QUESTION", {"correlation_id": "7"}, "")
    assert answer.routing_key == request.properties["reply_to"]


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_an_answer_that_comes_too_late(how: str, opened: Callable[..., Connection], queue: str) -> None:
    """Once the reply consumer is gone, its address leads nowhere: a mandatory answer comes back.

    RabbitMQ 4 drops it.
    """
    returned = Seen()
    channel = opened().channel(on_returned=returned)
    asking = opened().channel()
    answers = asking.consume(REPLY_TO, auto_ack=True)
    asking.publish(b"question", routing_key=queue, reply_to=REPLY_TO, correlation_id="7")
    request = channel.consume(queue, auto_ack=True).get(PATIENCE)
    address = request.properties["reply_to"]
    assert channel.queue_declare(address, passive=True).queue == address
    if how == "cancel":
        answers.close()
    else:
        (asking if how == "channel" else asking.connection).close()
    channel.publish_confirmed(b"answer", routing_key=address, mandatory=True).result(PATIENCE)
    if not str(channel.connection.server_properties.get("version")).startswith("4."):
        assert returned.bodies(1) == [b"answer"]
    with channel.connection.channel() as other, pytest.raises(ChannelClosed, match="no queue"):
        other.queue_declare(address, passive=True)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (
            lambda channel: [channel.publish(b"", reply_to=REPLY_TO), channel.queue_declare(exclusive=True)],
            "fast reply consumer does not exist",
        ),
        (lambda channel: channel.basic_consume(REPLY_TO, print), "reply consumer cannot acknowledge"),
        (
            lambda channel: [channel.consume(REPLY_TO, auto_ack=True) for _ in range(2)],
            "reply consumer already set",
        ),
    ],
    ids=["without a consumer", "with acknowledgements", "twice"],
)
def test_direct_answers_have_their_rules(channel: Channel, use: Callable[[Channel], object], text: str) -> None:
    """The asking channel consumes once, without acknowledgements, and before it asks; anything else is a 406."""
    with pytest.raises(ChannelClosed, match=text) as refused:
        use(channel)
    assert refused.value.reply_code == 406


def test_a_reply_consumer_can_be_had_again(channel: Channel, queue: str) -> None:
    """After its cancel a channel may have another, with another address."""
    addresses = []
    for _ in range(2):
        with channel.consume(REPLY_TO, auto_ack=True):
            channel.publish(b"?", routing_key=queue, reply_to=REPLY_TO)
            request = channel.consume(queue, auto_ack=True)
            addresses.append(request.get(PATIENCE).properties["reply_to"])
            request.close()
    assert len(set(addresses)) == 2


def test_copies_go_to_further_keys(channel: Channel) -> None:
    """CC and BCC are further routing keys: a queue gets one copy, the header BCC is taken out, CC stays."""
    first, second, third = (channel.queue_declare(exclusive=True).queue for _ in range(3))
    headers = {"CC": [second, first], "BCC": [third, second], "own": 1}
    channel.publish_confirmed(b"!", routing_key=first, headers=headers).result(PATIENCE)
    for queue in (first, second, third):
        message = channel.basic_get(queue, auto_ack=True)
        assert message is not None
        assert (message.body, message.routing_key) == (b"!", first)
        assert message.headers == {"CC": [second, first], "own": 1}
        assert channel.basic_get(queue) is None


def test_copies_alone_make_a_message_routable(channel: Channel, queue: str) -> None:
    """A mandatory message whose routing key leads nowhere is delivered by its CC."""
    channel.publish_confirmed(b"!", routing_key="nowhere", mandatory=True, headers={"CC": [queue]}).result(PATIENCE)
    assert channel.queue_declare(queue, passive=True).message_count == 1


def test_copies_of_a_transaction(channel: Channel, queue: str) -> None:
    """In a transaction they are there after the commit, and not before."""
    channel.tx_select()
    channel.publish(b"!", routing_key="nowhere", headers={"BCC": [queue]})
    assert channel.queue_declare(queue, passive=True).message_count == 0
    channel.tx_commit()
    message = channel.basic_get(queue, auto_ack=True)
    assert message is not None
    assert message.headers == {}


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_must_be_a_list(header: str, channel: Channel, queue: str) -> None:
    """Anything else is refused with 406, and the message goes nowhere."""
    channel.publish(b"!", routing_key=queue, headers={header: queue})
    with pytest.raises(ChannelClosed, match=header) as refused:
        channel.queue_declare(queue, passive=True)
    assert refused.value.reply_code == 406
    with channel.connection.channel() as other:
        assert other.queue_declare(queue, passive=True).message_count == 0


@pytest.mark.parametrize("asks_in_process", [True, False])
def test_answers_cross_the_wire(broker: Broker, server_url: str, asks_in_process: bool) -> None:
    """A channel in the process is answered over TCP, and the other way round: the address is the virtual host's."""
    asks: Any = broker if asks_in_process else server_url
    answers: Any = server_url if asks_in_process else broker
    with connect(asks) as here, connect(answers) as there:
        channel = here.channel()
        channel.queue_declare("requests")
        inbox = channel.consume(REPLY_TO, auto_ack=True)
        channel.publish(b"question", routing_key="requests", reply_to=REPLY_TO, correlation_id="7")
        answer_one(there.channel(), "requests")
        assert inbox.get(PATIENCE).body == b"QUESTION"
