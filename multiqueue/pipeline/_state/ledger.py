"""The record of a pipeline: which items there are, what became of each, in SQLite or PostgreSQL.

Promise     An item moves only along the arrows of `lifecycle.TRANSITIONS`: every UPDATE names the old state and
            fails if it is not that. An item is handed out for submission only after the transaction that holds
            its new attempt number is committed, so after a crash a published output can be told from a stale one.
            A file belongs to at most one item of a lane, for ever.
State       Tables meta, items, files, messages, leaving (`tables`). WAL with synchronous=NORMAL: after kill -9
            every committed transaction is there; after a power loss the last ones may be undone, which hands items back
            and never marks one done that is not.
Threads     None of its own and no lock: one thread, the runner's, makes every call. Readers (`pipeline status`,
            the report) open their own read-only connection; WAL lets them read beside the writer.
Processes   One at a time may write: `State.exclusive`.
Memory      Pages and counters; nothing grows with the number of items.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .._base.batching import cut, halves
from .._base.errors import IllegalTransition, StateMismatch
from .._base.items import MESSAGE, STEP, FileSeen, Item, Lane, item_id, place_seen
from .._base.lifecycle import ItemEvent, ItemState, after, before
from .._base.pace import Fits, Measured
from .._base.storage import Storage
from .._columns.put_out import PUT_OUT
from .arrivals import LedgerArrivals
from .forgetting import LedgerForgetting, all_counts
from .leaving import LedgerLeaving
from .listings import LedgerListings
from .messages import LedgerMessages
from .state import (
    LaneCount,
    LedgerLook,
    State,
    StateConnection,
    note,
    noted,
    noted_of_lanes,
    state_named,
)

FILES = "files"
"""The kind of an output of directories; others have the names of tables."""

# Items that are looked at to make the next ones of a lane: more are joined when these have gone.
_LOOKED_AT = 256

# A look at the end of a long state: enough for the lanes of today.
_LAST_MEASURED = 20_000

_SCHEMA_OF = "schema of "
"""Before a lane, in the names of `meta`."""

_COMMITS = "commits"
_THERE = "is there "

_FILE_COLUMNS = "lane, path, size, mtime_ns, item, place"

_ITEM_COLUMNS = "seq, id, lane, attempt, tries, number, redone"

REFUSED = "older than what the state remembers (forget_after)"
"""Why a scan passes over what `Scanned.refused` has."""

_AS_FOUND = "known_s = ?, tries = 0, retry_s = 0, error = NULL, started_s = NULL, ended_s = NULL"
"""What an item that was finished is when it waits again."""


@dataclass(frozen=True, slots=True)
class Redone:
    """Items that are to be done anew."""

    items: int
    left: int
    """Items that cannot be: their files are gone, or were messages."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The outcome of one slice of a scan."""

    added: int
    """New items."""
    reopened: Counter[ItemState]
    """Finished items that wait again because a file of theirs has changed, by the state they were in."""
    unchanged: int
    """Files that are known as they are."""
    rest: list[FileSeen]
    """New files that do not fill a batch yet."""
    busy: tuple[FileSeen, ...] = ()
    """Files of items that run, which may have read another version."""
    files: int = 0
    """Files of the new items, and those that have changed."""
    refused: tuple[FileSeen, ...] = ()
    """Files that are unknown, and so old that they may have been done and forgotten."""

    def with_rest(self) -> Scanned:
        """The same, once the rest was made an item."""
        return replace(self, added=self.added + 1, files=self.files + len(self.rest), rest=[])

    @property
    def has_news(self) -> bool:
        """Whether there are items that wait since."""
        return bool(self.added or self.reopened)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a lane is."""

    is_open: bool
    """Items of it wait or run."""
    has_failed: bool
    """Items of it were set aside."""


class Ledger(LedgerLook):
    """The state of one pipeline, open for writing. Use it from one thread."""

    def __init__(
        self,
        state: State,
        base: Path,
        storage: Storage | None = None,
        wall: Callable[[], float] = time.time,
        jobs: Mapping[str, str] | None = None,
        original: StateConnection | None = None,
    ) -> None:
        """`jobs` are the fingerprints of the jobs that run: of a step by its name, of all lanes by `""`.

        `original` is the state that this one is a copy of, without its files: those that are asked for are copied then.
        """
        self._state = state
        self._original = original
        self._wall = wall
        self._base = base
        self._storage = storage or Storage()
        self.jobs = jobs or {}
        super().__init__(state.connect())
        self.messages = LedgerMessages(self._connection)
        self.leaving = LedgerLeaving(self._connection)
        self.arrivals = LedgerArrivals(self._connection)
        self.forgetting = LedgerForgetting(self._connection)
        self.listings = LedgerListings(self._connection)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block is recorded, or nothing of it.

        Raises:
            PipelineError: the state cannot be written, as `State.in_sentences` says it.
        """
        try:
            self._connection.begin()
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:  # SQLite itself rolls back when the disk is full
                with contextlib.suppress(Exception):  # damage, or no connection: closing takes everything back
                    self._connection.execute("ROLLBACK")
            if (better := self._state.told(error)) is not None:
                raise better from error
            raise

    # What is known

    def __str__(self) -> str:
        """Its state, by its place, and whether anything is in it."""
        return f"the state {str(self._state)!r}{', which is new' if self.is_empty() else ''}"

    def identity(self) -> str:
        """A number that no other state has, however old this one is."""
        known = noted(self._connection, "identity")
        if known is None:
            known = uuid.uuid4().hex
            note(self._connection, "identity", known)
        return str(known)

    def schemas(self) -> dict[str, str]:
        """The columns of lanes as they were inferred: the JSON of a Spark schema by lane."""
        return noted_of_lanes(self._connection, _SCHEMA_OF)

    def record_schema(self, lane: str, schema: str) -> None:
        note(self._connection, _SCHEMA_OF + lane, schema)

    def is_empty(self) -> bool:
        return self._connection.execute("SELECT 1 FROM items LIMIT 1").fetchone() is None

    def require_output(self, kind: str, place: str) -> None:
        """Return if the output that the state belongs to is of this kind; an empty state takes any.

        A state that does not lie in its output keeps the output's place too, for it cannot move with it.

        Raises:
            StateMismatch: it is of another: what is done is not in this one.
        """
        if self._state.path is None:
            found = noted(self._connection, "place")
            if found is None:
                note(self._connection, "place", place)
            elif found != place:
                raise StateMismatch(
                    f"the state {str(self._state)!r} belongs to the output {found!r}, not to {place!r}; "
                    "give this pipeline another [state] schema"
                )
        known = noted(self._connection, "output") or (None if self.is_empty() else FILES)
        if known is None:
            note(self._connection, "output", kind)
        elif known != kind:
            raise StateMismatch(
                f"the finished items are in an output of {known}, not of {kind}; "
                "say so in [output], or choose another path"
            )

    def has_files(self, lane: str) -> bool:
        """Whether the lane ever had a file that still counts."""
        found = (self._original or self._connection).execute("SELECT 1 FROM files WHERE lane = ? LIMIT 1", (lane,))
        return found.fetchone() is not None

    def lanes_with_files(self) -> Iterator[tuple[str, str]]:
        """Every lane that ever had files, with the path of one; neither messages nor steps. A few look-ups per lane."""
        lane = ""
        while (
            row := (self._original or self._connection)
            .execute("SELECT lane, path FROM files WHERE lane > ? ORDER BY lane, path LIMIT 1", (lane,))
            .fetchone()
        ):
            lane, path = row
            if FileSeen(path, 0, 0).is_file:
                yield lane, path

    def counts(self) -> list[LaneCount]:
        """A row per lane and state that has items."""
        return all_counts(self._connection)

    def next_waiting(self, lane: str, now_s: float, limit: int) -> list[Item]:
        """Up to `limit` items of the lane whose retry is due, in the order they were found."""
        rows = self._connection.execute(
            f"SELECT {_ITEM_COLUMNS} FROM items WHERE state = 'waiting' AND lane = ? AND retry_s <= ? "
            "ORDER BY retry_s, seq LIMIT ?",
            (lane, now_s, limit),
        ).fetchall()
        return [self._item(row) for row in rows]

    def largest_waiting(self, lane: str) -> tuple[str, int] | None:
        """Of the item that waits with the largest files: its first file, and their bytes on average."""
        row = self._connection.execute(
            "SELECT path, bytes / files FROM items WHERE state = 'waiting' AND lane = ? ORDER BY 2 DESC LIMIT 1",
            (lane,),
        ).fetchone()
        return None if row is None else (row[0], int(row[1]))

    def regroup(self, lane: str, now_s: float, most: int | None, fits: Fits, looked_at: int = _LOOKED_AT) -> int:
        """Join and divide the next items of the lane that were never submitted, so that `most`, or all looked at, fit.

        How many more items there are now. Call it inside a transaction.
        """
        rows = self._connection.execute(
            "SELECT seq, files, bytes, attempt + tries FROM items WHERE state = 'waiting' AND lane = ? "
            "AND retry_s <= ? ORDER BY retry_s, seq LIMIT ?",
            (lane, now_s, looked_at),
        ).fetchall()
        groups: list[list[int]] = []
        held_files = held_bytes = more = 0
        for seq, files, size_bytes, tried in rows:
            if held_files and not tried and fits(held_files + files, held_bytes + size_bytes):
                groups[-1].append(seq)
                held_files, held_bytes, more = held_files + files, held_bytes + size_bytes, more - 1
                continue
            if len(groups) == most:
                break
            groups.append([seq])
            if not tried and files > 1 and not fits(files, size_bytes):
                more += self._divide(seq, fits)
                held_files = 0
            else:
                held_files, held_bytes = (0, 0) if tried else (files, size_bytes)
        for group in groups:
            if len(group) > 1:
                self._join(group)
        return more

    def _join(self, group: Sequence[int]) -> None:
        """Make one item of several, in this order; it is the first, with another id."""
        first, *others = group
        files = [one for seq in group for one in self._files(seq)]
        self._connection.executemany("DELETE FROM files WHERE item = ?", [(seq,) for seq in group])
        self._connection.executemany("DELETE FROM items WHERE seq = ?", [(seq,) for seq in others])
        self._fill(first, files)

    def _divide(self, seq: int, fits: Fits) -> int:
        """Make several items of one, so that each fits; how many more there are. The first has the place of the old."""
        lane, known_s = self._connection.execute("SELECT lane, known_s FROM items WHERE seq = ?", (seq,)).fetchone()
        parts: list[list[FileSeen]] = []
        for one in self._files(seq):
            if parts and fits(len(parts[-1]) + 1, sum(file.size_bytes for file in parts[-1]) + one.size_bytes):
                parts[-1].append(one)
            else:
                parts.append([one])
        self._connection.execute("DELETE FROM files WHERE item = ?", (seq,))
        self._fill(seq, parts[0])
        for part in parts[1:]:
            self.add(lane, part, known_s)
        return len(parts) - 1

    def _fill(self, seq: int, files: Sequence[FileSeen]) -> None:
        """Give an item that has no files these."""
        (lane,) = self._connection.execute("SELECT lane FROM items WHERE seq = ?", (seq,)).fetchone()
        self._connection.execute(
            "UPDATE items SET id = ?, path = ?, files = ?, bytes = ? WHERE seq = ?",
            (
                self._free_id(lane, files),
                files[0].path,
                len(files),
                sum(one.size_bytes for one in files),
                seq,
            ),
        )
        self._add_files(lane, seq, files)

    def measured(self) -> list[Measured]:
        """The cost of the jobs of each lane that ended last, those of all lanes by their number in the ledger."""
        rows = self._connection.execute(
            "SELECT lane, count(*), sum(files), sum(bytes), sum(ended_s - started_s) FROM items "
            "WHERE state = 'done' AND seq > (SELECT max(seq) FROM items) - ? AND ended_s > started_s GROUP BY lane",
            (_LAST_MEASURED,),
        )
        return [Measured(lane, items, int(files), int(size), float(took)) for lane, items, files, size, took in rows]

    def next_retry_s(self, lane: str, after_s: float) -> float | None:
        """When the next item of the lane that waits for a later try may be submitted; None when none does."""
        (retry_s,) = self._connection.execute(
            "SELECT min(retry_s) FROM items WHERE state = 'waiting' AND lane = ? AND retry_s > ?",
            (lane, after_s),
        ).fetchone()
        return None if retry_s is None else float(retry_s)

    def standing(self, lane: str, part: str | None = None) -> Standing:
        """Whether items of the lane (for a step: of this part of it) still wait or run, or were set aside."""
        is_open = any(self._has(lane, state, part) for state in (ItemState.WAITING, ItemState.SUBMITTED))
        return Standing(is_open, self._has(lane, ItemState.FAILED, part))

    def _has(self, lane: str, state: ItemState, part: str | None) -> bool:
        query = f"SELECT 1 FROM items WHERE state = '{state}' AND lane = ? AND path = coalesce(?, path) LIMIT 1"
        return self._connection.execute(query, (lane, part and STEP + part)).fetchone() is not None

    def knows(self, lane: str, seen: FileSeen) -> bool:
        """Whether an item of the lane has this file as it is."""
        row = self._known(lane, [seen.path]).get(seen.path)
        return row is not None and row[:2] == (seen.size_bytes, seen.mtime_ns)

    def done_of(self, lane: str, part: str | None = None) -> Iterator[tuple[str, int]]:
        """The id and the attempt of each item of the lane (for a step: of this part of it) that is done."""
        yield from self._connection.execute(
            "SELECT id, attempt FROM items WHERE state = 'done' AND lane = ? AND path = coalesce(?, path) ORDER BY seq",
            (lane, part and STEP + part),
        )

    # What a scan finds

    def record_scan(
        self, lane: str, seen: Sequence[FileSeen], batch: int, now_s: float, batch_bytes: int | None = None
    ) -> Scanned:
        """Make items of the files that are new, and reopen items whose files have changed.

        Files that do not fill a batch come back in `rest`: pass them again with the next ones, and at the end
        of the lane to `record_rest`.
        """
        if not seen:  # PostgreSQL takes no empty list
            return Scanned(0, Counter(), 0, [])
        paths = [one.path for one in seen]
        known, leaving = self._known(lane, paths), self.leaving.versions(lane, paths)
        new: list[FileSeen] = []
        changed: dict[int, FileSeen] = {}
        found: list[tuple[FileSeen, int]] = []
        same = 0
        refused = []
        below_ns = self.forgetting.of(lane).below_ns
        for one in seen:
            row = known.get(one.path)
            if row is None and one.mtime_ns < below_ns and one.is_file:
                refused.append(one)
            elif row is None and (one.size_bytes, one.mtime_ns) in leaving.get(one.path, ()):
                same += 1
            elif row is None:
                new.append(one)
            elif row[:2] != (one.size_bytes, one.mtime_ns):
                changed[row[2]] = one
                found.append((one, row[2]))
            else:
                same += 1
        full, rest = cut(new, batch, batch_bytes)
        for files in full:
            self.add(lane, files, now_s)
        was = {seq: self._reopen(seq, now_s) for seq in sorted(changed)}
        for seq, one in changed.items():
            if not one.is_file:
                self._renew(seq, one)
        reopened = Counter(state for state in was.values() if state in before(ItemEvent.CHANGE))
        busy = tuple(one for one, seq in found if was.get(seq) is ItemState.SUBMITTED)
        count = sum(map(len, full)) + reopened.total()
        return Scanned(len(full), reopened, same, rest, busy, count, tuple(refused))

    def record_rest(self, lane: str, rest: Sequence[FileSeen], now_s: float) -> None:
        """Make one last, smaller item of the files that did not fill a batch."""
        if rest:
            self.add(lane, rest, now_s)

    def forget(self, lane: Lane) -> None:
        """Forget some items that were done long ago, as `forgetting` says; a copy forgets nothing. In a transaction."""
        if self._original is None:
            self.forgetting.forget(lane, self._wall())

    def _known(self, lane: str, paths: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        marks = ",".join("?" * len(paths))
        self._copy_files(f"lane = ? AND path IN ({marks})", (lane, *paths))
        rows = self._connection.execute(
            f"SELECT path, size, mtime_ns, item FROM files WHERE lane = ? AND path IN ({marks})",
            (lane, *paths),
        )
        return {path: (size, mtime_ns, item) for path, size, mtime_ns, item in rows}

    def add(self, lane: str, files: Sequence[FileSeen], now_s: float, tries: int = 0, attempt: int = 0) -> None:
        """Make an item of these files, which no item has yet."""
        identity = self._free_id(lane, files)
        size_bytes = sum(one.size_bytes for one in files)
        number = self._connection.insert(
            "INSERT INTO items (id, lane, path, files, bytes, known_s, tries, attempt) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (identity, lane, files[0].path, len(files), size_bytes, now_s, tries, attempt),
        )
        self._add_files(lane, number, files)

    def _free_id(self, lane: str, files: Sequence[FileSeen]) -> str:
        """The id of an item of these files: another one where files of their names were read before and taken away."""
        paths = [one.path for one in files]
        identity, times = item_id(lane, paths), 1
        while self._connection.execute("SELECT 1 FROM items WHERE id = ?", (identity,)).fetchone():
            times += 1
            identity = item_id(lane, [*paths, str(times)])
        return identity

    def _add_files(self, lane: str, seq: int, files: Sequence[FileSeen]) -> None:
        self._connection.executemany(
            "INSERT INTO files (lane, path, size, mtime_ns, item, place) VALUES (?, ?, ?, ?, ?, ?)",
            [(lane, one.path, one.size_bytes, one.mtime_ns, seq, place) for place, one in enumerate(files)],
        )

    def _reopen(self, seq: int, now_s: float) -> ItemState:
        """Let a finished item wait again; the state it was in. One that waits reads the new content by itself."""
        (value,) = self._connection.execute("SELECT state FROM items WHERE seq = ?", (seq,)).fetchone()
        old = state_named(value)
        if old in before(ItemEvent.CHANGE):
            self._connection.execute(
                f"UPDATE items SET state = ?, {_AS_FOUND}, redone = 0 WHERE seq = ?",
                (after(old, ItemEvent.CHANGE), now_s, seq),
            )
        return old

    def _renew(self, seq: int, seen: FileSeen) -> None:
        """What is no file cannot be looked at again when the item begins: keep what a waiting one is about to read."""
        self._connection.execute(
            "UPDATE files SET size = ?, mtime_ns = ? WHERE item = ? AND path = ? "
            "AND (SELECT state FROM items WHERE seq = files.item) = 'waiting'",
            (seen.size_bytes, seen.mtime_ns, seq, seen.path),
        )

    # What becomes of an item

    def submit(self, item: Item) -> Item:
        """The item with its new attempt number. Submit it only once the transaction has ended."""
        job = self.jobs.get("" if item.part is None else item.lane)
        self._move(item, ItemEvent.SUBMIT, "attempt = attempt + 1, number = NULL, job = ?", (job,))
        return replace(item, attempt=item.attempt + 1)

    def lost(self, there: Mapping[str, bool]) -> list[str]:
        """Those that were there, by their names, and are not any more; the state knows from now on what there is."""
        known = noted_of_lanes(self._connection, _THERE)
        for name in there:
            if there[name] and name not in known:
                note(self._connection, _THERE + name, 1)
        return [name for name in there if name in known and not there[name]]

    def number_commit(self, seqs: Iterable[int]) -> str:
        """The number of the commit that is about to be made for these items, which are submitted; it is counted."""
        count = self.commits() + 1
        number = f"{count}-{uuid.uuid4().hex}"
        note(self._connection, _COMMITS, str(count))
        self._connection.executemany(
            "UPDATE items SET number = ? WHERE seq = ? AND state = 'submitted'", [(number, seq) for seq in seqs]
        )
        return number

    def commits(self) -> int:
        """How many commits to tables were begun: a table with a later one has seen more than this state."""
        return int(noted(self._connection, _COMMITS) or 0)

    def succeed(self, item: Item, files: Iterable[FileSeen], started_s: float, ended_s: float) -> None:
        """The item is done; `files` are its files as the job met them, for the next scan to compare with."""
        self._move(
            item,
            ItemEvent.SUCCEED,
            "started_s = ?, ended_s = ?, ended_at = ?, error = NULL, tries = 0, redone = 0",
            (started_s, ended_s, self._wall()),
        )
        self._connection.executemany(
            "UPDATE files SET size = ?, mtime_ns = ? WHERE lane = ? AND path = ?",
            [(one.size_bytes, one.mtime_ns, item.lane, one.path) for one in files],
        )
        self.messages.forget(item.lane, item.files if item.messages else ())

    def postpone(self, item: Item, error: str, retry_s: float) -> None:
        """The item failed and waits for its next try."""
        self._move(item, ItemEvent.POSTPONE, "error = ?, tries = tries + 1, retry_s = ?", (error, retry_s))

    def give_up(self, item: Item, error: str, started_s: float, ended_s: float) -> None:
        """The item is set aside."""
        self._move(
            item,
            ItemEvent.GIVE_UP,
            "error = ?, tries = tries + 1, started_s = ?, ended_s = ?",
            (error, started_s, ended_s),
        )

    def split(self, item: Item, tries: int, now_s: float) -> int:
        """Two items of half its files each stand where the item stood; how many there are.

        A half that is still several files counts `tries` failures already, a single file none. The item is gone with
        its number, so take its output away before.
        """
        self._move(item, ItemEvent.SPLIT, "error = NULL", ())
        self._connection.execute("DELETE FROM files WHERE item = ?", (item.seq,))
        self._connection.execute("DELETE FROM items WHERE seq = ?", (item.seq,))
        parts = halves(item.files)
        for files in parts:
            # As after an attempt, so that nothing joins them with others again.
            self.add(item.lane, files, now_s, tries if len(files) > 1 else 0, attempt=1)
        return len(parts)

    def hand_back(self, item: Item) -> None:
        """The attempt was cancelled: the item waits again, as if this attempt had not been."""
        self._move(item, ItemEvent.HAND_BACK, "retry_s = 0", ())

    def put_back_failed(
        self, lanes: Iterable[str] | None = None, forgotten: Callable[[Item], None] = lambda item: None
    ) -> int:
        """Let every failed item (of these lanes) wait again; how many there were.

        Files that are gone are forgotten, and items that have no file left: `forgotten` is called with those.
        """
        chosen = None if lanes is None else set(lanes)
        rows = self._connection.execute(f"SELECT {_ITEM_COLUMNS} FROM items WHERE state = 'failed'").fetchall()
        count = 0
        for row in rows:
            if chosen is None or row[2] in chosen:
                item = self._item(row)
                if self.put_back(item.seq):
                    count += 1
                else:
                    forgotten(item)
        return count

    def put_back(self, seq: int) -> bool:
        """Let a failed item wait again, without its files that are gone; False when none is left."""
        files = self._files(seq)
        gone = [(seq, one.path) for one in files if one.is_file and self._is_gone(one.path)]
        self._connection.executemany("DELETE FROM files WHERE item = ? AND path = ?", gone)
        if len(gone) == len(files):
            self._connection.execute("DELETE FROM items WHERE seq = ?", (seq,))
            return False
        self._connection.execute(
            "UPDATE items SET state = ?, tries = 0, retry_s = 0, files = files - ?, known_s = ?, "
            "path = (SELECT path FROM files WHERE item = seq ORDER BY place LIMIT 1) WHERE seq = ?",
            (after(ItemState.FAILED, ItemEvent.PUT_BACK), len(gone), self.seconds_at_work(), seq),
        )
        return True

    def redo(self, lanes: Collection[str], since_s: float | None, *, changed: bool) -> Redone:
        """Let the items of these lanes and steps that are done be done anew; their rows stay until then.

        Only those that were done since a moment of the clock on the wall, and with `changed` those that another job
        than the one that runs now has made. A step's run once what they read is done. Output from now on may have other
        types.
        """
        self._connection.execute("DELETE FROM meta WHERE name LIKE ?", (f"{_SCHEMA_OF}{PUT_OUT}%",))
        query = "SELECT seq, lane, path, job, ended_at FROM items WHERE state = 'done'"
        rows = self._connection.execute(query).fetchall()
        count = left = 0
        for seq, lane, path, job, ended_at in rows:
            is_step = path.startswith(STEP)
            is_other = job is not None and job != self.jobs.get(lane if is_step else "")
            if lane not in lanes or (changed and not is_other) or (since_s is not None and (ended_at or 0.0) < since_s):
                continue
            if is_step:  # as if what it reads were other items
                self._connection.execute("UPDATE files SET mtime_ns = -1 WHERE item = ?", (seq,))
            elif self._can_be_read(seq):
                self._connection.execute(
                    f"UPDATE items SET state = ?, {_AS_FOUND}, redone = 1 WHERE seq = ?",
                    (after(ItemState.DONE, ItemEvent.REDO), self.seconds_at_work(), seq),
                )
            else:
                left += 1
                continue
            count += 1
        return Redone(count, left)

    def _can_be_read(self, seq: int) -> bool:
        """Whether the item has files, and all of them are there."""
        files = self._files(seq)
        return bool(files) and all(one.is_file and not self._is_gone(one.path) for one in files)

    def _is_gone(self, path: str) -> bool:
        try:
            self._storage.status(place_seen(path, self._base))
        except OSError as error:
            return isinstance(error, FileNotFoundError | NotADirectoryError)
        return False

    def recover(self, is_published: Callable[[Item], bool]) -> tuple[int, int]:
        """Settle what a run that died had submitted: how many turned out done, and how many wait again."""
        done = waiting = 0
        while rows := self._connection.execute(
            f"SELECT {_ITEM_COLUMNS} FROM items WHERE state = 'submitted' LIMIT 500"
        ).fetchall():
            with self.transaction():
                for item in map(self._item, rows):
                    if is_published(item):
                        done_now = "ended_at = ?, error = NULL, tries = 0, redone = 0"
                        self._move(item, ItemEvent.SUCCEED, done_now, (self._wall(),))
                        self.messages.forget(item.lane, item.files if item.messages else ())
                        done += 1
                    else:
                        self.hand_back(item)
                        waiting += 1
        with self.transaction():
            self._connection.execute("UPDATE items SET retry_s = 0 WHERE state = 'waiting' AND retry_s > 0")
        return done, waiting

    def record_seconds_at_work(self, seconds: float) -> None:
        note(self._connection, "worked_s", seconds)

    def record_process(self) -> None:
        """Leave the number of this process for the error that a second one gives."""
        note(self._connection, "process", os.getpid())

    def _move(self, item: Item, event: ItemEvent, assignments: str, values: tuple[object, ...]) -> None:
        (old,) = before(event)
        cursor = self._connection.execute(
            f"UPDATE items SET state = ?, {assignments} WHERE seq = ? AND state = ?",
            (after(old, event), *values, item.seq, old),
        )
        if cursor.rowcount != 1:
            raise IllegalTransition(f"item {item.id} of lane {item.lane!r} cannot {event}: it is not {old}")

    def _item(self, row: tuple[int, str, str, int, int, str | None, int]) -> Item:
        seq, identity, lane, attempt, tries, number, redone = row
        files = tuple(self._files(seq))
        if not files:
            raise sqlite3.DatabaseError(f"item {identity} has no files")
        messages = self.messages.payloads(lane, files) if files[0].path.startswith(MESSAGE) else ()
        return Item(identity, lane, files, self._base, attempt, tries, seq, messages, number, bool(redone))

    def _copy_files(self, which: str, values: Sequence[object]) -> None:
        """Have these files of the original, if this is a copy; what is here already is newer."""
        if self._original is not None:
            rows = self._original.execute(f"SELECT {_FILE_COLUMNS} FROM files WHERE {which}", values).fetchall()
            marks = ", ".join("?" * len(_FILE_COLUMNS.split(", ")))
            # An item that the copy has joined with others is gone, and its files are that one's.
            self._connection.executemany(
                f"INSERT INTO files ({_FILE_COLUMNS}) VALUES ({marks}) ON CONFLICT DO NOTHING", rows
            )

    def _files(self, seq: int) -> list[FileSeen]:
        self._copy_files("item = ?", (seq,))
        rows = self._connection.execute("SELECT path, size, mtime_ns FROM files WHERE item = ? ORDER BY place", (seq,))
        return [FileSeen(*row) for row in rows]


@contextlib.contextmanager
def open_ledger(
    state: State,
    base: Path,
    storage: Storage | None = None,
    jobs: Mapping[str, str] | None = None,
    original: StateConnection | None = None,
) -> Iterator[Ledger]:
    """The state of one pipeline, open for writing; closed at the end. SQLite's errors inside become sentences.

    Raises:
        PipelineError: as `State.in_sentences`.
    """
    with state.in_sentences(), contextlib.closing(Ledger(state, base, storage, jobs=jobs, original=original)) as ledger:
        yield ledger
