"""The cost of waiting: the round trip of a wake-up, and the CPU that a blocked consumer burns.

Promise     A round trip is timed from before the put until the answer is in hand, so it holds two wake-ups.
            The answer goes through the contender's own queue, or through the same C queue for all where only
            one direction competes.
Waiting     The responder blocks on the queue under test, the caller on the answer; each is woken by the
            other's put alone. With a GIL the caller cannot ask again before the responder is parked, because
            the responder keeps the GIL until it parks; on a free-threaded build it may find it still awake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ._contenders import UNBOUNDED, Contender, Ends
from ._crew import Crew
from ._model import Figures, ItemsLost, Metric
from ._statistics import percentile

P50 = Metric("p50", "us", "less")
P99 = Metric("p99", "us", "less")
IDLE_CPU = Metric("idle_cpu", "% of a CPU", "less", has_ratio=False)


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
