"""The reading side of a store on disk: every question is one statement, fetched whole.

Promise     A reader sees whole commits and never waits for one. No answer keeps a snapshot, which would pin the log.
State       `_lock` guards `_idle` and `_is_closed`. A connection that was borrowed is its borrower's alone.
Lock order  `_lock` is a leaf; SQLite is called outside of it.
Waiting     No thread waits: one that finds no idle connection opens another. Only while the process has too many files
            open a file of bodies is tried again, for ten seconds at most.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .._locks import Lock
from ._bodies import TOO_MANY_OPEN, BodyDamaged, owner_of, read_bodies
from ._errors import StoreDamaged, StoreError, StoreFailed
from ._plan import check
from ._protocol import Definition, Header, Held, Level, Moment, Outline
from ._schema import DAMAGE, are_numbers, connect

_MOST_IDLE = 4
_MOST_TRIES, _PAUSE = 500, 0.02  # while there is no descriptor: ten seconds, as SQLite waits for a lock
_CACHE_BYTES = 2 << 20  # of each connection; headers are read once, bodies by the loader once

_CURRENT = "NOT (transient = 1 AND id < ?) AND queue NOT IN (SELECT queue FROM dropped)"
_HEADER = 'id, size, expires_at, deliveries, properties, held_until_ms, "check"'
_PAGE = (
    f"SELECT {_HEADER} FROM header WHERE queue = ? AND level = ? AND id > ?"
    f" AND (held_until_ms IS NULL OR held_until_ms < ?) AND {_CURRENT} ORDER BY id LIMIT ?"
)
_HELD = (
    f"SELECT {_HEADER}, level FROM header WHERE queue = ? AND held_until_ms IS NOT NULL"
    f" AND (held_until_ms, level, id) > (?, ?, ?) AND {_CURRENT} ORDER BY held_until_ms, level, id LIMIT ?"
)
_HELD_AFTER = (
    "SELECT level, count(*), sum(size) FROM header INDEXED BY header_held"
    f" WHERE queue = ? AND held_until_ms IS NOT NULL AND held_until_ms > ? AND {_CURRENT} GROUP BY level"
)
_OUTLINES = (
    "SELECT json_group_array(json_array(id, size, held_until_ms))"
    " FROM (SELECT id, size, held_until_ms FROM header WHERE queue = ? AND level = ?"
    f" AND id > ? AND (expires_at IS NULL OR expires_at > ?) AND {_CURRENT} ORDER BY id LIMIT ?)"
)
_READ = (
    'SELECT id, "check", data FROM body'
    " WHERE id IN (SELECT value FROM json_each(?)) AND queue NOT IN (SELECT queue FROM dropped)"
)
_EXPIRED = f"SELECT queue, level, id FROM header WHERE expires_at <= ? AND {_CURRENT} ORDER BY expires_at, id LIMIT ?"
_NEXT_EXPIRY = f"SELECT expires_at FROM header WHERE expires_at > ? AND {_CURRENT} ORDER BY expires_at LIMIT 1"
_LEVELS = (
    "SELECT queue, level, count(*), sum(size), min(id), max(id), queue IN (SELECT queue FROM dropped)"
    " FROM header WHERE NOT (transient = 1 AND id < ?) GROUP BY queue, level"
)
_STALE = "SELECT count(*), total(size) FROM header WHERE transient = 1 AND id < ?"
_DEFINITIONS = "SELECT kind, key, document FROM definition ORDER BY place"


class SqliteReader:
    """Answers from committed rows, for any number of threads."""

    def __init__(self, file: Path, first_id: int) -> None:
        self._file = file
        self._first_id = first_id  # transient messages below are of an earlier opening: gone
        self._lock = Lock()
        self._idle: list[sqlite3.Connection] = []
        self._is_closed = False
        self.file_reads: int = 0  # about; of bodies in files
        self._give_back(self._open())

    def page(self, queue: int, after: int, limit: int, level: int, held_before_ms: int) -> list[Header]:
        rows = self._ask(_PAGE, (queue, level, after, held_before_ms, self._first_id, limit))
        return self._headers(f"queue {queue}, level {level},", rows)

    def held(self, queue: int, after: Moment, limit: int) -> list[tuple[int, Header]]:
        rows = self._ask(_HELD, (queue, *after, self._first_id, limit))
        return [(row[7], header) for row, header in zip(rows, self._headers(f"queue {queue}", rows), strict=True)]

    def held_after(self, queue: int, moment_ms: int) -> list[Held]:
        return [Held._make(row) for row in self._ask(_HELD_AFTER, (queue, moment_ms, self._first_id))]

    def _headers(self, place: str, rows: Sequence[Any]) -> list[Header]:
        if not are_numbers(rows, 0, 1, 3):
            raise self._damage(f"a header of {place} has something else for a number")
        for row in rows:
            if type(row[4]) is not bytes or check(row[0], row[4]) != row[6]:
                raise self._damage(f"the properties of message {row[0]} are not those that were stored")
            if row[5] is not None and type(row[5]) is not int:
                raise self._damage(f"message {row[0]} has something else for a number")
        return [Header._make(row[:6]) for row in rows]

    def outlines(self, queue: int, after: int, limit: int, now: float, level: int) -> list[Outline]:
        # One row: sqlite3 lets go of the interpreter's lock with each, and gets it back when others are done.
        ((found,),) = self._ask(_OUTLINES, (queue, level, after, now, self._first_id, limit))
        rows = [Outline(*row) for row in json.loads(found)]
        if not are_numbers(rows, 0, 1):
            raise self._damage(f"a header of queue {queue}, level {level}, has something else for a number")
        return rows

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        rows: dict[int, tuple[int, int]] = {}
        for message_id, expected, data in self._ask(_READ, (json.dumps(list(ids)),)):
            if type(data) is int:
                rows[message_id] = owner_of(message_id, expected), data
            elif type(data) is bytes and check(message_id, data) == expected:
                found[message_id] = data
            else:
                raise self._damage(f"the body of message {message_id} is not the one that was stored")
        if rows:
            found.update(self._read_from_files(rows))
        return found

    def _read_from_files(self, rows: dict[int, tuple[int, int]]) -> dict[int, bytes]:
        """The bodies of messages, by the id in the record and the place of each."""
        found: dict[int, bytes] = {}
        self.file_reads += 1
        tries = 0
        while True:
            try:
                read, gone = read_bodies(self._file.parent, dict(rows.values()))
            except BodyDamaged as error:
                raise self._damage(str(error)) from None
            except OSError as error:
                tries += 1
                if error.errno in TOO_MANY_OPEN and tries < _MOST_TRIES:
                    time.sleep(_PAUSE)
                    continue
                raise StoreFailed(f"{error.filename or self._file} cannot be read: {error.strerror}") from error
            found.update({one: read[owner] for one, (owner, _) in rows.items() if owner in read})
            if not gone:
                return found
            # Their file was emptied since their rows were read: the messages are gone, or their bodies were moved.
            left = json.dumps([one for one, (owner, _) in rows.items() if owner not in read])
            now = {one: (owner_of(one, expected), place) for one, expected, place in self._ask(_READ, (left,))}
            for message_id, row in now.items():
                if row == rows[message_id]:
                    raise self._damage(f"the file that has the body of message {message_id} is missing")
            rows = now

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]:
        return self._ask(_EXPIRED, (now, self._first_id, limit))

    def next_expiry(self, now: float) -> float | None:
        return next((when for (when,) in self._ask(_NEXT_EXPIRY, (now, self._first_id))), None)

    def levels(self) -> list[Level]:
        return [Level._make(row[:6]) for row in self._level_rows() if not row[6]]

    def census(self) -> tuple[list[Level], int, int]:
        """The levels, and how many messages with how many bytes the file has, those still to be removed included."""
        rows = self._level_rows()
        ((stale, stale_bytes),) = self._ask(_STALE, (self._first_id,))
        messages = stale + sum(row[2] for row in rows)
        size = int(stale_bytes) + sum(row[3] for row in rows)
        return [Level._make(row[:6]) for row in rows if not row[6]], messages, size

    def definitions(self) -> list[Definition]:
        return [Definition._make(row) for row in self._ask(_DEFINITIONS, ())]

    def free_pages(self) -> int:
        return int(self._ask("PRAGMA freelist_count", ())[0][0])

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _level_rows(self) -> list[Any]:
        rows = self._ask(_LEVELS, (self._first_id,))
        if not are_numbers(rows, 0, 1, 3, 4, 5):
            raise self._damage("headers have something else where queue, level, id or size should be")
        return rows

    def _ask(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        connection = self._borrow()
        try:
            return connection.execute(statement, values).fetchall()
        except DAMAGE as error:
            raise unreadable(self._file, error) from error
        finally:
            self._give_back(connection)

    def _open(self) -> sqlite3.Connection:
        return connect(self._file, read_only=True, cache_bytes=_CACHE_BYTES)

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return self._open()
        except DAMAGE as error:
            raise unreadable(self._file, error) from error

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _damage(self, what: str) -> StoreDamaged:
        return StoreDamaged(f"{str(self._file)!r} is damaged: {what}; `multiqueue store check` looks for more")


_DAMAGED = (1, 11, 26)  # SQLITE_CORRUPT, SQLITE_NOTADB; SQLITE_ERROR: a table is gone, for the statements are right


def unreadable(file: Path, error: Exception, *, is_closed: bool = False) -> StoreError:
    """The error for readers and openers when SQLite cannot read the file. `is_closed`: no connection to it is open."""
    is_text = "decode" in str(error)  # text that is none; sqlite3 gives no code for that
    if is_text or (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _DAMAGED:
        more = shortfall(file) if is_closed else ""
        return StoreDamaged(f"{str(file)!r} is damaged: {error}{more}; `multiqueue store dump` saves the readable part")
    return StoreFailed(f"{str(file)!r} cannot be read: {error}; repair the disk and open the store again")


def shortfall(file: Path) -> str:
    """The fault that the file's own header shows, if it does.

    Only while no connection is open: closing a file lets go of all locks that the process has on it.
    """
    try:
        with file.open("rb") as opened:
            header = opened.read(100)
        actual = file.stat().st_size
    except OSError as error:
        return f" ({error.strerror})"
    if not header.startswith(b"SQLite format 3\0"):
        return " (it does not begin as an SQLite file)"
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    expected = pages * (65536 if page == 1 else page)
    return f" (it has {actual} bytes, and its header says {expected})" if actual < expected else ""
