"""The executor's examples run and print what they say."""

from __future__ import annotations

import runpy

import pytest
from executor_support import ROOT


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("executor_lanes", "urgent, big 0, small 0, big 1, small 1, big 2, big 3, big 4\n"),
        ("executor_backpressure", "[0, 1, 4, 9, 16]\n14 of infinitely many inputs were read for 5 results\n"),
        (
            "executor_full_lane",
            "lane 'mail' is full: 2 of 2 jobs wait; raise its capacity, add workers or submit more slowly\n"
            "SECOND THIRD\n",
        ),
    ],
)
def test_the_example_prints(name: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example is a program that ends by itself."""
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out == printed
