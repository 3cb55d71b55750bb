"""Running tasks push values and progress to the driver before their job ends, through a queue of a broker.

Promise     Every value that a partition's task sends is handed out once, in its order, however often the task was
            run: `_task_events_ledger`. The end of the iteration means that all partitions are complete; a failed job,
            a lost broker and a lost message raise `TaskEventsError` instead. What is held is bounded: `capacity`
            messages in the broker's queue, `PREFETCH` here, 1 MiB in each task; then tasks wait. In commit="task" runs
            that have not ended wait in temporary files.
            Closing, an exception in `with`, or letting go of it cancels the job and leaves no thread.
State       `_starting` guards `_elements`, `_close` and `_finalizer`. `_Stream` is the iterating thread's alone,
            but for its multi-queue: the client's thread puts messages in, closing shuts it down.
Lock order  Each alone.
Waiting     The consumer waits for a message. The last is "over", which the job's thread sends when the job has ended,
            behind all that its tasks sent; the end of the broker's consumer puts one in as well; closing shuts down.
            The job's thread waits for Spark, then for room for "over": a take makes it, and closing ends the wait.
Membership  The queue is exclusive to the driver's connection and goes with it: tasks of a driver that is gone are told
            by the broker that there is no queue of this name.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ..._locks import Lock
from ...core import LinkedBlockingMultiQueue
from ...errors import ShutDown
from .._backend.causes import cause_of
from .._backend.errors import TaskEventsError
from .._dispatch.dispatcher import SparkDispatcher
from .._dispatch.future import SparkFuture
from .._dispatch.options import at_least_one
from .._fan_in.reading import require_frame
from .ledger import EventLedger, TaskEvent, TaskProgress, ledger_for
from .sender import HEARTBEAT, Route, TaskSender, run_task
from .wire import Chunk, Refused, read, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOGGER = logging.getLogger("multiqueue.spark")

CAPACITY = 64  # messages in the broker's queue, of 256 KiB at most, or one larger value: 16 MiB
PREFETCH = 8  # messages on their way to the consumer: enough to hide a round trip
OVER_AGAIN = 0.05  # seconds between two attempts of the job's thread to get "over" into a full queue

Commit = Literal["task", "row"]
Job = Callable[[], dict[int, int]]


def task_events(
    frame: DataFrame,
    fn: Callable[[TaskSender, Iterator[Any]], object],
    url: str,
    *,
    commit: Commit = "task",
    capacity: int = CAPACITY,
    task_url: str | None = None,
    on_progress: Callable[[TaskProgress], object] | None = None,
) -> TaskEvents:
    """The events of one Spark job's tasks while they run: iterate over `(partition, sequence, value)`, inside `with`.

        def convert(task, rows):          # runs on executors, once for each partition of the frame
            for row in rows:
                task.send({"id": row["id"]})

        with Broker() as broker, broker.listen() as server, task_events(frame, convert, server.url) as events:
            for event in events: ...

    `fn(task, rows)` has the rows of its partition as dicts, and sends what JSON can say. The job is run here, by an
    action of its own.

    With `commit="task"` the values of a partition are handed out when a run of its task has ended, and those of failed
    runs never. With `commit="row"` they are handed out as they come; the task must then give the same values in the
    same order each time it is run. In both, a run that is repeated, speculative or orphaned adds nothing.

    `url` is a broker's, ours or RabbitMQ, as `multiqueue.client.connect` takes it; executors dial `task_url` if that is
    another. At most `capacity` messages wait in its queue, then tasks wait. `on_progress` is called by the iterating
    thread with what `task.progress` said, in both modes as it comes. Executors need the extras spark and amqp.

    Raises:
        ValueError: a setting is none of the above, or `frame` is a streaming DataFrame.
        TypeError: `frame` is no DataFrame.
        ImportError: `blocking-multiqueue[amqp]` is not installed.
    """
    if commit not in ("task", "row"):
        raise ValueError(f"commit is {commit!r}; it is 'task' or 'row'")
    at_least_one("capacity", capacity)
    require_frame("frame", frame)
    if frame.isStreaming:
        raise ValueError("a streaming DataFrame has no end to be run to: use writeStream")
    try:
        from ... import client  # noqa: F401 - asked for here so that its absence is said in one sentence
    except ImportError as error:
        raise ImportError(f"task_events needs the client ({error}): install blocking-multiqueue[amqp]") from None
    return TaskEvents(frame, fn, _Settings(url, task_url or url, commit, capacity), on_progress)


@dataclass(frozen=True, slots=True)
class _Settings:
    url: str
    task_url: str
    commit: Commit
    capacity: int


@dataclass(frozen=True, slots=True)
class TaskEventsStatistics:
    """The counts of events up to now. `refused` messages had a wrong token or were none of ours; they are logged."""

    handed_out: int
    duplicates: int
    refused: int
    finished_partitions: int


class TaskEvents:
    """An iterator over `TaskEvent`; made by `task_events`. One thread iterates; any may close it."""

    def __init__(
        self,
        frame: DataFrame,
        fn: Callable[[TaskSender, Iterator[Any]], object],
        settings: _Settings,
        on_progress: Callable[[TaskProgress], object] | None,
    ) -> None:
        self._frame = frame
        self._fn = fn
        self._settings = settings
        self._starting = Lock()
        token = secrets.token_hex(32)
        self._route = Route(settings.task_url, f"multiqueue.task-events.{secrets.token_hex(16)}", token)
        self._stream = _Stream(token, ledger_for(settings.commit), on_progress)
        self._elements: Iterator[TaskEvent] | None = None  # None: not started
        self._close: Callable[[], object] = self._stream.close
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TaskEvent:
        elements = self._elements or self._start()
        try:
            return next(elements if not self._stream.is_closed else iter(()))
        except BaseException:  # its end, or a failure
            self.close()
            raise

    def close(self) -> None:
        """Cancel the job if it runs, drop what was not taken, and wait until Spark has stopped. Twice is harmless."""
        with self._starting:
            self._elements = self._elements or iter(())
            close, finalizer = self._close, self._finalizer
        close()
        if finalizer is not None:
            finalizer.detach()

    def progress(self) -> dict[int, TaskProgress]:
        """How far each partition is, by what was taken from the queue up to now: a snapshot."""
        return self._stream.progress()

    def statistics(self) -> TaskEventsStatistics:
        """The counts of events up to now: a snapshot."""
        return self._stream.statistics()

    def _start(self) -> Iterator[TaskEvent]:
        """Connect and submit the job, once. What is closed meanwhile is undone here."""
        with self._starting:
            if self._elements is not None:
                return self._elements
            self._elements = iter(())
        dispatcher = SparkDispatcher(self._frame.sparkSession, 1)
        try:
            line = _Line(self._settings, self._route, self._stream)
        except BaseException:
            dispatcher.shutdown()
            raise
        ours = (self._stream, line, dispatcher)
        try:
            job = _job(self._frame, self._fn, self._route)
            future = dispatcher.lane("task-events").submit(_run, job, line)
        except BaseException:
            _close(*ours)
            raise
        with self._starting:
            is_closed = self._stream.is_closed
            if not is_closed:
                self._close = partial(_close, *ours)
                self._finalizer = weakref.finalize(self, _let_go, *ours)
                self._finalizer.atexit = False
                self._elements = self._stream.elements(future)
        if is_closed:
            _close(*ours)
        else:
            _open.add(self)
        return self._elements


class _Stream:
    """Messages in, values out."""

    def __init__(self, token: str, ledger: EventLedger, on_progress: Callable[[TaskProgress], object] | None) -> None:
        self._token = token
        self._ledger = ledger
        self._on_progress = on_progress
        self._queue: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue()
        self._messages = self._queue.add_subqueue("messages")  # bounded by the consumer's prefetch
        self._progress: dict[int, TaskProgress] = {}
        self._refused = 0

    def arrived(self, message: Any) -> None:
        """A message, or the error that ended the consumer. In a thread of the client's."""
        with contextlib.suppress(ShutDown):
            self._messages.put(message)

    def ended(self, error: Exception | None) -> None:
        """The consumer has ended, by us if there is no error. In a thread of the client's."""
        if error is not None:
            self.arrived(error)

    @property
    def is_closed(self) -> bool:
        return self._queue.is_shutdown

    def close(self) -> None:
        self._queue.shutdown(immediate=True)

    def progress(self) -> dict[int, TaskProgress]:
        return dict(self._progress)

    def statistics(self) -> TaskEventsStatistics:
        finished = sum(each.is_finished for each in list(self._progress.values()))
        return TaskEventsStatistics(self._ledger.handed_out, self._ledger.duplicates, self._refused, finished)

    def elements(self, future: SparkFuture[dict[int, int]]) -> Iterator[TaskEvent]:
        """The values, until the job and all that it sent are through. Ends as well when the queue is shut down."""
        try:
            while True:
                message = self._queue.get()
                if isinstance(message, Exception):
                    raise TaskEventsError(
                        f"the connection to the broker was lost while tasks ran: {message}; the values so far are "
                        "right, but not all; run it again"
                    ) from message
                chunk = self._read(message)
                if chunk is not None and chunk.kind == "over":
                    break
                if chunk is not None:
                    yield from self._take(chunk)
                self._acknowledge(message)
            self._check_end(future)
        except ShutDown:
            return  # closed
        finally:
            self._ledger.close()

    def _acknowledge(self, message: Any) -> None:
        from ...client import Closed

        with contextlib.suppress(Closed):  # what ended it comes behind the messages, unless it was our `close`
            message.ack()

    def _read(self, message: Any) -> Chunk | None:
        try:
            return read(message.properties, message.body, self._token)
        except (Refused, ValueError) as error:
            self._refused += 1
            LOGGER.warning("a message in %r was refused: %s", message.routing_key, error)
            return None

    def _take(self, chunk: Chunk) -> Iterator[TaskEvent]:
        was_finished = self._ledger.given(chunk.partition) is not None
        try:
            yield from self._ledger.take(chunk)
        except Refused as error:
            raise TaskEventsError(f"partition {chunk.partition} sent a message that cannot be read: {error}") from error
        if not was_finished:
            self._tell(chunk)

    def _tell(self, chunk: Chunk) -> None:
        """Keep, and report, how far a partition is."""
        given = self._ledger.given(chunk.partition)
        known = self._progress.get(chunk.partition)
        done, total = chunk.done, chunk.total
        if done is None and known is not None and (known.attempt == chunk.attempt or given is not None):
            done, total = known.done, known.total
        values = given if given is not None else chunk.first + chunk.count
        now = TaskProgress(chunk.partition, chunk.attempt, done, total, values, given is not None)
        self._progress[chunk.partition] = now
        if self._on_progress is not None and (chunk.done is not None or now.is_finished):
            self._on_progress(now)

    def _check_end(self, future: SparkFuture[dict[int, int]]) -> None:
        """The job has ended: it must not have failed, and all its partitions must be here."""
        try:
            partitions = future.result()
        except Exception as error:
            raise TaskEventsError(f"the job failed: {cause_of(error)}") from error
        missing = sorted(partition for partition in partitions if self._ledger.given(partition) is None)
        if missing:
            raise TaskEventsError(
                f"the job succeeded, but the end of {len(missing)} of {len(partitions)} partitions never came, first "
                f"of partition {missing[0]}: the broker dropped messages of the queue; run it again"
            )


class _Line:
    """The driver's connection: its queue, its consumer, and a channel to say "over" on."""

    def __init__(self, settings: _Settings, route: Route, stream: _Stream) -> None:
        from ...client import connect

        self._route = route
        self._closed = threading.Event()
        self._connection = connect(
            settings.url, name=f"task-events {route.queue}", heartbeat=HEARTBEAT, recover=False, threads=1
        )
        try:
            channel = self._connection.channel()
            channel.basic_qos(PREFETCH)
            limits = {"x-max-length": settings.capacity, "x-overflow": "reject-publish"}
            channel.queue_declare(route.queue, exclusive=True, arguments=limits)
            channel.basic_consume(route.queue, stream.arrived, exclusive=True, on_ended=stream.ended)
            self._speaker = self._connection.channel()
        except BaseException:
            self._connection.close()
            raise

    def say_over(self) -> None:
        """Put "over" into the queue, as soon as it has room."""
        from ...client import Closed, Nacked

        properties = written(Chunk("over"), self._route.token)
        while not self._closed.is_set():
            try:
                self._speaker.publish_confirmed(b"", routing_key=self._route.queue, **properties).result()
                return
            except Nacked:
                self._closed.wait(OVER_AGAIN)
            except Closed:
                return  # the consumer is told of it by the connection's end

    def close(self) -> None:
        self._closed.set()
        self._connection.close()


def _job(frame: DataFrame, fn: Callable[[TaskSender, Iterator[Any]], object], route: Route) -> Job:
    """The action: values by partition."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:  # goes to the workers
        return run_task(fn, route, batches)

    sent = frame.mapInArrow(run, "partition int, count bigint")
    return lambda: {row.partition: row["count"] for row in sent.collect()}


def _run(_: object, job: Job, line: _Line) -> dict[int, int]:
    """The job that the dispatcher runs."""
    try:
        return job()
    finally:
        line.say_over()


def _close(stream: _Stream, line: _Line, dispatcher: SparkDispatcher) -> None:
    stream.close()
    dispatcher.cancel()  # first: or tasks that learn that the driver has left fail, and are run again
    line.close()
    dispatcher.abandon()


def _let_go(stream: _Stream, line: _Line, dispatcher: SparkDispatcher) -> None:
    """As `_close`, without waiting: this may run in any thread, wherever garbage is collected."""
    stream.close()
    dispatcher.cancel()
    threading.Thread(target=_close, args=(stream, line, dispatcher), name="multiqueue-task-events-end").start()


_open: weakref.WeakSet[TaskEvents] = weakref.WeakSet()


def _close_at_exit() -> None:
    for events in list(_open):
        events.close()


# As the executor does, and after it: the hooks run in reverse order. docs/decisions/0201-exit-hook.md.
threading._register_atexit(_close_at_exit)  # type: ignore[attr-defined]
