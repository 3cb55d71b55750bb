"""The suite `store`: what it costs that a message survives.

Bodies of 1 KiB. Beside the store on disk run a raw log, which appends and syncs and can do nothing else (no order by
queue, no removal, no reading back), what SQLite and what threads can do alone (`_store_floors.py`), and the SQLite
queues of persist-queue. All of them work in a directory under MULTIQUEUE_BENCH_DIR, or where the system keeps temporary
files: the figures are those of that disk.
"""

from __future__ import annotations

import atexit
import shutil
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from multiqueue.store import Delete, Put, SqliteStore

from ._model import RATE, Attempt, Figures, Goal, ItemsLost, Metric, Rival, Suite, Workload
from ._store_backlog import BACKLOG
from ._store_disk import BODY, PROPERTIES, OnDisk, new_directory
from ._store_floors import raw, raw_together, sqlite_alone, threads_alone

PIPELINED = 50_000
BATCH = 2_500  # of the floors: what the store's own batches come to
WAITING = 6_400
WAITING_ALONE = 500
PUBLISHERS = 64
STANDING = 1_000_000

_OURS = "SqliteStore"
_RELAXED = "SqliteStore, relaxed"
_RAW = "raw log"
_RAW_TOGETHER = "raw log, one thread for all"
_SQLITE = "SQLite alone"
_SQLITE_ONE = "SQLite alone, one bare table"
_THREADS = "threads alone"
_PERSIST = "persist-queue SQLiteQueue"
_PERSIST_ACK = "persist-queue SQLiteAckQueue"

# The store


def _message() -> Put:
    return Put(1, PROPERTIES, BODY)


def _publish(n: int, *, durability: str = "sync") -> Attempt:
    """One publisher that does not wait for each commit, but for the last."""
    directory = new_directory()
    store = SqliteStore(directory, durability=durability)

    def body() -> None:
        for _ in range(n):
            store.submit([_message()])
        store.submit([]).wait()

    return OnDisk(n, directory, [body], lambda: store.statistics().messages, n, [store.close])


def _publish_waiting(n: int, publishers: int) -> Attempt:
    """Publishers of which each waits for the commit of each message."""
    directory = new_directory()
    store = SqliteStore(directory)

    def body() -> None:
        for _ in range(n // publishers):
            store.submit([_message()]).wait()

    return OnDisk(n, directory, [body] * publishers, lambda: store.statistics().messages, n, [store.close])


def _acknowledge(n: int) -> Attempt:
    """Removals, one by one, that are not waited for but for the last."""
    directory = new_directory()
    store = SqliteStore(directory)
    messages = [_message() for _ in range(n)]
    for start in range(0, n, BATCH):
        store.submit(messages[start : start + BATCH])
    store.submit([]).wait()

    def body() -> None:
        for message in messages:
            store.submit([Delete([message.id])])
        store.submit([]).wait()

    return OnDisk(n, directory, [body], lambda: store.statistics().messages, 0, [store.close])


@cache
def _standing(n: int) -> Path:
    """A closed store with n messages, made once and removed at the end of the process."""
    directory = new_directory()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    with SqliteStore(directory, durability="relaxed") as store:
        for start in range(0, n, BATCH):
            store.submit([_message() for _ in range(min(BATCH, n - start))])
    return directory


class _Reopening:
    """Open a store, learn what is there, read the first headers and bodies."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._directory = _standing(n)
        self._found = 0

    def run(self) -> Figures:
        wall, cpu = time.perf_counter(), time.process_time()
        store = SqliteStore(self._directory)
        self._found = sum(level.messages for level in store.levels())
        store.read([header.id for header in store.page(1, 0, 100)])
        figures = {"open": time.perf_counter() - wall, "open_cpu": time.process_time() - cpu}
        store.close()
        return figures

    def check(self) -> None:
        if self._found != self._n:
            raise ItemsLost(f"{self._found} of {self._n} messages came back")

    def close(self) -> None:
        pass


# persist-queue


def _persist(n: int, publishers: int = 1) -> Attempt:
    """Each put is a commit, as its documentation has it for a queue that must survive."""
    import persistqueue

    directory = new_directory()
    persistent: Any = persistqueue.SQLiteQueue(str(directory), auto_commit=True, multithreading=True)

    def body() -> None:
        for _ in range(n // publishers):
            persistent.put(BODY)

    return OnDisk(n, directory, [body] * publishers, lambda: int(persistent.size), n, [persistent.close])


def _persist_acknowledge(n: int) -> Attempt:
    import persistqueue

    directory = new_directory()
    persistent: Any = persistqueue.SQLiteAckQueue(str(directory), auto_commit=True, multithreading=True)
    for _ in range(n):
        persistent.put(BODY)

    def body() -> None:
        for _ in range(n):
            persistent.ack(persistent.get())

    return OnDisk(n, directory, [body], lambda: int(persistent.size), 0, [persistent.close])


def _ours(name: str, open_attempt: Callable[[int], Attempt]) -> Rival:
    return Rival(name, open_attempt, role="ours")


def _floor(name: str, open_attempt: Callable[[int], Attempt], note: str) -> Rival:
    return Rival(name, open_attempt, role="yardstick", note=note)


def _rival(name: str, open_attempt: Callable[[int], Attempt], share: float) -> Rival:
    return Rival(name, open_attempt, requires="persistqueue", share=share)


SUITE = Suite(
    "store",
    (
        Workload(
            "publish",
            "one publisher of 1 KiB, pipelined: it waits for the last commit",
            PIPELINED,
            (
                _floor(_RAW, partial(raw, batch=BATCH), f"{BATCH} messages a write and a sync, no thread between"),
                _ours(_OURS, _publish),
                _ours(_RELAXED, partial(_publish, durability="relaxed")),
                _rival(_PERSIST, _persist, share=0.02),
                _floor(
                    _SQLITE,
                    partial(sqlite_alone, batch=BATCH, has_headers=True),
                    f"executemany into the store's two tables, {BATCH} messages a commit, no thread between",
                ),
                _floor(
                    _SQLITE_ONE,
                    partial(sqlite_alone, batch=BATCH, has_headers=False),
                    "the same with a table of numbers and bodies: no queue, no properties, no check sums",
                ),
            ),
            _RAW,
            n_unit="messages",
            threads="1 and the writer",
            goals=(Goal(RATE.name, 0.4, _OURS, _RAW),),
            note="The goal beside the ratio is 50,000 messages a second.",
        ),
        Workload(
            "publish-64",
            f"{PUBLISHERS} publishers of 1 KiB, each waits for each of its commits",
            WAITING,
            (
                _rival(_PERSIST, partial(_persist, publishers=PUBLISHERS), share=0.1),
                _ours(_OURS, partial(_publish_waiting, publishers=PUBLISHERS)),
                _floor(_RAW, partial(raw, batch=1, publishers=PUBLISHERS), "a sync for each message"),
                _floor(
                    _RAW_TOGETHER, partial(raw_together, publishers=PUBLISHERS), "appends and syncs what came meanwhile"
                ),
                _floor(
                    _THREADS,
                    partial(threads_alone, publishers=PUBLISHERS),
                    "no disk: a thread answers what came meanwhile, every 0.2 ms",
                ),
            ),
            _PERSIST,
            n_unit="messages",
            threads=f"{PUBLISHERS} and the writer",
            goals=(Goal(RATE.name, 10.0, _OURS, _PERSIST),),
            divisor=PUBLISHERS,
        ),
        Workload(
            "publish-1",
            "one publisher of 1 KiB that waits for each commit: the disk's own pace",
            WAITING_ALONE,
            (
                _floor(_RAW, partial(raw, batch=1), "a sync for each message"),
                _ours(_OURS, partial(_publish_waiting, publishers=1)),
                _rival(_PERSIST, _persist, share=1.0),
            ),
            _RAW,
            n_unit="messages",
            threads="1 and the writer",
        ),
        Workload(
            "acknowledge",
            "removals one by one, pipelined",
            PIPELINED,
            (
                _floor(
                    _RAW, partial(raw, batch=BATCH, body=BODY[:16], properties=b""), "a record of 32 bytes for each"
                ),
                _ours(_OURS, _acknowledge),
                _rival(_PERSIST_ACK, _persist_acknowledge, share=0.01),
            ),
            _RAW,
            n_unit="messages",
            threads="1 and the writer",
        ),
        Workload(
            "reopen",
            "open a store, count it by queue, read the first hundred messages",
            STANDING,
            (_ours(_OURS, _Reopening),),
            _OURS,
            metrics=(
                Metric("open_cpu", "CPU s", better="less", has_ratio=False),
                Metric("open", "s", better="less", has_ratio=False),
            ),
            n_unit="messages",
            note="The goal is below one second of CPU for a million.",
        ),
        BACKLOG,
    ),
    does_not_show=(
        "a disk that is slower or faster, or lies about its syncs: the raw log is beside every figure to tell",
        "exchanges, queues and consumers: nothing but the store is in it; `multiqueue bench broker` has the rest",
        "cold files: the page cache knows what was written a moment ago",
        "what the raw log would cost if it could remove, find and read what it has",
    ),
)
