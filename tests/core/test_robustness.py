"""Exceptions and user code that strike inside an operation: nothing breaks, nothing is lost, no thread hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from core_parts_support import choose

from multiqueue import LinkedBlockingMultiQueue, SubQueue
from multiqueue.testing import Threads, interruptions

CORE = "multiqueue.core"

Lane = SubQueue[str]
Operation = Callable[[LinkedBlockingMultiQueue[str], Lane, Lane], object]


def house() -> tuple[LinkedBlockingMultiQueue[str], Lane, Lane]:
    """A multi-queue with `a` and `b` in one lane, which is bounded, and nothing in the other, which is not."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane", capacity=5)
    other = multi_queue.add_subqueue("other", max_in_flight=2, weight=2)
    lane.put_many(["a", "b"])
    return multi_queue, lane, other


def _priority(multi_queue: LinkedBlockingMultiQueue[str], lane: Lane, other: Lane) -> None:
    lane.priority = 7


def _capacity(multi_queue: LinkedBlockingMultiQueue[str], lane: Lane, other: Lane) -> None:
    lane.capacity = 9


def _max_in_flight(multi_queue: LinkedBlockingMultiQueue[str], lane: Lane, other: Lane) -> None:
    lane.max_in_flight = 1


class First:
    """A selection that keeps to the order of service."""

    def select(self, ready: Sequence[Lane]) -> Lane:
        return ready[0]

    def taken(self, subqueue: Lane) -> None:
        pass


def _get_many_selected(multi_queue: LinkedBlockingMultiQueue[str], lane: Lane, other: Lane) -> object:
    choose(multi_queue, First())
    return multi_queue.get_many(3)


OPERATIONS: dict[str, Operation] = {
    "put": lambda m, lane, other: lane.put("x"),
    "put into an empty one": lambda m, lane, other: other.put("x"),
    "put with a timeout": lambda m, lane, other: lane.put("x", timeout=1.0),
    "put_nowait": lambda m, lane, other: lane.put_nowait("x"),
    "offer": lambda m, lane, other: lane.offer("x"),
    "put_many": lambda m, lane, other: other.put_many(["x", "y"]),
    "put_first": lambda m, lane, other: lane.put_first("x"),
    "get": lambda m, lane, other: m.get(),
    "get with a timeout": lambda m, lane, other: m.get(timeout=1.0),
    "take": lambda m, lane, other: m.take(),
    "poll": lambda m, lane, other: m.poll(),
    "peek": lambda m, lane, other: m.peek(),
    "get_many": lambda m, lane, other: m.get_many(2),
    "get_many of the lane": lambda m, lane, other: lane.get_many(2),
    "get_many by a selection": _get_many_selected,
    "get of the lane": lambda m, lane, other: lane.get(),
    "drain_to": lambda m, lane, other: m.drain_to([]),
    "disable": lambda m, lane, other: lane.disable("r"),
    "enable": lambda m, lane, other: other.enable("r"),
    "clear": lambda m, lane, other: lane.clear(),
    "remove": lambda m, lane, other: lane.remove("b"),
    "iterate": lambda m, lane, other: list(lane),
    "priority": _priority,
    "capacity": _capacity,
    "max_in_flight": _max_in_flight,
    "add_subqueue": lambda m, lane, other: m.add_subqueue("new"),
    "remove_subqueue": lambda m, lane, other: m.remove_subqueue("lane"),
    "qsize": lambda m, lane, other: m.qsize(),
    "statistics": lambda m, lane, other: m.statistics(),
    "shutdown": lambda m, lane, other: m.shutdown(),
    "shutdown of the lane": lambda m, lane, other: lane.shutdown(),
}

every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)

# What these take, if interrupted, is still there; the others discard on purpose.
TAKES = {name for name in OPERATIONS if name.startswith(("get", "take", "poll"))}

taking = pytest.mark.parametrize("operation", [OPERATIONS[name] for name in sorted(TAKES)], ids=sorted(TAKES))


def put_if_open(*lanes: Lane) -> None:
    """What a signal handler does."""
    for lane in lanes:
        if not lane.is_shutdown:
            lane.put("signal")


def still_works(multi_queue: LinkedBlockingMultiQueue[str], *lanes: Lane) -> None:
    """For another thread, too, puts and takes go on and the structure is in order.

    For this one they would even if it still held a lock, which is re-entrant.
    """
    with Threads() as threads:
        threads.start(_still_works, multi_queue, *lanes)


def _still_works(multi_queue: LinkedBlockingMultiQueue[str], *lanes: Lane) -> None:
    multi_queue.check_invariants()
    for lane in lanes:
        lane.check_invariants()
        assert lane.is_shutdown or lane.offer("one more")
    if not multi_queue.is_shutdown:
        late = multi_queue.add_subqueue("late", priority=99)
        late.put("late")
        taken: list[str] = []
        while not taken or taken[-1] != "late":
            subqueue, item = multi_queue.take(block=False)
            subqueue.task_done()
            taken.append(item)
    multi_queue.check_invariants()


@every_operation
def test_an_exception_at_any_point_leaves_all_in_order(operation: Operation) -> None:
    """A signal handler that raises, wherever in an operation of the core, leaves the structure usable (core 6)."""
    for point in interruptions(CORE):
        multi_queue, lane, other = house()
        with point.raising(KeyboardInterrupt):
            operation(multi_queue, lane, other)
        still_works(multi_queue, lane, other)


@taking
def test_an_exception_at_any_point_of_a_take_loses_nothing(operation: Operation) -> None:
    """A take that raises has taken nothing (core 6)."""
    for point in interruptions(CORE):
        multi_queue, lane, other = house()
        with point.raising(KeyboardInterrupt):
            operation(multi_queue, lane, other)
        if point.reached:
            assert list(lane) == ["a", "b"], point
            assert lane.in_flight == 0, point


@pytest.mark.parametrize("name", ["put", "put into an empty one", "put with a timeout", "put_nowait", "offer"])
def test_an_exception_at_any_point_of_a_put_puts_at_most_once(name: str) -> None:
    """An interrupted put has put its element once or not at all, at its place, and a taker finds it (core 6)."""
    for point in interruptions(CORE):
        multi_queue, lane, other = house()
        with point.raising(KeyboardInterrupt):
            OPERATIONS[name](multi_queue, lane, other)
        assert list(lane) in (["a", "b"], ["a", "b", "x"]), point
        assert list(other) in ([], ["x"]), point
        assert multi_queue.qsize() == len(lane) + len(other)
        multi_queue.check_invariants()


@every_operation
def test_a_put_inside_any_operation_neither_hangs_nor_corrupts(operation: Operation) -> None:
    """A signal handler or `__del__` that puts, wherever in an operation of the same thread, gets through (core 7)."""
    for point in interruptions(CORE):
        multi_queue, lane, other = house()
        inbox = multi_queue.add_subqueue("inbox")
        with point.running(partial(put_if_open, inbox)):
            operation(multi_queue, lane, other)
        assert point.reached or list(inbox) == []
        still_works(multi_queue, lane, inbox)


@every_operation
def test_a_put_into_the_same_lane_inside_any_operation_gets_through(operation: Operation) -> None:
    """The same into the very sub-queues that are being worked on, which are re-entered."""
    for point in interruptions(CORE):
        multi_queue, lane, other = house()
        with point.running(partial(put_if_open, lane, other)):
            operation(multi_queue, lane, other)
        still_works(multi_queue, lane, other)
