"""The suites `spark` and `pipeline` of the benchmarks do their work, with every rival."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from bench_parts_support import ItemsLost, Workload, _pipeline, _spark, run_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = 0.01


@pytest.fixture
def in_the_tests_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The suite's session is the tests' own and needs no warming up; what does not shrink with n is small."""
    monkeypatch.setattr(_spark, "WARM_UP", 1)
    monkeypatch.setattr(_spark, "PARTITIONS", 1)
    monkeypatch.setattr(_spark, "SMALL_JOBS", 1)
    for name in [name for name in vars(_pipeline) if name.endswith("_BYTES") and name != "_ROW_BYTES"]:
        monkeypatch.setattr(_pipeline, name, 2_000)
    monkeypatch.setattr(_pipeline, "_warm_up", lambda: None)
    _spark.session.cache_clear()
    yield
    _spark.session.cache_clear()


@pytest.mark.spark
@pytest.mark.parametrize(
    "workload",
    [
        # Of so many small files one number is enough for the short run.
        pytest.param(each, id=each.name, marks=pytest.mark.slow(selected=each.name not in ("files-600", "files-20000")))
        for each in (*_spark.SUITE.scaled(SMALL).workloads, *_pipeline.SUITE.scaled(SMALL / 10).workloads)
    ],
)
@pytest.mark.usefixtures("in_the_tests_session")
def test_every_rival_of_the_suite_does_the_work(workload: Workload) -> None:
    """Each rival does every job or reads every row, and has a figure for every metric."""
    result = run_workload(workload, rounds=1)
    assert [(failed.rival.name, failed.problem) for failed in result.failures] == []
    for rival in result.rivals:
        assert rival.status == "measured"
        assert set(rival.samples) == {metric.name for metric in workload.metrics}


@pytest.mark.spark
@pytest.mark.usefixtures("in_the_tests_session")
@pytest.mark.slow(selected=True)
def test_lost_work_is_found_out() -> None:
    """A rival that does not do every job or loses a row has no figure."""
    jobs = _spark.jobs(3, lambda spark, n: [0] * (n - 1))
    jobs.run()
    with pytest.raises(ItemsLost, match="2 jobs have their result, and 3 should be"):
        jobs.check()
    reading = _spark.reading(8, lambda frames: iter([7]))
    reading.run()
    with pytest.raises(ItemsLost, match="7 rows came, and 8 should be"):
        reading.check()


def test_the_suite_measures_what_is_promised() -> None:
    """The goals of the dispatcher and the fan-in."""
    assert {
        (workload.name, goal.metric, goal.at_least) for workload in _spark.SUITE.workloads for goal in workload.goals
    } == {
        ("jobs", "rate", 0.95),
        ("urgent", "wait", 1.0),
        ("tenants", "wait", 5.0),
        ("tenants", "total", 0.97),
        ("fan-in-rows", "rate", 0.9),
        ("fan-in-arrow", "rate", 0.9),
    }
