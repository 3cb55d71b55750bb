"""How far a job is in Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an item's jobs as Spark has told it up to now: a snapshot.

    Totals grow while the item starts further Spark jobs and stages, and shrink by what turns out not to be run: stages
    that Spark skips, the rest of a job that failed. Once the function has returned, all that is counted is done. In a
    classic session `jobs` counts Spark jobs, on Spark Connect queries, which may be several jobs each; there a stage's
    failed tasks are not told.

    `share`, from 0 to 1, is of one item: the highest share of its known tasks that was seen done. It never falls, and
    is 1 once the function has returned and not before. It is no share of the item's time: of a query that has run its
    first stage, most of the known stages are done.
    """

    jobs: int = 0
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_active: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0
    share: float = 0.0

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.jobs + other.jobs,
            self.stages + other.stages,
            self.stages_done + other.stages_done,
            self.tasks + other.tasks,
            self.tasks_active + other.tasks_active,
            self.tasks_done + other.tasks_done,
            self.tasks_failed + other.tasks_failed,
            self._share_with(other),
        )

    def _share_with(self, other: Progress) -> float:
        """That of both together, by their tasks."""
        tasks = self.tasks + other.tasks
        if not tasks:
            return min(self.share, other.share)
        return (self.share * self.tasks + other.share * other.tasks) / tasks

    def going_on(self, highest: float) -> Progress:
        """This of an item whose function runs, or has failed; `highest` is the share that was seen."""
        share = self.tasks_done / self.tasks if self.tasks else 0.0
        return replace(self, share=max(highest, min(share, ALMOST)))

    def returned(self) -> Progress:
        """This of an item whose function has returned: the other tasks will not run, or are not reported yet."""
        return replace(self, stages_done=self.stages, tasks_active=0, tasks_done=self.tasks, share=1.0)


ALMOST = 0.99  # all tasks that are known are done, and the function goes on
NOTHING = Progress()


def total(parts: Iterable[Progress]) -> Progress:
    """All of them together."""
    return sum(parts, NOTHING)
