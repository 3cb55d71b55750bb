"""A state in a file of SQLite: how it is opened, and who may write.

Promise     While `exclusive` is held no other process runs this pipeline. It keeps an EXCLUSIVE transaction open
            in `STATE.lock`, a database beside the state: the operating system releases its lock when the process
            dies, however it dies, so there is no stale lock to remove. Should somebody remove that file under a run, a
            second one can begin: from then on the first is refused, for each transaction looks who has taken over last.
            It looks for the file too: one that was removed or replaced takes everything, and keeps nothing.
            Each error of SQLite leaves `in_sentences` as an error of ours: damage is a sentence, never a traceback.
State       The two files and SQLite's own `-wal` and `-shm`. Delete them only together with the output.
Waiting     None: a second process gets an error at once.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._base.errors import PipelineError, StateDamaged, StateInUse, StateMismatch, Unprepared, unwritten
from .tables import SQLITE, VERSION, tables_in

# How long another connection may hold the file, in seconds: a reader's look, or the checkpoint of a run that ends.
_PATIENCE_S = 10.0

# SQLite's primary codes by what is to be done about them; all others mean that the file is not as it was written.
_OCCUPIED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CLOSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_FAILING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL}


class Connection(sqlite3.Connection):
    """SQLite's own, in the words of both kinds of state."""

    SLICE = "min(CAST({column} / ? AS INTEGER), ?)"
    file: tuple[Path, tuple[int, int] | None] | None = None
    """Of one that writes: its file, and which one that was."""

    def take_over(self) -> None:
        """Have every other connection that writes to the state refused from now on."""
        self._holder = uuid.uuid4().hex
        self.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('holder', ?)", (self._holder,))

    def begin(self) -> None:
        if self.file is not None and _identity(self.file[0]) != self.file[1]:
            raise StateDamaged(
                f"the state {str(self.file[0])!r} was removed or replaced under this run, which ends; "
                "bring it back from a copy, or remove it with the output and run anew"
            )
        self.execute("BEGIN IMMEDIATE")
        found = self.execute("SELECT value FROM meta WHERE name = 'holder'").fetchone()
        if found is None or found[0] != self._holder:
            raise StateInUse("another process has taken over the state: its lock file was removed; this run ends")

    def insert(self, statement: str, values: Sequence[object]) -> int:
        number = self.execute(statement, values).lastrowid
        assert number is not None
        return number


@dataclass(frozen=True, slots=True)
class SqliteState:
    """Where a state is: a file. As `State` says it."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @contextlib.contextmanager
    def in_sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._told(error) from error

    def told(self, error: BaseException) -> PipelineError | None:
        return self._told(error) if isinstance(error, sqlite3.Error) else None

    def _told(self, error: sqlite3.Error) -> PipelineError:
        name, code = repr(str(self)), getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            return StateMismatch(f"{name} is not a state of ours: {error}; choose another [state] path")
        if code in _OCCUPIED:
            return StateInUse(f"the state {name} is locked by another program: {error}; end that one, or wait for it")
        if code in _CLOSED:
            return Unprepared(f"cannot open or write the state {name}: {error}; choose another [state] path")
        if code in _FAILING:
            return PipelineError(f"cannot record in {name}: {error}; run again to go on")
        return StateDamaged(
            f"the state {name} is damaged: {error}; bring it back from a copy, or remove it with the output "
            "and run anew"
        )

    def exists(self) -> bool:
        try:
            os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            why = f"cannot read the state {str(self)!r}: {error.strerror}"
            raise Unprepared(f"{why}; run as its owner, or make its directory readable") from error
        return True

    def connect(self) -> Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritten(f"the state {str(self)!r}", error, "[state]") from error
        with self.in_sentences():
            connection = self._open()
            try:
                is_new = self._checked_version(connection) == 0
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                if is_new:
                    made = f"{tables_in(SQLITE)} PRAGMA user_version = {VERSION};"
                    connection.executescript(f"BEGIN IMMEDIATE; {made} COMMIT;")
                connection.take_over()
                connection.file = self.path, _identity(self.path)
            except BaseException:
                connection.close()
                raise
        return connection

    def connect_read_only(self) -> Connection:
        unborn = Unprepared(f"there is no state {str(self)!r}: this pipeline has not run yet")
        if not self.exists():
            raise unborn
        with self.in_sentences():
            connection = self._open()
            try:
                if self._checked_version(connection) == 0:
                    raise unborn  # a first run is about to make the tables
                connection.execute("PRAGMA query_only = ON")
            except BaseException:
                connection.close()
                raise
        return connection

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        lock = self.path.with_name(self.path.name + ".lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(lock, isolation_level=None, timeout=0)
        except (OSError, sqlite3.OperationalError) as error:
            raise unwritten(repr(str(lock)), error, "[state]") from error
        with contextlib.closing(connection):
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.Error as error:
                if error.sqlite_errorcode not in _OCCUPIED:
                    raise unwritten(repr(str(lock)), error, "[state]") from error
                raise StateInUse(
                    f"the state {str(self)!r} is in use by {self._holder()}; wait for it or stop it, "
                    "or give this run another [output] and [state]"
                ) from error
            yield

    def _open(self) -> Connection:
        return sqlite3.connect(self.path, isolation_level=None, timeout=_PATIENCE_S, factory=Connection)

    def _checked_version(self, connection: sqlite3.Connection) -> int:
        # One statement: a first run may make the tables between two.
        both = "SELECT user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_user_version"
        version, tables = connection.execute(both).fetchone()
        if version != (VERSION if tables else 0):
            raise StateMismatch(
                f"{str(self)!r} has version {version}, this multiqueue writes version {VERSION}; "
                "use the multiqueue that wrote it, or start anew in another output"
            )
        return int(version)

    def _holder(self) -> str:
        try:
            with contextlib.closing(self.connect_read_only()) as connection:
                row = connection.execute("SELECT value FROM meta WHERE name = 'process'").fetchone()
        except (sqlite3.Error, PipelineError):
            row = None
        return "another process" if row is None else f"process {row[0]}"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
