"""`multiqueue store move`: what a store keeps arrives at another broker, at ours and at a RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner, Result
from rabbitmq_support import Peer

from multiqueue.amqp import ServerSettings
from multiqueue.broker import Broker, Message, QueueSettings
from multiqueue.cli import main
from multiqueue.client import Channel, connect
from multiqueue.transfer._move import NotMoved, move

PERSISTENT = 2


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two exchanges, three queues and messages of several kinds."""
    directory = tmp_path / "data"
    with Broker(data=directory) as broker, connect(broker) as connection, connection.channel() as channel:
        channel.exchange_declare("shop", "topic", durable=True)
        channel.exchange_declare("audit", "fanout", durable=True, internal=True)
        channel.exchange_declare("passing", "fanout")
        channel.queue_declare("moved-orders", durable=True, arguments={"x-max-priority": 3})
        channel.queue_declare("moved-copies", durable=True, arguments={"x-message-ttl": 3_600_000})
        channel.queue_declare("moved-empty", durable=True)
        channel.queue_declare("gone", exclusive=True)
        channel.exchange_bind("audit", "shop", "#")
        channel.queue_bind("moved-orders", "shop", "order.*")
        channel.queue_bind("moved-copies", "shop", "moved-copies")
        channel.queue_bind("gone", "shop", "#")
        for number in range(5):
            channel.publish_confirmed(
                b"order %d" % number,
                exchange="shop",
                routing_key="order.new",
                delivery_mode=PERSISTENT,
                priority=number % 2,
                headers={"number": number, "CC": ["moved-copies"]},
                message_id=f"m{number}",
                user_id="guest",
            ).result(10)
    return directory


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["store", "move", *map(str, arguments)])


def all_of(channel: Channel, queue: str) -> Iterator[tuple[bytes, dict[str, object]]]:
    while (message := channel.basic_get(queue, auto_ack=True)) is not None:
        yield message.body, dict(message.properties)


def check_arrival(url: str, data: Path) -> None:
    """Move `data` to `url`, and look at it there."""
    result = call(data / "%2f", url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "moved-orders: 5 messages\n" in result.stdout
    assert result.stdout.endswith("moved 2 exchanges, 3 queues, 3 bindings and 10 messages\n")
    with connect(url) as connection, connection.channel() as channel:
        found = list(all_of(channel, "moved-orders"))
        assert [body for body, _ in found] == [b"order 1", b"order 3", b"order 0", b"order 2", b"order 4"]
        assert found[0][1]["message_id"] == "m1"
        assert found[0][1]["headers"] == {"number": 1}
        assert found[0][1]["priority"] == 1
        assert found[0][1]["delivery_mode"] == PERSISTENT
        assert [body for body, _ in all_of(channel, "moved-copies")] == [b"order %d" % number for number in range(5)]
        assert channel.queue_declare("moved-empty", passive=True).message_count == 0
        channel.publish_confirmed(b"later", exchange="shop", routing_key="order.late").result(10)
        assert [body for body, _ in all_of(channel, "moved-orders")] == [b"later"]


def test_a_store_moves_to_another_of_ours(data: Path) -> None:
    """Durable exchanges, queues, bindings and messages arrive, in order and once, at a broker of ours."""
    with Broker() as other:
        check_arrival(other.listen().url, data)
    with Broker(data=data) as emptied:
        assert emptied.queue("moved-orders").statistics().depth == 0


def test_a_store_moves_to_rabbitmq(data: Path, rabbitmq_peer: Peer) -> None:
    """Durable exchanges, queues, bindings and messages arrive, in order and once, at a RabbitMQ."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_peer.url)) as connection:
        channel = connection.channel()
        try:
            check_arrival(rabbitmq_peer.url, data)
        finally:
            for queue in ("moved-orders", "moved-copies", "moved-empty"):
                channel.queue_delete(queue)
            for exchange in ("audit", "shop"):
                channel.exchange_delete(exchange)


def test_a_refused_declaration_is_named_and_nothing_leaves(data: Path) -> None:
    """A queue that is there with other arguments ends the move with its name; the messages stay."""
    with Broker() as other:
        other.declare_queue("moved-orders", durable=True)
        result = call(data / "%2f", other.listen().url)
    assert result.exit_code == 1
    assert "the other broker refused the queue 'moved-orders'" in result.stderr
    assert result.stderr.count("\n") == 1
    with Broker(data=data) as kept:
        assert kept.queue("moved-orders").statistics().depth == 5


def test_a_move_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    """A refused message ends the move with its queue's name; the same move again brings the rest."""
    bodies = [b"small", b"too large" * 100, b"last"]
    with Broker(data=tmp_path / "data") as broker, Broker() as other:
        with connect(broker) as connection, connection.channel() as channel:
            channel.queue_declare("mixed", durable=True)
            for body in bodies:
                channel.publish_confirmed(body, routing_key="mixed", delivery_mode=PERSISTENT).result(10)
        narrow = other.listen(settings=ServerSettings(max_message_bytes=100))
        with connect(narrow.url) as target, pytest.raises(NotMoved, match="a message of the queue 'mixed'"):
            move(broker.virtual_host(), target)
        with connect(other.listen().url) as target:
            move(broker.virtual_host(), target)
            with target.channel() as channel:
                assert {body for body, _ in all_of(channel, "mixed")} == set(bodies)
        assert broker.queue("mixed").statistics().depth == 0


def test_a_message_that_cannot_be_read_is_not_called_refused(tmp_path: Path) -> None:
    """A damaged message ends the move with its queue's name, as one of this side; what a dump saves can be moved."""
    old, new = tmp_path / "old" / "%2f", tmp_path / "new" / "%2f"
    with Broker(data=old.parent) as broker:
        broker.declare_queue("large", durable=True)
        orders = [Message(bytes([number]) * 300_000, routing_key="large", persistent=True) for number in range(3)]
        for order in orders:
            broker.publish(order)
    with (old / "bodies-1").open("r+b") as file:
        file.seek(450_000)
        file.write(b"damage")
    with Broker() as other:
        url = other.listen().url
        result = call(old, url)
        assert result.exit_code == 1
        assert "the next message of the queue 'large' cannot be read: " in result.stderr
        assert "refused" not in result.stderr
        other.queue("large").purge()  # the first one was on its way
        saved = str(tmp_path / "saved")
        assert CliRunner().invoke(main, ["store", "dump", str(old), "--output", saved]).exit_code == 1
        assert CliRunner().invoke(main, ["store", "load", str(new), "--input", saved]).exit_code == 1
        assert call(new, url).exit_code == 0
        assert len(other.queue("large")) == 2


def test_a_queue_that_was_declared_by_settings_moves_with_them() -> None:
    """What a program said by `QueueSettings` holds at the other broker too."""
    settings = QueueSettings(max_length=5, message_ttl=3600.0, durable=True, max_active_consumers=2)
    with Broker() as broker, Broker() as other:
        broker.declare_queue("set", settings=settings)
        with connect(other.listen().url) as target:
            move(broker.virtual_host(), target)
        # By arguments, and so by the rules of the version that the other broker follows.
        assert other.queue("set").settings == replace(settings, expires_at_head=True)


def test_a_queue_with_a_name_from_a_broker_moves_to_one_that_has_it(tmp_path: Path) -> None:
    """Where it is not there, by an import of definitions, the move ends with its name and what to do."""
    with Broker(data=tmp_path) as broker, Broker() as other:
        name = broker.declare_queue(durable=True).name
        broker.publish(Message(b"!", routing_key=name, persistent=True))
        with connect(other.listen().url) as target:
            with pytest.raises(NotMoved, match=f"'{name}', whose name no client may choose; move its messages"):
                move(broker.virtual_host(), target)
            other.declare_queue(name, durable=True, is_restored=True)
            assert move(broker.virtual_host(), target).messages == 1


def test_a_directory_without_a_store_is_left_alone(tmp_path: Path) -> None:
    """A directory that has no store is named, and none is made in it."""
    (tmp_path / "%2f").mkdir()
    result = call(tmp_path / "%2f", "amqp://localhost:1/")
    assert result.exit_code == 2
    assert "there is no store in" in result.stderr
    assert not list((tmp_path / "%2f").iterdir())


def test_a_broker_that_is_not_there(data: Path) -> None:
    """A URL at which nothing answers is an error of one sentence, and nothing leaves."""
    result = call(data / "%2f", "amqp://guest:guest@127.0.0.1:1/")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_copy_of_an_open_store_brings_the_broker_back(data: Path, tmp_path: Path) -> None:
    """`store dump` of an open store and `store load` into a new directory make a broker with the same queues."""
    backup, restored = tmp_path / "backup.jsonl", tmp_path / "restored"
    with Broker(data=data):
        dump = CliRunner().invoke(main, ["store", "dump", str(data / "%2f"), "--output", str(backup)])
    load = CliRunner().invoke(main, ["store", "load", str(restored / "%2f"), "--input", str(backup)])
    assert (dump.exit_code, load.exit_code) == (0, 0), dump.output + load.output
    with Broker(data=restored) as broker:
        assert {
            name: broker.queue(name).statistics().depth for name in ("moved-orders", "moved-copies", "moved-empty")
        } == {
            "moved-orders": 5,
            "moved-copies": 5,
            "moved-empty": 0,
        }
        broker.publish(Message(b"late", exchange="shop", routing_key="order.late", persistent=True))
        assert broker.queue("moved-orders").statistics().depth == 6
