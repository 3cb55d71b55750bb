"""The table of the sub-queue, row by row; what does not need a multi-queue also of the stand-alone `Queue`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multiqueue import Detached, Empty, Full, LinkedBlockingMultiQueue, Queue, ShutDown, SubQueue
from multiqueue.core import engine
from multiqueue.testing import Threads, wait_until_blocked

Make = Callable[[int], Any]


def subqueue(capacity: int) -> SubQueue[Any]:
    return LinkedBlockingMultiQueue[Any]().add_subqueue("eu", capacity=capacity or None)


@pytest.fixture(params=[subqueue, Queue], ids=["SubQueue", "Queue"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Any] = []

    def make_one(capacity: int = 0) -> Any:
        made.append(request.param(capacity))
        return made[-1]

    yield make_one
    for queue in made:
        queue.check_invariants()


class TestPut:
    def test_fifo(self, make: Make) -> None:
        """Elements come out in the order in which they were put, by whichever put."""
        queue = make(0)
        queue.put(1)
        queue.put_nowait(2)
        assert queue.offer(3)
        assert queue.put_many(iter([4, 5])) == 2
        queue.put_first(0)
        assert [queue.get() for _ in range(6)] == [0, 1, 2, 3, 4, 5]

    def test_full(self, make: Make) -> None:
        """A full queue refuses with Full, which says how full, and carries the element; offer says False."""
        queue = make(2)
        assert queue.put_many([1, 2]) == 2
        for put in (queue.put_nowait, lambda item: queue.put(item, False), lambda item: queue.put(item, timeout=0.01)):
            with pytest.raises(Full, match="is full: 2 of 2 items") as caught:
                put("refused")
            assert caught.value.item == "refused"  # type: ignore[attr-defined]
        assert not queue.offer(3)
        assert not queue.offer(3, timeout=0.01)
        assert list(queue) == [1, 2]

    def test_message_says_how_long(self) -> None:
        """The message of Full names the sub-queue, the wait, and what to do."""
        queue = subqueue(1)
        queue.put(1)
        with pytest.raises(Full, match=r"^sub-queue 'eu' is full: 1 of 1 items after waiting 0.01 s; raise its cap"):
            queue.put(2, timeout=0.01)

    def test_waits_for_room(self, make: Make) -> None:
        """A put to a full queue goes on when an element is taken, removed or cleared, or the capacity raised."""
        for make_room in (
            lambda queue: queue.get(),
            lambda queue: queue.remove("x"),
            lambda queue: queue.clear(),
            lambda queue: setattr(queue, "capacity", 2) if isinstance(queue, SubQueue) else queue.get(),
        ):
            queue = make(1)
            queue.put("x")
            with Threads() as threads:
                putter = threads.start(queue.put, "y")
                wait_until_blocked(putter.thread)
                assert queue.statistics().waiting_putters == 1
                make_room(queue)
                putter.join()
            assert "y" in queue

    def test_waiting_putters_all_get_in(self, make: Make) -> None:
        """One take after another lets as many putters in as there is room."""
        queue = make(2)
        queue.put_many([0, 0])
        with Threads() as threads:
            putters = [threads.start(queue.put, n) for n in range(1, 5)]
            for putter in putters:
                wait_until_blocked(putter.thread)
            got = [queue.get(timeout=30) for _ in range(6)]
        assert sorted(got) == [0, 0, 1, 2, 3, 4]

    def test_put_many_waits_and_times_out(self, make: Make) -> None:
        """put_many puts what there is room for, waits for more, and answers how many were accepted in time."""
        queue = make(2)
        assert queue.put_many([1, 2, 3], timeout=0.01) == 2
        with Threads() as threads:
            putter = threads.start(queue.put_many, [4, 5, 6])
            assert [queue.get(timeout=30) for _ in range(5)] == [1, 2, 4, 5, 6]
            assert putter.result() == 3

    def test_put_many_when_closed(self, make: Make) -> None:
        """A put_many that is cut short by shutdown says how many were put, and carries the rest."""
        queue = make(1)
        with Threads() as threads:
            putter = threads.start(lambda: pytest.raises(ShutDown, queue.put_many, [1, 2, 3]))
            wait_until_blocked(putter.thread)
            queue.shutdown()
            error = putter.result().value
        assert (error.accepted, error.rest) == (1, [2, 3])  # type: ignore[attr-defined]

    def test_put_many_reads_its_argument_first(self, make: Make) -> None:
        """If the iterable given to put_many raises, nothing was put."""

        def broken() -> Iterator[int]:
            yield 1
            raise LookupError

        queue = make(0)
        with pytest.raises(LookupError):
            queue.put_many(broken())
        assert queue.empty()

    def test_put_first_exceeds_the_capacity(self, make: Make) -> None:
        """put_first gives back to the head of a full queue; puts wait until it is below its capacity again."""
        queue = make(1)
        queue.put(2)
        queue.put_first(1)
        assert list(queue) == [1, 2]
        assert queue.full()
        assert queue.remaining_capacity() == 0
        with Threads() as threads:
            putter = threads.start(queue.put, 3)
            wait_until_blocked(putter.thread)
            assert queue.get() == 1
            wait_until_blocked(putter.thread)
            assert queue.get() == 2
            putter.join()
        assert queue.get() == 3

    def test_negative_timeout(self, make: Make) -> None:
        """A negative timeout is a ValueError, and nothing was put, into an unbounded queue neither."""
        for queue in (make(1), make(0)):
            with pytest.raises(ValueError, match="non-negative"):
                queue.put(1, timeout=-1)
            assert queue.empty()
            queue.put(1, False, -1)  # not looked at, as in `queue.Queue`
            queue.put_many([2], timeout=0)
            assert queue.get() == 1


class TestTake:
    def test_empty(self, make: Make) -> None:
        """With nothing here get raises Empty, poll and peek return the default."""
        queue = make(0)
        for call in (queue.get_nowait, lambda: queue.get(timeout=0.01), lambda: queue.get_many(2, timeout=0)):
            with pytest.raises(Empty):
                call()
        assert queue.poll() is None
        assert queue.poll(0.01, "none") == "none"
        assert queue.peek("none") == "none"

    def test_peek(self, make: Make) -> None:
        """peek shows the head and leaves it."""
        queue = make(0)
        queue.put_many([1, 2])
        assert (queue.peek(), queue.qsize()) == (1, 2)

    def test_disabled_or_not(self) -> None:
        """A disabled sub-queue gives to its own get, and counts what it gives."""
        queue = subqueue(0)
        queue.put(1)
        queue.disable()
        assert queue.get() == 1
        assert queue.in_flight == 1

    def test_done_before_it_was_taken(self, make: Make) -> None:
        """`task_done()` ahead of a take, as `queue.Queue` allows it, makes no figure negative."""
        queue = make(0)
        queue.put(1)
        queue.task_done()
        early = queue.statistics()
        assert (early.put, early.taken, early.completed, early.in_flight, early.size) == (1, 0, 0, 0, 1)
        assert queue.get() == 1
        late = queue.statistics()
        assert (late.put, late.taken, late.completed, late.in_flight, late.size) == (1, 1, 1, 0, 0)
        queue.join()

    def test_get_many_and_drain_to(self, make: Make) -> None:
        """get_many and drain_to take from this queue, in order."""
        queue = make(0)
        queue.put_many(range(6))
        assert queue.get_many(2) == [0, 1]
        seen: list[int] = []
        assert queue.drain_to(seen, 3) == 3
        assert queue.drain_to(seen.append) == 1
        assert seen == [2, 3, 4, 5]
        assert queue.in_flight == 6
        with pytest.raises(ValueError, match="itself"):
            queue.drain_to(queue)
        with pytest.raises(ValueError, match="max_items"):
            queue.drain_to(seen, -1)

    def test_draining_wakes_putters(self, make: Make) -> None:
        """A get_many from a full queue lets the putters in that wait."""
        queue = make(3)
        queue.put_many([1, 2, 3])
        with Threads() as threads:
            putters = [threads.start(queue.put, n) for n in (4, 5)]
            for putter in putters:
                wait_until_blocked(putter.thread)
            assert queue.get_many(3) == [1, 2, 3]
        assert sorted(queue) == [4, 5]


class TestPausing:
    def test_reasons(self) -> None:
        """Paused while any reason stands; each is idempotent, and only its own enable withdraws it."""
        mq: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
        queue = mq.add_subqueue("eu", capacity=2)
        queue.put(1)
        queue.disable("user")
        queue.disable("user")
        queue.disable("memory")
        queue.enable()
        queue.enable("user")
        assert not queue.enabled
        assert mq.poll() is None
        queue.enable("memory")
        assert queue.enabled
        assert mq.poll() == 1

    def test_accepts_up_to_capacity(self) -> None:
        """A disabled sub-queue accepts puts up to its capacity."""
        queue = subqueue(2)
        queue.disable()
        assert queue.put_many([1, 2]) == 2
        with pytest.raises(Full):
            queue.put_nowait(3)

    def test_unhashable_reason(self) -> None:
        """A reason that cannot be hashed is a TypeError and changes nothing."""
        queue = subqueue(0)
        with pytest.raises(TypeError):
            queue.disable([])  # type: ignore[arg-type]
        assert queue.enabled


class TestSettings:
    @pytest.mark.parametrize("name", ["capacity", "weight", "max_in_flight"])
    def test_wrong_values_change_nothing(self, name: str) -> None:
        """Assigning a value below 1 is a ValueError and leaves the setting as it was."""
        queue = subqueue(5)
        before = getattr(queue, name)
        with pytest.raises(ValueError, match=name):
            setattr(queue, name, 0)
        assert getattr(queue, name) == before

    def test_lower_capacity(self) -> None:
        """Elements above a lowered capacity stay; puts wait until there is room below it."""
        queue = subqueue(3)
        queue.put_many([1, 2, 3])
        queue.capacity = 1
        assert list(queue) == [1, 2, 3]
        assert queue.remaining_capacity() == 0
        queue.get()
        queue.get()
        assert not queue.offer(4)
        queue.get()
        assert queue.offer(4)

    def test_unbounded_and_back(self) -> None:
        """A capacity of None accepts anything, and a capacity given later counts."""
        queue = subqueue(1)
        queue.capacity = None
        assert queue.maxsize == 0
        assert queue.remaining_capacity() is None
        assert queue.put_many(range(100)) == 100
        queue.capacity = 50
        assert queue.full()
        assert not queue.offer(1)


class TestCollection:
    def test_len_in_iter(self, make: Make) -> None:
        """Length, membership and iteration are those of the elements here."""
        queue = make(0)
        queue.put_many([1, "x", None])
        assert len(queue) == queue.qsize() == 3
        assert None in queue
        assert 2 not in queue
        assert list(queue) == [1, "x", None]

    def test_iteration_is_weakly_consistent(self, make: Make) -> None:
        """An iteration under way never fails, whatever is put, taken and cleared meanwhile."""
        queue = make(0)
        queue.put_many(range(5))
        iterator = iter(queue)
        assert next(iterator) == 0
        queue.get_many(3)
        queue.put(9)
        queue.clear()
        assert list(iterator) == [1, 2, 3, 4]

    def test_remove(self, make: Make) -> None:
        """remove takes the first equal element out; what is left keeps its order, and is not in flight."""
        queue = make(3)
        queue.put_many([1, 2, 1])
        assert queue.remove(1.0)
        assert list(queue) == [2, 1]
        assert not queue.remove(7)
        assert queue.remaining_capacity() == 1
        assert queue.in_flight == 0

    def test_equality_that_calls_back(self, make: Make) -> None:
        """`==` runs without a lock: it may use the queue, and if it takes the element, remove looks for the next.

        (core 9)
        """
        queue = make(0)

        class Greedy:
            def __eq__(self, other: object) -> bool:
                if queue.qsize() == 3:
                    queue.get()
                return True

        queue.put_many([Greedy(), Greedy(), Greedy()])
        last = list(queue)[-1]
        assert queue.remove("x")
        assert [item is last for item in queue] == [True]

    def test_clear(self, make: Make) -> None:
        """clear discards everything, says how much, and join does not wait for it."""
        queue = make(0)
        queue.put_many([1, 2])
        assert queue.clear() == 2
        queue.join()
        assert queue.statistics().discarded == 2

    def test_payloads_are_dropped_outside_the_locks(self, make: Make) -> None:
        """An element whose `__del__` uses the queue can be cleared and taken (core 9)."""
        queue = make(0)

        class Loud:
            def __del__(self) -> None:
                queue.put("gone")
                queue.poll()

        queue.put_many([Loud(), Loud()])
        queue.get()
        queue.clear()
        assert list(queue) in ([], ["gone"])


class TestCompletion:
    def test_join(self, make: Make) -> None:
        """join waits until task_done was called for everything that was put."""
        queue = make(0)
        queue.join()
        queue.put_many([1, 2])
        with Threads() as threads:
            joiner = threads.start(queue.join)
            queue.get_many(2)
            queue.task_done()
            wait_until_blocked(joiner.thread)
            queue.task_done()
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()

    def test_discarding_ends_it(self, make: Make) -> None:
        """What is cleared or removed is not waited for."""
        queue = make(0)
        queue.put_many([1, 2])
        with Threads() as threads:
            joiner = threads.start(queue.join)
            wait_until_blocked(joiner.thread)
            queue.remove(1)
            wait_until_blocked(joiner.thread)
            queue.clear()


class TestShutdown:
    def test_drained_first(self, make: Make) -> None:
        """After shutdown puts raise, gets go on until nothing is left, then raise ShutDown."""
        queue = make(0)
        queue.put(1)
        assert not queue.is_shutdown
        queue.shutdown()
        assert queue.is_shutdown
        with pytest.raises(ShutDown):
            queue.put(2)
        assert queue.get() == 1
        for call in (queue.get, queue.get_nowait, lambda: queue.get_many(2)):
            with pytest.raises(ShutDown):
                call()
        assert queue.poll(default="none") == "none"
        assert queue.drain_to([]) == 0

    def test_wakes_all(self, make: Make) -> None:
        """Everybody who waits learns of a shutdown."""
        full, empty = make(1), make(1)
        full.put(1)
        with Threads() as threads:
            calls = [lambda: full.put(2), lambda: full.put_many([2]), empty.get, empty.get]
            waiting = [threads.start(lambda call=call: pytest.raises(ShutDown, call)) for call in calls]
            for handle in waiting:
                wait_until_blocked(handle.thread)
            full.shutdown()
            empty.shutdown()

    def test_immediate(self, make: Make) -> None:
        """An immediate shutdown discards everything, and join returns."""
        queue = make(0)
        queue.put(1)
        queue.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            queue.get()
        queue.join()

    def test_of_a_sub_queue_leaves_the_others(self) -> None:
        """The multi-queue goes on with the others, and takes what the closed one still holds."""
        mq: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
        a, b = mq.add_subqueue("a"), mq.add_subqueue("b")
        a.put(1)
        a.shutdown()
        b.put(2)
        assert [mq.get(), mq.get()] == [1, 2]
        with pytest.raises(Empty):
            mq.get_nowait()
        a.shutdown()
        mq.remove_subqueue("a")
        with pytest.raises(Detached):
            a.put(1)


@pytest.mark.skipif(engine == "c", reason="an operation in C is interrupted only while it waits")
def test_a_wait_in_a_handler_that_could_never_end_is_refused() -> None:
    """A blocking put or take in a handler that interrupted an operation of its thread raises instead of hanging."""
    mq: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    queue = mq.add_subqueue("b", capacity=1)
    with pytest.raises(RuntimeError, match="would wait for ever"), mq._engine_head.lock:
        mq.get()
    queue.put(1)
    with pytest.raises(RuntimeError, match="would wait for ever"), mq._engine_head.lock:
        queue.put(2)
    queue.check_invariants()
    mq.check_invariants()


def test_repr_says_what_matters() -> None:
    """The repr names the key, the settings and the state."""
    mq: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    sub = mq.add_subqueue("eu", 3, 10)
    sub.disable()
    assert repr(sub) == "<SubQueue 'eu' priority=3 size=0 capacity=10 disabled>"
    assert repr(mq) == "<LinkedBlockingMultiQueue subqueues=1 size=0>"
    assert "detached" in repr(mq.remove_subqueue("eu"))
    assert repr(Queue(3)) == "<Queue size=0 maxsize=3>"


def test_an_error_of_a_closed_one_says_which() -> None:
    """A put to and a get from a sub-queue that was shut down, or removed, name its key."""
    mq: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    closed, removed = mq.add_subqueue("closed"), mq.add_subqueue("removed")
    closed.shutdown()
    mq.remove_subqueue("removed")
    for call in (closed.get, lambda: closed.put(1), lambda: closed.put_first(1)):
        with pytest.raises(ShutDown, match="sub-queue 'closed' is shut down"):
            call()
    for call in (removed.get, lambda: removed.put(1), lambda: removed.put_first(1)):
        with pytest.raises(Detached, match="sub-queue 'removed' was removed from its multi-queue"):
            call()


def test_a_key_that_cannot_be_shown_keeps_nothing_open() -> None:
    """A sub-queue whose key's `__repr__` raises is shut down and removed like others."""

    class Mute:
        def __repr__(self) -> str:
            raise ValueError("mute")

    mq: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    key = Mute()
    mq.add_subqueue(key)
    mq.shutdown()
    with pytest.raises(ShutDown):
        mq.get()
    assert mq.remove_subqueue(key).is_shutdown
