"""Tables in an object store: what dies there, and what a store that fails does to them."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from emulators_support import GOOGLES_TOKEN, Bucket
from pipeline_parts_support import open_ledger
from pipeline_support import Pipeline, contents, lane_of, make_tree
from s3_support import KEYS, Answer, Ask, Failing, between
from table_support import output_in, read, rows_of, table_pipeline
from test_pipeline_crash import LANES, Fuse, Killed, fragile
from test_pipeline_table import dying, items, put_all

from multiqueue.pipeline import ConfigError, Silent, StateMismatch, parse_config, run_pipeline

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
    values = {"lanes": {"a": {"files": "*", "format": "text"}}, "job": {"sql": "SELECT 1"}}
    with pytest.raises(ConfigError, match=r'cannot rename a directory: set table = "delta", whose commits need no'):
        parse_config({**values, "output": {"path": "s3://bucket/out"}}, tmp_path)


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_in_every_store(new_bucket: Callable[[Mapping[str, bytes]], Bucket], tmp_path: Path, kind: str) -> None:
    """A table lies in a store of each kind as on a disk: commits, replaced rows, and what `vacuum` finds.

    (pipeline 16, 17, 19)
    """
    bucket = new_bucket({"out/data/left-1/part-0.parquet": b"of an attempt that died"})
    where = {"path": f"{bucket.url}/out", "storage": {"tests": bucket.section}}
    with open_ledger(tmp_path / "state.sqlite", tmp_path) as ledger:
        output = output_in(tmp_path, kind, **where)
        output.prepare(ledger)
        put_all(output, items(tmp_path, 4), "old")
        put_all(output, items(tmp_path, 2, attempt=2), "new")
        again = output_in(tmp_path, kind, **where)
        again.prepare(ledger)
        assert [again.is_published(item) for item in items(tmp_path, 4, attempt=2)] == [True, True, False, False]
        assert "left-1/part-0.parquet" in again.tables[""].maintain(lambda form: form.vacuum(3600.0))
    newest = max((key for key in bucket.names() if key.endswith(".metadata.json")), default=None)
    if newest is None:
        bucket.copy("out/data", tmp_path / "copy")
        rows = read(tmp_path / "copy", "delta")
    else:
        from pyiceberg.table import StaticTable

        rows = StaticTable.from_metadata(f"{bucket.url}/{newest}", bucket.iceberg).scan().to_arrow()
    assert sorted(rows["row"].to_pylist()) == ["new", "new", "old", "old"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not [secret for secret in bucket.secrets if secret.encode() in written]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_bucket_of_another_state(s3_store: Store, tmp_path: Path, kind: str) -> None:
    """A driver whose state is lost, or new, ends before Spark starts and says why; the table stays. (pipeline 18)"""
    make_tree(tmp_path, LANES)
    bucket = s3_store.bucket()
    settings = where(s3_store, bucket)
    table_pipeline(tmp_path, [lane_of(tmp_path, "big")], kind, where=settings).run()
    keys = s3_store.keys(bucket)
    shutil.rmtree(tmp_path / "out")
    values = {
        "lanes": {"big": {"files": "big/*", "format": "text"}},
        "job": {"sql": "SELECT * FROM input"},
        "output": {"path": settings["path"], "work": "out", "table": kind},
        "storage": settings["storage"],
    }
    said = {
        "delta": "belongs to another state, number .*which is new; bring",
        "iceberg": "bring back state and catalog",
    }
    for _ in range(2):  # the second one, too, has nothing to go on with
        with pytest.raises(StateMismatch, match=said[kind]) as caught:
            run_pipeline(parse_config(values, tmp_path), Silent(), session=lambda: pytest.fail("Spark is asked for"))
        assert caught.value.exit_status == 2
    assert s3_store.keys(bucket) == keys


@pytest.mark.slow(selected=True)
def test_a_key_file_of_google(google_store: Callable[[Mapping[str, bytes]], Bucket], tmp_path: Path) -> None:
    """The path of a key file is what gcsfs, deltalake and pyiceberg ask Google with, and they show what it says."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    asked: set[str] = set()

    def noted(ask: Ask) -> Ask:
        def asked_for(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            asked.add({name.lower(): value for name, value in headers.items()}.get("authorization", "nothing"))
            return ask(method, path, headers, body)

        return asked_for

    bucket = google_store({})
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
    told = {"type": "service_account", "client_email": "lake@tests", "private_key_id": "1", "private_key": text}
    (tmp_path / "key.json").write_text(json.dumps({**told, "token_uri": f"{bucket.section['endpoint']}/token"}))
    with between(bucket.section["endpoint"], translated=noted) as endpoint:
        section = {"url": bucket.url, "endpoint": endpoint, "token": str(tmp_path / "key.json"), "account": "tests"}
        for kind in ("delta", "iceberg"):
            where = {"path": f"{bucket.url}/{kind}", "storage": {"tests": section}}
            with open_ledger(tmp_path / f"{kind}.sqlite", tmp_path / kind) as ledger:
                output = output_in(tmp_path / kind, kind, **where)
                output.prepare(ledger)
                put_all(output, items(tmp_path, 2), "row")
    asked.remove(f"Bearer {GOOGLES_TOKEN}")  # as gcsfs has it, and pyiceberg by it
    signed = [base64.urlsafe_b64decode(said.split(".")[1] + "==") for said in asked]  # by deltalake, for itself
    assert {json.loads(one)["iss"] for one in signed} == {"lake@tests"}
    bucket.copy("delta/data", tmp_path / "copy")
    assert rows_of(tmp_path / "copy", "delta") == ["row", "row"]
    assert len([key for key in bucket.names() if key.startswith("iceberg/") and key.endswith(".metadata.json")]) == 2


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
