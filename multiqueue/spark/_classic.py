"""A classic session: job tags, groups and pools are local properties of a JVM thread pinned to the Python thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from ._backend import TAG_PREFIX, Marks, java_messages
from ._errors import STOPPED_BEFORE, SparkEnvironmentError, SparkSessionStopped
from ._progress import NOTHING, Progress, total

T = TypeVar("T")

# Spark's own words; the first is an error class and so does not change lightly.
CANCELLED = "[SPARK_JOB_CANCELLED]"
# What PySpark raises besides, in the middle of a stop or after it: a lost JVM, a context that is None.
SYMPTOMS = (Py4JError, OSError, AttributeError, AssertionError)
TAGS_PROPERTY = "spark.job.tags"  # a thread's job tags, separated by commas
STOPPED = ("SparkContext was shut down", "stopped SparkContext")


def threads_are_pinned() -> bool:
    """Whether PySpark gives each Python thread a JVM thread, as it does unless PYSPARK_PIN_THREAD says false."""
    return os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


class ClassicBackend:
    """Backend for a `SparkSession` with a `SparkContext`."""

    def __init__(self, spark: SparkSession) -> None:
        if not threads_are_pinned():
            raise SparkEnvironmentError(
                "PYSPARK_PIN_THREAD is false: all Python threads share one JVM thread, so jobs can not be told "
                "apart or cancelled; unset it before the session starts"
            )
        self._spark = spark
        self._context = spark.sparkContext

    def session_for(self, pool: str | None) -> SparkSession:
        return self._spark

    def inheriting(self, fn: Callable[..., T]) -> Callable[..., T]:
        try:
            return inheritable_thread_target(self._spark)(fn)  # type: ignore[no-any-return]
        except SYMPTOMS:
            if self._is_stopped():
                raise SparkSessionStopped(STOPPED_BEFORE) from None
            raise

    def enter(self, marks: Marks) -> None:
        context = self._context
        # Not `getJobTags`: that is a Java set, and letting go of a Java object costs this connection 40 ms (Nagle).
        for inherited in (context.getLocalProperty(TAGS_PROPERTY) or "").split(","):
            if inherited.startswith(TAG_PREFIX):  # cancelling the item that submitted this one must not cancel both
                context.removeJobTag(inherited)
        context.setJobGroup(marks.tag, marks.description, interruptOnCancel=True)
        for tag in (marks.tag, *marks.labels):
            context.addJobTag(tag)
        if marks.pool is not None:
            context.setLocalProperty("spark.scheduler.pool", marks.pool)

    def leave(self, tag: str) -> Progress | None:
        return None  # the status tracker can be asked later, by who wants to know

    def progress(self, tag: str) -> Progress | None:
        try:
            return total(self._job_progress(job) for job in self._tracker().getJobIdsForGroup(tag))
        except SYMPTOMS:
            return None

    def _job_progress(self, job: int) -> Progress:
        tracker = self._tracker()
        info = tracker.getJobInfo(job)
        if info is None:  # Spark has forgotten it
            return NOTHING
        stages = (tracker.getStageInfo(stage) for stage in info.stageIds)
        return Progress(jobs=1) + total(_stage_progress(stage, info.status) for stage in stages)

    def _tracker(self) -> Any:
        return self._context.statusTracker()

    def cancel(self, tag: str) -> None:
        # Not `spark.interruptTag`: from another thread than the job's it finds nothing (SPARK-50366).
        self._context.cancelJobsWithTag(tag)

    def close(self) -> None:
        pass

    def is_cancellation(self, error: BaseException) -> bool:
        if isinstance(error, Py4JJavaError):
            return any(CANCELLED in message for message in java_messages(error))
        return CANCELLED in str(error) and type(error).__module__.startswith("pyspark.")

    def is_stop(self, error: BaseException) -> bool:
        if isinstance(error, Py4JJavaError):
            return any(words in message for message in java_messages(error) for words in STOPPED)
        return isinstance(error, SYMPTOMS) and self._is_stopped()

    def _is_stopped(self) -> bool:
        # `_jsc` is None after `stop()`; there is no public question that does not fail then.
        java_context = self._context._jsc
        try:
            return java_context is None or bool(java_context.sc().isStopped())
        except (Py4JError, OSError):
            return True  # no JVM to ask


def _stage_progress(stage: Any, job_status: str) -> Progress:
    """One stage, None if it has not begun or is not to begin: its rows are those of an earlier job."""
    if stage is None:
        return Progress(stages=1, stages_done=int(job_status == "SUCCEEDED"))
    return Progress(
        stages=1,
        stages_done=int(stage.numCompletedTasks >= stage.numTasks),
        tasks=stage.numTasks,
        tasks_active=stage.numActiveTasks,
        tasks_done=stage.numCompletedTasks,
        tasks_failed=stage.numFailedTasks,
    )
