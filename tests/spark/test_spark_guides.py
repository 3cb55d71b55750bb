"""The guides' code runs, and the examples print what they say."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from multiqueue.spark import FanInError

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def run_guide(name: str, reader: dict[str, Any]) -> dict[str, Any]:
    """Run a guide's code on what a reader would put in."""
    path = ROOT / "docs" / "guides" / name
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL))
    exec(compile(code, str(path), "exec"), reader)
    return reader


@pytest.mark.slow(selected=True)
def test_a_lane_is_faster_than_a_pool(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The example shows the urgent job as the last in a thread pool, and near the front in a lane."""
    runpy.run_path(str(ROOT / "examples" / "spark_fair_pools.py"))["main"](spark)
    numbers = [int(number) for number in re.findall(r"after (\d+)", capsys.readouterr().out)]
    assert numbers[0] == 12
    assert numbers[1] <= 6  # two run when it comes; a busy machine may begin some more


def test_the_fan_in_example_prints(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The example reads all rows, leaves early, and sums up batches."""
    runpy.run_path(str(ROOT / "examples" / "spark_fan_in.py"))["main"](spark)
    assert capsys.readouterr().out.splitlines() == [
        "rows: {'eu': 20000, 'us': 10000}",
        "the first of price 99 was enough: the jobs are cancelled, 0 rows wait",
        "sum of all prices: 1485000",
    ]


def test_the_guide_to_pools_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The code of "why your FAIR pool starves" runs."""
    reader = {
        "spark": spark,
        "builder": SparkSession.builder,
        "days": range(3),
        "load": lambda session, day: session.range(day).count(),
        "report": lambda session, month: f"report of {month}",
    }
    run_guide("spark-fair-pools.md", reader)
    assert capsys.readouterr().out == "report of 2026-11\n"


def test_the_guide_to_the_fan_in_runs(spark: SparkSession) -> None:
    """The code of "fan-in without collect()" runs."""
    frame = spark.range(0, 100, 1, 4).selectExpr("id as price")
    reader = {
        "orders_eu": frame,
        "orders_us": frame,
        "orders_broken": spark.sql("select raise_error('oh no') as price"),
        "totals": Counter(),
        "written": Counter(),
        "failed": [],
        "FanInError": FanInError,
    }
    run_guide("spark-fan-in.md", reader)
    assert reader["totals"] == {"eu": 4950, "us": 4950}
    assert reader["written"] == {"eu": 100, "us": 100}
    assert reader["failed"] == ["broken"]
