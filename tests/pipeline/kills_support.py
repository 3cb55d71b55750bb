"""A pipeline into a table in a store, whose driver is killed again and again, and what is there in the end.

A proxy before the store kills: it sees each request, and so it knows when a commit begins, is made, and was told of.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s3_support import KEYS, Failing, Store, between

HOUSE = Path(__file__).parents[2]
HOW = ("before", "during", "after", "anywhere")
"""A commit is asked for; the store has made it, and does not tell; the driver was told; any other request."""

TOML = """\
[lanes.in]
directories = "s3://%(bucket)s/in/*"
files = "*.txt"
format = "text"
batch = %(batch)d
[job]
sql = "SELECT value AS row FROM input"
[output]
path = "s3://%(bucket)s/out"
work = "work"
table = "%(kind)s"
%(catalog)s
[storage.tests]
url = "s3://%(bucket)s"
endpoint = "%(endpoint)s"
key = "%(key)s"
secret = "%(secret)s"
region = "%(region)s"
[retry]
attempts = 20
backoff = 0.1
backoff_max = 1.0
"""


def is_commit(method: str, path: str) -> bool:
    """Whether the request makes a version of the table, or writes what makes one."""
    name = path.partition("?")[0]
    return method == "PUT" and (("/_delta_log/" in name and name.endswith(".json")) or name.endswith(".metadata.json"))


@dataclass
class Killer(Failing):
    """Kills the drivers of a round at the moment that was chosen for it; the store fails by chance besides."""

    how: str = ""
    left: int = 0
    """Requests, or commits, that still pass."""
    kill: Callable[[], None] = lambda: None
    requests: int = 0
    struck: bool = False

    def aim(self, how: str, left: int, kill: Callable[[], None]) -> None:
        with self.lock:
            self.how, self.left, self.kill, self.struck = how, left, kill, False

    def before(self, method: str, path: str) -> str | None:
        with self.lock:
            self.requests += 1
        if self._is_due("anywhere", True) or self._is_due("before", is_commit(method, path)):
            return "before"
        return super().before(method, path)

    def done(self, method: str, path: str) -> None:
        self._is_due("during", is_commit(method, path))

    def answered(self, method: str, path: str) -> None:
        if self.how == "after" and is_commit(method, path):
            time.sleep(self.chance.random() * 0.05)
            self._is_due("after", True)

    def _is_due(self, how: str, counts: bool) -> bool:
        with self.lock:
            if self.how != how or not counts or self.struck:
                return False
            self.left -= 1
            if self.left >= 0:
                return False
            self.struck = True
        self.kill()
        return True


@dataclass
class Survived:
    """What happened until every row was there."""

    kind: str
    files: int
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    """Rounds with two drivers at once."""
    refused: int = 0
    """Drivers that were told that another one runs."""
    changed: int = 0
    """Files that were written anew in between."""
    requests: int = 0
    failed: int = 0
    """Requests that the store failed."""
    left: int = 0
    """Files that vacuum has removed."""
    versions: str = ""
    seconds: float = 0.0


def survive_kills(
    store: Store,
    base: Path,
    kind: str,
    *,
    files: int,
    kills: int,
    seed: int,
    batch: int = 5,
    share: float = 0.01,
    catalog: str = "",
    say: Callable[[str], None] = lambda said: None,
) -> Survived:
    """Kill the driver so often, let it end, and look with others' code; AssertionError if a row is not there once."""
    chance, started_s = random.Random(seed), time.monotonic()
    texts = {f"in/{'small' if number % 10 == 0 else 'big'}/{number:05}.txt": f"row {number}" for number in range(files)}
    bucket = store.bucket({key: text.encode() for key, text in texts.items()})
    found = Survived(kind, files, seed)
    killer = Killer(random.Random(seed + 1), share, ("500", "503", "before", "after", "late"))
    with between(store.endpoint, killer) as endpoint, driver_maker() as maker:
        values = {"bucket": bucket, "kind": kind, "endpoint": endpoint, "batch": batch, "catalog": catalog, **KEYS}
        (base / "p.toml").write_text(TOML % values)
        while found.kills.total() < kills:
            how = HOW[found.kills.total() % len(HOW)]
            two = chance.random() < 0.25
            found.pairs += two
            left = chance.randrange(2) if how != "anywhere" else chance.randrange(120)
            statuses = one_round(maker, base, 1 + two, lambda kill, h=how, n=left: killer.aim(h, n, kill))  # type: ignore[misc]
            found.refused += statuses.count(3)
            assert set(statuses) <= {0, 3, -signal.SIGKILL}, statuses
            if killer.struck:
                found.kills[how] += 1
            for key in chance.sample(sorted(texts), max(files // 200, 1)):  # work for the next ones
                texts[key] = f"{texts[key]} again"
                store.client.put_object(Bucket=bucket, Key=key, Body=texts[key].encode())
                found.changed += 1
            say(f"{found.kills.total()} kills, {how}, {statuses}, {killer.requests} requests, {killer.failed} failed")
        assert one_round(maker, base, 1, lambda kill: killer.aim("", 0, kill)) == [0]
        found.requests, found.failed = killer.requests, killer.failed
        killer.share = 0.0
        cleaned = _run(base, "vacuum", "p.toml", "--keep-hours", "0")
        assert cleaned.returncode == 0, cleaned.stderr
        found.left = int(cleaned.stdout.split("removed ")[1].split()[0])
    expected = sorted(texts.values())
    read, named, found.versions = _looked_at(store, bucket, kind, base)
    for reader, rows in read.items():
        assert sorted(rows) == expected, f"{reader}: {Counter(rows) - Counter(expected)}"
    keys = [key.removeprefix("out/data/") for key in _keys(store, bucket) if key.startswith("out/data/")]
    there = {key for key in keys if key.endswith(".parquet") and not key.startswith("_delta_log/")}
    assert there == named
    found.seconds = time.monotonic() - started_s
    return found


@contextlib.contextmanager
def driver_maker() -> Iterator[Any]:
    """A process that has imported all that a driver needs, and forks drivers."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (HOUSE, HOUSE / "tests", HOUSE / "tests" / "pipeline")))
    try:
        maker = multiprocessing.get_context("forkserver")
        maker.set_forkserver_preload(["kills_driver_support"])
        yield maker
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def one_round(
    maker: Any,
    base: Path,
    drivers: int,
    aim: Callable[[Callable[[], None]], None] = lambda kill: None,
    moment: int | None = None,
) -> list[int]:
    """Start so many drivers at once; their statuses. Those that run are killed together, or by themselves."""
    from kills_driver_support import drive

    processes = [maker.Process(target=drive, args=(base, moment)) for _ in range(drivers)]
    ready = threading.Event()

    def kill() -> None:
        ready.wait()
        for process in processes:
            process.kill()

    aim(kill)
    for process in processes:
        process.start()
    ready.set()
    for process in processes:
        process.join(600)
    return [process.exitcode for process in processes]


def _run(base: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "multiqueue", "pipeline", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(HOUSE)}
    return subprocess.run(command, cwd=base, env=variables, capture_output=True, text=True, check=False)


def _keys(store: Store, bucket: str) -> list[str]:
    pages = store.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [one["Key"] for page in pages for one in page.get("Contents", ())]


def _looked_at(store: Store, bucket: str, kind: str, base: Path) -> tuple[dict[str, list[str]], set[str], str]:
    """The rows as others' libraries read them, the files that the table names, and how many versions it had."""
    import duckdb
    import polars

    options = {"AWS_ENDPOINT_URL": store.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": KEYS["region"]}
    options |= {"AWS_ACCESS_KEY_ID": KEYS["key"], "AWS_SECRET_ACCESS_KEY": KEYS["secret"]}
    if kind == "delta":
        import deltalake

        place = f"s3://{bucket}/out/data"
        delta = deltalake.DeltaTable(place, storage_options=options)
        rows = delta.to_pyarrow_table()
        named = {uri.removeprefix(f"{place}/") for uri in delta.file_uris()}
        frame, versions = polars.read_delta(place, storage_options=options), f"{delta.version()} commits"
        library = "deltalake"
    else:
        iceberg = _iceberg(store, base)
        rows = iceberg.scan().to_arrow()
        files = (task.file.file_path for task in iceberg.scan().plan_files())
        named = {path.removeprefix(f"s3://{bucket}/out/data/") for path in files}
        with warnings.catch_warnings():  # Polars plans faster with a plugin of its own
            warnings.simplefilter("ignore", polars.exceptions.PerformanceWarning)
            frame = polars.scan_iceberg(iceberg, storage_options=options).collect()
        versions = f"{iceberg.metadata.last_sequence_number} commits"
        library = "pyiceberg"
    over_arrow = duckdb.connect().register("arrow", rows).execute('SELECT "row" FROM arrow').fetchall()
    read = {
        library: rows["row"].to_pylist(),
        "polars": frame["row"].to_list(),
        "duckdb over arrow": [one for (one,) in over_arrow],
    }
    return read, named, versions


def _iceberg(store: Store, base: Path) -> Any:
    """The table as its catalog has it."""
    from pyiceberg.catalog import load_catalog

    reached = {"s3.endpoint": store.endpoint, "s3.access-key-id": KEYS["key"], "s3.secret-access-key": KEYS["secret"]}
    catalog = load_catalog("multiqueue", type="sql", uri=f"sqlite:///{base}/work/_multiqueue/catalog.sqlite", **reached)
    (namespace,) = catalog.list_namespaces()
    (name,) = catalog.list_tables(namespace)
    return catalog.load_table(name)
