"""The write-ahead log at the edges of a store's life: made certain before it is trusted, left alone after a failure.

Promise     What the next opening finds in the log is on the disk before anything is built on it.
            After a sync that failed, Linux takes the unsynced pages for clean: the page cache has it, the disk
            may not, and no later sync tries again. The next opening then reads commits in the log that the
            disk does not have. To copy them into the file, and lose power in the middle, would leave half of a
            commit there and no log to undo it. So the log is written once more, where it stands, and synced.
State       The file `-wal`, or another. The functions are called while no other process has the store.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from ._schema import connect

_BLOCK = 1 << 20


def renew_log(file: Path) -> None:
    """Write the log of an SQLite file over itself and sync it, if there is one.

    Raises:
        OSError: the disk failed.
    """
    log = file.with_name(file.name + "-wal")
    if log.exists():
        renew(log)


def renew(file: Path) -> None:
    """Write a file over itself and sync it.

    A crash in between is harmless: each byte stays the same, on the disk or in the page cache.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        place = 0
        while True:
            block = os.pread(descriptor, _BLOCK, place)
            if not block:
                break
            place += os.pwrite(descriptor, block, place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def close_leaving_log(connection: sqlite3.Connection, file: Path) -> None:
    """Close a connection so that SQLite does not copy the log into the file, as the last one that can write would."""
    keep_log = getattr(sqlite3, "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE", None)
    if keep_log is not None:  # from 3.12 on; without the GIL a connection is closed when its last statement ends
        connection.setconfig(keep_log, True)  # type: ignore[attr-defined,unused-ignore]
        connection.close()
        return
    witness = None
    try:
        witness = connect(file, read_only=True, cache_bytes=0)
        witness.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.Error:
        pass  # then the file cannot be read, and SQLite will not copy anything into it
    connection.close()
    if witness is not None:
        witness.close()
