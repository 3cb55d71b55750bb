"""What becomes of files that are done, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from emulators_support import bucket_maker
from pipeline_parts_support import FileSeen, Follow, Lane, Ledger, Place, StopRequested, Storage, StorageSection
from pipeline_support import Pipeline, contents, lane_of, make_tree, rows_in, write_names

from multiqueue.pipeline import ConfigError, Item, Silent, parse_config, run_pipeline


def names(directory: Path) -> list[str]:
    """The files below, as paths."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def moved(base: Path, name: str = "eu", **settings: Any) -> Lane:
    """A lane whose files are moved to `gone`."""
    return lane_of(base, name, after="move", after_place=Place(str(base / "gone")), **settings)


def test_files_that_are_done_are_deleted_after_their_rows_are_there(tmp_path: Path) -> None:
    """Files go when their item is recorded as done and the disk has it; those of a lane that keeps them stay.

    (pipeline 28)
    """
    make_tree(tmp_path, {"eu": 5, "us": 2})
    seen: list[tuple[int, int]] = []

    def sync() -> None:
        seen.append((len(rows_in(tmp_path / "out")), len(names(tmp_path / "eu"))))

    lanes = [lane_of(tmp_path, "eu", after="delete", batch=2), lane_of(tmp_path, "us")]
    pipeline = Pipeline(tmp_path, lanes, sync=sync)
    pipeline.run()
    assert names(tmp_path / "eu") == []
    assert len(names(tmp_path / "us")) == 2
    assert rows_in(tmp_path / "out") == contents({"eu": 5, "us": 2})
    assert all(rows - 2 >= 5 - files or rows >= 5 - files for rows, files in seen)
    assert seen[0][1] == 5
    assert pipeline.disposal.sentences() == ["lane 'eu': 5 files deleted"]
    again = Pipeline(tmp_path, lanes)  # a lane whose files have gone is whole
    assert again.run().total.done == 5  # three items of eu, two of us
    assert again.scanner.lost == []


def test_files_that_are_done_are_moved(tmp_path: Path) -> None:
    """A file keeps its path below the place that it is moved to; one of the same name comes to lie beside it.

    (pipeline 28)
    """
    make_tree(tmp_path, {"eu": 2})
    Pipeline(tmp_path, [moved(tmp_path)]).run()
    assert names(tmp_path / "gone") == ["eu/0000.txt", "eu/0001.txt"]
    (tmp_path / "eu" / "0000.txt").write_text("another")
    os.utime(tmp_path / "eu" / "0000.txt", (1_700_000_000, 1_700_000_000))
    (tmp_path / "eu" / "0001.txt").write_text("eu-1")  # the same once more
    Pipeline(tmp_path, [moved(tmp_path)]).run()
    assert names(tmp_path / "eu") == []
    assert names(tmp_path / "gone") == ["eu/0000-20231114T221320Z.txt", "eu/0000.txt", "eu/0001.txt"]
    assert (tmp_path / "gone" / "eu" / "0000.txt").read_text() == "eu-0"
    assert rows_in(tmp_path / "out") == ["another", "eu-0", "eu-1", "eu-1"]  # each is an input of its own


def test_a_stop_waits_for_the_batch_that_is_under_way(tmp_path: Path) -> None:
    """Ctrl-C while files are taken away: the run ends once that batch is recorded, and begins no other."""
    make_tree(tmp_path, {"eu": 3})
    asked: list[bool] = []

    def stop(run: Pipeline) -> None:
        if run.disposal.is_busy and not asked:
            asked.append(True)
            run.mailbox.post(StopRequested())

    pipeline = Pipeline(tmp_path, [lane_of(tmp_path, "eu", after="delete")], on_idle=stop)
    pipeline.run()
    assert asked
    assert not pipeline.disposal.is_busy
    assert names(tmp_path / "eu") == ["0001.txt", "0002.txt"]
    assert pipeline.disposal.sentences() == ["lane 'eu': 1 file deleted"]


def test_the_files_of_a_lane_that_comes_while_following_go_too(tmp_path: Path) -> None:
    """A directory that makes a lane during the run has its files taken away like those that were there."""
    make_tree(tmp_path, {"eu": 1})
    lanes = [lane_of(tmp_path, "eu", after="delete")]
    idles = 0

    def grow(run: Pipeline) -> None:
        nonlocal idles
        idles += 1
        if idles == 10:
            make_tree(tmp_path, {"us": 2})
            lanes.append(lane_of(tmp_path, "us", after="delete"))
        if idles == 100:
            run.mailbox.post(StopRequested())

    follow = lambda run: Follow(1.0, 0.0, lambda: lanes, run.time)  # noqa: E731
    pipeline = Pipeline(tmp_path, lanes[:1], follow=follow, on_idle=grow)
    pipeline.run()
    assert rows_in(tmp_path / "out") == contents({"eu": 1, "us": 2})
    assert names(tmp_path / "eu") == names(tmp_path / "us") == []


def test_what_is_set_aside_stays(tmp_path: Path) -> None:
    """The files of an item that is set aside stay where they are, and go once it is done. (pipeline 28)"""
    make_tree(tmp_path, {"eu": 3})
    is_bad = True

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if is_bad and "eu/0001.txt" in [one.path for one in item.files]:
            raise RuntimeError("bad")
        return write_names(spark, item, staged)

    Pipeline(tmp_path, [moved(tmp_path, batch=3)], work=work).run()
    assert names(tmp_path / "eu") == ["0001.txt"]
    is_bad = False
    ledger = Ledger(tmp_path / "out" / "_multiqueue" / "state.sqlite", tmp_path)
    assert ledger.put_back_failed() == 1
    ledger.close()
    Pipeline(tmp_path, [moved(tmp_path, batch=3)], work=work).run()
    assert names(tmp_path / "eu") == []
    assert rows_in(tmp_path / "out") == contents({"eu": 3})


def test_a_delay_and_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    """A file goes after the delay, in a later run if need be; one that was written to since stays and is read again.

    (pipeline 28)
    """
    make_tree(tmp_path, {"eu": 2})
    now_s = 1_800_000_000.0
    lane = moved(tmp_path, after_delay_s=100.0)

    def run() -> None:
        Pipeline(tmp_path, [lane], wall=lambda: now_s).run()

    run()
    assert names(tmp_path / "eu") == ["0000.txt", "0001.txt"]
    now_s += 50
    (tmp_path / "eu" / "0000.txt").write_text("changed")
    run()
    now_s += 60
    run()
    assert names(tmp_path / "eu") == ["0000.txt"]
    assert rows_in(tmp_path / "out") == ["changed", "eu-1"]  # the old rows are replaced
    now_s += 60
    run()
    assert names(tmp_path / "eu") == []


def test_a_delay_by_a_clock_that_jumps(tmp_path: Path) -> None:
    """The delay is one of the clock on the wall: set back by hours, files stay for as long; set forth, they go.

    No run waits for that. (pipeline 28)
    """
    make_tree(tmp_path, {"eu": 1})
    now_s = 1_800_000_000.0
    lane = moved(tmp_path, after_delay_s=100.0)
    for jump_s, there in ((0, 1), (-5 * 3600, 1), (5 * 3600, 1), (3600, 0), (-3600, 0)):
        now_s += jump_s
        pipeline = Pipeline(tmp_path, [lane], wall=partial(float, now_s))
        assert pipeline.run().total.done == 1
        assert len(names(tmp_path / "eu")) == there, jump_s
    assert names(tmp_path / "gone") == ["eu/0000.txt"]


def test_a_file_that_changes_in_the_last_moment(tmp_path: Path) -> None:
    """A file that is written to while it is about to go stays, and is a file of its own. (pipeline 28)"""
    make_tree(tmp_path, {"eu": 2})

    def change() -> None:
        (tmp_path / "eu" / "0000.txt").write_text("the next one")

    pipeline = Pipeline(tmp_path, [moved(tmp_path)], sync=change)
    pipeline.run()
    assert pipeline.disposal.sentences() == [
        "lane 'eu': 1 file left in place: changed since it was read",
        f"lane 'eu': 1 file moved to '{tmp_path}/gone'",
    ]
    Pipeline(tmp_path, [moved(tmp_path)]).run()
    assert rows_in(tmp_path / "out") == ["eu-0", "eu-1", "the next one"]
    assert names(tmp_path / "eu") == []


class Death(BaseException):
    """As kill -9: nothing after it is done."""


class DyingStorage(Storage):
    """Dies at the n-th step on the way of files."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def _live(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Death

    def _copy(self, source: Place, target: Place) -> None:
        self._live()
        super()._copy(source, target)
        self._live()

    def remove(self, place: Place) -> None:
        self._live()
        super().remove(place)
        self._live()


@pytest.mark.parametrize("after", ["move", "delete"])
def test_a_death_at_every_step(tmp_path: Path, after: str) -> None:
    """After a death before or after each copy, each removal and each transaction, each file is moved or deleted once.

    (pipeline 28)
    """
    is_over = False
    for step in range(1, 40):
        base = tmp_path / str(step)
        make_tree(base, {"eu": 3})
        lane = moved(base, batch=2) if after == "move" else lane_of(base, "eu", after="delete", batch=2)
        dying = Pipeline(base, [lane])
        dying.disposal.storage = storage = DyingStorage(step)
        dying.ledger.leaving.begin = died(storage, dying.ledger.leaving.begin)  # type: ignore[method-assign]
        dying.ledger.leaving.forget = died(storage, dying.ledger.leaving.forget)  # type: ignore[method-assign]
        try:
            dying.run()
            is_over = True
        except Death:
            pass
        Pipeline(base, [lane]).run()
        assert names(base / "eu") == []
        assert names(base / "gone") == (["eu/0000.txt", "eu/0001.txt", "eu/0002.txt"] if after == "move" else [])
        assert rows_in(base / "out") == contents({"eu": 3})
        last = Pipeline(base, [lane])
        assert last.ledger.leaving.noted(["eu"], 9) == []
        last.run()
        if is_over:
            assert step > 10
            return
    raise AssertionError("it never came to its end")


def died(storage: DyingStorage, method: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(files: Any) -> None:
        storage._live()
        method(files)
        storage._live()

    return call


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file that cannot be moved stays, the run says why and is done, and the next run moves it. (pipeline 28)"""
    make_tree(tmp_path, {"eu": 1})
    (tmp_path / "gone").write_text("a file")
    pipeline = Pipeline(tmp_path, [moved(tmp_path)])
    assert pipeline.run().total.done == 1
    assert pipeline.disposal.sentences() == ["lane 'eu': 1 file cannot be moved: Not a directory"]
    os.remove(tmp_path / "gone")
    Pipeline(tmp_path, [moved(tmp_path)]).run()
    assert names(tmp_path / "gone") == ["eu/0000.txt"]


def test_it_is_tried_again_after_a_pause_by_the_monotonic_clock(tmp_path: Path) -> None:
    """A run that goes on tries again a minute later, though the clock on the wall was set back by an hour meanwhile.

    (pipeline 28)
    """
    make_tree(tmp_path, {"eu": 1})
    (tmp_path / "gone").write_text("a file")
    started, stepped_s, moved_at = 1_800_000_000.0, 0.0, 0.0

    def mend(run: Pipeline) -> None:
        nonlocal stepped_s, moved_at
        if run.disposal.told and not stepped_s:
            os.remove(tmp_path / "gone")
            stepped_s = -3600.0
        if names(tmp_path / "eu") == [] or run.time() > 7200.0:
            moved_at = run.time()
            run.mailbox.post(StopRequested())

    lanes, clocks = [moved(tmp_path)], [lambda: 0.0]

    def follow(run: Pipeline) -> Follow:
        clocks.append(run.time)
        return Follow(1.0, 0.0, lambda: lanes, run.time)

    def wall() -> float:
        return started + clocks[-1]() + stepped_s

    pipeline = Pipeline(tmp_path, lanes, follow=follow, on_idle=mend, wall=wall)
    began = pipeline.time()
    pipeline.run()
    assert names(tmp_path / "gone") == ["eu/0000.txt"]
    assert 60.0 <= moved_at - began < 63.0


@pytest.fixture(params=["local", "s3", "from s3", "to s3", "gs", "abfss"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Storage, Place, Place]]:
    """A place to move from and one to move to."""
    here, storage = Place(str(tmp_path)), Storage()
    if request.param == "local":
        yield storage, here / "a", here / "b"
        return
    bucket = bucket_maker(request, request.param.rpartition(" ")[2])({})
    there = Place(bucket.url)
    storage = Storage({"s": StorageSection(**bucket.section)})
    yield (
        storage,
        (here if request.param == "to s3" else there) / "a",
        (here if request.param == "from s3" else there) / "b",
    )


def test_moves_between_places(ends: tuple[Storage, Place, Place]) -> None:
    """Files and objects are moved within a place and between places; nothing that is there is replaced.

    (pipeline 28)
    """
    storage, source, target = ends
    storage.put(source / "x.csv.gz", b"one")
    assert storage.move(source / "x.csv.gz", target / "d/x.csv.gz") == target / "d/x.csv.gz"
    storage.put(source / "x.csv.gz", b"one")
    assert storage.move(source / "x.csv.gz", target / "d/x.csv.gz") == target / "d/x.csv.gz"
    for body in (b"two", b"six"):
        storage.put(source / "x.csv.gz", body)
        found = storage.move(source / "x.csv.gz", target / "d/x.csv.gz")
        assert found.name.startswith("x-2")
        assert found.name.endswith(".csv.gz")
    bodies = []
    for page in storage.pages(target / "d"):
        for entry in page:
            with storage.open(entry.place) as stream:
                bodies.append(stream.read())
    assert sorted(bodies) == [b"one", b"six", b"two"]
    assert not storage.exists(source / "x.csv.gz")
    with pytest.raises(FileNotFoundError):
        storage.move(source / "x.csv.gz", target / "y")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"after": "move"}, 'after = "move" and after_place go together'),
        ({"after_place": "gone"}, 'after = "move" and after_place go together'),
        ({"after": "burn"}, "lanes.a.after: "),
        ({"after_delay": 5}, 'after_delay needs after = "move" or "delete"'),
        ({"after": "delete", "forget_after": 5}, "forget_after needs files that stay where they are"),
        ({"on_forgotten": "again"}, "on_forgotten needs forget_after"),
        ({"forget_after": 0}, "lanes.a.forget_after: "),
        ({"after": "move", "after_place": "hdfs:/x"}, "'hdfs:/x' is a place in HDFS, which is out of reach"),
        ({"after": "move", "after_place": "in"}, "/in' has input below it; name a directory beside"),
        ({"after": "move", "after_place": "."}, "' has input below it; name a directory beside"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    """What cannot be done with files is refused with what can."""
    lane = {"files": "in/a/*", "format": "text", **settings}
    with pytest.raises(ConfigError) as caught:
        parse_config({"lanes": {"a": lane}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)
    assert said in str(caught.value)


def test_what_was_moved_is_not_read_again(tmp_path: Path) -> None:
    """A place within what the globs match is passed over by the scans of every lane."""
    make_tree(tmp_path, {"in": 2})
    lanes = {"a": {"files": "in/**/*", "format": "text", "after": "move", "after_place": "in/gone"}}
    config = parse_config({"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)
    assert Place(str(tmp_path / "in" / "gone")) in config.written
    (lane,) = config.lanes()
    assert (lane.after, lane.after_place) == ("move", Place(str(tmp_path / "in" / "gone")))


@pytest.mark.parametrize("chosen", [None, "in"])
def test_a_lane_whose_directory_has_gone(tmp_path: Path, chosen: str | None) -> None:
    """What a run has noted of a directory that is not there any more is forgotten by the next. (pipeline 28)"""
    (tmp_path / "in").mkdir()
    lanes = {"in": {"directories": "in/*", "files": "*.txt", "format": "text", "after": "delete"}}
    config = parse_config({"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)
    state = tmp_path / "out" / "_multiqueue" / "state.sqlite"
    state.parent.mkdir(parents=True)
    ledger = Ledger(state, tmp_path)
    with ledger.transaction():
        ledger.add("eu", [FileSeen("in/eu/0.txt", 1, 1)], 0)
        (item,) = ledger.next_waiting("eu", 0, 1)
        ledger.succeed(ledger.submit(item), item.files, 0, 1)
        (files,) = ledger.leaving.done_before("eu", 1e12, 9)
        ledger.leaving.begin(files)
    ledger.close()
    run_pipeline(config if chosen is None else config.only([chosen]), Silent())
    ledger = Ledger(state, tmp_path)
    assert ledger.leaving.lanes() == []
    ledger.close()
