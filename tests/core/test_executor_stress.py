"""Everything at once: submits, cancels, pauses, clearings and shutdowns that race, from named seeds."""

from __future__ import annotations

import random
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from executor_support import in_thread

from multiqueue import MultiQueueExecutor
from multiqueue.testing import PATIENCE, switch_interval

SUBMITTERS = 4
STEPS = 60


class OneShot(MultiQueueExecutor):
    """Each worker runs one job."""

    _jobs_per_worker = 1


class Storm:
    """What the submitters share."""

    def __init__(self, pool: MultiQueueExecutor) -> None:
        self.pool = pool
        self.ran: list[tuple[int, int]] = []
        self.futures: dict[Future[None], tuple[int, int]] = {}

    def blow(self, me: int, choice: random.Random) -> None:
        for number in range(STEPS):
            with suppress(RuntimeError):  # shut down, the lane or all of it
                self.step(me, number, choice)

    def step(self, me: int, number: int, choice: random.Random) -> None:
        lane = self.pool.lane(choice.randrange(3), capacity=3, max_in_flight=2)
        what = choice.random()
        if what < 0.60:
            future = lane.submit_within(PATIENCE, self.ran.append, (me, number))
            self.futures[future] = (me, number)
        elif what < 0.70:
            lane.pause(me)
            lane.resume(me)
        elif what < 0.75:
            lane.clear()
        elif what < 0.80:
            lane.shutdown(wait=choice.random() < 0.5, cancel_futures=choice.random() < 0.5)
        elif self.futures:
            choice.choice(list(self.futures.copy())).cancel()


@pytest.mark.parametrize("kind", [MultiQueueExecutor, OneShot])
@pytest.mark.parametrize("seed", range(40))
def test_every_job_is_run_or_cancelled_and_nothing_is_left(kind: type[MultiQueueExecutor], seed: int) -> None:
    """After a storm each future has ended, as its job was run or not; no count, lane or thread is left over.

    (executor 1)
    """
    choice = random.Random(seed)
    storm = Storm(kind(choice.choice([1, 2, 4])))
    with switch_interval(1e-6):
        with ExitStack() as submitters:
            for me in range(SUBMITTERS):
                submitters.enter_context(in_thread(partial(storm.blow, me, random.Random(seed * 100 + me))))
            if choice.random() < 0.3:
                storm.pool.shutdown(wait=False, cancel_futures=choice.random() < 0.5)
        with in_thread(storm.pool.shutdown) as ended:
            ended.result(PATIENCE)
    for future, job in storm.futures.items():
        assert future.done()
        assert future.cancelled() != (job in storm.ran)
    assert len(storm.ran) == len(set(storm.ran))
    workers = storm.pool._workers
    assert (workers._load, workers._serving, len(workers._closing)) == (0, 0, 0)
    assert not [thread for thread in workers.threads() if thread.is_alive()]
