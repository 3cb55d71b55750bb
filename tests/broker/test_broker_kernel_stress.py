"""Many threads at one broker queue: every message settled exactly once, in order, whatever is given back."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from multiqueue.broker import BrokerQueue, ConsumerTarget, Credit, Message, QueueKind, QueueSettings
from multiqueue.errors import Empty
from multiqueue.testing import PATIENCE, Threads, switch_interval

PRODUCERS = CONSUMERS = 4


def run(queue: BrokerQueue, count: int, seed: int, *, selectors: bool = False) -> Counter[object]:
    """Put `count` messages through the queue, giving 5 % of them back; how often each was accepted."""
    accepted: list[Counter[object]] = [Counter() for _ in range(CONSUMERS)]
    remaining = threading.Semaphore(0)

    def produce(number: int) -> None:
        for serial in range(count // PRODUCERS):
            headers = {"parity": serial % 2, "tenant": str(serial % 7)}
            queue.put(Message((number, serial), priority=serial % 10, headers=headers))

    def consume(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        target = ConsumerTarget(credit=Credit(1 + number))
        selector = (lambda message: message.headers["parity"] == number % 2) if selectors else None
        target.consume(queue, selector=selector, priority=number % 2)
        while not done.is_set():
            try:
                delivery = target.get(0.05)
            except Empty:
                continue
            if dice.random() < 0.05:
                target.release(delivery)
            else:
                target.accept(delivery)
                accepted[number][delivery.message.body] += 1
                remaining.release()
        target.close()

    done = threading.Event()
    with Threads() as threads:
        for number in range(CONSUMERS):
            threads.start(consume, number)
        for number in range(PRODUCERS):
            threads.start(produce, number)
        for _ in range(count):
            if not remaining.acquire(timeout=PATIENCE):
                break
        done.set()
    return sum(accepted, Counter())


@pytest.mark.parametrize("selectors", [False, True], ids=["plain", "selectors"])
@pytest.mark.parametrize("kind", [QueueKind.STANDARD, QueueKind.PRIORITY, QueueKind.FAIR])
def test_every_message_is_settled_once(kind: QueueKind, selectors: bool) -> None:
    """Four producers, four consumers with little credit, 5 % given back, threads switched every microsecond."""
    queue = BrokerQueue("q", settings=QueueSettings(kind=kind))
    with switch_interval():
        accepted = run(queue, 2000, seed=1, selectors=selectors)
    queue.check_invariants()
    assert accepted == Counter((number, serial) for number in range(PRODUCERS) for serial in range(500))
    assert queue.statistics().depth == 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_million_messages_are_settled_once() -> None:
    """The same with a million messages and the interpreter's own switch interval."""
    queue = BrokerQueue("q")
    accepted = run(queue, 1_000_000, seed=2)
    queue.check_invariants()
    assert len(accepted) == 1_000_000
    assert set(accepted.values()) == {1}


def test_consumers_that_come_and_go_lose_nothing() -> None:
    """Targets closed in the middle of their work give back what they have; the others settle it, once each."""
    queue = BrokerQueue("q")
    accepted: list[object] = []

    def come_and_go(number: int) -> None:
        dice = random.Random(number)
        while not done.is_set():
            target = ConsumerTarget(credit=Credit(5))
            target.consume(queue, priority=dice.randrange(2))
            for _ in range(dice.randrange(20)):
                delivery = target.pull()
                if delivery is not None and dice.random() < 0.8:
                    target.accept(delivery)
                    accepted.append(delivery.message.body)
            target.close()
            if len(accepted) >= 2000:
                done.set()

    done = threading.Event()
    with switch_interval(), Threads() as threads:
        for number in range(CONSUMERS):
            threads.start(come_and_go, number)
        for serial in range(2000):
            queue.put(Message(serial))
    queue.check_invariants()
    assert sorted(accepted) == list(range(2000))  # type: ignore[type-var]


@pytest.mark.slow
def test_a_million_entries_behind_a_selector_that_refuses_them_all() -> None:
    """Each is looked at once, whatever else is put, taken and given back; others take theirs from the middle."""
    queue = BrokerQueue("q")
    asked = [0]

    def refuse(message: Message) -> bool:
        asked[0] += 1
        return False

    told: list[object] = []
    message = Message("unwanted", headers={"wanted": False})
    for _ in range(1_000_000):
        queue.put(message)
    picky = queue.add_consumer(told.append, selector=refuse)
    queue.set_notify_work_desired(picky, True)
    assert queue.deliver_single_message(picky) is None
    assert asked == [1_000_000]
    owner = object()
    for _ in range(1000):
        entry = queue.get(owner)
        assert entry is not None
        queue.release(entry, owner)
        assert queue.deliver_single_message(picky) is None
    assert asked[0] <= 1_002_000, "what comes back is looked at again, and nothing else"
