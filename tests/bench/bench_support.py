"""Small suites whose figures and faults are known beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from bench_parts_support import Contender, Ends, Figures, Metric, Rival, Suite, Workload

WIDGETS = Metric("rate", "widgets/s")


class Scripted:
    """An attempt with figures from a script, that notes what the harness does with it."""

    def __init__(self, name: str, value: float, log: list[str], fault: BaseException | None = None) -> None:
        self._name, self._value, self._log, self._fault = name, value, log, fault

    def run(self) -> Figures:
        self._log.append(f"run {self._name}")
        return {WIDGETS.name: self._value}

    def check(self) -> None:
        self._log.append(f"check {self._name}")
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        self._log.append(f"close {self._name}")


def scripted_rival(
    name: str,
    values: Sequence[float],
    log: list[str] | None = None,
    fault: BaseException | None = None,
    **settings: Any,
) -> Rival:
    """A rival that measures these values, one a round, and whose check raises `fault`."""
    script: Iterator[float] = iter(values)
    notes = [] if log is None else log
    return Rival(name, lambda n: Scripted(name, next(script), notes, fault), **settings)


def workload_of(*rivals: Rival, **settings: Any) -> Workload:
    """A workload of 100 widgets; the first rival is the baseline."""
    return Workload("widgets", "turn widgets", 100, rivals, rivals[0].name, metrics=(WIDGETS,), **settings)


def suite_of(*rivals: Rival, **settings: Any) -> Suite:
    """A suite of that one workload."""
    return Suite("test", (workload_of(*rivals, **settings),), ("Anything at all.",))


def lossy(fault: str) -> Contender:
    """A queue for one thread that loses, doubles or swaps the items 3 and 4."""

    def make(producers: int, capacity: int) -> Ends:
        items: deque[Any] = deque()

        def put(item: Any) -> None:
            if item == 3:
                items.append({"lose": 0, "double": 4, "swap": 4}[fault])
            elif item == 4:
                items.append(3 if fault == "swap" else 4)
            else:
                items.append(item)

        return Ends([put] * producers, items.popleft)

    return Contender(f"one that could {fault}", make)
