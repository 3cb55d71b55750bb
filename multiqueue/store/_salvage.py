"""Reads a store that may be damaged: what can be read comes, and each gap is named.

Promise     Everything that SQLite can still find, and whose check sum is right, is read; nothing is written. The report
            names messages left out, with the file and the ids. One read transaction: beside a store that is open, the
            answer is of one moment, but without large messages that were removed since, and their file with them.
Source      SQLite's `.recover` has the aim; the way is plainer: ask for the next row, and leap over where that fails.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from ._bodies import BodyDamaged, newest_files, owner_of, places_of, read_bodies
from ._confirmed import LogIndex, confirmed_pages, damage_of_log, read_log
from ._errors import NoStore, StoreDamaged, StoreError
from ._plan import check
from ._presence import left_alone
from ._protocol import Definition
from ._schema import DAMAGE, FILE_NAME, check_format, connect
from ._sqlite_reader import shortfall

_CACHE_BYTES = 8 << 20
_LAST_ID = (1 << 63) - 1
_LEAP = 8  # ids that a leap over what cannot be read passes at a time: few pages of bodies have fewer messages
_LEAPS = 100_000  # about as many leaps at most: seconds


class _Removed(Exception):
    """No one gets this message again: it was removed meanwhile, or is a transient one that a power loss took."""


class Message(NamedTuple):
    """A message as it stands in the file. What could not be read of it is None."""

    id: int
    queue: int
    level: int
    expires_at: float | None
    deliveries: int
    transient: bool
    properties: bytes | None
    body: bytes | None
    held_until_ms: int | None = None


def store_file(path: Path) -> Path:
    """The file of the store in the directory `path`.

    Raises:
        NoStore: the directory has no store, but perhaps its directories: a broker's data has one for each virtual host.
        StoreDamaged: the file is empty, and what its store left is there.
    """
    file = path / FILE_NAME
    try:
        if not file.is_file():
            below = sorted(str(other.parent) for other in path.glob(f"*/{FILE_NAME}"))
            instead = f"; there is one in {', '.join(map(repr, below))}" if below else ""
            raise NoStore(f"there is no store in {str(path)!r}: it has no {FILE_NAME}{instead}")
        file.open("rb").close()
    except OSError as error:
        raise NoStore(f"cannot read {str(file)!r}: {error.strerror}") from error
    left = left_alone(file)
    if left is not None:
        raise StoreDamaged(f"{str(file)!r} is empty, and {left.name!r} of its store is there: put it back")
    return file


class Salvage:
    """A store's file, open for reading, damaged or not. `damages` has a sentence for each gap, as they are met.

    Raises:
        NoStore: the directory has no store, or one that can be read only where one may write.
        StoreDamaged: not even its tables can be found, or it is something else.
    """

    def __init__(self, path: Path) -> None:
        self.file = store_file(path)
        self.damages: list[str] = []
        self._noted = 0  # damages ever; a reader may empty the list
        missing = shortfall(self.file)
        try:
            self.connection = connect(self.file, read_only=True, even_if_short=True, cache_bytes=_CACHE_BYTES)
        except DAMAGE as error:
            raise self._unreadable(error, missing) from error
        self._now: sqlite3.Connection | None = None  # sees what was committed since; opened when it is needed
        self._log: LogIndex | None = None
        try:
            self._log = read_log(self.connection, self.file)
            if missing and not (self._log and self._log.pages()[0]):
                self._note(
                    f"the file is cut off{missing}"
                )  # else a checkpoint has begun with it, and the log has the rest
            self.connection.execute("BEGIN")
            self.version = check_format(self.connection, self.file)
        except DAMAGE as error:
            self.close()
            raise self._unreadable(error, missing) from error
        except StoreDamaged:
            self.close()
            raise
        lost = damage_of_log(self.file, self._log)
        if lost:
            self._note(lost)
        if self.version == 0:
            self.close()
            if lost:
                raise StoreDamaged(f"{lost}; not even the tables are left")
            raise NoStore(f"there is no store in {str(path)!r}: {FILE_NAME} has no tables yet")

    def _note(self, damage: str) -> None:
        self.damages.append(damage)
        self._noted += 1

    def _unreadable(self, error: Exception, missing: str) -> StoreError:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CANTOPEN and not os.access(
            self.file.parent, os.W_OK
        ):
            return NoStore(
                f"cannot read {str(self.file)!r} where it is: it has a log, and SQLite must write beside that; copy"
                f" {str(self.file.parent)!r} to where you may write"
            )
        return StoreDamaged(f"{str(self.file)!r} is damaged beyond reading: {error}{missing}")

    def meta(self) -> dict[str, int]:
        """The store's own records of itself; fewer if they are damaged."""
        try:
            return dict(self.connection.execute("SELECT key, value FROM meta").fetchall())
        except DAMAGE as error:
            self._note(f"the table meta cannot be read: {error}")
            return {}

    def dropped(self) -> set[int]:
        """Queues whose messages are still to be removed."""
        try:
            return {queue for (queue,) in self.connection.execute("SELECT queue FROM dropped").fetchall()}
        except DAMAGE as error:
            self._note(f"the table dropped cannot be read: {error}")
            return set()

    def definitions(self) -> Iterator[Definition]:
        """The definitions, in the order in which they were first made."""
        question = "SELECT place, kind, key, document FROM definition WHERE place >= ? ORDER BY place"
        for row in self._rows(question, "definitions"):
            yield Definition._make(row[1:])

    def messages(self) -> Iterator[Message]:
        """The messages by id; then those whose body cannot be read."""
        places: set[tuple[int, int]] = set()
        noted = self._noted
        question = 'SELECT id, queue, level, "check", data FROM body WHERE id >= ? ORDER BY id'
        for message_id, queue, level, expected, data in self._rows(question, "bodies"):
            if not (isinstance(queue, int) and isinstance(level, int)):
                self._note(f"message {message_id}: its place cannot be read")
                continue
            places.add((queue, level))
            try:
                body = self._body(message_id, expected, data)
            except _Removed:
                continue
            yield self._message(message_id, queue, level, body)
        if self._noted > noted or self._lacks_bodies():
            yield from self._without_bodies(places)

    def close(self) -> None:
        self.connection.close()
        if self._now is not None:
            self._now.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _body(self, message_id: int, expected: object, data: object) -> bytes | None:
        """The body that a row has or names; None, and a note, where it is not the one that was stored."""
        if isinstance(data, bytes) and check(message_id, data) == expected:
            return data
        where = "the body"
        if isinstance(data, int) and isinstance(expected, int):
            try:
                body = self._body_in_file(message_id, owner_of(message_id, expected), data)
                if body is not None:
                    return body
                where = "the body (its file is missing)"
            except (BodyDamaged, OSError, *DAMAGE) as error:
                where = f"the body ({error})"
            if self._is_transient(message_id):
                raise _Removed  # such bytes are not synced
        then = "; if it came with the latest commit, the next opening undoes that" if self._may_be_untold(data) else ""
        self._note(f"message {message_id}: {where} is not the one that was stored{then}")
        return None

    def _may_be_untold(self, place: object) -> bool:
        """Whether a power loss may have kept the row with this place, of whose commit nobody was told, not the body."""
        if not isinstance(place, int) or self._log is None:
            return False
        newest = newest_files(self.file.parent)
        is_ahead = self._log.pages()[0] > confirmed_pages(self.file, self._log)
        return is_ahead and (not newest or place >= places_of(newest[0])[0])

    def _is_transient(self, message_id: int) -> bool:
        try:
            question = "SELECT 1 FROM header WHERE id = ? AND transient = 1"
            return self.connection.execute(question, (message_id,)).fetchone() is not None
        except DAMAGE:
            return False

    def _body_in_file(self, message_id: int, owner: int, place: int) -> bytes | None:
        """The body at a place, with its owner's id; None if its file is missing, though the row still names it."""
        while True:
            found, gone = read_bodies(self.file.parent, {owner: place})
            if not gone:
                return found[owner]
            if self._now is None:
                self._now = connect(self.file, read_only=True, even_if_short=True, cache_bytes=_CACHE_BYTES)
            row = self._now.execute("SELECT data FROM body WHERE id = ?", (message_id,)).fetchone()
            if row is None:
                raise _Removed
            if row[0] == place or not isinstance(row[0], int):
                return None
            place = row[0]

    def _message(self, message_id: int, queue: int, level: int, body: bytes | None) -> Message:
        """A message with what its header says."""
        held = "held_until_ms" if self.version > 3 else "NULL"
        question = (
            f'SELECT expires_at, deliveries, transient, properties, "check", size, {held} FROM header'
            " WHERE queue = ? AND level = ? AND id = ?"
        )
        try:
            row = self.connection.execute(question, (queue, level, message_id)).fetchone()
        except DAMAGE as error:
            self._note(f"message {message_id}: the header cannot be read: {error}")
            return Message(message_id, queue, level, None, 0, False, None, body)
        if row is None:
            self._note(f"message {message_id} has no header")
            return Message(message_id, queue, level, None, 0, False, None, body)
        expires_at, deliveries, transient, properties, expected, size, held_until_ms = row
        if not isinstance(properties, bytes) or check(message_id, properties) != expected:
            self._note(f"message {message_id}: the properties are not those that were stored")
            properties = None
        if body is not None and size != len(body):
            self._note(f"message {message_id}: the header says {size} bytes, the body has {len(body)}")
        numbers = message_id, queue, level, expires_at, deliveries, bool(transient)
        return Message(*numbers, properties, body, held_until_ms)

    def _lacks_bodies(self) -> bool:
        """Whether a header has no body, or that cannot be told."""
        question = "SELECT EXISTS (SELECT 1 FROM header h WHERE NOT EXISTS (SELECT 1 FROM body b WHERE b.id = h.id))"
        try:
            return bool(self.connection.execute(question).fetchone()[0])
        except DAMAGE:
            return True

    def _without_bodies(self, places: set[tuple[int, int]]) -> Iterator[Message]:
        """The messages that have a header and no readable body, on the levels that are known."""
        try:
            question = (
                "SELECT DISTINCT queue, level FROM header WHERE typeof(queue) = 'integer' AND typeof(level) = 'integer'"
            )
            places = places | set(self.connection.execute(question).fetchall())
        except DAMAGE:
            pass  # the damage is told when the rows themselves are read
        for queue, level in sorted(places):
            question = f"SELECT id FROM header WHERE queue = {queue} AND level = {level} AND id >= ? ORDER BY id"
            for (message_id,) in self._rows(question, f"headers of queue {queue}, level {level}"):
                if not self._has_body(message_id):
                    self._note(f"message {message_id} of queue {queue} has no body that can be read")
                    yield self._message(message_id, queue, level, None)

    def _has_body(self, message_id: int) -> bool:
        """Whether a message's body was found: it has been read, or could have been."""
        try:
            return self.connection.execute("SELECT 1 FROM body WHERE id = ?", (message_id,)).fetchone() is not None
        except DAMAGE:
            return False

    def _rows(self, question: str, what: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a question that begins at an id, its first column; leaps over what cannot be read."""
        start = 0
        while True:
            try:
                for row in self.connection.execute(question, (start,)):
                    if not isinstance(row[0], int) or row[0] < start:
                        raise sqlite3.DatabaseError("rows are out of order")
                    yield row
                    start = row[0] + 1
                return
            except DAMAGE as error:
                reason = error
            row = self._row(question, start)  # sqlite3 reads one row ahead, and lost it with the error
            if row is None:
                resumed = first_behind(lambda place: self._id(question, place), start, self._last_id())
                until = "the end" if resumed is None else f"id {resumed}"
                self._note(f"{what} from id {start} on cannot be read up to {until}: {reason}")
                if resumed is None:
                    return
                start = resumed
            elif row:
                yield row
                start = row[0] + 1
            else:
                return

    def _row(self, question: str, start: int) -> tuple[Any, ...] | None:
        """The first row from an id on; () if there is none, None if that cannot be read."""
        try:
            row = self.connection.execute(f"{question} LIMIT 1", (start,)).fetchone() or ()
        except DAMAGE:
            return None
        return None if row and (not isinstance(row[0], int) or row[0] < start) else row

    def _last_id(self) -> int:
        try:
            (found,) = self.connection.execute("SELECT value FROM meta WHERE key = 'next_id'").fetchone()
        except (*DAMAGE, TypeError):
            return _LAST_ID
        return found if isinstance(found, int) and found > 0 else _LAST_ID

    def _id(self, question: str, start: int) -> int | None:
        row = self._row(question, start)
        return None if row is None else row[0] if row else _LAST_ID


def first_behind(readable: Callable[[int], int | None], gap: int, last: int = _LAST_ID) -> int | None:
    """The lowest id that can be read behind a gap that begins at an id, or None.

    `readable(place)` is the first id from a place on, None within the gap, 2^63 - 1 behind the last one. No id is
    higher than `last`: the smaller that is, the smaller are the steps, and so what lies between two gaps and is leapt
    over with them.
    """
    low, step, most = gap, 1, max(_LEAP, last // _LEAPS)
    while readable(low + step) is None:
        low, step = low + step, min(2 * step, most)
        if low + step > last:
            return None
    high = low + step  # low: in the gap, high: behind it
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if readable(middle) is None else (low, middle)
    found = readable(high)
    return None if found == _LAST_ID else found
