"""From upload to submission by a real clock, with very many objects there that nobody lists meanwhile.

    python tools/lake_uploads.py [--there 1000000] [--uploads 1000] [--seconds 200]

`multiqueue pipeline run --follow` with Spark on `local[2]`, a broker that has the store's events, and `lake_store.py`'s
stand-in for S3 are processes of their own. The state says that the objects which are there are done, as after a run.
What is measured ends when the job of an upload's item begins, a moment after its submission; both clocks are the
machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lake_day import SIZE, fill
from lake_store import BUCKET, KEYS

from multiqueue.client import connect
from multiqueue.pipeline import load_config
from multiqueue.pipeline._base.place import Place
from multiqueue.pipeline._base.storage import Status
from multiqueue.pipeline._state.ledger import Ledger
from multiqueue.pipeline._state.sqlite import SqliteState

LANES = 20
CONFIG = """
[lanes.uploads]
files = "s3://{bucket}/in/**/*.csv"
format = "csv"
options = {{ header = true }}
events = "{broker}/events"
listing_seconds = 86400

[job]
sql = "SELECT * FROM input"

[output]
path = "out"

[storage.lake]
url = "s3://{bucket}"
endpoint = "{store}"
key = "{key}"
secret = "{secret}"

[spark]
master = "local[2]"
"""


@dataclass
class There:
    """The objects that were done before; a `Bucket` of `lake_day`."""

    rate: float = 1000.0

    def place(self, number: int) -> Place:
        return Place(f"s3://{BUCKET}/in/lane{number % LANES:03}/{number:06}.csv")

    def status(self, number: int) -> Status:
        return Status(SIZE, 1_767_225_600 * 10**9)


@contextlib.contextmanager
def process(*command: str, **more: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(command, text=True, **more)  # type: ignore[call-overload]
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def upload(store: str, events: object, key: str) -> float:
    """Put the object and tell of it, as a store does; when it was there."""
    connection = http.client.HTTPConnection(store)
    connection.request("PUT", f"/{BUCKET}/{key}")
    connection.getresponse().read()
    connection.close()
    now = time.time()
    told = {"bucket": {"name": BUCKET}, "object": {"key": key, "size": SIZE, "eTag": "0" * 32}}
    record = {"eventName": "s3:ObjectCreated:Put", "s3": told}
    events.publish(json.dumps({"Records": [record]}).encode(), routing_key="events")  # type: ignore[attr-defined]
    return now


def memory_mb(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1e3


def begun(config: Path, name: str = "new") -> dict[str, float]:
    """When the job of each upload began, by its path."""
    ledger = load_config(config).state.connect_read_only()
    try:
        rows = ledger.execute(
            "SELECT files.path, ended_at - (ended_s - started_s) FROM items JOIN files ON files.item = seq"
            f" WHERE state = 'done' AND files.path LIKE '%/{name}%'"
        )
        return dict(rows.fetchall())
    finally:
        ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--there", type=int, default=1_000_000)
    parser.add_argument("--uploads", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=200.0)
    asked = parser.parse_args()
    port = free_port()
    broker = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
    serve = (sys.executable, str(Path(__file__).with_name("lake_store.py")), "--serve", str(asked.there), "20", "20")
    with (
        tempfile.TemporaryDirectory(prefix="multiqueue-uploads-") as directory,
        process(*serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as store,
        process(sys.executable, "-m", "multiqueue", "broker", "--port", str(port), stdout=subprocess.PIPE) as server,
    ):
        server.stdout.readline()  # it listens
        address = f"127.0.0.1:{int(store.stdout.readline())}"
        config = Path(directory) / "uploads.toml"
        config.write_text(CONFIG.format(bucket=BUCKET, broker=broker, store=f"http://{address}", **KEYS))
        (Path(directory) / "out" / "_multiqueue").mkdir(parents=True)
        (lane,) = load_config(config).lanes()
        state = SqliteState(Path(directory) / "out" / "_multiqueue" / "state.sqlite")
        ledger = Ledger(state, Path(directory))
        fill(ledger, lane.name, There(), 0, asked.there)  # type: ignore[arg-type]
        with ledger.transaction():
            ledger.arrivals.note(lane, listed_at=time.time())
        ledger.close()
        with connect(broker) as connection, connection.channel() as channel:
            channel.queue_declare("events", durable=True)
            run = (sys.executable, "-m", "multiqueue", "pipeline", "run", "--follow", str(config))
            environment = {**os.environ, "SPARK_LOCAL_DIRS": directory}
            with process(*run, env=environment) as driver:
                upload(address, channel, "in/lane000/first.csv")  # Spark is up once it is done
                ended = time.monotonic() + 60
                while not begun(config, "first") and time.monotonic() < ended:
                    time.sleep(0.5)
                came, first = {}, time.monotonic()
                for number in range(asked.uploads):
                    time.sleep(max(first + asked.seconds * number / asked.uploads - time.monotonic(), 0.0))
                    key = f"in/lane{number % LANES:03}/new{number:06}.csv"
                    came[f"s3://{BUCKET}/{key}"] = upload(address, channel, key)
                ended = time.monotonic() + 30
                while len(found := begun(config)) < asked.uploads and time.monotonic() < ended:
                    time.sleep(0.5)
                waits = sorted(found[path] - at for path, at in came.items() if path in found)
                print(json.dumps({
                    "there": asked.there, "uploads": len(waits), "missing": asked.uploads - len(waits),
                    "p50 s": round(waits[len(waits) // 2], 2), "p99 s": round(waits[len(waits) * 99 // 100], 2),
                    "most s": round(waits[-1], 2), "driver MB": memory_mb(driver.pid, "VmRSS"),
                    "most MB": memory_mb(driver.pid, "VmHWM"), "store MB": memory_mb(store.pid, "VmRSS"),
                }))  # fmt: skip


if __name__ == "__main__":
    main()
