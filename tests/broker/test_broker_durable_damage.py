"""Rows that are gone from a store although their messages were not settled: each reader of them tells so."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multiqueue.broker import Message, PullSubscription, Received, VirtualHost
from multiqueue.errors import Empty, ShutDown
from multiqueue.store import SqliteStore, StoreDamaged
from multiqueue.testing import PATIENCE, FakeClock, wait_until_blocked

COUNT = 10


class Damaged:
    """A durable queue of ten messages, opened after the fifth has lost a row, or losing it while it is open."""

    def __init__(self, path: Path, **options: object) -> None:
        self.path = path
        self.options = options

    def open(self) -> VirtualHost:
        self.host = VirtualHost(store=SqliteStore(self.path, reserve_bytes=0), **self.options)  # type: ignore[arg-type]
        return self.host

    def fill(self, size: int = 1, **arguments: object) -> None:
        host = self.open()
        host.declare_queue("q", durable=True, arguments=arguments)
        host.declare_queue("other", durable=True)
        for number in range(COUNT):
            host.publish(Message(b"%d" % number * size, routing_key="q", persistent=True, headers={"n": number}))
        host.close()

    def lose(self, table: str, which: int = 4) -> None:
        with contextlib.closing(sqlite3.connect(self.path / "messages.sqlite", timeout=10)) as connection:
            ids = [row[0] for row in connection.execute("SELECT id FROM body ORDER BY id").fetchall()]
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (ids[which],))
            connection.commit()


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    made = Damaged(tmp_path / "store")
    made.fill()
    yield made
    made.host.close()


def _get_all(host: VirtualHost) -> int:
    count = 0
    while host.get("q", auto_accept=True) is not None:
        count += 1
    return count


READERS: dict[str, Callable[[VirtualHost], object]] = {
    "get": _get_all,
    "browse": lambda host: host.queue("q").browse(),
    "a predicate that may look at bodies": lambda host: host.queue("q").browse(lambda message: message.body == b"4"),
    "move": lambda host: host.queue("q").move_messages(host.queue("other")),
    "copy": lambda host: host.queue("q").copy_messages(host.queue("other")),
    "delete by a predicate": lambda host: host.queue("q").delete_messages(lambda message: False),
    "delete to dead letters": lambda host: host.queue("q").delete(dead_letter=True),
}


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_a_body_that_is_gone_is_damage(damaged: Damaged, read: Callable[[VirtualHost], object]) -> None:
    """A reader of a message whose body is gone is told that the store is damaged, and where to look further."""
    damaged.lose("body")
    host = damaged.open()
    with pytest.raises(StoreDamaged, match=r"the body of message \d+ of queue 'q'.* is gone .*store check"):
        read(host)


def _take_all(subscription: PullSubscription) -> int:
    count = 0
    with contextlib.suppress(ShutDown):
        while True:
            subscription.get(timeout=PATIENCE).accept()
            count += 1
    return count


SELECTORS = {"no selector": None, "a selector": "n >= 0", "a predicate": lambda message: bool(message.body)}


@pytest.mark.parametrize("selector", SELECTORS.values(), ids=list(SELECTORS))
def test_a_consumer_that_would_be_given_it_is_cancelled(
    damaged: Damaged, selector: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer does not wait for a message whose body is gone: it is cancelled, and the log says why."""
    damaged.lose("body")
    host = damaged.open()
    with caplog.at_level(logging.ERROR):
        subscription = host.subscribe("q", selector=selector, prefetch=1)  # type: ignore[arg-type]
        assert _take_all(subscription) < COUNT
    assert "the body of message" in caplog.text


def test_a_queue_that_never_pages_is_not_opened_without_a_body(tmp_path: Path) -> None:
    """A body that is gone is an error of the opening where everything is read then."""
    damaged = Damaged(tmp_path / "store")
    damaged.fill(**{"qpid.queue_sort_key": "n"})
    damaged.lose("body")
    with pytest.raises(StoreDamaged, match="the body of message"):
        damaged.open()


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of queues are not read ahead after opening: what has been read is served, whatever is lost then."""
    monkeypatch.setattr("multiqueue.broker._paging.memory.MemoryManager.refill_heads", lambda self: None)


@pytest.mark.usefixtures("unread")
def test_a_header_that_goes_while_the_queue_is_open_is_damage_for_a_get(damaged: Damaged) -> None:
    """A get that finds nothing, while messages are counted as ready, does not say that the queue is empty."""
    host = damaged.open()
    damaged.lose("header")
    with pytest.raises(StoreDamaged, match=r"1 messages of queue 'q'.* are gone"):
        _get_all(host)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("kind", ["standard", "fair"])
def test_a_header_that_goes_while_the_queue_is_open_ends_its_consumers(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that has everything else does not wait for a message that is counted and not there."""
    damaged = Damaged(tmp_path / "store")
    damaged.fill(**{"x-queue-kind": kind})
    host = damaged.open()
    damaged.lose("header")
    with caplog.at_level(logging.ERROR):
        assert _take_all(host.subscribe("q", prefetch=1)) == COUNT - 1
    assert "1 messages of queue 'q'" in caplog.text
    host.close()


def test_a_header_that_goes_when_a_list_names_it_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message that is on a consumer's list, and whose header is gone when its body is to be read, is told."""
    damaged = Damaged(tmp_path / "store", memory_limit=200_000)
    damaged.fill(size=5000)
    host = damaged.open()
    subscription = host.subscribe("q", prefetch=1)
    first = subscription.get(timeout=PATIENCE)
    wait_until_blocked(lambda: host.memory_statistics().targets[0].direct == COUNT - 1)  # none is being read
    host.memory_limit = 40_000  # bodies go, the list stays
    wait_until_blocked(lambda: host.memory_statistics().targets[0].direct < COUNT // 2)  # else none has to be read
    damaged.lose("header", -1)
    first.accept()
    with caplog.at_level(logging.ERROR):
        _take_all(subscription)
    assert "the header of message" in caplog.text
    host.close()


def test_what_others_have_or_hold_is_not_taken_for_lost(damaged: Damaged) -> None:
    """Messages with consumers, held until their time, or refused by who asks are counted, and not lost."""
    damaged.options = {"clock": (clock := FakeClock(1000.0)), "wall_clock": clock}
    host = damaged.open()
    host.publish(Message(b"later", routing_key="q", persistent=True, delay=60.0))
    held: list[Received] = []
    while (received := host.get("q")) is not None:
        held.append(received)
    assert len(held) == COUNT
    subscription = host.subscribe("q", prefetch=1)
    held.pop().release()
    subscription.get(timeout=PATIENCE).release(refused=True)
    with pytest.raises(Empty):
        subscription.get(timeout=0)
    assert not subscription.is_closed
    assert host.get("q") is not None
    assert host.get("q") is None


def test_a_message_that_cannot_be_read_does_not_expire_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Housekeeping meets a message without a body at each look, and says so once."""
    clock = FakeClock(1000.0)
    damaged = Damaged(tmp_path / "store", clock=clock, wall_clock=clock)
    damaged.fill(**{"x-message-ttl": 60_000})
    damaged.lose("body")
    host = damaged.open()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.advance(100.0)
            host.queue("q").housekeeping()
    assert len(host.queue("q")) == 1
    assert caplog.text.count("does not expire") == 1
    host.close()


def test_what_a_transaction_or_a_move_has_deleted_is_forgotten(damaged: Damaged) -> None:
    """Paging remembers a settled message until the store has deleted it, and no longer: also where that comes first."""
    host = damaged.open()
    for _ in range(5):
        received = host.get("q")
        assert received is not None
        with host.transaction() as transaction:
            transaction.accept(received)
    assert host.queue("q").move_messages(host.queue("other")) == 5
    host.wait_for_commits()
    with host._memory as paging:
        assert not paging.deleting
