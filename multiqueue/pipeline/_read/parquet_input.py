"""Parquet files that are read together have the same columns.

Spark takes the columns of one of the files: further columns of others are dropped, missing ones are NULL, in silence.
So the footers are compared before, by name and type and in any order; `mergeSchema = true` among the lane's options is
Spark's own way. pyarrow reads a footer in a millisecond; where it is not installed, or cannot read one, Spark is asked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .._base.errors import JobError
from .._base.place import Place
from .._columns.schema import columns_of, other_names
from .reading import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_parquet(reading: Reading) -> DataFrame:
    """The rows of the item's files.

    Raises:
        JobError: a file has other columns than the first, or than the lane's `schema`, or is no Parquet file.
    """
    paths = reading.item.places
    if reading.is_true("mergeSchema"):
        return reading.load(paths)
    if len(paths) == 1 and reading.schema is None:
        return _alone(reading, paths[0])
    first: dict[str, str] | None = None
    for path in paths:
        columns = footer(reading, path)
        wanted = list(first or columns) if reading.schema is None else reading.schema.names
        whose = reading.item.shown(paths[0]) if reading.schema is None else f"lanes.{reading.lane.section}.schema"
        if wrong := other_names(wanted, columns):
            raise JobError(f"{reading.item.shown(path)} has other columns than {whose}: {wrong}")
        first = first or columns
        if reading.schema is None:
            types = {name.lower(): kind for name, kind in first.items()}
            for name, kind in columns.items():
                if kind != types[name.lower()]:
                    raise JobError(
                        f"{reading.item.shown(path)} has {name!r} as {kind}; in {whose} it is {types[name.lower()]}"
                    )
    return reading.load(paths)


def _alone(reading: Reading, path: Place) -> DataFrame:
    """The rows of one file: there is nothing to compare it with, so its footer is looked at where Spark fails."""
    try:
        return reading.load([path])
    except Exception:
        footer(reading, path)
        raise


def footer(reading: Reading, path: Place) -> dict[str, str]:
    """The type of each column; of one with parts, the types of all its leaves."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        with reading.storage.open(path) as stream:
            schema = parquet.ParquetFile(stream).schema
    except Exception as error:  # noqa: BLE001 - not installed, not readable or not for pyarrow: Spark has the last word
        return _asked(reading, path, error)
    columns: dict[str, str] = {}
    for place in range(len(schema)):
        leaf = schema.column(place)
        name, _, rest = leaf.path.partition(".")
        kind = str(leaf.logical_type) if str(leaf.logical_type) != "None" else leaf.physical_type
        columns[name] = ", ".join(filter(None, (columns.get(name), f"{rest} {kind}".strip())))
    return columns


def _asked(reading: Reading, path: Place, why: Exception) -> dict[str, str]:
    try:
        return dict(columns_of(dataclasses.replace(reading, schema=None, wants_files=False).load([path]).schema))
    except Exception as error:
        if type(why).__name__ in ("ImportError", "ModuleNotFoundError") or isinstance(error, JobError):
            raise
        raise JobError(f"{reading.item.shown(path)} cannot be read as Parquet: {why}") from error
