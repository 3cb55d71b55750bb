"""Queues that were paged out, and are found empty, keep everything in memory again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_durable_support import holding
from broker_parts_support import PagedEntries
from paging_outgrown_support import LIMIT, STORES, fill, number_in, pages, rows, small_host

from multiqueue.broker import Message, VirtualHost
from multiqueue.store import MemoryStore
from multiqueue.testing import PATIENCE, Threads, wait_until_blocked


@pytest.fixture(params=STORES)
def host(request: pytest.FixtureRequest) -> Iterator[VirtualHost]:
    yield from small_host(request.param)


def test_a_queue_that_is_found_empty_keeps_everything_in_memory_again(host: VirtualHost) -> None:
    """At housekeeping a queue on which nothing stands pages no longer; consumers, browsers and figures go on, and it
    can outgrow the memory once more.

    (bounded-memory 12)
    """
    queue = host.declare_queue("q")
    with host.subscribe("q", prefetch=10) as subscription, host.subscribe("q", browse=True) as browser:
        first = 0
        for _ in range(3):
            fill(host, range(first, first + 400))
            assert pages(queue)
            for number in range(first, first + 400):
                received = subscription.get(timeout=PATIENCE)
                assert number_in(received.message) == number
                received.accept()
            queue.housekeeping()
            assert not pages(queue)
            statistics = host.memory_statistics()
            assert statistics.targets == ()
            assert statistics.used == statistics.loading, "a load that was under way ends by itself"
            fill(host, range(first + 400, first + 410))
            statistics = host.memory_statistics()
            assert statistics.unpaged == statistics.used - statistics.loading == 10 * (106 + 768)
            for number in range(first + 400, first + 410):
                assert number_in(browser.get(timeout=0).message) == number
                received = subscription.get(timeout=0)
                assert number_in(received.message) == number
                received.accept()
            first += 410
            host.check_invariants()
            assert queue.statistics().enqueued == first
    assert rows(host) == 0


def test_a_priority_queue_that_comes_back_serves_its_consumers(host: VirtualHost) -> None:
    """The places of consumers are those of a queue that keeps everything in memory, of whatever kind it is."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 1})
    with host.subscribe("q", prefetch=1) as subscription:
        for priority in (0, 1, 0):
            assert queue.life.limit.page_out()
            host.publish(Message(b"000000", routing_key="q", priority=priority))
            subscription.get(timeout=PATIENCE).accept()
            queue.housekeeping()
            assert not pages(queue)
            host.publish(Message(b"000001", routing_key="q", priority=priority))
            assert number_in(subscription.get(timeout=0).message) == 1
            subscription.unsettled()[0].accept()
    host.check_invariants()


def test_a_queue_stays_where_it_is_while_somebody_has_a_message_of_it(host: VirtualHost) -> None:
    """What was taken and may come back keeps its queue paging; settling it ends that."""
    queue = host.declare_queue("q")
    fill(host, range(250))
    taken = [host.get("q") for _ in range(250)]
    queue.housekeeping()
    assert pages(queue)
    for received in taken:
        assert received is not None
        received.accept()
    queue.housekeeping()
    assert not pages(queue)
    assert rows(host) == 0


def test_a_queue_does_not_come_back_under_a_look_of_management(host: VirtualHost) -> None:
    """What a look has read, and others have settled since, is not taken for something of the queue's next life."""
    queue = host.declare_queue("q")
    fill(host, range(3))
    assert queue.life.limit.page_out()

    def settle_everything(message: Message) -> bool:
        while (received := host.get("q", auto_accept=True)) is not None:
            del received
        queue.housekeeping()
        return True

    assert queue.delete_messages(settle_everything) == 0
    assert len(queue) == 0
    assert pages(queue)
    queue.housekeeping()
    assert not pages(queue)
    host.check_invariants()


def test_what_is_found_expired_when_its_queue_has_come_back_is_left_alone() -> None:
    """1. The store tells of an expired message, which somebody settles.  2. Before that is committed the queue is back
    in memory.  3. The row is read, and not dropped from a queue that does not have it."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    fill(host, range(1))
    assert queue.life.limit.page_out()
    reading, received = queue._pager._period, host.get("q")
    assert reading is not None
    assert received is not None
    position = received.entry.position
    with holding(store):
        received.accept()
        queue.housekeeping()
        assert not pages(queue)
        assert not reading.expire(position)
    assert len(queue) == 0
    host.check_invariants()
    host.close()


def test_a_queue_does_not_come_back_while_a_row_of_it_is_on_its_way() -> None:
    """A message that is settled before its row is committed is deleted there too; only then the paging ends."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    fill(host, range(1))
    with Threads(PATIENCE) as threads, holding(store):
        threads.start(queue.life.limit.page_out)
        wait_until_blocked(lambda: isinstance(queue.life.source, PagedEntries) and queue.life.source.area.writing)
        received = host.get("q")
        assert received is not None
        received.accept()
        queue.housekeeping()
        assert pages(queue)
    assert rows(host) == 0
    queue.housekeeping()
    assert not pages(queue)
    host.check_invariants()
    host.close()


def test_a_get_that_has_its_message_wants_nothing_further(host: VirtualHost) -> None:
    """The list of gets stays for the next one, and asks for no memory meanwhile that others could have."""
    queue = host.declare_queue("q")
    fill(host, range(400))
    assert host.get("q", auto_accept=True) is not None
    source = queue.life.source
    assert isinstance(source, PagedEntries)
    assert source.list_for_get is not None
    assert not source.list_for_get.hungry
