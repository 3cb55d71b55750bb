"""Death at any moment, and the same run again: every item exactly once in the output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Ledger, Publisher, Step
from pipeline_support import Pipeline, contents, lane_of, make_tree, rows_in, write_names

from multiqueue.pipeline import Item, JobError

LANES = {"big": 5, "small": 2}


class Killed(BaseException):
    """The process is dead: nothing after it runs."""


class Fuse:
    """Kills at the n-th moment, or at the first of a name; remembers them when it never does."""

    def __init__(self, moments: int | None = None, at: str | None = None) -> None:
        self.left = moments
        self.at = at
        self.passed: list[str] = []

    def moment(self, name: str) -> None:
        self.passed.append(name)
        if self.left is not None:
            self.left -= 1
        if name == self.at or (self.left is not None and self.left <= 0):
            raise Killed(name)


def fragile(fuse: Fuse) -> tuple[type[Ledger], type[Publisher]]:
    """A ledger and a publisher that can die before and after everything that lasts."""

    class FragileLedger(Ledger):
        @contextmanager
        def transaction(self) -> Iterator[None]:
            with super().transaction():
                yield
                fuse.moment("before a commit")
            fuse.moment("after a commit")

    class FragilePublisher(Publisher):
        def publish(self, item: Item, staged: Path) -> None:
            fuse.moment("before the rename")
            super().publish(item, staged)
            fuse.moment("after the rename")

        def _take_away(self, item: Item, place: Path) -> None:
            super()._take_away(item, place)
            fuse.moment("after something old was taken away")

    return FragileLedger, FragilePublisher


def start(base: Path, fuse: Fuse, batch: int = 1, **settings: Any) -> Pipeline:
    ledger, publisher = fragile(fuse)
    lanes = [lane_of(base, name, section="in", batch=batch, capacity=3) for name in LANES]
    return Pipeline(base, lanes, ledger=ledger, publisher=publisher, **settings)


def after_each_death(tmp_path: Path, batch: int, **settings: Any) -> Iterator[tuple[Pipeline, str]]:
    """For each moment at which a run can die, 25 at least: the pipeline that goes on after it, and when it died."""
    make_tree(tmp_path / "whole", LANES)
    fuse = Fuse()
    start(tmp_path / "whole", fuse, batch, **settings).run()
    assert len(fuse.passed) >= 25
    for last, name in enumerate(fuse.passed, 1):
        base = tmp_path / str(last)
        make_tree(base, LANES)
        with pytest.raises(Killed):
            start(base, Fuse(last), batch, **settings).run()
        yield start(base, Fuse(), batch, **settings), f"died at moment {last}, {name}"


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("batch", [1, 2])
def test_killed_at_every_moment(tmp_path: Path, batch: int) -> None:
    """Whichever commit or rename is the last one before death, the next run ends with each file in the output once.

    (pipeline 2, 3)
    """
    for again, died in after_each_death(tmp_path, batch):
        again.run()
        assert rows_in(again.output) == contents(LANES), died


STEPS = (Step("daily", ("in",), each_lane=True), Step("totals", ("daily",)))


@pytest.mark.slow(selected=True)
def test_killed_at_every_moment_of_a_run_with_steps(tmp_path: Path) -> None:
    """Whenever a run dies, the next one ends with the output of every step, once, made after what it needs."""
    for again, died in after_each_death(tmp_path, 2, steps=STEPS):
        again.run()
        assert rows_in(again.output) == contents(LANES), died
        assert rows_in(again.output, "steps") == ["daily big", "daily small", "totals"], died


def bad_row(spark: Any, item: Item, staged: Path) -> bool:
    if any(path.read_text() == "big-2" for path in item.paths):
        raise JobError("bad row")
    return write_names(spark, item, staged)


def test_killed_at_every_moment_of_a_split(tmp_path: Path) -> None:
    """Whenever a run dies while it halves a bad batch, the next one ends with all but the bad file, and one letter."""
    for again, died in after_each_death(tmp_path, 5, work=bad_row):
        assert again.run().total.failed == 1, died
        assert rows_in(again.output) == sorted(set(contents(LANES)) - {"big-2"}), died
        assert len(list((again.output.parent / "dead").rglob("*.json"))) == 1, died


@pytest.mark.parametrize("first", [4, 9, 14])
def test_killed_again_and_again(tmp_path: Path, first: int) -> None:
    """A run that dies early every time still gets to its end, each time a bit further."""
    make_tree(tmp_path, LANES)
    for runs in range(100):
        fuse = Fuse(first + runs)
        try:
            run = start(tmp_path, fuse)
            run.run()
        except Killed:
            continue
        break
    assert rows_in(run.output) == contents(LANES)


def test_killed_while_a_changed_file_is_replaced(tmp_path: Path) -> None:
    """Death between taking the old output away and putting the new one there loses nothing: the item runs again."""
    make_tree(tmp_path, LANES)
    start(tmp_path, Fuse()).run()
    changed = tmp_path / "small" / "0000.txt"
    changed.write_text("a new content")
    expected = sorted(["a new content", *(row for row in contents(LANES) if row != "small-0")])
    for last in range(1, 20):
        try:
            start(tmp_path, Fuse(last)).run()
        except Killed:
            continue
        break
    assert rows_in(tmp_path / "out") == expected


def test_done_but_not_recorded_is_not_done_twice(tmp_path: Path) -> None:
    """An output that got to its place before death counts as done, without running the item again."""
    make_tree(tmp_path, {"small": 1})
    ledger, publisher = fragile(Fuse(at="after the rename"))
    with pytest.raises(Killed):
        Pipeline(tmp_path, [lane_of(tmp_path, "small")], ledger=ledger, publisher=publisher).run()
    again = Pipeline(tmp_path, [lane_of(tmp_path, "small")])
    assert again.recovered == (1, 0)
    again.run()
    assert again.dispatcher.submitted == []
    assert rows_in(again.output) == ["small-0"]


_CHILD = """
import os, signal, sys
from pathlib import Path
from pipeline_support import Pipeline, lane_of
from test_pipeline_crash import Fuse, Killed, LANES, fragile

base, last = Path(sys.argv[1]), int(sys.argv[2])
class Bomb(Fuse):
    def moment(self, name):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
ledger, publisher = fragile(Bomb(last))
Pipeline(base, [lane_of(base, name) for name in LANES], ledger=ledger, publisher=publisher).run()
"""


@pytest.mark.parametrize("last", [3, 8, 15, 21])
def test_a_process_that_is_killed(tmp_path: Path, last: int) -> None:
    """After a real kill -9 the state is readable, no lock is left, and the next run finishes the rest."""
    make_tree(tmp_path, LANES)
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path), str(last)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    again = start(tmp_path, Fuse())
    again.run()
    assert rows_in(again.output) == contents(LANES)
    assert list((again.output / "_multiqueue" / "staging").iterdir()) == []
