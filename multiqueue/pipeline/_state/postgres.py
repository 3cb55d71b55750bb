"""A state in PostgreSQL: the ledger's tables in a schema, for drivers without a lasting disk.

Promise     While `exclusive` is held no other process runs this pipeline: an advisory lock of a separate session,
            which the server releases when that session ends, however it ends. A run that has lost the lock without
            knowing (the network was away for too long) records nothing any more: each transaction holds the row
            `holder`, and is refused when another run has written its own number there.
            No message has the password.
State       The schema's tables (`tables`). A connection for the lock and one for the ledger.
Lost        A connection that ends, or a server that is started again, ends the run with status 3; the same command
            goes on: uncommitted changes were not recorded, as after a crash.
Threads     The ledger's one. The statements are written for SQLite, with `?` for values.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ..._extras import needs
from .._base.errors import PipelineError, StateDamaged, StateInUse, StateMismatch, Unprepared, Unreachable
from .tables import POSTGRES, VERSION, tables_in

_CONNECTS_WITHIN_S = 10

# The server ends the session of a machine whose power failed, and its lock with it; else it asks after two hours.
_SERVER_ASKS = (
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 60000"
)


@dataclass(frozen=True, slots=True)
class PostgresState:
    """Where a state is: a server's database, and a schema in it. As `State` says it."""

    url: str = field(repr=False)
    schema: str

    def __str__(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        name = f"{user.partition(':')[0]}@{host}" if user else host
        return f"{urlunsplit((parts.scheme, name, parts.path, '', ''))} (schema {self.schema})"

    @property
    def path(self) -> None:
        return None

    def exists(self) -> bool:
        with self.in_sentences(), contextlib.closing(self._session()) as session:
            return _has_tables(session)

    def connect(self) -> Connection:
        with self._opening() as session:
            if not _has_tables(session):
                with session.transaction():
                    session.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(self.schema)}")
                    session.execute(tables_in(POSTGRES))
                    session.execute("INSERT INTO meta VALUES ('version', %s)", (str(VERSION),))
            self._check_version(session)
            holder = uuid.uuid4().hex
            session.execute(
                "INSERT INTO meta VALUES ('holder', %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (holder,),
            )
            return Connection(session, str(self), holder)

    def connect_read_only(self) -> Connection:
        with self._opening() as session:
            if not _has_tables(session):
                raise Unprepared(f"there is no state {str(self)!r}: this pipeline has not run yet")
            self._check_version(session)
            session.execute("SET default_transaction_read_only = on")
            session.execute("SET default_transaction_isolation = 'repeatable read'")
            return Connection(session, str(self))

    @contextlib.contextmanager
    def _opening(self) -> Iterator[Any]:
        """A new session, which stays open unless something raises inside."""
        with self.in_sentences(connecting=True), contextlib.ExitStack() as undo:
            session = undo.enter_context(contextlib.closing(self._session()))
            yield session
            undo.pop_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with self.in_sentences(connecting=True):
            session = self._session()
        with contextlib.closing(session):
            with self.in_sentences(connecting=True):
                found = session.execute("SELECT pg_try_advisory_lock(%s)", (self._lock_number(),)).fetchone()
                if not found or not found[0]:
                    raise StateInUse(
                        f"the state {str(self)!r} is in use by {self._process(session)}; wait for it or stop it, "
                        "or give this run another [output] and [state]"
                    )
            try:
                yield
            finally:  # the server sees the end of a session only some time after it was closed
                with contextlib.suppress(Exception):
                    session.execute("SELECT pg_advisory_unlock(%s)", (self._lock_number(),))

    @contextlib.contextmanager
    def in_sentences(self, *, connecting: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            better = self.told(error, connecting=connecting)
            if better is None:
                raise
            raise better from None  # the error of the library may have the whole URL

    def told(self, error: BaseException, *, connecting: bool = False) -> PipelineError | None:
        if isinstance(error, sqlite3.DatabaseError):
            return StateDamaged(f"the state {str(self)!r} is damaged: {error}; bring it back from a backup")
        psycopg = _psycopg()
        if not isinstance(error, psycopg.Error):
            return None
        said = self._without_secret(" ".join(str(error).split()) or type(error).__name__)
        name = repr(str(self))
        is_away = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if connecting or isinstance(error, psycopg.errors.InsufficientPrivilege):
            kind = Unreachable if is_away else Unprepared
            return kind(f"cannot use the state {name}: {said}; start the server, or correct [state]")
        if is_away:
            return PipelineError(f"lost the state {name}: {said}; run again to go on")
        return PipelineError(f"cannot record in the state {name}: {said}; run again to go on")

    def _session(self) -> Any:
        psycopg = _psycopg()
        session = psycopg.connect(
            self.url,
            autocommit=True,
            connect_timeout=_CONNECTS_WITHIN_S,
            keepalives_idle=30,
            tcp_user_timeout=60_000,  # ms, of silence after a question
            application_name=f"multiqueue {socket.gethostname()} {os.getpid()}",
            cursor_factory=psycopg.ClientCursor,
        )
        try:
            session.execute(f"SET search_path TO {_quoted(self.schema)}; {_SERVER_ASKS}")
        except BaseException:
            session.close()
            raise
        return session

    def _lock_number(self) -> int:
        digest = hashlib.blake2b(f"multiqueue {self.schema}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, signed=True)

    def _process(self, session: Any) -> str:
        """The name that the holder of the lock gives itself."""
        found = session.execute(
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = %s LIMIT 1",
            (self._lock_number(),),
        ).fetchone()
        words = (found[0] or "").split() if found else []
        return f"process {words[2]} on {words[1]}" if len(words) == 3 else "another process"

    def _check_version(self, session: Any) -> None:
        (version,) = session.execute("SELECT value FROM meta WHERE name = 'version'").fetchone() or (None,)
        if version != str(VERSION):
            raise StateMismatch(
                f"{str(self)!r} has version {version}, this multiqueue writes version {VERSION}; "
                "use the multiqueue that wrote it, or choose another [state] schema"
            )

    def _without_secret(self, text: str) -> str:
        password = urlsplit(self.url).password
        for secret in {password, unquote(password)} if password else ():
            text = text.replace(secret, "***")
        return text


class Connection:
    """As `StateConnection` says it."""

    SLICE = "least(CAST(floor({column} / ?) AS INTEGER), ?)"

    def __init__(self, session: Any, name: str, holder: str | None = None) -> None:
        self._session = session
        self._name = name
        self._holder = holder

    @property
    def in_transaction(self) -> bool:
        return bool(self._session.info.transaction_status != 0)

    def begin(self) -> None:
        self._session.execute("BEGIN")
        found = self._session.execute("SELECT value FROM meta WHERE name = 'holder' FOR SHARE").fetchone()
        if found is None or found[0] != self._holder:
            self._session.execute("ROLLBACK")
            raise StateInUse(f"another process has taken over the state {self._name!r}; this run ends")

    def execute(self, statement: str, values: Sequence[object] | dict[str, object] = ()) -> Any:
        assert not isinstance(values, dict), "values are told by their place"
        return self._session.execute((statement.replace("?", "%s")), _adapted(values))

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        adapted = [_adapted(row) for row in rows]
        if adapted:
            with self._session.cursor() as cursor:
                cursor.executemany((statement.replace("?", "%s")), adapted)

    def insert(self, statement: str, values: Sequence[object]) -> int:
        return int(self.execute(f"{statement} RETURNING seq", values).fetchone()[0])

    def close(self) -> None:
        self._session.close()


def _adapted(values: Iterable[object]) -> list[object]:
    """Values as PostgreSQL takes them: states by their names, and no text with a character of number 0."""
    return [
        one.value if isinstance(one, Enum) else one.replace("\0", "\ufffd") if isinstance(one, str) else one
        for one in values
    ]


def _has_tables(session: Any) -> bool:
    found = session.execute("SELECT to_regclass('meta') IS NOT NULL").fetchone()
    return bool(found and found[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.errors
    except ImportError as error:  # psycopg itself, or a libpq that is not there
        raise Unprepared(needs("a state in PostgreSQL", "psycopg")) from error
    return psycopg
