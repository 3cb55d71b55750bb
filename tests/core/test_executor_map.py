"""`map`: order, look-ahead, time limit."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from executor_support import Busy, executor

from multiqueue import MultiQueueExecutor
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_results_come_in_the_order_of_the_calls() -> None:
    """`map` gives the results of the built-in `map`, for an executor and for a lane, whatever finishes first."""
    with executor(4) as pool:
        for mapper in (pool, pool.lane("a"), pool.lane("small", capacity=1)):
            assert list(mapper.map(pow, range(50), range(50), timeout=PATIENCE)) == [n**n for n in range(50)]
        assert list(pool.map(pow, [2, 3], itertools.count(), chunksize=7)) == [1, 3]


@pytest.mark.parametrize(("buffersize", "look_ahead"), [(None, 6), (1, 1), (4, 4)])
def test_a_lane_looks_only_so_far_ahead(buffersize: int | None, look_ahead: int) -> None:
    """A lane's `map` reads `buffersize` calls ahead of its reader, by default twice the workers, of endless input."""
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    with executor(3) as pool, closing(pool.lane("a").map(str, numbers(), buffersize=buffersize)) as results:
        assert len(read) == look_ahead
        assert next(results) == "0"
        assert len(read) == look_ahead, "the result counts as read when the next one is asked for"
        assert next(results) == "1"
        assert len(read) == look_ahead + 1


def test_an_executor_submits_all_calls_at_once() -> None:
    """The executor's own `map` is the standard library's: everything is submitted before a result is read."""
    finished: list[int] = []
    with executor(2) as pool:
        pool.map(finished.append, range(100))
    assert sorted(finished) == list(range(100))


def test_an_executor_looks_ahead_as_told() -> None:
    """`buffersize` bounds the executor's `map` as it does a lane's."""
    read = itertools.count()
    with executor(2) as pool, closing(pool.map(str, read, buffersize=5)):
        assert next(read) == 5


@pytest.mark.parametrize("buffersize", [0, -1])
def test_a_look_ahead_below_one_is_refused(buffersize: int | None) -> None:
    """`buffersize` below 1 raises, and nothing is submitted."""
    with executor() as pool, pytest.raises(ValueError, match="buffersize must be at least 1"):
        pool.lane("a").map(pytest.fail, ["ran"], buffersize=buffersize)


def test_an_error_ends_the_iteration_and_cancels_the_rest() -> None:
    """The job's error comes at its place; calls that have not started are cancelled."""
    started: list[int] = []

    def job(number: int) -> int:
        started.append(number)
        return 1 // (number - 1)

    with executor() as pool, Busy(pool) as busy:
        lane = pool.lane("a")
        results = lane.map(job, range(9), buffersize=4)
        busy.release()
        assert next(results) == -1
        lane.pause()
        with pytest.raises(ZeroDivisionError):
            list(results)
        assert lane.qsize() == 0
    assert started[:2] == [0, 1]


def test_closing_the_iterator_cancels_what_has_not_started() -> None:
    """A reader that stops early leaves no jobs behind."""
    with executor() as pool:
        lane = pool.lane("a")
        results = lane.map(str, itertools.count(), buffersize=5)
        assert next(results) == "0"
        with Busy(pool):
            lane.map(str, range(5), buffersize=5)
            lane.clear()
            results.close()
            assert lane.qsize() == 0


def test_the_time_limit_counts_from_the_call() -> None:
    """A result that is late raises `TimeoutError`, and its call is cancelled if it has not started."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("a")
        with pytest.raises(TimeoutError):
            next(lane.map(pytest.fail, ["first", "second"], timeout=0))
        assert lane.qsize() == 0


def test_the_time_limit_covers_the_wait_for_room() -> None:
    """A full lane ends `map` with `TimeoutError` too, saying that it is full; what was submitted is cancelled."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("small", capacity=1)
        with pytest.raises(TimeoutError, match="lane 'small' is full"):
            lane.map(pytest.fail, ["first", "second"], timeout=0)
        assert lane.qsize() == 0


def test_an_iterable_that_fails_cancels_what_was_submitted() -> None:
    """An error of the input reaches the caller, and no job is left behind."""

    def broken() -> Iterator[str]:
        yield "first"
        raise OSError("no more")

    with executor() as pool, Busy(pool):
        lane = pool.lane("a")
        with pytest.raises(OSError, match="no more"):
            lane.map(pytest.fail, broken())
        assert lane.qsize() == 0


def wait_until_forgotten(pool: MultiQueueExecutor, gone: weakref.ref[Any]) -> None:
    """Wait for the worker on its way out of the job too, and, without a GIL, for its count of references."""

    def is_forgotten() -> bool:
        pool.submit(int).result(PATIENCE)  # a worker that runs again lets go of what others have dropped
        return gone() is None

    wait_until_blocked(is_forgotten)


def test_a_result_that_was_read_is_forgotten() -> None:
    """The iterator keeps no result that its reader has let go of."""

    class Thing:
        pass

    with executor(2) as pool:
        gc.disable()
        try:
            for thing in pool.lane("a").map(lambda _: Thing(), range(10)):
                gone = weakref.ref(thing)
                del thing
                wait_until_forgotten(pool, gone)
        finally:
            gc.enable()


def test_an_error_that_was_caught_is_forgotten() -> None:
    """The error of a job does not keep itself alive through the iterator that raised it."""

    class Failure(Exception):
        pass

    def job(_: int) -> None:
        raise Failure

    with executor() as pool:
        gc.disable()
        try:
            with pytest.raises(Failure) as raised:
                list(pool.lane("a").map(job, range(1)))
            gone = weakref.ref(raised.value)
            del raised
            wait_until_forgotten(pool, gone)
        finally:
            gc.enable()


def test_a_lane_lives_as_long_as_its_map() -> None:
    """An iterator over a temporary executor's lane gives all its results."""
    before = set(threading.enumerate())
    results = MultiQueueExecutor(2).lane("a").map(str, range(100), buffersize=2)
    gc.collect()
    assert list(results) == [str(number) for number in range(100)]
    del results
    left = [thread for thread in threading.enumerate() if thread not in before]

    def have_ended() -> bool:
        gc.collect()  # without a GIL a function, and what it knows, goes no sooner
        return not any(thread.is_alive() for thread in left)

    wait_until_blocked(have_ended)
