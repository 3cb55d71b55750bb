"""Every operation in every state, struck at every point: nothing is lost, and no thread sleeps on.

The table is made by `interruption_support`, which prints it when it is run.
"""

from __future__ import annotations

import pytest
from interruption_support import STATES, operations, strike

# A coroutine that is struck before it begins is never awaited; one that is struck while it is dropped says nothing.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Second strikes in all states take some five minutes of CPU; these have somebody in every line, a coroutine too, and
# equal elements.
STRUCK_TWICE = {
    "all lines": ("task_done", "clear", "remove_subqueue"),
    "coroutines": ("get", "async_put"),
    "one object": ("take", "drain_to"),
    "empty": ("get, waiting", "own async_get, waiting"),
    "bounded, full": ("put, waiting", "async_put, waiting"),
    "Queue: joiners": ("task_done", "own join"),
}


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("state", STATES)
def test_an_exception_at_any_point_of_any_operation_loses_no_element_and_no_wake_up(state: str) -> None:
    """An operation that is interrupted is done or not done; a take is not; and everybody whose wait is over wakes."""
    for name in operations(state):
        cell = strike(state, name)
        assert cell.strikes
        assert not cell.faults, cell.faults[0]


@pytest.mark.parametrize(
    ("state", "name"),
    [("one object", "get_nowait"), ("weight 2", "take"), ("limit in flight", "get_many"), ("one object", "drain_to"),
     ("Queue: joiners", "task_done"), ("all lines", "clear"), ("coroutines", "get"), ("joiners", "remove_subqueue")],
)  # fmt: skip
def test_the_same_for_those_that_lost_something_once(state: str, name: str) -> None:
    """The same, for operations that have lost an element or a wake-up: these are quick enough for every run."""
    assert not strike(state, name).faults


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("state", STRUCK_TWICE)
def test_a_second_exception_in_the_handler_of_the_first_loses_nothing_either(state: str) -> None:
    """An exception that strikes wherever the first one is handled changes nothing of what was promised for one."""
    for name in STRUCK_TWICE[state]:
        assert not strike(state, name, twice=True).faults


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_a_second_exception_in_any_operation_and_state_loses_nothing_either(state: str) -> None:
    """The same for everything."""
    for name in operations(state):
        cell = strike(state, name, twice=True)
        assert not cell.faults, cell.faults[0]
