"""The states of a Spark job's future, and who is told to cancel what. Without Spark."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError, as_completed, wait

import pytest
from spark_support import Cancelled, FakeSpark, Gone, dispatcher

from multiqueue.spark import Retry, SparkFuture, SparkJobCancelled, SparkSessionStopped
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_cancelling_a_running_job_ends_it_in_spark() -> None:
    """`cancel` of a running job returns True; the future ends cancelled when Spark has let go of the job."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.submit(FakeSpark.job)
        (tag,) = spark.wait_until_active()
        assert future.running()
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)
        assert future.cancelled()
        assert not future.running()
        assert spark.asked[tag] >= 1
        assert future.cancel(), "again has no effect"


def test_spark_is_asked_again_until_the_function_has_left() -> None:
    """A cancel that finds no active Spark job is repeated: a job that starts after it is cancelled all the same.

    (spark 3)
    """
    spark = FakeSpark()
    between_jobs = threading.Event()

    def two_jobs(session: FakeSpark) -> None:
        assert between_jobs.wait(PATIENCE)
        session.job()

    with dispatcher(spark) as dock:
        future = dock.submit(two_jobs)
        wait_until_blocked(future.running)
        future.cancel()
        wait_until_blocked(lambda: sum(spark.asked.values()) >= 2)
        assert not future.done()
        between_jobs.set()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)


def test_a_result_that_was_first_stands() -> None:
    """A function that returns although asked to end has its result, and no thread asks Spark any more (spark 4)."""
    spark = FakeSpark()
    go_on = threading.Event()

    def stubborn(session: FakeSpark) -> str:
        assert go_on.wait(PATIENCE)
        return "done"

    with dispatcher(spark) as dock:
        future = dock.submit(stubborn)
        wait_until_blocked(future.running)
        assert future.cancel()
        go_on.set()
        assert future.result(PATIENCE) == "done"
        assert not future.cancelled()
        assert not future.cancel()
        asked = sum(spark.asked.values())
    assert sum(spark.asked.values()) == asked


def test_a_waiting_job_is_cancelled_without_spark() -> None:
    """`cancel` of a job that waits frees its place in the lane; Spark is not asked, and the function not called."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        running = dock.submit(FakeSpark.job)
        (tag,) = spark.wait_until_active()
        waiting = dock.submit(lambda session: pytest.fail("ran"))
        assert waiting.cancel()
        assert wait([waiting], PATIENCE).done == {waiting}
        assert not spark.asked
        running.cancel()
    assert set(spark.asked) == {tag}


def test_waiting_functions_see_a_cancelled_job_end() -> None:
    """`wait`, `as_completed`, callbacks and `await` treat a job cancelled while running like any cancelled future.

    (spark 4)
    """
    spark = FakeSpark()
    called: list[bool] = []

    async def cancel_by_await(future: SparkFuture[None]) -> None:
        task = asyncio.wrap_future(future)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with dispatcher(spark, 2) as dock:
        first, second = dock.submit(FakeSpark.job), dock.submit(FakeSpark.job)
        spark.wait_until_active(2)
        first.add_done_callback(lambda future: called.append(future.cancelled()))
        first.cancel()
        assert wait([first, second], PATIENCE, return_when="FIRST_COMPLETED").done == {first}
        assert isinstance(second, SparkFuture)
        asyncio.run(cancel_by_await(second))
        assert set(as_completed([first, second], PATIENCE)) == {first, second}
    assert called == [True]


def test_cancelled_by_somebody_else_is_another_outcome() -> None:
    """A job that Spark cancelled without our asking ends with `SparkJobCancelled`, from Spark's error (spark 5)."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.lane("eu").submit(FakeSpark.job)
        spark.cancel_elsewhere(*spark.wait_until_active())
        error = future.exception(PATIENCE)
    assert isinstance(error, SparkJobCancelled)
    assert isinstance(error.__cause__, Cancelled)
    assert "'eu: FakeSpark.job'" in str(error)


def test_a_stopped_session_is_another_outcome() -> None:
    """A job whose session was stopped under it ends with `SparkSessionStopped` (spark 5)."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.submit(FakeSpark.job)
        spark.wait_until_active()
        spark.stop()
        assert isinstance(future.exception(PATIENCE), SparkSessionStopped)


def test_a_server_that_is_gone_may_be_tried_again() -> None:
    """When no JVM answers, another attempt may help; without one the future ends with `SparkSessionStopped`."""

    def meet_nobody(spark: FakeSpark) -> None:
        raise Gone

    with dispatcher(FakeSpark()) as dock:
        future = dock.lane("a", retry=Retry(attempts=2, first_pause=0.0)).submit(meet_nobody)
        error = future.exception(PATIENCE)
        assert isinstance(error, SparkSessionStopped)
        assert "could not be reached any more" in str(error)
        assert isinstance(error.__cause__, Gone)
        assert future.attempts == 2


def test_the_users_exception_arrives_unchanged() -> None:
    """What the function raises is what the future raises: the very object (spark 5)."""
    raised = ZeroDivisionError("mine")

    def fail(session: FakeSpark) -> None:
        raise raised

    with dispatcher(FakeSpark()) as dock:
        assert dock.submit(fail).exception(PATIENCE) is raised


@pytest.mark.parametrize("asked", [True, False])
def test_a_cancellation_that_the_function_wrapped(asked: bool) -> None:
    """An error raised from Spark's cancellation means cancelled if we asked, and is the user's own otherwise."""

    def wrapping(session: FakeSpark) -> None:
        try:
            session.job()
        except Cancelled as error:
            raise ValueError("my step failed") from error

    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.submit(wrapping)
        (tag,) = spark.wait_until_active()
        if asked:
            future.cancel()
            with pytest.raises(CancelledError):
                future.result(PATIENCE)
        else:
            spark.cancel_elsewhere(tag)
            with pytest.raises(ValueError, match="my step failed"):
                future.result(PATIENCE)


def test_an_unrelated_error_of_a_job_asked_to_end_is_the_users() -> None:
    """A function that fails by itself while it is asked to end has its own exception."""
    spark = FakeSpark()
    go_on = threading.Event()

    def fail(session: FakeSpark) -> None:
        assert go_on.wait(PATIENCE)
        raise ZeroDivisionError

    with dispatcher(spark) as dock:
        future = dock.submit(fail)
        wait_until_blocked(future.running)
        future.cancel()
        go_on.set()
        assert isinstance(future.exception(PATIENCE), ZeroDivisionError)


def test_a_spark_that_can_not_be_asked_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """If asking Spark fails, the failure is logged, and the job ends by itself."""
    spark = FakeSpark()
    go_on = threading.Event()
    spark.cancel = lambda tag: 1 / 0  # type: ignore[method-assign, assignment]
    with dispatcher(spark) as dock:
        future = dock.submit(lambda session: go_on.wait(PATIENCE))
        wait_until_blocked(future.running)
        future.cancel()
        wait_until_blocked(lambda: "could not be asked" in caplog.text)
        go_on.set()
        assert future.result(PATIENCE)
    assert [record.name for record in caplog.records] == ["multiqueue.spark"]


def test_a_finished_job_is_forgotten() -> None:
    """What an item was given is let go of with its future, error and all, without the garbage collector."""

    class Thing:
        pass

    def fail(session: FakeSpark, thing: Thing) -> None:
        raise ZeroDivisionError

    gc.collect()
    gc.disable()
    try:
        thing = Thing()
        gone = weakref.ref(thing)
        with dispatcher(FakeSpark()) as dock:
            assert dock.submit(fail, thing).exception(PATIENCE) is not None
        del thing
        assert gone() is None
    finally:
        gc.enable()


def test_a_notebook_shows_how_far_a_job_is() -> None:
    """Its state, a bar, and the error of one that failed, as text."""
    with dispatcher(FakeSpark()) as dock:

        def fail(session: FakeSpark) -> None:
            raise ValueError("<b>")

        lane = dock.lane("acme")
        lane.pause()
        failing, done = lane.submit(fail), lane.submit(lambda session: 1)
        assert failing._repr_html_().startswith("<div>waiting <progress")
        lane.resume()
        wait([failing, done], PATIENCE)
        assert "failed: ValueError(&#x27;&lt;b&gt;&#x27;)" in failing._repr_html_()
        assert done._repr_html_().startswith('<div>done <progress value="1.000"')
        assert "acme" in dock._repr_html_()
