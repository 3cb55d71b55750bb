"""The files below a table: what an attempt has written, and what lies there.

Promise     `described` tells of each Parquet file of a directory its size, its rows, and per simple column the lowest
            value, the highest and how many are NULL, as its own footer has them; a bound that cannot be told exactly
            is left out, never guessed.
State       None. A directory belongs to the attempt in whose name it stands: `ID-ATTEMPT-RUN`.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from .._base.place import Place
from .._base.storage import Storage

# Longer strings and bytes are no bounds: they would make the log large, and a cut one is not exact.
_LONGEST = 128
_CHECKSUM = re.compile(r"(?<![^/])\.([^/]+)\.crc$")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table."""

    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    low: Mapping[str, Any] = field(default_factory=dict)
    """The lowest value by column, as JSON has it."""
    high: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """The value of each column that the table is partitioned by, as text."""
    footer: Any = field(default=None, compare=False, repr=False)
    """The metadata that pyarrow has read at the file's end."""


class TableFiles:
    """The files in the directory of one table."""

    def __init__(self, root: Place, storage: Storage) -> None:
        self.root = root
        self.storage = storage

    def place(self, path: str) -> Place:
        """A file or directory of the table."""
        return Place(f"{self.root.text}/{path}")

    def described(self, directory: str, partition_by: Iterable[str]) -> tuple[DataFile, ...]:
        """The Parquet files of an attempt's directory."""
        names = tuple(partition_by)
        found = sorted(path for path in self.below(directory) if path.endswith(".parquet"))
        return tuple(self.described_file(path, names) for path in found)

    def described_file(self, path: str, partition_by: Iterable[str] = ()) -> DataFile:
        """One Parquet file; the values of the columns it is partitioned by are in its directories' names."""
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        with self.storage.open(self.place(path)) as stream:
            footer = parquet.read_metadata(stream)
            size_bytes = stream.seek(0, os.SEEK_END)
        return data_file(path, size_bytes, footer, partition_by)

    def below(self, directory: str = "") -> Iterator[str]:
        """Every file in a directory of the table and below it, relative to the table."""
        start = self.place(directory) if directory else self.root
        with contextlib.suppress(FileNotFoundError):
            for page in self.storage.pages(start):
                for entry in page:
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if entry.status is None:
                        yield from self.below(path) if entry.name else ()  # nothing of ours is behind `//`
                    else:
                        yield path

    def unnamed(self, named: Collection[str]) -> list[str]:
        """The files that are none of these, nor a checksum that Spark has put beside one."""
        return [path for path in self.below() if _CHECKSUM.sub(r"\1", path) not in named]

    def discard(self, directory: str) -> None:
        """Remove what an attempt has written; what cannot be removed is left for `vacuum`."""
        place = self.place(directory)
        if place.is_local:
            shutil.rmtree(place.text, ignore_errors=True)
            return
        with contextlib.suppress(OSError):
            for path in list(self.below(directory)):
                self.storage.remove(self.place(path))

    def remove(self, path: str) -> None:
        """Remove one file, and the directories that are empty without it.

        Raises:
            OSError: it cannot be removed.
        """
        place = self.place(path)
        self.storage.remove(place)
        for parent in place.path.parents if place.is_local else ():
            if str(parent) == self.root.text or any(parent.iterdir()):
                break
            parent.rmdir()


def data_file(path: str, size_bytes: int, footer: Any, partition_by: Iterable[str] = ()) -> DataFile:
    """The figures of a file by its Parquet footer and the directories' names in its path."""
    low, high, nulls = _bounds(footer)
    values = dict(part.split("=", 1) for part in path.split("/")[1:-1] if "=" in part)
    partition = {name: _value(values[name]) for name in partition_by if name in values}
    return DataFile(path, size_bytes, footer.num_rows, low, high, nulls, partition, footer)


def _value(text: str) -> str | None:
    return None if text == _NO_VALUE else unquote(text)


def _bounds(footer: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    simple = [place for place in range(footer.num_columns) if footer.schema.column(place).max_definition_level <= 1]
    for place in simple:
        column = footer.schema.column(place)
        if column.path != column.name or column.max_repetition_level:
            continue
        found = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if any(one is None or not one.has_null_count for one in found):
            continue
        nulls[column.name] = sum(one.null_count for one in found)
        filled = [one for one in found if one.num_values]
        if not filled or not all(one.has_min_max for one in filled):
            continue
        least, most = _bound(min(one.min for one in filled)), _bound(max(one.max for one in filled), is_high=True)
        if least is not None and most is not None:
            low[column.name], high[column.name] = least, most
    return low, high, nulls


def _bound(value: Any, *, is_high: bool = False) -> Any:
    """A bound as JSON has it; None for one that cannot be told exactly."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, datetime.datetime):
        # Milliseconds are all that Delta has: a high bound is rounded up.
        whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
        if is_high and whole != value:
            whole += datetime.timedelta(milliseconds=1)
        text = whole.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo is not None else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return None if value != decimal.Decimal(repr(float(value))) else float(value)
    return value if isinstance(value, int | float) else None
