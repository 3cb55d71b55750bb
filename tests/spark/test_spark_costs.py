"""`SparkDispatcher(cost="seconds")`: lanes are charged what their jobs have cost."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_parts_support import ConnectBackend, Costs, Spent
from spark_support import FakeSpark, dispatcher

from multiqueue.core import LinkedBlockingMultiQueue, SubQueue
from multiqueue.spark import SparkEnvironmentError
from multiqueue.testing import PATIENCE, wait_until_blocked


class World:
    """Lanes, jobs that run, and what those that ended have cost; the bound is checked after each start."""

    def __init__(self, weights: list[int], max_running: int, cap: int | None = None) -> None:
        self.costs = Costs()
        self.queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue(selection=self.costs)
        self.lanes = [
            self.queue.add_subqueue(number, weight=weight, max_in_flight=cap) for number, weight in enumerate(weights)
        ]
        self.cap = cap
        self.max_running = max_running
        self.running: list[SubQueue[int]] = []
        self.done: dict[Any, float] = defaultdict(float)  # by cost / weight
        self.most: dict[Any, int] = defaultdict(int)  # that ran at once
        self.greatest = 0.0
        self.since: dict[tuple[int, int], tuple[float, float]] = {}  # what was done when both could first start jobs
        self.started = 0

    def fill(self, count: int) -> None:
        for lane in self.lanes:
            for number in range(count):
                lane.put(number)

    def start(self) -> None:
        lanes = [each for each in self.lanes if len(each) and each.enabled]
        ready = {each.key for each in lanes if self.cap is None or each.in_flight < self.cap}
        if len(self.running) == self.max_running or not ready:
            return
        for one, other in combinations(range(len(self.lanes)), 2):
            if {one, other} <= ready:
                self.since.setdefault((one, other), (self.done[one], self.done[other]))
            else:
                self.since.pop((one, other), None)
        lane = self.queue.take(block=False).subqueue
        self.running.append(lane)
        self.started += 1
        self.most[lane.key] = max(self.most[lane.key], lane.in_flight)
        self.check()

    def end(self, index: int, cost: float) -> None:
        lane = self.running.pop(index % len(self.running))
        self.greatest = max(self.greatest, cost)
        self.done[lane.key] += cost / lane.weight
        self.costs.ended(lane, cost)
        lane.task_done()

    def check(self) -> None:
        for pair, before in self.since.items():
            one, other = (self.done[key] - was for key, was in zip(pair, before, strict=True))
            allowed = sum(3 * max(1, self.most[key]) * self.greatest / self.lanes[key].weight for key in pair)
            assert abs(one - other) <= allowed + 1e-9, f"lanes {pair} were served {one} and {other}"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), st.integers(1, 20)),
        st.tuples(st.just("start"), st.integers(1, 20), st.none()),
        st.tuples(st.just("end"), st.integers(0, 7), st.floats(0.001, 100)),
        st.tuples(st.just("pause"), st.integers(0, 3), st.booleans()),
    ),
    max_size=200,
)


@given(st.lists(st.integers(1, 5), min_size=4, max_size=4), st.integers(1, 8), st.sampled_from([None, 2]), steps)
def test_lanes_that_have_jobs_differ_by_a_few_of_the_greatest_cost(
    weights: list[int], max_running: int, cap: int | None, history: list[tuple[str, Any, Any]]
) -> None:
    """After each start, whatever came, was paused and ended before, in whichever order. (spark 13)"""
    world = World(weights, max_running, cap)
    for what, which, value in history:
        if what == "put":
            for number in range(value):
                world.lanes[which].put(number)
        elif what == "start":
            for _ in range(which):
                world.start()
        elif what == "end" and world.running:
            world.end(which, value)
        elif what == "pause" and value:
            world.lanes[which].disable()
        elif what == "pause":
            world.lanes[which].enable()


@pytest.mark.parametrize("max_running", [1, 4, 16])
def test_shares_follow_weights_and_not_the_number_of_jobs(max_running: int) -> None:
    """Lanes whose jobs cost 1, 5 and 10 to 30 get seconds in proportion to their weights; the bound holds all along."""
    chance = random.Random(max_running)
    world = World([1, 1, 3], max_running)
    world.fill(5_000)
    while world.started < 4_000:
        for _ in range(max_running):
            world.start()
        index = chance.randrange(len(world.running))
        world.end(index, {0: 1.0, 1: 5.0, 2: chance.uniform(10, 30)}[world.running[index].key])  # type: ignore[index]
    assert [world.done[key] / world.done[0] for key in (1, 2)] == pytest.approx([1, 1], rel=0.15)


def test_a_lane_that_had_no_jobs_saves_nothing_up() -> None:
    """It gets every other start from then on, and not all that it did not use before."""
    world = World([1, 1], 1)
    for number in range(200):
        world.lanes[0].put(number)
    for _ in range(100):
        world.start()
        world.end(0, 1.0)
    for number in range(100):
        world.lanes[1].put(number)
    for _ in range(20):
        world.start()
        world.end(0, 1.0)
    assert len(world.lanes[1]) in (89, 90, 91)


def test_a_lane_that_puts_one_heavy_job_at_a_time_stays_charged() -> None:
    """It has no job after each of its jobs, until another lane has begun one, and gets half of the seconds."""
    world = World([1, 1], 1)
    for number in range(1000):
        world.lanes[0].put(number)
    while world.started < 600:
        world.start()
        heavy = world.running[0].key == 1
        if not (heavy or len(world.lanes[1])):
            world.lanes[1].put(0)
        world.end(0, 10.0 if heavy else 1.0)
    assert world.done[1] == pytest.approx(world.done[0], rel=0.05)


def test_priorities_come_first() -> None:
    """A lane of a lower priority number goes before the others, whatever its jobs have cost."""
    world = World([1, 1], 1)
    world.lanes[1].priority = -1
    world.fill(3)
    order: list[object] = []
    for _ in range(6):
        world.start()
        order.append(world.running[0].key)
        world.end(0, 100.0 if order[-1] == 1 else 1.0)
    assert order == [1, 1, 1, 0, 0, 0]


def test_lanes_that_are_gone_leave_nothing() -> None:
    """A key's account goes when it says nothing that a new one would not."""
    world = World([1], 1)
    for number in range(100, 200):
        lane = world.queue.add_subqueue(number)
        lane.put(0)
        world.fill(2)
        while len(lane) or len(world.lanes[0]):
            world.start()
            world.end(0, 1.0)
        world.queue.remove_subqueue(number)
    assert len(world.costs._accounts) <= 3


def test_a_job_that_was_cancelled_when_it_was_about_to_begin_costs_nothing() -> None:
    """A worker took it and found it gone: what it might have cost is given back at the next look."""
    world = World([1], 1)
    world.fill(10)
    world.start()
    world.end(0, 5.0)
    for _ in range(3):
        world.start()
        world.running.pop().task_done()
    world.start()
    account = world.costs._accounts[0]
    assert (account.served, list(account.running)) == (10.0, [5.0])


# -- the dispatcher


def test_the_next_job_is_of_the_lane_that_has_spent_least() -> None:
    """Of heavy jobs that cost four times as much, one begins for four light ones."""
    spark = FakeSpark()
    costs: dict[str, float] = {}
    spark.spends = lambda tag: Spent(costs[tag], job_seconds=PATIENCE)  # all of its time in Spark's jobs
    order: list[str] = []

    def job(session: Any, lane: str, seconds: float) -> None:
        order.append(lane)
        costs[session.local.tag] = seconds

    with dispatcher(spark, cost="seconds") as dock:
        heavy, light = dock.lane("heavy"), dock.lane("light")
        heavy.pause()
        light.pause()
        for _ in range(50):
            heavy.submit(job, "heavy", 4.0)
            light.submit(job, "light", 1.0)
        heavy.resume()
        light.resume()
        dock.shutdown()
    assert 9 <= order[:50].count("heavy") <= 11


def test_a_lane_shows_what_it_was_charged() -> None:
    """The seconds of executors, and those of the function outside of Spark's jobs."""
    spark = FakeSpark()
    spark.spends = lambda tag: Spent(executor_seconds=1e9, job_seconds=0.0)
    with dispatcher(spark, cost="seconds") as dock:
        lane = dock.lane("a")
        for _ in range(3):
            lane.submit(lambda session: None)
        dock.shutdown()
        assert 3e9 < lane.statistics().cost < 3e9 + 3 * PATIENCE


def test_figures_that_are_lost_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Such jobs cost the seconds that they ran, and one line says so."""
    with caplog.at_level(logging.WARNING, "multiqueue.spark"), dispatcher(FakeSpark(), cost="seconds") as dock:
        lane = dock.lane("a")
        for _ in range(3):
            lane.submit(lambda session: None)
        dock.shutdown()
        statistics = lane.statistics()
    assert [record.getMessage().split(" job ")[0] for record in caplog.records] == ["Spark does not tell what"]
    assert 0 < statistics.cost <= statistics.run.total + 3 * 0.001


def test_jobs_that_never_began_cost_nothing() -> None:
    """Neither does one of a dispatcher with turns: Spark is not asked about it."""
    spark = FakeSpark()
    asked: list[str] = []
    spark.spends = asked.append  # type: ignore[assignment]
    with dispatcher(spark, cost="seconds") as dock:
        lane = dock.lane("a")
        lane.pause()
        assert lane.submit(lambda session: None).cancel()
        dock.shutdown()
        assert lane.statistics().cost == 0.0
    with dispatcher(spark) as dock:
        dock.submit(lambda session: None).result(PATIENCE)
        assert dock.lane("default").statistics().cost == 0.0
    assert asked == []


@pytest.mark.parametrize("cost", ["second", "", None, 1, True])
def test_what_no_cost_can_be(cost: Any) -> None:
    """It is refused with what would be right, before anything is started."""
    with pytest.raises(ValueError, match=r"cost is .*; it is 'turns' or 'seconds'"), dispatcher(FakeSpark(), cost=cost):
        pass


def test_a_session_that_tells_no_figures_is_refused() -> None:
    """Spark Connect's client has none."""
    assert not ConnectBackend.tells_spent
    spark = FakeSpark()
    spark.tells_spent = False
    refused = pytest.raises(SparkEnvironmentError, match="use a classic session, or leave cost out")
    with refused, dispatcher(spark, cost="seconds"):
        pass
    with dispatcher(spark) as dock:
        dock.submit(lambda session: None).result(PATIENCE)


# -- a real Spark


@pytest.mark.spark
def test_sparks_own_figures_are_charged(spark: Any) -> None:
    """What all tasks of a job took, and once what two jobs share that run at the same time. (spark 13)"""

    def sleep_a_little(row: Any) -> Any:  # in here, for Spark's workers do not know this module
        time.sleep(0.5)
        return row

    def sleep(session: Any) -> None:
        session.sparkContext.parallelize(range(4), 4).map(sleep_a_little).count()

    shuffled = spark.sparkContext.parallelize(range(2), 2).map(sleep_a_little).groupBy(lambda row: 0, 1)
    tracker = spark.sparkContext.statusTracker()
    with dispatcher(spark, 2, cost="seconds") as dock:
        lane = dock.lane("a")
        lane.submit(sleep).result(PATIENCE)
        lane.submit(lambda session: None).result(PATIENCE)
        one = lane.submit(lambda session: shuffled.count())
        wait_until_blocked(lambda: bool(tracker.getActiveStageIds()), PATIENCE)
        other = lane.submit(lambda session: shuffled.count())
        assert (one.result(PATIENCE), other.result(PATIENCE)) == (1, 1)
        first, second = (dock._backend.spent(each.tag) for each in (one, other))
        stages = [
            {stage for job in dock._backend.job_ids(each.tag) for stage in tracker.getJobInfo(job).stageIds}
            for each in (one, other)
        ]
        dock.shutdown()
        assert lane.statistics().cost >= 6 * 0.5
    store = spark.sparkContext._jsc.sc().statusStore()
    own = [{stage: store.lastStageAttempt(stage).executorRunTime() for stage in each} for each in stages]
    assert len(own[0].keys() & own[1].keys()) == 1, "the jobs share what makes the rows"
    assert first.executor_seconds >= 2 * 0.5
    assert first.executor_seconds == pytest.approx(sum(own[0].values()) / 1000)
    assert second.executor_seconds == pytest.approx(sum(own[1][each] for each in own[1].keys() - own[0].keys()) / 1000)
    assert second.job_seconds > 0
