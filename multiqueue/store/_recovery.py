"""The log that a crash left, and the bodies beside it, held to each other before anything is built on them.

Promise     What is opened has whole commits: the last one, whose rows a power loss may have kept without their bodies,
            is taken out of the log if it lacks one. At `sync` nobody was told of it. At `relaxed`, where neither file
            was synced, the last ones are, as many as lack bodies: the latest commits are undone, in order. Where that
            does not help, the log stays as it was, for then the bodies are damaged.
State       The files, while no other process has the store. A log's frame whose header is zero ends the log. The newest
            file of bodies is the only one with bytes that may not be on the disk (`_bodies.py`); they are made certain
            as the log is (`_log.py`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

from ._bodies import BodyDamaged, body_file, newest_file, owner_of, places_of, read_bodies
from ._confirmed import FRAME_HEADER, LogIndex, checked_log, confirmed_pages, frame_offset, was_synced
from ._log import close_leaving_log, renew, renew_log
from ._schema import check_format, connect

_log = logging.getLogger("multiqueue.store")

_BODIES_FROM = (
    'SELECT min(body.id), body."check", data FROM body JOIN header USING (queue, level, id)'
    " WHERE typeof(data) = 'integer' AND data >= ? AND transient = 0 GROUP BY data"
)


def open_whole(file: Path, *, cache_bytes: int, statements: int) -> tuple[sqlite3.Connection, LogIndex | None]:
    """A connection to a store's file, locked by this process, and what SQLite knows of its log, if there is one.

    Raises:
        StoreDamaged: the log lacks commits that were confirmed. sqlite3.Error, OSError: it cannot be opened.
    """
    renew_log(file)
    newest = newest_file(file.parent)
    if newest is not None and os.path.exists(f"{file}-wal"):
        renew(body_file(file.parent, newest))
    headers: list[tuple[int, bytes]] = []  # that were taken out of the log: places and bytes
    most = 1 if was_synced(file.parent) else None
    while True:
        connection = connect(file, cache_bytes=cache_bytes, statements=statements)
        log = None
        try:
            log = checked_log(connection, file)
            if log is None or newest is None:
                return connection, log
            pages = log.pages()[0]
            can_drop = pages > confirmed_pages(file, log) and len(headers) != most
            if not (can_drop or headers) or not _lacks_bodies(connection, file, newest):
                break
        except BaseException:
            close_leaving_log(connection, file)
            if log is not None:
                log.close()
            raise
        close_leaving_log(connection, file)
        log.close()
        with open(f"{file}-wal", "r+b", buffering=0) as opened:
            if can_drop:
                headers.append(_drop_last(opened.fileno(), pages))
            else:
                for place, header in headers:
                    os.pwrite(opened.fileno(), header, place)
                headers, most = [], 0
            os.fsync(opened.fileno())
    if headers:
        _log.warning(
            "%s: a power loss took the bodies of the latest commits, and %d commits are undone", file, len(headers)
        )
    return connection, log


def _lacks_bodies(connection: sqlite3.Connection, file: Path, newest: int) -> bool:
    """Whether a persistent message's body is not in the newest file, or in a later one."""
    if check_format(connection, file) == 0:
        return False
    for message_id, check, place in connection.execute(_BODIES_FROM, (places_of(newest)[0],)).fetchall():
        try:
            _, gone = read_bodies(file.parent, {owner_of(message_id, check): place})
        except BodyDamaged:
            return True
        if gone:
            return True
    return False


def _drop_last(log: int, pages: int) -> tuple[int, bytes]:
    """End the log, of so many pages, behind the commit before its last one; what was there, and where."""
    first = pages - 1
    while first and not FRAME_HEADER.unpack(os.pread(log, FRAME_HEADER.size, frame_offset(first - 1)))[0]:
        first -= 1
    place = frame_offset(first)
    header = os.pread(log, FRAME_HEADER.size, place)
    os.pwrite(log, bytes(FRAME_HEADER.size), place)
    return place, header
