"""The driver's side over a real broker, with tasks that the test runs in the job's thread. Without Spark."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rabbitmq_support import Peer
from spark_parts_support import PENDING_BYTES, PREFETCH, Route, _dispatcher, sender
from spark_support import FakeSpark

from multiqueue import client
from multiqueue.broker import Broker, Message
from multiqueue.client import connect
from multiqueue.spark import SparkDispatcher, TaskEvents, TaskEventsError, TaskProgress, TaskSender, task_events
from multiqueue.testing import PATIENCE, wait_until_blocked

LARGE = "x" * (PENDING_BYTES + 1)  # a message of its own


class Desk:
    """A broker, and a Spark whose job is a function of the test's."""

    def __init__(self, broker: Broker, url: str) -> None:
        self.broker = broker
        self.url = url
        self.spark = FakeSpark()
        self.is_running = threading.Event()
        self._route: Route | None = None

    def events(self, job: Callable[[], dict[int, int]], **settings: Any) -> TaskEvents:
        """What `task_events` makes of a DataFrame whose action is `job`."""

        def collect() -> list[Any]:
            self.is_running.set()
            return [_Row(partition, count) for partition, count in job().items()]

        frame = SimpleNamespace(
            isStreaming=False,
            sparkSession=self.spark,
            mapInArrow=lambda run, schema: SimpleNamespace(collect=collect),
        )
        events = task_events(cast(Any, frame), lambda task, rows: None, self.url, **settings)
        self._route = events._run.route
        return events

    @property
    def route(self) -> Route:
        assert self._route is not None
        return self._route

    def queue(self) -> Any:
        """The driver's queue, which only the broker's own program can get at."""
        (queue,) = [queue for queue in self.broker.virtual_host().queues() if queue.name == self.route.queue]
        return queue

    def depth(self) -> int:
        return int(self.queue().statistics().depth)


class _Row(dict[str, int]):
    def __init__(self, partition: int, count: int) -> None:
        super().__init__(partition=partition, count=count)
        self.partition = partition


def run(desk: Desk, partition: int, fn: Callable[[TaskSender], object], attempt: int = 0) -> dict[int, int]:
    """What an executor does for a partition."""
    with sender(desk.route, partition, attempt) as task:
        fn(task)
        return {partition: task.finish()}


def send(*values: Any) -> Callable[[TaskSender], None]:
    return lambda task: [task.send(value) for value in values] and None


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Afterwards no thread is left."""
    monkeypatch.setattr(_dispatcher, "backend_of", lambda session: session)
    before = set(threading.enumerate())
    with Broker() as broker, broker.listen() as server:
        yield Desk(broker, server.url)
    assert set(threading.enumerate()) <= before


def test_values_come_before_the_job_ends(desk: Desk) -> None:
    """With commit="row" a value is handed out while its task runs."""
    may_end = threading.Event()

    def wait(task: TaskSender) -> None:
        task.send("early")
        assert may_end.wait(PATIENCE)
        task.send("late")

    with desk.events(lambda: run(desk, 0, wait), commit="row") as events:
        assert next(events) == (0, 0, "early")
        may_end.set()
        assert list(events) == [(0, 1, "late")]
    assert list(events) == []


def test_all_partitions_are_handed_out(desk: Desk) -> None:
    """Without `with` too, all values of all partitions come once, and then the iteration ends."""
    events = desk.events(lambda: run(desk, 0, send(1, 2)) | run(desk, 1, send()) | run(desk, 2, send(3)))
    assert list(events) == [(0, 0, 1), (0, 1, 2), (2, 0, 3)]
    statistics = events.statistics()
    assert (statistics.handed_out, statistics.duplicates, statistics.finished_partitions) == (3, 0, 3)


def test_a_failed_run_counts_once(desk: Desk) -> None:
    """Of a task that failed and was run again each value comes once, in both ways to commit."""

    def fail(task: TaskSender) -> None:
        send("a", "b")(task)
        task.progress(2)
        raise ZeroDivisionError

    def job() -> dict[int, int]:
        with pytest.raises(ZeroDivisionError):
            run(desk, 0, fail)
        return run(desk, 0, send("a", "b", "c"), attempt=1)

    for commit in ("row", "task"):
        assert [event.value for event in desk.events(job, commit=commit)] == ["a", "b", "c"]


def test_a_consumer_that_stands_still_makes_tasks_wait(desk: Desk) -> None:
    """What waits is bounded in the broker, in the driver and in the task; nothing is dropped for it (task-events 4)."""
    sent: list[int] = []

    def send_on(task: TaskSender) -> None:
        for number in range(100):
            task.send(f"{number} {LARGE}")
            sent.append(number)

    with desk.events(lambda: run(desk, 0, send_on), commit="row", capacity=3) as events:
        pending = -(-PENDING_BYTES // len(LARGE))
        wait_until_blocked(lambda: len(sent) == 3 + PREFETCH + 1 + pending)
        assert desk.depth() == 3 + PREFETCH
        assert [int(event.value.split()[0]) for event in events] == list(range(100))


def test_closing_ends_tasks_that_wait(desk: Desk) -> None:
    """Leaving early makes a task that waits for room fail: its driver no longer listens."""
    ended: list[BaseException] = []

    def send_on(task: TaskSender) -> None:
        while True:
            task.send(LARGE)

    def job() -> dict[int, int]:
        try:
            return run(desk, 0, send_on)
        except TaskEventsError as error:
            ended.append(error)
            raise

    with desk.events(job, commit="row", capacity=1) as events:
        next(events)
    assert "the driver no longer listens" in str(ended[0])
    assert list(events) == []


def test_a_job_that_fails_is_told_after_its_values(desk: Desk) -> None:
    """The failure of the job is raised behind what its tasks sent, with Spark's error as the cause (task-events 3)."""

    def job() -> dict[int, int]:
        run(desk, 0, send("a"))
        raise ValueError("task 1 failed 4 times\nand more")

    events = desk.events(job)
    assert next(events).value == "a"
    with pytest.raises(TaskEventsError, match=r"the job failed: ValueError: task 1 failed 4 times$") as caught:
        next(events)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_tasks_own_error_is_named(desk: Desk) -> None:
    """Of a failed task the message has the last line of its traceback, and not Spark's first."""

    def job() -> dict[int, int]:
        raise RuntimeError(
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File x\n    y\n"
            "ValueError: no such day\n SQLSTATE: 38000\n\tat org.apache\n\nDriver stacktrace:"
        )

    with pytest.raises(TaskEventsError, match=r"the job failed: RuntimeError: ValueError: no such day$"):
        list(desk.events(job))


def test_a_lost_broker_is_told(desk: Desk) -> None:
    """A broker that ends while tasks run makes the driver and the task fail, and never an end like any other."""

    def end_broker(task: TaskSender) -> None:
        task.send("a")
        desk.broker.close()
        task.send("b")
        task.finish()

    with (
        pytest.raises(TaskEventsError, match="the connection to the broker was lost while tasks ran"),
        desk.events(lambda: run(desk, 0, end_broker)) as events,
    ):
        list(events)


@pytest.mark.parametrize("with_end", [False, True])
def test_messages_that_the_broker_dropped_are_told(desk: Desk, with_end: bool) -> None:
    """A purge of the queue costs the run: values that are missing, or the end of a partition, raise.

    (task-events 3)
    """
    may_read = threading.Event()

    def job() -> dict[int, int]:
        with sender(desk.route, 0, 0) as task:
            for _ in range(20):
                task.send(LARGE)
            wait_until_blocked(lambda: desk.depth() == 20)
            if with_end:
                count = task.finish()
                wait_until_blocked(lambda: desk.depth() == 21)
            desk.queue().purge()
            count = task.finish()
        may_read.set()
        return {0: count}

    said = (
        "the end of 1 of 1 partitions never came" if with_end else f"values {PREFETCH} to 19 of partition 0 were lost"
    )
    with desk.events(job, commit="row") as events:
        assert may_read.wait(PATIENCE)
        with pytest.raises(TaskEventsError, match=said):
            list(events)


def test_the_end_waits_for_room(desk: Desk) -> None:
    """Of a job that ends while the queue is full the consumer sees the end, once it has taken the rest."""

    def job() -> dict[int, int]:
        count = run(desk, 0, send("a"))
        while desk.depth() <= PREFETCH:
            wait_until_blocked(lambda: desk.queue().statistics().available == 0)
            desk.broker.publish(Message(b"", routing_key=desk.route.queue))
        return count

    with desk.events(job, capacity=1) as events:
        wait_until_blocked(lambda: bool(desk.is_running.is_set() and desk.queue().statistics().rejected))
        assert [event.value for event in events] == ["a"]
        assert events.statistics().refused >= PREFETCH - 1


def test_closing_while_it_starts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed by another thread while it connects, it has no values, and leaves no job, connection or thread."""
    made: list[Any] = []

    def connect_and_close(*of: Any, **settings: Any) -> Any:
        made.append(connect(*of, **settings))
        closer = threading.Thread(target=events.close)
        closer.start()
        closer.join()
        return made[-1]

    monkeypatch.setattr(client, "connect", connect_and_close)
    events = desk.events(lambda: desk.spark.job() or {})
    assert list(events) == []
    assert made[0].is_closed


def test_strangers_are_refused(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A message without the token is logged and counted, and changes nothing (task-events 6)."""

    def job() -> dict[int, int]:
        desk.broker.publish(Message(b"[1]", routing_key=desk.route.queue, headers={"token": "guessed"}))
        return run(desk, 0, send("a"))

    events = desk.events(job)
    with caplog.at_level(logging.WARNING, "multiqueue.spark"):
        assert [event.value for event in events] == ["a"]
    assert events.statistics().refused == 1
    assert "a wrong token" in caplog.text


def test_progress_is_told_while_the_task_runs(desk: Desk) -> None:
    """What a task says of its progress is told by partition, before its values are committed, and then its end."""
    told: list[TaskProgress] = []
    may_end = threading.Event()

    def work(task: TaskSender) -> None:
        task.send("a")
        task.progress(1, 2)
        assert may_end.wait(PATIENCE)
        task.send("b")

    def tell(progress: TaskProgress) -> None:
        told.append(progress)
        may_end.set()

    events = desk.events(lambda: run(desk, 5, work, attempt=2), on_progress=tell)
    assert [event.value for event in events] == ["a", "b"]
    assert [(each.partition, each.attempt, each.done, each.total, each.is_finished) for each in told] == [
        (5, 2, 1, 2, False),
        (5, 2, 1, 2, True),
    ]
    assert events.progress() == {5: told[-1]}
    assert told[-1].values == 2


def test_a_run_that_comes_late_is_no_progress(desk: Desk) -> None:
    """A partition that is finished stays as it ended, whatever another run of its task sends."""
    events = desk.events(lambda: run(desk, 0, send("a")) | run(desk, 0, send("a", "b"), attempt=1))
    assert [event.value for event in events] == ["a"]
    assert events.progress() == {0: TaskProgress(0, 0, None, None, 1, True)}
    assert events.statistics().duplicates == 2


def test_closing_cancels_before_tasks_lose_their_driver(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is cancelled while its tasks can still send: one that fails for want of a driver would be run again."""
    depths: list[int] = []
    cancel = SparkDispatcher.cancel

    def look_and_cancel(dispatcher: SparkDispatcher) -> int:
        depths.append(desk.depth())
        return cancel(dispatcher)

    monkeypatch.setattr(SparkDispatcher, "cancel", look_and_cancel)
    with desk.events(lambda: run(desk, 0, send("a")), commit="row") as events:
        next(events)
    assert depths


def test_one_that_is_dropped_ends_its_job(desk: Desk) -> None:
    """Letting go of it unread cancels the job and leaves no thread (task-events 5)."""
    events = desk.events(lambda: desk.spark.job() or {})
    events.__enter__()
    desk.spark.wait_until_active()
    del events
    gc.collect()
    ours = ("SparkDispatcher", "multiqueue-task-events", "task-events")
    wait_until_blocked(lambda: not any(thread.name.startswith(ours) for thread in threading.enumerate()), PATIENCE)


def test_an_executor_that_cannot_reach_the_broker_says_what_to_do(desk: Desk) -> None:
    """The task's error names the address, without its password, and the ways out."""
    with (
        pytest.raises(TaskEventsError, match=r"cannot reach the broker: .*127\.0\.0\.1:1.*task_url.*fan_in") as caught,
        sender(Route("amqp://user:secret@127.0.0.1:1", "q", "t"), 0, 0),
    ):
        pass
    assert "secret" not in str(caught.value)


def test_a_broker_that_cannot_be_reached_starts_nothing(desk: Desk) -> None:
    """A driver without a broker is told at once, and no job is begun."""
    desk.url = "amqp://127.0.0.1:1"
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        desk.events(dict).__enter__()
    assert not desk.is_running.is_set()


@pytest.mark.slow(selected=True)
def test_rabbitmq_does_as_well(desk: Desk, rabbitmq_peer: Peer) -> None:
    """Over RabbitMQ: a task that waits for room, a failed run, a driver that leaves."""
    desk.url = rabbitmq_peer.url
    numbers = [f"{number} {LARGE}" for number in range(2 * PREFETCH)]

    def job() -> dict[int, int]:
        with pytest.raises(ZeroDivisionError):
            run(desk, 0, lambda task: [task.send(value) for value in numbers] and 1 / 0)
        return run(desk, 0, send(*numbers), attempt=1)

    for commit in ("row", "task"):
        assert [event.value for event in desk.events(job, commit=commit, capacity=2)] == numbers
    with desk.events(lambda: run(desk, 0, send(*numbers * 9)), commit="row", capacity=2) as events:
        next(events)
    assert list(events) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"commit": "rows"}, "commit is 'rows'; it is 'task' or 'row'"),
        ({"capacity": 0}, "capacity must be at least 1, not 0"),
    ],
)
def test_settings_that_do_not_fit(desk: Desk, settings: dict[str, Any], said: str) -> None:
    """A setting that is none is refused before anything starts."""
    with pytest.raises(ValueError, match=said):
        desk.events(dict, **settings)
