"""Options of a lane, or of one job of it: how long, by when, and how often."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from ..._kinds import check_function, check_kind, check_seconds
from .transient import is_transient


def at_least_one(name: str, value: int) -> None:
    """Refuse a value that is no integer above 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True, slots=True)
class Retry:
    """Run a failed job again, after a pause, where `when` says that the failure may pass.

    `attempts` counts the first one too. The pauses are `first_pause` seconds, then each `factor` times the one before,
    at most `max_pause`; each is shortened at random by up to a half, so that jobs which failed together do not come
    back together. The job keeps its place among the running ones meanwhile. `when` is called in the job's thread.
    A cancelled job and one whose session was stopped are never run again.
    """

    attempts: int = 3
    first_pause: float = 1.0
    factor: float = 2.0
    max_pause: float = 60.0
    when: Callable[[BaseException], bool] = is_transient

    def __post_init__(self) -> None:
        at_least_one("attempts", self.attempts)
        for name in ("first_pause", "factor", "max_pause"):
            check_kind(name, getattr(self, name), (int, float), "a number")
        check_function("when", self.when)
        if self.first_pause < 0 or self.max_pause < 0 or self.factor < 1:
            raise ValueError(
                f"pauses must not be negative and factor not less than 1, not first_pause={self.first_pause}, "
                f"max_pause={self.max_pause}, factor={self.factor}"
            )

    def pause(self, failed: int) -> float | None:
        """The longest pause after the `failed`-th failure, in seconds; None when that was the last attempt."""
        if failed >= self.attempts:
            return None
        try:
            return min(self.first_pause * self.factor ** (failed - 1), self.max_pause)
        except OverflowError:
            return self.max_pause

    def shortened(self, pause: float) -> float:
        """The pause to make instead of `pause`."""
        return pause * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is run. None: no bound, no other attempt.

    `timeout`: seconds that it may run, all attempts and the pauses between them included.
    `start_within`: seconds after the call of `submit` by which it must have begun: its deadline.
    """

    timeout: float | None = None
    start_within: float | None = None
    retry: Retry | None = None

    def __post_init__(self) -> None:
        check_kind("retry", self.retry, (Retry, type(None)), "a Retry, or None")
        for name, value in (("timeout", self.timeout), ("start_within", self.start_within)):
            check_seconds(name, value)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be more than 0 seconds, not {value}")


class OptionChanges(TypedDict, total=False):
    """Those of a `JobOptions` that are to be different."""

    timeout: float | None
    start_within: float | None
    retry: Retry | None
