"""A ledger's view of a pipeline, for `status` and for the report: read-only, beside a run if need be."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .arrivals import Arrivals, arrivals
from .forgetting import all_counts
from .state import TAKEN_AWAY, LaneCount, LedgerLook, State, noted_of_lanes


@dataclass(frozen=True, slots=True)
class Failure:
    """An item that was set aside."""

    lane: str
    item: str
    path: str
    files: int
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a lane's finished items had waited, from when they were found until they began, in seconds."""

    lane: str
    items: int
    median_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """The latest attempt at an item that has ended. Times are seconds at work."""

    lane: str
    path: str
    known_s: float
    started_s: float
    ended_s: float
    attempt: int
    is_failed: int  # 1 or 0, as SQLite has it


@dataclass(frozen=True, slots=True)
class Series:
    """The events per slice of the time at work: `starts[i]` and `ends[i]` items between i and i + 1 steps."""

    step_s: float
    starts: list[int]
    ends: list[int]

    def running(self) -> list[int]:
        """Items that were running at the end of each slice."""
        level, levels = 0, []
        for starts, ends in zip(self.starts, self.ends, strict=True):
            level += starts - ends
            levels.append(level)
        return levels


class LedgerView(LedgerLook):
    """A read-only look at the state of a pipeline."""

    def counts(self) -> list[LaneCount]:
        return all_counts(self._connection)

    def arrivals(self) -> dict[str, Arrivals]:
        """Of the lanes with events, how their files were found."""
        return arrivals(self._connection)

    def taken_away(self) -> dict[str, int]:
        """How many files of each lane were moved or deleted when they were done."""
        return {lane: int(count) for lane, count in noted_of_lanes(self._connection, TAKEN_AWAY).items()}

    def failures(self, limit: int, lanes: Collection[str] | None = None) -> list[Failure]:
        """So many of the items that are set aside, of these lanes or of all."""
        chosen = "" if lanes is None else f"AND lane IN ({', '.join('?' * len(lanes))})"
        rows = self._connection.execute(
            "SELECT lane, id, path, files, attempt, error FROM items "
            f"WHERE state = 'failed' {chosen} ORDER BY lane, seq LIMIT ?",
            (*(lanes or ()), limit),
        )
        return [Failure(*row) for row in rows]

    def waits(self) -> list[Waits]:
        """Per lane, the lanes in the order of their names."""
        rows = self._connection.execute(
            """
            WITH waits AS (
                SELECT lane, started_s - known_s AS wait,
                       row_number() OVER (PARTITION BY lane ORDER BY started_s - known_s) AS place,
                       count(*) OVER (PARTITION BY lane) AS items
                FROM items WHERE started_s IS NOT NULL
            )
            SELECT lane, items,
                   max(CASE WHEN place = (items + 1) / 2 THEN wait END),
                   max(CASE WHEN place = (items * 95 + 99) / 100 THEN wait END)
            FROM waits GROUP BY lane, items ORDER BY lane
            """
        )
        return [Waits(*row) for row in rows]

    def waits_of(self, lanes: set[str]) -> list[float]:
        """The waiting times of all items of these lanes, ascending: for lanes that are known to be few and small."""
        rows = self._connection.execute("SELECT lane, started_s - known_s FROM items WHERE started_s IS NOT NULL")
        return sorted(wait for lane, wait in rows if lane in lanes)

    def jobs(self, limit: int) -> list[Job]:
        """The latest `limit` of those that have ended, in the order of their lanes and starts."""
        rows = self._connection.execute(
            """
            SELECT * FROM (
                SELECT lane, path, known_s, started_s, ended_s, attempt, state = 'failed'
                FROM items WHERE ended_s IS NOT NULL ORDER BY ended_s DESC LIMIT ?
            ) AS latest ORDER BY lane, started_s
            """,
            (limit,),
        )
        return [Job(*row) for row in rows]

    def series(self, slices: int) -> Series:
        """The time at work cut into equal slices, with the starts and ends in each."""
        last = self._connection.execute("SELECT max(ended_s) FROM items").fetchone()[0] or 0.0
        step_s = max(last / slices, 1e-3)
        return Series(step_s, self._histogram("started_s", step_s, slices), self._histogram("ended_s", step_s, slices))

    def _histogram(self, column: str, step_s: float, slices: int) -> list[int]:
        counts = [0] * slices
        rows = self._connection.execute(
            f"SELECT {self._connection.SLICE.format(column=column)}, count(*) FROM items "
            f"WHERE {column} IS NOT NULL GROUP BY 1",
            (step_s, slices - 1),
        )
        for place, count in rows:
            counts[place] = count
        return counts


@contextlib.contextmanager
def ledger_view(state: State) -> Iterator[LedgerView]:
    """A look at the state.

    Raises:
        Unprepared: there is no state yet.
        PipelineError: as `State.in_sentences`.
    """
    with state.in_sentences(), contextlib.closing(state.connect_read_only()) as connection:
        yield LedgerView(connection)
