"""`report.html`: what a pipeline has done so far, on one page without anything from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from . import _svg
from ._config import PipelineConfig
from ._items import shown
from ._ledger_view import Failure, LedgerView, Waits, ledger_view
from ._lifecycle import ItemState

# Enough to see the shape, few enough to draw; and pages that stay readable with thousands of lanes or failures.
_SLICES = 60
_MOST_BARS = 60
_MOST_LANES = 500
_MOST_FAILURES = 200

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #ffffff; --soft: #5d6b7a; --line: #d9dfe6;
  --bar: #2f6fb0; --light: #b9d2ea; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --paper: #14191f; --soft: #9aa7b4; --line: #313b46;
  --bar: #6fa8dc; --light: #2f4a63; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } p.note { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child, td.text, th.text { text-align: left; overflow-wrap: anywhere; }
td.bad { color: var(--bad); } tr.total td { font-weight: 600; }
pre { white-space: pre-wrap; margin: 0; font-size: 13px; }
svg { width: 100%; height: auto; } .tick, .label { font-size: 11px; fill: var(--soft); } .label { fill: var(--ink); }
.grid { stroke: var(--line); } .area, .bar { fill: var(--bar); } .light { fill: var(--light); }
"""


def write_report(config: PipelineConfig) -> Path:
    """Write the page from what the ledger holds; where it is. Readers never see half of it."""
    path = config.output / "report.html"
    with ledger_view(config.state) as view:
        page = render(view, str(config.output))
    draft = config.output / "_multiqueue" / "report.html"
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, path)
    return path


def render(view: LedgerView, title: str) -> str:
    """The page."""
    worked_s = view.seconds_at_work()
    waits = view.waits()
    series = view.series(_SLICES)
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">{worked_s:.1f} seconds at work, all runs of this pipeline together.</p>',
        "<h2>Lanes</h2>",
        _lanes(view, {wait.lane: wait for wait in waits}),
        "<h2>Throughput over time</h2>",
        _svg.steps([ends / series.step_s for ends in series.ends], series.step_s, "seconds at work", "items/s"),
        "<h2>Jobs running</h2>",
        _svg.steps(series.running(), series.step_s, "seconds at work", "items running"),
        "<h2>Waiting time per lane</h2>",
        '<p class="note">From when an item was found until its job began: median, and lighter the 95th '
        f"percentile.{_of_all(len(waits), _MOST_BARS, 'lanes, those that waited longest')}</p>",
        _wait_bars(waits),
        _failures(view.failures(_MOST_FAILURES)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _lanes(view: LedgerView, waits: dict[str, Waits]) -> str:
    lanes: dict[str, dict[ItemState, int]] = {}
    for count in view.counts():
        lanes.setdefault(count.lane, dict.fromkeys(ItemState, 0))[count.state] = count.items
    rows = [_lane_row(lane, states, waits.get(lane)) for lane, states in list(lanes.items())[:_MOST_LANES]]
    total = {state: sum(states[state] for states in lanes.values()) for state in ItemState}
    rows.append(_lane_row(f"{len(lanes)} lanes", total, None).replace("<tr>", '<tr class="total">'))
    names = ("lane", "done", "failed", "waiting", "median wait", "95th percentile")
    return _table(names, rows) + f'<p class="note">{_of_all(len(lanes), _MOST_LANES, "lanes")}</p>'


def _lane_row(lane: str, states: dict[ItemState, int], wait: Waits | None) -> str:
    failed = states[ItemState.FAILED]
    cells = [
        f"<td>{escape(lane)}</td><td>{states[ItemState.DONE]:,}</td>",
        f'<td class="bad">{failed:,}</td>' if failed else "<td>0</td>",
        f"<td>{states[ItemState.WAITING] + states[ItemState.SUBMITTED]:,}</td>",
        f"<td>{wait.median_s:.2f} s</td><td>{wait.p95_s:.2f} s</td>" if wait else "<td></td><td></td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _wait_bars(waits: list[Waits]) -> str:
    longest = sorted(waits, key=lambda wait: (-wait.p95_s, wait.lane))[:_MOST_BARS]
    return _svg.bars([(wait.lane, wait.median_s, wait.p95_s) for wait in longest], "seconds")


def _failures(failures: list[Failure]) -> str:
    if not failures:
        return ""
    rows = [
        f'<tr><td>{escape(failure.lane)}</td><td class="text">{escape(shown(failure.path))}</td>'
        f'<td>{failure.attempt}</td><td class="text"><pre>{escape(failure.error)}</pre></td></tr>'
        for failure in failures
    ]
    most = f"The first {_MOST_FAILURES}." if len(failures) == _MOST_FAILURES else ""
    table = _table(("lane", "file", "attempts", "error"), rows)
    return f'<h2>Set aside</h2><p class="note">{most}</p>{table}'


def _table(names: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(
        f'<th class="text">{name}</th>' if name in ("file", "error") else f"<th>{name}</th>" for name in names
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _of_all(total: int, most: int, what: str) -> str:
    return f" {most} of {total} {what}." if total > most else ""
