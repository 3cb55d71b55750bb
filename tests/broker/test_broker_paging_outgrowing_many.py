"""Queues that outgrow their memory while everybody is at work, and backlogs that are far larger."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from paging_outgrown_support import LIMIT, fill, number_in

from multiqueue.broker import Message, VirtualHost
from multiqueue.errors import Empty
from multiqueue.store import MemoryStore
from multiqueue.testing import PATIENCE, wait_until_blocked


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
            assert host.wait_for_room(published, timeout=PATIENCE)

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
                    seen[number_in(received.message)] += 1
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
                queue.life.limit.page_out()
            queue.housekeeping()

    workers = [threading.Thread(target=safely, args=(publish, each * count)) for each in range(threads)]
    workers += [
        threading.Thread(target=safely, args=(consume, selector, returns))
        for selector, returns in (("colour = 'red'", True), ("colour = 'blue'", False))
    ]
    workers.append(threading.Thread(target=safely, args=(manage,)))
    for worker in workers:
        worker.start()
    if not done.wait(PATIENCE):
        errors.append(AssertionError(f"only {sum(seen.values())} of {threads * count} were settled"))
        done.set()
    for worker in workers:
        worker.join()
    assert errors == []
    assert set(seen.values()) == {1}
    host.check_invariants()
    wait_until_blocked(lambda: host.memory_statistics().used == 0)  # a load that finds nothing may be under way
    host.close()


def _deep(count: int) -> None:
    """One red message behind `count` blue ones, on a queue that is not durable, and a consumer of red."""
    host = VirtualHost(memory_limit=4 << 20)
    host.declare_queue("q")
    fill(host, range(count))
    fill(host, range(1), colour="red")
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
        fill(host, range(first, first + 10_000))
        most = max(most, _resident_bytes())
    with host.subscribe("q", prefetch=100) as subscription:
        for number in range(1_000_000):
            received = subscription.get(timeout=60)
            assert number_in(received.message) == number
            received.accept()
            if number % 10_000 == 0:
                most = max(most, _resident_bytes())
    gc.collect()
    assert most - with_a_little <= 64 << 20
    assert host.memory_statistics().used == 0
    host.close()
