"""The work pool: callbacks of many channels on an executor, those of one channel one at a time.

Promise     Jobs of a lane run one at a time, in the order they were put; those of different lanes in parallel, in as
            many runs as `parallel`. A run does up to `turns` jobs of a lane, which is then behind the other ready ones.
            A job that raises ends neither its thread nor the jobs behind it. An executor that refuses loses no job.
State       The jobs are the multi-queue's, `work`: a lane is a sub-queue with `max_in_flight=1`, passed over while one
            of its jobs runs. `_lock` guards `_runs`, those that are with the executor; `_idle`, those of them that look
            for a job; `_news`, which counts announcements; `_is_starting`, whether a thread looks for ready lanes.
            `_refused` has lanes whose first job the executor has refused.
Lock order  `_lock` -> the multi-queue's own.
Waiting     On an executor of ours a run waits `linger` seconds for the next job: to submit another costs more than a
            job; not once the program ends, when the executor waits for its threads. On one that others use, a run ends
            with its turns. Why no job is left behind: a put is followed by an
            announcement; the end of a run is one, and so is a job that an idle run takes. An announcement leaves the
            job to an idle run, which looks again before it ends; or to a thread that looks for ready lanes, which then
            looks once more; or to the end of a run, where there are `parallel`; or it looks itself. That one thread
            alone looks keeps an executor that runs its jobs at once from nesting. Once the executor has
            refused, runs go on until nothing is ready; then `run_what_is_left` does.
Connection  `Callbacks` has the pool of one connection. Its own lane is the first to come, and leaves when `end` has put
            its last job; `_lanes_left` is set by the last lane that leaves. `leave` waits for it, `close_timeout`
            seconds at most.
Source      WorkPool and ConsumerWorkService of RabbitMQ's Java client.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._locks import Lock
from ...core import LinkedBlockingMultiQueue, MultiQueueExecutor, SubQueue
from ...errors import Empty, ShutDown
from .._base.errors import CallbackFailure
from .._base.settings import Settings

if TYPE_CHECKING:
    from .._channel.channel import Channel

Job = tuple[Callable[[Any], object], Any]
Lane = SubQueue[Job]
Work = LinkedBlockingMultiQueue[Job]  # its lanes are sub-queues with `max_in_flight=1`

LINGER = 5.0  # seconds that a thread of our own pool waits for the next callback before it goes back to its executor
TURNS = 16  # jobs of a channel before an executor of the user's has its thread back

_log = logging.getLogger("multiqueue.client")
_inside = threading.local()


@dataclass(eq=False, repr=False)
class WorkPool:
    """Runs the jobs in the lanes of `work`. `on_broken(error)` is called when the executor accepts nothing any more."""

    _work: Work
    _executor: Executor
    _parallel: int
    _on_broken: Callable[[Exception], object]
    turns: int
    linger: float | None  # None: the executor's threads are not ours to keep
    _lock: Lock = field(default_factory=Lock)
    _runs: int = 0
    _idle: int = 0
    _news: int = 0
    _is_starting: bool = False
    _is_broken: bool = False  # set once
    _refused: deque[tuple[Lane, Job]] = field(default_factory=deque)

    def announce(self) -> None:
        """Something was put into lanes, or a lane may be ready again: one announcement after many puts is enough."""
        with self._lock:
            self._news += 1
            if self._idle or self._runs >= self._parallel or self._is_starting or self._is_broken:
                return
            if self._work.empty():
                return
            self._is_starting = True
        while (ready := self._next_to_start()) is not None:
            try:
                self._executor.submit(self._run, *ready)
            except Exception as error:  # noqa: BLE001  # after any error the run is not with the executor
                self._refused.append(ready)
                with self._lock:
                    self._runs -= 1
                    self._is_broken = True
                    self._is_starting = False
                self._on_broken(error)
                return

    def _next_to_start(self) -> tuple[Lane, Job] | None:
        """A ready lane, in progress from now on, with its first job; None, and this thread looks no more."""
        while True:
            with self._lock:
                seen = self._news
                has_room = self._runs < self._parallel and not self._idle
                self._runs += has_room
            ready = self._take() if has_room else None
            if ready is not None:
                return ready
            with self._lock:
                self._runs -= has_room
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
        """Run jobs, on a thread of the executor."""
        try:
            while True:
                self._run_some(lane, job)
                ready = None if self._is_broken else self._wait_for_next()
                if ready is None:
                    break
                lane, job = ready
        finally:
            with self._lock:
                self._runs -= 1
            self.announce()
        self.run_what_is_left()

    def _run_some(self, lane: Lane, first: Job) -> None:
        job: Job | None = first
        for turn in range(self.turns):
            if job is None:
                break
            run_job(*job)
            job = lane.poll() if turn + 1 < self.turns else None  # before the next line, so that it stays in progress
            if job is not None:
                lane.task_done()
        lane.task_done()

    def _wait_for_next(self) -> tuple[Lane, Job] | None:
        with self._lock:
            linger = self.linger
            if linger is None:
                return None
            self._idle += 1
        while True:
            try:
                ready = self._work.take(True, linger)
            except (Empty, ShutDown):
                with self._lock:
                    if not self._work.empty():
                        continue  # it was put since
                    self._idle -= 1
                    return None
            with self._lock:
                self._idle -= 1
            self.announce()  # another lane may be ready: its jobs need not wait for ours
            return ready

    def end_waits(self, lane: Lane) -> None:
        """Have no run wait for a job from now on; what waits now gets one that does nothing, from this lane."""
        with self._lock:
            self.linger = None
            idle = self._idle
        for _ in range(idle):
            lane.put((_nothing, None))

    def run_what_is_left(self) -> None:
        """Run jobs here, where the executor takes no runs any more."""
        while self._is_broken and (ready := self._take()) is not None:
            self._run_some(*ready)

    def check_invariants(self) -> None:
        """Raise AssertionError when the pool contradicts itself. For tests, with nothing under way."""
        self._work.check_invariants()
        for lane in self._work.subqueues.values():
            assert lane.in_flight <= 1, lane
        with self._lock:
            assert 0 <= self._idle <= self._runs <= self._parallel, (self._idle, self._runs)


def _nothing(_: object) -> None:
    """A job for a run that is to look up."""


def is_inside() -> bool:
    """Is this thread running a job of a work pool?"""
    return getattr(_inside, "is_running", False)


def run_job(function: Callable[[Any], object], argument: Any) -> None:
    """Call it, and log its error."""
    was_running = is_inside()
    _inside.is_running = True
    try:
        function(argument)
    except BaseException as error:  # noqa: BLE001  # SystemExit of a callback must not end the jobs behind it
        _log.critical("a job of the work pool raised %r", error, exc_info=error)
    finally:
        _inside.is_running = was_running


class Callbacks:
    """The connection's share of the work pool. `on_broken(error)` is called when the executor accepts nothing more."""

    def __init__(self, settings: Settings, on_broken: Callable[[Exception], object]) -> None:
        self._settings = settings
        self._own_executor = settings.executor is None
        self._work = Work()
        self._executor: Executor
        if settings.executor is None:
            threads = settings.threads or max(2, os.cpu_count() or 2)
            self._executor = MultiQueueExecutor(threads, thread_name_prefix=f"{settings.name}-worker")
            self._pool = WorkPool(self._work, self._executor, threads, on_broken, turns=1, linger=LINGER)
        else:
            self._executor = settings.executor
            runs = settings.threads or 1 << 16  # one for each channel with work
            self._pool = WorkPool(self._work, self._executor, runs, on_broken, turns=TURNS, linger=None)
        self.announce: Callable[[], None] = self._pool.announce
        self._lanes_left = threading.Event()
        self._lane = self.add_lane(self)

    def add_lane(self, owner: Hashable) -> Lane:
        """A lane for a channel. Its last job calls `remove_lane`."""
        return self._work.add_subqueue(owner, max_in_flight=1)

    def remove_lane(self, owner: Hashable) -> None:
        self._work.remove_subqueue(owner)
        if not self._work.subqueues:
            self._lanes_left.set()

    def dispatch(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Have a callback run outside of any channel's order; here and now when the pool has ended."""
        try:
            self._lane.put((partial(self.run, callback), argument))
        except ShutDown:
            self.run(callback, argument)
        else:
            self.announce()

    def run(self, callback: Callable[[Any], object], argument: Any, channel: Channel | None = None) -> None:
        """Call a callback of the user's, and the handler with its error."""
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  # goes to the handler
            failure = CallbackFailure(error, callback, argument, channel)
            try:
                self._settings.on_callback_error(failure)
            except Exception as last:  # noqa: BLE001  # the last resort
                _log.error("the handler of callback errors failed itself, for: %s", failure, exc_info=last)

    def end(self) -> None:
        self._lane.put((self.remove_lane, self))
        self.announce()

    def leave(self) -> None:
        """Wait until every lane has run its last job, unless the caller is a job itself, and let our threads go. Where
        the executor was shut down before, this thread runs them."""
        is_job = is_inside()
        self._work.shutdown()
        if not is_job:
            self._pool.run_what_is_left()
        are_done = is_job or self._lanes_left.wait(self._settings.close_timeout)
        if self._own_executor:
            self._executor.shutdown(wait=are_done and not is_job)

    def end_waits(self) -> None:
        """Let our threads go when they have no callback to run: the executor waits for them as the program ends."""
        with suppress(ShutDown):  # they have gone
            self._pool.end_waits(self._lane)

    def let_go(self) -> None:
        """Let our threads go when they have run what there is; wait for nothing."""
        if self._own_executor:
            self._work.shutdown()
            self._executor.shutdown(wait=False)

    def check_invariants(self) -> None:
        """Raise AssertionError when the pool contradicts itself. For tests, with nothing under way."""
        self._pool.check_invariants()
