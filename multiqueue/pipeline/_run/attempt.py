"""One attempt at one item, in the thread the dispatcher gives it: work, then what the output makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .._base.items import Item
from .._read.corrupt import count_records
from .._write.output import Output
from .._write.places import beside
from .mailbox import Message, Met, Started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = Callable[[Any, Item, Path], bool]
"""Works on an item with the session; whether it wrote something into the directory it was given."""

Meet = Callable[[Any, Item], Item]
"""The item, about to be worked on, with its files as they are now."""


class DispatcherLane(Protocol):
    """A lane of `multiqueue.spark.SparkDispatcher` as the runner sees it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]: ...
    def clear(self) -> int: ...


class Dispatcher(Protocol):
    """A `multiqueue.spark.SparkDispatcher` as the runner sees it. `fn` is called as `fn(spark)`."""

    def lane(
        self,
        key: str,
        priority: int = 0,
        capacity: int | None = None,
        *,
        max_in_flight: int | None = None,
        weight: int = 1,
        pool: str | None = None,
        timeout: float | None = None,
    ) -> DispatcherLane: ...
    def cancel_running(self) -> Any: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Attempts:
    """Makes the jobs that are submitted for items."""

    work: Work
    output: Output
    post: Callable[[Message], None]
    clock: Callable[[], float]
    meet: Meet

    def at(self, item: Item) -> Attempt:
        return Attempt(item, self)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Attempt:
    """The job that is submitted for an item. Its result is the item's files as they were read.

    The thread that runs it owns the attempt's own directories and nothing else; the ledger hears of it through
    the mailbox. When it is cancelled or fails before its output is in place, nothing of it is left.
    """

    item: Item
    _by: Attempts

    def __repr__(self) -> str:
        return self.item.name  # what Spark's own pages show as the job's description

    def __call__(self, spark: SparkSession) -> Met:
        by = self._by
        by.post(Started(self.item.seq, by.clock()))
        item = by.meet(spark, self.item)
        with by.output.attempt(item) as staged:
            has_output = by.work(spark, item, staged)
            corrupt = count_records(beside(staged))
            written = by.output.put_out(item, staged, has_output=has_output)
        return Met(item.files, corrupt, written)
