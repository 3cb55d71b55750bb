"""Reading by the executors' Python, where Spark has no connector for a store: the same rows as by Spark's readers.

Promise     The rows are those of Spark's own readers with the same options and schema: Python brings lines, documents,
            Parquet columns or contents, and Spark's own parsers make rows of what is text. An option that Python cannot
            honour is refused by its name, before a file is read.
How         A frame of one number a row, `mapInArrow` over it, and Spark's readers over the texts: public interfaces
            that classic sessions and Spark Connect both have. Each task has about `_GROUP_BYTES`: a group of files, or
            a piece of one where `uncut` knows no reason against it.
Needs       pyspark 4.3 for CSV and JSON without a `schema`: its readers take a frame of texts on Connect too.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from .._base import small_objects as _small_objects
from .._base.errors import JobError
from .._base.place import Place
from .._base.storage import Storage
from .._config.refusal import Options, is_packed, uncut
from . import executor as _executor_read
from .executor import File

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_GROUP_BYTES = 64 << 20
# What a file costs besides its bytes, in bytes: a request, a footer, a batch of its own.
_FILE_BYTES = 2 << 20
_LEAST_GROUPS = 4
# Less is not worth a task of its own.
_LEAST_PIECE_BYTES = 8 << 20
# Blank lines and comments before a header are fewer, or the file is not cut: its first piece must have the header.
_HEADER_WITHIN_BYTES = 64 << 10

_MOST_DIGITS = 38
"""Of a decimal of Spark."""


def text_frame(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[tuple[Place, int]],
    lane_format: str,
    options: Options,
    file_column: str = "",
) -> DataFrame:
    """The texts of the files as `value`: a line a row, or a document, or a whole text.

    With `file_column` a column of this name has the file of each row.
    """
    whole = options.is_true("wholetext") if lane_format == "text" else options.is_true("multiLine")
    encoding = options["encoding"] or options["charset"]
    reading = _executor_read.Reading(
        "documents" if whole else "lines",
        encoding=encoding or (None if lane_format in ("json", "jsonl") else "utf-8"),
        separator=options["lineSep"],
        skips_blank=lane_format != "text",
        has_header=lane_format == "csv" and options.is_true("header"),
        comment=options["comment"] if lane_format == "csv" else "",
        file_column=file_column,
    )
    cuts = uncut(lane_format, options) is None
    large = [place for place, size_bytes in files if cuts and reading.has_header and size_bytes > _LEAST_PIECE_BYTES]
    starts = zip(large, storage.starts_of(large, _HEADER_WITHIN_BYTES), strict=True)
    kept = {place for place, start in starts if not (isinstance(start, bytes) and _has_line(start, reading))}
    schema = f"value string, {file_column} string" if file_column else "value string"
    return _mapped(spark, storage, files, reading, schema, cuts=cuts, whole=kept)


def _has_line(start: bytes, reading: _executor_read.Reading) -> bool:
    """Whether a file begins so that a line of it is neither blank nor a comment."""
    lines = _executor_read.lines_of(io.BytesIO(start), dataclasses.replace(reading, has_header=False))
    return next(lines, None) is not None


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
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if columns is None:
        with storage.open(files[0][0]) as stream:
            columns = from_arrow_schema(_as_spark_reads(stream, files[0][0]), prefer_timestamp_ntz=True)
    if file_column:
        columns = type(columns)(list(columns.fields)).add(file_column, "string")
    wanted = to_arrow_schema(columns, timezone="UTC")
    schema = wanted.serialize().to_pybytes()
    reading = _executor_read.Reading("rows", columns=tuple(columns.names), arrow_schema=schema, file_column=file_column)
    return _mapped(spark, storage, files, reading, columns, cuts=True)


def _as_spark_reads(stream: IO[bytes], place: Place) -> Any:
    """The columns of a Parquet file, as an Arrow schema with the types that Spark gives them.

    Raises:
        JobError: one has a type that Spark does not read.
    """
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    opened = parquet.ParquetFile(stream, coerce_int96_timestamp_unit="us")
    leaves = [opened.schema.column(place) for place in range(len(opened.schema))]
    old = {leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
    try:
        return pyarrow.schema([(one.name, _spark_type(one.type, one.name in old)) for one in opened.schema_arrow])
    except _NotOfSpark as error:
        raise JobError(f"{place.text!r} has a column of the type {error}, which Spark does not read") from None


class _NotOfSpark(Exception):
    """An Arrow type that Spark's reader of Parquet refuses."""


def _spark_type(kind: Any, is_int96: bool) -> Any:
    """The Arrow type of what Spark reads where a Parquet file has this one.

    Raises:
        _NotOfSpark: it is none that Spark reads.
    """
    import pyarrow

    of = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType) and kind.extension_name != "arrow.uuid":
        return _spark_type(kind.storage_type, is_int96)
    if of.is_dictionary(kind):
        return _spark_type(kind.value_type, is_int96)
    if of.is_struct(kind):
        return pyarrow.struct([(one.name, _spark_type(one.type, is_int96)) for one in kind])
    if of.is_map(kind):
        return pyarrow.map_(_spark_type(kind.key_type, is_int96), _spark_type(kind.item_type, is_int96))
    if any(is_one(kind) for is_one in (of.is_list, of.is_large_list, of.is_fixed_size_list, of.is_list_view)):
        return pyarrow.list_(_spark_type(kind.value_type, is_int96))
    if of.is_timestamp(kind) and kind.unit != "ns":
        return pyarrow.timestamp("us", "UTC" if kind.tz or is_int96 else None)
    if of.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pyarrow.decimal128(kind.precision, kind.scale)
    if of.is_binary(kind) or of.is_large_binary(kind) or of.is_fixed_size_binary(kind) or of.is_binary_view(kind):
        return pyarrow.binary()
    if of.is_large_string(kind) or of.is_string_view(kind):
        return pyarrow.string()
    if of.is_duration(kind):
        return pyarrow.int64()
    wider = {
        pyarrow.uint8(): pyarrow.int16(),
        pyarrow.uint16(): pyarrow.int32(),
        pyarrow.uint32(): pyarrow.int64(),
        pyarrow.uint64(): pyarrow.decimal128(20, 0),
        pyarrow.null(): pyarrow.int32(),
        pyarrow.date64(): pyarrow.date32(),
    }
    is_same = of.is_boolean(kind) or of.is_string(kind) or of.is_date32(kind) or of.is_signed_integer(kind)
    if is_same or of.is_float32(kind) or of.is_float64(kind):
        return kind
    if kind not in wider:
        raise _NotOfSpark(str(kind))
    return wider[kind]


def _mapped(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[tuple[Place, int]],
    reading: _executor_read.Reading,
    schema: Any,
    *,
    cuts: bool = False,
    whole: Collection[Place] = (),
) -> DataFrame:
    """`cuts` says whether a file may be read in pieces, if it is not one of `whole`."""
    from pyspark import cloudpickle

    for module in (_executor_read, _small_objects):  # executors do not have them
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    stores: dict[str, tuple[str, Mapping[str, Any]]] = {}
    found = []
    uncut_paths = set()
    for place, size_bytes in files:
        # Spark's own reader tells of milliseconds.
        modified_s = storage.status(place).mtime_ns // 10**6 / 1e3 if reading.kind == "contents" else 0.0
        url = f"file:{place.text}" if place.is_local else place.spark_url
        shown = url if reading.kind == "contents" else quote(url, safe="/:@")  # as in `_metadata.file_path`
        if place in whole:
            uncut_paths.add(place.text if place.is_local else storage.fsspec(place)[2])
        if place.is_local:
            found.append(File(None, place.text, shown, size_bytes, modified_s))
            continue
        protocol, arguments, key = storage.fsspec(place)
        section = storage.section(place)
        name = place.parts[0] if section is None else section.url
        stores[name] = (protocol, arguments)
        found.append(File(name, key, shown, size_bytes, float(int(modified_s))))
    groups = _groups(found, may_cut=cuts, whole=uncut_paths)
    frame = spark.range(0, len(groups), 1, len(groups))
    return frame.mapInArrow(_executor_read.reader(groups, dataclasses.replace(reading, stores=stores)), schema)


def _groups(files: Sequence[File], *, may_cut: bool = False, whole: Collection[str] = ()) -> list[list[File]]:
    """The files in order, and pieces of large ones, in groups that take about as long as each other."""
    total = sum(one.size_bytes + _FILE_BYTES for one in files)
    most = min(_GROUP_BYTES, total / _LEAST_GROUPS)
    least = max(most, _LEAST_PIECE_BYTES)
    cut = ([one] if one.path in whole or not may_cut else _pieces(one, least) for one in files)
    pieces = (piece for some in cut for piece in some)
    groups: list[list[File]] = [[]]
    held = 0.0
    for one in pieces:
        cost = one.size_bytes + _FILE_BYTES
        if groups[-1] and held + cost > most * 1.01:
            groups.append([])
            held = 0.0
        groups[-1].append(one)
        held += cost
    return groups


def _pieces(file: File, most: float) -> list[File]:
    """The file in equal pieces of about so many bytes; one that is packed as a whole."""
    count = round(file.size_bytes / most)
    if count < 2 or is_packed(file.path):
        return [file]
    seams = [file.size_bytes * place // count for place in range(1, count)]
    return [
        dataclasses.replace(file, size_bytes=(end or file.size_bytes) - start, start=start, end=end)
        for start, end in zip([0, *seams], [*seams, None], strict=True)
    ]
