"""What a queue is made to do: carry items from producers to consumers, wake a thread, keep one waiting, run jobs.

Every item is a number of its own and consumers keep what they got, so that after the clock has stopped a lost, doubled
or displaced item is found. Keeping costs some 20 ns an item, for all rivals alike: it flatters the slower.

A round trip is timed from before the put until the answer is in hand, so it holds two wake-ups. With a GIL the caller
cannot ask again before the responder is parked; on a free-threaded build it may find it still awake.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any

from ._core_queues import UNBOUNDED, Contender, Ends
from ._harness import Elapsed, Once, Race, expect
from ._model import Figures, ItemsLost, Metric, percentile

SHOWN = 5  # items named in a message; the counts say the rest
P50 = Metric("p50", "us", "less")
P99 = Metric("p99", "us", "less")
IDLE_CPU = Metric("idle_cpu", "% of a CPU", "less", has_ratio=False)

Body = Callable[[], object]


def check_arrivals(sent: Iterable[Hashable], received: Iterable[Hashable]) -> None:
    """Raise `ItemsLost` unless exactly the items sent were received, each once, in whatever order."""
    balance = Counter(sent)
    balance.subtract(Counter(received))
    lost = [item for item, count in balance.items() if count > 0]
    surplus = [item for item, count in balance.items() if count < 0]
    if lost or surplus:
        raise ItemsLost(
            f"{len(lost)} items never arrived (such as {lost[:SHOWN]}) and {len(surplus)} arrived that were "
            f"not sent or came twice (such as {surplus[:SHOWN]})"
        )


def check_order(streams: Sequence[Sequence[int]], received: Iterable[int]) -> None:
    """Raise `ItemsLost` if one receiver got any producer's items in another order than they were sent.

    The receiver may have had part of the items only: who got the others is `check_arrivals`' matter.
    """
    stream_of = {item: number for number, stream in enumerate(streams) for item in stream}
    latest: dict[int, int] = {}
    for item in received:
        stream = stream_of[item]
        before = latest.get(stream)
        if before is not None and item < before:
            raise ItemsLost(f"producer {stream}: {item} arrived after {before}, but was sent before it")
        latest[stream] = item


def deal(n: int, hands: int) -> list[range]:
    """Split the numbers 0 to n into `hands` equal runs, one for each producer."""
    if n % hands:
        raise ValueError(f"{n} items cannot be dealt to {hands} producers in equal parts")
    share = n // hands
    return [range(hand * share, (hand + 1) * share) for hand in range(hands)]


def _transfer(
    ends: Ends, bodies: Sequence[Body], streams: Sequence[Sequence[int]], received: Sequence[Sequence[Any]]
) -> Race:
    """A race of producers' and consumers' bodies over one queue: all items come once, and each producer's in order."""

    def check() -> None:
        got = [list(map(ends.unpack, each)) if ends.unpack else each for each in received]
        check_arrivals((item for stream in streams for item in stream), (item for each in got for item in each))
        for each in got:
            check_order(streams, each)

    return Race(sum(map(len, streams)), bodies, check, [ends.close])


def put_and_get(contender: Contender, n: int, *, threads: int = 1) -> Race:
    """Each thread puts one item into a queue of its own and gets it again, until all have done n together.

    Items and the room for them exist beforehand: the first touch of fresh memory can cost more than the queue.
    """
    made = [contender.make(1, UNBOUNDED) for _ in range(threads)]
    streams = [list(share) for share in deal(n, threads)]
    received: list[list[Any]] = [[None] * len(stream) for stream in streams]
    bodies = [_alone(*each) for each in zip(made, streams, received, strict=True)]
    return _transfer(made[0]._replace(close=lambda: [ends.close() for ends in made]), bodies, streams, received)


def producers_to_consumers(
    contender: Contender, n: int, *, producers: int, consumers: int, capacity: int = UNBOUNDED
) -> Race:
    """Producers put their shares while consumers get theirs; n is a multiple of both numbers."""
    ends = contender.make(producers, capacity)
    streams, shares = deal(n, producers), deal(n, consumers)
    received: list[list[Any]] = [[] for _ in shares]
    bodies = [_producer(ends, number, stream) for number, stream in enumerate(streams)]
    bodies += [_consumer(ends, len(share), keep) for share, keep in zip(shares, received, strict=True)]
    return _transfer(ends, bodies, streams, received)


def batches(contender: Contender, n: int, *, size: int, threads: int) -> Race:
    """Batches of `size` are put and got: by one thread in turns, or by a producer and a consumer.

    A contender without batches is called for each item. The items exist beforehand, as in `put_and_get`: making one
    takes longer than putting and getting it in a batch.
    """
    ends = contender.make(1, UNBOUNDED)
    stream = list(range(n))
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

    return _transfer(ends, [both] if threads == 1 else [produce, consume], [stream], [received])


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


def _round_trips(question: Ends, answer: Ends, n: int) -> Race:
    """n questions, each answered with itself; question k goes into queue k modulo their number."""
    samples_ns: list[int] = []
    answers: list[Any] = []

    def ask() -> None:
        clock, get = time.perf_counter_ns, answer.get
        for number in range(n):
            put, parcel = _put_and_parcel(question, number)
            start = clock()
            put(parcel)
            got = get()
            samples_ns.append(clock() - start)
            answers.append(got)

    def respond() -> None:
        get, put = question.get, answer.puts[0]
        for _ in range(n):
            put(get())

    def figures(_: Elapsed) -> Figures:
        return {P50.name: percentile(samples_ns, 0.50) / 1000, P99.name: percentile(samples_ns, 0.99) / 1000}

    def check() -> None:
        for number, got in enumerate(answers):
            if _item(question, got) != number:
                raise ItemsLost(f"question {number} was answered with {got!r}")

    return Race(n, [ask, respond], check, [question.close, answer.close], figures)


def both_ways(contender: Contender, n: int) -> Race:
    """Question and answer both go through the contender."""
    return _round_trips(contender.make(1, UNBOUNDED), contender.make(1, UNBOUNDED), n)


def one_of_many(contender: Contender, n: int, *, queues: int) -> Race:
    """The question goes into one of `queues` that the responder blocks on, the answer through a C queue."""
    answers: SimpleQueue[Any] = SimpleQueue()
    return _round_trips(contender.make(queues, UNBOUNDED), Ends([answers.put], answers.get), n)


def idling(contender: Contender, n: int, *, queues: int) -> Race:
    """A consumer blocks on `queues` of the contender for n milliseconds, until one item comes."""
    ends = contender.make(queues, UNBOUNDED)
    received: list[Any] = []

    def put_late() -> None:
        put, parcel = _put_and_parcel(ends, 0)
        time.sleep(n / 1000)
        put(parcel)

    def check() -> None:
        if [_item(ends, parcel) for parcel in received] != [0]:
            raise ItemsLost(f"the consumer got {received!r} in the place of one item")

    def figures(elapsed: Elapsed) -> Figures:
        return {IDLE_CPU.name: 100 * elapsed.cpu / elapsed.wall}  # of the whole process

    return Race(n, [lambda: received.append(ends.get()), put_late], check, [ends.close], figures)


def _put_and_parcel(ends: Ends, item: int) -> tuple[Callable[[Any], object], object]:
    number = item % len(ends.puts)
    return ends.puts[number], ends.pack(number, item) if ends.pack else item


def _item(ends: Ends, parcel: Any) -> int:
    return ends.unpack(parcel) if ends.unpack else int(parcel)


def jobs(make: Callable[[], Executor], n: int) -> Once:
    """n empty jobs through an executor: all submitted, then all waited for."""
    executor, results = make(), list[int]()

    def run() -> Figures:
        wall, cpu = time.perf_counter(), time.process_time()
        submit = executor.submit
        futures = [submit(int) for _ in range(n)]
        results.extend(future.result() for future in futures)
        return Elapsed(time.perf_counter() - wall, time.process_time() - cpu).rates(n)

    return Once(run, lambda: expect(results.count(0), n, "jobs had their result"), executor.shutdown)
