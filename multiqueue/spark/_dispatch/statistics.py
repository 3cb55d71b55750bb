"""Figures of a lane's jobs: how they ended, and how long they waited and ran.

Promise     A job that has ended is in exactly one of the counts; one that has begun is in `wait`; one whose function
            has left is in `run`.
State       `Tally._lock` guards its counts. A snapshot is of one moment for each lane's counts, but `waiting` and
            `running` are the lane's own and may be a moment older.
Lock order  `_lock` alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..._locks import RLock
from .._backend.errors import SparkDeadlineMissed, SparkJobTimeout

# Seconds, from what no job is shorter than to what hardly one is longer than; steps of 1, 2, 5.
BOUNDS = (*(round(digit * 10.0**power, 3) for power in range(-3, 4) for digit in (1, 2, 5)), 10_000.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in seconds. `counts[i]` are those up to `bounds[i]`, the last of `counts` those beyond all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    longest: float

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean; 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """A duration that this `share` of them (0 to 1) did not exceed, to the next bound; 0 if there are none.

        Raises:
            ValueError: `share` is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, not {share}")
        below, wanted = 0, share * self.count
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            if below >= wanted:
                return min(bound, self.longest)
        return self.longest


@dataclass(frozen=True, slots=True)
class SparkLaneStatistics:
    """One lane. Counts are jobs since the lane was made; durations are in seconds."""

    key: Hashable
    waiting: int
    running: int
    is_paused: bool
    succeeded: int
    failed: int  # with an exception other than the two below
    timed_out: int  # SparkJobTimeout
    missed: int  # SparkDeadlineMissed
    cancelled: int
    retries: int  # attempts after the first
    wait: Histogram  # from the call of `submit` to the function's first call
    run: Histogram  # from there to its end, retries and their pauses included
    cost: float = 0.0  # seconds that its jobs were charged, of a dispatcher with `cost="seconds"`


@dataclass(frozen=True, slots=True)
class SparkStatistics:
    """A dispatcher, and each of its lanes."""

    max_running: int
    waiting: int
    running: int
    lanes: tuple[SparkLaneStatistics, ...]


class Tally:
    """Counts the jobs of one lane. From any thread."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may cancel a job
        self._ends: Counter[str] = Counter()
        self._retries = 0
        self._cost = 0.0
        self._wait = _Durations()
        self._run = _Durations()

    def began(self, waited: float) -> None:
        with self._lock:
            self._wait.add(waited)

    def left(self, ran: float) -> None:
        with self._lock:
            self._run.add(ran)

    def charged(self, cost: float) -> None:
        with self._lock:
            self._cost += cost

    def retried(self) -> None:
        with self._lock:
            self._retries += 1

    def ended(self, future: Future[Any]) -> None:
        """Count a future that has ended. (Fit to be its callback.)"""
        end = _end_of(future)
        with self._lock:
            self._ends[end] += 1

    def snapshot(self, key: Hashable, waiting: int, running: int, is_paused: bool) -> SparkLaneStatistics:
        with self._lock:
            ends = dict(self._ends)
            return SparkLaneStatistics(
                key,
                waiting,
                running,
                is_paused,
                succeeded=ends.get("succeeded", 0),
                failed=ends.get("failed", 0),
                timed_out=ends.get("timed_out", 0),
                missed=ends.get("missed", 0),
                cancelled=ends.get("cancelled", 0),
                retries=self._retries,
                wait=self._wait.snapshot(),
                run=self._run.snapshot(),
                cost=self._cost,
            )


def _end_of(future: Future[Any]) -> str:
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        return "succeeded"
    if isinstance(error, SparkJobTimeout):
        return "timed_out"
    return "missed" if isinstance(error, SparkDeadlineMissed) else "failed"


class _Durations:
    """A histogram in the making. Its owner's lock guards it."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds
        self._longest = max(self._longest, seconds)

    def snapshot(self) -> Histogram:
        return Histogram(BOUNDS, tuple(self._counts), self._total, self._longest)
