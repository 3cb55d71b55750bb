"""Progress for people and machines: a live table in a terminal, lines elsewhere, JSON on request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..._words import duration
from .._base.lifecycle import ItemState
from .._run.progress import AttemptEnded, Reporter
from .._run.tally import LaneProgress, Snapshot

# A terminal is redrawn a few times a second; a log gets a line every ten seconds.
_REDRAW_S = 0.25
_LINE_S = 10.0
# The runner tells four times a second; if it does not, it waits for something.
_SILENT_S = 2.0
# Columns of a terminal that have room for whole headings beside a name.
_NARROW = 64
# Where the output is no terminal, tables may be this wide: nothing is lost to wrapping.
_WIDTH = 120


def console(*, stderr: bool = False) -> Console:
    """Where the command line writes."""
    plain = Console(highlight=False, stderr=stderr)
    return plain if plain.is_terminal else Console(highlight=False, stderr=stderr, width=_WIDTH)


def reporter_for(console: Console, *, as_json: bool) -> Reporter:
    """The reporter that suits where the output goes."""
    if as_json:
        return JsonLines(console.file)
    return LiveTable(console) if console.is_terminal else PlainLines(console.file)


class LiveTable:
    """A table that is redrawn in place; lines worth keeping scroll by above it."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._told_at = clock()
        self._noted = ""
        self._live: Live | None = None

    def note(self, text: str) -> None:
        self._print(text, "dim")
        self._noted, self._told_at = re.split("[,;]", text, maxsplit=1)[0], self._clock()

    def begin(self, snapshot: Snapshot) -> None:
        self._snapshot, self._told_at = snapshot, self._clock()
        # A thread of Live's redraws, so that the clock goes on while the runner's waits, for Spark to start.
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=1 / _REDRAW_S,
            transient=True,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def update(self, snapshot: Snapshot) -> None:
        self._snapshot, self._told_at, self._noted = snapshot, self._clock(), ""

    def attempt_ended(self, ended: AttemptEnded) -> None:
        line = failure_line(ended)
        if line is not None:
            self._print(line, "red" if ended.state is ItemState.FAILED else "yellow")

    def stopping(self, requests: int, in_flight: int) -> None:
        self._print(stopping_line(requests, in_flight), "yellow")

    def end(self, snapshot: Snapshot) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _render(self) -> Group:
        assert self._snapshot is not None
        silent_s = self._clock() - self._told_at
        waits = f"{self._noted or 'no news'}: {duration(silent_s)}" if self._noted or silent_s > _SILENT_S else None
        # The header, the total, the caption and the prompt take seven lines.
        return progress_table(self._snapshot, max(self._console.height - 8, 3), self._console.width, waits)


class PlainLines:
    """A line every few seconds, and one for each failure."""

    def __init__(self, stream: TextIO | Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every = Every(_LINE_S, clock)

    def note(self, text: str) -> None:
        self._say(text)
        self._every.restart()

    def begin(self, snapshot: Snapshot) -> None:
        self._every.restart()

    def update(self, snapshot: Snapshot) -> None:
        if self._every.is_due():
            self._say(progress_line(snapshot))

    def attempt_ended(self, ended: AttemptEnded) -> None:
        line = failure_line(ended)
        if line is not None:
            self._say(line)

    def stopping(self, requests: int, in_flight: int) -> None:
        self._say(stopping_line(requests, in_flight))

    def end(self, snapshot: Snapshot) -> None:
        self._say(progress_line(snapshot))

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class JsonLines:
    """An object a line: `event` is note, begin, progress, item, stopping or end."""

    def __init__(self, stream: TextIO | Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every = Every(_LINE_S, clock)

    def note(self, text: str) -> None:
        self._say({"event": "note", "text": text})

    def begin(self, snapshot: Snapshot) -> None:
        self._every.restart()
        self._say({"event": "begin", **snapshot_values(snapshot)})

    def update(self, snapshot: Snapshot) -> None:
        if self._every.is_due():
            self._say({"event": "progress", **snapshot_values(snapshot)})

    def attempt_ended(self, ended: AttemptEnded) -> None:
        item = ended.item
        self._say(
            {
                "event": "item",
                "lane": item.lane,
                "item": item.id,
                "files": [seen.path for seen in item.files],
                "attempt": item.attempt,
                "state": ended.state.value,
                "seconds": round(ended.took_s, 3),
                "error": ended.error,
                "retry_in_seconds": ended.retry_in_s,
                "split_into": ended.split_into,
            }
        )

    def stopping(self, requests: int, in_flight: int) -> None:
        self._say({"event": "stopping", "cancel": requests > 1, "in_flight": in_flight})

    def end(self, snapshot: Snapshot) -> None:
        self._say({"event": "end", **snapshot_values(snapshot)})

    def _say(self, values: dict[str, Any]) -> None:
        print(json.dumps(values, ensure_ascii=False), file=self._stream, flush=True)


def progress_table(snapshot: Snapshot, max_lanes: int, width: int = _WIDTH, waits: str | None = None) -> Group:
    """The lanes, busiest first when there is no room for all, and their total; under it `waits`, or rate and time.

    In a narrow terminal names are cut, and numbers are not.
    """
    total = snapshot.total
    is_narrow = width < _NARROW
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ("wait", "run", "done", "fail") if is_narrow else ("waiting", "running", "done", "failed")
    highest = max(total.waiting, total.running, total.done, total.failed)
    column = max(4 if is_narrow else 7, len(str(highest)))
    table.add_column("lane", max_width=max(min(40, width - 4 * (column + 2) - 1), 4), no_wrap=True, overflow="ellipsis")
    for name in names:
        table.add_column(name, justify="right", min_width=column, no_wrap=True)
    lanes = snapshot.lanes
    if len(lanes) > max_lanes:
        lanes = sorted(lanes, key=lambda lane: (-lane.running, -lane.waiting, lane.lane))[:max_lanes]
    for lane in lanes:
        table.add_row(*_row(lane))
    hidden = len(snapshot.lanes) - len(lanes)
    if hidden:
        table.add_row(f"[dim]and {hidden} more[/]")
    table.add_row(*_row(total), style="bold")
    return Group(table, Text(waits or _caption(snapshot), style="dim"))


def progress_line(snapshot: Snapshot) -> str:
    """`12 s: 40 done, 1 failed, 4 running, 155 waiting; 3.5 items/s, 46 s left`."""
    total = snapshot.total
    committing = f"{total.committing} being committed, " if total.committing else ""
    counts = f"{total.done} done, {total.failed} failed, {committing}{total.running} running, {total.waiting} waiting"
    return f"{duration(snapshot.elapsed_s)}: {counts}; {_rate(snapshot)}"


def failure_line(ended: AttemptEnded) -> str | None:
    """The line for an attempt that failed; None for others."""
    if ended.error is None:
        return None
    item = ended.item
    first = ended.error.splitlines()[0]
    return f"failed: {item.lane}: {item.name}: attempt {item.attempt}: {first[:300]} ({_what_follows(ended)})"


def _what_follows(ended: AttemptEnded) -> str:
    if ended.split_into:
        return f"its files are tried again as {ended.split_into} items"
    return "set aside" if ended.retry_in_s is None else f"next try in {ended.retry_in_s:g} s"


def stopping_line(requests: int, in_flight: int) -> str:
    if requests == 1:
        return f"stopping: {in_flight} running end first, nothing new begins; Ctrl-C again cancels them"
    return f"cancelling {in_flight} running"


def snapshot_values(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for JSON."""
    left = snapshot.left_s
    return {
        "seconds": round(snapshot.elapsed_s, 3),
        "items_per_second": round(snapshot.items_per_s, 3),
        "seconds_left": None if left is None else round(left, 1),
        "scanning": snapshot.scanning,
        "total": _counts(snapshot.total),
        "lanes": {lane.lane: _counts(lane) for lane in snapshot.lanes},
    }


def _caption(snapshot: Snapshot) -> str:
    state = "stopping; " if snapshot.stopping else "reading the lanes; " if snapshot.scanning else ""
    return f"{state}{duration(snapshot.elapsed_s)} at work; {_rate(snapshot)}"


def _rate(snapshot: Snapshot) -> str:
    left = "" if snapshot.left_s is None else f", {duration(snapshot.left_s)} left"
    return f"{snapshot.items_per_s:.1f} items/s{left}"


def _row(lane: LaneProgress) -> tuple[str, ...]:
    failed = f"[red]{lane.failed}[/]" if lane.failed else "0"
    return escape(lane.lane), str(lane.waiting), str(lane.running), str(lane.done), failed


def _counts(lane: LaneProgress) -> dict[str, int]:
    return {name: getattr(lane, name) for name in ("waiting", "running", "committing", "done", "failed")}


class Every:
    """Says yes at most once in so many seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._next = float("-inf")

    def is_due(self) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True

    def restart(self) -> None:
        """Say no for that long from now."""
        self._next = self._clock() + self._seconds
