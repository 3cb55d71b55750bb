"""Errors that this room raises in its own name. A job's own exception arrives unchanged, not as one of these."""

from __future__ import annotations

from collections.abc import Hashable

from ...errors import MultiQueueError


class SparkDispatchError(MultiQueueError):
    """The root of the dispatcher's errors. When it stands for a failure of Spark, that is its `__cause__`."""


class SparkJobCancelled(SparkDispatchError):
    """The Spark job was cancelled, not by this dispatcher: by another tag or group, the UI, Ctrl-C.

    A job cancelled through its future ends as `concurrent.futures.CancelledError` instead. Submitting again can help.
    """


class SparkJobTimeout(SparkDispatchError, TimeoutError):
    """The job ran longer than its `timeout` and was cancelled in Spark. Its last error is the `__cause__`."""


class SparkDeadlineMissed(SparkDispatchError, TimeoutError):
    """The job had not begun within its `start_within`; its function was never called. Submitting again can help."""


class SparkSessionStopped(SparkDispatchError):
    """The Spark session or context was stopped during the job, or is gone. Make a new session and a new dispatcher."""


class SparkEnvironmentError(SparkDispatchError):
    """Spark is set up so that the dispatcher cannot keep its promises. The message says what to change."""


class FanInError(SparkDispatchError):
    """A source of a fan-in failed; its error is the `__cause__`. What the source gave before has been handed out."""

    def __init__(self, name: Hashable, message: str) -> None:
        super().__init__(message)
        self.name = name


class TaskEventsError(SparkDispatchError):
    """Not all that the tasks sent can be handed out; the message says why. A failed job's error is the `__cause__`."""


STOPPED_BEFORE = "the Spark session was stopped, so nothing can be submitted; make a new session and a new dispatcher"
