"""What waits for a peer that does not read is bounded, whatever it asks for and however it asks.

The test is the peer, its socket and the event loop, so that no kernel buffer decides what is seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from amqp_desk_support import Desk, desk
from amqp_parts_support import encode_nack
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Server, ServerSettings
from multiqueue.broker import Broker, Message

WRITE_BUFFER = 20_000
PIECES = 65 * 16 * 1024  # what is collected before it is written: so many pieces, none of them larger
BODY = 50_000
GET = amqp.encode_method(1, commands.Basic.Get, queue="q") + encode_nack(1, 0, True)


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    with amqp.serve(broker, settings=ServerSettings(write_buffer_bytes=WRITE_BUFFER)) as started:
        yield started


@pytest.fixture
def peer(server: Server) -> Iterator[Desk]:
    with desk(server) as made:
        yield made


@pytest.mark.parametrize(
    "at_once", [1, *(pytest.param(count, marks=pytest.mark.slow(selected=True)) for count in (7, 64)), 10_000]
)
@pytest.mark.parametrize("size", [100, BODY])
def test_replies_that_nobody_fetches(broker: Broker, peer: Desk, at_once: int, size: int) -> None:
    """Gets for thousands, in one read or in many, have the mark and a message waiting, never all of them."""
    broker.declare_queue("q")
    broker.publish(Message(b"x" * size, routing_key="q"))
    asked, got = 10_000 if size < BODY else 2_000, 0
    left = asked
    while left:
        while left and peer.transport.is_read_from:
            peer.say(GET * min(at_once, left))
            left -= min(at_once, left)
        assert peer.transport.most_waiting <= 6 * WRITE_BUFFER + (PIECES if size < BODY else size + 200)
        while data := peer.transport.read():
            got += data.count(b"\x00\x3c\x00\x47")  # get-ok; a body of x has none
            peer.take_turns()
    assert got == asked
    assert peer.transport.is_read_from


def test_returns_that_nobody_fetches(peer: Desk) -> None:
    """Messages that come back to who published them are replies too."""
    publish = amqp.encode_publish(1, "", "nowhere", amqp.NO_PROPERTIES, b"x" * BODY, 131072, mandatory=True)
    for _ in range(1000):
        if not peer.transport.is_read_from:
            break
        peer.say(publish)
    assert not peer.transport.is_read_from
    assert peer.transport.most_waiting <= 6 * WRITE_BUFFER + BODY + 200


def test_confirms_that_nobody_fetches(broker: Broker, peer: Desk) -> None:
    """Confirms are small, and are replies too: a publisher that never looks at them is stopped in the end."""
    peer.say_method(1, commands.Confirm.Select)
    publish = amqp.encode_publish(1, "", "nowhere", amqp.NO_PROPERTIES, b"", 131072)
    for _ in range(10_000):
        if not peer.transport.is_read_from:
            break
        peer.say(publish)
    assert not peer.transport.is_read_from
    assert peer.transport.most_waiting <= 6 * WRITE_BUFFER


def test_deliveries_that_nobody_fetches(broker: Broker, peer: Desk) -> None:
    """Large deliveries are noticed one by one: the mark and a message wait, and not a turn's worth of messages."""
    broker.declare_queue("q")
    for _ in range(300):
        broker.publish(Message(b"x" * BODY, routing_key="q"))
    peer.say_method(1, commands.Basic.Consume, queue="q", no_ack=True)
    for _ in range(20):
        peer.run()
    assert 0 < peer.transport.most_waiting <= WRITE_BUFFER + BODY + 200
    assert len(broker.queue("q")) == 299
    assert peer.transport.is_read_from  # acks, and whatever else it has to say, are read


def test_who_has_deliveries_waiting_is_read_from(broker: Broker, peer: Desk) -> None:
    """A client that publishes without a pause while deliveries wait for it is not taken for one that only asks."""
    broker.declare_queue("q")
    for _ in range(2000):
        broker.publish(Message(b"x" * 1000, routing_key="q"))
    peer.say_method(1, commands.Basic.Consume, queue="q", no_ack=True)
    while not peer.connection.is_held_back:
        peer.run()
    assert peer.transport.most_waiting > 4 * WRITE_BUFFER
    for _ in range(1000):
        peer.say(amqp.encode_publish(1, "", "q", amqp.NO_PROPERTIES, b"x" * 1000, 131072))
    assert peer.transport.is_read_from


@pytest.mark.parametrize("leaves", [False, True])
def test_a_large_read_is_dealt_with_in_several_turns(broker: Broker, peer: Desk, leaves: bool) -> None:
    """512 publishes of one read are done, then others have a turn; a peer that leaves loses none of the rest."""
    queue = broker.declare_queue("q")
    peer.connection.reader.receive(amqp.encode_publish(1, "", "q", amqp.NO_PROPERTIES, b"x", 131072) * 2000)
    assert 512 <= len(queue) < 700
    assert not peer.transport.is_read_from
    if leaves:
        peer.close()
    else:
        peer.take_turns()
        assert peer.transport.is_read_from
    assert len(queue) == 2000


def test_reads_are_as_long_as_frames(peer: Desk) -> None:
    """What comes in long frames is read by the mebibyte; the others have their turn sooner where it does not."""
    reads = []
    for size in (10, 6000, BODY, 2**20, 10):
        for _ in range(2):
            peer.say(5 * amqp.encode_publish(1, "", "nowhere", amqp.NO_PROPERTIES, b"x" * size, 131072))
        reads.append(len(peer.connection.get_buffer(-1)))
    assert reads == [2**16, 2**20, 2**21, 2**22, 2**16]
