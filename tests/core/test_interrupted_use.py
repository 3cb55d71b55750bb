"""Interruptions as programs meet them: signals that raise while elements are taken, waits that others end."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from core_parts_support import is_free

from multiqueue import LinkedBlockingMultiQueue, Queue
from multiqueue.testing import Threads, interruptions, wait_until_blocked

CORE = "multiqueue.core"


class Struck(BaseException):
    """What the signal handler raises."""


@contextmanager
def signals(seconds: float) -> Iterator[list[bool]]:
    """Signals. When the answer's one element is true the handler makes it false and raises `Struck`: one strike."""
    striking = [False]

    def handler(number: int, frame: FrameType | None) -> None:
        if striking[0]:
            striking[0] = False
            raise Struck

    gc.collect()
    gc.disable()  # what it calls, for what other tests have left, could be struck as well
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield striking
    finally:
        striking[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.001)  # one that is on its way still needs the handler
        signal.signal(signal.SIGALRM, before)
        gc.enable()


def drain_under_fire(count: int, settings: dict[str, Any]) -> tuple[int, int]:
    """Take `count` equal elements from each of two sub-queues while signals strike: taken or left, and strikes."""
    multi_queue: LinkedBlockingMultiQueue[bool] = LinkedBlockingMultiQueue()
    a, b = multi_queue.add_subqueue("a", **settings), multi_queue.add_subqueue("b", **settings)
    a.put_many([True] * count)
    b.put_many([True] * count)
    got: list[bool] = []
    strikes = 0
    with signals(0.0001) as striking:
        while multi_queue.qsize():
            try:
                striking[0] = True
                try:
                    multi_queue.drain_to(got)
                finally:
                    striking[0] = False
            except Struck:
                strikes += 1
    multi_queue.check_invariants()
    assert a.in_flight + b.in_flight == len(got)
    return len(got) + len(a) + len(b), strikes


@pytest.mark.parametrize("settings", [{}, {"weight": 2}, {"max_in_flight": 10**9}], ids=["plain", "weight", "limit"])
def test_signals_that_raise_lose_no_equal_elements(settings: dict[str, Any]) -> None:
    """Elements that are one object are all taken or still there, whatever signal handlers raise meanwhile."""
    count = 10_000
    found, strikes = drain_under_fire(count, settings)
    assert found == 2 * count
    assert strikes


def test_of_three_equal_elements_none_is_lost_by_hand() -> None:
    """An exception right after an element has left its sub-queue puts it back, however equal the next one is."""
    for point in interruptions(CORE):
        multi_queue: LinkedBlockingMultiQueue[None] = LinkedBlockingMultiQueue()
        lane = multi_queue.add_subqueue("a", weight=2)
        lane.put_many([None] * 3)
        with point.raising():
            multi_queue.get()
        assert len(lane) == (3 if point.reached else 2), point


@pytest.mark.parametrize("make", [list, deque, set, lambda: deque(["old"], 1)], ids=["list", "deque", "set", "full"])
def test_what_drain_to_has_appended_is_not_put_back(make: Callable[[], Any]) -> None:
    """An exception right after a list, a deque or a set has taken an element leaves it there alone."""
    for point in interruptions(CORE):
        queue: Queue[object] = Queue()
        first, second = object(), object()
        queue.put_many([first, second])
        target = make()
        with point.raising():
            queue.drain_to(target)
        there = {*target, *queue} - {"old"}
        if isinstance(target, deque) and target.maxlen == 1 and second in target:
            there.add(first)  # the second one has taken its place
        assert there == {first, second}, point
        assert len(target) + len(queue) == 2 + (target == deque(["old"])) - (first not in {*target, *queue}), point


def test_a_target_that_refuses_and_an_exception_lose_nothing() -> None:
    """An element that the target refuses is put back, also when an exception strikes while it is."""

    def refuse(element: str) -> None:
        raise ValueError("no")

    for point in interruptions(CORE):
        queue: Queue[str] = Queue()
        queue.put_many(["a", "b"])
        with point.raising():
            try:
                queue.drain_to(refuse)
            except ValueError:
                pass
        assert list(queue) == ["a", "b"], point
        assert is_free(queue), point


def test_a_join_of_all_ends_when_the_last_unfinished_one_is_removed() -> None:
    """The multi-queue's join, begun before a sub-queue with elements is removed, waits for that one no more."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    multi_queue.add_subqueue("a").put("x")
    with Threads() as threads:
        joiner = threads.start(multi_queue.join)
        wait_until_blocked(joiner.thread)
        removed = multi_queue.remove_subqueue("a")
    assert list(removed) == ["x"]


def test_a_join_of_a_removed_sub_queue_itself_goes_on() -> None:
    """A removed sub-queue's own join waits until its elements are dealt with."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("a")
    lane.put("x")
    with Threads() as threads:
        joiner = threads.start(lane.join)
        wait_until_blocked(joiner.thread)
        multi_queue.remove_subqueue("a")
        wait_until_blocked(joiner.thread)
        lane.clear()


def test_a_coroutine_that_leaves_room_behind_wakes_the_next() -> None:
    """Two coroutines that wait for room both go on when there is room for two, though one wake-up was given."""

    async def main() -> None:
        queue: Queue[int] = Queue(2)
        queue.put_many([1, 2])
        putters = [asyncio.create_task(queue.async_put(number)) for number in (3, 4)]
        while queue.statistics().waiting_putters != 2:
            await asyncio.sleep(0)
        assert queue.get_many(2) == [1, 2]
        await asyncio.gather(*putters)
        assert list(queue) == [3, 4]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_an_interrupted_removal_removes_nothing() -> None:
    """A sub-queue whose removal was interrupted is registered, open and served as before."""
    for point in interruptions(CORE):
        multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
        lane = multi_queue.add_subqueue("a")
        lane.put("x")
        with point.raising():
            multi_queue.remove_subqueue("a")
        if point.reached:
            lane.put("y")
            assert multi_queue.get_many(2) == ["x", "y"], point
            assert multi_queue.remove_subqueue("a") is lane


def test_an_interrupted_removal_after_a_shutdown_removes_nothing() -> None:
    """A sub-queue whose removal was interrupted is served to its end, also when the multi-queue is shut down."""
    for point in interruptions(CORE):
        multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
        multi_queue.add_subqueue("a").put("x")
        multi_queue.shutdown()
        with point.raising():
            multi_queue.remove_subqueue("a")
        if point.reached:
            assert multi_queue.poll() == "x", point


@pytest.mark.slow(selected=True)
def test_a_joiner_wakes_when_a_signal_strikes_task_done() -> None:
    """A thread in `join` goes on after the last `task_done`, when a real signal's exception struck that one."""
    with signals(0.0001) as striking:
        for _ in range(60):
            queue: Queue[str] = Queue()
            queue.put("x")
            queue.get()
            with Threads() as threads:
                joiner = threads.start(queue.join)
                wait_until_blocked(joiner.thread)
                try:
                    striking[0] = True
                    try:
                        while queue.unfinished_tasks:
                            queue.task_done()
                    finally:
                        striking[0] = False
                except Struck:
                    if queue.unfinished_tasks:
                        queue.task_done()
            assert is_free(queue)
