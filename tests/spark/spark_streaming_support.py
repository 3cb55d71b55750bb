"""What the tests of the source and the sink share: a disk that forgets, a broker with durable queues, ways to look."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql.types import StructType
from spark_parts_support import RAW, Files, QueueStreamReader

from multiqueue.client import connect
from multiqueue.spark import QueueDataSource
from multiqueue.testing import PATIENCE


class PowerCut(BaseException):
    """The machine stops. Not an Exception: no handler of ours may go on."""


class ForgetfulDisk(Files):
    """A disk that notes what is synced, so that a test can see what a power cut leaves.

    `fails_at` is the number of the operation, from 1, at which the machine stops (or `error` is raised); `before`
    says whether that operation has had its effect.
    """

    def __init__(self, fails_at: int = 0, *, before: bool = True, error: BaseException | None = None) -> None:
        self.operations = 0
        self._fails_at, self._before, self._error = fails_at, before, error or PowerCut()
        self._unsynced: list[tuple[str, Path, Path | None]] = []  # changes of names, oldest first

    def write(self, path: Path, data: bytes) -> None:
        if self._strikes(before=True):
            path.write_bytes(data[: len(data) // 2])  # torn
            raise self._error
        super().write(path, data)
        self._strike_after()

    def rename(self, path: Path, name: Path) -> None:
        self._strike_before()
        super().rename(path, name)
        self._unsynced.append(("rename", path, name))
        self._strike_after()

    def sync_directory(self, directory: Path) -> None:
        self._strike_before()
        super().sync_directory(directory)
        self._unsynced = [change for change in self._unsynced if change[1].parent != directory]
        self._strike_after()

    def remove(self, path: Path) -> None:
        self._strike_before()
        kept = path.with_name(path.name + ".removed")
        shutil.copy(path, kept)
        super().remove(path)
        self._unsynced.append(("remove", kept, path))
        self._strike_after()

    def lose(self) -> None:
        """Undo the changes of names that no sync has made last."""
        for kind, path, name in reversed(self._unsynced):
            assert name is not None
            if kind == "rename":
                name.replace(path)
            else:
                path.replace(name)

    def _strikes(self, *, before: bool) -> bool:
        self.operations += before
        return self.operations == self._fails_at and self._before == before

    def _strike_before(self) -> None:
        if self._strikes(before=True):
            raise self._error

    def _strike_after(self) -> None:
        if self._strikes(before=False):
            raise self._error


class Engine:
    """What Spark does with a stream, without its JVM: batches, an offset log and a commit log, and restarts.

    `output` is an idempotent sink: by batch, the last run counts. `tells_start` is false for a Spark before 4.2.
    """

    tells_start = True

    def __init__(self, make: Callable[[], QueueStreamReader]) -> None:
        self._make = make
        self.offsets: list[Any] = []  # the end of each batch
        self.committed = 0  # batches
        self.output: dict[int, list[dict[str, Any]]] = {}
        self.reader = make()

    def restart(self) -> None:
        """A new reader, as after a crash; the batch that was not committed runs again."""
        self.reader.stop()
        self.reader = self._make()
        if self.committed < len(self.offsets):
            self._run()

    def plan(self, limit: Any = None) -> bool:
        """Write the next batch into the offset log; False when there is nothing new."""
        start = self.offsets[-1] if self.offsets else self.reader.initialOffset()
        known = (start, limit or self.reader.getDefaultReadLimit()) if self.tells_start else ()
        end = self.reader.latestOffset(*known)
        if json.dumps(end) == json.dumps(start):
            return False
        self.offsets.append(end)
        self.log("offsets", len(self.offsets) - 1, end)
        if len(self.offsets) > 1:
            self.reader.commit(self.offsets[-2])
        return True

    def batch(self, limit: Any = None) -> list[dict[str, Any]]:
        """Plan and run a batch; returns its rows, none when there was nothing new."""
        return self._run() if self.plan(limit) else []

    def run_until(self, count: int) -> list[dict[str, Any]]:
        """Run batches until there are so many rows in all; returns all."""
        deadline = time.monotonic() + PATIENCE
        while (found := len(self.rows())) < count:
            assert time.monotonic() < deadline, f"{found} of {count} rows, and no further for {PATIENCE:g} s"
            if self.batch():
                deadline = time.monotonic() + PATIENCE
            else:
                time.sleep(0.01)  # as Spark does
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.output) for row in self.output[number]]

    def _run(self) -> list[dict[str, Any]]:
        number = self.committed
        start = self.offsets[number - 1] if number else self.reader.initialOffset()
        parts = self.reader.partitions(start, self.offsets[number])
        executor = pickle.loads(pickle.dumps(self._make()))
        self.output[number] = [
            row
            for part in parts
            for batch in executor.read(pickle.loads(pickle.dumps(part)))
            for row in batch.to_pylist()
        ]
        self.log("output", number, self.output[number])
        self.committed += 1
        self.log("commits", number, True)
        return self.output[number]

    def log(self, kind: str, number: int, content: Any) -> None:
        """Something that outlives a crash, for those that keep it."""


def do_without(missing: str) -> NoReturn:
    """End a test whose peer is `missing`: skipped at a desk, failed where peers are required."""
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {missing}", pytrace=False)
    pytest.skip(missing)


def source_reader(options: dict[str, str], schema: StructType = RAW) -> QueueStreamReader:
    """A reader as Spark makes it."""
    return QueueDataSource(options).streamReader(schema)


def publish(url: str, queue: str, *bodies: bytes, arguments: dict[str, Any] | None = None, **properties: Any) -> None:
    """Declare a durable queue and put messages on it, confirmed; message ids are the bodies unless given."""
    with connect(url) as connection, connection.channel() as channel:
        channel.queue_declare(queue, durable=True, arguments=arguments)
        for body in bodies:
            ids = {"message_id": body.decode("ascii", "replace"), "delivery_mode": 2, **properties}
            channel.publish_confirmed(body, routing_key=queue, **ids)
        assert channel.wait_for_confirms(PATIENCE)


def depth(url: str, queue: str) -> int:
    """How many messages are ready."""
    with connect(url) as connection, connection.channel() as channel:
        return channel.queue_declare(queue, passive=True).message_count


def wait_for_depth(url: str, queue: str, count: int) -> None:
    """Until acknowledgements, which no server confirms, have arrived."""
    deadline = time.monotonic() + PATIENCE
    with connect(url) as connection, connection.channel() as channel:
        while channel.queue_declare(queue, passive=True).message_count != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in rows]


def wait_for_steps(look: Callable[[], set[Any]], before: set[Any], count: int, *, patience: float = PATIENCE) -> None:
    """Until `look` has shown so many names beside those of `before`. One that is gone again counts too."""
    seen, deadline = set(before), time.monotonic() + patience
    while len(seen) - len(before) < count:
        assert time.monotonic() < deadline, f"{len(seen) - len(before)} of {count} steps after {patience:g} s"
        time.sleep(0.002)
        seen |= look()


SERVER = """
import sys
from multiqueue.broker import Broker
broker = Broker(data=sys.argv[1])
print(broker.listen(port=int(sys.argv[2])).url, flush=True)
sys.stdin.read()
"""


@contextmanager
def broker_process(data: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A broker in a process of its own, killed at the end of the block."""
    command = [sys.executable, "-c", SERVER, str(data), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])
