"""A simulated day of 1,000 tenants, one of which floods: who waits how long, by four ways to queue.

    python tools/fair_day.py [--tenants 1000] [--workers 4] [--svg FILE]

Time is simulated, `multiqueue.FairQueue` is not: it decides the turns of the way called `fair`. Each way has the same
jobs at the same times. Sizes are the quantiles of a Pareto distribution; random are arrivals and how long jobs take.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Protocol

from multiqueue import FairQueue
from multiqueue.demo._svg import bars, spoken

DAY = 86_400.0  # seconds
FLOOD_AT = 9 * 3600.0
SHAPE = 1.1  # of the Pareto distribution
SMALLEST = 20  # jobs a day
LOAD = 0.5  # of what the workers can do in a day; at noon, without the flood, it is 0.84
CLASSES = {"20 to 49 jobs": 50, "50 to 199": 200, "200 to 1,999": 2000, "from 2,000": 10**9}


@dataclass(frozen=True, slots=True)
class Job:
    tenant: int
    at: float  # seconds since midnight
    takes: float


class Way(Protocol):
    """A way to queue. A worker takes when it is free, and when something came while it was."""

    def put(self, job: Job) -> None: ...

    def take(self, worker: int) -> Job | None: ...


class Fifo:
    """One queue for all."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def put(self, job: Job) -> None:
        self._jobs.append(job)

    def take(self, worker: int) -> Job | None:
        return self._jobs.popleft() if self._jobs else None


class Priorities:
    """Three strict levels: of ten tenants one is on the first, three on the second; the flood too, six on the third."""

    def __init__(self) -> None:
        self._levels = [Fifo() for _ in range(3)]

    def put(self, job: Job) -> None:
        place = job.tenant % 10 if job.tenant else 1
        self._levels[0 if place == 0 else 1 if place < 4 else 2].put(job)

    def take(self, worker: int) -> Job | None:
        return next((job for level in self._levels if (job := level.take(worker)) is not None), None)


class QueueEach:
    """A queue for each tenant; each worker consumes from all with a prefetch of 1, and works on what came first.

    A broker hands a queue's messages to its consumers in turn, as long as they have none of that queue unacknowledged.
    """

    def __init__(self, workers: int) -> None:
        self._queues: dict[int, deque[Job]] = {}
        self._next: dict[int, int] = {}
        self._has: set[tuple[int, int]] = set()  # worker and tenant with a message that is not acknowledged
        self._buffers: list[deque[Job]] = [deque() for _ in range(workers)]
        self._works_on: list[int | None] = [None] * workers

    def put(self, job: Job) -> None:
        self._queues.setdefault(job.tenant, deque()).append(job)
        self._hand(job.tenant)

    def take(self, worker: int) -> Job | None:
        if (done := self._works_on[worker]) is not None:
            self._has.discard((worker, done))
            self._works_on[worker] = None
            self._hand(done)
        if not self._buffers[worker]:
            return None
        job = self._buffers[worker].popleft()
        self._works_on[worker] = job.tenant
        return job

    def _hand(self, tenant: int) -> None:
        queue, workers = self._queues[tenant], len(self._buffers)
        for step in range(workers):
            worker = (self._next.get(tenant, 0) + step) % workers
            if queue and (worker, tenant) not in self._has:
                self._has.add((worker, tenant))
                self._buffers[worker].append(queue.popleft())
                self._next[tenant] = worker + 1


class Fair:
    """Turns among tenants: `multiqueue.FairQueue`."""

    def __init__(self) -> None:
        self._jobs: FairQueue[Job] = FairQueue(lambda job: job.tenant)

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def take(self, worker: int) -> Job | None:
        job = self._jobs.poll()
        if job is not None:
            self._jobs.task_done()
        return job


def sizes(tenants: int) -> list[int]:
    """Jobs of each tenant in a day, the largest first: quantiles, so that no luck is in them."""
    return [round(SMALLEST * ((place + 0.5) / tenants) ** (-1 / SHAPE)) for place in range(tenants)]


def day(tenants: int, workers: int, seed: int) -> list[Job]:
    """The jobs in the order of their arrival. The largest tenant puts all of its own at once, at nine."""
    chance = random.Random(seed)
    counts = sizes(tenants)
    takes = LOAD * DAY * workers / sum(counts)  # seconds, on average
    found = []
    for tenant, number in enumerate(counts):
        for _ in range(number):
            at = chance.triangular(0.0, DAY, DAY / 2) if tenant else FLOOD_AT
            found.append(Job(tenant, at, chance.expovariate(1 / takes)))
    return sorted(found, key=lambda job: job.at)


def waits(way: Way, jobs: Sequence[Job], workers: int) -> dict[int, list[float]]:
    """Run the day: how long each job of each tenant waited."""
    found: dict[int, list[float]] = {}
    numbers = count()
    ends: list[tuple[float, int, int]] = []  # when which worker is done
    idle = list(range(workers))

    def work(worker: int, now: float) -> bool:
        job = way.take(worker)
        if job is None:
            return False
        found.setdefault(job.tenant, []).append(now - job.at)
        heappush(ends, (now + job.takes, next(numbers), worker))
        return True

    def run_until(at: float) -> None:
        while ends and ends[0][0] <= at:
            now, _, worker = heappop(ends)
            idle.append(worker)
            idle[:] = [each for each in idle if not work(each, now)]

    for job in jobs:
        run_until(job.at)
        way.put(job)
        idle[:] = [each for each in idle if not work(each, job.at)]
    run_until(float("inf"))
    assert sum(map(len, found.values())) == len(jobs)
    return found


def groups(tenants: int) -> Iterator[tuple[str, list[int]]]:
    """Tenants by how many jobs they have; the flood alone."""
    yield "the flood", [0]
    least = 0
    for name, end in CLASSES.items():
        yield name, [place for place, size in enumerate(sizes(tenants)) if place and least <= size < end]
        least = end


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path)
    asked = parser.parse_args()
    jobs = day(asked.tenants, asked.workers, asked.seed)
    ways: dict[str, Way] = {
        "first in, first out": Fifo(),
        "strict priorities": Priorities(),
        "a queue per tenant": QueueEach(asked.workers),
        "fair": Fair(),
    }
    found = {name: waits(way, jobs, asked.workers) for name, way in ways.items()}
    by_group = [(name, members) for name, members in groups(asked.tenants) if members]
    of_flood = sum(not job.tenant for job in jobs)
    print(f"{len(jobs):,} jobs of {mean(job.takes for job in jobs):.2f} s, {of_flood:,} in the flood\n")
    for title, read in (("mean", mean), ("95th percentile", lambda all_: percentile(all_, 0.95)), ("longest", max)):
        print(f"| {title} wait | tenants | {' | '.join(ways)} |\n|---|---:|{'---:|' * len(ways)}")
        for name, members in by_group:
            cells = [spoken(read([wait for each in members for wait in found[way][each]])) for way in ways]
            print(f"| {name} | {len(members)} | {' | '.join(cells)} |")
        print()
    if asked.svg is not None:
        rows = [
            (name, [percentile([wait for each in members for wait in found[way][each]], 0.95) for way in ways])
            for name, members in by_group
        ]
        title = "95th percentile of a job's wait by the size of its tenant, logarithmic"
        asked.svg.write_text(bars(title, list(ways), rows, log=True))


if __name__ == "__main__":
    main()
