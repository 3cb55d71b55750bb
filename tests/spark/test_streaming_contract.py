"""What the source promises, whichever way it takes: by a spool at our broker and at RabbitMQ, by a lease at ours."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType
from rabbitmq_support import Peer
from spark_parts_support import Supply, _lease, _queue_reader, _source, _spool
from spark_streaming_support import bodies, depth, numbers, publish, wait_for_depth

from multiqueue.broker import Broker
from multiqueue.client import connect
from multiqueue.spark import DataLoss, LeaseInUse, QueueDataSource, SourceUnavailable, SpoolInUse
from multiqueue.testing import PATIENCE


@dataclass(frozen=True)
class Place:
    """A broker, and the options of one way there."""

    url: str
    options: dict[str, str]

    def lose(self) -> None:
        """Everything that had a number is gone."""
        if "spool" in self.options:
            shutil.rmtree(self.options["spool"])
        else:
            with connect(self.url) as connection, connection.channel() as channel:
                channel.queue_delete("lease.s")


@pytest.fixture
def rabbit(rabbitmq_peer: Peer) -> str:
    """Where RabbitMQ listens."""
    return rabbitmq_peer.url


RABBITMQ = pytest.param("spool at RabbitMQ", marks=pytest.mark.slow(selected=True))


@pytest.fixture(params=["spool", "lease", RABBITMQ])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each way, with empty queues."""
    if request.param == "spool at RabbitMQ":
        url = request.getfixturevalue("rabbit")
        with connect(url) as connection, connection.channel() as channel:
            for queue in ("orders", "returns"):
                channel.queue_delete(queue)
        yield Place(url, {"spool": str(tmp_path / "spool")})
        return
    with Broker() as broker:
        url = broker.listen().url
        yield Place(url, {"sourceId": "s"} if request.param == "lease" else {"spool": str(tmp_path / "spool")})


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def way(place: Place) -> dict[str, str]:
    return place.options


def test_messages_come_in_order_and_are_acknowledged(url: str, engine: Any) -> None:
    """A stream has the queue's messages in order, in batches of bounded size, and takes them off the queue.

    (streaming source 5, 6)
    """
    publish(url, "orders", *numbers(0, 25))
    stream = engine(maxMessagesPerBatch="10")
    assert bodies(stream.run_until(25)) == numbers(0, 25)
    assert [row["sequence"] for row in stream.rows()] == list(range(25))
    assert max(len(rows) for rows in stream.output.values()) <= 10
    stream.reader.stop()
    assert depth(url, "orders") == 0
    assert not any(row["redelivered"] for row in stream.rows())


def test_a_spark_that_tells_no_start(url: str, engine: Any) -> None:
    """Asked as Spark before 4.2 asks, batches keep their bounds of messages and bytes, and the stream has each once."""
    publish(url, "orders", *(b"%010d" % number for number in range(30)))
    stream = engine(maxMessagesPerBatch="7", maxBytesPerBatch="40")
    stream.tells_start = False
    stream.run_until(10)
    stream.restart()
    stream.run_until(30)
    assert max(len(rows) for rows in stream.output.values()) <= 5
    publish(url, "orders", *numbers(30, 20))
    assert list(map(int, bodies(stream.run_until(50)))) == list(range(50))
    assert max(len(rows) for rows in stream.output.values()) <= 7


@pytest.mark.parametrize("place", ["spool", "lease"], indirect=True)
@pytest.mark.parametrize("prefetch", ["1", "5", "1000"])
def test_batches_of_a_fair_queue_hold_turns(url: str, engine: Any, prefetch: str) -> None:
    """Tenants stand in the batches of a fair queue as they take turns at the broker, however much is prefetched."""
    kind = {"x-queue-kind": "fair"}
    for tenant, first, count in (("flood", 0, 30), ("a", 100, 5), ("b", 200, 5)):
        publish(url, "orders", *numbers(first, count), arguments=kind, headers={"tenant": tenant})
    stream = engine(maxMessagesPerBatch="6", prefetch=prefetch)
    turns = [number for turn in range(5) for number in (turn, 100 + turn, 200 + turn)]
    assert list(map(int, bodies(stream.run_until(40)))) == turns + list(range(5, 30))
    assert max(len(rows) for rows in stream.output.values()) <= 6


def test_several_queues_in_one_stream(url: str, engine: Any) -> None:
    """A stream has the messages of all its queues, by priority in a batch, and takes them off all of them."""
    publish(url, "returns", *numbers(100, 5))
    publish(url, "orders", *numbers(0, 5))
    stream = engine(queue="returns:1,orders", maxMessagesPerBatch="7")
    stream.reader.prepareForTriggerAvailableNow()
    while stream.batch():
        pass
    assert sorted(map(int, bodies(stream.rows()))) == [*range(5), *range(100, 105)]
    assert [row["body"] for row in stream.rows() if row["queue"] == "returns"] == numbers(100, 5)
    stream.reader.stop()
    wait_for_depth(url, "orders", 0)
    wait_for_depth(url, "returns", 0)


def test_a_message_as_a_row(url: str, engine: Any) -> None:
    """A row has what the message has: its properties, headers as text, its queue, and when it was read."""
    headers = {"text": "é", "number": 7, "switch": True, "table": {"a": [1]}, "bytes": b"\xff", "nothing": None}
    publish(url, "orders", b"\x00body", message_id="m", timestamp=1_700_000_000, headers=headers, content_type="x/y")
    [row] = engine().run_until(1)
    assert row.pop("received") <= datetime.now(UTC)
    row["headers"].sort(key=lambda header: list(headers).index(header[0]))  # RabbitMQ 4 sorts them
    assert row == {
        "sequence": 0,
        "queue": "orders",
        "exchange": "",
        "routing_key": "orders",
        "redelivered": False,
        "message_id": "m",
        "timestamp": datetime.fromtimestamp(1_700_000_000, UTC),
        "headers": [
            ("text", "é"),
            ("number", "7"),
            ("switch", "true"),
            ("table", '{"a": [1]}'),
            ("bytes", "\\xff"),
            ("nothing", None),
        ],
        "properties": [("content_type", "x/y"), ("delivery_mode", "2")],
        "body": b"\x00body",
    }


def test_a_message_without_anything(url: str, engine: Any) -> None:
    """What a publisher left out is null; a time that is none is null too."""
    with connect(url) as connection, connection.channel() as channel:
        channel.queue_declare("orders", durable=True)
        channel.publish_confirmed(b"", routing_key="orders").result(PATIENCE)
        channel.publish_confirmed(b"", routing_key="orders", timestamp=2**60).result(PATIENCE)
    for row in engine().run_until(2):
        assert (row["message_id"], row["timestamp"], row["headers"], row["body"]) == (None, None, [], b"")


def test_a_batch_that_was_planned_is_read_again_as_it_was(url: str, engine: Any) -> None:
    """After a crash between planning and committing, the batch has the same messages, and nothing is lost or new.

    (streaming source 2)
    """
    publish(url, "orders", *numbers(0, 10))
    stream = engine(maxMessagesPerBatch="4")
    while not stream.plan():
        pass
    publish(url, "orders", *numbers(10, 5))
    stream.restart()
    assert bodies(stream.output[0]) == numbers(0, len(stream.output[0]))
    seen = {row["message_id"]: row["body"] for row in stream.run_until(15)}
    assert sorted(seen.values(), key=int) == numbers(0, 15)


def test_what_had_a_number_before_a_crash_is_not_lost(url: str, engine: Any) -> None:
    """Messages that were taken off their queue for a batch that never reached the offset log are in the next one."""
    publish(url, "orders", *numbers(0, 5))
    stream = engine()
    start = stream.reader.initialOffset()
    while stream.reader.latestOffset(start, None)["sequence"] < 5:
        pass
    wait_for_depth(url, "orders", 0)
    stream.restart()
    assert bodies(stream.run_until(5)) == numbers(0, 5)
    assert not any(row["redelivered"] for row in stream.rows())


def test_committed_batches_are_forgotten(url: str, engine: Any) -> None:
    """What is not committed is kept, and what is leaves when the next batch begins (streaming source 9)."""
    stream = engine()
    for round in range(5):
        publish(url, "orders", *numbers(round, 1))
        stream.run_until(round + 1)
    assert stream.reader.initialOffset()["sequence"] == 4
    stream.restart()
    assert stream.reader.initialOffset()["sequence"] == 4


def test_available_now_ends_with_what_there_was(url: str, engine: Any) -> None:
    """The trigger availableNow reads what was there when it began, over batches and a restart, and then ends.

    (streaming source 7)
    """
    publish(url, "orders", *numbers(0, 25))
    stream = engine(maxMessagesPerBatch="10", prefetch="3")
    stream.reader.prepareForTriggerAvailableNow()
    publish(url, "orders", *numbers(25, 5))
    while stream.batch():
        pass
    assert [len(rows) for rows in stream.output.values()] == [10, 10, 5]
    stream.reader.stop()
    wait_for_depth(url, "orders", 5)
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    while stream.batch():
        pass
    assert bodies(stream.rows()) == numbers(0, 30)


def test_available_now_ends_when_others_took_the_rest(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If other consumers took some of what there was, the stream ends without it."""
    monkeypatch.setattr(_source, "QUIET", 0.05)
    publish(url, "orders", *numbers(0, 5))
    stream = engine()
    stream.reader.prepareForTriggerAvailableNow()
    with connect(url) as connection, connection.channel() as channel:
        assert channel.basic_get("orders", auto_ack=True) is not None
    while stream.batch():
        pass
    assert bodies(stream.rows()) == numbers(1, 4)


def test_available_now_waits_for_what_is_on_its_way(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that have left their queue, and that the client has not handed over yet, were not taken by others."""
    monkeypatch.setattr(_source, "QUIET", 0.01)
    publish(url, "orders", *numbers(0, 5))
    stream = engine()
    stream.reader.prepareForTriggerAvailableNow()
    ready, hand_over = Supply.ready, _queue_reader._put
    asked = 0
    may_come = threading.Event()

    def ask(supply: Supply[Any]) -> int | None:
        nonlocal asked
        asked += 1
        if asked == 10:
            may_come.set()
        return ready(supply)

    def hand_over_late(tail: Any, message: Any) -> None:
        assert may_come.wait(PATIENCE)
        hand_over(tail, message)

    monkeypatch.setattr(Supply, "ready", ask)
    monkeypatch.setattr(_queue_reader, "_put", hand_over_late)
    while stream.batch():
        pass
    assert bodies(stream.rows()) == numbers(0, 5)


def test_a_limit_of_everything_is_kept(url: str, engine: Any) -> None:
    """Asked for all there is, as by the trigger once, the source gives it whatever its own limit."""
    publish(url, "orders", *numbers(0, 25))
    stream = engine(maxMessagesPerBatch="10", maxBytesPerBatch="1", prefetch="7")
    assert bodies(stream.batch(ReadAllAvailable())) == numbers(0, 25)


def test_bytes_bound_a_batch(url: str, engine: Any) -> None:
    """A batch ends with the message that reaches its bytes (streaming source 5)."""
    publish(url, "orders", *(b"x" * 100 for _ in range(10)))
    stream = engine(maxBytesPerBatch="250")
    stream.reader.prepareForTriggerAvailableNow()
    while stream.batch():
        pass
    assert [len(rows) for rows in stream.output.values()] == [3, 3, 3, 1]


def test_a_batch_is_cut_into_partitions(url: str, engine: Any) -> None:
    """Partitions are runs of consecutive messages, as equal as can be, none empty."""
    publish(url, "orders", *numbers(0, 10))
    stream = engine(partitions="4")
    stream.reader.prepareForTriggerAvailableNow()
    stream.plan()
    parts = stream.reader.partitions(stream.reader.initialOffset(), stream.offsets[0])
    read = [[row["sequence"] for batch in stream.reader.read(part) for row in batch.to_pylist()] for part in parts]
    assert read == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert stream.reader.partitions(stream.offsets[0], stream.offsets[0]) == []


def test_a_queue_that_is_not_there(url: str, engine: Any) -> None:
    """A queue that is not declared is an error at once."""
    with pytest.raises(SourceUnavailable, match=r"cannot read orders: .*orders"):
        engine().batch()


def test_offsets_compare_as_text(url: str, engine: Any) -> None:
    """Offsets of the same place are the same text, which is how Spark compares them."""
    publish(url, "orders", b"1")
    stream = engine()
    stream.run_until(1)
    again = stream.reader.latestOffset(json.loads(json.dumps(stream.offsets[-1])), None)
    assert json.dumps(again) == json.dumps(stream.offsets[-1])


def test_a_second_reader_is_refused(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers cannot have the same numbers; the second is told so, and gets them when the first is gone.

    (streaming source 10)
    """
    publish(url, "orders", b"0")
    first = engine()
    first.run_until(1)
    opened = _spool.Spool.open, _lease.Lease.open
    monkeypatch.setattr(_spool.Spool, "open", lambda *args: opened[0](*args, patience=0))
    monkeypatch.setattr(_lease.Lease, "open", lambda *args: opened[1](*args, patience=0))
    second = engine()
    with pytest.raises((SpoolInUse, LeaseInUse), match=r"in use by .* give each readStream a"):
        second.batch()
    first.reader.stop()
    monkeypatch.undo()
    assert second.reader.initialOffset()["sequence"] == 0


def test_lost_numbers_are_told(url: str, place: Place, engine: Any) -> None:
    """A checkpoint with other numbers, or with more than there ever were, ends the query instead of skipping.

    (streaming source 8)
    """
    publish(url, "orders", *numbers(0, 3))
    stream = engine()
    stream.run_until(3)
    stream.reader.stop()
    place.lose()
    stream.restart()
    with pytest.raises(
        DataLoss, match=r"message 3 of (spool|lease) \w+, but the (spool|lease) .* is another one; restore"
    ):
        stream.batch()
    beyond = {**stream.reader.initialOffset(), "sequence": 99}
    with pytest.raises(DataLoss, match=r"message 99 .* ends at 0"):
        stream.reader.latestOffset(beyond, None)


def test_lost_numbers_can_be_left_behind(url: str, place: Place, engine: Any) -> None:
    """With failOnDataLoss=false the stream goes on with what there is, under numbers that never go back.

    (streaming source 8)
    """
    publish(url, "orders", *numbers(0, 3))
    stream = engine(failOnDataLoss="false")
    stream.run_until(3)
    stream.reader.stop()
    place.lose()
    stream.restart()
    publish(url, "orders", *numbers(3, 2))
    assert bodies(stream.run_until(5)) == numbers(0, 5)
    ahead = {**stream.offsets[-1], "sequence": 50}
    publish(url, "orders", b"5")
    stream.offsets[-1] = ahead
    assert [row["sequence"] for row in stream.run_until(6)][-1] == 50


@pytest.mark.slow(selected=True)
def test_rows_of_a_sink_at_rabbitmq(rabbit: str) -> None:
    """The sink's rows are on the queue, with their ids."""
    publish(rabbit, "out")
    schema = StructType().add("body", StringType())
    writer = QueueDataSource({"url": rabbit, "routingKey": "out", "sinkId": "s"}).writer(schema, False)
    assert writer.write(iter([Row(body=f"{number}") for number in range(1500)])).messages == 1500
    reader = QueueDataSource({"url": rabbit, "queue": "out"}).reader(
        QueueDataSource({"url": rabbit, "queue": "out"}).schema()
    )
    [part] = reader.partitions()
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["message_id"] for row in rows] == [f"s-0-{number}" for number in range(1500)]
    wait_for_depth(rabbit, "out", 1500)
