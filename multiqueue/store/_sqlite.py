"""A store in a directory: one SQLite file, one thread that writes it, one process that has it open.

Promise     The table in docs/design/store.md. Opening is all that a store needs after a crash.
State       The directory: `messages.sqlite` with SQLite's `-wal` and `-shm`, `bodies-N`, `confirmed`, `lock`,
            `reserve`. They belong together.
            In memory: `GroupCommit` has what waits, `SqliteWriter` what the writer knows, `SqliteReader` connections.
Membership  Opening: lock, the log made certain and compared with its mark, tables, `clean` off, ids reserved, count;
            what fails on the way lets go of all that went before. Closing: commit, `clean` on, log into the file,
            connections, reserve, lock.
            A program that ends without closing closes its stores; one that is killed has crashed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from .._kinds import check_path
from ._bodies import BODIES_IN_FILES, LARGE_COMMIT_BYTES, LARGE_RELAXED_BYTES, Bodies, BodyDamaged
from ._confirmed import MARK_NAME, LogIndex, Mark
from ._errors import NoStore, StoreDamaged, StoreFailed, StoreLocked
from ._front import StoreFront
from ._group_commit import GroupCommit
from ._lock_file import DirectoryLock
from ._log import close_leaving_log
from ._plan import MOST_STATEMENTS
from ._presence import left_alone
from ._protocol import Durability, Level, StoreStatistics
from ._recovery import open_whole
from ._room import Room
from ._schema import FILE_NAME, META, PAGE_BYTES, are_numbers, prepare
from ._space_reserve import SpaceReserve
from ._sqlite_reader import SqliteReader, unreadable
from ._sqlite_writer import IDS_RESERVED, SqliteWriter

MAX_PENDING_BYTES = 8 << 20
LOG_BYTES = 8 << 20
_SMALL_DISK_PARTS = 32  # of a small disk one is for the log, three for the reserve; the rest is for messages
_LOGS_OF_BODIES = 4  # times the log: 32 MiB for a file of bodies, so that half of one fits into the reserve
CACHE_BYTES = 8 << 20
_SYNCHRONOUS = {Durability.SYNC: "FULL", Durability.RELAXED: "NORMAL", Durability.MEMORY: "OFF"}
_SCRATCH_PREFIX = "multiqueue-scratch-"


class SqliteStore(StoreFront):
    """The store in the directory `path`, created if it does not exist.

    `durability` is "sync" or "relaxed". `quota_bytes` is how large the file of messages may become; the log beside it
    takes up to about `log_bytes` more, for a moment also the bytes of a batch: 8 MiB unless told, or a 32nd part
    of a disk below 256 MiB. `reserve_bytes` of disk (three times `log_bytes` unless told) are held back so that
    messages can still be removed when the disk is full.
    A commit that brings `large_commit_bytes` or more (256 KiB unless told, 80 KiB at "relaxed") in bodies of 2 KiB
    or more writes these into a file beside the messages' file; such files count in the quota.
    `max_pending_bytes` is how much may wait for its commit before `submit` blocks.

    Raises:
        StoreLocked: somebody has it open; the message names the process.
        StoreDamaged: the file is something else, of a later format, or damaged.
        StoreFailed: the disk failed. StoreError: the directory cannot be used; the message says why.
        ValueError: a setting is out of its range.
    """

    _reader: SqliteReader

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability | str = Durability.SYNC,
        quota_bytes: int | None = None,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        log_bytes: int | None = None,
        reserve_bytes: int | None = None,
        large_commit_bytes: int | None = None,
    ) -> None:
        check_path("path", path)
        durability = Durability(durability)
        if large_commit_bytes is None:
            large_commit_bytes = LARGE_RELAXED_BYTES if durability is Durability.RELAXED else LARGE_COMMIT_BYTES
        if durability is Durability.MEMORY:
            raise ValueError(
                "a store on disk is 'sync' or 'relaxed'; MemoryStore and SqliteStore.scratch() keep nothing"
            )
        self._open(
            Path(path), durability, quota_bytes, max_pending_bytes, log_bytes, reserve_bytes, large_commit_bytes, None
        )

    @staticmethod
    def is_in(path: str | os.PathLike[str]) -> bool:
        """True when the directory has a store, also a damaged one."""
        file = Path(path) / FILE_NAME
        return file.is_file() or left_alone(file) is not None

    @classmethod
    def scratch(
        cls,
        parent: str | os.PathLike[str] | None = None,
        *,
        quota_bytes: int | None = None,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> Self:
        """A store for what need not survive, in a new directory under `parent` (the system's, for temporary files).

        It never syncs, and `close` removes it. What processes that were killed left there is removed first.
        """
        top = Path(parent if parent is not None else tempfile.gettempdir())
        _remove_leftovers(top)
        try:
            path = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=top))
        except OSError as error:
            raise NoStore(f"cannot make a directory in {str(top)!r}: {error.strerror}; name another one") from error
        store = cls.__new__(cls)
        store._open(path, Durability.MEMORY, quota_bytes, max_pending_bytes, LOG_BYTES, 0, LARGE_COMMIT_BYTES, path)
        return store

    def _open(
        self,
        path: Path,
        durability: Durability,
        quota_bytes: int | None,
        max_pending_bytes: int,
        log_bytes: int | None,
        reserve_bytes: int | None,
        large_commit_bytes: int,
        remove: Path | None,
    ) -> None:
        for name, size, least in (
            ("quota_bytes", quota_bytes, 1),
            ("max_pending_bytes", max_pending_bytes, 1),
            ("log_bytes", log_bytes, 1),
            ("reserve_bytes", reserve_bytes, 0),
            ("large_commit_bytes", large_commit_bytes, 1),
        ):
            if (size is not None or name == "max_pending_bytes") and not (isinstance(size, int) and size >= least):
                raise ValueError(f"{name} is {size!r}; it is a whole number of bytes, at least {least}")
        path = path.absolute()  # wherever the program goes
        self._path = path
        self._file = path / FILE_NAME
        self._durability = durability
        with ExitStack() as opening:
            if remove is not None:
                opening.callback(shutil.rmtree, remove, ignore_errors=True)
            lock = _lock(path)
            opening.callback(lock.release)
            try:
                left = left_alone(self._file)
                if left is not None:
                    raise StoreDamaged(
                        f"{str(self._file)!r} is gone or empty, and {left.name!r} of its store is there: "
                        "put it back, or remove the directory to begin a new store"
                    )
                if log_bytes is None:
                    disk_bytes = shutil.disk_usage(path).total  # 0 where the file system does not say
                    log_bytes = min(LOG_BYTES, disk_bytes // _SMALL_DISK_PARTS or LOG_BYTES)
                reserve = SpaceReserve(path, 3 * log_bytes if reserve_bytes is None else reserve_bytes)
                opening.callback(reserve.drop)
                # Before anything is written: it would hide what is lost.
                connection, log = open_whole(self._file, cache_bytes=CACHE_BYTES, statements=MOST_STATEMENTS)
                opening.callback(close_leaving_log, connection, self._file)
                if log is not None:
                    opening.callback(log.close)
                prepare(connection, self._file, _SYNCHRONOUS[self._durability])
                if log is None:
                    log = LogIndex(self._file)
                    opening.callback(log.close)
                mark = Mark(path, log, syncs=durability is Durability.SYNC)
                opening.callback(mark.close)
                first_id, self._floor = self._begin(connection)
                self._reader = SqliteReader(self._file, first_id)
                opening.callback(self._reader.close)
                self._opening_levels, messages, size = self._reader.census()
                self._bodies = Bodies(
                    path,
                    file_bytes=_LOGS_OF_BODIES * log_bytes,
                    durability=durability,
                    large_commit_bytes=large_commit_bytes,
                    reads=lambda: self._reader.file_reads,
                )
                opening.callback(self._bodies.close, was_clean=False)
                self._bodies.begin(connection.execute(BODIES_IN_FILES).fetchall())
                room = Room(
                    connection,
                    self._file,
                    reserve,
                    log,
                    mark,
                    self._bodies,
                    quota_bytes=quota_bytes,
                    log_bytes=log_bytes,
                )
                self._writer = SqliteWriter(
                    connection,
                    self._file,
                    room,
                    self._bodies,
                    syncs=durability is Durability.SYNC,
                    first_id=first_id,
                    messages=messages,
                    body_bytes=size,
                    let_go=_closing(connection, self._file, self._reader, reserve, lock, remove),
                )
            except (sqlite3.Error, UnicodeDecodeError) as error:
                opening.close()
                raise unreadable(self._file, error, is_closed=True) from error
            except BodyDamaged as error:
                raise StoreDamaged(
                    f"{str(path)!r} is damaged: {error}; `multiqueue store dump` reads the rest"
                ) from error
            except OSError as error:
                raise _failure(path, error) from error
            self._commits = GroupCommit(
                self._writer,
                name=f"the store {str(path)!r}",
                next_id=first_id,
                max_pending_bytes=max_pending_bytes,
            )
            opening.pop_all()
        atexit.register(self.close)

    def _begin(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Note that the store is open. Returns the first id to give and the redeliver floor."""
        meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        if not are_numbers([tuple(meta.get(key) for key in META)], *range(len(META))):
            raise StoreDamaged(
                f"{str(self._file)!r} is damaged: the table meta has {meta}; "
                "`multiqueue store dump` saves the readable part"
            )
        first_id, floor = meta["next_id"], meta["redeliver_floor"]
        if not meta["clean"]:
            floor = first_id
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "UPDATE meta SET value = ? WHERE key = ?",
            [(first_id + IDS_RESERVED, "next_id"), (0, "clean"), (floor, "redeliver_floor")],
        )
        connection.execute("COMMIT")
        _sync_directory(self._path)
        return first_id, floor

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    @property
    def durability(self) -> Durability:
        return self._durability

    def levels(self) -> list[Level]:
        if self._writer.commits:
            return super().levels()
        self._commits.check_open()
        return list(self._opening_levels)

    def statistics(self) -> StoreStatistics:
        self._commits.check_open()
        operations, pending_bytes = self._commits.pending()
        files = (self._file, self._file.with_name(self._file.name + "-wal"))
        return StoreStatistics(
            messages=self._writer.messages,
            bytes=self._writer.bytes,
            commits=self._writer.commits,
            syncs=self._writer.syncs,
            pending_operations=operations,
            pending_bytes=pending_bytes,
            file_bytes=sum(file.stat().st_size for file in files if file.exists()) + self._bodies.disk_bytes,
            free_bytes=self._reader.free_pages() * PAGE_BYTES + self._bodies.dead_bytes,
        )

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()


def _lock(path: Path) -> DirectoryLock:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(path)
    except OSError as error:
        raise NoStore(f"cannot use {str(path)!r} for a store: {error.strerror}; name another directory") from error
    try:
        _sync_directory(path.parent)
    except OSError as error:
        lock.release()
        raise _failure(path, error) from error
    return lock


def _failure(path: Path, error: OSError) -> StoreFailed:
    which = error.filename or path
    return StoreFailed(f"{str(which)!r} cannot be used: {error.strerror}; repair the disk and open the store again")


def _closing(
    connection: sqlite3.Connection,
    file: Path,
    reader: SqliteReader,
    reserve: SpaceReserve,
    lock: DirectoryLock,
    remove: Path | None,
) -> Callable[[bool], object]:
    """Let go of everything that a store has: after a clean end SQLite removes the log, else it is left."""

    def let_go(was_clean: bool) -> None:
        with ExitStack() as closing:  # called in the opposite order
            closing.callback(lock.release)
            if remove is not None:
                closing.callback(shutil.rmtree, remove, ignore_errors=True)
            closing.enter_context(suppress(OSError))  # what cannot be removed stays for the next opening
            closing.callback(reserve.drop)
            if was_clean:
                closing.callback((file.parent / MARK_NAME).unlink, missing_ok=True)
                closing.callback(connection.close)
            else:
                closing.callback(close_leaving_log, connection, file)
            closing.callback(reader.close)

    return let_go


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(top: Path) -> None:
    """Remove the scratch stores of processes that were killed: those that no process has locked."""
    for path in top.glob(f"{_SCRATCH_PREFIX}*"):
        try:
            if path.stat().st_uid != os.getuid() or not (path / FILE_NAME).exists():
                continue
            lock = DirectoryLock(path)
        except (OSError, StoreLocked):
            continue
        shutil.rmtree(path, ignore_errors=True)
        lock.release()
