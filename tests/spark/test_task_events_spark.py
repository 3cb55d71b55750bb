"""Tasks of a real Spark that fail, die, straggle and are orphaned: each value once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from multiqueue.broker import Broker
from multiqueue.spark import TaskEventsError, TaskSender, task_events

HERE = Path(__file__).parent
PROGRAM = HERE / "task_events_program.py"

pytestmark = pytest.mark.spark


@pytest.fixture
def url() -> Iterator[str]:
    before = set(threading.enumerate())
    with Broker() as broker, broker.listen() as server:
        yield server.url
    assert {thread for thread in threading.enumerate() if not thread.daemon} <= before


def sending_ids() -> Callable[[TaskSender, Iterator[Any]], None]:
    """Made here, because a function of a module goes to the workers by its name, and they do not have this module."""

    def send(task: TaskSender, rows: Iterator[Any]) -> None:
        for row in rows:
            task.send(row["id"])

    return send


def test_tasks_send_rows(spark: SparkSession, url: str) -> None:
    """Every value of every partition comes once, partitions without rows included."""
    frame = spark.range(0, 40, 1, 4).where("id < 20")
    with task_events(frame, sending_ids(), url) as events:
        seen = Counter((event.partition, event.value) for event in events)
    assert seen == Counter((number // 10, number) for number in range(20))
    assert events.statistics().finished_partitions == 4


def test_leaving_early_cancels_the_job(spark: SparkSession, url: str) -> None:
    """Leaving the block ends tasks that would send for ever, and Spark has no active job then (task-events 5)."""

    def send(task: TaskSender, rows: Iterator[Any]) -> None:
        while True:
            task.send("x" * 1000)

    with task_events(spark.range(2), send, url, commit="row", capacity=2) as events:
        next(events)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def test_an_executor_that_cannot_reach_the_broker(spark: SparkSession, url: str) -> None:
    """If executors can not dial the broker the job fails, and its error says what to do."""
    with pytest.raises(TaskEventsError, match=r"the job failed: .* pass it as task_url"):
        list(task_events(spark.range(2), sending_ids(), url, task_url="amqp://127.0.0.1:1"))


def run_program(master: str, *scenarios: str, directory: Path) -> dict[str, list[str]]:
    """What the program printed, by scenario, after it ended well."""
    environment = {**os.environ, "SPARK_WORKER_DIR": str(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), master, *scenarios],
        capture_output=True, text=True, timeout=280, env=environment, cwd=directory, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return {name: rest for name, *rest in map(str.split, ended.stdout.splitlines())}


ONCE, ONCE_OF_MORE = ["3000", "3000", "False"], ["3000", "3000", "True"]


@pytest.mark.slow(selected=True)
def test_a_cluster_where_everything_fails(tmp_path: Path, cluster: Any) -> None:
    """On a standalone cluster: failing tasks, a dead worker, speculation, and an executor that is killed and leaves a
    worker behind that sends to the end. Of all of these, duplicates were sent, and each value came once.
    """
    scenarios = ["failing:row", "dying:task", "straggling:row", "orphaned:task"]
    printed = run_program(cluster.url, *scenarios, directory=tmp_path)
    assert printed == dict.fromkeys(scenarios, ONCE_OF_MORE) | {"lost": ["broker", "True"]}


@pytest.mark.slow
@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]", "connect"])
def test_other_masters(tmp_path: Path, master: str, request: pytest.FixtureRequest) -> None:
    """On this machine's cores, on executors of their own and through Spark Connect: each value once."""
    scenarios = [f"{name}:{commit}" for name in ("plain", "failing", "dying") for commit in ("row", "task")]
    url = request.getfixturevalue("connect_url") if master == "connect" else master
    printed = run_program(url, *scenarios, directory=tmp_path)
    expected = {name: ONCE if name.startswith("plain") else ONCE_OF_MORE for name in scenarios}
    assert printed == expected | {"lost": ["broker", "True"]}
