"""The columns that an item was put out with, for those who read it again.

Promise     What a step reads has one set of columns: items that were put out with others are an error that names both,
            instead of NULL, columns that are dropped, or with CSV values in other columns. For Parquet and ORC their
            types count too, for CSV their order.
State       `_columns.json` in the item's directory, which readers of the rows ignore as they do `_item.json`. Items
            that an earlier version has written have none, and are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ._errors import JobError
from ._schema import columns_of, other_names

_FILE = "_columns.json"

_REMEDY = "name the columns in `expect` of what puts them out, so that all items are alike"


def note_columns(frame: Any, staged: Path) -> None:
    """Keep the columns of what was written into the directory."""
    staged.mkdir(exist_ok=True)
    (staged / _FILE).write_text(json.dumps(columns_of(frame.schema), ensure_ascii=False), encoding="utf-8")


def require_free(frame: Any, names: Collection[str]) -> None:
    """Return if the frame has no column of these names, which the output adds.

    Raises:
        JobError: it has one.
    """
    taken = [column for column in frame.columns if column.lower() in names]
    if taken:
        raise JobError(f"the job's result has a column {taken[0]!r}, which the output adds; rename it")


def require_alike(directories: Iterable[Path], output_format: str, output: Path) -> None:
    """Return if the items in these directories have the same columns, as far as a reader of this format needs it.

    Raises:
        JobError: they have not.
    """
    first: tuple[Path, dict[str, str]] | None = None
    for directory in directories:
        for file in directory.glob(f"item=*/{_FILE}"):
            columns: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
            first = first or (file.parent, columns)
            if wrong := _difference(first[1], columns, output_format):
                here, there = (str(place.relative_to(output)) for place in (file.parent, first[0]))
                raise JobError(f"{here!r} has other columns than {there!r}: {wrong}; {_REMEDY}")


def _difference(first: dict[str, str], columns: dict[str, str], output_format: str) -> str | None:
    wrong = other_names(first, columns)
    if wrong is not None:
        return wrong
    types = {name.lower(): kind for name, kind in first.items()}
    if output_format == "csv" and [name.lower() for name in columns] != list(types):
        return f"their order is {', '.join(columns)}, not {', '.join(first)}"
    if output_format in ("parquet", "orc"):
        changed = [name for name, kind in columns.items() if kind != types[name.lower()]]
        if changed:
            return f"{changed[0]!r} is {columns[changed[0]]}, not {types[changed[0].lower()]}"
    return None
