"""A pipeline into a table in a store, whose driver is killed again and again, and what is there in the end.

A proxy before the store kills: it sees each request, and so it knows when a commit begins, is made, and was told of.
"""

from __future__ import annotations

import contextlib
import json
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
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from s3_support import KEYS, Failing, Store, between

HOUSE = Path(__file__).parents[2]
LISTING_S = 20.0
"""From one listing to the next, with events: a round takes a few seconds."""
HOW = ("before", "during", "after", "anywhere")
"""A commit is asked for; the store has made it, and does not tell; the driver was told; any other request."""

TOML = """\
[lanes.in]
directories = "s3://%(bucket)s/in/*"
files = "*.txt"
format = "text"
batch = %(batch)d
%(lane)s
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


def kind_of(method: str, path: str) -> str:
    """What the request is for."""
    name, _, query = path.partition("?")
    if is_commit(method, path):
        return "a commit"
    if "/out/" in name:
        return f"{method} in the table"
    return "a listing" if "list-type" in query else f"{method} of an input"


@dataclass
class Killer(Failing):
    """Kills the drivers of a round at the moment that was chosen for it; the store fails by chance besides."""

    how: str = ""
    left: int = 0
    """Requests, or commits, that still pass."""
    kill: Callable[[], None] = lambda: None
    requests: int = 0
    struck: bool = False
    met: str = ""
    """What was asked for when it struck."""

    def aim(self, how: str, left: int, kill: Callable[[], None]) -> None:
        with self.lock:
            self.how, self.left, self.kill, self.struck = how, left, kill, False

    def before(self, method: str, path: str) -> str | None:
        with self.lock:
            self.requests += 1
        what = kind_of(method, path)
        if self._is_due("anywhere", what) or self._is_due("before", what, is_commit(method, path)):
            return "before"
        return super().before(method, path)

    def done(self, method: str, path: str) -> None:
        self._is_due("during", kind_of(method, path), is_commit(method, path))

    def answered(self, method: str, path: str) -> None:
        if self.how == "after" and is_commit(method, path):
            time.sleep(self.chance.random() * 0.05)
            self._is_due("after", kind_of(method, path))

    def _is_due(self, how: str, what: str, counts: bool = True) -> bool:
        with self.lock:
            if self.how != how or not counts or self.struck:
                return False
            self.left -= 1
            if self.left >= 0:
                return False
            self.struck, self.met = True, what
        self.kill()
        return True


@dataclass
class Survived:
    """What happened until every row was there."""

    kind: str
    files: int
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    """What the driver asked the store for when it was killed."""
    pairs: int = 0
    """Rounds with two drivers at once."""
    refused: int = 0
    """Drivers that were told that another one runs."""
    changed: int = 0
    """Files that were written anew in between."""
    requests: int = 0
    deleted: int = 0
    """Objects that were removed, some before they were read."""
    told: Counter[str] = field(default_factory=Counter)
    """What became of the events of writes and removals."""
    found: Counter[str] = field(default_factory=Counter)
    """Versions of files that the state counts as found by events, and by listings."""
    failed: int = 0
    """Requests that the store failed."""
    left: int = 0
    """Files that vacuum has removed."""
    versions: str = ""
    rows: Counter[str] = field(default_factory=Counter)
    """By who read them."""
    seconds: float = 0.0


@dataclass
class Uploads:
    """Writes and removes objects, and tells of that as badly as events come: lost, doubled, late, out of order."""

    store: Store
    bucket: str
    chance: random.Random
    tell: Callable[[bytes], object] | None
    """Publishes an event; None where there are none."""
    found: Survived
    wanted: dict[str, list[str]] = field(default_factory=dict)
    """The texts of each object since it was made; the last is in the table. One that was removed ends with ""."""
    late: list[bytes] = field(default_factory=list)

    def write(self, key: str, text: str) -> None:
        self.store.client.put_object(Bucket=self.bucket, Key=key, Body=text.encode())
        self.wanted.setdefault(key, []).append(text)
        self._tell(key, "ObjectCreated:Put")

    def remove(self, key: str) -> None:
        self.store.client.delete_object(Bucket=self.bucket, Key=key)
        self.wanted[key].append("")
        self._tell(key, "ObjectRemoved:Delete")

    def _tell(self, key: str, name: str) -> None:
        if self.tell is None:
            return
        record = {"eventName": name, "s3": {"bucket": {"name": self.bucket}, "object": {"key": key}}}
        event = json.dumps({"Records": [record]}).encode()
        fate = self.chance.choice(("lost", "doubled", "late", "once", "once"))
        self.found.told[fate] += 1
        if fate in ("doubled", "late"):
            self.late.append(event)
        if fate in ("doubled", "once"):
            self.tell(event)

    def tell_late(self, share: float = 0.3) -> None:
        """Some of the events that were held back, in any order."""
        self.chance.shuffle(self.late)
        for _ in range(round(len(self.late) * share)):
            assert self.tell is not None
            self.tell(self.late.pop())

    def missing_or_twice(self, rows: list[str]) -> Counter[str]:
        """Rows that are there too often, and as -1 those that are not there. A removed object's may be there or not."""
        difference = Counter(rows)
        for texts in self.wanted.values():
            if texts[-1]:
                difference[texts[-1]] -= 1
            elif any(difference[text] for text in texts):
                difference[next(text for text in texts if difference[text])] -= 1
        return Counter({row: count for row, count in difference.items() if count})


@contextlib.contextmanager
def queue_of_events() -> Iterator[tuple[str, Callable[[bytes], object], Callable[[], int]]]:
    """A queue of a server of ours: its URL, how to publish to it, and how many events are in it."""
    from multiqueue.amqp import serve
    from multiqueue.broker import Broker
    from multiqueue.client import connect

    with Broker() as broker, serve(broker) as server, connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("events", durable=True)

        def tell(event: bytes) -> None:
            channel.publish_confirmed(event, routing_key="events").result(30)

        def depth() -> int:
            return channel.queue_declare("events", passive=True).message_count

        yield f"{server.url}/events", tell, depth


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
    events: bool = False,
    say: Callable[[str], None] = lambda said: None,
) -> Survived:
    """Kill the driver so often, let it end, and look with others' code; AssertionError if a row is not there once.

    With events, objects come while drivers die, some are removed, and the lane is listed seldom.
    """
    chance, started_s = random.Random(seed), time.monotonic()
    found = Survived(kind, files, seed)
    killer = Killer(random.Random(seed + 1), share, ("500", "503", "before", "after", "late"))
    queue = queue_of_events() if events else contextlib.nullcontext(("", None, lambda: 0))
    bucket = store.bucket()
    with between(store.endpoint, killer) as endpoint, driver_maker() as maker, queue as (url, tell, depth):
        lane = f'events = "{url}"\nlisting_seconds = {LISTING_S}' if events else ""
        values = {"bucket": bucket, "kind": kind, "endpoint": endpoint, "batch": batch, "catalog": catalog, **KEYS}
        text = TOML % {**values, "lane": lane}
        (base / "p.toml").write_text(text)
        uploads = Uploads(store, bucket, chance, tell, found)
        new = iter(range(files))
        while True:
            for number in islice(new, -(-files // kills) if events else files):
                uploads.write(f"in/{'small' if number % 10 == 0 else 'big'}/{number:05}.txt", f"row {number}")
            if found.kills.total() >= kills:
                break
            how = HOW[found.kills.total() % len(HOW)]
            two = chance.random() < 0.25
            found.pairs += two
            left = chance.randrange(2) if how != "anywhere" else chance.randrange(120)
            statuses = one_round(maker, base, 1 + two, lambda kill, h=how, n=left: killer.aim(h, n, kill))  # type: ignore[misc]
            found.refused += statuses.count(3)
            assert set(statuses) <= {0, 3, -signal.SIGKILL} | ({1} if found.deleted else set()), statuses
            if killer.struck:
                found.kills[how] += 1
                found.met[killer.met] += 1
            there = sorted(key for key, texts in uploads.wanted.items() if texts[-1])
            for key in chance.sample(there, max(files // 200, 1)):  # work for the next ones
                uploads.write(key, f"{uploads.wanted[key][-1]} again")
                found.changed += 1
            if events and chance.random() < 0.2:
                uploads.remove(chance.choice(there))
                found.deleted += 1
            uploads.tell_late()
            say(f"{found.kills.total()} kills, {how}, {statuses}, {killer.requests} requests, {killer.failed} failed")
        uploads.tell_late(1.0)
        if events:  # the next run lists
            (base / "p.toml").write_text(text.replace(f"listing_seconds = {LISTING_S}", "listing_seconds = 0.001"))
        last = one_round(maker, base, 1, lambda kill: killer.aim("", 0, kill))
        assert last in ([0], [1] if found.deleted else [0])
        assert depth() == 0
        found.requests, found.failed = killer.requests, killer.failed
        killer.share = 0.0
        told = json.loads(_run(base, "status", "p.toml", "--json").stdout)
        for lane_told in told.get("events", {}).values():
            for way in ("event", "listing"):
                found.found[way] += lane_told[f"found_by_{way}"]
        cleaned = _run(base, "vacuum", "p.toml", "--keep-hours", "0")
        assert cleaned.returncode == 0, cleaned.stderr
        found.left = int(cleaned.stdout.split("removed ")[1].split()[0].replace(",", ""))
    read, named, found.versions = _looked_at(store, bucket, kind, base)
    for reader, rows in read.items():
        assert not uploads.missing_or_twice(rows), f"{reader}: {uploads.missing_or_twice(rows)}"
        found.rows[reader] = len(rows)
    keys = [key.removeprefix("out/data/") for key in _keys(store, bucket) if key.startswith("out/data/")]
    stored = {key for key in keys if key.endswith(".parquet") and not key.startswith("_delta_log/")}
    assert stored == named
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
    import polars

    options = {"AWS_ENDPOINT_URL": store.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": KEYS["region"]}
    options |= {"AWS_ACCESS_KEY_ID": KEYS["key"], "AWS_SECRET_ACCESS_KEY": KEYS["secret"]}
    place = f"s3://{bucket}/out/data"
    if kind == "delta":
        import deltalake

        delta = deltalake.DeltaTable(place, storage_options=options)
        rows = delta.to_pyarrow_table()
        named = {uri.removeprefix(f"{place}/") for uri in delta.file_uris()}
        frame, versions = polars.read_delta(place, storage_options=options), f"{delta.version()} commits"
        library, scan = "deltalake", f"delta_scan('{place}')"
    else:
        iceberg = _iceberg(store, base)
        rows = iceberg.scan().to_arrow()
        files = (task.file.file_path for task in iceberg.scan().plan_files())
        named = {path.removeprefix(f"{place}/") for path in files}
        with warnings.catch_warnings():  # Polars plans faster with a plugin of its own
            warnings.simplefilter("ignore", polars.exceptions.PerformanceWarning)
            frame = polars.scan_iceberg(iceberg, storage_options=options).collect()
        versions = f"{iceberg.metadata.last_sequence_number} commits"
        library, scan = "pyiceberg", f"iceberg_scan('{iceberg.metadata_location}')"
    read = {library: rows["row"].to_pylist(), "polars": frame["row"].to_list()}
    return {**read, **_by_duckdb(store, scan, rows)}, named, versions


def _by_duckdb(store: Store, scan: str, rows: Any) -> dict[str, list[str]]:
    """The rows by its own readers where those are installed (`duckdb-extension-delta` and so on), or over Arrow."""
    import duckdb

    duck = duckdb.connect()
    try:
        for name in ("httpfs", "avro", "iceberg" if "iceberg" in scan else "delta"):
            found = find_spec(f"duckdb_extension_{name}")
            (path,) = Path(found.origin or "").parent.glob("extensions/*/*") if found else ("",)
            duck.execute(f"LOAD '{path or name}'")
    except duckdb.Error:
        read = duck.register("arrow", rows).execute('SELECT "row" FROM arrow').fetchall()
        return {"duckdb over arrow": [one for (one,) in read]}
    duck.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{KEYS['key']}', SECRET '{KEYS['secret']}', REGION '{KEYS['region']}',"
        f" ENDPOINT '{store.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )
    return {"duckdb": [one for (one,) in duck.execute(f'SELECT "row" FROM {scan}').fetchall()]}


def _iceberg(store: Store, base: Path) -> Any:
    """The table as its catalog has it."""
    from pyiceberg.catalog import load_catalog

    reached = {"s3.endpoint": store.endpoint, "s3.access-key-id": KEYS["key"], "s3.secret-access-key": KEYS["secret"]}
    catalog = load_catalog("multiqueue", type="sql", uri=f"sqlite:///{base}/work/_multiqueue/catalog.sqlite", **reached)
    (namespace,) = catalog.list_namespaces()
    (name,) = catalog.list_tables(namespace)
    return catalog.load_table(name)
