"""The columns that an item was put out with, for those who read it again.

Promise     What a step reads has one set of columns: items that were put out with others are an error that names both,
            instead of NULL, columns that are dropped, or with CSV values in other columns. For Parquet and ORC their
            types count too, for CSV their order.
            The items of a lane that one job has made have one type for each column in Parquet and ORC: readers refuse
            files of two types. The first item that is put out says which; it is in the state then.
State       `_columns.json` in the item's directory, which readers of the rows ignore as they do `_item.json`. Items
            that an earlier version has written have none, and are not looked at.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.errors import JobError
from .kinds import Columns, Kind, of_spark
from .known import KnownColumns, extended, new_parts, told_kind
from .schema import columns_of, other_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILE = "_columns.json"

_REMEDY = "name the columns in `expect` of what puts them out, so that all items are alike"


def note_columns(frame: DataFrame, staged: Path) -> None:
    """Keep the columns of the written rows in the directory."""
    staged.mkdir(exist_ok=True)
    (staged / _FILE).write_text(json.dumps(columns_of(frame.schema), ensure_ascii=False), encoding="utf-8")


PUT_OUT = "//output/"
"""Before a lane, where what it puts out is known: no directory makes a lane of such a name."""


class OutputTypes:
    """The types of the columns that the items of each lane are put out with. Threads of running items share it."""

    def __init__(self, known: KnownColumns, jobs: Mapping[str, str]) -> None:
        """`jobs` are the fingerprints of jobs: what another one has put out is not looked at."""
        self._known = known
        self._jobs = jobs

    def require(self, lane: str, frame: DataFrame) -> None:
        """Return if the frame's columns have the types of those that were put out before.

        Raises:
            JobError: one has another.
        """
        self._required(lane, self._known.of(self._key(lane)), _told_columns(frame))

    def note(self, lane: str, frame: DataFrame) -> None:
        """The frame's rows are written: later ones are to have its types.

        Raises:
            JobError: as `require`; another item was put out meanwhile.
        """
        found, key = _told_columns(frame), self._key(lane)
        known = self._known.of(key)
        if known is not None and not new_parts(known, found):
            return
        with self._known.learning(key) as known:
            self._required(lane, known, found)
            if known is None or new_parts(known, found):
                self._known.learn(key, found if known is None else extended(known, found))

    def _key(self, lane: str) -> str:
        return f"{PUT_OUT}{self._jobs.get(lane, self._jobs.get('', ''))}/{lane}"

    def _required(self, lane: str, known: Columns | None, found: Columns) -> None:
        there = {name.lower(): kind for name, kind in (known or {}).items()}
        for name, kind in found.items():
            if (other := _other_type(there.get(name.lower(), kind), kind)) is not None:
                raise JobError(
                    f"the column {name!r} is {other[1]}, and {other[0]} in what lane {lane!r} has put out before, "
                    "which no reader of the files takes together: cast it in the job, or name its type by schema, "
                    'schema = "infer" or output.expect; `multiqueue pipeline redo` makes all anew with another type'
                )


def _told_columns(frame: DataFrame) -> Columns:
    """The frame's columns; without those of types that no other type is like."""
    columns: dict[str, Kind] = {}
    for one in json.loads(frame.schema.json())["fields"]:
        with contextlib.suppress(JobError):
            columns |= of_spark(json.dumps({"type": "struct", "fields": [one]}))
    return columns


def _other_type(known: Kind, found: Kind) -> tuple[str, str] | None:
    """Both types where they differ, of what is inside of both; None where they do not."""
    if isinstance(known, str) or isinstance(found, str) or known["type"] != found["type"]:
        return None if known == found else (told_kind(known), told_kind(found))
    if known["type"] == "struct":
        there = {one["name"].lower(): one["type"] for one in known["fields"]}
        pairs = [(there.get(one["name"].lower(), one["type"]), one["type"]) for one in found["fields"]]
    else:
        pairs = [(known[part], found[part]) for part in ("keyType", "valueType", "elementType") if part in known]
    return next((other for one, its in pairs if (other := _other_type(one, its)) is not None), None)


def require_free(frame: DataFrame, names: Collection[str]) -> None:
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
