"""Programs written with amqpstorm, whose connection serves several threads, on both brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
from rabbitmq_support import Peer

amqpstorm: Any = import_module("amqpstorm")
Name = Callable[[str], str]


@pytest.fixture
def connection(peer: Peer) -> Iterator[Any]:
    with amqpstorm.UriConnection(peer.url + "?heartbeat=0") as connection:
        yield connection


def test_threads_with_channels_of_their_own(connection: Any, name: Name) -> None:
    """Four threads publish with confirms over one connection; everything arrives, each one's in order."""
    queue = name("q")
    with connection.channel() as channel:
        channel.queue.declare(queue, exclusive=True)

    def publish(who: int) -> None:
        with connection.channel() as own:
            own.confirm_deliveries()
            for number in range(25):
                assert own.basic.publish(f"{who} {number}", queue) is True

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    came: list[list[int]] = [[] for _ in threads]
    with connection.channel() as channel:
        while (message := channel.basic.get(queue, no_ack=True)) is not None:
            who, number = message.body.split()
            came[int(who)].append(int(number))
    assert came == [list(range(25))] * 4


def test_consuming_acknowledging_and_giving_back(connection: Any, name: Name) -> None:
    """A prefetch of two, a nack that comes again, an acknowledgement of several."""
    queue = name("q")
    with connection.channel() as channel:
        channel.queue.declare(queue, exclusive=True)
        channel.basic.qos(2)
        for body in "abcd":
            channel.basic.publish(body, queue)
        seen: list[tuple[str, bool]] = []

        def on_message(message: Any) -> None:
            seen.append((message.body, bool(message.redelivered)))
            if message.body == "b" and not message.redelivered:
                message.nack(requeue=True)
            else:
                message.ack()
            if message.body == "d":
                channel.stop_consuming()

        channel.basic.consume(on_message, queue)
        channel.start_consuming()
        assert channel.queue.declare(queue, passive=True)["message_count"] == 0
    assert sorted(seen) == [("a", False), ("b", False), ("b", True), ("c", False), ("d", False)]


def test_errors_carry_their_code(connection: Any) -> None:
    """404 on the channel; the connection opens another."""
    with pytest.raises(amqpstorm.AMQPChannelError, match="no queue 'nope'") as error, connection.channel() as channel:
        channel.queue.declare("nope", passive=True)
    assert error.value.error_code == 404
    with connection.channel() as channel:
        assert channel.is_open


def test_a_returned_message_is_an_error(connection: Any) -> None:
    """A mandatory message that reaches no queue raises NO_ROUTE."""
    with connection.channel() as channel:
        channel.confirm_deliveries()
        with pytest.raises(amqpstorm.AMQPMessageError, match="NO_ROUTE"):
            channel.basic.publish("lost", "nowhere", mandatory=True)


def test_a_transaction(connection: Any, name: Name) -> None:
    """`with channel.tx` commits, and rolls back when the block raises."""
    queue = name("q")
    with connection.channel() as channel:
        channel.queue.declare(queue, exclusive=True)
        with channel.tx:
            channel.basic.publish("yes", queue)
        with suppress(ValueError), channel.tx:
            channel.basic.publish("no", queue)
            raise ValueError
    with connection.channel() as channel:
        assert channel.basic.get(queue, no_ack=True).body == "yes"
        assert channel.basic.get(queue, no_ack=True) is None


@pytest.mark.parametrize("size", [131_064, 131_065, 131_072, 400_000])
def test_a_message_of_several_frames(size: int, connection: Any, name: Name) -> None:
    """AMQPStorm fills a frame's payload with frame_max bytes, eight more than the specification has room for."""
    queue = name("q")
    with connection.channel() as channel:
        channel.confirm_deliveries()
        channel.queue.declare(queue, exclusive=True)
        assert channel.basic.publish("x" * size, queue) is True
        assert len(channel.basic.get(queue, no_ack=True).body) == size
