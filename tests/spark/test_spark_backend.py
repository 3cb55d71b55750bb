"""How a classic session's failures are read. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from multiqueue.spark import SparkSessionStopped
from multiqueue.spark._classic import ClassicBackend


def session(java_context: Any) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java_context))


RUNNING = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
ERRORS = [AssertionError(), AttributeError("sc"), ConnectionRefusedError(), Py4JNetworkError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_symptoms_of_a_stop_need_a_stopped_session(error: Exception) -> None:
    """What PySpark raises in the middle of a stop means that, but is the item's own while the session lives."""
    assert ClassicBackend(session(None)).is_stop(error)
    assert not ClassicBackend(session(RUNNING)).is_stop(error)
    assert not ClassicBackend(session(None)).is_stop(ValueError())


def test_submitting_to_a_stopped_session_says_so() -> None:
    """What PySpark raises for a context that is gone becomes `SparkSessionStopped` at submit."""
    with pytest.raises(SparkSessionStopped, match="nothing can be submitted"):
        ClassicBackend(session(None)).inheriting(len)
    with pytest.raises(AttributeError, match="getLocalProperties"):  # not there, but the session runs
        ClassicBackend(session(RUNNING)).inheriting(len)


def test_a_channel_that_a_stop_has_closed_is_a_stop(need_module: Callable[[str, str], None]) -> None:
    """On Connect a call in the moment of the stop meets gRPC's closed channel; any other ValueError is the item's."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    import grpc

    from multiqueue.spark._connect import ConnectBackend

    backend = ConnectBackend(cast("Any", SimpleNamespace(is_stopped=False)))
    channel = grpc.insecure_channel("127.0.0.1:1")
    channel.close()
    with pytest.raises(ValueError) as caught:
        channel.unary_unary("/service/method")(b"")
    assert backend.is_stop(caught.value)
    assert not backend.is_stop(ValueError("invoke"))
