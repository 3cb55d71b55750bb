"""A run's numbers in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pipeline_parts_support import ItemState
from pipeline_support import Recorder

from multiqueue.pipeline import AttemptEnded, FileSeen, Item, LaneProgress, MetricsFile, Snapshot, Unprepared
from multiqueue.testing import FakeClock

SNAPSHOT = Snapshot([LaneProgress('e"u\\', 1, 2, 3, 4)], LaneProgress("all", 1, 2, 3, 4), 7.5, 0.5, None, True, False)


def ended(state: ItemState, error: str | None = None, retry: float | None = None, parts: int = 0) -> AttemptEnded:
    return AttemptEnded(Item("i1", "eu", (FileSeen("a", 1, 0),), Path("/")), state, 1.5, error, retry, parts)


def told(metrics: MetricsFile) -> None:
    """A run with an attempt of each outcome."""
    metrics.begin(SNAPSHOT)
    metrics.attempt_ended(ended(ItemState.DONE))
    metrics.attempt_ended(ended(ItemState.DONE))
    metrics.attempt_ended(ended(ItemState.FAILED, "bad"))
    metrics.attempt_ended(ended(ItemState.WAITING, "bad", 1.0))
    metrics.attempt_ended(ended(ItemState.WAITING, "bad", parts=2))
    metrics.attempt_ended(ended(ItemState.WAITING))
    metrics.end(SNAPSHOT)


def test_for_prometheus(tmp_path: Path) -> None:
    """The text has a type and a help line for each metric, labels are escaped, and outcomes are counted."""
    told(MetricsFile(tmp_path / "m.prom", Recorder()))
    text = (tmp_path / "m.prom").read_text()
    assert 'multiqueue_pipeline_items{lane="e\\"u\\\\",state="running"} 2\n' in text
    counts = dict(re.findall(r'attempts_total\{lane="eu",outcome="(\w+)"\} (\d+)', text))
    assert counts == {"done": "2", "failed": "1", "postponed": "1", "split": "1", "cancelled": "1"}
    assert 'multiqueue_pipeline_attempt_seconds_total{lane="eu"} 9\n' in text
    assert "multiqueue_pipeline_up 0\n" in text
    sample = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)+\})? [0-9.e+-]+')
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line


def test_as_json(tmp_path: Path) -> None:
    """A file that ends in .json has the same numbers as an object."""
    told(MetricsFile(tmp_path / "m.json", Recorder()))
    values = json.loads((tmp_path / "m.json").read_text())
    assert values["attempts"]["eu"]["done"] == 2
    assert values["total"] == {"waiting": 1, "running": 2, "committing": 0, "done": 3, "failed": 4}
    assert values["running"] is False


def test_at_intervals(tmp_path: Path) -> None:
    """The file is written at the start, every ten seconds and at the end, however often the run reports."""
    clock, path = FakeClock(), tmp_path / "m.json"
    metrics = MetricsFile(path, Recorder(), clock)
    metrics.begin(SNAPSHOT)
    assert json.loads(path.read_text())["running"] is True
    written = 0
    for _ in range(100):
        path.unlink(missing_ok=True)
        metrics.update(SNAPSHOT)
        written += path.exists()
        clock.advance(0.5)
    assert written == 5
    assert list(tmp_path.iterdir()) in ([], [path])


def test_everything_is_passed_on(tmp_path: Path) -> None:
    """The reporter behind it hears all that it would hear without it."""
    behind = Recorder()
    metrics = MetricsFile(tmp_path / "m.json", behind)
    metrics.note("hello")
    metrics.update(SNAPSHOT)
    metrics.attempt_ended(ended(ItemState.DONE))
    assert (behind.notes, len(behind.snapshots), len(behind.attempts)) == (["hello"], 1, 1)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """At the start it ends the run with a sentence; later it is told, and the run goes on."""
    with pytest.raises(Unprepared, match=r"cannot write the metrics .*choose another --metrics"):
        MetricsFile(tmp_path / "none" / "m.json", Recorder()).begin(SNAPSHOT)
    behind = Recorder()
    (tmp_path / "there").mkdir()
    metrics = MetricsFile(tmp_path / "there" / "m.json", behind)
    metrics.begin(SNAPSHOT)
    (tmp_path / "there" / "m.json").unlink()
    (tmp_path / "there").rmdir()
    metrics.end(SNAPSHOT)
    assert "cannot write the metrics" in behind.notes[0]
