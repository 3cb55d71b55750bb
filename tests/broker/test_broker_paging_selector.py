"""A consumer whose one message stands behind a great many that are not for it, in 4 MiB, from a disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from multiqueue.broker import Broker, Message

LIMIT = 4 << 20
DEEP = 100_000
MANY = 20_000
PAGE = 500  # headers that one load looks at: a sixteenth of the budget would take a thousand
FEW = 20  # loads beside the scan: the body of the match, and what stood in line before
RED = "colour = 'red'"


@contextmanager
def _deep(directory: Path, count: int) -> Iterator[Broker]:
    """A broker with `count` blue messages on its queue, and a red one behind them."""
    with Broker(data=directory, durability="relaxed", memory_limit=LIMIT) as broker:
        broker.declare_queue("q", durable=True)
        for number in range(count):
            _publish(broker, b"%d" % number, "blue")
        _publish(broker, b"red", "red")
        broker.wait_for_commits()
        yield broker


def _publish(broker: Broker, body: bytes, colour: str) -> None:
    broker.publish_nowait(Message(body, routing_key="q", persistent=True, headers={"colour": colour}))


def _take_red(broker: Broker, most_loads: int) -> None:
    """The red message comes, after no more than so many loads, and the accounts are kept."""
    before = broker.virtual_host().memory_statistics().loads
    with broker.subscribe("q", selector=RED, prefetch=1) as reds:
        received = reds.get(timeout=240)
        assert received.body == b"red"
        statistics = broker.virtual_host().memory_statistics()
        received.accept()
    assert statistics.loads - before <= most_loads
    assert statistics.used <= LIMIT
    broker.virtual_host().check_invariants()


def _take_blue(broker: Broker, first: int, count: int) -> None:
    """A consumer of everything gets the blue messages from `first` on, in order."""
    with broker.subscribe("q", prefetch=100) as subscription:
        for number in range(first, first + count):
            received = subscription.get(timeout=60)
            assert received.body == b"%d" % number
            received.accept()


def _behind_what_does_not_match(directory: Path, count: int) -> None:
    with _deep(directory, count) as broker:
        _take_red(broker, count // PAGE + FEW)
        assert len(broker.queue("q")) == count
        _take_blue(broker, 0, 2000)


@pytest.mark.slow(selected=True)
def test_one_match_behind_twenty_thousand_on_a_disk_is_delivered(tmp_path: Path) -> None:
    """A consumer with a selector never starves: its message is found in one scan of the headers of the store."""
    _behind_what_does_not_match(tmp_path, 20_000)


@pytest.mark.slow
def test_one_match_behind_a_hundred_thousand_on_a_disk_is_delivered(tmp_path: Path) -> None:
    """The same behind a hundred thousand; others still get theirs, from the first one on."""
    _behind_what_does_not_match(tmp_path, DEEP)


@pytest.mark.slow
def test_one_match_behind_a_million_on_a_disk_is_delivered(tmp_path: Path) -> None:
    """The same behind a million."""
    _behind_what_does_not_match(tmp_path, 1_000_000)


@pytest.mark.slow(selected=True)
def test_what_another_consumer_holds_does_not_hide_a_match(tmp_path: Path) -> None:
    """A match is found behind messages that somebody has and does not acknowledge; they come back in their places."""
    with _deep(tmp_path, MANY) as broker:
        with broker.subscribe("q", prefetch=1000) as holder:
            held = [holder.get(timeout=60) for _ in range(1000)]
            _take_red(broker, MANY // PAGE + FEW)
            held[0].accept()
            assert holder.get(timeout=60).body == b"1000"
        assert len(broker.queue("q")) == MANY - 1
        _take_blue(broker, 1, 2000)


@pytest.mark.slow(selected=True)
def test_what_another_consumer_takes_meanwhile_does_not_hide_a_match(tmp_path: Path) -> None:
    """A match is found while the messages before it are consumed; each of these comes once, in order."""
    with _deep(tmp_path, MANY) as broker:
        bodies: list[object] = []

        def drain() -> None:
            with broker.subscribe("q", selector="colour <> 'red'", prefetch=100) as blues:
                for _ in range(MANY):
                    received = blues.get(timeout=60)
                    bodies.append(received.body)
                    received.accept()

        draining = threading.Thread(target=drain, name="drain")
        draining.start()
        try:
            # Loads of the other consumer count as well: a page of headers each, and then the bodies, some hundreds
            # at a time.
            _take_red(broker, 4 * MANY // PAGE)
        finally:
            draining.join()
        assert bodies == [b"%d" % number for number in range(MANY)]
        broker.wait_for_commits()
        assert len(broker.queue("q")) == 0
        assert broker.virtual_host().memory_statistics().used == 0


@pytest.mark.slow(selected=True)
def test_a_consumer_whose_match_is_yet_to_come_gets_it(tmp_path: Path) -> None:
    """A consumer that looked through everything in vain gets the next match without another scan."""
    with _deep(tmp_path, 20_000) as broker, broker.subscribe("q", selector="colour = 'green'", prefetch=1) as greens:
        _take_red(broker, 2 * 20_000 // PAGE + FEW)
        loads = broker.virtual_host().memory_statistics().loads
        _publish(broker, b"green", "green")
        received = greens.get(timeout=60)
        assert received.body == b"green"
        received.accept()
        assert broker.virtual_host().memory_statistics().loads - loads <= FEW < 20_000 // PAGE
