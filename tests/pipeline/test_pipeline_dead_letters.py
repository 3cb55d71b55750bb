"""What was set aside, as documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import DeadLetters
from pipeline_support import Pipeline, lane_of, make_tree, write_names

from multiqueue.pipeline import FileSeen, Item, PipelineError


def letters(base: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((base / "dead").rglob("*.json"))]


def fail(spark: Any, item: Item, staged: Path) -> bool:
    raise ValueError("bad row")


def test_what_a_letter_says(tmp_path: Path) -> None:
    """A letter has the item, its files, the error with its traceback, and how often it was tried; one line each."""
    make_tree(tmp_path, {"a": 1, "b": 1})
    Pipeline(tmp_path, [lane_of(tmp_path, name) for name in "ab"], work=fail).run()
    first, second = letters(tmp_path)
    assert {first["lane_name"], second["lane_name"]} == {"a", "b"}
    assert (first["error_type"], first["error"]) == ("ValueError", "ValueError: bad row")
    assert 'raise ValueError("bad row")' in first["traceback"]
    assert (first["attempt"], first["failures"], first["files"]) == (3, 3, [f"{first['lane_name']}/0000.txt"])
    (path,) = (tmp_path / "dead" / "lane=a").iterdir()
    assert path.read_text().count("\n") == 1


def test_a_letter_is_there_until_the_item_is_done(tmp_path: Path) -> None:
    """An item that is put back keeps its letter until it is done (pipeline 11)."""
    make_tree(tmp_path, {"a": 2})
    Pipeline(tmp_path, [lane_of(tmp_path, "a")], work=fail).run()
    again = Pipeline(tmp_path, [lane_of(tmp_path, "a")])
    with again.ledger.transaction():
        again.ledger.put_back_failed()
    assert len(letters(tmp_path)) == 2
    again.runner._tally = type(again.runner._tally).of(["a"], again.ledger.counts())
    again.run()
    assert letters(tmp_path) == []


def test_the_letter_of_a_file_that_is_gone(tmp_path: Path) -> None:
    """An item that is forgotten because its file is gone has no letter either."""
    make_tree(tmp_path, {"a": 2})
    Pipeline(tmp_path, [lane_of(tmp_path, "a")], work=fail).run()
    (tmp_path / "a" / "0000.txt").unlink()
    again = Pipeline(tmp_path, [lane_of(tmp_path, "a")])
    with again.ledger.transaction():
        again.ledger.put_back_failed(None, DeadLetters(tmp_path / "dead").remove)
    again.ledger.close()
    assert [letter["files"] for letter in letters(tmp_path)] == [["a/0001.txt"]]


def test_an_item_that_passes_in_the_end_leaves_no_letter(tmp_path: Path) -> None:
    """Failures that were tried again and passed are no dead letters."""
    make_tree(tmp_path, {"a": 3})

    def once(spark: Any, item: Item, staged: Path) -> bool:
        return fail(spark, item, staged) if item.attempt == 1 else write_names(spark, item, staged)

    Pipeline(tmp_path, [lane_of(tmp_path, "a")], work=once).run()
    assert letters(tmp_path) == []


def test_a_letter_that_cannot_be_written(tmp_path: Path) -> None:
    """When the letter cannot be written the run ends with a sentence, and the item is not recorded as failed."""
    (tmp_path / "dead").touch()
    item = Item("i1", "eu", (FileSeen("a", 1, 0),), tmp_path)
    with pytest.raises(PipelineError, match="cannot write the dead letter"):
        DeadLetters(tmp_path / "dead").write(item, ValueError("bad"))
