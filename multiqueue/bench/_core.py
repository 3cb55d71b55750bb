"""The suite `core`: what the multi-queue and the executor cost and gain, beside what else there is.

The goals are ratios on CPython 3.11. On another interpreter they are a comparison and no promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from multiqueue import MultiQueueExecutor

from ._core_attempts import (
    IDLE_CPU,
    P50,
    P99,
    batches,
    both_ways,
    idling,
    jobs,
    one_of_many,
    producers_to_consumers,
    put_and_get,
)
from ._core_queues import (
    OUR_QUEUE,
    OURS,
    OURS_FAIR,
    OURS_SAME_TOTAL,
    OURS_TAKE,
    PEERS,
    QUEUE_OF_LISTS,
    SIMPLE,
    STANDARD,
    WORKAROUNDS,
    Contender,
    ours_with_idle,
    scan,
)
from ._model import BEST_RIVAL, CPU_RATE, RATE, Attempt, Goal, Rival, Suite, Workload

ITEMS = 50_000  # a tenth of a second for `queue.Queue`: twenty times the switch interval of the GIL
ROUND_TRIPS = 4_000
IDLE_MS = 1_000
BATCH = 100
CAPACITY = 100
EIGHT = 8
JOBS = 100_000
WORKERS = 4

UNBOUNDED_FIELD = (STANDARD, SIMPLE, OURS, OUR_QUEUE, *PEERS)
BOUNDED_FIELD = (STANDARD, OURS, OURS_SAME_TOTAL, OUR_QUEUE, *PEERS)
EIGHT_FIELD = (*WORKAROUNDS, OURS_TAKE, OURS_FAIR)


def _rivals(field: Iterable[Contender], open_attempt: Callable[[Contender, int], Attempt]) -> tuple[Rival, ...]:
    return tuple(Rival(each.name, partial(open_attempt, each), **each.settings) for each in field)


def _at_least(ratio: float, rival: str = OURS.name, against: str = STANDARD.name) -> tuple[Goal, ...]:
    """The goal by wall clock and by CPU: on a busy machine only the second can be trusted."""
    return tuple(Goal(metric.name, ratio, rival, against) for metric in (RATE, CPU_RATE))


def _scaling() -> Workload:
    rivals = [
        replace(rival, name=f"{rival.name}, {threads} thread{'s' * (threads > 1)}")
        for threads in (1, 2)
        for rival in _rivals((STANDARD, OURS, OUR_QUEUE), partial(put_and_get, threads=threads))
    ]
    return Workload(
        "scaling",
        "put and get by one thread, and by two on queues of their own",
        ITEMS,
        tuple(rivals),
        n_unit="pairs",
        threads="1 or 2",
        divisor=2,
        note="For free-threaded builds, where two threads that share nothing do twice as much as one. With a GIL they "
        "take turns.",
    )


def _transfer(
    producers: int, consumers: int, *, capacity: int = 0, goals: tuple[Goal, ...] = (), note: str = ""
) -> Workload:
    limit = f", capacity {capacity}" if capacity else ""
    return Workload(
        f"{producers}p{consumers}c" + (f"-{capacity}" if capacity else ""),
        f"{producers} producer{'s' * (producers > 1)} to {consumers} consumer{'s' * (consumers > 1)}{limit}",
        ITEMS,
        _rivals(
            BOUNDED_FIELD if capacity else UNBOUNDED_FIELD,
            partial(producers_to_consumers, producers=producers, consumers=consumers, capacity=capacity),
        ),
        threads=f"{producers} + {consumers}",
        goals=goals,
        divisor=math.lcm(producers, consumers),
        note=note,
    )


def _idle_subqueues() -> Workload:
    with_idle = [ours_with_idle(count) for count in (1, 64, 1_000, 100_000)]
    one, *_, most = with_idle
    return Workload(
        "idle-subqueues",
        "put and get by one thread on one active sub-queue of many",
        ITEMS,
        _rivals((STANDARD, *with_idle, scan(64), scan(1_000)), put_and_get),
        n_unit="pairs",
        goals=_at_least(1 / 1.15, most.name, one.name),
        note="The goal, less than 1.15 times the cost of one sub-queue, is a ratio of at least 0.87 here. "
        "Adding the sub-queues is outside of the clock.",
    )


def _batches(threads: int) -> Workload:
    how = "by one thread" if threads == 1 else "from a producer to a consumer"
    return Workload(
        "batches" if threads == 1 else "batches-1p1c",
        f"batches of {BATCH}, put_many and get_many, {how}",
        ITEMS * 4,
        _rivals((STANDARD, SIMPLE, QUEUE_OF_LISTS, OURS, OUR_QUEUE), partial(batches, size=BATCH, threads=threads)),
        threads="1" if threads == 1 else "1 + 1",
        goals=_at_least(10.0),
        divisor=BATCH,
        note="Queues without batches are called once for each item. A list put as one item is as fast, but "
        "its items can no longer be counted, bounded or taken one by one.",
    )


SUITE = Suite(
    "core",
    (
        Workload(
            "single",
            "put and get by one thread",
            ITEMS,
            _rivals(UNBOUNDED_FIELD, put_and_get),
            n_unit="pairs",
            goals=_at_least(1.7),
            note="The queue is empty before each put.",
        ),
        _transfer(1, 1, goals=_at_least(2.5)),
        _transfer(4, 1, goals=_at_least(3.0)),
        _transfer(4, 4),
        _transfer(1, 1, capacity=CAPACITY),
        _transfer(
            4,
            1,
            capacity=CAPACITY,
            goals=_at_least(2.5),
            note="The goal is for 100 in each sub-queue, 400 in all. With 25 in each, the same total as its rivals, "
            "a producer must sleep four times as often; multiqueue.Queue is the one queue of 100.",
        ),
        _transfer(4, 4, capacity=CAPACITY),
        _idle_subqueues(),
        _scaling(),
        _batches(threads=1),
        _batches(threads=2),
        Workload(
            "wake-up",
            "round trip between two threads that block on each other",
            ROUND_TRIPS,
            _rivals(UNBOUNDED_FIELD, both_ways),
            metrics=(P50, P99),
            n_unit="round trips",
            threads="2",
            goals=(Goal(P50.name, 1.0),),
            note="Two wake-ups each. Most of it is the operating system's, and p99 mostly other processes'.",
        ),
        Workload(
            "eight",
            "8 producers on 8 queues, one consumer blocked on all",
            ITEMS,
            _rivals(EIGHT_FIELD, partial(producers_to_consumers, producers=EIGHT, consumers=1)),
            threads="8 + 1",
            goals=_at_least(1.3, against=BEST_RIVAL),
            divisor=EIGHT,
            note="The consumer learns the source of an item; a poll loop could tell it at no cost. "
            "The slow ones carry fewer items.",
        ),
        Workload(
            "eight-wake-up",
            "round trip: into one of 8 queues, answered through a queue.SimpleQueue",
            ROUND_TRIPS // 2,
            _rivals(EIGHT_FIELD, partial(one_of_many, queues=EIGHT)),
            metrics=(P50, P99),
            n_unit="round trips",
            threads="2",
            note="A poll loop's p99 comes from few samples.",
        ),
        Workload(
            "idle-cpu",
            "CPU of a consumer blocked on 8 queues while nothing comes",
            IDLE_MS,
            _rivals(
                [*(replace(each, settings={**each.settings, "share": 1.0}) for each in EIGHT_FIELD), *PEERS],
                partial(idling, queues=EIGHT),
            ),
            metrics=(IDLE_CPU,),
            n_unit="ms",
            threads="2",
            note="Of the whole process, its waking up and ending included. The last three wait on one queue.",
        ),
        Workload(
            "executor",
            f"{JOBS:,} empty jobs submitted at once, {WORKERS} workers",
            JOBS,
            (
                Rival("ThreadPoolExecutor", partial(jobs, partial(ThreadPoolExecutor, WORKERS))),
                Rival("MultiQueueExecutor", partial(jobs, partial(MultiQueueExecutor, WORKERS)), role="ours"),
            ),
            n_unit="jobs",
            threads=f"1 + {WORKERS}",
            note="What a job costs beside its own work; one lane.",
        ),
    ),
    does_not_show=(
        "A program's gain: consumers here do nothing with an item. Where they work between two gets, the "
        "queue's share of the time is smaller, and so are the differences.",
        "More than one process, event loops, or priorities, weights and pausing in use.",
        "Memory, the start of threads, and what adding or removing a sub-queue costs.",
        "Fairness: a rival may let one producer finish before the next begins and have a good rate for it.",
        "With a load beyond the machine's CPUs the wall clock shows mostly the others; compare CPU there.",
    ),
)
