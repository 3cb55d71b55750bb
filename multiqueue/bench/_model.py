"""The parts of a benchmark: a workload, the rivals that run it, one attempt of one rival, and what samples say.

Nothing here knows what is measured. docs/reference/benchmarks.md shows how to write a workload. A ratio is taken round
by round, or part by part, and then its median: within a round all rivals met the same noise, so most of it cancels.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Figures = Mapping[str, float]
"""The measurements of one attempt: the name of a metric -> its value in the metric's unit."""


class BenchError(Exception):
    """A benchmark that cannot give a figure. The message says which and why."""


class ItemsLost(BenchError):
    """A rival did not hand out exactly what was put in, or not in order. It gets no figure."""


class Stuck(BenchError):
    """A rival's threads did not finish in time. It gets no figure."""


class Attempt(Protocol):
    """One run of one rival: made ready by `Rival.open`, run, checked, and always closed.

    `run` times itself, because only it knows where the work begins, and returns a value for each of its metrics; where
    the workload has parts it is called for each.
    `check` raises `ItemsLost` unless all work was really done; `close` ends what `open` started.
    """

    def run(self) -> Figures: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


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

    `open(n)` builds everything, threads included. `requires` names the module a rival needs. `share` shrinks the work
    of a rival so slow that it would take the machine for itself; the report tells its own n. A "yardstick" is shown
    for scale and is never "the best rival": it does not do the same job.
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
    """A goal: `rival` at least `at_least` times as good as `against`, a rival or the best of them."""

    metric: str
    at_least: float
    rival: str = "multiqueue"
    against: str = "queue.Queue"


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to do, `n` units of it, and who does it. The first metric is the headline, the first rival the baseline
    unless `baseline` names another. With `parts` the rivals are there together and take turns, `n` units each time: for
    a machine whose speed changes within a round."""

    name: str
    title: str
    n: int
    rivals: tuple[Rival, ...]
    baseline: str = ""
    metrics: tuple[Metric, ...] = (RATE, CPU_RATE)
    n_unit: str = "items"
    threads: str = "1"
    goals: tuple[Goal, ...] = ()
    divisor: int = 1  # n of every rival is a multiple of this, so that threads get equal parts
    note: str = ""
    parts: int = 1

    def __post_init__(self) -> None:
        names = [rival.name for rival in self.rivals]
        if len(set(names)) != len(names):
            raise ValueError(f"workload {self.name!r} names a rival twice: {names}")
        object.__setattr__(self, "baseline", self.baseline or names[0])
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
        """The suite with just the workloads of these names, in its order. Raises ValueError: there is none."""
        known = [workload.name for workload in self.workloads]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"suite {self.name!r} has no workload {unknown[0]!r}, but {', '.join(known)}")
        return dataclasses.replace(self, workloads=tuple(w for w in self.workloads if w.name in names))

    def scaled(self, factor: float) -> Suite:
        """The same suite with `factor` times the work."""
        return dataclasses.replace(self, workloads=tuple(w.scaled(factor) for w in self.workloads))


class Summary(NamedTuple):
    """The median of some samples, and the quartiles around it; of ratios, its 95 % confidence interval."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The distance between the quartiles as a share of the median; 0 when the median is 0."""
        return (self.high - self.low) / self.median if self.median else 0.0


def summarize(samples: Sequence[float]) -> Summary:
    """The median and quartiles of at least one sample."""
    if not samples:
        raise ValueError("no samples to summarize")
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, low, high)


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of the samples do not exceed; 0.5 is a median."""
    if not samples:
        raise ValueError("no samples to take a percentile of")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def paired_ratio(
    samples: Sequence[float], baseline: Sequence[float], better: Literal["more", "less"] = "more"
) -> Summary | None:
    """How many times as good as the baseline, round by round: above 1 is better, whatever the metric.

    The median and, by the sign test, its 95 % confidence interval: with fewer than six rounds that of all ratios.
    `None` where some round has a zero to divide by, or the two were not measured in the same rounds.
    """
    if len(samples) != len(baseline) or not samples:
        return None
    above, below = (samples, baseline) if better == "more" else (baseline, samples)
    if not all(below):
        return None
    ratios = sorted(one / other for one, other in zip(above, below, strict=True))
    n, outside, chance = len(ratios), 0, 2.0 ** -len(ratios)  # that the median is below the first
    while chance <= 0.025:
        outside += 1
        chance += math.comb(n, outside) / 2**n
    outside = max(0, outside - 1)
    return Summary(statistics.median(ratios), ratios[outside], ratios[n - 1 - outside])
