"""The dispatcher on a real classic session."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_support import dispatcher

from multiqueue.spark import SparkJobCancelled
from multiqueue.testing import PATIENCE, wait_until_blocked

pytestmark = pytest.mark.spark


def long_job(spark: SparkSession) -> Any:
    """A Spark job in Python workers that ends by being cancelled only."""
    # A lambda goes to the workers as it is. A function of this module would go by its name, and they cannot import it:
    # the job would fail as soon as it gets a core.
    return spark.sparkContext.parallelize([1, 2], 2).map(lambda row: time.sleep(600)).collect()


def active_jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def wait_for_active_jobs(spark: SparkSession, count: int) -> None:
    wait_until_blocked(lambda: len(active_jobs(spark)) == count, PATIENCE)


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """The common session, once it shows no job of an earlier test: Spark tells of ends late, and tests count jobs."""
    wait_for_active_jobs(spark, 0)
    return spark


def marks(spark: SparkSession) -> dict[str, Any]:
    """What a thread carries that Spark jobs are told apart by."""
    context = spark.sparkContext
    names = ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool", "mine")
    tags = set(context.getJobTags())
    labels = {tag for tag in tags if ":" in tag}  # those of the lane and the function
    properties = {name: context.getLocalProperty(name) for name in names}
    return {"tags": tags - labels, "labels": labels} | properties


def test_items_return_what_spark_returns(spark: SparkSession) -> None:
    """Items run Spark jobs at the same time, and each gets its own result."""
    with dispatcher(spark, 2) as dock:
        lane = dock.lane("counts")
        assert list(lane.map(lambda session, n: session.range(n).count(), range(5))) == [0, 1, 2, 3, 4]


def query(session: SparkSession) -> Any:
    return session.range(10**12).selectExpr("sum(hash(id) % 7)").collect()


@pytest.mark.parametrize("job", [long_job, query])
def test_cancelling_a_running_item_cancels_its_spark_job(spark: SparkSession, job: Any) -> None:
    """`cancel` of a running future ends the Spark job, a query's too: none is active, and the future is cancelled.

    (spark 3)
    """
    with dispatcher(spark) as dock:
        future = dock.submit(job)
        wait_for_active_jobs(spark, 1)
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)
        wait_for_active_jobs(spark, 0)


def test_cancelling_one_item_leaves_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """Of two running items the cancelled one ends, the other one goes on, and returns what its job does."""
    go = tmp_path / "go"

    def wait_to_go(row: int) -> int:
        while not go.exists():
            time.sleep(0.01)
        return row

    with dispatcher(spark, 2) as dock:
        first = dock.submit(long_job)
        second = dock.submit(lambda session: session.sparkContext.parallelize([1, 2], 2).map(wait_to_go).collect())
        wait_for_active_jobs(spark, 2)
        first.cancel()
        with pytest.raises(CancelledError):
            first.result(PATIENCE)
        assert second.running()
        go.touch()
        assert second.result(PATIENCE) == [1, 2]


def test_cancelling_ends_a_loop_of_jobs(spark: SparkSession) -> None:
    """A function that runs one short job after the other is ended, though most asks find no active job."""

    def loop(session: SparkSession) -> None:
        while True:
            session.sparkContext.parallelize([1], 1).count()

    with dispatcher(spark) as dock:
        future = dock.submit(loop)
        wait_until_blocked(future.running)
        future.cancel()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)


def test_a_cancel_from_elsewhere_is_told_apart(spark: SparkSession) -> None:
    """A job that the application cancels in Spark ends with `SparkJobCancelled` from Spark's own error."""
    with dispatcher(spark) as dock:
        future = dock.submit(long_job)
        wait_for_active_jobs(spark, 1)
        spark.sparkContext.cancelAllJobs()
        error = future.exception(PATIENCE)
        assert isinstance(error, SparkJobCancelled)
        assert "SPARK_JOB_CANCELLED" in str(error.__cause__)


def test_an_exception_in_a_worker_arrives_with_its_cause(spark: SparkSession) -> None:
    """A failing job's future raises PySpark's own exception, which shows the worker's traceback."""

    def fail(session: SparkSession) -> Any:
        return session.sparkContext.parallelize([0], 1).map(lambda row: 1 // row).collect()

    with dispatcher(spark) as dock:
        error = dock.submit(fail).exception(PATIENCE)
    assert isinstance(error, PythonException)
    assert "ZeroDivisionError" in str(error)


def test_nothing_leaks_from_one_item_to_the_next(spark: SparkSession) -> None:
    """Tags, group, description, pool and local properties that one item has or sets are unknown to the next.

    (spark 2)
    """

    def litter(session: SparkSession) -> dict[str, Any]:
        session.sparkContext.addJobTag("litter")
        session.sparkContext.setLocalProperty("mine", "litter")
        session.sparkContext.setJobDescription("litter")
        return marks(session)

    with dispatcher(spark) as dock:
        littered = dock.lane("first", pool="p").submit(litter).result(PATIENCE)
        clean = dock.lane("second").submit(marks).result(PATIENCE)
    assert littered["spark.scheduler.pool"] == "p"
    assert "litter" in littered["tags"]
    assert len(clean["tags"]) == 1
    assert littered["tags"].isdisjoint(clean["tags"])
    assert clean["spark.jobGroup.id"] in clean["tags"]
    assert clean["spark.job.description"] == "second: marks"
    assert clean["labels"] == {"multiqueue-lane:second", "multiqueue-function:marks"}
    assert clean["spark.scheduler.pool"] is None
    assert clean["mine"] is None


def test_what_spark_keeps_per_jvm_thread_does_not_leak(spark: SparkSession) -> None:
    """An item in the JVM thread of an earlier one has neither its session tags nor its active session."""
    jvm: Any = spark.sparkContext._jvm
    sessions = SparkSession._get_j_spark_session_class(jvm)

    def seen() -> tuple[int, set[str], bool]:
        return jvm.Thread.currentThread().getId(), spark.getTags(), sessions.getActiveSession().isDefined()

    def litter(session: SparkSession) -> tuple[int, set[str], bool]:
        session.addTag("litter")
        sessions.setActiveSession(session._jsparkSession)
        return seen()

    with dispatcher(spark) as dock:
        littered = dock.submit(litter).result(PATIENCE)
        clean = dock.submit(lambda session: seen()).result(PATIENCE)
    assert littered[1:] == ({"litter"}, True)
    assert clean == (littered[0], set(), False)


def test_an_item_costs_few_calls_of_the_jvm(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit costs at most 5 calls, an item 6 more and no new connection: calls and connections are its price."""
    counts: Counter[str] = Counter()
    send = ClientServerConnection.send_command

    def counted(connection: Any, command: str) -> Any:
        thread = threading.current_thread().name[:4]
        if thread != "afte":  # it asks once a second, by a connection of its own: is the session stopped?
            counts[{"A": "connections", "m": "freed objects"}.get(command[0], thread)] += 1
        return send(connection, command)

    with dispatcher(spark) as dock:
        dock.submit(lambda session: None).result(PATIENCE)
        monkeypatch.setattr(ClientServerConnection, "send_command", counted)
        for _ in range(10):
            dock.submit(lambda session: None).result(PATIENCE)
    del counts["freed objects"]  # py4j's own thread frees them some time
    assert counts == {"Main": 50, "Spar": 60}


def test_the_submitters_context_is_inherited_and_left_alone(spark: SparkSession) -> None:
    """An item has the submitter's tags and properties of the moment of submit; the submitter's thread gets nothing.

    (spark 2)
    """
    context = spark.sparkContext
    with dispatcher(spark) as dock:
        context.addJobTag("mine")
        context.setLocalProperty("mine", "1")
        try:
            future = dock.submit(marks)
        finally:
            context.clearJobTags()
            context.setLocalProperty("mine", None)  # type: ignore[arg-type]
        inherited = future.result(PATIENCE)
        own = marks(spark)
    assert "mine" in inherited["tags"]
    assert len(inherited["tags"]) == 2
    assert inherited["mine"] == "1"
    assert own["tags"] == set()
    assert own["spark.jobGroup.id"] is None


def test_an_item_that_submits_does_not_lend_its_tag(spark: SparkSession) -> None:
    """An item submitted by an item has a tag of its own only: cancelling the first does not cancel the second."""
    with dispatcher(spark, 2) as dock:
        outer_tags, inner = dock.submit(lambda s: (marks(s)["tags"], dock.submit(marks))).result(PATIENCE)
        inner_tags = inner.result(PATIENCE)["tags"]
    assert len(inner_tags) == 1
    assert outer_tags.isdisjoint(inner_tags)


def test_leaving_by_an_exception_leaves_no_job_and_no_thread(spark: SparkSession) -> None:
    """After an exception in the block no Spark job is active and no thread is left (spark 6)."""
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), dispatcher(spark, 2) as dock:  # noqa: PT012 - the block is what is left
        futures = [dock.submit(long_job) for _ in range(4)]
        wait_for_active_jobs(spark, 2)
        raise ZeroDivisionError
    assert [future.cancelled() or future.exception() for future in futures] == [True] * 4
    assert set(threading.enumerate()) <= before
    wait_for_active_jobs(spark, 0)


def test_many_items_leave_no_jvm_threads(spark: SparkSession) -> None:
    """A fresh thread per item does not pile up threads in Spark's JVM."""
    threads = spark.sparkContext._jvm.Thread.activeCount  # type: ignore[union-attr]
    with dispatcher(spark, 4) as dock:
        list(dock.lane("warm").map(lambda session, n: n, range(20)))
        before = threads()
        list(dock.lane("many").map(lambda session, n: n, range(200)))
        wait_until_blocked(lambda: threads() <= before + 4, PATIENCE)


def test_progress_ends_at_one_though_spark_skips_stages(spark: SparkSession) -> None:
    """A query whose later jobs skip what the earlier made ends with all its tasks done, and its share never falls.

    (spark 12)
    """

    def join(session: SparkSession) -> int:
        left = session.range(0, 1000, 1, 4).groupBy((F.col("id") % 10).alias("k")).count()
        right = session.range(0, 100, 1, 3).selectExpr("id % 10 as k", "id as n").groupBy("k").sum("n")
        return len(left.join(right.hint("merge"), "k").orderBy("k").collect())

    with dispatcher(spark) as dock:
        future = dock.submit(join)
        shares = [progress.share for progress in future.watch(every=0.01)]
        assert future.result(PATIENCE) == 10
        wait_until_blocked(lambda: not active_jobs(spark), PATIENCE)
        last = future.progress()
        assert shares == sorted(shares)
        assert last.share == shares[-1] == 1.0
        assert last.jobs > 1
        assert last.tasks == last.tasks_done >= 7
        assert last.stages == last.stages_done >= 3


def test_progress_and_cancel_find_jobs_of_another_group_or_tag(spark: SparkSession) -> None:
    """A function may set a job group of its own, or clear its job tags: it is seen and cancelled all the same."""

    def in_a_group(session: SparkSession) -> None:
        session.sparkContext.setJobGroup("mine", "of my own")
        long_job(session)

    def without_tags(session: SparkSession) -> None:
        session.sparkContext.clearJobTags()
        long_job(session)

    with dispatcher(spark) as dock:
        for function in (in_a_group, without_tags):
            future = dock.submit(function)
            wait_for_active_jobs(spark, 1)
            wait_until_blocked(lambda job=future: job.progress().tasks == 2)  # Spark begins a stage after its job
            future.cancel()
            with pytest.raises(CancelledError):
                future.result(PATIENCE)
            wait_for_active_jobs(spark, 0)
