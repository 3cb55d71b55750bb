"""Signals whose handler raises, as a user's Ctrl-C does, against each way to take: nothing is lost.

Run by itself it strikes for longer: `python tests/core/test_engine_strikes.py SECONDS` prints a line for each way.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from multiqueue import Empty, FairQueue, LinkedBlockingMultiQueue, Queue

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this platform has no timer that sends a signal"
)

BATCH = 20_000
SHORTLY = 5e-5  # seconds until the signal: some hundred takes


class Struck(BaseException):
    """What the handler raises."""


def _get(queue: Any, out: list[Any]) -> None:
    while True:
        out.append(queue.get(False))


def _get_in_time(queue: Any, out: list[Any]) -> None:
    while True:
        out.append(queue.get(timeout=0.0))


def _get_due(queue: Any, out: list[Any]) -> None:
    while queue.qsize():
        out.append(queue.get())
    raise Empty


def _poll(queue: Any, out: list[Any]) -> None:
    while True:  # not `while (item := queue.poll()) is not None`: up to 3.13 that jumps back with the item in hand
        item = queue.poll()
        if item is None:
            raise Empty
        out += [item]


def _many(queue: Any, out: list[Any]) -> None:
    while True:
        out += queue.get_many(3, False)


def _take(queue: Any, out: list[Any]) -> None:
    while True:
        out += [queue.take(False)[1]]


def _drain(queue: Any, out: list[Any]) -> None:
    if not queue.drain_to(out, 1000):
        raise Empty


def _multi() -> tuple[Any, Callable[[int], None]]:
    queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    puts = [queue.add_subqueue(0).put, queue.add_subqueue(1, weight=2).put, queue.add_subqueue(2, 1).put]
    return queue, lambda number: puts[number % 3](number)


def _fair() -> tuple[Any, Callable[[int], None]]:
    """Keys of one element, of many, and nested ones."""
    queue: FairQueue[int] = FairQueue()
    keys = ["flood", ("acme", "mail"), ("acme", "reports"), None]
    return queue, lambda number: queue.put(number, key=keys[number % 4] or number, cost=1.0 + number % 3)


def _alone() -> tuple[Any, Callable[[int], None]]:
    queue: Queue[int] = Queue()
    return queue, queue.put


WAYS: dict[str, tuple[Callable[[], tuple[Any, Callable[[int], None]]], Callable[[Any, list[Any]], None]]] = {
    "get": (_multi, _get),
    "get in time": (_multi, _get_in_time),
    "get what is due": (_multi, _get_due),
    "poll": (_multi, _poll),
    "get_many": (_multi, _many),
    "take": (_multi, _take),
    "drain_to": (_multi, _drain),
    "FairQueue.get": (_fair, _get),
    "FairQueue.take": (_fair, _take),
    "FairQueue.get_many": (_fair, _many),
    "Queue.get": (_alone, _get),
    "Queue.get_many": (_alone, _many),
    "Queue.poll": (_alone, _poll),
}


def strike(way: str, seconds: float) -> tuple[int, int, int]:
    """Elements put, interrupts, elements lost; for this many seconds of CPU time, in the main thread."""
    make, take = WAYS[way]
    armed = False

    def handler(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Struck

    before = signal.signal(signal.SIGALRM, handler)
    queue, put = make()
    total = strikes = lost = 0
    end = time.process_time() + seconds
    try:
        while time.process_time() < end:
            for number in range(BATCH):
                put(number)
            out: list[Any] = []
            while True:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, SHORTLY)
                    take(queue, out)
                except Struck:
                    strikes += 1
                except Empty:
                    break
                finally:
                    armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            total += BATCH
            lost += BATCH - len(set(out))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    queue.check_invariants()
    return total, strikes, lost


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("way", WAYS)
def test_no_signal_takes_an_element_away(way: str) -> None:
    """A handler that raises, anywhere in a loop that takes, costs no element."""
    assert threading.current_thread() is threading.main_thread()
    _, strikes, lost = strike(way, 0.5)
    assert strikes
    assert lost == 0


if __name__ == "__main__":
    from multiqueue.core import engine

    for name in WAYS:
        print(sys.version.split()[0], engine, name, *strike(name, float(sys.argv[1])), flush=True)
