"""How people block on several queues today: a tag in one queue, forwarding threads, polling.

Promise     Each hands the consumer every item put into any of its queues, in order within each.
State       A forwarding thread owns nothing: it moves items from its queue to the inbox. The poll loop's
            place in the round is in its generator, which only the one consumer's thread may run.
Membership  `close` ends the forwarding threads by a stop mark behind everything that was put. After a run
            that got stuck they may be blocked in a full inbox: they are daemons, given `PATIENCE` and then
            left.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ._contenders import Contender, Ends, our_subqueues

PATIENCE = 5.0  # seconds that closing waits for the forwarding threads; those that work need microseconds
_STOP = object()


def _number_and_item(number: int, item: int) -> object:
    return number, item


def _item_of(tagged: tuple[int, int]) -> int:
    return tagged[1]


def tag_in_one(factory: Any, producers: int, capacity: int) -> Ends:
    """All put `(number, item)` into one queue: no capacity, pause or turn for any of them alone."""
    made = factory(capacity)
    return Ends([made.put] * producers, made.get, pack=_number_and_item, unpack=_item_of)


def _tag_in_simple_queue(producers: int, capacity: int) -> Ends:
    return tag_in_one(lambda _: queue.SimpleQueue(), producers, capacity)


def forwarding_threads(producers: int, capacity: int, *, inbox_capacity: int = 0) -> Ends:
    """A thread for each queue moves its items, tagged, into one inbox that the consumer blocks on."""
    queues: list[queue.Queue[Any]] = [queue.Queue(capacity) for _ in range(producers)]
    inbox: queue.Queue[Any] = queue.Queue(inbox_capacity)

    def forward(number: int, source: queue.Queue[Any]) -> None:
        while (item := source.get()) is not _STOP:
            inbox.put((number, item))

    threads = [
        threading.Thread(target=forward, args=(number, source), name=f"bench-forward-{number}", daemon=True)
        for number, source in enumerate(queues)
    ]
    for thread in threads:
        thread.start()

    def close() -> None:
        for source in queues:
            source.put(_STOP)
        deadline = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    return Ends([source.put for source in queues], inbox.get, unpack=_item_of, close=close)


def poll_loop(producers: int, capacity: int, *, interval: float) -> Ends:
    """The consumer asks each queue in turn and sleeps `interval` seconds when a whole round found nothing."""
    queues: list[queue.Queue[Any]] = [queue.Queue(capacity) for _ in range(producers)]

    def arrivals() -> Iterator[Any]:
        while True:
            found = False
            for source in queues:
                try:
                    item = source.get_nowait()
                except queue.Empty:
                    continue
                found = True
                yield item
            if not found:
                time.sleep(interval)

    return Ends([source.put for source in queues], arrivals().__next__)


def scan(queues: int) -> Contender:
    """Ask that many queues in turn, of which one is used, and never sleep."""

    def make(producers: int, capacity: int) -> Ends:
        return poll_loop(max(producers, queues), capacity, interval=0.0)

    return Contender(f"scan of {queues:,} queue.Queue", make, share=10 / (queues + 10))


WORKAROUNDS = (
    Contender(
        "tag in one queue.Queue",
        partial(tag_in_one, queue.Queue),
        note="loses each queue's capacity, pausing and fairness",
    ),
    Contender("forwarding threads", forwarding_threads, note="unbounded inbox: loses back-pressure", share=0.5),
    Contender(
        "forwarding threads, inbox of 8",
        partial(forwarding_threads, inbox_capacity=8),
        share=0.05,
        note="keeps back-pressure",
    ),
    Contender("poll every 1 ms", partial(poll_loop, interval=0.001), share=0.25),
    Contender("poll every 10 ms", partial(poll_loop, interval=0.010), share=0.1),
    Contender(
        "tag in one queue.SimpleQueue",
        _tag_in_simple_queue,
        role="yardstick",
        note="written in C; no capacity, join or shutdown either",
    ),
)
OURS_TAKE = Contender(
    "multiqueue",
    partial(our_subqueues, tell_source=True),
    role="ours",
    note="take(): the item and its sub-queue",
)
