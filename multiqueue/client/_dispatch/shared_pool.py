"""The work pool on an executor of the user's: one runnable for each lane that has work, as in RabbitMQ's WorkPool.

Promise     A lane in progress has one runnable with the executor, so its jobs keep their order, and none overlap. A
            runnable runs up to TURNS jobs of its lane, which is then behind the other ready ones. At most `parallel`
            runnables are with the executor. An executor that refuses one loses no job.
State       The jobs are the multi-queue's, `work`; a lane in progress has one in flight, and is passed over. `_lock`
            guards `_runners`, the runnables with the executor; `_news`, which counts announcements; `_is_starting`,
            whether a thread looks for ready lanes. `_refused` has lanes whose first job the executor has refused.
Waiting     None waits here. Why no job is left behind: a put is followed by an announcement, the end of a runnable is
            one; an announcement looks for ready lanes, or finds a thread that does, which then looks once more.
            That one thread alone looks keeps an executor that runs what it is given at once from nesting.
            Once the executor has refused, runnables go on until nothing is ready; then `run_what_is_left` does.
Source      WorkPool and ConsumerWorkService of RabbitMQ's Java client.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from ...errors import Empty, ShutDown
from .work_pool import Job, Lane, Work, check_lanes, run_job

TURNS = 16  # jobs of a lane before the executor has its thread back


@dataclass(eq=False, repr=False)
class SharedPool:
    """Runs the jobs in the lanes of `work`, on an executor that others use too; the same calls as `WorkPool`'s.
    `on_broken(error)` is called when the executor accepts nothing any more."""

    _work: Work
    _executor: Executor
    _parallel: int
    _on_broken: Callable[[Exception], object]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _runners: int = 0
    _news: int = 0
    _is_starting: bool = False
    _is_broken: bool = False  # set once
    _refused: deque[tuple[Lane, Job]] = field(default_factory=deque)

    def announce(self) -> None:
        """Something was put into lanes, or a lane may be ready again."""
        with self._lock:
            self._news += 1
            if self._is_starting or self._is_broken:
                return
            self._is_starting = True
        while (ready := self._next_ready()) is not None:
            try:
                self._executor.submit(self._run, *ready)
            except Exception as error:  # noqa: BLE001  # after any error the runnable is not with the executor
                self._refused.append(ready)
                with self._lock:
                    self._runners -= 1
                    self._is_broken = True
                    self._is_starting = False
                self._on_broken(error)
                return

    def run_what_is_left(self) -> None:
        """Run jobs here, where the executor takes no runnables any more."""
        while self._is_broken and (ready := self._take()) is not None:
            self._run_some(*ready)

    def _next_ready(self) -> tuple[Lane, Job] | None:
        """A ready lane, in progress from now on, with its first job; None, and this thread looks no more."""
        while True:
            with self._lock:
                seen = self._news
                has_room = self._runners < self._parallel
                self._runners += has_room
            ready = self._take() if has_room else None
            if ready is not None:
                return ready
            with self._lock:
                self._runners -= has_room
                if self._news == seen:
                    self._is_starting = False
                    return None

    def _take(self) -> tuple[Lane, Job] | None:
        try:
            return self._refused.popleft()
        except IndexError:
            pass
        try:
            return self._work.take(False)
        except (Empty, ShutDown):
            return None

    def _run(self, lane: Lane, job: Job) -> None:
        try:
            self._run_some(lane, job)
        finally:
            with self._lock:
                self._runners -= 1
            self.announce()
        self.run_what_is_left()

    def _run_some(self, lane: Lane, first: Job) -> None:
        job: Job | None = first
        for turn in range(TURNS):
            if job is None:
                break
            run_job(*job)
            job = lane.poll() if turn + 1 < TURNS else None  # before the next line, so that it stays in progress
            if job is not None:
                lane.task_done()
        lane.task_done()

    def check_invariants(self) -> None:
        """Raise AssertionError when the pool contradicts itself. For tests, with nothing under way."""
        check_lanes(self._work)
        with self._lock:
            assert 0 <= self._runners <= self._parallel, self._runners
