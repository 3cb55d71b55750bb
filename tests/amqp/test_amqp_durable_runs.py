"""Durable publishes that one read brings go to the store together, and clients can tell by the time alone.

The test is the peer, its socket and the event loop, so that it decides what arrives together, and it decides when the
store commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from amqp_desk_support import Desk, desk
from amqp_parts_support import encode_ack
from amqp_stored_support import StoredBroker, held_broker
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import FrameSplitter
from multiqueue.broker import Message, Overflow, QueueSettings, VirtualHost
from multiqueue.store import StoreFailed, StoreFull
from multiqueue.testing import wait_until_blocked

PERSISTENT = amqp.encode_properties({"delivery_mode": 2})
TRANSIENT = amqp.encode_properties({})


@pytest.fixture
def broker() -> Iterator[StoredBroker]:
    with held_broker(housekeeping_interval=60) as held:
        yield held


@pytest.fixture
def peer(broker: StoredBroker) -> Iterator[Desk]:
    """A client whose channel 1 confirms."""
    with amqp.serve(broker) as server, desk(server) as made:
        made.say_method(1, commands.Confirm.Select)
        made.transport.read()
        yield made


def publish(
    body: bytes,
    key: str = "q",
    *,
    exchange: str = "",
    channel: int = 1,
    mandatory: bool = False,
    block: bytes = PERSISTENT,
) -> bytes:
    """A publish, as it comes over the wire."""
    return amqp.encode_publish(channel, exchange, key, block, body, 131072, mandatory=mandatory)


def said(peer: Desk) -> list[Any]:
    """The methods that the server has written since the last look."""
    peer.run()
    frames = FrameSplitter().feed(peer.transport.read())
    return [amqp.decode_method(payload) for kind, _, payload in frames if kind == amqp.FRAME_METHOD]


def commit(peer: Desk, broker: StoredBroker) -> list[Any]:
    """Let the store go on until it has nothing more to do; the methods that this makes the server write."""
    broker.memory.release()
    for _ in range(3):
        broker.wait_for_commits()
    return said(peer)


def bodies(host: VirtualHost, queue: str = "q") -> list[object]:
    return [message.body for message in host.queue(queue).browse()]


def operations(broker: StoredBroker) -> int:
    """How many operations the store was given and has not committed."""
    return broker.memory.statistics().pending_operations


def test_publishes_of_one_read_are_one_commit(peer: Desk, broker: StoredBroker) -> None:
    """They are confirmed by one frame when it is there, and by nothing before."""
    peer.say(b"".join(publish(b"%d" % number) for number in range(5)))
    assert operations(broker) == 5
    assert said(peer) == []
    broker.memory.release(1)
    wait_until_blocked(lambda: operations(broker) == 0)
    assert said(peer) == [amqp.Ack(5, True)]
    assert bodies(broker) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_publish_that_comes_in_pieces_waits_for_its_last(peer: Desk, broker: StoredBroker) -> None:
    """What is whole is handed in when the read ends, though the next message has begun."""
    one, other = publish(b"1"), publish(b"2")
    peer.say(one + other[:30])
    assert operations(broker) == 1
    peer.say(other[30:])
    assert operations(broker) == 2
    assert commit(peer, broker) == [amqp.Ack(2, True)]


def test_a_message_that_finds_no_room_is_nacked_alone(peer: Desk, broker: StoredBroker) -> None:
    """The others of its run are confirmed and on the queue, in order."""
    broker.memory.fail_at(3, StoreFull("no room"))
    peer.say(b"".join(publish(b"%d" % number) for number in range(1, 6)))
    assert commit(peer, broker) == [amqp.Nack(3, False, False), amqp.Ack(5, True)]
    assert bodies(broker) == [b"1", b"2", b"4", b"5"]


def test_a_limit_in_the_middle_refuses_alone(peer: Desk, broker: StoredBroker) -> None:
    """A queue that is full for the third is nacked at once; what is for other queues goes on."""
    broker.memory.release()
    broker.declare_queue("small", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    broker.memory.hold()
    peer.say(b"".join(publish(b"%d" % number, "small") for number in (1, 2, 3)) + publish(b"4"))
    assert said(peer) == [amqp.Nack(3, False, False)]
    assert commit(peer, broker) == [amqp.Ack(4, True)]
    assert (bodies(broker, "small"), bodies(broker)) == ([b"1", b"2"], [b"4"])


def test_what_cannot_be_routed_comes_back_at_once_in_order(peer: Desk, broker: StoredBroker) -> None:
    """Each return stands before its confirm; the confirms around it follow the commit."""
    lost = [publish(b"lost %d" % number, "nowhere", mandatory=True) for number in (1, 2)]
    peer.say(publish(b"1") + lost[0] + publish(b"3") + lost[1] + publish(b"5", "nowhere") + publish(b"6"))
    assert operations(broker) == 3
    now = said(peer)
    assert [type(method) for method in now] == [amqp.Return, amqp.Return, amqp.Ack, amqp.Ack, amqp.Ack]
    assert [method.delivery_tag for method in now[2:]] == [2, 4, 5]
    assert commit(peer, broker) == [amqp.Ack(6, True)]
    assert bodies(broker) == [b"1", b"3", b"6"]


def test_a_fault_in_the_middle_costs_what_follows_it(peer: Desk, broker: StoredBroker) -> None:
    """Messages before an unknown exchange are stored though the channel is closed; those behind it are dropped."""
    peer.say(publish(b"1") + publish(b"2", exchange="nonesuch") + publish(b"3"))
    (close,) = said(peer)
    assert close.reply_code == 404
    assert operations(broker) == 1
    assert commit(peer, broker) == []  # there is no channel to confirm on
    assert bodies(broker) == [b"1"]


def test_bytes_that_are_no_frames_cost_nothing_before_them(peer: Desk, broker: StoredBroker) -> None:
    """What came before the connection's fault is stored."""
    peer.say(publish(b"1") + b"\x01\x00\x01\xff\xff\xff\xff")
    (close,) = said(peer)
    assert close.reply_code == 501
    commit(peer, broker)
    assert bodies(broker) == [b"1"]


def test_an_ack_does_not_overtake_a_publish(peer: Desk, broker: StoredBroker) -> None:
    """A client that passes a message on and then acks it has it stored somewhere, whenever the store dies."""
    broker.memory.release()
    broker.publish(Message(b"in", routing_key="q", persistent=True))
    broker.declare_queue("out", durable=True)
    peer.say_method(1, commands.Basic.Consume, queue="q")
    wait_until_blocked(lambda: any(isinstance(method, amqp.Deliver) for method in said(peer)))
    broker.memory.hold()
    peer.say(publish(b"out", "out") + encode_ack(1, 1))
    assert operations(broker) == 2
    broker.memory.release(1)
    wait_until_blocked(lambda: operations(broker) == 1)
    left = VirtualHost(store=broker.memory.reopened(crashed=True))
    assert (bodies(left), bodies(left, "out")) == ([b"in"], [b"out"])
    left.close()


def test_a_method_sees_the_publishes_before_it(peer: Desk, broker: StoredBroker) -> None:
    """It is answered when they are on the queue, after their confirms, though all came in one read."""
    declare = amqp.encode_method(1, commands.Queue.Declare, queue="q", durable=True, passive=True)
    peer.say(publish(b"1") + publish(b"2") + declare)
    assert said(peer) == []
    confirmed, answer = commit(peer, broker)
    assert confirmed == amqp.Ack(2, True)
    assert answer.message_count == 2


def test_transient_messages_keep_their_place(peer: Desk, broker: StoredBroker) -> None:
    """Between durable ones of the same read they neither overtake nor fall behind."""
    blocks = [PERSISTENT, TRANSIENT, PERSISTENT, PERSISTENT, TRANSIENT]
    peer.say(b"".join(publish(b"%d" % number, block=block) for number, block in enumerate(blocks)))
    commit(peer, broker)
    assert bodies(broker) == [b"0", b"1", b"2", b"3", b"4"]


def test_two_channels_share_a_run(peer: Desk, broker: StoredBroker) -> None:
    """Publishes of a connection are handed in together, and each channel is told of its own."""
    peer.say_method(2, commands.Channel.Open)
    peer.say_method(2, commands.Confirm.Select)
    said(peer)
    peer.say(publish(b"1") + publish(b"2", channel=2) + publish(b"3"))
    broker.memory.release(1)
    wait_until_blocked(lambda: operations(broker) == 0)
    peer.run()
    frames = FrameSplitter().feed(peer.transport.read())
    assert sorted((number, amqp.decode_method(payload)) for _, number, payload in frames) == [
        (1, amqp.Ack(2, True)),
        (2, amqp.Ack(1, False)),
    ]


def test_a_carbon_copy_is_part_of_the_run(peer: Desk, broker: StoredBroker) -> None:
    """A message for several keys is stored on all of its queues or on none, in its place among the others."""
    broker.memory.release()
    broker.declare_queue("r", durable=True)
    broker.memory.hold()
    broker.memory.fail_at(3, StoreFull("no room"))
    copied = amqp.encode_properties({"delivery_mode": 2, "headers": {"CC": ["r"]}})
    peer.say(publish(b"1") + publish(b"2", block=copied) + publish(b"3", block=copied) + publish(b"4"))
    assert commit(peer, broker) == [amqp.Nack(3, False, False), amqp.Ack(4, True)]
    assert (bodies(broker), bodies(broker, "r")) == ([b"1", b"2", b"4"], [b"2"])


def test_a_transaction_stands_behind_what_was_published_before_it(peer: Desk, broker: StoredBroker) -> None:
    """A commit of one channel in the same read is stored after the publishes of another."""
    peer.say_method(2, commands.Channel.Open)
    peer.say_method(2, commands.Tx.Select)
    said(peer)
    committed = amqp.encode_method(2, commands.Tx.Commit)
    peer.say(publish(b"1") + publish(b"2", channel=2) + publish(b"3") + committed)
    broker.memory.release()
    peer.wait_for_others()
    commit(peer, broker)
    assert bodies(broker) == [b"1", b"3", b"2"]


def test_a_store_at_its_end_closes_the_connection(peer: Desk, broker: StoredBroker) -> None:
    """A client that published in the same read is not confirmed, and hears of it."""
    broker.memory.fail_at(1, StoreFailed("the disk failed"))
    peer.say(publish(b"1"))
    assert commit_fails(peer, broker) == [amqp.Nack(1, False, False)]
    peer.say(publish(b"2") + publish(b"3"))
    (close,) = said(peer)
    assert close.reply_code == 541


def commit_fails(peer: Desk, broker: StoredBroker) -> list[Any]:
    """As `commit`, of a store that fails."""
    broker.memory.release()
    with pytest.raises(StoreFailed):
        broker.wait_for_commits()
    return said(peer)


def test_a_run_that_is_not_accepted_closes_the_connection(peer: Desk, broker: StoredBroker) -> None:
    """The store was closed between the publishes and the end of the read: nothing was accepted, nothing is kept."""
    queue = broker.queue("q")
    put_on = peer.connection.client.publisher.put_on

    def at_the_last_moment(*arguments: Any, **options: Any) -> Any:
        sent = put_on(*arguments, **options)
        broker.memory.release()
        broker.memory.close()
        return sent

    peer.connection.client.publisher.put_on = at_the_last_moment  # type: ignore[method-assign]
    peer.say(publish(b"1"))
    (close,) = said(peer)
    assert close.reply_code == 541
    assert (len(queue), queue.life._admitted) == (0, 0)


def test_a_queue_that_asks_for_room_holds_its_publisher(peer: Desk, broker: StoredBroker) -> None:
    """Once the queue is over its limit nothing further is done for who publishes to it, until there is room."""
    broker.memory.release()
    settings = QueueSettings(durable=True, max_length=2, overflow=Overflow.FLOW_CONTROL)
    broker.declare_queue("flow", settings=settings)
    peer.say(b"".join(publish(b"%d" % number, "flow") for number in range(3)))
    assert commit(peer, broker) == [amqp.Ack(3, True)]
    peer.say(publish(b"3", "flow") + publish(b"4", "flow"))
    assert progress(peer) == (False, 4)
    assert commit(peer, broker) == [amqp.Ack(4, False)]
    for _ in range(3):
        broker.get("flow", auto_accept=True)
    peer.run()
    assert progress(peer) == (True, 5)
    assert commit(peer, broker) == [amqp.Ack(5, False)]
    assert bodies(broker, "flow") == [b"3", b"4"]


def progress(peer: Desk) -> tuple[bool, int]:
    """Whether nothing holds the peer, and how many publishes of channel 1 were dealt with."""
    confirms = peer.connection.sessions[1].publishing.confirms
    assert confirms is not None
    return not peer.connection.gate.reasons, confirms.published
