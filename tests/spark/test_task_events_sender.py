"""The task's side against a publisher that the test controls. Without Spark or a broker."""

from __future__ import annotations

import json
import pickle
import re
import threading
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from spark_parts_support import PENDING_BYTES, Chunk, _task_events_sender, read, written

from multiqueue.amqp import decode_properties, encode_properties
from multiqueue.spark import TaskEventsError, TaskSender
from multiqueue.testing import PATIENCE, wait_until_blocked


class Broker:
    """A publisher that takes messages when it may."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.may = threading.Event()
        self.may.set()
        self.asked = 0
        self.full_for = 0  # how many attempts find the queue full
        self.fails: Exception | None = None

    def publish(self, chunk: Chunk) -> bool:
        self.asked += 1
        assert self.may.wait(PATIENCE)
        if self.fails is not None:
            raise self.fails
        if self.full_for:
            self.full_for -= 1
            return False
        self.chunks.append(chunk)
        return True

    def values(self) -> list[Any]:
        """All values, whose numbers must be without a gap."""
        found: list[Any] = []
        for chunk in self.chunks:
            assert chunk.first == len(found)
            found += json.loads(chunk.body)
        return found


@pytest.fixture
def broker() -> Iterator[Broker]:
    before = set(threading.enumerate())
    yield Broker()
    assert set(threading.enumerate()) <= before


def task_of(broker: Broker) -> TaskSender:
    return TaskSender(broker.publish, 4, 1)


def test_values_arrive_in_order_and_then_the_end(broker: Broker) -> None:
    """All values arrive in order, and the end says how many there were, and whose they are."""
    task = task_of(broker)
    for number in range(1000):
        task.send(number)
    assert task.finish() == 1000
    assert broker.values() == list(range(1000))
    last = broker.chunks[-1]
    assert (last.is_end, last.partition, last.attempt, last.first + last.count) == (True, 4, 1, 1000)
    assert [chunk.is_end for chunk in broker.chunks].count(True) == 1
    assert len({chunk.run for chunk in broker.chunks}) == 1


def test_values_go_out_together_while_one_message_is_on_its_way(broker: Broker) -> None:
    """What is sent while the broker answers goes into the next message, not into one each."""
    broker.may.clear()
    task = task_of(broker)
    task.send("first")
    wait_until_blocked(lambda: broker.asked == 1)
    for number in range(500):
        task.send(number)
    broker.may.set()
    wait_until_blocked(lambda: len(broker.chunks) == 2)
    task.finish()
    assert [chunk.count for chunk in broker.chunks] == [1, 500, 0]


def test_a_broker_that_takes_nothing_makes_the_task_wait(broker: Broker) -> None:
    """With 256 KiB waiting, `send` blocks, and goes on when the broker takes again: no message is longer, unless by the
    last of its values.
    """
    broker.may.clear()
    task = task_of(broker)
    task.send("first")
    wait_until_blocked(lambda: broker.asked == 1)
    sent: list[int] = []

    def send_much() -> None:
        for number in range(100):
            task.send("x" * (PENDING_BYTES // 10))
            sent.append(number)

    thread = threading.Thread(target=send_much)
    thread.start()
    wait_until_blocked(lambda: len(sent) == 10)
    broker.may.set()
    thread.join()
    task.finish()
    assert len(broker.values()) == 101
    assert max(len(chunk.body) for chunk in broker.chunks) < 1.2 * PENDING_BYTES


def test_a_full_queue_is_tried_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that the full queue refused is sent again until it is taken, before any later one."""
    monkeypatch.setattr(_task_events_sender, "SHORTEST_PAUSE", 0.0)
    broker.full_for = 5
    task = task_of(broker)
    task.send("a")
    task.send("b")
    assert task.finish() == 2
    assert broker.values() == ["a", "b"]
    assert broker.full_for == 0


def test_a_broker_that_is_gone_makes_the_task_fail(broker: Broker) -> None:
    """After a failure `send`, `progress` and `finish` raise it: no task ends well whose values did not arrive."""
    broker.fails = ConnectionError("the broker is gone")
    task = task_of(broker)
    task.send("lost")
    task._thread.join(PATIENCE)
    for use in (lambda: task.send("more"), lambda: task.progress(1), task.finish):
        with pytest.raises(
            TaskEventsError, match=r"partition 4 \(attempt 1\) can send nothing more: the broker is gone"
        ):
            use()


def test_a_failing_task_sends_no_end(broker: Broker) -> None:
    """A run that is abandoned, while it waits for room too, ends its thread and never says that it is done."""
    broker.full_for = 10**9
    task = task_of(broker)
    task.send("a")
    wait_until_blocked(lambda: broker.asked > 1)
    task.abandon()
    assert broker.chunks == []
    with pytest.raises(TaskEventsError, match="the task has ended"):
        task.send("b")


def test_a_value_that_json_cannot_say_is_refused_at_once(broker: Broker) -> None:
    """What JSON cannot say raises in the task's own line, with what to send instead, and the others are sent."""
    import pyarrow as pa

    task = task_of(broker)
    task.send([1, "two", None])
    for value, remedy in (
        (Decimal("1.50"), "str(value)"),
        (date(2026, 11, 24), "value.isoformat()"),
        ({1}, "str(value)"),
        (b"x", "value.hex()"),
        (pa.RecordBatch.from_pydict({"n": [1]}), "value.to_pylist()"),
    ):
        with pytest.raises(TypeError, match=rf"(?m)is not JSON serializable: send {re.escape(remedy)}$"):
            task.send({"price": value})
    assert task.finish() == 1
    assert broker.values() == [[1, "two", None]]


def test_progress_goes_with_the_next_message(broker: Broker) -> None:
    """Of progress that is told while a message is on its way, the last arrives, with the values or alone."""
    broker.may.clear()
    task = task_of(broker)
    task.send("first")
    wait_until_blocked(lambda: broker.asked == 1)
    for done in range(10):
        task.progress(done, 10)
    broker.may.set()
    wait_until_blocked(lambda: len(broker.chunks) == 2)
    task.finish()
    assert [(chunk.count, chunk.is_end, chunk.done, chunk.total) for chunk in broker.chunks][:2] == [
        (1, False, None, None),
        (0, False, 9, 10),
    ]


def test_a_message_comes_back_as_it_was_written() -> None:
    """All that a task writes is what the driver reads, through the wire's own tables."""
    chunk = Chunk(3, "run", 1, first=5, count=2, done=7, body=b'[1,{"a":null}]')
    properties = decode_properties(encode_properties(written(chunk, "token")))
    assert read(properties, chunk.body, "token") == chunk


@pytest.mark.parametrize(
    ("headers", "error"),
    [({"token": "guessed"}, ValueError), ({"token": None}, ValueError), ({"from": "a later version"}, TypeError)],
)
def test_what_no_task_wrote_is_refused(headers: dict[str, Any], error: type[Exception]) -> None:
    """A message with another token, or with headers that are not a task's, is refused, and its body is not read.

    (task-events 6)
    """
    properties = written(Chunk(0), "token")
    properties["headers"] |= headers
    for wrong in (properties, {"headers": headers}, {}):
        with pytest.raises((ValueError, error)):
            read(wrong, pickle.dumps(pytest.fail), "token")
