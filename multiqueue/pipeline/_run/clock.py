"""Seconds at work: a clock for a pipeline that is interrupted and goes on.

It stands still between runs and until the first job could run, so waiting times and throughput of a run that
was killed and resumed are those of one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class WorkClock:
    """Call it for the seconds at work so far. Any thread may; `start` is called once, before jobs run."""

    def __init__(self, worked_s: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._worked_s = worked_s
        self._monotonic = monotonic
        self._since: float | None = None

    def start(self) -> None:
        if self._since is None:
            self._since = self._monotonic()

    def __call__(self) -> float:
        if self._since is None:
            return self._worked_s
        return self._worked_s + self._monotonic() - self._since
