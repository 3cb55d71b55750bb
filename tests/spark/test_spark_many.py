"""Many jobs: a hundred cancelled while they run, and a hundred thousand submitted."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import wait
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_support import FakeSpark, dispatcher

from multiqueue.testing import PATIENCE, wait_until_blocked

CAPACITY = 100


def endless(spark: SparkSession) -> Any:
    return spark.sparkContext.range(0, 1 << 60, numSlices=1)._jrdd.rdd().count()


@pytest.mark.spark
@pytest.mark.slow(selected=True)
def test_a_hundred_running_jobs_are_cancelled(spark: SparkSession) -> None:
    """After a hundred running jobs are cancelled, none is in the status tracker and no thread is left."""
    tracker = spark.sparkContext.statusTracker()
    before = set(threading.enumerate())
    with dispatcher(spark, 100) as dock:
        futures = [dock.submit(endless) for _ in range(100)]
        wait_until_blocked(lambda: len(tracker.getActiveJobsIds()) == 100, PATIENCE)
        assert dock.cancel() == 100
        assert wait(futures, PATIENCE).not_done == set()
        assert all(future.cancelled() for future in futures)
        wait_until_blocked(lambda: not tracker.getActiveJobsIds(), PATIENCE)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    "many",
    [
        pytest.param(3_000, marks=pytest.mark.slow(selected=True)),
        pytest.param(100_000, marks=pytest.mark.slow),
    ],
)
def test_memory_is_bounded_by_the_lanes_capacity(many: int) -> None:
    """Many jobs through a lane of a hundred hold no more memory at any time than some hundred jobs (spark 10)."""
    held: list[int] = []

    def job(session: FakeSpark, number: int) -> None:
        if number % (many // 10) == 0:
            held.append(tracemalloc.get_traced_memory()[0])

    class Quiet(FakeSpark):
        def enter(self, marks: Any) -> None:
            self.local.tag = marks.tag

    with dispatcher(Quiet(), 4) as dock:
        lane = dock.lane("many", capacity=CAPACITY, timeout=3600.0, start_within=3600.0)
        tracemalloc.start()
        try:
            for number in range(many):
                lane.submit(job, number)
        finally:
            dock.shutdown()
            tracemalloc.stop()
        assert dock.statistics().lanes[0].succeeded == many
    assert len(held) == 10
    # Bytes: about 3 KiB a job, and as many alarms that are off as jobs.
    assert max(held) - held[0] < 10 * 1024 * (CAPACITY + 100)
