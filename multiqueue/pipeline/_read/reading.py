"""How Spark is asked for the rows of an item's files: the lane's format, options and schema, and its rule for corrupt
records.

Records that are not as configured end the reading (`corrupt = "error"`, Spark's FAILFAST), have a column of their own
beside one with the path of their file (`set aside`), or are left to the lane's options (`allow`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from .._base.errors import JobError, PipelineError
from .._base.items import ERROR, SET_ASIDE, Item, Lane
from .._base.place import Place, place_of
from .._base.storage import Storage
from .._config.refusal import Options
from . import executor as _executor_read
from . import python_io as _python_io
from . import small_files as _small_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType


BY_SPARK = "spark"
BY_PYTHON = "python"

CORRUPT = "_multiqueue_corrupt_record"
FILE = "_multiqueue_file_path"
NOTHING = "_multiqueue_no_column"

# Most headers are shorter than the first; a line that is longer than the last is no header.
LOOK_BYTES = 4 << 10
_LOOKS_BYTES = (LOOK_BYTES, 64 << 10, 4 << 20)

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
    way: str = BY_SPARK
    """`BY_SPARK`, its own readers, or `BY_PYTHON`, the executors' Python."""
    contents: Mapping[Place, bytes] = field(default_factory=dict, repr=False)
    """Of files that the driver has read whole, for Spark to open none."""
    wants_files: bool = False
    """The rows have `FILE`, also where nothing is set aside."""

    @property
    def sets_aside(self) -> bool:
        """Whether the rows have `CORRUPT` and `FILE`."""
        return self.lane.corrupt == SET_ASIDE or self.lane.rescued_column is not None

    @property
    def own_columns(self) -> list[str]:
        """Those that rows have besides the file's, until the job sees them."""
        return [CORRUPT, FILE] if self.sets_aside else [FILE] if self.wants_files else []

    @property
    def corrupt_column(self) -> str:
        """The column in which Spark puts records it did not understand, if the schema has it."""
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
        columns = schema if schema is not None else self.schema
        if self.contents and columns is not None and not self.sets_aside:
            return self._load_contents(files, columns)
        if self.way == BY_PYTHON:
            return self._load_by_python(files, columns, options or {})
        places = [spark_path(place) for place in files]
        reader = self._reader(options or {})
        if not self.sets_aside:
            if columns is not None:
                wanted = columns if schema is not None else self.lane.schema
                assert wanted is not None, "a lane with a schema has its text"
                reader = reader.schema(wanted)
            rows = self._load(reader, places)
            return rows.selectExpr("*", f"_metadata.file_path AS {FILE}") if self.wants_files else rows
        columns = columns if columns is not None else self._load(reader, places).schema
        columns = _with_corrupt(columns)
        frame = self._load(self._reader(options or {}).schema(columns), places)
        return frame.selectExpr("*", f"_metadata.file_path AS {FILE}")

    def _load_contents(self, files: Sequence[Place], columns: StructType) -> DataFrame:
        cut = _executor_read.Reading(
            "lines", skips_blank=True, has_header=self.is_true("header"), comment=self.option("comment")
        )
        contents = {_shown(place): self.contents[place] for place in files}
        file_column = FILE if self.wants_files else ""
        return _small_files.frame_of(self.spark, contents, cut, _ddl(columns), self.parser_options(), file_column)

    def starts(self, files: Sequence[Place]) -> list[bytes | OSError | None]:
        """At least `LOOK_BYTES` of each file, as `Storage.starts_of` gives them."""
        if self.contents:
            return [self.contents[place] for place in files]
        return self.storage.starts_of(files, LOOK_BYTES)

    def _load(self, reader: DataFrameReader, paths: Sequence[str]) -> DataFrame:
        """`reader.load(paths)`, in some calls of the JVM: PySpark makes a call for each path."""
        to_jvm = getattr(reader, "_jreader", None)
        if to_jvm is None:  # Spark Connect sends one message
            return reader.load(list(paths))
        gateway: Any = self.spark._jvm
        separated = gateway.java.util.regex.Pattern.compile("\0").split("\0".join(paths))
        return reader._df(to_jvm.load(separated))

    def with_files(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame of all files, which has these columns, with `FILE`; rows may come in another order."""
        if self.own_columns:
            return frame
        if self.way == BY_SPARK:
            return frame.selectExpr("*", f"_metadata.file_path AS {FILE}")
        apart = replace(self, lane=replace(self.lane, corrupt=SET_ASIDE))
        return apart.load(self.item.places, frame.schema).drop(CORRUPT, NOTHING)

    def texts(self) -> DataFrame:
        """Of JSON, each record's text as `value`, with `FILE`."""
        from pyspark.sql import functions

        is_whole = self.is_true("multiLine")
        if self.way == BY_PYTHON:
            sizes = [(place, seen.size_bytes) for place, seen in zip(self.item.places, self.item.files, strict=True)]
            preset = Options({**_READERS[self.lane.format][1], **self.lane.options})
            frame = _python_io.text_frame(self.spark, self.storage, sizes, self.lane.format, preset, FILE)
        else:
            options = {"wholetext": "true"} if is_whole else {}
            if separator := self.option("lineSep"):
                options["lineSep"] = separator
            texts = self.spark.read.options(**options).text([spark_path(place) for place in self.item.places])
            frame = texts.selectExpr("value", f"_metadata.file_path AS {FILE}")
        if is_whole:
            elements = functions.from_json("value", "array<string>")
            records = functions.explode(functions.coalesce(elements, functions.array("value")))
            frame = frame.select(records.alias("value"), FILE)
        return frame.where("trim(value) <> ''")

    def rows_with_files(self, files: Sequence[Place], schema: StructType) -> DataFrame:
        """Of Parquet, the rows of these files with these columns and `FILE`."""
        return replace(self, wants_files=True).load(files, schema)

    def header(self, file: Place, line: bytes | None = None) -> StructType:
        """The columns that the header of a CSV file names, as Spark reads it; each a string.

        Raises:
            JobError: Python reads the file, and the `line` with its header is not known.
        """
        reader = self._reader({"inferSchema": "false", "mode": "PERMISSIVE", "enforceSchema": "true"})
        if self.way == BY_SPARK:
            return reader.load([spark_path(file)]).schema
        if line is None:
            raise JobError(f'only Spark itself finds the header of {self.item.shown(file)}; read it by io = "spark"')
        text = line.decode(self.option("encoding") or self.option("charset") or "utf-8", "replace")
        return reader.csv(self.spark.sql("SELECT value FROM VALUES (:line) AS t(value)", args={"line": text})).schema

    def _header_of(self, file: Place) -> StructType:
        (start,) = self.storage.starts_of([file], LOOK_BYTES)
        return self.header(file, first_line(self, file, start))

    def _load_by_python(
        self,
        files: Sequence[Place],
        columns: StructType | None,
        options: Mapping[str, str],
    ) -> DataFrame:
        sizes = {self.item.place(seen): seen.size_bytes for seen in self.item.files}
        sized = [(file, sizes.get(file, 0)) for file in files]
        if self.lane.format == "binary":
            contents = _python_io.binary_frame(self.spark, self.storage, sized)
            return contents.selectExpr("*", f"replace(path, '%', '%25') AS {FILE}") if self.wants_files else contents
        if self.lane.format == "parquet":
            return _python_io.parquet_frame(self.spark, self.storage, sized, columns, FILE if self.wants_files else "")
        preset = Options({**_READERS[self.lane.format][1], **self.lane.options})
        wanted = FILE if self.own_columns else ""
        texts = _python_io.text_frame(self.spark, self.storage, sized, self.lane.format, preset, wanted)
        if self.lane.format == "text":
            return texts
        is_csv = self.lane.format == "csv"

        def parsed_by(reader: DataFrameReader) -> Callable[..., DataFrame]:
            return reader.csv if is_csv else reader.json

        reader = self.spark.read.format(_READERS[self.lane.format][0]).options(**self.parser_options(options))
        if columns is None:
            columns = parsed_by(reader)(texts.select("value")).schema
            if self.is_true("header"):
                columns = _renamed(columns, self._header_of(files[0]).names)
        if not self.own_columns:
            return parsed_by(reader.schema(columns))(texts)
        if self.sets_aside:
            columns = _with_corrupt(columns)
        if not self.is_true("multiLine"):
            return self._parsed(texts, columns)
        frames = []
        for one in sized:  # a document may be several rows, and no function gives its file beside each
            text = _python_io.text_frame(self.spark, self.storage, [one], self.lane.format, preset)
            rows = parsed_by(reader.schema(columns))(text)
            frames.append(rows.selectExpr("*", f"{_file_literal(one[0])} AS {FILE}"))
        return functools.reduce(lambda whole, frame: whole.unionAll(frame), frames)

    def _parsed(self, texts: DataFrame, columns: StructType) -> DataFrame:
        """Each text as a row of these columns, with its file."""
        from pyspark.sql import functions

        options = self.parser_options()
        if self.lane.format == "csv":
            row = functions.from_csv("value", _ddl(columns), options)
        else:
            row = functions.from_json("value", columns, options)
        if not self.sets_aside:  # a generator has each record parsed whole, as `small_files` says
            rows = texts.select(FILE, functions.inline(functions.array(row)))
            return rows.select(*(quoted(name) for name in columns.names), FILE)
        return texts.select(row.alias("row"), FILE).select("row.*", FILE)

    def parser_options(self, options: Mapping[str, str] | None = None) -> dict[str, str]:
        """Options for Spark where it parses a text: the lane's and these, without those that were for the bytes."""
        kept = self._options({**(options or {}), "header": "false"})
        return {name: value for name, value in kept.items() if name.lower() not in ("encoding", "charset")}

    def _reader(self, options: Mapping[str, str]) -> DataFrameReader:
        return self.spark.read.format(_READERS[self.lane.format][0]).options(**self._options(options))

    def _options(self, options: Mapping[str, str]) -> dict[str, str]:
        """The reader's options: the format's, ours, the lane's, and these."""
        preset = _READERS[self.lane.format][1]
        ours: dict[str, str] = {}
        if self.lane.corrupt == ERROR and not self.sets_aside:
            # Without columnPruning = false Spark does not count the fields of a record that the job does not need.
            ours = {"mode": "FAILFAST", "columnPruning": "false"}
        elif self.sets_aside:
            ours = {"mode": "PERMISSIVE", "columnPruning": "false", "columnNameOfCorruptRecord": CORRUPT}
        if self.lane.format == "csv":
            ours["enforceSchema"] = "false"
        else:
            ours.pop("columnPruning", None)
        merged: dict[str, tuple[str, str]] = {}
        for name, value in (*preset.items(), *ours.items(), *self.lane.options.items(), *options.items()):
            merged[name.lower()] = (name, value)  # Spark does not look at the case, and would take any of two
        return dict(merged.values())


def schema_of(spark: SparkSession, lane: Lane, item: Item, way: str) -> StructType | None:
    """The columns in the lane's `schema`; reads no file."""
    if lane.schema is None or lane.on_new_columns is not None:
        return None
    if way == BY_PYTHON:
        return spark.createDataFrame([], lane.schema).schema
    name, preset = _READERS[lane.format]
    reader = spark.read.format(name).options(**{**preset, **lane.options}).schema(lane.schema)
    return reader.load([spark_path(place) for place in item.places[:1]]).schema


def _ddl(columns: StructType) -> str:
    return ", ".join(f"{quoted(one.name)} {one.dataType.simpleString()}" for one in columns.fields)


def _with_corrupt(columns: StructType) -> StructType:
    columns = type(columns)([one for one in columns.fields if one.name != CORRUPT])
    if not columns.fields:
        columns.add(NOTHING, "string")  # Spark reads no column of corrupt records alone
    return columns.add(CORRUPT, "string")


def _renamed(columns: StructType, names: Sequence[str]) -> StructType:
    renamed = type(columns)([])
    for one, name in zip(columns.fields, names, strict=False):
        renamed.add(name, one.dataType)
    return renamed


def _file_literal(place: Place) -> str:
    """The place as an expression that `place_in` understands once it is computed."""
    return "'" + _shown(place).replace("'", "%27") + "'"


def _shown(place: Place) -> str:
    return quote(f"file:{place}" if place.is_local else place.spark_url, safe="/:@")


def first_line(reading: Reading, path: Place, start: bytes | OSError | None) -> bytes | None:
    """The line of a CSV file that has the header, without its end, or empty.

    None when only Spark can find it. `start` is what the storage gave for `LOOK_BYTES`.

    Raises:
        JobError: the file cannot be read.
    """
    comment = reading.option("comment").encode()
    custom = reading.option("lineSep").encode()
    for most_bytes in _LOOKS_BYTES:
        if most_bytes > LOOK_BYTES:
            (start,) = reading.storage.starts_of([path], most_bytes)
        if isinstance(start, OSError):
            raise unreadable(reading.item, path, start) from start
        if start is None:
            return None
        is_whole = len(start) < most_bytes
        start = start.removeprefix(b"\xef\xbb\xbf")
        lines = start.split(custom) if custom else start.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines if is_whole else lines[:-1]:
            if line.strip(b" \t\x00\xff\xfe") and not (comment and line.startswith(comment)):
                quotes = line.count((reading.option("quote") or '"').encode())
                return None if quotes % 2 and reading.is_true("multiLine") else line
        if is_whole:
            return b""
    return None


def unreadable(item: Item, place: Place, error: OSError) -> PipelineError:
    """The error for a file that cannot be read: for good, unless a store may answer next time."""
    may_pass = not place.is_local and not isinstance(error, FileNotFoundError | PermissionError)
    return (PipelineError if may_pass else JobError)(f"cannot read {item.shown(place)}: {error.strerror or error}")


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
