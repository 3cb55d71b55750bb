"""Tests that are scenarios: what is explored of them, and how many surprises a schedule has."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import pytest

from multiqueue.testing import Run

Hold = Callable[[Callable[[Run], None]], object]

_most = 1


def set_surprises(is_short: bool) -> None:
    """Set whether this run is none of the long ones: a schedule has as many as a test names in those, one else."""
    global _most
    _most = 1 if is_short else 1000


def surprises(count: int) -> int:
    """The number for a scenario that names one: nearly every race needs one, and two cost ten times the schedules."""
    return min(count, _most)


def explored(hold: Hold | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What makes a test of a scenario, whose parameters but `run` are the test's: it passes if `hold` finds it to hold.

    Without `hold` that is a parameter of the test.
    """

    def decorate(scenario: Callable[..., None]) -> Callable[..., None]:
        given = [each for each in signature(scenario).parameters.values() if each.name != "run"]
        if hold is None:
            given.append(Parameter("hold", Parameter.KEYWORD_ONLY))

        @wraps(scenario)
        def test(**given: object) -> None:
            find = hold or given.pop("hold")
            find(lambda run: scenario(run=run, **given))  # type: ignore[operator]

        test.__signature__ = signature(test).replace(parameters=given)  # type: ignore[attr-defined]
        return test

    return decorate


def found_to(*hold: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What makes tests of a scenario, one for each of these ways to hold."""
    return lambda scenario: pytest.mark.parametrize("hold", hold)(explored()(scenario))
