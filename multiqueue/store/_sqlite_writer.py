"""The writing side of a store on disk: commits, what a full disk does to them, and the work that can wait.

Promise     A batch is one transaction and, at `sync`, one sync of the log. If it finds no room, or one of its
            submissions cannot be stored, it is undone, and its submissions are committed again one by one: those
            that cannot be are refused, alone. Submissions that only remove go on when disk or quota are full.
            Any other error is the end: nothing is tried again on a disk that failed.
State       Everything here is the writer thread's own, but `messages`, `bytes` and the counts, which others
            read.
            `_is_tight` means: the ballast was given up and cannot be had back yet. Nothing that grows is stored.
Waiting     A commit waits for the disk. A checkpoint that must shorten the log waits for readers, who are brief.
Membership  A store that failed is closed without a checkpoint: what the log has is for the next opening, which
            copies it into the file and syncs that before it trusts it.
Source      SQLite's documentation of WAL-mode file format, for the two numbers read from the `-shm` file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from ._ballast import Ballast
from ._dropped import Dropped
from ._errors import StoreError, StoreFailed, StoreFull
from ._group_commit import Submission
from ._plan import DELETE_BODIES, DELETE_HEADERS, SIZES, Plan
from ._protocol import Define, Put
from ._schema import PAGE_BYTES

IDS_RESERVED = 1 << 20  # ids that may be given before the next one is written down
_IDLE_SECONDS = 1.0  # after so long without a commit the log is copied into the file
_STEP_ROWS = 500  # a step of removal: some milliseconds
_STEP_PAGES = 256  # a step of giving pages back: 2 MiB
_VACUUM_BYTES = 64 << 20  # less free space than this is kept for what comes
_NO_LIMIT = 0xFFFFFFFE  # pages, SQLite's own maximum

_FULL, _CONSTRAINT, _TOO_BIG = 13, 19, 18  # primary result codes of SQLite
_CALLERS_MISTAKE = (sqlite3.ProgrammingError, sqlite3.InterfaceError, TypeError, ValueError, OverflowError)


class SqliteWriter:
    """The backend of a `GroupCommit` that keeps messages in an SQLite file."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        file: Path,
        ballast: Ballast,
        *,
        syncs: bool,
        quota_bytes: int | None,
        log_bytes: int,
        first_id: int,
        reserved: int,
        messages: int,
        body_bytes: int,
        let_go: Callable[[bool], object],
    ) -> None:
        self._connection = connection
        self._file = file
        self._ballast = ballast
        self._syncs_commits = syncs
        self._most_pages = _NO_LIMIT if quota_bytes is None else max(1, quota_bytes // PAGE_BYTES)
        self._quota_bytes = quota_bytes
        self._log_bytes = log_bytes
        self._first_id = first_id
        self._reserved = reserved  # Invariant: no id from here on was given, or the next commit writes it down
        self._last_commit = time.monotonic()
        self._is_tight = not ballast.take()
        self._has_finished = False
        self._let_go = let_go
        self._has_stale = True  # transient messages of an earlier opening
        self._set_most_pages(self._most_pages)
        self._shared_memory = os.open(f"{file}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._dropped = Dropped()
        # Queues whose messages are still to be removed: the rows of `dropped`.
        self._to_remove = [queue for (queue,) in connection.execute("SELECT queue FROM dropped").fetchall()]
        self.messages = messages
        self.bytes = body_bytes
        self.commits = 0
        self.syncs = 0

    # What the writer thread calls

    def commit(self, submissions: Sequence[Submission], next_id: int) -> None:
        try:
            self._shorten_log()
            if self._is_tight:
                self._take_ballast_back()
            if self._is_tight or not self._commit_together(submissions, next_id):
                self._commit_apart(submissions, next_id)
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error
        self._last_commit = time.monotonic()

    def rest(self, next_id: int, *, is_idle: bool) -> float | None:
        try:
            if self._is_tight:
                self._take_ballast_back()
            if next_id + IDS_RESERVED // 2 > self._reserved:
                self._transaction([], next_id)
            if self._to_remove or self._has_stale:
                self._remove_some()
                return 0.0
            if not is_idle:
                return 0.0
            return self._tidy()
        except (sqlite3.Error, OSError) as error:
            if _code(error) == _FULL:
                self._be_tight()
                return _IDLE_SECONDS
            raise self._failure(error) from error

    def finish(self, next_id: int) -> None:
        """Note that the end was clean. Where there is no room for that, the end was a crash: nothing is lost."""
        try:
            self._set_most_pages(_NO_LIMIT)
            self._ballast.drop()
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("UPDATE meta SET value = ? WHERE key = 'next_id'", (next_id,))
            self._connection.execute("UPDATE meta SET value = 1 WHERE key = 'clean'")
            self._connection.execute("COMMIT")
            self._checkpoint("TRUNCATE")
            self._has_finished = True
        except (sqlite3.Error, OSError) as error:
            if _code(error) != _FULL:
                raise self._failure(error) from error

    def let_go(self) -> None:
        self._let_go(self._has_finished)
        os.close(self._shared_memory)  # after SQLite: closing a file lets go of all locks that the process has on it

    # Commits

    def _commit_together(self, submissions: Sequence[Submission], next_id: int) -> bool:
        """Commit them in one transaction; False when it was undone because something in it must be refused."""
        error = self._attempt(submissions, next_id)
        if _code(error) == _FULL and not self._is_at_quota(submissions):
            self._be_tight()
        return error is None

    def _commit_apart(self, submissions: Sequence[Submission], next_id: int) -> None:
        """Commit each one that grows by itself, and those between them that only remove together."""
        for grows, group in groupby(submissions, key=_grows):
            for some in ([one] for one in group) if grows else [list(group)]:
                reason = self._try(some, next_id, grows=grows)
                for submission in some:
                    submission.error = reason

    def _try(self, submissions: Sequence[Submission], next_id: int, *, grows: bool) -> StoreError | None:
        """Commit some submissions, or say why not. The quota does not hold for those that only remove."""
        if grows and self._is_tight:
            return self._no_room()
        self._set_most_pages(self._most_pages if grows else _NO_LIMIT)
        try:
            error = self._attempt(submissions, next_id)
            if _code(error) == _FULL and not (grows and self._is_at_quota(submissions)):
                self._be_tight()
                error = error if grows else self._attempt(submissions, next_id)
            if self._is_tight and error is None:
                self._checkpoint("TRUNCATE")
        finally:
            self._set_most_pages(self._most_pages)
        if error is None:
            return None
        if _code(error) != _FULL:
            return _refused(error, submissions)
        return self._no_room() if self._is_tight else self._no_room_in_quota()

    def _attempt(self, submissions: Sequence[Submission], next_id: int) -> Exception | None:
        """Commit, or undo and give the reason to refuse; raises when the reason is the disk."""
        try:
            self._transaction(submissions, next_id)
        except (sqlite3.Error, *_CALLERS_MISTAKE) as error:
            self._undo()
            if not _is_refusal(error):
                raise
            return error
        return None

    def _transaction(self, submissions: Sequence[Submission], next_id: int) -> None:
        plan = Plan(self._dropped)
        reserved = self._reserved
        self._connection.execute("BEGIN IMMEDIATE")
        plan.run(self._connection, (one for submission in submissions for one in submission.operations))
        if next_id + IDS_RESERVED // 2 > reserved:
            reserved = next_id + IDS_RESERVED
            self._connection.execute("UPDATE meta SET value = ? WHERE key = 'next_id'", (reserved,))
        self._connection.execute("COMMIT")
        self._reserved = reserved
        for queue in plan.drops:
            self._dropped.add(queue)
            self._to_remove.append(queue)
        self.messages += plan.messages
        self.bytes += plan.bytes
        self.commits += 1
        self.syncs += self._syncs_commits

    def _undo(self) -> None:
        if self._connection.in_transaction:  # SQLite undoes some of its errors itself
            self._connection.execute("ROLLBACK")

    # Room

    def _be_tight(self) -> None:
        """The disk is full: give up the ballast, and let the log go into the file."""
        self._is_tight = True
        self._ballast.drop()
        self._checkpoint("TRUNCATE")

    def _take_ballast_back(self) -> None:
        self._is_tight = not self._ballast.take()

    def _is_at_quota(self, submissions: Sequence[Submission]) -> bool:
        """Whether it is the quota that is too small for these, and not the disk."""
        if self._most_pages == _NO_LIMIT:
            return False
        wanted = sum(
            len(one.body) + len(one.properties) + 200
            for submission in submissions
            for one in submission.operations
            if isinstance(one, Put)
        )
        free = self._most_pages - self._pragma("page_count") + self._pragma("freelist_count")
        return free * PAGE_BYTES < 2 * wanted + 64 * PAGE_BYTES

    def _no_room(self) -> StoreFull:
        return StoreFull(
            f"the disk under {str(self._file)!r} is full; messages can still be consumed; free some space on it"
        )

    def _no_room_in_quota(self) -> StoreFull:
        return StoreFull(
            f"{str(self._file)!r} is full: {self.messages} messages stand in its quota of {self._quota_bytes} bytes; "
            "consume some, or raise quota_bytes"
        )

    def _set_most_pages(self, pages: int) -> None:
        self._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    # The log, and work that can wait

    def _log_pages(self) -> tuple[int, int]:
        """How many pages the log has, and how many of them are in the file as well."""
        (length,) = struct.unpack("=I", os.pread(self._shared_memory, 4, 16))
        (copied,) = struct.unpack("=I", os.pread(self._shared_memory, 4, 96))
        return length, copied

    def _shorten_log(self) -> None:
        """Copy a long log into the file. The next commit then begins it anew, unless a reader is in the way."""
        length, copied = self._log_pages()
        if (length - copied) * PAGE_BYTES > self._log_bytes:
            self._checkpoint("PASSIVE")
        elif length * PAGE_BYTES > 4 * self._log_bytes:
            self._checkpoint("TRUNCATE")

    def _checkpoint(self, mode: str) -> None:
        """Copy the log into the file. Where the disk has no room for that, give up the ballast and try once more."""
        for _ in range(2):
            try:
                self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            except sqlite3.OperationalError as error:
                if _code(error) != _FULL:
                    raise
                self._is_tight = True
                self._ballast.drop()
            else:
                self.syncs += 2  # the log, then the file
                return

    def _remove_some(self) -> None:
        """Remove a few messages of a queue that was dropped, or of an earlier opening's transient ones."""
        dropped = self._to_remove[-1] if self._to_remove else None
        if dropped is not None:
            rows = self._connection.execute(
                "SELECT id FROM header WHERE queue = ? LIMIT ?", (dropped, _STEP_ROWS)
            ).fetchall()
        else:
            rows = self._connection.execute(
                "SELECT id FROM header WHERE transient = 1 AND id < ? LIMIT ?", (self._first_id, _STEP_ROWS)
            ).fetchall()
        if rows:
            self._remove([one for (one,) in rows])
        elif dropped is None:
            self._has_stale = False
        else:
            self._connection.execute("DELETE FROM dropped WHERE queue = ?", (dropped,))
            self._to_remove.pop()

    def _remove(self, ids: list[int]) -> None:
        listed = json.dumps(ids)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            count, size = self._connection.execute(SIZES, (listed,)).fetchone()
            self._connection.execute(DELETE_HEADERS, (listed,))
            self._connection.execute(DELETE_BODIES, (listed,))
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._undo()
            raise
        self.messages -= count
        self.bytes -= int(size)
        self.syncs += self._syncs_commits

    def _tidy(self) -> float | None:
        """Give free pages back, then copy the log into the file once nothing has come for a while."""
        free = self._pragma("freelist_count")
        if free and (self._is_tight or self._is_worth_giving_back(free)):
            self._connection.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
            if self._is_tight:
                self._checkpoint("TRUNCATE")
            return 0.0
        length, copied = self._log_pages()
        if copied < length:
            left = self._last_commit + _IDLE_SECONDS - time.monotonic()
            if left > 0:
                return left
            self._checkpoint("PASSIVE")
        return _IDLE_SECONDS if self._is_tight else None

    def _is_worth_giving_back(self, free: int) -> bool:
        return free * PAGE_BYTES > _VACUUM_BYTES and 4 * free > self._pragma("page_count")

    def _failure(self, error: Exception) -> StoreFailed:
        return StoreFailed(
            f"{str(self._file)!r} failed: {error}; what was committed is safe: see to the disk and open the store again"
        )


def _grows(submission: Submission) -> bool:
    return any(isinstance(one, Put | Define) for one in submission.operations)


def _code(error: BaseException | None) -> int:
    """SQLite's primary result code, 0 if it is not from there."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _is_refusal(error: BaseException) -> bool:
    """Whether the submission is to blame, or the lack of room, and not the disk."""
    return _code(error) in (_FULL, _CONSTRAINT, _TOO_BIG) or isinstance(error, _CALLERS_MISTAKE)


def _refused(error: BaseException, submissions: Sequence[Submission]) -> StoreError:
    ids = [one.id for submission in submissions for one in submission.operations if isinstance(one, Put)]
    if _code(error) == _CONSTRAINT:
        return StoreError(f"a message is put once, and one of {ids[:5]} is stored already ({error})")
    return StoreError(f"the submission cannot be stored: {error}; nothing of it was")
