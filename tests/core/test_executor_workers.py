"""Workers: started as needed, named, replaced, broken by a failing initializer, absent after fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

import pytest
from core_parts_support import Job
from executor_support import ROOT, Busy, executor, in_thread

from multiqueue import MultiQueueExecutor
from multiqueue.testing import PATIENCE, wait_until_blocked


@pytest.mark.parametrize("workers", [0, -1, float("nan")])
def test_an_executor_needs_a_worker(workers: Any) -> None:
    """Less than one worker is refused in the standard library's words."""
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        MultiQueueExecutor(workers)


def test_an_initializer_must_be_callable() -> None:
    """An initializer that can not be called is refused when the executor is made."""
    with pytest.raises(TypeError, match="initializer must be a callable"):
        MultiQueueExecutor(1, initializer="no")  # type: ignore[arg-type]


def test_workers_are_hired_as_jobs_come() -> None:
    """No thread before the first job, one more for each job that finds none free, never more than `max_workers`.

    (executor 12)
    """
    with executor(3) as pool:
        assert not pool._workers.threads()
        busy = [Busy(pool) for _ in range(3)]
        for one in busy:
            one.__enter__()
        extra = pool.submit(int)
        assert len(pool._workers.threads()) == 3
        for one in busy:
            one.release()
        assert extra.result(PATIENCE) == 0


def test_an_idle_worker_is_used_again() -> None:
    """Jobs one after the other are served by one thread (executor 12)."""
    with executor(4) as pool:
        worker = pool.submit(threading.current_thread).result(PATIENCE)
        for _ in range(5):
            wait_until_blocked(worker)
            assert pool.submit(threading.current_thread).result(PATIENCE) is worker


def test_a_cancelled_job_needs_no_worker() -> None:
    """Jobs that are cancelled do not make the executor start more threads than run."""
    with executor(8) as pool, Busy(pool):
        lane = pool.lane("paused")
        lane.pause()
        for _ in range(5):
            lane.submit(pytest.fail, "ran").cancel()
        assert len(pool._workers.threads()) == 2, "the busy one, and the one started for the first of them"


def test_every_waiting_job_has_a_worker() -> None:
    """Two jobs that wait for each other both run, whatever the workers were doing a moment ago (executor 3)."""
    with executor(2) as pool:
        for _ in range(300):
            meeting = threading.Barrier(2, timeout=PATIENCE)
            first, second = pool.submit(meeting.wait), pool.submit(meeting.wait)
            assert {first.result(PATIENCE), second.result(PATIENCE)} == {0, 1}


def test_a_callback_that_waits_for_another_job_finds_a_worker_for_it() -> None:
    """A callback still occupies its worker: a job it waits for gets another one."""
    answer: Future[int] = Future()
    with executor(2) as pool:
        with Busy(pool) as busy:
            busy.future.add_done_callback(lambda _: answer.set_result(pool.submit(int).result(PATIENCE)))
        assert answer.result(PATIENCE) == 0


def test_workers_are_named_and_not_daemons() -> None:
    """Workers are called `{prefix}_{n}` and are no daemons, even when a daemon submits (executor 12)."""
    names: list[tuple[str, bool]] = []

    def look() -> None:
        names.append((threading.current_thread().name, threading.current_thread().daemon))

    with executor(1, thread_name_prefix="mail") as pool:
        daemon = threading.Thread(target=pool.submit, args=(look,), daemon=True)
        daemon.start()
        daemon.join(PATIENCE)
    assert names == [("mail_0", False)]


def test_executors_without_a_prefix_have_names_of_their_own() -> None:
    """Two executors without a prefix do not share the names of their threads."""
    with executor() as one, executor() as other:
        names = [pool.submit(threading.current_thread).result(PATIENCE).name for pool in (one, other)]
    assert all(name.startswith("MultiQueueExecutor-") and name.endswith("_0") for name in names)
    assert names[0] != names[1]


def test_the_initializer_runs_once_in_each_worker() -> None:
    """Each worker calls the initializer before its first job."""
    ready: list[str] = []

    def initialize(word: str) -> None:
        ready.append(f"{word} {threading.current_thread().name}")

    with executor(2, thread_name_prefix="w", initializer=initialize, initargs=("hello",)) as pool:
        with Busy(pool), Busy(pool):
            assert sorted(ready) == ["hello w_0", "hello w_1"]
        pool.submit(int).result(PATIENCE)
    assert len(ready) == 2


def test_a_failing_initializer_breaks_the_executor(caplog: pytest.LogCaptureFixture) -> None:
    """What waits, who waits for room and what comes later gets `BrokenThreadPool`; the failure is logged once, where
    the standard library logs it.

    (executor 1)
    """
    go_on = threading.Event()

    def initialize() -> None:
        assert go_on.wait(PATIENCE)
        raise OSError("no licence")

    with executor(1, initializer=initialize) as pool:
        lane = pool.lane("small", capacity=1)
        waiting = lane.submit(pytest.fail, "ran")
        with in_thread(lambda: lane.submit(pytest.fail, "ran")) as blocked:
            wait_until_blocked(blocked.thread)
            go_on.set()
            outcome = blocked.exception(PATIENCE)
            if outcome is None:  # it got the place of the job that was refused
                outcome = blocked.result().exception(PATIENCE)
        assert isinstance(outcome, BrokenThreadPool)
        assert isinstance(waiting.exception(PATIENCE), BrokenThreadPool)
        with pytest.raises(BrokenExecutor, match="initializer failed"):
            pool.submit(int)
    assert [record.name for record in caplog.records] == ["concurrent.futures"]
    assert "no licence" in caplog.text


def test_a_worker_that_dies_is_reported_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """A failure outside the job ends its worker, is logged, and another worker serves what waits (executor 8)."""
    with executor(1) as pool:
        dying = Busy(pool)
        with dying, caplog.at_level(logging.CRITICAL, "concurrent.futures"):
            dead = next(iter(pool._workers.threads()))
            waiting = pool.submit(threading.current_thread)
            dying.future.set_result(None)  # the worker's own attempt will fail: a future ends once
        assert waiting.result(PATIENCE) is not dead
        dead.join(PATIENCE)
        wait_until_blocked(lambda: pool.lane("default").running == 0)  # behind the result
    assert "died and is replaced" in caplog.text
    assert "InvalidStateError" in caplog.text


def test_nobody_waits_for_a_dead_worker(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a job could not be run because of our own failure, its future ends with that failure (executor 8)."""
    monkeypatch.setattr(Job, "run", lambda self: 1 / 0)
    with executor(1) as pool:
        assert isinstance(pool.submit(int).exception(PATIENCE), ZeroDivisionError)
        assert isinstance(pool.submit(int).exception(PATIENCE), ZeroDivisionError)
    assert caplog.text.count("died and is replaced") == 2


def test_a_submit_that_finds_no_thread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system refuses a thread, `submit` raises, nothing is queued, and the next one can succeed."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with executor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.submit(pytest.fail, "ran")
        assert pool.lane("default").qsize() == 0
        assert pool.submit(int).result(PATIENCE) == 0


def test_a_thread_per_job() -> None:
    """With one job per worker, each job has a thread that has run nothing before; at most `max_workers` run."""

    class OneShot(MultiQueueExecutor):
        _jobs_per_worker = 1

    running: list[int] = []
    most: list[int] = []
    local = threading.local()

    def job() -> bool:
        running.append(1)
        most.append(len(running))
        fresh = not hasattr(local, "used")
        local.used = True
        running.pop()
        return fresh

    with OneShot(2) as pool:
        assert all(future.result(PATIENCE) for future in [pool.submit(job) for _ in range(50)])
    assert max(most) <= 2
    assert not [thread for thread in pool._workers.threads() if thread.is_alive()]


FORK = """
import os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: that is the subject
from multiqueue import MultiQueueExecutor
pool = MultiQueueExecutor(2)
lane = pool.lane("a")
pool.submit(int).result()
held = threading.Event()
lane.submit(held.wait)
if os.fork() == 0:
    for submit in (pool.submit, lane.submit):
        try:
            submit(int)
        except RuntimeError as error:
            print(type(error).__name__, error)
    with MultiQueueExecutor(1) as new:
        print("new", new.submit(int).result())
    pool.shutdown()
    sys.exit()
_, status = os.wait()
held.set()
pool.shutdown()
print("child", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_that_it_has_no_workers() -> None:
    """In a forked child an executor of the parent refuses to submit and ends at once; a new one works."""
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("BrokenThreadPool executor") and "make a new one" in line for line in lines[:2])
    assert lines[2:] == ["new 0", "child 0"]
