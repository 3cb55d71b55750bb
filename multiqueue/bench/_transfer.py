"""Items carried from producers to consumers: the attempts behind the throughput workloads.

Every item is a number of its own and consumers keep what they got, so that after the clock has stopped a
lost, doubled or displaced item is found. Keeping costs some 20 ns an item, for all rivals alike: it flatters
the slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._arrivals import check_arrivals, check_order, deal
from ._contenders import UNBOUNDED, Contender, Ends
from ._crew import Crew
from ._model import Figures

Body = Callable[[], object]


class Transfer:
    """One race of producers' and consumers' bodies over one queue; an `Attempt`."""

    def __init__(
        self, ends: Ends, bodies: Sequence[Body], streams: Sequence[Sequence[int]], received: Sequence[Sequence[Any]]
    ) -> None:
        self._ends = ends
        self._streams = streams
        self._received = received
        self._crew = Crew(bodies)

    def run(self) -> Figures:
        """Race, and return items per second of wall clock and of CPU."""
        return self._crew.race().rates(sum(map(len, self._streams)))

    def check(self) -> None:
        """Raise `ItemsLost` unless all came, once, and in order from each producer to each consumer."""
        unpack = self._ends.unpack
        got = [list(map(unpack, each)) if unpack else each for each in self._received]
        check_arrivals((item for stream in self._streams for item in stream), (item for each in got for item in each))
        for each in got:
            check_order(self._streams, each)

    def close(self) -> None:
        """Release a crew that never raced, and what the contender started."""
        self._crew.abandon()
        self._ends.close()


def put_and_get(contender: Contender, n: int, *, threads: int = 1) -> Transfer:
    """Each thread puts one item into a queue of its own and gets it again, until all have done n together.

    Items and the room for them exist beforehand: the first touch of fresh memory can cost more than the queue.
    """
    made = [contender.make(1, UNBOUNDED) for _ in range(threads)]
    streams = [list(share) for share in deal(n, threads)]
    received: list[list[Any]] = [[None] * len(stream) for stream in streams]
    bodies = [_alone(*each) for each in zip(made, streams, received, strict=True)]
    return Transfer(made[0]._replace(close=lambda: [ends.close() for ends in made]), bodies, streams, received)


def producers_to_consumers(
    contender: Contender, n: int, *, producers: int, consumers: int, capacity: int = UNBOUNDED
) -> Transfer:
    """Producers put their shares while consumers get theirs; n is a multiple of both numbers."""
    ends = contender.make(producers, capacity)
    streams, shares = deal(n, producers), deal(n, consumers)
    received: list[list[Any]] = [[] for _ in shares]
    bodies = [_producer(ends, number, stream) for number, stream in enumerate(streams)]
    bodies += [_consumer(ends, len(share), keep) for share, keep in zip(shares, received, strict=True)]
    return Transfer(ends, bodies, streams, received)


def batches(contender: Contender, n: int, *, size: int, threads: int) -> Transfer:
    """Batches of `size` are put and got: by one thread in turns, or by a producer and a consumer.

    A contender without batches is called for each item.
    """
    ends = contender.make(1, UNBOUNDED)
    stream = range(n)
    parts = [stream[start : start + size] for start in range(0, n, size)]
    received: list[Any] = []
    put_many, get_many = ends.put_many or _one_by_one(ends.puts[0]), ends.get_many or _repeated(ends.get)

    def produce() -> None:
        for part in parts:
            put_many(part)

    def consume() -> None:
        while len(received) < n:
            received.extend(get_many(min(size, n - len(received))))

    def both() -> None:
        for part in parts:
            put_many(part)
            received.extend(get_many(size))

    return Transfer(ends, [both] if threads == 1 else [produce, consume], [stream], [received])


def _alone(ends: Ends, stream: Sequence[int], received: list[Any]) -> Body:
    def work() -> None:
        put, get = ends.puts[0], ends.get
        for place, item in enumerate(stream):
            put(item)
            received[place] = get()

    return work


def _producer(ends: Ends, number: int, stream: range) -> Body:
    put, pack = ends.puts[number], ends.pack
    parcels: Sequence[object] = [pack(number, item) for item in stream] if pack else stream

    def produce() -> None:
        for parcel in parcels:
            put(parcel)

    return produce


def _consumer(ends: Ends, count: int, received: list[Any]) -> Body:
    def consume() -> None:
        get, keep = ends.get, received.append
        for _ in range(count):
            keep(get())

    return consume


def _one_by_one(put: Callable[[Any], object]) -> Callable[[Sequence[Any]], object]:
    def put_each(items: Sequence[Any]) -> None:
        for item in items:
            put(item)

    return put_each


def _repeated(get: Callable[[], Any]) -> Callable[[int], Sequence[Any]]:
    return lambda count: [get() for _ in range(count)]
