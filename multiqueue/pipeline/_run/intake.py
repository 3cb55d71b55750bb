"""The intake of a run: files, messages and what steps read become items of the ledger.

Threads     The runner's.
Order       Steps are looked at while neither a scan nor a queue has anything left: a file that is not known yet cannot
            be waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .._base.items import Item, Lane
from .._base.lifecycle import ItemState
from .._input.events import Events
from .._input.presence import Lost
from .._input.queues import Queues
from .._input.scanner import Scanner
from .._state.ledger import Scanned
from .steps import Steps


@dataclass(frozen=True, slots=True)
class Intake:
    """Where items come from: the lanes' files, by listings and by events, their broker queues, and the steps."""

    scanner: Scanner
    events: Events
    queues: Queues
    steps: Steps

    @contextlib.contextmanager
    def open(self, connect: Callable[[str], Any] | None = None) -> Iterator[None]:
        """While inside, queues deliver and events come; `connect` is the client's, or a test's.

        Raises:
            Unprepared: a broker, a queue or a directory is not there, or an extra is missing.
        """
        with self.events.open(connect), self.queues.open(connect):
            yield

    @property
    def stands_still(self) -> bool:
        """Whether all that came is recorded; while following, until the next time."""
        return self.scanner.stands_still and self.events.stands_still and self.queues.stands_still

    @property
    def lost(self) -> list[Lost]:
        """The sections and lanes whose input is not whole."""
        return [*self.scanner.lost, *self.events.lost.values()]

    @property
    def finished(self) -> bool:
        """Whether nothing more comes; never while following."""
        return self.scanner.finished and self.events.finished and self.queues.finished

    def patience_s(self) -> float | None:
        """In how many seconds there is something to take in; None when nothing is known to come."""
        parts = (self.scanner, self.events, self.queues)
        waits = [wait for part in parts if (wait := part.patience_s()) is not None]
        return min(waits, default=None)

    def new_lanes(self) -> list[Lane]:
        """The lanes that were not there before: directories that events have named, and while following those that a
        look finds when it is time; a new scan begins then."""
        told = self.events.new_lanes()
        self.scanner.know(told)
        found = self.scanner.begin_if_due()
        for lane in found:
            self.events.add_lane(lane)
        for lane in (*told, *found):
            self.steps.add_lane(lane)
        return [*told, *found]

    def step(self, known_s: float, now_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Take in a slice of files, known since `known_s`, and all messages and events that have come; tell `found` of
        each lane.
        """

        def found_in_lane(lane: str, scanned: Scanned) -> None:
            found(lane, scanned)
            if scanned.has_news:
                self.steps.touch(lane)

        self.events.step(now_s, found_in_lane)
        for lane in self.events.incomplete():
            self.scanner.list_soon(lane)
        self.scanner.step(known_s, found_in_lane)
        self.queues.step(now_s, found_in_lane)
        self.steps.incomplete = {one.name for one in self.lost}
        if self.stands_still:
            self.steps.take_in(now_s, found)

    def settled(self, item: Item, state: ItemState) -> None:
        """The end of an attempt is recorded: the broker hears of the item's messages."""
        self.queues.settled(item, state)

    def sentences(self) -> list[str]:
        """Which files were passed over, which steps held back, and which input was not whole."""
        lost = [one.why for one in self.lost]
        passed_over = (*self.scanner.passed_over.sentences(), *self.events.passed_over.sentences())
        return [*passed_over, *self.steps.held_back(), *lost]
