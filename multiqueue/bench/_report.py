"""The findings of a run of a suite: every sample, and what follows from the samples.

`Report.as_json()` is the record; the table and the Markdown page are drawn from the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ._model import BEST_RIVAL, Goal, Metric, Rival, Workload
from ._statistics import Summary, paired_ratio, summarize

SCHEMA = 1

Status = Literal["measured", "missing", "lost", "failed"]
"""What became of a rival: it has figures, is not installed, lost items, or failed (for ours, by losing items too)."""


@dataclass(frozen=True, slots=True)
class RivalResult:
    """One rival's samples by metric, or why there are none."""

    rival: Rival
    n: int
    status: Status
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    problem: str = ""

    def summary(self, metric: Metric) -> Summary:
        """The median and spread of one metric of a rival that was measured."""
        return summarize(self.samples[metric.name])


@dataclass(frozen=True, slots=True)
class GoalResult:
    """A goal, what it was held against, and the ratio reached (`None`: could not be measured)."""

    goal: Goal
    against: str
    ratio: Summary | None

    @property
    def is_reached(self) -> bool:
        return self.ratio is not None and self.ratio.median >= self.goal.at_least


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """All rivals' results in one workload."""

    workload: Workload
    rivals: tuple[RivalResult, ...]

    @property
    def failures(self) -> tuple[RivalResult, ...]:
        return tuple(result for result in self.rivals if result.status == "failed")

    def named(self, name: str) -> RivalResult | None:
        """The result of the rival with this name, if it was measured."""
        return next((r for r in self.rivals if r.rival.name == name and r.status == "measured"), None)

    def ratio(self, result: RivalResult, metric: Metric, against: RivalResult | None = None) -> Summary | None:
        """How many times as good as `against` (the baseline) a rival was; `None` where that says nothing."""
        other = against or self.named(self.workload.baseline)
        if not metric.has_ratio or other is None or result.status != "measured":
            return None
        return paired_ratio(result.samples[metric.name], other.samples[metric.name], metric.better)

    def best_rival(self, metric: Metric) -> RivalResult | None:
        """The best of those that do the same job and are not ours."""
        others = [r for r in self.rivals if r.rival.role == "rival" and r.status == "measured"]
        sign = 1 if metric.better == "more" else -1
        return max(others, key=lambda r: sign * r.summary(metric).median, default=None)

    def goals(self) -> list[GoalResult]:
        """Each goal of the workload with what was reached."""
        return [self._judge(goal) for goal in self.workload.goals]

    def _judge(self, goal: Goal) -> GoalResult:
        metric = next(m for m in self.workload.metrics if m.name == goal.metric)
        other = self.best_rival(metric) if goal.against == BEST_RIVAL else self.named(goal.against)
        mine = self.named(goal.rival)
        if mine is None or other is None:
            return GoalResult(goal, other.rival.name if other else goal.against, None)
        return GoalResult(goal, other.rival.name, self.ratio(mine, metric, other))


@dataclass(frozen=True, slots=True)
class Report:
    """One run of a suite: when, where, with what command, and the results."""

    suite: str
    date: str
    command: str
    rounds: int
    seconds: float
    machine: Mapping[str, str | int | float | None]
    versions: Mapping[str, str]
    commit: str
    workloads: tuple[WorkloadResult, ...]
    does_not_show: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[tuple[WorkloadResult, RivalResult], ...]:
        """Whoever raised or got stuck, and ours that lost items, with the workload it did so in."""
        return tuple((result, failed) for result in self.workloads for failed in result.failures)

    def as_json(self) -> dict[str, Any]:
        """The whole report as plain dictionaries and lists; docs/guides/benchmarks.md has the shape."""
        return {
            "schema": SCHEMA,
            "suite": self.suite,
            "date": self.date,
            "command": self.command,
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "commit": self.commit,
            "workloads": [_workload_json(result) for result in self.workloads],
            "does_not_show": list(self.does_not_show),
        }


def _workload_json(result: WorkloadResult) -> dict[str, Any]:
    workload = result.workload
    return {
        "name": workload.name,
        "title": workload.title,
        "note": workload.note,
        "n": workload.n,
        "n_unit": workload.n_unit,
        "threads": workload.threads,
        "baseline": workload.baseline,
        "metrics": [{"name": m.name, "unit": m.unit, "better": m.better} for m in workload.metrics],
        "rivals": [_rival_json(result, rival) for rival in result.rivals],
        "goals": [_goal_json(goal) for goal in result.goals()],
    }


def _rival_json(result: WorkloadResult, rival: RivalResult) -> dict[str, Any]:
    measured = rival.status == "measured"
    return {
        "name": rival.rival.name,
        "role": rival.rival.role,
        "note": rival.rival.note,
        "n": rival.n,
        "status": rival.status,
        "problem": rival.problem,
        "metrics": {m.name: _metric_json(result, rival, m) for m in result.workload.metrics} if measured else {},
    }


def _metric_json(result: WorkloadResult, rival: RivalResult, metric: Metric) -> dict[str, Any]:
    return {
        "samples": [_rounded(sample) for sample in rival.samples[metric.name]],
        **_summary_json(rival.summary(metric)),
        "ratio": _optional_json(result.ratio(rival, metric)),
    }


def _goal_json(result: GoalResult) -> dict[str, Any]:
    return {
        "rival": result.goal.rival,
        "metric": result.goal.metric,
        "at_least": result.goal.at_least,
        "against": result.against,
        "ratio": _optional_json(result.ratio),
        "is_reached": result.is_reached,
    }


def _optional_json(summary: Summary | None) -> dict[str, float] | None:
    return None if summary is None else _summary_json(summary)


def _summary_json(summary: Summary) -> dict[str, float]:
    return {name: _rounded(value) for name, value in summary._asdict().items()}


def _rounded(value: float) -> float:
    """Six digits: more than any spread supports, and enough to compute with."""
    return float(f"{value:.6g}")
