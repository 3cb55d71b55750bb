"""What is known of the columns of lanes, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import KnownColumns, Learned, Ledger, common, ddl, extended, hinted, new_parts

from multiqueue.pipeline import ConfigError, PipelineError, parse_config

_STRUCT = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
_WIDER = {
    "type": "struct",
    "fields": [*_STRUCT["fields"], {"name": "y", "type": "date", "nullable": True, "metadata": {}}],
}


def recorded_at_once(learned: Learned) -> None:
    learned.recorded.set_result(None)


def test_columns_are_learnt_when_they_are_recorded(tmp_path: Path) -> None:
    """A lane's columns count from the moment the state has them, and another run finds them there.

    (pipeline 26)
    """
    ledger = Ledger(tmp_path / "s.sqlite", tmp_path)
    told: list[Learned] = []
    is_told = threading.Event()

    def post(learned: Learned) -> None:
        told.append(learned)
        is_told.set()

    known = KnownColumns({}, post)

    def learn() -> None:
        with known.learning("eu") as before:
            assert before is None
            known.learn("eu", {"a": "long"})

    thread = threading.Thread(target=learn)
    thread.start()
    assert is_told.wait(60)
    assert known.of("eu") is None
    with ledger.transaction():
        ledger.record_schema(told[0].lane, told[0].schema)
    told[0].recorded.set_result(None)
    thread.join(60)
    assert not thread.is_alive()
    assert known.of("eu") == {"a": "long"}
    assert KnownColumns(ledger.schemas(), recorded_at_once).of("eu") == {"a": "long"}
    assert KnownColumns(ledger.schemas(), recorded_at_once).of("us") is None
    ledger.close()


def test_a_run_that_ends_records_nothing() -> None:
    """An item that learns while the run ends is told so, and so is one that comes later."""
    is_told = threading.Event()
    known = KnownColumns({}, lambda learned: is_told.set())
    errors: list[Exception] = []

    def learn() -> None:
        with pytest.raises(PipelineError, match="the run has ended") as caught, known.learning("eu"):
            known.learn("eu", {"a": "long"})
        errors.append(caught.value)

    thread = threading.Thread(target=learn)
    thread.start()
    assert is_told.wait(60)
    known.close()
    thread.join(60)
    assert not thread.is_alive()
    learn()
    assert len(errors) == 2
    assert known.of("eu") is None


def test_sets_of_columns() -> None:
    """Columns are added at the end and inside of structs, never take another type, and are told as DDL."""
    known = {"a": "integer", "s": _STRUCT}
    found = {"A": "string", "s": _WIDER, "n": "double"}
    assert extended(known, found) == {"a": "integer", "s": _WIDER, "n": "double"}
    assert new_parts(known, found) == ["s.y", "n"]
    assert new_parts(known, {"S": {"type": "array", "elementType": "long", "containsNull": True}}) == []
    assert common({"a": "integer", "b": "date"}, {"a": "double", "B": "integer", "c": "string"}) == {
        "a": "double",
        "b": "string",
        "c": "string",
    }
    assert hinted(known, {"A": "long", "q": "date"}) == {"a": "long", "s": _STRUCT, "q": "date"}
    assert ddl({"a": "integer", "s": _WIDER}) == "a int, s struct<x: bigint, y: date>"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"schema_hints": "a INT"}, 'schema_hints needs schema = "infer"'),
        ({"on_new_columns": "ignore"}, 'on_new_columns needs schema: "infer", or the columns that are known'),
        ({"schema": "infer", "options": {}}, 'schema = "infer" needs the names of columns: set header = true'),
        ({"schema": "infer", "format": "text"}, "needs one of the formats csv, json, jsonl and parquet, not text"),
        ({"schema": "a INT", "on_new_columns": "add"}, 'on_new_columns = "add" needs schema = "infer"'),
        (
            {"schema": "infer", "options": {"header": True, "enforceSchema": True}},
            'schema = "infer" and the option enforceschema exclude each other',
        ),
        (
            {"schema": "infer", "on_new_columns": "rescue", "options": {"header": True, "mode": "PERMISSIVE"}},
            "a rescued column and the option mode exclude each other",
        ),
        (
            {"schema": "infer", "rescued_column": "r", "format": "jsonl", "options": {"encoding": "UTF-16"}},
            "a rescued column of jsonl is read as UTF-8; leave encoding = 'utf-16' out",
        ),
    ],
)
def test_settings_that_exclude_each_other(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    """What a lane cannot be asked for is refused with what it can."""
    lane = {"files": "*", "format": "csv", "options": {"header": True}, **settings}
    with pytest.raises(ConfigError) as caught:
        parse_config({"lanes": {"a": lane}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)
    assert said in str(caught.value)


def test_what_follows_from_the_schema(tmp_path: Path) -> None:
    """Inferred columns are added to, those of one's own have a rescued column if one is named; others are as before."""

    def of(**settings: Any) -> tuple[str | None, str | None]:
        lane = {"files": "*", "format": "csv", "options": {"header": True}, **settings}
        config = parse_config({"lanes": {"a": lane}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)
        (made,) = config.lanes()
        return made.on_new_columns, made.rescued_column

    assert of() == of(schema="a INT") == (None, None)
    assert of(schema="infer") == ("add", None)
    assert of(schema="infer", on_new_columns="rescue") == ("rescue", "_rescued_data")
    assert of(schema="a INT", rescued_column="r") == ("rescue", "r")
