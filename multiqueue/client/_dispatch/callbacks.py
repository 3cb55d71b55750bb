"""The runners of one connection's callbacks: its lanes in the work pool, and the executor beneath.

Waiting     `_lanes_left` is set by the last lane that leaves; `leave` waits for it, `close_timeout` seconds at most.
Membership  The connection's own lane is the first to come, and leaves when `end` has put its last job.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Any

from ...core import MultiQueueExecutor
from ...errors import ShutDown
from .._base.errors import CallbackFailure
from .._base.settings import Settings
from .work_pool import Lane, Work, WorkPool, is_inside

_log = logging.getLogger("multiqueue.client")

LINGER = 5.0  # seconds that a thread of our own pool waits for the next callback before it goes back to its executor
TURNS = 16  # jobs of a channel before an executor of the user's has its thread back


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
        self._lanes_left = threading.Event()
        self._lane = self.add_lane(self)

    def add_lane(self, owner: Hashable) -> Lane:
        """A lane for a channel. Its last job calls `remove_lane`."""
        return self._work.add_subqueue(owner, max_in_flight=1)

    def remove_lane(self, owner: Hashable) -> None:
        self._work.remove_subqueue(owner)
        if not self._work.subqueues:
            self._lanes_left.set()

    def announce(self) -> None:
        self._pool.announce()

    def dispatch(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Have a callback run outside of any channel's order; here and now when the pool has ended."""
        try:
            self._lane.put((lambda given: self._run(callback, given), argument))
        except ShutDown:
            self._run(callback, argument)
        else:
            self.announce()

    def _run(self, callback: Callable[[Any], object], argument: Any) -> None:
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  # goes to the handler
            self.handle_failure(CallbackFailure(error, callback, argument, None))

    def handle_failure(self, failure: CallbackFailure) -> None:
        try:
            self._settings.on_callback_error(failure)
        except Exception as error:  # noqa: BLE001  # the last resort
            _log.error("the handler of callback errors failed itself, for: %s", failure, exc_info=error)

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

    def let_go(self) -> None:
        """Let our threads go when they have run what there is; wait for nothing."""
        if self._own_executor:
            self._work.shutdown()
            self._executor.shutdown(wait=False)

    def check_invariants(self) -> None:
        """Raise AssertionError when the pool contradicts itself. For tests, with nothing under way."""
        self._pool.check_invariants()
