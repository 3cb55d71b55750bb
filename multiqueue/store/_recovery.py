"""The log that a crash left, and the bodies beside it, held to each other before anything is built on them.

Promise     What is opened has whole commits: the last one, whose rows a power loss may have kept without their bodies,
            is taken out of the log if it lacks one. At `sync` nobody was told of it. At `relaxed`, where neither file
            was synced, the latest ones are, from the first on that lacks bodies: they are undone in order. What the
            mark calls confirmed stays, and what was copied into the file, for bodies are synced before that. Where
            none of that helps, the log stays as it was, for then the bodies are damaged.
State       The files, while no other process has the store. A log's frame whose header is zero ends the log. A crash
            while an end is tried leaves that end: at `relaxed` more is undone than need be, of the latest. The two
            newest files of bodies alone have bytes that may not be on the disk (`_bodies.py`); they are made certain as
            the log is (`_log.py`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from ._bodies import BodyDamaged, body_file, newest_files, owner_of, places_of, read_bodies
from ._confirmed import FRAME_HEADER, LogIndex, checked_log, confirmed_pages, frame_offset, was_synced
from ._log import close_leaving_log, renew, renew_log
from ._schema import PAGE_BYTES, check_format, connect

_log = logging.getLogger("multiqueue.store")

_BODIES_FROM = (
    'SELECT min(body.id), body."check", data FROM body JOIN header USING (queue, level, id)'
    " WHERE typeof(data) = 'integer' AND data >= ? AND transient = 0 GROUP BY data"
)


class _Opened(NamedTuple):
    connection: sqlite3.Connection
    log: LogIndex | None
    lacks_bodies: bool  # though not all of its commits are confirmed

    def close(self, file: Path) -> None:
        close_leaving_log(self.connection, file)
        if self.log is not None:
            self.log.close()


class _LogEnd:
    """A log that can be ended behind any of its commits, while nobody has it open."""

    def __init__(self, log: int) -> None:
        self._log = log
        self._place = 0
        self._header = b""  # that was there

    def move(self, pages: int | None) -> None:
        """Have it end behind so many pages, or where it did."""
        os.pwrite(self._log, self._header, self._place)
        self._header = b""
        if pages is not None:
            self._place = frame_offset(pages)
            self._header = os.pread(self._log, FRAME_HEADER.size, self._place)
            os.pwrite(self._log, bytes(FRAME_HEADER.size), self._place)


def open_whole(file: Path, *, cache_bytes: int, statements: int) -> tuple[sqlite3.Connection, LogIndex | None]:
    """A connection to a store's file, locked by this process, and what SQLite knows of its log, if there is one.

    Raises:
        StoreDamaged: the log lacks commits that were confirmed. sqlite3.Error, OSError: it cannot be opened.
    """
    renew_log(file)
    newest = newest_files(file.parent)
    for number in newest if os.path.exists(f"{file}-wal") else ():
        renew(body_file(file.parent, number))
    opened = _open(file, newest, cache_bytes, statements)
    if opened.log is None or not opened.lacks_bodies:
        return opened.connection, opened.log
    pages, confirmed = opened.log.pages()[0], confirmed_pages(file, opened.log)
    opened.close(file)
    ends = _ends(file, pages, confirmed)[-2 if was_synced(file.parent) else 0 : -1]

    def lacks_bodies(end: int) -> bool:
        log_end.move(end)
        try:
            tried = _open(file, newest, cache_bytes, statements)
        except sqlite3.DatabaseError:
            return True  # a checkpoint was cut off
        tried.close(file)
        return tried.lacks_bodies

    with open(f"{file}-wal", "r+b", buffering=0) as log:
        log_end = _LogEnd(log.fileno())
        try:
            whole = bisect_right(ends, False, key=lacks_bodies)
        except BaseException:
            log_end.move(None)
            raise
        log_end.move(ends[whole - 1] if whole else None)
        os.fsync(log.fileno())
    if whole:
        undone = len(ends) - whole + 1
        _log.warning("%s: a power loss took the bodies of the latest commits, and %d commits are undone", file, undone)
    return _open(file, None, cache_bytes, statements)[:2]


def _open(file: Path, newest: list[int] | None, cache_bytes: int, statements: int) -> _Opened:
    """Open the store; if the newest files are given, look whether commits lack bodies in these or later ones."""
    connection = connect(file, cache_bytes=cache_bytes, statements=statements)
    log = None
    try:
        log = checked_log(connection, file)
        if log is None or newest is None or log.pages()[0] == confirmed_pages(file, log):
            return _Opened(connection, log, lacks_bodies=False)
        return _Opened(connection, log, _lacks_bodies(connection, file, newest[0] if newest else 0))
    except BaseException:
        close_leaving_log(connection, file)
        if log is not None:
            log.close()
        raise


def _ends(file: Path, pages: int, confirmed: int) -> list[int]:
    """Behind how many of its pages the log may end, for no commit behind them is confirmed or in the file."""
    ends, least = [0], confirmed
    differing: set[int] = set()  # pages that the file has otherwise than the log until here
    with open(f"{file}-wal", "rb") as log, open(file, "rb") as copied:
        for frame in range(pages):
            place = frame_offset(frame)
            number, size = FRAME_HEADER.unpack(os.pread(log.fileno(), FRAME_HEADER.size, place))
            page = os.pread(log.fileno(), PAGE_BYTES, place + FRAME_HEADER.size)
            if page == os.pread(copied.fileno(), PAGE_BYTES, (number - 1) * PAGE_BYTES):
                differing.discard(number)
            else:
                differing.add(number)
            if size:
                ends.append(frame + 1)
                least = least if differing else frame + 1
    return [end for end in ends if end >= least]


def _lacks_bodies(connection: sqlite3.Connection, file: Path, first: int) -> bool:
    """Whether a persistent message's body is not in this file, or in a later one."""
    if check_format(connection, file) == 0:
        return False
    for message_id, check, place in connection.execute(_BODIES_FROM, (places_of(first)[0],)).fetchall():
        try:
            _, gone = read_bodies(file.parent, {owner_of(message_id, check): place})
        except BodyDamaged:
            return True
        if gone:
            return True
    return False
