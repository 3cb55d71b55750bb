"""What the dispatcher and the fan-in promise on every kind of session, as checks that a program can run too.

python tests/spark/spark_contract.py local[2]            a classic session
python tests/spark/spark_contract.py sc://127.0.0.1:PORT  a Spark Connect server
python tests/spark/spark_contract.py remote:local[2]      a server of the program's own

prints a line of JSON for each check: its name, and its traceback if it failed. It needs `tests` on the path
(`PYTHONPATH=tests`) and no pytest, so that any installation of pyspark can be held to the contract.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from spark_parts_support import is_connect

from multiqueue.spark import (
    FanIn,
    FanInError,
    Progress,
    Retry,
    SparkDispatcher,
    SparkJobCancelled,
    SparkJobTimeout,
    check_environment,
    fan_in,
)
from multiqueue.testing import PATIENCE, wait_until_blocked

CHECKS: dict[str, Callable[[SparkSession], None]] = {}


def check(function: Callable[[SparkSession], None]) -> Callable[[SparkSession], None]:
    CHECKS[function.__name__] = function
    return function


@contextmanager
def docked(spark: SparkSession, max_running: int) -> Iterator[SparkDispatcher]:
    """A dispatcher that leaves no thread and no job."""
    with SparkDispatcher(spark, max_running) as dock:
        yield dock
    assert_idle(spark)


def assert_idle(spark: SparkSession) -> None:
    """No thread is left, and no job is active in Spark once it has seen that the last one has ended."""
    assert [one.name for one in threading.enumerate() if one.name.startswith(("SparkDispatcher", "cancel-"))] == []
    end = time.monotonic() + PATIENCE
    while busy(spark):
        assert time.monotonic() < end, "jobs are active that nobody waits for"
        time.sleep(0.05)


def busy(spark: SparkSession) -> bool:
    if is_connect(spark):
        return bool(spark.interruptAll())
    return bool(spark.sparkContext.statusTracker().getActiveJobsIds())


def endless(spark: SparkSession) -> Any:
    """A job of the JVM that ends by being cancelled only, on one core."""
    return spark.range(0, 10**15, 1, 1).selectExpr("sum(hash(id) % 7)").collect()


def count(spark: SparkSession, rows: int) -> int:
    return spark.range(rows).count()


def tags(spark: SparkSession) -> set[str]:
    return set(spark.getTags() if is_connect(spark) else spark.sparkContext.getJobTags())


@check
def nothing_is_found_wrong(spark: SparkSession) -> None:
    """A session as the guide makes it has nothing to find fault with."""
    assert check_environment(spark) == []


@check
def results_are_those_of_spark(spark: SparkSession) -> None:
    """Items run at the same time, and each has its own result; `map` in order, `as_completed` each once."""
    with docked(spark, 2) as dock:
        lane = dock.lane("counts", timeout=PATIENCE, start_within=PATIENCE)
        assert list(lane.map(count, range(4))) == [0, 1, 2, 3]
        assert sorted((args, future.result()) for args, future in lane.as_completed(count, range(3))) == [
            ((0,), 0),
            ((1,), 1),
            ((2,), 2),
        ]
        wait_until_blocked(lambda: lane.statistics().succeeded == 7)  # counted behind the results
        seen = lane.statistics()
        assert (seen.succeeded, seen.run.count, seen.wait.count, seen.running) == (7, 7, 7, seen.running)


@check
def marks_are_an_items_own(spark: SparkSession) -> None:
    """An item has a tag of its own, its lane's and its function's, and the submitter's; another item has its own."""
    with docked(spark, 1) as dock:
        lane = dock.lane("eu, west")
        own = lane.submit(tags).result(PATIENCE)
        add, clear = (
            (spark.addTag, spark.clearTags)
            if is_connect(spark)
            else (spark.sparkContext.addJobTag, spark.sparkContext.clearJobTags)
        )
        add("mine")
        try:
            inheriting = lane.submit(tags)
        finally:
            clear()
        labels = {"multiqueue-lane:eu; west", "multiqueue-function:tags"}
        assert own >= labels
        assert len(own) == 3
        assert own & inheriting.result(PATIENCE) == labels
        assert len(inheriting.result(PATIENCE)) == 4
        assert "mine" in inheriting.result(PATIENCE)
        assert not tags(spark)


@check
def a_cancelled_item_is_cancelled_in_spark(spark: SparkSession) -> None:
    """`cancel` of a running item ends its Spark job; another one goes on; a lane is cancelled as a whole."""
    with docked(spark, 2) as dock:
        one, other = dock.lane("one"), dock.lane("other")
        first, second = one.submit(endless), other.submit(endless)
        waiting = other.submit(endless)
        wait_until_blocked(lambda: first.running() and second.running())
        assert first.cancel()
        assert wait([first], PATIENCE).not_done == set()
        assert first.cancelled()
        assert not second.done()
        assert other.cancel() == 2 or waiting.running()
        assert wait([second, waiting], PATIENCE).not_done == set()
        assert second.cancelled()
        assert waiting.cancelled()
        assert one.submit(count, 3).result(PATIENCE) == 3


@check
def a_cancel_from_elsewhere_has_a_type_of_its_own(spark: SparkSession) -> None:
    """What somebody else cancels in Spark, by the tag of the lane, ends with `SparkJobCancelled`."""
    with docked(spark, 1) as dock:
        future = dock.lane("eu").submit(endless)
        while not future.done():
            if is_connect(spark):
                spark.interruptTag("multiqueue-lane:eu")
            else:
                spark.sparkContext.cancelJobsWithTag("multiqueue-lane:eu")
            wait([future], 0.1)
        assert isinstance(future.exception(), SparkJobCancelled)


@check
def a_cancel_of_all_jobs_is_one_from_elsewhere(spark: SparkSession) -> None:
    """PySpark's own Ctrl-C handler cancels all jobs: where this process has the JVM, on Spark Connect too."""
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    if context is None:  # the server is another process
        return
    with docked(spark, 1) as dock:
        future = dock.submit(endless)
        while not future.done():
            context.cancelAllJobs()
            wait([future], 0.1)
        assert isinstance(future.exception(), SparkJobCancelled), future.exception()


@check
def a_job_that_runs_too_long_is_cancelled_in_spark(spark: SparkSession) -> None:
    """After its timeout a job is cancelled in Spark, and its future says so, from Spark's own error."""
    with docked(spark, 1) as dock:
        error = dock.lane("eu", timeout=0.5).submit(endless).exception(PATIENCE)
        assert isinstance(error, SparkJobTimeout), error
        assert "CANCEL" in str(error.__cause__)


@check
def failures_are_pysparks_own(spark: SparkSession) -> None:
    """Analysis errors, and Python errors with the worker's traceback, arrive as they are, and are not tried again."""

    def divide(batches: Any) -> Any:
        for batch in batches:
            yield batch if batch.num_rows < 0 else 1 // 0

    with docked(spark, 1) as dock:
        lane = dock.lane("a", retry=Retry(first_pause=0.0))
        wrong = lane.submit(lambda session: session.sql("select nothing").collect())
        assert isinstance(wrong.exception(PATIENCE), AnalysisException)
        failing = lane.submit(lambda session: session.range(1).mapInArrow(divide, "id long").collect())
        error = failing.exception(PATIENCE)
        assert isinstance(error, PythonException)
        assert "ZeroDivisionError" in str(error)
        assert "in divide" in str(error)
        assert (wrong.attempts, failing.attempts) == (1, 1)


@check
def a_lost_worker_is_tried_again(spark: SparkSession) -> None:
    """A job whose Python workers die, however often Spark itself tries, runs again and has its result."""
    runs = itertools.count()

    def job(session: SparkSession) -> int:
        is_first = next(runs) == 0

        def die_at_first(batches: Any) -> Any:
            if is_first:
                os._exit(1)
            yield from batches

        return session.range(0, 3, 1, 1).mapInArrow(die_at_first, "id long").count()

    with docked(spark, 1) as dock:
        future = dock.lane("a", retry=Retry(first_pause=0.0)).submit(job)
        assert future.result(PATIENCE) == 3
        assert future.attempts == 2


@check
def progress_is_told(spark: SparkSession) -> None:
    """A job's tasks are counted while it runs, as seen by `watch`, and after its end."""
    with tempfile.TemporaryDirectory() as directory, docked(spark, 1) as dock:
        mark = os.path.join(directory, "seen")

        def paced(batches: Any) -> Any:
            """Two tasks end at once, the others when that was seen."""
            context, deadline = TaskContext.get(), time.monotonic() + PATIENCE
            while context.partitionId() > 1 and not os.path.exists(mark) and time.monotonic() < deadline:
                time.sleep(0.05)
            yield from batches

        future = dock.submit(lambda session: session.range(0, 8, 1, 8).mapInArrow(paced, "id long").collect())
        seen = []
        for progress in future.watch(every=0.05):
            seen.append(progress)
            if progress.tasks_done:
                Path(mark).touch()
        assert future.result(PATIENCE)
        assert any(0 < progress.tasks_done < 8 for progress in seen), seen
        assert isinstance(seen[0], Progress)
        # Spark counts a task some time after its end, and a Connect server's last word may come before that.
        deadline = time.monotonic() + PATIENCE
        while not is_connect(spark) and future.progress().tasks_done < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        last = future.progress()
        assert last.tasks == 8
        assert last.tasks_done == 8 or (is_connect(spark) and last.tasks_done >= 2)
        assert last.jobs >= 1


@check
def leaving_by_an_exception_ends_everything(spark: SparkSession) -> None:
    """Ctrl-C inside `with` cancels what waits and what runs: no thread and no job is left."""
    futures = []
    try:
        with docked(spark, 2) as dock:
            futures = [dock.submit(endless) for _ in range(4)]
            wait_until_blocked(lambda: futures[0].running() and futures[1].running())
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert [future.cancelled() for future in futures] == [True] * 4
    assert_idle(spark)


def sources(spark: SparkSession, rows: int = 100, parts: int = 4) -> dict[str, DataFrame]:
    return {name: spark.range(0, rows, 1, parts).selectExpr("id", f"'{name}' as name") for name in "abc"}


@check
def a_fan_in_gives_every_row_once(spark: SparkSession) -> None:
    """Rows of all sources come, each once, with its source's name and in its source's order; batches the same."""
    with fan_in(sources(spark), capacity=7) as fan:
        got = list(fan)
    assert Counter(name for name, _ in got) == {"a": 100, "b": 100, "c": 100}
    assert all(row.name == name for name, row in got)
    assert [row.id for name, row in got if name == "b"] == list(range(100))
    with fan_in(sources(spark), batches="arrow", capacity=1) as fan:
        ids = [value for name, batch in fan if name == "c" for value in batch.column("id").to_pylist()]
    assert sorted(ids) == list(range(100))


@check
def batches_are_decoded_as_they_were_written(spark: SparkSession) -> None:
    """With large types set, of which Python's own schema has fewer than Spark writes, the values are the rows'."""
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(name, "true")
    try:
        texts = [f"{number:03}" for number in range(5)]
        variant = "parse_json(concat('\"', text, '\"')) as variant"
        frame = spark.createDataFrame([(text,) for text in texts], "text string").selectExpr("text", variant)
        with fan_in({"a": frame}, batches="arrow") as fan:
            rows = [row for _, batch in fan for row in batch.to_pylist()]
    finally:
        spark.conf.unset(name)
    assert [row["text"] for row in rows] == texts
    assert [row["variant"]["value"][1:] for row in rows] == [text.encode() for text in texts]


@check
def a_fan_in_names_the_source_that_fails(spark: SparkSession) -> None:
    """A source's failure comes with its name, from PySpark's own error; the others can be read on."""
    frames: dict[str, DataFrame] = {"good": spark.range(10), "bad": spark.sql("select raise_error('oh no') as id")}
    open_fans: list[FanIn[str, Any]] = [fan_in(frames), fan_in(frames, batches="arrow")]
    for fan in open_fans:
        good, failures = 0, []
        while True:
            try:
                name, element = next(fan)
            except StopIteration:
                break
            except FanInError as error:
                failures.append(error)
            else:
                assert name == "good"
                good += getattr(element, "num_rows", 1)
        assert good == 10
        (failure,) = failures
        assert failure.name == "bad"
        assert "source 'bad' of the fan-in failed: SparkRuntimeException" in str(failure)
        assert "oh no" in str(failure.__cause__)


@check
def leaving_a_fan_in_early_cancels_its_jobs(spark: SparkSession) -> None:
    """A consumer that leaves after one row leaves no thread and no job."""
    with fan_in({name: spark.range(0, 10**6, 1, 100) for name in "ab"}, capacity=10) as fan:
        next(fan)
    assert_idle(spark)


def session(url: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("contract").config("spark.ui.enabled", "false")
    settings: dict[str, Any] = {"spark.scheduler.mode": "FAIR", "spark.log.level": "OFF"}
    if url.startswith("remote:"):
        return builder.remote(url.removeprefix("remote:")).getOrCreate()
    if url.startswith("sc:"):
        return SparkSession.builder.remote(url).getOrCreate()
    return builder.master(url).config(map=settings).config("spark.ui.showConsoleProgress", "false").getOrCreate()


def main(url: str, names: list[str]) -> None:
    spark = session(url)
    print(json.dumps({"pyspark": spark.version}), flush=True)
    for name in names or CHECKS:
        begun, problem = time.monotonic(), ""
        try:
            CHECKS[name](spark)
        except (Exception, CancelledError):  # noqa: BLE001 - told, and the next check runs
            problem = traceback.format_exc()
        print(json.dumps({"check": name, "problem": problem, "s": round(time.monotonic() - begun, 1)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(sys.argv[1], sys.argv[2:])
