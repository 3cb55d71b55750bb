"""Counts what a message costs between threads that put and threads that block on consumer targets.

Python calls are of one thread that puts, gets and accepts; locks, notifications and switches of thread are of as many
producers as consumers, each with a prefetch of 100. Run as a program it prints them:

    PYTHONPATH=tests python tests/broker/waiting_counts_support.py
"""

from __future__ import annotations

import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from broker_parts_support import credit as _credit
from broker_parts_support import polled
from broker_parts_support import queue as _queue
from broker_parts_support import received as _received
from broker_parts_support import target as _target

from multiqueue.broker import BrokerQueue, ConsumerTarget, Credit, Message, QueueConsumer

MESSAGES = 40_000
QUEUE_LOCK = "queue lock"
_MESSAGE = Message(b"x" * 1024)


class CountedLock:
    """A lock that counts how often it was taken, how often another thread had it then."""

    def __init__(self, counts: Counter[str], name: str, make: Callable[[], Any]) -> None:
        self._counts, self._name = counts, name
        lock = make()
        self._acquire: Callable[..., bool] = lock.acquire
        self._wait: Callable[[], object] = (polled(lock) if name == QUEUE_LOCK else lock).__enter__
        self.release: Callable[[], None] = lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._counts[self._name] += 1
        if self._acquire(False):
            return True
        self._counts[f"{self._name}, contended"] += 1
        return blocking and self._acquire(True, timeout)

    def __enter__(self) -> None:
        if not self.acquire(False):
            self._wait()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


@contextmanager
def counted_locks(counts: Counter[str]) -> Iterator[None]:
    """In here, queues, credits and targets that are made count their locks."""
    places = [(_queue, "Lock", QUEUE_LOCK), (_credit, "Lock", "credit lock")]
    places += [(_target, "Lock", "ready lock, with threads that park"), (_received, "Lock", "unsettled lock")]
    before = [getattr(module, attribute) for module, attribute, _ in places]
    for (module, attribute, name), make in zip(places, before, strict=True):
        setattr(module, attribute, partial(CountedLock, counts, name, make))
    try:
        yield
    finally:
        for (module, attribute, _), make in zip(places, before, strict=True):
            setattr(module, attribute, make)


def calls() -> tuple[float, float]:
    """Python calls and calls into C of one message that one thread puts, gets and accepts."""
    queue, target = BrokerQueue("q"), ConsumerTarget(credit=Credit(100))
    target.consume(queue)
    counts: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: Any) -> None:
        counts[event] += 1

    def pass_through(count: int) -> None:
        for _ in range(count):
            queue.put(_MESSAGE)
            target.accept(target.get())

    pass_through(100)
    sys.setprofile(see)
    pass_through(1000)
    sys.setprofile(None)
    return counts["call"] / 1000, counts["c_call"] / 1000


def race(workers: int, counts: Counter[str], messages: int = MESSAGES) -> None:
    """So many producers and blocking consumers; adds the switches of their threads and the notifications."""
    queue, targets = BrokerQueue("q"), [ConsumerTarget(credit=Credit(100)) for _ in range(workers)]
    for target in targets:
        target.consume(queue)
    remaining, gate = iter(range(messages)), threading.Barrier(2 * workers)
    notify = QueueConsumer.notify_work

    def counted_notify(consumer: QueueConsumer) -> None:
        counts["notifications"] += 1
        notify(consumer)

    def produce() -> None:
        for _ in range(messages // workers):
            queue.put(_MESSAGE)

    def consume(target: ConsumerTarget) -> None:
        for _ in remaining:
            target.accept(target.get())

    def work(body: Callable[[], None]) -> None:
        gate.wait()
        before = resource.getrusage(resource.RUSAGE_THREAD)
        body()
        after = resource.getrusage(resource.RUSAGE_THREAD)
        counts["voluntary switches"] += after.ru_nvcsw - before.ru_nvcsw
        counts["involuntary switches"] += after.ru_nivcsw - before.ru_nivcsw

    bodies: list[Callable[[], None]] = [partial(consume, target) for target in targets] + [produce] * workers
    threads = [threading.Thread(target=work, args=(body,)) for body in bodies]
    QueueConsumer.notify_work = counted_notify  # type: ignore[method-assign]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        QueueConsumer.notify_work = notify  # type: ignore[method-assign]


def main() -> None:
    print("one thread: {:.0f} Python calls, {:.0f} calls into C".format(*calls()))
    for workers in (1, 4):
        counts: Counter[str] = Counter()
        with counted_locks(counts):
            race(workers, counts)
        switches: Counter[str] = Counter()
        race(workers, switches)
        print(f"{workers} producers, {workers} consumers, for each message")
        for name, count in sorted({**counts, **{key: switches[key] for key in switches}}.items()):
            print(f"    {count / MESSAGES:8.4f}  {name}")


if __name__ == "__main__":
    main()
