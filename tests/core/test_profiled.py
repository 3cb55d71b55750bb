"""Puts under a profile function, which runs code of its own in the middle of a put."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from core_parts_support import engine

from multiqueue import Empty, LinkedBlockingMultiQueue, Queue, ShutDown

pytestmark = pytest.mark.skipif(engine == "c", reason="a put in C calls nothing that a profile function is told of")


@contextmanager
def before_the_append(action: Callable[[], object]) -> Iterator[list[str]]:
    """Have `action` run when a put has asked for the length of its queue; the list says whether it did."""
    ran: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_return" and argument is len and frame.f_code.co_name == "put" and not ran:
            ran.append(event)
            action()

    sys.setprofile(profile)
    try:
        yield ran
    finally:
        sys.setprofile(None)


def test_a_clear_in_the_middle_of_a_put_loses_nothing() -> None:
    """What a put appends while the queue is cleared is in the queue, or counted as discarded."""
    queue: Queue[str] = Queue()
    queue.put("before")
    with before_the_append(queue.clear) as ran:
        queue.put("late")
    assert ran == ["c_return"]
    assert list(queue) == ["late"]
    assert queue.get_nowait() == "late"
    queue.check_invariants()


class NotCompared:
    """An element that nobody compares."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("capacity", [None, 9])
@pytest.mark.parametrize("left", [0, 1])
def test_a_put_that_a_shutdown_overtakes_is_refused_or_taken(left: int, capacity: int | None) -> None:
    """A put that stands before its append while takers are told that nothing is left raises `ShutDown`."""
    multi_queue: LinkedBlockingMultiQueue[object] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane", capacity=capacity)
    multi_queue.add_subqueue("other")
    told: list[type[BaseException]] = []
    for _ in range(left):
        lane.put("before")

    def shut_down_and_drain() -> None:
        multi_queue.shutdown()
        try:
            while True:
                multi_queue.get(False)
        except (Empty, ShutDown) as error:
            told.append(type(error))

    with before_the_append(shut_down_and_drain) as ran:
        try:
            lane.put(NotCompared())
            accepted = True
        except ShutDown:
            accepted = False
    assert (ran, told) == (["c_return"], [ShutDown])
    assert not accepted
    assert list(lane) == []
    multi_queue.check_invariants()
