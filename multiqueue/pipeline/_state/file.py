"""The state file: its tables, how it is opened, and who may write.

Promise     While `exclusive` is held no other process runs this pipeline. It keeps an EXCLUSIVE transaction open
            in `STATE.lock`, a database beside the state: the operating system releases its lock when the process
            dies, however it dies, so there is no stale lock to remove. Should somebody remove that file under a run, a
            second one can begin: from then on the first is refused, for each transaction looks who has taken over last.
            Whatever SQLite says of the state leaves `in_sentences` as an error of ours: damage is told, never met as
            a traceback.
State       The two files and SQLite's own `-wal` and `-shm`. Delete them only together with the output.
Waiting     None: a second process is told at once.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._base.errors import PipelineError, StateDamaged, StateInUse, StateMismatch, Unprepared, unwritten
from .._base.items import STEP
from .._base.lifecycle import ItemState
from .postgres import Connection as PostgresConnection
from .postgres import PostgresState

# How long another connection may hold the file, in seconds: a reader's look, or the checkpoint of a run that ends.
_PATIENCE_S = 10.0

_VERSION = 4
_READABLE = (1, 2, 3, 4)

# The bodies of messages, until their items are done. Version 1 had none.
_MESSAGES = """
CREATE TABLE messages (
    lane TEXT NOT NULL,
    path TEXT NOT NULL,
    id TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (lane, path)
);
"""

TAKEN_AWAY = "files taken away of "
"""Before a lane, in the names of `meta`."""

# Files that are no input any more and are to be moved or deleted. `ended_at` is when an item was done by the clock on
# the wall, NULL once its files leave, or stay for good. Version 2 had neither.
_LEAVING = """
CREATE TABLE leaving (
    item INTEGER NOT NULL,
    lane TEXT NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    PRIMARY KEY (item, path)
);
CREATE INDEX leaving_of_path ON leaving (lane, path);
CREATE INDEX items_done ON items (lane, ended_at) WHERE state = 'done';
"""

# `job` is the fingerprint of the job of an item's last attempt; `redone` is 1 for an item that was done and waits to be
# done anew, whose rows stay until then; `number` that of the commit to a table that is made for it. Version 3 had none.
_JOB = """
ALTER TABLE items ADD COLUMN job TEXT;
ALTER TABLE items ADD COLUMN number TEXT;
ALTER TABLE items ADD COLUMN redone INTEGER NOT NULL DEFAULT 0;
"""

# `known_s`, `retry_s`, `started_s`, `ended_s` are seconds at work: a clock that stands still between runs.
# `error` is the last one, kept while the item waits for its next try.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    lane TEXT NOT NULL,
    path TEXT NOT NULL,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    attempt INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0,
    known_s REAL NOT NULL,
    retry_s REAL NOT NULL DEFAULT 0,
    started_s REAL,
    ended_s REAL,
    ended_at REAL,
    error TEXT
);
CREATE TABLE files (
    lane TEXT NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    item INTEGER NOT NULL REFERENCES items (seq),
    place INTEGER NOT NULL,
    PRIMARY KEY (lane, path)
) WITHOUT ROWID;
{_MESSAGES}
CREATE INDEX items_next ON items (lane, retry_s, seq) WHERE state = 'waiting';
CREATE INDEX items_mixed ON items (id) WHERE state = 'waiting';
CREATE INDEX items_submitted ON items (seq) WHERE state = 'submitted';
CREATE INDEX items_failed ON items (lane, seq) WHERE state = 'failed';
CREATE INDEX files_of_item ON files (item, place);
{_LEAVING}
{_JOB}
PRAGMA user_version = {_VERSION};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class LaneCount:
    """How many items of a lane are in one state, with their files and bytes."""

    lane: str
    state: ItemState
    items: int
    files: int
    size_bytes: int


# SQLite's primary codes by what is to be done about them; all others mean that the file is not as it was written.
_OCCUPIED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CLOSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_FAILING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL}


State = Path | PostgresState
"""Where a state is: an SQLite file, or a schema of PostgreSQL."""


class Connection(sqlite3.Connection):
    """SQLite's own, in the words of both kinds of state."""

    SLICE = "min(CAST({column} / ? AS INTEGER), ?)"
    """SQL for the slice that a moment is in, of which `?` is the length and `?` the last."""

    def take_over(self) -> None:
        """Whoever has begun to write to the state before is refused from now on."""
        self._holder = uuid.uuid4().hex
        self.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('holder', ?)", (self._holder,))

    def begin(self) -> None:
        """Begin a transaction that writes, unless another run has taken over.

        Raises:
            StateInUse: one has.
        """
        self.execute("BEGIN IMMEDIATE")
        found = self.execute("SELECT value FROM meta WHERE name = 'holder'").fetchone()
        if found is None or found[0] != self._holder:
            raise StateInUse("another process has taken over the state: its lock file was removed; this run ends")

    def insert(self, statement: str, values: Sequence[object]) -> int:
        """Insert an item; its number."""
        number = self.execute(statement, values).lastrowid
        assert number is not None
        return number


AnyConnection = Connection | PostgresConnection


@contextlib.contextmanager
def in_sentences(path: State) -> Iterator[None]:
    """While inside, what SQLite says of this state is raised as an error of ours.

    Raises:
        StateDamaged: the file is not as it was written.
        StateMismatch: it is no database.
        StateInUse: another program has locked it.
        Unprepared: it cannot be opened or written.
        PipelineError: the disk is full or fails.
    """
    if isinstance(path, PostgresState):
        with path.in_sentences():
            yield
        return
    try:
        yield
    except sqlite3.Error as error:
        raise _told(path, error) from error


def told(path: State, error: BaseException) -> PipelineError | None:
    """An error of the state's library, as one of ours; None of other errors."""
    if isinstance(path, PostgresState):
        return path.told(error)
    return _told(path, error) if isinstance(error, sqlite3.Error) else None


def _told(path: Path, error: sqlite3.Error) -> PipelineError:
    name, code = repr(str(path)), getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return StateMismatch(f"{name} is not a state of ours: {error}; choose another [state] path")
    if code in _OCCUPIED:
        return StateInUse(f"the state {name} is locked by another program: {error}; end that one, or wait for it")
    if code in _CLOSED:
        return Unprepared(f"cannot open or write the state {name}: {error}; choose another [state] path")
    if code in _FAILING:
        return PipelineError(f"cannot record in {name}: {error}; run again to go on")
    return StateDamaged(
        f"the state {name} is damaged: {error}; bring it back from a copy, or remove it with the output and run anew"
    )


def state_exists(path: State) -> bool:
    """Whether there is a state.

    Raises:
        Unprepared: its directory or its server does not let one see.
    """
    if isinstance(path, PostgresState):
        return path.exists()
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Unprepared(
            f"cannot read the state {str(path)!r}: {error.strerror}; run as its owner, or make its directory readable"
        ) from error
    return True


def connect(path: State) -> AnyConnection:
    """The state file, open for writing; made when it does not exist. Only while `exclusive` is held.

    Raises:
        Unprepared: its directory cannot be written.
        StateMismatch: the file is something else, or of a version this one does not know.
        PipelineError: as `in_sentences`.
    """
    if isinstance(path, PostgresState):
        return path.connect()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(f"the state {str(path)!r}", error, "[state]") from error
    with in_sentences(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_S, factory=Connection)
        try:
            version = _checked_version(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if version == 0:
                connection.executescript(_SCHEMA)
            elif version < _VERSION:
                added = _MESSAGES if version == 1 else ""
                added += f"ALTER TABLE items ADD COLUMN ended_at REAL; {_LEAVING}" if version < 3 else ""
                added += _JOB
                connection.executescript(f"BEGIN IMMEDIATE; {added} PRAGMA user_version = {_VERSION}; COMMIT;")
            connection.take_over()
        except BaseException:
            connection.close()
            raise
    return connection


def connect_read_only(path: State) -> AnyConnection:
    """The state file, for looking only, also beside a run that writes it.

    Raises:
        Unprepared: there is none: nothing was run yet.
        StateMismatch: as `connect`.
        PipelineError: as `in_sentences`.
    """
    if isinstance(path, PostgresState):
        return path.connect_read_only()
    unborn = Unprepared(f"there is no state {str(path)!r}: this pipeline has not run yet")
    if not state_exists(path):
        raise unborn
    with in_sentences(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_S, factory=Connection)
        try:
            if _checked_version(connection, path) == 0:
                raise unborn  # a first run is about to make the tables
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def exclusive(path: State) -> Iterator[None]:
    """Keep every other process from running the pipeline with this state.

    Raises:
        StateInUse: one does already; the message names it.
        Unprepared: the lock file cannot be written.
        PipelineError: the disk is full.
    """
    if isinstance(path, PostgresState):
        with path.exclusive():
            yield
        return
    lock = path.with_name(path.name + ".lock")
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
                f"the state {str(path)!r} is in use by {_holder(path)}; wait for it or stop it, "
                "or give this run an [output] and [state] of its own"
            ) from error
        yield


def lane_counts(connection: AnyConnection) -> list[LaneCount]:
    """A row per lane and state that has items."""
    rows = connection.execute(
        "SELECT lane, state, count(*), CAST(sum(files) AS BIGINT), CAST(sum(bytes) AS BIGINT) FROM items "
        "GROUP BY lane, state ORDER BY lane, state"
    )
    return [LaneCount(lane, state_named(state), items, files, size) for lane, state, items, files, size in rows]


def made_by_others(connection: AnyConnection, jobs: Mapping[str, str]) -> int:
    """How many items that are done were made by other jobs than these: of steps by their names, of lanes by `""`."""
    if "job" not in (one[0] for one in connection.execute("SELECT * FROM items LIMIT 0").description):
        return 0  # a state of an earlier version, which is only looked at
    rows = connection.execute(
        "SELECT lane, job, substr(path, 1, ?) = ?, count(*) FROM items WHERE state = 'done' AND job IS NOT NULL "
        "GROUP BY 1, 2, 3",
        (len(STEP), STEP),
    )
    return sum(count for lane, job, is_step, count in rows if job != jobs.get(lane if is_step else ""))


def state_named(text: str) -> ItemState:
    """The state of an item as a row has it. Raises what SQLite raises for damage where there is no such state."""
    try:
        return ItemState(text)
    except ValueError:
        raise sqlite3.DatabaseError(f"an item has no state {text!r}") from None


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    # One statement: a first run may make the tables between two.
    both = "SELECT user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_user_version"
    version, tables = connection.execute(both).fetchone()
    if version not in (_READABLE if tables else (0,)):
        raise StateMismatch(
            f"{str(path)!r} has version {version}, this multiqueue writes version {_VERSION}; "
            "use the multiqueue that wrote it, or start anew in another output"
        )
    return int(version)


def _holder(path: Path) -> str:
    try:
        with contextlib.closing(connect_read_only(path)) as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = 'process'").fetchone()
    except (sqlite3.Error, PipelineError):
        row = None
    return "another process" if row is None else f"process {row[0]}"
