"""Purging a queue of any kind: in slices, and without what comes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import pytest
from broker_durable_support import holding
from broker_parts_support import Housekeeping

from multiqueue.broker import BrokerQueue, Message, VirtualHost
from multiqueue.store import MemoryStore, SqliteStore
from multiqueue.testing import FakeClock, wait_until_blocked

COUNT = 1500
KINDS: dict[str, dict[str, object]] = {
    "standard": {},
    "priority": {"x-max-priority": 3},
    "sorted": {"qpid.queue_sort_key": "n"},
    "last value": {"qpid.last_value_queue_key": "n"},
}


@dataclass
class Desk:
    host: VirtualHost
    clock: FakeClock
    persistent: bool

    @property
    def queue(self) -> BrokerQueue:
        return self.host.queue("q")

    def publish(self, number: int, **properties: object) -> None:
        message = Message(
            b"%d" % number,
            routing_key="q",
            persistent=self.persistent,
            priority=number % 3,
            headers={"n": (number * 7919) % 10_007},
            **properties,  # type: ignore[arg-type]
        )
        self.host.publish_nowait(message)

    def fill(self) -> None:
        for number in range(COUNT):
            self.publish(number)
        self.host.wait_for_commits()

    def numbers(self) -> set[int]:
        return {int(bytes(message.body)) for message in self.queue.browse()}  # type: ignore[arg-type]


@pytest.fixture(params=["in memory", "stored", "stored, transient", "outgrown"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, request.param, {})


def _desk(path: Path, where: str, arguments: dict[str, object]) -> Iterator[Desk]:
    store = SqliteStore(path, durability="relaxed", reserve_bytes=0) if where.startswith("stored") else None
    clock = FakeClock()
    host = VirtualHost(store=store, clock=clock, wall_clock=clock)
    host.declare_queue("q", durable=store is not None, arguments=arguments)
    made = Desk(host, clock, where == "stored")
    if where == "outgrown":
        made.publish(-1)
        assert made.queue.life.limit.page_out()
        assert made.host.get("q", auto_accept=True) is not None
    yield made
    host.check_invariants()
    host.close()


def _purge_while_others_publish(desk: Desk) -> None:
    desk.fill()
    slices = 0

    def publish() -> bool:
        nonlocal slices
        slices += 1
        desk.publish(COUNT + slices)
        desk.host.wait_for_commits()
        return False

    assert desk.queue.purge(publish) == COUNT
    assert slices >= 3
    assert desk.numbers() == {COUNT + number for number in range(1, slices + 1)}
    assert desk.queue.purge() == slices
    assert len(desk.queue) == desk.queue.statistics().depth_bytes == 0


def test_what_comes_while_a_queue_is_purged_stays(desk: Desk) -> None:
    """A purge takes what was there when it began, in slices; what is published between them is there after it."""
    _purge_while_others_publish(desk)


@pytest.mark.parametrize("where", ["in memory", "stored"])
@pytest.mark.parametrize("kind", ["priority", "sorted", "last value"])
def test_what_comes_in_the_middle_of_a_queue_that_is_purged_stays(tmp_path: Path, kind: str, where: str) -> None:
    """The same of queues in which what is new may stand before what is old."""
    for made in _desk(tmp_path, where, KINDS[kind]):
        _purge_while_others_publish(made)


def test_a_purge_leaves_what_others_have_and_what_is_past_its_time(desk: Desk) -> None:
    """What consumers have stays theirs, what is held until its time goes, and what has expired is left to time, unless
    it stays until it is at the head."""
    for number in range(3):
        desk.publish(number)
    desk.publish(3, expiration=10)
    desk.publish(4, expiration=1000)
    desk.publish(5, delay=1000)
    desk.host.wait_for_commits()
    held = desk.host.get("q")
    assert held is not None
    desk.clock.advance(20)
    is_ready = desk.queue.life.source.expires_at_head
    assert desk.queue.purge() == 4 + is_ready
    assert len(desk.queue) == 2 - is_ready
    desk.queue.housekeeping()
    assert len(desk.queue) == 1
    held.release()
    assert desk.numbers() == {0}


def test_a_purge_that_is_told_to_stop_ends_after_a_slice(desk: Desk) -> None:
    """The caller that purges a long queue can end that; the rest is whole, and in order."""
    desk.fill()
    answers = chain([False], repeat(True))
    purged = desk.queue.purge(lambda: next(answers))
    assert 0 < purged < COUNT
    left = desk.numbers()
    assert left == set(range(purged, COUNT))


def test_a_purge_waits_for_a_store_that_is_behind_but_not_for_its_end() -> None:
    """A short queue is purged without a commit being waited for."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    for _ in range(100):
        host.publish(Message(b"", routing_key="q", persistent=True))
    with holding(store):
        assert host.queue("q").purge() == 100
    host.wait_for_commits()
    assert store.statistics().messages == 0
    host.close()


@pytest.mark.parametrize("how", ["purge", "delete"])
@pytest.mark.parametrize("where", ["stored", "outgrown"])
def test_others_wait_for_a_few_slices_of_removals_at_most(tmp_path: Path, how: str, where: str) -> None:
    """While very many messages of a store are removed, no more than 1,024 are gone here and not yet there."""
    for made in _desk(tmp_path, where, {}):
        made.fill()
        assert max(_behind(made, how)) <= 1024


def _behind(desk: Desk, how: str) -> list[int]:
    """How many removed messages the store still had, at each look that was had at the removal."""
    behind: list[int] = []
    rows = desk.queue.life.rows
    assert rows is not None

    def look(*_: object) -> bool:
        behind.append(rows.store.statistics().messages - len(desk.queue))
        return how == "delete"

    assert (desk.queue.purge(look) if how == "purge" else desk.queue.delete_messages(look)) == COUNT
    return behind


def test_what_was_purged_does_not_come_back(tmp_path: Path) -> None:
    """After a purge and a restart nothing of it is in the store, and what others had is."""
    for made in _desk(tmp_path, "stored", {}):
        made.fill()
        held = made.host.get("q")
        assert held is not None
        assert made.queue.purge() == COUNT - 1
        made.host.wait_for_commits()
        assert made.host.store is not None
        assert made.host.store.statistics().messages == 1
        assert not made.host._memory.paging.deleting


@pytest.mark.slow(selected=True)
def test_deleting_a_long_queue_takes_no_longer_than_a_short_one() -> None:
    """Its ready messages go piece by piece, at housekeeping, and no consumer can have them; unsettled ones stay."""
    clock = FakeClock()
    keeper = Housekeeping(clock=clock)
    host = VirtualHost(clock=clock, wall_clock=clock, housekeeping=keeper)
    queue = host.declare_queue("q")
    long = 100_000
    for number in range(long):
        host.publish(Message(b"%d" % number, routing_key="q"))
    held = host.get("q")
    assert held is not None
    assert host.delete_queue("q") == long - 1
    assert len(queue) == 1
    left = len(queue.life.source.entries)
    assert left > long - 1000, "more than a slice of it was gone through at once"
    assert queue.get(host) is None
    assert queue.delete_messages() == queue.purge() == 0
    held.accept()
    visits = 0
    while len(queue.life.source.entries):
        keeper.run_once()
        visits += 1
        assert visits < 10
    assert visits > 1
    keeper.run_once()
    assert not keeper._planned
    assert queue.statistics().depth == queue.statistics().depth_bytes == 0
    host.close()


@pytest.mark.parametrize("taker", ["housekeeping", "another queue"])
def test_deleting_a_paged_queue_takes_no_longer_than_a_short_one(taker: str) -> None:
    """What it has in memory is freed piece by piece, at housekeeping or, as far as another queue needs it, before."""
    clock = FakeClock()
    keeper = Housekeeping(clock=clock)
    host = VirtualHost(store=MemoryStore(), clock=clock, wall_clock=clock, housekeeping=keeper, memory_limit=8 << 20)
    queue, other = host.declare_queue("q", durable=True), host.declare_queue("other", durable=True)
    for number in range(6000):
        host.publish_nowait(Message(b"%d" % number, routing_key="q", persistent=True))
    host.wait_for_commits()
    held = [host.get("q"), host.get("q")]
    wait_until_blocked(lambda: not host.memory_statistics().writing)  # what is is not the queue's, and ends by itself
    used = host.memory_statistics().used
    assert host.delete_queue("q") == 5998
    assert host.memory_statistics().used > used / 2, "more than a slice of it was gone through at once"
    assert queue.get(host) is None
    host.check_invariants()
    for received in held:
        assert received is not None
        received.accept()
    if taker == "housekeeping":
        keeper.run_once()
    else:
        for _ in range(20):
            host.publish_nowait(Message(bytes(1 << 19), routing_key="other", persistent=True))
        host.wait_for_commits()
        assert other.get(host) is not None
        assert len(queue.life.source.area.slots) < 5998  # type: ignore[attr-defined]
        host.check_invariants()
        keeper.run_once()  # what the other queue had no need of
    host.check_invariants()
    assert not queue.life.source.area.slots  # type: ignore[attr-defined]
    assert queue.statistics().depth == queue.statistics().depth_bytes == 0
    host.close()


def test_a_queue_without_housekeeping_is_cleared_by_whoever_deletes_it() -> None:
    """Where no consumer comes later, nothing is left behind."""
    host = VirtualHost()
    queue = host.declare_queue("q")
    for number in range(50_000):
        host.publish(Message(b"%d" % number, routing_key="q"))
    assert host.delete_queue("q") == 50_000
    assert len(queue.life.source.entries) == 0
    host.close()
