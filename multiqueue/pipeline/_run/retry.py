"""The decision after a failed attempt: another one after a pause, or setting the item aside, or ending the run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from traceback import walk_tb

from .._base.errors import PipelineError


class Verdict(Enum):
    """The kind of a failure."""

    MAY_PASS = "may pass"
    """A lost executor, a full disk, a flaky source: another attempt can help."""
    FOR_GOOD = "for good"
    """Spark cannot plan the query, or the job breaks its contract: another attempt would end the same way."""
    SESSION_LOST = "session lost"
    """There is no Spark any more: it is not the item's fault."""
    OUTPUT_LOST = "output lost"
    """The output is another run's: nothing more can be put out."""


# Spark's classes are told by name: only the room `spark` imports pyspark, and classic and Connect each have their own.
# A job may have classes of these names.
_PACKAGES = frozenset({"multiqueue", "pyspark", "py4j"})
_FOR_GOOD = frozenset({"AnalysisException", "ParseException", "JobError"})
_SESSION_LOST = frozenset({"SessionLost", "SparkSessionStopped", "Py4JNetworkError"})


def verdict(error: BaseException) -> Verdict:
    """The kind of failure, by the classes of the exception."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in _PACKAGES}
    if names & _SESSION_LOST or (isinstance(error, ConnectionError) and _is_of_py4j(error)):
        return Verdict.SESSION_LOST
    if "StateMismatch" in names:
        return Verdict.OUTPUT_LOST
    if names & _FOR_GOOD:
        return Verdict.FOR_GOOD
    return Verdict.MAY_PASS


def _is_of_py4j(error: BaseException) -> bool:
    """Whether the connection that failed is the one to the JVM, and not one of the user's."""
    return any(frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in walk_tb(error.__traceback__))


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between the attempts of one item, in seconds: each `factor` times the one before, up to `max_s`."""

    attempts: int
    first_s: float
    factor: float
    max_s: float

    def pause_s(self, failed: int) -> float | None:
        """How long to wait after the `failed`-th failure, the first being 1; None when that was the last attempt."""
        if failed >= self.attempts:
            return None
        try:
            return min(self.first_s * self.factor ** (failed - 1), self.max_s)
        except OverflowError:
            return self.max_s


def describe(error: BaseException, limit: int = 2000) -> str:
    """The error in a few lines: its cause in the first one, the Java stack left out, at most `limit` characters."""
    from ...spark import cause_of  # here: everything else in this module works without pyspark

    # A sentence of ours says it all.
    told = f"{type(error).__name__}: {error}" if isinstance(error, PipelineError) else cause_of(error, whole=True)
    return told if len(told) <= limit else told[: limit - 1] + "…"
