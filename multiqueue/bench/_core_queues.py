"""The queues that compete in a transfer of items: ours, the standard library's, three from PyPI, and workarounds.

Each is wired the way its own documentation shows it, by its blocking calls without a timeout. What a queue cannot do is
left out and not imitated; where a workload hands over batches, a queue without them is called once for each item.

The workarounds are how people block on several queues today: a tag in one queue, forwarding threads, polling. Each
hands the consumer every item put into any of its queues, in order within each.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import multiqueue

UNBOUNDED = 0  # as `maxsize` of `queue.Queue`
PATIENCE = 5.0  # seconds that closing waits for the forwarding threads; those that work need microseconds
_STOP = object()


class Ends(NamedTuple):
    """A queue made ready: a put for each producer, and the get that all consumers share.

    `pack` makes of a producer's number and an item what is put, `unpack` of what was got the item again, both outside
    of the clock.
    """

    puts: Sequence[Callable[[Any], object]]
    get: Callable[[], Any]
    put_many: Callable[[Sequence[Any]], object] | None = None
    get_many: Callable[[int], Sequence[Any]] | None = None
    pack: Callable[[int, int], object] | None = None
    unpack: Callable[[Any], int] | None = None
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Contender:
    """A queue and how to make it ready: `make(producers, capacity)`, with `UNBOUNDED` for no capacity.

    `settings` are those of the `Rival` that it becomes in each workload.
    """

    name: str
    make: Callable[[int, int], Ends]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _contender(name: str, make: Callable[[int, int], Ends], **settings: Any) -> Contender:
    return Contender(name, make, settings)


def one_queue(factory: Callable[[int], Any], producers: int, capacity: int) -> Ends:
    """All producers put into one queue, made by `factory(maxsize)`."""
    made = factory(capacity)
    return Ends([made.put] * producers, made.get)


def _simple_queue(producers: int, capacity: int) -> Ends:
    if capacity:
        raise ValueError("queue.SimpleQueue has no capacity")
    return one_queue(lambda _: queue.SimpleQueue(), producers, capacity)


def _sync_side(module: str, producers: int, capacity: int) -> Ends:
    """Of a queue with two sides, one for coroutines."""
    made: Any = import_module(module).Queue(capacity)
    close = made.close if module == "janus" else lambda: None
    return Ends([made.sync_q.put] * producers, made.sync_q.get, close=close)


def _aiologic(producers: int, capacity: int) -> Ends:
    import aiologic

    made: Any = aiologic.Queue(maxsize=capacity) if capacity else aiologic.SimpleQueue()
    return Ends([made.green_put] * producers, made.green_get)


def _our_queue(producers: int, capacity: int) -> Ends:
    made: multiqueue.Queue[Any] = multiqueue.Queue(capacity)
    return Ends([made.put] * producers, made.get, made.put_many, made.get_many)


def our_subqueues(
    producers: int, capacity: int, *, idle: int = 0, share_capacity: bool = False, tell_source: bool = False
) -> Ends:
    """A multi-queue with a sub-queue for each producer and `idle` further ones that stay empty.

    The active ones are added when half of the idle ones are there. `capacity` is each sub-queue's, or is divided among
    the producers if `share_capacity`. Consumers `get`, or `take` if they shall learn the source of an item.
    """
    made: multiqueue.LinkedBlockingMultiQueue[Any] = multiqueue.LinkedBlockingMultiQueue()
    each = capacity // producers if share_capacity else capacity
    for number in range(idle // 2):
        made.add_subqueue(("idle", number))
    active = [made.add_subqueue(number, capacity=each or None) for number in range(producers)]
    for number in range(idle // 2, idle):
        made.add_subqueue(("idle", number))
    puts = [subqueue.put for subqueue in active]
    if tell_source:
        return Ends(puts, made.take, unpack=lambda taken: int(taken.item))
    return Ends(puts, made.get, active[0].put_many, made.get_many)


def _fair_queue(producers: int, capacity: int) -> Ends:
    made: multiqueue.FairQueue[Any] = multiqueue.FairQueue(capacity=capacity or None)
    return Ends([partial(made.put, key=number) for number in range(producers)], made.get)


def ours_with_idle(subqueues: int) -> Contender:
    """A multi-queue of so many sub-queues, one of which is used."""
    name = f"multiqueue, {subqueues:,} sub-queue{'s' * (subqueues > 1)}"
    return _contender(name, partial(our_subqueues, idle=subqueues - 1), role="ours")


def _queue_of_lists(producers: int, capacity: int) -> Ends:
    made: queue.Queue[Sequence[Any]] = queue.Queue(capacity)
    return Ends([made.put] * producers, made.get, made.put, lambda _: made.get())


def _item_of(tagged: tuple[int, int]) -> int:
    return tagged[1]


def tag_in_one(producers: int, capacity: int) -> Ends:
    """All put `(number, item)` into one queue: no capacity, pause or turn for any of them alone."""
    return one_queue(queue.Queue, producers, capacity)._replace(
        pack=lambda number, item: (number, item), unpack=_item_of
    )


def forwarding_threads(producers: int, capacity: int) -> Ends:
    """A thread for each queue moves its items, tagged, into one inbox that the consumer blocks on.

    They end by a stop mark behind everything that was put; after a run that got stuck they are given `PATIENCE` and
    left, as daemons.
    """
    queues: list[queue.Queue[Any]] = [queue.Queue(capacity) for _ in range(producers)]
    inbox: queue.Queue[Any] = queue.Queue()

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

    return _contender(f"scan of {queues:,} queue.Queue", make, share=10 / (queues + 10))


STANDARD = _contender("queue.Queue", partial(one_queue, queue.Queue))
SIMPLE = _contender(
    "queue.SimpleQueue", _simple_queue, role="yardstick", note="written in C; no capacity, join or shutdown"
)
OURS = _contender("multiqueue", our_subqueues, role="ours", note="a sub-queue for each producer")
OUR_QUEUE = _contender("multiqueue.Queue", _our_queue, role="ours", note="the drop-in: one queue for all")
OURS_SAME_TOTAL = _contender(
    "multiqueue, same total",
    partial(our_subqueues, share_capacity=True),
    role="ours",
    note="the capacity divided among the sub-queues",
)
QUEUE_OF_LISTS = _contender("queue.Queue of lists", _queue_of_lists, role="yardstick", note="a whole batch is one item")
PEERS = (
    _contender("culsans", partial(_sync_side, "culsans"), requires="culsans"),
    _contender("aiologic", _aiologic, requires="aiologic", note="green_put and green_get"),
    _contender("janus", partial(_sync_side, "janus"), requires="janus"),
)
WORKAROUNDS = (
    _contender("tag in one queue.Queue", tag_in_one, note="loses each queue's capacity, pausing and fairness"),
    _contender("forwarding threads", forwarding_threads, note="unbounded inbox: loses back-pressure", share=0.5),
    _contender("poll every 1 ms", partial(poll_loop, interval=0.001), share=0.25),
    _contender("poll every 10 ms", partial(poll_loop, interval=0.010), share=0.1),
)
OURS_TAKE = _contender(
    "multiqueue", partial(our_subqueues, tell_source=True), role="ours", note="take(): the item and its sub-queue"
)
OURS_FAIR = _contender("multiqueue.FairQueue", _fair_queue, role="ours", note="a key for each producer")
