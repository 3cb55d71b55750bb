"""Outputs that are tables, without Spark: items' rows written by pyarrow, tables read by others' code."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline_parts_support import Change, Kind, Lane, Step, TableOutput, output_of
from pipeline_support import Pipeline, do_without

from multiqueue.pipeline import Item, parse_config

# Asked for here, once for all tests of tables; loaded by those that read one, for they are dear to load.
for _name in ("deltalake", "pyiceberg"):
    if find_spec(_name) is None:
        do_without(f"{_name} is not installed: pip install 'blocking-multiqueue[test]'")

# The columns of what `write_rows` writes.
_COLUMNS: dict[str, Kind] = {"lane": "string", "item": "string", "row": "string"}


def output_in(
    base: Path, kind: str, steps: tuple[str, ...] = (), storage: dict[str, Any] | None = None, **settings: Any
) -> TableOutput:
    """The tables in `out` below the directory, or where `path` says."""
    config = parse_config(
        {
            "lanes": {"in": {"files": "*", "format": "text"}},
            "job": {"sql": "SELECT * FROM input"},
            "steps": {name: {"after": "in", "sql": "SELECT 1"} for name in steps},
            "output": {"path": "out", "work": "out", "table": kind, **settings},
            "storage": storage or {},
        },
        base,
    )
    output = output_of(config)
    assert isinstance(output, TableOutput)
    return output


def put(output: TableOutput, item: Item, rows: dict[str, list[Any]], columns: dict[str, Kind]) -> None:
    """Write these columns, and ours, as a running item does."""
    import pyarrow
    import pyarrow.parquet as parquet

    table, directory = output.table_of(item), output.directory_of(item)
    count = len(next(iter(rows.values())))
    ours = {"lane": [item.lane] * count, "item": [item.id] * count}
    body = io.BytesIO()
    parquet.write_table(pyarrow.table({**ours, **rows}), body)
    table.files.storage.put(table.files.place(f"{directory}/part-0.parquet"), body.getvalue())
    output.note(Change(item, directory, table.files.described(directory, ()), columns))


def write_rows(output: TableOutput) -> Callable[[Any, Item, Path], bool]:
    """Work that puts a row for each of the item's files into the table; of a step, one that names its part."""

    def work(spark: Any, item: Item, staged: Path) -> bool:
        rows = [path.read_text() for path in item.paths] or [f"{item.lane} {item.part}".strip()]
        put(output, item, {"row": rows}, _COLUMNS)
        return True

    return work


def table_pipeline(
    base: Path,
    lanes: list[Lane],
    kind: str,
    *,
    prepared: Callable[[TableOutput], None] | None = None,
    where: dict[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """As `Pipeline`, into tables `where` that is; `prepared` is called with the output before anything is done."""
    output = output_in(base, kind, tuple(step.name for step in settings.get("steps", ())), **(where or {}))
    if prepared is not None:
        prepared(output)
    return Pipeline(base, lanes, work=settings.pop("work", write_rows)(output), publisher=lambda _: output, **settings)


def rows_of(root: Path | str, kind: str, column: str = "row", options: dict[str, str] | None = None) -> list[Any]:
    """A column of the table at this place, sorted, as the library of its kind reads it."""
    return sorted(read(root, kind, options)[column].to_pylist())


def read(root: Path | str, kind: str, options: dict[str, str] | None = None) -> Any:
    """The table at this place, as Arrow's."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(root, storage_options=options).to_pyarrow_table()
    return iceberg(root).scan().to_arrow()


def versions(root: Path, kind: str) -> int:
    """How many versions readers can have seen the table in."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(root).version() + 1
    return len(iceberg(root).metadata.metadata_log) + 1


def iceberg(root: Path | str) -> Any:
    """The table at this place as its newest metadata has it, without a catalog."""
    from pyiceberg.table import StaticTable

    newest = max((Path(root) / "metadata").glob("*.metadata.json"))
    return StaticTable.from_metadata(f"file://{newest}")


STEPS = (Step("daily", ("in",), each_lane=True), Step("totals", ("daily",)))
