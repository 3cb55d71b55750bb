"""The guide says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench_parts_support import _core

from multiqueue.bench.cli import bench

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = (DOCS / "guides/benchmarks.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference/benchmarks.md").read_text(encoding="utf-8")


def test_the_example_of_the_reference_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader who copies the workload from the reference gets a ratio."""
    (code,) = re.findall(r"```python\n(.*?)```", REFERENCE, re.DOTALL)
    exec(compile(code, "benchmarks.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0


def test_each_workload_and_option_is_explained() -> None:
    """A workload that the reference does not mention, or an option that the guide does not, is not finished."""
    names = [workload.name for workload in _core.SUITE.workloads if not workload.name.endswith("-100")]
    options = [option for parameter in bench.commands["core"].params for option in parameter.opts]
    assert [name for name in names if f"`{name}`" not in REFERENCE] == []
    assert [option for option in options if option not in GUIDE] == []
