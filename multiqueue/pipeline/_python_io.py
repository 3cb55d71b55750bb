"""Reading by the executors' Python, where Spark has no connector for a store: the same rows as by Spark's readers.

Promise     The rows are those of Spark's own readers with the same options and schema: Python brings lines, documents,
            Parquet columns or contents, and Spark's own parsers make rows of what is text. An option that Python cannot
            honour is refused by its name, before a file is read.
How         A frame of one number a row, `mapInArrow` over it, and Spark's readers over the texts: public interfaces
            that classic sessions and Spark Connect both have. Each task has a group of files of about
            `_GROUP_BYTES`; a file is not cut.
Needs       pyspark 4.3 for CSV and JSON without a `schema`: its readers take a frame of texts on Connect too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from . import _executor_read
from ._executor_read import File
from ._place import Place
from ._storage import Storage

DataFrame = Any
SparkSession = Any
StructType = Any

_GROUP_BYTES = 64 << 20
# What a file costs besides its bytes, in bytes: a request, a footer, a batch of its own.
_FILE_BYTES = 2 << 20
_LEAST_GROUPS = 4


def text_frame(
    spark: SparkSession, storage: Storage, files: Sequence[tuple[Place, int]], lane_format: str, options: Options
) -> DataFrame:
    """The texts of the files, with their files: a line a row, or a document, or a whole text."""
    whole = options.is_true("wholetext") if lane_format == "text" else options.is_true("multiLine")
    encoding = options["encoding"] or options["charset"]
    reading = _executor_read.Reading(
        "documents" if whole else "lines",
        encoding=encoding or (None if lane_format in ("json", "jsonl") else "utf-8"),
        separator=options["lineSep"],
        skips_blank=lane_format != "text",
        has_header=lane_format == "csv" and options.is_true("header"),
        comment=options["comment"] if lane_format == "csv" else "",
    )
    return _mapped(spark, storage, files, reading, "value string, file string")


def binary_frame(spark: SparkSession, storage: Storage, files: Sequence[tuple[Place, int]]) -> DataFrame:
    """The columns of Spark's `binaryFile`."""
    schema = "path string, modificationTime timestamp, length bigint, content binary"
    return _mapped(spark, storage, files, _executor_read.Reading("contents"), schema)


def parquet_frame(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[tuple[Place, int]],
    columns: StructType | None,
    file_column: str = "",
) -> DataFrame:
    """The rows of Parquet files, with these columns or those of the first file. Raises what pyarrow raises of that.

    With `file_column` a column of this name has the file of each row.
    """
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if columns is None:
        with storage.open(files[0][0]) as stream:
            found = parquet.ParquetFile(stream).schema_arrow
        columns = from_arrow_schema(_as_spark_reads(found), prefer_timestamp_ntz=True)
    if file_column:
        columns = type(columns)(list(columns.fields)).add(file_column, "string")
    wanted = to_arrow_schema(columns, timezone="UTC")
    schema = wanted.serialize().to_pybytes()
    reading = _executor_read.Reading("rows", columns=tuple(columns.names), arrow_schema=schema, file_column=file_column)
    return _mapped(spark, storage, files, reading, columns)


def _as_spark_reads(schema: Any) -> Any:
    """An Arrow schema with the types that Spark gives such columns."""
    import pyarrow

    wider = {
        pyarrow.uint8(): pyarrow.int16(),
        pyarrow.uint16(): pyarrow.int32(),
        pyarrow.uint32(): pyarrow.int64(),
        pyarrow.uint64(): pyarrow.decimal128(20, 0),
        pyarrow.large_string(): pyarrow.string(),
        pyarrow.large_binary(): pyarrow.binary(),
    }
    fields = []
    for one in schema:
        kind = one.type.value_type if pyarrow.types.is_dictionary(one.type) else one.type
        if pyarrow.types.is_timestamp(kind):
            kind = pyarrow.timestamp("us", kind.tz)
        fields.append(pyarrow.field(one.name, wider.get(kind, kind)))
    return pyarrow.schema(fields)


class Options(dict[str, str]):
    """Options of a reader by their names, whose case does not count; empty where there is none."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in options.items()})

    def __getitem__(self, name: str) -> str:
        return self.get(name.lower(), "")

    def is_true(self, name: str) -> bool:
        return self[name].lower() == "true"


def _mapped(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[tuple[Place, int]],
    reading: _executor_read.Reading,
    schema: Any,
) -> DataFrame:
    import dataclasses

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(_executor_read)  # type: ignore[no-untyped-call] # executors do not have it
    stores: dict[str, tuple[str, Mapping[str, Any]]] = {}
    found = []
    for place, size_bytes in files:
        modified_s = storage.status(place).mtime_ns / 1e9 if reading.kind == "contents" else 0.0
        url = f"file:{place.text}" if place.is_local else place.spark_url
        shown = url if reading.kind == "contents" else quote(url, safe="/:@")  # as in `_metadata.file_path`
        if place.is_local:
            found.append(File(None, place.text, shown, size_bytes, modified_s))
            continue
        protocol, arguments, key = storage.fsspec(place)
        section = storage.section(place)
        name = place.parts[0] if section is None else section.url
        stores[name] = (protocol, arguments)
        found.append(File(name, key, shown, size_bytes, float(int(modified_s))))
    groups = _groups(found)
    frame = spark.range(0, len(groups), 1, len(groups))
    return frame.mapInArrow(_executor_read.reader(groups, dataclasses.replace(reading, stores=stores)), schema)


def _groups(files: Sequence[File]) -> list[list[File]]:
    """The files in order, in groups that take about as long as each other."""
    total = sum(one.size_bytes + _FILE_BYTES for one in files)
    most = min(_GROUP_BYTES, total / _LEAST_GROUPS)
    groups: list[list[File]] = [[]]
    held = 0.0
    for one in files:
        cost = one.size_bytes + _FILE_BYTES
        if groups[-1] and held + cost > most * 1.01:
            groups.append([])
            held = 0.0
        groups[-1].append(one)
        held += cost
    return groups
