"""Which step comes after what: the mistakes in a configuration's graph, and its order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from .sections import Settings, StepSection

Mistake = tuple[tuple[str | int, ...], str]
"""The place of a mistake in the file, and what is wrong."""


def mistakes(settings: Settings) -> list[Mistake]:
    """The mistakes in the steps; of several cycles one."""
    found = [one for name in settings.steps for one in _mistakes_of(name, settings)]
    return found or _cycle(settings.steps)


def in_order(settings: Settings) -> list[str]:
    """The names of the steps, each after those that it needs, otherwise in the order of the file."""
    return list(TopologicalSorter(_edges(settings.steps)).static_order())


def _edges(steps: Mapping[str, StepSection]) -> dict[str, list[str]]:
    return {name: [source for source in step.sources if source in steps] for name, step in steps.items()}


def _mistakes_of(name: str, settings: Settings) -> list[Mistake]:
    step = settings.steps[name]
    place = ("steps", name, "after")
    known = [*settings.lanes, *(other for other in settings.steps if other != name)]
    found: list[Mistake] = [(place, _unknown(source, known)) for source in step.sources if source not in known]
    if name in step.sources:
        found = [(place, f"step {name!r} cannot come after itself")]
    found += [
        (("lanes", source, "forget_after"), f"the step {name!r} has to know all of the lane; leave one of the two out")
        for source in step.sources
        if source in settings.lanes and settings.lanes[source].forget_after is not None
    ]
    if name in settings.lanes:
        found.append((("steps", name), f"there is a lane {name!r} already; rename the step"))
    if step.each_lane and not found:
        found += [(("steps", name, "each_lane"), sentence) for sentence in _not_by_lane(step, settings)]
    if step.schemas and settings.output.table is not None:
        found.append((("steps", name, "schemas"), "a table knows its columns; leave schemas out, or output.table"))
    for source in step.schemas.keys() - set(step.sources):
        found.append((("steps", name, "schemas", source), f"{source!r} is not in `after`"))
    return found


def _not_by_lane(step: StepSection, settings: Settings) -> list[str]:
    if len(step.sources) > 1:
        return ["a step for each lane comes after one name; leave each_lane out, or name one"]
    before = settings.steps.get(step.sources[0])
    if before is not None and not before.each_lane:
        return [f"step {step.sources[0]!r} is not by lane, so nothing after it can be; leave each_lane out"]
    return []


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"there is no lane or step {name!r}; did you mean {near[0]!r}?"
    return f"there is no lane or step {name!r}; known are {', '.join(sorted(known))}"


def _cycle(steps: Mapping[str, StepSection]) -> list[Mistake]:
    try:
        TopologicalSorter(_edges(steps)).prepare()
    except CycleError as error:
        # graphlib tells the nodes so that each is needed by the next one.
        names = list(reversed(error.args[1]))
        return [(("steps", names[0], "after"), f"each waits for the next for ever: {' -> '.join(names)}")]
    return []
