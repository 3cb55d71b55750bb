"""Events of two running tasks to the driver: by `task_events`, and as it is written by hand.

By hand is a socket for each task, lines of JSON and one bounded `queue.Queue`, or a list accumulator of Spark. Neither
looks for a task that was run twice; the accumulator's values come when their task has ended, and have no bound.
"""

from __future__ import annotations

import json
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ._model import Attempt, Figures, ItemsLost, Metric
from ._spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASKS = 2
HELD = 1_000  # events, by hand
LOOK_AGAIN = 0.005  # seconds; no listener is told when an accumulator grows
EVENT_RATE = Metric("rate", "events/s")
FIRST = Metric("first", "s", "less")  # from the start of the job to the first event

Way = Callable[["DataFrame"], Iterator[Any]]
"""Runs a job whose tasks send their rows' ids, and gives them as they come."""


@dataclass
class Events:
    """n events of `TASKS` tasks, sent in some way. An `Attempt`."""

    n: int
    way: Way
    stop: Callable[[], object] = lambda: None
    seen: list[int] = field(default_factory=list)

    def run(self) -> Figures:
        frame, start = session().range(0, self.n, 1, TASKS), time.perf_counter()
        first = start
        for number in self.way(frame):
            if not self.seen:
                first = time.perf_counter()
            self.seen.append(number)
        return {EVENT_RATE.name: self.n / (time.perf_counter() - start), FIRST.name: first - start}

    def check(self) -> None:
        if sorted(self.seen) != list(range(self.n)):
            raise ItemsLost(f"{len(self.seen)} events of {self.n} came, {len(set(self.seen))} of them distinct")

    def close(self) -> None:
        self.stop()


def by_hand(way: Way, n: int) -> Attempt:
    session()
    return Events(n, way)


def by_task_events(commit: Literal["row", "task"], n: int) -> Attempt:
    from multiqueue.broker import Broker

    session()
    broker = Broker()
    server = broker.listen()

    def stop() -> None:
        server.close()
        broker.close()

    return Events(n, partial(_by_task_events, server.url, commit), stop)


def _by_task_events(url: str, commit: Literal["row", "task"], frame: DataFrame) -> Iterator[Any]:
    from multiqueue.spark import task_events

    def send(task: Any, rows: Iterator[Any]) -> None:
        for row in rows:
            task.send(row["id"])

    with task_events(frame, send, url, commit=commit) as events:
        for event in events:
            yield event.value


def by_socket(frame: DataFrame) -> Iterator[Any]:
    """A thread of the driver for each task reads its lines."""
    events: queue.Queue[int | None] = queue.Queue(HELD)
    ended = threading.Semaphore(0)

    class Lines(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                events.put(json.loads(line))
            ended.release()

    def job() -> None:
        try:
            frame.mapInArrow(run, "id bigint").collect()
            for _ in range(TASKS):
                ended.acquire()
        finally:
            events.put(None)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Lines) as server:
        port = server.server_address[1]

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("wb") as file:
                for batch in batches:
                    for row in batch.to_pylist():
                        file.write(b"%d\n" % row["id"])
                    yield batch.slice(0, 0)

        threads = threading.Thread(target=server.serve_forever, args=(0.01,)), threading.Thread(target=job)
        for thread in threads:
            thread.start()
        yield from iter(events.get, None)
        server.shutdown()
        for thread in threads:
            thread.join()


def by_accumulator(frame: DataFrame) -> Iterator[Any]:
    """Spark brings a task's list to the driver when the task has ended."""
    from pyspark.accumulators import AccumulatorParam

    class Joined(AccumulatorParam[list[int]]):
        def zero(self, value: list[int]) -> list[int]:
            return []

        def addInPlace(self, value1: list[int], value2: list[int]) -> list[int]:
            value1 += value2
            return value1

    arrived = frame.sparkSession.sparkContext.accumulator([], Joined())
    is_over = threading.Event()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for row in batch.to_pylist():
                arrived.add([row["id"]])
            yield batch.slice(0, 0)

    def job() -> None:
        try:
            frame.mapInArrow(run, "id bigint").collect()
        finally:
            is_over.set()

    running = threading.Thread(target=job)
    running.start()
    handed_out = 0
    while handed_out < len(arrived.value) or not is_over.wait(LOOK_AGAIN):
        values = arrived.value[handed_out:]
        handed_out += len(values)
        yield from values
    running.join()
