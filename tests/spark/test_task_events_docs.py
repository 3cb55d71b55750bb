"""The guide's code runs, and the example prints what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def test_the_example_prints(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The example finds the twenty orders, the first of them before the job ends."""
    runpy.run_path(str(ROOT / "examples" / "spark_task_events.py"))["main"](spark)
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"order \d+000 has no price; the job has not ended: True|order 0 has .*: True", first)
    assert rest == ["20 orders without a price in 8 of 8 days", "rows looked at: 20000"]


def test_the_guides_code_runs(spark: SparkSession) -> None:
    """The guide's code runs on a reader's orders."""
    path = ROOT / "docs" / "guides" / "spark-task-events.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL))
    orders = spark.range(0, 400, 1, 4).selectExpr("id", "id % 101 - 1 as price")
    reader: dict[str, Any] = {"orders": orders, "suspicious": [], "shown": []}
    exec(compile(code, str(path), "exec"), reader)
    assert sorted(reader["suspicious"]) == [0, 101, 202, 303]
    assert reader["first"].value["price"] == -1
