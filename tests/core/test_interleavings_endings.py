"""Ends of lives and rarer meetings, in every order: removal, immediate shutdown, discarding, giving back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from core_parts_support import Job, Workers, engine
from explorations_support import found_to
from schedules_support import in_minutes, of_many_threads, of_three_threads, of_two_threads

from multiqueue import Detached, Empty, LinkedBlockingMultiQueue, Queue, ShutDown, SubQueue
from multiqueue.core import LaneFuture
from multiqueue.testing import Run, interruptions


def one_lane(**settings: Any) -> tuple[LinkedBlockingMultiQueue[str], SubQueue[str]]:
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    return multi_queue, multi_queue.add_subqueue("lane", **settings)


@of_two_threads
def test_removal_ends_the_wait_of_an_own_taker(run: Run) -> None:
    """Who waits for a sub-queue alone is told when it is removed with nothing left in it."""
    multi_queue, lane = one_lane()
    taker = run.spawn_expecting(Detached, lane.get)
    run.spawn(multi_queue.remove_subqueue, "lane")
    run.join()
    assert isinstance(taker.error, Detached)
    lane.check_invariants()


@of_many_threads
def test_an_own_taker_gets_what_a_removed_lane_still_holds(run: Run) -> None:
    """put, removal and a take from the sub-queue itself: the element goes to its taker, or the put is refused."""
    multi_queue, lane = one_lane()
    taker = run.spawn_expecting(Detached, lane.get)
    putter = run.spawn_expecting(Detached, lane.put, "a")
    run.spawn(multi_queue.remove_subqueue, "lane")
    run.join()
    assert (putter.error is None) == (taker.result == "a")
    assert list(lane) == []


@of_many_threads
def test_an_immediate_shutdown_ends_every_wait(run: Run) -> None:
    """`shutdown(immediate=True)` discards what is there: a waiting putter and a taker end, at once or served."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")
    putter = run.spawn_expecting(ShutDown, lane.put, "b")
    taker = run.spawn_expecting(ShutDown, multi_queue.get)
    run.spawn(multi_queue.shutdown, immediate=True)
    run.join()
    assert list(lane) == []
    assert taker.result in ("a", "b", None)
    assert taker.result != "b" or putter.error is None
    multi_queue.check_invariants()


@of_two_threads
def test_discarding_ends_a_join(run: Run) -> None:
    """`join` of a sub-queue returns when its elements were cleared, in whatever order."""
    multi_queue, lane = one_lane()
    lane.put("a")
    run.spawn(lane.join)
    run.spawn(lane.clear)
    run.join()
    assert list(lane) == []
    multi_queue.check_invariants()


@of_two_threads
def test_a_target_that_raises_loses_nothing(run: Run) -> None:
    """`drain_to` whose target refuses the second element, beside a put: that one and the rest stay, in order."""
    multi_queue, lane = one_lane()
    lane.put_many(["a", "b"])
    accepted: list[str] = []

    def accept(item: str) -> None:
        if accepted:
            raise LookupError(item)
        accepted.append(item)

    run.spawn_expecting(LookupError, multi_queue.drain_to, accept)
    run.spawn(lane.put, "c")
    run.join()
    assert accepted == ["a"]
    assert list(lane) == ["b", "c"]
    assert lane.in_flight == 1
    multi_queue.check_invariants()


@of_two_threads
def test_a_batch_waits_for_room_like_its_elements(run: Run) -> None:
    """`put_many` of more than there is room for, beside takes: all come, in order, never more than the capacity."""
    queue: Queue[str] = Queue(maxsize=2)
    run.spawn(queue.put_many, ["a", "b", "c"])
    taker = run.spawn(lambda: [queue.get(), queue.get(), queue.get()])
    run.join()
    assert taker.result == ["a", "b", "c"]
    queue.check_invariants()


class FirstReady:
    """A selection of the user's."""

    def select(self, ready: Sequence[SubQueue[str]]) -> SubQueue[str]:
        return ready[0]

    def taken(self, subqueue: SubQueue[str]) -> None:
        pass


@of_many_threads
def test_a_selection_of_ones_own_may_be_overtaken(run: Run) -> None:
    """Two takers whose selection names the same sub-queue, and a removal: each element goes one way."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue(selection=FirstReady())
    lane, other = multi_queue.add_subqueue("lane"), multi_queue.add_subqueue("other")
    lane.put("a")
    other.put("b")
    takers = [run.spawn(multi_queue.poll), run.spawn(multi_queue.poll)]
    run.spawn(multi_queue.remove_subqueue, "lane")
    run.join()
    taken = [taker.result for taker in takers if taker.result is not None]
    assert "b" in taken
    assert sorted([*taken, *lane]) == ["a", "b"]
    multi_queue.check_invariants()


@of_many_threads
def test_the_last_element_of_a_paused_lane_ends_the_waits(run: Run) -> None:
    """After a shutdown takers wait for what a disabled sub-queue still holds; who takes it ends their waits."""
    multi_queue, lane = one_lane()
    lane.put("a")
    lane.disable()
    multi_queue.shutdown()
    takers = [run.spawn_expecting(ShutDown, multi_queue.get) for _ in range(2)]
    own = run.spawn(lane.get)
    run.join()
    assert own.result == "a"
    assert all(taker.error is not None for taker in takers)


@of_three_threads
def test_nothing_is_accepted_after_a_taker_was_told_that_nothing_is_left(run: Run) -> None:
    """A shutdown of several sub-queues is one moment for takers: what was accepted comes before their `ShutDown`."""
    multi_queue, _ = one_lane()
    two = multi_queue.add_subqueue("two")
    putter = run.spawn_expecting(ShutDown, two.put, "late")
    taken: list[str] = []

    def take_all() -> None:
        while True:
            taken.append(multi_queue.get())

    taker = run.spawn_expecting(ShutDown, take_all)
    run.spawn(multi_queue.shutdown)
    run.join()
    assert isinstance(taker.error, ShutDown)
    assert taken == (["late"] if putter.error is None else [])
    multi_queue.check_invariants()


@found_to(in_minutes)
def test_the_same_for_several_putters(run: Run) -> None:
    """Two putters into two sub-queues and a taker: each element that is accepted is taken before its `ShutDown`."""
    multi_queue, one = one_lane()
    two = multi_queue.add_subqueue("two", capacity=1)
    putters = [run.spawn_expecting(ShutDown, one.put, "a"), run.spawn_expecting(ShutDown, two.put, "b")]
    taken: list[str] = []

    def take_all() -> None:
        while True:
            taken.append(multi_queue.get())

    run.spawn_expecting(ShutDown, take_all)
    run.spawn(multi_queue.shutdown)
    run.join()
    assert sorted(taken) == [item for item, putter in zip("ab", putters, strict=True) if putter.error is None]
    multi_queue.check_invariants()


def test_at_no_point_of_a_shutdown_is_anybody_told_too_early() -> None:
    """A take and then a put, wherever a shutdown stands: who is told that nothing is left finds every put refused."""
    answers = set()
    for point in interruptions("multiqueue.core"):
        multi_queue, one = one_lane()
        lanes = [one, multi_queue.add_subqueue("two"), multi_queue.add_subqueue("three", capacity=1)]
        seen: list[bool] = []

        def look(multi_queue: Any = multi_queue, lanes: Any = lanes, seen: list[bool] = seen) -> None:
            try:
                multi_queue.get(False)
            except Empty:
                seen.append(False)
            except ShutDown:
                seen.append(True)
            for lane in lanes:
                try:
                    lane.put("late", False)
                except ShutDown:
                    continue
                seen.append(True)

        with point.running(look):
            multi_queue.shutdown()
        answers.add(tuple(seen))
        assert seen != [True, True], point
        multi_queue.check_invariants()
    if engine == "python":  # the compiled one closes all in one step, between whose ends nobody looks
        assert {len(seen) for seen in answers} >= {1, 2, 3, 4}, "between the closings too"


@pytest.mark.parametrize("capacity", [None, 9])
@pytest.mark.parametrize("name", ["put", "offer", "put with a timeout", "put_many"])
def test_a_shutdown_by_a_signal_handler_in_the_middle_of_a_put_is_one_moment_too(
    name: str, capacity: int | None
) -> None:
    """Wherever a put is when its thread shuts down and is told that nothing is left, it is taken or refused."""
    calls: dict[str, Any] = {
        "put": lambda lane: lane.put("a"),
        "offer": lambda lane: lane.offer("a"),
        "put with a timeout": lambda lane: lane.put("a", timeout=9),
        "put_many": lambda lane: lane.put_many(["a", "b"]),
    }
    for point in interruptions("multiqueue.core"):
        multi_queue, lane = one_lane(capacity=capacity)
        taken: list[str] = []

        def end(multi_queue: Any = multi_queue, taken: list[str] = taken) -> None:
            multi_queue.shutdown()
            try:
                while True:
                    taken.append(multi_queue.get(False))
            except ShutDown:
                pass

        accepted = 0
        with point.running(end):
            try:
                accepted = calls[name](lane)
            except ShutDown as error:
                accepted = getattr(error, "accepted", 0)
            else:
                accepted = 1 if accepted is None else int(accepted)
        assert not lane.qsize() or not point.reached, point
        assert len(taken) == accepted or not point.reached, point
        multi_queue.check_invariants()


@of_two_threads
def test_a_taker_that_waits_is_told_by_the_last_sub_queue_that_closes(run: Run) -> None:
    """A shutdown of two empty sub-queues ends the wait of a taker, whichever of them is closed last."""
    multi_queue, one = one_lane()
    multi_queue.add_subqueue("two")
    taker = run.spawn_expecting(ShutDown, multi_queue.get)
    run.spawn(multi_queue.shutdown)
    run.join()
    assert isinstance(taker.error, ShutDown)
    assert one.is_shutdown


@of_three_threads
def test_no_job_is_forgotten_by_a_shutdown(run: Run) -> None:
    """A worker that is told that nothing is left has run every job whose submit returned (executor 1)."""
    workers = Workers(1, "explored")
    workers._start_worker = lambda: None  # type: ignore[method-assign]  # the run has its own thread for it
    workers.add_subqueue("one", 0, None, None, 1)
    lane = workers.add_subqueue("two", 0, None, None, 1)
    job: Job[str] = Job(str, ("done",), {}, LaneFuture())
    job.counted, workers._load = True, 1  # the submit has been counted before the shutdown
    submit = run.spawn_expecting(ShutDown, lane.put, [job])
    worker = run.spawn_expecting(ShutDown, workers.serve)
    run.spawn(workers.shutdown)
    run.join()
    assert isinstance(worker.error, ShutDown)
    assert job.future.done() == (submit.error is None)


@of_three_threads
def test_those_who_get_or_add_share_one(run: Run) -> None:
    """Two threads that get or add the same key at once put into the same sub-queue, and nothing is lost beside it."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()

    def put(item: str) -> SubQueue[str]:
        lane = multi_queue.get_or_add_subqueue("lane")
        lane.put(item)
        return lane

    first, second = run.spawn(put, "a"), run.spawn(put, "b")
    run.join()
    assert first.result is second.result is multi_queue.get_subqueue("lane")
    assert sorted(multi_queue.get_many(3)) == ["a", "b"]
    multi_queue.check_invariants()


@of_three_threads
def test_a_removal_beside_get_or_add(run: Run) -> None:
    """A lane that is removed when it is empty: a put to it goes in, or says `Detached` and the next try goes in."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    multi_queue.add_subqueue("lane")

    def put(item: str) -> None:
        while True:
            try:
                return multi_queue.get_or_add_subqueue("lane").put(item)
            except Detached:
                continue

    run.spawn(put, "a")
    removal = run.spawn(multi_queue.remove_subqueue, "lane")
    run.join()
    assert removal.result is not None
    left = [*removal.result, *(sub.poll() for sub in multi_queue.subqueues.values())]
    assert left == ["a"]
    multi_queue.check_invariants()
