"""The findings of a run of a suite: every sample, what follows from the samples, and how they are shown and kept.

`Report.as_json()` is the record. The page has a table for all workloads that are measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ._model import BEST_RIVAL, Goal, Metric, Rival, Summary, Workload, paired_ratio, summarize

SCHEMA = 2

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
        """The whole report as plain dictionaries and lists; docs/reference/benchmarks.md has the shape."""
        names = "suite", "date", "command", "rounds", "seconds", "machine", "versions", "commit"
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "workloads": [_workload_json(result) for result in self.workloads],
            "does_not_show": list(self.does_not_show),
        }


def _workload_json(result: WorkloadResult) -> dict[str, Any]:
    workload = result.workload

    def measured(rival: RivalResult, metric: Metric) -> dict[str, Any]:
        samples = [_rounded(sample) for sample in rival.samples[metric.name]]
        ratio = _summary_json(result.ratio(rival, metric))
        return {"samples": samples, **(_summary_json(rival.summary(metric)) or {}), "ratio": ratio}

    names = "name", "title", "note", "n", "n_unit", "parts", "threads", "baseline"
    return {
        **{name: getattr(workload, name) for name in names},
        "metrics": [{name: getattr(m, name) for name in ("name", "unit", "better")} for m in workload.metrics],
        "rivals": [
            {
                **{name: getattr(each.rival, name) for name in ("name", "role", "note")},
                **{name: getattr(each, name) for name in ("n", "status", "problem")},
                "metrics": {m.name: measured(each, m) for m in workload.metrics if each.status == "measured"},
            }
            for each in result.rivals
        ],
        "goals": [
            {
                **{name: getattr(each.goal, name) for name in ("rival", "metric", "at_least")},
                "against": each.against,
                "ratio": _summary_json(each.ratio),
                "is_reached": each.is_reached,
            }
            for each in result.goals()
        ],
    }


def _summary_json(summary: Summary | None) -> dict[str, float] | None:
    return summary and {name: _rounded(value) for name, value in summary._asdict().items()}


def _rounded(value: float) -> float:
    """Six digits: more than any spread supports, and enough to compute with."""
    return float(f"{value:.6g}")


Row = Sequence[str]


class Table(NamedTuple):
    """The names of the columns, rows of as many cells, and how many of the columns are text."""

    header: Row
    rows: Sequence[Row]
    texts: int

    def lines(self) -> Iterator[str]:
        """As Markdown, and aligned: for a page and for a terminal."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        rule = ["-" * width if place < self.texts else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
        for row in (self.header, rule, *self.rows):
            cells = zip(row, widths, strict=True)
            shown = [cell.ljust(w) if place < self.texts else cell.rjust(w) for place, (cell, w) in enumerate(cells)]
            yield f"| {' | '.join(shown)} |"


def facts(report: Report) -> list[tuple[str, str]]:
    """The facts of the run that a reader needs beside its figures, as names and values."""
    machine = report.machine
    load, cpus = machine["load_average"], machine["usable_cpus"]
    is_busy = isinstance(load, float) and isinstance(cpus, int) and load > cpus
    advice = ": a busy machine, trust the CPU figures before the wall clock's" if is_busy else ""
    return [
        ("command", report.command),
        ("date", f"{report.date}, took {report.seconds:.0f} s"),
        ("commit", report.commit),
        ("python", f"{machine['python']} ({machine['build']}), GIL switch {machine['switch_interval_ms']} ms"),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("machine", f"{machine['cpu']}, {cpus} of {machine['cpus']} CPUs, {machine['system']}"),
        ("load at the start", f"{load} on {cpus} CPUs{advice}"),
        ("rounds", f"{report.rounds}, rivals interleaved; medians; spread of quartiles; 95 % intervals of ratios"),
    ]


def as_page(report: Report, *, full: bool = False) -> str:
    """The report as Markdown: facts, goals, medians. `full`: with spreads and ratios, as a JSON has them."""
    lines = [f"# multiqueue bench {report.suite}, {report.date[:10]}, Python {report.machine['build']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts(report)]
    if goals := [_goal_row(result, goal) for result in report.workloads for goal in result.goals()]:
        header = "workload", "rival", "metric", "ratio to", "goal", "reached"
        lines += ["", "## Goals", "", *Table(header, goals, len(header)).lines()]
    lines += ["", "## Figures", ""]
    lines += [] if full else [f"Medians. The [JSON]({_stem(report)}.json) beside this page has spreads and ratios.", ""]
    alike: dict[tuple[Metric, ...], list[WorkloadResult]] = {}
    for result in report.workloads:
        alike.setdefault(result.workload.metrics, []).append(result)
    for metrics, results in alike.items():
        lines += [line for result in results for line in _remarks(result, full)]
        lines += ["", *_figures(metrics, results, full).lines(), ""]
    lines += ["## What these figures do not show", "", *(f"- {line}" for line in report.does_not_show)]
    return "\n".join(lines) + "\n"


def quantity(value: float) -> str:
    """Three significant digits: `1.92 M`, `683 k`, `52.1`, `0.0123`."""
    limit, unit = next((each for each in ((1e6, " M"), (1e3, " k")) if abs(value) >= each[0] * 0.9995), (1, ""))
    value /= limit  # 999.6 k would be written as 1000 k
    return f"{value:.0f}{unit}" if abs(value) >= 100 else f"{value:.3g}{unit}"


def _remarks(result: WorkloadResult, full: bool) -> Iterator[str]:
    workload = result.workload
    said = [workload.title, workload.note.rstrip(".")]
    if full:
        parts = f" in each of {workload.parts} parts" if workload.parts > 1 else ""
        said.append(f"n = {workload.n:,} {workload.n_unit}{parts}, threads: {workload.threads}")
        said += [f"ratios to {workload.baseline}"] if any(metric.has_ratio for metric in workload.metrics) else []
    yield f"- `{workload.name}`: {'; '.join(filter(None, said))}"
    for rival in result.rivals if full else ():
        fewer = f"n = {rival.n:,}" if rival.n != workload.n else ""
        if about := "; ".join(filter(None, (rival.problem, rival.rival.note, fewer))):
            yield f"  - {rival.rival.name}: {about}"


def _figures(metrics: Sequence[Metric], results: Sequence[WorkloadResult], full: bool) -> Table:
    """All workloads that are measured by these metrics."""
    header = ["workload", "rival"]
    for metric in metrics:
        header += _columns(metric, [f"{metric.name}, {metric.unit}", "spread", "ratio"], full)
    rows = [
        ["" if number else result.workload.name, rival.rival.name, *cells(result, rival, full)]
        for result in results
        for number, rival in enumerate(result.rivals)
    ]
    return Table(header, rows, 2)


def cells(result: WorkloadResult, rival: RivalResult, full: bool) -> list[str]:
    """A rival's figures in a workload, or for each of them its status."""
    found: list[str] = []
    for metric in result.workload.metrics:
        its = [rival.status, "", ""]
        if rival.status == "measured":
            summary = rival.summary(metric)
            its = [quantity(summary.median), f"{summary.spread:.0%}", _ratio(result.ratio(rival, metric))]
        found += _columns(metric, its, full)
    return found


def _columns(metric: Metric, three: list[str], full: bool) -> list[str]:
    return three[: (3 if metric.has_ratio else 2) if full else 1]


def _goal_row(result: WorkloadResult, judged: GoalResult) -> Row:
    goal = judged.goal
    verdict = "not measured" if judged.ratio is None else "yes" if judged.is_reached else "NO"
    reached = f"{_ratio(judged.ratio)} {verdict}"
    return (result.workload.name, goal.rival, goal.metric, judged.against, f"{goal.at_least:.2f}", reached)


def _ratio(summary: Summary | None) -> str:
    return "" if summary is None else f"{summary.median:.2f} ({summary.low:.2f}-{summary.high:.2f})"


def default_directory() -> Path | None:
    """docs/measurements of the checkout this package runs from; `None` where it is installed without one."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "docs").is_dir()
    return root / "docs" / "measurements" if is_checkout else None


def _stem(report: Report) -> str:
    return f"{report.date[:10]}-{report.suite}-{report.machine['build']}"


def record(report: Report, directory: Path) -> tuple[Path, Path]:
    """Write `<date>-<suite>-<python>.md` and `.json` into the directory, over those of the same day; return both."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = _stem(report)
    page, data = directory / f"{stem}.md", directory / f"{stem}.json"
    page.write_text(as_page(report), encoding="utf-8")
    data.write_text(json.dumps(report.as_json()) + "\n", encoding="utf-8")
    return page, data
