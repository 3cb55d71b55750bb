"""CPython's own tests of `queue`, run against ours."""

from __future__ import annotations

import heapq
import os
import unittest
from importlib import import_module
from typing import Any

import pytest

import multiqueue

cpython: Any
try:
    cpython = import_module("test.test_queue")
except ImportError:  # some distributions package the interpreter without its tests
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        raise
    pytest.skip("this interpreter comes without its own tests", allow_module_level=True)


class TestQueueAsCPython(cpython.QueueTest, unittest.TestCase):  # type: ignore[misc]
    """`multiqueue` in the place of the module `queue`."""

    queue = multiqueue


class TestLifoQueueAsCPython(cpython.LifoQueueTest, unittest.TestCase):  # type: ignore[misc]
    """`LifoQueue`, as the module `queue` has it."""

    queue = multiqueue


class TestPriorityQueueAsCPython(cpython.PriorityQueueTest, unittest.TestCase):  # type: ignore[misc]
    """`PriorityQueue`, as the module `queue` has it."""

    queue = multiqueue


class TestFailingQueueAsCPython(cpython.FailingQueueTest, unittest.TestCase):  # type: ignore[misc]
    """A subclass of `Queue` whose `_put` and `_get` raise."""

    queue = multiqueue


class OwnQueues:
    """The module, with the classes that a user of it makes."""

    class LifoQueue(multiqueue.Queue[Any]):
        """As `queue.LifoQueue` is made from `queue.Queue`."""

        def _init(self, maxsize: int) -> None:
            self.queue = []

        def _qsize(self) -> int:
            return len(self.queue)

        def _put(self, item: Any) -> None:
            self.queue.append(item)

        def _get(self) -> Any:
            return self.queue.pop()

    class PriorityQueue(multiqueue.Queue[Any]):
        """As `queue.PriorityQueue` is made from `queue.Queue`."""

        def _init(self, maxsize: int) -> None:
            self.queue = []

        def _qsize(self) -> int:
            return len(self.queue)

        def _put(self, item: Any) -> None:
            heapq.heappush(self.queue, item)

        def _get(self) -> Any:
            return heapq.heappop(self.queue)

    def __getattr__(self, name: str) -> Any:
        return getattr(multiqueue, name)


class TestOwnLifoQueueAsCPython(cpython.LifoQueueTest, unittest.TestCase):  # type: ignore[misc]
    """A user's last-in-first-out subclass of our `Queue`."""

    queue = OwnQueues()


class TestOwnPriorityQueueAsCPython(cpython.PriorityQueueTest, unittest.TestCase):  # type: ignore[misc]
    """A user's priority subclass of our `Queue`."""

    queue = OwnQueues()
