"""Every public operation, in any order Hypothesis thinks of, against a model made of lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule
from hypothesis_support import examples
from model_support import Model, ModelLane

from multiqueue import Detached, Empty, Full, LinkedBlockingMultiQueue, ShutDown, SubQueue, SubQueueExists

T = TypeVar("T")
Pair = tuple[SubQueue[int], ModelLane]

keys = st.integers(0, 4)
priorities = st.integers(-1, 1)
capacities = st.none() | st.integers(1, 3)
limits = st.none() | st.integers(1, 2)
weights = st.integers(1, 3)
reasons = st.sampled_from([None, "user"])


def after(elements: int) -> Callable[[T], T]:
    """A step that comes only once so many elements were made: what ends a life must not end most of them young."""
    return cast("Callable[[T], T]", precondition(lambda machine: machine.number >= elements))


class MultiQueueMachine(RuleBasedStateMachine):
    """One thread that uses both tables of the contract."""

    pairs: Bundle[Pair] = Bundle("pairs")  # every sub-queue there has been, removed ones too

    def __init__(self) -> None:
        super().__init__()
        self.multi_queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
        self.model = Model()
        self.number = 0
        self.known: list[Pair] = []

    @initialize(target=pairs, weight=weights, priority=priorities)
    def begin_with_three(self, weight: int, priority: int) -> Any:
        """Two sub-queues of one group, and one that may be of another."""
        return multiple(
            self.add_subqueue(5, 0, None, None, weight),
            self.add_subqueue(6, 0, None, None, 1),
            self.add_subqueue(7, priority, 3, 2, 2),
        )

    def fresh(self) -> int:
        self.number += 1
        return self.number

    # On the multi-queue

    @rule(target=pairs, key=keys, priority=priorities, capacity=capacities, limit=limits, weight=weights)
    def add_subqueue(self, key: int, priority: int, capacity: int | None, limit: int | None, weight: int) -> Any:
        arguments: dict[str, Any] = {"max_in_flight": limit, "weight": weight}
        if self.model.is_shutdown:
            with pytest.raises(ShutDown):
                self.multi_queue.add_subqueue(key, priority, capacity, **arguments)
            return multiple()
        if key in self.model.lanes:
            with pytest.raises(SubQueueExists):
                self.multi_queue.add_subqueue(key, priority, capacity, **arguments)
            return multiple()
        lane = ModelLane(key, priority, capacity, limit, weight)
        subqueue = self.multi_queue.add_subqueue(key, priority, capacity, **arguments)
        self.model.lanes[key] = lane
        self.known.append((subqueue, lane))
        return subqueue, lane

    @rule(key=keys)
    def get_subqueue(self, key: int) -> None:
        if key in self.model.lanes:
            assert self.multi_queue.get_subqueue(key).key == key
            assert self.multi_queue.subqueues[key] is self.multi_queue.get_subqueue(key)
        else:
            with pytest.raises(KeyError):
                self.multi_queue.get_subqueue(key)

    @after(15)
    @rule(key=st.integers(0, 7))
    def remove_subqueue(self, key: int) -> None:
        if key in self.model.lanes:
            lane = self.model.remove(key)
            assert list(self.multi_queue.remove_subqueue(key)) == lane.items
        else:
            with pytest.raises(KeyError):
                self.multi_queue.remove_subqueue(key)

    @rule(how=st.sampled_from(["get", "take", "poll", "poll in time", "get in time"]))
    def take_one(self, how: str) -> None:
        expected = self.model.take()
        if expected is None:
            self.find_nothing(how)
            return
        lane, item = expected
        if how == "take":
            assert self.multi_queue.take(block=False) == (self.subqueue_of(lane), item)
        elif how.startswith("get"):
            assert self.multi_queue.get(block=how == "get in time", timeout=1.0) == item
        else:
            assert self.multi_queue.poll(timeout=1.0 if how == "poll in time" else 0.0) == item

    def find_nothing(self, how: str) -> None:
        if how.startswith("poll"):
            assert self.multi_queue.poll(default="nothing") == "nothing"
            return
        with pytest.raises(ShutDown if self.model.is_finished() else Empty):
            self.multi_queue.take(block=False) if how == "take" else self.multi_queue.get_nowait()

    @rule(count=st.integers(1, 12))
    def take_several(self, count: int) -> None:
        """One after the other, for the order of turns."""
        for _ in range(min(count, self.model.size())):
            self.take_one("take")

    @rule()
    def peek(self) -> None:
        ready = self.model.ready()
        assert self.multi_queue.peek(default="nothing") == (ready[0].items[0] if ready else "nothing")

    @rule(count=st.integers(1, 5))
    def get_many(self, count: int) -> None:
        expected: list[int] = []
        while len(expected) < count and (taken := self.model.take()) is not None:
            expected.append(taken[1])
        if expected:
            assert self.multi_queue.get_many(count, block=False) == expected
        else:
            with pytest.raises(ShutDown if self.model.is_finished() else Empty):
                self.multi_queue.get_many(count, block=False)

    @rule(count=st.none() | st.integers(0, 5))
    def drain_to(self, count: int | None) -> None:
        available = self.model.size()
        expected: list[int] = []
        while len(expected) < (available if count is None else min(count, available)):
            taken = self.model.take()
            if taken is None:
                break
            expected.append(taken[1])
        target: list[int] = []
        assert self.multi_queue.drain_to(target, count) == len(expected)
        assert target == expected

    @after(50)
    @rule(immediate=st.booleans())
    def shutdown(self, immediate: bool) -> None:
        self.multi_queue.shutdown(immediate)
        self.model.is_shutdown = True
        for lane in self.model.lanes.values():
            lane.closed = True
            if immediate:
                lane.items.clear()
            self.model.settle(lane)

    # On a sub-queue: puts

    @rule(count=st.integers(1, 3))
    def put_into_each(self, count: int) -> None:
        """Into every sub-queue that has room, so that there are turns to take."""
        for subqueue, lane in self.known:
            for _ in range(count):
                if not lane.closed and lane.room() != 0:
                    self.put((subqueue, lane), "offer")

    @rule(pair=pairs, how=st.sampled_from(["put", "put_nowait", "offer", "put in time"]))
    def put(self, pair: Pair, how: str) -> None:
        subqueue, lane = pair
        item = self.fresh()
        if lane.closed:
            with pytest.raises(ShutDown) as refused:
                subqueue.put(item, timeout=0.0)
            assert vars(refused.value)["item"] == item
            assert isinstance(refused.value, Detached) == (not lane.attached)
        elif lane.room() == 0:
            self.put_into_full(subqueue, item, how)
        else:
            if how == "offer":
                assert subqueue.offer(item)
            elif how == "put_nowait":
                subqueue.put_nowait(item)
            else:
                subqueue.put(item, timeout=1.0 if how == "put in time" else None)
            lane.items.append(item)
            self.model.settle(lane)

    def put_into_full(self, subqueue: SubQueue[int], item: int, how: str) -> None:
        if how == "offer":
            assert not subqueue.offer(item)
            return
        with pytest.raises(Full) as refused:
            subqueue.put_nowait(item)
        assert vars(refused.value)["item"] == item

    @rule(pair=pairs, count=st.integers(0, 4))
    def put_many(self, pair: Pair, count: int) -> None:
        subqueue, lane = pair
        batch = [self.fresh() for _ in range(count)]
        if lane.closed and batch:
            with pytest.raises(ShutDown) as refused:
                subqueue.put_many(batch, timeout=0.0)
            assert vars(refused.value)["accepted"] == 0
            assert vars(refused.value)["rest"] == batch
            return
        room = lane.room()
        accepted = batch if room is None else batch[:room]
        assert subqueue.put_many(batch, timeout=0.0) == len(accepted)
        lane.items.extend(accepted)
        self.model.settle(lane)

    @rule(pair=pairs)
    def put_first(self, pair: Pair) -> None:
        subqueue, lane = pair
        item = self.fresh()
        if lane.closed:
            with pytest.raises(ShutDown):
                subqueue.put_first(item)
            return
        subqueue.put_first(item)
        lane.items.insert(0, item)
        self.model.settle(lane)

    # On a sub-queue: takes

    @rule(pair=pairs, how=st.sampled_from(["get", "get_nowait", "poll"]))
    def take_from(self, pair: Pair, how: str) -> None:
        subqueue, lane = pair
        item = self.model.take_from(lane)
        if how == "poll":
            assert subqueue.poll() == item
        elif item is None:
            with pytest.raises(ShutDown if lane.closed else Empty):
                subqueue.get_nowait()
        else:
            assert (subqueue.get_nowait() if how == "get_nowait" else subqueue.get(timeout=1.0)) == item

    @rule(pair=pairs, count=st.integers(1, 4))
    def get_many_from(self, pair: Pair, count: int) -> None:
        subqueue, lane = pair
        expected = [self.model.take_from(lane) for _ in range(min(count, len(lane.items)))]
        if expected:
            assert subqueue.get_many(count, block=False) == expected
        else:
            with pytest.raises(ShutDown if lane.closed else Empty):
                subqueue.get_many(count, block=False)

    @rule(pair=pairs, count=st.none() | st.integers(0, 4))
    def drain_from(self, pair: Pair, count: int | None) -> None:
        subqueue, lane = pair
        size = len(lane.items) if count is None else min(count, len(lane.items))
        expected = [self.model.take_from(lane) for _ in range(size)]
        target: list[int] = []
        assert subqueue.drain_to(target, count) == size
        assert target == expected

    @rule(pair=pairs)
    def task_done(self, pair: Pair) -> None:
        subqueue, lane = pair
        if lane.unfinished() <= 0:
            with pytest.raises(ValueError, match="too many times"):
                subqueue.task_done()
            return
        subqueue.task_done()
        lane.in_flight -= 1
        self.model.settle(lane)

    # On a sub-queue: the rest

    @rule(pair=pairs, reason=reasons)
    def disable(self, pair: Pair, reason: str | None) -> None:
        subqueue, lane = pair
        subqueue.disable(reason)
        lane.reasons.add(reason)
        self.model.settle(lane)

    @rule()
    def enable_all(self) -> None:
        """Withdraw every reason."""
        for subqueue, lane in self.known:
            for reason in sorted(lane.reasons, key=str):
                self.enable((subqueue, lane), reason)

    @rule(pair=pairs, reason=reasons)
    def enable(self, pair: Pair, reason: str | None) -> None:
        subqueue, lane = pair
        subqueue.enable(reason)
        lane.reasons.discard(reason)
        self.model.settle(lane)

    @rule(pair=pairs, priority=priorities)
    def set_priority(self, pair: Pair, priority: int) -> None:
        subqueue, lane = pair
        subqueue.priority = priority
        changed, lane.priority = priority != lane.priority, priority
        self.model.settle(lane, to_the_end=changed)

    @rule(pair=pairs, capacity=capacities)
    def set_capacity(self, pair: Pair, capacity: int | None) -> None:
        pair[0].capacity = pair[1].capacity = capacity

    @rule(pair=pairs, limit=limits)
    def set_max_in_flight(self, pair: Pair, limit: int | None) -> None:
        subqueue, lane = pair
        subqueue.max_in_flight = lane.max_in_flight = limit
        self.model.settle(lane)

    @rule(pair=pairs, weight=weights)
    def set_weight(self, pair: Pair, weight: int) -> None:
        pair[0].weight = pair[1].weight = weight

    @rule(pair=pairs, number=st.integers(0, 40))
    def remove(self, pair: Pair, number: int) -> None:
        subqueue, lane = pair
        assert (number in subqueue) == (number in lane.items)
        assert subqueue.remove(number) == (number in lane.items)
        if number in lane.items:
            lane.items.remove(number)
        self.model.settle(lane)

    @after(15)
    @rule(pair=pairs)
    def clear(self, pair: Pair) -> None:
        subqueue, lane = pair
        assert subqueue.clear() == len(lane.items)
        lane.items.clear()
        self.model.settle(lane)

    @after(30)
    @rule(pair=pairs, immediate=st.booleans())
    def shutdown_one(self, pair: Pair, immediate: bool) -> None:
        subqueue, lane = pair
        subqueue.shutdown(immediate)
        lane.closed = True
        if immediate:
            lane.items.clear()
        self.model.settle(lane)

    # After each step

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for subqueue, lane in self.known:
            assert list(subqueue) == lane.items
            assert (len(subqueue), subqueue.qsize()) == (len(lane.items), len(lane.items))
            assert subqueue.empty() == (not lane.items)
            assert subqueue.remaining_capacity() == lane.room()
            assert subqueue.full() == (lane.room() == 0)
            assert subqueue.maxsize == (lane.capacity or 0)
            assert subqueue.peek("nothing") == (lane.items[0] if lane.items else "nothing")
            assert subqueue.in_flight == max(0, lane.in_flight)
            assert subqueue.enabled == (not lane.reasons)
            assert subqueue.is_shutdown == lane.closed
            assert {name: getattr(subqueue, name) for name in self.model.settings(lane)} == self.model.settings(lane)
        assert set(self.multi_queue.subqueues) == set(self.model.lanes)
        assert self.multi_queue.qsize() == self.model.size()
        assert self.multi_queue.empty() == (self.model.size() == 0)
        assert self.multi_queue.is_shutdown == self.model.is_shutdown

    @invariant()
    def is_in_order(self) -> None:
        self.multi_queue.check_invariants()
        for subqueue, _ in self.known:
            subqueue.check_invariants()
            snapshot = subqueue.statistics()
            assert snapshot.put == snapshot.taken + snapshot.discarded + snapshot.size
            assert snapshot.taken == snapshot.completed + snapshot.in_flight

    def subqueue_of(self, lane: ModelLane) -> SubQueue[int]:
        return next(subqueue for subqueue, known in self.known if known is lane)


def test_every_operation_does_what_the_model_does() -> None:
    """Whatever one thread does, results, order, sizes and settings are those of the model."""
    machine = MultiQueueMachine.TestCase
    machine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
    machine().runTest()


@pytest.mark.slow
def test_every_operation_does_what_the_model_does_for_long() -> None:
    """The same with many more and longer sequences."""
    machine = MultiQueueMachine.TestCase
    machine.settings = settings(max_examples=3_000, stateful_step_count=80, deadline=None)
    machine().runTest()
