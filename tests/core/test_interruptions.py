"""Every operation in every state, struck at every point: nothing is lost, and no thread sleeps on.

The table is made by `interruption_support`, which prints it when it is run.
"""

from __future__ import annotations

import pytest
from interruption_support import STATES, operations, strike

from multiqueue.core import engine

# A coroutine that is struck before it begins is never awaited; one that is struck while it is dropped says nothing.
pytestmark = [
    pytest.mark.skipif(engine == "c", reason="no section in C is struck; test_engine_strikes strikes what is left"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
