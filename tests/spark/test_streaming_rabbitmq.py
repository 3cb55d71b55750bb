"""The source and the sink at RabbitMQ: the same promises, by the same code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructType
from rabbitmq_support import NoPeer, rabbitmq
from spark_streaming_support import Engine, bodies, do_without, numbers, publish, source_reader, wait_for_depth

from multiqueue.spark import QueueDataSource

pytestmark = pytest.mark.slow(selected=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with rabbitmq() as peer:
            yield peer.url
    except NoPeer as missing:
        do_without(str(missing))


def test_a_stream_over_a_restart(url: str, tmp_path: Path) -> None:
    """Messages are in the stream in order and off the queue; those that were not acknowledged are not lost."""
    publish(url, "orders", *numbers(0, 250))
    options = {"url": url, "queue": "orders", "spool": str(tmp_path), "maxMessagesPerBatch": "40", "prefetch": "25"}
    stream = Engine(lambda: source_reader(options))
    stream.reader.prepareForTriggerAvailableNow()
    assert bodies(stream.batch()) == numbers(0, 40)
    stream.plan()
    stream.restart()  # what was prefetched goes back, what was planned is read again
    assert bodies(stream.run_until(250)) == numbers(0, 250)
    stream.reader.stop()
    wait_for_depth(url, "orders", 0)


def test_rows_of_a_sink(url: str) -> None:
    """The sink's rows are on the queue, with their ids."""
    publish(url, "out")
    schema = StructType().add("body", StringType())
    writer = QueueDataSource({"url": url, "routingKey": "out", "sinkId": "s"}).writer(schema, False)
    assert writer.write(iter([Row(body=f"{number}") for number in range(1500)])).messages == 1500
    reader = QueueDataSource({"url": url, "queue": "out"}).reader(
        QueueDataSource({"url": url, "queue": "out"}).schema()
    )
    [part] = reader.partitions()
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["message_id"] for row in rows] == [f"s-0-{number}" for number in range(1500)]
    wait_for_depth(url, "out", 1500)
