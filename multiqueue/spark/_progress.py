"""How far a job has come in Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What Spark has told of an item's jobs up to now: a snapshot.

    Totals grow while the item starts further Spark jobs and stages, so a share of them is not a share of the item's
    time. In a classic session `jobs` counts Spark jobs, on Spark Connect queries, which may be several jobs each;
    there a stage's failed tasks are not told.
    """

    jobs: int = 0
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_active: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.jobs + other.jobs,
            self.stages + other.stages,
            self.stages_done + other.stages_done,
            self.tasks + other.tasks,
            self.tasks_active + other.tasks_active,
            self.tasks_done + other.tasks_done,
            self.tasks_failed + other.tasks_failed,
        )

    @property
    def share(self) -> float:
        """Tasks done of those known, from 0 to 1; 0 as long as none is known."""
        return self.tasks_done / self.tasks if self.tasks else 0.0


NOTHING = Progress()


def total(parts: Iterable[Progress]) -> Progress:
    """All of them together."""
    return sum(parts, NOTHING)
