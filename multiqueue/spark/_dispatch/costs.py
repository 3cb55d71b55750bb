"""Turns by cost: of the lanes of one priority, the one whose jobs have cost least by its weight starts the next job.

Promise     1. A job costs the seconds that executors ran its tasks, and those of its function outside of Spark's jobs.
               Where Spark does not say, it costs the seconds that it ran.
            2. Of two lanes of one priority, while both have jobs that could start: what those that have ended cost, by
               cost / weight, differs by at most 3 * n * C / weight of each. C is the greatest cost of a job, and n the
               most jobs of that lane that run at once.
            3. A lane that has no job to start, is paused, or has `max_in_flight` running saves nothing up; service in
            advance stays charged.
State       `_lock`, a leaf, guards each `Account`, `_lines`, `_last` and `_round`. Keys of lanes are the user's
            objects: `_accounts` is asked without it.
Bound       `served` counts ended jobs, and an estimate for each job that runs: what the lane's last one cost.
            1. A job of i starts: i's `served` is not above j's. What runs then ends by n * C of i beyond it, and j's
               estimates stand for n * C that did not end: together n * C of each.
            2. When both could start jobs first, i was below the line by n * C of estimates that were too high and n * C
               of what ran; and j, which joined, above it by as much as it was served in advance: 2 * n * C of each.
Source      Start-time fair queueing (Goyal, Vin, Cheng 1996): a lane that joins is raised to the *line*, where the job
            that began last stood.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Final

from ..._locks import Lock
from ...core import SubQueue
from .._backend.backend import Spent

LEAST: Final = 0.001  # seconds that a job costs at least: Spark counts in milliseconds


class Account:
    """What one lane was served, by cost / weight."""

    __slots__ = ("last", "priority", "round", "running", "served")

    def __init__(self) -> None:
        self.priority: int = 0
        self.served: float = 0.0
        self.running: deque[float] = deque()  # Invariant: the estimates in `served`, one for each job that runs
        self.last: float | None = None  # what the last job to end cost
        self.round: int = 0  # the last one in which it could start a job


class Costs:
    """The selection of a dispatcher's lanes, with `cost="seconds"`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._accounts: dict[Hashable, Account] = {}  # by the keys of lanes
        self._lines: dict[int, float] = {}  # of each priority: where the job that began last stood
        self._last = 0.0  # what the last job of any lane to end cost
        self._round = 0  # counts looks at who can start a job

    def select(self, ready: Sequence[SubQueue[Any]]) -> SubQueue[Any]:
        """Of the lanes of the lowest priority number the one that was served least, of several the first."""
        lanes = [(each, self._of(each), each.priority, each.in_flight) for each in ready]
        accounts = list(self._accounts.items())
        with self._lock:
            self._round += 1
            for _, account, priority, in_flight in lanes:
                while len(account.running) > in_flight:  # a job was cancelled when it was about to begin
                    account.served -= account.running.popleft()
                if account.round != self._round - 1:  # the lane joins
                    account.served = max(account.served, self._lines.get(priority, 0.0))
                account.round, account.priority = self._round, priority
            chosen = min((each for each in lanes if each[2] == lanes[0][2]), key=_served)[0]
            idle = [key for key, each in accounts if self._says_nothing_locked(each)]
        for key in idle:
            self._accounts.pop(key, None)
        return chosen

    def taken(self, subqueue: SubQueue[Any]) -> None:
        """A job of this lane is about to begin: charge its likely cost."""
        account, priority, weight = self._of(subqueue), subqueue.priority, subqueue.weight
        with self._lock:
            self._lines[priority] = max(account.served, self._lines.get(priority, 0.0))
            estimate = (self._last if account.last is None else account.last) / weight
            account.running.append(estimate)
            account.served += estimate

    def ended(self, subqueue: SubQueue[Any], cost: float) -> None:
        """A job of this lane that began has ended: charge its cost."""
        account, weight = self._of(subqueue), subqueue.weight
        with self._lock:
            estimate = account.running.popleft() if account.running else 0.0
            account.served += cost / weight - estimate
            account.last = self._last = cost

    def _of(self, subqueue: SubQueue[Any]) -> Account:
        return self._accounts.get(subqueue.key) or self._accounts.setdefault(subqueue.key, Account())

    def _says_nothing_locked(self, account: Account) -> bool:
        """True when a new account would be the same: the lane has no job, and would join at the line."""
        is_out = account.round != self._round and not account.running
        return is_out and account.served <= self._lines.get(account.priority, 0.0)


def _served(lane: tuple[SubQueue[Any], Account, int, int]) -> float:
    return lane[1].served


def cost_of(ran: float, spent: Spent | None) -> float:
    """What a job costs that has run for so many seconds."""
    if spent is None:
        return max(ran, LEAST)
    return max(spent.executor_seconds + max(ran - spent.job_seconds, 0.0), LEAST)
