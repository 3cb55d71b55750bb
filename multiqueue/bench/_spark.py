"""The suite `spark`: what the dispatcher and the fan-in cost and gain on `local[2]`, beside what is written by hand."""

from __future__ import annotations

from functools import partial

from ._model import BEST_RIVAL, Goal, Rival, Suite, Workload
from ._spark_fan_in import (
    ROW_RATE,
    SOURCES,
    arrow_by_fan_in,
    arrow_by_tables,
    reading,
    rows_by_fan_in,
    rows_by_iterators,
    rows_by_prefetching_iterators,
)
from ._spark_jobs import (
    JOB_RATE,
    LENGTHS,
    RUNNING,
    TOTAL,
    WAIT,
    by_dispatcher,
    by_pool,
    by_tagged_pool,
    jobs,
    one_length,
    tenants,
    urgent,
)
from ._spark_task_events import EVENT_RATE, FIRST, TASKS, by_accumulator, by_hand, by_socket, by_task_events

JOBS = 400
QUEUED = 1_000
ROWS = 160_000
ARROW_ROWS = 1_600_000  # in all; some 40 MB of Arrow
EVENTS = 100_000

OURS = "multiqueue"
POOL = "ThreadPoolExecutor"
FIFO = "first in, first out"
ONE_LENGTH = "one job's length"
NEEDS = "pyspark"


def _jobs() -> Workload:
    return Workload(
        "jobs",
        f"trivial jobs, {RUNNING} at a time",
        JOBS,
        (
            Rival(POOL, partial(jobs, by_pool), requires=NEEDS, note="jobs can not be cancelled"),
            Rival(f"{POOL}, tagged by hand", partial(jobs, by_tagged_pool), requires=NEEDS),
            Rival(OURS, partial(jobs, by_dispatcher), role="ours", requires=NEEDS),
        ),
        POOL,
        metrics=(JOB_RATE,),
        n_unit="jobs",
        threads=str(RUNNING),
        goals=(Goal(JOB_RATE.name, 0.95, OURS, POOL),),
        note="A bare pool's threads keep what a job sets; the dispatcher's are new for each.",
    )


def _urgent() -> Workload:
    return Workload(
        "urgent",
        "an urgent job submitted behind queued ones: how long until it starts",
        QUEUED,
        (
            Rival(FIFO, partial(urgent, has_lanes=False), requires=NEEDS, share=0.1, note="one lane for all"),
            Rival(ONE_LENGTH, one_length, role="yardstick"),
            Rival(OURS, partial(urgent, has_lanes=True), role="ours", requires=NEEDS),
        ),
        ONE_LENGTH,
        metrics=(LENGTHS,),
        n_unit="queued jobs",
        threads=str(RUNNING),
        goals=(Goal(LENGTHS.name, 1.0, OURS, ONE_LENGTH),),
        divisor=RUNNING,
        note="In lengths of the longest job that ran before it. The goal is to wait no longer than one.",
    )


def _tenants() -> Workload:
    return Workload(
        "tenants",
        "one tenant with many jobs, then nine with 10 each: the mean wait of the nine's jobs",
        QUEUED,
        (
            Rival(FIFO, partial(tenants, has_lanes=False), requires=NEEDS, note="one lane for all"),
            Rival(OURS, partial(tenants, has_lanes=True), role="ours", requires=NEEDS, note="a lane for each"),
        ),
        FIFO,
        metrics=(WAIT, TOTAL),
        n_unit="jobs of the big tenant",
        threads=str(RUNNING),
        goals=(Goal(WAIT.name, 5.0, OURS, FIFO), Goal(TOTAL.name, 0.97, OURS, FIFO)),
    )


def _fan_in() -> tuple[Workload, ...]:
    return (
        Workload(
            "fan-in-rows",
            f"rows of {SOURCES} DataFrames to one consumer",
            ROWS,
            (
                Rival("toLocalIterator", partial(reading, rows_by_iterators), requires=NEEDS),
                Rival("toLocalIterator, prefetching", partial(reading, rows_by_prefetching_iterators), requires=NEEDS),
                Rival(OURS, partial(reading, rows_by_fan_in), role="ours", requires=NEEDS),
            ),
            "toLocalIterator",
            metrics=(ROW_RATE,),
            n_unit="rows",
            threads=f"{SOURCES} + 1",
            goals=(Goal(ROW_RATE.name, 0.9, OURS, BEST_RIVAL),),
            divisor=SOURCES,
            note="By hand: a thread for each DataFrame, and one bounded queue.Queue.",
        ),
        Workload(
            "fan-in-arrow",
            f"Arrow batches of {SOURCES} DataFrames to one consumer",
            ARROW_ROWS,
            (
                Rival("toArrow", partial(reading, arrow_by_tables), requires="pyarrow", note="whole tables in memory"),
                Rival(OURS, partial(reading, arrow_by_fan_in), role="ours", requires="pyarrow"),
            ),
            "toArrow",
            metrics=(ROW_RATE,),
            n_unit="rows",
            threads=f"{SOURCES} + 1",
            goals=(Goal(ROW_RATE.name, 0.9, OURS, BEST_RIVAL),),
            divisor=SOURCES,
            note="fan_in holds two partitions and four batches of each DataFrame, 256 MiB of all; toArrow all of it.",
        ),
    )


def _task_events() -> Workload:
    return Workload(
        "task-events",
        f"values that {TASKS} running tasks send to the driver",
        EVENTS,
        (
            Rival("socket", partial(by_hand, by_socket), requires="pyarrow", note="a repeated task counts twice"),
            Rival(
                "accumulator",
                partial(by_hand, by_accumulator),
                requires="pyarrow",
                note="a task's values come when it has ended",
            ),
            Rival(
                f"{OURS}, row by row",
                partial(by_task_events, "row"),
                role="ours",
                requires="pamqp",
                note="each value once, however often its task runs",
            ),
            Rival(
                f"{OURS}, by task",
                partial(by_task_events, "task"),
                role="ours",
                requires="pamqp",
                note="those of the first run of a task that ended",
            ),
        ),
        "socket",
        metrics=(EVENT_RATE, FIRST),
        n_unit="values",
        threads=f"{TASKS} tasks + 1",
        divisor=TASKS,
        note="A value is a number. First is the time to the first value, the start of Python workers included.",
    )


SUITE = Suite(
    "spark",
    (_jobs(), _urgent(), _tenants(), *_fan_in(), _task_events()),
    does_not_show=(
        "A cluster: on local[2] the driver, the scheduler and the tasks share two cores.",
        "Jobs that compute something: the longer they are, the less it matters how they were dispatched.",
        "Spark Connect.",
    ),
)
