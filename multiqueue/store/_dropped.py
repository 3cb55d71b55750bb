"""The numbers of the queues that were dropped last, for what was on its way to them."""

from __future__ import annotations

_REMEMBERED = 10_000  # a submission that is overtaken by so many drops was not on its way, but a mistake


class Dropped:
    """A set of queue numbers that forgets the oldest. The writer's own."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __contains__(self, queue: int) -> bool:
        return queue in self._numbers

    def add(self, queue: int) -> None:
        self._numbers[queue] = None
        if len(self._numbers) > _REMEMBERED:
            del self._numbers[next(iter(self._numbers))]
