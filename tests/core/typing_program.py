"""What type checkers make of the public API of the core. Not run: `test_typing.py` has mypy and pyright read it.

A line with `type: ignore[...]` is an error of the user's that the checkers must find: both complain of an ignore that
ignores nothing.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from concurrent.futures import Executor, Future
from typing import assert_type

from multiqueue import (
    Full,
    Lane,
    LifoQueue,
    LinkedBlockingMultiQueue,
    MultiQueueExecutor,
    Offerable,
    Pollable,
    PriorityQueue,
    Queue,
    ShutDown,
    SubQueue,
)


def takes_the_standard_librarys(q: queue.Queue[int]) -> int:
    return q.get()


def of_a_multi_queue(mq: LinkedBlockingMultiQueue[str], sub: SubQueue[str], q: Queue[str]) -> None:
    assert_type(mq.get(), str)
    assert_type(mq.poll(), str | None)
    assert_type(mq.poll(1.0), str | None)
    assert_type(mq.poll(None, 0), str | int)
    assert_type(mq.poll(default=b""), str | bytes)
    assert_type(mq.peek(), str | None)
    assert_type(mq.peek(0), str | int)
    assert_type(mq.get_many(3), list[str])
    assert_type(mq.take().item, str)
    assert_type(mq.take().subqueue, SubQueue[str])
    assert_type(sub.poll(), str | None)
    assert_type(sub.peek(default=0), str | int)
    assert_type(q.poll(), str | None)
    mq.poll().upper()  # type: ignore[union-attr]
    sub.peek().upper()  # type: ignore[union-attr]
    sub.put(3)  # type: ignore[arg-type]


def of_the_ends(head: Pollable[str], tail: Offerable[str]) -> None:
    assert_type(head.poll(), str | None)
    assert_type(head.poll(default=0), str | int)
    assert_type(head.peek(), str | None)
    head.poll().upper()  # type: ignore[union-attr]
    tail.put(3)  # type: ignore[arg-type]


def of_what_is_drained(sub: SubQueue[str], other: SubQueue[str], elsewhere: asyncio.Queue[str]) -> None:
    kept: list[str] = []
    seen: set[str] = set()
    for accepted in (
        sub.drain_to(kept),
        sub.drain_to(deque[str](), 3),
        sub.drain_to(seen),
        sub.drain_to(kept.append),
        sub.drain_to(other),
        sub.drain_to(elsewhere),
        sub.drain_to(print),
    ):
        assert_type(accepted, int)
    sub.drain_to(3)  # type: ignore[arg-type]
    numbers: list[int] = []
    sub.drain_to(numbers)  # type: ignore[arg-type]


def of_errors(sub: SubQueue[str]) -> None:
    try:
        sub.put_nowait("x")
    except Full as error:
        print(error.item)
        print(error.items)  # type: ignore[attr-defined]
    try:
        sub.put_many(["x"])
    except ShutDown as error:
        assert_type(error.accepted, int)


def of_a_queue(q: Queue[int]) -> None:
    assert_type(takes_the_standard_librarys(q), int)
    standard: queue.Queue[int] = q
    head: Pollable[int] = q
    tail: Offerable[int] = q
    print(standard, head, tail)
    with q.mutex:
        q.queue.clear()
        q.unfinished_tasks = 0
        q.all_tasks_done.notify_all()
    q.maxsize = 3
    takes_the_standard_librarys(Queue[str]())  # type: ignore[arg-type]


def of_other_orders(last: LifoQueue[int], least: PriorityQueue[int]) -> None:
    assert_type(last.get(), int)
    assert_type(least.poll(), int | None)
    each: list[Queue[int]] = [last, least]
    standard: tuple[queue.LifoQueue[int], queue.PriorityQueue[int]] = (last, least)
    for q in each:
        takes_the_standard_librarys(q)
        q.shutdown()
    print(standard)


class Lifo(Queue[int]):
    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: int) -> None:
        self.queue.append(item)

    def _get(self) -> int:
        taken: int = self.queue.pop()
        return taken


def of_an_executor(executor: MultiQueueExecutor) -> None:
    standard: Executor = executor
    print(standard)
    lane = executor.lane("a", capacity=3)
    assert_type(lane, Lane)
    assert_type(lane.submit(len, "abc"), Future[int])
    assert_type(lane.submit_within(1.0, len, "abc"), Future[int])
    assert_type(list(lane.map(str, [1, 2])), list[str])
    lane.submit(len, 3)  # type: ignore[arg-type]
