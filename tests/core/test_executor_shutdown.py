"""The end of an executor: by shutdown, by being dropped, by the end of the interpreter."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest
from executor_support import ROOT, Busy, executor, in_thread

from multiqueue import MultiQueueExecutor
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_shutdown_runs_what_waits_and_joins_the_threads() -> None:
    """`shutdown()` returns when every job is done and every thread has ended; again has no effect (executor 9)."""
    pool = MultiQueueExecutor(2)
    futures = [pool.lane(key).submit(int) for key in range(20)]
    pool.shutdown()
    assert all(future.done() for future in futures)
    assert not [thread for thread in pool._workers.threads() if thread.is_alive()]
    pool.shutdown()


def test_leaving_the_block_shuts_down() -> None:
    """The `with` block waits for the jobs."""
    with MultiQueueExecutor(1) as pool:
        future = pool.submit(int)
    assert future.done()


@pytest.mark.parametrize("submit", [lambda pool: pool.submit, lambda pool: pool.lane("a").submit])
def test_submitting_after_shutdown_is_refused(submit: Any) -> None:
    """After shutdown `submit` raises what the standard library raises, on lanes old and new (executor 9)."""
    pool = MultiQueueExecutor(1)
    submit(pool)(int)
    pool.shutdown()
    for key in ("a", "new"):
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            pool.lane(key).submit(int)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(int)


def test_shutdown_without_waiting() -> None:
    """`shutdown(wait=False)` returns while a job runs; what waits is still run."""
    with executor() as pool, Busy(pool) as busy:
        waiting = pool.submit(int)
        pool.shutdown(wait=False)
        assert not busy.future.done()
        busy.release()
        assert waiting.result(PATIENCE) == 0


def test_shutdown_with_cancel_futures() -> None:
    """`shutdown(cancel_futures=True)` cancels what waits in every lane and lets the running job finish (executor 9)."""
    with executor() as pool, Busy(pool) as busy:
        waiting = [pool.lane(key).submit(pytest.fail, "ran") for key in range(5)]
        pool.shutdown(wait=False, cancel_futures=True)
        assert all(future.cancelled() for future in waiting)
        busy.release()
        assert busy.future.result(PATIENCE) is None


def test_shutdown_ends_all_pauses() -> None:
    """What waits in a paused lane is run by shutdown, and a pause that comes later has no effect (executor 9)."""
    with executor() as pool:
        lane = pool.lane("paused")
        lane.pause("one")
        lane.pause("two")
        waiting = lane.submit(int)
        with Busy(pool):
            pool.shutdown(wait=False)
            lane.pause("three")
        assert waiting.result(PATIENCE) == 0


def test_shutdown_wakes_blocked_submitters() -> None:
    """A submitter that waits for room gets `RuntimeError` when the executor is shut down."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("small", capacity=1)
        lane.submit(int)
        with in_thread(lambda: lane.submit(int)) as submitted:
            wait_until_blocked(submitted.thread)
            pool.shutdown(wait=False)
            with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
                submitted.result(PATIENCE)


def test_shutdown_respects_the_limit_of_a_lane() -> None:
    """Draining a lane with `max_in_flight` 1 runs its jobs one by one, to the last."""
    running: list[int] = []
    most: list[int] = []

    def job() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    with executor(4) as pool:
        lane = pool.lane("limited", max_in_flight=1)
        lane.pause()
        futures = [lane.submit(job) for _ in range(50)]
        pool.shutdown()
    assert all(future.done() for future in futures)
    assert max(most) == 1


def test_a_dropped_executor_runs_what_waits_and_ends() -> None:
    """When no object holds the executor or a lane of it, its jobs are run and its threads end, without the collector.

    (executor 9)
    """
    pool = MultiQueueExecutor(2)
    futures = [pool.submit(int) for _ in range(20)]
    workers = pool._workers
    gc.disable()
    try:
        del pool
        for thread in workers.threads():
            thread.join(PATIENCE)
    finally:
        gc.enable()
    assert all(future.done() for future in futures)
    assert not [thread for thread in workers.threads() if thread.is_alive()]


def test_a_lane_keeps_its_executor_in_service() -> None:
    """A lane goes on when its executor is dropped, and its threads end when it is dropped too."""
    lane = MultiQueueExecutor(1).lane("kept")
    gc.collect()
    worker = lane.submit(threading.current_thread).result(PATIENCE)
    wait_until_blocked(worker)
    assert worker.is_alive()
    del lane
    worker.join(PATIENCE)
    assert not worker.is_alive()


def python(program: str) -> tuple[str, str]:
    """What a program of its own prints, and its errors; it must end."""
    run = subprocess.run(
        [sys.executable, "-c", f"from multiqueue import MultiQueueExecutor\n{program}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
    )
    return run.stdout, run.stderr


def test_the_interpreter_exits_with_an_idle_worker() -> None:
    """A program that forgets `shutdown` ends."""
    assert python("t = MultiQueueExecutor(2); t.submit(print, 'ran').result()") == ("ran\n", "")


def test_the_interpreter_runs_what_is_queued_before_it_exits() -> None:
    """At exit queued jobs are run, in paused lanes too, as by the standard library (executor 9)."""
    program = (
        "import time\nt = MultiQueueExecutor(1); t.submit(time.sleep, 0.2)\n"
        "lane = t.lane('paused'); lane.pause()\n"
        "for n in range(3): lane.submit(print, n)"
    )
    assert python(program) == ("0\n1\n2\n", "")


def test_the_interpreter_exits_after_shutdown_without_waiting() -> None:
    """`shutdown(wait=False)` as the last call neither hangs nor loses the running job."""
    job = "lambda: (time.sleep(0.2), print('ran'))"
    program = f"import time\nt = MultiQueueExecutor(1)\nt.submit({job})\nt.shutdown(wait=False)"
    assert python(program) == ("ran\n", "")


def test_submitting_while_the_interpreter_exits_is_refused() -> None:
    """From an exit handler on, `submit` raises in the standard library's words, also on a new executor."""
    program = """
import atexit
def late():
    for pool in (t, MultiQueueExecutor(1)):
        try:
            pool.submit(int)
        except RuntimeError as error:
            print(error)
atexit.register(late)
t = MultiQueueExecutor(1)
t.submit(int).result()
"""
    assert python(program) == ("cannot schedule new futures after interpreter shutdown\n" * 2, "")


def test_a_job_may_submit_until_the_interpreter_exits() -> None:
    """A job that submits for ever ends with the standard library's error instead of keeping the program alive."""
    program = """
def again():
    try:
        t.submit(again)
    except RuntimeError as error:
        print(error)
t = MultiQueueExecutor(1)
t.submit(again)
"""
    assert python(program) == ("cannot schedule new futures after interpreter shutdown\n", "")
