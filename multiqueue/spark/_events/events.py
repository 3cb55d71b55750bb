"""Running tasks push values and progress to the driver before their job ends, through a queue of a broker.

Promise     docs/design/task-events.md, which also says how much is held where, and who waits for what.
State       `_Run._starting` guards `_is_started` and `_ends`. The ledger and the progress are the iterating thread's.
            `_Run` does not refer to its `TaskEvents`, so that one which is dropped is gone at once.
Membership  The queue is exclusive to the driver's connection and goes with it: tasks of a driver that is gone learn
            from the broker that the queue is gone.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..._locks import Lock
from .._backend.causes import cause_of
from .._backend.errors import TaskEventsError
from .._dispatch.dispatcher import SparkDispatcher
from .._dispatch.future import SparkFuture
from .._dispatch.options import at_least_one
from .._fan_in.opened import opened
from .._fan_in.reading import require_frame
from .ledger import Commit, Ledger, TaskEvent
from .sender import HEARTBEAT, Chunk, Route, TaskSender, read, run_task, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOGGER = logging.getLogger("multiqueue.spark")

CAPACITY = 64  # messages in the broker's queue, of 256 KiB and a value at most: 16 MiB
PREFETCH = 8  # messages on their way to the consumer: enough to hide a round trip
OVER = -1  # the partition of the message that says that the job has ended
OVER_AGAIN = 0.05  # seconds between two attempts of the job's thread to get it into a full queue


class TaskProgress(NamedTuple):
    """How far a partition's task is, in the words of its last message: `done` of `total`, as the task counts.

    `attempt` is Spark's number of the run that said so; it may start at 0 again. It has sent `values` values.
    """

    partition: int
    attempt: int
    done: int | None
    total: int | None
    values: int
    is_finished: bool


@dataclass(frozen=True, slots=True)
class TaskEventsStatistics:
    """The counts of events up to now. `refused` messages had a wrong token or were none of ours; they are logged."""

    handed_out: int
    duplicates: int
    refused: int
    finished_partitions: int


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

    `fn(task, rows)` has the rows of its partition as dicts, and sends what JSON can say. The job is run here, by a
    separate action.

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
    route = Route(task_url or url, f"multiqueue.task-events.{secrets.token_hex(16)}", secrets.token_hex(32))
    return TaskEvents(_Run(frame, fn, url, capacity, route, Ledger(commit), on_progress))


class TaskEvents:
    """An iterator over `TaskEvent`; made by `task_events`. One thread iterates; any may close it."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        opened(self, run.let_go)

    def __enter__(self) -> Self:
        self._run.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TaskEvent:
        self._run.start()
        try:
            return next(iter(()) if self._run.is_closed.is_set() else self._run.events)
        except BaseException:  # its end, or a failure
            self.close()
            raise

    def close(self) -> None:
        """Cancel the job, drop values not taken, and wait until Spark has stopped. A second call does nothing."""
        self._run.close()

    def progress(self) -> dict[int, TaskProgress]:
        """How far each partition is, by the messages taken from the queue up to now: a snapshot."""
        return dict(self._run.progress)

    def statistics(self) -> TaskEventsStatistics:
        """The counts of events up to now: a snapshot."""
        ledger = self._run.ledger
        return TaskEventsStatistics(ledger.handed_out, ledger.duplicates, self._run.refused, len(ledger.finished))


@dataclass(eq=False)
class _Run:
    """A job, its queue, and what came through it."""

    _frame: DataFrame
    _fn: Callable[[TaskSender, Iterator[Any]], object]
    _url: str
    _capacity: int
    route: Route
    ledger: Ledger
    _on_progress: Callable[[TaskProgress], object] | None

    def __post_init__(self) -> None:
        self.progress: dict[int, TaskProgress] = {}
        self.refused: int = 0
        self.is_closed: threading.Event = threading.Event()
        self.events: Iterator[TaskEvent] = iter(())
        self._starting = Lock()
        self._is_started = False
        self._ends: list[Callable[[], object]] = []  # each may be called twice

    def start(self) -> None:
        """Connect and submit the job, once. A start that `close` overtook is undone here."""
        from ...client import connect

        with self._starting:
            if self._is_started or self.is_closed.is_set():
                return
            self._is_started = True
        dispatcher = SparkDispatcher(self._frame.sparkSession, 1)
        ends: list[Callable[[], object]] = [dispatcher.abandon]
        try:
            name = f"task-events {self.route.queue}"
            connection = connect(self._url, name=name, heartbeat=HEARTBEAT, recover=False, threads=1)
            # Cancel first: or tasks that learn that the driver has left fail, and are run again.
            ends[:0] = [dispatcher.cancel, connection.close]
            channel = connection.channel()
            channel.basic_qos(PREFETCH)
            limits = {"x-max-length": self._capacity, "x-overflow": "reject-publish"}
            channel.queue_declare(self.route.queue, exclusive=True, arguments=limits)
            inbox = channel.consume(self.route.queue, exclusive=True)
            future = dispatcher.lane("task-events").submit(lambda _: self._job(connection.channel()))
            self.events = self._events(inbox, future)
            with self._starting:
                self._ends = ends
        except BaseException:
            _call(ends)
            raise
        if self.is_closed.is_set():
            _call(ends)

    def close(self) -> None:
        self.is_closed.set()
        with self._starting:
            ends = self._ends
        _call(ends)

    def let_go(self) -> None:
        """As `close`, without waiting or a lock of ours: this may run wherever garbage is collected."""
        if self._ends and not self.is_closed.is_set():
            threading.Thread(target=self.close, name="multiqueue-task-events-end").start()

    def _job(self, channel: Any) -> set[int]:
        """Run the job, then put "over" into the queue as soon as it has room; the partitions."""
        from ...client import Closed, Nacked

        fn, route = self._fn, self.route

        def run(batches: Iterator[Any]) -> Iterator[Any]:  # goes to the workers
            return run_task(fn, route, batches)

        try:
            return {row.partition for row in self._frame.mapInArrow(run, "partition int").collect()}
        finally:
            over = written(Chunk(OVER), route.token)
            while not self.is_closed.is_set():
                try:
                    channel.publish_confirmed(b"", routing_key=route.queue, **over).result()
                    break
                except Nacked:
                    self.is_closed.wait(OVER_AGAIN)
                except Closed:
                    break  # the consumer is told of it by the connection's end

    def _events(self, inbox: Any, future: SparkFuture[set[int]]) -> Iterator[TaskEvent]:
        """The values, until the job and all that it sent are through."""
        from ...client import Closed

        try:
            while True:
                message = inbox.get()
                try:
                    chunk = read(message.properties, message.body, self.route.token)
                except (TypeError, ValueError) as error:
                    self.refused += 1
                    LOGGER.warning("a message in %r was refused: %s", message.routing_key, error)
                else:
                    if chunk.partition == OVER:
                        break
                    is_late = chunk.partition in self.ledger.finished
                    yield from self.ledger.take(chunk)
                    if not is_late:
                        self._tell(chunk)
                message.ack()
        except Closed as error:
            if self.is_closed.is_set():
                return
            raise TaskEventsError(
                f"the connection to the broker was lost while tasks ran: {error}; the values so far are "
                "right, but not all; run it again"
            ) from error
        finally:
            self.ledger.close()
        try:
            partitions = future.result()
        except Exception as error:
            raise TaskEventsError(f"the job failed: {cause_of(error)}") from error
        if missing := sorted(partitions - self.ledger.finished):
            raise TaskEventsError(
                f"the job succeeded, but the end of {len(missing)} of {len(partitions)} partitions never came, first "
                f"of partition {missing[0]}: the broker dropped messages of the queue; run it again"
            )

    def _tell(self, chunk: Chunk) -> None:
        """Keep, and report, how far a partition is."""
        done, total = chunk.done, chunk.total
        known = self.progress.get(chunk.partition)
        if done is None and known is not None and known.attempt == chunk.attempt:
            done, total = known.done, known.total
        values = chunk.first + chunk.count
        now = TaskProgress(chunk.partition, chunk.attempt, done, total, values, chunk.is_end)
        self.progress[chunk.partition] = now
        if self._on_progress is not None and (chunk.done is not None or now.is_finished):
            self._on_progress(now)


def _call(ends: list[Callable[[], object]]) -> None:
    for end in ends:
        end()
