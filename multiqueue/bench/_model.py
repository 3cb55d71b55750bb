"""The parts of a benchmark: a workload, the rivals that run it, and one attempt of one rival.

Nothing here knows what is measured. A suite (`core`, `broker`, ...) is a list of `Workload`s; the harness
runs them and the report describes them by these types alone. docs/guides/benchmarks.md shows how to write
one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Figures = Mapping[str, float]
"""The measurements of one attempt: the name of a metric -> its value in the metric's unit."""


class BenchError(Exception):
    """A benchmark that cannot give a figure. The message says which and why."""


class ItemsLost(BenchError):
    """A rival did not hand out exactly what was put in, or not in order. It gets no figure."""


class Stuck(BenchError):
    """A rival's threads did not finish in time. It gets no figure."""


class Attempt(Protocol):
    """One run of one rival: made ready by `Rival.open` untimed, run, checked, closed.

    `run` times itself, with `Crew.race` or with the samples it takes, because only it knows where the work
    begins. The harness calls the three in this order and `close` always, also after a failure.
    """

    def run(self) -> Figures:
        """Do the work and return what was measured, one value for each metric of the workload."""

    def check(self) -> None:
        """Raise `ItemsLost` unless all work was really done. Not timed."""

    def close(self) -> None:
        """End what `open` started. Not timed."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a workload. A ratio always reads "so many times as good as the baseline"."""

    name: str
    unit: str
    better: Literal["more", "less"] = "more"
    has_ratio: bool = True  # False where the baseline is near zero and a ratio would say nothing


RATE = Metric("rate", "items/s")
CPU_RATE = Metric("cpu_rate", "items/CPU s")


@dataclass(frozen=True, slots=True)
class Rival:
    """One contestant: how to make it ready for `n` units of work, and where it stands in the report.

    `open(n)` builds everything, threads included, so that only work is left to `Attempt.run`. `requires`
    names the module a rival needs; where it is not installed the report says so. `share` shrinks the work of
    a rival so slow that it would take the machine for itself; the report tells its own n.

    A "yardstick" is shown for scale and is never "the best rival": it does not do the same job.
    """

    name: str
    open: Callable[[int], Attempt]
    role: Literal["ours", "rival", "yardstick"] = "rival"
    requires: str | None = None
    share: float = 1.0
    note: str = ""


BEST_RIVAL = "best rival"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: `rival` at least `at_least` times as good as `against`.

    `against` names a rival of the workload, or is `BEST_RIVAL`: whichever does the same job best and is not
    ours.
    """

    metric: str
    at_least: float
    rival: str = "multiqueue"
    against: str = "queue.Queue"


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to do, `n` units of it, and who does it. The first metric is the headline."""

    name: str
    title: str
    n: int
    rivals: tuple[Rival, ...]
    baseline: str
    metrics: tuple[Metric, ...] = (RATE, CPU_RATE)
    n_unit: str = "items"
    threads: str = "1"
    goals: tuple[Goal, ...] = ()
    divisor: int = 1  # n of every rival is a multiple of this, so that threads get equal parts
    note: str = ""

    def __post_init__(self) -> None:
        names = [rival.name for rival in self.rivals]
        if len(set(names)) != len(names):
            raise ValueError(f"workload {self.name!r} names a rival twice: {names}")
        if self.baseline not in names:
            raise ValueError(f"workload {self.name!r} has no rival {self.baseline!r} to be its baseline: {names}")
        for goal in self.goals:
            if goal.rival not in names or goal.against not in (*names, BEST_RIVAL):
                raise ValueError(f"workload {self.name!r} has a goal for rivals it does not have: {goal}")

    def n_for(self, rival: Rival) -> int:
        """How much of the work this rival does: its share of n, rounded to the divisor, never nothing."""
        return self._rounded(self.n * rival.share)

    def scaled(self, factor: float) -> Workload:
        """The same workload with `factor` times the work."""
        return dataclasses.replace(self, n=self._rounded(self.n * factor))

    def _rounded(self, n: float) -> int:
        return max(self.divisor, int(n) - int(n) % self.divisor)


@dataclass(frozen=True, slots=True)
class Suite:
    """The workloads of one part of the house, and what their figures together do not show."""

    name: str
    workloads: tuple[Workload, ...]
    does_not_show: tuple[str, ...] = ()

    def only(self, names: Sequence[str]) -> Suite:
        """The suite with just the workloads of these names, in the suite's order.

        Raises: `ValueError` for a name that no workload has.
        """
        known = [workload.name for workload in self.workloads]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"suite {self.name!r} has no workload {unknown[0]!r}, but {', '.join(known)}")
        return dataclasses.replace(self, workloads=tuple(w for w in self.workloads if w.name in names))

    def scaled(self, factor: float) -> Suite:
        """The same suite with `factor` times the work."""
        return dataclasses.replace(self, workloads=tuple(w.scaled(factor) for w in self.workloads))
