"""The task's side: sends values to the driver while the task runs. In Spark's Python worker, on an executor.

Promise     Values arrive in the order of `send`, numbered from 0, none twice within a run; `finish` returns when the
            broker has all of them and the end. `send` waits while 1 MiB waits to be sent: a consumer that stands still
            makes the task stand still. A broker or driver that is gone makes the next `send`, or `finish`, raise, and
            so the task fail.
State       `_lock` guards all fields but the channel, which is the sending thread's alone.
Waiting     `_changed` is notified when values, progress or the end are added (the thread waits for that), and when some
            are on their way or it failed (`send` waits for that). The thread waits for the broker's answer, which
            comes, or the connection's end does: heartbeats see to it; and, when the queue is full, for a pause, which
            `_stop` ends.
Membership  One sender for one run of a task; its thread ends with `finish` or `abandon`, which join it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..._locks import Condition, Lock
from .._backend.errors import TaskEventsError
from .wire import Chunk, json_text, written

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PENDING_BYTES = 1 << 20  # what may wait in the task; enough for the next message while one is on its way
CHUNK_BYTES = 256 << 10  # of a message; a value that is larger goes alone
HEARTBEAT = 10.0  # seconds; a broker that is silent for two of these is gone
# Seconds between two attempts to put a message into a full queue: short at first, for one that is soon emptied.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.25


class Publisher(Protocol):
    """A channel as a sender uses it."""

    def publish(self, properties: dict[str, Any], body: bytes) -> bool:
        """Whether the broker has it; False when the queue is full. Raises when there is no broker or no driver."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the tasks of one action send to."""

    url: str
    queue: str
    token: str


class TaskSender:
    """The sender that a task's function gets. Any thread of the task may use it."""

    def __init__(self, publisher: Publisher, token: str, partition: int, attempt: int) -> None:
        self.partition = partition
        self.attempt = attempt
        self._publisher = publisher
        self._token = token
        self._sender = uuid.uuid4().hex
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._stop = threading.Event()
        # Invariant: the sizes of _pending are _pending_bytes; what is on its way is in neither.
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._count = 0  # values that were sent, pending ones included
        self._told: tuple[int, int | None] | None = None  # progress that is not on its way yet
        self._is_ending = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"multiqueue-task-{partition}", daemon=True)
        self._thread.start()

    def send(self, value: Any) -> None:
        """Send a value to the driver: what JSON can say. Blocks while too much waits.

        Raises:
            TypeError, ValueError: JSON has nothing for the value; nothing was sent.
            TaskEventsError: the broker or the driver is gone.
        """
        body = json_text(value)
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._pending_bytes < PENDING_BYTES)
            self._check_locked()
            self._pending.append(body)
            self._pending_bytes += len(body)
            self._count += 1
            self._changed.notify_all()

    def progress(self, done: int, total: int | None = None) -> None:
        """Tell the driver how far this task is, in its own units. Of several in a row the last one arrives.

        Raises:
            TaskEventsError: the broker or the driver is gone.
        """
        with self._changed:
            self._check_locked()
            self._told = (done, total)
            self._changed.notify_all()

    def finish(self) -> int:
        """Send what is left and the end; returns how many values there were, once the broker has all."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()
        with self._lock:
            self._check_locked()
            return self._count

    def abandon(self) -> None:
        """Send no more, and drop values that are not sent yet."""
        with self._changed:
            self._error = self._error or TaskEventsError(f"partition {self.partition}: the task has ended")
            self._changed.notify_all()
        self._stop.set()
        self._thread.join()

    def _check_locked(self) -> None:
        if self._error is not None:
            label = f"partition {self.partition} (attempt {self.attempt})"
            raise TaskEventsError(f"{label} can send nothing more: {self._error}") from self._error

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        first = 0
        try:
            while (chunk := self._next_chunk(first)) is not None:
                self._publish(chunk)
                first += chunk.count
                if chunk.kind == "end":
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is: `send` and `finish` raise it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _next_chunk(self, first: int) -> Chunk | None:
        """The next values to send, once there are some; None when nothing more is."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._told or self._is_ending or self._error)
            if self._error is not None:
                return None
            bodies = self._take_pending_locked()
            done, total = self._told or (None, None)
            self._told = None
            self._changed.notify_all()
        if not bodies:
            kind, first = ("progress", 0) if done is not None else ("end", first)
            return Chunk(kind, self.partition, self._sender, self.attempt, first, 0, done, total)  # type: ignore[arg-type]
        body = b"[" + b",".join(bodies) + b"]"
        return Chunk("values", self.partition, self._sender, self.attempt, first, len(bodies), done, total, body)

    def _take_pending_locked(self) -> list[bytes]:
        """The values of the next message."""
        size = count = 0
        for body in self._pending:
            if count and size + len(body) > CHUNK_BYTES:
                break
            size += len(body)
            count += 1
        bodies = self._pending[:count]
        del self._pending[:count]
        self._pending_bytes -= size
        return bodies

    def _publish(self, chunk: Chunk) -> None:
        properties = written(chunk, self._token)
        pause = SHORTEST_PAUSE
        while not self._publisher.publish(properties, chunk.body):
            if self._stop.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE)


class ChannelPublisher:
    """A `Publisher` over a channel of the client."""

    def __init__(self, connection: Any, queue: str) -> None:
        self._channel = connection.channel(on_returned=self._came_back)
        self._queue = queue
        self._is_gone = False

    def publish(self, properties: dict[str, Any], body: bytes) -> bool:
        from ...client import Nacked

        if self._is_gone:
            raise TaskEventsError("the driver no longer listens: its queue is gone")
        confirm = self._channel.publish_confirmed(body, routing_key=self._queue, mandatory=True, **properties)
        try:
            confirm.result()
        except Nacked:
            return False
        return True

    def _came_back(self, _: object) -> None:
        """No queue took it. The confirm may be seen first: then the next message is refused."""
        self._is_gone = True


@contextmanager
def sender(route: Route, partition: int, attempt: int) -> Iterator[TaskSender]:
    """A sender with a connection of its own, which ends with the block."""
    from ...client import ClientError, connect

    name = f"task-events partition {partition} attempt {attempt}"
    try:
        connection = connect(route.url, name=name, heartbeat=HEARTBEAT, recover=False, threads=1)
    except ClientError as error:
        raise TaskEventsError(
            f"partition {partition}: this executor cannot reach the broker: {error}; listen on an address that "
            "executors can dial and pass it as task_url, or read with fan_in, which needs no connection of theirs"
        ) from error
    with connection:
        task = TaskSender(ChannelPublisher(connection, route.queue), route.token, partition, attempt)
        try:
            yield task
        except BaseException:
            connection.close()  # first: the thread may wait for the broker's answer
            task.abandon()
            raise


def run_task(
    fn: Callable[[TaskSender, Iterator[Any]], object], route: Route, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function that Spark calls for a partition: runs `fn`, and says how many values it gave."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    with sender(route, partition, context.attemptNumber()) as task:
        fn(task, _rows(batches))
        count = task.finish()
    schema = pa.schema([("partition", pa.int32()), ("count", pa.int64())])
    yield pa.RecordBatch.from_pydict({"partition": [partition], "count": [count]}, schema=schema)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist(maps_as_pydicts="strict")
