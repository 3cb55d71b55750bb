"""A program of a user's that asks every room for something, and says what type it gets. It is checked, never run.

`test_typing.py` has mypy and pyright check it, both as strictly as they can.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import assert_type

from pyspark.sql import Row, SparkSession

from multiqueue import Lane, MultiQueueExecutor
from multiqueue.broker import (
    Broker,
    BrokerQueue,
    Exchange,
    Message,
    Published,
    PullSubscription,
    QueueStatistics,
    Received,
    VirtualHost,
)
from multiqueue.client import Channel, Confirm, Connection, FairInbox, Inbox, connect
from multiqueue.client import Message as Delivered
from multiqueue.pipeline import PipelineConfig, load_config, run_pipeline
from multiqueue.spark import FanIn, Progress, SparkDispatcher, SparkFuture, SparkLane
from multiqueue.store import Commit, Put, SqliteStore
from multiqueue.testing import Sequencer, Threads


def executor(pool: MultiQueueExecutor) -> None:
    lane = pool.lane("small", capacity=10)
    assert_type(lane, Lane)
    assert_type(lane.submit(len, "four"), Future[int])
    assert_type(pool.submit(str.upper, "a").result(), str)
    lane.submit(len, 4)  # type: ignore[arg-type]


def broker() -> None:
    with Broker(data=Path("data")) as one:
        assert_type(one.virtual_host(), VirtualHost)
        assert_type(one.declare_exchange("shop", "topic"), Exchange)
        queue = one.declare_queue("orders", durable=True)
        assert_type(queue, BrokerQueue)
        assert_type(queue.statistics(), QueueStatistics)
        assert_type(one.publish(Message(b"tea", routing_key="orders")), Published)
        received = one.get("orders")
        assert_type(received, Received | None)
        if received is not None:
            assert_type(received.message, Message)
            assert_type(received.message.headers, Mapping[str, object])
        assert_type(one.subscribe("orders", prefetch=10), PullSubscription)
        one.declare_queue(7)  # type: ignore[arg-type]


def client(target: Broker) -> None:
    with connect(target) as connection, connection.channel() as channel:
        assert_type(connection, Connection)
        assert_type(channel, Channel)
        confirm = channel.publish_confirmed(b"tea", routing_key="orders")
        assert_type(confirm, Confirm)
        assert_type(confirm.result(1.0), None)
        got = channel.basic_get("orders")
        assert_type(got, Delivered | None)
        if got is not None:
            assert_type(got.body, bytes)
        inbox = channel.consume("orders")
        assert_type(inbox, Inbox)
        assert_type(inbox.get(1.0), Delivered)
        assert_type(connection.inbox("jobs.*", weights={"jobs.gold": 3}), FairInbox)
        channel.publish("text", routing_key="orders")  # type: ignore[arg-type]


def store(path: Path) -> None:
    with SqliteStore(path) as one:
        commit: Commit = one.submit([Put(1, b"", b"body")])
        assert_type(commit.wait(), bool)


def spark(session: SparkSession) -> None:
    with SparkDispatcher(session, 4) as dispatcher:
        lane = dispatcher.lane("reports")
        assert_type(lane, SparkLane)

        def job(spark: SparkSession, name: str) -> int:
            return len(name)

        assert_type(lane.submit(job, "a"), SparkFuture[int])


def fan_in(rows: FanIn[int, Row]) -> None:  # `fan_in` itself names pyarrow, which has no types
    assert_type(next(rows), tuple[int, Row])
    assert_type(rows.progress(), dict[int, Progress])


def pipeline(file: Path) -> None:
    config = load_config(file)
    assert_type(config, PipelineConfig)
    assert_type(config.output, Path)
    run_pipeline(config, 3)  # type: ignore[arg-type]


def testing() -> None:
    assert_type(Sequencer().passed(), list[str])
    with Threads() as threads:
        handle = threads.start(lambda: len("four"))
        assert_type(handle.result(), int)
