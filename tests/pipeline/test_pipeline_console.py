"""What people and machines see of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from pipeline_parts_support import (
    ItemState,
    JsonLines,
    LiveTable,
    PlainLines,
    Scanned,
    Tally,
    duration,
    failure_line,
    progress_line,
    progress_table,
    reporter_for,
)
from rich.console import Console

from multiqueue.pipeline import AttemptEnded, FileSeen, Item, LaneProgress, Snapshot
from multiqueue.testing import FakeClock


def snapshot(lanes: int = 2) -> Snapshot:
    rows = [LaneProgress(f"lane{i:02}", i, 1, 2, 0) for i in range(lanes)]
    total = LaneProgress("all", sum(range(lanes)), lanes, 2 * lanes, 0)
    return Snapshot(rows, total, 75.0, 2.5, 130.0, False, False)


def ended(state: ItemState, error: str | None = None, retry: float | None = None) -> AttemptEnded:
    item = Item("i1", "eu", (FileSeen("a[b].csv", 1, 0), FileSeen("c.csv", 1, 0)), Path("/"), attempt=2)
    return AttemptEnded(item, state, 1.25, error, retry)


def rendered(table: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_reporter_suits_the_output() -> None:
    """A terminal gets the table, anything else lines, and JSON goes before both."""
    terminal = Console(file=io.StringIO(), force_terminal=True)
    pipe = Console(file=io.StringIO(), force_terminal=False)
    assert isinstance(reporter_for(terminal, as_json=False), LiveTable)
    assert isinstance(reporter_for(pipe, as_json=False), PlainLines)
    assert isinstance(reporter_for(terminal, as_json=True), JsonLines)


def test_a_line_of_progress() -> None:
    """One line tells counts, rate and time left."""
    assert (
        progress_line(snapshot()) == "1 min 15 s: 4 done, 0 failed, 2 running, 1 waiting; 2.5 items/s, 2 min 10 s left"
    )


def test_a_table_for_many_lanes() -> None:
    """A table that has no room for all lanes shows those with most to do, says how many it hides, and their total."""
    text = rendered(progress_table(snapshot(30), max_lanes=3))
    assert [line.split()[0] for line in text.splitlines()] == [
        "lane", "lane29", "lane28", "lane27", "and", "all", "1",
    ]  # fmt: skip
    assert "and 27 more" in text
    assert "2.5 items/s, 2 min 10 s left" in text


def test_lines_come_at_intervals() -> None:
    """However often the runner reports, a log gets a line every ten seconds, and one for each failure."""
    stream, clock = io.StringIO(), FakeClock()
    reporter = PlainLines(stream, clock)
    reporter.begin(snapshot())
    for _ in range(100):
        clock.advance(0.25)
        reporter.update(snapshot())
    reporter.attempt_ended(ended(ItemState.DONE))
    reporter.attempt_ended(ended(ItemState.WAITING, "OSError: gone\nmore", 4.0))
    assert stream.getvalue().splitlines() == [
        progress_line(snapshot()),
        progress_line(snapshot()),
        "failed: eu: a[b].csv (+1): attempt 2: OSError: gone (next try in 4 s)",
    ]


def test_a_narrow_terminal_keeps_the_numbers() -> None:
    """At 40 columns names are cut and headings are short; every number is whole."""
    rows = [LaneProgress("a-very-long-name-of-a-lane-that-goes-on-and-on", 123456, 12, 98765, 3)]
    moment = Snapshot(rows, rows[0], 75.0, 2.5, 130.0, False, False)
    for width in (40, 60, 100):
        text = rendered(progress_table(moment, 5, width), width)
        lane = text.splitlines()[1]
        assert lane.split()[1:] == ["123456", "12", "98765", "3"]
        assert max(map(len, text.splitlines())) <= width
    assert "a-very-long-name-of-a-lane-that-goes-on…" in text


def test_the_clock_goes_on_while_spark_starts() -> None:
    """What was noted last stands under the table with its time, until the runner goes on."""
    clock = FakeClock()
    reporter = LiveTable(Console(file=io.StringIO(), force_terminal=True, width=100, height=20), clock)
    reporter.begin(snapshot())
    try:
        reporter.note("starting Spark on local[2], its log is /x/spark.log")
        clock.advance(12)
        assert rendered(reporter._render()).splitlines()[-1] == "starting Spark on local[2]: 12 s"
        reporter.update(snapshot())
        assert rendered(reporter._render()).splitlines()[-1].startswith("1 min 15 s at work; 2.5 items/s")
        clock.advance(5)
        assert rendered(reporter._render()).splitlines()[-1] == "no news: 5 s"
    finally:
        reporter.end(snapshot())


def test_failures_above_the_live_table() -> None:
    """In a terminal a failure scrolls by, its brackets not taken for colours, and the table is gone at the end."""
    stream = io.StringIO()
    reporter = LiveTable(Console(file=stream, force_terminal=True, width=100, height=20))
    reporter.begin(snapshot())
    reporter.attempt_ended(ended(ItemState.FAILED, "ValueError: bad"))
    reporter.update(snapshot())
    reporter.stopping(1, 3)
    reporter.end(snapshot())
    assert "failed: eu: a[b].csv (+1): attempt 2: ValueError: bad (set aside)" in stream.getvalue()
    assert "Ctrl-C again cancels them" in stream.getvalue()


def test_json_lines() -> None:
    """For machines every line is an object that says what it is."""
    stream = io.StringIO()
    reporter = JsonLines(stream)
    reporter.note("hello")
    reporter.begin(snapshot())
    reporter.attempt_ended(ended(ItemState.FAILED, "ValueError: bad"))
    reporter.stopping(2, 3)
    reporter.end(snapshot())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["note", "begin", "item", "stopping", "end"]
    assert lines[1]["lanes"]["lane01"] == {"waiting": 1, "running": 1, "committing": 0, "done": 2, "failed": 0}
    assert (lines[2]["state"], lines[2]["files"], lines[2]["error"]) == (
        "failed",
        ["a[b].csv", "c.csv"],
        "ValueError: bad",
    )
    assert lines[3]["cancel"] is True


def test_a_cancelled_attempt_is_no_failure() -> None:
    """Only errors are told as failures."""
    assert failure_line(ended(ItemState.WAITING)) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (61, "1 min 1 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are told with two units at most."""
    assert duration(seconds) == text


def test_rate_and_time_left() -> None:
    """The rate is that of the last half minute, and the time left is told once all files are known."""
    from collections import Counter

    tally = Tally.of(["a"], [])
    tally.found("a", Scanned(100, Counter(), 0, []))
    for second in range(60):
        for _ in range(1 if second < 40 else 3):
            tally.started("a")
            tally.ended("a", ItemState.DONE, float(second), was_running=True)
    assert tally.snapshot(60.0, 60.0).left_s is None
    tally.scanning = False
    moment = tally.snapshot(60.0, 60.0)
    assert moment.total == LaneProgress("all lanes", 0, 0, 100, 0)
    assert moment.items_per_s == pytest.approx((10 + 60) / 30)
    assert moment.left_s == 0.0
