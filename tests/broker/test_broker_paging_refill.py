"""After opening, the heads of queues are read for consumers to come: what that takes, and when it ends."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from broker_front_support import bodies
from broker_parts_support import Account, Area, Found, Share
from paging_model_support import PagingModel

from multiqueue.broker import Broker, Message
from multiqueue.store import SqliteStore

MEBIBYTE = 1 << 20
HANG = 30.0


def fill(data: Path, queues: int, messages: int, size: int = 1024) -> None:
    """Durable queues `q0`, `q1` ... with numbered messages, in a store that is closed again."""
    with Broker(data=data) as broker:
        for queue in range(queues):
            broker.declare_queue(f"q{queue}", durable=True)
            for number in range(messages):
                body = str(number).encode().ljust(size)
                broker.publish_nowait(Message(body, routing_key=f"q{queue}", persistent=True))
        broker.wait_for_commits()


def wait_until_refilled(broker: Broker) -> None:
    """The loaders of the virtual host have nothing further to do."""
    memory = broker.virtual_host()._memory
    with memory._lock:
        assert memory._progress.wait_for(lambda: not memory._loads._refills, HANG)


def test_the_first_consumer_is_served_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After opening, what stands at a queue's head is read before anybody asks; a consumer gets it without a read
    (bounded-memory 16)."""
    fill(tmp_path, queues=1, messages=200)
    with Broker(data=tmp_path) as broker:
        wait_until_refilled(broker)
        assert broker.virtual_host().memory_statistics().head > 200 * 1024
        broker.virtual_host()._memory.check_invariants()

        def read(*_: object) -> None:
            raise AssertionError("a body was read again")

        monkeypatch.setattr(SqliteStore, "read", read)
        with broker.subscribe("q0", prefetch=10) as consumer:
            for number in range(200):
                received = consumer.get(HANG)
                assert int(received.body) == number
                received.accept()


def test_all_queues_have_their_part(tmp_path: Path) -> None:
    """Heads together take half of the memory at most, each queue its share, and every share begins at the head."""
    fill(tmp_path, queues=4, messages=300, size=4096)
    with Broker(data=tmp_path, memory_limit=2 * MEBIBYTE) as broker:
        wait_until_refilled(broker)
        head = broker.virtual_host().memory_statistics().head
        assert MEBIBYTE // 2 < head <= MEBIBYTE
        areas = [area for area in broker.virtual_host()._memory._readers if area.head]
        assert len(areas) == 4
        assert all(next(iter(area.head)) == min(area.slots) for area in areas)
        broker.virtual_host()._memory.check_invariants()
        assert [int(body) for body in bodies(broker.queue("q2"))] == list(range(300))


def test_heads_give_way() -> None:
    """What was refilled is the first to go when a list wants the bytes, and it is not read again after that."""
    model = PagingModel(limit=20_000)
    model.open(100, 150, "red")
    model.quiesce()
    assert model.paging.amounts[Account.HEAD] > 9_000
    model.publish(9_000, "violet", backed=False)
    model.publish(4_000, "violet", backed=False)
    assert model.paging.amounts[Account.HEAD] < 7_000
    loads = model.loads.count
    model.quiesce()
    assert model.loads.count == loads
    model.end()


def test_a_cache_that_was_cut_meanwhile_is_not_gone_on_with() -> None:
    """What a load brings would leave a gap then: it is dropped, and what stands before it with it."""
    model = PagingModel(limit=20_000)
    model.open(100, 150, "red")
    for _ in range(4):
        assert model.plan()
        model.bring(model.flights[0])
    assert model.plan()
    model.read(model.flights[0])
    reached = model.area.head_end
    model.publish(16_000, "violet", backed=False)
    assert model.area.head_end < reached
    model.bring(model.flights[0])  # which looks for gaps
    assert not model.plan()
    model.end()


def test_a_refill_waits_while_a_list_wants_something() -> None:
    """Consumers that are there go first, also while their load is under way; then a queue has one load at a time."""
    model = PagingModel(limit=20_000)
    model.open(20, 150, "red")
    loads, other = model.loads, Area("other")
    other.last[0] = 5
    target = model.paging.join(other, "busy", Share(1))
    load = loads.next_load()
    assert load is not None
    assert load.target is target
    assert loads.next_load() is None
    loads.loaded(load, [Found(number, 100, number) for number in range(1, 6)])
    refill = loads.next_load()
    assert refill is not None
    assert refill.is_for_head
    assert loads.next_load() is None


def test_a_consumer_that_came_meanwhile_ends_the_refill() -> None:
    """What was read for consumers to come is dropped: the list of this one reads from the head by itself."""
    model = PagingModel(limit=20_000)
    model.open(20, 150, "red")
    assert model.plan()
    model.read(model.flights[0])
    model.join()
    model.bring(model.flights[0])
    assert model.paging.amounts[Account.HEAD] == 0
    model.end()


def test_a_list_that_leaves_gives_its_head() -> None:
    """What the last consumer had in memory, direct or pending, is there for the next one without a read."""
    model = PagingModel(limit=20_000)
    model.open(90, 100, "red")
    consumer = model.join()
    model.quiesce()
    model.join(("blue",))
    amounts = model.paging.amounts
    assert amounts[Account.PENDING]
    listed = amounts[Account.TARGET] + amounts[Account.PENDING]
    model.leave(consumer)
    assert amounts[Account.HEAD] == listed
    model.end()


def test_a_message_larger_than_the_share_ends_the_refill() -> None:
    """It stays where it is, the cache ends before it, and the loader does not come back to it."""
    model = PagingModel(limit=20_000)
    model.open(2, 150, "red")
    model.open(1, 4_900, "green")
    model.open(2, 150, "red")
    model.quiesce()
    assert model.paging.amounts[Account.HEAD] == 300
    model.end()


def test_a_head_that_cannot_be_read_is_nobodys_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, the broker opens, and consumers are told as ever."""
    fill(tmp_path, queues=1, messages=3)
    failed = threading.Event()
    page = SqliteStore.page

    def broken(*arguments: object, **options: object) -> object:
        if threading.current_thread().name.startswith("multiqueue-loader") and not failed.is_set():
            failed.set()
            raise OSError("the disk is gone")
        return page(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteStore, "page", broken)
    with caplog.at_level(logging.WARNING, "multiqueue.broker"), Broker(data=tmp_path) as broker:
        assert failed.wait(HANG)
        wait_until_refilled(broker)
        with broker.subscribe("q0", auto_accept=True) as consumer:
            assert [int(consumer.get(HANG).body) for _ in range(3)] == [0, 1, 2]
    assert "the head of q0 cannot be read: the disk is gone" in caplog.text
