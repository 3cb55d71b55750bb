"""`multiqueue bench amqp`: every program does its work, with every client."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from bench_parts_support import Suite, _amqp, run_workload


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    """Our server against itself, as if it were the other one."""
    from multiqueue.broker import Broker

    with Broker() as broker, _amqp.measured_suite(broker.listen().url) as suite:
        yield suite


@pytest.mark.slow(selected=True)
def test_every_program_does_its_work(suite: Suite, need_module: Callable[[str, str], None]) -> None:
    """Two rivals for each program; none loses a message, and every metric has a figure."""
    need_module("pika", "pika is not installed: pip install pika")
    for workload in suite.workloads:
        few = dataclasses.replace(workload, n=200)
        result = run_workload(few, rounds=1)
        for rival in result.rivals:
            assert rival.status == "measured", (workload.name, rival.rival.name, rival.problem)
            assert set(rival.samples) == {metric.name for metric in workload.metrics}


def test_the_goals_are_those_that_were_set(suite: Suite) -> None:
    """pika's programs are as fast at our server as at the other, and our client is twice as fast as pika's."""
    goals = {goal for workload in suite.workloads for goal in workload.goals}
    assert {goal.at_least for goal in goals if goal.rival.startswith("pika") and goal.metric == "rate"} == {1.0}
    assert {goal.at_least for goal in goals if goal.rival.startswith("multiqueue")} == {2.0}
