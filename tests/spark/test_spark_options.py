"""Timeouts, deadlines, retries. Without Spark."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest
from spark_parts_support import Alarm, Alarms
from spark_support import Cancelled, FakeSpark, dispatcher

from multiqueue.spark import Retry, SparkDeadlineMissed, SparkJobTimeout, SparkSessionStopped, is_transient
from multiqueue.testing import PATIENCE, wait_until_blocked

AT_ONCE = Retry(attempts=3, first_pause=0.0)
LATER = Retry(attempts=3, first_pause=3600.0, max_pause=3600.0)


class Flaky:
    """A function that fails so many times with what is worth another attempt."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    def __call__(self, session: FakeSpark) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error(self.calls)
        return "done"


def test_a_job_that_runs_too_long_is_cancelled_in_spark() -> None:
    """After its timeout Spark is asked to end the job, and the future ends with a `TimeoutError` that says so.

    (spark 5)
    """
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.lane("eu", timeout=0.05).submit(FakeSpark.job)
        error = future.exception(PATIENCE)
        assert isinstance(error, SparkJobTimeout)
        assert isinstance(error, TimeoutError)
        assert "job 'eu: FakeSpark.job' ran longer than its timeout of 0.05 s" in str(error)
        assert isinstance(error.__cause__, Cancelled)
        assert not future.cancelled()
        assert spark.asked


def test_a_job_of_a_lane_can_have_a_timeout_of_its_own() -> None:
    """`with_options` is the same lane with other options; a bound of the lane is taken away by None."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        lane = dock.lane("a", timeout=3600.0)
        hasty = lane.with_options(timeout=0.05)
        assert isinstance(hasty.submit(FakeSpark.job).exception(PATIENCE), SparkJobTimeout)
        assert lane.options.timeout == 3600.0
        assert hasty.with_options(timeout=None).options.timeout is None
        hasty.pause()
        assert lane.paused
        lane.resume()


def test_a_job_that_ends_in_time_leaves_no_alarm() -> None:
    """A timeout costs nothing after the job's end: no thread waits for it."""
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("a", timeout=3600.0, start_within=3600.0)
        assert lane.submit(lambda session: 1).result(PATIENCE) == 1
        wait_until_blocked(lambda: not any("alarms" in thread.name for thread in threading.enumerate()))


def test_a_cancel_after_the_timeout_counts_more() -> None:
    """A job that is being timed out and is cancelled as well ends cancelled."""
    spark = FakeSpark()
    go_on = threading.Event()

    def two_jobs(session: FakeSpark) -> None:
        assert go_on.wait(PATIENCE)
        session.job()

    with dispatcher(spark) as dock:
        future = dock.lane("a", timeout=0.05).submit(two_jobs)
        wait_until_blocked(lambda: bool(spark.asked))
        assert future.cancel()
        go_on.set()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)


def test_a_result_after_the_timeout_stands() -> None:
    """A function that returns although it was timed out has its result."""
    spark = FakeSpark()
    go_on = threading.Event()
    with dispatcher(spark) as dock:
        future = dock.lane("a", timeout=0.05).submit(lambda session: go_on.wait(PATIENCE))
        wait_until_blocked(lambda: bool(spark.asked))
        go_on.set()
        assert future.result(PATIENCE) is True


def test_a_job_that_has_not_begun_by_its_deadline_ends() -> None:
    """A waiting job's deadline ends it with an error of its own, in a paused lane too; its place is free (spark 5)."""
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("eu", capacity=1, start_within=0.05)
        lane.pause()
        future = lane.submit(lambda session: pytest.fail("ran"))
        error = future.exception(PATIENCE)
        assert isinstance(error, SparkDeadlineMissed)
        assert isinstance(error, TimeoutError)
        assert "had not begun 0.05 s after its submit" in str(error)
        assert not future.cancel()
        assert lane.qsize() == 0


def test_no_job_begins_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is faster than the alarm does not call a function whose time is over."""
    monkeypatch.setattr(Alarms, "at", lambda self, moment, action: Alarm(self, moment, action))  # never rings
    monkeypatch.setattr(Alarms, "turn_off", lambda self, alarm: None)
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("a")
        lane.pause()
        hasty = lane.with_options(start_within=1e-9)
        future = hasty.submit(lambda session: pytest.fail("ran"))
        lane.resume()
        assert isinstance(future.exception(PATIENCE), SparkDeadlineMissed)


def test_a_running_job_has_no_deadline() -> None:
    """The deadline is for the begin: a job that has begun runs on."""
    spark = FakeSpark()
    go_on = threading.Event()
    with dispatcher(spark) as dock:
        future = dock.lane("a", start_within=60.0).submit(lambda session: go_on.wait(PATIENCE))
        wait_until_blocked(future.running)
        future.expire("not said")
        go_on.set()
        assert future.result(PATIENCE) is True


def test_what_may_pass_is_tried_again() -> None:
    """A failure that is worth it is followed by another attempt, up to `attempts`, in the same place (spark 9)."""
    flaky = Flaky(2)
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("a", retry=AT_ONCE)
        future = lane.submit(flaky)
        assert future.result(PATIENCE) == "done"
        assert flaky.calls == future.attempts == 3
        assert lane.statistics().retries == 2


def test_the_last_attempts_error_is_the_jobs() -> None:
    """When no attempt is left, the future raises what the last one raised."""
    with dispatcher(FakeSpark()) as dock:
        error = dock.lane("a", retry=AT_ONCE).submit(Flaky(9)).exception(PATIENCE)
    assert isinstance(error, ConnectionError)
    assert error.args == (3,)


@pytest.mark.parametrize("error", [ValueError, Cancelled])
def test_what_does_not_pass_is_not_tried_again(error: type[Exception]) -> None:
    """The user's own errors, and a job cancelled in Spark, are final (spark 9)."""
    flaky = Flaky(9, error)
    with dispatcher(FakeSpark()) as dock:
        assert dock.lane("a", retry=AT_ONCE).submit(flaky).exception(PATIENCE) is not None
    assert flaky.calls == 1


def test_a_stopped_session_is_not_tried_again() -> None:
    """A stop is final, even if everything is to be tried again."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.lane("a", retry=Retry(when=lambda error: True)).submit(FakeSpark.job)
        spark.wait_until_active()
        spark.stop()
        assert isinstance(future.exception(PATIENCE), SparkSessionStopped)
        assert future.attempts == 1


def test_who_decides_can_be_given() -> None:
    """`when` is asked of each failure; if it fails itself, that is logged and the job's error is final."""
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("a", retry=Retry(first_pause=0.0, when=lambda error: isinstance(error, ValueError)))
        assert lane.submit(Flaky(1, ValueError)).result(PATIENCE) == "done"
        assert isinstance(lane.submit(Flaky(1, KeyError)).exception(PATIENCE), KeyError)
        broken = lane.with_options(retry=Retry(when=lambda error: bool(1 / 0)))
        assert isinstance(broken.submit(Flaky(1)).exception(PATIENCE), ConnectionError)


def test_a_job_between_two_attempts_can_be_cancelled() -> None:
    """A cancel ends the pause, and the job ends cancelled."""
    flaky = Flaky(9)
    with dispatcher(FakeSpark()) as dock:
        future = dock.lane("a", retry=LATER).submit(flaky)
        wait_until_blocked(lambda: flaky.calls == 1)
        assert future.running()
        future.cancel()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)


def test_the_timeout_covers_the_pauses() -> None:
    """A job whose time is over between two attempts ends with the timeout, from its last error."""
    with dispatcher(FakeSpark()) as dock:
        error = dock.lane("a", retry=LATER, timeout=0.05).submit(Flaky(9)).exception(PATIENCE)
    assert isinstance(error, SparkJobTimeout)
    assert isinstance(error.__cause__, ConnectionError)


def test_pauses_grow_up_to_a_bound() -> None:
    """Pauses are multiplied up to the greatest one, shortened by at most a half, and end with the attempts."""
    retry = Retry(attempts=5, first_pause=1.0, factor=10.0, max_pause=50.0)
    assert [retry.pause(failed) for failed in range(1, 6)] == [1.0, 10.0, 50.0, 50.0, None]
    assert all(5.0 <= retry.shortened(10.0) <= 10.0 for _ in range(100))
    assert Retry(attempts=10_000, factor=10.0).pause(9_000) == 60.0


@pytest.mark.parametrize(
    "settings", [{"attempts": 0}, {"first_pause": -1.0}, {"factor": 0.5}, {"max_pause": -1.0}], ids=str
)
def test_a_wrong_retry_is_refused(settings: dict[str, Any]) -> None:
    """Numbers that make no sense are refused."""
    with pytest.raises(ValueError, match="must"):
        Retry(**settings)


@pytest.mark.parametrize("settings", [{"timeout": 0.0}, {"start_within": -1.0}], ids=str)
def test_a_wrong_bound_is_refused(settings: dict[str, Any]) -> None:
    """A bound of no time is refused, and no lane is made."""
    with dispatcher(FakeSpark()) as dock:
        with pytest.raises(ValueError, match="must be more than 0 seconds"):
            dock.lane("a", **settings)
        assert not dock.lanes


class PythonException(Exception):
    """As pyspark's: an exception of the user's in a Python worker."""


class SparkException(Exception):
    """As pyspark's."""


for _class in (PythonException, SparkException):
    _class.__module__ = "pyspark.errors.exceptions.captured"

LOST = (
    "Job aborted due to stage failure: ... Most recent failure: Lost task 0.3: ExecutorLostFailure (executor 1 exited)"
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SparkException(LOST), True),
        (SparkException("ShuffleMapStage 5 has failed: org.apache.spark.shuffle.FetchFailedException"), True),
        (SparkException("Python worker exited unexpectedly (crashed)"), True),
        (SparkException("Division by zero"), False),
        (SparkException("Division by zero\n\tat org.FetchFailedException.get"), False),
        (PythonException("ConnectionError: Connection refused"), False),
        (ConnectionResetError(), True),
        (ValueError("Connection refused"), False),
    ],
    ids=str,
)
def test_failures_worth_another_attempt(error: Exception, expected: bool) -> None:
    """Lost executors and workers, failed fetches and cut connections may pass; analysis and Python errors do not.

    (spark 9)
    """
    assert is_transient(error) is expected


def test_the_cause_of_a_failure_counts() -> None:
    """An error raised from a lost executor may pass; one raised from a Python error in a worker may not."""
    wrapped = ValueError("my step failed")
    wrapped.__cause__ = SparkException(LOST)
    assert is_transient(wrapped)
    wrapped.__cause__ = PythonException(LOST)
    assert not is_transient(wrapped)
