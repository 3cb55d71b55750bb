"""The dispatcher's example runs and prints what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.spark
def test_the_example_prints(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs on a session with nothing to find fault with."""
    runpy.run_path(str(EXAMPLES / "spark_dispatcher.py"))["main"](spark)
    assert capsys.readouterr().out == "[1, 2, 3]\nthe runaway job was cancelled in Spark\n"
