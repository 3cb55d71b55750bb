"""The dispatcher's requests to Spark: set up a job's thread, cancel a job, tell its progress, read a failure.

Two backends, for a classic session (Spark's JVM beside the driver) and for Spark Connect (a remote server). The rest of
the room does not know which it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from .progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

TAG_PREFIX = "multiqueue-"


@dataclass(frozen=True, slots=True)
class Marks:
    """The description of an item for Spark, which shows it in its UI.

    `tag` is the item's alone; `labels` are tags that it shares with others: its lane, its function.
    """

    tag: str
    description: str
    pool: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spent:
    """What Spark says that an item's jobs have taken, in seconds."""

    executor_seconds: float  # of all tasks together
    job_seconds: float  # from the begin of each job to its end


def label(kind: str, name: str) -> str:
    """A tag for all items of a kind. Spark takes no comma in a tag."""
    return f"{TAG_PREFIX}{kind}:{name.replace(',', ';')}"


class Backend(Protocol):
    """One kind of Spark session."""

    def session_for(self, pool: str | None) -> SparkSession:
        """The session that jobs of a lane with this scheduler pool are given."""

    def inheriting(self, fn: Callable[..., T]) -> Callable[..., T]:
        """`fn` with the calling thread's local properties and tags, for a call in another, fresh thread."""

    def enter(self, marks: Marks) -> None:
        """Mark this thread's Spark jobs as those of one item. Tags of an item that submitted it are dropped."""

    def leave(self, tag: str) -> Progress | None:
        """The item with this tag has run: forget it, and say how far it came if Spark cannot be asked later."""

    def progress(self, tag: str) -> Progress | None:
        """How far the Spark jobs with `tag` have come; None if there is no telling."""

    tells_spent: bool
    """Whether `spent` can answer."""

    def spent(self, tag: str) -> Spent | None:
        """What the Spark jobs with `tag`, which have ended, have taken; None if there is no telling. In the item's
        thread, after its end."""

    def job_ids(self, tag: str) -> list[int]:
        """The numbers of the Spark jobs with `tag`, as Spark's UI has them; none if there is no telling."""

    def ui_url(self) -> str | None:
        """Where Spark's UI is, if it has one that is known here."""

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs with `tag` that are active now. From any thread; may find none."""

    def close(self) -> None:
        """Let go of what this made for itself. No item runs any more. Again has no effect."""

    def is_cancellation(self, error: BaseException) -> bool:
        """Whether this is Spark's word for a cancelled job, its causes aside."""

    def is_stop(self, error: BaseException) -> bool:
        """Whether this is what a job gets whose session was stopped."""

    def is_gone(self, error: BaseException) -> bool:
        """Whether this says that no server answers for the session any more. Another attempt may find it again."""


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect, told without importing what may not be installed.

    Raises:
        TypeError: it is no session.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return True
    if not hasattr(spark, "sparkContext"):
        raise TypeError(f"spark must be a SparkSession, not {spark!r}")
    return False
