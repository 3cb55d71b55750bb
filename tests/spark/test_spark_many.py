"""Many jobs: a hundred cancelled while they run, a hundred thousand submitted, and a Spark that is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_support import PATIENCE, FakeSpark, dispatcher

from multiqueue.testing import wait_until_blocked

ROOT = Path(__file__).parents[2]
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
        pytest.param(10_000, marks=pytest.mark.slow(selected=True)),
        pytest.param(100_000, marks=pytest.mark.slow),
    ],
)
def test_memory_is_bounded_by_the_lanes_capacity(many: int) -> None:
    """Many jobs through a lane of a hundred hold no more memory at any time than some hundred jobs."""
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


KILLED = """
import os, signal, sys, threading, time
os.environ["PYSPARK_PYTHON"] = sys.executable
from concurrent.futures import wait
from pyspark.sql import SparkSession
from multiqueue.spark import Retry, SparkDispatcher, fan_in

spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.ui.showConsoleProgress", "false").getOrCreate())
java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
tracker = spark.sparkContext.statusTracker()

def long_job(spark):
    return spark.sparkContext.parallelize([1], 1).map(lambda row: time.sleep(600)).collect()

with SparkDispatcher(spark, 1) as dock:
    lane = dock.lane("a", retry=Retry(first_pause=0.0, when=lambda error: True))
    futures = [lane.submit(long_job) for _ in range(3)]
    while not tracker.getActiveJobsIds():
        time.sleep(0.05)
    os.kill(java, signal.SIGKILL)
    print(len(wait(futures, 60).not_done), [type(future.exception(0)).__name__ for future in futures])
    try:
        lane.submit(long_job)
    except Exception as error:
        print(type(error).__name__)
print([thread.name for thread in threading.enumerate() if thread.name.startswith(("SparkDispatcher", "cancel"))])
"""


@pytest.mark.spark
@pytest.mark.slow(selected=True)
def test_a_lost_spark_leaves_every_future_with_a_clear_end() -> None:
    """When the JVM is killed, items that run, wait or come end with `SparkSessionStopped`, and no thread is left."""
    run = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert run.stdout.splitlines()[-3:] == [
        "0 ['SparkSessionStopped', 'SparkSessionStopped', 'SparkSessionStopped']",
        "SparkSessionStopped",
        "[]",
    ], run.stderr[-3000:]


LEFT_OPEN = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from multiqueue.spark import fan_in

spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.ui.showConsoleProgress", "false").getOrCreate())
fan = fan_in({"a": spark.range(0, 10**6, 1, 100)}, capacity=10)
print(next(fan))
"""


@pytest.mark.spark
@pytest.mark.slow(selected=True)
def test_a_program_with_an_open_fan_in_exits() -> None:
    """A fan-in that nobody closed does not keep the program from its end, and nothing is said about it."""
    run = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert run.stdout.splitlines()[-1:] == ["('a', Row(id=0))"], run.stderr[-3000:]
    assert run.returncode == 0
    assert "Exception ignored" not in run.stderr
