"""What becomes of messages that were delivered: order, redelivery, settling, prefetch, sharing, on both brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interop_wire_support import ChannelClosed, ConnectionClosed, Deliver, Wire, WireChannel
from pamqp import commands

Name = Callable[[str], str]
Connect = Callable[..., Wire]
FIVE = (b"0", b"1", b"2", b"3", b"4")


@pytest.fixture
def queue(channel: WireChannel, name: Name) -> str:
    return channel.declare(name("q"), exclusive=True)


# -- order and redelivery


def test_messages_come_in_the_order_of_their_publishing(channel: WireChannel, queue: str) -> None:
    """First in, first out, also when consuming begins while messages arrive (B1)."""
    sent = [b"%d" % number for number in range(200)]
    for each in sent[:100]:
        channel.publish(queue, each)
    channel.consume(queue, no_ack=True)
    for each in sent[100:]:
        channel.publish(queue, each)
    assert channel.bodies(200) == sent


GIVING_BACK: dict[str, Callable[[WireChannel], object]] = {
    "nack": lambda channel: channel.send(*(commands.Basic.Nack(tag) for tag in (2, 1, 3))),
    "nack, multiple": lambda channel: channel.nack(3, multiple=True),
    "reject": lambda channel: channel.send(*(commands.Basic.Reject(tag) for tag in (3, 1, 2))),
    "recover": lambda channel: channel.call(commands.Basic.Recover(True)),
    "channel close": lambda channel: channel.close(),
    "connection close": lambda channel: channel.wire.close(),
    "the socket's death": lambda channel: channel.wire.socket.close(),
}


@pytest.mark.parametrize("way", GIVING_BACK)
def test_what_is_given_back_returns_to_its_place(channel: WireChannel, connect: Connect, name: Name, way: str) -> None:
    """Requeued messages stand where they stood, before those that were never delivered, and say redelivered.

    (B2, B3)
    """
    queue = channel.declare(name("q"))
    channel.fill(queue, *FIVE)
    taker = connect().channel()
    taken = [taker.get(queue, no_ack=False) for _ in range(3)]
    assert [each and (each.body, each.method.redelivered) for each in taken] == [(body, False) for body in FIVE[:3]]
    assert channel.count(queue) == 2
    GIVING_BACK[way](taker)
    channel.count_becomes(queue, 5)
    first = channel.get(queue)
    channel.consume(queue, no_ack=True)
    again = [first, *channel.contents(4)]
    assert [(each.body, each.method.redelivered) for each in again] == [(body, body in FIVE[:3]) for body in FIVE]
    channel.call(commands.Queue.Delete(queue=queue))


def test_unacknowledged_messages_are_not_counted(channel: WireChannel, queue: str) -> None:
    """queue.declare counts what is ready; what a consumer has is not (B4)."""
    channel.fill(queue, *FIVE)
    channel.prefetch(2)
    channel.consume(queue)
    channel.contents(2)
    assert channel.count(queue) == 3
    assert channel.consumers(queue) == 1


def test_a_cancelled_consumer_keeps_what_it_has(channel: WireChannel, wire: Wire, queue: str) -> None:
    """Cancelling gives nothing back; the messages can still be acknowledged, and return when the channel closes.

    (B5)
    """
    channel.fill(queue, *FIVE)
    taker = wire.channel(2)
    tag = taker.consume(queue)
    tags = [each.tag for each in taker.contents(5)]
    taker.cancel(tag)
    assert channel.count(queue) == 0
    taker.ack(tags[0])
    taker.close()
    channel.count_becomes(queue, 4)
    assert channel.drain(queue) == list(FIVE[1:])


def test_delivery_tags_count_from_one_on_each_channel(wire: Wire, name: Name) -> None:
    """Over all consumers and gets of the channel (B6)."""
    for number in (1, 2):
        channel = wire.channel(number)
        queues = [channel.declare(name("q"), exclusive=True) for _ in range(2)]
        for each in queues:
            channel.consume(each)
            channel.publish(each)
            channel.publish(each)
        assert sorted(each.tag for each in channel.contents(4)) == [1, 2, 3, 4]
        third = channel.declare(name("q"), exclusive=True)
        channel.fill(third, b"got")
        got = channel.get(third, no_ack=False)
        assert got is not None
        assert got.tag == 5


# -- acknowledgements


@pytest.mark.parametrize(("tag", "left"), [(3, 2), (0, 0), (5, 0)])
def test_a_multiple_acknowledgement_covers_all_up_to_its_tag(
    channel: WireChannel, wire: Wire, queue: str, tag: int, left: int
) -> None:
    """Tag 0 stands for all that are unacknowledged (B7, B8)."""
    channel.fill(queue, *FIVE)
    taker = wire.channel(2)
    taker.consume(queue)
    taker.contents(5)
    taker.ack(tag, multiple=True)
    taker.close()
    channel.count_becomes(queue, left)


@pytest.mark.parametrize(
    "method",
    [
        commands.Basic.Ack(7),
        commands.Basic.Ack(7, True),
        commands.Basic.Nack(7),
        commands.Basic.Nack(7, True),
        commands.Basic.Reject(7),
    ],
    ids=["ack", "ack, multiple", "nack", "nack, multiple", "reject"],
)
def test_an_unknown_delivery_tag_closes_the_channel(channel: WireChannel, method: Any) -> None:
    """406 PRECONDITION_FAILED - unknown delivery tag (B9)."""
    channel.send(method)
    with pytest.raises(ChannelClosed, match="unknown delivery tag 7") as closed:
        channel.sync()
    assert (closed.value.code, closed.value.name) == (406, "PRECONDITION_FAILED")


def test_a_second_acknowledgement_closes_the_channel(channel: WireChannel, queue: str) -> None:
    """A tag is settled once; the second time it is unknown (B9)."""
    channel.fill(queue, *FIVE)
    channel.consume(queue)
    channel.contents(5)
    channel.ack(2)
    channel.ack(2)
    with pytest.raises(ChannelClosed, match="unknown delivery tag 2"):
        channel.sync()


@pytest.mark.parametrize("way", ["ack", "nack"])
def test_multiple_is_about_a_tag_that_is_unacknowledged(channel: WireChannel, queue: str, way: str) -> None:
    """With multiple too, a tag that was settled is unknown; what was delivered before it stays as it is."""
    channel.fill(queue, *FIVE)
    channel.consume(queue)
    channel.contents(5)
    channel.ack(2)
    getattr(channel, way)(2, multiple=True)
    with pytest.raises(ChannelClosed, match="unknown delivery tag 2"):
        channel.sync()
    channel.wire.channel(2).count_becomes(queue, 4)


def test_what_was_delivered_without_acknowledgement_cannot_be_acknowledged(channel: WireChannel, queue: str) -> None:
    """With no-ack the tag counts on, but stands for nothing."""
    channel.fill(queue, b"gone")
    got = channel.get(queue)
    assert got is not None
    channel.ack(got.tag)
    with pytest.raises(ChannelClosed, match="unknown delivery tag"):
        channel.sync()


def test_multiple_acknowledgement_of_nothing_is_no_error(channel: WireChannel, queue: str) -> None:
    """Tag 0 with multiple is legal on a channel that has nothing."""
    channel.ack(0, multiple=True)
    channel.sync()


def test_rejecting_for_good_removes(channel: WireChannel, queue: str) -> None:
    """reject and nack with requeue=false drop the message where no dead-letter exchange is."""
    channel.fill(queue, *FIVE)
    channel.consume(queue)
    tags = [each.tag for each in channel.contents(5)]
    channel.reject(tags[0], requeue=False)
    channel.nack(tags[4], multiple=True, requeue=False)
    channel.close()
    assert channel.wire.channel(2).drain(queue) == []


# -- what is not implemented, as the specification allows


@pytest.mark.parametrize(
    "method",
    [commands.Basic.Recover(False), commands.Basic.Qos(1, 0, False), commands.Channel.Flow(False)],
    ids=["recover without requeue", "prefetch in bytes", "flow off"],
)
def test_what_is_not_implemented_says_so(channel: WireChannel, method: Any) -> None:
    """540 NOT_IMPLEMENTED, on the connection (B10, B11)."""
    with pytest.raises(ConnectionClosed) as closed:
        channel.call(method)
    assert (closed.value.code, closed.value.name) == (540, "NOT_IMPLEMENTED")


def test_immediate_is_not_implemented(channel: WireChannel, queue: str) -> None:
    """basic.publish with immediate ends the connection: 540 (B12)."""
    channel.publish(queue, b"now", immediate=True)
    with pytest.raises(ConnectionClosed, match="immediate=true") as closed:
        channel.sync()
    assert closed.value.code == 540


# -- prefetch


def test_prefetch_holds_for_consumers_started_later(channel: WireChannel, name: Name) -> None:
    """Each of them has its own count; one that was started before keeps its old one (B13)."""
    queues = [channel.declare(name("q"), exclusive=True) for _ in range(3)]
    for each in queues:
        channel.fill(each, *FIVE)
    for queue, count in zip(queues, (1, 2, 3), strict=True):
        channel.prefetch(count)
        channel.consume(queue, consumer_tag=queue)
    came = channel.contents(6)
    assert [channel.count(queue) for queue in queues] == [4, 3, 2]
    assert channel.kept() == []
    first = next(each for each in came if each.method.consumer_tag == queues[0])
    channel.ack(first.tag)
    assert channel.next().method.consumer_tag == queues[0]


def test_prefetch_of_the_channel_covers_all_its_consumers(channel: WireChannel, name: Name) -> None:
    """With global=true the channel has so many unacknowledged messages in all (B14)."""
    queues = [channel.declare(name("q"), exclusive=True) for _ in range(2)]
    for each in queues:
        channel.fill(each, *FIVE)
    channel.prefetch(3, whole_channel=True)
    for each in queues:
        channel.consume(each)
    came = channel.contents(3)
    assert sum(channel.count(queue) for queue in queues) == 7
    assert channel.kept() == []
    channel.ack(came[-1].tag, multiple=True)
    channel.contents(3)
    assert sum(channel.count(queue) for queue in queues) == 4


def test_prefetch_does_not_limit_gets_and_consumers_without_acknowledgement(channel: WireChannel, name: Name) -> None:
    """It counts unacknowledged deliveries to consumers; the others are not held back (B15)."""
    quick, polled = (channel.declare(name("q"), exclusive=True) for _ in range(2))
    channel.fill(quick, *FIVE)
    channel.fill(polled, *FIVE)
    channel.prefetch(1)
    channel.consume(quick, no_ack=True)
    assert channel.bodies(5) == list(FIVE)
    got = [channel.get(polled, no_ack=False) for _ in FIVE]
    assert [each and each.body for each in got] == list(FIVE)


def test_a_prefetch_of_zero_is_no_limit(channel: WireChannel, queue: str) -> None:
    """Zero takes a limit away again."""
    channel.fill(queue, *FIVE)
    channel.prefetch(1)
    channel.prefetch(0)
    channel.consume(queue)
    assert channel.bodies(5) == list(FIVE)


# -- several consumers


def test_consumers_of_a_queue_take_turns(channel: WireChannel, queue: str) -> None:
    """Each of three gets a third, in turn (B16)."""
    tags = [channel.consume(queue, no_ack=True) for _ in range(3)]
    for number in range(30):
        channel.publish(queue, b"%d" % number)
    came = channel.contents(30)
    assert [each.body for each in came] == [b"%d" % number for number in range(30)]
    assert {tag: sum(each.method.consumer_tag == tag for each in came) for tag in tags} == dict.fromkeys(tags, 10)


def test_a_stuck_consumer_holds_no_more_than_its_prefetch(channel: WireChannel, wire: Wire, queue: str) -> None:
    """With a prefetch of 1 everything else goes to the one that acknowledges (B17)."""
    stuck, busy = wire.channel(2), wire.channel(3)
    for taker in (stuck, busy):
        taker.prefetch(1)
        taker.consume(queue)
    for each in FIVE:
        channel.publish(queue, each)
    had = stuck.next().body
    seen = []
    for _ in range(4):
        delivery = busy.next()
        seen.append(delivery.body)
        busy.ack(delivery.tag)
    assert sorted([had, *seen]) == list(FIVE)
    assert seen == sorted(seen)
    assert channel.count(queue) == 0
    assert stuck.kept() == []


def test_an_exclusive_consumer_is_the_only_one(channel: WireChannel, wire: Wire, queue: str) -> None:
    """A second consumer is refused with 403, and so is exclusive use beside another (B18)."""
    tag = channel.consume(queue, exclusive=True)
    with pytest.raises(ChannelClosed, match="in exclusive use") as closed:
        wire.channel(2).consume(queue)
    assert (closed.value.code, closed.value.name) == (403, "ACCESS_REFUSED")
    channel.cancel(tag)
    wire.channel(3).consume(queue)
    with pytest.raises(ChannelClosed) as closed:
        wire.channel(4).consume(queue, exclusive=True)
    assert closed.value.code == 403


def test_no_local_keeps_a_connections_own_messages_away(
    channel: WireChannel, connect: Connect, queue: str, is_rabbitmq: bool
) -> None:
    """As the specification says. RabbitMQ takes the flag and ignores it: no client can build on that."""
    channel.consume(queue, no_ack=True, no_local=True)
    channel.publish(queue, b"mine")
    connect().channel().publish(queue, b"yours")
    if is_rabbitmq:
        assert sorted(channel.bodies(2)) == [b"mine", b"yours"]
    else:
        assert channel.bodies(1) == [b"yours"]


def test_a_consumers_tag_is_made_up_when_none_is_given(channel: WireChannel, queue: str) -> None:
    """Each gets one of its own; a given one is kept."""
    assert channel.consume(queue, consumer_tag="me") == "me"
    made = {channel.consume(queue) for _ in range(3)}
    assert len(made) == 3
    assert all(tag.startswith("amq.ctag-") for tag in made)


def test_two_consumers_of_one_tag_cost_the_connection(channel: WireChannel, queue: str) -> None:
    """530 NOT_ALLOWED, on the connection; on another channel the tag is free (B30)."""
    channel.consume(queue, consumer_tag="me")
    channel.wire.channel(2).consume(queue, consumer_tag="me")
    with pytest.raises(ConnectionClosed, match="reuse consumer tag 'me'") as closed:
        channel.consume(queue, consumer_tag="me")
    assert (closed.value.code, closed.value.name) == (530, "NOT_ALLOWED")


def test_cancelling_an_unknown_consumer_is_no_error(channel: WireChannel) -> None:
    """cancel-ok repeats the tag (B31)."""
    assert channel.call(commands.Basic.Cancel("nobody")).consumer_tag == "nobody"


def test_a_cancelled_tag_can_be_used_again(channel: WireChannel, queue: str) -> None:
    """The name is free as soon as cancel-ok has come."""
    for _ in range(3):
        channel.consume(queue, consumer_tag="me", no_ack=True)
        channel.cancel("me")
    channel.fill(queue, b"for nobody")
    assert channel.kept() == []
    assert channel.count(queue) == 1


def test_consumers_learn_that_their_queue_is_gone(channel: WireChannel, wire: Wire, queue: str) -> None:
    """basic.cancel comes for each consumer, and its tag is free again (B60)."""
    taker = wire.channel(2)
    tags = {taker.consume(queue) for _ in range(2)}
    channel.call(commands.Queue.Delete(queue=queue))
    assert {taker.next().consumer_tag for _ in tags} == tags
    other = channel.declare("", exclusive=True)
    assert taker.consume(other, consumer_tag=min(tags)) == min(tags)


def test_get_says_at_once_that_there_is_nothing(channel: WireChannel, queue: str) -> None:
    """get-empty, without waiting; get-ok counts what remains."""
    assert channel.get(queue) is None
    channel.fill(queue, *FIVE)
    got = channel.get(queue)
    assert got is not None
    assert (got.method.message_count, got.method.routing_key, got.method.exchange) == (4, queue, "")
    assert not isinstance(got.method, Deliver)
