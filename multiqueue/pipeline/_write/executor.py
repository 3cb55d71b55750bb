"""Writing Arrow batches as Parquet files of a table, by the executors' Python: where Spark does not reach the store.

This module is sent to executors by value, so it imports nothing of ours, and other packages where it runs.

Promise     Each task writes files of names that no other attempt of it has, and tells of them when it has written all:
            no end names the files of an attempt that died, and no commit does. With `partition_by` a file has
            rows of one value of each of these columns, which are in the names of its directories.
Memory      A batch, and what Parquet holds of a row group for each of at most `_MOST_OPEN` files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "path string, size_bytes bigint, footer binary"
"""The columns that describe a written file: its path below the directory, its size, and its Parquet footer."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_ROWS = 128 * 1024
# Files that one task writes at a time: an upload to a store each.
_MOST_OPEN = 8
# Of directories that one task writes; pyarrow would refuse more than 1,024.
_MOST_VALUES = 1_000_000


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
    """A function for `mapInArrow` that writes its batches, and gives back a row for each file.

    Rows with equal values of `partition_by` come together, as Spark's own writer has them.
    """

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import uuid

        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import dataset

        filled = (_in_directories(batch, target) for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        found: list[tuple[str, int, bytes]] = []

        def note(file: Any) -> None:
            footer = pyarrow.BufferOutputStream()
            file.metadata.write_metadata_file(footer)
            path = file.path.lstrip("/").removeprefix(target.directory.strip("/") + "/")
            found.append((path, file.size, footer.getvalue().to_pybytes()))

        form = dataset.ParquetFileFormat()
        parts = pyarrow.schema([(name, pyarrow.string()) for name in _directories(target)])
        dataset.write_dataset(
            pyarrow.RecordBatchReader.from_batches(first.schema, itertools.chain([first], filled)),
            target.directory,
            format=form,
            file_options=form.make_write_options(compression=target.compression),
            basename_template=f"part-{uuid.uuid4().hex}-{{i}}.parquet",
            partitioning=dataset.HivePartitioning(parts) if target.partition_by else None,
            filesystem=_filesystem(target),
            create_dir=target.protocol == "file",
            existing_data_behavior="overwrite_or_ignore",
            use_threads=False,
            max_partitions=_MOST_VALUES,
            max_open_files=_MOST_OPEN,
            min_rows_per_group=_ROW_GROUP_ROWS,
            max_rows_per_group=_ROW_GROUP_ROWS,
            file_visitor=note,
        )
        paths, sizes, footers = ([one[place] for one in found] for place in range(3))
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(paths, "string"), pyarrow.array(sizes, "int64"), pyarrow.array(footers, "binary")],
            ["path", "size_bytes", "footer"],
        )

    return write


def _filesystem(target: Target) -> Any:
    import fsspec
    from pyarrow import fs

    store = fsspec.filesystem(target.protocol, **target.arguments, skip_instance_cache=True)
    return fs.PyFileSystem(fs.FSSpecHandler(store))


def _directories(target: Target) -> list[str]:
    """The names in the directories' names."""
    return [f"_of_{name}" if target.keeps_columns else name for name in target.partition_by]


def _in_directories(batch: Any, target: Target) -> Any:
    """The batch with a column for each level of directories, as text; instead of the own one, unless that is kept."""
    import pyarrow
    import pyarrow.compute  # type: ignore[import-untyped]

    for name, directory in zip(target.partition_by, _directories(target), strict=True):
        words = batch.column(name).dictionary_encode()
        texts = pyarrow.array([_text(value.as_py()) for value in words.dictionary], pyarrow.string())
        # A NULL has no number in the dictionary.
        column = pyarrow.compute.fill_null(texts.take(words.indices), _NO_VALUE)
        if target.keeps_columns:
            batch = batch.append_column(directory, column)
        else:
            batch = batch.set_column(batch.schema.get_field_index(name), directory, column)
    return batch


def _text(value: Any) -> str:
    """A value as Spark writes it into the name of a directory, before what no path may have is escaped."""
    import datetime

    if value is None or value == "":
        return _NO_VALUE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return str(value)
