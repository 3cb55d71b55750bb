"""A report as tables: of plain text, for a terminal with rich, and as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ._report import GoalResult, Report, RivalResult, WorkloadResult
from ._statistics import Summary

Row = Sequence[str]


class Table(NamedTuple):
    """A title, the names of the columns, rows of as many cells, and remarks. The first column is text."""

    title: str
    header: Row
    rows: Sequence[Row]
    remarks: Sequence[str] = ()


def tables(report: Report) -> list[Table]:
    """A table for each workload, and one of the goals if any workload has some."""
    found = [_workload_table(result) for result in report.workloads]
    goals = [_goal_row(result, goal) for result in report.workloads for goal in result.goals()]
    if goals:
        found.append(Table("Goals", ("workload", "rival", "metric", "ratio to", "goal", "reached"), goals))
    return found


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
    """The whole report as a page for docs/measurements."""
    lines = [f"# multiqueue bench {report.suite}, {report.date[:10]}, Python {report.machine['build']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts(report)]
    found = tables(report)
    for table in sorted(found, key=lambda table: table.title != "Goals"):
        lines += ["", f"## {table.title}", "", _pipes(table.header), _pipes(["---"] * len(table.header))]
        lines += [_pipes(row) for row in table.rows]
        lines += ["", *table.remarks] if table.remarks else []
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
    return (
        result.workload.name,
        goal.rival,
        goal.metric,
        judged.against,
        f"{goal.at_least:.2f}",
        f"{_ratio(judged.ratio)} {_verdict(judged)}",
    )


def _verdict(judged: GoalResult) -> str:
    if judged.ratio is None:
        return "not measured"
    return "yes" if judged.is_reached else "NO"


def _ratio(summary: Summary | None) -> str:
    return "" if summary is None else f"{summary.median:.2f} ({summary.low:.2f}-{summary.high:.2f})"


def _aligned(table: Table) -> list[str]:
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in (table.header, *table.rows)
    ]


def _pipes(cells: Row) -> str:
    return "| " + " | ".join(cells) + " |"
