"""A durable queue begins in memory, pages when it is large, and is back in memory when it is empty."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from broker_durable_support import holding
from broker_parts_support import spill
from paging_outgrown_support import LIMIT, drain, pages

from multiqueue.broker import BrokerQueue, Message, VirtualHost
from multiqueue.store import MemoryStore
from multiqueue.testing import PATIENCE, FakeClock, wait_until_blocked

KINDS = [{}, {"x-max-priority": 2}]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def host(store: MemoryStore) -> Iterator[VirtualHost]:
    host = VirtualHost(store=store, memory_limit=LIMIT // 4)  # a quarter of it is 16 messages
    yield host
    host.close()


def _fill(host: VirtualHost, numbers: range, *, persistent: bool = True, key: str = "q") -> None:
    for number in numbers:
        host.publish_nowait(Message(b"%06d" % number, routing_key=key, persistent=persistent))
    host.wait_for_commits()


def _numbers(queue: BrokerQueue) -> list[int]:
    return [int(message.body) for message in queue.browse()]  # type: ignore[call-overload]


def test_a_durable_queue_pages_when_it_has_half_of_the_memory(host: VirtualHost) -> None:
    """Or a quarter, while another one pages. Up to that its messages are in memory, and nothing is read; from then on
    they are in the store."""
    queue, other = host.declare_queue("q", durable=True), host.declare_queue("r", durable=True)
    _fill(host, range(20))
    assert not pages(queue)
    assert host.memory_statistics().targets == ()
    _fill(host, range(20, 40))
    assert pages(queue)
    _fill(host, range(20), key="r")
    assert pages(other)
    assert _numbers(queue) == list(range(40))
    assert drain(host, 40) == list(range(40))


def test_it_is_back_in_memory_when_housekeeping_finds_it_empty(host: VirtualHost) -> None:
    """Then it may page again, and its messages are what they were."""
    queue = host.declare_queue("q", durable=True)
    for first in (0, 40, 80):
        _fill(host, range(first, first + 40))
        assert pages(queue)
        assert drain(host, 40) == list(range(first, first + 40))
        queue.housekeeping()
        assert not pages(queue)
        assert host.memory_statistics().used == 0
    host.check_invariants()


@pytest.mark.parametrize("arguments", KINDS, ids=["standard", "priority"])
@pytest.mark.parametrize("paged_before", [False, True], ids=["in memory", "back in memory"])
def test_what_was_settled_does_not_come_back_when_the_queue_pages(
    host: VirtualHost, store: MemoryStore, arguments: dict[str, object], paged_before: bool
) -> None:
    """1. A message is settled.  2. Before its deletion is committed the queue begins to page.  3. The store shows its
    row still, and no consumer gets it.
    """
    queue = host.declare_queue("q", durable=True, arguments=arguments)
    _fill(host, range(2))
    if paged_before:
        assert queue.life.limit.page_out()
    with holding(store):
        for _ in range(2):
            assert host.get("q", auto_accept=True)
        if paged_before:
            queue.housekeeping()
            assert not pages(queue)
        host.publish(Message(b"000002", routing_key="q"))  # behind them, so that their rows are looked at
        writer = threading.Thread(target=queue.life.limit.page_out)
        writer.start()
        wait_until_blocked(writer)  # for the third one's row
        assert pages(queue)
        assert [level.messages for level in store.levels() if level.queue == queue.store_number] == [2]
        assert _numbers(queue) == [2]
        with host.subscribe("q", selector="JMSPriority >= 0") as subscription:
            assert subscription.get(timeout=PATIENCE).body == b"000002"
            wait_until_blocked(lambda: not any(each.is_open for each in host.memory_statistics().targets))
            assert [each.entries for each in host.memory_statistics().targets] == [0]
        assert host.get("q", auto_accept=True)
        assert host.get("q") is None
    writer.join()
    host.wait_for_commits()
    host.wait_for_commits()
    assert store.levels() == []
    assert not host._memory.paging.deleting
    assert not host._memory.paging.departed
    host.check_invariants()


@pytest.mark.parametrize("arguments", KINDS, ids=["standard", "priority"])
def test_what_consumers_have_stays_theirs_when_the_queue_pages(
    host: VirtualHost, store: MemoryStore, arguments: dict[str, object]
) -> None:
    """Accepted, it is gone from the store; given back, it is at its place, counted; held, it comes at its time."""
    clock = FakeClock(1000.0)
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT, clock=clock, wall_clock=clock)
    queue = host.declare_queue("q", durable=True, arguments=arguments)
    _fill(host, range(2))
    host.publish(Message(b"000002", routing_key="q", persistent=True, delay=10.0))
    accepted, released = host.get("q"), host.get("q")
    assert accepted
    assert released
    assert queue.life.limit.page_out()
    assert queue.statistics().unacked == 2
    assert queue.statistics().held == 1
    accepted.accept()
    released.release()
    again = host.get("q")
    assert again
    assert (again.body, again.delivery_count) == (b"000001", 2)
    again.accept()
    clock.advance(11.0)
    queue.housekeeping()
    assert drain(host, 1) == [2]
    host.wait_for_commits()
    host.check_invariants()
    host.close()


def test_transient_messages_of_a_durable_queue_are_written_out_when_it_pages(host: VirtualHost) -> None:
    """They keep their places among those that the store has."""
    queue = host.declare_queue("q", durable=True)
    for number in range(3):
        _fill(host, range(number, number + 1), persistent=number != 1)
    assert queue.life.limit.page_out()
    assert _numbers(queue) == [0, 1, 2]
    assert drain(host, 3) == [0, 1, 2]


def test_a_look_puts_paging_off_and_holds_no_publisher_back(host: VirtualHost) -> None:
    """While management goes through a queue its messages stay in memory, beyond the half; then it pages."""
    queue = host.declare_queue("q", durable=True)
    _fill(host, range(2))
    with queue.life.pinned():
        _fill(host, range(2, 40))
        assert not pages(queue)
        assert not queue.is_throttled
    _fill(host, range(40, 50))
    assert pages(queue)
    assert drain(host, 50) == list(range(50))


def test_what_was_not_encoded_when_it_was_interrupted_is_written_out_later(
    host: VirtualHost, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the batch counts as on its way to the store: the next attempt writes all of it."""
    queue = host.declare_queue("q")
    _fill(host, range(3), persistent=False)

    def interrupted(*args: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spill, "encode_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.life.limit.page_out()
    assert pages(queue)
    queue._pager.catch_up()  # type: ignore[union-attr]
    host.wait_for_commits()
    assert sum(level.messages for level in store.levels()) == 3
    assert drain(host, 3) == [0, 1, 2]
