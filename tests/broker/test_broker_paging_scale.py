"""Many consumers, a budget that changes while the queue is at work, and a great many messages, all in little memory."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue

import pytest

from multiqueue.broker import (
    Broker,
    ConsumerNotAdmitted,
    Credit,
    Entry,
    Message,
    MessageTooLarge,
    PullSubscription,
    QueueConsumer,
    Received,
)

MIB = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data=tmp_path, durability="relaxed", memory_limit=MIB, housekeeping_interval=3600) as opened:
        opened.declare_queue("q", durable=True).life.limit.page_out()
        yield opened


def _publish(broker: Broker, numbers: range, *, size: int = 100, groups: int = 1) -> None:
    for number in numbers:
        body = number.to_bytes(8, "big") + b"x" * size
        headers = {"part": number % groups}
        broker.publish_nowait(Message(body, routing_key="q", persistent=True, headers=headers))
    broker.wait_for_commits()


def _number(body: object) -> int:
    assert isinstance(body, bytes)
    return int.from_bytes(body[:8], "big")


def _is_within_budget(broker: Broker) -> None:
    statistics = broker.virtual_host().memory_statistics()
    # What a load has reserved, or is on its way to the disk, was admitted under the limit before.
    assert statistics.used - statistics.loading - statistics.writing <= statistics.limit
    broker.virtual_host().check_invariants()


def _subscribe_a_thousand(broker: Broker, prefetch: int, parts: int) -> list[PullSubscription | None]:
    """Of each of a thousand that asked: its subscription, or None when it was not admitted."""
    asked: list[PullSubscription | None] = []
    for number in range(1000):
        selector = f"part = {number % parts}" if parts > 1 else None
        try:
            asked.append(broker.subscribe("q", selector=selector, prefetch=prefetch))
        except ConsumerNotAdmitted:
            asked.append(None)
    return asked


# -- a thousand consumers


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(1, id="that want the same"),
        pytest.param(20, id="of twenty kinds", marks=pytest.mark.slow(selected=True)),
    ],
)
def test_of_a_thousand_consumers_each_admitted_one_gets_its_share(broker: Broker, parts: int) -> None:
    """Each admitted consumer gets all its prefetch at once; those for whom there is no memory are told when they come.

    A credit of 4 costs 4 * 256 bytes, and half of the budget is for consumers: 512 KiB are for some 500 of a thousand.
    """
    asked = _subscribe_a_thousand(broker, 4, parts)
    admitted = [subscription for subscription in asked if subscription is not None]
    assert 400 < len(admitted) < 512
    assert asked[len(admitted) :] == [None] * (1000 - len(admitted)), "one that came later was admitted"
    count = 4 * parts * (len(admitted) // parts + 1)
    _publish(broker, range(count), groups=parts)
    held = [[subscription.get(timeout=60) for _ in range(4)] for subscription in admitted]
    _is_within_budget(broker)
    numbers = {_number(received.body) for each in held for received in each}
    assert len(numbers) == 4 * len(admitted), "a message went to two consumers"
    for part, each in enumerate(held):
        assert {_number(received.body) % parts for received in each} == {part % parts}
    for subscription in admitted:
        subscription.close()
    assert len(broker.queue("q")) == count
    _is_within_budget(broker)


def test_a_place_that_becomes_free_goes_to_the_next_consumer(broker: Broker) -> None:
    """A consumer that was not admitted is, once another has gone or the budget is higher."""
    admitted = [each for each in _subscribe_a_thousand(broker, 4, 1) if each is not None]
    admitted.pop().close()
    admitted.append(broker.subscribe("q", prefetch=4))
    with pytest.raises(ConsumerNotAdmitted, match="raise the memory limit"):
        broker.subscribe("q", prefetch=4)
    broker.virtual_host().memory_limit = 2 * MIB
    admitted.append(broker.subscribe("q", prefetch=4))
    for subscription in admitted:
        subscription.close()


def test_what_a_consumer_has_is_part_of_what_was_set_aside_for_it(broker: Broker) -> None:
    """A message that a consumer has uses up the room kept for it, and takes none besides; then it is kept again.

    (bounded-memory 14)
    """
    broker.virtual_host().memory_limit = MIB // 2
    _publish(broker, range(2000), size=1024)
    first = broker.subscribe("q", prefetch=600)
    held = [first.get(timeout=60) for _ in range(600)]
    broker.subscribe("q", prefetch=20).close()
    with pytest.raises(ConsumerNotAdmitted, match="600 unsettled"):
        broker.subscribe("q", prefetch=430)
    for received in held:
        received.accept()
    with pytest.raises(ConsumerNotAdmitted, match="raise the memory limit"):
        broker.subscribe("q", prefetch=430)  # the first may have 600 again
    first.close()
    broker.subscribe("q", prefetch=430).close()
    _is_within_budget(broker)


def test_what_a_consumer_has_left_behind_counts_until_it_is_settled(broker: Broker) -> None:
    """Messages of a consumer that was cancelled, or has another list since, still take room beside its successor's."""
    broker.virtual_host().memory_limit = MIB // 2
    _publish(broker, range(600), size=100)
    queue = broker.queue("q")
    notices: SimpleQueue[QueueConsumer] = SimpleQueue()
    consumer = queue.add_consumer(notices.put, credit=Credit(400))
    queue.set_notify_work_desired(consumer, True)
    entries: list[Entry] = []
    while len(entries) < 400:
        entry = queue.deliver_single_message(consumer)
        if entry is None:
            notices.get(timeout=60)
        else:
            entries.append(entry)
    queue.remove_consumer(consumer)
    with pytest.raises(ConsumerNotAdmitted, match="400 unsettled"):
        broker.subscribe("q", prefetch=700)
    queue.release(entries, consumer)
    broker.subscribe("q", prefetch=700).close()
    _is_within_budget(broker)


# -- a budget that changes


@pytest.mark.slow(selected=True)
def test_the_budget_changes_while_the_queue_is_at_work(broker: Broker) -> None:
    """Lowered, the budget is kept at once, by what can be let go; nothing is lost or out of order at any size."""
    published, expected = 0, 0
    held: deque[Received] = deque()
    with broker.subscribe("q", prefetch=100) as subscription:
        for limit in (MIB, MIB // 2, MIB // 4, 2 * MIB, MIB // 4, MIB):
            broker.virtual_host().memory_limit = limit
            _is_within_budget(broker)
            for _ in range(3):
                _publish(broker, range(published, published + 1000), size=200)
                published += 1000
                for _ in range(600):
                    held.append(subscription.get(timeout=60))
                    assert _number(held[-1].body) == expected
                    expected += 1
                    if len(held) == 90:  # so that consumers, too, have some of the memory
                        held.popleft().accept()
                _is_within_budget(broker)
        while held:
            held.popleft().accept()
        for number in range(expected, published):
            received = subscription.get(timeout=60)
            assert _number(received.body) == number
            received.accept()
    broker.wait_for_commits()
    assert broker.virtual_host().memory_statistics().used == 0


def test_the_budget_changes_beside_a_publisher_and_a_consumer(broker: Broker) -> None:
    """A budget changed while threads are at work is kept, but for what waits for its commit, and nothing is lost."""
    count, numbers = 4000, list[int]()

    def consume() -> None:
        with broker.subscribe("q", prefetch=50) as subscription:
            for _ in range(count):
                received = subscription.get(timeout=60)
                numbers.append(_number(received.body))
                received.accept()

    publisher = threading.Thread(target=_publish, args=(broker, range(count)), name="publisher")
    consumer = threading.Thread(target=consume, name="consumer")
    publisher.start()
    consumer.start()
    for limit in cycle((MIB // 2, MIB // 4, 2 * MIB)):
        broker.virtual_host().memory_limit = limit
        statistics = broker.virtual_host().memory_statistics()
        assert statistics.used - statistics.loading - statistics.writing <= statistics.limit
        consumer.join(timeout=0.01)
        if not consumer.is_alive():
            break
    publisher.join()
    assert numbers == list(range(count))
    broker.wait_for_commits()
    assert broker.virtual_host().memory_statistics().used == 0


def test_the_budget_is_lowered_while_consumers_hold_messages(broker: Broker) -> None:
    """What consumers have and did not settle yet is let go as well, and read again when it comes back."""
    _publish(broker, range(500), size=1000)
    with broker.subscribe("q", prefetch=400) as subscription:
        held = [subscription.get(timeout=60) for _ in range(400)]
        for limit in (MIB // 2, MIB // 4):
            broker.virtual_host().memory_limit = limit
            _is_within_budget(broker)
        for received in reversed(held):
            received.release()
        _is_within_budget(broker)
    with broker.subscribe("q", prefetch=10) as subscription:
        for number in range(500):
            received = subscription.get(timeout=60)
            assert received.body == number.to_bytes(8, "big") + b"x" * 1000
            received.accept()


def test_a_budget_smaller_than_a_message_refuses_it_and_stores_nothing(broker: Broker) -> None:
    """A message that could never be in memory is refused when it is published; smaller ones pass before and after."""
    broker.virtual_host().memory_limit = 8000
    store = broker.virtual_host().store
    assert store is not None
    _publish(broker, range(1))
    for publish in (broker.publish, broker.publish_nowait):
        with pytest.raises(MessageTooLarge, match="limit of 8000 bytes"):
            publish(Message(b"x" * 10_000, routing_key="q", persistent=True))
    broker.wait_for_commits()
    assert (len(broker.queue("q")), store.statistics().messages) == (1, 1)
    _publish(broker, range(1, 2))
    with broker.subscribe("q", prefetch=1) as subscription:
        for number in range(2):
            received = subscription.get(timeout=60)
            assert _number(received.body) == number
            received.accept()


def test_a_message_larger_than_a_lowered_budget_waits_for_a_higher_one(broker: Broker) -> None:
    """A message that was stored stays when the budget is lowered below its size, and comes when it is raised."""
    broker.publish(Message(b"x" * 200_000, routing_key="q", persistent=True))
    broker.virtual_host().memory_limit = 100_000
    _is_within_budget(broker)
    with broker.subscribe("q", prefetch=1) as subscription:
        _is_within_budget(broker)
        broker.virtual_host().memory_limit = MIB
        received = subscription.get(timeout=60)
        assert received.body == b"x" * 200_000
        received.accept()


# -- a great many


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _soak(directory: Path, rounds: int, count: int) -> None:
    """Rounds of publishing and draining: after each, nothing is in memory; the first one sets size and memory."""
    sizes, resident = [], []
    with Broker(data=directory, durability="relaxed", memory_limit=4 * MIB) as broker:
        broker.declare_queue("q", durable=True)
        store = broker.virtual_host().store
        assert store is not None
        for _ in range(rounds):
            _publish(broker, range(count), size=200)
            with broker.subscribe("q", prefetch=100) as subscription:
                for number in range(count):
                    received = subscription.get(timeout=60)
                    assert _number(received.body) == number
                    received.accept()
            broker.wait_for_commits()
            assert broker.virtual_host().memory_statistics().used == 0
            assert store.statistics().messages == 0
            broker.virtual_host().check_invariants()
            gc.collect()
            sizes.append(sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()))
            resident.append(_resident_bytes())
    # The file has the pages of one backlog at most, and the log beside it what one checkpoint takes.
    assert max(sizes) <= 2 * max(sizes[:2])
    assert max(resident) - max(resident[:2]) <= 16 * MIB


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is used")


@needs_proc
@pytest.mark.slow(selected=True)
def test_rounds_of_many_messages_leave_nothing_behind(tmp_path: Path) -> None:
    """After rounds of 5,000 messages the accounts are empty; neither memory nor file have grown since the second."""
    _soak(tmp_path, 6, 5_000)


@needs_proc
@pytest.mark.slow
def test_a_million_messages_on_a_disk_leave_nothing_behind(tmp_path: Path) -> None:
    """The same after a million, 50,000 at a time."""
    _soak(tmp_path, 20, 50_000)
