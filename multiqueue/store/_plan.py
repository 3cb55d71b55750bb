"""A batch reduced to its outcome, and the few statements that write it.

Promise     Applying a plan leaves what its operations, one after the other, would have left. A message that is put
            and deleted in one plan is never written.
Assumes     sqlite3 lets go of the interpreter's lock at every step of a statement, and beside a thread that computes
            it gets it back only after the switch interval: a row a step would be 200 messages a second. So rows
            go in by the thousand in a statement (docs/decisions/0701-headers-apart.md). And that a value
            costs as much to bind as SQLite takes to store it: what plain headers have in common is given once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from zlib import crc32 as crc32_of_few

from ._bodies import Bodies
from ._crc import crc32
from ._dropped import Dropped
from ._protocol import Define, Delete, Delivered, DropQueue, Operation, Put, Undefine

_MOST_ROWS = 1024  # of one statement: 10,240 values; SQLite allows 32,766
_FEW_ROWS = 64  # fewer than these are one statement
_COPIED = 4096  # bytes of a body; sqlite3 looks for an adapter of `bytes`, none of `bytearray`: more than a copy costs
MOST_STATEMENTS = 290  # inserts of 63 small and 5 large sizes: bodies, headers, both plain ones; and the others

_COLUMNS = 'id, size, "check", properties, queue, level, expires_at, deliveries, transient, held_until_ms'
_HEADERS = f"INSERT INTO header ({_COLUMNS}) VALUES {{}}"
_HEADERS_PLAIN = [
    f"INSERT INTO header ({_COLUMNS}) SELECT"  # SQLite names these columns so
    f" column1, column2, column3, column4, column5, column6, NULL, 0, {transient}, NULL FROM (VALUES {{}})"
    for transient in (0, 1)
]
_BODIES = 'INSERT INTO body (id, queue, level, "check", data) VALUES {}'
_HEADERS_OF = (
    "FROM header WHERE (queue, level, id) IN"
    " (SELECT queue, level, id FROM body WHERE id IN (SELECT value FROM json_each(?)))"
)
_SIZES = f"SELECT count(*), total(size) {_HEADERS_OF}"
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
        for operation in operations:
            kind = type(operation)
            if kind is Put:
                self._add_put(connection, operation)  # type: ignore[arg-type]
            elif kind is Delete:
                self._add_deletes(operation.ids)  # type: ignore[union-attr]
            else:
                self._add_other(operation)
        self._flush(connection)

    def _add_put(self, connection: sqlite3.Connection, put: Put) -> None:
        if put.queue in self._dropped or put.queue in self.drops:
            return
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
        puts = list(self._puts.values())
        are_plain = _are_plain(puts)
        _check_kinds(puts, min(self._puts), are_plain)
        places = self._write_bodies(puts)
        headers: list[object] = []
        bodies: list[object] = []
        for put in puts:
            message_id, queue, level, body, properties = put.id, put.queue, put.level, put.body, put.properties
            seed = message_id & 0xFFFFFFFF  # as `check`, without a call for each
            headers += (message_id, len(body), crc32_of_few(properties, seed), bytearray(properties), queue, level)
            if not are_plain:
                headers += (put.expires_at, put.deliveries, 1 if put.transient else 0, put.held_until_ms)
            if message_id in places:
                bodies += (message_id, queue, level, *places[message_id])
            else:
                data = body if len(body) > _COPIED else bytearray(body)
                bodies += (message_id, queue, level, crc32(body, seed), data)
        if are_plain:
            _insert_rows(connection, _HEADERS_PLAIN[1 if puts[0].transient else 0], 6, headers)
        else:
            _insert_rows(connection, _HEADERS, 10, headers)
        _insert_rows(connection, _BODIES, 5, bodies)
        self.messages += len(puts)
        self.bytes += sum([len(put.body) for put in puts])

    def _write_bodies(self, puts: Sequence[Put]) -> dict[int, tuple[int, int]]:
        """Write the bodies that are worth it into a file: the `check` and the place in the row of each such message."""
        least, least_shared = self._bodies.large_bytes, self._bodies.shared_bytes
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
        places = self._bodies.append([(owner, run[0].body) for owner, run in zip(owners, large, strict=True)])
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
    count, size = connection.execute(_SIZES, (listed,)).fetchone()
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


def _are_plain(puts: Sequence[Put]) -> bool:
    """Whether the messages differ in nothing but id, place and bytes, and have neither times nor deliveries."""
    are_transient = puts[0].transient
    for put in puts:
        if put.expires_at is not None or put.deliveries or put.transient is not are_transient:
            return False
        if put.held_until_ms is not None:
            return False
    return True


def _check_kinds(puts: Sequence[Put], lowest_id: int, are_plain: bool) -> None:
    """Refuse what SQLite would keep as it is, in a column of another kind, where no page finds it."""
    if lowest_id < 1:
        raise ValueError(f"an id is 1 or more, not {lowest_id}")
    for queue, level in {(put.queue, put.level) for put in puts}:
        _check_whole(queue=queue, level=level)
    if not are_plain:
        for put in puts:
            _check_whole(deliveries=put.deliveries, held_until_ms=put.held_until_ms or 0)
            if not isinstance(put.expires_at, float | int | None):
                raise TypeError(f"expires_at of a Put is a number of seconds, not {put.expires_at!r}")


def _check_whole(**fields: object) -> None:
    for name, value in fields.items():
        if not isinstance(value, int):
            raise TypeError(f"the {name} of a Put is a whole number, not {value!r}")


def _insert_rows(connection: sqlite3.Connection, insert: str, columns: int, values: Sequence[object]) -> None:
    """Insert rows in statements of 1,024, 512, ... 64 rows and one for the rest, so that there are few to know."""
    row = f"({','.join('?' * columns)})"
    start, most = 0, _MOST_ROWS
    while start < len(values):
        left = (len(values) - start) // columns
        while most > left:
            most = most // 2 if most > _FEW_ROWS else left
        part = values[start : start + most * columns]
        connection.execute(insert.format(",".join([row] * most)), part)
        start += most * columns
