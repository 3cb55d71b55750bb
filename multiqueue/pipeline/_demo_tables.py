"""The tables the demo ends with: what is in the code base, and what fairness bought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ._ledger_view import LedgerView, Waits, ledger_view

# Packages named in the summary; the others share a row.
_NAMED = 12
# A lane is small if it has at most a tenth of the items of the largest one.
_SMALL = 10
# Small lanes that are shown by themselves.
_SHOWN = ("json", "email")

_SUMMARY = """
    SELECT lane, count(*), sum(lines), sum(functions), sum(classes), sum(imports),
           max_by(longest, longest_lines), max(longest_lines), count(unreadable)
    FROM {frame} GROUP BY lane ORDER BY sum(lines) DESC, lane
"""


def summary_table(spark: Any, data: Path) -> Table:
    """One table over everything the demo's jobs wrote: a Spark job of its own."""
    rows = [list(row) for row in spark.sql(_SUMMARY, frame=spark.read.parquet(f"file://{data}")).collect()]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("package", no_wrap=True)
    for name in ("files", "lines", "functions", "classes", "imports", "unparsed"):
        table.add_column(name, justify="right")
    table.add_column("longest function, lines", no_wrap=True)
    for row in rows[:_NAMED]:
        table.add_row(*_summary_cells(row))
    if rows[_NAMED:]:
        table.add_row(*_summary_cells(_sum(f"{len(rows) - _NAMED} others", rows[_NAMED:])))
    table.add_row(*_summary_cells(_sum("all", rows)), style="bold")
    return table


def _sum(name: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The rows as one: sums, and the longest of the longest functions."""
    longest = max(rows, key=lambda row: row[7])
    return [name, *(sum(row[i] for row in rows) for i in range(1, 6)), *longest[6:8], sum(row[8] for row in rows)]


def _summary_cells(row: Sequence[Any]) -> tuple[str, ...]:
    lane, *counts, longest, longest_lines, unparsed = row
    function = f"{escape(longest)} {longest_lines}" if longest else ""
    return escape(lane), *(f"{count:,}" for count in (*counts, unparsed)), function


@dataclass(frozen=True, slots=True)
class Group:
    """The waiting times of some lanes together, in both runs: median and 95th percentile, in seconds."""

    name: str
    items: int
    fair: tuple[float, float]
    fifo: tuple[float, float]


def compare(fair_state: Path, fifo_state: Path) -> list[Group]:
    """The small lanes together, two of them by themselves, and the largest of all lanes."""
    with ledger_view(fair_state) as fair, ledger_view(fifo_state) as fifo:
        lanes = sorted(fair.waits(), key=lambda wait: (wait.items, wait.lane))
        small = {lane.lane for lane in small_lanes(lanes) or lanes[:1]}
        chosen = [(f"{len(small)} small lane{'s' * (len(small) > 1)}", small)]
        chosen += [(name, {name}) for name in _SHOWN if name in small]
        chosen += [(wait.lane, {wait.lane}) for wait in lanes[-1:]]
        return [_group(name, names, fair, fifo) for name, names in chosen]


def small_lanes(lanes: Sequence[Waits]) -> list[Waits]:
    """The lanes with at most a tenth of the items of the largest one."""
    most = max((lane.items for lane in lanes), default=0)
    return [lane for lane in lanes if lane.items * _SMALL <= most]


def _group(name: str, lanes: set[str], fair: LedgerView, fifo: LedgerView) -> Group:
    fair_waits, fifo_waits = fair.waits_of(lanes), fifo.waits_of(lanes)
    return Group(name, len(fair_waits), _median_p95(fair_waits), _median_p95(fifo_waits))


def _median_p95(waits: Sequence[float]) -> tuple[float, float]:
    """Of ascending values, by nearest rank."""
    if not waits:
        return 0.0, 0.0
    return waits[(len(waits) + 1) // 2 - 1], waits[(len(waits) * 95 + 99) // 100 - 1]


def fairness_table(groups: Sequence[Group]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("waited, in seconds")
    table.add_column("items", justify="right")
    for name in ("lanes: median", "95%", "one queue: median", "95%"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        numbers = (f"{value:.1f}" for value in (*group.fair, *group.fifo))
        table.add_row(escape(group.name), f"{group.items:,}", *numbers)
    return table


def fairness_sentence(groups: Sequence[Group]) -> str:
    """What the table says, and what it cost."""
    small, largest = groups[0], groups[-1]
    return (
        f"Half of the small lanes' items began within {small.fair[0]:.1f} s instead of {small.fifo[0]:.1f} s, "
        f"95% within {small.fair[1]:.1f} s instead of {small.fifo[1]:.1f} s; the median of {largest.name!r}, "
        f"the largest lane, went from {largest.fifo[0]:.1f} s to {largest.fair[0]:.1f} s."
    )
