"""The source as Spark calls it, without a JVM: offsets, batches, restarts, and what is acknowledged when."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType
from spark_parts_support import QueueReader, SourceOptions, Spool, Supply, _source
from spark_streaming_support import (
    Engine,
    bodies,
    broker_process,
    numbers,
    port_of,
    publish,
    source_reader,
    wait_for_depth,
)

from multiqueue.broker import Broker
from multiqueue.client import ClientError, connect
from multiqueue.spark import BadOption, MalformedBody, QueueDataSource, SourceUnavailable
from multiqueue.testing import PATIENCE


@pytest.fixture
def way(tmp_path: Path) -> dict[str, str]:
    return {"spool": str(tmp_path / "spool")}


@pytest.fixture
def reader(url: str) -> Iterator[Callable[[str, int], QueueReader]]:
    """A function that makes a reader of some queues and waits until it has so many messages."""
    with ExitStack() as stack:

        def make(queue: str, count: int) -> QueueReader:
            made = QueueReader(SourceOptions.parse({"url": url, "queue": queue}))
            stack.callback(made.close)
            made.consume()
            deadline = time.monotonic() + PATIENCE
            while made.waiting < count:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return made

        yield make


def test_queues_have_priorities(url: str, reader: Callable[[str, int], QueueReader]) -> None:
    """Of several queues those of the lower number come first, equal ones in turns, each in its own order.

    (streaming source 6)
    """
    publish(url, "slow:1", *numbers(0, 3))
    publish(url, "orders", *numbers(100, 3))
    publish(url, "returns", *numbers(200, 3))
    taken = reader("slow:1:2, orders:-1, returns:-1", 9).take(9, 1000, 0)
    assert [int(message.body) for _, message in taken] == [100, 200, 101, 201, 102, 202, 0, 1, 2]
    assert [queue for queue, _ in taken][-3:] == ["slow:1"] * 3


def test_nothing_is_handed_out_after_a_loss(url: str, reader: Callable[[str, int], QueueReader]) -> None:
    """What waits when the connection is lost is the broker's again, and not handed out."""
    publish(url, "orders", *numbers(0, 5))
    made = reader("orders", 5)
    made._connection.close()
    with pytest.raises((ClientError, SourceUnavailable)):
        made.take(5, 1000, 0)


def test_a_crash_before_the_acknowledgement_flags_what_comes_twice(
    url: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spooled but not acknowledged messages come again, flagged; their ids tell them (streaming source 3)."""
    publish(url, "orders", *numbers(0, 5))
    stream = engine()
    monkeypatch.setattr(Supply, "ack", lambda supply, taken: None)
    assert bodies(stream.run_until(5)) == numbers(0, 5)
    monkeypatch.undo()
    stream.restart()
    rows = stream.run_until(10)
    assert [row["redelivered"] for row in rows] == [False] * 5 + [True] * 5
    assert bodies(rows) == numbers(0, 5) * 2
    assert {row["message_id"] for row in rows} == {row["message_id"] for row in rows[:5]}


def test_nothing_is_acknowledged_before_it_is_on_the_disk(
    url: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses leaves the messages on their queue (streaming source 1)."""
    publish(url, "orders", *numbers(0, 5))
    stream = engine()

    def full(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Spool, "append", full)
    with pytest.raises(OSError, match="disk full"):
        stream.run_until(5)
    monkeypatch.undo()
    stream.reader.stop()
    wait_for_depth(url, "orders", 5)
    stream.restart()
    assert bodies(stream.run_until(5)) == numbers(0, 5)


def test_available_now_says_when_another_has_the_queue_alone(
    url: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that says it has messages and gives none is an error, not an endless wait."""
    monkeypatch.setattr(_source, "QUIET", 0.02)
    monkeypatch.setattr(_source, "STUCK", 0.1)
    with connect(url) as connection, connection.channel() as channel:
        arguments = {"x-single-active-consumer": True}
        channel.queue_declare("alone", durable=True, arguments=arguments)
        channel.basic_qos(1)
        with channel.consume("alone") as inbox:
            for number in range(3):
                channel.publish_confirmed(b"%d" % number, routing_key="alone").result(PATIENCE)
            inbox.get(10)
            stream = engine(queue="alone")
            stream.reader.prepareForTriggerAvailableNow()
            with pytest.raises(SourceUnavailable, match=r"have 2 messages and gave none for 0\.1 s"):
                stream.batch()


# ---- a broker that goes away --------------------------------------------------------------------------------------


def test_a_broker_that_comes_back(tmp_path: Path) -> None:
    """A broker that is killed and comes back is read on: nothing is lost, what comes twice is flagged."""
    with Broker(data=tmp_path / "data") as broker:
        url = broker.listen().url
        port = port_of(url)
        publish(url, "orders", *numbers(0, 5))
        stream = Engine(lambda: source_reader({"url": url, "queue": "orders", "spool": str(tmp_path / "spool")}))
        stream.run_until(5)
    assert not stream.batch(), "away"
    with Broker(data=tmp_path / "data") as broker:
        broker.listen(port=port)
        publish(url, "orders", *numbers(5, 5))
        stream.run_until(10)
        fresh = [row["body"] for row in stream.rows() if not row["redelivered"]]
        assert sorted(fresh, key=int) == numbers(0, 10)
        stream.reader.stop()


def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    """A broker that is killed while the stream reads, and started again, has lost nothing for the stream; messages
    whose acknowledgement died with it are there twice, the copies flagged."""
    with broker_process(tmp_path / "data") as (url, process):
        port = port_of(url)
        publish(url, "orders", *numbers(0, 200))
        options = {"url": url, "queue": "orders", "spool": str(tmp_path / "spool"), "maxMessagesPerBatch": "30"}
        stream = Engine(lambda: source_reader(options))
        stream.run_until(60)
        process.kill()
        process.wait()
        stream.batch()
    with broker_process(tmp_path / "data", port):
        publish(url, "orders", *numbers(200, 10))
        seen: set[bytes] = set()
        while len(seen) < 210:
            stream.run_until(len(stream.rows()) + 1)
            seen = set(bodies(stream.rows()))
        stream.reader.stop()
    assert seen == set(numbers(0, 210))
    fresh = Counter(row["body"] for row in stream.rows() if not row["redelivered"])
    assert max(fresh.values()) == 1


def test_a_broker_that_stays_away(tmp_path: Path) -> None:
    """After `reconnectSeconds` without a broker the query ends, and says for how long it has waited for what."""
    with Broker() as broker:
        url = broker.listen().url
        publish(url, "orders", b"1")
        options = {"url": url, "queue": "orders", "spool": str(tmp_path), "reconnectSeconds": "0"}
        stream = Engine(lambda: source_reader(options))
        stream.run_until(1)
    with pytest.raises(SourceUnavailable, match="cannot read orders and was away for 0 s"):
        stream.run_until(2)
    stream.reader.stop()


def test_what_is_spooled_needs_no_broker(tmp_path: Path) -> None:
    """A batch that was planned runs again while the broker is away."""
    with Broker() as broker:
        url = broker.listen().url
        publish(url, "orders", *numbers(0, 5))
        stream = Engine(lambda: source_reader({"url": url, "queue": "orders", "spool": str(tmp_path)}))
        while not stream.plan():
            pass
    stream.restart()
    assert bodies(stream.rows()) == numbers(0, len(stream.rows()))
    assert stream.rows()
    stream.reader.stop()


def test_no_broker(tmp_path: Path) -> None:
    """No broker at the start is an error at once."""
    stream = source_reader({"url": "amqp://127.0.0.1:1", "queue": "orders", "spool": str(tmp_path)})
    start = stream.initialOffset()
    with pytest.raises(SourceUnavailable, match=r"cannot read orders: .*127\.0\.0\.1:1"):
        stream.latestOffset(start, None)
    stream.stop()


# ---- schemas --------------------------------------------------------------------------------------------------------

ORDER = StructType().add("id", IntegerType()).add("item", StringType()).add("_message_id", StringType())


def test_some_columns(url: str, engine: Any) -> None:
    """A schema of some of the columns gives those, in its order."""
    publish(url, "orders", b"1")
    schema = StructType().add("message_id", StringType()).add("queue", StringType())
    assert engine(schema).run_until(1) == [{"message_id": "1", "queue": "orders"}]


def test_json_bodies(url: str, engine: Any) -> None:
    """JSON bodies become columns; what is missing is null, what is more is left out, the message's own stay at hand."""
    publish(url, "orders", b'{"id": 1,\n"item": "tea", "more": [1]}', message_id="a")
    publish(url, "orders", b'{"id": 2}', message_id="b")
    rows = engine(ORDER, bodies="json").run_until(2)
    assert rows == [
        {"id": 1, "item": "tea", "_message_id": "a"},
        {"id": 2, "item": None, "_message_id": "b"},
    ]


@pytest.mark.parametrize(
    "body", [b"no json", b'{"id": "x"}', b"", b'{"id": 1}{"id": 2}', b"[1]", b"null", b'{"id": 1}}\n{"body": {}']
)
def test_a_malformed_body(url: str, engine: Any, body: bytes) -> None:
    """A body that is not one such object ends the query with its number, or is read as nulls if asked for."""
    publish(url, "orders", b'{"id": 1}', body, b'{"id": 3}')
    stream = engine(ORDER, bodies="json")
    with pytest.raises(MalformedBody, match=r"message 1, of queue 'orders', .* malformed=null"):
        stream.run_until(3)
    lenient = engine(ORDER, bodies="json", malformed="null", spool=stream.reader._options.spool.as_posix() + "2")
    stream.reader.stop()
    publish(url, "orders", b'{"id": 1}', body, b'{"id": 3}')
    assert [row["id"] for row in lenient.run_until(3)] == [1, None, 3]


def test_bodies_do_not_make_up_for_each_other(url: str, engine: Any) -> None:
    """Two objects in one body and none in the next are two malformed bodies, not two rows."""
    publish(url, "orders", b'{"id": 1}{"id": 2}', b"", b'{"id": 3}')
    rows = engine(ORDER, bodies="json", malformed="null").run_until(3)
    assert [row["id"] for row in rows] == [None, None, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": None}, "the option queue is missing"),
        ({"queue": " , "}, "option queue=' , ': it names no queue"),
        ({"queue": "a,a:2"}, "a queue is named twice"),
        ({"url": "http://user:secret@x"}, r"option url=\.\.\.: .*not the address of a broker"),
        ({"spool": None}, r"where are messages to be .*option\(\"sourceId\", .*option\(\"spool\", "),
        ({"sourceId": "x" * 201}, "it has more than 200 bytes"),
        ({"spool": "relative"}, "the path must be absolute"),
        ({"spool": "hdfs://x/y"}, "hdfs: is not mounted"),
        ({"spool": "dbfs:/x/y"}, "dbfs: is not mounted"),
        ({"spool": "file://data/spool"}, "names the host 'data'; a directory on this machine is file:///PATH"),
        (
            {"spool": "s3://bucket/spool"},
            "or leave it out and give a sourceId: a broker of ours keeps the messages itself",
        ),
        ({"maxMessagesPerBatch": "0"}, "option maxMessagesPerBatch='0': it must be a whole number from 1 up"),
        ({"maxBytesPerBatch": "many"}, "option maxBytesPerBatch='many': it must be a whole number from 1 up"),
        ({"prefetch": "65536"}, "it must be a whole number from 1 to 65535"),
        ({"failOnDataLoss": "maybe"}, "it must be true or false"),
        ({"bodies": "xml"}, "it must be raw or json"),
        ({"reconnectSeconds": "-1"}, "seconds, 0 or more"),
        ({"reconnectSeconds": "soon"}, "option reconnectSeconds='soon': it must be seconds, 0 or more"),
        ({"que": "x"}, "there is no option que; there are url, queue"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, str | None], message: str) -> None:
    """A wrong option is told with its name, its value and what would be right, and never with a password."""
    given = {"url": "amqp://localhost", "queue": "orders", "spool": str(tmp_path)} | options
    with pytest.raises(BadOption, match=message) as caught:
        source_reader({name: value for name, value in given.items() if value is not None})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("begin", ["", "file:", "file://", "FILE://localhost"])
def test_a_spool_is_taken_literally(begin: str) -> None:
    """A path means the same as a URL and without, as in Spark: neither `%20` nor `#` nor `?` is more than a sign."""
    path = "/data/a b%20c/50%/#1?x=y:z"
    options = SourceOptions.parse({"url": "amqp://localhost", "queue": "orders", "spool": begin + path})
    assert options.spool == Path(path)


def test_wrong_schemas(tmp_path: Path) -> None:
    """A schema that cannot be filled is told before anything is read."""
    given = {"url": "amqp://localhost", "queue": "orders", "spool": str(tmp_path)}
    with pytest.raises(BadOption, match=r"has no column id, .* set the option bodies=json"):
        source_reader(given, StructType().add("id", IntegerType()))
    with pytest.raises(BadOption, match="column body is binary, not int"):
        source_reader(given, StructType().add("body", IntegerType()))
    with pytest.raises(BadOption, match="bodies=json needs a schema"):
        QueueDataSource({**given, "bodies": "json"}).schema()


def test_a_batch_read_only_looks(url: str) -> None:
    """A batch read has the first messages and leaves all of them on the queue."""
    publish(url, "orders", *numbers(0, 10))
    options = {"url": url, "queue": "orders", "partitions": "3", "maxMessagesPerBatch": "7"}
    for _ in range(2):
        reader = QueueDataSource(options).reader(QueueDataSource(options).schema())
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert bodies(rows) == numbers(0, 7)
        wait_for_depth(url, "orders", 10)


def test_a_batch_read_of_nothing(url: str) -> None:
    """An empty queue has no rows."""
    publish(url, "orders")
    options = {"url": url, "queue": "orders"}
    reader = QueueDataSource(options).reader(QueueDataSource(options).schema())
    assert [batch.num_rows for part in reader.partitions() for batch in reader.read(part)] in ([], [0])
