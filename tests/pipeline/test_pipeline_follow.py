"""Following: files that come while the run goes on, on clocks that the test moves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Follow, Lane, Step, StopRequested
from pipeline_support import Pipeline, contents, lane_of, make_tree, rows_in, write_names

from multiqueue.pipeline import FileSeen, Item

START = 1_000_000.0
"""What the wall clock shows when a run begins."""


class Following:
    """A run that follows one directory per lane; what is to happen when, by the run's own clock."""

    def __init__(self, base: Path, **settings: Any) -> None:
        self.base = base
        self.lanes = [lane_of(base, "a", section="in", **settings.pop("lane", {}))]
        self.looks = 0
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.run = Pipeline(base, self.lanes, follow=self._follow, on_idle=self._idle, **settings)

    def at(self, moment_s: float, what: Callable[[], None]) -> None:
        self.events.append((moment_s, what))

    def put(self, moment_s: float, name: str, text: str) -> None:
        """Write the file at this moment, stamped with it."""

        def write() -> None:
            path = self.base / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            os.utime(path, (START + moment_s, START + moment_s))

        self.at(moment_s, write)

    def stop(self, moment_s: float) -> None:
        self.at(moment_s, lambda: self.run.mailbox.post(StopRequested()))

    def go(self) -> None:
        self.run.run()

    def _follow(self, run: Pipeline) -> Follow:
        return Follow(1.0, 2.0, self._lanes, lambda: run.time(), lambda: START + run.time())

    def _lanes(self) -> list[Lane]:
        self.looks += 1
        return self.lanes

    def _idle(self, run: Pipeline) -> None:
        due = [event for event in self.events if event[0] <= run.time()]
        for event in due:
            self.events.remove(event)
            event[1]()


def test_files_that_come_later(tmp_path: Path) -> None:
    """Files are found while the run goes on, each once, until it is asked to stop; that is a good end."""
    made = Following(tmp_path)
    make_tree(tmp_path, {"a": 3})
    for moment in (1, 5, 9):
        made.put(moment, f"a/late{moment}.txt", f"late {moment}")
    made.stop(20)
    made.go()
    assert rows_in(made.run.output) == sorted([*contents({"a": 3}), "late 1", "late 5", "late 9"])
    assert len(made.run.dispatcher.submitted) == 6
    assert not made.run.runner.was_interrupted


def test_a_file_is_taken_when_it_has_stopped_growing(tmp_path: Path) -> None:
    """A file that is written to again and again is left alone until two seconds after the last time, and read once."""
    made = Following(tmp_path)
    for tenth in range(0, 80, 5):
        made.put(tenth / 10, "a/growing.txt", "x" * tenth)
    made.stop(15)
    made.go()
    (item,) = made.run.dispatcher.submitted
    assert rows_in(made.run.output) == ["x" * 75]
    (attempt,) = made.run.reporter.attempts
    assert attempt.item.id == item.id


def test_a_file_that_was_moved_in_is_taken_at_once(tmp_path: Path) -> None:
    """A file with an old time was written elsewhere; one from the future has another clock. Neither waits."""
    made = Following(tmp_path)
    make_tree(tmp_path, {"a": 2})
    os.utime(tmp_path / "a" / "0000.txt", (START - 1000, START - 1000))
    os.utime(tmp_path / "a" / "0001.txt", (START + 1000, START + 1000))
    made.stop(1)
    made.go()
    assert rows_in(made.run.output) == contents({"a": 2})


def test_a_file_that_changes_is_done_again(tmp_path: Path) -> None:
    """A file that is written anew while the run goes on replaces its output."""
    made = Following(tmp_path)
    made.put(0, "a/f.txt", "old")
    made.put(6, "a/f.txt", "newer")
    made.stop(15)
    made.go()
    assert rows_in(made.run.output) == ["newer"]
    assert [item.attempt for item in made.run.dispatcher.submitted] == [1, 2]


def test_a_directory_that_comes_is_a_lane(tmp_path: Path) -> None:
    """A new directory becomes a lane of the run, with steps behind it, and is counted."""
    made = Following(tmp_path, steps=[Step("daily", ("in",), each_lane=True)])
    make_tree(tmp_path, {"a": 1})
    made.at(3, lambda: made.lanes.append(lane_of(tmp_path, "b", section="in")))
    made.put(3, "b/0000.txt", "b-0")
    made.stop(15)
    made.go()
    assert rows_in(made.run.output) == ["a-0", "b-0"]
    assert rows_in(made.run.output, "steps") == ["daily a", "daily b"]
    assert {lane.lane for lane in made.run.runner._snapshot().lanes} == {"a", "b", "daily"}


@pytest.mark.parametrize(("batch_s", "batches"), [(0.0, [1, 1, 1]), (5.0, [2, 1])])
def test_how_long_files_wait_for_others(tmp_path: Path, batch_s: float, batches: list[int]) -> None:
    """With `batch_seconds` the files of a batch that is not full wait for others so long, and no longer."""
    made = Following(tmp_path, lane={"batch": 10, "batch_s": batch_s})
    for moment in (0, 4, 10):
        made.put(moment, f"a/{moment}.txt", f"{moment}")
    made.stop(30)
    made.go()
    assert [len(item.files) for item in made.run.dispatcher.submitted] == batches
    assert rows_in(made.run.output) == ["0", "10", "4"]


def test_a_full_batch_waits_for_nobody(tmp_path: Path) -> None:
    """However long a batch may wait, a full one goes at once."""
    made = Following(tmp_path, lane={"batch": 2, "batch_s": 1000.0})
    make_tree(tmp_path, {"a": 5})
    made.stop(10)
    made.go()
    assert [len(item.files) for item in made.run.dispatcher.submitted] == [2, 2]


def test_a_step_follows_each_time(tmp_path: Path) -> None:
    """While following, a step runs again each time what it needs has come to rest with something new."""
    made = Following(tmp_path, steps=[Step("totals", ("in",))])
    made.put(0, "a/one.txt", "1")
    made.put(8, "a/two.txt", "2")
    made.stop(20)
    made.go()
    assert [item.lane for item in made.run.dispatcher.submitted] == ["a", "totals", "a", "totals"]


def test_polls_are_seconds_apart(tmp_path: Path) -> None:
    """Between two looks for files the run waits for the poll time, and does not read directories all the while."""
    made = Following(tmp_path)
    made.stop(10)
    made.go()
    assert 9 <= made.looks <= 11


def test_stopped_and_followed_again(tmp_path: Path) -> None:
    """What one run has done is not done by the next, and files that came in between are found."""
    make_tree(tmp_path, {"a": 4})
    first = Following(tmp_path)
    first.stop(3)
    first.go()
    (tmp_path / "a" / "between.txt").write_text("between")
    second = Following(tmp_path)
    second.stop(3)
    second.go()
    assert [item.files[0].path for item in second.run.dispatcher.submitted] == ["a/between.txt"]
    assert rows_in(second.run.output) == sorted([*contents({"a": 4}), "between"])


def test_an_inbox_that_is_still_empty(tmp_path: Path) -> None:
    """A run may follow before there is any lane; the first directory that comes is one."""
    made = Following(tmp_path, steps=[Step("totals", ("in",))])
    made.lanes.clear()
    made.at(5, lambda: made.lanes.append(lane_of(tmp_path, "b", section="in")))
    made.put(5, "b/0000.txt", "b-0")
    made.stop(15)
    made.go()
    assert rows_in(made.run.output) == ["b-0"]
    assert made.looks < 20


def test_what_changes_while_a_step_runs(tmp_path: Path) -> None:
    """A step whose input changes while it runs is run once more for what it has missed."""
    made = Following(tmp_path, steps=[Step("totals", ("in",))])
    make_tree(tmp_path, {"a": 1})
    totals = 0

    def work(spark: Any, item: Item, staged: Path) -> bool:
        nonlocal totals
        if item.lane == "totals":
            totals += 1
        if totals == 1 and item.lane == "totals":  # another item is done before this attempt ends
            ledger = made.run.ledger
            with ledger.transaction():
                ledger.add("a", [FileSeen("a/other", 1, 1)], 0.0)
                (other,) = ledger.next_waiting("a", 0.0, 9)
                ledger.succeed(ledger.submit(other), other.files, 0.0, 0.0)
        return write_names(spark, item, staged)

    object.__setattr__(made.run.runner.feeding.attempts, "work", work)
    made.stop(15)
    made.go()
    assert totals == 2
