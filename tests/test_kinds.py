"""Whatever an argument is, an error names it and says what it was and is to be; nothing fails later or from deep."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from multiqueue import MultiQueueExecutor
from multiqueue.broker import Broker, PreconditionFailed
from multiqueue.observe import Tracing, log_lanes, show_progress
from multiqueue.store import SqliteStore

# What is right of these for a parameter is no part of the test.
WRONG: dict[str, Any] = {"None": None, "5": 5, "'x'": "x", "b'x'": b"x", "[]": [], "object()": object()}
NUMBER, TEXT, FUNCTION, PATH = {"5"}, {"'x'"}, set[str](), {"'x'"}
Call = Callable[[Any], object]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.declare_queue("q")
        yield broker


def refused(call: Call, name: str, right: set[str]) -> None:
    """Each value that is not right is refused at once, with the argument's name."""
    for shown, value in WRONG.items():
        if shown in right:
            continue
        with pytest.raises(
            (TypeError, ValueError, PreconditionFailed), match=rf"\b{name}\b.*(it is|is [^ ]+, |must be |is needed)"
        ):
            call(value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *((name, FUNCTION) for name in ("clock", "wall_clock")),
        ("on_alert", {"None"}),
        ("data", {"None", *PATH}),
        ("on_store_failure", FUNCTION),
        ("housekeeping_interval", NUMBER),
        ("consumer_timeout", {"None", *NUMBER}),
    ],
)
def test_a_broker(name: str, right: set[str]) -> None:
    """A broker is not made with what it would fail on later."""
    refused(lambda value: Broker(**{name: value}), name, right)


def test_verbs_of_a_broker(broker: Broker) -> None:
    """What is called, how many and how long are asked about before anything is done."""
    refused(lambda value: broker.consume("q", value), "callback", FUNCTION)
    refused(lambda value: broker.consume("q", print, on_error=value), "on_error", {"None"})
    refused(lambda value: broker.declare_exchange("e", arguments=value), "arguments", {"None"})
    for verb in (
        lambda **options: broker.consume("q", print, **options),
        lambda **options: broker.subscribe("q", **options),
    ):
        refused(lambda value, verb=verb: verb(prefetch=value), "prefetch", {"None", *NUMBER})  # type: ignore[misc]
        refused(lambda value, verb=verb: verb(prefetch_bytes=value), "prefetch_bytes", {"None", *NUMBER})  # type: ignore[misc]
    with broker.subscribe("q") as subscription:
        refused(lambda value: subscription.get(value), "timeout", {"None", *NUMBER})
        refused(lambda value: subscription.get_many(value, 0), "most", NUMBER)
        refused(lambda value: subscription.accept(value), "a message to settle", set())
    refused(lambda value: broker.wait_for_commits(value), "timeout", {"None", *NUMBER})
    refused(lambda value: broker.close(value), "timeout", {"None", *NUMBER})
    refused(lambda value: broker.delete_virtual_host("/", value), "timeout", {"None", *NUMBER})
    assert not broker.is_closed


def test_a_store(tmp_path: Path) -> None:
    """A store is in a directory, which a path names."""
    refused(SqliteStore, "path", PATH)
    refused(lambda value: SqliteStore(tmp_path, max_pending_bytes=value), "max_pending_bytes", NUMBER)


def test_what_observes() -> None:
    """Executors, futures, and how often they are looked at."""
    done: Future[int] = Future()
    done.set_result(1)
    refused(log_lanes, "executor", set())  # type: ignore[arg-type]
    refused(show_progress, "futures", {"[]"})  # type: ignore[arg-type]
    refused(lambda value: show_progress([done], every=value, to=io.StringIO()), "every", {"None", *NUMBER})
    refused(lambda value: show_progress([done], to=value), "to", {"None"})


def test_traces() -> None:
    """A connection, an executor and a message that are none."""
    pytest.importorskip("opentelemetry")
    tracing = Tracing()
    refused(tracing.client, "connection", set())
    refused(tracing.executor, "executor", set())
    refused(lambda value: tracing.received(value, "q"), "message", set())


def test_a_map_of_an_executor() -> None:
    """The numbers of `map` are asked about before anything is submitted."""
    with MultiQueueExecutor(1) as executor:
        lane = executor.lane("a")
        refused(lambda value: lane.map(int, [1], buffersize=value), "buffersize", {"None", *NUMBER})
        refused(lambda value: lane.map(int, [1], timeout=value), "timeout", {"None", *NUMBER})


def test_spark(need_module: Callable[[str, str], None], tmp_path: Path) -> None:
    """What options, pools and causes are made of."""
    need_module("pyspark", "pyspark is not installed: pip install 'blocking-multiqueue[spark]'")
    from multiqueue import spark

    for name in ("first_pause", "factor", "max_pause"):
        refused(lambda value, name=name: spark.Retry(**{name: value}), name, NUMBER)  # type: ignore[misc]
    refused(lambda value: spark.Retry(when=value), "when", FUNCTION)
    for name in ("timeout", "start_within"):
        refused(lambda value, name=name: spark.JobOptions(**{name: value}), name, {"None", *NUMBER})  # type: ignore[misc]
    refused(lambda value: spark.JobOptions(retry=value), "retry", {"None"})
    refused(lambda value: spark.SchedulerPool(value), "name", TEXT)
    refused(lambda value: spark.SchedulerPool("a", weight=value), "weight", NUMBER)
    refused(lambda value: spark.SchedulerPool("a", min_share=value), "min_share", NUMBER)
    refused(lambda value: spark.SchedulerPool("a", mode=value), "mode", set())
    refused(lambda value: spark.pools_xml(value, tmp_path), "pools", {"[]"})
    refused(lambda value: spark.pools_xml([], value), "directory", {"None", *PATH})
    refused(spark.session_builder, "app_name", TEXT)
    refused(spark.cause_of, "error", set())  # type: ignore[arg-type]
    refused(spark.is_transient, "error", set())  # type: ignore[arg-type]
    refused(lambda value: spark.fan_in({}, batches=value), "batches", set())


def test_a_pipeline(need_module: Callable[[str, str], None], tmp_path: Path) -> None:
    """A configuration, where it is, and what runs by it."""
    need_module("rich", "rich is not installed: pip install 'blocking-multiqueue[cli]'")
    from multiqueue import pipeline

    refused(pipeline.load_config, "path", PATH)
    refused(lambda value: pipeline.parse_config(value, tmp_path), "values", set())
    refused(lambda value: pipeline.parse_config({}, value), "base", set())
    refused(lambda value: pipeline.parse_config({}, tmp_path, text=value), "text", TEXT)
    refused(pipeline.plan_of, "config", set())  # type: ignore[arg-type]
    refused(lambda value: pipeline.run_pipeline(value, pipeline.Silent()), "config", set())
    refused(lambda value: pipeline.MetricsFile(value, pipeline.Silent()), "path", PATH)
    refused(lambda value: pipeline.MetricsFile(tmp_path, pipeline.Silent(), value), "clock", FUNCTION)


def test_a_client(need_module: Callable[[str, str], None], broker: Broker) -> None:
    """Delivery tags, names of queues and what is called at an end."""
    need_module("pamqp", "pamqp is not installed: pip install 'blocking-multiqueue[amqp]'")
    from multiqueue.client import UnknownDelivery, connect

    with connect(broker) as connection, connection.channel() as channel:
        for settle in (channel.basic_ack, channel.basic_nack, channel.basic_reject):
            refused(settle, "delivery_tag", NUMBER)  # type: ignore[arg-type]
        with pytest.raises(UnknownDelivery):
            channel.basic_ack(5)
        refused(channel.basic_get, "queue", TEXT)  # type: ignore[arg-type]
        refused(lambda value: channel.basic_consume("q", print, on_ended=value), "on_ended", {"None"})
    with pytest.raises(TypeError, match="b'x' is no address such as 'amqp://localhost', and no broker of this process"):
        connect(b"x")
