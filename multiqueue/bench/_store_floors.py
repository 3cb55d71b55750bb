"""The floors of the store, measured alone: an appended file, SQLite, and threads that wait for one another.

No store can be better than these. Where it comes near one of them, that is where the time goes.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable
from zlib import crc32

from ._model import Attempt
from ._store_disk import BODY, PROPERTIES, OnDisk, new_directory

_LOG_BYTES = 8 << 20  # as the store: SQLite's log is copied into the file whenever it has come so far
_SYNC_SECONDS = 0.0002  # what a disk takes for a sync, where there is none


class RawLog:
    """A file that is appended to: length, number, check sum, properties, body; then synced."""

    def __init__(self, properties: bytes) -> None:
        self.directory = new_directory()
        self._descriptor = os.open(self.directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._properties = properties
        self._lock = threading.Lock()
        self.records = 0

    def append(self, bodies: list[bytes]) -> None:
        """Have them on the disk."""
        with self._lock:
            properties = self._properties
            parts: list[bytes] = []
            for number, body in enumerate(bodies, self.records):
                parts += (struct.pack("<IQI", len(body), number, crc32(body, crc32(properties))), properties, body)
            os.write(self._descriptor, b"".join(parts))
            os.fdatasync(self._descriptor)
            self.records += len(bodies)

    def close(self) -> None:
        os.close(self._descriptor)


def raw(n: int, *, batch: int, publishers: int = 1, body: bytes = BODY, properties: bytes = PROPERTIES) -> Attempt:
    """Publishers that append so many messages at once, and sync them themselves."""
    log = RawLog(properties)
    bodies = [body] * batch

    def publish() -> None:
        for start in range(0, n // publishers, batch):
            log.append(bodies[: n // publishers - start])

    return OnDisk(n, log.directory, [publish] * publishers, lambda: log.records, n, [log.close])


# SQLite

_HEADER = """CREATE TABLE header (
    queue INTEGER, level INTEGER, id INTEGER, size INTEGER, expires_at REAL, deliveries INTEGER, transient INTEGER,
    "check" INTEGER, properties BLOB, PRIMARY KEY (queue, level, id)
) WITHOUT ROWID"""
_BODY = 'CREATE TABLE body (id INTEGER PRIMARY KEY, queue INTEGER, level INTEGER, "check" INTEGER, data BLOB)'
_ONE = "CREATE TABLE body (id INTEGER PRIMARY KEY, data BLOB)"


def sqlite_alone(n: int, *, batch: int, has_headers: bool) -> Attempt:
    """One thread, rows made beforehand, `executemany` and a commit for each batch, synced.

    With the store's two tables, or with one that has a number and a body and nothing else.
    """
    directory = new_directory()
    tables = (_HEADER, _BODY) if has_headers else (_ONE,)
    connection = _connect(str(directory / "messages"), tables)
    inserts: list[tuple[str, list[tuple[object, ...]]]] = []
    if has_headers:
        headers = [(1, 0, one, len(BODY), None, 0, 0, one * 7, PROPERTIES) for one in range(1, n + 1)]
        inserts.append(("INSERT INTO header VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [*headers]))
        inserts.append(("INSERT INTO body VALUES (?, ?, ?, ?, ?)", [(one[2], 1, 0, one[7], BODY) for one in headers]))
    else:
        inserts.append(("INSERT INTO body VALUES (?, ?)", [(one, BODY) for one in range(1, n + 1)]))

    def publish() -> None:
        in_log = 0
        for start in range(0, n, batch):
            if in_log >= _LOG_BYTES:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                in_log = 0
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in inserts:
                connection.executemany(statement, rows[start : start + batch])
            connection.execute("COMMIT")
            in_log += batch * (len(BODY) + len(PROPERTIES))

    def count() -> int:
        return int(connection.execute("SELECT count(*) FROM body").fetchone()[0])

    return OnDisk(n, directory, [publish], count, n, [connection.close])


def _connect(file: str, tables: tuple[str, ...]) -> sqlite3.Connection:
    """With the store's pragmas."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    for pragma in (
        "page_size = 8192",
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        "synchronous = FULL",
        "secure_delete = OFF",
        "wal_autocheckpoint = 0",
        "cache_size = -8192",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchone()
    for table in tables:
        connection.execute(table)
    return connection


# Threads


class _Answers:
    """A thread that answers all that asked meanwhile together; each of them lets through the next.

    Before it answers it does something for them: `act`, with how many they are.
    """

    def __init__(self, act: Callable[[int], object]) -> None:
        self._act = act
        self._asked = threading.Condition()
        self._count = 0  # of those who wait at `_gate`
        self._gate = threading.Lock()
        self._is_closing = False
        self.answered = 0
        self._thread = threading.Thread(target=self._run, name="bench-answers", daemon=True)
        self._gate.acquire()
        self._thread.start()

    def ask(self) -> None:
        """Wait for an answer."""
        with self._asked:
            gate = self._gate
            self._count += 1
            if self._count == 1:
                self._asked.notify()
        gate.acquire()
        gate.release()

    def _run(self) -> None:
        while True:
            with self._asked:
                while not self._count:
                    if self._is_closing:
                        return
                    self._asked.wait()
                gate, count = self._gate, self._count
                self._gate, self._count = threading.Lock(), 0
                self._gate.acquire()
            self._act(count)
            self.answered += count
            gate.release()

    def close(self) -> None:
        with self._asked:
            self._is_closing = True
            self._asked.notify()
        self._thread.join()


def threads_alone(n: int, *, publishers: int) -> Attempt:
    """Threads that each wait for a thread that does nothing but to wait as long as a sync takes."""
    answers = _Answers(lambda count: time.sleep(_SYNC_SECONDS))
    return _asking(n, publishers, answers, [answers.close])


def raw_together(n: int, *, publishers: int) -> Attempt:
    """Threads that each wait for a thread that appends to a raw log for all who wait."""
    log = RawLog(PROPERTIES)
    answers = _Answers(lambda count: log.append([BODY] * count))
    return _asking(n, publishers, answers, [answers.close, log.close], log)


def _asking(
    n: int, publishers: int, answers: _Answers, on_close: list[Callable[[], object]], log: RawLog | None = None
) -> Attempt:
    def publish() -> None:
        for _ in range(n // publishers):
            answers.ask()

    directory = new_directory() if log is None else log.directory
    return OnDisk(n, directory, [publish] * publishers, lambda: answers.answered, n, on_close)
