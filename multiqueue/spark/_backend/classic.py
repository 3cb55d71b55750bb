"""A classic session: job tags, groups and pools are local properties of a JVM thread pinned to the Python thread.

Promise     An item's thread has the submitter's local properties and session tags, its own marks, and nothing of an
            earlier item. The Python thread is new. The JVM's may have run an item before: all that Spark keeps per
            thread, local properties, session tags and the active session, is replaced as a whole, not key by key.
State       None but the idle JVM threads, see `_jvm_threads`.
Assumes     `getLocalProperties` and `setLocalProperties` of the JVM's SparkContext, which PySpark's own
            `inheritable_thread_target` uses and which are not public; tests hold their behaviour.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from .after_stop import AfterStop, Item, end_read_of_result, waits_in_vain
from .backend import TAG_PREFIX, Marks, Spent
from .causes import causes, is_cancellation, is_sparks_own
from .errors import STOPPED_BEFORE, SparkEnvironmentError, SparkSessionStopped
from .jvm_threads import JvmThreads
from .progress import NOTHING, Progress, total

T = TypeVar("T")

# What PySpark raises besides, in the middle of a stop or after it: a lost JVM, a context that is None.
SYMPTOMS = (Py4JError, OSError, AttributeError, AssertionError)
TAGS_PROPERTY = "spark.job.tags"  # a thread's job tags, separated by commas
_LONGEST_LAG = 1000  # milliseconds that an item's end waits for its figures: they come in a few
STOPPED = ("SparkContext was shut down", "stopped SparkContext")


class ClassicBackend:
    """Backend for a `SparkSession` with a `SparkContext`."""

    def __init__(self, spark: SparkSession) -> None:
        if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":  # as PySpark reads it
            raise SparkEnvironmentError(
                "PYSPARK_PIN_THREAD is false: all Python threads share one JVM thread, so jobs can not be told "
                "apart or cancelled; unset it before the session starts"
            )
        self._spark = spark
        self._context = spark.sparkContext
        self._threads = JvmThreads(self._context)
        self._after_stop = AfterStop(self._is_stopped, self._free)

    @cached_property
    def _java_context(self) -> Any:
        return self._context._jsc.sc()

    @cached_property
    def _clear_active_session(self) -> Callable[[], object]:
        """A method of the JVM's class. To look it up is a call."""
        found: Callable[[], object] = self._spark._get_j_spark_session_class(self._context._jvm).clearActiveSession
        return found

    @cached_property
    def _current_java_thread(self) -> Callable[[], Any]:
        """A method of the JVM's class, as above."""
        jvm: Any = self._context._jvm
        found: Callable[[], Any] = jvm.java.lang.Thread.currentThread
        return found

    def session_for(self, pool: str | None) -> SparkSession:
        return self._spark

    def inheriting(self, fn: Callable[..., T]) -> Callable[..., T]:
        if self._context._jsc is None:  # stopped; the JVM's would answer still
            raise SparkSessionStopped(STOPPED_BEFORE)
        try:
            properties = self._java_context.getLocalProperties().clone()
            session_tags = self._spark.getTags()
        except SYMPTOMS:
            if self._is_stopped():
                raise SparkSessionStopped(STOPPED_BEFORE) from None
            raise

        def call(*args: Any, **kwargs: Any) -> T:
            item = Item(threading.get_ident())
            self._after_stop.enter(item)
            try:
                item.java = self._threads.borrow() or self._current_java_thread()
                self._replace_context(properties, session_tags)
                result = fn(*args, **kwargs)
                self._threads.give_back(item.java)
                return result
            finally:
                self._after_stop.leave(item)

        return call

    def _replace_context(self, properties: Any, session_tags: set[str]) -> None:
        """Give this JVM thread another's context in place of its own, which may be that of an item before."""
        self._clear_active_session()
        self._spark.clearTags()
        self._java_context.setLocalProperties(properties)
        for tag in session_tags:
            self._spark.addTag(tag)

    def enter(self, marks: Marks) -> None:
        # One property for all tags, where PySpark has a call for each: calls are what an item costs.
        context = self._context
        tags = [tag for tag in (context.getLocalProperty(TAGS_PROPERTY) or "").split(",") if tag]
        # Without those of the item that submitted this one: cancelling it must not cancel both.
        inherited = [tag for tag in tags if not tag.startswith(TAG_PREFIX)]
        context.setLocalProperty(TAGS_PROPERTY, ",".join((*inherited, marks.tag, *marks.labels)))
        context.setJobGroup(marks.tag, marks.description, interruptOnCancel=True)
        if marks.pool is not None:
            context.setLocalProperty("spark.scheduler.pool", marks.pool)

    def leave(self, tag: str) -> Progress | None:
        return None  # the status tracker can be asked later, by who wants to know

    def progress(self, tag: str) -> Progress | None:
        try:
            jobs = self._jobs_of(tag)
            # A stage that another job has begun belongs to both: it is counted once, and runs while one of them does.
            runs: dict[int, bool] = {}
            for job in jobs:
                for stage in job.stageIds:
                    runs[stage] = runs.get(stage, False) or job.status == "RUNNING"
            tracker = self._context.statusTracker()
            stages = (_stage_progress(tracker.getStageInfo(stage), its) for stage, its in runs.items())
            return Progress(jobs=len(jobs)) + total(stages)
        except SYMPTOMS:
            return None

    tells_spent = True

    def spent(self, tag: str) -> Spent | None:
        try:
            java_thread = self._threads.borrow() or self._current_java_thread()
            spent = self._spent(tag)
            self._threads.give_back(java_thread)
            return spent
        except SYMPTOMS:
            return None

    def _spent(self, tag: str) -> Spent | None:
        """From Spark's store of figures, which its listener bus fills some milliseconds later."""
        java_context = self._java_context
        try:
            java_context.listenerBus().waitUntilEmpty(_LONGEST_LAG)
        except Py4JJavaError:
            pass  # it is busy with others' events; ours may be there
        store = java_context.statusStore()
        stages: set[int] = set()
        executor_ms = job_ms = 0
        for number in self._numbers_of(tag):
            job = store.job(number)
            if job.completionTime().isEmpty():
                return None
            begun = job.submissionTime().get().getTime()
            job_ms += job.completionTime().get().getTime() - begun
            ids = job.stageIds()
            for stage_id in {ids.apply(index) for index in range(ids.size())} - stages:
                stages.add(stage_id)
                try:
                    stage = store.lastStageAttempt(stage_id)
                except Py4JJavaError:
                    continue  # it did not run
                submitted = stage.submissionTime()
                if not submitted.isEmpty() and submitted.get().getTime() >= begun:  # else another job's rows were used
                    executor_ms += stage.executorRunTime()
        return Spent(executor_ms / 1000, job_ms / 1000)

    def job_ids(self, tag: str) -> list[int]:
        try:
            return self._numbers_of(tag)
        except SYMPTOMS:
            return []

    def ui_url(self) -> str | None:
        try:
            return self._context.uiWebUrl
        except SYMPTOMS:
            return None

    def _numbers_of(self, tag: str) -> list[int]:
        """The item's jobs: a function may set a group of its own, or clear its tags."""
        by_tag = self._java_context.statusTracker().getJobIdsForTag(tag)  # not in PySpark
        return sorted({*self._context.statusTracker().getJobIdsForGroup(tag), *by_tag})

    def _jobs_of(self, tag: str) -> list[Any]:
        """Spark's figures of the item's jobs, one by one."""
        tracker = self._context.statusTracker()
        return [info for info in map(tracker.getJobInfo, self._numbers_of(tag)) if info is not None]

    def cancel(self, tag: str) -> None:
        if self._context._jsc is None:
            raise SparkSessionStopped(STOPPED_BEFORE)
        # Not `spark.interruptTag`: from another thread than the job's it finds nothing (SPARK-50366).
        self._context.cancelJobsWithTag(tag)
        self._context.cancelJobGroup(tag)  # of a function that clears its tags

    def close(self) -> None:
        self._after_stop.close()
        self._threads.forget()

    def _free(self, item: Item) -> None:
        """End the item's wait, if that is for something that the stopped session can not bring."""
        try:
            if item.java is not None and waits_in_vain(map(str, item.java.getStackTrace())):
                item.java.interrupt()
            else:
                end_read_of_result(item)
        except (Py4JNetworkError, OSError):
            pass  # the JVM is gone, and with it what the item waits for

    def is_cancellation(self, error: BaseException) -> bool:
        return is_cancellation(error)

    def is_stop(self, error: BaseException) -> bool:
        # Its words are as many as places in Spark that find something gone: a null, a bug to be reported, a session
        # that should be created first. That the session is stopped says more, and is so before anything is gone.
        if isinstance(error, Py4JJavaError) and any(
            words in cause.message for cause in causes(error) for words in STOPPED
        ):
            return True
        return (isinstance(error, SYMPTOMS) or is_sparks_own(error)) and self._is_stopped()

    def is_gone(self, error: BaseException) -> bool:
        return False  # a JVM that is gone is a session that is stopped

    def _is_stopped(self) -> bool:
        # `_jsc` is None after `stop()`; there is no public question that does not fail then.
        java_context = self._context._jsc
        try:
            return java_context is None or bool(java_context.sc().isStopped())
        except (Py4JError, OSError):
            return True  # no JVM to ask


def _stage_progress(stage: Any, runs: bool) -> Progress:
    """One stage of a job that runs or has ended; None is one that has not begun, or that Spark has forgotten.

    What a job that has ended did not run is not counted: a stage whose rows an earlier job has made, the tasks behind a
    limit or a failure.
    """
    if stage is None:
        return Progress(stages=1) if runs else NOTHING
    if not runs:
        done, failed = stage.numCompletedTasks, stage.numFailedTasks
        ran = int(done > 0)
        return Progress(stages=ran, stages_done=ran, tasks=done, tasks_done=done, tasks_failed=failed)
    return Progress(
        stages=1,
        stages_done=int(stage.numCompletedTasks >= stage.numTasks),
        tasks=stage.numTasks,
        tasks_active=stage.numActiveTasks,
        tasks_done=stage.numCompletedTasks,
        tasks_failed=stage.numFailedTasks,
    )
