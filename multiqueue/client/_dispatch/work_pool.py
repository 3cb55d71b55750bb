"""The work pool on threads of our own: callbacks of many channels, those of one channel one at a time.

Promise     1. At most one job of a lane runs at a time, in the order they were put: a lane is a sub-queue with
               `max_in_flight=1`, and that is all the machinery there is for it.
            2. Jobs of different lanes run in parallel, as many as the executor has threads.
            3. A job that raises ends neither its thread nor the jobs behind it.
State       `_lock` guards `_runners`, how many runs are submitted or running; `_news`, which counts announcements; and
            `_is_lingering`, whether one of the runs is waiting for a job on the multi-queue. The jobs are the
            multi-queue's, `work`. A lane is dormant (nothing in it), ready, or in progress (in flight).
Lock order  `_lock` -> the multi-queue's own.
Waiting     One run that finds nothing waits `linger` seconds for the next job: to submit another costs more than a job.
            Every other run that finds nothing ends. Why no job is left behind:
            1. A run reads `_news`, then finds nothing to take.
            2. Somebody puts a job, then announces: `_news` rises.
            3. The run compares under the lock before it leaves: it sees the rise and looks again; or it has left,
               `_runners` is lower, and the announcement starts another. An announcement that finds a run lingering
               starts none: that run was woken by the put, or compares after its wait.
            A lane in flight is looked at again by its run, when that is done with its job.
            An announcement starts one run; a run that takes and leaves more behind starts the next.
            A run whose turns are over goes on where it is when the executor, shut down meanwhile, takes no next one.
            What is put when there is no run either waits for `run_what_is_left`.
Membership  A lane that is removed keeps its jobs, which do not run. Its own last job removes it, so there are none.
Source      WorkPool of RabbitMQ's Java client, for dormant, ready and in progress.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from ...core import LinkedBlockingMultiQueue, SubQueue
from ...errors import Empty, ShutDown

Job = tuple[Callable[[Any], object], Any]
Lane = SubQueue[Job]
Work = LinkedBlockingMultiQueue[Job]  # its lanes are sub-queues with `max_in_flight=1`

TURNS = 16  # jobs before an executor that others use too gets its thread back

_log = logging.getLogger("multiqueue.client")
_inside = threading.local()


class WorkPool:
    """Runs the jobs in the lanes of `work`. `parallel` bounds how many threads of `executor` it uses at once.

    `on_broken(error)` is called when the executor accepts nothing any more.
    """

    def __init__(
        self,
        work: Work,
        executor: Executor,
        parallel: int,
        on_broken: Callable[[Exception], object],
        *,
        linger: float,
    ) -> None:
        self._work = work
        self._executor = executor
        self._parallel = parallel
        self._on_broken = on_broken
        self._linger = linger
        self._lock = threading.Lock()
        # Invariant: 0 <= _runners <= _parallel, and 0 only if nothing is ready or an announcement is on its way.
        self._runners = 0
        self._news = 0
        self._is_lingering = False
        self._is_broken = False  # set once, when the executor has taken no run

    def announce(self) -> None:
        """Something was put into lanes: one announcement after many puts is enough."""
        with self._lock:
            self._news += 1
            if self._is_lingering or self._runners >= self._parallel or self._work.empty():
                return
            self._runners += 1
        self._submit()

    def run_what_is_left(self) -> None:
        """Run jobs here, where the executor takes no runs any more."""
        if self._is_broken:
            with self._lock:
                self._runners += 1
            self._run()

    def _submit(self) -> None:
        if not self._is_submitted():
            with self._lock:
                self._runners -= 1

    def _is_submitted(self) -> bool:
        try:
            self._executor.submit(self._run)
        except RuntimeError as error:  # it was shut down under us
            self._is_broken = True
            self._on_broken(error)
            return False
        return True

    def _run(self) -> None:
        """What a thread of the executor does: jobs until there are none, or others should have a turn."""
        while True:
            for _ in range(TURNS):
                seen = self._news
                if not self._run_one(None) and self._leaves(seen):
                    return
            if self._is_submitted():
                return

    def _leaves(self, seen: int) -> bool:
        """Nothing was there: linger, then end this run, unless there is news."""
        with self._lock:
            if self._news != seen:
                return False
            if self._is_lingering:
                self._runners -= 1
                return True
            self._is_lingering = True
        if self._run_one(self._linger):
            return False
        with self._lock:
            self._is_lingering = False
            if self._news != seen:
                return False
            self._runners -= 1
            return True

    def _run_one(self, linger: float | None) -> bool:
        """Run a job, if there is one within `linger` seconds, or now where that is None."""
        try:
            lane, job = self._work.take(linger is not None, linger)
        except (Empty, ShutDown):
            return False
        try:
            self._spread(has_lingered=linger is not None)
            run_job(*job)
        finally:
            lane.task_done()
        return True

    def _spread(self, has_lingered: bool) -> None:
        """Another lane may be ready: its jobs need not wait for ours."""
        with self._lock:
            if has_lingered:
                self._is_lingering = False
            if self._is_lingering or self._runners >= self._parallel or self._work.empty():
                return
            self._runners += 1
        self._submit()

    def check_invariants(self) -> None:
        """Raise AssertionError when the pool contradicts itself. For tests, with nothing under way."""
        self._work.check_invariants()
        with self._lock:
            assert 0 <= self._runners <= self._parallel, self._runners
            for lane in self._work.subqueues.values():
                assert lane.in_flight <= 1, lane


def is_inside() -> bool:
    """Is this thread running a job of a work pool?"""
    return getattr(_inside, "is_running", False)


def run_job(function: Callable[[Any], object], argument: Any) -> None:
    """Call it, and log what it raises."""
    was_running = is_inside()
    _inside.is_running = True
    try:
        function(argument)
    except BaseException as error:  # noqa: BLE001  # SystemExit of a callback must not end the jobs behind it
        _log.critical("a job of the work pool raised %r", error, exc_info=error)
    finally:
        _inside.is_running = was_running
