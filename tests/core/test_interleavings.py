"""What threads do to each other, in every order: the small cases, explored to their ends."""

from __future__ import annotations

from typing import Any

import pytest
from schedules_support import of_interrupted_threads, of_many_threads, of_three_threads, of_two_threads

from multiqueue import Detached, Empty, Full, LinkedBlockingMultiQueue, Queue, ShutDown, SubQueue
from multiqueue.testing import Run


def rest(multi_queue: LinkedBlockingMultiQueue[Any]) -> list[Any]:
    """What is left, in service order, after the structure was found in order."""
    multi_queue.check_invariants()
    left: list[Any] = []
    multi_queue.drain_to(left)
    multi_queue.check_invariants()
    return left


def one_lane(**settings: Any) -> tuple[LinkedBlockingMultiQueue[str], SubQueue[str]]:
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    return multi_queue, multi_queue.add_subqueue("lane", **settings)


def two_lanes(**settings: Any) -> tuple[LinkedBlockingMultiQueue[str], SubQueue[str], SubQueue[str]]:
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    return multi_queue, multi_queue.add_subqueue("one", **settings), multi_queue.add_subqueue("two", **settings)


# Puts and takes


@of_three_threads
def test_of_two_puts_a_take_gets_one_and_leaves_the_other(run: Run) -> None:
    """Two puts and a blocking take on one sub-queue: one element is taken, the other stays."""
    multi_queue, lane = one_lane()
    run.spawn(lane.put, "a")
    run.spawn(lane.put, "b")
    taker = run.spawn(multi_queue.get)
    run.join()
    assert sorted([taker.result, *rest(multi_queue)]) == ["a", "b"]


@of_many_threads
def test_two_takers_get_what_is_put_into_two_lanes(run: Run) -> None:
    """Two blocked takers are both served by puts into different sub-queues."""
    multi_queue, one, two = two_lanes()
    takers = [run.spawn(multi_queue.get), run.spawn(multi_queue.get)]
    run.spawn(one.put, "a")
    run.spawn(two.put, "b")
    run.join()
    assert sorted(taker.result for taker in takers) == ["a", "b"]
    assert rest(multi_queue) == []


@of_two_threads
def test_a_poll_after_a_put_finds_something(run: Run) -> None:
    """Each of two threads puts and then polls, once: neither is told that there is nothing (core 2)."""
    multi_queue, one, two = two_lanes()

    def put_and_poll(lane: SubQueue[str], item: str) -> str | None:
        lane.put(item)
        found: str | None = multi_queue.poll()
        return found

    threads = [run.spawn(put_and_poll, one, "a"), run.spawn(put_and_poll, two, "b")]
    run.join()
    assert sorted(str(thread.result) for thread in threads) == ["a", "b"]


@of_two_threads
def test_a_poll_after_a_put_into_the_same_lane_finds_something(run: Run) -> None:
    """As above, when both threads put into one sub-queue that is emptied and filled again in between."""
    multi_queue, lane = one_lane()

    def put_and_poll(item: str) -> str | None:
        lane.put(item)
        found: str | None = multi_queue.poll()
        return found

    threads = [run.spawn(put_and_poll, "a"), run.spawn(put_and_poll, "b")]
    run.join()
    assert sorted(str(thread.result) for thread in threads) == ["a", "b"]


@of_two_threads
def test_a_put_into_a_lane_that_is_just_emptied_is_seen(run: Run) -> None:
    """While a take empties one of two sub-queues, a put fills it again: the element is found."""
    multi_queue, one, two = two_lanes()
    one.put("a")
    two.put("b")
    run.spawn(multi_queue.get)

    def put_and_poll() -> list[str | None]:
        one.put("c")
        return [multi_queue.poll(), multi_queue.poll()]

    poller = run.spawn(put_and_poll)
    run.join()
    assert None not in poller.result
    assert rest(multi_queue) == []


@pytest.mark.parametrize("weight", [1, 2])
@pytest.mark.parametrize("get", ["get", "poll", "get_many"])
@of_two_threads
def test_a_put_into_a_lane_that_is_just_emptied_gets_no_second_turn(run: Run, get: str, weight: int) -> None:
    """While a take empties one of two sub-queues, puts fill it again: its turn is no longer than its weight."""
    multi_queue, one, two = two_lanes(weight=weight)
    one.put("a")
    two.put("b")

    def take() -> list[str]:
        if get == "get_many":
            return multi_queue.get_many(weight + 1)
        return [getattr(multi_queue, get)(timeout=None) for _ in range(weight + 1)]

    run.spawn(one.put_many, "cd"[:weight])
    taker = run.spawn(take)
    run.join()
    assert "b" in taker.result


@of_two_threads
def test_elements_of_one_lane_are_taken_in_put_order(run: Run) -> None:
    """A taker that takes twice sees the elements of one producer in the order of their puts (core 1)."""
    multi_queue, lane = one_lane(capacity=1)

    def put_both() -> None:
        lane.put("a")
        lane.put("b")

    run.spawn(put_both)
    taker = run.spawn(lambda: [multi_queue.get(), multi_queue.get()])
    run.join()
    assert taker.result == ["a", "b"]
    assert rest(multi_queue) == []


@of_many_threads
def test_a_bounded_lane_never_holds_more_than_its_capacity(run: Run) -> None:
    """Two putters and a taker at capacity 1: no thread ever sees two elements, and none is left blocked."""
    multi_queue, lane = one_lane(capacity=1)
    sizes: list[int] = []

    def put(item: str) -> None:
        lane.put(item)
        sizes.append(lane.qsize())

    run.spawn(put, "a")
    run.spawn(put, "b")
    taker = run.spawn(multi_queue.get)
    run.join()
    assert max(sizes) == 1
    assert sorted([taker.result, *rest(multi_queue)]) == ["a", "b"]


@of_many_threads
def test_an_own_taker_and_a_taker_of_all_are_both_served(run: Run) -> None:
    """One thread waits for the sub-queue alone, one for the multi-queue; two puts end both waits."""
    multi_queue, lane = one_lane()
    own = run.spawn(lane.get)
    head = run.spawn(multi_queue.get)
    run.spawn(lane.put, "a")
    run.spawn(lane.put, "b")
    run.join()
    assert sorted([own.result, head.result]) == ["a", "b"]
    assert rest(multi_queue) == []


@of_many_threads
def test_the_drop_in_queue_hands_over_between_two_pairs(run: Run) -> None:
    """A `Queue` of capacity 1 with two putters and two takers ends empty, all served."""
    queue: Queue[str] = Queue(maxsize=1)
    run.spawn(queue.put, "a")
    run.spawn(queue.put, "b")
    takers = [run.spawn(queue.get), run.spawn(queue.get)]
    run.join()
    assert sorted(taker.result for taker in takers) == ["a", "b"]
    queue.check_invariants()


@of_many_threads
def test_get_many_and_get_share_what_is_there(run: Run) -> None:
    """A batch and a single take beside a batch of puts: every element is taken once, each in order."""
    multi_queue, lane = one_lane()
    run.spawn(lane.put_many, ["a", "b", "c"])
    many = run.spawn(multi_queue.get_many, 2)
    single = run.spawn(multi_queue.get)
    run.join()
    assert many.result == sorted(many.result)
    assert sorted([*many.result, single.result, *rest(multi_queue)]) == ["a", "b", "c"]


# Pausing, removing, clearing


@of_many_threads
def test_a_disabled_lane_keeps_what_is_put(run: Run) -> None:
    """put, take and disable: the element is taken or kept, and after `disable` has returned only kept."""
    multi_queue, lane = one_lane()

    def disable_and_poll() -> str | None:
        lane.disable()
        found: str | None = multi_queue.poll()
        return found

    run.spawn(lane.put, "a")
    taker = run.spawn_expecting(Empty, multi_queue.get, timeout=1.0)
    disabler = run.spawn(disable_and_poll)
    run.join()
    assert disabler.result is None
    assert multi_queue.poll() is None
    lane.enable()
    assert [taker.result, *rest(multi_queue)] in (["a"], [None, "a"])


@of_three_threads
def test_enabling_wakes_a_taker(run: Run) -> None:
    """A taker that waits because the only sub-queue is disabled gets its element when it is enabled."""
    multi_queue, lane = one_lane()
    lane.disable("maintenance")
    taker = run.spawn(multi_queue.get)
    run.spawn(lane.put, "a")
    run.spawn(lane.enable, "maintenance")
    run.join()
    assert taker.result == "a"
    assert rest(multi_queue) == []


@of_many_threads
def test_a_removed_lane_refuses_or_returns_what_is_put(run: Run) -> None:
    """put, remove_subqueue and take: the element is taken, or in the removed sub-queue, or refused."""
    multi_queue, lane = one_lane()
    putter = run.spawn_expecting(Detached, lane.put, "a")
    taker = run.spawn_expecting(Empty, multi_queue.get, timeout=1.0)
    run.spawn(multi_queue.remove_subqueue, "lane")
    run.join()
    waiters = [taker.result == "a", list(lane) == ["a"], isinstance(putter.error, Detached)]
    assert waiters.count(True) == 1
    assert rest(multi_queue) == []
    lane.check_invariants()


@of_many_threads
def test_removal_ends_the_wait_of_a_putter(run: Run) -> None:
    """A putter that waits at a full sub-queue raises `Detached` on removal, unless a take let it in before."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")
    putter = run.spawn_expecting(Detached, lane.put, "b")
    taker = run.spawn_expecting(Empty, multi_queue.get, block=False)
    run.spawn(multi_queue.remove_subqueue, "lane")
    run.join()
    refused = ["b"] if putter.error is not None else []
    taken = [taker.result] if taker.error is None else []
    assert sorted([*taken, *lane, *refused]) == ["a", "b"]
    assert rest(multi_queue) == []


@of_two_threads
def test_clearing_lets_a_blocked_putter_go_on(run: Run) -> None:
    """A put that waits at a full sub-queue succeeds once the sub-queue is cleared."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")
    run.spawn(lane.put, "b")
    clearer = run.spawn(lane.clear)
    run.join()
    assert rest(multi_queue) == (["b"] if clearer.result == 1 else [])


@of_three_threads
def test_raising_the_capacity_lets_a_blocked_putter_go_on(run: Run) -> None:
    """Two putters that wait at capacity 1 are both let in by capacity 3."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")

    def raise_capacity() -> None:
        lane.capacity = 3

    run.spawn(lane.put, "b")
    run.spawn(lane.put, "c")
    run.spawn(raise_capacity)
    run.join()
    assert sorted(rest(multi_queue)) == ["a", "b", "c"]


@of_two_threads
def test_an_element_is_removed_or_taken(run: Run) -> None:
    """`remove` and a take that race for one element: exactly one of them gets it."""
    multi_queue, lane = one_lane()
    lane.put("a")
    remover = run.spawn(lane.remove, "a")
    taker = run.spawn(multi_queue.poll)
    run.join()
    assert remover.result is (taker.result is None)
    assert rest(multi_queue) == []


@of_many_threads
def test_changing_the_priority_loses_nobody_a_turn(run: Run) -> None:
    """A priority that changes between puts and takes leaves every element to be taken."""
    multi_queue, one, two = two_lanes()
    one.put("a")

    def demote() -> None:
        one.priority = 5

    run.spawn(demote)
    run.spawn(two.put, "b")
    takers = [run.spawn(multi_queue.get), run.spawn(multi_queue.get)]
    run.join()
    assert sorted(taker.result for taker in takers) == ["a", "b"]
    assert rest(multi_queue) == []


# Waits that end without what they waited for


@of_two_threads
def test_a_timeout_loses_no_element(run: Run) -> None:
    """A timed take against a put: the element is taken, or `Empty` is raised and it is still there (core 5)."""
    multi_queue, lane = one_lane()
    taker = run.spawn_expecting(Empty, multi_queue.get, timeout=1.0)
    run.spawn(lane.put, "a")
    run.join()
    taken = [taker.result] if taker.error is None else []
    assert [*taken, *rest(multi_queue)] == ["a"]


@pytest.mark.slow(selected=True)
@of_many_threads
def test_a_timeout_passes_its_wake_up_on(run: Run) -> None:
    """A timed taker that gives up leaves the element, and the wake-up, to the taker that waits for ever (core 5)."""
    multi_queue, lane = one_lane()
    timed = run.spawn_expecting(Empty, multi_queue.get, timeout=1.0)
    patient = run.spawn(multi_queue.get)
    run.spawn(lane.put, "a")
    run.spawn(lane.put, "b")
    run.join()
    taken = [patient.result] + ([timed.result] if timed.error is None else [])
    assert sorted([*taken, *rest(multi_queue)]) == ["a", "b"]


@pytest.mark.slow(selected=True)
@of_many_threads
def test_a_timed_put_that_gives_up_passes_its_wake_up_on(run: Run) -> None:
    """Of two putters one gives up just as room is made: the other one uses it."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")
    timed = run.spawn_expecting(Full, lane.put, "b", timeout=1.0)
    run.spawn(lane.put, "c")
    takers = [run.spawn(multi_queue.get), run.spawn(multi_queue.get)]
    run.join()
    given = ["a", "c"] + (["b"] if timed.error is None else [])
    assert sorted([*(taker.result for taker in takers), *rest(multi_queue)]) == sorted(given)


@of_two_threads
def test_an_interrupted_take_loses_no_element(run: Run) -> None:
    """A KeyboardInterrupt at any point of a blocking take leaves its element to be taken by another."""
    multi_queue, lane = one_lane()
    interrupted = run.spawn_interrupted(KeyboardInterrupt, multi_queue.get)
    run.spawn(lane.put, "a")
    run.join()
    taken = [interrupted.result] if interrupted.error is None else []
    assert [*taken, *rest(multi_queue)] == ["a"]


@of_interrupted_threads
def test_an_interrupted_take_passes_its_wake_up_on(run: Run) -> None:
    """A KeyboardInterrupt in a taker that was just woken does not leave the other taker asleep."""
    multi_queue, lane = one_lane()
    interrupted = run.spawn_interrupted(KeyboardInterrupt, multi_queue.get)
    patient = run.spawn(multi_queue.get)
    run.spawn(lane.put, "a")
    run.spawn(lane.put, "b")
    run.join()
    taken = [patient.result] + ([interrupted.result] if interrupted.error is None else [])
    assert sorted([*taken, *rest(multi_queue)]) == ["a", "b"]


@of_interrupted_threads
def test_an_interrupted_put_puts_once_or_not_at_all(run: Run) -> None:
    """A KeyboardInterrupt at any point of a blocking put leaves room for the other putter."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")
    run.spawn_interrupted(KeyboardInterrupt, lane.put, "b")
    run.spawn(lane.put, "c")
    takers = [run.spawn(multi_queue.get), run.spawn(multi_queue.get)]
    run.join()
    left = sorted([*(taker.result for taker in takers), *rest(multi_queue)])
    assert left in (["a", "c"], ["a", "b", "c"])


# Shutting down, completing


@of_many_threads
def test_shutdown_ends_the_waits_of_takers(run: Run) -> None:
    """`shutdown` beside a put and two takers: what was accepted is taken, then takers raise `ShutDown` (core 5)."""
    multi_queue, lane = one_lane()
    takers = [run.spawn_expecting(ShutDown, multi_queue.get) for _ in range(2)]
    putter = run.spawn_expecting(ShutDown, lane.put, "a")
    run.spawn(multi_queue.shutdown)
    run.join()
    taken = [taker.result for taker in takers if taker.error is None]
    assert taken == ([] if putter.error is not None else ["a"])
    multi_queue.check_invariants()


@of_many_threads
def test_shutdown_ends_the_waits_of_putters(run: Run) -> None:
    """A putter that waits at a full sub-queue is let in or raises `ShutDown`; nothing is lost either way."""
    multi_queue, lane = one_lane(capacity=1)
    lane.put("a")
    putter = run.spawn_expecting(ShutDown, lane.put, "b")
    taker = run.spawn(multi_queue.get)
    run.spawn(multi_queue.shutdown)
    run.join()
    assert taker.result == "a"
    left = list(lane)
    assert left == ([] if putter.error is not None else ["b"])
    multi_queue.check_invariants()


@of_two_threads
def test_the_limit_in_flight_holds_while_takers_race(run: Run) -> None:
    """Two takers with `max_in_flight=1` work on one element at a time, and both are served."""
    multi_queue, lane = one_lane(max_in_flight=1)
    lane.put_many(["a", "b"])
    busy: list[int] = []

    def work() -> str:
        subqueue, item = multi_queue.take()
        busy.append(subqueue.in_flight)
        subqueue.task_done()
        return item

    workers = [run.spawn(work), run.spawn(work)]
    run.join()
    assert sorted(worker.result for worker in workers) == ["a", "b"]
    assert max(busy) == 1
    assert rest(multi_queue) == []


@of_two_threads
def test_what_is_given_back_is_served_first(run: Run) -> None:
    """`put_first` beside a put and takes: the element given back is taken before those behind it."""
    multi_queue, lane = one_lane()
    lane.put_many(["a", "b"])

    def give_back() -> None:
        item = lane.get()
        lane.put_first(item)
        lane.task_done()

    run.spawn(give_back)
    run.spawn(lane.put, "c")
    run.join()
    assert rest(multi_queue) == ["a", "b", "c"]
