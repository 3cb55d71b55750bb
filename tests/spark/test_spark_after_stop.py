"""Items that a stopped session leaves waiting. Without Spark; test_spark_ends.py has the real one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.serializers import read_int
from spark_parts_support import AfterStop, Item, end_read_of_result, waits_in_vain

from multiqueue.testing import PATIENCE, wait_until_blocked


@pytest.fixture
def watching() -> Iterator[Callable[..., AfterStop]]:
    """Makes one that looks without pause, and ends with the test."""
    made: list[AfterStop] = []

    def make(is_stopped: Callable[[], bool], free: Callable[[Item], object]) -> AfterStop:
        made.append(AfterStop(is_stopped, free, every=0.001))
        return made[-1]

    yield make
    for one in made:
        one.check_invariants()
        one.close()
    assert not any(thread.name == "after-stop" for thread in threading.enumerate())


def test_items_are_freed_once_the_session_is_stopped_and_not_before(watching: Callable[..., AfterStop]) -> None:
    """While the session lives nothing is touched; after its stop each item is looked at until it has left."""
    asked, stopped = threading.Semaphore(0), threading.Event()
    freed: list[tuple[Item, bool]] = []
    often = threading.Event()

    def is_stopped() -> bool:
        asked.release()
        return stopped.is_set()

    def free(item: Item) -> None:
        freed.append((item, stopped.is_set()))
        if len(freed) > 5:
            often.set()

    after_stop = watching(is_stopped, free)
    items = [Item(1), Item(2)]
    for item in items:
        after_stop.enter(item)
    for _ in range(3):
        assert asked.acquire(timeout=PATIENCE)
    stopped.set()
    assert often.wait(PATIENCE)
    for item in items:
        after_stop.leave(item)
    assert all(was_stopped for _, was_stopped in freed)
    assert {id(item) for item, _ in freed} == set(map(id, items))


def test_an_item_that_cannot_be_freed_does_not_hold_up_the_next(
    watching: Callable[..., AfterStop], caplog: pytest.LogCaptureFixture
) -> None:
    """A failure with one item is logged, and the others are freed all the same."""
    caplog.set_level(logging.CRITICAL, "multiqueue.spark")
    tried: set[int] = set()
    both = threading.Event()

    def free(item: Item) -> None:
        tried.add(item.python)
        if len(tried) == 2:
            both.set()
        raise ZeroDivisionError

    after_stop = watching(lambda: True, free)
    items = [Item(1), Item(2)]
    for item in items:
        after_stop.enter(item)
    assert both.wait(PATIENCE)
    for item in items:
        after_stop.leave(item)


def test_the_thread_ends_when_no_item_runs_and_another_item_starts_another(
    watching: Callable[..., AfterStop],
) -> None:
    """A dispatcher that is dropped without a stop keeps no thread."""
    after_stop = watching(lambda: False, lambda item: None)
    for _ in range(2):
        item = Item(1)
        after_stop.enter(item)
        thread = after_stop._thread
        assert thread is not None
        after_stop.leave(item)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        after_stop.check_invariants()


PARK = "java.base@17/jdk.internal.misc.Unsafe.park(Native Method)"
RUN_JOB = "org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1009)"
STACKS = {
    "a job": ([PARK, "java.util.concurrent.locks.LockSupport.park(LockSupport.java:211)", RUN_JOB], True),
    "a query": ([PARK, "org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec.$anonfun$x(A.scala:1)"], True),
    "a commit": (
        ["java.io.UnixFileSystem.rename0(Native Method)", "org.apache.hadoop.mapreduce.Committer.x(C:1)"],
        False,
    ),
    "a busy scheduler": (["java.lang.Object.hashCode(Native Method)", RUN_JOB], False),
    "a lock of somebody's": ([PARK, "com.example.Pool.take(Pool.java:1)"], False),
    "nothing": ([], False),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_java_thread_is_freed_only_from_a_wait_for_the_scheduler(name: str) -> None:
    """A thread that is parked below a job or a query waits in vain; one that commits or computes does not."""
    stack, in_vain = STACKS[name]
    assert waits_in_vain(stack) is in_vain


@contextmanager
def reading(read: Callable[[Any], object]) -> Iterator[tuple[Item, socket.socket, list[BaseException]]]:
    """A thread that reads from a socket to which nothing is written, joined at the end; what it has raised."""
    ours, theirs = socket.socketpair()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with theirs, theirs.makefile("rb") as stream:
                read(stream)
        except EOFError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until_blocked(thread)
    with ours:
        yield Item(thread.ident or 0), ours, errors
    thread.join()


def test_a_wait_for_a_result_is_ended_when_it_is_seen_twice() -> None:
    """A read of PySpark's that has had nothing between two looks ends as at the end of the stream."""
    with reading(read_int) as (item, _, errors):
        assert not end_read_of_result(item)
        assert end_read_of_result(item)
    assert len(errors) == 1


def test_reads_of_others_are_left_alone() -> None:
    """A function that reads from a socket of its own is not disturbed, however often it is seen."""
    with reading(lambda stream: stream.read(1)) as (item, ours, errors):
        assert not any(end_read_of_result(item) for _ in range(3))
        ours.sendall(b"x")
    assert errors == []
    assert not end_read_of_result(Item(-1))
