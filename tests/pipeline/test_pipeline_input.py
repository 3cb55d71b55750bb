"""What is read is what files and configuration say, or an error says why not. On real Spark, in one session."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline_parts_support import (
    RECORDS,
    DirectorySink,
    Headers,
    Lane,
    Place,
    Places,
    Reading,
    SparkWork,
    Storage,
    Task,
    Writing,
    beside,
    contents_of,
    met,
    sql_job,
)
from pipeline_support import Recorder, spark_for_tests

from multiqueue.pipeline import (
    FileSeen,
    Item,
    JobError,
    PipelineError,
    Silent,
    load_config,
    parse_config,
    run_pipeline,
)
from multiqueue.testing import PATIENCE, wait_until_blocked

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Files = dict[str, Any]
"""Their names, and what is in them: text, bytes, or a Parquet table's columns."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from spark_for_tests()


def write(base: Path, files: Files) -> list[FileSeen]:
    for name, content in files.items():
        if isinstance(content, dict):
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table(content), base / name)
        else:
            (base / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [FileSeen(name, 0, 0) for name in files]


class Reader:
    """Reads files as one item of a lane."""

    def __init__(self, spark: Any, base: Path, query: str = "SELECT * FROM input", io: str = "spark") -> None:
        self.spark = spark
        self.base = base
        sink = DirectorySink(Places(base / "out"), Writing("json", {}, (), None, None, "output.expect"))
        self.work = SparkWork({"": Task(sql_job(query), sink, sees_files=io != "driver")})
        self.io = "auto" if io == "driver" else io
        self.staged = base / "staged"

    def __call__(self, files: Files, format: str = "csv", **lane: Any) -> list[Any]:
        """The rows as lists of values; NULLs are told by their columns' absence, as JSON has them."""
        import shutil

        for place in (self.staged, beside(self.staged)):
            shutil.rmtree(place, ignore_errors=True)
        settings = {"corrupt": "error" if format in ("csv", "json", "jsonl") else "allow", **lane}
        if format == "csv" and "options" not in settings:
            settings["options"] = {"header": "true"}
        self.work.add(Lane("lane", self.base, (), section="lane", format=format, io=self.io, **settings))
        item = Item("i", "lane", tuple(write(self.base, files)), self.base)
        self.work(self.spark, dataclasses.replace(item, files=met(item, Storage())), self.staged)
        return rows_in(self.staged)

    def error(self, files: Files, format: str = "csv", **lane: Any) -> str:
        """The sentence that the files are set aside with."""
        with pytest.raises(JobError) as caught:
            self(files, format, **lane)
        return str(caught.value)

    def records(self) -> list[tuple[str, int | None, str]]:
        """What was set aside: file, line, record."""
        lines = (beside(self.staged) / RECORDS).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return sorted((Path(one["file"]).name, one["line"], one["record"]) for one in records)


def rows_in(directory: Path) -> list[Any]:
    parts = sorted(path for path in directory.rglob("*.json") if path.name.startswith("part-"))
    lines = [line for part in parts for line in part.read_text().split("\n") if line]
    return sorted(map(json.loads, lines), key=str)


WAYS = [pytest.param(io, marks=pytest.mark.slow(selected=True)) for io in ("spark", "python", "driver")]

# For what the driver reads: all else would be read by Spark a second time. See `test_which_files_the_driver_reads`.
by_driver_too = pytest.mark.parametrize("read", WAYS, indirect=True)


@pytest.fixture(params=WAYS[:2])
def read(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Reader:
    """The ways to the bytes: Spark's own readers, the executors' Python, and small files by the driver."""
    return Reader(spark, tmp_path, io=request.param)


A = "customer,amount\nx,1\n"
B = "amount,customer\n2,y\n"
X, Y = {"customer": "x", "amount": "1"}, {"customer": "y", "amount": "2"}


@by_driver_too
def test_each_header_counts_for_its_own_file(read: Reader) -> None:
    """Columns in another order are read by name, with and without a schema, also when the headers differ in other ways.

    (pipeline 13)
    """
    assert read({"a.csv": A, "b.csv": B}) == [X, Y]
    typed = [{"customer": "x", "amount": 1}, {"customer": "y", "amount": 2}]
    assert read({"a.csv": A, "b.csv": B}, schema="customer STRING, amount INT") == typed
    assert read({"b.csv": B}, schema="customer STRING, amount INT") == typed[1:]
    assert read({"a.csv": A, "b.csv": B}, options={"header": "true", "inferSchema": "true"}) == typed
    assert read({"a.csv": A, "b.csv": B, "c.csv": "Amount,CUSTOMER\n3,z\n"})[2] == {"customer": "z", "amount": "3"}
    assert read({"a.csv": "\ufeff" + A, "b.csv": A.replace("\n", "\r\n").replace("x", "w")}) == [
        {**X, "customer": "w"},
        X,
    ]
    assert read({"a.csv.gz": gzip.compress(A.encode()), "b.csv.bz2": bz2.compress(B.encode())}) == [X, Y]
    quoted = "'amount'|'customer'\n'2'|'y'\n"
    options = {"Header": "true", "sep": "|", "quote": "'", "comment": "#"}
    assert read({"a.csv": "# made by us\n\ncustomer|amount\nx|1\n", "b.csv": quoted}, options=options) == [X, Y]
    if read.io == "python":  # which does not honour multiLine
        return
    wide = {"header": "true", "encoding": "UTF-16", "multiLine": "true"}
    assert read({"a.csv": A.encode("utf-16"), "b.csv": B.encode("utf-16")}, options=wide) == [X, Y]
    long = {"header": "true", "multiLine": "true"}
    two_lines = '"the\ncustomer",amount\nx,1\n', 'amount,"the\ncustomer"\n2,y\n'
    assert [
        row["the\ncustomer"] for row in read(dict(zip(("a.csv", "b.csv"), two_lines, strict=True)), options=long)
    ] == ["x", "y"]


def test_a_header_that_python_reads_costs_no_job(spark: Any, tmp_path: Path) -> None:
    """Spark parses a header in the driver: a job on a machine that has just died would keep all items waiting."""
    read = Reader(spark, tmp_path, io="python")
    job, scheduler = read.work.sections[""].job, spark.sparkContext._jsc.sc().dagScheduler()
    begun: list[int] = []

    def counting(spark: Any, frames: Any, item: Item) -> Any:
        begun.append(scheduler.numTotalJobs())
        return job(spark, frames, item)

    read.work.sections = {"": Task(counting, read.work.sections[""].sink)}
    begun.append(scheduler.numTotalJobs())
    assert read({"a.csv": A, "b.csv": B}) == [X, Y | {"amount": "2"}]
    assert begun[0] == begun[1]


@by_driver_too
def test_other_columns_are_told(read: Reader) -> None:
    """A file with other columns than the others, or than the schema, is an error that names what is missing, too many,
    expected and found."""
    more = {"a.csv": A, "b.csv": "customer,amount,region\ny,2,eu\n"}
    assert read.error(more) == (
        "'b.csv' has other columns than 'a.csv': unexpected 'region'; expected 'customer', 'amount', "
        "found 'customer', 'amount', 'region'"
    )
    assert read.error({"b.csv": "customer,sum\ny,2\n"}, schema="customer STRING, amount INT") == (
        "'b.csv' has other columns than lanes.lane.schema: missing 'amount', unexpected 'sum'; "
        "expected 'customer', 'amount', found 'customer', 'sum'"
    )
    assert "missing 'amount'" in read.error({"a.csv": A, "b.csv": "customer\ny\n"})
    assert "missing 'customer'" in read.error({"a.csv": A, "b.csv": "kunde,amount\ny,2\n"}, expect="customer STRING")
    inferred = read.error(
        {"a.csv": A, "b.csv": "amount,customer\nmany,y\n"}, options={"header": "true", "inferSchema": "true"}
    )
    assert inferred == "'b.csv' has columns of other types than 'a.csv'"


@by_driver_too
def test_files_without_a_header(read: Reader) -> None:
    """A file that is empty where a header is expected is an error, one with nothing but a header has no rows."""
    assert read({"a.csv": "customer,amount\n"}) == []
    said = "'b.csv' is empty, and a header was expected; corrupt = \"allow\" takes it"
    assert read.error({"a.csv": A, "b.csv": " \n\n"}) == said
    assert read({"a.csv": A, "b.csv": ""}, corrupt="allow") == [X]
    assert read({"a.csv": "", "b.csv": "1,2\n"}, options={}) == [{"_c0": "1", "_c1": "2"}]
    assert "cannot read 'a.csv.gz': Not a gzipped file" in read.error({"a.csv.gz": A})


def test_columns_by_position(read: Reader) -> None:
    """`enforceSchema = true` is Spark's own way: the names in the header do not count."""
    options = {"header": "true", "enforceSchema": "true"}
    assert read({"b.csv": B}, options=options, schema="first INT, second STRING") == [{"first": 2, "second": "y"}]


@by_driver_too
def test_names_that_spark_changes(read: Reader) -> None:
    """Columns without a name, or with the name of another, have those that Spark gives them, and their own values."""
    assert read({"a.csv": "a,a,,b\n1,2,3,4\n"}) == [{"a0": "1", "a1": "2", "_c2": "3", "b": "4"}]
    assert read({"a.csv": "a0,b\n1,2\n"}) == [{"a0": "1", "b": "2"}]


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("io", ["spark", "driver"])
@pytest.mark.parametrize(("query", "rows"), [("SELECT a FROM input", "1\n"), ("SELECT count(*) FROM input", "1,2,3\n")])
def test_a_record_of_another_length(spark: Any, tmp_path: Path, query: str, rows: str, io: str) -> None:
    """A record with a field too few or too many is an error with its line, whichever columns the job needs."""
    read = Reader(spark, tmp_path, query, io=io)
    assert read.error({"a.csv": "a,b\n5,6\n" + rows}) == (
        f"line 3 of 'a.csv' is not as configured: {rows.strip()!r}; "
        'it begins at byte 8; corrupt = "set aside" keeps such records apart, "allow" reads them as NULL'
    )


@by_driver_too
def test_a_value_of_another_type(read: Reader) -> None:
    """A value that is not of the schema's type is an error with file, line and text, not NULL. (pipeline 13)"""
    said = read.error({"a.csv": "a\n1\nx\n"}, schema="a INT")
    assert said.startswith("line 3 of 'a.csv' is not as configured: 'x'; it begins at byte 4; ")


@pytest.mark.parametrize(
    ("format", "files", "lane", "said"),
    [
        (
            "csv",
            {"a.csv": "1,2\n", "b.csv": "1,2,3\n"},
            {"options": {}},
            "'a.csv' does not fit the columns of the others",
        ),
        ("json", {"a.json": "hello"}, {}, "line 1 of 'a.json' is not as configured: 'hello'; "),
        (
            "json",
            {"a.json": '{"a": 1}', "b 1.json": "[1, 2]"},
            {},
            "line 1 of 'b 1.json' is not as configured: '[1, 2]'; ",
        ),
        (
            "json",
            {"a.json": '{\n"a": 1, "b'},
            {"schema": "a INT"},
            "'a.json' is not as configured: '{\\n\"a\": 1, \"b'; ",
        ),
        ("json", {"a.json": ""}, {}, "'a.json' is empty, and a JSON document was expected; "),
        (
            "json",
            {"a.json": '{"a": 1}\n{"a": 2}\n'},
            {},
            "'a.json' has more than one document, and '{\"a\": 2}' would not be read; ",
        ),
        ("jsonl", {"a.jsonl": '{"a": 1}\n{"a": 2'}, {}, "line 2 of 'a.jsonl' is not as configured: '{\"a\": 2'; "),
        (
            "jsonl",
            {"a.jsonl": '{"a": 1}\n{"a": "x"}'},
            {"schema": "a INT"},
            "line 2 of 'a.jsonl' is not as configured: ",
        ),
        ("jsonl", {"a.jsonl": "null\n"}, {"schema": "a INT"}, "line 1 of 'a.jsonl' is not as configured: 'null'; "),
    ],
)
def test_a_record_that_is_none(read: Reader, format: str, files: Files, lane: dict[str, Any], said: str) -> None:
    """A record that cannot be what the configuration says is an error with file, line and text, not a row of NULL.

    (pipeline 13)
    """
    if read.io == "python":  # which takes the columns of the first file, and tells the record that has others
        said = said.replace("'a.csv' does not fit the columns of the others", "line 1 of 'b.csv' is not as configured")
    assert said in read.error(files, format, **lane)


def test_what_is_no_error(read: Reader) -> None:
    """An array of documents, keys that are absent, files of lines without any, and documents that Spark alone
    understands are read."""
    assert read({"a.json": '[{"a": 1},\n {"a": 2}]', "b.json": "{}"}, "json") == [{"a": 1}, {"a": 2}, {}]
    assert read({"a.jsonl": '{"a": 1}\n\n{"b": 2}\n', "b.jsonl": ""}, "jsonl") == [{"a": 1}, {"b": 2}]
    odd = {"allowComments": "true", "allowUnquotedFieldNames": "true"}
    assert read({"a.json": "/* no */ {a: 1}"}, "json", options=odd) == [{"a": 1}]
    assert read({"a.json": "[" + ",".join('{"a": 1}' for _ in range(20_000)) + "]"}, "json")[9] == {"a": 1}


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ('{"a": 1} more', "more"),
        ('{"a": 1}{"a": 2}', '{"a": 2}'),
        ('{"a": {"b": 1}},\t{"a": 2}', '{"a": 2}'),
        ('{"a": 1}' * 20_000, '{"a": 1}' * 10),
    ],
    ids=["word", "document", "comma", "long"],
)
def test_a_line_that_goes_on(read: Reader, line: str, rest: str) -> None:
    """A line of JSON with something behind its document is an error with the line, and what would not be read.

    (pipeline 13)
    """
    assert read.error({"a.jsonl": '{"a": 0}\r\n' + line + "\n"}, "jsonl") == (
        f"line 2 of 'a.jsonl' goes on after its document, and {rest!r} would not be read; a document a line is expected"
    )


def test_lines_that_only_seem_to_go_on(read: Reader) -> None:
    """Brackets in strings, arrays of documents, lines that end as old Macs' do, and with a comma, are no error."""
    assert read({"a.jsonl": '{"a": "} more"}\r{"a": "}, {"}\n[{"a": "1"}, {"a": "2"}]\n{"a": "3"},\n'}, "jsonl") == [
        {"a": "1"},
        {"a": "2"},
        {"a": "3"},
        {"a": "} more"},
        {"a": "}, {"},
    ]


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.csv.lz4", b"\x04\x22\x4d\x18\x60\x40\x82"), ("a.csv.snappy", b"\xff\x06\0\0sNaPpY"), ("b.csv.lz4", b"\0\0")],
)
def test_a_file_that_spark_cannot_unpack(read: Reader, name: str, start: bytes) -> None:
    """A file that is not in Hadoop's blocks is an error of its own, where Spark would take memory without end."""
    said = read.error({name: start + b"a,b"}, options={})
    assert said.startswith(
        f"{name!r} is not packed as Hadoop packs {Path(name).suffix}, in blocks with their lengths, "
    )
    files = {"a.csv": "1\n", "b.csv.lz4": b"", "c.csv.snappy": bytes(4)}
    if read.io == "python":
        assert read.error(files, options={}) == "'b.csv.lz4': Python does not unpack .lz4; pack it as .gz or .bz2"
    else:
        assert read(files, options={}) == [{"_c0": "1"}]


@pytest.mark.parametrize(
    "content",
    [gzip.compress(A.encode()), A.encode("utf-16"), "größe\nx\n".encode("latin-1")],
    ids=["packed", "wide", "latin"],
)
def test_a_header_that_is_no_text(read: Reader, content: bytes) -> None:
    """A header that is not UTF-8 is an error that says how to name its encoding, and no column of strange signs."""
    said = read.error({"a.csv": content})
    assert said.startswith(
        f"the header of 'a.csv' is not UTF-8: {content.split(bytes([10]))[0][:40]!r}; name its encoding"
    )
    assert read({"a.csv": "größe\nx\n".encode("latin-1")}, options={"header": "true", "encoding": "iso-8859-1"}) == [
        {"größe": "x"}
    ]


@by_driver_too
def test_a_quoted_value_of_two_lines(read: Reader) -> None:
    """A quote that is not closed in its line is an error that names multiLine, which reads the value whole."""
    files = {"a.csv": 'a,b\n"x\ny",1\n'}
    assert read.error(files) == (
        "line 2 of 'a.csv' is not as configured: '\"x'; it begins at byte 4; its quote is not closed: with multiLine = "
        'true in options a value may go on in the next line; corrupt = "set aside" keeps such records apart, "allow" '
        "reads them as NULL"
    )
    multi_line = {"header": "true", "multiLine": "true"}
    if read.io == "python":
        said = "Python's way of reading csv does not honour the option multiLine"
        assert read.error(files, options=multi_line) == said
    else:
        assert read(files, options=multi_line) == [{"a": "x\ny", "b": "1"}]


@by_driver_too
def test_a_quote_in_a_value_is_doubled(read: Reader) -> None:
    """A quoted value is what a spreadsheet meant by it; the lane's `escape` says otherwise, however it is spelled."""
    files = {"a.csv": 'a,b\n"he said ""hi"", twice",1\n"C:\\dir\\",2\n'}
    assert read(files) == [{"a": "C:\\dir\\", "b": "2"}, {"a": 'he said "hi", twice', "b": "1"}]
    other = {"a.csv": 'a,b\n"he said \\"hi\\", twice",1\n'}
    for name in ("escape", "Escape"):
        assert read(other, options={"header": "true", name: "\\"}) == [{"a": 'he said "hi", twice', "b": "1"}]


def test_records_that_are_set_aside(read: Reader) -> None:
    """With `set aside` each corrupt record is kept with its file and line, and the others are read."""
    files = {"a.csv": "a,b\n1,x\ny,z\n3\n", "b.csv": "b,a\nw,4\n3\n"}
    assert read(files, corrupt="set aside", schema="a INT, b STRING") == [{"a": 1, "b": "x"}, {"a": 4, "b": "w"}]
    assert read.records() == [("a.csv", 3, "y,z"), ("a.csv", 4, "3"), ("b.csv", 3, "3")]
    assert read(files, corrupt="set aside") == [{"a": "1", "b": "x"}, {"a": "4", "b": "w"}, {"a": "y", "b": "z"}]
    assert read.records() == [("a.csv", 4, "3"), ("b.csv", 3, "3")]
    assert read({"a.jsonl": '{"a": 1}\nhello\n{"a": 2}\nhello\n'}, "jsonl", corrupt="set aside") == [{"a": 1}, {"a": 2}]
    assert read.records() == [("a.jsonl", 2, "hello"), ("a.jsonl", 4, "hello")]
    assert read({"a.jsonl": '{"a": 1}\n'}, "jsonl", corrupt="set aside") == [{"a": 1}]
    assert not beside(read.staged).exists()


@by_driver_too
def test_records_that_are_allowed(read: Reader) -> None:
    """With `allow` Spark's own options decide, with its column for what it did not understand."""
    assert read({"a.csv": "a,b\n1\n"}, corrupt="allow") == [{"a": "1"}]
    assert read({"a.csv": "a,b\n1\n"}, corrupt="allow", schema="a INT, b INT, _corrupt_record STRING") == [
        {"a": 1, "_corrupt_record": "1"}
    ]
    options = {"header": "true", "mode": "DROPMALFORMED", "columnPruning": "false"}
    assert read({"a.csv": "a,b\n1\n2,3\n"}, corrupt="allow", options=options) == [{"a": "2", "b": "3"}]


def test_expected_columns_are_in_every_file(read: Reader) -> None:
    """`expect` holds for each file of an item: a JSON file whose records all lack a column is told."""
    good, poor = '{"a": 1}\n{"a": 2, "b": 3}\n', '{"a": 3}\n'
    assert len(read({"a.jsonl": good, "b.jsonl": good}, "jsonl", expect="a BIGINT, b BIGINT")) == 4
    said = "'b.jsonl' has no record with 'b', which lanes.lane.expect names"
    assert read.error({"a.jsonl": good, "b.jsonl": poor}, "jsonl", expect="a BIGINT, b BIGINT") == said
    assert read.error({"b.jsonl": poor}, "jsonl", expect="b INT", schema="a INT, b INT") == said
    alone = read.error({"b.jsonl": poor}, "jsonl", expect="a BIGINT, b BIGINT")
    assert alone == (
        "the columns are not those of lanes.lane.expect: 'b' (bigint) is missing; "
        "expected a BIGINT, b BIGINT, found a bigint"
    )


def test_parquet_files_of_other_columns(read: Reader) -> None:
    """Parquet files that are read together have the same columns, in any order; otherwise it is said which differ."""
    one, two = {"a": [1], "b": ["x"]}, {"b": ["y"], "a": [2]}
    assert read({"1.parquet": one, "2.parquet": two}, "parquet") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    more = {"1.parquet": one, "2.parquet": {**two, "c": [1.5]}}
    assert read.error(more, "parquet") == (
        "'2.parquet' has other columns than '1.parquet': unexpected 'c'; expected 'a', 'b', found 'b', 'a', 'c'"
    )
    assert "missing 'b'" in read.error({"1.parquet": one, "2.parquet": {"a": [2]}}, "parquet")
    other = read.error({"1.parquet": one, "2.parquet": {"a": ["2"], "b": ["y"]}}, "parquet")
    assert other == "'2.parquet' has 'a' as String; in '1.parquet' it is INT64"
    said = "'2.parquet' has other columns than lanes.lane.schema: missing 'b'; expected 'a', 'b', found 'a'"
    assert read.error({"2.parquet": {"a": [2]}}, "parquet", schema="a BIGINT, b STRING") == said
    if read.io == "spark":
        assert len(read(more, "parquet", options={"mergeSchema": "true"})) == 2
    assert len(read({"1.parquet": one, "2.parquet": {"A": [2], "b": ["y"]}}, "parquet")) == 2
    kind = read.error({"1.parquet": one, "2.parquet": {"A": ["2"], "b": ["y"]}}, "parquet")
    assert kind == "'2.parquet' has 'A' as String; in '1.parquet' it is INT64"
    cut = read.error({"1.parquet": one, "2.parquet": b"PAR1 and no more"}, "parquet")
    assert cut.startswith("'2.parquet' cannot be read as Parquet: Parquet magic bytes not found in footer")
    assert read.error({"1.parquet": b""}, "parquet").startswith("'1.parquet' cannot be read as Parquet: ")
    assert read.error({"1.parquet": b"PAR1 and no more"}, "parquet") == cut.replace("2.parquet", "1.parquet")


@by_driver_too
def test_a_file_that_changes_while_it_is_read(read: Reader) -> None:
    """An item one of whose files was written to while it was read is not done: it is tried again (pipeline 13)."""
    job = read.work.sections[""].job

    def slow(spark: Any, frames: Any, item: Item) -> Any:
        rows = job(spark, frames, item).cache()
        rows.count()
        (read.base / "a.csv").write_text(A + "more,5\n")
        return rows

    read.work.sections = {"": Task(slow, read.work.sections[""].sink)}
    with pytest.raises(PipelineError, match=r"^'a\.csv' has changed while it was read$") as caught:
        read({"a.csv": A})
    assert not isinstance(caught.value, JobError)


@by_driver_too
@pytest.mark.parametrize(
    ("later", "expected", "said"),
    [
        (A + '"more', PipelineError, r"^'a\.csv' has changed while it was read$"),
        (None, JobError, r"^'a\.csv' was deleted before it was read; `multiqueue pipeline retry` forgets files"),
    ],
)
def test_a_file_that_changes_before_it_is_read(
    read: Reader, monkeypatch: pytest.MonkeyPatch, later: str | None, expected: type[Exception], said: str
) -> None:
    """A file that is written to or deleted since it was met is told as that, and not as one of bad records.

    (pipeline 13)
    """
    there = read.work.inputs.read

    def late(reading: Reading) -> Any:
        path = read.base / "a.csv"
        path.unlink() if later is None else path.write_text(later)
        return there(reading)

    monkeypatch.setattr(read.work.inputs, "read", late)
    with pytest.raises(PipelineError, match=said) as caught:
        read({"a.csv": A})
    assert type(caught.value) is expected


CONFIGURATION = """\
[lanes.orders]
files = "in/*.csv"
format = "csv"
options = { header = true }
expect = "customer STRING, amount STRING"
batch = 8
[lanes.documents]
files = "in/*.json"
format = "json"
batch = 8
[lanes.lines]
files = "in/*.jsonl"
format = "jsonl"
corrupt = "set aside"
[job]
sql = "SELECT * FROM input"
[output]
path = "out"
format = "json"
[retry]
backoff = 0
"""

INPUT = {
    "a.csv": A,
    "b.csv": B,
    "c.csv": "amount,client\n3,z\n",
    "a.json": '{"a": 1}',
    "b.json": "no JSON at all",
    "a.jsonl": '{"a": 2}\nno JSON\n',
}


@pytest.mark.slow(selected=True)
def test_a_run_over_files_that_are_not_as_configured(spark: Any, tmp_path: Path) -> None:
    """A run sets each file aside that is not as configured, alone and with a sentence, and reads the others right; what
    it sets aside of a file is beside the output and goes when the file is mended."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", INPUT)
    (tmp_path / "p.toml").write_text(CONFIGURATION)
    config, reporter = load_config(tmp_path / "p.toml"), Recorder()
    result = run_pipeline(config, reporter, session=lambda: spark)
    assert int(result.status) == 1
    rows = rows_in(tmp_path / "out" / "data")
    assert sorted(map(str, rows)) == sorted(map(str, [{"a": 1}, {"a": 2}, X, Y]))
    failed = {ended.item.files[0].path: ended.error for ended in reporter.attempts if ended.state == "failed"}
    assert failed == {
        "in/c.csv": "JobError: the columns are not those of lanes.orders.expect: 'customer' (string) is missing; "
        "expected customer STRING, amount STRING, found amount string, client string",
        "in/b.json": "JobError: line 1 of 'in/b.json' is not as configured: 'no JSON at all'; "
        'it begins at byte 0; corrupt = "set aside" keeps such records apart, "allow" reads them as NULL',
    }
    (records,) = (tmp_path / "out" / "corrupt" / "lane=lines").rglob(RECORDS)
    assert json.loads(records.read_text()) == {
        "file": str(tmp_path / "in" / "a.jsonl"),
        "line": 2,
        "byte": 9,
        "record": "no JSON",
        "attempt": 1,
    }
    assert "1 record that is not as configured is set aside in" in "".join(reporter.notes)
    (tmp_path / "in" / "a.jsonl").write_text('{"a": 7}\n')
    run_pipeline(config, Silent(), session=lambda: spark)
    assert not records.exists()
    assert {"a": 7} in rows_in(tmp_path / "out" / "data")


STEPS = """\
[lanes.orders]
files = "*.csv"
format = "csv"
batch = 1
options = { header = true }
[job]
sql = "SELECT * FROM input"
[steps.all]
after = "orders"
sql = "SELECT customer, amount FROM orders"
[output]
path = "out"
format = "csv"
options = { header = true }
"""


@pytest.mark.slow(selected=True)
def test_a_step_over_items_of_other_columns(spark: Any, tmp_path: Path) -> None:
    """A step does not read items together whose columns stand in another order in their CSV: it says which."""
    write(tmp_path, {"a.csv": A, "b.csv": B})
    (tmp_path / "p.toml").write_text(STEPS)
    reporter = Recorder()
    result = run_pipeline(load_config(tmp_path / "p.toml"), reporter, session=lambda: spark)
    assert int(result.status) == 1
    (error,) = [ended.error for ended in reporter.attempts if ended.error]
    assert "their order is " in error
    (tmp_path / "p.toml").write_text(STEPS.replace("SELECT * FROM input", "SELECT customer, amount FROM input"))
    for name in ("a.csv", "b.csv"):
        os.utime(tmp_path / name, (1, 1))
    assert int(run_pipeline(load_config(tmp_path / "p.toml"), reporter, session=lambda: spark).status) == 0
    parts = (tmp_path / "out" / "steps" / "all").rglob("part-*.csv")
    rows = sorted(row for part in parts for row in part.read_text().splitlines()[1:])
    assert rows == ["x,1", "y,2"]


@pytest.mark.slow(selected=True)
def test_a_run_shows_its_dispatcher_to_those_who_watch(spark: Any, tmp_path: Path) -> None:
    """The page of a run has a job for each item, by its file, and the Spark jobs of each."""
    pytest.importorskip("starlette")
    from monitor_parts_support import _lanes

    from multiqueue.monitor import PipelineWindows

    write(tmp_path, {"a.csv": A, "b.csv": B})
    (tmp_path / "p.toml").write_text(STEPS.partition("[steps")[0] + STEPS[STEPS.index("[output]") :])
    with PipelineWindows("nightly", Silent()) as windows:
        run_pipeline(load_config(tmp_path / "p.toml"), windows, session=lambda: spark, watch=windows.watch)
        (book,) = windows._lanes.books()
        records = book.records(0.0)["orders"]
        assert sorted(record.name for record in records) == ["a.csv", "b.csv"]
        dispatcher = book.executor()
        assert dispatcher is None or _lanes.job_view(book, records[0])["spark"]


def test_items_that_begin_together_ask_for_a_header_once() -> None:
    """Items of one header that run at once have Spark read it once: the others wait for the answer."""
    asked: list[Place] = []
    found: list[Any] = []
    may_answer = threading.Event()

    def header(path: Place, line: bytes) -> list[str]:
        asked.append(path)
        assert may_answer.wait(PATIENCE)
        return line.decode().split(",")

    reading: Any = SimpleNamespace(lane=SimpleNamespace(section="lane"), option=lambda name: "", header=header)
    headers = Headers()

    def ask(number: int) -> None:
        found.append(headers._header(reading, b"a,b", Place(f"/{number}.csv")))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    threads[0].start()
    wait_until_blocked(lambda: asked)
    threads[1].start()
    wait_until_blocked(threads[1])
    may_answer.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [["a", "b"]] * 2
    assert asked == [Place("/0.csv")]


@pytest.mark.slow(selected=True)
def test_many_files_are_handed_over_in_one_call(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of many files makes no more calls of the JVM than one of few files."""
    from py4j.clientserver import ClientServerConnection

    calls = 0
    send = ClientServerConnection.send_command

    def counted(self: Any, command: str) -> Any:
        nonlocal calls
        calls += not command.startswith("m")  # that an object is collected, whenever that is
        return send(self, command)

    read = Reader(spark, tmp_path)
    assert read({"warm.csv": A}) == [X]
    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    assert read({f"few{number}.csv": A for number in range(2)}) == [X] * 2
    few, calls = calls, 0
    assert read({f"many {number}*.csv": A for number in range(40)}) == [X] * 40
    assert calls == few


@pytest.mark.slow(selected=True)
def test_many_small_files_are_read_by_as_many_tasks_as_run_at_once(spark: Any, tmp_path: Path) -> None:
    """A hundred small files become two files of output on two cores, not one for every 32; each row is there."""
    (tmp_path / "in").mkdir()
    for number in range(100):
        (tmp_path / "in" / f"{number:03}.csv").write_text(f"a,b\n{number},x\n")
    lane = {"files": "in/*", "format": "csv", "options": {"header": True}, "io": "spark"}
    values = {
        "lanes": {"in": lane},
        "job": {"sql": "SELECT a FROM input WHERE b = 'x'"},
        "output": {"path": "out", "format": "json"},
    }
    run_pipeline(parse_config(values, tmp_path), Silent(), session=lambda: spark)
    parts = list((tmp_path / "out" / "data").rglob("part-*.json"))
    assert sorted(json.loads(line)["a"] for part in parts for line in part.read_text().splitlines()) == [
        str(number) for number in sorted(range(100), key=str)
    ]
    assert len(parts) == 2


ODD = {
    "plain.csv": "a,b\n1,x\n2,\n",
    "ends.csv": "a,b\r\n3,x\r\n4,y",
    "old ends.csv": "a,b\r5,x\r6,y\r",
    "mark.csv": b"\xef\xbb\xbfa,b\n7,x\n",
    "blank.csv": "\n  \na,b\n\n8,x\n \t\n\x0c\n9,y\n\n",
    "quotes.csv": 'a,b\n10,"x,""y"""\n"11", z \n12,""\n',
    "no ends.csv": "a,b\n13,x\u2028y\x85z\x0bw\n14,\x00\n",
    "comment.csv": "#c\na,b\n#15,x\n16,#x\n",
    "short.csv": "a,b\n17\n18,x,y\n",
    "types.csv": "a,b\nnineteen,x\n 20 ,-\n",
    "empty.csv": "a,b\n",
    "twice.csv": "a,b\na,b\n21,x\n",
    "wide.csv": "a,b\n22,\U0001f40d\n23,'\\n\\\n",
    "other.csv": "b,a\nx,25\n",
    "packed.csv.gz": gzip.compress(b"a,b\n26,x\n"),
}


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("options", [{}, {"nullValue": "-", "ignoreLeadingWhiteSpace": "true"}])
def test_odd_files_are_the_same_rows(spark: Any, tmp_path: Path, options: dict[str, str]) -> None:
    """Small files that the driver reads are the rows of Spark's own reader, however odd lines and values are.

    (pipeline 30)
    """
    lane = {"schema": "a INT, b STRING", "corrupt": "allow", "options": {"header": "true", "comment": "#", **options}}
    by_spark = Reader(spark, tmp_path)(ODD, **lane)
    assert len(by_spark) > 20
    assert Reader(spark, tmp_path, io="driver")(ODD, **lane) == by_spark


def run_over_small_files(spark: Any, base: Path, query: str) -> list[Any]:
    """The rows of a query over a hundred files of a row."""
    write(base, {f"{number:03}.csv": A for number in range(100)})
    lane = {"files": "*.csv", "format": "csv", "options": {"header": True}}
    values = {"lanes": {"in": lane}, "job": {"sql": query}, "output": {"path": "out", "format": "json"}}
    run_pipeline(parse_config(values, base), Silent(), session=spark)
    return rows_in(base / "out" / "data")


@pytest.mark.slow(selected=True)
def test_no_task_opens_a_small_file(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of small files are in the plan of a query, and each is there. (pipeline 30)"""
    opened: list[Any] = []
    load = Reading.load

    def seen(self: Any, *arguments: Any) -> Any:
        frame = load(self, *arguments)
        opened.extend(frame.inputFiles())
        return frame

    monkeypatch.setattr(Reading, "load", seen)
    assert run_over_small_files(spark, tmp_path, "SELECT count(*) AS n FROM input") == [{"n": 100}]
    assert opened == []


@pytest.mark.slow(selected=True)
def test_a_query_asks_which_file_a_row_is_of(spark: Any, tmp_path: Path) -> None:
    """A query that asks for the names of files gets them, of small files too. (pipeline 30)"""
    rows = run_over_small_files(spark, tmp_path, "SELECT Input_File_Name() AS file FROM input")
    assert {Path(row["file"]).name for row in rows} == {f"{number:03}.csv" for number in range(100)}


@pytest.mark.slow(selected=True)
def test_a_job_that_asks_which_file_a_row_is_of_is_told_or_refused(spark: Any, tmp_path: Path) -> None:
    """`input_file_name()` is the file, or the item is set aside with the reason, in a query and in Python alike.

    (pipeline 21)
    """
    from pyspark.sql import functions

    where = "SELECT a FROM input WHERE input_file_block_start() >= 0"
    ways = {"python": {}, "spark": {"corrupt": "set aside"}}
    for io, lane in ways.items():
        for query in ("SELECT input_file_name () AS f FROM input", where, "SELECT 'input_file_name' AS f FROM input"):
            read = Reader(spark, tmp_path, query, io=io)
            if "'" in query:
                assert read({"a.csv": "a\n1\n"}, **lane) == [{"f": "input_file_name"}]
            else:
                assert "input_file_name() and its like are empty in this job" in read.error({"a.csv": "a\n1\n"}, **lane)
    for io in ("python", "spark"):
        read = Reader(spark, tmp_path, io=io)
        task = read.work.sections[""]
        job = lambda spark, frames, item: frames["input"].withColumn("f", functions.input_file_name())  # noqa: E731
        read.work.sections = {"": dataclasses.replace(task, job=job)}
        if io == "python":
            assert "Python reads the files" in read.error({"a.csv": "a\n1\n"})
        else:
            (row,) = read({"a.csv": "a\n1\n"})
            assert row["f"].endswith("/a.csv")


def test_which_files_the_driver_reads(tmp_path: Path) -> None:
    """The driver reads small files of CSV whose options Python honours, of stores too; Spark reads all others."""
    files = write(tmp_path, {"a.csv": A, "large.csv": A * 2000, "co:lon.csv": A, "bytes.csv": b"a,b\n\xff,1\n"})
    sized = {one.path: one for one in met(Item("i", "lane", tuple(files), tmp_path), Storage())}

    def reads(*names: str, **lane: Any) -> bool:
        settings = {"format": "csv", "corrupt": "error", "options": {"header": "true"}, **lane}
        item = Item("i", "lane", tuple(sized[name] for name in names), tmp_path)
        reading = Reading(None, Lane("lane", tmp_path, (), **settings), item, None, Storage())
        return list(contents_of(reading)) == list(item.places)

    assert reads("a.csv")
    assert reads("a.csv", schema="a INT", options={})
    assert not any(reads("a.csv", other) for other in ("large.csv", "co:lon.csv", "bytes.csv"))
    assert not any(reads("a.csv", **lane) for lane in ({"io": "spark"}, {"corrupt": "set aside"}, {"options": {}}))
    for name in ("multiLine", "inferSchema", "enforceSchema"):
        assert not reads("a.csv", options={"header": "true", name: "true"})
    for name, value in {"lineSep": ";", "encoding": "ISO-8859-1", "mode": "DROPMALFORMED"}.items():
        assert not reads("a.csv", options={"header": "true", name: value})
