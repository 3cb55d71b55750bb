"""The writing side of a store on disk: commits, refusals, and the work that can wait.

Promise     A batch is one transaction and, at `sync`, one sync of the log; none where a power loss may undo it: where
            only transient messages come and go. The next sync is for all that the log has then. If a batch finds no
            room, or one of its submissions cannot be stored, it is undone, and its submissions are committed again one
            by one: those that cannot be are refused, alone. Submissions that only remove go on when disk or quota are
            full. Any other error is the end: nothing is tried again on a disk that failed. A file that was removed or
            replaced is the end too (`_presence.py`); where it is the log alone, it is copied into the file first.
Ahead       SQLite syncs no commit; `_settle` syncs its log and the bodies at once. A batch may be written while the
            commit before is synced, and so may work that can wait; either is committed after that: of the log, one
            commit at most may lack its bodies.
State       Everything here is the writer thread's own, but `messages`, `bytes` and the counts, which others read.
Waiting     A commit waits for the disk. A checkpoint that must shorten the log waits for readers, who are brief.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, groupby
from pathlib import Path

from ._batch import Submission
from ._bodies import Bodies, BodyDamaged, owner_of, places_of, read_bodies
from ._dropped import Dropped
from ._errors import StoreError, StoreFailed
from ._plan import Plan, remove
from ._presence import Presence
from ._protocol import Define, Delete, Put
from ._room import FULL, Room, code
from ._sync_beside import SyncBeside

IDS_RESERVED = 1 << 20  # ids that may be given before the next one is written down
_IDLE_SECONDS = 1.0  # after so long without a commit the log is copied into the file
_SPARES_SECONDS = 30.0  # and after so long without large bodies its spare files go
_STEP_ROWS = 100  # a step of removal: a millisecond, and each commit may have to wait for one
_STEP_BYTES = 256 << 10  # of bodies that are moved in a step
_BODIES_OF = (
    "SELECT min(id), \"check\", data FROM body WHERE typeof(data) = 'integer' AND data >= ? AND data < ?"
    " GROUP BY data ORDER BY data LIMIT 32"
)
_MOVE = "UPDATE body SET data = ? WHERE typeof(data) = 'integer' AND data = ?"
# Whether one of these is stored and not transient; the first that is found ends the search.
_ANY_LASTS = (
    "SELECT EXISTS (SELECT 1 FROM body WHERE id IN (SELECT value FROM json_each(?))"
    " AND NOT EXISTS (SELECT 1 FROM header WHERE header.id = body.id AND transient = 1))"
)
_CONSTRAINT, _TOO_BIG = 19, 18  # SQLite's primary result codes
_THERE_ALREADY = (1555, 2067, 2579)  # extended ones: a primary key, a unique value, a rowid
_CALLERS_MISTAKE = (sqlite3.ProgrammingError, sqlite3.InterfaceError, TypeError, ValueError, OverflowError)


class SqliteWriter:
    """The backend of a `GroupCommit` that keeps messages in an SQLite file."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        file: Path,
        room: Room,
        bodies: Bodies,
        *,
        syncs: bool,
        first_id: int,
        messages: int,
        body_bytes: int,
        let_go: Callable[[bool], object],
    ) -> None:
        self._connection = connection
        self._file = file
        self._room = room
        room.settle = self._settle
        self._bodies = bodies
        self._syncs_commits = syncs
        if syncs:
            connection.execute("PRAGMA synchronous = NORMAL")  # commits are synced here
        self._log_sync = SyncBeside()
        self._presence = Presence(file)
        self._lasts = True  # whether a power loss may not undo the transaction in progress
        self._is_unsafe = False  # the last commit is to be synced
        self._first_id = first_id
        self._reserved = first_id + IDS_RESERVED  # Invariant: what a commit stores has ids below this, and so has meta
        self._last_commit = time.monotonic()
        self._let_go = let_go
        self._has_finished = False
        self._has_stale = True  # perhaps there are transient messages of an earlier opening
        self._dropped = Dropped()
        # Queues whose messages are still to be removed: the rows of `dropped`.
        self._to_remove = [queue for (queue,) in connection.execute("SELECT queue FROM dropped").fetchall()]
        self._commit_syncs = 0
        self.messages = messages
        self.bytes = body_bytes
        self.commits = 0

    @property
    def syncs(self) -> int:
        """How often the disk was asked to sync."""
        return self._commit_syncs + self._room.syncs + self._bodies.syncs

    # What the writer thread calls

    @property
    def is_safe(self) -> bool:
        return not self._is_unsafe

    def commit(self, submissions: Sequence[Submission], next_id: int, has_more: Callable[[], bool]) -> None:
        try:
            self._room.shorten_log()
            self._regain()
            if self._room.is_tight or not self._commit_together(submissions, next_id):
                self._commit_apart([part for one in submissions for part in one.parts()], next_id)
            # If all of these were refused, the sync of the batch before still runs: that one is told when it has ended.
            if self._is_unsafe and not self._log_sync.is_running and has_more():
                self._log_sync.begin(self._bodies.log)
            else:
                self._settle()
            self._look()
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error
        self._last_commit = time.monotonic()

    def rest(self, next_id: int, *, is_idle: bool) -> float | None:
        was_tight = self._room.is_tight
        try:
            if is_idle:
                self._settle()
            left = self._work(next_id, is_idle=is_idle)
            if not self._log_sync.is_running:
                self._settle()  # what it has committed
        except (sqlite3.Error, OSError) as error:
            if code(self._room.reason(error)) != FULL:
                raise self._failure(error) from error
            self._undo()
            self._bodies.cut_off()
            self._room.limit()
            if was_tight:
                self._bodies.postpone()
            self._room.become_tight()
            return _IDLE_SECONDS
        return left

    def _work(self, next_id: int, *, is_idle: bool) -> float | None:
        self._regain()
        if next_id + IDS_RESERVED // 2 > self._reserved:
            self._transaction([], next_id)
        if self._syncs_commits and self._room.lengthen_log():
            return 0.0
        if self._to_remove or self._has_stale:
            self._remove_some()
            return 0.0
        sparse = self._bodies.sparse(is_hurried=self._room.is_short)
        if sparse is not None:
            self._move_bodies(sparse)
            return 0.0
        if self._spares_left() <= 0:
            self._bodies.drop_spares()
        return self._tidy() if is_idle else 0.0

    def finish(self, next_id: int) -> None:
        """Note that the end was clean. Where there is no room for that, the end was a crash: nothing is lost."""
        try:
            self._settle()
            self._look(at_once=True)
            self._room.give_up()
            self._begin()
            self._connection.execute("UPDATE meta SET value = ? WHERE key = 'next_id'", (next_id,))
            self._connection.execute("UPDATE meta SET value = 1 WHERE key = 'clean'")
            self._connection.execute("COMMIT")
            self._room.checkpoint("TRUNCATE")
            self._has_finished = True
        except (sqlite3.Error, OSError) as error:
            if code(self._room.reason(error)) != FULL:
                raise self._failure(error) from error

    def let_go(self) -> None:
        with ExitStack() as closing:  # called in the opposite order
            closing.callback(self._room.close)
            closing.callback(self._let_go, self._has_finished)
            closing.callback(self._log_sync.close)
            closing.callback(self._bodies.close, was_clean=self._has_finished)  # while the directory is locked

    # Commits

    def _commit_together(self, submissions: Sequence[Submission], next_id: int) -> bool:
        """Commit them in one transaction; False when it was undone because something in it must be refused."""
        error = self._attempt(submissions, next_id)
        if code(error) == FULL and not self._room.is_at_quota(submissions):
            self._room.become_tight()
        return error is None

    def _commit_apart(self, submissions: Sequence[Submission], next_id: int) -> None:
        """Commit each one that grows by itself, and those between them that only remove together."""
        for grows, group in groupby(submissions, key=_grows):
            if grows:
                for submission in group:
                    submission.error = self._try_growing(submission, next_id)
            else:
                self._commit_removals(list(group), next_id)

    def _commit_removals(self, submissions: Sequence[Submission], next_id: int) -> None:
        """Commit them together, or one by one: to remove many messages at once takes room too, in the log."""
        if self._try_removing(submissions, next_id) is not None:
            for submission in submissions:
                submission.error = self._try_removing([submission], next_id)

    def _try_growing(self, submission: Submission, next_id: int) -> StoreError | None:
        """Commit a submission, or say why not."""
        self._regain()
        if self._room.is_tight:
            return self._room.refusal(self.messages)
        self._room.limit()  # files of bodies may have gone since the last commit
        error = self._attempt([submission], next_id)
        if code(error) == FULL:
            if not self._room.is_at_quota([submission]):
                self._room.become_tight()
            return self._room.refusal(self.messages)
        return None if error is None else _refusal(error, submission)

    def _try_removing(self, submissions: Sequence[Submission], next_id: int) -> StoreError | None:
        """Commit submissions that only remove, beyond the quota if need be, or say why not even they can be."""
        self._room.unlimit()
        try:
            error = self._attempt(submissions, next_id)
            if code(error) == FULL:
                self._room.become_tight()
                error = self._attempt(submissions, next_id)
            elif self._room.is_tight:
                self._room.checkpoint("TRUNCATE")
        finally:
            self._room.limit()
        if code(error) == FULL:
            return self._room.refusal(self.messages)
        return None if error is None else _refusal(error, *submissions)

    def _attempt(self, submissions: Sequence[Submission], next_id: int) -> Exception | None:
        """Commit, or undo and give the reason to refuse; raises when the reason is the disk."""
        try:
            self._transaction(submissions, next_id)
        except (sqlite3.Error, OSError, *_CALLERS_MISTAKE) as error:
            self._undo()
            reason = self._room.reason(error)
            if code(reason) not in (FULL, _CONSTRAINT, _TOO_BIG) and not isinstance(error, _CALLERS_MISTAKE):
                raise
            self._bodies.cut_off()
            return reason
        return None

    def _transaction(self, submissions: Sequence[Submission], next_id: int) -> None:
        plan = Plan(self._dropped, self._bodies)
        reserved = self._reserved
        self._begin(lasts=next_id + IDS_RESERVED // 2 > reserved or self._last(submissions))
        plan.run(self._connection, chain.from_iterable([submission.operations for submission in submissions]))
        if next_id + IDS_RESERVED // 2 > reserved:
            reserved = next_id + IDS_RESERVED
            self._connection.execute("UPDATE meta SET value = ? WHERE key = 'next_id'", (reserved,))
        self._end_transaction()
        self._reserved = reserved
        for queue in plan.drops:
            self._dropped.add(queue)
            self._to_remove.append(queue)
        self.messages += plan.messages
        self.bytes += plan.bytes
        self.commits += 1

    def _last(self, submissions: Sequence[Submission]) -> bool:
        """Whether a power loss may not undo these, for something other than transient messages comes or goes."""
        gone: list[int] = []
        for submission in submissions:
            for one in submission.operations:
                if type(one) is Delete:
                    gone += one.ids
                elif type(one) is not Put or not one.transient:
                    return True
        ask = self._connection.execute
        return any(ask(_ANY_LASTS, (json.dumps(some),)).fetchone()[0] for some in (gone[:1], gone[1:]) if some)

    def _begin(self, *, lasts: bool = True) -> None:
        self._lasts = lasts
        self._connection.execute("BEGIN IMMEDIATE")

    def _end_transaction(self) -> None:
        """Commit, when the commit before is on the disk: a power loss leaves one at most that may lack bodies."""
        self._settle()
        is_to_last = self._syncs_commits and self._lasts
        if is_to_last:
            self._bodies.begin_sync()
        try:
            self._connection.commit()  # lets go of the interpreter's lock once, where `execute` does five times
        except BaseException:
            self._bodies.end_sync()
            raise
        self._bodies.committed()
        if is_to_last:
            self._is_unsafe = True
        else:
            if not self._syncs_commits:
                self._room.confirm()
            self._bodies.safe()
        self._room.limit()

    def _settle(self) -> None:
        """Have the last commit on the disk: its bodies, and at the same time the rows that name them."""
        if self._is_unsafe:
            self._is_unsafe = False
            try:
                self._log_sync.end(self._bodies.log)
            finally:
                self._bodies.end_sync()
            self._commit_syncs += 1
            self._room.confirm()
            self._bodies.safe()

    def _regain(self) -> None:
        """Try to have the reserve again, unless bodies can be moved with what it leaves: that gives back more."""
        if self._room.is_tight:
            self._settle()  # a file may be ended
        if self._room.is_tight and self._bodies.sparse(is_hurried=True) is None:
            self._room.regain()

    def _undo(self) -> None:
        self._bodies.undone()
        if self._connection.in_transaction:  # SQLite undoes some of its errors itself
            self._connection.execute("ROLLBACK")

    # Work that can wait

    def _remove_some(self) -> None:
        """Remove a few messages of a queue that was dropped, or of an earlier opening's transient ones."""
        dropped = self._to_remove[-1] if self._to_remove else None
        if dropped is not None:
            question, values = "SELECT id FROM header WHERE queue = ? LIMIT ?", (dropped, _STEP_ROWS)
        else:
            question = "SELECT id FROM header WHERE transient = 1 AND id < ? LIMIT ?"
            values = (self._first_id, _STEP_ROWS)
        ids = [one for (one,) in self._connection.execute(question, values).fetchall()]
        if ids:
            self._remove(ids)
        elif dropped is None:
            self._has_stale = False
        else:
            self._settle()  # this is a commit too
            self._connection.execute("DELETE FROM dropped WHERE queue = ?", (dropped,))
            self._to_remove.pop()

    def _remove(self, ids: list[int]) -> None:
        self._room.unlimit()
        self._begin()
        count, size = remove(self._connection, ids, self._bodies)
        self._end_transaction()
        self.messages -= count
        self.bytes -= size

    def _move_bodies(self, number: int) -> None:
        """Write some live bodies of a file to the end of the newest one."""
        rows = self._connection.execute(_BODIES_OF, places_of(number)).fetchall()
        moved: list[tuple[int, int, bytes]] = []
        for message_id, check, place in rows:
            owner = owner_of(message_id, check)
            try:
                found, _ = read_bodies(self._file.parent, {owner: place})
            except (BodyDamaged, OSError):
                found = {}
            if not found:
                self._bodies.damaged.add(number)
                return
            moved.append((owner, place, found[owner]))
            if sum(len(body) for _, _, body in moved) >= _STEP_BYTES:
                break
        if not moved:  # headers and bodies disagree: there is nothing to move
            self._bodies.damaged.add(number)
            return
        self._room.unlimit()
        self._begin()
        places = self._bodies.append([owner for owner, _, _ in moved], [body for _, _, body in moved])
        self._connection.executemany(_MOVE, [(place, old) for place, (_, old, _) in zip(places, moved, strict=True)])
        self._bodies.release([(place, len(body)) for _, place, body in moved])
        self._end_transaction()

    def _tidy(self) -> float | None:
        """Give free pages back. When commits have stopped for a second, copy the log."""
        if self._room.is_worth_giving_back():
            self._room.give_back()
            return 0.0
        idle = time.monotonic() - self._last_commit
        if self._room.has_news_in_log():
            if idle < _IDLE_SECONDS:
                return _IDLE_SECONDS - idle
            self._room.checkpoint("PASSIVE")
        if self._room.is_tight:
            return _IDLE_SECONDS
        return self._spares_left() if self._bodies.has_spares else None

    def _spares_left(self) -> float:
        """In how many seconds the spare files go, counted from the last large body. Other commits do not keep them: a
        server that is low on disk takes no bodies, and needs what the spares have."""
        return self._bodies.last_append + _SPARES_SECONDS - time.monotonic()

    def _look(self, *, at_once: bool = False) -> None:
        """Raise FileNotFoundError where a file is not the one that was opened."""
        gone = self._presence.gone(self._bodies.written, at_once=at_once)
        if gone:
            raise FileNotFoundError(errno.ENOENT, "it was removed or replaced", gone)

    def _failure(self, error: Exception) -> StoreFailed:
        if isinstance(error, FileNotFoundError):
            gone = self._presence.gone(self._bodies.written, at_once=True)
            if gone and not self._is_spared(gone):
                return StoreFailed(
                    f"{gone!r} was removed or replaced under the open store, which confirms nothing more; "
                    "put it back and open the store again"
                )
        return StoreFailed(
            f"{str(self._file)!r} failed: {error}; everything committed is safe: "
            "repair the disk and open the store again"
        )

    def _is_spared(self, gone: str) -> bool:
        """Whether nothing is lost with this file: the index of the log, or the log, which SQLite can copy still."""
        if gone == f"{self._file}-wal" and not os.path.exists(gone):
            with suppress(sqlite3.Error, OSError):
                self._room.checkpoint("TRUNCATE")
                return not self._room.has_news_in_log()
        return gone == f"{self._file}-shm"


def _grows(submission: Submission) -> bool:
    return any(isinstance(one, Put | Define) for one in submission.operations)


def _refusal(error: BaseException, *submissions: Submission) -> StoreError:
    """The error for a submission that cannot be stored for its own sake."""
    ids = [one.id for submission in submissions for one in submission.operations if isinstance(one, Put)]
    if getattr(error, "sqlite_errorcode", 0) in _THERE_ALREADY:
        return StoreError(f"a message is put once, and one of {ids[:5]} is stored already ({error})")
    return StoreError(f"the submission cannot be stored: {error}; nothing of it was")
