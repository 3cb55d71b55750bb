"""Batches of every size and kind come back as they were put, whatever statements they were made of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import cast

import pytest
from store_parts_support import _plan
from store_support import put

from multiqueue.store import Durability, Header, Put, SqliteStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path_factory.mktemp("store"), reserve_bytes=0) as opened:
        yield opened


def batch(queue: int, count: int) -> list[Put]:
    """Messages that differ in nothing but their bytes."""
    return [put(queue, b"%d" % number, level=2) for number in range(count)]


def put_and_read(store: SqliteStore, queue: int, puts: list[Put]) -> None:
    """Commit them together; each has its own header and body, and the counts are theirs."""
    before = store.statistics()
    store.submit(puts).wait()
    after = store.statistics()
    assert after.messages - before.messages == len(puts)
    assert after.bytes - before.bytes == sum(len(one.body) for one in puts)
    for level in {one.level for one in puts}:
        assert store.page(queue, 0, len(puts), level=level) == [
            Header(one.id, len(one.body), one.expires_at, one.deliveries, one.properties, one.held_until_ms)
            for one in puts
            if one.level == level
        ]
    assert store.read(one.id for one in puts) == {one.id: one.body for one in puts}


COUNTS = [1, 2, 5, 63, 64, 65, 127, 1023, 1024, 1025, 1700]


@pytest.mark.parametrize("count", COUNTS)
def test_a_batch_comes_back_whole(store: SqliteStore, count: int) -> None:
    """So many messages of one kind in one submission have their headers and bodies, each its own."""
    queue = store.allocate()
    put_and_read(store, queue, batch(queue, count))


@pytest.mark.parametrize(
    "own", [{"level": 3}, {"expires_at": 1.5}, {"deliveries": 3}, {"held_until_ms": 5}], ids=lambda own: next(iter(own))
)
@pytest.mark.parametrize("count", COUNTS)
def test_one_of_a_batch_is_different(store: SqliteStore, count: int, own: dict[str, object]) -> None:
    """A message with something of its own keeps it, and gives it to no other of its batch."""
    queue = store.allocate()
    put_and_read(store, queue, [*batch(queue, count), put(queue, b"own", **{"level": 2, **own})])


def test_one_of_a_batch_is_transient(tmp_path: Path) -> None:
    """A transient message among others is the only one that a restart takes."""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        store.submit([*batch(1, 2), put(1, b"own", level=2, transient=True)]).wait()
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        assert [header.properties for header in store.page(1, 0, 9, level=2)] == [
            b"properties of 0",
            b"properties of 1",
        ]


@pytest.mark.parametrize("places", [[(1, 0), (2, 0)], [(1, 0), (1, 1)], [(2, 1), (1, 0), (1, 1), (2, 0)]])
def test_places_in_one_batch(tmp_path: Path, places: list[tuple[int, int]]) -> None:
    """Messages of one batch for several queues and levels are each in their place."""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        store.submit([put(queue, level=level) for queue, level in places]).wait()
        assert [(level.queue, level.level, level.messages) for level in store.levels()] == [
            (queue, level, 1) for queue, level in sorted(places)
        ]


class Connection:
    """Counts the rows of each statement that it is given, and those of them that count, and keeps their values."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.values: list[list[object]] = []

    def execute(self, statement: str, values: list[object]) -> None:
        *bound, rows = values
        width, count = len(bound) // statement.count("(?"), cast("int", rows)
        assert bound[count * width :] == [None] * (len(bound) - count * width)
        self.rows.append((statement.count("(?"), count))
        self.values.append(bound[: count * width])


@pytest.mark.parametrize(
    ("count", "rows"),
    [(1, [(1, 1)]), (63, [(64, 63)]), (64, [(64, 64)]), (385, [(512, 385)]), (1187, [(1024, 1024), (192, 163)])],
)
def test_a_batch_is_few_statements(count: int, rows: list[tuple[int, int]]) -> None:
    """Up to 1,024 messages are one statement a table, of a size that is known, with some rows that are none."""
    connection = Connection()
    _plan._insert_rows(connection, "INSERT {}", [range(count), range(count, 2 * count)], count)  # type: ignore[arg-type]
    assert connection.rows == rows
    assert list(chain.from_iterable(connection.values)) == [
        one for number in range(count) for one in (number, number + count)
    ]


def test_plain_messages_are_bound_in_kinds_that_sqlite3_binds_as_they_are(tmp_path: Path) -> None:
    """A batch of plain messages for several queues is six values a header, and no adapter is looked for."""
    connection = Connection()
    bodies = _plan.Bodies(tmp_path, file_bytes=1, durability=Durability.MEMORY, large_commit_bytes=1 << 20)
    _plan.Plan(_plan.Dropped(), bodies).run(connection, [put(queue, id=queue) for queue in range(1, 5)])  # type: ignore[arg-type]
    headers, rows = connection.values
    assert (len(headers), len(rows)) == (4 * 6, 4 * 5)
    assert {type(value) for value in headers + rows} == {int, bytearray}


@pytest.mark.parametrize("size", [0, _plan._COPIED, _plan._COPIED + 1])
def test_a_body_comes_back_however_it_was_bound(store: SqliteStore, size: int) -> None:
    """Bodies that are copied for SQLite and larger ones that are not are bytes again."""
    put_and_read(store, 70_000 + size, [put(70_000 + size, b"x" * size), put(70_000 + size, b"")])
