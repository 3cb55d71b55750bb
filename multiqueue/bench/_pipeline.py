"""The suite `pipeline`: a pipeline with its defaults beside one Spark job and Spark's file stream, on `local[2]`."""

from __future__ import annotations

from functools import partial

from ._model import Goal, Rival, Suite, Workload
from ._pipeline_runs import (
    CPU,
    LENGTHS,
    SECONDS,
    by_job,
    by_pipeline,
    by_stream,
    large,
    small,
    two_lengths,
    waiting,
)

OURS = "multiqueue"
JOB = "one Spark job"
STREAM = "file stream, availableNow"
TWO = "two job lengths"
NEEDS = "pyspark"


def _small(files: int, lanes: int, at_most: float) -> Workload:
    return Workload(
        f"files-{files}",
        f"{files:,} CSV files of 20 rows in {lanes} lanes",
        files,
        (
            Rival(JOB, partial(small, by_job, lanes), requires=NEEDS, note="no state, no lanes, all or nothing"),
            Rival(STREAM, partial(small, by_stream, lanes), requires=NEEDS, note="no lanes; a bad file ends it"),
            Rival(OURS, partial(small, by_pipeline, lanes), role="ours", requires=NEEDS, note="defaults"),
        ),
        JOB,
        metrics=(SECONDS, CPU),
        n_unit="files",
        threads="local[2]",
        goals=(Goal(SECONDS.name, 1 / at_most, OURS, JOB), Goal(SECONDS.name, 1.0, OURS, STREAM)),
    )


def _large() -> Workload:
    return Workload(
        "large",
        "40 CSV files of 50 MB in one lane",
        40,
        (
            Rival(JOB, partial(large, by_job), requires=NEEDS),
            Rival(STREAM, partial(large, by_stream), requires=NEEDS),
            Rival(OURS, partial(large, by_pipeline), role="ours", requires=NEEDS, note="defaults"),
        ),
        JOB,
        metrics=(SECONDS, CPU),
        n_unit="files",
        threads="local[2]",
        goals=(Goal(SECONDS.name, 1 / 1.05, OURS, JOB),),
    )


def _waiting() -> Workload:
    return Workload(
        "small-lanes",
        "nine lanes of one file behind a lane of many: the longest wait",
        20_000,
        (
            Rival(TWO, two_lengths, role="yardstick"),
            Rival(OURS, waiting, role="ours", requires=NEEDS, note="defaults"),
        ),
        TWO,
        metrics=(LENGTHS,),
        n_unit="files of the large lane",
        threads="local[2]",
        goals=(Goal(LENGTHS.name, 1.0, OURS, TWO),),
        note="In lengths of the large lane's longest job.",
    )


SUITE = Suite(
    "pipeline",
    (_small(600, 6, 1.3), _small(4_000, 40, 1.15), _small(20_000, 200, 1.15), _large(), _waiting()),
    does_not_show=(
        "Spark's start: every rival runs in one session that is up and warm.",
        "A cluster, and files in an object store.",
        "What the others do not do: lanes, retries, a bad file set aside alone, a changed file replaced.",
    ),
)
