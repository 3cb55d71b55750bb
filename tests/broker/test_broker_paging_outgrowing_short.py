"""Where memory is short: which queues page, who waits, and who is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from paging_outgrown_support import LIMIT, STORES, drain, fill, number_in, pages, small_host

from multiqueue.broker import (
    ConsumerNotAdmitted,
    Message,
    MessageRefused,
    Overflow,
    QueueKind,
    QueueSettings,
    VirtualHost,
)
from multiqueue.store import MemoryStore, SqliteStore, StoreFailed
from multiqueue.testing import PATIENCE, FakeClock


@pytest.fixture(params=STORES)
def host(request: pytest.FixtureRequest) -> Iterator[VirtualHost]:
    yield from small_host(request.param)


SORTED = QueueSettings(kind=QueueKind.SORTED, sort_key="n")


def test_a_queue_pages_although_its_consumers_have_more_credit_than_fits(host: VirtualHost) -> None:
    """A prefetch is a permission: a queue whose consumers may have more than the memory can set aside pages like any
    other, they are served, and nothing is taken from publishers to another queue."""
    host.declare_queue("other", durable=True)
    queue = host.declare_queue("q")
    with (
        host.subscribe("q", prefetch=10_000) as first,
        host.subscribe("q", selector="colour = 'blue'", prefetch=10_000) as second,
    ):
        fill(host, range(1000))
        assert pages(queue)
        assert host.memory_statistics().used <= LIMIT
        host.check_invariants()
        numbers = []
        for turn in range(1000):
            received = (first, second)[turn % 2].get(timeout=PATIENCE)
            numbers.append(number_in(received.message))
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
            assert each.life.limit.page_out()
        with pytest.raises(ConsumerNotAdmitted):
            host.subscribe("other", prefetch=250)
    host.subscribe("other", prefetch=250).close()


def test_the_largest_queue_pages_not_the_one_that_needs_a_little(host: VirtualHost) -> None:
    """A small queue stays in memory beside one that fills it."""
    large, small = host.declare_queue("large"), host.declare_queue("small")
    fill(host, range(160), "large")
    fill(host, range(30), "small")
    assert (pages(large), pages(small)) == (True, False)
    assert drain(host, 160, "large") == list(range(160))
    assert drain(host, 30, "small") == list(range(30))


def test_a_durable_queue_beside_takes_memory_from_what_does_not_page() -> None:
    """With a queue that pages there is less for others: those that have more begin to page."""
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT)
    queue = host.declare_queue("q")
    fill(host, range(100))
    assert not pages(queue)
    durable = host.declare_queue("durable", durable=True)
    for _ in range(140):
        host.publish_nowait(Message(b"x", routing_key="durable", persistent=True))
    host.wait_for_commits()
    assert pages(durable)
    assert pages(queue)
    assert drain(host, 100) == list(range(100))
    host.close()


def test_a_lowered_budget_has_queues_page(host: VirtualHost) -> None:
    """What is in memory when the budget is lowered goes to the store, and comes back from there."""
    queue = host.declare_queue("q")
    fill(host, range(100))
    host.memory_limit = 50_000
    assert pages(queue)
    assert host.memory_statistics().used <= 50_000
    assert drain(host, 100) == list(range(100))


def test_a_queue_that_cannot_page_holds_its_publishers_back(host: VirtualHost) -> None:
    """Sorted queues are in memory whole: beyond its share a publisher is to wait, until consumers have made room.

    (bounded-memory 13)
    """
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


def test_a_publisher_that_goes_on_although_it_should_wait_is_refused(host: VirtualHost) -> None:
    """A publisher that does not wait cannot fill the memory for ever, and consumers drain what is there."""
    host.declare_queue("q", settings=SORTED)
    accepted = _publish_until_refused(host, lambda n: Message(b"%06d" % n, routing_key="q", headers={"n": n}))
    assert accepted * 774 <= 1.01 * LIMIT
    assert drain(host, accepted) == list(range(accepted))
    host.publish(Message(b"000000", routing_key="q", headers={"n": 0}))


def test_a_queue_that_can_page_does_so_before_it_refuses(host: VirtualHost) -> None:
    """Where what waits for its commit, or pages, has taken the memory, a queue that asks for a little more of it pages
    although it is far below its share; it holds no publisher back, and refuses nothing."""
    queue = host.declare_queue("q", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    host._memory.begin_writing(LIMIT - 1000, may_wait=False)
    fill(host, range(10))
    assert pages(queue)
    assert not queue.is_throttled
    with pytest.raises(MessageRefused):
        fill(host, range(1))
    host._memory.end_writing(LIMIT - 1000)
    assert drain(host, 10) == list(range(10))


def test_a_queue_with_a_reject_policy_refuses_when_the_memory_ends(host: VirtualHost) -> None:
    """A queue that refuses at its limit refuses at the limit of the memory as well."""
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
    fill(host, range(40), "ring")
    count = _publish_until_refused(host, lambda n: Message(b"%06d" % n, routing_key="q", headers={"n": n}))
    while not ring.is_throttled:
        fill(host, range(1), "ring")
    drain(host, count)
    ring.housekeeping()
    assert not host.queue("ring").is_throttled
    assert 0 < len(ring) <= 50


def test_a_publisher_that_was_held_back_goes_on_when_the_queue_pages_at_last(host: VirtualHost) -> None:
    """While somebody looks at everything a queue cannot page, and holds publishers back; when it can, they go on."""
    queue = host.declare_queue("q")
    fill(host, range(3))
    resumed = threading.Event()

    waits: list[bool] = []

    def fill_up(message: Message) -> bool:
        while not queue.is_throttled:
            fill(host, range(1))
        waits.append(queue.when_room(resumed.set))
        return True

    assert len(queue.browse(fill_up, limit=1)) == 1
    assert set(waits) == {True}
    assert not resumed.is_set()
    queue.housekeeping()
    assert pages(queue)
    assert resumed.is_set()
    assert not queue.is_throttled


def test_objects_of_this_process_stay_in_memory(host: VirtualHost) -> None:
    """A body that is no bytes cannot be stored: its queue does not page, and the very object is delivered."""
    queue = host.declare_queue("q")
    body = [1, 2]
    host.publish(Message(body, routing_key="q"))
    assert not queue.life.limit.page_out()
    received = host.get("q")
    assert received is not None
    assert received.body is body


def test_what_no_store_can_keep_stays_in_memory_on_a_queue_that_pages(host: VirtualHost) -> None:
    """Among messages that are written out, an object and a message too large to be loaded keep their places."""
    queue = host.declare_queue("q")
    fill(host, range(2))
    assert queue.life.limit.page_out()
    body, large = [1, 2], b"x" * (LIMIT // 3)
    host.publish(Message(body, routing_key="q"))
    host.memory_limit = 20 * LIMIT  # where it may come; a message that is there stays when the limit is lowered
    host.publish(Message(large, routing_key="q"))
    host.memory_limit = LIMIT
    fill(host, range(2, 200))
    assert host.memory_statistics().unpaged >= len(large)
    host.check_invariants()
    messages = []
    with host.subscribe("q", prefetch=1) as subscription:
        for _ in range(202):
            received = subscription.get(timeout=PATIENCE)
            messages.append(received.message)
            received.accept()
    assert messages[2].body is body
    assert messages[3].body == large
    assert [number_in(each) for each in messages[:2] + messages[4:]] == list(range(200))
    assert host.memory_statistics().used == 0


def test_a_store_that_fails_leaves_the_queue_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no store can be made, what is on the queue stays there, and publishers are held back."""

    tries: list[int] = []

    def fail(*arguments: object) -> SqliteStore:
        tries.append(1)
        raise StoreFailed("the directory for temporary files cannot be written")

    monkeypatch.setattr(SqliteStore, "scratch", fail)
    host = VirtualHost(memory_limit=LIMIT, clock=FakeClock(1000.0))
    queue = host.declare_queue("q")
    published = [host.publish(Message(b"x" * 100, routing_key="q")) for _ in range(200)]
    assert not pages(queue)
    assert tries == [1], "it is not tried with every message"
    assert published[-1].throttled == (queue,)
    for _ in range(200):
        assert host.get("q", auto_accept=True) is not None
    assert not queue.is_throttled
    host.close()
