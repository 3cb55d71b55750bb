"""A store as lines of JSON, and back; and its file made as small as it can be.

Promise     What `dump` writes, `load` makes a store of that has the same messages with the same ids, the same
            definitions in the same order, and gives no id again. Of a damaged store everything is dumped that can be
            read; what cannot is told. Transient messages and dropped queues are not part of it: they end with the
            opening that knew them.
State       The first line has "multiqueue store" and the numbers; then a line per definition, then per message.
            Bytes are base64. docs/reference/store-tools.md has the fields.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ._confirmed import MARK_NAME
from ._errors import NoStore, StoreError, StoreFailed, StoreFull
from ._lock_file import DirectoryLock
from ._protocol import Commit, Define, Operation, Put
from ._recovery import open_whole
from ._salvage import Message, Salvage, store_file
from ._schema import FILE_NAME, check_format, connect
from ._sqlite import SqliteStore

_DUMP_FORMAT = 1
_TOGETHER = 500  # messages of one submission while loading
_CACHE_BYTES = 8 << 20
_LARGEST_LEVEL = (1 << 63) - 1  # a tenant's level is any number that SQLite has
_LARGEST = (1 << 62) - 1  # of a number in a dump: there is room for what comes after it


class NotLoaded(StoreError):
    """The lines are no dump, or the store to load them into is not empty."""

    exit_status = 2


def dump(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a dump, each as ("line", text); between them what could not be read, as ("damage", sentence).

    Raises:
        NoStore: the directory has no store.
        StoreDamaged: not even its tables can be found.
    """
    with Salvage(path) as store:
        meta, dropped = store.meta(), store.dropped()
        head = {
            "multiqueue store": _DUMP_FORMAT,
            "next_id": meta.get("next_id"),
            "redeliver_floor": meta.get("redeliver_floor"),
        }
        yield "line", json.dumps(head)
        for definition in store.definitions():
            yield "line", json.dumps({"definition": list(definition)}, ensure_ascii=False)
        for message in store.messages():
            if not message.transient and message.queue not in dropped:
                yield "line", json.dumps(_fields(message))
            yield from _damages(store)
        yield from _damages(store)


def load(path: Path, lines: Iterable[str]) -> tuple[int, int]:
    """Make a store in the directory `path` of a dump. How many messages it has, and how many were too damaged for that.

    Raises:
        NotLoaded: the lines are no dump, or the store there is not empty. The messages loaded until then stay.
        StoreError: as for `SqliteStore`.
    """
    numbered = _numbered(lines)
    head = _parsed(next(numbered, (1, "")))
    if head.get("multiqueue store") != _DUMP_FORMAT:
        raise NotLoaded("line 1 does not begin a dump of a multiqueue store of a format that is known")
    try:
        least = {key: _number(head.get(key) or 0) for key in ("next_id", "redeliver_floor")}
    except ValueError as error:
        raise NotLoaded(f"line 1 does not begin a dump: {error}") from error
    _prepare(path, least)
    loaded = damaged = 0
    with SqliteStore(path, durability="relaxed") as store:
        gathered: list[Operation] = []
        commit: Commit = store.submit(())
        highest = 0
        for line in numbered:
            operation = _operation(line)
            if operation is None:
                damaged += 1
                continue
            gathered.append(operation)
            if isinstance(operation, Put):
                loaded += 1
                highest = max(highest, operation.id)
            if len(gathered) == _TOGETHER:
                _wait(commit)
                commit, gathered = store.submit(gathered), []
        _wait(commit)
        _wait(store.submit(gathered))
    _finish(path, highest)
    return loaded, damaged


def compact(path: Path) -> tuple[int, int]:
    """Write the file anew, without free space; its size in bytes before and after. Takes as much disk meanwhile.

    Raises:
        NoStore: the directory has no store.
        StoreLocked: it is open.
        StoreDamaged: it lacks confirmed commits.
    """
    file = store_file(path)
    try:
        lock = DirectoryLock(path)
    except OSError as error:
        raise NoStore(f"cannot write into {str(path)!r}: {error.strerror}") from error
    log = None
    try:
        connection, log = open_whole(file, cache_bytes=_CACHE_BYTES, statements=128)
        with contextlib.closing(connection):
            if check_format(connection, file) == 0:
                raise NoStore(f"there is no store in {str(path)!r}: {FILE_NAME} has no tables yet")
            (path / MARK_NAME).unlink(missing_ok=True)  # the log ends here
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            before = file.stat().st_size
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return before, file.stat().st_size
    except sqlite3.Error as error:
        raise StoreError(f"{str(file)!r} could not be compacted and is unchanged: {error}") from error
    finally:
        if log is not None:
            log.close()
        lock.release()


def _fields(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "queue": message.queue,
        "level": message.level,
        "expires_at": message.expires_at,
        "held_until_ms": message.held_until_ms,
        "deliveries": message.deliveries,
        "properties": _text(message.properties),
        "body": _text(message.body),
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _damages(store: Salvage) -> Iterator[tuple[str, str]]:
    found, store.damages[:] = list(store.damages), []
    for damage in found:
        yield "damage", damage


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    try:
        yield from enumerate(lines, start=1)
    except UnicodeDecodeError as error:
        raise NotLoaded(f"the lines are not a dump, because they are not UTF-8: {error}") from error


def _wait(commit: Commit) -> None:
    try:
        commit.wait()
    except (StoreFull, StoreFailed):
        raise
    except StoreError as error:
        raise NotLoaded(f"the lines are not a dump of one store: {error}") from error


def _parsed(numbered: tuple[int, str]) -> dict[str, Any]:
    number, line = numbered
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise NotLoaded(f"line {number} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise NotLoaded(f"line {number} is not a JSON object")
    return parsed


def _operation(numbered: tuple[int, str]) -> Operation | None:
    """The operation that a line asks for; None for a message of which a part was not readable."""
    fields = _parsed(numbered)
    try:
        if "definition" in fields:
            kind, key, document = (_text_of(one) for one in fields["definition"])
            return Define(kind, key, document)
        if fields["properties"] is None or fields["body"] is None:
            return None
        return Put(
            _number(fields["queue"]),
            base64.b64decode(fields["properties"], validate=True),
            base64.b64decode(fields["body"], validate=True),
            level=_number(fields["level"], _LARGEST_LEVEL),
            expires_at=None if fields["expires_at"] is None else float(fields["expires_at"]),
            deliveries=_number(fields["deliveries"]),
            id=_number(fields["id"]),
            held_until_ms=None if (held := fields.get("held_until_ms")) is None else _number(held),
        )
    except KeyError as error:
        raise NotLoaded(f"line {numbered[0]} is not a line of a dump: it has no {error}") from error
    except (TypeError, ValueError) as error:
        raise NotLoaded(f"line {numbered[0]} is not a line of a dump: {error}") from error


def _number(value: object, largest: int = _LARGEST) -> int:
    if type(value) is not int or abs(value) > largest:
        raise ValueError(f"{value!r} is not a whole number up to {largest}")
    return value


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a definition is three texts, and {value!r} is none")
    return value


def _prepare(path: Path, least: dict[str, int]) -> None:
    """Make an empty store that gives no id of the dump's again: its numbers are at least these."""
    with SqliteStore(path) as store:
        if store.statistics().messages or store.definitions():
            raise NotLoaded(f"the store {str(path)!r} is not empty; load into a new directory")
    with contextlib.closing(connect(path / FILE_NAME, cache_bytes=_CACHE_BYTES)) as connection:
        for key, value in least.items():
            connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = ?", (value, key))


def _finish(path: Path, highest: int) -> None:
    """Where a damaged dump did not know the next id, it is behind the highest."""
    with contextlib.closing(connect(path / FILE_NAME, cache_bytes=_CACHE_BYTES)) as connection:
        connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'next_id'", (highest + 1,))
