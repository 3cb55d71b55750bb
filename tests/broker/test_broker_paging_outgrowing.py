"""Queues that are not durable, and a virtual host's memory that is too small for what stands on them."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_durable_support import holding

from multiqueue.broker import (
    ConsumerNotAdmitted,
    Message,
    MessageRefused,
    Overflow,
    QueueKind,
    QueueSettings,
    VirtualHost,
)
from multiqueue.broker._memory import MemoryManager
from multiqueue.broker._outgrown_core import OutgrownCore
from multiqueue.broker._queue import BrokerQueue
from multiqueue.errors import Empty
from multiqueue.store import MemoryStore, SqliteStore, StoreFailed

LIMIT = 200_000  # of which queues in memory have three quarters until one pages: some 170 messages of 100 bytes
SORTED = QueueSettings(kind=QueueKind.SORTED, sort_key="n")


class Clock:
    """A clock that stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["no store", "store"])
def host(request: pytest.FixtureRequest, clock: Clock) -> Iterator[VirtualHost]:
    store = MemoryStore() if request.param == "store" else None
    host = VirtualHost(store=store, memory_limit=LIMIT, clock=clock, wall_clock=clock)
    yield host
    host.close()


def _pages(queue: BrokerQueue) -> bool:
    return isinstance(queue._core, OutgrownCore)


def _publish(host: VirtualHost, numbers: range, queue: str = "q", *, size: int = 100, colour: str = "blue") -> None:
    for number in numbers:
        body = b"%06d" % number + b"x" * size
        host.publish(Message(body, routing_key=queue, headers={"colour": colour, "n": number}))


def _number(message: Message) -> int:
    assert isinstance(message.body, bytes)
    return int(message.body[:6])


def _drain(host: VirtualHost, count: int, queue: str = "q", **options: object) -> list[int]:
    numbers = []
    with host.subscribe(queue, prefetch=10, **options) as subscription:  # type: ignore[arg-type]
        for _ in range(count):
            received = subscription.get(timeout=30)
            numbers.append(_number(received.message))
            received.accept()
    return numbers


# -- what stays as it was


def test_a_queue_that_stays_small_never_pages(host: VirtualHost) -> None:
    """Far below the budget nothing is written, and what is on the queue is charged as what does not page."""
    queue = host.declare_queue("q")
    _publish(host, range(20))
    statistics = host.memory_statistics()
    assert not _pages(queue)
    assert statistics.unpaged == statistics.used == 20 * (106 + 768)
    _drain(host, 20)
    assert host.memory_statistics().used == 0


def test_a_queue_that_outgrows_the_memory_keeps_order_and_budget(host: VirtualHost) -> None:
    """A thousand messages, of which memory has room for two hundred, come back in order; nothing is left of them."""
    queue = host.declare_queue("q")
    for number in range(1000):
        _publish(host, range(number, number + 1))
        assert host.memory_statistics().used <= LIMIT
    assert _pages(queue)
    host.check_invariants()
    assert _drain(host, 1000) == list(range(1000))
    assert _rows(host) == 0
    assert host.memory_statistics().used == 0
    host.check_invariants()


def test_a_priority_queue_keeps_its_levels_when_it_begins_to_page(host: VirtualHost) -> None:
    """Messages from before and from after stand in one order: level by level, oldest first."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 2})
    for number in range(60):
        host.publish(Message(b"%06d" % number, routing_key="q", priority=number % 3))
        if number == 40:
            queue.page_out()
    expected = [number for level in (2, 1, 0) for number in range(60) if number % 3 == level]
    assert [_number(message) for message in queue.browse()] == expected
    assert _drain(host, 60) == expected


def test_whoever_has_a_message_keeps_it_when_the_queue_begins_to_page(host: VirtualHost) -> None:
    """Deliveries from before are accepted, released to their place, rejected and counted as if nothing had been."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    host.declare_queue("dead")
    queue = host.declare_queue("q", arguments=dead)
    _publish(host, range(8))
    with host.subscribe("q", prefetch=3) as subscription:
        accepted, released, rejected = (subscription.get(timeout=0) for _ in range(3))
        got = host.get("q")
        assert got is not None
        assert queue.page_out()
        queue.write_out()
        accepted.accept()
        released.release()
        rejected.reject()
        got.accept()
        again = subscription.get(timeout=10)
        assert (_number(again.message), again.delivery_count) == (1, 2)
        again.accept()
    host.wait_for_commits()
    assert _drain(host, 4) == [4, 5, 6, 7]
    assert [_number(message) for message in host.queue("dead").browse()] == [2]
    assert len(queue) == 0
    host.check_invariants()


def test_messages_that_are_held_or_expire_do_so_after_the_queue_began_to_page(host: VirtualHost, clock: Clock) -> None:
    """Times that were set in memory are kept, whether the message is still there or was written out."""
    queue = host.declare_queue("q")
    host.publish(Message(b"000000", routing_key="q", delay=20.0))
    host.publish(Message(b"000001", routing_key="q", expiration=10.0))
    host.publish(Message(b"000002", routing_key="q"))
    queue.page_out()
    assert [_number(message) for message in queue.browse()] == [0, 1, 2]
    clock.now += 15
    queue.housekeeping()
    assert [_number(message) for message in queue.browse()] == [0, 2]
    clock.now += 15
    queue.housekeeping()
    assert _drain(host, 2) == [0, 2]


def test_what_memory_keeps_expires_after_the_queue_began_to_page(host: VirtualHost, clock: Clock) -> None:
    """An object, which no store has and so no store knows to be past its time, goes at its time."""
    queue = host.declare_queue("q")
    host.publish(Message(b"000000", routing_key="q"))
    host.publish(Message([1, 2], routing_key="q", expiration=10.0))
    assert queue.page_out()
    clock.now += 15
    queue.housekeeping()
    assert (len(queue), queue.statistics().expired) == (1, 1)


def test_a_browser_sees_nothing_twice_when_the_queue_begins_to_page(host: VirtualHost) -> None:
    """A browser goes on behind what it has seen."""
    queue = host.declare_queue("q")
    _publish(host, range(10))
    with host.subscribe("q", browse=True) as browser:
        seen = [_number(browser.get(timeout=0).message) for _ in range(4)]
        queue.page_out()
        _publish(host, range(10, 12))
        seen += [_number(browser.get(timeout=10).message) for _ in range(8)]
    assert seen == list(range(12))


def test_a_consumer_that_waits_is_told_of_what_comes_after_the_queue_began_to_page(host: VirtualHost) -> None:
    """Whoever found the queue empty before is notified of the next message, with a selector and without."""
    queue = host.declare_queue("q")
    _publish(host, range(3), colour="green")
    with host.subscribe("q", selector="colour = 'red'", prefetch=1) as reds:
        with pytest.raises(Empty):
            reds.get(timeout=0)
        queue.page_out()
        _publish(host, range(3, 4), colour="red")
        assert _number(reds.get(timeout=10).message) == 3


def test_a_selector_that_is_asked_while_the_queue_begins_to_page_starts_over(
    host: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A pull asks its selector about a message.  2. The queue pages, the message leaves memory, and somebody loads,
    takes and settles it.  3. The pull comes back: it is not given what is gone, but the next match."""
    queue = host.declare_queue("q")
    _publish(host, range(3))
    settled: list[Message] = []

    def page_out_and_settle() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "_start", lambda memory: None)  # no loader brings anything to this consumer
            assert queue.page_out()
            host.memory_limit = 800  # less than one message takes: all of them are let go of
            host.memory_limit = LIMIT
            got = host.get("q")
            assert got is not None
            got.accept(wait=True)
            settled.append(got.message)
        _rows(host)

    def selector(message: Message) -> bool:
        if not asked:
            asked.append(message)
            page_out_and_settle()
        return True

    asked: list[Message] = []
    with host.subscribe("q", selector=selector, prefetch=1) as subscription:
        received = subscription.get(timeout=10)
    assert [_number(message) for message in (*asked, *settled)] == [0, 0]
    assert asked[0] is not settled[0], "it was in memory all the time"
    assert _number(received.message) == 1
    host.check_invariants()


def test_a_queue_does_not_begin_to_page_under_a_look_of_management(host: VirtualHost) -> None:
    """Whoever walks over a queue walks to its end; the next message that lacks memory has it page."""
    queue = host.declare_queue("q")
    other = host.declare_queue("other")
    _publish(host, range(5))
    asked = []

    def selector(message: Message) -> bool:
        asked.append(queue.page_out())
        return True

    assert queue.copy_messages(other, selector) == 5
    assert asked == [False] * 5
    assert not _pages(queue)
    assert queue.page_out()
    assert _drain(host, 5, "other") == list(range(5))


def test_management_reaches_what_a_queue_has_written_out(host: VirtualHost) -> None:
    """Move, copy, delete, change of priority and purge find everything, and leave no row behind."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 1})
    other = host.declare_queue("other")
    _publish(host, range(400))
    assert _pages(queue)
    assert queue.delete_messages(lambda message: _number(message) < 100) == 100
    assert queue.move_messages(other, limit=50) == 50
    assert queue.change_priority(1, lambda message: _number(message) >= 390) == 10
    assert [_number(message) for message in queue.browse()] == [*range(390, 400), *range(150, 390)]
    assert queue.purge() == 250
    assert _drain(host, 50, "other") == list(range(100, 150))
    assert host.memory_statistics().used == 0
    assert _rows(host) == 0


def test_what_was_written_out_can_be_moved_to_a_durable_queue() -> None:
    """A persistent message goes from a queue that nobody keeps to one that is kept, and leaves no row where it was."""
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT)
    queue = host.declare_queue("q")
    durable = host.declare_queue("durable", durable=True)
    for number in range(100):
        host.publish(Message(b"%06d" % number, routing_key="q", persistent=True))
    assert _pages(queue)
    assert queue.move_messages(durable, limit=60) == 60
    host.wait_for_commits()
    assert queue.purge() == 40
    assert _rows(host) == 60
    assert _drain(host, 60, "durable") == list(range(60))
    host.close()


def _rows(host: VirtualHost) -> int:
    """How many messages the store has that the queues' rows are in, when it has done what was asked of it."""
    journal = host._overflow._journal
    if journal is None:
        return 0
    journal.wait_for_commits()
    journal.wait_for_commits()
    return sum(level.messages for level in journal.store.levels())


def test_a_transaction_settles_what_was_written_out(host: VirtualHost) -> None:
    """Accepted, released and rejected in one commit, after the queue began to page."""
    host.declare_queue("dead")
    queue = host.declare_queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    _publish(host, range(300))
    assert _pages(queue)
    with host.subscribe("q", prefetch=3) as subscription:
        first, second, third = (subscription.get(timeout=10) for _ in range(3))
        with host.transaction() as transaction:
            transaction.accept(first)
            transaction.release(second)
            transaction.reject(third)
            transaction.publish(Message(b"000300", routing_key="q"))
    host.wait_for_commits()
    assert [_number(message) for message in host.queue("dead").browse()] == [2]
    assert _drain(host, 299) == [1, *range(3, 301)]


def test_a_queue_that_is_deleted_leaves_no_rows(host: VirtualHost) -> None:
    """What was written out goes with its queue; what a consumer has of it may still be settled."""
    queue = host.declare_queue("q")
    _publish(host, range(500))
    assert _pages(queue)
    received = host.get("q")
    assert received is not None
    assert queue.delete() == 499
    received.accept()
    assert _rows(host) == 0
    assert host.memory_statistics().used == 0


# -- back in memory


def test_a_queue_that_is_found_empty_keeps_everything_in_memory_again(host: VirtualHost) -> None:
    """At housekeeping a queue on which nothing stands pages no longer; consumers, browsers and figures go on, and it
    can outgrow the memory once more."""
    queue = host.declare_queue("q")
    with host.subscribe("q", prefetch=10) as subscription, host.subscribe("q", browse=True) as browser:
        first = 0
        for _ in range(3):
            _publish(host, range(first, first + 400))
            assert _pages(queue)
            for number in range(first, first + 400):
                received = subscription.get(timeout=30)
                assert _number(received.message) == number
                received.accept()
            queue.housekeeping()
            assert not _pages(queue)
            statistics = host.memory_statistics()
            assert statistics.targets == ()
            assert statistics.used == statistics.loading, "a load that was under way ends by itself"
            _publish(host, range(first + 400, first + 410))
            statistics = host.memory_statistics()
            assert statistics.unpaged == statistics.used - statistics.loading == 10 * (106 + 768)
            for number in range(first + 400, first + 410):
                assert _number(browser.get(timeout=0).message) == number
                received = subscription.get(timeout=0)
                assert _number(received.message) == number
                received.accept()
            first += 410
            host.check_invariants()
            assert queue.statistics().enqueued == first
    assert _rows(host) == 0


def test_a_priority_queue_that_comes_back_serves_its_consumers(host: VirtualHost) -> None:
    """The places of consumers are those of a queue that keeps everything in memory, of whatever kind it is."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 1})
    with host.subscribe("q", prefetch=1) as subscription:
        for priority in (0, 1, 0):
            assert queue.page_out()
            host.publish(Message(b"000000", routing_key="q", priority=priority))
            subscription.get(timeout=10).accept()
            queue.housekeeping()
            assert not _pages(queue)
            host.publish(Message(b"000001", routing_key="q", priority=priority))
            assert _number(subscription.get(timeout=0).message) == 1
            subscription.unsettled()[0].accept()
    host.check_invariants()


def test_a_queue_stays_where_it_is_while_somebody_has_a_message_of_it(host: VirtualHost) -> None:
    """What was taken and may come back keeps its queue paging; settling it ends that."""
    queue = host.declare_queue("q")
    _publish(host, range(250))
    taken = [host.get("q") for _ in range(250)]
    queue.housekeeping()
    assert _pages(queue)
    for received in taken:
        assert received is not None
        received.accept()
    queue.housekeeping()
    assert not _pages(queue)
    assert _rows(host) == 0


def test_a_queue_does_not_come_back_under_a_look_of_management(host: VirtualHost) -> None:
    """What a look has read, and others have settled since, is not taken for something of the queue's next life."""
    queue = host.declare_queue("q")
    _publish(host, range(3))
    assert queue.page_out()

    def settle_everything(message: Message) -> bool:
        while (received := host.get("q", auto_accept=True)) is not None:
            del received
        queue.housekeeping()
        return True

    assert queue.delete_messages(settle_everything) == 0
    assert len(queue) == 0
    assert _pages(queue)
    queue.housekeeping()
    assert not _pages(queue)
    host.check_invariants()


def test_what_is_found_expired_when_its_queue_has_come_back_is_left_alone() -> None:
    """1. The store tells of an expired message, which somebody settles.  2. Before that is committed the queue is back
    in memory.  3. The row is read, and not dropped from a queue that does not have it."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    _publish(host, range(1))
    assert queue.page_out()
    reading, received = queue._reading, host.get("q")
    assert reading is not None
    assert received is not None
    position = received.delivery.entry.position
    with holding(store):
        received.accept()
        queue.housekeeping()
        assert not _pages(queue)
        assert not reading.expire(position)
    assert len(queue) == 0
    host.check_invariants()
    host.close()


# -- who pages, who waits


def test_a_queue_pages_although_its_consumers_have_more_credit_than_fits(host: VirtualHost) -> None:
    """A prefetch is a permission: a queue whose consumers may have more than the memory can set aside pages like any
    other, they are served, and nothing is taken from whoever comes to another queue."""
    host.declare_queue("other", durable=True)
    queue = host.declare_queue("q")
    with (
        host.subscribe("q", prefetch=10_000) as first,
        host.subscribe("q", selector="colour = 'blue'", prefetch=10_000) as second,
    ):
        _publish(host, range(1000))
        assert _pages(queue)
        assert host.memory_statistics().used <= LIMIT
        host.check_invariants()
        numbers = []
        for turn in range(1000):
            received = (first, second)[turn % 2].get(timeout=30)
            numbers.append(_number(received.message))
            received.accept()
        assert numbers == list(range(1000))
        host.subscribe("other", prefetch=10).close()
    assert host.memory_statistics().used == 0


def test_credit_that_fits_is_set_aside_when_a_queue_begins_to_page(host: VirtualHost) -> None:
    """What consumers from before were promised counts when others come, and no more once they are gone."""
    queue = host.declare_queue("q")
    other = host.declare_queue("other")
    with host.subscribe("q", prefetch=250):
        for each in (queue, other):
            assert each.page_out()
        with pytest.raises(ConsumerNotAdmitted):
            host.subscribe("other", prefetch=250)
    host.subscribe("other", prefetch=250).close()


def test_the_largest_queue_pages_not_the_one_that_needs_a_little(host: VirtualHost) -> None:
    """A small queue stays in memory beside one that fills it."""
    large, small = host.declare_queue("large"), host.declare_queue("small")
    _publish(host, range(160), "large")
    _publish(host, range(30), "small")
    assert (_pages(large), _pages(small)) == (True, False)
    assert _drain(host, 160, "large") == list(range(160))
    assert _drain(host, 30, "small") == list(range(30))


def test_a_durable_queue_beside_takes_memory_from_what_does_not_page() -> None:
    """With a queue that pages less is lent: those that have more begin to page."""
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT)
    queue = host.declare_queue("q")
    _publish(host, range(150))
    assert not _pages(queue)
    host.declare_queue("durable", durable=True)
    assert _pages(queue)
    assert _drain(host, 150) == list(range(150))
    host.close()


def test_a_lowered_budget_has_queues_page(host: VirtualHost) -> None:
    """What is in memory when the budget is lowered goes to the store, and comes back from there."""
    queue = host.declare_queue("q")
    _publish(host, range(100))
    host.memory_limit = 50_000
    assert _pages(queue)
    assert host.memory_statistics().used <= 50_000
    assert _drain(host, 100) == list(range(100))


def test_a_queue_that_cannot_page_holds_its_publishers_back(host: VirtualHost) -> None:
    """Sorted queues are in memory whole: beyond its share a publisher is to wait, until consumers have made room."""
    queue = host.declare_queue("q", settings=SORTED)
    number = 0
    while not (published := host.publish(Message(b"%06d" % number, routing_key="q", headers={"n": -number}))).throttled:
        number += 1
    assert 100 < number < 250
    assert queue.is_throttled
    assert not queue.wait_for_room(timeout=0)
    resumed = threading.Event()
    assert queue.when_room(resumed.set)
    assert not resumed.is_set()
    taken = [host.get("q") for _ in range(number + 1)]
    assert not resumed.is_set(), "what consumers have takes memory as well"
    for received in taken:
        assert received is not None
        received.accept()
    assert resumed.is_set()
    assert host.wait_for_room(published, timeout=0)
    assert not host.publish(Message(b"000000", routing_key="q", headers={"n": 0})).throttled


def _publish_until_refused(host: VirtualHost, make: Callable[[int], Message]) -> int:
    """How many messages were accepted; a thousand are more than any of these budgets has room for."""
    for number in range(1000):
        try:
            host.publish(make(number))
        except MessageRefused:
            return number
    raise AssertionError("nothing was refused")


def test_whoever_goes_on_although_he_should_wait_is_refused(host: VirtualHost) -> None:
    """A publisher that does not wait cannot fill the memory for ever, and consumers drain what is there."""
    host.declare_queue("q", settings=SORTED)
    accepted = _publish_until_refused(host, lambda n: Message(b"%06d" % n, routing_key="q", headers={"n": n}))
    assert accepted * 774 <= 1.01 * LIMIT
    assert _drain(host, accepted) == list(range(accepted))
    host.publish(Message(b"000000", routing_key="q", headers={"n": 0}))


def test_a_queue_that_can_page_does_so_before_it_refuses(host: VirtualHost) -> None:
    """Where what waits for its commit, or pages, has taken the memory, a queue that asks for a little more of it pages
    although it is far below its share; it holds nobody back, and refuses nothing."""
    queue = host.declare_queue("q", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    host._memory.begin_writing(LIMIT - 1000, may_wait=False)
    _publish(host, range(10))
    assert _pages(queue)
    assert not queue.is_throttled
    with pytest.raises(MessageRefused):
        _publish(host, range(1))
    host._memory.end_writing(LIMIT - 1000)
    assert _drain(host, 10) == list(range(10))


def test_a_queue_with_a_reject_policy_refuses_when_the_memory_ends(host: VirtualHost) -> None:
    """Whoever asked for refusals at the limit gets them at the limit of the memory as well."""
    queue = host.declare_queue("q", arguments={"x-max-length": 10_000, "x-overflow": "reject-publish"})
    accepted = _publish_until_refused(host, lambda n: Message(object(), routing_key="q"))
    assert 768 * accepted <= 0.8 * LIMIT
    assert queue.purge() == accepted
    host.publish(Message(object(), routing_key="q"))


def test_a_ring_that_is_full_goes_on_when_there_is_memory_again(host: VirtualHost) -> None:
    """Only the memory holds publishers of a ring back, not its own limit, at which it always stands."""
    rings = QueueSettings(kind=QueueKind.SORTED, sort_key="n", max_length=50, overflow=Overflow.RING)
    ring = host.declare_queue("ring", settings=rings)
    host.declare_queue("q", settings=SORTED)
    _publish(host, range(40), "ring")
    count = _publish_until_refused(host, lambda n: Message(b"%06d" % n, routing_key="q", headers={"n": n}))
    while not ring.is_throttled:
        _publish(host, range(1), "ring")
    _drain(host, count)
    ring.housekeeping()
    assert not host.queue("ring").is_throttled
    assert 0 < len(ring) <= 50


def test_whoever_was_held_back_goes_on_when_the_queue_pages_at_last(host: VirtualHost) -> None:
    """While somebody looks at everything a queue cannot page, and holds publishers back; when it can, they go on."""
    queue = host.declare_queue("q")
    _publish(host, range(3))
    resumed = threading.Event()

    waits: list[bool] = []

    def fill(message: Message) -> bool:
        while not queue.is_throttled:
            _publish(host, range(1))
        waits.append(queue.when_room(resumed.set))
        return True

    assert len(queue.browse(fill, limit=1)) == 1
    assert set(waits) == {True}
    assert not resumed.is_set()
    queue.housekeeping()
    assert _pages(queue)
    assert resumed.is_set()
    assert not queue.is_throttled


def test_objects_of_this_process_stay_in_memory(host: VirtualHost) -> None:
    """A body that is no bytes cannot be stored: its queue does not page, and the very object is delivered."""
    queue = host.declare_queue("q")
    body = [1, 2]
    host.publish(Message(body, routing_key="q"))
    assert not queue.page_out()
    received = host.get("q")
    assert received is not None
    assert received.body is body


def test_what_no_store_can_keep_stays_in_memory_on_a_queue_that_pages(host: VirtualHost) -> None:
    """Among messages that are written out, an object and a message too large to be loaded keep their places."""
    queue = host.declare_queue("q")
    _publish(host, range(2))
    assert queue.page_out()
    body, large = [1, 2], b"x" * (LIMIT // 3)
    host.publish(Message(body, routing_key="q"))
    host.publish(Message(large, routing_key="q"))
    _publish(host, range(2, 200))
    assert host.memory_statistics().unpaged >= len(large)
    host.check_invariants()
    messages = []
    with host.subscribe("q", prefetch=1) as subscription:
        for _ in range(202):
            received = subscription.get(timeout=10)
            messages.append(received.message)
            received.accept()
    assert messages[2].body is body
    assert messages[3].body == large
    assert [_number(each) for each in messages[:2] + messages[4:]] == list(range(200))
    assert host.memory_statistics().used == 0


def test_a_store_that_fails_leaves_the_queue_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no store can be made, what is on the queue stays there, and publishers are held back."""

    tries: list[int] = []

    def fail(*arguments: object) -> SqliteStore:
        tries.append(1)
        raise StoreFailed("the directory for temporary files cannot be written")

    monkeypatch.setattr(SqliteStore, "scratch", fail)
    host = VirtualHost(memory_limit=LIMIT, clock=Clock())
    queue = host.declare_queue("q")
    published = [host.publish(Message(b"x" * 100, routing_key="q")) for _ in range(200)]
    assert not _pages(queue)
    assert tries == [1], "it is not tried with every message"
    assert published[-1].throttled == (queue,)
    for _ in range(200):
        assert host.get("q", auto_accept=True) is not None
    assert not queue.is_throttled
    host.close()


# -- where it is written


def test_the_files_of_a_host_without_a_store_go_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The store is made when it is needed, in the directory for temporary files, and removed at the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    host = VirtualHost(memory_limit=LIMIT)
    host.declare_queue("q")
    _publish(host, range(10))
    assert list(tmp_path.iterdir()) == []
    _publish(host, range(10, 400))
    assert len(list(tmp_path.iterdir())) == 1
    host.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_out_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    """Queues and messages that are not durable are gone with their process, whatever the store had of them."""
    store = SqliteStore(tmp_path / "a", durability="relaxed")
    host = VirtualHost(store=store, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    host.declare_queue("durable", durable=True)
    _publish(host, range(400))
    host.publish(Message(b"000000", routing_key="durable", persistent=True))
    assert _pages(queue)
    assert sum(level.messages for level in store.levels()) > 1
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # the files as a crash would leave them
    host.close()
    again = SqliteStore(tmp_path / "b", durability="relaxed")
    assert sum(level.messages for level in again.levels()) == 1
    host = VirtualHost(store=again, memory_limit=LIMIT)
    assert [each.name for each in host.queues()] == ["durable"]
    assert len(host.queue("durable")) == 1
    host.close()


# -- many at once


@pytest.mark.parametrize("has_store", [False, True])
def test_a_queue_begins_to_page_while_everybody_is_at_work(has_store: bool) -> None:
    """Publishers, consumers with selectors, transactions, returns, moves: each message is settled exactly once."""
    host = VirtualHost(store=MemoryStore() if has_store else None, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    host.declare_queue("aside")
    count, threads = 600, 2
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    done = threading.Event()
    errors: list[BaseException] = []

    def publish(first: int) -> None:
        for number in range(first, first + count):
            body = b"%06d" % number + b"x" * 100
            colour = "red" if first else "blue"
            published = host.publish(Message(body, routing_key="q", headers={"colour": colour}))
            assert host.wait_for_room(published, timeout=30)

    def consume(selector: str, returns: bool) -> None:
        with host.subscribe("q", selector=selector, prefetch=5) as subscription:
            turn = 0
            while not done.is_set():
                try:
                    received = subscription.get(timeout=0.01)
                except Empty:
                    continue
                turn += 1
                if returns and turn % 7 == 0:
                    received.release()
                    continue
                with host.transaction() as transaction:
                    transaction.accept(received)
                with lock:
                    seen[_number(received.message)] += 1
                    if sum(seen.values()) == threads * count:
                        done.set()

    def safely(work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001  # for the main thread
            errors.append(error)
            done.set()

    def manage() -> None:
        while not done.is_set():
            queue.move_messages(host.queue("aside"), limit=3)
            host.queue("aside").move_messages(queue)
            if len(queue) > 20:
                queue.page_out()
            queue.housekeeping()

    workers = [threading.Thread(target=safely, args=(publish, each * count)) for each in range(threads)]
    workers += [
        threading.Thread(target=safely, args=(consume, selector, returns))
        for selector, returns in (("colour = 'red'", True), ("colour = 'blue'", False))
    ]
    workers.append(threading.Thread(target=safely, args=(manage,)))
    for worker in workers:
        worker.start()
    if not done.wait(60):
        errors.append(AssertionError(f"only {sum(seen.values())} of {threads * count} were settled"))
        done.set()
    for worker in workers:
        worker.join()
    assert errors == []
    assert set(seen.values()) == {1}
    host.check_invariants()
    assert host.memory_statistics().used == 0
    host.close()


def _deep(count: int) -> None:
    """One red message behind `count` blue ones, on a queue that is not durable, and a consumer of red."""
    host = VirtualHost(memory_limit=4 << 20)
    host.declare_queue("q")
    _publish(host, range(count))
    _publish(host, range(1), colour="red")
    with host.subscribe("q", selector="colour = 'red'") as reds:
        received = reds.get(timeout=240)
        assert received.message.headers["colour"] == "red"
        received.accept()
        statistics = host.memory_statistics()
        assert statistics.used <= 4 << 20
        # One scan: each page has 500 headers, and one more load brings the body.
        assert statistics.loads <= count // 500 + 10
    host.close()


def test_one_match_behind_many_transient_ones_is_delivered() -> None:
    """A match deep in a queue that is not durable is found in one scan."""
    _deep(10_000)


@pytest.mark.slow
def test_one_match_behind_half_a_million_transient_ones_is_delivered() -> None:
    """The same behind 500,000."""
    _deep(500_000)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is used")
def test_a_million_transient_messages_take_no_more_than_the_budget() -> None:
    """A backlog of a million on a host without a store, with 4 MiB: memory hardly grows, and all come back in order."""
    with_a_little = _resident_bytes()
    host = VirtualHost(memory_limit=4 << 20)
    host.declare_queue("q")
    most = 0
    for first in range(0, 1_000_000, 10_000):
        _publish(host, range(first, first + 10_000))
        most = max(most, _resident_bytes())
    with host.subscribe("q", prefetch=100) as subscription:
        for number in range(1_000_000):
            received = subscription.get(timeout=60)
            assert _number(received.message) == number
            received.accept()
            if number % 10_000 == 0:
                most = max(most, _resident_bytes())
    gc.collect()
    assert most - with_a_little <= 64 << 20
    assert host.memory_statistics().used == 0
    host.close()
