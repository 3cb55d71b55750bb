"""A pipeline whose files lie in an object store, on a Spark without a connector for it. On real Spark."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from emulators_support import Bucket, bucket_maker
from pipeline_support import Recorder, spark_for_tests
from s3_support import KEYS, Store
from table_support import rows_of

from multiqueue.pipeline import ExitStatus, PipelineConfig, RunResult, parse_config, plan_of, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from spark_for_tests()


def parquet(values: dict[str, list[Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(values), sink)
    return sink.getvalue()


def configured(base: Path, store: Store, bucket: str, lanes: dict[str, Any], query: str) -> PipelineConfig:
    values = {
        "lanes": lanes,
        "job": {"sql": query},
        "output": {"path": "out", "format": "json", "dead_letters": f"s3a://{bucket}/dead"},
        "retry": {"attempts": 1},
        "storage": {"lake": store.section(bucket)},
    }
    return parse_config(values, base)


def run(config: PipelineConfig, spark: Any) -> tuple[RunResult, list[Any]]:
    """How it ended, and all rows by lane."""
    result = run_pipeline(config, Recorder(), session=lambda: spark)
    rows = [
        (part.parent.parent.name.removeprefix("lane="), json.loads(line))
        for part in sorted((config.output / "data").rglob("part-*"))
        for line in part.read_text().splitlines()
    ]
    return result, sorted(rows, key=str)


@pytest.mark.slow(selected=True)
def test_every_format_from_a_store(spark: Any, s3_store: Store, tmp_path: Path) -> None:
    """Files of every format are read from a store that Spark has no connector for, those that are packed too.

    (pipeline 21)
    """
    bucket = s3_store.bucket(
        {
            "in/eu/1.csv": b"a,b\n1,x\n",
            "in/eu/2.csv.gz": gzip.compress(b"b,a\ny,2\n"),
            "in/us/deep/3.csv": b"a,b\n3,z\n",
            "json/a b.json": b'[{"a": 1},\n{"a": 2}]',
            "lines/1.jsonl": b'{"a": 1}\n{"a": 2}\n',
            "table/1.parquet": parquet({"a": [1, 2], "b": ["x", None]}),
            "text/1.txt": b"one\ntwo",
            "bytes/1.bin": b"\x00\xff",
        }
    )
    csv = {"directories": f"s3a://{bucket}/in/*", "files": "**/*.csv*", "format": "csv", "options": {"header": True}}
    others = {
        name: {"files": f"s3://{bucket}/{name}/*", "format": name}
        for name in ("json", "jsonl", "parquet", "text", "binary")
    }
    for name, place in (("jsonl", "lines"), ("parquet", "table"), ("binary", "bytes")):
        others[name]["files"] = f"s3://{bucket}/{place}/*"
    lanes = {"csv": {**csv, "batch": 10}, **others}
    config = configured(tmp_path, s3_store, bucket, lanes, "SELECT to_json(struct(*)) AS row FROM input")
    assert {plan.lane.name: plan.files for plan in plan_of(config).lanes}["eu"] == 2
    result, rows = run(config, spark)
    assert result.status is ExitStatus.DONE
    found: dict[str, list[Any]] = {}
    for lane, row in rows:
        found.setdefault(lane, []).append(json.loads(row["row"]))
    (binary,) = found.pop("binary")
    assert (binary["path"], binary["length"]) == (f"s3a://{bucket}/bytes/1.bin", 2)
    assert found == {
        "eu": [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}],
        "us": [{"a": "3", "b": "z"}],
        "json": [{"a": 1}, {"a": 2}],
        "jsonl": [{"a": 1}, {"a": 2}],
        "parquet": [{"a": 1, "b": "x"}, {"a": 2}],
        "text": [{"value": "one"}, {"value": "two"}],
    }
    written = "".join(path.read_text(errors="replace") for path in config.output.rglob("*") if path.is_file())
    assert KEYS["secret"] not in written
    assert KEYS["key"] not in written


@pytest.mark.slow(selected=True)
def test_a_bad_object_is_set_aside_alone(spark: Any, s3_store: Store, tmp_path: Path) -> None:
    """Of objects that are read together the bad one is set aside alone, with a dead letter in the store; a mended one
    is read again, and its letter goes."""
    bucket = s3_store.bucket({"in/1.csv": b"a,b\n1,x\n", "in/2.csv": b"a,b\n1,2,3\n", "in/3.csv": b"a,b\n3,z\n"})
    lanes = {"in": {"files": f"s3://{bucket}/in/*", "format": "csv", "options": {"header": True}, "batch": 3}}
    config = configured(tmp_path, s3_store, bucket, lanes, "SELECT a FROM input")
    result, rows = run(config, spark)
    assert result.status is ExitStatus.SET_ASIDE
    assert rows == [("in", {"a": "1"}), ("in", {"a": "3"})]
    (letter,) = [key for key in s3_store.keys(bucket) if key.startswith("dead/")]
    told = json.loads(s3_store.client.get_object(Bucket=bucket, Key=letter)["Body"].read())
    assert f"line 2 of 's3://{bucket}/in/2.csv' is not as configured: '1,2,3'" in told["error"]
    s3_store.client.put_object(Bucket=bucket, Key="in/2.csv", Body=b"a,b\n2,y\n")
    result, rows = run(config, spark)
    assert result.status is ExitStatus.DONE
    assert [row["a"] for _, row in rows] == ["1", "2", "3"]
    assert not [key for key in s3_store.keys(bucket) if key.startswith("dead/")]


def test_a_bucket_that_is_not_there(s3_store: Store, tmp_path: Path) -> None:
    """A place in a store that does not exist is lost input, and not a lane without files."""
    bucket = s3_store.bucket({"in/1.csv": b"a\n1\n"})
    lanes = {
        "in": {"files": f"s3://{bucket}/in/*", "format": "csv"},
        "gone": {"files": f"s3://{bucket}/nothing/*", "format": "csv"},
        "no": {"files": "s3://no-such-bucket/in/*", "format": "csv"},
    }
    config = configured(tmp_path, s3_store, bucket, lanes, "SELECT 1")
    config.settings.storage["other"] = type(config.settings.storage["lake"])(**s3_store.section("no-such-bucket"))
    plan = plan_of(config)
    assert plan.to_run == 1
    assert [sentence.split(";")[0] for sentence in plan.lost] == [
        f"lane 'gone': 's3://{bucket}/nothing' does not exist",
        "lane 'no': 's3://no-such-bucket/in' does not exist",
    ]


def test_keys_with_two_slashes_are_told(new_bucket: Callable[[Mapping[str, bytes]], Bucket], tmp_path: Path) -> None:
    """Keys with `//` that a glob matches are input that cannot be read: told, and not passed over in silence."""
    bucket = new_bucket({"in/1.csv": b"a\n1\n", "in//2.csv": b"a\n2\n", "in/x//y.csv": b"", "/in/3.csv": b""})
    globs = {"deep": "in/**", "flat": "in/*.csv", "all": "*/*.csv"}
    lanes = {name: {"files": f"{bucket.url}/{files}", "format": "csv"} for name, files in globs.items()}
    output = {"path": "out", "work": "out"}
    values = {"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": output, "storage": {"tests": bucket.section}}
    plan = plan_of(parse_config(values, tmp_path))
    why = "keys with '//' are not read, for Hadoop takes '//' for '/'"
    assert plan.lost == [
        f"lane 'deep': cannot read '{bucket.url}/in//': {why}",
        f"lane 'all': cannot read '{bucket.url}//': {why}",
    ]
    assert {lane.lane.name: lane.files for lane in plan.lanes} == {"deep": 1, "flat": 1, "all": 1}


@pytest.mark.slow(selected=True)
def test_objects_that_are_done_are_moved(spark: Any, s3_store: Store, tmp_path: Path) -> None:
    """Objects go once their rows are there, and a lane all of whose objects have gone is whole. (pipeline 28)"""
    bucket = s3_store.bucket({"in/1.csv": b"a\n1\n", "in/2.csv": b"a\n2\n"})
    lane = {"files": f"s3://{bucket}/in/*", "format": "csv", "options": {"header": True}}
    place = {"after": "move", "after_place": f"s3a://{bucket}/done"}
    config = configured(tmp_path, s3_store, bucket, {"in": {**lane, **place}}, "SELECT a FROM input")
    result, _ = run(config, spark)
    assert result.status is ExitStatus.DONE
    assert s3_store.keys(bucket) == [f"done/{bucket}/in/1.csv", f"done/{bucket}/in/2.csv"]
    assert "<td>2</td>" in result.report.read_text()
    result, rows = run(config, spark)
    assert result.status is ExitStatus.DONE
    assert [row["a"] for _, row in rows] == ["1", "2"]


@pytest.mark.parametrize(
    "scheme", [pytest.param("gs", marks=pytest.mark.slow), pytest.param("abfss", marks=pytest.mark.slow(selected=True))]
)
def test_a_pipeline_in_another_store(request: pytest.FixtureRequest, spark: Any, tmp_path: Path, scheme: str) -> None:
    """Input, table, dead letters and moved files lie in Google's or Azure's store as in S3's; no secret is written.

    (pipeline 21, 28)
    """
    objects = {"in/eu/1.csv": b"a,b\n1,x\n", "in/eu/2.csv": b"a,b\n1,2,3\n", "in/us/3.csv": b"b,a\nz,3\n"}
    bucket = bucket_maker(request, scheme)(objects)
    options = {"header": True}
    lanes = {"in": {"directories": f"{bucket.url}/in/*", "files": "*", "format": "csv", "options": options}}
    lanes["in"] |= {"after": "move", "after_place": f"{bucket.url}/done"}
    values = {
        "lanes": lanes,
        "job": {"sql": "SELECT lower(b) AS row FROM input"},
        "output": {"path": f"{bucket.url}/out", "work": "work", "table": "delta", "dead_letters": f"{bucket.url}/dead"},
        "retry": {"attempts": 1},
        "storage": {"lake": bucket.section},
    }
    config = parse_config(values, tmp_path)
    assert {plan.lane.name: plan.files for plan in plan_of(config).lanes} == {"eu": 2, "us": 1}
    assert run_pipeline(config, Recorder(), session=lambda: spark).status is ExitStatus.SET_ASIDE
    (letter,) = [key for key in bucket.names() if key.startswith("dead/")]
    assert f"line 2 of '{bucket.url}/in/eu/2.csv' is not as configured" in json.loads(bucket.get(letter))["error"]
    assert [key for key in bucket.names() if key.startswith("in/")] == ["in/eu/2.csv"]
    bucket.put("in/eu/2.csv", b"a,b\n2,y\n")
    result = run_pipeline(config, Recorder(), session=lambda: spark)
    assert result.status is ExitStatus.DONE
    keys = bucket.names()
    assert [key.rpartition("/")[2] for key in keys if key.startswith("done/")] == ["1.csv", "2.csv", "3.csv"]
    assert not [key for key in keys if key.startswith(("in/", "dead/"))]
    bucket.copy("out/data", tmp_path / "copy")
    assert sorted(rows_of(tmp_path / "copy", "delta")) == ["x", "y", "z"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not [secret for secret in bucket.secrets if secret.encode() in written]
