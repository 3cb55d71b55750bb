"""The queues that compete in a transfer of items: ours, the standard library's, and three from PyPI.

Each is wired the way its own documentation shows it, by its blocking calls without a timeout. What a queue
cannot do (a capacity, batches) is left out and not imitated, but for one thing: where a workload hands over
batches, a queue without them is called once for each item, because that is what its user would have to do.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import multiqueue

UNBOUNDED = 0  # as `maxsize` of `queue.Queue`


def _nothing() -> None:
    pass


class Ends(NamedTuple):
    """A queue made ready: a put for each producer, and the get that all consumers share.

    `pack` makes of a producer's number and an item what is put, `unpack` of what was got the item again. They
    run outside of the clock, so a rival pays for carrying a tag and not for our way of making one.
    """

    puts: Sequence[Callable[[Any], object]]
    get: Callable[[], Any]
    put_many: Callable[[Sequence[Any]], object] | None = None
    get_many: Callable[[int], Sequence[Any]] | None = None
    pack: Callable[[int, int], object] | None = None
    unpack: Callable[[Any], int] | None = None
    close: Callable[[], object] = _nothing


@dataclass(frozen=True, slots=True)
class Contender:
    """A queue and how to make it ready: `make(producers, capacity)`, with `UNBOUNDED` for no capacity.

    `role`, `requires`, `share` and `note` are those of the `Rival` it becomes in each workload.
    """

    name: str
    make: Callable[[int, int], Ends]
    role: Literal["ours", "rival", "yardstick"] = "rival"
    requires: str | None = None
    share: float = 1.0
    note: str = ""


def one_queue(factory: Callable[[int], Any], producers: int, capacity: int) -> Ends:
    """All producers put into one queue, made by `factory(maxsize)`."""
    made = factory(capacity)
    return Ends([made.put] * producers, made.get)


def _simple_queue(producers: int, capacity: int) -> Ends:
    if capacity:
        raise ValueError("queue.SimpleQueue has no capacity")
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return Ends([made.put] * producers, made.get)


def _culsans(producers: int, capacity: int) -> Ends:
    import culsans

    made: Any = culsans.Queue(capacity)
    return Ends([made.sync_q.put] * producers, made.sync_q.get)


def _janus(producers: int, capacity: int) -> Ends:
    import janus

    made: Any = janus.Queue(capacity)
    return Ends([made.sync_q.put] * producers, made.sync_q.get, close=made.close)


def _aiologic(producers: int, capacity: int) -> Ends:
    import aiologic

    made: Any = aiologic.Queue(maxsize=capacity) if capacity else aiologic.SimpleQueue()
    return Ends([made.green_put] * producers, made.green_get)


def our_queue(producers: int, capacity: int) -> Ends:
    """`multiqueue.Queue`, the drop-in, in the place of `queue.Queue`."""
    made: multiqueue.Queue[Any] = multiqueue.Queue(capacity)
    return Ends([made.put] * producers, made.get, made.put_many, made.get_many)


def our_subqueues(
    producers: int, capacity: int, *, idle: int = 0, share_capacity: bool = False, tell_source: bool = False
) -> Ends:
    """A multi-queue with a sub-queue for each producer and `idle` further ones that stay empty.

    The active ones are added when half of the idle ones are there. `capacity` is each sub-queue's, or is
    divided among the producers if `share_capacity`. Consumers `get`, or `take` if they shall learn the source
    of an item.
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


def ours_with_idle(subqueues: int) -> Contender:
    """A multi-queue of so many sub-queues, one of which is used."""
    return Contender(
        f"multiqueue, {subqueues:,} sub-queue{'s' * (subqueues > 1)}",
        partial(our_subqueues, idle=subqueues - 1),
        role="ours",
    )


def _queue_of_lists(producers: int, capacity: int) -> Ends:
    made: queue.Queue[Sequence[Any]] = queue.Queue(capacity)
    return Ends([made.put] * producers, made.get, made.put, lambda _: made.get())


STANDARD = Contender("queue.Queue", partial(one_queue, queue.Queue))
SIMPLE = Contender(
    "queue.SimpleQueue",
    _simple_queue,
    role="yardstick",
    note="written in C; no capacity, join or shutdown",
)
OURS = Contender("multiqueue", our_subqueues, role="ours", note="a sub-queue for each producer")
OUR_QUEUE = Contender("multiqueue.Queue", our_queue, role="ours", note="the drop-in: one queue for all")
OURS_SAME_TOTAL = Contender(
    "multiqueue, same total",
    partial(our_subqueues, share_capacity=True),
    role="ours",
    note="the capacity divided among the sub-queues",
)
QUEUE_OF_LISTS = Contender(
    "queue.Queue of lists",
    _queue_of_lists,
    role="yardstick",
    note="a whole batch is one item",
)
PEERS = (
    Contender("culsans", _culsans, requires="culsans"),
    Contender("aiologic", _aiologic, requires="aiologic", note="green_put and green_get"),
    Contender("janus", _janus, requires="janus"),
)
