"""A run's numbers in a file, for scrapers and people: Prometheus's text, or JSON.

Promise     The file exists as a whole, at most ten seconds old while the run goes on, and once more at its end.
State       The file and the counters of this run; the runner's thread alone calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ..._kinds import check_function, check_path
from .._base.errors import Unprepared
from .._base.lifecycle import ItemState
from .._run.progress import AttemptEnded, Reporter
from .._run.tally import LaneProgress, Snapshot
from .console import Every, snapshot_values

_EVERY_S = 10.0

_STATES = ("waiting", "running", "committing", "done", "failed")


class MetricsFile:
    """A reporter that passes everything on to another one and keeps a file of the numbers.

    `path` ends in `.json` for JSON; anything else is Prometheus's text, as the textfile collector of its node exporter
    reads it from a file that ends in `.prom`.
    """

    def __init__(self, path: Path, to: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        check_path("path", path)
        check_function("clock", clock)
        self._path = Path(path)
        self._to = to
        self._every = Every(_EVERY_S, clock)
        self._ended: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[str] = Counter()

    def note(self, text: str) -> None:
        self._to.note(text)

    def begin(self, snapshot: Snapshot) -> None:
        """Raises `Unprepared` if the file cannot be written: better now than in an hour."""
        try:
            self._write(snapshot, is_over=False)
        except OSError as error:
            raise Unprepared(
                f"cannot write the metrics {str(self._path)!r}: {error.strerror}; choose another --metrics"
            ) from error
        self._to.begin(snapshot)

    def update(self, snapshot: Snapshot) -> None:
        if self._every.is_due():
            self._try_to_write(snapshot, is_over=False)
        self._to.update(snapshot)

    def attempt_ended(self, ended: AttemptEnded) -> None:
        self._ended[ended.item.lane, _outcome(ended)] += 1
        self._seconds[ended.item.lane] += ended.took_s  # type: ignore[assignment] # a Counter of seconds
        self._to.attempt_ended(ended)

    def stopping(self, requests: int, in_flight: int) -> None:
        self._to.stopping(requests, in_flight)

    def end(self, snapshot: Snapshot) -> None:
        self._try_to_write(snapshot, is_over=True)
        self._to.end(snapshot)

    def _try_to_write(self, snapshot: Snapshot, *, is_over: bool) -> None:
        """A run goes on when its metrics cannot be written."""
        try:
            self._write(snapshot, is_over=is_over)
        except OSError as error:
            self._to.note(f"cannot write the metrics {str(self._path)!r}: {error.strerror}")

    def _write(self, snapshot: Snapshot, *, is_over: bool) -> None:
        text = self._as_json(snapshot, is_over) if self._path.suffix == ".json" else self._as_text(snapshot, is_over)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def _as_json(self, snapshot: Snapshot, is_over: bool) -> str:
        attempts: dict[str, dict[str, int]] = {}
        for (lane, outcome), count in self._ended.items():
            attempts.setdefault(lane, {})[outcome] = count
        values = {**snapshot_values(snapshot), "attempts": attempts, "running": not is_over}
        return json.dumps(values, ensure_ascii=False) + "\n"

    def _as_text(self, snapshot: Snapshot, is_over: bool) -> str:
        lanes = snapshot.lanes
        families = [
            _family("items", "gauge", "Items, by lane and state.", _items(lanes)),
            _family(
                "attempts_total",
                "counter",
                "Attempts that ended in this run, by lane and outcome.",
                [({"lane": lane, "outcome": outcome}, count) for (lane, outcome), count in self._ended.items()],
            ),
            _family(
                "attempt_seconds_total",
                "counter",
                "Seconds that attempts took in this run, by lane.",
                [({"lane": lane}, seconds) for lane, seconds in self._seconds.items()],
            ),
            _family("run_seconds", "gauge", "Seconds at work of this run.", [({}, snapshot.elapsed_s)]),
            _family("up", "gauge", "1 while the run goes on.", [({}, 0 if is_over else 1)]),
        ]
        return "".join(families)


def _outcome(ended: AttemptEnded) -> str:
    if ended.error is None:
        return "done" if ended.state is ItemState.DONE else "cancelled"
    if ended.split_into:
        return "split"
    return "failed" if ended.state is ItemState.FAILED else "postponed"


Sample = tuple[dict[str, str], float]
"""Labels and a value."""


def _items(lanes: list[LaneProgress]) -> list[Sample]:
    return [({"lane": lane.lane, "state": state}, getattr(lane, state)) for lane in lanes for state in _STATES]


def _family(name: str, kind: str, what: str, samples: list[Sample]) -> str:
    full = f"multiqueue_pipeline_{name}"
    lines = [f"# HELP {full} {what}", f"# TYPE {full} {kind}"]
    lines += [f"{full}{_labels(labels)} {value:.12g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
