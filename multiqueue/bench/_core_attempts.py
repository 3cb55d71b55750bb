"""What a queue is made to do: carry items from producers to consumers, wake a thread, keep one waiting, run jobs.

Every item is a number of its own and consumers keep what they got, so that after the clock has stopped a lost, doubled
or displaced item is found. Keeping costs some 20 ns an item, for all rivals alike: it flatters the slower.

A round trip is timed from before the put until the answer is in hand, so it holds two wake-ups. With a GIL the caller
cannot ask again before the responder is parked; on a free-threaded build it may find it still awake.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any

from ._core_queues import UNBOUNDED, Contender, Ends
from ._harness import Crew, Elapsed
from ._model import BenchError, Figures, ItemsLost, Metric, percentile

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


class RoundTrips:
    """n questions and their answers; question k goes into queue k modulo their number. An `Attempt`."""

    def __init__(self, question: Ends, answer: Ends, n: int) -> None:
        self._question, self._answer, self._n = question, answer, n
        self._samples_ns: list[int] = []
        self._answers: list[Any] = []
        self._crew = Crew([self._ask, self._respond])

    def run(self) -> Figures:
        """Race, and return the percentiles of the round trips in microseconds."""
        self._crew.race()
        return {
            P50.name: percentile(self._samples_ns, 0.50) / 1000,
            P99.name: percentile(self._samples_ns, 0.99) / 1000,
        }

    def check(self) -> None:
        """Raise `ItemsLost` unless each question was answered with itself."""
        for number, answer in enumerate(self._answers):
            if _item(self._question, answer) != number:
                raise ItemsLost(f"question {number} was answered with {answer!r}")

    def close(self) -> None:
        """Release a crew that never raced, and what the contenders started."""
        self._crew.abandon()
        self._question.close()
        self._answer.close()

    def _ask(self) -> None:
        clock, get = time.perf_counter_ns, self._answer.get
        for number in range(self._n):
            put, parcel = _put_and_parcel(self._question, number)
            start = clock()
            put(parcel)
            answer = get()
            self._samples_ns.append(clock() - start)
            self._answers.append(answer)

    def _respond(self) -> None:
        get, put = self._question.get, self._answer.puts[0]
        for _ in range(self._n):
            put(get())


class Idling:
    """One consumer blocks for n milliseconds until one item comes; an `Attempt`."""

    def __init__(self, ends: Ends, n: int) -> None:
        self._ends, self._seconds = ends, n / 1000
        self._received: list[Any] = []
        self._crew = Crew([self._consume, self._put_late])

    def run(self) -> Figures:
        """Race, and return the CPU of the whole process in percent of one CPU."""
        elapsed = self._crew.race()
        return {IDLE_CPU.name: 100 * elapsed.cpu / elapsed.wall}

    def check(self) -> None:
        """Raise `ItemsLost` unless the item came."""
        if [_item(self._ends, parcel) for parcel in self._received] != [0]:
            raise ItemsLost(f"the consumer got {self._received!r} in the place of one item")

    def close(self) -> None:
        """Release a crew that never raced, and what the contender started."""
        self._crew.abandon()
        self._ends.close()

    def _consume(self) -> None:
        self._received.append(self._ends.get())

    def _put_late(self) -> None:
        put, parcel = _put_and_parcel(self._ends, 0)
        time.sleep(self._seconds)
        put(parcel)


def both_ways(contender: Contender, n: int) -> RoundTrips:
    """Question and answer both go through the contender."""
    return RoundTrips(contender.make(1, UNBOUNDED), contender.make(1, UNBOUNDED), n)


def one_of_many(contender: Contender, n: int, *, queues: int) -> RoundTrips:
    """The question goes into one of `queues` that the responder blocks on, the answer through a C queue."""
    answers: SimpleQueue[Any] = SimpleQueue()
    return RoundTrips(contender.make(queues, UNBOUNDED), Ends([answers.put], answers.get), n)


def idling(contender: Contender, n: int, *, queues: int) -> Idling:
    """A consumer blocked on `queues` of the contender."""
    return Idling(contender.make(queues, UNBOUNDED), n)


def _put_and_parcel(ends: Ends, item: int) -> tuple[Callable[[Any], object], object]:
    number = item % len(ends.puts)
    return ends.puts[number], ends.pack(number, item) if ends.pack else item


def _item(ends: Ends, parcel: Any) -> int:
    return ends.unpack(parcel) if ends.unpack else int(parcel)


class Jobs:
    """n empty jobs through an executor of 4 workers; an `Attempt`."""

    def __init__(self, make: Callable[[], Executor], n: int) -> None:
        self._n, self._executor, self._done = n, make(), 0

    def run(self) -> Figures:
        """Submit all, wait for all, and return jobs per second of wall clock and of CPU."""
        wall, cpu = time.perf_counter(), time.process_time()
        submit = self._executor.submit
        futures = [submit(int) for _ in range(self._n)]
        self._done = [future.result() for future in futures].count(0)
        return Elapsed(time.perf_counter() - wall, time.process_time() - cpu).rates(self._n)

    def check(self) -> None:
        """Raise `ItemsLost` unless each job had its result."""
        if self._done != self._n:
            raise ItemsLost(f"{self._done} of {self._n} jobs had their result")

    def close(self) -> None:
        """End the workers."""
        self._executor.shutdown()


class InPython:
    """A workload's rival in a process with the engine in Python; an `Attempt`, whose clock runs there."""

    def __init__(self, workload: str, rival: str, n: int) -> None:
        self._command = [sys.executable, "-m", "multiqueue.bench._core", workload, rival, str(n)]

    def run(self) -> Figures:
        """Run it, and return what it measured.

        Raises:
            BenchError: it failed, and what it said.
        """
        environment = {**os.environ, "MULTIQUEUE_PURE": "1"}
        done = subprocess.run(self._command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            raise BenchError((done.stderr.strip() or "it failed without a word").splitlines()[-1])
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def check(self) -> None:
        """It was checked there."""

    def close(self) -> None:
        """It has ended."""
