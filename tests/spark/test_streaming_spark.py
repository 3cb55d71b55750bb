"""Source and sink in Spark itself: streams, batches, failing tasks, restarts from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import udf
from spark_streaming_support import depth, numbers, publish, wait_for_depth

from multiqueue.client import connect
from multiqueue.spark import register

pytestmark = [pytest.mark.spark, pytest.mark.slow(selected=True)]


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def run(frame: DataFrame, checkpoint: Path, sink: str, **options: str) -> list[Any]:
    """Run a query on what there is now, until it ends; returns its progress."""
    query = (
        frame.writeStream.format(sink)
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [each for each in query.recentProgress if each["numInputRows"]]


def sequence_of(offset: Any) -> int:
    """The number in an offset, as Spark's progress has it."""
    return int((json.loads(offset) if isinstance(offset, str) else offset)["sequence"])


def test_a_stream_to_files_goes_on_from_its_checkpoint(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """JSON orders of two queues become Parquet, in batches of bounded size, over two runs: each once."""
    orders = [json.dumps({"id": number, "at": "2026-01-02T03:04:05Z"}).encode() for number in range(60)]
    publish(url, "orders", *orders[:40])
    publish(url, "returns", *orders[40:50])
    frame = (
        spark.readStream.format("multiqueue")
        .options(url=url, queue="orders:0,returns:1", sourceId="s", bodies="json")
        .options(maxMessagesPerBatch=20, partitions=2)
        .schema("id INT, at TIMESTAMP, _queue STRING")
        .load()
    )
    progress = run(frame, tmp_path / "checkpoint", "parquet", path=str(tmp_path / "output"))
    assert [each["numInputRows"] for each in progress] == [20, 20, 10]
    sources = [each["sources"][0] for each in progress]
    assert [sequence_of(each["latestOffset"]) - sequence_of(each["endOffset"]) for each in sources] == [30, 10, 0], (
        "the lag"
    )
    publish(url, "orders", *orders[50:])
    run(frame, tmp_path / "checkpoint", "parquet", path=str(tmp_path / "output"))
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    assert sorted(row.id for row in rows) == list(range(60))
    assert {row.id for row in rows if row._queue == "returns"} == set(range(40, 50))
    assert {row.at.minute for row in rows} == {4}
    wait_for_depth(url, "orders", 0)


def test_a_sink_whose_task_fails(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """A batch of which one task failed is published by the next run: every row is there, and what is there twice has
    the same message id."""
    publish(url, "orders", *numbers(0, 40))
    publish(url, "out")
    mended = tmp_path / "mended"

    def compute(body: bytes) -> str:
        if body == b"39" and not mended.exists():
            raise ArithmeticError("a row that cannot be computed")
        return body.decode()

    # Spark would infer another kind of function from the hints of `compute`.
    computed = udf(lambda body: compute(body), "string")("body")
    source = {"url": url, "queue": "orders", "spool": str(tmp_path / "spool"), "partitions": "2"}
    frame = spark.readStream.format("multiqueue").options(**source).load().select(computed.alias("body"))
    sink = {"url": url, "routingKey": "out"}
    with pytest.raises(PySparkException, match="a row that cannot be computed"):
        run(frame, tmp_path / "checkpoint", "multiqueue", **sink)
    assert depth(url, "out") in (0, 20), "a task publishes all of its rows, or none"
    mended.touch()
    run(frame, tmp_path / "checkpoint", "multiqueue", **sink)
    found: dict[str, set[bytes]] = {}
    with connect(url) as connection, connection.channel() as channel:
        while (message := channel.basic_get("out", auto_ack=True)) is not None:
            found.setdefault(message.properties["message_id"], set()).add(message.body)
    assert sorted(found.values(), key=lambda each: int(min(each))) == [{body} for body in numbers(0, 40)]


def test_batches_look_and_write(spark: SparkSession, url: str) -> None:
    """A DataFrame is written to a queue; a batch read sees it there and leaves it there."""
    publish(url, "out")
    written = spark.createDataFrame([Row(body=f"{number}", type="test") for number in range(10)])
    written.write.format("multiqueue").options(url=url, routingKey="out", sinkId="s").mode("append").save()
    seen = spark.read.format("multiqueue").options(url=url, queue="out").load()
    assert sorted(int(row.body) for row in seen.collect()) == list(range(10))
    row = seen.filter("body = '0'").first()
    assert row is not None
    assert row.properties == {"delivery_mode": "2", "type": "test"}
    assert row.message_id.startswith("s-")
    wait_for_depth(url, "out", 10)


def test_wrong_use_is_told_by_spark(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """Spark's own exception carries our sentence: at `load` for options, at the start for a missing queue."""
    reader = spark.readStream.format("multiqueue").options(url=url, queue="nowhere", spool=str(tmp_path / "spool"))
    with pytest.raises(AnalysisException, match=r"there is no option quue; there are url, queue"):
        reader.option("quue", "x").load()
    good = spark.readStream.format("multiqueue").options(url=url, queue="nowhere", spool=str(tmp_path / "spool"))
    with pytest.raises(PySparkException, match="cannot read nowhere"):
        run(good.load(), tmp_path / "checkpoint", "noop")
