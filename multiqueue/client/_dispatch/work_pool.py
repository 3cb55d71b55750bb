"""The work pool on threads of our own: callbacks of many channels, those of one channel one at a time.

Promise     Jobs of a lane run one at a time, in the order they were put; those of different lanes in parallel, as many
            as the executor has threads. A job that raises ends neither its thread nor the jobs behind it.
State       `_lock` guards `_runners`, the runs that are submitted or running, and `_idle`, those that look for a job.
            The jobs are the multi-queue's, `work`: a lane is a sub-queue with `max_in_flight=1`.
Lock order  `_lock` -> the multi-queue's own.
Waiting     A run that finds nothing waits `linger` seconds for the next job: to submit another costs more than a job.
            Why no job is left behind: 1. a job is put, then announced. 2. The announcement starts a run, unless one is
            idle. 3. An idle run takes a job and, where more are left and none is idle, starts the next; or it finds
            none and leaves, but only after another look under the lock.
            Jobs for which no run can be had wait for `run_what_is_left`.
Source      WorkPool of RabbitMQ's Java client, for dormant, ready and in progress.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from ...core import LinkedBlockingMultiQueue, SubQueue
from ...errors import Empty, ShutDown

Job = tuple[Callable[[Any], object], Any]
Lane = SubQueue[Job]
Work = LinkedBlockingMultiQueue[Job]  # its lanes are sub-queues with `max_in_flight=1`

_log = logging.getLogger("multiqueue.client")
_inside = threading.local()


@dataclass(eq=False, repr=False)
class WorkPool:
    """Runs the jobs in the lanes of `work` on `parallel` threads of `executor`, which none else uses.
    `on_broken(error)` is called when the executor accepts nothing any more."""

    _work: Work
    _executor: Executor
    _parallel: int
    _on_broken: Callable[[Exception], object]
    _linger: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _runners: int = 0
    _idle: int = 0
    _is_broken: bool = False  # set once, when the executor has taken no run

    def announce(self) -> None:
        """Something was put into lanes: one announcement after many puts is enough."""
        with self._lock:
            if self._idle or self._runners >= self._parallel or self._work.empty():
                return
            self._runners += 1
            self._idle += 1
        try:
            self._executor.submit(self._run)
        except RuntimeError as error:  # it was shut down under us
            with self._lock:
                self._runners -= 1
                self._idle -= 1
            self._is_broken = True
            self._on_broken(error)

    def run_what_is_left(self) -> None:
        """Run jobs here, where the executor takes no runs any more."""
        if self._is_broken:
            with self._lock:
                self._runners += 1
                self._idle += 1
            self._run()

    def _run(self) -> None:
        """Run jobs, on a thread of the executor, until there are none for a while."""
        while True:
            try:
                lane, job = self._work.take(True, self._linger)
            except (Empty, ShutDown):
                with self._lock:
                    if not self._work.empty():
                        continue  # it was put since
                    self._runners -= 1
                    self._idle -= 1
                    return
            with self._lock:
                self._idle -= 1
            self.announce()  # another lane may be ready: its jobs need not wait for ours
            try:
                run_job(*job)
            finally:
                with self._lock:
                    self._idle += 1
                lane.task_done()

    def check_invariants(self) -> None:
        """Raise AssertionError when the pool contradicts itself. For tests, with nothing under way."""
        check_lanes(self._work)
        with self._lock:
            assert 0 <= self._idle <= self._runners <= self._parallel, (self._idle, self._runners)


def check_lanes(work: Work) -> None:
    """Raise AssertionError when two jobs of a lane are in flight. For tests."""
    work.check_invariants()
    for lane in work.subqueues.values():
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
