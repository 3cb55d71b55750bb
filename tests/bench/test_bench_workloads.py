"""Every workload of the suite does its work with every rival, and finds out one that does not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from bench_parts_support import (
    Contender,
    Ends,
    ItemsLost,
    Workload,
    _core,
    batches,
    check_arrivals,
    check_order,
    deal,
    forwarding_threads,
    idling,
    jobs,
    one_of_many,
    poll_loop,
    producers_to_consumers,
    put_and_get,
    run_workload,
    tag_in_one,
)
from bench_support import lossy

TINY = 0.002


WORKLOADS = [
    # 100,000 sub-queues take seconds to make
    pytest.param(workload, id=workload.name, marks=[pytest.mark.slow(selected=True)] * ("idle-sub" in workload.name))
    for workload in _core.SUITE.scaled(TINY).workloads
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_rival_of_the_suite_does_the_work(workload: Workload) -> None:
    """Each rival that is installed carries every item, in order, and has a figure for every metric."""
    result = run_workload(workload, rounds=1)
    assert [(failed.rival.name, failed.problem) for failed in result.failures] == []
    for rival in result.rivals:
        if rival.status == "measured":
            assert {metric.name for metric in workload.metrics} == set(rival.samples)
            assert all(value >= 0 for values in rival.samples.values() for value in values)


def test_the_suite_measures_what_is_promised() -> None:
    """The goals of the core, each by wall clock and by CPU where both exist."""
    goals = {
        (workload.name, goal.rival, round(goal.at_least, 2))
        for workload in _core.SUITE.workloads
        for goal in workload.goals
    }
    assert goals == {
        ("single", "multiqueue", 1.7),
        ("1p1c", "multiqueue", 2.5),
        ("4p1c", "multiqueue", 3.0),
        ("4p1c-100", "multiqueue", 2.5),
        ("idle-subqueues", "multiqueue, 100,000 sub-queues", 0.87),
        ("batches", "multiqueue", 10.0),
        ("batches-1p1c", "multiqueue", 10.0),
        ("wake-up", "multiqueue", 1.0),
        ("eight", "multiqueue", 1.3),
    }


@pytest.mark.parametrize("fault", ["lose", "double", "swap"])
@pytest.mark.parametrize(
    "open_attempt", [put_and_get, partial(batches, size=4, threads=1)], ids=["put and get", "batches"]
)
def test_an_item_lost_doubled_or_displaced_fails_the_attempt(open_attempt: object, fault: str) -> None:
    """However fast, a queue that does not hand out what was put gets no figure."""
    assert callable(open_attempt)
    attempt = open_attempt(lossy(fault), 8)
    attempt.run()
    with pytest.raises(ItemsLost):
        attempt.check()
    attempt.close()


def test_a_consumer_sees_each_producers_items_in_order() -> None:
    """Items of two producers may mix; those of one may not change places."""
    streams = deal(6, 2)
    check_order(streams, [0, 3, 1, 4, 5, 2])
    check_order(streams, [0, 2])
    with pytest.raises(ItemsLost, match="producer 1: 3 arrived after 4"):
        check_order(streams, [4, 0, 3])


def test_lost_and_surplus_items_are_counted_and_shown() -> None:
    """The message says how many, and names some."""
    with pytest.raises(ItemsLost, match=r"2 items never arrived \(such as \[1, 2\]\) and 1 arrived .*\[9\]"):
        check_arrivals([0, 1, 2], [0, 9])


def test_an_item_that_comes_twice_is_a_failure_by_itself() -> None:
    """Nothing is lost, and still the queue did not do its work."""
    with pytest.raises(ItemsLost, match=r"0 items never arrived .* and 1 arrived"):
        check_arrivals([0, 1], [0, 1, 1])


def test_items_that_cannot_be_dealt_evenly_are_refused() -> None:
    """Seven items for two producers would leave a consumer waiting."""
    with pytest.raises(ValueError, match="7 items cannot be dealt to 2 producers"):
        deal(7, 2)


def test_a_wrong_answer_fails_a_round_trip() -> None:
    """Round trips are checked one by one."""

    def make(producers: int, capacity: int) -> Ends:
        made = poll_loop(producers, capacity, interval=0.0)
        return made._replace(unpack=lambda item: item + 1)

    attempt = one_of_many(Contender("off by one", make), 3, queues=2)
    attempt.run()
    with pytest.raises(ItemsLost, match="question 0 was answered with 0"):
        attempt.check()
    attempt.close()


def test_an_idle_consumer_that_got_something_else_fails() -> None:
    """Idling ends with the one item that was put."""

    def make(producers: int, capacity: int) -> Ends:
        return tag_in_one(producers, capacity)._replace(unpack=lambda _: 5)

    attempt = idling(Contender("wrong", make), 1, queues=2)
    attempt.run()
    with pytest.raises(ItemsLost):
        attempt.check()
    attempt.close()


def test_a_job_without_its_result_fails() -> None:
    """An executor that loses jobs gets no figure."""
    attempt = jobs(lambda: ThreadPoolExecutor(1), 3)
    attempt.run()
    attempt.check()
    attempt.run()  # twice as many results as jobs
    with pytest.raises(ItemsLost, match="6 jobs had their result, and 3 should be"):
        attempt.check()
    attempt.close()


def test_forwarding_threads_end_when_closed() -> None:
    """Closing after a run leaves no thread behind."""
    import threading

    before = set(threading.enumerate())
    attempt = producers_to_consumers(Contender("forwarding", forwarding_threads), 8, producers=4, consumers=1)
    attempt.run()
    attempt.check()
    attempt.close()
    assert set(threading.enumerate()) <= before
