"""The work pool on an executor of the user's: what it submits, in which order it runs, what refusals cost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pamqp")

from client_parts_support import TURNS, Pool

from multiqueue.core import MultiQueueExecutor
from multiqueue.errors import Empty
from multiqueue.testing import PATIENCE, Threads, switch_interval


class Recording(Executor):
    """Keeps what is submitted until the test runs it."""

    def __init__(self) -> None:
        self.submitted: deque[Callable[[], object]] = deque()
        self.total = 0
        self.refuses = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuses:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.submitted.append(lambda: fn(*args, **kwargs))
        self.total += 1
        return Future()

    def run_one(self) -> None:
        self.submitted.popleft()()


def test_each_channel_with_work_has_one_runnable() -> None:
    """However much is put, one runnable per lane with work is submitted; none for a lane without."""
    executor, ran = Recording(), []
    pool = Pool(executor, 1 << 16)
    lanes = [pool.add_lane(number) for number in range(4)]
    for number in range(10):
        for lane in lanes[:3]:
            pool.put(lane, ran.append, (lane.key, number))
    assert executor.total == 3
    while executor.submitted:
        executor.run_one()
    assert executor.total == 3
    assert ran == [(lane, number) for lane in range(3) for number in range(10)]
    pool.put(lanes[0], ran.append, "again")
    assert executor.total == 4
    executor.run_one()
    pool.runner.check_invariants()


def test_a_lane_with_more_than_its_share_is_submitted_again_behind_the_others() -> None:
    """A runnable ends after its share; its lane comes again, once, after those that were ready before it."""
    executor, ran = Recording(), []
    pool = Pool(executor, 1)
    long, short = pool.add_lane("long"), pool.add_lane("short")
    for number in range(2 * TURNS + 1):
        pool.put(long, ran.append, number)
    pool.put(short, ran.append, "short")
    runnables = 0
    while executor.submitted:
        assert len(executor.submitted) == 1
        executor.run_one()
        runnables += 1
    assert ran == [*range(TURNS), "short", *range(TURNS, 2 * TURNS + 1)]
    assert runnables == executor.total == 4
    pool.runner.check_invariants()


def test_a_put_during_a_run_is_not_left_behind() -> None:
    """What a job puts into its own lane, at the end of its share too, is run, by no second runnable of the lane."""
    executor, ran = Recording(), []
    pool = Pool(executor, 1 << 16)
    lane = pool.add_lane("a")

    def put_next(number: int) -> None:
        ran.append(number)
        assert len(executor.submitted) == 0
        if number < 3 * TURNS:
            pool.put(lane, put_next, number + 1)

    pool.put(lane, put_next, 0)
    while executor.submitted:
        executor.run_one()
    assert ran == list(range(3 * TURNS + 1))
    pool.runner.check_invariants()


class Inline(Executor):
    """Runs what it is given before `submit` returns."""

    depth = deepest = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        fn(*args, **kwargs)
        self.depth -= 1
        return Future()


def test_an_executor_that_runs_at_once_does_not_nest() -> None:
    """On an executor that runs what it is given in `submit`, all is run in order, and never inside each other."""
    executor, ran = Inline(), []
    pool = Pool(executor, 1 << 16)
    lane, other = pool.add_lane("a"), pool.add_lane("b")
    lane.put_many([(ran.append, number) for number in range(10 * TURNS)])
    other.put((ran.append, "other"))
    pool.runner.announce()
    assert [one for one in ran if one != "other"] == list(range(10 * TURNS))
    assert ran.count("other") == 1
    assert executor.deepest == 1
    pool.runner.check_invariants()


def test_a_job_that_comes_as_a_thread_stops_looking_is_started() -> None:
    """1. A thread that looks for ready lanes finds none.  2. A job is put, and left to it.  3. It looks once more."""
    executor, ran = Recording(), []
    pool = Pool(executor, 1 << 16)
    first, second = pool.add_lane(1), pool.add_lane(2)
    take, moments = pool.work.take, iter(["between"])

    def take_late(block: bool) -> Any:
        try:
            return take(block)
        except Empty:
            if next(moments, None) == "between":
                pool.put(second, ran.append, "late")
            raise

    pool.runner._work = SimpleNamespace(take=take_late, empty=pool.work.empty)  # type: ignore[assignment]
    pool.put(first, ran.append, "first")
    assert executor.total == 2


def test_a_refusing_executor_loses_no_job() -> None:
    """When the executor refuses, its user is told once, and what waits is run, in order, by `run_what_is_left`."""
    executor, ran, broken = Recording(), [], []
    pool = Pool(executor, 1 << 16, broken.append)
    lane = pool.add_lane("a")
    executor.refuses = True
    for number in range(TURNS + 3):
        pool.put(lane, ran.append, number)
    assert [str(error) for error in broken] == ["cannot schedule new futures after shutdown"]
    assert ran == []
    pool.work.shutdown()
    pool.runner.run_what_is_left()
    assert ran == list(range(TURNS + 3))
    pool.runner.check_invariants()


def test_a_run_goes_on_where_it_is_when_the_executor_refuses_the_next() -> None:
    """An executor that is shut down during a run does not end the lane: the thread that has it runs the rest."""
    executor, ran = Recording(), []
    pool = Pool(executor, 1 << 16)
    lane = pool.add_lane("a")
    for number in range(2 * TURNS):
        pool.put(lane, ran.append, number)
    executor.refuses = True
    executor.run_one()
    assert ran == list(range(2 * TURNS))
    pool.runner.check_invariants()


def test_lanes_run_in_parallel_and_a_lane_alone() -> None:
    """On a real pool all lanes run at once, jobs of a lane one at a time and in order."""
    lanes, each = 4, 200
    together = threading.Barrier(lanes)
    ran: list[list[int]] = [[] for _ in range(lanes)]
    busy = [0] * lanes
    overlaps: list[int] = []
    done = threading.Semaphore(0)

    def job(of: tuple[int, int]) -> None:
        lane, number = of
        busy[lane] += 1
        if busy[lane] != 1:
            overlaps.append(lane)
        if number == 0:
            together.wait(PATIENCE)
        ran[lane].append(number)
        busy[lane] -= 1
        done.release()

    with ThreadPoolExecutor(lanes) as executor:
        pool = Pool(executor, 1 << 16)
        made = [pool.add_lane(number) for number in range(lanes)]
        for number in range(each):
            for lane in range(lanes):
                pool.put(made[lane], job, (lane, number))
        for _ in range(lanes * each):
            assert done.acquire(timeout=PATIENCE)
    assert ran == [list(range(each))] * lanes
    assert overlaps == []
    pool.runner.check_invariants()


@pytest.mark.parametrize("linger", [None, 0.0, 0.0005], ids=["theirs", "ours", "waits"])
@pytest.mark.parametrize("seed", range(5))
def test_no_job_is_left_behind(linger: float | None, seed: int) -> None:
    """Put at any moment, as a run begins, waits or ends, a job is run: in its lane's order, and none beside it."""
    lanes, each = 1 + seed % 3, 100
    ran: list[list[int]] = [[] for _ in range(lanes)]
    ended = [threading.Semaphore(0) for _ in range(lanes)]

    def job(of: tuple[int, int]) -> None:
        lane, number = of
        ran[lane].append(number)
        ended[lane].release()

    def put_all(lane: int) -> None:
        """Put bursts, and wait for the end of each, so that runs begin and end all the time."""
        for begin in range(0, each, 1 + seed):
            burst = range(begin, min(begin + 1 + seed, each))
            for number in burst:
                pool.put(made[lane], job, (lane, number))
            for _ in burst:
                assert ended[lane].acquire(timeout=PATIENCE)

    executor = ThreadPoolExecutor(4) if linger is None else MultiQueueExecutor(2)
    with executor, switch_interval():
        pool = Pool(executor, 2, linger=linger)
        made = [pool.add_lane(lane) for lane in range(lanes)]
        with Threads() as threads:
            for lane in range(lanes):
                threads.start(put_all, lane)
        pool.work.shutdown()
    assert ran == [list(range(each))] * lanes
    pool.runner.check_invariants()
