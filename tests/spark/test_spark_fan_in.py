"""The fan-in: order, fairness, back-pressure, failures and ends. Without Spark, but for the last part."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from spark_parts_support import Budget, _dispatcher, _fan_in, _reading
from spark_support import FakeSpark

from multiqueue.spark import (
    FanIn,
    FanInError,
    Retry,
    SparkDispatcher,
    SparkSessionStopped,
    check_environment,
    fan_in,
    register,
    task_events,
)
from multiqueue.testing import PATIENCE, wait_until_blocked


class Source:
    """A DataFrame of numbers, that notes how far it was read."""

    isStreaming = False

    def __init__(self, spark: FakeSpark, rows: int = 10, fails_at: int | None = None) -> None:
        self.sparkSession = spark
        self.read = 0
        self.was_closed = threading.Event()
        self._rows, self._fails_at = rows, fails_at

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[int]:
        try:
            for row in range(self._rows):
                if row == self._fails_at:
                    raise ValueError(f"row {row}")
                self.read += 1
                yield row
        finally:
            self.was_closed.set()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    """A Spark that needs no Java; afterwards no thread of ours is left."""
    monkeypatch.setattr(_dispatcher, "backend_of", lambda session: session)
    monkeypatch.setattr(_fan_in, "_budget", lambda session, max_bytes: Budget(max_bytes or 100, 100, 2))
    monkeypatch.setitem(_fan_in.READ, "rows", lambda frame, pace: frame.toLocalIterator())
    before = set(threading.enumerate())
    yield FakeSpark()
    assert set(threading.enumerate()) <= before


def fan_of(frames: dict[str, Source], **settings: Any) -> FanIn[str, Any]:
    return fan_in(cast(Any, frames), **settings)


def test_every_row_comes_once_with_its_sources_name(fake: FakeSpark) -> None:
    """All rows of all sources are handed out, those of a source in its order, and then the iteration ends.

    (fan-in 1)
    """
    fan = fan_of({"a": Source(fake, 30), "b": Source(fake, 5)}, capacity=2)
    got = list(fan)
    assert [row for name, row in got if name == "a"] == list(range(30))
    assert [row for name, row in got if name == "b"] == list(range(5))
    assert list(fan) == []


def test_sources_take_turns(fake: FakeSpark) -> None:
    """Of sources that all have rows, none is served twice before the others (fan-in 2)."""
    sources = {name: Source(fake, 4) for name in "abc"}
    with fan_of(sources, capacity=4) as fan:
        wait_until_blocked(lambda: all(source.was_closed.is_set() for source in sources.values()))
        names = [name for name, _ in fan]
    assert [set(names[at : at + 3]) for at in range(0, 12, 3)] == [set("abc")] * 4


def test_a_lower_number_goes_first(fake: FakeSpark) -> None:
    """While a source of a lower number has something, the others wait (fan-in 2)."""
    sources = {"late": Source(fake, 3), "first": Source(fake, 3)}
    with fan_of(sources, priorities={"first": -1}) as fan:
        wait_until_blocked(lambda: all(source.was_closed.is_set() for source in sources.values()))
        assert [name for name, _ in fan] == ["first"] * 3 + ["late"] * 3


def test_a_consumer_that_stops_makes_the_readers_stop(fake: FakeSpark) -> None:
    """A source is read no further than its capacity and the one row that waits for room (fan-in 3)."""
    sources = {name: Source(fake, 1000) for name in "ab"}
    with fan_of(sources, capacity=5) as fan:
        wait_until_blocked(lambda: all(sub.waiting_putters for sub in fan.statistics().subqueues))
        assert [source.read for source in sources.values()] == [6, 6]
        next(fan)
        wait_until_blocked(lambda: sum(source.read for source in sources.values()) == 13)
    assert all(source.was_closed.is_set() for source in sources.values())


def test_a_failure_comes_after_what_came_before_it(fake: FakeSpark) -> None:
    """A source that fails gives its rows, then `FanInError` with its name and cause; the others can be read on.

    (fan-in 4)
    """
    fan = fan_of({"bad": Source(fake, 9, fails_at=3), "good": Source(fake, 20)}, capacity=2)
    got: list[Any] = []
    with pytest.raises(FanInError, match=r"source 'bad' of the fan-in failed: ValueError: row 3") as caught:
        got.extend(fan)  # what was handed out before is kept
    assert caught.value.name == "bad"
    assert isinstance(caught.value.__cause__, ValueError)
    got_bad = [row for name, row in got if name == "bad"]
    rest = list(fan)
    assert got_bad == [0, 1, 2]
    assert [row for name, row in got + rest if name == "good"] == list(range(20))


def test_leaving_early_cancels_the_jobs(fake: FakeSpark) -> None:
    """Leaving `with` ends sources that wait for room, that run a Spark job, and that have not begun (fan-in 5)."""
    blocked = Source(fake, 1000)
    computing = SimpleNamespace(isStreaming=False, sparkSession=fake, toLocalIterator=lambda **_: iter(fake.job, 0))
    waiting = Source(fake)
    sources: dict[str, Any] = {"blocked": blocked, "computing": computing, "waiting": waiting}
    with fan_of(sources, capacity=1, max_running=2) as fan:
        fake.wait_until_active()
        next(fan)
    fan.close()
    assert blocked.was_closed.is_set()
    assert waiting.read == 0
    assert list(fan) == []


def test_an_exception_in_the_block_is_raised(fake: FakeSpark) -> None:
    """The block's own exception comes through, and nothing is left behind."""
    source = Source(fake, 1000)
    with pytest.raises(ZeroDivisionError), fan_of({"a": source}, capacity=1):
        raise ZeroDivisionError
    assert not fake.asked or source.was_closed.is_set()


def test_a_fan_in_that_is_dropped_ends_its_readers(fake: FakeSpark) -> None:
    """Letting go of a fan-in that was not read to its end leaves no thread (fan-in 5)."""
    source = Source(fake, 1000)
    fan = fan_of({"a": source}, capacity=1)
    next(fan)
    del fan
    gc.collect()
    assert source.was_closed.wait(PATIENCE)
    ours = "SparkDispatcher"
    wait_until_blocked(lambda: not any(thread.name.startswith(ours) for thread in threading.enumerate()), PATIENCE)


def test_several_consumers_share_the_rows(fake: FakeSpark) -> None:
    """Threads that take from one fan-in get each row once between them, and all see the end (fan-in 6)."""
    fan = fan_of({name: Source(fake, 200) for name in "abc"}, capacity=3)
    got: list[list[Any]] = [[], [], []]
    threads = [threading.Thread(target=into.extend, args=(fan,)) for into in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chain.from_iterable(got)) == sorted((name, row) for name in "abc" for row in range(200))


def test_nothing_runs_before_it_is_wanted(fake: FakeSpark) -> None:
    """A fan-in that is not entered starts nothing; one that was closed gives nothing."""
    source = Source(fake)
    fan = fan_of({"a": source})
    assert source.read == 0
    fan.close()
    assert list(fan) == []
    assert source.read == 0


def test_a_session_that_can_not_be_submitted_to_ends_the_fan_in(fake: FakeSpark) -> None:
    """What `submit` raises is raised, what was begun is ended, and the iteration is over."""
    sources = {name: Source(fake, 1000) for name in "ab"}
    inheriting, calls = fake.inheriting, iter([True, False])

    def refuse_the_second(fn: Any) -> Any:
        if not next(calls):
            raise SparkSessionStopped("stopped")
        return inheriting(fn)

    fake.inheriting = refuse_the_second  # type: ignore[method-assign]
    fan = fan_of(sources, capacity=1)
    with pytest.raises(SparkSessionStopped):
        next(fan)
    assert list(fan) == []


def test_no_sources_give_no_rows() -> None:
    """A fan-in of nothing is empty."""
    fan: FanIn[str, Any] = fan_in({})
    with fan:
        assert list(fan) == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"capacity": 0}, "capacity"),
        ({"max_running": 0}, "max_running must be at least 1, not 0"),
        ({"max_bytes": 0}, "max_bytes must be at least 1, not 0"),
        ({"batches": "pandas"}, "batches is 'pandas'; it is 'rows' or 'arrow'"),
        ({"priorities": {"b": 1}}, "priorities has 'b', which is none of the sources"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    """A setting that makes no sense is refused before anything runs."""
    with pytest.raises(ValueError, match=problem):
        fan_of({"a": Source(FakeSpark())}, **settings)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: fan_in(cast(Any, {"a": 5})), "source 'a' must be a DataFrame of Spark, not int"),
        (lambda: fan_in(cast(Any, [1, 2])), "frames must be a mapping by the sources' names, not list"),
        (
            lambda: fan_in({}, priorities=cast(Any, ["a"])),
            "priorities must be a mapping by the sources' names, not list",
        ),
        (lambda: fan_in({}, max_running=cast(Any, "3")), "max_running must be an int, not '3'"),
        (lambda: fan_in({}, max_running=True), "max_running must be an int, not True"),
        (lambda: fan_in({}, prefetch=cast(Any, "x")), "prefetch must be True or False, not 'x'"),
        (lambda: fan_in({}, prefetch=cast(Any, -1)), "prefetch must be True or False, not -1"),
        (lambda: SparkDispatcher(cast(Any, None), 2), "spark must be a SparkSession, not None"),
        (lambda: SparkDispatcher(cast(Any, FakeSpark()), cast(Any, "2")), "max_running must be an int, not '2'"),
        (lambda: check_environment(cast(Any, 5)), "spark must be a SparkSession, not 5"),
        (lambda: register(cast(Any, None)), "spark must be a SparkSession, not None"),
        (lambda: task_events(cast(Any, 5), print, "amqp://127.0.0.1:1"), "frame must be a DataFrame of Spark, not int"),
        (lambda: Retry(attempts=cast(Any, "3")), "attempts must be an int, not '3'"),
    ],
)
def test_a_thing_of_another_kind_is_refused_by_its_name(call: Any, problem: str) -> None:
    """What is no session, DataFrame, mapping or number is refused at once: which it was, and what it should be."""
    with pytest.raises(TypeError, match=re.escape(problem)):
        call()


def test_a_streaming_dataframe_is_refused() -> None:
    """A DataFrame without an end can not be read to its end."""
    source = Source(FakeSpark())
    source.isStreaming = True
    with pytest.raises(ValueError, match="source 'a' is a streaming DataFrame"):
        fan_of({"a": source})


# With Spark

ALL_TYPES = """
    select cast(id % 3 as int) as k, count(*) as n, max(cast(id as timestamp)) as at, max(date '2026-11-21') as day,
        max(cast(id as decimal(20, 3))) as price, collect_list(id) as ids, map('m', max(id)) as m,
        named_struct('x', max(id), 'y', cast(null as string)) as s, max(cast(cast(id as string) as binary)) as b,
        if(id % 3 = 0, null, 1.5D) as d
    from range(100) group by id % 3 order by 1
"""


@pytest.mark.spark
@pytest.mark.parametrize("way", ["quick", "public"])
@pytest.mark.parametrize("query", [ALL_TYPES, "select id from range(0)"], ids=["all types", "no rows"])
def test_batches_are_those_of_to_arrow(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str, way: str
) -> None:
    """The quick way, which is not public, and the public one give the rows and the schema of `toArrow` (fan-in 7)."""
    import pyarrow as pa  # type: ignore[import-untyped]

    if way == "quick":
        monkeypatch.setattr(_reading, "_by_workers", None)  # this Spark has the quick way
    else:
        monkeypatch.setattr(_reading, "_by_jvm", lambda frame, pace: None)
    frame = spark.sql(query)
    expected = frame.toArrow()
    with fan_in({"a": frame}, batches="arrow") as fan:
        batches = [batch for _, batch in fan]
    assert pa.Table.from_batches(batches, expected.schema).equals(expected)


@pytest.mark.spark
def test_tasks_are_told_the_sessions_settings(spark: SparkSession) -> None:
    """What the session has set is seen by the tasks of a fan-in of Arrow, as by those of `toArrow`."""

    def tell(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"told": [context.getLocalProperty("spark.sql.session.timeZone")]})

    frame = spark.range(0, 1, 1, 1).mapInArrow(tell, "told string")
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with fan_in({"a": frame}, batches="arrow") as fan:
            told = [batch.column("told").to_pylist() for _, batch in fan]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert told == [["Asia/Tokyo"]]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("batches", "prefetch", "most", "jobs"), [("rows", True, 1, 1), ("arrow", True, 3, 2), ("arrow", False, 3, 3)]
)
def test_spark_computes_two_partitions_ahead_at_most(
    spark: SparkSession, batches: Any, prefetch: bool, most: int, jobs: int
) -> None:
    """While the consumer holds at the first element, the partitions beyond those on their way are not begun (fan-in 3).

    Of twenty: for rows, the first one, which is a job of its own; for Arrow, whose batch is a partition here, besides
    this one, which was taken, a job of two; with `prefetch=False`, two jobs of one, whose first is in the sub-queue.
    """
    frame = spark.range(0, 200_000, 1, 20)
    with fan_in({"a": frame}, capacity=1, batches=batches, prefetch=prefetch) as fan:
        next(fan)
        wait_until_blocked(lambda: bool(fan.statistics().subqueues[0].waiting_putters), PATIENCE)
        wait_until_blocked(lambda: fan.progress()["a"].tasks_done == most, PATIENCE)
        seen = fan.progress()["a"]
        assert (seen.tasks, seen.tasks_active, seen.jobs) == (most, 0, jobs)


@pytest.mark.spark
@pytest.mark.parametrize("batches", ["rows", "arrow"])
def test_a_bound_that_two_partitions_exceed_makes_jobs_of_one(spark: SparkSession, batches: Any) -> None:
    """Sources whose partitions fit by none take turns with one each; all rows come, in their order (fan-in 1, 3)."""
    frames = {name: spark.range(0, 8_000, 1, 4) for name in "abcd"}
    got: dict[str, list[int]] = {name: [] for name in frames}
    with fan_in(frames, batches=batches, capacity=1, max_bytes=1) as fan:
        for name, element in fan:
            got[name] += element.column("id").to_pylist() if batches == "arrow" else [element.id]
        assert [progress.jobs for progress in fan.progress().values()] == [4] * 4  # of one partition each
    assert all(ids == list(range(8_000)) for ids in got.values())


@pytest.mark.spark
def test_the_jvm_keeps_nothing_of_what_was_fetched(spark: SparkSession) -> None:
    """What a consumer that stands still has not taken is in this process, not in the heap of Spark's driver."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()

    def used() -> int:
        jvm.java.lang.System.gc()
        return int(runtime.totalMemory() - runtime.freeMemory())

    frame = spark.range(0, 1_000_000, 1, 1).selectExpr("id", "repeat('x', 32) as text")  # some 50 MB
    with fan_in({"a": frame}, batches="arrow", capacity=1) as fan:
        before = used()
        next(fan)
        wait_until_blocked(lambda: bool(fan.statistics().subqueues[0].waiting_putters), PATIENCE)
        wait_until_blocked(lambda: used() - before < 20 * 2**20, PATIENCE)
