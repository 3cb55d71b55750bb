"""Finding the files of a lane."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from pipeline_parts_support import Entry, Lane, Place, Status, Storage, _scan


def found(base: Path, *globs: str, **lane: Any) -> list[str]:
    passed_over = lane.pop("passed_over", None) or _scan.PassedOver()
    avoid = lane.pop("avoid", ())
    lane_ = Lane("a", lane.pop("root", base), globs, **lane)
    return [seen.path for seen in _scan.scan(lane_, base, passed_over, avoid)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in ("a.csv", "b.txt", "d/c.csv", "d/e/f.csv", "d/e/_hidden.csv", "d/.dot/g.csv", "x/c.csv", "[m]/h.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["*.csv"], ["a.csv"]),
        (["a.csv"], ["a.csv"]),
        (["**/*.csv"], ["[m]/h.csv", "a.csv", "d/c.csv", "d/e/f.csv", "x/c.csv"]),
        (["d/**"], ["d/c.csv", "d/e/f.csv"]),
        (["d/**/f.csv"], ["d/e/f.csv"]),
        (["*/c.csv"], ["d/c.csv", "x/c.csv"]),
        (["d/*/*.csv", "x/*"], ["d/e/f.csv", "x/c.csv"]),
        (["[[]m]/*"], ["[m]/h.csv"]),
        (["none/*.csv"], []),
        (["d/.dot/*.csv"], ["d/.dot/g.csv"]),
    ],
)
def test_globs(tree: Path, globs: list[str], expected: list[str]) -> None:
    """Wildcards mean what they mean in `glob`, and names come in order."""
    assert found(tree, *globs) == expected


def test_no_file_twice(tree: Path) -> None:
    """A file that several globs match is found once."""
    assert found(tree, "**/*.csv", "d/**/*.csv", "**/**/c.csv", "a.csv") == found(tree, "**/*.csv")


@given(st.lists(st.sampled_from(["a", "b", "*", "**", "?"]), min_size=1, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_as_glob_of_the_standard_library(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    """Any pattern finds the files that `glob.glob` finds."""
    import glob

    base = tmp_path_factory.getbasetemp() / "glob-tree"
    for path in ("a/a/a/a", "a/b", "b/a", "b/b/b", "b/c/a"):
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).touch()
    pattern = "/".join(parts)
    listed = glob.glob(pattern, root_dir=base, recursive=True)
    expected = {path for path in listed if (base / path).is_file() and not path.endswith("/")}
    assert sorted(found(base, pattern)) == sorted(expected)


def test_what_spark_would_ignore_is_told(tree: Path) -> None:
    """Names with `_` or `.` are passed over and counted, because Spark reads nothing from them; `paths` has them.

    (pipeline 1)
    """
    passed_over = _scan.PassedOver()
    found(tree, "d/e/*.csv", passed_over=passed_over)
    assert passed_over.sentences() == [
        "passed over 1: Spark ignores names that start with '_' or '.', for example 'd/e/_hidden.csv'"
    ]
    assert found(tree, "d/e/*.csv", format="paths") == ["d/e/_hidden.csv", "d/e/f.csv"]


def test_the_output_is_not_read(tree: Path) -> None:
    """A glob over everything does not enter the output directory."""
    assert "d/c.csv" not in found(tree, "**/*.csv", avoid={tree / "d"})


def test_excluded_names(tree: Path) -> None:
    """Files and directories with an excluded name are left out."""
    assert found(tree, "**/*.csv", exclude=("d", "h.*")) == ["a.csv", "x/c.csv"]


def test_links(tree: Path) -> None:
    """`**` does not follow a link, a component that names it does: a link to its parent ends no scan."""
    (tree / "x" / "loop").symlink_to(tree)
    assert found(tree, "x/**/*.csv") == ["x/c.csv"]
    assert found(tree, "x/loop/*.csv") == ["x/loop/a.csv"]


def test_a_root_with_wildcards_in_its_name(tree: Path) -> None:
    """A directory named `[m]` that became a lane is taken by its name."""
    assert found(tree, "*.csv", root=tree / "[m]") == ["[m]/h.csv"]


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A name that is not UTF-8 is passed over and told, not an error in the middle of a run."""
    with open(os.path.join(os.fsencode(tmp_path), b"\xff.csv"), "w"):
        pass
    passed_over = _scan.PassedOver()
    assert found(tmp_path, "*.csv", passed_over=passed_over) == []
    assert passed_over.sentences() == ["passed over 1: the name is not UTF-8, for example '\\\\xff.csv'"]


def test_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    """A directory whose name is not UTF-8 makes no lane: it is told, and the lanes beside it are there."""
    for name in (b"\xff", b"ok"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    passed_over = _scan.PassedOver()
    lanes = _scan.directories(f"{tmp_path}/*", (), passed_over, Storage())
    assert [place.name for place in lanes] == ["ok"]
    assert passed_over.unread == f"'{tmp_path}/\\\\xff': the name is not UTF-8"


def test_a_path_that_is_no_text_can_be_told(tmp_path: Path) -> None:
    """A file that is passed over is told by a path that can be printed, whatever its name is."""
    with open(os.path.join(os.fsencode(tmp_path), b"_\xff.csv"), "w"):
        pass
    passed_over = _scan.PassedOver()
    assert found(tmp_path, "*.csv", passed_over=passed_over) == []
    assert passed_over.sentences()[0].endswith("for example '_\\\\xff.csv'")


@pytest.mark.parametrize(("glob", "place"), [("d", "/d"), ("d/", "/d"), ("d/e/..", "/d"), (".", "")])
def test_a_glob_that_is_a_directory(tree: Path, glob: str, place: str) -> None:
    """A directory that `files` names is passed over, and the sentence has the glob of its files."""
    passed_over = _scan.PassedOver()
    assert found(tree, glob, "a.csv", passed_over=passed_over) == ["a.csv"]
    (sentence,) = passed_over.sentences()
    assert f"a directory, and no file; its files are {tree}{place}/*" in sentence


def test_the_root_is_no_file(tree: Path) -> None:
    """The root of all files is a directory as any other is."""
    passed_over = _scan.PassedOver()
    assert found(tree, "/", passed_over=passed_over) == []
    assert passed_over.sentences() == ["passed over 1: a directory, and no file; its files are /*, for example '/'"]


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    """A root that does not exist is told as what was passed over, with what to do."""
    passed_over = _scan.PassedOver()
    assert found(tmp_path, "none/*.csv", passed_over=passed_over) == []
    assert "the directory does not exist; make it, or correct the lane's files" in passed_over.sentences()[0]


@pytest.mark.slow(selected=True)
def test_a_scan_holds_a_slice_of_a_directory(tmp_path: Path) -> None:
    """Going through 20,000 files takes memory for a slice of them."""
    for i in range(20_000):
        (tmp_path / f"{i:06}").touch()
    lane = Lane("a", tmp_path, ("*",))
    tracemalloc.start()
    count = sum(1 for _ in _scan.scan(lane, tmp_path, _scan.PassedOver()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 1_500_000  # all the entries together are 6 MB and more


class Shelves(Storage):
    """A store of `count` directories of two files, whose listings wait for each other, `together` at once."""

    def __init__(self, count: int, together: int = 1) -> None:
        super().__init__()
        self.count = count
        self.together = threading.Barrier(together)
        self.under_way = self.most = 0

    def exists(self, place: Place) -> bool:
        return True

    def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
        if place.name == "in":
            yield [Entry(f"{one:03}", place / f"{one:03}", None) for one in range(self.count)]
            return
        self.together.wait(60)
        yield [Entry(name, place / name, Status(1, 1)) for name in "ab"]

    def ahead(self, place: Place) -> Any:
        asked = super().ahead(place)
        self.under_way += asked is not None
        self.most = max(self.most, self.under_way)
        return asked

    def came(self, pages: Any) -> None:
        super().came(pages)
        self.under_way -= 1


def test_directories_of_a_store_are_listed_together(tmp_path: Path) -> None:
    """Threads list directories of a store before their turn; their files come in order, each once, and few pages wait.

    (pipeline 6)
    """
    store = Shelves(40, together=8)
    lane = Lane("a", tmp_path, ("s3://b/in/*/*",))
    found = [seen.path for seen in _scan.scan(lane, tmp_path, _scan.PassedOver(), storage=store)]
    assert found == [f"s3://b/in/{one:03}/{name}" for one in range(40) for name in "ab"]
    assert (store.most, store.under_way) == (16, 0)
    store = Shelves(100)
    scans = [_scan.scan(lane, tmp_path, _scan.PassedOver(), storage=store) for _ in range(5)]
    for one in scans:
        next(one)
    assert store.most == 32
    for one in scans:
        one.close()
    assert store.under_way == 0


def test_a_directory_that_was_listed_before_its_turn_may_fail(tmp_path: Path) -> None:
    """What a thread was told by the store is told of its directory, and the others are read."""

    class Broken(Shelves):
        def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
            if place.name == "002":
                raise OSError(None, "the store is tired")
            yield from super().pages(place, after)

    met = _scan.PassedOver()
    found = list(_scan.scan(Lane("a", tmp_path, ("s3://b/in/*/*",)), tmp_path, met, storage=Broken(5)))
    assert len(found) == 8
    assert met.unread == "'s3://b/in/002': directory not readable (the store is tired)"
