"""A listing of a store that was cut off goes on where it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_parts_support import Entry, Lane, Place, Status, Storage, _scan, _scanner
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

    def exists(self, place: Place) -> bool:
        return True

    def statuses(self, places: Sequence[Place]) -> list[Status | OSError]:
        return [Status(1, 1) for _ in places]

    def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
        below = "/".join([*place.parts[1:], ""])
        found: dict[str, Entry] = {}
        for key in self.all:
            name, slash, _ = key.removeprefix(below).partition("/")
            if key.startswith(below):
                entry = Entry(name, place / name, None if slash else Status(1, 1))
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
