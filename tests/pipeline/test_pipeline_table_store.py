"""Tables in an object store: what dies there, and what a store that fails does to them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pipeline_parts_support import open_ledger
from pipeline_support import Pipeline, contents, lane_of, make_tree
from s3_support import KEYS, Failing, between
from table_support import output_in, rows_of, table_pipeline
from test_pipeline_crash import LANES, Fuse, Killed, fragile
from test_pipeline_table import dying, items, put_all

from multiqueue.pipeline import ConfigError

if TYPE_CHECKING:
    from s3_support import Store

pytestmark = pytest.mark.timeout(300)


def where(store: Store, bucket: str, endpoint: str | None = None) -> dict[str, Any]:
    """Settings of an output in the bucket."""
    section = {**store.section(bucket), **({"endpoint": endpoint} if endpoint else {})}
    return {"path": f"s3://{bucket}/out", "storage": {"tests": section}}


def options(store: Store) -> dict[str, str]:
    """How deltalake and others reach the store, without our code."""
    return {
        "AWS_ACCESS_KEY_ID": KEYS["key"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
        "AWS_REGION": KEYS["region"],
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def rows(store: Store, bucket: str) -> list[Any]:
    return rows_of(f"s3://{bucket}/out/data", "delta", options=options(store))


def start(base: Path, fuse: Fuse, settings: dict[str, Any]) -> Pipeline:
    lanes = [lane_of(base, name, batch=2, capacity=3) for name in LANES]
    return table_pipeline(base, lanes, "delta", ledger=fragile(fuse)[0], prepared=dying(fuse), where=settings)


def die_everywhere(store: Store, tmp_path: Path, every: int) -> None:
    """Die at each `every`-th moment of a run, go on, and look at the rows."""
    make_tree(tmp_path / "whole", LANES)
    fuse = Fuse()
    start(tmp_path / "whole", fuse, where(store, store.bucket())).run()
    chosen = range(1, len(fuse.passed) + 1, every)
    chosen = [last for last in chosen if every == 1 or "commit" in fuse.passed[last - 1]]
    for last in chosen:
        base, bucket = tmp_path / str(last), store.bucket()
        make_tree(base, LANES)
        with pytest.raises(Killed):
            start(base, Fuse(last), where(store, bucket)).run()
        again = start(base, Fuse(), where(store, bucket))
        again.run()
        assert rows(store, bucket) == contents(LANES), f"died at moment {last}, {fuse.passed[last - 1]}"
        with open_ledger(base / "out/_multiqueue/state.sqlite", base) as ledger:
            output = output_in(base, "delta", **where(store, bucket))
            output.check(ledger)
            table = output.tables[""]
            for path in table.maintain(lambda form: form.vacuum(3600.0)):
                table.files.remove(path)
        named = {one.path for one in table.current()[1]}
        left = {key.removeprefix("out/data/") for key in store.keys(bucket) if "/_delta_log/" not in key}
        assert left == named, f"died at moment {last}, {fuse.passed[last - 1]}"


@pytest.mark.slow(selected=True)
def test_killed_around_commits_to_a_store(s3_store: Store, tmp_path: Path) -> None:
    """Where there is no rename each row is there once, whatever dies, and `vacuum` finds all that is left.

    (pipeline 17, 19)
    """
    die_everywhere(s3_store, tmp_path, 3)


@pytest.mark.slow
def test_killed_at_every_moment_with_a_store(s3_store: Store, tmp_path: Path) -> None:
    """The same, at every moment."""
    die_everywhere(s3_store, tmp_path, 1)


def test_the_store_is_named_where_files_would_be_renamed(tmp_path: Path) -> None:
    """Directories of files in a store are refused with a sentence that names the tables."""
    from multiqueue.pipeline import parse_config

    values = {"lanes": {"a": {"files": "*", "format": "text"}}, "job": {"sql": "SELECT 1"}}
    with pytest.raises(ConfigError, match=r'cannot rename a directory: set table = "delta", whose commits need no'):
        parse_config({**values, "output": {"path": "s3://bucket/out"}}, tmp_path)


@pytest.mark.slow(selected=True)
def test_iceberg_in_a_store(s3_store: Store, tmp_path: Path) -> None:
    """An Iceberg table lies in a store as a Delta table does, with its catalog where the state is. (pipeline 16, 17)"""
    from pyiceberg.table import StaticTable

    bucket = s3_store.bucket()
    with open_ledger(tmp_path / "state.sqlite", tmp_path) as ledger:
        output = output_in(tmp_path, "iceberg", **where(s3_store, bucket))
        output.prepare(ledger)
        put_all(output, items(tmp_path, 4), "old")
        put_all(output, items(tmp_path, 2, attempt=2), "new")
        again = output_in(tmp_path, "iceberg", **where(s3_store, bucket))
        again.prepare(ledger)
        assert [again.is_published(item) for item in items(tmp_path, 4, attempt=2)] == [True, True, False, False]
    newest = max(key for key in s3_store.keys(bucket) if key.endswith(".metadata.json"))
    reached = {
        "s3.endpoint": s3_store.endpoint,
        "s3.access-key-id": KEYS["key"],
        "s3.secret-access-key": KEYS["secret"],
    }
    table = StaticTable.from_metadata(f"s3://{bucket}/{newest}", {**reached, "s3.region": KEYS["region"]})
    assert sorted(table.scan().to_arrow()["row"].to_pylist()) == ["new", "new", "old", "old"]


_SEEDS = [pytest.param(seed, marks=pytest.mark.slow(selected=seed == 1)) for seed in range(1, 12)]


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_store_that_fails_at_random(s3_store: Store, tmp_path: Path, seed: int) -> None:
    """500, 503 and connections that end before or after a request was done cost time, and no row, none twice."""
    chance, bucket = random.Random(seed), s3_store.bucket()
    with (
        between(s3_store.endpoint, Failing(chance, 0.15)) as endpoint,
        open_ledger(tmp_path / "state.sqlite", tmp_path) as ledger,
    ):
        output = output_in(tmp_path, "delta", **where(s3_store, bucket, endpoint))
        output.prepare(ledger)
        put_all(output, items(tmp_path, 4), "old")
        for start in (4, 8, 12):
            put_all(output, items(tmp_path, start + 4)[start:], "old")
        put_all(output, items(tmp_path, 6, attempt=2), "new")
    assert rows(s3_store, bucket) == ["new"] * 6 + ["old"] * 10
