"""The tables the demo ends with: what is in the code base, and what fairness bought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as html_escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from ..pipeline._state.state import State
from ..pipeline._state.view import LedgerView, Waits, ledger_view
from ..pipeline._tell import svg as _svg
from ._rival import Waits as Rivals
from ._rival import waits_of_lanes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Packages named in the summary; the others share a row.
_NAMED = 12
# A lane is small if it has at most a tenth of the items of the largest one.
_SMALL = 10
# Small lanes that are shown by themselves.
_SHOWN = ("json", "email")
_COLUMNS = ("package", "files", "lines", "functions", "classes", "imports", "unparsed", "longest, lines")
# Columns of a terminal that have room for every column of a table.
_WIDE = 76

_SUMMARY = """
    SELECT lane, count(*), sum(lines), sum(functions), sum(classes), sum(imports),
           max_by(longest, longest_lines), max(longest_lines), count(unreadable)
    FROM {frame} GROUP BY lane ORDER BY sum(lines) DESC, lane
"""


def summary_table(spark: SparkSession, frame: DataFrame, width: int = 120) -> Table:
    """One table over everything the demo's jobs wrote, a Spark job of its own; what has no room is left out."""
    return table_of([list(row) for row in spark.sql(_SUMMARY, frame=frame).collect()], width)


def table_of(rows: Sequence[Sequence[Any]], width: int) -> Table:
    """The rows of `_SUMMARY`, in as many whole columns as there is room for."""
    lines = list(rows[:_NAMED])
    if rows[_NAMED:]:
        lines.append(_sum(f"{len(rows) - _NAMED} others", rows[_NAMED:]))
    columns = list(zip(_COLUMNS, *map(_summary_cells, (*lines, _sum("all", rows))), strict=True))
    ends = accumulate(max(map(cell_len, column)) + 1 for column in columns)
    fitting = [column for column, end in zip(columns, ends, strict=True) if end <= width + 1]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, *_ in fitting:
        table.add_column(name, justify="left" if name in (_COLUMNS[0], _COLUMNS[-1]) else "right", no_wrap=True)
    for cells in list(zip(*fitting, strict=True))[1:]:
        table.add_row(*cells)
    table.rows[-1].style = "bold"
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


def compare(fair_state: State, rival: Rivals) -> list[Group]:
    """The small lanes together, two of them by themselves, and the largest of all lanes."""
    with ledger_view(fair_state) as fair:
        lanes = sorted(fair.waits(), key=lambda wait: (wait.items, wait.lane))
        small = {lane.lane for lane in small_lanes(lanes) or lanes[:1]}
        chosen = [(f"{len(small)} small lane{'s' * (len(small) > 1)}", small)]
        chosen += [(name, {name}) for name in _SHOWN if name in small]
        chosen += [(wait.lane, {wait.lane}) for wait in lanes[-1:]]
        return [_group(name, names, fair, rival) for name, names in chosen]


def small_lanes(lanes: Sequence[Waits]) -> list[Waits]:
    """The lanes with at most a tenth of the items of the largest one."""
    most = max((lane.items for lane in lanes), default=0)
    return [lane for lane in lanes if lane.items * _SMALL <= most]


def _group(name: str, lanes: set[str], fair: LedgerView, rival: Rivals) -> Group:
    fair_waits, fifo_waits = fair.waits_of(lanes), waits_of_lanes(rival, lanes)
    return Group(name, len(fair_waits), _median_p95(fair_waits), _median_p95(fifo_waits))


def _median_p95(waits: Sequence[float]) -> tuple[float, float]:
    """Of ascending values, by nearest rank."""
    if not waits:
        return 0.0, 0.0
    return waits[(len(waits) + 1) // 2 - 1], waits[(len(waits) * 95 + 99) // 100 - 1]


def fairness_table(groups: Sequence[Group], width: int = 120) -> Table:
    """The waiting times of each group in both runs."""
    is_wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1 if is_wide else 0, 0, 1))
    table.add_column("waited, in seconds" if is_wide else "waited, s")
    table.add_column("items", justify="right", no_wrap=True)
    for name in ("lanes: median", "95%", "one queue: median", "95%") if is_wide else ("lanes", "95%", "queue", "95%"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        numbers = (f"{value:.1f}" for value in (*group.fair, *group.fifo))
        table.add_row(escape(group.name), f"{group.items:,}", *numbers)
    return table


def fairness_html(groups: Sequence[Group]) -> str:
    """The comparison as a section of the report: the sentence, and a pair of bars for each group and run."""
    bars = [
        bar
        for group in groups
        for bar in ((f"lanes: {group.name}", *group.fair), (f"queue: {group.name}", *group.fifo))
    ]
    return (
        "<h2>Fair against first in, first out</h2>"
        f"<p>{html_escape(fairness_sentence(groups))}</p>"
        '<p class="note">The same items in lanes, and once more through one queue: seconds until half of them had '
        f"begun, and lighter until 95% had.</p>{_svg.bars(bars, 'seconds')}"
    )


def fairness_sentence(groups: Sequence[Group]) -> str:
    """The rows of the table, and their cost."""
    small, largest = groups[0], groups[-1]
    return (
        f"Half of the small lanes' items began within {small.fair[0]:.1f} s instead of {small.fifo[0]:.1f} s, "
        f"95% within {small.fair[1]:.1f} s instead of {small.fifo[1]:.1f} s; the median of {largest.name!r}, "
        f"the largest lane, went from {largest.fifo[0]:.1f} s to {largest.fair[0]:.1f} s."
    )
