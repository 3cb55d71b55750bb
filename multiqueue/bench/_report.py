"""The findings of a run of a suite: every sample, what follows from the samples, and how they are shown and kept.

`Report.as_json()` is the record. The text has a table for each workload, the Markdown page one of medians for all that
are measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ._model import BEST_RIVAL, Goal, Metric, Rival, Summary, Workload, paired_ratio, summarize

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
        """The whole report as plain dictionaries and lists; docs/reference/benchmarks.md has the shape."""
        names = "suite", "date", "command", "rounds"
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "seconds": round(self.seconds, 1),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "commit": self.commit,
            "workloads": [_workload_json(result) for result in self.workloads],
            "does_not_show": list(self.does_not_show),
        }


def _workload_json(result: WorkloadResult) -> dict[str, Any]:
    names = "name", "title", "note", "n", "n_unit", "threads", "baseline"
    return {
        **{name: getattr(result.workload, name) for name in names},
        "metrics": [{"name": m.name, "unit": m.unit, "better": m.better} for m in result.workload.metrics],
        "rivals": [
            {
                "name": rival.rival.name,
                "role": rival.rival.role,
                "note": rival.rival.note,
                "n": rival.n,
                "status": rival.status,
                "problem": rival.problem,
                "metrics": {
                    m.name: {
                        "samples": [_rounded(sample) for sample in rival.samples[m.name]],
                        **(_summary_json(rival.summary(m)) or {}),
                        "ratio": _summary_json(result.ratio(rival, m)),
                    }
                    for m in result.workload.metrics
                    if rival.status == "measured"
                },
            }
            for rival in result.rivals
        ],
        "goals": [
            {
                "rival": judged.goal.rival,
                "metric": judged.goal.metric,
                "at_least": judged.goal.at_least,
                "against": judged.against,
                "ratio": _summary_json(judged.ratio),
                "is_reached": judged.is_reached,
            }
            for judged in result.goals()
        ],
    }


def _summary_json(summary: Summary | None) -> dict[str, float] | None:
    return summary and {name: _rounded(value) for name, value in summary._asdict().items()}


def _rounded(value: float) -> float:
    """Six digits: more than any spread supports, and enough to compute with."""
    return float(f"{value:.6g}")


Row = Sequence[str]


class Table(NamedTuple):
    """A title, the names of the columns, rows of as many cells, and remarks. The first column is text."""

    title: str
    header: Row
    rows: Sequence[Row]
    remarks: Sequence[str] = ()


def tables(report: Report) -> list[Table]:
    """A table for each workload, and one of the goals if any workload has some."""
    return [*(_workload_table(result) for result in report.workloads), *_goals_table(report)]


def _goals_table(report: Report) -> list[Table]:
    goals = [_goal_row(result, goal) for result in report.workloads for goal in result.goals()]
    return [Table("Goals", ("workload", "rival", "metric", "ratio to", "goal", "reached"), goals)] if goals else []


def _medians(report: Report) -> list[Table]:
    """A table for each list of metrics, with all workloads that are measured by it."""
    alike: dict[tuple[str, ...], list[WorkloadResult]] = {}
    for result in report.workloads:
        alike.setdefault(tuple(f"{m.name}, {m.unit}" for m in result.workload.metrics), []).append(result)
    found = []
    for metrics, results in alike.items():
        rows = [
            ["" if number else result.workload.name, rival.rival.name, *_median_cells(result, rival)]
            for result in results
            for number, rival in enumerate(result.rivals)
        ]
        remarks = [
            f"- `{result.workload.name}`: {'; '.join(filter(None, (result.workload.title, result.workload.note)))}"
            for result in results
        ]
        found.append(Table("", ("workload", "rival", *metrics), rows, remarks))
    return found


def _median_cells(result: WorkloadResult, rival: RivalResult) -> list[str]:
    metrics = result.workload.metrics
    if rival.status == "measured":
        return [quantity(rival.summary(metric).median) for metric in metrics]
    return [rival.status, *[""] * (len(metrics) - 1)]


def facts(report: Report) -> list[tuple[str, str]]:
    """The facts of the run that a reader needs beside its figures, as names and values."""
    machine = report.machine
    load, cpus = machine["load_average"], machine["usable_cpus"]
    return [
        ("command", report.command),
        ("date", f"{report.date}, took {report.seconds:.0f} s"),
        ("commit", report.commit),
        (
            "python",
            f"{machine['python']} ({machine['build']}), GIL switch {machine['switch_interval_ms']} ms",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("machine", f"{machine['cpu']}, {cpus} of {machine['cpus']} CPUs, {machine['system']}"),
        ("load at the start", f"{load} on {cpus} CPUs{_advice(load, cpus)}"),
        (
            "rounds",
            f"{report.rounds}, rivals interleaved; medians, quartiles in brackets or as a share of the median",
        ),
    ]


def as_text(report: Report) -> str:
    """The whole report for a pipe or a log."""
    blocks = ["\n".join(f"{name}: {value}" for name, value in facts(report))]
    blocks += ["\n".join((table.title, *_aligned(table), *table.remarks)) for table in tables(report)]
    blocks.append("\n".join(("What these figures do not show:", *(f"- {line}" for line in report.does_not_show))))
    return "\n\n".join(blocks)


def as_markdown(report: Report) -> str:
    """The report as a page for docs/measurements: facts, goals, medians. Spreads are in the JSON beside it."""
    lines = [f"# multiqueue bench {report.suite}, {report.date[:10]}, Python {report.machine['build']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts(report)]
    for table in _goals_table(report):
        lines += ["", f"## {table.title}", "", *_page_table(table, figures_from=len(table.header))]
    data = f"{_stem(report)}.json"
    lines += ["", "## Figures", "", f"Medians. The [JSON]({data}) beside this page has spreads and ratios."]
    for table in _medians(report):
        lines += ["", *table.remarks, "", *_page_table(table, figures_from=2)]
    lines += ["", "## What these figures do not show", "", *(f"- {line}" for line in report.does_not_show)]
    return "\n".join(lines) + "\n"


def quantity(value: float) -> str:
    """Three significant digits: `1.92 M`, `683 k`, `52.1`, `0.0123`."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= limit * 0.9995:  # 999.6 k would be written as 1000 k
            return f"{_digits(value / limit)}{unit}"
    return _digits(value)


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _advice(load: object, cpus: object) -> str:
    busy = isinstance(load, float) and isinstance(cpus, int) and load > cpus
    return ": a busy machine, trust the CPU figures before the wall clock's" if busy else ""


def _workload_table(result: WorkloadResult) -> Table:
    workload = result.workload
    header = ["rival"]
    for metric in workload.metrics:
        header += [f"{metric.name}, {metric.unit}", "spread", *(["ratio"] if metric.has_ratio else [])]
    rows = [[rival.rival.name, *_cells(result, rival)] for rival in result.rivals]
    ratio = f"ratio to {workload.baseline}; " if any(metric.has_ratio for metric in workload.metrics) else ""
    remarks = [f"{ratio}n = {workload.n:,} {workload.n_unit}, threads: {workload.threads}. {workload.note}".rstrip()]
    for rival in result.rivals:
        fewer = f"n = {rival.n:,}" if rival.n != workload.n else ""
        if about := "; ".join(filter(None, (rival.problem, rival.rival.note, fewer))):
            remarks.append(f"- {rival.rival.name}: {about}")
    return Table(f"{workload.name}: {workload.title}", header, rows, remarks)


def _cells(result: WorkloadResult, rival: RivalResult) -> list[str]:
    cells: list[str] = []
    for metric in result.workload.metrics:
        if rival.status == "measured":
            summary = rival.summary(metric)
            cells += [quantity(summary.median), f"{summary.spread:.0%}"]
        else:
            cells += [rival.status, ""]
        cells += [_ratio(result.ratio(rival, metric))] if metric.has_ratio else []
    return cells


def _goal_row(result: WorkloadResult, judged: GoalResult) -> Row:
    goal = judged.goal
    verdict = "not measured" if judged.ratio is None else "yes" if judged.is_reached else "NO"
    reached = f"{_ratio(judged.ratio)} {verdict}"
    return (result.workload.name, goal.rival, goal.metric, judged.against, f"{goal.at_least:.2f}", reached)


def _ratio(summary: Summary | None) -> str:
    return "" if summary is None else f"{summary.median:.2f} ({summary.low:.2f}-{summary.high:.2f})"


def _aligned(table: Table) -> list[str]:
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in (table.header, *table.rows)
    ]


def _page_table(table: Table, *, figures_from: int) -> list[str]:
    rule = ["---" if column < figures_from else "---:" for column in range(len(table.header))]
    return [_pipes(table.header), _pipes(rule), *map(_pipes, table.rows)]


def _pipes(cells: Row) -> str:
    return "| " + " | ".join(cells) + " |"


def default_directory() -> Path | None:
    """docs/measurements of the checkout this package runs from; `None` where it is installed without one."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "docs").is_dir()
    return root / "docs" / "measurements" if is_checkout else None


def _stem(report: Report) -> str:
    return f"{report.date[:10]}-{report.suite}-{report.machine['build']}"


def record(report: Report, directory: Path) -> tuple[Path, Path]:
    """Write `<date>-<suite>-<python>.md` and `.json` into the directory, over those of the same day; return both.

    Raises:
        OSError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stem = _stem(report)
    page, data = directory / f"{stem}.md", directory / f"{stem}.json"
    page.write_text(as_markdown(report), encoding="utf-8")
    data.write_text(json.dumps(report.as_json()) + "\n", encoding="utf-8")
    return page, data
