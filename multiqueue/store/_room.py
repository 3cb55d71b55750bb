"""The room that a store has: its log and its file, the quota, and the reserve for a full disk.

Promise     On a full disk, or at the quota, messages can still be removed: the reserve is given up for that, the log is
            copied into the file and cut off, and free pages are given back until the reserve can be had again.
            Until then the store is tight, and takes nothing that makes it grow.
            Few commits write beyond the end of the log's file: zeros are there before they come.
            Commits are marked, so that a damaged log is noticed (`_confirmed.py`).
State       The writer thread's own, but `syncs`, which others read. `is_tight`: the reserve was given up.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ._batch import Submission, size_of
from ._bodies import TOO_MANY_OPEN, Bodies
from ._confirmed import LogIndex, Mark
from ._errors import StoreFull
from ._schema import PAGE_BYTES
from ._space_reserve import SpaceReserve

FULL = 13  # SQLite's primary result code
_NOT_WRITTEN = 778  # SQLITE_IOERR_WRITE
_STEP_PAGES = 64  # a step of giving pages back: 512 KiB, a millisecond
_TIGHT_STEP_PAGES = 256  # and while the disk is full
_LOG_STEPS = 16  # of so many steps the log is made: 512 KiB each, some ten commits of few messages
_ZEROS = bytes(64 << 10)  # few and used again: pages of memory that are new cost more than to write them
_VACUUM_BYTES = 64 << 20  # less free space than this is kept for what comes
_NO_LIMIT = 0xFFFFFFFE  # pages, SQLite's own maximum


def code(error: BaseException | None) -> int:
    """SQLite's primary result code, also of a file of bodies that found no room; 0 if it is from neither."""
    if isinstance(error, OSError):
        return FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 0
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


class Room:
    """The room of one store on disk."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        file: Path,
        reserve: SpaceReserve,
        log: LogIndex,
        mark: Mark,
        bodies: Bodies,
        *,
        quota_bytes: int | None,
        log_bytes: int,
    ) -> None:
        self._connection = connection
        self._file = file
        self._reserve = reserve
        self._log = log
        self._mark = mark
        self._bodies = bodies
        self._quota_bytes = quota_bytes
        self._most_pages = _NO_LIMIT  # the limit that SQLite has
        self._log_bytes = log_bytes
        self._log_file = f"{file}-wal"
        self._log_step_bytes = log_bytes // _LOG_STEPS  # 0 once the disk had no room for one
        self.is_tight = not reserve.take()
        self.syncs = 0  # of checkpoints
        # Called before each, for none may sync anew a log whose sync has failed: that would succeed.
        self.settle: Callable[[], object] = lambda: None
        self.limit()

    def close(self) -> None:
        """Let go, after SQLite did."""
        self._mark.close()
        self._log.close()

    # The quota

    def limit(self) -> None:
        """Hold the file to what its quota has beside the files of bodies."""
        if self._quota_bytes is not None:
            self._most_pages = max(1, (self._quota_bytes - self._bodies.disk_bytes) // PAGE_BYTES)
            self._set_most_pages(self._most_pages)
            self._bodies.most_bytes = self._quota_bytes - self._pragma("page_count") * PAGE_BYTES

    def unlimit(self) -> None:
        """Let the file grow beyond its quota: a removal may need a page."""
        self._set_most_pages(_NO_LIMIT)

    def is_at_quota(self, submissions: Sequence[Submission]) -> bool:
        """Whether it is the quota that is too small for these, and not the disk."""
        if self._quota_bytes is None:
            return False
        wanted = sum([size_of(submission.operations)[0] for submission in submissions])
        free = self._most_pages - self._used_pages()
        return free * PAGE_BYTES < 2 * wanted + 64 * PAGE_BYTES

    def refusal(self, messages: int) -> StoreFull:
        """The error for a submission that there is no room for."""
        if self.is_tight:
            return StoreFull(
                f"the disk under {str(self._file)!r} is full; messages can still be consumed; free some space on it,"
                f" more than the {self._reserve.size} bytes that are held back for that"
            )
        return StoreFull(
            f"{str(self._file)!r} is full: {messages} messages stand in its quota of {self._quota_bytes} bytes; "
            "consume some, or raise quota_bytes"
        )

    @property
    def is_short(self) -> bool:
        """Whether the free pages of the files are needed soon."""
        is_near = self._quota_bytes is not None and 4 * self._bodies.disk_bytes > 3 * self._bodies.most_bytes
        return self.is_tight or is_near or self._bodies.lacks_room

    # The disk

    def become_tight(self) -> None:
        """The disk is full: give up the reserve, copy the log into the file and cut it off."""
        self._give_all_up()
        self._bodies.lacks_room = True
        self.checkpoint("TRUNCATE")

    def _give_all_up(self) -> None:
        self.is_tight = True
        self._bodies.drop_spares()
        self._reserve.drop()

    def regain(self) -> None:
        """Try to have the reserve again, giving free pages back for it."""
        self.is_tight = not self._reserve.take()
        if self.is_tight and self._pragma("freelist_count"):
            try:
                self.give_back()
            except sqlite3.OperationalError as error:
                if code(self.reason(error)) != FULL:
                    raise
            self.is_tight = not self._reserve.take()

    def reason(self, error: Exception) -> Exception:
        """The error; or that a user's quota has no room, of which SQLite says only that a write failed."""
        if getattr(error, "sqlite_errorcode", 0) != _NOT_WRITTEN:
            return error
        try:
            with tempfile.TemporaryFile(dir=self._file.parent) as probe:
                probe.write(_ZEROS)
        except OSError as full:
            return full if code(full) == FULL else error
        return error

    def give_up(self) -> None:
        """The end: the reserve is needed no longer, and the quota does not hold for the last words."""
        self._reserve.drop()
        self.unlimit()

    def is_worth_giving_back(self) -> bool:
        """Whether there is more free space in the file than is good to have at hand."""
        free = self._pragma("freelist_count")
        return free * PAGE_BYTES > _VACUUM_BYTES and 4 * free > self._pragma("page_count")

    def give_back(self) -> None:
        """Give some free pages of the file back to the disk."""
        pages = _TIGHT_STEP_PAGES if self.is_tight else _STEP_PAGES
        self._connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        if self.is_tight:
            self.checkpoint("TRUNCATE")  # only now the file is shorter

    # The log

    def shorten_log(self) -> None:
        """Copy a long log into the file. The next commit then begins it anew, unless a reader is in the way."""
        length, copied = self._log.pages()
        if (length - copied) * PAGE_BYTES > self._log_bytes:
            self.checkpoint("PASSIVE")
        elif length * PAGE_BYTES > 4 * self._log_bytes:
            self.checkpoint("TRUNCATE")

    def lengthen_log(self) -> bool:
        """Write zeros where the log goes next, for the next commit to sync; False when there are enough.

        The sync of a file that grew waits for the file system's own log too, and so for all that others write.
        """
        if self.is_tight or self._has_zeros():
            return False
        try:
            descriptor = os.open(self._log_file, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in TOO_MANY_OPEN:
                raise
            return False
        # Another program's writer, an operator's perhaps, would grow the file between the look and the zeros.
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._write_zeros(descriptor)
            finally:
                self._connection.execute("ROLLBACK")
        finally:
            os.close(descriptor)
        return True

    def _has_zeros(self) -> bool:
        return os.stat(self._log_file).st_size >= self._log.pages()[0] * PAGE_BYTES + self._log_step_bytes

    def _write_zeros(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        try:
            for start in range(0, self._log_step_bytes, len(_ZEROS)):
                os.pwrite(descriptor, _ZEROS[: self._log_step_bytes - start], size + start)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(descriptor, size)
            self._log_step_bytes = 0

    def has_news_in_log(self) -> bool:
        """Whether the log has something that the file has not."""
        length, copied = self._log.pages()
        return copied < length

    def confirm(self) -> None:
        """All commits until now are about to be confirmed."""
        self._mark.note(self._log)

    def checkpoint(self, mode: str) -> None:
        """Copy the log into the file. Where the disk has no room for that, give up the reserve and try once more."""
        self.settle()
        self._bodies.settle()
        if mode != "PASSIVE":
            self._mark.clear()
        for _ in range(2):
            try:
                self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            except sqlite3.OperationalError as error:
                if code(self.reason(error)) != FULL:
                    raise
                self._give_all_up()
            else:
                self.syncs += 2  # the log, then the file
                return

    def _used_pages(self) -> int:
        return self._pragma("page_count") - self._pragma("freelist_count")

    def _set_most_pages(self, pages: int) -> None:
        self._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])
