"""The same rows with the same columns, whichever way a file is read: by Spark, by Python, at once or in pieces."""

from __future__ import annotations

import bz2
import dataclasses
import datetime
import decimal
import functools
import gzip
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipeline_parts_support import (
    Inputs,
    Lane,
    Options,
    Place,
    Storage,
    Unreadable,
    _executor_read,
    _python_io,
    met,
    parquet_frame,
    uncut,
    why_whole,
)
from pipeline_support import spark_for_tests
from test_pipeline_input import ODD, write

from multiqueue.pipeline import FileSeen, Item, JobError

as_wanted = _executor_read._as

DAY = datetime.date(2026, 1, 2)
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6000)


def one(value: Any, kind: Any = None) -> Any:
    """A value and a NULL."""
    return pa.array([value, None], kind)


# Each type of Arrow by a name, and what Spark makes of it in a Parquet file; None where Spark refuses it.
TYPES: dict[str, tuple[Any, str | None]] = {
    "bool": (one(True), "boolean"),
    "i8": (one(-1, pa.int8()), "tinyint"),
    "i16": (one(-1, pa.int16()), "smallint"),
    "i32": (one(-1, pa.int32()), "int"),
    "i64": (one(2**40), "bigint"),
    "u8": (one(2**8 - 1, pa.uint8()), "smallint"),
    "u16": (one(2**16 - 1, pa.uint16()), "int"),
    "u32": (one(2**32 - 1, pa.uint32()), "bigint"),
    "u64": (one(2**64 - 1, pa.uint64()), "decimal(20,0)"),
    "f16": (one(1.5, pa.float16()), None),
    "f32": (one(1.5, pa.float32()), "float"),
    "f64": (one(1.5), "double"),
    "text": (one("x"), "string"),
    "large text": (one("x", pa.large_string()), "string"),
    "text view": (one("x", pa.string_view()), "string"),
    "words": (one("x").dictionary_encode(), "string"),
    "json": (one('{"a":1}', pa.json_()), "string"),
    "bytes": (one(b"\xff"), "binary"),
    "large bytes": (one(b"\xff", pa.large_binary()), "binary"),
    "four bytes": (one(b"abcd", pa.binary(4)), "binary"),
    "uuid": (one(b"0123456789abcdef", pa.uuid()), None),
    "date": (one(DAY), "date"),
    "date64": (one(DAY, pa.date64()), "date"),
    "seconds": (one(MOMENT.replace(microsecond=0), pa.timestamp("s")), "timestamp_ntz"),
    "millis": (one(MOMENT, pa.timestamp("ms")), "timestamp_ntz"),
    "micros": (one(MOMENT, pa.timestamp("us")), "timestamp_ntz"),
    "micros of a zone": (one(MOMENT, pa.timestamp("us", "UTC")), "timestamp"),
    "millis of a zone": (one(MOMENT, pa.timestamp("ms", "Europe/Berlin")), "timestamp"),
    "nanos": (one(1767323045000000123, pa.timestamp("ns")), None),
    "nanos of a zone": (one(1767323045000000123, pa.timestamp("ns", "UTC")), None),
    "time": (one(datetime.time(1, 2, 3), pa.time32("ms")), None),
    "time of micros": (one(datetime.time(1, 2, 3), pa.time64("us")), None),
    "duration": (one(datetime.timedelta(seconds=3), pa.duration("us")), "bigint"),
    "dec 9": (one(decimal.Decimal("1.23"), pa.decimal128(9, 2)), "decimal(9,2)"),
    "dec 18": (one(decimal.Decimal("1.23"), pa.decimal32(9, 2)), "decimal(9,2)"),
    "dec 38": (one(decimal.Decimal("1.23"), pa.decimal128(38, 2)), "decimal(38,2)"),
    "dec 50": (one(decimal.Decimal("1.23"), pa.decimal256(50, 2)), None),
    "nothing": (pa.nulls(2), "int"),
    "list": (one([1, None], pa.list_(pa.uint8())), "array<smallint>"),
    "large list": (one([1], pa.large_list(pa.int32())), "array<int>"),
    "two": (one([1, 2], pa.list_(pa.int32(), 2)), "array<int>"),
    "struct": (one({"a": 1, "b": "x"}, pa.struct([("a", pa.uint64()), ("b", pa.string())])), None),
    "map": (one([("a", 1)], pa.map_(pa.string(), pa.uint16())), "map<string,int>"),
    "list of structs": (one([{"a": [1]}, None]), "array<struct<a:array<bigint>>>"),
    "struct of nanos": (one({"t": 1}, pa.struct([("t", pa.timestamp("ns"))])), None),
    "dots.in it": (one("x"), "string"),
}
TYPES["struct"] = (TYPES["struct"][0], "struct<a:decimal(20,0),b:string>")

# What Spark reads a type of a file as, where the lane's schema says so.
OTHER_TYPES = {
    "i8": "int bigint double decimal(20,0)",
    "i32": "smallint bigint double decimal(12,2)",
    "i64": "decimal(22,2)",
    "u8": "int bigint",
    "u32": "bigint",
    "f32": "double",
    "text": "binary",
    "bytes": "string",
    "four bytes": "binary",
    "date": "timestamp_ntz",
    "millis": "timestamp",
    "micros of a zone": "timestamp_ntz",
    "nanos": "bigint",
    "dec 9": "decimal(20,5)",
    "list": "array<int>",
    "struct": "struct<B:string,c:int>",
    "map": "map<string,bigint>",
    "list of structs": "array<struct<a:array<bigint>,b:string>>",
}
# What Python made values of that are not Spark's, where Spark refuses.
REFUSED = {
    "bool": "int string",
    "i64": "int float double string boolean timestamp decimal(9,2)",
    "u64": "bigint double",
    "f64": "int float string decimal(9,2)",
    "text": "int date",
    "micros": "date string",
    "nanos": "timestamp_ntz",
    "dec 9": "int double decimal(9,0) decimal(5,2) string",
    "four bytes": "string",
    "list": "string array<string>",
    "struct": "struct<a:bigint>",
}

# Of each format, files whose reading is not plain, and the settings of the lane.
OTHERS: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {
    "csv": (ODD, {"corrupt": "allow", "options": {"header": "true", "comment": "#"}, "schema": "a INT, b STRING"}),
    "csv without types": ({"a.csv": ODD["quotes.csv"], "b.csv": "b,a\nx,1.5\n"}, {"options": {"header": "true"}}),
    "csv with types": ({"a.csv": "a,b\n1,2026-01-02\n"}, {"options": {"header": "true", "inferSchema": "true"}}),
    "jsonl": (
        {
            "a": '{"a": 1, "b": {"c": [1.5, null]}}\r\n\n{"a": null, "x": "x"}\n{"b": {"d": "\u2028\x85 é"}}',
            "b.gz": gzip.compress(b'{"a": 12345678901234567890, "t": "2026-01-02T03:04:05Z"}'),
            "c.bz2": bz2.compress('\ufeff{"z": true}'.encode()),
        },
        {"corrupt": "allow"},
    ),
    "jsonl of UTF-16": (
        {"a": '{"a": "é"}\n{"a": "ü"}\n'.encode("utf-16-le")},
        {"options": {"encoding": "UTF-16LE", "lineSep": "\n"}},
    ),
    "json": ({"a": '[{"a": 1},\n {"a": "x",\n "b": []}]', "b": '{"c": {"d": 1e400}}'}, {"corrupt": "allow"}),
    "text": ({"a": "one\r\ntwo\rthree\n\n\x00four \n", "b": "é" * 50 + "\n" + "x" * 300}, {}),
    "binary": ({"a b%.bin": b"\x00\xff", "empty": b""}, {}),
}


# Files, and the places in them at which a seam is odd.
SEAMS = {
    "plain": b"a,b\n1,2\n33,44\n",
    "no last end": b"a\nb",
    "ends of two bytes": b"a,b\r\n1,2\r\n\r\n3,4\r\n",
    "old ends": b"a\rb\r\rc\r",
    "ends of all kinds": b"a\r\n\n\rb\n\r\nc\r",
    "letters of many bytes": "é€\n😀ü\r\nñ".encode(),
    "a mark, and one that is none": "\ufeffa\n\ufeffb\n".encode(),
    "quotes": b'"a\nb",1\n"x""y",2\n',
    "one line": b"a line and no end",
    "nothing": b"",
    "ends alone": b"\n\n\n",
    "blanks": b"\n \n\na\n \n",
    "no bytes of ASCII": '{"a": "ä"}\n{"b": 2}\n'.encode("utf-16-le"),
}


@pytest.mark.parametrize("separator", ["", "\n", "\r\n", "ab", "€"])
@pytest.mark.parametrize("name", SEAMS)
def test_a_line_is_in_one_piece_wherever_a_file_is_cut(
    monkeypatch: pytest.MonkeyPatch, name: str, separator: str
) -> None:
    """However a file is cut into pieces, their lines together are those of the file: none is lost, cut or doubled.

    (pipeline 33)
    """
    content = SEAMS[name]
    for encoding, size in ((encoding, size) for encoding in ("utf-8", None) for size in (4, 5, 1000)):
        monkeypatch.setattr(_executor_read, "_PIECE_BYTES", size)
        monkeypatch.setattr(_executor_read, "_SEAM_BYTES", size - 3)
        reading = _executor_read.Reading("lines", encoding=encoding, separator=separator, has_header=True)
        whole = list(_executor_read.lines_of(io.BytesIO(content), reading))
        for first in range(1, len(content)):
            for second in range(first, len(content)):
                pieces = ((0, first), (first, second), (second, None))
                found = [_executor_read.lines_of_piece(io.BytesIO(content), *ends, reading) for ends in pieces]
                assert [line for lines in found for line in lines] == whole, (encoding, size, first, second)


def test_large_files_are_cut_and_small_ones_are_not() -> None:
    """A file of 175 MB is read by as many tasks as its bytes deserve, and packed ones and small ones by one each.

    (pipeline 33)
    """

    def sizes(*files: tuple[str, int]) -> list[list[int]]:
        groups = _python_io._groups([_executor_read.File(None, name, name, size) for name, size in files], may_cut=True)
        return [[one.size_bytes for one in group] for group in groups]

    assert sizes(("a.csv", 175_000_000)) == [[43_750_000]] * 4
    assert [len(group) for group in sizes(*((f"{name}.csv", 175_000_000) for name in "abcd"))] == [1] * 12
    assert sizes(("a.csv.gz", 175_000_000)) == [[175_000_000]]
    assert sizes(("a.csv", 1000), ("b.csv", 1000)) == [[1000], [1000]]
    (one, two, _, last) = _python_io._pieces(_executor_read.File(None, "a", "a", 40), 10)
    assert [(piece.start, piece.end) for piece in (one, two, last)] == [(0, 10), (10, 20), (30, None)]


class Mapped:
    """Spark as far as a frame of numbers and a function over it: the lines that the tasks read."""

    def range(self, *numbers: int) -> Mapped:
        self.count = numbers[1]
        return self

    def mapInArrow(self, read: Any, schema: str) -> list[str]:
        pyarrow = pytest.importorskip("pyarrow")
        batches = [pyarrow.RecordBatch.from_pydict({"id": [number]}) for number in range(self.count)]
        return [line for batch in read(batches) for line in batch.column("value").to_pylist()]


@pytest.mark.parametrize("before", [0, 10, 100])
@pytest.mark.parametrize("line", ["\n", "  \n", "# a comment, and no header\n"])
def test_a_header_behind_the_first_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, line: str
) -> None:
    """A header is no row, also where so many blank lines or comments are before it that a cut would come first.

    (pipeline 33)
    """
    monkeypatch.setattr(_python_io, "_LEAST_PIECE_BYTES", 40)
    monkeypatch.setattr(_python_io, "_FILE_BYTES", 0)
    monkeypatch.setattr(_python_io, "_HEADER_WITHIN_BYTES", 30)
    path = tmp_path / "a.csv"
    path.write_text(line * before + "a,b\n" + "".join(f"{row},{row}\n" for row in range(100)))
    options = Options({"header": "true", "comment": "#"})
    files = [(Place(str(path)), path.stat().st_size)]
    found: Any = _python_io.text_frame(Mapped(), Storage(), files, "csv", options)  # type: ignore[arg-type]
    assert found == [f"{row},{row}" for row in range(100)]


def test_a_header_that_could_not_be_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header is no row, also where the store did not answer when it was looked for. (pipeline 33)"""
    monkeypatch.setattr(_python_io, "_LEAST_PIECE_BYTES", 40)
    monkeypatch.setattr(_python_io, "_FILE_BYTES", 0)
    monkeypatch.setattr(Storage, "starts_of", lambda self, places, most: [OSError("SlowDown") for _ in places])
    path = tmp_path / "a.csv"
    path.write_text("\n" * 100 + "a\n" + "1\n" * 100)
    files = [(Place(str(path)), path.stat().st_size)]
    found: Any = _python_io.text_frame(Mapped(), Storage(), files, "csv", Options({"header": "true"}))  # type: ignore[arg-type]
    assert found == ["1"] * 100


def test_what_cannot_be_cut_says_why() -> None:
    """The reason why a file is one task names the option, or that the file is packed. (pipeline 33)"""
    assert uncut("csv", {"encoding": "ISO-8859-1"}) is uncut("jsonl", {}) is uncut("parquet", {}) is None
    assert (
        uncut("csv", {"multiline": "TRUE"})
        == uncut("json", {})
        == ("with multiLine = true a line's end does not end a record")
    )
    assert "UTF-16" in str(uncut("csv", {"encoding": "UTF-16"}))
    assert "overlap" in str(uncut("text", {"lineSep": "abca"}))
    assert "wholetext" in str(uncut("text", {"wholeText": "true"}))
    on_disk = Lane("l", Path("/"), ("*",), format="text", options={"encoding": "UTF-16"})
    assert why_whole(on_disk, "a.txt") is why_whole(on_disk, "a.bz2") is None
    assert why_whole(on_disk, "a.gz") == "a packed file is unpacked from its start"
    assert "UTF-16" in str(why_whole(dataclasses.replace(on_disk, io="python"), "a.txt"))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from spark_for_tests()


def frame_of(spark: Any, base: Path, way: str, files: Mapping[str, Any], format: str, **settings: Any) -> Any:
    io = "python" if way.startswith("python") else "spark"
    lane = Lane("lane", base, (), section="lane", format=format, io=io, **settings)
    seen = write(base, {name: content for name, content in files.items() if not (base / name).exists()})
    item = Item("i", "lane", tuple(seen or [FileSeen(name, 0, 0) for name in files]), base)
    inputs = Inputs(Storage())
    return inputs.read(inputs.reading(spark, lane, dataclasses.replace(item, files=met(item, Storage()))))


def by_every_way(
    spark: Any, base: Path, files: Mapping[str, Any], format: str, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[str, list[str]]:
    """The columns and the rows, which are the same by every way."""
    found = {}
    for way in ("spark", "spark in pieces", "python", "python in pieces", "python by many tasks"):
        with monkeypatch.context() as patched:
            if way == "spark in pieces":
                spark.conf.set("spark.sql.files.maxPartitionBytes", "40")
            elif way == "python in pieces":
                patched.setattr(_executor_read, "_PIECE_BYTES", 7)
                patched.setattr(_executor_read, "_BATCH_LINES", 1)
            elif way == "python by many tasks":
                patched.setattr(_python_io, "_LEAST_PIECE_BYTES", 9)
                patched.setattr(_python_io, "_FILE_BYTES", 0)
            try:
                frame = frame_of(spark, base, way, files, format, **settings)
                found[way] = frame.schema.simpleString(), sorted(map(repr, frame.collect()))
            finally:
                spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert all(one == found["spark"] for one in found.values()), found
    return found["spark"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OTHERS)
def test_files_are_the_same_rows_by_every_way(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Files of each format give the same columns and rows by every way. (pipeline 21)"""
    files, settings = OTHERS[name]
    _, rows = by_every_way(spark, tmp_path, files, name.split()[0], monkeypatch, **settings)
    assert rows


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_types_of_parquet_are_the_same_by_every_way(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each type that a Parquet file can have is the same type of Spark by every way, or refused by each.

    (pipeline 21)
    """
    import pyarrow.parquet

    taken = {name: values for name, (values, kind) in TYPES.items() if kind is not None}
    columns, rows = by_every_way(spark, tmp_path, {"all": taken}, "parquet", monkeypatch)
    expected = ",".join(f"{name}:{kind}" for name, (_, kind) in TYPES.items() if kind is not None)
    assert columns == f"struct<{expected}>"
    assert len(rows) == 2
    for name, (values, kind) in TYPES.items():
        if kind is None:
            with pytest.raises(Exception, match=r"TYPE|PRECISION"):
                frame_of(spark, tmp_path, "spark", {name: {name: values}}, "parquet")
            with pytest.raises(JobError, match=r"has a column of the type .*, which Spark does not read"):
                frame_of(spark, tmp_path, "python", {name: {name: values}}, "parquet")
    old = tmp_path / "old"
    (tmp_path / "groups").mkdir()
    many = {"all": {"a": list(range(50)), "b": ["x" * 9] * 50}}
    monkeypatch.setattr(
        pyarrow.parquet, "write_table", functools.partial(pyarrow.parquet.write_table, row_group_size=7)
    )
    assert len(by_every_way(spark, tmp_path / "groups", many, "parquet", monkeypatch)[1]) == 50
    pyarrow.parquet.write_table(
        pa.table({"a": TYPES["micros"][0]}), old, use_deprecated_int96_timestamps=True, store_schema=False
    )
    by_python = parquet_frame(spark, Storage(), [(Place(str(old)), 1)], None)
    by_spark = spark.read.parquet(str(old))
    assert by_python.schema == by_spark.schema
    assert by_python.collect() == by_spark.collect()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_parquet_is_the_same_as_other_types_by_every_way(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a lane's schema has another type than a file, both ways give the same values. (pipeline 21)"""
    pairs = [(name, kind) for name, kinds in OTHER_TYPES.items() for kind in kinds.split()]
    table = {f"c{place}": TYPES[name][0] for place, (name, _) in enumerate(pairs)}
    ddl = ", ".join(f"c{place} {kind}" for place, (_, kind) in enumerate(pairs))
    _, rows = by_every_way(spark, tmp_path, {"all": table}, "parquet", monkeypatch, schema=ddl)
    assert len(rows) == 2


KINDS = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "array<string>": pa.list_(pa.string()),
    "struct<a:bigint>": pa.struct([("a", pa.int64())]),
}


def test_python_refuses_what_spark_refuses() -> None:
    """A column that Spark does not read as the lane's type is refused by Python too, and no other values are made of
    it: none is rounded, cut or made a text. (pipeline 21)"""
    for name, kinds in REFUSED.items():
        for kind in kinds.split():
            digits = kind.removeprefix("decimal(").rstrip(")").split(",")
            wanted = pa.decimal128(*map(int, digits)) if kind.startswith("decimal") else KINDS[kind]
            with pytest.raises(Unreadable, match=r"the column 'c'.* is .*, and is not read as "):
                as_wanted(TYPES[name][0], wanted, "f: the column 'c'")
    too_large = pa.array([300], pa.int32())
    with pytest.raises(Unreadable, match="300 not in range"):
        as_wanted(too_large, pa.int8(), "f: the column 'c'")


def test_slices_of_nested_columns_are_read_alike() -> None:
    """Lists and maps that begin in the middle of a batch have their own elements."""
    lists = pa.array([[1, 2], None, [3], []], pa.list_(pa.int32()))
    wide = pa.list_(pa.int64())
    assert as_wanted(lists.slice(2), wide, "").to_pylist() == [[3], []]
    maps = pa.array([[("a", 1)], None, [("b", 2)]], pa.map_(pa.string(), pa.int32()))
    assert as_wanted(maps.slice(1), pa.map_(pa.string(), pa.int64()), "").to_pylist() == [None, [("b", 2)]]
    structs = pa.array([{"a": 1}, None, {"a": 3}])
    found = as_wanted(structs.slice(1), pa.struct([("A", pa.int64()), ("b", pa.string())]), "")
    assert found.to_pylist() == [None, {"A": 3, "b": None}]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_why_python_does_not_read_a_file(spark: Any, tmp_path: Path) -> None:
    """What an executor cannot read is set aside with a sentence that names the file, and is not tried again."""
    from test_pipeline_input import Reader

    read = Reader(spark, tmp_path, io="python")
    assert "/a: the column 'a' is int64, and is not read as int32" in read.error(
        {"a": {"a": [2**40]}}, "parquet", schema="a INT"
    )
    cut = gzip.compress(b"a\n" + bytes(range(32, 127)) * 500)[:-9]
    assert "/a.csv.gz cannot be unpacked: Compressed file ended" in read.error({"a.csv.gz": cut})
