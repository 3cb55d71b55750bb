"""Writing Arrow batches as Parquet files of a table, by the executors' Python: where Spark does not reach the store.

This module is sent to executors by value, so it imports nothing of ours, and what it needs of others where it runs.

Promise     Each task writes files of names that no other attempt of it has, and tells of them when it has written all:
            files of an attempt that died are told by none, and no commit names them. With `partition_by` a file has
            rows of one value of each of these columns, which are in the names of its directories.
Memory      A batch, and per file that is being written what Parquet holds of a row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "path string, size_bytes bigint, footer binary"
"""The columns that describe a written file: its path below the directory, its size, and its Parquet footer."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_ROWS = 128 * 1024


@dataclass(frozen=True)
class Target:
    """Where the files go."""

    protocol: str
    """fsspec's."""
    arguments: Mapping[str, Any]
    """Of its file system, secrets among them."""
    directory: str
    """As that file system calls it."""
    partition_by: Sequence[str] = ()
    keeps_columns: bool = False
    """Whether the files have the columns of `partition_by` too."""
    compression: str = "snappy"


def writer(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for `mapInArrow` that writes what it is given, and gives back a row for each file."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import uuid

        import fsspec
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        store = fsspec.filesystem(target.protocol, **target.arguments, skip_instance_cache=True)
        name = f"part-{uuid.uuid4().hex}.parquet"
        opened: dict[str, tuple[Any, Any]] = {}
        for batch in batches:
            for place, rows in _parts(pyarrow.table(pyarrow.Table.from_batches([batch])), target):
                if not rows.num_rows:
                    continue
                path = f"{place}{name}"
                if path not in opened:
                    stream = store.open(f"{target.directory}/{path}", "wb")
                    opened[path] = stream, parquet.ParquetWriter(stream, rows.schema, compression=target.compression)
                opened[path][1].write_table(rows, row_group_size=_ROW_GROUP_ROWS)
        found: list[tuple[str, int, bytes]] = []
        for path, (stream, file) in opened.items():
            file.close()
            size_bytes = stream.tell()
            stream.close()
            with store.open(f"{target.directory}/{path}", "rb") as written:
                footer = parquet.read_metadata(written)
            kept = pyarrow.BufferOutputStream()
            footer.write_metadata_file(kept)
            found.append((path, size_bytes, kept.getvalue().to_pybytes()))
        paths, sizes, footers = ([one[place] for one in found] for place in range(3))
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(paths, "string"), pyarrow.array(sizes, "int64"), pyarrow.array(footers, "binary")],
            ["path", "size_bytes", "footer"],
        )

    return write


def _parts(rows: Any, target: Target, place: int = 0) -> Iterator[tuple[str, Any]]:
    """The rows by the values of the columns from this one on: the directory for each, and its rows."""
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    if place == len(target.partition_by):
        yield "", rows if target.keeps_columns else rows.drop_columns(list(target.partition_by))
        return
    name = target.partition_by[place]
    column = rows[name]
    for value in column.unique():
        chosen = compute.is_null(column) if not value.is_valid else compute.equal(column, value)
        for rest, part in _parts(rows.filter(chosen), target, place + 1):
            yield f"{'_of_' if target.keeps_columns else ''}{name}={_escaped(value.as_py())}/{rest}", part


def _escaped(value: Any) -> str:
    """A value as Spark writes it into the name of a directory."""
    import datetime

    if value is None or value == "":
        return _NO_VALUE
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, datetime.datetime):
        value = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
    return "".join(f"%{ord(one):02X}" if one < " " or one in "\"#%'*/:=?\\{[]^\x7f" else one for one in str(value))
