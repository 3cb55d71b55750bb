"""Errors of the test tools: a schedule that fails, and the ways in which a test cannot be run."""

from __future__ import annotations

from collections.abc import Sequence


class TestToolError(Exception):
    """The root of the errors that say the test, not the code under test, has to change."""

    __test__ = False  # pytest: not a test class


class NotDeterministic(TestToolError):
    """The same choices led to different steps. Keep clocks, random numbers and I/O out of the scenario."""

    @classmethod
    def at_step(cls, step: int, wanted: str, offered: Sequence[str]) -> NotDeterministic:
        """The error for a schedule that could not be followed at this step."""
        return cls(
            f"step {step} of the schedule was {wanted!r}, but this time only {list(offered)} could go on; "
            "the scenario must do the same each time: keep real clocks, random numbers, I/O and state that "
            "outlives one run out of it"
        )


class TooManySchedules(TestToolError):
    """The exploration did not reach its end. Make the scenario smaller or bound the preemptions."""


class StillBlocked(TestToolError):
    """A thread did not arrive where the test waited for it."""


class Deadlock(AssertionError):
    """No thread can take another step. The message names what each of them waits for."""


class Livelock(AssertionError):
    """A schedule did not end within the allowed number of steps."""


class ScheduleFailed(AssertionError):
    """The scenario fails under one schedule. `schedule` replays it; `__cause__` is the error."""

    def __init__(self, message: str, schedule: Sequence[str]) -> None:
        super().__init__(message)
        self.schedule: list[str] = list(schedule)
