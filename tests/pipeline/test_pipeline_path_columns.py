"""Columns in the paths of files, filters that prune the listing, and `_metadata`, for each way of reading."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pipeline_parts_support import (
    DirectorySink,
    Inputs,
    Lane,
    Place,
    Places,
    SparkWork,
    Storage,
    StorageSection,
    Task,
    Writing,
    _scan,
    asks_for_metadata,
    by_metadata,
    lane_job,
    met,
    path_columns,
    values_in,
)
from pipeline_support import spark_for_tests

from multiqueue.pipeline import ConfigError, FileSeen, Item, JobError, parse_config

if TYPE_CHECKING:
    from s3_support import Store

DDL = "dt DATE, region STRING, n INT"


def values(path: str) -> tuple[Any, ...]:
    return tuple(str(one) for one in values_in(path_columns(DDL, {}), Place(path)))


def test_values_are_typed() -> None:
    """A value is of its column's type; `%XX` stands for what no path may have, and Hive's word for NULL is NULL."""
    assert values("/in/dt=2026-01-02/region=a%2Fb=c/n=-7/f.csv") == ("2026-01-02", "a/b=c", "-7")
    assert values("s3://b/n=1/region=__HIVE_DEFAULT_PARTITION__/x/dt=2026-12-31/f") == ("2026-12-31", "None", "1")


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/in/dt=2026-01-02/region=a/f.csv", "no directory n=VALUE"),
        ("/in/dt=2026-02-30/region=a/n=1/f.csv", "'2026-02-30' is no DATE of dt"),
        ("/in/dt=2026-01-02/region=a/n=3000000000/f.csv", "'3000000000' is no INT of n"),
        ("/in/region=a/dt=2026-01-02/n=1", "no directory n=VALUE"),
        ("/in/dt=2026-01-02/region=a/n=1/n=2/f.csv", "n=VALUE twice"),
        ("/in/dt=2026-01-02/region=a/n=1_0/f.csv", "'1_0' is no INT of n"),
        ("/in/dt=20260102/region=a/n=1/f.csv", "'20260102' is no DATE of dt"),
        ("/in/dt=/region=a/n=1/f.csv", "'' is no DATE of dt"),
    ],
)
def test_paths_without_good_values(path: str, complaint: str) -> None:
    """A path that lacks a column, or has a value that is not of its type, is told."""
    with pytest.raises(ValueError, match=complaint):
        values(path)


TREE = ["dt=2025-12-31/region=eu", "dt=2026-01-01/region=eu", "dt=2026-01-01/region=us", "dt=2026-02-01/region=as"]


def entered(base: Path, wanted: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """The files that a scan with this filter yields, and the directories that it opens, below `in`."""
    for directory in (*TREE, "dt=__HIVE_DEFAULT_PARTITION__/region=eu", "dt=odd/region=eu"):
        (base / "in" / directory).mkdir(parents=True, exist_ok=True)
        (base / "in" / directory / "f.txt").write_text("f")
    opened: list[str] = []
    scandir = os.scandir

    def note(path: str) -> Any:
        opened.append(os.path.relpath(path, base / "in"))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", note)
    lane = Lane("l", base, ("in/**/*.txt",), path_columns=path_columns("dt DATE, region STRING", wanted))
    found = [seen.path.removeprefix("in/") for seen in _scan.scan(lane, base, _scan.PassedOver())]
    monkeypatch.undo()
    told = [path.relative_to(base) for path in sorted((base / "in").rglob("*.txt"))]
    by_events = [str(path) for path in told if _scan.fits(lane, Place(str(base / path)))]
    assert [path.removeprefix("in/") for path in by_events] == found
    return found, opened


@pytest.mark.parametrize(
    ("wanted", "directories"),
    [
        ({"dt": ">= 2026-01-01"}, TREE[1:]),
        ({"dt": ">=2026-01-01 and < 2026-02-01"}, TREE[1:3]),
        ({"dt": "2026-01-01", "region": "eu"}, TREE[1:2]),
        ({"dt": ["2025-12-31", "2026-02-01"]}, [TREE[0], TREE[3]]),
        ({"region": "!= eu"}, [TREE[2], TREE[3]]),
    ],
)
def test_a_filter_prunes_the_listing(
    tmp_path: Path, wanted: Mapping[str, Any], directories: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories that the filter excludes are not opened, and their events are of no lane; a bad value is looked at.

    (pipeline 38)
    """
    found, opened = entered(tmp_path, wanted, monkeypatch)
    odd = ["dt=odd/region=eu/f.txt"] if wanted.get("region") != "!= eu" else []
    assert [path for path in found if path not in odd] == [f"{one}/f.txt" for one in directories]
    assert {path for path in opened if "region=" in path} == {*directories, *(os.path.dirname(one) for one in odd)}
    if str(wanted.get("dt", "")).startswith(">"):
        assert {"dt=2025-12-31", "dt=__HIVE_DEFAULT_PARTITION__"}.isdisjoint(opened)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"path_columns": "dt DAY"}, "no column of a path"),
        ({"path_columns": "dt DATE, DT INT"}, "a column twice"),
        ({"path_columns": "dt DATE", "path_filter": {"day": "x"}}, "'day', which path_columns lacks"),
        ({"path_columns": "dt DATE", "path_filter": {"dt": ">= soon"}}, "'soon' is no DATE of dt"),
        ({"path_columns": "n INT", "path_filter": {"n": "> 1 and 5"}}, "'5' is no condition of n"),
        ({"path_filter": {"dt": "x"}}, "'dt', which path_columns lacks"),
        ({"path_columns": "dt DATE", "path_filter": {"dt": []}}, r"dt = \[\] would read nothing"),
        ({"path_columns": "r STRING", "path_filter": {"r": "== eu"}}, "'== eu' is no condition of r"),
        ({"path_columns": "r STRING", "path_filter": {"r": "<> eu"}}, "'<> eu' is no condition of r"),
        ({"path_columns": "r STRING", "path_filter": {"r": ">="}}, "'>=' is no condition of r"),
        ({"path_columns": "n INT", "path_filter": {"n": "1_0"}}, "'1_0' is no INT of n"),
        ({"path_columns": "dt DATE", "path_filter": {"dt": datetime(2026, 1, 1)}}, "'2026-01-01T00:00:00' is no DATE"),
        ({"path_columns": "_metadata STRING"}, "the column that tells of each row's file"),
        ({"events": "https://sqs.eu-west-1.amazonaws.com/"}, "names no queue; of SQS https"),
        ({"events": "sqs"}, 'sqs.REGION.amazonaws.com/ACCOUNT/QUEUE, and for local directories "inotify"'),
    ],
)
def test_mistakes_in_the_configuration(tmp_path: Path, keys: Mapping[str, Any], complaint: str) -> None:
    """What is no column or no filter is told, and what would be right."""
    lane = {"files": "*", "format": "text", **keys}
    with pytest.raises(ConfigError, match=complaint):
        parse_config({"lanes": {"a": lane}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path)


def test_a_filter_of_days_of_toml(tmp_path: Path) -> None:
    """A day may be one of TOML's own, and `and` be written in capitals."""
    lane = {"files": "*", "format": "text", "path_columns": "dt DATE, r STRING"}
    lane["path_filter"] = {"dt": [date(2026, 1, 1)], "r": ">= a AND < c"}  # type: ignore[assignment]
    values = {"lanes": {"a": lane}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}
    (made,) = parse_config(values, tmp_path).lanes()
    days, regions = (column.test for column in made.path_columns)
    assert days is not None
    assert [days(date(2026, 1, day)) for day in (1, 2)] == [True, False]
    assert regions is not None
    assert [regions(one) for one in "bc"] == [True, False]


def test_a_query_that_asks_for_files() -> None:
    """`input_file_name()` is `_metadata.file_path`, but not in a text, a quoted name or a comment."""
    query = "SELECT Input_File_Name ( ) f, 'input_file_name()' t, `input_file_name()` -- input_file_name()\n FROM input"
    assert by_metadata(query) == query.replace("Input_File_Name ( )", "_metadata.file_path")
    assert not asks_for_metadata("SELECT '_metadata' FROM input")
    assert asks_for_metadata("SELECT _metadata . file_path FROM input")
    assert not asks_for_metadata("SELECT _metadata . file_path FROM input", whole=True)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from spark_for_tests()


class Rows:
    """Files read as one item, the same files each way."""

    def __init__(self, spark: Any, base: Path, query: str) -> None:
        self.spark = spark
        self.base = base
        sink = DirectorySink(Places(base / "out"), Writing("json", {}, (), None, None, "output.expect"))
        metadata = asks_for_metadata(by_metadata(query))
        self.task = Task(lane_job(query), sink, sees_files=False, metadata=metadata)

    def __call__(self, files: Mapping[str, bytes], io: str, format: str, **lane: Any) -> list[Any]:
        import shutil

        staged = self.base / "staged"
        shutil.rmtree(staged, ignore_errors=True)
        for name, body in files.items():
            (self.base / name).parent.mkdir(parents=True, exist_ok=True)
            (self.base / name).write_bytes(body)
            os.utime(self.base / name, (1_000_000, 1_000_000))
        task = dataclasses.replace(self.task, sees_files=io != "driver")
        work = SparkWork({"": task})
        settings = {"corrupt": "error" if format in ("csv", "jsonl") else "allow", **lane}
        way = "auto" if io == "driver" else io
        work.add(Lane("lane", self.base, (), section="lane", format=format, io=way, **settings))
        item = Item("i", "lane", tuple(FileSeen(name, 0, 0) for name in sorted(files)), self.base)
        work(self.spark, dataclasses.replace(item, files=met(item, Storage())), staged)
        lines = [line for path in staged.rglob("part-*") for line in path.read_text().splitlines()]
        return sorted(map(json.loads, lines), key=str)


CSV = {
    "in/dt=2026-01-01/region=e%20u/a b+ü'.csv": b"v\n1\n2\n",
    "in/dt=2026-01-02/region=__HIVE_DEFAULT_PARTITION__/100%25 %.csv": b"v\n3\n",
    "in/dt=2026-01-02/region=us/none.csv": b"v\n",
}
QUERY = "SELECT *, _metadata.file_name f, _metadata.file_size s, input_file_name() AS p, " \
    "unix_seconds(_metadata.file_modification_time) t FROM input"  # fmt: skip
KINDS = [
    ("csv", {"options": {"header": "true"}}),
    ("csv", {"options": {"header": "true"}, "corrupt": "set aside"}),
    ("jsonl", {}),
    ("parquet", {}),
    pytest.param(
        "csv",
        {"options": {"header": "true"}, "schema": "infer", "on_new_columns": "rescue", "rescued_column": "_r"},
        marks=pytest.mark.slow,
    ),
    pytest.param("csv", {"schema": "v STRING", "options": {"header": "true"}}, marks=pytest.mark.slow),
    pytest.param("text", {}, marks=pytest.mark.slow),
    pytest.param("paths", {}, marks=pytest.mark.slow),
]


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.slow(selected=True)
@pytest.mark.parametrize(("format", "lane"), KINDS, ids=lambda one: one if isinstance(one, str) else "-".join(one))
def test_the_same_whichever_way(spark: Any, tmp_path: Path, format: str, lane: dict[str, Any]) -> None:
    """Each row has the columns of its file's path and the same `_metadata`, by Spark, by Python and by the driver.

    (pipeline 38)
    """
    files = dict(CSV)
    if format == "jsonl":
        files = {name: b"".join(b'{"v": %s}\n' % one for one in body.split()[1:]) for name, body in CSV.items()}
    if format == "parquet":
        files = {name: parquet(body.split()[1:]) for name, body in CSV.items()}
    read = Rows(spark, tmp_path, QUERY)
    lane = {"path_columns": path_columns("dt DATE, region STRING", {}), **lane}
    by_spark = read(files, "spark", format, **lane)
    first = [row for row in by_spark if row["dt"] == "2026-01-01"]
    assert first
    assert {row["region"] for row in first} == {"e u"}
    assert all("region" not in row for row in by_spark if "100%25" in row["f"])
    for row in by_spark:
        name = next(name for name in files if name.endswith(row["f"]))
        assert (row["s"], row["t"], row["f"]) == (len(files[name]), 1_000_000, os.path.basename(name))
        assert "_metadata" not in row
    if format not in ("paths",):
        reader = spark.read.format({"jsonl": "json"}.get(format, format))
        theirs = reader.load([f"{tmp_path}/in".replace("%", "\\%")]).selectExpr("input_file_name() AS p").distinct()
        assert {row["p"] for row in by_spark} <= {row["p"] for row in theirs.collect()}
    for io in ("python", "driver"):
        assert read(files, io, format, **lane) == by_spark


def parquet(values: list[bytes]) -> bytes:
    import io

    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    out = io.BytesIO()
    pq.write_table(pa.table({"v": pa.array([one.decode() for one in values], pa.string())}), out)
    return out.getvalue()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.slow(selected=True)
def test_one_file_and_its_own_column(spark: Any, tmp_path: Path) -> None:
    """Of one file the columns are the same; the path's column takes the place of one of that name in the file.

    Without `_metadata` in the query it is not there, and a bare one is the whole. A path without the column, and a
    broken record, are told.
    """
    read = Rows(spark, tmp_path, "SELECT * FROM input")
    lane = {"path_columns": path_columns("v INT", {}), "options": {"header": "true"}}
    assert read({"in/v=7/a.csv": b"v,w\n1,2\n"}, "spark", "csv", **lane) == [{"w": "2", "v": 7}]
    whole = Rows(spark, tmp_path, "SELECT _metadata FROM input")
    (row,) = whole({"in/v=7/a.csv": b"v,w\n1,2\n"}, "driver", "csv", **lane)
    assert row["_metadata"]["file_name"] == "a.csv"
    with pytest.raises(JobError, match=r"'in/b\.csv': its path has no directory v=VALUE, as lanes\.lane\.path_columns"):
        read({"in/b.csv": b"v,w\n1,2\n"}, "spark", "csv", **lane)
    for io in ("spark", "python", "driver"):
        with pytest.raises(JobError, match=r"line 2 of 'in/v=8/a\.csv' is not as configured: '1,2,3'"):
            read({"in/v=7/a.csv": b"v,w\n1,2\n", "in/v=8/a.csv": b"v,w\n1,2,3\n"}, io, "csv", **lane)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.slow(selected=True)
def test_objects_of_a_store(spark: Any, tmp_path: Path, s3_store: Store) -> None:
    """Of objects in a store, which the executors' Python reads, the rows have the same columns, for Python jobs too."""
    keys = ["in/dt=2026-01-01/a b.csv", "in/dt=2026-01-02/c+%20d.csv"]
    bucket = s3_store.bucket({key: f"v\n{number}\n".encode() for number, key in enumerate(keys)})
    storage = Storage({"s": StorageSection(**s3_store.section(bucket))})
    sink = DirectorySink(Places(tmp_path / "out"), Writing("json", {}, (), None, None, "output.expect"))

    def job(spark: Any, frames: Any, item: Item) -> Any:
        return frames["input"].selectExpr("v", "dt", "_metadata.file_path p", "_metadata.file_version f")

    work = SparkWork({"": Task(job, sink, metadata=True)}, inputs=Inputs(storage))
    columns = path_columns("dt DATE", {})
    work.add(Lane("l", tmp_path, (), section="l", format="csv", options={"header": "true"}, path_columns=columns))
    item = Item("i", "l", tuple(FileSeen(f"s3://{bucket}/{key}", 0, 0) for key in keys), tmp_path)
    item = dataclasses.replace(item, files=met(item, storage))
    work(spark, item, tmp_path / "staged")
    lines = [line for path in (tmp_path / "staged").rglob("part-*") for line in path.read_text().splitlines()]
    first, second = item.files
    assert sorted(map(json.loads, lines), key=str) == [
        {"v": "0", "dt": "2026-01-01", "p": f"s3://{bucket}/in/dt=2026-01-01/a%20b.csv", "f": str(first.mtime_ns)},
        {"v": "1", "dt": "2026-01-02", "p": f"s3://{bucket}/in/dt=2026-01-02/c+%2520d.csv", "f": str(second.mtime_ns)},
    ]
