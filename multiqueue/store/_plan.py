"""A batch reduced to its outcome, and the few statements that write it.

Promise     Applying a plan leaves what its operations, one after the other, would have left. A message that is put
            and deleted in one plan is never written.
Assumes     sqlite3 lets go of the interpreter's lock at every step of a statement, and beside a thread that computes
            it gets it back only after the switch interval: a row a step would be 200 messages a second. So rows
            go in by the thousand in a statement (docs/decisions/0701-headers-apart.md). And that a value
            costs as much to bind as SQLite takes to store it: what plain headers have in common is given once. And that
            a statement lets go of that lock five times: a batch is one statement a table, of few sizes, which a LIMIT
            fits to the batch: the rows behind it, all NULL, are not looked at.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby, repeat
from operator import attrgetter, is_
from zlib import crc32 as crc32_of_few

from ._bodies import Bodies
from ._crc import crc32
from ._dropped import Dropped
from ._protocol import Define, Delete, Delivered, DropQueue, Operation, Put, Undefine

# Rows of a statement, at most a third more than needed; the last: 10,240 values, and SQLite allows 32,766.
_SIZES_OF_STATEMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_COPIED = 4096  # bytes of a body; sqlite3 looks for an adapter of `bytes`, none of `bytearray`: more than a copy costs
MOST_STATEMENTS = 4 * len(_SIZES_OF_STATEMENTS) + 32  # inserts of bodies, headers, both plain ones; and the others

_COLUMNS = 'id, size, "check", properties, queue, level, expires_at, deliveries, transient, held_until_ms'
_HEADERS = f"INSERT INTO header ({_COLUMNS}) SELECT * FROM (VALUES {{}}) LIMIT ?"
_HEADERS_PLAIN = [
    f"INSERT INTO header ({_COLUMNS}) SELECT"  # SQLite names these columns so
    f" column1, column2, column3, column4, column5, column6, NULL, 0, {transient}, NULL FROM (VALUES {{}}) LIMIT ?"
    for transient in (0, 1)
]
_BODIES = 'INSERT INTO body (id, queue, level, "check", data) SELECT * FROM (VALUES {}) LIMIT ?'
_HEADERS_OF = (
    "FROM header WHERE (queue, level, id) IN"
    " (SELECT queue, level, id FROM body WHERE id IN (SELECT value FROM json_each(?)))"
)
_SIZES = f"SELECT count(*), total(size) {_HEADERS_OF}"
# The same where no body is in a file: without a look at the headers, and at the bytes.
_LENGTHS = "SELECT count(*), total(length(data)) FROM body WHERE id IN (SELECT value FROM json_each(?))"
_DELETE_HEADERS = f"DELETE {_HEADERS_OF}"
_DELETE_BODIES = "DELETE FROM body WHERE id IN (SELECT value FROM json_each(?))"
# The place, the size and the `check` of each body among these that is in a file: one row, as the others (NOT INDEXED:
# by id). And those of some places that rows still name.
_PLACES = (
    "SELECT json_group_array(json_array(data, (SELECT size FROM header"
    ' WHERE (queue, level, id) = (body.queue, body.level, body.id)), "check"))'
    " FROM body NOT INDEXED WHERE id IN (SELECT value FROM json_each(?)) AND typeof(data) = 'integer'"
)
_STILL_NAMED = (
    "SELECT json_group_array(value) FROM json_each(?)"
    " WHERE EXISTS (SELECT 1 FROM body WHERE typeof(data) = 'integer' AND data = value)"
)
_DELIVERED = (
    "UPDATE header SET deliveries = ? WHERE (queue, level, id) = (SELECT queue, level, id FROM body WHERE id = ?)"
)
_DEFINE = (
    "INSERT INTO definition (kind, key, document) VALUES (?, ?, ?)"
    " ON CONFLICT (kind, key) DO UPDATE SET document = excluded.document"
)
_UNDEFINE = "DELETE FROM definition WHERE kind = ? AND key = ?"
_DROP = "INSERT OR IGNORE INTO dropped VALUES (?)"

_ID = attrgetter("id")
_FIELDS = attrgetter(
    "id", "queue", "level", "properties", "body", "expires_at", "deliveries", "transient", "held_until_ms"
)


class Plan:
    """Operations of one transaction, gathered by kind."""

    def __init__(self, dropped: Dropped, bodies: Bodies) -> None:
        self.drops: list[int] = []  # queues that it drops
        self._bodies = bodies
        self._dropped = dropped  # and those before it: what is put on them is gone
        self.messages = 0  # how many more there are afterwards, and their bytes
        self.bytes = 0
        self._puts: dict[int, Put] = {}
        self._deletes: dict[int, None] = {}
        self._delivered: dict[int, int] = {}
        self._definitions: list[Define | Undefine] = []

    def run(self, connection: sqlite3.Connection, operations: Iterable[Operation]) -> None:
        """Apply the operations; the caller begins and commits.

        Raises:
            sqlite3.Error, OSError, TypeError, ValueError, OverflowError: roll back.
        """
        for kind, alike in groupby(operations, type):
            if kind is Put:
                self._add_puts(connection, list(alike))  # type: ignore[arg-type]
                continue
            for operation in alike:
                if kind is Delete:
                    self._add_deletes(operation.ids)  # type: ignore[union-attr]
                else:
                    self._add_other(operation)
        self._flush(connection)

    def _add_puts(self, connection: sqlite3.Connection, puts: list[Put]) -> None:
        if self._dropped or self.drops:
            puts = [put for put in puts if put.queue not in self._dropped and put.queue not in self.drops]
        new = dict(zip(map(_ID, puts), puts, strict=True))
        if len(new) == len(puts) and self._puts.keys().isdisjoint(new) and self._deletes.keys().isdisjoint(new):
            self._puts.update(new)
            return
        for put in puts:
            if put.id in self._puts or put.id in self._deletes:
                self._flush(connection)  # the same id twice: let the table say what it thinks of it
            self._puts[put.id] = put

    def _add_deletes(self, ids: Sequence[int]) -> None:
        for message_id in ids:
            if self._puts.pop(message_id, None) is None:
                self._deletes[message_id] = None

    def _add_other(self, operation: Operation) -> None:
        match operation:
            case Delivered(message_id, deliveries):
                self._delivered[message_id] = deliveries
            case Define() | Undefine():
                self._definitions.append(operation)
            case DropQueue(queue):
                self.drops.append(queue)
            case _:
                raise TypeError(f"{operation!r} is not an operation of a store")

    def _flush(self, connection: sqlite3.Connection) -> None:
        if self._puts:
            self._insert(connection)
        if self._delivered:
            connection.executemany(_DELIVERED, [(count, one) for one, count in self._delivered.items()])
        if self._deletes:
            self._delete(connection)
        for definition in self._definitions:
            connection.execute(_DEFINE if isinstance(definition, Define) else _UNDEFINE, definition[:3])
        if self.drops:
            connection.executemany(_DROP, [(queue,) for queue in self.drops])
        self._puts, self._deletes, self._delivered = {}, {}, {}
        self._definitions = []

    def _insert(self, connection: sqlite3.Connection) -> None:
        # Column by column, each in one call: of these a message would need twenty.
        puts = list(self._puts.values())
        ids, queues, levels, properties, bodies, *others = zip(*map(_FIELDS, puts), strict=True)
        are_plain = _are_plain(*others)
        _check_places(ids, queues, levels)
        if not are_plain:
            _check_others(*others)
        sizes = list(map(len, bodies))
        headers = [ids, sizes, map(crc32_of_few, properties, ids), map(bytearray, properties), queues, levels]
        if are_plain:
            insert = _HEADERS_PLAIN[1 if puts[0].transient else 0]
        else:
            insert = _HEADERS
            expires_at, deliveries, transient, held_until_ms = others
            headers += [expires_at, deliveries, map(int, map(bool, transient)), held_until_ms]
        checks: Iterable[int] = map(crc32, bodies, ids)
        data: Iterable[object] = map(bytearray if max(sizes) <= _COPIED else _bound, bodies)
        places = self._write_bodies(puts, bodies, sizes)
        if len(places) == len(puts):
            checks, data = zip(*places.values(), strict=True)
        elif places:
            kept = [places.get(one.id) or (crc32(one.body, one.id), _bound(one.body)) for one in puts]
            checks, data = zip(*kept, strict=True)
        _insert_rows(connection, insert, headers, len(puts))
        _insert_rows(connection, _BODIES, [ids, queues, levels, checks, data], len(puts))
        self.messages += len(puts)
        self.bytes += sum(sizes)

    def _write_bodies(
        self, puts: Sequence[Put], bodies: Sequence[bytes], sizes: Sequence[int]
    ) -> dict[int, tuple[int, int]]:
        """Write the bodies that are worth it into a file: the `check` and the place in the row of each such message."""
        total = sum(sizes)
        if total < self._bodies.large_commit_bytes:
            return {}
        least, least_shared = self._bodies.large_bytes, self._bodies.shared_bytes
        if min(sizes) >= least and not any(map(is_, bodies, bodies[1:])):  # as below, without a look at each
            if not self._bodies.takes(total, total):
                return {}
            ids = list(map(_ID, puts))
            return dict(zip(ids, zip(repeat(0), self._bodies.append(ids, bodies)), strict=True))
        runs: list[list[Put]] = []  # messages with one object for their body
        run: list[Put] = []
        previous = puts[0]
        for put in puts:
            body = put.body
            if body is previous.body and len(body) >= least_shared and put is not previous:
                if not run:
                    run = [previous]
                    runs.append(run)
                run.append(put)
            elif len(body) >= least:
                run = [put]
                runs.append(run)
            else:
                run = []
            previous = put
        large = [run for run in runs if len(run[0].body) * len(run) >= least]
        size, in_rows = 0, 0
        for run in large:
            size += len(run[0].body)
            in_rows += len(run[0].body) * len(run)
        if not large or not self._bodies.takes(size, in_rows):
            return {}
        owners = [min([put.id for put in run]) for run in large]
        places = self._bodies.append(owners, [run[0].body for run in large])
        return {
            put.id: (put.id - owner + 1 if len(run) > 1 else 0, place)
            for owner, run, place in zip(owners, large, places, strict=True)
            for put in run
        }

    def _delete(self, connection: sqlite3.Connection) -> None:
        count, size = remove(connection, list(self._deletes), self._bodies)
        self.messages -= count
        self.bytes -= size


def remove(connection: sqlite3.Connection, ids: Sequence[int], bodies: Bodies) -> tuple[int, int]:
    """Delete messages; how many there were, and the bytes of their bodies."""
    listed = json.dumps(ids)
    gone: dict[int, int] = {}
    shared: set[int] = set()
    if not bodies.is_empty:
        ((found,),) = connection.execute(_PLACES, (listed,)).fetchall()
        for place, of_body, is_shared in json.loads(found):
            gone[place] = of_body or 0
            if is_shared:
                shared.add(place)
    count, size = connection.execute(_LENGTHS if bodies.is_empty else _SIZES, (listed,)).fetchone()
    connection.execute(_DELETE_HEADERS, (listed,))
    connection.execute(_DELETE_BODIES, (listed,))
    if shared:
        ((found,),) = connection.execute(_STILL_NAMED, (json.dumps(list(shared)),)).fetchall()
        for place in json.loads(found):
            del gone[place]
    bodies.release(gone.items())
    return count, int(size)


def check(message_id: int, data: bytes) -> int:
    """The check sum of some bytes of a message: of another message's bytes it is another one."""
    return crc32(data, message_id & 0xFFFFFFFF)


def _bound(body: bytes) -> bytes | bytearray:
    return body if len(body) > _COPIED else bytearray(body)


def _are_plain(
    expires_at: Sequence[object],
    deliveries: Sequence[object],
    transient: Sequence[object],
    held_until_ms: Sequence[object],
) -> bool:
    """Whether the messages differ in nothing but id, place and bytes, and have neither times nor deliveries."""
    count = len(transient)
    if any(deliveries) or transient.count(transient[0]) < count:
        return False
    return expires_at.count(None) == count and held_until_ms.count(None) == count


def _check_places(ids: Sequence[int], queues: Sequence[int], levels: Sequence[int]) -> None:
    """Refuse what SQLite would keep as it is, in a column of another kind, where no page finds it."""
    if min(ids) < 1:
        raise ValueError(f"an id is 1 or more, not {min(ids)}")
    if {*map(type, queues), *map(type, levels)} == {int}:
        return
    for queue, level in zip(queues, levels, strict=True):
        _check_whole(queue=queue, level=level)


def _check_others(
    expires_at: Sequence[object],
    deliveries: Sequence[object],
    transient: Sequence[object],
    held_until_ms: Sequence[object],
) -> None:
    for one in zip(expires_at, deliveries, held_until_ms, strict=True):
        _check_whole(deliveries=one[1], held_until_ms=one[2] or 0)
        if not isinstance(one[0], float | int | None):
            raise TypeError(f"expires_at of a Put is a number of seconds, not {one[0]!r}")


def _check_whole(**fields: object) -> None:
    for name, value in fields.items():
        if not isinstance(value, int):
            raise TypeError(f"the {name} of a Put is a whole number, not {value!r}")


def _insert_rows(connection: sqlite3.Connection, insert: str, columns: Sequence[Iterable[object]], count: int) -> None:
    """Insert rows, given by columns, in one statement; many in several."""
    width, most = len(columns), _SIZES_OF_STATEMENTS[-1]
    values: list[object] = [None] * (width * count)
    for number, column in enumerate(columns):
        values[number::width] = column
    for start in range(0, count, most):
        rows = min(count - start, most)
        size = next(size for size in _SIZES_OF_STATEMENTS if size >= rows)
        part = values[start * width : (start + rows) * width]
        connection.execute(_statement(insert, width, size), [*part, *[None] * ((size - rows) * width), rows])


@cache
def _statement(insert: str, columns: int, rows: int) -> str:
    """The statement for so many rows: the same object each time, whose hash is known."""
    return insert.format(",".join([f"({','.join('?' * columns)})"] * rows))
