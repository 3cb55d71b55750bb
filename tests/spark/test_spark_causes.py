"""The cause of a failure in Spark is found in one place, whatever has wrapped it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from spark_parts_support import _environment, is_cancellation

from multiqueue.spark import FanInError, SparkDispatcher, cause_of, fan_in, is_transient

RESULT_LOST = """An error occurred while calling o125.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Exception while getting task result: \
TaskResultLost (result lost from block manager)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:3122)
\t... 21 more
"""
READ = """An error occurred while calling o98.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/t.gz.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:855)
Caused by: java.io.EOFException: Unexpected end of input stream
\t... 23 more
"""
CRASHED = """An error occurred while calling o83.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0: org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:687)
Caused by: java.io.EOFException
\t... 21 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:3122)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\t... 1 more
Caused by: java.io.EOFException
\t... 21 more
"""
WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "job.py", line 3, in risky
    raise OSError("bad luck")
OSError: bad luck
"""


class Py4JJavaError(Exception):
    """Its text is Py4J's."""


def from_(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            Py4JJavaError(RESULT_LOST),
            "SparkException: Job aborted due to stage failure: Exception while getting task result: TaskResultLost "
            "(result lost from block manager)",
        ),
        (
            Py4JJavaError(READ),
            "SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/t.gz.; "
            "caused by EOFException: Unexpected end of input stream",
        ),
        (
            Py4JJavaError(CRASHED),
            "SparkException: Job aborted due to stage failure: Lost task 0.0: org.apache.spark.SparkException: "
            "Python worker exited unexpectedly (crashed).",
        ),
        (PythonException(WORKER), "PythonException: OSError: bad luck"),
        (AnalysisException("[X] no column\nplan\n\nJVM stacktrace:\nx"), "AnalysisException: [X] no column"),
        (
            from_(ValueError("no rows"), Py4JJavaError(READ)),
            "ValueError: no rows; caused by EOFException: Unexpected end of input stream",
        ),
        (KeyError(), "KeyError"),
    ],
    ids=["result lost", "truncated file", "worker crashed", "python", "analysis", "a user's own", "without words"],
)
def test_the_cause_is_told_in_one_line(error: BaseException, told: str) -> None:
    """The first exception that says something, and the last one if that says more; no call, no wait, no stack."""
    assert cause_of(error) == told


def test_an_error_that_is_its_own_cause_and_one_without_text_end() -> None:
    """A chain that leads back, and Py4J's error of a JVM that is gone, have a cause in one line too."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert cause_of(first) == "ValueError: first; caused by ValueError: second"
    assert cause_of(Unprintable()) == "Unprintable"


@pytest.mark.parametrize(
    ("error_class", "message"),
    [
        ("SPARK_JOB_CANCELLED", "[SPARK_JOB_CANCELLED] Job 0 cancelled as part of cancellation of all jobs"),
        (
            "OPERATION_CANCELED",
            "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled.",
        ),
    ],
)
def test_spark_connect_has_two_words_for_a_cancelled_job(
    need_module: Callable[[str, str], None], error_class: str, message: str
) -> None:
    """A cancel of all jobs, of one job or by Ctrl-C is told as a job's, one by a tag as an operation's."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    from pyspark.errors.exceptions.connect import PythonException, SparkException

    assert is_cancellation(SparkException(message, errorClass=error_class))
    assert not is_cancellation(PythonException(f"a worker's traceback that says {message}"))
    assert not is_cancellation(ValueError(message))


def test_a_servers_stack_trace_has_the_cause(need_module: Callable[[str, str], None]) -> None:
    """Spark Connect's error says what was read, and the server's stack trace, why it could not be; both are told."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    from pyspark.errors.exceptions.connect import SparkException

    trace = (
        "org.apache.spark.SparkException\n\tat org.apache\nCaused by: java.io.EOFException: Unexpected end\n\tat java"
    )
    error = SparkException("[FAILED_READ_FILE] reading file", server_stacktrace=trace, display_server_stacktrace=True)
    assert cause_of(error) == "SparkException: [FAILED_READ_FILE] reading file; caused by EOFException: Unexpected end"
    trace += "\nCaused by: java.net.ConnectException: Connection refused\n\tat java"
    assert is_transient(SparkException("reading file", server_stacktrace=trace))


@pytest.mark.spark
def test_a_truncated_file_is_told_wherever_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A fan-in of rows, one of Arrow and a job of the dispatcher say which file it was and what is wrong with it."""
    whole = gzip.compress(b"".join(b"%d,x%d\n" % (row, row * 7919) for row in range(20_000)))
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    frame = spark.read.csv(str(tmp_path), schema="a int, b string")
    told = []
    batches: Any
    for batches in ("rows", "arrow"):
        with pytest.raises(FanInError) as caught, fan_in({"cut": frame}, batches=batches) as fan:
            for _ in fan:
                pass
        told.append(str(caught.value))
    with SparkDispatcher(spark, 1) as dock:
        error = dock.submit(lambda _: frame.collect()).exception()
    assert error is not None
    for said in (*told, cause_of(error)):
        assert "cut.csv.gz" in said
        assert said.endswith("; caused by EOFException: Unexpected end of input stream"), said


@pytest.mark.spark
def test_a_worker_that_lacks_the_package_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python worker imports what streams and task events need; what it lacks is named, with what to install."""
    assert list(_environment._check_executor(spark)) == []

    def probe(batches: Any) -> Any:  # goes to the worker by value
        import no_such_package  # type: ignore[import-not-found] # noqa: F401

        yield from batches

    monkeypatch.setattr(_environment, "_probe", probe)
    (found,) = _environment._check_executor(spark)
    assert found.level == "warning"
    assert "PythonException: ModuleNotFoundError: No module named 'no_such_package'; install blocking" in found.message
