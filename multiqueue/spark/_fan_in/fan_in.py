"""Many DataFrames read at once, each into a bounded sub-queue of one multi-queue: their rows as they come.

Promise     Every row (or Arrow batch) of every source is handed out once, with its source's name, in the order in which
            the source is read. Sources of a priority take turns; those of a lower number go first. A consumer that
            stops makes the readers stop, and Spark behind them in a classic session. Closing, an exception in
            `with`, or letting go of it cancels the jobs and leaves no thread.
            A source's failure is handed out after what the source gave before: `FanInError`, with its name.
State       `_starting` guards `_futures` and `_close` until they are set; `_Sources._lock` guards `_left`. The elements
            wait in the multi-queue; the readers are items of a dispatcher of the fan-in's own. None of these refers to
            the `FanIn`, so that one which is dropped is gone at once.
Lock order  Each alone.
Waiting     Readers wait for room in their sub-queue: a take makes it, and the multi-queue's shutdown ends the wait.
            The consumer waits for an element; the end of the last source shuts the multi-queue down, and it is drained
            before the consumer sees the end.
Membership  A source counts until its future has ended and its failure, if any, is in its sub-queue.
            At interpreter exit open fan-ins are closed, before the executor waits for readers that have no taker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from ..._locks import Lock
from ...core import LinkedBlockingMultiQueue, MultiQueueStatistics, SubQueue
from ...errors import ShutDown
from .._backend.backend import is_connect
from .._backend.causes import cause_of
from .._backend.errors import FanInError
from .._backend.progress import Progress
from .._dispatch.dispatcher import SparkDispatcher
from .._dispatch.future import SparkFuture
from .._dispatch.options import at_least_one
from .budget import Budget
from .opened import opened
from .reading import Pace, record_batches, require_frame, rows

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, Row

K = TypeVar("K")
E = TypeVar("E")

# Of the heap of Spark's driver: what its jobs may bring at a time, of which it has up to eight copies for a moment, and
# what may wait in this process, which often has a tenth of the heap's memory.
COMPUTED, HELD, HELD_AT_LEAST = 1 / 8, 1 / 16, 256 * 2**20
# Elements of each source. A row of some hundred bytes, a batch of at most 10,000 rows (Spark's default).
CAPACITY = {"rows": 10_000, "arrow": 4}
READ: dict[str, Callable[[Any, Pace], Iterator[Any]]] = {"rows": rows, "arrow": record_batches}


@overload
def fan_in(
    frames: Mapping[K, DataFrame],
    *,
    priorities: Mapping[K, int] | None = None,
    capacity: int | None = None,
    batches: Literal["rows"] = "rows",
    max_running: int | None = None,
    max_bytes: int | None = None,
    prefetch: bool = True,
) -> FanIn[K, Row]: ...


@overload
def fan_in(
    frames: Mapping[K, DataFrame],
    *,
    priorities: Mapping[K, int] | None = None,
    capacity: int | None = None,
    batches: Literal["arrow"],
    max_running: int | None = None,
    max_bytes: int | None = None,
    prefetch: bool = True,
) -> FanIn[K, pa.RecordBatch]: ...


def fan_in(
    frames: Mapping[K, DataFrame],
    *,
    priorities: Mapping[K, int] | None = None,
    capacity: int | None = None,
    batches: Literal["rows", "arrow"] = "rows",
    max_running: int | None = None,
    max_bytes: int | None = None,
    prefetch: bool = True,
) -> FanIn[K, Any]:
    """The rows of many DataFrames as they arrive: iterate over `(name, row)`, best inside `with`.

    With `batches="arrow"` it is `(name, pyarrow.RecordBatch)`: many times faster, and needs pyarrow. Each source has a
    sub-queue of `capacity` elements (10,000 rows, or 4 batches); lower numbers in `priorities` are handed out first, 0
    where none is given. At most `max_running` sources are read at the same time, by default all of them.

    Nothing runs before `with` or the first `next`. In a classic session a source is computed two partitions at a time,
    with `prefetch=False` one, and no further while these wait for you. The sources together have at most `max_bytes` on
    their way to you, by default a sixteenth of the heap of Spark's driver, at least 256 MiB, and have Spark compute at
    most an eighth of that heap at a time. Beyond these come the first partition of a source, whose size is unknown
    before (at most as many as Spark has cores), and a partition that is larger alone: while Spark's driver takes one
    in, it needs up to eight times its bytes. So with a heap of 1 GiB no partition should be larger than 100 MB;
    `repartition` makes smaller ones, and `max_running` lets fewer sources begin together. On Spark Connect the server
    computes each source to its end and keeps unfetched rows: there only `max_running` bounds it.

    Raises:
        ValueError: a number is less than 1, a priority is for no source, a DataFrame is a streaming one, they are of
            different sessions of Spark Connect, or `batches` is something else.
        TypeError: a source is no DataFrame of Spark, or an argument is no mapping, no number or no bool.
    """
    if batches not in list(READ):
        raise ValueError(f"batches is {batches!r}; it is 'rows' or 'arrow'")
    if not isinstance(prefetch, bool):
        raise TypeError(f"prefetch must be True or False, not {prefetch!r}; max_running and max_bytes are the numbers")
    for what, given in (("frames", frames), ("priorities", priorities or {})):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must be a mapping by the sources' names, not {type(given).__name__}")
    settings = _Settings(
        batches,
        CAPACITY[batches] if capacity is None else capacity,
        max(len(frames), 1) if max_running is None else max_running,
        max_bytes,
        2 if prefetch else 1,
    )
    return FanIn(dict(frames), dict(priorities or {}), settings)


@dataclass(frozen=True, slots=True)
class _Settings:
    batches: str
    capacity: int
    max_running: int
    max_bytes: int | None
    at_once: int


class FanIn(Generic[K, E]):
    """An iterator over `(name, element)`; made by `fan_in`.

    Any thread may take the next element, several at the same time too. `next` blocks until some source has one. After a
    `FanInError` the other sources can be read on.
    """

    def __init__(self, frames: dict[K, DataFrame], priorities: dict[K, int], settings: _Settings) -> None:
        _check(frames, priorities, settings)
        self._frames = frames
        self._settings = settings
        self._queue: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue()
        self._priorities = {name: priorities.get(name, 0) for name in frames}
        self._subqueues = {
            name: self._queue.add_subqueue(name, priority, settings.capacity)
            for name, priority in self._priorities.items()
        }
        self._starting = Lock()
        self._futures: dict[K, SparkFuture[None]] | None = None  # None: not started
        self._close: Callable[[], object] = self._queue.shutdown

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[K, E]:
        if self._futures is None:
            self._start()
        try:
            taken = self._queue.take()
        except ShutDown:
            self.close()
            raise StopIteration from None
        name: Any = taken.subqueue.key
        element = taken.item
        if type(element) is _Failure:
            raise element.named(name)
        return name, element

    def close(self) -> None:
        """Cancel running jobs, drop rows not taken, and wait until Spark has stopped. A second call does nothing."""
        with self._starting:
            if self._futures is None:
                self._futures = {}
                self._queue.shutdown(immediate=True)
        self._close()

    def progress(self) -> dict[K, Progress]:
        """How far Spark is with each source that was begun, as `SparkFuture.progress`."""
        return {name: future.progress() for name, future in list((self._futures or {}).items())}

    def statistics(self) -> MultiQueueStatistics:
        """The items that wait and that were taken, source by source: a snapshot."""
        return self._queue.statistics()

    def _start(self) -> None:
        with self._starting:
            if self._futures is not None:
                return
            self._futures = {}
            if not self._frames:
                self._queue.shutdown()
                return
            spark = next(iter(self._frames.values())).sparkSession
            dispatcher = SparkDispatcher(spark, self._settings.max_running)
            budget = _budget(spark, self._settings.max_bytes)
            self._close = partial(_close, self._queue, budget, dispatcher)
        opened(self, _let_go, self._queue, budget, dispatcher)
        try:
            self._submit(dispatcher, budget, self._futures)
        except BaseException as error:
            was_closed = self._queue.is_shutdown and isinstance(error, RuntimeError)  # meanwhile, by another thread
            self.close()
            if not was_closed:
                raise

    def _submit(self, dispatcher: SparkDispatcher, budget: Budget, futures: dict[K, SparkFuture[None]]) -> None:
        sources = _Sources(self._queue, len(self._frames))
        read = READ[self._settings.batches]
        for name, frame in self._frames.items():
            lane = dispatcher.lane(("fan-in", name), self._priorities[name])
            subqueue = self._subqueues[name]
            pace = Pace(budget, self._priorities[name], self._settings.at_once)
            futures[name] = lane.submit(_read, partial(read, frame, pace), subqueue)
            futures[name].add_done_callback(partial(sources.ended, subqueue))


class _Failure:
    """The last element of a source that failed."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def named(self, name: Any) -> FanInError:
        error = FanInError(name, f"source {name!r} of the fan-in failed: {cause_of(self._error)}")
        error.__cause__ = self._error
        return error


class _Sources:
    """Counts the sources that may still give something."""

    def __init__(self, queue: LinkedBlockingMultiQueue[Any], count: int) -> None:
        self._queue = queue
        self._lock = Lock()
        self._left = count

    def ended(self, subqueue: SubQueue[Any], future: SparkFuture[None]) -> None:
        """A source's future has ended. In its reader's thread, which may wait for room as the reader did."""
        if not future.cancelled() and (error := future.exception()) is not None:
            with contextlib.suppress(ShutDown):
                subqueue.put(_Failure(error))
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._queue.shutdown()


def _budget(spark: Any, max_bytes: int | None) -> Budget:
    if is_connect(spark):
        return Budget(1, 1, 1)  # no job of ours fetches anything
    heap = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
    held = max(int(heap * HELD), HELD_AT_LEAST) if max_bytes is None else max_bytes
    return Budget(held, int(heap * COMPUTED), spark.sparkContext.defaultParallelism)


def _read(_: object, read: Callable[[], Iterator[Any]], subqueue: SubQueue[Any]) -> None:
    """The job that the dispatcher runs for a source."""
    put = subqueue.put
    elements = read()
    try:
        for element in elements:
            put(element)
    except ShutDown:
        return  # the fan-in was closed
    finally:
        close = getattr(elements, "close", None)
        if close is not None:
            close()


def _check(frames: Mapping[K, DataFrame], priorities: Mapping[K, int], settings: _Settings) -> None:
    at_least_one("max_running", settings.max_running)
    if settings.max_bytes is not None:
        at_least_one("max_bytes", settings.max_bytes)
    if unknown := [name for name in priorities if name not in frames]:
        raise ValueError(f"priorities has {unknown[0]!r}, which is none of the sources {list(frames)}")
    for name, frame in frames.items():
        require_frame(f"source {name!r}", frame)
        if frame.isStreaming:
            raise ValueError(f"source {name!r} is a streaming DataFrame; it has no end to be read to: use writeStream")
    sessions = {id(frame.sparkSession) for frame in frames.values() if is_connect(frame.sparkSession)}
    if len(sessions) > 1:
        raise ValueError("the sources are of different sessions of Spark Connect; make one fan-in for each session")


def _close(queue: LinkedBlockingMultiQueue[Any], budget: Budget, dispatcher: SparkDispatcher) -> None:
    queue.shutdown(immediate=True)  # first: readers that wait for room leave
    budget.close()
    dispatcher.abandon()


def _let_go(queue: LinkedBlockingMultiQueue[Any], budget: Budget, dispatcher: SparkDispatcher) -> None:
    """As `_close`, without waiting: this may run in any thread, wherever garbage is collected."""
    queue.shutdown(immediate=True)
    budget.close()
    dispatcher.cancel()
    dispatcher.shutdown(wait=False)
