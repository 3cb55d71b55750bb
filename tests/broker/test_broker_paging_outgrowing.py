"""Queues that are not durable begin to page: whatever was on them, or going on, stays as it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_parts_support import MemoryManager
from paging_outgrown_support import LIMIT, STORES, drain, fill, number_in, pages, rows, small_host

from multiqueue.broker import ConsumerTarget, Message, Overflow, QueueKind, QueueSettings, VirtualHost
from multiqueue.errors import Empty
from multiqueue.store import MemoryStore, SqliteStore
from multiqueue.testing import PATIENCE, FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture(params=STORES)
def host(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[VirtualHost]:
    yield from small_host(request.param, clock)


def test_a_queue_that_stays_small_never_pages(host: VirtualHost) -> None:
    """Far below the budget nothing is written, and what is on the queue is charged as what does not page."""
    queue = host.declare_queue("q")
    fill(host, range(20))
    statistics = host.memory_statistics()
    assert not pages(queue)
    assert statistics.unpaged == statistics.used == 20 * (106 + 768)
    drain(host, 20)
    assert host.memory_statistics().used == 0


def test_a_queue_that_outgrows_the_memory_keeps_order_and_budget(host: VirtualHost) -> None:
    """A thousand messages, of which memory has room for two hundred, come back in order; nothing is left of them."""
    queue = host.declare_queue("q")
    for number in range(1000):
        fill(host, range(number, number + 1))
        assert host.memory_statistics().used <= LIMIT
    assert pages(queue)
    host.check_invariants()
    assert drain(host, 1000) == list(range(1000))
    assert rows(host) == 0
    assert host.memory_statistics().used == 0
    host.check_invariants()


def test_a_priority_queue_keeps_its_levels_when_it_begins_to_page(host: VirtualHost) -> None:
    """Messages from before and from after stand in one order: level by level, oldest first."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 2})
    for number in range(60):
        host.publish(Message(b"%06d" % number, routing_key="q", priority=number % 3))
        if number == 40:
            queue.life.limit.page_out()
    expected = [number for level in (2, 1, 0) for number in range(60) if number % 3 == level]
    assert [number_in(message) for message in queue.browse()] == expected
    assert drain(host, 60) == expected


def test_a_ring_with_levels_keeps_its_limit_though_messages_come_while_it_evicts(host: VirtualHost) -> None:
    """What came during the walk over the queue is not on it: another walk follows while the limit is exceeded."""
    settings = QueueSettings(kind=QueueKind.PRIORITY, max_priority=1, overflow=Overflow.RING, max_length=20)
    queue = host.declare_queue("q", settings=settings)
    queue.life.limit.page_out()
    period = queue._pager._period  # type: ignore[union-attr]
    period._trimming._goes_on = True  # a loader evicts, piece by piece; here this test does
    fill(host, range(100))
    pieces = period._trim_levels()
    next(pieces)
    fill(host, range(100, 150))
    assert len(list(pieces)) > 0
    assert queue.statistics().available == 20


def test_a_consumer_keeps_its_message_when_the_queue_begins_to_page(host: VirtualHost) -> None:
    """Deliveries from before are accepted, released to their place, rejected and counted as if nothing had been.

    (bounded-memory 12)
    """
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    host.declare_queue("dead")
    queue = host.declare_queue("q", arguments=dead)
    fill(host, range(8))
    with host.subscribe("q", prefetch=3) as subscription:
        accepted, released, rejected = (subscription.get(timeout=0) for _ in range(3))
        got = host.get("q")
        assert got is not None
        assert queue.life.limit.page_out()
        queue._pager.catch_up()
        accepted.accept()
        released.release()
        rejected.reject()
        got.accept()
        again = subscription.get(timeout=PATIENCE)
        assert (number_in(again.message), again.delivery_count) == (1, 2)
        again.accept()
    host.wait_for_commits()
    assert drain(host, 4) == [4, 5, 6, 7]
    assert [number_in(message) for message in host.queue("dead").browse()] == [2]
    assert len(queue) == 0
    host.check_invariants()


def test_messages_that_are_held_or_expire_do_so_after_the_queue_began_to_page(
    host: VirtualHost, clock: FakeClock
) -> None:
    """Times that were set in memory are kept, whether the message is still there or was written out."""
    queue = host.declare_queue("q")
    host.publish(Message(b"000000", routing_key="q", delay=20.0))
    host.publish(Message(b"000001", routing_key="q", expiration=10.0))
    host.publish(Message(b"000002", routing_key="q"))
    queue.life.limit.page_out()
    assert [number_in(message) for message in queue.browse()] == [0, 1, 2]
    clock.advance(15)
    queue.housekeeping()
    assert [number_in(message) for message in queue.browse()] == [0, 2]
    clock.advance(15)
    queue.housekeeping()
    assert drain(host, 2) == [0, 2]


def test_what_memory_keeps_expires_after_the_queue_began_to_page(host: VirtualHost, clock: FakeClock) -> None:
    """An object, which no store has and so no store knows to be past its time, goes at its time."""
    queue = host.declare_queue("q")
    host.publish(Message(b"000000", routing_key="q"))
    host.publish(Message([1, 2], routing_key="q", expiration=10.0))
    assert queue.life.limit.page_out()
    clock.advance(15)
    queue.housekeeping()
    assert (len(queue), queue.statistics().expired) == (1, 1)


def test_a_browser_sees_nothing_twice_when_the_queue_begins_to_page(host: VirtualHost) -> None:
    """A browser goes on behind what it has seen."""
    queue = host.declare_queue("q")
    fill(host, range(10))
    with host.subscribe("q", browse=True) as browser:
        seen = [number_in(browser.get(timeout=0).message) for _ in range(4)]
        queue.life.limit.page_out()
        fill(host, range(10, 12))
        seen += [number_in(browser.get(timeout=PATIENCE).message) for _ in range(8)]
    assert seen == list(range(12))


def test_a_consumer_that_waits_is_told_of_what_comes_after_the_queue_began_to_page(host: VirtualHost) -> None:
    """A consumer that found the queue empty is notified of the next message, with a selector and without."""
    queue = host.declare_queue("q")
    fill(host, range(3), colour="green")
    with host.subscribe("q", selector="colour = 'red'", prefetch=1) as reds:
        with pytest.raises(Empty):
            reds.get(timeout=0)
        queue.life.limit.page_out()
        fill(host, range(3, 4), colour="red")
        assert number_in(reds.get(timeout=PATIENCE).message) == 3


def test_a_put_on_a_queue_that_pages_looks_at_no_list_of_a_selector(
    host: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load tells the consumers of such a list; hundreds of them would cost a put as much as their selectors do."""
    queue = host.declare_queue("q")
    queue.life.limit.page_out()
    with host.subscribe("q", selector="colour = 'red'") as reds:
        looked: list[object] = []
        with monkeypatch.context() as patch:
            patch.setattr(queue.life.source, "next_for", lambda reader, after: looked.append(reader))
            queue.put(Message(b"", headers={"colour": "red"}))
        assert looked == []
        assert reds.get(timeout=PATIENCE)


def test_a_consumer_whose_predicate_is_false_as_an_object_stays(host: VirtualHost) -> None:
    """That it finds nothing is no loss of what it does not want: a list of wanted colours, empty, is a selector."""

    class Wanted(list[str]):
        def __call__(self, message: Message) -> bool:
            return message.headers["colour"] in self

    queue = host.declare_queue("q")
    fill(host, range(3))
    queue.life.limit.page_out()
    target = ConsumerTarget()
    consumer = target.consume(queue, selector=Wanted())
    with pytest.raises(Empty):
        target.get(timeout=0.2)
    assert not consumer.is_closed
    target.close()


def test_a_selector_that_is_asked_while_the_queue_begins_to_page_starts_over(
    host: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A pull asks its selector about a message.  2. The queue pages, the message leaves memory, and somebody loads,
    takes and settles it.  3. The pull comes back: it is not given what is gone, but the next match."""
    queue = host.declare_queue("q")
    fill(host, range(3))
    settled: list[Message] = []

    def page_out_and_settle() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "_start", lambda memory: None)  # no loader brings anything to this consumer
            assert queue.life.limit.page_out()
            host.memory_limit = 800  # less than one message takes: all of them are let go of
            host.memory_limit = LIMIT
            got = host.get("q")
            assert got is not None
            got.accept(wait=True)
            settled.append(got.message)
        rows(host)

    def selector(message: Message) -> bool:
        if not asked:
            asked.append(message)
            page_out_and_settle()
        return True

    asked: list[Message] = []
    with host.subscribe("q", selector=selector, prefetch=1) as subscription:
        received = subscription.get(timeout=PATIENCE)
    assert [number_in(message) for message in (*asked, *settled)] == [0, 0]
    assert asked[0] is not settled[0], "it was in memory all the time"
    assert number_in(received.message) == 1
    host.check_invariants()


def test_a_queue_does_not_begin_to_page_under_a_look_of_management(host: VirtualHost) -> None:
    """A walk over a queue comes to its end; the next message that lacks memory has it page."""
    queue = host.declare_queue("q")
    other = host.declare_queue("other")
    fill(host, range(5))
    asked = []

    def selector(message: Message) -> bool:
        asked.append(queue.life.limit.page_out())
        return True

    assert queue.copy_messages(other, selector) == 5
    assert asked == [False] * 5
    assert not pages(queue)
    assert queue.life.limit.page_out()
    assert drain(host, 5, "other") == list(range(5))


def test_management_reaches_what_a_queue_has_written_out(host: VirtualHost) -> None:
    """Move, copy, delete, change of priority and purge find everything, and leave no row behind."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 1})
    other = host.declare_queue("other")
    fill(host, range(400))
    assert pages(queue)
    assert queue.delete_messages(lambda message: number_in(message) < 100) == 100
    assert queue.move_messages(other, limit=50) == 50
    assert queue.change_priority(1, lambda message: number_in(message) >= 390) == 10
    assert [number_in(message) for message in queue.browse()] == [*range(390, 400), *range(150, 390)]
    assert queue.purge() == 250
    assert drain(host, 50, "other") == list(range(100, 150))
    assert host.memory_statistics().used == 0
    assert rows(host) == 0


def test_what_was_written_out_can_be_moved_to_a_durable_queue() -> None:
    """A persistent message goes from a queue that is not durable to one that is, and leaves no row where it was."""
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT)
    queue = host.declare_queue("q")
    durable = host.declare_queue("durable", durable=True)
    for number in range(100):
        host.publish(Message(b"%06d" % number, routing_key="q", persistent=True))
    assert queue.life.limit.page_out()
    assert queue.move_messages(durable, limit=60) == 60
    host.wait_for_commits()
    assert queue.purge() == 40
    assert rows(host) == 60
    assert drain(host, 60, "durable") == list(range(60))
    host.close()


def test_a_transaction_settles_what_was_written_out(host: VirtualHost) -> None:
    """Accepted, released and rejected in one commit, after the queue began to page."""
    host.declare_queue("dead")
    queue = host.declare_queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    fill(host, range(300))
    assert pages(queue)
    with host.subscribe("q", prefetch=3) as subscription:
        first, second, third = (subscription.get(timeout=PATIENCE) for _ in range(3))
        with host.transaction() as transaction:
            transaction.accept(first)
            transaction.release(second)
            transaction.reject(third)
            transaction.publish(Message(b"000300", routing_key="q"))
    host.wait_for_commits()
    assert [number_in(message) for message in host.queue("dead").browse()] == [2]
    assert drain(host, 299) == [1, *range(3, 301)]


def test_a_queue_that_is_deleted_leaves_no_rows(host: VirtualHost) -> None:
    """What was written out goes with its queue; what a consumer has of it may still be settled."""
    queue = host.declare_queue("q")
    fill(host, range(500))
    assert pages(queue)
    received = host.get("q")
    assert received is not None
    assert queue.delete() == 499
    received.accept()
    assert rows(host) == 0
    assert host.memory_statistics().used == 0


def test_the_files_of_a_host_without_a_store_go_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The store is made when it is needed, in the directory for temporary files, and removed at the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    host = VirtualHost(memory_limit=LIMIT)
    host.declare_queue("q")
    fill(host, range(10))
    assert list(tmp_path.iterdir()) == []
    fill(host, range(10, 400))
    assert len(list(tmp_path.iterdir())) == 1
    host.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_out_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    """Queues and messages that are not durable are gone with their process, whatever the store had of them."""
    store = SqliteStore(tmp_path / "a", durability="relaxed")
    host = VirtualHost(store=store, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    host.declare_queue("durable", durable=True)
    fill(host, range(400))
    host.publish(Message(b"000000", routing_key="durable", persistent=True))
    assert pages(queue)
    assert sum(level.messages for level in store.levels()) > 1
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # the files as a crash would leave them
    host.close()
    again = SqliteStore(tmp_path / "b", durability="relaxed")
    assert sum(level.messages for level in again.levels()) == 1
    host = VirtualHost(store=again, memory_limit=LIMIT)
    assert [each.name for each in host.queues()] == ["durable"]
    assert len(host.queue("durable")) == 1
    host.close()
