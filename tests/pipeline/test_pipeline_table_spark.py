"""Tables that real Spark has written, read by what others have made."""

from __future__ import annotations

import datetime
import decimal
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pipeline_support import Recorder, do_without, spark_for_tests
from s3_support import KEYS, Store
from table_support import iceberg, read, versions
from test_pipeline_table_store import options

from multiqueue.pipeline import ExitStatus, parse_config, run_pipeline

for _name in ("duckdb", "polars"):
    if find_spec(_name) is None:
        do_without(f"{_name} is not installed: pip install 'blocking-multiqueue[test]'")

pytestmark = [pytest.mark.spark, pytest.mark.slow(selected=True), pytest.mark.timeout(900)]

KINDS = ["delta", "iceberg"]

_QUERY = """SELECT customer, CAST(amount AS INT) AS amount, CAST(amount AS DECIMAL(12, 2)) AS price,
    CAST(day AS DATE) AS day, TIMESTAMP '2026-01-02 03:04:05.678901 UTC' AS at,
    TIMESTAMP_NTZ '2026-01-02 03:04:05' AS local, named_struct('a', 1, 'b', array('x')) AS nested FROM input"""

# Values that make odd names of directories.
_CUSTOMERS = ["a b", "x:y/z=%20", "ü", "it's"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from spark_for_tests()


def run(base: Path, spark: Any, kind: str, **output: Any) -> Recorder:
    config = parse_config(
        {
            "lanes": {"in": {"directories": "in/*", "files": "*.csv", "format": "csv", "options": {"header": True}}},
            "job": {"sql": output.pop("sql", _QUERY)},
            "steps": {
                "each": {"after": "in", "each_lane": True, "sql": "SELECT customer, count(*) AS n FROM in GROUP BY 1"},
                "total": {"after": ["in", "each"], "sql": "SELECT max(day) AS day, sum(amount) AS s FROM in"},
            },
            "output": {"path": "out", "table": kind, **output},
        },
        base,
    )
    reporter = Recorder()
    result = run_pipeline(config, reporter, session=lambda: spark)
    assert result.status is ExitStatus.DONE, [one.error for one in reporter.attempts if one.error]
    return reporter


def write(base: Path, lane: str, file: str, *rows: str) -> None:
    (base / "in" / lane).mkdir(parents=True, exist_ok=True)
    (base / "in" / lane / file).write_text("\n".join(["customer,amount,day", *rows]) + "\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition_by", [[], ["customer", "day"]])
def test_what_others_read(tmp_path: Path, spark: Any, kind: str, partition_by: list[str]) -> None:
    """deltalake or pyiceberg, Polars and DuckDB read what Spark wrote, partitioned or not; steps read it again.

    (pipeline 16, 17)
    """
    for place, name in enumerate(_CUSTOMERS):
        write(tmp_path, "a" if place % 2 else "b", f"{place}.csv", f"{name},{place},2026-01-0{place + 1}")
    run(tmp_path, spark, kind, partition_by=partition_by)
    expected = {(name, place) for place, name in enumerate(_CUSTOMERS)}
    for rows in everybody(tmp_path / "out" / "data", kind):
        assert {(row["customer"], row["amount"]) for row in rows} == expected
        (first,) = [row for row in rows if row["amount"] == 1]
        assert (first["lane"], first["price"], first["day"]) == (
            "a",
            decimal.Decimal("1.00"),
            datetime.date(2026, 1, 2),
        )
        assert first["at"].astimezone(datetime.UTC).isoformat() == "2026-01-02T03:04:05.678901+00:00"
        assert first["local"] == datetime.datetime(2026, 1, 2, 3, 4, 5)
        assert first["nested"] == {"a": 1, "b": ["x"]}
    assert read(tmp_path / "out/steps/total", kind)["s"].to_pylist() == [6]
    assert sorted(read(tmp_path / "out/steps/each", kind)["lane"].to_pylist()) == ["a", "a", "b", "b"]
    before = versions(tmp_path / "out/data", kind)
    write(tmp_path, "a", "1.csv", "x:y/z=%20,100,2026-01-09", "new,7,2026-01-09")
    run(tmp_path, spark, kind, partition_by=partition_by)
    assert versions(tmp_path / "out/data", kind) > before
    assert sorted(read(tmp_path / "out/data", kind)["amount"].to_pylist()) == [0, 2, 3, 7, 100]
    assert read(tmp_path / "out/steps/total", kind)["s"].to_pylist() == [112]


def test_a_store_that_spark_does_not_reach(tmp_path: Path, spark: Any, s3_store: Store) -> None:
    """Where Spark has no connector the executors' Python writes the files, partitioned as Spark would; and no secret

    is told of. (pipeline 16, 17)
    """
    import deltalake
    import polars

    bucket = s3_store.bucket()
    for place, name in enumerate(_CUSTOMERS):
        write(tmp_path, "a" if place % 2 else "b", f"{place}.csv", f"{name},{place},2026-01-0{place + 1}", "none,5,")
    config = parse_config(
        {
            "lanes": {"in": {"directories": "in/*", "files": "*.csv", "format": "csv", "options": {"header": True}}},
            "job": {"sql": _QUERY},
            "steps": {"total": {"after": "in", "sql": "SELECT sum(amount) AS s, max(customer) AS c FROM in"}},
            "output": {"path": f"s3://{bucket}/out", "table": "delta", "partition_by": ["customer", "day"]},
            "storage": {"tests": s3_store.section(bucket)},
        },
        tmp_path,
    )
    for _ in range(2):
        reporter = Recorder()
        result = run_pipeline(config, reporter, session=lambda: spark)
        assert result.status is ExitStatus.DONE, [one.error for one in reporter.attempts if one.error]
    rows = deltalake.DeltaTable(f"s3://{bucket}/out/data", storage_options=options(s3_store)).to_pyarrow_table()
    expected = [*((name, place) for place, name in enumerate(_CUSTOMERS)), *[("none", 5)] * len(_CUSTOMERS)]
    assert sorted(zip(*rows.select(["customer", "amount"]).to_pydict().values(), strict=True)) == sorted(expected)
    steps = deltalake.DeltaTable(f"s3://{bucket}/out/steps/total", storage_options=options(s3_store)).to_pyarrow_table()
    assert steps.select(["s", "c"]).to_pylist() == [{"s": 26, "c": "\xfc"}]
    assert rows["day"].null_count == len(_CUSTOMERS)
    frame = polars.scan_delta(f"s3://{bucket}/out/data", storage_options=options(s3_store))
    assert frame.filter(polars.col("customer") == "it's").collect()["amount"].to_list() == [3]
    told = [path.read_text(errors="replace") for path in (tmp_path / "multiqueue-work").rglob("*") if path.is_file()]
    assert KEYS["secret"] not in "".join([*told, *reporter.notes])


def everybody(root: Path, kind: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table, as each reader that is not ours finds them."""
    import duckdb
    import polars

    rows = read(root, kind)
    yield rows.to_pylist()
    yield duckdb.from_arrow(rows).to_arrow_table().to_pylist()
    if kind == "delta":
        yield polars.scan_delta(str(root)).collect().to_dicts()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a faster way to plan
            yield polars.scan_iceberg(iceberg(root)).collect().to_dicts()


@pytest.mark.parametrize("kind", KINDS)
def test_columns_change(tmp_path: Path, spark: Any, kind: str) -> None:
    """With `widen` an item of narrower numbers is written as the table has them, and one with a column more adds it."""
    write(tmp_path, "a", "1.csv", "x,1,2026-01-01")
    query = "SELECT customer, CAST(amount AS BIGINT) AS amount, CAST(day AS DATE) AS day FROM input"
    run(tmp_path, spark, kind, sql=query, on_other_columns="widen")
    write(tmp_path, "a", "2.csv", "y,2,2026-01-01")
    query = "SELECT customer, CAST(amount AS INT) AS AMOUNT, 1.5D AS more, CAST(day AS DATE) AS day FROM input"
    run(tmp_path, spark, kind, sql=query, on_other_columns="widen")
    for rows in everybody(tmp_path / "out" / "data", kind):
        assert sorted((row["customer"], row["amount"], row["more"]) for row in rows) == [("x", 1, None), ("y", 2, 1.5)]
