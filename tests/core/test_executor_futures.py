"""Futures of the executor: results, errors, cancelling."""

from __future__ import annotations

import gc
import logging
import sysconfig
import threading
import weakref
from concurrent.futures import Future, as_completed, wait
from functools import partial

import pytest
from executor_support import Busy, executor, in_thread

from multiqueue.testing import PATIENCE, wait_until_blocked


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_job_raises_goes_to_its_future_and_nowhere_else(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """What a job raises, whatever it is, is its future's, the very object; its worker lives on, nothing is logged.

    (executor 6)
    """
    raised = error("from the job")

    def job() -> None:
        raise raised

    with executor() as pool, caplog.at_level(logging.DEBUG):
        worker = pool.submit(threading.current_thread).result(PATIENCE)
        assert pool.submit(job).exception(PATIENCE) is raised
        assert pool.submit(threading.current_thread).result(PATIENCE) is worker
    assert not caplog.records


def test_a_cancelled_job_leaves_its_place_at_once() -> None:
    """The place of a cancelled job is free when `cancel` returns, though no worker has come by (executor 5)."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("small", capacity=1)
        first = lane.submit(pytest.fail, "ran")
        assert first.cancel()
        assert lane.qsize() == 0
        lane.submit_nowait(int)


def test_cancelling_lets_a_blocked_submitter_in() -> None:
    """The place of a cancelled job goes to a submitter that waits for it."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("small", capacity=1)
        first = lane.submit(pytest.fail, "ran")
        with in_thread(lambda: lane.submit(int)) as submitted:
            wait_until_blocked(submitted.thread)
            first.cancel()
            assert not submitted.result(PATIENCE).done()


def test_the_place_is_free_before_the_callbacks_run() -> None:
    """A callback of a cancelled future can submit to the same full lane (executor 5)."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("small", capacity=1)
        first = lane.submit(pytest.fail, "ran")
        first.add_done_callback(lambda _: lane.submit_nowait(int))
        first.cancel()
        assert lane.qsize() == 1


def test_a_cancelled_job_is_done_for_those_who_wait() -> None:
    """`wait` and `as_completed` see a cancelled future as done while all workers are busy."""
    with executor() as pool, Busy(pool):
        first, second = pool.submit(pytest.fail), pool.submit(pytest.fail)
        with in_thread(lambda: wait([first], PATIENCE)) as waited:
            wait_until_blocked(waited.thread)
            first.cancel()
            assert waited.result(PATIENCE).done == {first}
        second.cancel()
        assert set(as_completed([first, second], PATIENCE)) == {first, second}
        assert first.cancel(), "again has no effect"


def test_a_running_or_finished_job_can_not_be_cancelled() -> None:
    """`cancel` of a running or finished job returns False and changes nothing."""
    with executor() as pool:
        with Busy(pool) as busy:
            assert busy.future.running()
            assert not busy.future.cancel()
        assert busy.future.result(PATIENCE) is None
        assert not busy.future.cancel()


def cancel_all(futures: list[Future[None]]) -> list[bool]:
    return [future.cancel() for future in reversed(futures)]


def test_a_job_is_run_or_cancelled_never_both() -> None:
    """When workers and cancelling threads race for the same jobs, each job is run or cancelled and not both.

    (executor 1)
    """
    ran: list[int] = []
    with executor(2) as pool:
        for _ in range(20):
            ran.clear()
            futures = [pool.submit(ran.append, number) for number in range(50)]
            with in_thread(partial(cancel_all, futures)) as cancelled:
                wait(futures, PATIENCE)
            won = {number for number, was in zip(range(49, -1, -1), cancelled.result(), strict=True) if was}
            assert won.isdisjoint(ran)
            assert won.union(ran) == set(range(50))
            assert len(ran) + len(won) == 50


def test_a_cancelled_job_is_forgotten() -> None:
    """The function and arguments of a cancelled job are let go of at once, without the garbage collector."""

    class Argument:
        pass

    with executor() as pool, Busy(pool):
        argument = Argument()
        future = pool.submit(id, argument)
        gone = weakref.ref(argument)
        gc.disable()
        try:
            future.cancel()
            del argument
            assert gone() is None
        finally:
            gc.enable()


def test_an_idle_worker_keeps_nothing_alive() -> None:
    """What a job was given, returned or raised is let go of when no other object holds it, without the collector."""

    class Thing:
        pass

    def fail(thing: Thing) -> None:
        raise ValueError(thing)

    with executor() as pool:
        worker = pool.submit(threading.current_thread).result(PATIENCE)
        gc.collect()
        gc.disable()
        try:
            things = [Thing(), Thing()]
            gone = [weakref.ref(thing) for thing in things]
            pool.submit(id, things[0]).result(PATIENCE)
            assert pool.submit(fail, things[1]).exception(PATIENCE) is not None
            things.clear()
            wait_until_blocked(worker)
            if sysconfig.get_config_var("Py_GIL_DISABLED"):
                gc.collect()  # such a build leaves some of its counting to the collector
            assert [reference() for reference in gone] == [None, None]
        finally:
            gc.enable()
