"""Much of a queue that goes at once (a limit, a deletion, its time): slice by slice, with others' turns in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_parts_support import FEW, Housekeeping, reader
from broker_parts_support import queue as queue_module

from multiqueue.broker import BrokerQueue, Message, Overflow, QueueSettings, VirtualHost
from multiqueue.store import SqliteStore
from multiqueue.testing import FakeClock, wait_until_blocked

COUNT = 5 * FEW + 7


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the queue `watched` was at each pause between two slices."""
    seen: list[int] = []
    for part in (queue_module, reader):  # their own name alone: other threads of the process sleep too
        monkeypatch.setattr(part, "nap", lambda: seen.append(len(watched[-1])))
    return seen


watched: list[BrokerQueue] = []


def filled(host: VirtualHost, **arguments: object) -> BrokerQueue:
    """A queue whose dead letters go to `dead`."""
    host.declare_queue("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    is_stored = host.is_durable
    queue = host.declare_queue("q", durable=is_stored, arguments=letters | arguments)
    for number in range(COUNT):
        host.publish_nowait(Message(b"%d" % number, routing_key="q", persistent=is_stored))
    host.wait_for_commits()
    watched[:] = [queue]
    return queue


def bodies(queue: BrokerQueue) -> list[object]:
    return [message.body for message in queue.browse()]


ALL = [b"%d" % number for number in range(COUNT)]


@pytest.fixture(params=["in memory", "stored"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VirtualHost]:
    stored = request.param == "stored"
    store = SqliteStore(tmp_path, durability="relaxed") if stored else None
    clock = FakeClock()
    host = VirtualHost(store=store, clock=clock, wall_clock=clock)
    host.is_durable, host.fake_clock = stored, clock  # type: ignore[attr-defined]
    yield host
    host.check_invariants()
    host.close()


def test_a_message_that_evicts_very_many_waits_for_few() -> None:
    """The put evicts some; housekeeping evicts the rest, oldest first, and the limit holds again."""
    clock, dead = FakeClock(), BrokerQueue("dead")
    settings = QueueSettings(max_length_bytes=COUNT * 3, overflow=Overflow.RING)
    queue = BrokerQueue("q", settings=settings, clock=clock, dead_letter=lambda _, message, reason: dead.put(message))
    for body in ALL:
        queue.put(Message(body))
    keeper = Housekeeping(clock=clock)
    keeper.add(queue)
    keeper.run_once()
    queue.put(Message(bytes(COUNT * 3)))
    assert len(queue) == COUNT + 1 - FEW
    assert bodies(dead) == ALL[:FEW]
    keeper.run_once()
    assert len(queue) == 1
    assert bodies(dead) == ALL
    keeper.close()


def test_where_nobody_keeps_house_a_put_evicts_all(host: VirtualHost) -> None:
    """A queue by itself is at its limit when the put returns."""
    queue = filled(host, **{"x-max-length-bytes": COUNT * 3})
    host.publish_nowait(Message(bytes(COUNT * 3), routing_key="q", persistent=host.is_durable))  # type: ignore[attr-defined]
    wait_until_blocked(lambda: len(host.queue("dead")) == COUNT)
    assert len(queue) == 1
    assert bodies(host.queue("dead")) == ALL


def test_a_deletion_with_dead_letters_pauses_between_slices(host: VirtualHost, depths: list[int]) -> None:
    """Everything goes on in order; the caller waits for that, and others for a slice at most."""
    queue = filled(host)
    assert queue.delete(dead_letter=True) == COUNT
    paused = list(depths)
    wait_until_blocked(lambda: len(host.queue("dead")) == COUNT)
    assert paused == list(range(COUNT - FEW, 0, -FEW))
    assert bodies(host.queue("dead")) == ALL
    assert queue.is_deleted


def test_very_many_expire_with_pauses_between_slices(host: VirtualHost, depths: list[int]) -> None:
    """Housekeeping drops them all in one visit, and lets others have the queue in between."""
    queue = filled(host, **{"x-message-ttl": 1000})
    host.fake_clock.advance(2.0)  # type: ignore[attr-defined]
    queue.housekeeping()
    paused = list(depths)
    wait_until_blocked(lambda: len(host.queue("dead")) == COUNT)
    assert len(queue) == 0
    assert len(paused) >= COUNT // FEW - 1
    assert sorted(bodies(host.queue("dead"))) == sorted(ALL)  # type: ignore[type-var]


def test_a_queue_of_a_kind_that_keeps_all_in_memory_is_deleted_in_order() -> None:
    """A deletion with dead letters leaves out what consumers have, which goes when they settle it."""
    dead: list[object] = []
    settings = QueueSettings()
    queue = BrokerQueue("q", settings=settings, dead_letter=lambda _, message, reason: dead.append(message.body))
    for number in range(COUNT):
        queue.put(Message(b"%d" % number))
    held = queue.get(queue)
    assert held is not None
    assert queue.delete(dead_letter=True) == COUNT - 1
    assert dead == ALL[1:]
    queue.release(held, queue)
    assert dead == [*ALL[1:], b"0"]
