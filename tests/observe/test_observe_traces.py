"""OpenTelemetry's traces: a message's publish and its delivery, an executor's jobs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from multiqueue import MultiQueueExecutor
from multiqueue.broker import Broker
from multiqueue.client import connect
from multiqueue.observe import Tracing
from multiqueue.testing import PATIENCE


class Spans:
    """A provider, and the spans that have ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> Any:
        (found,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return found

    def all(self) -> list[str]:
        return sorted(span.name for span in self._exporter.get_finished_spans())


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


@pytest.fixture(params=["in process", "over a wire"])
def connection(request: pytest.FixtureRequest) -> Iterator[Any]:
    with Broker() as broker, connect(broker if request.param == "in process" else broker.listen().url) as connection:
        yield connection


def test_a_delivery_is_a_child_of_its_publish(connection: Any, spans: Spans) -> None:
    """The headers lead from one span to the other, as they would to another program; others stay. (monitor 14)"""
    Tracing(spans.provider).client(connection)
    channel = connection.channel()
    channel.queue_declare("orders")
    received = threading.Event()
    headers: list[Any] = []

    def serve(message: Any) -> None:
        headers.append(message.properties["headers"])
        message.ack()
        received.set()

    channel.basic_consume("orders", serve)
    with spans.provider.get_tracer("shop").start_as_current_span("order"):
        channel.publish(b"tea", routing_key="orders", headers={"table": 4})
    assert received.wait(PATIENCE)
    connection.close()
    order, publish, process = (spans.named(name) for name in ("order", "orders publish", "orders process"))
    assert publish.parent.span_id == order.context.span_id
    assert process.parent.span_id == publish.context.span_id
    assert headers[0]["table"] == 4
    assert headers[0]["traceparent"].split("-")[1] == f"{order.context.trace_id:032x}"
    assert publish.attributes["messaging.rabbitmq.destination.routing_key"] == "orders"


def test_a_get_and_a_confirmed_publish_are_traced_too(connection: Any, spans: Spans) -> None:
    """A message that comes without headers begins a trace of its own. (monitor 14)"""
    plain = connection.channel()
    plain.queue_declare("orders")
    plain.publish(b"plain", routing_key="orders")
    tracing = Tracing(spans.provider)
    tracing.client(connection)
    tracing.client(connection)  # twice is once
    channel = connection.channel()
    channel.publish_confirmed(b"tea", routing_key="orders").result(PATIENCE)
    assert [channel.basic_get("orders", auto_ack=True).body for _ in range(2)] == [b"plain", b"tea"]
    assert channel.basic_get("orders") is None
    assert spans.all() == ["orders publish", "orders receive", "orders receive"]


def test_an_item_is_a_span_below_the_one_that_submitted_it(spans: Spans) -> None:
    """It is the current one in the job; failures are told; what follows it is not in it. (monitor 14)"""
    tracer = spans.provider.get_tracer("shop")

    def fail() -> None:
        with tracer.start_as_current_span("inside"):
            raise ValueError("no tea")

    with MultiQueueExecutor(1) as executor:
        Tracing(spans.provider).executor(executor)
        lane = executor.lane("acme")
        lane.pause()  # it begins after its submitter has come back
        with tracer.start_as_current_span("order"):
            future = lane.submit(fail)
        lane.resume()
        assert isinstance(future.exception(), ValueError)
        executor.submit(int).result()
    order, job, inside = (spans.named(name) for name in ("order", f"acme {fail.__qualname__}", "inside"))
    after = spans.named("default int")
    assert job.parent.span_id == order.context.span_id
    assert inside.parent.span_id == job.context.span_id
    assert after.parent is None
    assert job.status.description == "ValueError: no tea"
    assert job.attributes["multiqueue.lane"] == "acme"


def test_an_item_whose_submitter_comes_back_while_its_span_begins_is_linked_to_it(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too late to be a child, and not forgotten."""
    begins, came_back, begin = threading.Event(), threading.Event(), Tracing.begin

    def slow(tracing: Tracing, *arguments: Any) -> Any:
        begins.set()
        came_back.wait(PATIENCE)
        return begin(tracing, *arguments)

    monkeypatch.setattr(Tracing, "begin", slow)
    monkeypatch.setattr(Tracing, "current", _after(begins, Tracing.current))
    with MultiQueueExecutor(1) as executor:
        Tracing(spans.provider).executor(executor)
        with spans.provider.get_tracer("shop").start_as_current_span("order"):
            future = executor.submit(int)
            came_back.set()
        future.result()
    (link,) = spans.named("default int").links
    assert link.context.span_id == spans.named("order").context.span_id


def _after(event: threading.Event, function: Callable[..., Any]) -> Callable[..., Any]:
    def late(*arguments: Any) -> Any:
        event.wait(PATIENCE)
        return function(*arguments)

    return late


def test_a_program_that_does_not_trace_loads_none_of_it() -> None:
    """Nothing imports OpenTelemetry, and a channel has its class's methods. (monitor 14)"""
    code = (
        "import sys, multiqueue.client, multiqueue.observe, multiqueue.broker\n"
        "with multiqueue.broker.Broker() as b, multiqueue.client.connect(b) as c:\n"
        "    assert 'publish' not in vars(c.channel())\n"
        "print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
