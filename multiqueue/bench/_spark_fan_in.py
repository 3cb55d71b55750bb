"""Eight DataFrames read by one consumer: by `fan_in`, and as it is written by hand.

By hand is a thread for each DataFrame that puts into one bounded `queue.Queue`. `toArrow` has no bound: each DataFrame
is in the driver as a whole.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._model import Attempt, Figures, ItemsLost, Metric
from ._spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCES = 8
PARTITIONS = 4  # of each source
ROWS_HELD = 10_000  # by hand: what `fan_in` holds of each source
BATCHES_HELD = 4

ROW_RATE = Metric("rate", "rows/s")

Frames = dict[str, "DataFrame"]
Way = Callable[[Frames], Iterator[int]]
"""Reads all frames, and gives how many rows came at a time."""


@dataclass
class Reading:
    """n rows of `SOURCES` frames, read in some way. An `Attempt`."""

    n: int
    way: Way
    got: int = 0

    def run(self) -> Figures:
        frames, start = _frames(session(), self.n), time.perf_counter()
        for count in self.way(frames):
            self.got += count
        return {ROW_RATE.name: self.n / (time.perf_counter() - start)}

    def check(self) -> None:
        if self.got != self.n:
            raise ItemsLost(f"{self.got} of {self.n} rows came")

    def close(self) -> None:
        pass


def _frames(spark: SparkSession, n: int) -> Frames:
    def frame() -> DataFrame:
        numbers = spark.range(0, n // SOURCES, 1, PARTITIONS)
        return numbers.selectExpr("id", "id * 0.5 as half", "cast(id as string) as text")

    return {f"source {number}": frame() for number in range(SOURCES)}


def reading(way: Way, n: int) -> Attempt:
    session()
    return Reading(n, way)


def rows_by_fan_in(frames: Frames) -> Iterator[int]:
    from multiqueue.spark import fan_in

    with fan_in(frames, capacity=ROWS_HELD) as fan:
        for _ in fan:
            yield 1


def arrow_by_fan_in(frames: Frames) -> Iterator[int]:
    from multiqueue.spark import fan_in

    with fan_in(frames, capacity=BATCHES_HELD, batches="arrow") as fan:
        for _, batch in fan:
            yield batch.num_rows


def rows_by_iterators(frames: Frames) -> Iterator[int]:
    for _ in _by_threads(frames, lambda frame: frame.toLocalIterator(), ROWS_HELD):
        yield 1


def rows_by_prefetching_iterators(frames: Frames) -> Iterator[int]:
    for _ in _by_threads(frames, lambda frame: frame.toLocalIterator(prefetchPartitions=True), ROWS_HELD):
        yield 1


def arrow_by_tables(frames: Frames) -> Iterator[int]:
    for _, batch in _by_threads(frames, lambda frame: frame.toArrow().to_batches(), BATCHES_HELD):
        yield batch.num_rows


def _by_threads(frames: Frames, read: Callable[[DataFrame], Iterable[Any]], held: int) -> Iterator[tuple[str, Any]]:
    """The same written by hand. A failure is not looked for: the rows are counted."""
    elements: queue.Queue[tuple[str, Any] | None] = queue.Queue(held * len(frames))

    def body(name: str, frame: DataFrame) -> None:
        try:
            for element in read(frame):
                elements.put((name, element))
        finally:
            elements.put(None)

    threads = [threading.Thread(target=body, args=each, daemon=True) for each in frames.items()]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        element = elements.get()
        if element is None:
            left -= 1
        else:
            yield element
    for thread in threads:
        thread.join()
