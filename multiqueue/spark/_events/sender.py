"""The task's side: sends values to the driver while the task runs. In Spark's Python worker, on an executor.

Promise     Values arrive in the order of `send`, numbered from 0, none twice within a run; `finish` returns when the
            broker has all of them and the end. A broker or driver that is gone makes the next `send`, or `finish`,
            raise, and so the task fail.
State       `_changed` guards all fields. It is notified when values, progress or the end are added (the thread waits
            for that), and when values are on their way or it failed (`send` waits for that, and the thread's pause).
Membership  One sender for one run of a task; its thread ends with `finish` or `abandon`, which join it.
"""

from __future__ import annotations

import hmac
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..._locks import Condition, Lock
from .._backend.errors import TaskEventsError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PENDING_BYTES = 256 << 10  # what may wait in the task while one message is on its way; it is the next message
HEARTBEAT = 10.0  # seconds; a broker that is silent for two of these is gone
# Seconds between two attempts to put a message into a full queue: short at first, for one that is soon emptied.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.25


class Route(NamedTuple):
    """Where the tasks of one action send to."""

    url: str
    queue: str
    token: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message of one run of a task: `count` values from number `first` on, how far it is, and whether it ends."""

    partition: int
    run: str = ""
    attempt: int = 0
    first: int = 0
    count: int = 0
    is_end: bool = False
    done: int | None = None
    total: int | None = None
    body: bytes = b"[]"


def written(chunk: Chunk, token: str) -> dict[str, Any]:
    """The properties of the message whose body is the chunk's."""
    headers = asdict(chunk) | {"token": token}
    del headers["body"]
    return {"content_type": "application/json", "headers": headers}


def read(properties: Mapping[str, Any], body: bytes, token: str) -> Chunk:
    """The chunk of a message. Nothing is looked at before the token was the right one.

    Raises:
        ValueError: the token is another one.
        TypeError: the headers are not as `written` makes them: another version of this package.
    """
    headers = dict(properties.get("headers", {}))
    if not hmac.compare_digest(str(headers.pop("token", "")).encode(), token.encode()):
        raise ValueError("a wrong token")
    return Chunk(**headers, body=body)


class TaskSender:
    """The sender that a task's function gets. Any thread of the task may use it."""

    def __init__(self, publish: Callable[[Chunk], bool], partition: int, attempt: int) -> None:
        """`publish` says whether the broker has it, False when the queue is full; it raises when one is gone."""
        self.partition = partition
        self.attempt = attempt
        self._publish = publish
        self._changed = Condition(Lock())
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._count = 0  # values that were sent, pending ones included
        self._told: tuple[int, int | None] | None = None  # progress that is not on its way yet
        self._is_ending = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"multiqueue-task-{partition}", daemon=True)
        self._thread.start()

    def send(self, value: Any) -> None:
        """Send a value to the driver: what JSON can say. Blocks while 256 KiB wait to be sent.

        Raises:
            TypeError, ValueError: JSON has nothing for the value; nothing was sent.
            TaskEventsError: the broker or the driver is gone.
        """
        body = json.dumps(value, separators=(",", ":"), default=_no_json).encode()
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
        """Send the remaining values and the end; returns how many values there were, once the broker has all."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._check_locked()
            return self._count

    def abandon(self) -> None:
        """Send no more, and drop values that are not sent yet."""
        self._fail(TaskEventsError(f"partition {self.partition}: the task has ended"))
        self._thread.join()

    def _check_locked(self) -> None:
        if self._error is not None:
            label = f"partition {self.partition} (attempt {self.attempt})"
            raise TaskEventsError(f"{label} can send nothing more: {self._error}") from self._error

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _run(self) -> None:
        """The thread: what waits while a message is on its way goes into the next one."""
        run, first, is_end = uuid.uuid4().hex, 0, False
        try:
            while not is_end:
                with self._changed:
                    self._changed.wait_for(lambda: self._pending or self._told or self._is_ending or self._error)
                    if self._error is not None:
                        return
                    bodies, self._pending, self._pending_bytes = self._pending, [], 0
                    (done, total), self._told = self._told or (None, None), None
                    is_end = self._is_ending
                    self._changed.notify_all()
                body = b"[" + b",".join(bodies) + b"]"
                count, pause = len(bodies), SHORTEST_PAUSE
                chunk = Chunk(self.partition, run, self.attempt, first, count, is_end, done, total, body)
                while not self._publish(chunk):
                    with self._changed:
                        if self._changed.wait_for(lambda: self._error, pause):
                            return
                    pause = min(2 * pause, LONGEST_PAUSE)
                first += count
        except Exception as error:  # noqa: BLE001 - whatever it is: `send` and `finish` raise it
            self._fail(error)


def _no_json(value: object) -> NoReturn:
    kind = type(value).__name__
    found = [one for one in ("isoformat", "hex", "to_pylist") if hasattr(value, one)]
    raise TypeError(f"{kind} is not JSON serializable: send {f'value.{found[0]}()' if found else 'str(value)'}")


@contextmanager
def sender(route: Route, partition: int, attempt: int) -> Iterator[TaskSender]:
    """A sender with a separate connection, which ends with the block."""
    from ...client import ClientError, Nacked, connect

    name = f"task-events partition {partition} attempt {attempt}"
    try:
        connection = connect(route.url, name=name, heartbeat=HEARTBEAT, recover=False, threads=1)
    except ClientError as error:
        raise TaskEventsError(
            f"partition {partition}: this executor cannot reach the broker: {error}; listen on an address that "
            "executors can dial and pass it as task_url, or read with fan_in, which needs no connection of theirs"
        ) from error
    returned: list[Any] = []  # what no queue took. Its confirm may be seen first: then the next message is refused.

    def publish(chunk: Chunk) -> bool:
        if returned:
            raise TaskEventsError("the driver no longer listens: its queue is gone")
        properties = written(chunk, route.token)
        try:
            channel.publish_confirmed(chunk.body, routing_key=route.queue, mandatory=True, **properties).result()
        except Nacked:
            return False
        return True

    with connection:
        channel = connection.channel(on_returned=returned.append)
        task = TaskSender(publish, partition, attempt)
        try:
            yield task
        except BaseException:
            connection.close()  # first: the thread may wait for the broker's answer
            task.abandon()
            raise


def run_task(
    fn: Callable[[TaskSender, Iterator[Any]], object], route: Route, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function that Spark calls for a partition: runs `fn`, and says which one has sent its end."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    with sender(route, partition, context.attemptNumber()) as task:
        fn(task, (row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")))
        task.finish()
    yield pa.RecordBatch.from_pydict({"partition": pa.array([partition], pa.int32())})
