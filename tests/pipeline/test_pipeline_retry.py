"""What follows a failed attempt."""

from __future__ import annotations

import pytest
from pipeline_parts_support import Backoff, Verdict, describe, verdict

from multiqueue.pipeline import JobError, SessionLost


def of(module: str, name: str, base: type[Exception] = Exception) -> type[Exception]:
    """A class of this name, as it stands in a module."""
    return type(name, (base,), {"__module__": module})


PySparkException = of("pyspark.errors.exceptions.base", "PySparkException")
AnalysisException = of("pyspark.errors.exceptions.captured", "AnalysisException", PySparkException)
SparkSessionStopped = of("multiqueue.spark._backend.errors", "SparkSessionStopped")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("disk"), Verdict.MAY_PASS),
        (PySparkException("executor lost"), Verdict.MAY_PASS),
        (AnalysisException("no column"), Verdict.FOR_GOOD),
        (of("pyspark.errors.exceptions.connect", "ParseException", AnalysisException)("syntax"), Verdict.FOR_GOOD),
        (of("cleaning", "Strict", AnalysisException)("no column"), Verdict.FOR_GOOD),
        (JobError("returned int"), Verdict.FOR_GOOD),
        (SparkSessionStopped("stopped"), Verdict.SESSION_LOST),
        (SessionLost("stopped"), Verdict.SESSION_LOST),
        (of("py4j.protocol", "Py4JNetworkError")("no answer"), Verdict.SESSION_LOST),
        *((of("cleaning", name)("its own"), Verdict.MAY_PASS) for name in ("SessionLost", "StateMismatch", "JobError")),
        (of("multiqueue_jobs.errors", "SparkSessionStopped")("its own"), Verdict.MAY_PASS),
    ],
)
def test_kinds_of_failure(error: Exception, expected: Verdict) -> None:
    """Classic and Connect have classes of their own; their names, also of base classes, decide. An exception of the
    job's that only has such a name is one like any other."""
    assert verdict(error) is expected


@pytest.mark.parametrize(
    ("module", "expected"), [("py4j.clientserver", Verdict.SESSION_LOST), ("cleaning", Verdict.MAY_PASS)]
)
def test_whose_connection_is_refused(module: str, expected: Verdict) -> None:
    """A connection that the JVM refuses means that Spark is gone; one that a database refuses does not."""
    code = compile("raise ConnectionRefusedError(111, 'Connection refused')", module, "exec")
    with pytest.raises(ConnectionRefusedError) as caught:
        exec(code, {"__name__": module})
    assert verdict(caught.value) is expected


def test_the_names_are_those_of_the_room_spark() -> None:
    """The session error that is known by name is the one that the dispatcher raises."""
    spark = pytest.importorskip("multiqueue.spark")
    assert verdict(spark.SparkSessionStopped("stopped")) is Verdict.SESSION_LOST
    assert verdict(spark.SparkJobCancelled("by the UI")) is Verdict.MAY_PASS
    assert verdict(spark.SparkJobTimeout("too long")) is Verdict.MAY_PASS


def test_pauses() -> None:
    """Pauses grow by the factor up to the longest, and there is none after the last attempt."""
    backoff = Backoff(5, 1.0, 3.0, 10.0)
    assert [backoff.pause_s(failed) for failed in range(1, 6)] == [1.0, 3.0, 9.0, 10.0, None]
    assert Backoff(10**6, 1.0, 2.0, 60.0).pause_s(5000) == 60.0


def test_errors_are_told_without_the_java_stack() -> None:
    """An error keeps its type and message; Java's frames, and what is too long, go."""
    assert describe(ValueError("bad\n\tat org.apache.Spark\n\tat java")) == "ValueError: bad"
    assert describe(AnalysisException("no column\n\nJVM stacktrace:\nx")) == "AnalysisException: no column"
    assert describe(KeyError()) == "KeyError"
    called = "An error occurred while calling o7.load.\n: org.apache.spark.SparkException: no footer\n\tat org.apache"
    assert describe(ValueError(called)) == "SparkException: no footer"
    assert len(describe(ValueError("x" * 9999))) == 2000


def test_what_a_python_worker_raised_comes_first() -> None:
    """The first line of an error is what the job's function raised on an executor; the traceback follows."""
    told = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "job.py", line 3, in risky
    raise OSError("bad luck")
OSError: bad luck
"""
    text = describe(PySparkException(told))
    assert text.splitlines()[:2] == ["PySparkException: OSError: bad luck", told.splitlines()[0]]
    assert 'File "job.py"' in text
