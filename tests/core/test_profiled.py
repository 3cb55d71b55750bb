"""Puts under a profile function, which runs code of its own in the middle of a put that takes no lock."""

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
    """Have `action` run between a put's look at its queue and the append; the list says whether it did."""
    ran: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ == "append" and frame.f_code.co_name == "put" and not ran:
            ran.append(event)
            action()

    sys.setprofile(profile)
    try:
        yield ran
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("name", ["clear", "the deque's own clear"])
def test_a_clear_in_the_middle_of_a_put_loses_nothing(name: str) -> None:
    """What a put appends while another thread clears the queue is in the queue, or counted as discarded."""
    queue: Queue[str] = Queue()
    queue.put("before")
    with before_the_append(queue.clear if name == "clear" else queue.queue.clear) as ran:
        queue.put("late")
    assert ran == ["c_call"]
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
    assert (ran, told) == (["c_call"], [ShutDown])
    assert not accepted
    assert list(lane) == []
    multi_queue.check_invariants()


def test_a_put_that_a_shutdown_overtakes_with_elements_left_is_taken() -> None:
    """The same while elements are left: takers have not been told, and get it after them."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane")
    lane.put("before")
    with before_the_append(multi_queue.shutdown):
        lane.put("late")
    assert [multi_queue.get(), multi_queue.get()] == ["before", "late"]
    with pytest.raises(ShutDown):
        multi_queue.get()
