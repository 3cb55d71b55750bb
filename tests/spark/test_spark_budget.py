"""The budget of a fan-in: what begins beside what, in which order, and how waits end. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from spark_parts_support import Budget

from multiqueue import ShutDown
from multiqueue.testing import PATIENCE, Threads, wait_until_blocked


@pytest.fixture
def threads() -> Iterator[Threads]:
    with Threads() as started:
        yield started


def in_(budget: Budget, begun: list[str], gate: threading.Event) -> Callable[[str, int, int | None], None]:
    """A job that notes when it begins and ends when the gate opens."""

    def run(name: str, priority: int, size: int | None) -> None:
        with budget.job(priority, size) as job:
            job.took(size or 0)
            begun.append(name)
            assert gate.wait(PATIENCE)

    return run


def test_jobs_begin_while_they_fit(threads: Threads) -> None:
    """Jobs that fit together are under way together; the next one begins when one has ended."""
    budget, begun = Budget(100, 1000, 2), list[str]()
    with ExitStack() as stack:
        first = stack.enter_context(budget.job(0, 60))
        stack.enter_context(budget.job(0, 40))
        gate = threading.Event()
        gate.set()
        late = threads.start(in_(budget, begun, gate), "late", 0, 1)
        wait_until_blocked(lambda: budget.waiting == 1)
        first.took(59)  # one byte less than was thought
        late.result()
        assert (begun, budget.held) == (["late"], 99)
    assert budget.held == 0


def test_what_spark_computes_has_a_bound_of_its_own(threads: Threads) -> None:
    """A job whose bytes are not here yet keeps another from Spark; once they are here, it does not."""
    budget, begun, gate = Budget(1000, 50, 2), list[str](), threading.Event()
    gate.set()
    with budget.job(0, 40) as first:
        second = threads.start(in_(budget, begun, gate), "second", 0, 40)
        wait_until_blocked(lambda: budget.waiting == 1)
        first.took(40)
        second.result()
    assert not budget.is_small(51)


def test_a_job_larger_than_all_of_it_runs_alone() -> None:
    """No size is too large to begin when nothing is under way."""
    budget = Budget(10, 10, 1)
    for _ in range(2):
        with budget.job(0, 10**9):
            assert budget.held == 10**9


def test_jobs_of_unknown_size_are_few_and_count_as_the_largest_seen(threads: Threads) -> None:
    """At most so many whose bytes are not here; each counts as the largest job until then."""
    budget, begun, gate = Budget(100, 100, 2), list[str](), threading.Event()
    gate.set()
    with budget.job(0, None) as first, budget.job(0, None) as second:
        third = threads.start(in_(budget, begun, gate), "third", 0, None)
        wait_until_blocked(lambda: budget.waiting == 1)
        assert budget.held == 0
        first.took(30)
        third.result()  # it counted as 30
        second.took(30)
        with budget.job(0, None):
            assert budget.held == 90


def test_the_lowest_number_goes_first_and_then_the_longest_waiting(threads: Threads) -> None:
    """Of several that wait, priority decides and then the order of asking."""
    budget, begun, gate = Budget(10, 10, 1), list[str](), threading.Event()
    gate.set()
    run = in_(budget, begun, gate)
    with budget.job(0, 10):
        handles = []
        for number, (name, priority) in enumerate([("late", 1), ("first", 0), ("second", 0)], 1):
            handles.append(threads.start(run, name, priority, 10))
            wait_until_blocked(lambda number=number: budget.waiting == number)  # type: ignore[misc]
    for handle in handles:
        handle.result()
    assert begun == ["first", "second", "late"]


def test_closing_ends_all_waits(threads: Threads) -> None:
    """A closed budget lets nothing begin; what is under way ends as it would have, and a failed job gives all back."""
    budget = Budget(10, 10, 1)
    with pytest.raises(ZeroDivisionError), budget.job(0, None):
        raise ZeroDivisionError
    with budget.job(0, 10):
        waiting = threads.start(lambda: budget.job(0, 1).__enter__())
        wait_until_blocked(lambda: budget.waiting == 1)
        budget.close()
        with pytest.raises(ShutDown):
            waiting.result()
    assert (budget.held, budget.waiting) == (0, 0)
    with pytest.raises(ShutDown), budget.job(0, 1):
        pass
