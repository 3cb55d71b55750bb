"""`batch = "auto"`: items are as large as their jobs have shown to be right, and what was submitted stays as it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from pipeline_parts_support import MOST_FILES, QUEUED, Lane, Ledger, Measured, Pace
from pipeline_support import Pipeline, contents, lane_of, make_tree, rows_in
from test_pipeline_batches import without

from multiqueue.pipeline import FileSeen, parse_config, plan_of

AUTO = {"target_s": 10.0, "batch": 4}


def lane(**more: float) -> Lane:
    return Lane("a", Path("/"), (), target_s=10.0, **more)  # type: ignore[arg-type]


def test_items_grow_and_shrink_with_what_jobs_take() -> None:
    """A lane whose jobs end sooner than they should gets larger items, one whose jobs take longer smaller ones; a lane
    that has run nothing follows the others."""
    pace, other = Pace(), Lane("b", Path("/"), (), target_s=10.0)
    first = pace.files(lane(), 1000)
    assert 500 < first < 1500
    for _ in range(8):
        pace.note(Measured("a", 1, 100, 100_000, 0.13))
    assert pace.files(lane(), 1000) == MOST_FILES
    assert first < pace.files(other, 1000) <= MOST_FILES
    for _ in range(8):
        pace.note(Measured("a", 1, 10, 10_000, 40.0))
    assert 1 <= pace.files(lane(), 1000) < 10
    pace.note(Measured("a", 1, 1, 1000, 3600.0))
    assert pace.files(lane(), 1000) == 1


def test_an_item_has_5_000_files_at_most() -> None:
    """However fast a lane's jobs are, an item has no more files than the reference says: they are held in memory."""
    pace = Pace()
    for _ in range(20):
        pace.note(Measured("a", 1, 1000, 0, 1e-3))
    assert pace.fits(lane())(5_000, 0)
    assert not pace.fits(lane())(5_001, 0)
    assert pace.files(lane(), 0) == 5_000


def test_large_files_count_by_their_bytes() -> None:
    """Some files of 50 MB are an item where a thousand small ones are; `batch_bytes` still bounds it."""
    assert 3 <= Pace().files(lane(), 50e6) <= 10
    assert Pace().files(lane(most_bytes=100_000), 1000) == 100


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), max_size=8),
    st.integers(1, 9),
    st.integers(1, 60),
    st.none() | st.integers(1, 4),
)
def test_joined_and_divided(chunks: list[list[int]], most_files: int, most_bytes: int, most: int | None) -> None:
    """For any chunks of a scan, the next items fit or have one file; no file is lost, doubled or out of order among
    those that were joined, and the count of what was gained is right. (pipeline 1)"""

    def fits(files: int, size_bytes: int) -> bool:
        return files <= most_files and size_bytes <= most_bytes

    with tempfile.TemporaryDirectory() as scratch:
        ledger = Ledger(Path(scratch) / "state.sqlite", Path(scratch))
        with ledger.transaction():
            for number, sizes in enumerate(chunks):
                files = [FileSeen(f"{number:02}-{place:02}", size, 1) for place, size in enumerate(sizes)]
                ledger.add("a", files, 0.0)
        before = ledger.next_waiting("a", 0.0, 1000)
        with ledger.transaction():
            more = ledger.regroup("a", 0.0, most, fits)
        after = ledger.next_waiting("a", 0.0, 1000)
        counted = sum(count.items for count in ledger.counts())
        ledger.close()
    assert len(after) == len(before) + more == counted
    assert sorted(one.path for item in after for one in item.files) == sorted(
        one.path for item in before for one in item.files
    )
    for item in after[:most]:
        assert len(item.files) == 1 or fits(len(item.files), item.size_bytes)
        assert [one.path for one in item.files] == sorted(one.path for one in item.files)
    assert len({item.id for item in after}) == len(after)


def test_a_bad_file_is_set_aside_alone(tmp_path: Path) -> None:
    """The files of all small items go in one job; when that fails it is halved, its halves are joined with nothing
    again, and the bad file is set aside alone. (pipeline 5)"""
    make_tree(tmp_path, {"a": 30})
    run = Pipeline(tmp_path, [lane_of(tmp_path, "a", **AUTO)], work=without("a-17"), attempts=1)
    snapshot = run.run()
    assert (snapshot.total.failed, snapshot.total.waiting, snapshot.total.running) == (1, 0, 0)
    assert rows_in(run.output) == [row for row in contents({"a": 30}) if row != "a-17"]
    first, *others = run.reporter.attempts
    assert len(first.item.files) == 30
    assert len(others) == 10  # two a level of halves


def test_a_small_lane_beside_a_large_one(tmp_path: Path) -> None:
    """Of a lane with many files no more than some items wait in memory, so that a lane that comes later is not behind
    them, and the sizes of those behind can still change. (pipeline 23)"""
    make_tree(tmp_path, {"big": 60, "small": 1})
    most = 0

    def watch(run: Pipeline) -> None:
        nonlocal most
        most = max([most, *(feed.queued for feed in run.runner.feeding._feeds.values())])

    lanes = [lane_of(tmp_path, "big", target_s=0.35, batch=4), lane_of(tmp_path, "small", **AUTO)]
    run = Pipeline(tmp_path, lanes, on_idle=watch)
    assert run.run().total.done > 5
    assert most == QUEUED
    assert rows_in(run.output) == contents({"big": 60, "small": 1})


def test_the_plan_says_what_was_chosen(tmp_path: Path) -> None:
    """`batch` is auto by default, for lanes of files, and a plan joins items as a run would."""
    make_tree(tmp_path, {"in": 200})
    lanes = {
        "in": {"files": "in/*", "format": "text"},
        "set": {"files": "in/*", "format": "text", "batch": 7},
        "one": {"files": "in/*", "format": "text", "batch_bytes": 1},
    }
    values = {"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}
    found = {plan.lane.name: (plan.to_run, plan.batch) for plan in plan_of(parse_config(values, tmp_path)).lanes}
    assert found["in"][0] == 1
    assert 500 < found["in"][1] <= MOST_FILES
    assert (found["set"], found["one"]) == ((29, 7), (200, 1))
