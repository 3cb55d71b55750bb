"""The tables of a store, how a file of an earlier format becomes one of this format, and SQLite's settings.

Promise     A file that is no store, or of a later format, is refused and left unchanged. An upgrade is one
            transaction: after a crash in the middle of it the file is unchanged.
State       The file. `application_id` says that it is a store, `user_version` in which format. `meta` has `next_id`
            (no id from there on was ever given), `clean` (1 while the store is closed, by a close) and
            `redeliver_floor`. A message is a row of `header` and one of `body`, in one transaction.
            Headers lie in the order in which they are paged; a body knows its header's place.
            The `data` of a large body is its place in a file of bodies (`_bodies.py`), an integer; its `check` is 0, or
            says whose it is of several messages.
            `check` columns are CRC-32 of the bytes, begun with the id, for SQLite does not notice a flipped bit.
            `dropped` names queues whose messages are still being removed: no reader shows them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from ._errors import OtherFile, StoreDamaged

FORMAT = 4
APPLICATION_ID = 0x6D715331  # "mqS1"
FILE_NAME = "messages.sqlite"

# 8 KiB: against 4 KiB a batch of 1,000 messages of 1 KiB costs a fifth less CPU, against 16 KiB a commit of one
# message writes 26 KB instead of 43 KB (docs/decisions/0701-headers-apart.md).
PAGE_BYTES = 8192

# Of messages that wait for their time, by that; those of one queue are asked for in this order.
_TIMES = "CREATE INDEX header_held ON header (queue, held_until_ms) WHERE held_until_ms IS NOT NULL;"
# Asked at opening and when a file of bodies is written anew; rows of small bodies are not in it.
_PLACES = "CREATE INDEX body_place ON body (data) WHERE typeof(data) = 'integer';"
_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE header (
    queue INTEGER NOT NULL,
    level INTEGER NOT NULL,
    id INTEGER NOT NULL,
    size INTEGER NOT NULL,
    expires_at REAL,
    deliveries INTEGER NOT NULL,
    transient INTEGER NOT NULL,
    "check" INTEGER NOT NULL,
    properties BLOB NOT NULL,
    held_until_ms INTEGER,
    PRIMARY KEY (queue, level, id)
) WITHOUT ROWID;
CREATE INDEX header_expires ON header (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX header_transient ON header (id) WHERE transient = 1;
{_TIMES}
CREATE TABLE body (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    level INTEGER NOT NULL,
    "check" INTEGER NOT NULL,
    data BLOB NOT NULL
);
{_PLACES}
CREATE TABLE definition (
    place INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (kind, key)
);
CREATE TABLE dropped (queue INTEGER PRIMARY KEY);
INSERT INTO meta VALUES ('next_id', 1), ('clean', 1), ('redeliver_floor', 0);
"""

META = ("next_id", "clean", "redeliver_floor")  # the keys of its table

# What a statement raises on a damaged file; the second where SQLite's message quotes what it found there.
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


def _add_times(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE header ADD COLUMN held_until_ms INTEGER")
    connection.execute(_TIMES)


# From a format to the next one. Each is run in a transaction that also writes the new `user_version`.
UPGRADES: Mapping[int, Callable[[sqlite3.Connection], object]] = {
    1: lambda connection: connection.execute(_PLACES),  # it had all bodies in the table
    2: lambda _: None,  # each body was one message's
    3: _add_times,  # until when a message was held stood in its properties, and does
}


def connect(
    file: Path, *, cache_bytes: int, statements: int = 128, read_only: bool = False, even_if_short: bool = False
) -> sqlite3.Connection:
    """A connection to the file, in autocommit mode, for any thread, one at a time.

    `statements` is how many it keeps compiled. `even_if_short`: also where the file is shorter than it says, which
    SQLite else refuses.
    """
    mode = "rwc" if not read_only else "ro&immutable=1" if _is_at_rest(file) else "ro"
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=statements,
        timeout=10,  # readers hold what a checkpoint needs for moments only
    )
    try:
        if even_if_short:
            connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"PRAGMA cache_size = {-(cache_bytes // 1024)}")
        connection.execute("PRAGMA temp_store = MEMORY")  # a full disk must not stop a reader that sorts
    except BaseException:
        connection.close()
        raise
    return connection


def _is_at_rest(file: Path) -> bool:
    """Whether the file is all there is, and SQLite cannot make the index of the log, without which it reads nothing.

    So it is on a file system that is mounted to be read only, such as a snapshot. An open store has its index.
    """
    wal = Path(f"{file}-wal")
    has_log = os.path.exists(f"{file}-shm") or (wal.exists() and wal.stat().st_size > 0)
    return not has_log and not os.access(file.parent, os.W_OK)


def prepare(connection: sqlite3.Connection, file: Path, synchronous: str) -> None:
    """Have SQLite keep its side of the promises, and the tables there in the format of today.

    Raises:
        StoreDamaged: the file is something else, of a later format, or on a file system that cannot hold it.
    """
    version = check_format(connection, file)
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreDamaged(f"{str(file)!r} cannot have a write-ahead log, but {mode!r}; use a local file system")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute("PRAGMA secure_delete = OFF")  # Debian turns it on: twice the log for a delete
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # ours is told of its errors
    if version == 0:
        _create(connection)
        version = FORMAT
    while version < FORMAT:
        _upgrade(connection, version)
        version += 1


def check_format(connection: sqlite3.Connection, file: Path) -> int:
    """The format of the file; 0 for one without tables.

    Raises:
        StoreDamaged: the file is something else, or of a later format.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise OtherFile(f"{str(file)!r} is not a store: its application_id is {application:#x}; name another directory")
    if version > FORMAT:
        raise OtherFile(
            f"{str(file)!r} has format {version}, and this multiqueue knows up to {FORMAT}; use a later multiqueue"
        )
    return int(version)


def are_numbers(rows: Sequence[tuple[Any, ...]], *columns: int) -> bool:
    """Whether these columns are whole numbers in every row: SQLite keeps, and reads, anything in any column."""
    return all({int}.issuperset(map(type, map(itemgetter(column), rows))) for column in columns)


def _create(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
    )


def _upgrade(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    UPGRADES[version](connection)
    connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.execute("COMMIT")
