"""A listing of a store that was cut off goes on where it was."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_parts_support import (
    Entry,
    Lane,
    Ledger,
    PathColumn,
    Place,
    Scanner,
    Status,
    Storage,
    _scan,
    _scanner,
    open_ledger,
)
from pipeline_support import Pipeline

from multiqueue.pipeline import Item


def _can_be(key: str) -> bool:
    return not {"", ".", ".."} & set(key.split("/"))


class Keys(Storage):
    """A store with these keys in the bucket `b`, which lists some at a time and counts them."""

    def __init__(self, keys: Iterable[str], page: int = 3) -> None:
        super().__init__()
        self.all = sorted(keys)
        self.page = page
        self.told = 0
        self.versions: dict[str, int] = {}
        """Of objects that were written again."""

    def exists(self, place: Place) -> bool:
        return True

    def statuses(self, places: Sequence[Place]) -> list[Status | OSError]:
        return [Status(1, 1) for _ in places]

    def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
        if place.is_local:
            yield from super().pages(place)
            return
        below = "/".join([*place.parts[1:], ""])
        found: dict[str, Entry] = {}
        for key in self.all:
            name, slash, _ = key.removeprefix(below).partition("/")
            if key.startswith(below):
                entry = Entry(name, place / name, None if slash else Status(1, self.versions.get(key, 1)))
                if entry.key > after:
                    found.setdefault(entry.key, entry)
        entries = list(found.values())
        for start in range(0, len(entries), self.page):
            self.told += len(entries[start : start + self.page])
            yield entries[start : start + self.page]


@given(st.sets(st.text("ab-.0/", min_size=1, max_size=5).filter(_can_be), max_size=25))
def test_a_listing_goes_on_behind_any_file(keys: set[str]) -> None:
    """A walk of a store that begins behind a file has the files behind it, in order, with any keys. (pipeline 39)"""
    names = {f"in/{key}" for key in keys} | {f"in-0/{key}" for key in keys}
    for globs in (("s3://b/**",), ("s3://b/in/**", "s3://b/in-0/*/*"), ("s3://b/in/*", "s3://b/in-0/**")):
        lane = Lane("a", Place("s3://b"), globs, format="paths")

        def found(after: str = "", lane: Lane = lane) -> list[str]:
            seen = _scan.scan(lane, Path("/"), _scan.PassedOver(), storage=Keys(names), after=after)
            return [one.path for one in seen]

        whole = found()
        assert whole == sorted(set(whole))
        assert all(found(one) == whole[place + 1 :] for place, one in enumerate(whole))


class Cut(BaseException):
    """The process is gone."""


def run_over(
    base: Path, store: Keys, monkeypatch: pytest.MonkeyPatch, dies_after: int | None, **lane: Any
) -> list[str]:
    """The files of the items that a run begins; it dies when it has read so many slices of ten files."""
    monkeypatch.setattr(_scanner, "_SLICE", 10)
    for name in ("pages", "exists", "statuses"):
        monkeypatch.setattr(Storage, name, lambda self, *more, name=name: getattr(store, name)(*more))
    begun: list[str] = []
    slices = 0

    def work(spark: Any, item: Item, staged: Path) -> bool:
        begun.extend(seen.path for seen in item.files)
        return False

    run = Pipeline(base, [Lane("a", Place("s3://b/in"), ("**",), **{"format": "paths", "batch": 3, **lane})], work=work)
    step = run.scanner.step

    def counted(known_s: float, found: Any) -> None:
        nonlocal slices
        if slices == dies_after:
            raise Cut
        slices += 1
        step(known_s, found)

    run.scanner.step = counted  # type: ignore[method-assign]
    with contextlib.suppress(Cut):
        run.run()
    return begun


def test_a_listing_that_is_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run's listing begins where the last one's ended, and finds what has come before that since.

    (pipeline 39)
    """
    store = Keys([f"in/{number:03}/{name}" for number in range(50) for name in "ab"])
    known = run_over(tmp_path, store, monkeypatch, 4)
    store.all = sorted([*store.all, "in/001/c", "in/049/c"])
    begun = known + run_over(tmp_path, store, monkeypatch, 1)
    later = run_over(tmp_path, store, monkeypatch, None)
    assert sorted([*begun, *later]) == [f"s3://b/{key}" for key in store.all]
    assert later.index("s3://b/in/049/c") < later.index("s3://b/in/001/c")
    store.told = 0
    assert run_over(tmp_path, store, monkeypatch, None) == []
    assert store.told >= len(store.all)  # from the start: the last one came to its end


def test_a_listing_of_other_globs_begins_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a listing came counts for nothing once the lane reads something else. (pipeline 39)"""
    store = Keys([f"in/{number:03}" for number in range(50)] + ["in/000.x"])
    run_over(tmp_path, store, monkeypatch, 2, exclude=("*.x",))
    later = run_over(tmp_path, store, monkeypatch, None)
    assert "s3://b/in/000.x" in later
    assert later.index("s3://b/in/000.x") == 0 or later[0] < "s3://b/in/020"


def test_a_listing_beside_events_goes_on_over_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lane with events only the rest is listed: events tell of what comes. (pipeline 39)"""
    store = Keys([f"in/{number:03}/a" for number in range(50)])
    first = run_over(tmp_path, store, monkeypatch, 3, events="inotify")
    store.told = 0
    second = run_over(tmp_path, store, monkeypatch, None, events="inotify")
    assert sorted([*first, *second]) == [f"s3://b/{key}" for key in store.all]
    assert store.told < len(store.all)


def listed(
    ledger: Ledger, store: Keys, lane: Lane, slices: int | None = None, at_s: float = 1e9, base: Path = Path("/")
) -> dict[str, int]:
    """The files that the state has, with their versions, once a run has read so many slices, or all."""
    scanner = Scanner([lane], base, (), ledger, storage=store, wall=lambda: at_s)
    while not scanner.finished and slices != 0:
        scanner.step(0.0, lambda name, scanned: None)
        slices = None if slices is None else slices - 1
    while items := ledger.next_waiting(lane.name, 0.0, 9):
        with ledger.transaction():
            for item in items:
                files = [replace(seen, mtime_ns=store.versions.get(seen.path[7:], 1)) for seen in item.files]
                ledger.succeed(ledger.submit(item), files, 0.0, 1.0)
    return dict(ledger._connection.execute("SELECT path, mtime_ns FROM files ORDER BY path").fetchall())


_KEY = st.text("ab-+0/é\U0001f600 ", min_size=1, max_size=5).filter(_can_be).map("in/{}".format)
_CHANGES = st.sets(_KEY, max_size=4)


@given(
    st.sets(_KEY, min_size=8, max_size=30),
    st.lists(st.tuples(st.integers(0, 6), _CHANGES, _CHANGES), max_size=6),
    st.integers(1, 4),
)
def test_listings_cut_off_while_objects_come_and_go(
    keys: set[str], runs: list[tuple[int, set[str], set[str]]], batch: int
) -> None:
    """However often a listing is cut off while objects come, change and go: a run that ends has all. (pipeline 39)"""
    lane = Lane("a", Place("s3://b"), ("in/**",), format="paths", batch=batch)
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as base,
        open_ledger(Path(base) / "state", Path("/")) as ledger,
    ):
        patch.setattr(_scanner, "_SLICE", 2)
        store = Keys(keys)
        for slices, come, go in runs:
            listed(ledger, store, lane, slices)
            for key in come:
                store.versions[key] = store.versions.get(key, 1) + 1
            store.all = sorted({*store.all, *come} - go)
        found = listed(ledger, store, lane)
        assert {f"s3://b/{key}": store.versions.get(key, 1) for key in store.all}.items() <= found.items()


class Twice(Keys):
    """A store that gives each page of a listing twice."""

    def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
        for page in super().pages(place, after):
            yield from (page, page)


def test_a_file_that_a_listing_has_twice(tmp_path: Path) -> None:
    """It is in one item, though the directory or the store has changed so that a listing tells of it again.

    (pipeline 1)
    """
    with open_ledger(tmp_path / "state", tmp_path) as ledger:
        store = Twice(f"in/{number}" for number in range(9))
        lane = Lane("a", Place("s3://b"), ("in/*",), format="paths", batch=2)
        assert list(listed(ledger, store, lane)) == [f"s3://b/{key}" for key in store.all]
        assert sum(count.files for count in ledger.counts()) == 9


def test_a_lane_that_reads_a_store_and_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listing begins at the start: in what order the two come no key says. (pipeline 39)"""
    monkeypatch.setattr(_scanner, "_SLICE", 2)
    (tmp_path / "z").mkdir()
    (tmp_path / "z/1").touch()
    lane = Lane("a", tmp_path, ("z/*", "s3://b/in/*"), format="paths")
    store = Keys(f"in/{number}" for number in range(9))
    with open_ledger(tmp_path / "state", tmp_path) as ledger:
        listed(ledger, store, lane, 3, base=tmp_path)
        store.all = ["in/00", *store.all]
        assert "s3://b/in/00" in listed(ledger, store, lane, base=tmp_path)


def test_where_a_listing_can_go_on() -> None:
    """Only where a store lists by keys, and no column of the path chooses what is listed. (pipeline 39)"""

    def can(url: str, *columns: PathColumn) -> bool:
        return _scan.is_in_order(Lane("a", Place(url), ("in/*", "out/*"), path_columns=columns))

    assert can("s3://b")
    assert can("gs://b/x", PathColumn("day", "date"))
    assert not can("s3://b", PathColumn("day", "date", bool))
    assert not can("s3://b--use1-az4--x-s3")
    assert not can("abfss://c@a.dfs.core.windows.net")
    assert not can("/data")


def test_events_that_are_new_begin_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what came before a listing was cut off no event has told, if the lane had none then. (pipeline 39)"""
    monkeypatch.setattr(_scanner, "_SLICE", 2)
    lane = Lane("a", Place("s3://b"), ("in/*",), format="paths")
    store = Keys(f"in/{number}" for number in range(9))
    with open_ledger(tmp_path / "state", tmp_path) as ledger:
        listed(ledger, store, lane, 3)
        store.all = ["in/00", *store.all]
        assert "s3://b/in/00" in listed(ledger, store, replace(lane, events="amqp://h/v@q"))


def test_a_listing_beside_events_is_as_old_as_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next listing is due when its first part is old, however late the last part came. (pipeline 34, 39)"""
    monkeypatch.setattr(_scanner, "_SLICE", 2)
    lane = Lane("a", Place("s3://b"), ("in/*",), format="paths", events="amqp://h/v@q", listing_s=100.0)
    store = Keys(f"in/{number}" for number in range(9))
    with open_ledger(tmp_path / "state", tmp_path) as ledger:
        listed(ledger, store, lane, 3, at_s=1000.0)
        store.all = ["in/00", *store.all]  # its event is lost
        assert "s3://b/in/00" not in listed(ledger, store, lane, at_s=1090.0)
        assert "s3://b/in/00" in listed(ledger, store, lane, at_s=1110.0)
