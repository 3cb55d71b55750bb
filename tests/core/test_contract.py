"""The suites of `multiqueue.testing.contracts`, over the standard library's queue and all of ours."""

from __future__ import annotations

import queue
from typing import Any

from multiqueue import LinkedBlockingMultiQueue, Offerable, Pollable, Queue
from multiqueue.testing.contracts import OfferableContract, PollableContract, QueueContract


class TestStandardLibrary(QueueContract):
    """The suite says what `queue.Queue` does."""

    def make(self, maxsize: int = 0) -> Any:
        return queue.Queue(maxsize)


class TestQueue(QueueContract):
    """The drop-in does the same."""

    def make(self, maxsize: int = 0) -> Any:
        return Queue(maxsize)

    def test_it_is_both_ends(self) -> None:
        """A `Queue` is an `Offerable` and a `Pollable`."""
        made = Queue[int]()
        assert isinstance(made, Offerable)
        assert isinstance(made, Pollable)


class TestSubQueue(QueueContract):
    """So does a sub-queue, from which its own methods alone take."""

    def make(self, maxsize: int = 0) -> Any:
        return LinkedBlockingMultiQueue[Any]().add_subqueue("lane", capacity=maxsize or None)


class TestDisabledSubQueue(TestSubQueue):
    """So does a disabled one: only the multi-queue passes it over."""

    def make(self, maxsize: int = 0) -> Any:
        lane = super().make(maxsize)
        lane.disable()
        return lane


class TestHeadOfMultiQueue(PollableContract):
    """The head of a multi-queue, whatever sub-queues the elements come from."""

    def make(self, maxsize: int = 0) -> Any:
        multi_queue: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue()
        for key in range(3):
            multi_queue.add_subqueue(key)
        return multi_queue

    def fill(self, queue: Any, item: Any) -> None:
        # One sub-queue after the other, which is also the order in which they are served.
        lanes = list(queue.subqueues.values())
        filled = sum(lane.statistics().put for lane in lanes)
        lanes[filled % len(lanes)].put(item)

    def test_it_is_a_head(self) -> None:
        """A multi-queue is a `Pollable`, and no `Offerable`."""
        assert isinstance(self.make(), Pollable)
        assert not isinstance(self.make(), Offerable)


class TestTailOfMultiQueue(OfferableContract):
    """A sub-queue whose elements are taken at the head of the multi-queue."""

    def make(self, maxsize: int = 0) -> Any:
        self.multi_queue: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue()
        return self.multi_queue.add_subqueue("lane", capacity=maxsize or None)

    def elements(self, queue: Any) -> list[Any]:
        return [self.multi_queue.get() for _ in range(self.multi_queue.qsize())]
