"""The sink as Spark calls it, without a JVM: what is published, under which ids, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.types import DataType, IntegerType, MapType, StringType, StructType, TimestampType
from spark_parts_support import _sink
from spark_streaming_support import publish

from multiqueue.broker import Broker
from multiqueue.client import Message, connect
from multiqueue.spark import BadOption, PublishFailed, QueueDataSource, StreamingError

BODY = StructType().add("body", StringType())


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def url(broker: Broker) -> str:
    url: str = broker.listen().url
    publish(url, "out")
    return url


class Task:
    """What a task knows of itself."""

    def __init__(self, partition: int = 0, **properties: str) -> None:
        self._partition, self._properties = partition, properties

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get({"sql.streaming.queryId": "query", "streaming.sql.batchId": "batch"}[name])


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let what follows run as a task."""
    return lambda task: monkeypatch.setattr(TaskContext, "get", lambda: task)


def sink(url: str, schema: StructType = BODY, *, streams: bool = False, **options: str) -> Any:
    source = QueueDataSource({"url": url, "routingKey": "out", **options})
    return source.streamWriter(schema, False) if streams else source.writer(schema, False)


def rows(*texts: str) -> Iterator[Row]:
    return iter([Row(body=text) for text in texts])


def messages(url: str) -> list[Message]:
    """What is on the queue `out`, taken off it."""
    with connect(url) as connection, connection.channel() as channel:
        found = []
        while (message := channel.basic_get("out", auto_ack=True)) is not None:
            found.append(message)
        return found


def test_rows_become_persistent_messages_in_order(url: str) -> None:
    """A partition's rows are on the queue in their order when the task is done, persistent, each with an id.

    (streaming sink 1)
    """
    writer = sink(url, sinkId="s")
    assert writer.write(rows("a", "b", "ü")).messages == 3
    found = messages(url)
    assert [message.body.decode() for message in found] == ["a", "b", "ü"]
    assert [message.properties for message in found] == [
        {"message_id": f"s-0-{number}", "delivery_mode": 2} for number in range(3)
    ]


def test_columns_become_properties(url: str) -> None:
    """Columns other than the body are the message's address and properties; what is null is left out."""
    types: dict[str, DataType] = {
        "body": StringType(),
        "routing_key": StringType(),
        "headers": MapType(StringType(), StringType()),
        "timestamp": TimestampType(),
        "priority": IntegerType(),
        "message_id": StringType(),
        "type": StringType(),
    }
    schema = StructType()
    for name, type in types.items():
        schema = schema.add(name, type)
    now = datetime.fromtimestamp(1_700_000_000, UTC)
    values = ("x", "out", {"a": "1"}, now, 5, "mine", None)
    writer = sink(url, schema, persistent="false", routingKey="elsewhere")
    writer.write(iter([Row(*types)(*values)]))
    [message] = messages(url)
    assert message.properties == {
        "headers": {"a": "1"},
        "timestamp": 1_700_000_000,
        "priority": 5,
        "message_id": "mine",
    }


def test_a_retry_gives_the_same_ids(url: str, run_as: Any) -> None:
    """A batch that runs again, in a retried task or after a restart, publishes the same ids; other batches others.

    (streaming sink 3)
    """
    for batch, partition in ((7, 0), (7, 1), (7, 1), (8, 1)):
        run_as(Task(partition, query="q", batch=str(batch)))
        sink(url, streams=True).write(rows("a", "b"))
    ids = [message.properties["message_id"] for message in messages(url)]
    assert ids == ["q-7-0-0", "q-7-0-1", "q-7-1-0", "q-7-1-1", "q-7-1-0", "q-7-1-1", "q-8-1-0", "q-8-1-1"]
    run_as(Task(0, query="q", batch="9"))
    sink(url, streams=True, sinkId="mine").write(rows("a"))
    assert messages(url)[0].properties["message_id"] == "mine-9-0-0"


def test_without_the_batchs_number_there_is_no_stream(url: str, run_as: Any) -> None:
    """A Spark that does not tell its tasks the batch is refused, instead of giving ids that a retry cannot give."""
    run_as(Task(0))
    with pytest.raises(StreamingError, match="does not tell its tasks their query and batch"):
        sink(url, streams=True).write(rows("a"))


def test_a_batch_writes_ids_are_its_own(url: str, run_as: Any) -> None:
    """Tasks of one batch write share its token, which another write does not have."""
    first = sink(url)
    for writer in (first, first, sink(url)):
        run_as(Task(2))
        writer.write(rows("a"))
    one, again, other = [message.properties["message_id"] for message in messages(url)]
    assert one == again != other
    assert one.endswith("-2-0")


def test_a_task_that_fails_publishes_nothing(url: str) -> None:
    """Rows are published when all of them are there (streaming sink 2)."""

    def failing() -> Iterator[Row]:
        yield Row(body="a")
        raise ArithmeticError("the query's own")

    with pytest.raises(ArithmeticError, match="the query's own"):
        sink(url).write(failing())
    assert messages(url) == []


def test_an_empty_partition_connects_to_nothing() -> None:
    """Without rows no broker is needed."""
    assert sink("amqp://127.0.0.1:1").write(rows()).messages == 0


def test_a_message_without_a_queue(url: str) -> None:
    """What no queue takes fails the task with where it was to go; where that is allowed it is dropped.

    (streaming sink 1)
    """
    with pytest.raises(PublishFailed, match=r"2 of 2 messages have no queue to go to, .* routing key 'nowhere'"):
        sink(url, routingKey="nowhere").write(rows("a", "b"))
    assert sink(url, routingKey="nowhere", mandatory="false").write(rows("a")).messages == 1


def test_an_exchange_that_is_not_there(url: str) -> None:
    """What the broker refuses is not tried again."""
    with pytest.raises(PublishFailed, match=r"the broker refused the messages: .*nothing"):
        sink(url, exchange="nothing", publishSeconds="60").write(rows("a"))


def test_a_broker_that_is_away() -> None:
    """Without a broker for `publishSeconds` the task fails and says how long it has waited."""
    with pytest.raises(PublishFailed, match="1 messages were not all confirmed within 0 s"):
        sink("amqp://127.0.0.1:1", publishSeconds="0").write(rows("a"))


def test_a_lost_connection_is_made_again(broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is lost in the middle is made anew, and everything is published again under the same ids.

    (streaming sink 4)
    """
    cut = threading.Event()
    server = broker.listen()
    original = _sink.pickle.load  # type: ignore[attr-defined]

    def load(stage: Any) -> Any:
        if not cut.is_set():
            cut.set()
            server.close()
            broker.listen(port=server.port)
        return original(stage)

    monkeypatch.setattr(_sink, "RETRY", 0.01)
    monkeypatch.setattr(_sink.pickle, "load", load)  # type: ignore[attr-defined]
    assert sink(server.url, sinkId="s").write(rows("a", "b")).messages == 2
    assert cut.is_set()
    assert {message.properties["message_id"] for message in messages(url)} == {"s-0-0", "s-0-1"}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("value", {}, "no place for column value; .*to_json"),
        ("routing_key", {}, "there is no column body"),
        ("body", {"routingKey": None}, "no destination"),
        ("body", {"spool": "/x"}, "there is no option spool; there are url, exchange"),
        ("body", {"url": None}, "the option url is missing"),
        ("body", {"mandatory": "1"}, "option mandatory='1': it must be true or false"),
    ],
)
def test_wrong_use(columns: str, options: dict[str, str | None], message: str) -> None:
    """Wrong options and columns are told before anything is written."""
    schema = StructType().add(columns, StringType())
    given = {"url": "amqp://localhost", "routingKey": "out"} | options
    source = QueueDataSource({name: value for name, value in given.items() if value is not None})
    with pytest.raises(BadOption, match=message):
        source.writer(schema, False)


def test_sparks_own_options_are_let_through() -> None:
    """What Spark adds to a sink's options is not taken for a mistake."""
    sink("amqp://localhost", streams=True, checkpointLocation="/c", path="/p", queryName="q")


def test_wrong_types_and_modes(url: str) -> None:
    """Columns of a wrong type, rows without a body or with what fits no message, and overwriting are refused."""
    with pytest.raises(BadOption, match="column body must be binary or string, not int"):
        sink(url, StructType().add("body", IntegerType()))
    with pytest.raises(BadOption, match="cannot be overwritten"):
        QueueDataSource({"url": url, "routingKey": "out"}).writer(BODY, True)
    with pytest.raises(BadOption, match="has no body"):
        sink(url).write(iter([Row(body=None)]))
    schema = StructType().add("body", StringType()).add("priority", IntegerType())
    with pytest.raises(BadOption, match=r"the row of message id s-0-1 fits no message: .*300 does not fit"):
        sink(url, schema, sinkId="s").write(iter([Row(body="a", priority=5), Row(body="b", priority=300)]))
