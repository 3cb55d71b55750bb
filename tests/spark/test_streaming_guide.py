"""The guide's code runs, and the example prints what it says."""

from __future__ import annotations

import re
import runpy
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_streaming_support import bodies, numbers, publish

from multiqueue.broker import Broker
from multiqueue.client import connect

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow(selected=True)]


def test_the_example_prints(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The example stores each order once and answers each."""
    runpy.run_path(str(ROOT / "examples" / "spark_streaming.py"))["main"](spark)
    assert capsys.readouterr().out.splitlines() == ["200 orders for 900", "200 answers, 200 ids"]


def test_the_guides_code_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's code runs, its recipes too: a double of a message is in the output once, and acted on once."""
    path = ROOT / "docs" / "guides" / "spark-streaming.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL))
    with Broker() as broker:
        url = broker.listen().url
        for queue in ("orders", "answers", "kitchen"):
            publish(url, queue)
        publish(url, "orders", *numbers(0, 5), *numbers(3, 5))
        reader: dict[str, Any] = {"spark": spark, "url": url, "base": tmp_path.as_posix()}
        reader["known"] = lambda: spark.createDataFrame([("1",)], "message_id STRING")
        exec(compile(code, str(path), "exec"), reader)
        assert "kitchen" in capsys.readouterr().out
        stored = spark.read.parquet(f"{tmp_path}/orders")
        assert stored.count() == 10
        reader["upsert"](stored, 0)
        upserted = spark.read.parquet(f"{tmp_path}/by-key").collect()
        assert sorted(row.message_id for row in upserted) == ["0", "2", "3", "4", "5", "6", "7"]
        assert "_message_id" in reader["typed"].columns
        assert reader["once"].isStreaming
        assert reader["returned"] == 0, "all of it is in the output"
        publish(url, "answers", b"a", b"a", b"b")
        _act_on_all(url, reader["act_once"])


def _act_on_all(url: str, act_once: Any) -> None:
    database = sqlite3.connect(":memory:")
    database.executescript("CREATE TABLE seen (id PRIMARY KEY); CREATE TABLE done (body)")
    with connect(url) as connection, connection.channel() as channel:
        while (message := channel.basic_get("answers")) is not None:
            act_once(message, database)
    assert bodies([{"body": row[0]} for row in database.execute("SELECT body FROM done ORDER BY body")]) == [b"a", b"b"]
    database.close()
