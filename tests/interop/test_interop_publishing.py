"""Publishing: what is confirmed, what comes back, what a transaction holds back, on both brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interop_wire_support import ChannelClosed, Content, Return, Wire, WireChannel
from pamqp import commands

Name = Callable[[str], str]
Connect = Callable[..., Wire]
Ack, Nack = commands.Basic.Ack, commands.Basic.Nack


@pytest.fixture
def confirming(channel: WireChannel) -> WireChannel:
    channel.call(commands.Confirm.Select())
    return channel


@pytest.fixture
def queue(channel: WireChannel, name: Name) -> str:
    return channel.declare(name("q"), exclusive=True)


def test_publishing_to_no_exchange_closes_the_channel(channel: WireChannel, name: Name) -> None:
    """404, some time after the publish; what was published before it has arrived (B40)."""
    queue = channel.declare(name("q"), exclusive=True)
    channel.publish(queue, b"before")
    channel.publish("k", exchange="nope")
    channel.publish(queue, b"after")
    with pytest.raises(ChannelClosed, match="no exchange 'nope' in vhost '/'") as closed:
        channel.sync()
    assert (closed.value.code, closed.value.name) == (404, "NOT_FOUND")
    assert channel.wire.channel(2).drain(queue) == [b"before"]


@pytest.mark.parametrize("body", [b"", b"small", b"large" * 60_000])
def test_what_is_mandatory_and_reaches_no_queue_comes_back(channel: WireChannel, name: Name, body: bytes) -> None:
    """312 NO_ROUTE, with exchange, key, properties and body; what is not mandatory is dropped in silence (B41)."""
    exchange = name("x")
    channel.exchange(exchange)
    for mandatory in (False, True):
        channel.publish("k", body, exchange=exchange, mandatory=mandatory, message_id=str(mandatory), headers={"a": 1})
    came = channel.next()
    assert isinstance(came.method, Return)
    assert (came.method.reply_code, came.method.reply_text) == (312, "NO_ROUTE")
    assert (came.method.exchange, came.method.routing_key) == (exchange, "k")
    assert (came.body, came.properties.message_id, came.headers) == (body, "True", {"a": 1})
    channel.sync()
    assert channel.kept() == []


# -- confirms


def outcomes(channel: WireChannel, count: int) -> dict[int, type]:
    """How each of the first `count` publishes ended; multiple acknowledgements are spread over what they cover."""
    ended: dict[int, type] = {}
    while len(ended) < count:
        came = channel.next()
        if isinstance(came, Content):
            continue
        covered = range(1, came.delivery_tag + 1) if came.multiple else [came.delivery_tag]
        fresh = [tag for tag in covered if tag not in ended]
        assert fresh, f"{came} confirms nothing new"
        ended.update(dict.fromkeys(fresh, type(came)))
    return dict(sorted(ended.items()))


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_every_publish_is_confirmed(confirming: WireChannel, name: Name, delivery_mode: int) -> None:
    """Once, numbered from 1, routed or not, in any grouping, persistent or not (B42)."""
    queue = confirming.declare(name("q"), durable=True)
    for number in range(60):
        confirming.publish(queue if number % 3 else "nowhere", b"%d" % number, delivery_mode=delivery_mode)
    assert outcomes(confirming, 60) == dict.fromkeys(range(1, 61), Ack)
    confirming.call(commands.Queue.Delete(queue=queue))


def test_numbers_count_from_the_selection(channel: WireChannel, queue: str) -> None:
    """What was published before confirm.select has no number; selecting again changes nothing."""
    channel.publish(queue)
    channel.call(commands.Confirm.Select())
    channel.publish(queue)
    assert outcomes(channel, 1) == {1: Ack}
    channel.call(commands.Confirm.Select())
    channel.publish(queue)
    assert channel.next().delivery_tag == 2


def test_a_return_comes_before_its_confirm(confirming: WireChannel) -> None:
    """So a publisher that sees the acknowledgement knows that nothing came back (B42)."""
    for number in range(1, 6):
        confirming.publish("nowhere", b"%d" % number, mandatory=True)
        returned, confirm = confirming.contents(2)
        assert (returned.body, type(confirm), confirm.delivery_tag) == (b"%d" % number, Ack, number)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_refuses_what_is_published(confirming: WireChannel, name: Name, overflow: str) -> None:
    """Nack for what was refused; what was there stays, and with -dlx the refused one is dead-lettered (B43)."""
    letters = confirming.declare(name("letters"), exclusive=True)
    limits = {
        "x-max-length": 2,
        "x-overflow": overflow,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": letters,
    }
    queue = confirming.declare(name("q"), exclusive=True, arguments=limits)
    for number in range(2):
        confirming.publish(queue, b"%d" % number)
    assert outcomes(confirming, 2) == {1: Ack, 2: Ack}
    confirming.publish(queue, b"2")
    refused = confirming.next()
    assert (type(refused), refused.delivery_tag) == (Nack, 3)
    assert confirming.drain(queue) == [b"0", b"1"]
    if overflow == "reject-publish":
        assert confirming.get(letters) is None
    else:
        confirming.count_becomes(letters, 1)
        letter = confirming.get(letters)
        assert letter is not None
        assert (letter.body, letter.headers["x-first-death-reason"]) == (b"2", "maxlen")


def test_one_refusing_queue_refuses_for_all(confirming: WireChannel, name: Name) -> None:
    """A message for two queues of which one is full is nacked, though the other one has it."""
    exchange, open_, full = name("x"), *(name("q") for _ in range(2))
    confirming.exchange(exchange, "fanout")
    confirming.declare(open_, exclusive=True)
    confirming.declare(full, exclusive=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for queue in (open_, full):
        confirming.bind(queue, exchange)
    confirming.publish("", b"!", exchange=exchange)
    assert outcomes(confirming, 1) == {1: Nack}
    confirming.count_becomes(open_, 1)


# -- transactions


@pytest.fixture
def transacted(wire: Wire) -> WireChannel:
    channel = wire.channel(2)
    channel.call(commands.Tx.Select())
    return channel


def test_a_transaction_is_seen_when_it_is_committed(channel: WireChannel, transacted: WireChannel, queue: str) -> None:
    """Publishes and acknowledgements are invisible before, and done together (B44)."""
    channel.fill(queue, b"first")
    got = transacted.get(queue, no_ack=False)
    assert got is not None
    transacted.ack(got.tag)
    transacted.publish(queue, b"second")
    transacted.sync()
    assert channel.count(queue) == 0
    transacted.call(commands.Tx.Commit())
    assert channel.drain(queue) == [b"second"]
    transacted.close()
    assert channel.count(queue) == 0


def test_what_is_rolled_back_did_not_happen(channel: WireChannel, transacted: WireChannel, queue: str) -> None:
    """Publishes are gone, and what was acknowledged is unacknowledged still; the next commit is another transaction.

    (B45)
    """
    channel.fill(queue, b"first")
    got = transacted.get(queue, no_ack=False)
    assert got is not None
    transacted.ack(got.tag)
    transacted.publish(queue, b"never")
    transacted.call(commands.Tx.Rollback())
    transacted.publish(queue, b"second")
    transacted.call(commands.Tx.Commit())
    assert channel.drain(queue) == [b"second"]
    transacted.close()
    channel.count_becomes(queue, 1)
    assert channel.drain(queue) == [b"first"]


def test_a_rollback_brings_back_the_tags(channel: WireChannel, transacted: WireChannel, queue: str) -> None:
    """What was settled can be settled again, otherwise this time."""
    channel.fill(queue, b"1", b"2")
    tags = [transacted.get(queue, no_ack=False).tag for _ in range(2)]  # type: ignore[union-attr]
    transacted.ack(tags[0])
    transacted.ack(tags[1], multiple=True)
    transacted.call(commands.Tx.Rollback())
    transacted.ack(tags[1])
    transacted.nack(tags[0])
    transacted.call(commands.Tx.Commit())
    assert channel.drain(queue) == [b"1"]


def test_a_commit_that_a_queue_refuses_in_part(channel: WireChannel, transacted: WireChannel, name: Name) -> None:
    """The rest is done, and the channel is closed: 406, partial tx completion."""
    small = channel.declare(name("q"), exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    other = channel.declare(name("q"), exclusive=True)
    channel.fill(other, b"old")
    got = transacted.get(other, no_ack=False)
    assert got is not None
    transacted.ack(got.tag)
    for queue, body in ((small, b"1"), (small, b"2"), (other, b"3")):
        transacted.publish(queue, body)
    with pytest.raises(ChannelClosed, match="partial tx completion") as closed:
        transacted.call(commands.Tx.Commit())
    assert closed.value.code == 406
    assert (channel.drain(small), channel.drain(other)) == ([b"1"], [b"3"])


def test_a_channel_that_closes_rolls_back(channel: WireChannel, transacted: WireChannel, queue: str) -> None:
    """Nothing of an open transaction remains."""
    transacted.publish(queue, b"never")
    transacted.close()
    channel.fill(queue, b"seen")
    assert channel.drain(queue) == [b"seen"]


@pytest.mark.parametrize(
    ("before", "method", "text"),
    [
        (commands.Tx.Select(), commands.Confirm.Select(), "cannot switch from tx to confirm mode"),
        (commands.Confirm.Select(), commands.Tx.Select(), "cannot switch from confirm to tx mode"),
        (None, commands.Tx.Commit(), "channel is not transactional"),
        (None, commands.Tx.Rollback(), "channel is not transactional"),
    ],
)
def test_confirms_and_transactions_exclude_each_other(
    channel: WireChannel, before: Any, method: Any, text: str
) -> None:
    """406: a channel has one way to know what became of a message (B46)."""
    if before is not None:
        channel.call(before)
    with pytest.raises(ChannelClosed, match=text) as closed:
        channel.call(method)
    assert (closed.value.code, closed.value.name) == (406, "PRECONDITION_FAILED")


# -- what a message is: properties as they were, copies, the sender


def test_properties_arrive_as_they_were_sent(channel: WireChannel, queue: str) -> None:
    """All fourteen, and headers of every type that tables have."""
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {
            "int": -5,
            "big": 2**40,
            "float": 0.5,
            "yes": True,
            "nothing": None,
            "list": [1, "a"],
            "in": {"a": 1},
        },
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "message_type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    channel.publish(queue, b"body", **properties)
    channel.count(queue)
    got = channel.get(queue)
    assert got is not None
    assert {each: getattr(got.properties, each) for each in properties} == properties


def test_copies_go_to_further_keys(channel: WireChannel, name: Name) -> None:
    """CC and BCC are further routing keys; a queue gets one copy; the BCC header is taken out, CC stays (B58)."""
    first, second, third = (channel.declare(name("q"), exclusive=True) for _ in range(3))
    channel.publish(first, b"!", headers={"CC": [second, first], "BCC": [third], "own": 1})
    for queue in (first, second, third):
        channel.count_becomes(queue, 1)
        got = channel.get(queue)
        assert got is not None
        assert got.headers == {"CC": [second, first], "own": 1}
        assert got.method.routing_key == first
        assert channel.get(queue) is None


def test_copies_must_be_a_list(channel: WireChannel, queue: str) -> None:
    """CC that is no array is refused with 406."""
    channel.publish(queue, b"!", headers={"CC": queue})
    with pytest.raises(ChannelClosed, match="CC") as closed:
        channel.sync()
    assert closed.value.code == 406


@pytest.mark.parametrize(
    ("property", "value", "text"),
    [
        ("user_id", "somebody", "user_id property set to 'somebody' but authenticated user was 'guest'"),
        ("expiration", "soon", "invalid expiration 'soon'"),
        ("expiration", "-1", "invalid expiration '-1'"),
        ("expiration", "99999999999999", "invalid expiration '99999999999999'"),
    ],
)
def test_a_property_that_cannot_be_is_refused(
    channel: WireChannel, queue: str, property: str, value: Any, text: str
) -> None:
    """406 on the channel, and the message goes nowhere (B59)."""
    channel.publish(queue, b"!", **{property: value})
    with pytest.raises(ChannelClosed, match=text) as closed:
        channel.sync()
    assert (closed.value.code, closed.value.name) == (406, "PRECONDITION_FAILED")
    assert channel.wire.channel(2).count(queue) == 0


def test_a_life_may_be_ten_years(channel: WireChannel, queue: str) -> None:
    """And no longer."""
    years = 10 * 365 * 24 * 3600 * 1000
    channel.publish(queue, b"for long", expiration=str(years))
    channel.count_becomes(queue, 1)
    channel.publish(queue, b"for ever", expiration=str(years + 1))
    with pytest.raises(ChannelClosed, match="invalid expiration '315360000001'"):
        channel.sync()


# -- direct reply-to


def test_an_answer_needs_no_queue(channel: WireChannel, connect: Connect, queue: str) -> None:
    """A request names amq.rabbitmq.reply-to; the answer goes straight to the asking channel (B57)."""
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.publish(queue, b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    other = connect().channel()
    channel.count_becomes(queue, 1)
    question = channel.wire.channel(2).get(queue)
    assert question is not None
    address = question.properties.reply_to
    assert address.startswith("amq.rabbitmq.reply-to.")
    other.publish(address, b"answer", correlation_id=question.properties.correlation_id)
    answer = channel.next()
    assert (answer.body, answer.properties.correlation_id, answer.method.exchange) == (b"answer", "7", "")
    channel.close()
    other.publish(address, b"too late", mandatory=True)
    assert other.next().method.reply_code == 312


def test_the_place_of_answers_can_be_declared(channel: WireChannel) -> None:
    """It is there, passively and not, for clients that declare whatever they consume from."""
    for passive in (False, True):
        answer = channel.call(commands.Queue.Declare(queue="amq.rabbitmq.reply-to", passive=passive))
        assert (answer.queue, answer.message_count, answer.consumer_count) == ("amq.rabbitmq.reply-to", 0, 1)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda channel: channel.publish("q", reply_to="amq.rabbitmq.reply-to"), "fast reply consumer does not exist"),
        (
            lambda channel: channel.send(commands.Basic.Consume(queue="amq.rabbitmq.reply-to")),
            "reply consumer cannot acknowledge",
        ),
    ],
    ids=["without a consumer", "with acknowledgements"],
)
def test_direct_answers_have_their_rules(channel: WireChannel, use: Callable[[WireChannel], None], text: str) -> None:
    """The asking channel consumes before it asks, and without acknowledgements: else 406."""
    use(channel)
    with pytest.raises(ChannelClosed, match=text) as closed:
        channel.sync()
    assert closed.value.code == 406
