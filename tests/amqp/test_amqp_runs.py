"""The session does frames that come in a row in one step, and no client can tell.

The test is the peer, its socket and the event loop, so that it decides what arrives together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pytest
from amqp_desk_support import Desk, desk
from amqp_parts_support import encode_ack
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import FrameSplitter
from multiqueue.broker import Broker, BrokerQueue, Message

PREFETCH = 10


@pytest.fixture
def queue(broker: Broker) -> BrokerQueue:
    broker.declare_queue("q")
    for number in range(40):
        broker.publish(Message(b"%d" % number, routing_key="q"))
    return broker.queue("q")


@pytest.fixture
def peer(broker: Broker, queue: BrokerQueue) -> Iterator[Desk]:
    with amqp.serve(broker) as server, desk(server) as made:
        yield made


def _consume(peer: Desk, channel: int = 1) -> None:
    peer.say_method(channel, commands.Basic.Qos, prefetch_count=PREFETCH)
    peer.say_method(channel, commands.Basic.Consume, queue="q")


def _delivered(peer: Desk) -> list[bytes]:
    """The bodies that have come since the last look."""
    peer.run()
    frames = FrameSplitter().feed(peer.transport.read())
    return [payload for kind, _, payload in frames if kind == 3]


def _acks(*tags: int, channel: int = 1) -> bytes:
    return b"".join(encode_ack(channel, tag) for tag in tags)


def test_acks_in_a_row_open_the_window_for_as_many(peer: Desk, queue: BrokerQueue) -> None:
    """Single acks that arrive together let as many messages follow, in order."""
    _consume(peer)
    assert _delivered(peer) == [b"%d" % number for number in range(10)]
    peer.say(_acks(3, 1, 2, 7))
    assert _delivered(peer) == [b"10", b"11", b"12", b"13"]
    assert queue.statistics().unacked == PREFETCH


def test_they_are_settled_in_one_hold(peer: Desk, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is asked once for all of them."""
    _consume(peer)
    calls: list[int] = []
    accept = type(queue).accept

    def counting(self: BrokerQueue, entries: object, owner: object) -> int:
        calls.append(accept(self, entries, owner))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(type(queue), "accept", counting)
    _delivered(peer)
    peer.say(_acks(1, 2, 3, 4))
    assert calls == [4]


def test_an_unknown_tag_among_them_closes_the_channel(peer: Desk, queue: BrokerQueue) -> None:
    """What was acked before it is settled, what comes after it is not, and everything else goes back."""
    _consume(peer)
    _delivered(peer)
    peer.say(_acks(1, 2, 99, 3))
    frames = FrameSplitter().feed(peer.transport.read())
    (close,) = [amqp.decode_method(payload) for kind, _, payload in frames if kind == 1]
    assert isinstance(close, commands.Channel.Close)
    assert (close.reply_code, close.reply_text) == (406, "PRECONDITION_FAILED - unknown delivery tag 99")
    assert queue.statistics().unacked == 0
    assert len(queue) == 38


def test_a_tag_twice_among_them_closes_the_channel(peer: Desk, queue: BrokerQueue) -> None:
    """A message is settled once, also where both acks arrive together."""
    _consume(peer)
    _delivered(peer)
    peer.say(_acks(1, 1))
    assert b"unknown delivery tag 1" in peer.transport.read()
    assert len(queue) == 39


def test_a_transaction_keeps_them_until_it_is_committed(peer: Desk, queue: BrokerQueue) -> None:
    """Acks in a row on a channel with transactions are undone by its rollback."""
    peer.say_method(1, commands.Tx.Select)
    _consume(peer)
    _delivered(peer)
    peer.say(_acks(1, 2, 3))
    assert queue.statistics().unacked == PREFETCH
    peer.say_method(1, commands.Tx.Rollback)
    peer.say(_acks(1, 2))
    peer.say_method(1, commands.Tx.Commit)
    peer.wait_for_others()
    assert len(queue) == 38


def test_acks_of_two_channels_are_told_apart(peer: Desk, queue: BrokerQueue) -> None:
    """Tags count for each channel by itself, however the frames follow each other."""
    peer.say_method(2, commands.Channel.Open)
    _consume(peer, 1)
    _consume(peer, 2)
    _delivered(peer)
    peer.say(_acks(1, 2) + _acks(1, 2, 3, channel=2) + _acks(3) + encode_ack(2, 0, True))
    assert len(queue) == 40 - 3 - PREFETCH


def test_acks_on_a_channel_that_is_being_closed_are_dropped(peer: Desk, queue: BrokerQueue) -> None:
    """Until the client has agreed to a close, what it says on the channel means nothing."""
    _consume(peer)
    _delivered(peer)
    peer.say(_acks(99))
    peer.transport.read()
    peer.say(_acks(1, 2, 3))
    assert peer.transport.read() == b""
    assert len(queue) == 40


def test_several_consumers_are_served_in_turn(peer: Desk, queue: BrokerQueue) -> None:
    """A run is for a consumer that is alone: two that have work get one message each."""
    for tag in ("a", "b"):
        peer.say_method(1, commands.Basic.Consume, queue="q", consumer_tag=tag)
    peer.run()
    frames = FrameSplitter().feed(peer.transport.read())
    methods = [amqp.decode_method(payload) for kind, _, payload in frames if kind == 1]
    tags = [method.consumer_tag for method in methods if isinstance(method, amqp.Deliver)]
    assert tags[:10] == ["a", "b"] * 5


def test_a_pull_ends_with_the_message_that_reaches_its_bytes(queue: BrokerQueue) -> None:
    """Bytes bound what one pull takes, and the first message is always among it."""
    consumer = queue.add_consumer(lambda _: None)
    queue.set_notify_work_desired(consumer, True)
    assert len(queue.deliver_messages(consumer, 8, 5)) == 5
    assert len(queue.deliver_messages(consumer, 8, 1)) == 1
    assert len(queue.deliver_messages(consumer, 8, 1000)) == 8
    assert queue.deliver_messages(consumer, 100, 10_000)[0].message.body == b"14"
    assert queue.deliver_messages(consumer, 100, 10_000) == []


def test_a_pull_asks_a_selector_about_one(queue: BrokerQueue) -> None:
    """Where a selector decides, each message is asked about outside the lock, so a pull is for one."""
    consumer = queue.add_consumer(lambda _: None, selector=lambda message: message.body == b"7")
    queue.set_notify_work_desired(consumer, True)
    assert [entry.message.body for entry in queue.deliver_messages(consumer, 10, 1000)] == [b"7"]
    assert queue.deliver_messages(consumer, 10, 1000) == []


def _publish(body: bytes, key: str = "q", *, channel: int = 1, mandatory: bool = False, **properties: object) -> bytes:
    """A publish, as it comes over the wire, in frames of 4 KiB."""
    return amqp.encode_publish(channel, "", key, amqp.encode_properties(properties), body, 4096, mandatory=mandatory)


def test_publishes_in_a_row_are_put_in_one_hold(
    peer: Desk, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue without limits is asked once for all whole messages of one address that one read brings."""
    calls: list[int] = []
    put_all = type(queue).put_all

    def counting(self: BrokerQueue, messages: Sequence[Message]) -> Any:
        calls.append(len(messages))
        return put_all(self, messages)

    monkeypatch.setattr(type(queue), "put_all", counting)
    peer.say(b"".join(_publish(b"new %d" % number, message_id=str(number)) for number in range(5)))
    assert calls == [5]
    assert [message.body for message in queue.browse()][40:] == [b"new %d" % number for number in range(5)]


_KINDS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": _publish,
    "labelled": partial(_publish, content_type="text/plain", priority=3),
    "elsewhere": partial(_publish, key="other"),
    "bounded": partial(_publish, key="bounded"),
    "lost": partial(_publish, key="nowhere", mandatory=True),
    "on another channel": partial(_publish, channel=2),
    "short-lived": partial(_publish, expiration="60000"),
    "copied": partial(_publish, headers={"CC": ["other"]}),
    "empty": lambda body: _publish(b""),
    "long": lambda body: _publish(body * 2000),
    "a heartbeat": lambda body: amqp.HEARTBEAT,
}


@pytest.mark.parametrize("seed", range(4))
def test_publishes_of_one_read_come_to_the_same_as_one_by_one(seed: int) -> None:
    """Each queue has the same messages in the same order, the exchange the same figures, and the peer hears the same,
    whatever stands between them."""
    kinds = random.Random(seed).choices(list(_KINDS), weights=[12] + [1] * (len(_KINDS) - 1), k=60)
    pieces = [_KINDS[kind](b"%s %d" % (kind.encode(), number)) for number, kind in enumerate(kinds)]
    at_once, one_by_one = (_come_to(said) for said in ([b"".join(pieces)], pieces))
    assert at_once == one_by_one


def _come_to(said: list[bytes]) -> tuple[object, ...]:
    """What these reads come to at a broker of their own."""
    with Broker() as broker:
        broker.declare_queue("q")
        broker.declare_queue("other")
        broker.declare_queue("bounded", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        with amqp.serve(broker) as server, desk(server) as peer:
            peer.say_method(2, commands.Channel.Open)
            for channel in (1, 2):
                peer.say_method(channel, commands.Confirm.Select)
            peer.transport.read()
            for data in said:
                peer.say(data)
            heard = _heard(peer)
        queues = [
            [(message.body, message.priority, message.content_type) for message in broker.queue(name).browse()]
            for name in ("q", "other", "bounded")
        ]
        exchange = next(each for each in broker.virtual_host().exchange_statistics() if each.name == "")
    return queues, heard, exchange.received, exchange.unroutable


def _heard(peer: Desk) -> tuple[object, ...]:
    """What was returned, and which numbers were acked and nacked, by channel."""
    peer.run()
    returned: list[bytes] = []
    answered: dict[tuple[int, bool], set[int]] = {}
    for kind, channel, payload in FrameSplitter().feed(peer.transport.read()):
        method = amqp.decode_method(payload) if kind == amqp.FRAME_METHOD else None
        if kind == 3:
            returned.append(payload)
        if isinstance(method, amqp.Ack | amqp.Nack):
            told = answered.setdefault((channel, isinstance(method, amqp.Ack)), set())
            others = answered.setdefault((channel, not isinstance(method, amqp.Ack)), set())
            first = 1 if method.multiple else method.delivery_tag
            told |= set(range(first, method.delivery_tag + 1)) - others
    return returned, answered


def test_consumers_of_different_queues_pull_runs_though_others_are_ready(
    peer: Desk, broker: Broker, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only consumers of one queue take turns message by message; each of the others is asked for 32 at once."""
    broker.declare_queue("other")
    for number in range(40):
        broker.publish(Message(b"%d" % number, routing_key="other"))
    pulls: list[tuple[str, int]] = []
    pull = type(queue).deliver_messages

    def counting(self: BrokerQueue, consumer: Any, most: int, most_bytes: int) -> Any:
        entries = pull(self, consumer, most, most_bytes)
        pulls.append((self.name, len(entries)))
        return entries

    monkeypatch.setattr(type(queue), "deliver_messages", counting)
    for name in ("q", "other"):
        peer.say_method(1, commands.Basic.Consume, queue=name, no_ack=True)
    assert len(_delivered(peer)) == 80
    assert pulls[:4] == [("q", 32), ("other", 32), ("q", 8), ("other", 8)]


def test_what_has_come_of_a_frame_is_not_touched_by_the_next_read(broker: Broker, queue: BrokerQueue) -> None:
    """Connections of one I/O thread are read into one buffer, one after the other, 64 KiB at once."""
    queue.purge()
    with amqp.serve(broker) as server, desk(server) as one:
        other = Desk(server, one.io)
        other.open()
        first, second = _publish(b"1" * 900), _publish(b"2" * 900)
        one.say(first[:500])
        other.say(second)
        one.say(first[500:])
        assert [message.body for message in queue.browse()] == [b"2" * 900, b"1" * 900]
        assert len(one.connection.get_buffer(-1)) == 64 * 1024
        other.close()
