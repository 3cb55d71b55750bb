"""A state, whichever kind it is: what the ledger asks of SQLite and of PostgreSQL, and the questions of both.

The configuration makes one (`PipelineConfig.state`); no other code asks which kind it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .._base.errors import PipelineError
from .._base.items import STEP
from .._base.lifecycle import ItemState

TAKEN_AWAY = "files taken away of "
"""Before a lane, in the names of `meta`."""


class StateConnection(Protocol):
    """The part of `sqlite3.Connection` that the ledger needs. Statements are in SQL of both, with `?` for values."""

    SLICE: str
    """SQL for the slice that the moment `{column}` is in, of which `?` is the length and `?` the last."""

    @property
    def in_transaction(self) -> bool: ...
    def begin(self) -> None:
        """Begin a transaction that writes.

        Raises:
            StateInUse: another run has taken over.
        """

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any: ...
    def insert(self, statement: str, values: Sequence[object]) -> int:
        """Insert an item; its number."""

    def close(self) -> None: ...


class State(Protocol):
    """Where a state is. Its `str` names it in messages, without a password."""

    @property
    def path(self) -> Path | None:
        """Its file, that may lie in the output and move with it; None where it has none."""

    def exists(self) -> bool:
        """Whether there is a state.

        Raises:
            Unprepared: its directory or its server does not let one see.
        """

    def connect(self) -> StateConnection:
        """A connection for writing; the tables are made where there are none. Only while `exclusive` is held.

        Raises:
            Unprepared: its directory or its server does not let us write.
            StateMismatch: it is something else, or of a version that this one does not know.
            PipelineError: as `in_sentences`.
        """

    def connect_read_only(self) -> StateConnection:
        """A connection for looking only, also beside a run.

        Raises:
            Unprepared: there is none: nothing was run yet.
            StateMismatch: as `connect`.
            PipelineError: as `in_sentences`.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """While inside, no other process runs the pipeline with this state.

        Raises:
            StateInUse: one does already; the message names it.
            Unprepared: the lock cannot be taken.
            PipelineError: the disk is full.
        """

    def in_sentences(self) -> AbstractContextManager[None]:
        """While inside, what the library says of this state is raised as an error of ours.

        Raises:
            StateDamaged: the state is damaged.
            StateMismatch: it is no state.
            StateInUse: another program has locked it.
            Unprepared: it cannot be opened or written.
            PipelineError: the disk is full or fails, or the connection is lost.
        """

    def told(self, error: BaseException) -> PipelineError | None:
        """An error of the state's library, as one of ours; None of other errors."""


@dataclass(frozen=True, slots=True)
class LaneCount:
    """How many items of a lane are in one state, with their files and bytes."""

    lane: str
    state: ItemState
    items: int
    files: int
    size_bytes: int


def noted(connection: StateConnection, name: str) -> Any:
    """The value of this name in `meta`, or None."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def noted_of_lanes(connection: StateConnection, kind: str) -> dict[str, Any]:
    """The values whose names begin so, by the lanes that the names end in."""
    rows = connection.execute("SELECT name, value FROM meta WHERE name LIKE ? ORDER BY name", (f"{kind}%",))
    return {name.removeprefix(kind): value for name, value in rows}


def note(connection: StateConnection, name: str, value: object) -> None:
    """Have `meta` say this."""
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


class LedgerPart:
    """Statements about some tables of a state. Use it from one thread."""

    def __init__(self, connection: StateConnection) -> None:
        self._connection = connection


class LedgerLook(LedgerPart):
    """What the ledger and a look at it both tell."""

    def seconds_at_work(self) -> float:
        """How long runs of this pipeline have worked so far, all together, as last recorded."""
        return float(noted(self._connection, "worked_s") or 0.0)

    def made_by_others(self, jobs: Mapping[str, str]) -> int:
        """How many done items were made by other jobs than these: of steps by their names, of lanes by `""`."""
        rows = self._connection.execute(
            "SELECT lane, job, substr(path, 1, ?) = ?, count(*) FROM items WHERE state = 'done' AND job IS NOT NULL "
            "GROUP BY 1, 2, 3",
            (len(STEP), STEP),
        )
        return sum(count for lane, job, is_step, count in rows if job != jobs.get(lane if is_step else ""))


def lane_counts(connection: StateConnection) -> list[LaneCount]:
    """A row per lane and state that has items."""
    rows = connection.execute(
        "SELECT lane, state, count(*), CAST(sum(files) AS BIGINT), CAST(sum(bytes) AS BIGINT) FROM items "
        "GROUP BY lane, state ORDER BY lane, state"
    )
    return [LaneCount(lane, state_named(state), items, files, size) for lane, state, items, files, size in rows]


def state_named(text: str) -> ItemState:
    """The state of an item as a row has it. Raises what SQLite raises for damage where there is no such state."""
    try:
        return ItemState(text)
    except ValueError:
        raise sqlite3.DatabaseError(f"an item has no state {text!r}") from None
