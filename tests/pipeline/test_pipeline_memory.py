"""Memory that does not grow with the number of files."""

from __future__ import annotations

import gc
import pathlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Entry, Follow, Lane, Place, Status, StopRequested, Storage, _scan
from pipeline_support import Pipeline, lane_of

from multiqueue.pipeline import Item, Silent

# Before Python 3.12 pathlib interns every part of a path: the table of interned strings is resized, not ours to count.
_NOT_OURS = [tracemalloc.Filter(False, pathlib.__file__), tracemalloc.Filter(False, tracemalloc.__file__)]


def held_bytes(base: Path, lanes: int, files: int, *, follow: bool = False) -> int:
    """The most that a run over so many lanes of so many files held, at ten moments between start and end.

    One that follows looks for files every 100 items, and is stopped when all are done.
    """
    for lane in range(lanes):
        directory = base / f"lane{lane:03}"
        directory.mkdir(parents=True)
        for i in range(files):
            (directory / f"{i}.txt").touch()
    done, most = 0, 0

    def work(spark: Any, item: Item, staged: Path) -> bool:
        nonlocal done, most
        done += 1
        if done % (lanes * files // 10) == 0:
            gc.collect()
            traces = tracemalloc.take_snapshot().filter_traces(_NOT_OURS).traces
            most = max(most, sum(trace.size for trace in traces))
        return False

    names = [f"lane{lane:03}" for lane in range(lanes)]
    tracemalloc.start()
    try:
        all_lanes = [lane_of(base, name) for name in names]

        def stop(run: Pipeline) -> None:
            if follow and done == lanes * files:
                run.mailbox.post(StopRequested())

        following = (lambda run: Follow(10.0, 0.0, lambda: all_lanes, run.time)) if follow else None
        run = Pipeline(base, all_lanes, work=work, follow=following, on_idle=stop)
        run.runner.reporter = Silent()
        run.dispatcher.submitted = _Forgetful()
        run.run()
    finally:
        tracemalloc.stop()
    assert done == lanes * files
    return most


class _Forgetful(list[Item]):
    def append(self, item: Item) -> None:
        pass


@pytest.mark.slow(selected=True)
def test_more_files_in_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of 900 files take the memory of lanes of 300, where the slices of a scan are full already (pipeline 6)."""
    monkeypatch.setattr(_scan, "_SLICE", 100)
    small = held_bytes(tmp_path / "small", 2, 300)
    assert held_bytes(tmp_path / "large", 2, 900) < small * 1.1


@pytest.mark.slow(selected=True)
def test_following_more_files_in_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same while following, although all files are looked at again and again."""
    monkeypatch.setattr(_scan, "_SLICE", 100)
    small = held_bytes(tmp_path / "small", 2, 200, follow=True)
    assert held_bytes(tmp_path / "large", 2, 600, follow=True) < small * 1.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_thousand_files_in_two_hundred_lanes(tmp_path: Path) -> None:
    """20,000 files in 200 lanes take no more memory than 4,000 files in the same lanes, and less than 20 MB."""
    few = held_bytes(tmp_path / "few", 200, 20)
    many = held_bytes(tmp_path / "many", 200, 100)
    assert many < few * 1.1
    assert many < 20_000_000


def held_by_objects(base: Path, monkeypatch: pytest.MonkeyPatch, objects: int) -> int:
    """The most that a run over so many objects of a store held when an item began; it has one lane of `batch = "auto"`.

    The store is a fake that lists pages of 1,000 keys, so only the run's own memory is counted.
    """
    status = Status(100, 1)

    def pages(self: Storage, place: Place, after: str = "") -> Iterator[list[Entry]]:
        for start in range(0, objects, 1000):
            names = [f"{number:07}.txt" for number in range(start, min(start + 1000, objects))]
            yield [Entry(name, place / name, status) for name in names]

    monkeypatch.setattr(Storage, "pages", pages)
    monkeypatch.setattr(Storage, "exists", lambda self, place: True)
    monkeypatch.setattr(Storage, "statuses", lambda self, places: [status] * len(places))
    files, most = 0, 0

    def work(spark: Any, item: Item, staged: Path) -> bool:
        nonlocal files, most
        files += len(item.files)
        gc.collect()
        most = max(most, tracemalloc.get_traced_memory()[0])
        return False

    tracemalloc.start()
    try:
        lane = Lane("objects", Place("s3://bucket/in"), ("*.txt",), target_s=10.0, batch=64)
        run = Pipeline(base, [lane], work=work)
        run.runner.reporter = Silent()
        run.dispatcher.submitted = _Forgetful()
        run.run()
    finally:
        tracemalloc.stop()
    assert files == objects
    return most


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_lane_of_very_many_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 objects of one lane take no more memory than 20,000: the items under way, and a page. (pipeline 6)"""
    few = held_by_objects(tmp_path / "few", monkeypatch, 20_000)
    many = held_by_objects(tmp_path / "many", monkeypatch, 100_000)
    assert many < few * 1.1
