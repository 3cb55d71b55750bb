"""The record of a pipeline: its transitions, its file, who may write it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import (
    TRANSITIONS,
    IllegalTransition,
    ItemEvent,
    ItemState,
    Lane,
    Ledger,
    Measured,
    Pace,
    PostgresState,
    Scanner,
    State,
    _scanner,
    _sqlite,
    after,
    before,
    exclusive,
    item_id,
    ledger_view,
    open_ledger,
)

from multiqueue.pipeline import (
    ConfigError,
    FileSeen,
    Item,
    PipelineError,
    StateInUse,
    StateMismatch,
    Unprepared,
    parse_config,
)


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> State:
    """Where a state may be: a file, or a schema of a server."""
    if request.param == "sqlite":
        return tmp_path / "state.sqlite"
    peer = request.getfixturevalue("postgres_peer")
    return PostgresState(peer.url, peer.schema())


@pytest.fixture
def ledger(tmp_path: Path, state: State) -> Iterator[Ledger]:
    with exclusive(state), open_ledger(state, tmp_path) as ledger:
        yield ledger


def seen(count: int, size: int = 1) -> list[FileSeen]:
    return [FileSeen(f"f{i}", size, i) for i in range(count)]


def test_every_arrow_and_no_other() -> None:
    """An item may do what the table says; everything else is refused."""
    for state, event in itertools.product(ItemState, ItemEvent):
        if (state, event) in TRANSITIONS:
            assert after(state, event) is TRANSITIONS[state, event]
            assert state in before(event)
        else:
            with pytest.raises(IllegalTransition, match=f"an item that is {state} cannot {event}"):
                after(state, event)


def test_a_submitted_item_is_not_submitted_again(ledger: Ledger) -> None:
    """The UPDATE names the old state: an item cannot be taken twice, nor succeed without having been submitted."""
    ledger.record_scan("a", seen(1), 1, 0.0)
    (item,) = ledger.next_waiting("a", 0.0, 9)
    with pytest.raises(IllegalTransition, match="cannot succeed: it is not submitted"):
        ledger.succeed(item, item.files, 0.0, 1.0)
    submitted = ledger.submit(item)
    assert submitted.attempt == 1
    with pytest.raises(IllegalTransition, match="cannot submit: it is not waiting"):
        ledger.submit(item)
    assert ledger.next_waiting("a", 0.0, 9) == []


def test_a_transaction_is_whole_or_nothing(ledger: Ledger) -> None:
    """What a block recorded before it raised is not recorded."""

    def fail_in_the_middle() -> None:
        with ledger.transaction():
            ledger.record_scan("a", seen(3), 1, 0.0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_in_the_middle()
    assert ledger.is_empty()


def test_batches_across_slices(ledger: Ledger) -> None:
    """Files that do not fill a batch are carried over to the next slice, and the last ones make a smaller item."""
    files = seen(10)
    first = ledger.record_scan("a", files[:5], 3, 0.0)
    assert (first.added, len(first.rest)) == (1, 2)
    second = ledger.record_scan("a", first.rest + files[5:], 3, 0.0)
    assert (second.added, len(second.rest)) == (2, 1)
    ledger.record_rest("a", second.rest, 0.0)
    batches = [[file.path for file in item.files] for item in ledger.next_waiting("a", 0.0, 99)]
    assert batches == [["f0", "f1", "f2"], ["f3", "f4", "f5"], ["f6", "f7", "f8"], ["f9"]]


def test_a_changed_file_reopens_its_item_once(ledger: Ledger) -> None:
    """A finished item waits again when a file of it has another size or time; a waiting one stays as it is."""
    ledger.record_scan("a", seen(2), 2, 0.0)
    assert not ledger.record_scan("a", seen(2, size=2), 2, 0.0).reopened
    item = ledger.submit(ledger.next_waiting("a", 0.0, 1)[0])
    ledger.succeed(item, item.files, 0.0, 1.0)
    assert ledger.record_scan("a", seen(2), 2, 0.0).unchanged == 2
    assert ledger.record_scan("a", seen(2, size=3), 2, 5.0).reopened == {ItemState.DONE: 1}
    assert ledger.next_waiting("a", 0.0, 1)[0].id == item.id


def test_retry_times(ledger: Ledger) -> None:
    """A postponed item is handed out when its time has come, not before, and the ledger knows when that is."""
    ledger.record_scan("a", seen(2), 1, 0.0)
    item = ledger.submit(ledger.next_waiting("a", 0.0, 1)[0])
    ledger.postpone(item, "oops", 7.5)
    assert [other.files[0].path for other in ledger.next_waiting("a", 7.0, 9)] == ["f1"]
    assert ledger.next_retry_s("a", 7.0) == 7.5
    assert ledger.next_retry_s("b", 7.0) is None
    assert [other.tries for other in ledger.next_waiting("a", 7.5, 9)] == [0, 1]


def test_put_back_forgets_files_that_are_gone(tmp_path: Path, ledger: Ledger) -> None:
    """A failed item comes back with the files that still exist, and not at all when none does."""
    for name in ("f0", "f1", "f2"):
        (tmp_path / name).touch()
    ledger.record_scan("a", seen(4), 2, 0.0)
    for item in ledger.next_waiting("a", 0.0, 9):
        ledger.give_up(ledger.submit(item), "bad", 0.0, 1.0)
    (tmp_path / "f0").unlink()
    (tmp_path / "f2").unlink()
    with ledger.transaction():
        assert ledger.put_back_failed(["other lane"]) == 0
        assert ledger.put_back_failed(["a"]) == 1
    (item,) = ledger.next_waiting("a", 0.0, 9)
    assert ([file.path for file in item.files], item.tries, item.attempt) == (["f1"], 0, 1)


def test_the_id_of_an_item_is_always_the_same() -> None:
    """Lane and paths decide the id, nothing else; it starts with a letter, so that no reader takes it for a number."""
    assert item_id("eu", ["a", "b"])[0] == "i"
    assert len({item_id("eu", ["a", "b"]), item_id("eu", ["ab"]), item_id("us", ["a", "b"])}) == 3
    assert item_id("eu", ["a"]) == item_id("eu", ["a"])


def test_waits_and_series(state: State, ledger: Ledger) -> None:
    """The view gives median and 95th percentile of the waits by nearest rank, and starts and ends per slice."""
    ledger.record_scan("a", seen(20), 1, 0.0)
    for place, item in enumerate(ledger.next_waiting("a", 0.0, 99)):
        ledger.succeed(ledger.submit(item), item.files, float(place), float(place + 1))
    with ledger_view(state) as view:
        (waits,) = view.waits()
        series = view.series(4)
    assert (waits.items, waits.median_s, waits.p95_s) == (20, 9.0, 18.0)
    assert (series.step_s, series.starts, series.ends) == (5.0, [5, 5, 5, 5], [4, 5, 5, 6])
    assert series.running() == [1, 1, 1, 0]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second process is told who holds the state; when that one is gone, however it went, the state is free.

    (pipeline 7)
    """
    path = tmp_path / "state.sqlite"
    Ledger(path, tmp_path).close()
    code = (
        "import sys, os; from pathlib import Path; from multiqueue.pipeline._state.sqlite import SqliteState\n"
        "from multiqueue.pipeline._state.ledger import Ledger\n"
        "state = SqliteState(Path(sys.argv[1]))\n"
        "with state.exclusive():\n"
        "    ledger = Ledger(state, state.path.parent); ledger.record_process(); ledger.close()\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StateInUse, match=f"in use by process {child.pid}; wait for it"), exclusive(path):
            raise AssertionError("two processes hold one state")
        child.kill()
        child.wait()
    with exclusive(path):
        pass


def test_a_run_that_was_taken_over_records_nothing(tmp_path: Path) -> None:
    """Where somebody removed the lock file a second run begins, and the first is refused at its next transaction.

    (pipeline 7)
    """
    path = tmp_path / "state.sqlite"
    with exclusive(path), open_ledger(path, tmp_path) as zombie:
        with zombie.transaction():
            zombie.add("a", [FileSeen("f", 1, 1)], 0.0)
        path.with_name("state.sqlite.lock").unlink()
        with exclusive(path), open_ledger(path, tmp_path) as heir:
            with pytest.raises(StateInUse, match="another process has taken over the state"), zombie.transaction():
                zombie.add("a", [FileSeen("g", 1, 1)], 0.0)
            with heir.transaction():
                heir.add("a", [FileSeen("h", 1, 1)], 0.0)
            assert [item.files[0].path for item in heir.next_waiting("a", 0.0, 9)] == ["f", "h"]


@pytest.mark.parametrize("version", [3, 99])
def test_a_file_of_something_else(tmp_path: Path, version: int) -> None:
    """A state that is no state of ours, or of an earlier or later version, is refused and left alone."""
    path = tmp_path / "state.sqlite"
    path.write_text("this is a text of more than sixteen bytes")
    with pytest.raises(StateMismatch, match="is not a state of ours"):
        Ledger(path, tmp_path)
    assert path.read_text().startswith("this is a text")
    path.unlink()
    connection = sqlite3.connect(path)
    connection.executescript(f"CREATE TABLE items (x); PRAGMA user_version = {version};")
    connection.close()
    with pytest.raises(StateMismatch, match=f"has version {version}, this multiqueue writes version 4"):
        Ledger(path, tmp_path)


def test_a_state_whose_tables_are_made_while_one_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run makes them between any two statements: there is no state yet, or a whole one."""
    path = tmp_path / "state.sqlite"

    class Interrupted(_sqlite.Connection):
        statements = 0

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            self.statements += 1
            if self.statements == 2:
                monkeypatch.undo()
                Ledger(path, tmp_path).close()
            return super().execute(*arguments)

    path.touch()
    monkeypatch.setattr(_sqlite, "Connection", Interrupted)
    with pytest.raises(Unprepared, match="has not run yet"), ledger_view(path):
        pass
    monkeypatch.undo()
    Ledger(path, tmp_path).close()
    with ledger_view(path) as view:
        assert view.counts() == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A state below something that is no directory is one sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(Unprepared, match=r"cannot write the state .*choose another \[state\] path"):
        Ledger(tmp_path / "file" / "state.sqlite", tmp_path)


def test_no_state_yet(tmp_path: Path) -> None:
    """Looking at a pipeline that never ran is one sentence, and makes no file."""
    with pytest.raises(Unprepared, match="this pipeline has not run yet"), ledger_view(tmp_path / "state.sqlite"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    """When SQLite cannot write, the error says so, nothing of the transaction is there, and the ledger still works."""
    ledger = Ledger(tmp_path / "state.sqlite", tmp_path)
    (pages,) = ledger._connection.execute("PRAGMA page_count").fetchone()
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        with ledger.transaction():
            for i in range(1000):
                ledger.record_scan("a", [FileSeen(f"{i}", 1, 1)], 1, 0.0)

    with pytest.raises(PipelineError, match=r"cannot record in .*: database or disk is full; run again to go on"):
        fill()
    ledger._connection.execute("PRAGMA max_page_count = 100000")
    assert ledger.is_empty()
    with ledger.transaction():
        ledger.record_scan("a", seen(1), 1, 0.0)
    assert not ledger.is_empty()
    ledger.close()


def test_a_state_that_is_being_made(tmp_path: Path) -> None:
    """Looking in the moment between the file and its tables is as looking before any run."""
    (tmp_path / "state.sqlite").touch()
    with pytest.raises(Unprepared, match="this pipeline has not run yet"), ledger_view(tmp_path / "state.sqlite"):
        pass


def test_an_item_names_its_files(tmp_path: Path) -> None:
    """What a job sees of an item: absolute paths, a name, a size."""
    item = Item("i1", "eu", (FileSeen("a.csv", 3, 0), FileSeen("/b.csv", 4, 0)), tmp_path)
    assert item.paths == (tmp_path / "a.csv", Path("/b.csv"))
    assert (item.name, item.size_bytes) == ("a.csv (+1)", 7)


def test_what_was_submitted_stays_as_it_is(ledger: Ledger) -> None:
    """An item that was submitted is never joined or divided: its output has its name. (pipeline 1)"""
    with ledger.transaction():
        for number in range(4):
            ledger.add("a", [FileSeen(f"{number}-{place}", 1, 1) for place in range(3)], 0.0)
        second = ledger.next_waiting("a", 0.0, 2)[1]
        ledger.hand_back(ledger.submit(second))
        ledger.regroup("a", 0.0, None, lambda files, size_bytes: files < 100)
    assert [(item.id == second.id, len(item.files)) for item in ledger.next_waiting("a", 0.0, 9)] == [
        (False, 3),
        (True, 3),
        (False, 6),
    ]
    with ledger.transaction():
        ledger.regroup("a", 0.0, None, lambda files, size_bytes: files < 2)
    assert [len(item.files) for item in ledger.next_waiting("a", 0.0, 99) if item.attempt] == [3]


def test_a_later_run_knows_the_pace(ledger: Ledger) -> None:
    """What the jobs of earlier runs have taken is in the state, and the next run's items begin with it."""
    with ledger.transaction():
        for number in range(3):
            ledger.add("a", [FileSeen(str(number), 100, 1)], 0.0)
        for item in ledger.next_waiting("a", 0.0, 9):
            ledger.succeed(ledger.submit(item), item.files, 1.0, 6.0)
    assert ledger.measured() == [Measured("a", 3, 3, 300, 15.0)]
    assert Pace.of(ledger.measured()).files(Lane("a", Path("/"), (), target_s=10.0), 100) < 100


class Forgetting:
    """A lane of files in a directory, scanned and done at moments of a clock."""

    def __init__(self, base: Path, state: State) -> None:
        self.now_s = 1e9
        self.base = base
        self.lane = Lane("a", base / "in", ("*",), batch=1, format="paths", forget_after_s=10_000.0)
        self.ledger = Ledger(state, base, wall=lambda: self.now_s)
        (base / "in").mkdir()

    def write(self, name: str, text: str = "", at_s: float | None = None) -> None:
        (self.base / "in" / name).write_text(text)
        os.utime(self.base / "in" / name, (at_s or self.now_s, at_s or self.now_s))

    def scan(self, steps: int = 9, after_s: float = 0.0) -> Counter[str]:
        """What was refused; what is new is done then. One file a step."""
        self.now_s += after_s
        scanner = Scanner([self.lane], self.base, (), self.ledger, wall=lambda: self.now_s)
        for _ in range(steps):
            scanner.step(0.0, lambda lane, scanned: None)
        while items := self.ledger.next_waiting("a", 0.0, 1):
            with self.ledger.transaction():
                self.ledger.succeed(self.ledger.submit(items[0]), items[0].files, 0.0, 1.0)
        return Counter(scanner.passed_over.counts)

    def known(self) -> list[str]:
        rows = self.ledger._connection.execute("SELECT path FROM files ORDER BY path").fetchall()
        return [Path(path).name for (path,) in rows]


REFUSED = {"older than what the state remembers (forget_after)": 2}


@pytest.fixture
def forgetting(tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forgetting]:
    monkeypatch.setattr(_scanner, "_SLICE", 1)
    made = Forgetting(tmp_path, state)
    with contextlib.closing(made.ledger):
        yield made


def test_a_state_forgets_what_was_done_long_ago(forgetting: Forgetting) -> None:
    """What was done before `forget_after` is forgotten with its files and stays counted; an older file that is unknown
    is refused, and what is younger is known as ever. (pipeline 37)"""
    for name in "abc":
        forgetting.write(name)
    assert not forgetting.scan()
    forgetting.now_s += 9_000
    forgetting.write("d")
    assert not forgetting.scan()
    assert forgetting.known() == ["a", "b", "c", "d"]
    (forgetting.base / "in" / "b").unlink()
    forgetting.write("b2", at_s=1e9 - 1)
    assert forgetting.scan(after_s=2_000) == REFUSED
    assert forgetting.known() == ["d"]
    (count,) = forgetting.ledger.counts()
    assert (count.state, count.items, count.files) == (ItemState.DONE, 4, 4)
    forgetting.write("e")
    forgetting.write("a", "written anew")
    assert forgetting.scan().total() == 2
    assert forgetting.known() == ["a", "d", "e"]


def test_no_file_is_refused_that_no_listing_could_meet(forgetting: Forgetting) -> None:
    """A lane that was never listed to its end refuses nothing, however old its files are, and forgets nothing."""
    for name in "abcd":
        forgetting.write(name, at_s=1e6)
    assert not forgetting.scan(steps=2)
    assert not forgetting.scan(steps=3, after_s=50_000)
    assert forgetting.known() == ["a", "b", "c"]
    assert not forgetting.scan(after_s=50_000)
    assert forgetting.known() == ["a", "b", "c", "d"]
    forgetting.write("e", at_s=forgetting.now_s - 800)  # by a clock that is behind
    assert forgetting.scan(after_s=50_000) == REFUSED
    assert forgetting.known() == ["d", "e"]


def test_a_clock_that_is_wrong_for_a_while(forgetting: Forgetting) -> None:
    """A run whose clock is ten years ahead forgets too much, and refuses no file that comes later. (pipeline 37)"""
    for name in "abc":
        forgetting.write(name)
    assert not forgetting.scan()
    assert not forgetting.scan(after_s=3e8)
    forgetting.scan()
    assert forgetting.known() == ["c"]
    forgetting.now_s -= 3e8 - 100
    forgetting.write("new")
    assert forgetting.scan() == REFUSED
    assert forgetting.known() == ["c", "new"]


@pytest.mark.parametrize("after_s", [1e-9, 1e10, 1e300, math.inf])
def test_any_forget_after(forgetting: Forgetting, after_s: float) -> None:
    """What is done is never forgotten before it could be listed, however long or short `forget_after` is."""
    forgetting.lane = dataclasses.replace(forgetting.lane, forget_after_s=after_s)
    forgetting.write("a")
    assert not forgetting.scan()
    assert not forgetting.scan()
    assert forgetting.known() == ["a"]


def test_what_is_forgotten_may_be_done_again(forgetting: Forgetting) -> None:
    """With `on_forgotten = "again"` an old file that is unknown is a new one."""
    forgetting.lane = dataclasses.replace(forgetting.lane, forgets_for_good=True)
    forgetting.write("a")
    forgetting.write("b")
    assert not forgetting.scan()
    for _ in range(2):
        assert not forgetting.scan(after_s=20_000)
    assert forgetting.known() == ["b"]
    assert not forgetting.scan()
    assert "a" in forgetting.known()
    (count,) = forgetting.ledger.counts()
    assert count.items > 2


def test_a_step_knows_all_of_its_lanes(tmp_path: Path) -> None:
    """A lane that a step reads forgets nothing: the configuration says so."""
    lane = {"files": "*", "format": "text", "forget_after": 5}
    values = {"lanes": {"a": lane}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}
    (one,) = parse_config(values, tmp_path).lanes()
    assert (one.forget_after_s, one.forgets_for_good) == (5.0, False)
    with pytest.raises(ConfigError, match=r"lanes.a.forget_after: the step 's' has to know all of the lane"):
        parse_config({**values, "steps": {"s": {"after": "a", "sql": "SELECT 1"}}}, tmp_path)
