"""The suite `spark`: what the dispatcher and the fan-in cost and gain on `local[2]`, beside what is written by hand.

All jobs are Spark's most trivial one. Waiting is from the call of `submit` to the first line of the job's function. By
hand, a fan-in is a thread for each DataFrame that puts into one bounded `queue.Queue`; `toArrow` has no bound: each
DataFrame is in the driver as a whole.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ._harness import Once, expect
from ._model import BEST_RIVAL, BenchError, Figures, Goal, Metric, Rival, Suite, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOBS = 400
QUEUED = 1_000
ROWS = 160_000
ARROW_ROWS = 1_600_000  # in all; some 40 MB of Arrow

CORES = 2
WARM_UP = 60  # jobs; the JVM compiles what a job runs through
RUNNING = 4  # twice the cores
BIG_TENANT = "big"
SMALL_TENANTS = tuple(f"small {number}" for number in range(9))
SMALL_JOBS = 10  # of each small tenant
SOURCES = 8
PARTITIONS = 4  # of each source
ROWS_HELD = 10_000  # by hand: what `fan_in` holds of each source
BATCHES_HELD = 4

JOB_RATE = Metric("rate", "jobs/s")
WAIT = Metric("wait", "s", "less")
TOTAL = Metric("total", "s", "less")
LENGTHS = Metric("wait", "job lengths", "less")
ROW_RATE = Metric("rate", "rows/s")

OURS = "multiqueue"
NEEDS = "pyspark"


def check_machine() -> None:
    """Return if a session can be started. Raises BenchError: there is no Java, or an old one."""
    from multiqueue.spark import check_environment

    errors = [f"{each.subject}: {each.message}" for each in check_environment() if each.level == "error"]
    if errors:
        raise BenchError(f"bench spark cannot start Spark: {'; '.join(errors)}")


@cache
def session() -> SparkSession:
    """The one session, started by the first rival that needs it, and warmed up. It ends with the process."""
    from multiqueue.spark import quiet_query_contexts, session_builder

    settings: dict[str, Any] = {
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    spark: SparkSession = (
        session_builder("multiqueue bench").master(f"local[{CORES}]").config(map=settings).getOrCreate()
    )
    quiet_query_contexts()
    for _ in range(WARM_UP):
        trivial(spark)
    return spark


def trivial(spark: SparkSession) -> int:
    """A job with nothing to compute: one task, one row."""
    return int(spark.range(1, numPartitions=1).collect()[0].id)


def measure(value: float, metric: Metric = LENGTHS) -> Once:
    """A figure that another one is held against: nothing is measured."""
    return Once(lambda: {metric.name: value})


def jobs(n: int, way: Callable[[SparkSession, int], list[Any]]) -> Once:
    """n jobs, all submitted at once, in some way."""
    spark = session()
    results: list[Any] = []

    def run() -> Figures:
        start = time.perf_counter()
        results.extend(way(spark, n))
        return {JOB_RATE.name: n / (time.perf_counter() - start)}

    return Once(run, lambda: expect(results.count(0), n, "jobs have their result"))


def _by_pool(spark: SparkSession, n: int) -> list[Any]:
    """A bare pool: no priorities, no cancelling; what a job sets is seen by the next."""
    with ThreadPoolExecutor(RUNNING) as pool:
        return [future.result() for future in [pool.submit(trivial, spark) for _ in range(n)]]


def _by_dispatcher(spark: SparkSession, n: int) -> list[Any]:
    from multiqueue.spark import SparkDispatcher

    with SparkDispatcher(spark, RUNNING) as dispatcher:
        lane = dispatcher.lane("bench")
        return [future.result() for future in [lane.submit(trivial) for _ in range(n)]]


def _urgent(n: int, has_lanes: bool) -> Once:
    """An urgent job behind n others: how many lengths of a running job it waits."""
    from multiqueue.spark import SparkDispatcher

    spark = session()
    lengths: list[float] = []
    waits: list[float] = []

    def timed(spark: SparkSession) -> None:
        start = time.perf_counter()
        trivial(spark)
        lengths.append(time.perf_counter() - start)

    def urgent(spark: SparkSession, submitted: float) -> None:
        waits.append(time.perf_counter() - submitted)

    def run() -> Figures:
        with SparkDispatcher(spark, RUNNING) as dispatcher:
            batch = dispatcher.lane("batch", priority=1)
            people = dispatcher.lane("people", priority=0) if has_lanes else batch
            for _ in range(n):
                batch.submit(timed)
            # The first ones are over: all places have jobs of a usual length.
            while len(lengths) < min(RUNNING, n):
                time.sleep(0.001)
            people.submit(urgent, time.perf_counter()).result()
            dispatcher.cancel()
        return {LENGTHS.name: waits[0] / max(lengths)}

    return Once(run, lambda: expect(len(waits), 1, "urgent jobs ran"))


def _tenants(n: int, has_lanes: bool) -> Once:
    """A tenant with n jobs and nine with a few, who come after it: the mean wait of the nine's."""
    from multiqueue.spark import SparkDispatcher

    spark = session()
    waits: list[float] = []
    futures: list[Future[None]] = []

    def job(spark: SparkSession, tenant: str, submitted: float) -> None:
        if tenant != BIG_TENANT:
            waits.append(time.perf_counter() - submitted)
        trivial(spark)

    def run() -> Figures:
        start = time.perf_counter()
        with SparkDispatcher(spark, RUNNING) as dispatcher:
            for tenant, count in ((BIG_TENANT, n), *((each, SMALL_JOBS) for each in SMALL_TENANTS)):
                lane = dispatcher.lane(tenant if has_lanes else "all")
                futures.extend(lane.submit(job, tenant, time.perf_counter()) for _ in range(count))
        return {WAIT.name: sum(waits) / len(waits), TOTAL.name: time.perf_counter() - start}

    def check() -> None:
        done = sum(not future.cancelled() and future.exception() is None for future in futures)
        expect(done, n + SMALL_JOBS * len(SMALL_TENANTS), "jobs are done")

    return Once(run, check)


Frames = dict[str, "DataFrame"]
Reader = Callable[[Frames], Iterator[int]]
"""Reads all frames, and gives how many rows came at a time."""


def reading(n: int, way: Reader) -> Once:
    """n rows of `SOURCES` frames, read in some way."""
    counts: list[int] = []
    spark = session()

    def run() -> Figures:
        frames, start = _frames(spark, n), time.perf_counter()
        counts.append(sum(way(frames)))
        return {ROW_RATE.name: n / (time.perf_counter() - start)}

    return Once(run, lambda: expect(sum(counts), n, "rows came"))


def _frames(spark: SparkSession, n: int) -> Frames:
    def frame() -> DataFrame:
        numbers = spark.range(0, n // SOURCES, 1, PARTITIONS)
        return numbers.selectExpr("id", "id * 0.5 as half", "cast(id as string) as text")

    return {f"source {number}": frame() for number in range(SOURCES)}


def _rows_by_fan_in(frames: Frames) -> Iterator[int]:
    from multiqueue.spark import fan_in

    with fan_in(frames, capacity=ROWS_HELD) as fan:
        for _ in fan:
            yield 1


def _arrow_by_fan_in(frames: Frames) -> Iterator[int]:
    from multiqueue.spark import fan_in

    with fan_in(frames, capacity=BATCHES_HELD, batches="arrow") as fan:
        for _, batch in fan:
            yield batch.num_rows


def _rows_by_iterators(prefetches: bool, frames: Frames) -> Iterator[int]:
    for _ in _by_threads(frames, lambda frame: frame.toLocalIterator(prefetchPartitions=prefetches), ROWS_HELD):
        yield 1


def _arrow_by_tables(frames: Frames) -> Iterator[int]:
    for _, batch in _by_threads(frames, lambda frame: frame.toArrow().to_batches(), BATCHES_HELD):
        yield batch.num_rows


def _by_threads(frames: Frames, read: Callable[[DataFrame], Iterable[Any]], held: int) -> Iterator[tuple[str, Any]]:
    """The same written by hand. A failure is not looked for: the rows are counted."""
    elements: queue.Queue[tuple[str, Any] | None] = queue.Queue(held * len(frames))

    def body(name: str, frame: DataFrame) -> None:
        try:
            for element in read(frame):
                elements.put((name, element))
        finally:
            elements.put(None)

    threads = [threading.Thread(target=body, args=each, daemon=True) for each in frames.items()]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        element = elements.get()
        if element is None:
            left -= 1
        else:
            yield element
    for thread in threads:
        thread.join()


def _rival(
    name: str, attempt: Callable[..., Any], *settings: object, note: str = "", needs: str = NEEDS, share: float = 1.0
) -> Rival:
    """Ours where it is named so; the attempt is made of n and these settings."""
    return Rival(
        name,
        lambda n: attempt(n, *settings),
        role="ours" if name == OURS else "rival",
        requires=needs,
        share=share,
        note=note,
    )


def _fan_in(name: str, title: str, n: int, rivals: tuple[Rival, ...], note: str) -> Workload:
    return Workload(
        name,
        f"{title} of {SOURCES} DataFrames to one consumer",
        n,
        rivals,
        metrics=(ROW_RATE,),
        n_unit="rows",
        threads=f"{SOURCES} + 1",
        goals=(Goal(ROW_RATE.name, 0.9, OURS, BEST_RIVAL),),
        divisor=SOURCES,
        note=note,
    )


POOL = "ThreadPoolExecutor"
FIFO = "first in, first out"
ONE_LENGTH = "one job's length"
SUITE = Suite(
    "spark",
    (
        Workload(
            "jobs",
            f"trivial jobs, {RUNNING} at a time",
            JOBS,
            (
                _rival(POOL, jobs, _by_pool, note="jobs can not be cancelled"),
                _rival(OURS, jobs, _by_dispatcher),
            ),
            metrics=(JOB_RATE,),
            n_unit="jobs",
            threads=str(RUNNING),
            goals=(Goal(JOB_RATE.name, 0.95, OURS, POOL),),
            note="A bare pool's threads keep what a job sets; the dispatcher's are new for each.",
        ),
        Workload(
            "urgent",
            "an urgent job submitted behind queued ones: how long until it starts",
            QUEUED,
            (
                Rival(ONE_LENGTH, lambda n: measure(1.0), role="yardstick"),
                _rival(FIFO, _urgent, False, share=0.1, note="one lane for all"),
                _rival(OURS, _urgent, True),
            ),
            metrics=(LENGTHS,),
            n_unit="queued jobs",
            threads=str(RUNNING),
            goals=(Goal(LENGTHS.name, 1.0, OURS, ONE_LENGTH),),
            divisor=RUNNING,
            note="In lengths of the longest job that ran before it. The goal is to wait no longer than one.",
        ),
        Workload(
            "tenants",
            "one tenant with many jobs, then nine with 10 each: the mean wait of the nine's jobs",
            QUEUED,
            (
                _rival(FIFO, _tenants, False, note="one lane for all"),
                _rival(OURS, _tenants, True, note="a lane for each"),
            ),
            metrics=(WAIT, TOTAL),
            n_unit="jobs of the big tenant",
            threads=str(RUNNING),
            goals=(Goal(WAIT.name, 5.0, OURS, FIFO), Goal(TOTAL.name, 0.97, OURS, FIFO)),
        ),
        _fan_in(
            "fan-in-rows",
            "rows",
            ROWS,
            (
                _rival("toLocalIterator", reading, partial(_rows_by_iterators, False)),
                _rival("toLocalIterator, prefetching", reading, partial(_rows_by_iterators, True)),
                _rival(OURS, reading, _rows_by_fan_in),
            ),
            "By hand: a thread for each DataFrame, and one bounded queue.Queue.",
        ),
        _fan_in(
            "fan-in-arrow",
            "Arrow batches",
            ARROW_ROWS,
            (
                _rival("toArrow", reading, _arrow_by_tables, needs="pyarrow", note="whole tables in memory"),
                _rival(OURS, reading, _arrow_by_fan_in, needs="pyarrow"),
            ),
            "fan_in holds two partitions and four batches of each DataFrame, 256 MiB of all; toArrow all of it.",
        ),
    ),
    does_not_show=(
        "A cluster: on local[2] the driver, the scheduler and the tasks share two cores.",
        "Jobs that compute something: the longer they are, the less it matters how they were dispatched.",
        "Spark Connect.",
    ),
)
