"""What a step reads again has one set of columns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pipeline_parts_support import note_columns, require_alike

from multiqueue.pipeline import JobError


def put_out(output: Path, lane: str, item: str, columns: dict[str, str]) -> Path:
    """An item with these columns; its lane's directory."""
    fields = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for name, kind in columns.items()
    ]
    directory = output / "data" / f"lane={lane}"
    directory.mkdir(parents=True, exist_ok=True)
    note_columns(SimpleNamespace(schema=SimpleNamespace(fields=fields)), directory / f"item={item}")
    return directory


@pytest.mark.parametrize(
    ("columns", "formats", "said"),
    [
        ({"a": "int", "b": "string"}, [], ""),
        ({"B": "string", "A": "int"}, ["csv"], "their order is B, A, not a, b"),
        ({"a": "bigint", "b": "string"}, ["parquet", "orc"], "'a' is bigint, not int"),
        ({"a": "int"}, ["csv", "json", "parquet", "orc"], "missing 'b'; expected 'a', 'b', found 'a'"),
        ({"a": "int", "b": "string", "c": "date"}, ["csv", "json", "parquet", "orc"], "unexpected 'c'; expected"),
    ],
)
@pytest.mark.parametrize("output_format", ["csv", "json", "parquet", "orc"])
def test_items_of_other_columns(
    tmp_path: Path, columns: dict[str, str], formats: list[str], said: str, output_format: str
) -> None:
    """Items that a reader would mix up are an error that names both and what differs; what the format bears is read."""
    lanes = [
        put_out(tmp_path, "first", "i1", {"a": "int", "b": "string"}),
        put_out(tmp_path, "second", "i2", columns),
        tmp_path / "data" / "lane=of an earlier version",
        tmp_path / "data" / "lane=none",
    ]
    (lanes[2] / "item=i3").mkdir(parents=True)
    if output_format not in formats:
        require_alike(lanes, output_format, tmp_path)
        return
    with pytest.raises(JobError) as caught:
        require_alike(lanes, output_format, tmp_path)
    told = str(caught.value)
    assert told.startswith("'data/lane=second/item=i2' has other columns than 'data/lane=first/item=i1': ")
    assert said in told
    assert told.endswith("name the columns in `expect` of what puts them out, so that all items are alike")
