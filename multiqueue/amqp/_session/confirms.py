"""Publisher confirms: which publishes of a channel are done, told in as few frames as they fit into.

Every number from 1 on is confirmed once: acked or nacked, alone or by a `multiple` of a higher one, for which nothing
below it may be open. One thread uses a tracker; what a store's thread reports is posted to it first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._locks import Lock
from .._wire.frames import Ack, Nack


class Confirms:
    """The confirms of the channel `number`."""

    __slots__ = ("_acked", "_nacked", "_open", "number", "published")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.published: int = 0  # the number of the last publish
        # Invariants: rising, because numbers are given in order; no number is in two of the three.
        self._open: dict[int, None] = {}
        self._acked: list[int] = []
        self._nacked: list[int] = []

    def begin(self) -> int:
        self.published = number = self.published + 1
        self._open[number] = None
        return number

    def begin_all(self, count: int) -> None:
        first = self.published + 1
        self.published += count
        self._open.update(dict.fromkeys(range(first, first + count)))

    def end(self, numbers: Sequence[int], *, refused: bool = False) -> None:
        """Publishes are where they should be, or were refused."""
        for number in numbers:
            del self._open[number]
        (self._nacked if refused else self._acked).extend(numbers)

    @property
    def unconfirmed(self) -> int:
        return len(self._open)

    def take(self) -> list[Ack | Nack]:
        """The answers that are due; each is taken once."""
        told: list[Ack | Nack] = [Nack(number, False, False) for number in self._nacked]
        acked = self._acked
        self._acked, self._nacked = [], []
        if acked:
            acked.sort()
            lowest_open = next(iter(self._open), self.published + 1)
            below = [number for number in acked if number < lowest_open]
            if below:
                told.append(Ack(below[-1], len(below) > 1))
            told += [Ack(number, False) for number in acked[len(below) :]]
        return told


class CommitReports:
    """Publishes that a store has committed or refused, on their way to the thread of their session."""

    def __init__(self, post: Callable[[Callable[[], None]], object], flush: Callable[[], None]) -> None:
        self._post = post
        self._flush = flush
        self._lock = Lock()
        self._reports: list[tuple[Any, bool]] = []

    def report(self, reports: list[tuple[Any, bool]]) -> None:
        """Publishes, by channel and number, were committed, or refused. Any thread; must not block."""
        with self._lock:
            is_first = not self._reports
            self._reports += reports
        if is_first:  # else the thread that was first has posted
            self._post(self._take)

    def _take(self) -> None:
        with self._lock:
            reports, self._reports = self._reports, []
        stored: dict[Any, list[int]] = {}
        last: Any = None
        numbers: list[int] = []  # of the last one, which is most often the next one's too
        for (publishing, number), refused in reports:
            if refused:
                publishing.confirmed((number,), refused=True)
                continue
            if publishing is not last:
                last, numbers = publishing, stored.setdefault(publishing, [])
            numbers.append(number)
        for publishing, numbers in stored.items():
            publishing.confirmed(numbers)
        self._flush()
