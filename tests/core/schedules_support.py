"""How the tests of the core explore a scenario: every order of its locks, and stops between its lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from explorations_support import found_to

from multiqueue.core import engine
from multiqueue.testing import Exploration, Run, explore

Scenario = Callable[[Run], None]

# The modules of the core that run between a put and a take. Threads are stopped at any of their lines.
STOPPED = ("multiqueue.core",)


def hold_in_every_order(scenario: Scenario) -> Exploration:
    """The scenario holds in every order of lock operations, but for orders of operations that commute."""
    return explore(scenario)


def hold_when_stopped_once(scenario: Scenario) -> Exploration:
    """The scenario holds when one thread is stopped at any line of the core, while the others go on."""
    return explore(scenario, preemptions=1, within=STOPPED, max_schedules=1_000_000)


def hold_when_stopped_twice(scenario: Scenario) -> Exploration:
    """The scenario holds when threads are stopped at any two lines of the core."""
    return explore(scenario, preemptions=2, within=STOPPED, max_schedules=1_000_000)


in_every_order = pytest.param(hold_in_every_order, id="every order of locks")
when_stopped_once = pytest.param(
    hold_when_stopped_once, id="stopped at any line", marks=pytest.mark.slow(selected=True)
)


# Two threads: seconds, and some minutes for every pair of stops.
of_two_threads = found_to(
    in_every_order,
    when_stopped_once,
    pytest.param(
        hold_when_stopped_twice, id="stopped at any two lines", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]
    ),
)

# Three threads: seconds; pairs of stops would take hours.
of_three_threads = found_to(in_every_order, when_stopped_once)

# More, or such as wait and give up: a quarter of a minute already for one stop, and up to many.
in_minutes = pytest.param(
    hold_when_stopped_once, id="stopped at any line", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]
)
of_many_threads = found_to(in_every_order, in_minutes)

# Such as are interrupted wherever they wait: seconds for the orders alone. Of the engine in C nothing is interrupted
# but waits, by signals that are real (test_engine_strikes): the places here are those of this exploration's locks.
_in_python = pytest.mark.skipif(engine == "c", reason="MULTIQUEUE_PURE=1 runs it: sections in C are not interrupted")
of_interrupted_threads = found_to(
    pytest.param(hold_in_every_order, id="every order of locks", marks=[pytest.mark.slow(selected=True), _in_python]),
    pytest.param(*in_minutes.values, id=in_minutes.id, marks=[*in_minutes.marks, _in_python]),
)
