"""How a classic session's failures are read. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkRuntimeError, PythonException
from spark_parts_support import ClassicBackend, ConnectBackend, is_connect

from multiqueue.spark import SparkFuture, SparkSessionStopped


def session(java_context: Any) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java_context))


def java_error(message: str) -> Py4JJavaError:
    """What py4j makes of a Java exception, without a JVM."""
    java = SimpleNamespace(getMessage=lambda: message, getCause=lambda: None, _target_id="o1", _gateway_client=None)
    error = PrintedPy4JError.__new__(PrintedPy4JError)
    error.java_exception = java
    return error


class PrintedPy4JError(Py4JJavaError):
    """Py4J asks the JVM for the text."""

    def __str__(self) -> str:
        message = self.java_exception.getMessage()
        return f"An error occurred while calling o1.collect.\n: java.lang.NullPointerException: {message}\n\tat java"


def raised_by(module: str, error: Exception) -> Exception:
    """The error, raised in a module of that name."""
    try:
        exec("raise error", {"__name__": module, "error": error})
    except Exception as raised:  # noqa: BLE001
        return raised
    raise AssertionError


RUNNING = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
ERRORS = [AssertionError(), AttributeError("sc"), ConnectionRefusedError(), Py4JNetworkError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_symptoms_of_a_stop_need_a_stopped_session(error: Exception) -> None:
    """What PySpark raises in the middle of a stop means that, but is the item's own while the session lives."""
    assert ClassicBackend(session(None)).is_stop(error)
    assert not ClassicBackend(session(RUNNING)).is_stop(error)
    assert not ClassicBackend(session(None)).is_stop(ValueError())


def test_whatever_spark_raises_once_it_is_stopped_is_a_stop() -> None:
    """A null of Spark's, a session that "should be created first": the words are many, the stopped session counts."""
    nulls = java_error('Cannot invoke "DAGScheduler.runJob(...)" because "this.dagScheduler" is null')
    first = PySparkRuntimeError("[SESSION_OR_CONTEXT_NOT_EXISTS] SparkContext or SparkSession should be created first.")
    for error in (nulls, first, raised_by("pyspark.core.rdd", TypeError("'NoneType' object is not callable"))):
        assert ClassicBackend(session(None)).is_stop(error)
        assert not ClassicBackend(session(RUNNING)).is_stop(error)


def test_a_mistake_stays_one_when_the_session_is_stopped() -> None:
    """An analysis error, an error in a Python worker, and what the function itself raises arrive as they are."""
    for error in (AnalysisException("no column"), PythonException("ZeroDivisionError"), raised_by("mine", TypeError())):
        assert not ClassicBackend(session(None)).is_stop(error)


def test_cancelling_in_a_stopped_session_is_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """A function that goes on without Spark can not be cancelled: the log says so, without a traceback."""
    future: SparkFuture[None] = SparkFuture("t", ClassicBackend(session(None)).cancel, lambda tag: None)
    assert future.begin()
    future.cancel()
    assert future._asker is not None
    future._asker.join()
    future.leave(cancelled=True)
    (record,) = caplog.records
    assert "its function goes on: the Spark session was stopped" in record.getMessage()
    assert record.exc_info is None


def test_submitting_to_a_stopped_session_says_so() -> None:
    """What PySpark raises for a context that is gone becomes `SparkSessionStopped` at submit."""
    with pytest.raises(SparkSessionStopped, match="nothing can be submitted"):
        ClassicBackend(session(None)).inheriting(len)
    with pytest.raises(AttributeError, match="getLocalProperties"):  # not there, but the session runs
        ClassicBackend(session(RUNNING)).inheriting(len)


def test_a_session_of_spark_connect_is_known_as_one(need_module: Callable[[str, str], None]) -> None:
    """It has no SparkContext, not even as an attribute of its class, and is a session all the same."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    from pyspark.sql.connect.session import SparkSession

    assert is_connect(object.__new__(SparkSession))
    assert not is_connect(session(RUNNING))


def test_a_channel_that_a_stop_has_closed_is_a_stop(need_module: Callable[[str, str], None]) -> None:
    """On Connect a call in the moment of the stop, or under way, meets gRPC's closed channel; others are the item's."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    backend = ConnectBackend(cast("Any", SimpleNamespace(is_stopped=False)))
    channel = grpc.insecure_channel("127.0.0.1:1")
    channel.close()
    with pytest.raises(ValueError) as caught:
        channel.unary_unary("/service/method")(b"")
    assert backend.is_stop(caught.value)
    channel = grpc.insecure_channel("127.0.0.1:1")
    under_way = channel.unary_unary("/service/method").future(b"", wait_for_ready=True)
    channel.close()  # the client closes its channel, and only then says that it is closed
    assert backend.is_stop(SparkConnectGrpcException(str(under_way.exception())))
    gone = SparkConnectGrpcException(
        "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE"
    )
    assert backend.is_gone(gone)
    assert not backend.is_stop(gone)
    anew = SparkConnectGrpcException("[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid.")
    assert backend.is_stop(anew)
    assert not backend.is_gone(ValueError("StatusCode.UNAVAILABLE"))
    assert not backend.is_stop(ValueError("invoke"))


@pytest.mark.parametrize(
    ("answer", "is_stop"),
    [
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed.", True),
        ("[OPERATION_CANCELED] Operation has been canceled.", False),
        (None, False),
    ],
)
def test_a_cancellation_by_the_stop_of_the_session_is_a_stop(
    need_module: Callable[[str, str], None], answer: str | None, is_stop: bool
) -> None:
    """On Connect `stop()` cancels the jobs before the client is closed: of a cancelled job the server is asked why."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    def get(*_: object) -> None:
        if answer is not None:
            raise SparkConnectGrpcException(answer)

    backend = ConnectBackend(cast("Any", SimpleNamespace(is_stopped=False, conf=SimpleNamespace(get=get))))
    assert backend.is_stop(SparkConnectGrpcException("[OPERATION_CANCELED] Operation has been canceled.")) is is_stop
