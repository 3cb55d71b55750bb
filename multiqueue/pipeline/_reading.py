"""How Spark is asked for the rows of an item's files: the lane's format, options and schema, and what is corrupt.

Records that are not as configured end the reading (`corrupt = "error"`, Spark's FAILFAST), have a column of their own
beside one with the path of their file (`set aside`), or are left to the lane's options (`allow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ._errors import JobError
from ._items import ERROR, SET_ASIDE, Item, Lane
from ._place import Place, place_of
from ._storage import Storage

DataFrame = Any
SparkSession = Any
StructType = Any

CORRUPT = "_multiqueue_corrupt_record"
FILE = "_multiqueue_file_path"
NOTHING = "_multiqueue_no_column"

# The reader's name and options for each format of a lane.
_READERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "csv": ("csv", {"escape": '"'}),  # a quote is doubled, as in RFC 4180; Spark by itself keeps both
    "json": ("json", {"multiLine": "true"}),
    "jsonl": ("json", {}),
    "parquet": ("parquet", {}),
    "text": ("text", {}),
    "binary": ("binaryFile", {}),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One item that is read."""

    spark: SparkSession
    lane: Lane
    item: Item
    schema: StructType | None
    """The columns in the lane's `schema`."""
    storage: Storage

    @property
    def sets_aside(self) -> bool:
        """Whether the rows have `CORRUPT` and `FILE`."""
        return self.lane.corrupt == SET_ASIDE

    @property
    def corrupt_column(self) -> str:
        """The column in which Spark puts what it did not understand, if the schema has it."""
        return self.option("columnNameOfCorruptRecord") or "_corrupt_record"

    def option(self, name: str) -> str:
        """An option of the lane, or of its format; empty when it has none. Spark does not look at the case of names."""
        options = {**_READERS[self.lane.format][1], **self.lane.options}
        return next((value for key, value in options.items() if key.lower() == name.lower()), "")

    def is_true(self, name: str) -> bool:
        return self.option(name).lower() == "true"

    def load(
        self,
        files: Sequence[Place],
        schema: StructType | None = None,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """The rows of these files; their columns are those of the lane's schema, unless others are given."""
        places = [spark_path(place) for place in files]
        reader = self._reader(options or {})
        columns = schema if schema is not None else self.schema
        if not self.sets_aside:
            if columns is not None:
                reader = reader.schema(columns if schema is not None else self.lane.schema)
            return reader.load(places)
        columns = columns if columns is not None else reader.load(places).schema
        columns = type(columns)([field for field in columns.fields if field.name != CORRUPT])
        if not columns.fields:
            columns.add(NOTHING, "string")  # Spark reads no column of corrupt records alone
        columns.add(CORRUPT, "string")
        return (
            self._reader(options or {}).schema(columns).load(places).selectExpr("*", f"_metadata.file_path AS {FILE}")
        )

    def header(self, file: Place) -> StructType:
        """The columns that the header of a CSV file names, as Spark reads it; each a string."""
        return self._reader({"inferSchema": "false", "mode": "PERMISSIVE"}).load([spark_path(file)]).schema

    def _reader(self, options: Mapping[str, str]) -> Any:
        name, preset = _READERS[self.lane.format]
        ours: dict[str, str] = {}
        if self.lane.corrupt == ERROR:
            # Without columnPruning = false Spark does not count the fields of a record that the job does not need.
            ours = {"mode": "FAILFAST", "columnPruning": "false"}
        elif self.lane.corrupt == SET_ASIDE:
            ours = {"mode": "PERMISSIVE", "columnPruning": "false", "columnNameOfCorruptRecord": CORRUPT}
        if self.lane.format == "csv":
            ours["enforceSchema"] = "false"
        else:
            ours.pop("columnPruning", None)
        return self.spark.read.format(name).options(**{**preset, **ours, **self.lane.options, **options})


def schema_of(spark: SparkSession, lane: Lane, item: Item) -> StructType | None:
    """The columns in the lane's `schema`; reads no file."""
    if lane.schema is None:
        return None
    name, preset = _READERS[lane.format]
    reader = spark.read.format(name).options(**{**preset, **lane.options}).schema(lane.schema)
    return reader.load([spark_path(place) for place in item.places[:1]]).schema


def spark_path(place: Place) -> str:
    """The place as Spark takes it literally: it reads a glob where we mean a name.

    Raises:
        JobError: the name has a colon, which Hadoop cannot read.
    """
    if any(":" in part for part in place.parts[0 if place.is_local else 1 :]):
        raise JobError(f'Spark cannot read {place.text!r}: its name has a colon; rename it, or use format = "paths"')
    return "".join("\\" + c if c in "\\*?[]{}" else c for c in place.spark_url)


def place_in(file_path: str) -> Place:
    """The place in Spark's `_metadata.file_path`."""
    if file_path.startswith("file:"):
        return Place(unquote(urlsplit(file_path).path))
    return place_of(unquote(file_path))


def quoted(name: str) -> str:
    """The name of a column, as Spark's expressions take it literally."""
    return "`" + name.replace("`", "``") + "`"
