"""Jobs through the dispatcher and past it: how many a second, and who waits how long.

All jobs are Spark's most trivial one. Waiting is from the call of `submit` to the first line of the job's function.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ._model import Attempt, Figures, ItemsLost, Metric
from ._spark_session import session, trivial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNNING = 4  # twice the cores
BIG_TENANT = "big"
SMALL_TENANTS = tuple(f"small {number}" for number in range(9))
SMALL_JOBS = 10  # of each small tenant

JOB_RATE = Metric("rate", "jobs/s")
WAIT = Metric("wait", "s", "less")
TOTAL = Metric("total", "s", "less")
LENGTHS = Metric("wait", "job lengths", "less")

Way = Callable[["SparkSession", int], list[Any]]


@dataclass
class Jobs:
    """n jobs, all submitted at once, in some way. An `Attempt`."""

    n: int
    way: Way
    results: list[Any] = field(default_factory=list)

    def run(self) -> Figures:
        spark, start = session(), time.perf_counter()
        self.results = self.way(spark, self.n)
        return {JOB_RATE.name: self.n / (time.perf_counter() - start)}

    def check(self) -> None:
        if self.results != [0] * self.n:
            raise ItemsLost(f"{len(self.results)} results of {self.n} jobs, {self.results.count(0)} of them right")

    def close(self) -> None:
        pass


def by_pool(spark: SparkSession, n: int) -> list[Any]:
    """A bare pool: no priorities, no cancelling; what a job sets is seen by the next."""
    with ThreadPoolExecutor(RUNNING) as pool:
        return [future.result() for future in [pool.submit(trivial, spark) for _ in range(n)]]


def by_tagged_pool(spark: SparkSession, n: int) -> list[Any]:
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


def by_dispatcher(spark: SparkSession, n: int) -> list[Any]:
    from multiqueue.spark import SparkDispatcher

    with SparkDispatcher(spark, RUNNING) as dispatcher:
        lane = dispatcher.lane("bench")
        return [future.result() for future in [lane.submit(trivial) for _ in range(n)]]


def jobs(way: Way, n: int) -> Attempt:
    session()
    return Jobs(n, way)


@dataclass
class Urgent:
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
            while len(self.lengths) < min(
                RUNNING, self.n
            ):  # the first ones are over: all places have jobs of a usual length
                time.sleep(0.001)
            self.waited = people.submit(partial(_waited, time.perf_counter())).result()
            dispatcher.cancel()
        return {LENGTHS.name: self.waited / max(self.lengths)}

    def check(self) -> None:
        if self.waited < 0:
            raise ItemsLost("the urgent job did not run")

    def close(self) -> None:
        pass

    def _timed(self, spark: SparkSession) -> None:
        start = time.perf_counter()
        trivial(spark)
        self.lengths.append(time.perf_counter() - start)


def _waited(submitted: float, spark: SparkSession) -> float:
    return time.perf_counter() - submitted


def urgent(n: int, *, has_lanes: bool) -> Attempt:
    session()
    return Urgent(n, has_lanes)


class OneLength:
    """The measure of the urgent job: the length of one running job. An `Attempt`."""

    def run(self) -> Figures:
        return {LENGTHS.name: 1.0}

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def one_length(_: int) -> Attempt:
    return OneLength()


@dataclass
class Tenants:
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
        expected = self.n + SMALL_JOBS * len(SMALL_TENANTS)
        if self.done != expected:
            raise ItemsLost(f"{self.done} of {expected} jobs were done")

    def close(self) -> None:
        pass

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


def tenants(n: int, *, has_lanes: bool) -> Attempt:
    session()
    return Tenants(n, has_lanes)
