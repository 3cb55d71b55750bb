"""Lanes with a rate, without Spark, by a clock that the test moves."""

from __future__ import annotations

import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Measured, Pace, rate_told
from pipeline_support import Pipeline, lane_of, make_tree, write_names

from multiqueue.pipeline import ConfigError, Item, parse_config


def begun(base: Path, **settings: Any) -> list[tuple[float, str, int]]:
    """When each item of the lane `slow`, and of another, began, and how many files it had."""
    make_tree(base, {"slow": 6, "quick": 6})
    found: list[tuple[float, str, int]] = []

    def work(spark: Any, item: Item, staged: Path) -> bool:
        found.append((pipeline.time(), item.lane, len(item.files)))
        return write_names(spark, item, staged)

    pipeline = Pipeline(base, [lane_of(base, "slow", **settings), lane_of(base, "quick")], work=work)
    start_s = pipeline.time()
    assert pipeline.run().total.done == len(found)
    return [(at_s - start_s, lane, files) for at_s, lane, files in found]


@pytest.mark.parametrize(
    ("settings", "per_s"),
    [
        ({"max_files_per_s": 0.5}, 0.5),
        ({"max_files_per_s": 0.5, "batch": 2}, 0.5),
        ({"max_bytes_per_s": 3.0}, 0.5),  # each file has six bytes
        ({"max_files_per_s": 0.5, "max_bytes_per_s": 100.0}, 0.5),
    ],
)
def test_a_lane_begins_no_faster_than_its_rate(tmp_path: Path, settings: dict[str, Any], per_s: float) -> None:
    """Items of a lane with a rate begin as it allows, and no later; those of another lane do not wait. (pipeline 29)"""
    found = begun(tmp_path, **settings)
    slow = [(at_s, files) for at_s, lane, files in found if lane == "slow"]
    before = 0
    for at_s, files in slow:
        assert before <= per_s * at_s + 0.001
        assert at_s <= before / per_s + 1.0  # items run one after another here
        before += files
    assert before == 6
    assert max(at_s for at_s, lane, _ in found if lane == "quick") < 1.5


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and the pauses of retries go by a clock that no administrator sets: hours forth or back change nothing.

    (pipeline 29)
    """

    def run(base: Path) -> list[tuple[float, str]]:
        make_tree(base, {"slow": 4})
        begun: list[tuple[float, str]] = []

        def work(spark: Any, item: Item, staged: Path) -> bool:
            begun.append((pipeline.time(), item.files[0].path))
            if item.attempt < 3 and item.files[0].path.endswith("1.txt"):
                raise RuntimeError("not yet")
            return write_names(spark, item, staged)

        pipeline = Pipeline(base, [lane_of(base, "slow", max_files_per_s=0.5)], work=work, wall=lambda: time.time())
        assert pipeline.run().total.done == 4
        return [(at_s - begun[0][0], path) for at_s, path in begun]

    steady = run(tmp_path / "steady")
    jumps = cycle([0.0, 5 * 3600.0, -5 * 3600.0])
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + next(jumps))
    assert run(tmp_path / "jumping") == steady


def test_items_are_no_larger_than_the_rate_allows(tmp_path: Path) -> None:
    """An item of a lane that sizes its items has no more files and bytes than its rate allows in `target_seconds`."""
    lane = lane_of(tmp_path, "a", target_s=10.0, max_files_per_s=2.0, max_bytes_per_s=1000.0)
    pace = Pace.of([Measured("a", 1, 1000, 1000, 0.1)])
    assert pace.files(lane, 1.0) == 20
    assert pace.files(lane, 2000.0) == 5


def test_what_a_rate_is_called(tmp_path: Path) -> None:
    """A plan says the rate in words, and one that is no rate is refused."""
    assert rate_told(lane_of(tmp_path, "a", max_files_per_s=2.0)) == "at most 2 files a second"
    lane = lane_of(tmp_path, "a", max_files_per_s=0.5, max_bytes_per_s=1000.0)
    assert rate_told(lane) == "at most 0.5 files and 1,000 bytes a second"
    assert rate_told(lane_of(tmp_path, "a")) is None
    settings = {"files": "*", "format": "text", "max_files_per_second": 0}
    with pytest.raises(ConfigError, match=r"lanes\.a\.max_files_per_second: .*more than 0"):
        parse_config({"lanes": {"a": settings}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)
