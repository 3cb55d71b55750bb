"""The suite `spark`: what the dispatcher and the fan-in cost and gain on `local[2]`, beside what is written by hand.

All jobs are Spark's most trivial one. Waiting is from the call of `submit` to the first line of the job's function. By
hand, a fan-in is a thread for each DataFrame that puts into one bounded `queue.Queue`; `toArrow` has no bound: each
DataFrame is in the driver as a whole.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ._harness import expect
from ._model import BEST_RIVAL, BenchError, Figures, Goal, ItemsLost, Metric, Rival, Suite, Workload

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
    """Return if a session can be started.

    Raises:
        BenchError: there is no Java, or an old one.
    """
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


class InSession:
    """What the attempts of this suite have in common: a session that is up, and nothing left behind."""

    def __post_init__(self) -> None:
        session()

    def close(self) -> None:
        """Nothing is left."""


@dataclass
class Measure(InSession):
    """A figure that another one is held against: nothing is measured. An `Attempt`."""

    n: int
    value: float
    metric: Metric = LENGTHS

    def __post_init__(self) -> None:
        """It needs no session."""

    def run(self) -> Figures:
        return {self.metric.name: self.value}

    def check(self) -> None:
        """It is what it is."""


@dataclass
class Jobs(InSession):
    """n jobs, all submitted at once, in some way. An `Attempt`."""

    n: int
    way: Callable[[SparkSession, int], list[Any]]
    results: list[Any] = field(default_factory=list)

    def run(self) -> Figures:
        spark, start = session(), time.perf_counter()
        self.results = self.way(spark, self.n)
        return {JOB_RATE.name: self.n / (time.perf_counter() - start)}

    def check(self) -> None:
        if self.results != [0] * self.n:
            raise ItemsLost(f"{len(self.results)} results of {self.n} jobs, {self.results.count(0)} of them right")


def _by_pool(spark: SparkSession, n: int) -> list[Any]:
    """A bare pool: no priorities, no cancelling; what a job sets is seen by the next."""
    with ThreadPoolExecutor(RUNNING) as pool:
        return [future.result() for future in [pool.submit(trivial, spark) for _ in range(n)]]


def _by_tagged_pool(spark: SparkSession, n: int) -> list[Any]:
    """A pool whose jobs can be told apart and cancelled: the marks are set and taken back by hand."""
    context = spark.sparkContext

    def marked() -> int:
        tag = uuid.uuid4().hex
        context.setJobGroup(tag, "bench: trivial", interruptOnCancel=True)
        context.addJobTag(tag)
        try:
            return trivial(spark)
        finally:
            context.removeJobTag(tag)

    with ThreadPoolExecutor(RUNNING) as pool:
        return [future.result() for future in [pool.submit(marked) for _ in range(n)]]


def _by_dispatcher(spark: SparkSession, n: int) -> list[Any]:
    from multiqueue.spark import SparkDispatcher

    with SparkDispatcher(spark, RUNNING) as dispatcher:
        lane = dispatcher.lane("bench")
        return [future.result() for future in [lane.submit(trivial) for _ in range(n)]]


@dataclass
class Urgent(InSession):
    """An urgent job behind n others: how many lengths of a running job it waits. An `Attempt`."""

    n: int
    has_lanes: bool
    lengths: list[float] = field(default_factory=list)
    waited: float = -1.0

    def run(self) -> Figures:
        from multiqueue.spark import SparkDispatcher

        with SparkDispatcher(session(), RUNNING) as dispatcher:
            batch = dispatcher.lane("batch", priority=1)
            people = dispatcher.lane("people", priority=0) if self.has_lanes else batch
            for _ in range(self.n):
                batch.submit(self._timed)
            # The first ones are over: all places have jobs of a usual length.
            while len(self.lengths) < min(RUNNING, self.n):
                time.sleep(0.001)
            self.waited = people.submit(partial(_waited, time.perf_counter())).result()
            dispatcher.cancel()
        return {LENGTHS.name: self.waited / max(self.lengths)}

    def check(self) -> None:
        if self.waited < 0:
            raise ItemsLost("the urgent job did not run")

    def _timed(self, spark: SparkSession) -> None:
        start = time.perf_counter()
        trivial(spark)
        self.lengths.append(time.perf_counter() - start)


def _waited(submitted: float, spark: SparkSession) -> float:
    return time.perf_counter() - submitted


@dataclass
class Tenants(InSession):
    """A tenant with n jobs and nine with a few, who come after it: the mean wait of the nine's. An `Attempt`."""

    n: int
    has_lanes: bool
    waits: list[float] = field(default_factory=list)
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> Figures:
        from multiqueue.spark import SparkDispatcher

        start = time.perf_counter()
        with SparkDispatcher(session(), RUNNING) as dispatcher:
            self._submit(dispatcher, BIG_TENANT, self.n)
            for tenant in SMALL_TENANTS:
                self._submit(dispatcher, tenant, SMALL_JOBS)
        return {WAIT.name: sum(self.waits) / len(self.waits), TOTAL.name: time.perf_counter() - start}

    def check(self) -> None:
        expect(self.done, self.n + SMALL_JOBS * len(SMALL_TENANTS), "jobs are done")

    def _submit(self, dispatcher: Any, tenant: str, count: int) -> None:
        lane = dispatcher.lane(tenant if self.has_lanes else "all")
        for _ in range(count):
            future: Future[None] = lane.submit(self._job, tenant, time.perf_counter())
            future.add_done_callback(self._count)

    def _job(self, spark: SparkSession, tenant: str, submitted: float) -> None:
        if tenant != BIG_TENANT:
            self.waits.append(time.perf_counter() - submitted)
        trivial(spark)

    def _count(self, future: Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            with self.lock:
                self.done += 1


Frames = dict[str, "DataFrame"]
Reader = Callable[[Frames], Iterator[int]]
"""Reads all frames, and gives how many rows came at a time."""


@dataclass
class Reading(InSession):
    """n rows of `SOURCES` frames, read in some way. An `Attempt`."""

    n: int
    way: Reader
    got: int = 0

    def run(self) -> Figures:
        frames, start = _frames(session(), self.n), time.perf_counter()
        for count in self.way(frames):
            self.got += count
        return {ROW_RATE.name: self.n / (time.perf_counter() - start)}

    def check(self) -> None:
        if self.got != self.n:
            raise ItemsLost(f"{self.got} of {self.n} rows came")


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
        rivals[0].name,
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
                _rival(POOL, Jobs, _by_pool, note="jobs can not be cancelled"),
                _rival(f"{POOL}, tagged by hand", Jobs, _by_tagged_pool),
                _rival(OURS, Jobs, _by_dispatcher),
            ),
            POOL,
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
                _rival(FIFO, Urgent, False, share=0.1, note="one lane for all"),
                Rival(ONE_LENGTH, lambda n: Measure(n, 1.0), role="yardstick"),
                _rival(OURS, Urgent, True),
            ),
            ONE_LENGTH,
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
                _rival(FIFO, Tenants, False, note="one lane for all"),
                _rival(OURS, Tenants, True, note="a lane for each"),
            ),
            FIFO,
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
                _rival("toLocalIterator", Reading, partial(_rows_by_iterators, False)),
                _rival("toLocalIterator, prefetching", Reading, partial(_rows_by_iterators, True)),
                _rival(OURS, Reading, _rows_by_fan_in),
            ),
            "By hand: a thread for each DataFrame, and one bounded queue.Queue.",
        ),
        _fan_in(
            "fan-in-arrow",
            "Arrow batches",
            ARROW_ROWS,
            (
                _rival("toArrow", Reading, _arrow_by_tables, needs="pyarrow", note="whole tables in memory"),
                _rival(OURS, Reading, _arrow_by_fan_in, needs="pyarrow"),
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
