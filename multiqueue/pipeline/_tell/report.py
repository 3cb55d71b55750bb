"""`report.html`: what a pipeline has done so far, on one page without anything from elsewhere."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib import metadata
from pathlib import Path

from ..._words import counted, duration
from .._base.items import shown
from .._base.lifecycle import ItemState
from .._config.config import PipelineConfig
from .._state.state import LaneCount
from .._state.view import Failure, Job, LedgerView, Waits, ledger_view
from . import svg as _svg

# Enough to see the shape, few enough to draw; and pages that stay readable with thousands of lanes or failures.
_SLICES = 60
_MOST_BARS = 60
_MOST_LANES = 500
_MOST_FAILURES = 200
_MOST_JOBS = 1500

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #ffffff; --soft: #5d6b7a; --line: #d9dfe6;
  --bar: #2f6fb0; --light: #b9d2ea; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --paper: #14191f; --soft: #9aa7b4; --line: #313b46;
  --bar: #6fa8dc; --light: #2f4a63; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note { color: var(--soft); } p.verdict { font-size: 1.15rem; margin: .3rem 0 1rem; } p.bad { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child, td.text, th.text { text-align: left; overflow-wrap: break-word; }
td:first-child { min-width: 7rem; max-width: 20rem; } td.text { min-width: 12rem; max-width: 30rem; }
td { white-space: nowrap; } td:first-child, td.text { white-space: normal; }
td.bad { color: var(--bad); } tr.total td { font-weight: 600; }
pre { white-space: pre-wrap; margin: 0; font-size: 13px; }
svg { width: 100%; height: auto; } svg.narrow { display: none; } svg.defs { position: absolute; width: 0; }
@media (max-width: 600px) { svg.wide { display: none; } svg.narrow { display: block; } body { margin: 1rem auto; }
  table { font-size: 12px; } th, td { padding: .25rem .15rem; }
  td:first-child { min-width: 5rem; max-width: 7rem; position: sticky; left: 0; background: var(--paper); } }
.job { fill: var(--bar); stroke: var(--paper); } .wait { fill: none; stroke: var(--soft); }
.again { fill: url(#again); stroke: var(--bar); } .failed { fill: var(--bad); stroke: var(--paper); }
.hatch { stroke: var(--bar); stroke-width: 3; } .cross { stroke: var(--paper); stroke-width: 1.6; }
.tick, .label { font-size: 11px; fill: var(--soft); } .label { fill: var(--ink); }
.grid { stroke: var(--line); } .area, .bar { fill: var(--bar); } .light { fill: var(--light); }
"""


def write_report(config: PipelineConfig, first: str = "") -> Path:
    """Write the page from what the ledger holds; where it is. Readers never see half of it.

    `first` is a section, as HTML, that comes before the lanes.
    """
    path = config.output / "report.html"
    name = (
        f"Pipeline {Path(config.source).stem}"
        if config.source.endswith(".toml")
        else config.source[:1].upper() + config.source[1:]
    )
    facts = {
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
        "output": str(config.output),
        "versions": _versions(),
    }
    if config.chosen:
        names = ", ".join(sorted(config.chosen))
        facts["the last run"] = f"was of {names} alone; the other lanes are as runs before it left them"
    with ledger_view(config.state) as view:
        page = render(view, name, facts, first)
    draft = config.output / "_multiqueue" / "report.html"
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, path)
    return path


def render(view: LedgerView, title: str, facts: Mapping[str, str], first: str = "") -> str:
    """The page. `facts` stand under its title."""
    worked = {"at work": f"{duration(view.seconds_at_work())}, all runs together"}
    waits = view.waits()
    series = view.series(_SLICES)
    sections = [
        f"<h1>{escape(title)}</h1>",
        _verdict(view.counts()),
        _facts({**facts, **worked}),
        first,
        "<h2>Lanes</h2>",
        _lanes(view, {wait.lane: wait for wait in waits}),
        _timeline(view),
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


def _verdict(counts: Sequence[LaneCount]) -> str:
    """How it stands, in a sentence."""
    items: dict[ItemState, int] = dict.fromkeys(ItemState, 0)
    for count in counts:
        items[count.state] += count.items
    failed, waiting = items[ItemState.FAILED], items[ItemState.WAITING] + items[ItemState.SUBMITTED]
    done = counted(items[ItemState.DONE], "item")
    if failed or waiting:
        parts = [f"{done} done"]
        parts += [f"{failed:,} set aside"] if failed else []
        parts += [f"{waiting:,} waiting"] if waiting else []
        return f'<p class="verdict{" bad" * bool(failed)}">Not all done: {", ".join(parts)}.</p>'
    return f'<p class="verdict">All done: {done}.</p>'


def _facts(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()) + "</dl>"


def _versions() -> str:
    """Of what the rows were made with, as installed here."""
    parts = [f"multiqueue {sys.modules['multiqueue'].__version__}", f"Python {platform.python_version()}"]
    for package in ("pyspark", "pyspark-client"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{package} {metadata.version(package)}")
    return ", ".join(parts)


def _lanes(view: LedgerView, waits: dict[str, Waits]) -> str:
    lanes: dict[str, dict[ItemState, int]] = {}
    files: dict[str, float] = {}
    taken_away = view.taken_away()
    for count in view.counts():
        lanes.setdefault(count.lane, dict.fromkeys(ItemState, 0))[count.state] = count.items
        if count.state is ItemState.DONE:
            files[count.lane] = count.files / count.items
    rows = [
        _lane_row(lane, states, waits.get(lane), files.get(lane), taken_away.get(lane, 0) if taken_away else None)
        for lane, states in list(lanes.items())[:_MOST_LANES]
    ]
    total = {state: sum(states[state] for states in lanes.values()) for state in ItemState}
    all_taken = sum(taken_away.values()) if taken_away else None
    rows.append(
        _lane_row(counted(len(lanes), "lane"), total, None, None, all_taken).replace("<tr>", '<tr class="total">')
    )
    taken = ("files taken away",) if taken_away else ()
    names = ("lane", "done", "files a job", *taken, "failed", "waiting", "median wait", "95% wait")
    return table(names, rows) + f'<p class="note">{_of_all(len(lanes), _MOST_LANES, "lanes")}</p>'


def _lane_row(
    lane: str, states: dict[ItemState, int], wait: Waits | None, files: float | None, taken_away: int | None
) -> str:
    """A lane's cells; `files` are those of an item that is done, on average; no cell where `taken_away` is None."""
    failed = states[ItemState.FAILED]
    cells = [
        f"<td>{escape(lane)}</td><td>{states[ItemState.DONE]:,}</td>",
        "<td></td>" if files is None else f"<td>{files:,.1f}</td>",
        "" if taken_away is None else f"<td>{taken_away:,}</td>" if taken_away else "<td></td>",
        f'<td class="bad">{failed:,}</td>' if failed else "<td>0</td>",
        f"<td>{states[ItemState.WAITING] + states[ItemState.SUBMITTED]:,}</td>",
        f"<td>{wait.median_s:.2f} s</td><td>{wait.p95_s:.2f} s</td>" if wait else "<td></td><td></td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _timeline(view: LedgerView) -> str:
    jobs = view.jobs(_MOST_JOBS)
    if not jobs:
        return ""
    lanes: dict[str, list[Job]] = {}
    for job in jobs:
        lanes.setdefault(job.lane, []).append(job)
    of_all = f" The latest {_MOST_JOBS:,} jobs." if len(jobs) == _MOST_JOBS else ""
    of_all += _of_all(len(lanes), _MOST_BARS, "lanes")
    rows = [
        (
            lane,
            [
                _svg.Bar(
                    job.known_s, job.started_s, job.ended_s, shown(job.path), _kind(job), is_bad=bool(job.is_failed)
                )
                for job in lanes[lane]
            ],
        )
        for lane in list(lanes)[:_MOST_BARS]
    ]
    return (
        '<h2>Jobs, lane by lane</h2><p class="note">Hollow while an item waited, solid while its latest attempt ran, '
        f"hatched where that was not the first, red with a cross where it was set aside.{of_all}</p>"
        f"{_svg.timeline(rows, 'seconds at work')}"
    )


def _kind(job: Job) -> str:
    return "failed" if job.is_failed else "again" if job.attempt > 1 else "job"


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
    made = table(("lane", "file", "attempts", "error"), rows)
    return f'<h2>Set aside</h2><p class="note">{most}</p>{made}'


def table(names: Iterable[str], rows: Iterable[str]) -> str:
    kinds = {"file": ' class="text"', "error": ' class="text"'}
    head = "".join(f'<th scope="col"{kinds.get(name, "")}>{name}</th>' for name in names)
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _of_all(total: int, most: int, what: str) -> str:
    return f" {most} of {total} {what}." if total > most else ""
