"""The table of the multi-queue, row by row: sub-queues, order of service, taking, waiting, closing."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator

import pytest
from core_parts_support import engine

import multiqueue
from multiqueue import (
    Detached,
    Empty,
    InvalidSelection,
    LinkedBlockingMultiQueue,
    ShutDown,
    SubQueue,
    SubQueueExists,
    Taken,
)
from multiqueue.testing import Threads, wait_until_blocked

MQ = LinkedBlockingMultiQueue


@pytest.fixture
def mq() -> Iterator[MQ[object]]:
    multi_queue: MQ[object] = MQ()
    yield multi_queue
    multi_queue.check_invariants()


def calls_of_a_round(mq: MQ[object], sub: SubQueue[object]) -> int:
    """How many functions, those in C too, are called by a put to a sub-queue and a take from the multi-queue."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        sub.put("item")
        mq.get()
    finally:
        sys.setprofile(previous)
    return calls


@pytest.mark.parametrize("are_ready", [False, True])
def test_a_put_and_a_take_cost_the_same_however_many_sub_queues(are_ready: bool) -> None:
    """With 4 sub-queues and with 4,000, empty or all with elements, a put and a take make as many calls (core 4)."""
    counts = set()
    for number in (4, 4000):
        mq: MQ[object] = MQ()
        subs = [mq.add_subqueue(key) for key in range(number)]
        for sub in subs if are_ready else ():
            sub.put("ready")
        calls_of_a_round(mq, subs[-1])
        counts.add(calls_of_a_round(mq, subs[-1]))
    assert len(counts) == 1, counts


def fill(sub: SubQueue[object], *items: object) -> SubQueue[object]:
    for item in items:
        sub.put(item)
    return sub


def drain(mq: MQ[object]) -> list[object]:
    items: list[object] = []
    mq.drain_to(items)
    return items


class TestSubQueues:
    def test_settings(self, mq: MQ[object]) -> None:
        """A sub-queue has the settings it was added with, and is enabled and empty."""
        sub = mq.add_subqueue("eu", 3, 10, max_in_flight=2, weight=4)
        assert (sub.key, sub.priority, sub.capacity, sub.max_in_flight, sub.weight) == ("eu", 3, 10, 2, 4)
        assert sub.enabled
        assert sub.empty()
        assert mq.get_subqueue("eu") is sub

    @pytest.mark.parametrize("wrong", [{"capacity": 0}, {"max_in_flight": 0}, {"weight": 0}, {"capacity": -1}])
    def test_values_below_one_are_refused(self, mq: MQ[object], wrong: dict[str, int]) -> None:
        """A capacity, limit or weight below 1 is a ValueError that names it, and nothing is registered."""
        with pytest.raises(ValueError, match=next(iter(wrong))):
            mq.add_subqueue("eu", **wrong)  # type: ignore[arg-type]
        assert len(mq.subqueues) == 0

    @pytest.mark.parametrize("wrong", [{"capacity": "9"}, {"weight": 1.5}, {"priority": None}, {"max_in_flight": True}])
    def test_values_of_another_type_are_refused(self, mq: MQ[object], wrong: dict[str, object]) -> None:
        """A setting that is not an int is a TypeError that names it, and nothing is registered."""
        with pytest.raises(TypeError, match=next(iter(wrong))):
            mq.add_subqueue("eu", **wrong)  # type: ignore[arg-type]
        assert len(mq.subqueues) == 0

    def test_existing_key(self, mq: MQ[object]) -> None:
        """Adding a key that exists raises SubQueueExists, a ValueError, and leaves the first one as it was."""
        first = mq.add_subqueue("eu", 3)
        with pytest.raises(SubQueueExists, match="'eu'") as caught:
            mq.add_subqueue("eu", 4)
        assert isinstance(caught.value, ValueError)
        assert mq.get_subqueue("eu") is first
        assert first.priority == 3

    def test_get_or_add(self, mq: MQ[object]) -> None:
        """`get_or_add_subqueue` adds one with these settings; one that is there is returned and keeps its own."""
        made = mq.get_or_add_subqueue("a", 1, 10, max_in_flight=2, weight=3)
        assert mq.subqueues == {"a": made}
        again = mq.get_or_add_subqueue("a", 5, weight=7)
        assert again is made
        assert (made.priority, made.capacity, made.max_in_flight, made.weight) == (1, 10, 2, 3)
        mq.remove_subqueue("a")
        assert mq.get_or_add_subqueue("a") is not made

    def test_get_or_add_refuses_what_add_refuses(self, mq: MQ[object]) -> None:
        """Wrong settings and a shutdown refuse a new one, and nothing is registered; one that is there is returned."""
        made = mq.get_or_add_subqueue("a")
        with pytest.raises(ValueError, match="'weight' must be at least 1, not 0"):
            mq.get_or_add_subqueue("b", weight=0)
        mq.shutdown()
        with pytest.raises(ShutDown, match="accepts no new sub-queue"):
            mq.get_or_add_subqueue("b")
        assert mq.get_or_add_subqueue("a") is made
        assert list(mq.subqueues) == ["a"]

    def test_unknown_keys(self, mq: MQ[object]) -> None:
        """Getting or removing a key that is not there is a KeyError that says which there are."""
        with pytest.raises(KeyError, match="there is no sub-queue 'eu'; there is none at all"):
            mq.get_subqueue("eu")
        for key in range(7):
            mq.add_subqueue(key)
        with pytest.raises(KeyError, match="there is no sub-queue 'eu'; there is 0, 1, 2, 3, 4 and 2 more"):
            mq.remove_subqueue("eu")

    def test_view_is_read_only(self, mq: MQ[object]) -> None:
        """`subqueues` shows what is registered, live, cannot be written to, and can be iterated while it changes."""
        view = mq.subqueues
        sub = mq.add_subqueue("eu")
        assert dict(view) == {"eu": sub}
        assert "eu" in view
        with pytest.raises(TypeError):
            view["us"] = sub  # type: ignore[index]
        for key in view:
            mq.add_subqueue((key, "copy"))
        assert len(view) == 2

    def test_key_can_be_used_again(self, mq: MQ[object]) -> None:
        """After a removal the key is free, and the new sub-queue has nothing of the old one."""
        old = fill(mq.add_subqueue("eu"), 1)
        mq.remove_subqueue("eu")
        new = mq.add_subqueue("eu")
        assert new is not old
        assert mq.empty()
        assert list(old) == [1]

    def test_keys_whose_equality_calls_back(self, mq: MQ[object]) -> None:
        """A key's `__eq__` and `__hash__` may use the multi-queue (core 9)."""

        class Key:
            def __hash__(self) -> int:
                mq.statistics()
                return 1

            def __eq__(self, other: object) -> bool:
                mq.qsize()
                return self is other

        one, two = Key(), Key()
        mq.add_subqueue(one)
        mq.add_subqueue(two).put(1)
        assert mq.remove_subqueue(one).key is one
        assert mq.get() == 1


class TestOrder:
    def test_lower_priority_first(self, mq: MQ[object]) -> None:
        """All elements of a lower priority number are served before any of a higher, whenever groups were added.

        (core 3)
        """
        for priority in (5, -1, 3):
            fill(mq.add_subqueue(priority, priority), priority, priority)
        assert drain(mq) == [-1, -1, 3, 3, 5, 5]

    def test_round_robin(self, mq: MQ[object]) -> None:
        """Sub-queues of equal priority take turns, whatever each of them holds (core 3)."""
        fill(mq.add_subqueue("a"), "a1", "a2", "a3", "a4")
        fill(mq.add_subqueue("b"), "b1")
        fill(mq.add_subqueue("c"), "c1", "c2")
        assert drain(mq) == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]

    def test_refilled_joins_at_the_end(self, mq: MQ[object]) -> None:
        """A sub-queue that ran empty and is filled again waits for those that were ready before it (core 3)."""
        a, b = mq.add_subqueue("a"), mq.add_subqueue("b")
        fill(a, "a1")
        fill(b, "b1", "b2")
        assert mq.get() == "a1"
        assert mq.get() == "b1"
        fill(a, "a2")
        assert drain(mq) == ["b2", "a2"]

    def test_the_last_one_to_run_empty_keeps_no_place(self, mq: MQ[object]) -> None:
        """Also when it was alone in its group and another came before it was filled again."""
        a, b = mq.add_subqueue("a"), mq.add_subqueue("b")
        fill(a, "a1")
        assert mq.get() == "a1"
        fill(b, "b1")
        fill(a, "a2")
        assert drain(mq) == ["b1", "a2"]

    def test_enabled_joins_at_the_end(self, mq: MQ[object]) -> None:
        """A sub-queue that is enabled waits for those that were ready before it (core 3)."""
        a = fill(mq.add_subqueue("a"), "a1")
        fill(mq.add_subqueue("b"), "b1")
        a.disable()
        a.enable()
        assert drain(mq) == ["b1", "a1"]

    @pytest.mark.parametrize("removed", ["a", "b", "c"])
    def test_removal_costs_nobody_a_turn(self, mq: MQ[object], removed: str) -> None:
        """After one of three is removed, the others are served in the order they would have been (core 3)."""
        for key in "abc":
            fill(mq.add_subqueue(key), f"{key}1", f"{key}2")
        assert mq.get() == "a1"
        mq.remove_subqueue(removed)
        assert drain(mq) == [item for item in ("b1", "c1", "a2", "b2", "c2") if item[0] != removed]

    def test_weight(self, mq: MQ[object]) -> None:
        """A sub-queue of weight 3 gives three elements at each turn (core 3)."""
        fill(mq.add_subqueue("a", weight=3), 1, 2, 3, 4, 5)
        fill(mq.add_subqueue("b"), "x", "y", "z")
        assert drain(mq) == [1, 2, 3, "x", 4, 5, "y", "z"]

    def test_weight_starts_afresh(self, mq: MQ[object]) -> None:
        """A turn that ended early because nothing was left does not count against the next one."""
        a, b = mq.add_subqueue("a", weight=3), mq.add_subqueue("b")
        fill(a, 1)
        fill(b, "x", "y", "z")
        assert [mq.get(), mq.get()] == [1, "x"]
        fill(a, 2, 3, 4, 5)
        assert drain(mq) == ["y", 2, 3, 4, "z", 5]

    def test_priority_assigned(self, mq: MQ[object]) -> None:
        """A new priority counts at once, for elements that are there already, too."""
        fill(mq.add_subqueue("a", 1), "a")
        b = fill(mq.add_subqueue("b", 2), "b")
        b.priority = 0
        assert b.priority == 0
        assert drain(mq) == ["b", "a"]

    def test_many_priorities_leave_nothing_behind(self, mq: MQ[object]) -> None:
        """A group without a ready member is forgotten."""
        sub = mq.add_subqueue("a")
        for priority in range(1000):
            sub.priority = priority
            fill(sub, priority)
            assert mq.get() == priority
        assert mq.empty()
        if engine == "python":
            assert len(mq._engine_head.groups) <= 1  # the last one
        mq.check_invariants()

    def test_own_takes_cost_no_turn(self, mq: MQ[object]) -> None:
        """Elements taken from a sub-queue alone do not change whose turn it is."""
        a, b = fill(mq.add_subqueue("a"), "a1", "a2"), fill(mq.add_subqueue("b"), "b1", "b2")
        assert b.get() == "b1"
        assert a.get() == "a1"
        assert drain(mq) == ["a2", "b2"]


class TestTaking:
    def test_empty(self, mq: MQ[object]) -> None:
        """With nothing to take, get and take raise queue.Empty, poll and peek return the default."""
        mq.add_subqueue("a")
        for call in (mq.get_nowait, lambda: mq.get(timeout=0), lambda: mq.take(False), lambda: mq.get_many(3, False)):
            with pytest.raises(queue.Empty):
                call()
        assert mq.poll() is None
        assert mq.poll(default="nothing") == "nothing"
        assert mq.peek("nothing") == "nothing"

    def test_no_subqueues(self, mq: MQ[object]) -> None:
        """A multi-queue without sub-queues is empty, and a take waits for one to be added and filled."""
        with pytest.raises(Empty):
            mq.get_nowait()
        with Threads() as threads:
            taker = threads.start(mq.get)
            wait_until_blocked(taker.thread)
            mq.add_subqueue("a").put("item")
            assert taker.result() == "item"

    def test_none_is_an_element(self, mq: MQ[object]) -> None:
        """None can be put and taken like any other object."""
        mq.add_subqueue("a").put(None)
        assert mq.take().item is None

    def test_take(self, mq: MQ[object]) -> None:
        """take says where the element came from, and unpacks."""
        sub = fill(mq.add_subqueue("a"), "item")
        taken = mq.take()
        assert taken == Taken(sub, "item")
        assert taken.subqueue is sub

    def test_peek_changes_nothing(self, mq: MQ[object]) -> None:
        """peek shows what will be served next, as often as it is asked."""
        for key in "abc":
            fill(mq.add_subqueue(key), key)
        for key in "abc":
            assert [mq.peek(), mq.peek()] == [key, key]
            assert mq.get() == key

    def test_negative_timeout(self, mq: MQ[object]) -> None:
        """A negative timeout is a ValueError, as in queue.Queue."""
        for call in (lambda: mq.get(timeout=-1), lambda: mq.poll(-0.5), lambda: mq.take(True, -1)):
            with pytest.raises(ValueError, match="non-negative"):
                call()

    def test_what_is_no_number_is_named(self, mq: MQ[object]) -> None:
        """A timeout or a count that is no number is a TypeError with its name and what it was."""
        with pytest.raises(TypeError, match="'timeout' must be a number, not '1'"):
            mq.get(timeout="1")  # type: ignore[arg-type]
        for call in (mq.get_many, lambda count: mq.drain_to([], count)):
            for count in ("5", 1.0):
                with pytest.raises(TypeError, match=f"'max_items' must be an int, not {count!r}"):
                    call(count)

    def test_numbers_beyond_64_bits(self, mq: MQ[object]) -> None:
        """A limit that nothing can reach is none, a weight is the largest there is, a priority is refused."""
        sub = mq.add_subqueue("a", 0, 2**64, max_in_flight=2**63, weight=2**64)
        assert (sub.capacity, sub.max_in_flight, sub.weight) == (None, None, sys.maxsize)
        sub.put(1)
        assert mq.get_many(2**64) == [1]
        with pytest.raises(ValueError, match="'priority' must fit 64 bits, not 9223372036854775808"):
            mq.add_subqueue("b", 2**63)

    @pytest.mark.parametrize("timeout", [1e300, float("inf")])
    def test_endless_timeout(self, mq: MQ[object], timeout: float) -> None:
        """A timeout longer than the platform can count is a wait without end, not an error."""
        sub = mq.add_subqueue("a")
        with Threads() as threads:
            taker = threads.start(lambda: mq.get(timeout=timeout))
            wait_until_blocked(taker.thread)
            sub.put(1)
            assert taker.result() == 1

    def test_get_many(self, mq: MQ[object]) -> None:
        """get_many takes what is there, up to the number asked for, in the order of service."""
        fill(mq.add_subqueue("a"), 1, 2, 3)
        fill(mq.add_subqueue("b"), "x")
        fill(mq.add_subqueue("c", 1), "last")
        assert mq.get_many(2) == [1, "x"]
        assert mq.get_many(100) == [2, 3, "last"]
        with pytest.raises(ValueError, match="max_items"):
            mq.get_many(0)

    def test_get_many_in_long_runs(self, mq: MQ[object]) -> None:
        """More elements than are taken under one hold of the lock come in order, none twice."""
        sub = mq.add_subqueue("a")
        sub.put_many(range(10_000))
        assert mq.get_many(20_000) == list(range(10_000))
        assert sub.in_flight == 10_000

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
    def test_get_many_serves_as_get_does(self, mq: MQ[object], size: int) -> None:
        """Turns, limits, weights that change, a tail that was alone: whatever the batch, the order is that of get."""

        def served(take: Callable[[MQ[object]], list[object]]) -> list[list[object]]:
            multi_queue: MQ[object] = MQ()
            a, b, c, limited = (
                multi_queue.add_subqueue(key, weight=weight, max_in_flight=limit)
                for key, weight, limit in (("a", 3, None), ("b", 2, None), ("c", 1, None), ("limited", 4, 6))
            )
            rows: list[list[object]] = []
            for change in (
                lambda: a.put_many([f"a{number}" for number in range(20)]),
                lambda: b.put_many([f"b{number}" for number in range(9)]),
                lambda: limited.put_many([f"l{number}" for number in range(9)]),
                lambda: setattr(a, "weight", 2),
                lambda: c.put_many(["c0", "c1", "c2"]),
                lambda: limited.task_done(),
                lambda: b.put_many([f"b{number}" for number in range(9, 12)]),
                lambda: None,
            ):
                change()
                rows.append(take(multi_queue))
                multi_queue.check_invariants()
            return rows

        def one_by_one(multi_queue: MQ[object]) -> list[object]:
            return [item for _ in range(size) if (item := multi_queue.poll()) is not None]

        assert served(lambda mq: mq.get_many(size) if mq.qsize() else []) == served(one_by_one)

    def test_get_many_respects_weight_and_limit(self, mq: MQ[object]) -> None:
        """Taking many is taking one many times: weights and in-flight limits hold."""
        fill(mq.add_subqueue("a", weight=2), 1, 2, 3)
        fill(mq.add_subqueue("b", max_in_flight=1), "x", "y")
        assert mq.get_many(10) == [1, 2, "x", 3]

    def test_drain_to(self, mq: MQ[object]) -> None:
        """drain_to hands over what is there in the order of service to a callable, a list, a set or a queue."""
        sub = mq.add_subqueue("a")
        called: list[object] = []
        seen: set[object] = set()
        other: multiqueue.Queue[object] = multiqueue.Queue()
        for target, read in ((called.append, called), (seen, seen), (other, other)):
            fill(sub, 1, 2, 3)
            assert mq.drain_to(target, 2) == 2
            assert mq.drain_to(target) == 1
            assert list(read) == [1, 2, 3]

    def test_drain_to_a_target_that_raises(self, mq: MQ[object]) -> None:
        """What the target did not accept is still there, in order, and not in flight."""
        sub = fill(mq.add_subqueue("a"), 1, 2, 3)
        bounded: multiqueue.Queue[object] = multiqueue.Queue(1)
        with pytest.raises(multiqueue.Full):
            mq.drain_to(bounded)
        assert list(sub) == [2, 3]
        assert sub.in_flight == 1
        sub.check_invariants()

    def test_drain_to_itself(self, mq: MQ[object]) -> None:
        """Draining into itself, one of its own sub-queues, or a method of either is refused."""
        sub = fill(mq.add_subqueue("a"), 1)
        for target in (mq, sub, sub.put):
            with pytest.raises(ValueError, match="into itself"):
                mq.drain_to(target)
        with pytest.raises(TypeError, match="not callable"):
            mq.drain_to(42)
        assert list(sub) == [1]

    def test_qsize(self, mq: MQ[object]) -> None:
        """qsize counts what could be taken: not what is disabled or waits behind an in-flight limit."""
        a, b = fill(mq.add_subqueue("a"), 1, 2), fill(mq.add_subqueue("b", max_in_flight=1), 3, 4)
        assert mq.qsize() == 4
        a.disable()
        assert mq.qsize() == 2
        assert mq.get() == 3
        assert mq.qsize() == 0
        assert mq.empty()
        b.task_done()
        a.enable()
        assert mq.qsize() == 3


class TestInFlight:
    def test_limit(self, mq: MQ[object]) -> None:
        """At its limit a sub-queue is passed over until task_done, and then joins at the end of the round."""
        a = fill(mq.add_subqueue("a", max_in_flight=1), "a1", "a2")
        fill(mq.add_subqueue("b"), "b1", "b2")
        assert [mq.get(), mq.get(), mq.get()] == ["a1", "b1", "b2"]
        assert mq.poll() is None
        a.task_done()
        assert mq.get() == "a2"

    def test_task_done_wakes_a_taker(self, mq: MQ[object]) -> None:
        """A taker that waits for a sub-queue to come below its limit goes on when it does."""
        sub = fill(mq.add_subqueue("a", max_in_flight=1), 1, 2)
        mq.get()
        with Threads() as threads:
            taker = threads.start(mq.get)
            wait_until_blocked(taker.thread)
            sub.task_done()
            assert taker.result() == 2

    def test_limit_assigned(self, mq: MQ[object]) -> None:
        """Raising or lifting the limit lets what waits be taken at once."""
        sub = fill(mq.add_subqueue("a", max_in_flight=1), 1, 2, 3)
        mq.get()
        assert mq.poll() is None
        sub.max_in_flight = 2
        assert mq.poll() == 2
        assert mq.poll() is None
        sub.max_in_flight = None
        assert mq.poll() == 3


class TestWaiting:
    def test_put_wakes_one(self, mq: MQ[object]) -> None:
        """As many takers go on as elements are put, each with one of them."""
        sub = mq.add_subqueue("a")
        with Threads() as threads:
            takers = [threads.start(mq.get) for _ in range(3)]
            for taker in takers:
                wait_until_blocked(taker.thread)
            assert mq.statistics().waiting_takers == 3
            sub.put_many([1, 2])
            wait_until_blocked(lambda: mq.statistics().waiting_takers == 1)
            sub.put(3)
            assert sorted(taker.result() for taker in takers) == [1, 2, 3]  # type: ignore[type-var]

    def test_enable_wakes(self, mq: MQ[object]) -> None:
        """A taker that waits while all are disabled goes on when one with elements is enabled."""
        sub = mq.add_subqueue("a")
        sub.disable()
        sub.put(1)
        with Threads() as threads:
            taker = threads.start(mq.get)
            wait_until_blocked(taker.thread)
            sub.enable()
            assert taker.result() == 1

    def test_timeout_ends_it(self, mq: MQ[object]) -> None:
        """A wait that times out raises Empty and leaves no thread parked."""
        mq.add_subqueue("a")
        with pytest.raises(Empty):
            mq.get(timeout=0.01)
        assert mq.statistics().waiting_takers == 0

    def test_own_and_common_takers(self, mq: MQ[object]) -> None:
        """Takers of a sub-queue alone and of the multi-queue each get one of two elements."""
        sub = mq.add_subqueue("a")
        with Threads() as threads:
            takers = [threads.start(sub.get), threads.start(mq.get)]
            for taker in takers:
                wait_until_blocked(taker.thread)
            sub.put_many([1, 2])
            assert sorted(taker.result() for taker in takers) == [1, 2]  # type: ignore[type-var]


class TestRemoval:
    def test_blocked_putter(self, mq: MQ[object]) -> None:
        """A putter that waits for room in a sub-queue that is removed raises Detached, and its element is on it."""
        sub = fill(mq.add_subqueue("a", capacity=1), 1)
        with Threads() as threads:
            putter = threads.start(lambda: pytest.raises(Detached, sub.put, 2))
            wait_until_blocked(putter.thread)
            assert mq.remove_subqueue("a") is sub
            assert putter.result().value.item == 2  # type: ignore[attr-defined]
        assert list(sub) == [1]

    def test_later_puts(self, mq: MQ[object]) -> None:
        """Every kind of put to a removed sub-queue raises Detached, a ShutDown, and changes nothing."""
        sub = mq.add_subqueue("a")
        mq.remove_subqueue("a")
        for put in (sub.put, sub.put_nowait, sub.offer, sub.put_first, lambda item: sub.put_many([item])):
            with pytest.raises(Detached, match="'a' was removed") as caught:
                put(7)
            assert isinstance(caught.value, ShutDown)
            assert caught.value.item == 7  # type: ignore[attr-defined]
        assert sub.empty()
        assert mq.empty()

    def test_elements_are_the_removers(self, mq: MQ[object]) -> None:
        """The elements of a removed sub-queue can be iterated, taken, drained and cleared, and are no one else's."""
        sub = fill(mq.add_subqueue("a"), 1, 2, 3, 4)
        assert mq.remove_subqueue("a") is sub
        assert mq.poll() is None
        assert list(sub) == [1, 2, 3, 4]
        assert sub.get() == 1
        drained: list[object] = []
        assert sub.drain_to(drained, 1) == 1
        assert drained == [2]
        assert sub.clear() == 2
        with pytest.raises(Detached):
            sub.get()

    def test_it_touches_the_multi_queue_no_more(self, mq: MQ[object]) -> None:
        """Clearing, disabling, enabling and changing a removed sub-queue leaves the others alone."""
        gone, stays = fill(mq.add_subqueue("a"), 1), fill(mq.add_subqueue("b"), 2)
        mq.remove_subqueue("a")
        gone.disable()
        gone.enable()
        gone.priority = -1
        gone.max_in_flight = 5
        gone.clear()
        gone.shutdown()
        assert mq.qsize() == 1
        assert mq.get() == 2
        stays.task_done()
        mq.join()

    def test_own_taker_of_a_removed_one(self, mq: MQ[object]) -> None:
        """A taker that waits on a sub-queue alone raises Detached when it is removed."""
        sub = mq.add_subqueue("a")
        with Threads() as threads:
            taker = threads.start(lambda: pytest.raises(Detached, sub.get))
            wait_until_blocked(taker.thread)
            mq.remove_subqueue("a")
            taker.result()


class TestShutdown:
    def test_drained_first(self, mq: MQ[object]) -> None:
        """After shutdown puts and new sub-queues are refused, takes go on to the end, then raise ShutDown."""
        sub = fill(mq.add_subqueue("a"), 1)
        mq.shutdown()
        assert mq.is_shutdown
        assert sub.is_shutdown
        with pytest.raises(ShutDown) as caught:
            sub.put(2)
        assert caught.value.item == 2  # type: ignore[attr-defined]
        with pytest.raises(ShutDown):
            mq.add_subqueue("b")
        assert mq.get() == 1
        for call in (mq.get, mq.get_nowait, mq.take, lambda: mq.get_many(2)):
            with pytest.raises(ShutDown):
                call()
        assert mq.poll(default="none") == "none"
        assert mq.drain_to([]) == 0
        mq.shutdown()

    def test_blocked_takers(self, mq: MQ[object]) -> None:
        """All takers that wait when it is shut down raise ShutDown."""
        sub = mq.add_subqueue("a")
        with Threads() as threads:
            takers = [threads.start(lambda f=f: pytest.raises(ShutDown, f)) for f in (mq.get, mq.get, sub.get)]
            for taker in takers:
                wait_until_blocked(taker.thread)
            mq.shutdown()

    def test_immediate(self, mq: MQ[object]) -> None:
        """An immediate shutdown discards what is there, and join returns."""
        sub = fill(mq.add_subqueue("a", capacity=2), 1, 2)
        with Threads() as threads:
            putter = threads.start(lambda: pytest.raises(ShutDown, sub.put, 3))
            joiner = threads.start(mq.join)
            wait_until_blocked(putter.thread)
            wait_until_blocked(joiner.thread)
            mq.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            mq.get()
        assert sub.statistics().discarded == 2

    @pytest.mark.parametrize("end", ["own get", "clear", "remove_subqueue", "remove", "enable and get"])
    def test_elements_that_are_disabled_keep_a_taker_waiting(self, mq: MQ[object], end: str) -> None:
        """After shutdown a taker waits while a disabled sub-queue holds something, until that has gone."""
        sub = fill(mq.add_subqueue("a"), 1)
        sub.disable()
        mq.shutdown()
        with Threads() as threads:
            taker = threads.start(lambda: pytest.raises(ShutDown, mq.get) if end != "enable and get" else mq.get())
            wait_until_blocked(taker.thread)
            {
                "own get": sub.get,
                "clear": sub.clear,
                "remove_subqueue": lambda: mq.remove_subqueue("a"),
                "remove": lambda: sub.remove(1),
                "enable and get": sub.enable,
            }[end]()


class TestJoin:
    def test_over_all(self, mq: MQ[object]) -> None:
        """join waits for every element of every sub-queue."""
        a, b = fill(mq.add_subqueue("a"), 1), fill(mq.add_subqueue("b"), 2)
        mq.get()
        mq.get()
        with Threads() as threads:
            joiner = threads.start(mq.join)
            wait_until_blocked(joiner.thread)
            b.task_done()
            wait_until_blocked(joiner.thread)
            a.task_done()
        mq.join()


class Longest:
    """Serves the sub-queue with the most elements, and counts."""

    def __init__(self) -> None:
        self.served: list[object] = []

    def select(self, ready):  # type: ignore[no-untyped-def]
        return max(ready, key=len)

    def taken(self, subqueue: SubQueue[object]) -> None:
        self.served.append(subqueue.key)


class TestSelection:
    def test_decides(self) -> None:
        """A user's selection decides whose element is taken, in every way to take, and is told."""
        policy = Longest()
        mq: MQ[object] = MQ(selection=policy)
        fill(mq.add_subqueue("a"), "a1")
        fill(mq.add_subqueue("b", 5), "b1", "b2", "b3")
        assert mq.peek() == "b1"
        assert [mq.get(), mq.take().item] == ["b1", "b2"]
        assert mq.get_many(5) == ["a1", "b3"]
        assert policy.served == ["b", "b", "a", "b"]
        mq.check_invariants()

    def test_first_of_ready_is_round_robin(self) -> None:
        """`ready` is given in the order of service: a policy that takes the first one is the default."""

        class First(Longest):
            def select(self, ready):  # type: ignore[no-untyped-def]
                return ready[0]

        mq: MQ[object] = MQ(selection=First())
        fill(mq.add_subqueue("z", 1), "z")
        fill(mq.add_subqueue("a"), "a1", "a2")
        fill(mq.add_subqueue("b"), "b1", "b2")
        assert drain(mq) == ["a1", "b1", "a2", "b2", "z"]

    def test_sees_only_what_is_ready(self) -> None:
        """Disabled sub-queues, empty ones and those at their limit are not among the choices."""
        seen: list[object] = []

        class Spy(Longest):
            def select(self, ready):  # type: ignore[no-untyped-def]
                seen.append([sub.key for sub in ready])
                return ready[0]

        mq: MQ[object] = MQ(selection=Spy())
        fill(mq.add_subqueue("disabled"), 1).disable()
        mq.add_subqueue("empty")
        fill(mq.add_subqueue("limited", max_in_flight=1), 1, 2)
        mq.get()
        assert mq.poll() is None
        assert seen == [["limited"]]

    @pytest.mark.parametrize("answer", [None, "stranger", "removed"])
    def test_invalid_answers(self, answer: str | None) -> None:
        """An answer that is not among the choices raises InvalidSelection and takes nothing."""

        class Wrong(Longest):
            def select(self, ready):  # type: ignore[no-untyped-def]
                return {None: None, "stranger": MQ().add_subqueue("a"), "removed": removed}[answer]

        mq: MQ[object] = MQ(selection=Wrong())
        removed = fill(mq.add_subqueue("removed"), 1)
        mq.remove_subqueue("removed")
        sub = fill(mq.add_subqueue("a"), 1)
        with pytest.raises(InvalidSelection, match="select"):
            mq.get()
        assert list(sub) == [1]
        assert sub.in_flight == 0

    @pytest.mark.parametrize("method", ["select", "taken"])
    def test_one_that_raises(self, method: str) -> None:
        """What a selection raises reaches the taker, and the element is still there."""
        policy = Longest()
        mq: MQ[object] = MQ(selection=policy)
        sub = fill(mq.add_subqueue("a"), 1, 2)
        setattr(policy, method, lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mq.get()
        assert list(sub) == [1, 2]
        assert sub.in_flight == 0
        mq.check_invariants()

    def test_may_use_the_multi_queue(self) -> None:
        """select runs without a lock: it may take, and is asked again when its choice was taken meanwhile."""

        class Thief(Longest):
            def select(self, ready):  # type: ignore[no-untyped-def]
                if len(stolen) < 1:
                    stolen.append(ready[0].get())
                return ready[0]

        stolen: list[object] = []
        mq: MQ[object] = MQ(selection=Thief())
        fill(mq.add_subqueue("a"), 1)
        fill(mq.add_subqueue("b"), 2)
        assert mq.get() == 2
        assert stolen == [1]

    def test_must_have_the_methods(self) -> None:
        """Something without `select` and `taken` is refused when the multi-queue is made."""
        with pytest.raises(TypeError, match="select and taken"):
            MQ(selection=object())  # type: ignore[arg-type]


def test_statistics_add_up(mq: MQ[object]) -> None:
    """What was put is what is here, was taken or was discarded; what was taken is done or in flight."""
    sub = fill(mq.add_subqueue("a", capacity=9), 1, 2, 3, 4, 5)
    mq.get_many(2)
    sub.task_done()
    sub.remove(4)
    figures = mq.statistics().subqueues[0]
    assert (figures.put, figures.taken, figures.completed, figures.in_flight) == (5, 2, 1, 1)
    assert (figures.discarded, figures.size, figures.capacity) == (1, 2, 9)
    assert mq.statistics().size == 2
    with pytest.raises(AttributeError):
        figures.size = 0  # type: ignore[misc]


def test_done_ahead_of_a_take_and_then_discarded() -> None:
    """`task_done` ahead of a take, of an element that is then cleared: the next element settles it, and joins end."""
    multi_queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("a")
    lane.put_many([1, 2])
    lane.task_done()
    lane.clear()
    multi_queue.check_invariants()
    figures = lane.statistics()
    assert (figures.put, figures.taken, figures.completed, figures.discarded) == (2, 0, 0, 2)
    lane.put(3)
    multi_queue.check_invariants()
    multi_queue.join()
    lane.put(4)
    assert multi_queue.get_many(5) == [3, 4]
    lane.task_done()
    multi_queue.join()
    multi_queue.check_invariants()
