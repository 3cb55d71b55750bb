"""What a trace and a log record say of an item of the dispatcher."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from spark_support import dispatcher

from multiqueue.observe import LogContext, Tracing, log_lanes

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.mark.spark
def test_an_item_is_a_span_with_its_spark_jobs(
    spark: Any, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """Its lane, attempts and jobs as Spark's UI numbers them; its records say lane and item. (monitor 14)"""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    context = LogContext()
    caplog.handler.addFilter(context)
    request.addfinalizer(lambda: caplog.handler.removeFilter(context))

    def count(session: Any) -> int:
        logging.getLogger("shop").warning("counting")
        return int(session.range(3).count())

    with dispatcher(spark) as dock:
        Tracing(provider).executor(dock)
        log_lanes(dock)
        future = dock.lane("acme").submit(count)
        assert future.result() == 3
        expected = tuple(dock.job_ids(future.tag))
    (span,) = exporter.get_finished_spans()
    assert expected
    assert span.name.startswith("acme ")
    assert span.attributes is not None
    assert span.attributes["spark.job_ids"] == expected
    assert span.attributes["multiqueue.attempts"] == 1
    (record,) = caplog.records
    assert (record.__dict__["lane"], record.__dict__["item"]) == ("acme", count.__qualname__)
