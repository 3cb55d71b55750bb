"""Batches of every size and kind come back as they were put, whatever statements they were made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_support import put

from multiqueue.store import Header, Put, SqliteStore, _plan


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path_factory.mktemp("store"), ballast_bytes=0) as opened:
        yield opened


def alike(queue: int, number: int) -> Put:
    return put(queue, b"%d" % number, level=2)


def unlike(queue: int, number: int) -> Put:
    """Now and then a message with something of its own."""
    kinds: list[dict[str, object]] = [{"expires_at": 1.5}, {"deliveries": 3}, {"transient": True}, {}]
    return put(queue, b"%d" % number, level=2, **kinds[number % 4])


@pytest.mark.parametrize("message", [alike, unlike])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 1023, 1024, 1025, 1700])
def test_a_batch_comes_back_whole(store: SqliteStore, message: Callable[[int, int], Put], count: int) -> None:
    """So many messages in one submission have their headers and bodies, each its own."""
    queue = store.allocate()
    puts = [message(queue, number) for number in range(count)]
    before = store.statistics()
    store.submit(puts).wait()
    assert store.page(queue, 0, count + 1, level=2) == [
        Header(one.id, len(one.body), one.expires_at, one.deliveries, one.properties) for one in puts
    ]
    assert store.read(one.id for one in puts) == {one.id: one.body for one in puts}
    after = store.statistics()
    assert after.messages - before.messages == count
    assert after.bytes - before.bytes == sum(len(one.body) for one in puts)


def test_places_in_one_batch(tmp_path: Path) -> None:
    """Messages of one batch for several queues and levels are each in their place."""
    places = [(1, 0), (1, 1), (2, 0), (1, 0)]
    with SqliteStore(tmp_path, ballast_bytes=0) as store:
        puts = [put(queue, b"%d" % number, level=level) for number, (queue, level) in enumerate(places)]
        store.submit(puts).wait()
        found = [(level.queue, level.level, level.messages) for level in store.levels()]
    assert found == [(1, 0, 2), (1, 1, 1), (2, 0, 1)]


class Connection:
    """Counts the rows of each statement that it is given."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def execute(self, statement: str, values: object) -> None:
        self.rows.append(statement.count("(?"))


@pytest.mark.parametrize(("count", "rows"), [(1, [1]), (63, [63]), (64, [64]), (1187, [1024, 128, 35])])
def test_a_batch_is_few_statements(count: int, rows: list[int]) -> None:
    """A batch of less than 64 messages is one statement a table, a large one a statement for each power of two."""
    connection = Connection()
    _plan._insert_rows(connection, "INSERT ", "(?,?)", 2, list(range(2 * count)))  # type: ignore[arg-type]
    assert connection.rows == rows
