"""Files in batches: how they are cut, and what becomes of the good files beside a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_parts_support import cut, halves
from pipeline_support import Pipeline, contents, lane_of, make_tree, rows_in, write_names

from multiqueue.pipeline import FileSeen, Item, JobError


def sized(*sizes: int) -> list[FileSeen]:
    return [FileSeen(f"f{place}", size, 0) for place, size in enumerate(sizes)]


def test_full_by_count_or_by_bytes() -> None:
    """A batch is full with so many files or bytes, whichever comes first; a larger file is a batch of its own."""
    full, rest = cut(sized(3, 3, 3, 50, 1, 1, 1, 1, 9, 2), 3, 10)
    assert [[one.size_bytes for one in batch] for batch in full] == [[3, 3, 3], [50], [1, 1, 1], [1, 9]]
    assert [one.size_bytes for one in rest] == [2]


@given(st.lists(st.integers(0, 30)), st.integers(1, 5), st.none() | st.integers(1, 40), st.integers(0, 30))
def test_cutting_in_slices_is_cutting_at_once(sizes: list[int], count: int, size: int | None, first: int) -> None:
    """Wherever a scan is interrupted, carrying the rest over gives the batches of an uninterrupted one."""
    files = sized(*sizes)
    whole, rest = cut(files, count, size)
    early, carried = cut(files[:first], count, size)
    late, last = cut([*carried, *files[first:]], count, size)
    assert (early + late, last) == (whole, rest)
    assert all(len(batch) <= count for batch in whole)
    if size is not None:
        assert all(len(batch) == 1 or sum(one.size_bytes for one in batch) <= size for batch in whole)


def test_halves() -> None:
    """Both halves have files, and together all of them in order."""
    assert [len(half) for half in halves(sized(1, 1))] == [1, 1]
    first, second = halves(sized(1, 2, 3, 4, 5))
    assert [one.path for one in first + second] == ["f0", "f1", "f2", "f3", "f4"]


def without(*bad: str, error: type[Exception] = JobError) -> Any:
    """Work that fails where one of the bad rows is in the item."""

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if any(path.read_text() in bad for path in item.paths):
            raise error("bad row")
        return write_names(spark, item, staged)

    return work


@pytest.mark.parametrize("bad", [["a-0"], ["a-7"], ["a-3", "a-4"], [f"a-{i}" for i in range(16)]])
def test_the_good_files_beside_a_bad_one(tmp_path: Path, bad: list[str]) -> None:
    """A batch that fails is halved until each bad file is set aside alone; all the others are in the output.

    (pipeline 5)
    """
    make_tree(tmp_path, {"a": 16})
    run = Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=16)], work=without(*bad))
    snapshot = run.run()
    assert rows_in(run.output) == sorted(set(contents({"a": 16})) - set(bad))
    assert snapshot.total.failed == len(bad)
    assert (snapshot.total.waiting, snapshot.total.running) == (0, 0)
    letters = [json.loads(path.read_text()) for path in (tmp_path / "dead").glob("lane=a/*.json")]
    assert sorted(len(letter["files"]) for letter in letters) == [1] * len(bad)


def test_how_often_the_files_of_a_bad_batch_are_tried(tmp_path: Path) -> None:
    """What may pass is tried three times as a whole, then once in each half, and the bad file alone three times."""
    make_tree(tmp_path, {"a": 8})
    run = Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=8)], work=without("a-5", error=OSError))
    run.run()
    tried = [len(ended.item.files) for ended in run.reporter.attempts if ended.error]
    assert sorted(tried, reverse=True) == [8, 8, 8, 4, 2, 1, 1, 1]
    assert [ended.split_into for ended in run.reporter.attempts if ended.split_into] == [2, 2, 2]


def test_a_changed_batch_that_fails_leaves_no_old_rows(tmp_path: Path) -> None:
    """A file of a batch that was done turns bad: the others' rows are there once, and its old row is gone."""
    make_tree(tmp_path, {"a": 4})
    Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=4)]).run()
    (tmp_path / "a" / "0002.txt").write_text("now bad")
    again = Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=4)], work=without("now bad"))
    again.run()
    assert rows_in(again.output) == ["a-0", "a-1", "a-3"]


def test_bytes_of_a_lane(tmp_path: Path) -> None:
    """A lane with `batch_bytes` has items of at most so many bytes."""
    make_tree(tmp_path, {"a": 9})
    run = Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=100, batch_bytes=10)])
    run.run()
    assert [item.size_bytes for item in run.dispatcher.submitted] == [9, 9, 9]
    assert rows_in(run.output) == contents({"a": 9})
