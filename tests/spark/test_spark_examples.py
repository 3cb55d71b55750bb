"""The dispatcher's example runs and prints what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "guides" / "spark-dispatcher.md"


@pytest.mark.spark
def test_the_example_prints(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs on a session with nothing to find fault with."""
    runpy.run_path(str(EXAMPLES / "spark_dispatcher.py"))["main"](spark)
    assert capsys.readouterr().out == "[1, 2, 3]\nthe runaway job was cancelled in Spark\n"


@pytest.mark.spark
def test_the_guides_code_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's code runs on the functions that a reader would put in."""
    loaded: list[int] = []
    reader = {
        "report": lambda session, month: f"report of {month}",
        "load": lambda session, day: loaded.append(session.range(day).count()),
        "count": lambda session, table: session.range(table).count(),
        "days": range(3),
        "tables": range(2),
    }
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL))
    exec(compile(code, str(GUIDE), "exec"), reader)
    assert capsys.readouterr().out == "0\n1\nreport of 2026-11\n"
    assert sorted(loaded) == [0, 0, 1, 1, 2, 2]  # in turns, and by cost
    assert reader["problems"] == []


@pytest.mark.spark
def test_the_readmes_program_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """README.md's program for a Spark driver prints what the comment beside its print says."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (code,) = (block for block in found if "multiqueue.spark" in block)
    reader: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), reader)
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", code)
    assert reader["spark"] is spark
