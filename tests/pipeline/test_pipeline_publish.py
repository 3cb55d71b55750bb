"""From staging to the final place."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_parts_support import Ledger, Publisher, open_ledger

from multiqueue.pipeline import FileSeen, Item, StateMismatch


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """One that knows of nothing."""
    with open_ledger(tmp_path / "state.sqlite", tmp_path) as ledger:
        yield ledger


@pytest.fixture
def publisher(tmp_path: Path, ledger: Ledger) -> Publisher:
    publisher = Publisher(tmp_path / "out")
    publisher.prepare(ledger)
    return publisher


def item(tmp_path: Path, attempt: int = 1, lane: str = "eu") -> Item:
    return Item("i1", lane, (FileSeen("a.csv", 1, 1),), tmp_path, attempt)


def publish(publisher: Publisher, one: Item, text: str) -> None:
    with publisher.attempt(one) as staged:
        staged.mkdir()
        (staged / "part-0").write_text(text)
        publisher.publish(one, staged)


def test_an_item_in_its_place(tmp_path: Path, publisher: Publisher) -> None:
    """What was published is in the directory of lane and item, with a note of the attempt and its files.

    (pipeline 2)
    """
    publish(publisher, item(tmp_path), "rows")
    place = tmp_path / "out" / "data" / "lane=eu" / "item=i1"
    assert sorted(path.name for path in place.iterdir()) == ["_item.json", "part-0"]
    assert json.loads((place / "_item.json").read_text()) == {
        "item": "i1",
        "lane": "eu",
        "attempt": 1,
        "files": ["a.csv"],
    }


def test_only_the_last_attempt_counts_as_published(tmp_path: Path, publisher: Publisher) -> None:
    """The output of an earlier attempt says nothing about a later one."""
    assert not publisher.is_published(item(tmp_path))
    publish(publisher, item(tmp_path), "rows")
    assert publisher.is_published(item(tmp_path))
    assert not publisher.is_published(item(tmp_path, attempt=2))


def test_a_later_attempt_replaces_the_output(tmp_path: Path, publisher: Publisher) -> None:
    """The old rows are gone, and nothing is left in staging."""
    publish(publisher, item(tmp_path), "old")
    publish(publisher, item(tmp_path, attempt=2), "new")
    assert [path.read_text() for path in publisher.data.rglob("part-0")] == ["new"]
    assert list((tmp_path / "out" / "_multiqueue" / "staging").iterdir()) == []


def test_what_is_not_published_is_removed(tmp_path: Path, publisher: Publisher) -> None:
    """An attempt that raises leaves nothing (pipeline 2)."""

    def fail() -> None:
        with publisher.attempt(item(tmp_path)) as staged:
            staged.mkdir()
            raise OSError

    with pytest.raises(OSError):
        fail()
    assert list((tmp_path / "out" / "_multiqueue" / "staging").iterdir()) == []
    assert list(publisher.data.iterdir()) == []


@pytest.mark.parametrize("lane", ["a/b", "..", "ü%41", "x=y", "a b", ":"])
def test_any_lane_name_is_one_directory(tmp_path: Path, publisher: Publisher, lane: str) -> None:
    """A lane's name never leaves its directory, and two names never share one."""
    publish(publisher, item(tmp_path, lane=lane), "rows")
    (directory,) = publisher.data.iterdir()
    assert re.fullmatch(r"lane=[\w.~% -]+", directory.name, re.ASCII)


def test_results_without_a_state(tmp_path: Path, publisher: Publisher, ledger: Ledger) -> None:
    """An empty ledger beside results is refused: the files would be counted twice."""
    publish(publisher, item(tmp_path), "rows")
    with pytest.raises(StateMismatch, match="has results that are not in the state"):
        Publisher(publisher.output).prepare(ledger)


def test_staging_of_a_dead_run_is_removed(tmp_path: Path, publisher: Publisher, ledger: Ledger) -> None:
    """The next start clears what a killed attempt left, and touches no result."""
    publish(publisher, dataclasses.replace(item(tmp_path), id="i2"), "rows")
    (tmp_path / "out" / "_multiqueue" / "staging" / "i1-1").mkdir()
    ledger.add("eu", [FileSeen("a.csv", 1, 1)], 0.0)
    Publisher(publisher.output).prepare(ledger)
    assert list((tmp_path / "out" / "_multiqueue" / "staging").iterdir()) == []
    assert len(list(publisher.data.rglob("part-0"))) == 1
