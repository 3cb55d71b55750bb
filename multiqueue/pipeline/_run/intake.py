"""The intake of a run: files, messages and what steps read become items of the ledger.

Threads     The runner's.
Order       Steps are looked at while neither a scan nor a queue has anything left: a file that is not known yet cannot
            be waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .._base.items import Item, Lane
from .._base.lifecycle import ItemState
from .._input.queues import Queues
from .._input.scanner import Scanner
from .._state.ledger import Scanned
from .steps import Steps


@dataclass(frozen=True, slots=True)
class Intake:
    """Where items come from: the lanes' files, their broker queues, and the steps."""

    scanner: Scanner
    queues: Queues
    steps: Steps

    @property
    def stands_still(self) -> bool:
        """Whether all that came is recorded; while following, until the next time."""
        return self.scanner.stands_still and self.queues.stands_still

    @property
    def finished(self) -> bool:
        """Whether nothing more comes; never while following."""
        return self.scanner.finished and self.queues.finished

    def patience_s(self) -> float | None:
        """In how many seconds there is something to take in; None when nothing is known to come."""
        waits = [wait for part in (self.scanner, self.queues) if (wait := part.patience_s()) is not None]
        return min(waits, default=None)

    def new_lanes(self) -> list[Lane]:
        """While following, the lanes that were not there before: a new scan begins when it is time."""
        new = self.scanner.begin_if_due()
        for lane in new:
            self.steps.add_lane(lane)
        return new

    def step(self, known_s: float, now_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Take in a slice of files, known since `known_s`, and what else has come; tell `found` of each lane."""

        def found_in_lane(lane: str, scanned: Scanned) -> None:
            found(lane, scanned)
            if scanned.has_news:
                self.steps.touch(lane)

        self.scanner.step(known_s, found_in_lane)
        self.queues.step(now_s, found_in_lane)
        self.steps.incomplete = {one.name for one in self.scanner.lost}
        if self.stands_still:
            self.steps.take_in(now_s, found)

    def settled(self, item: Item, state: ItemState) -> None:
        """The end of an attempt is recorded: the broker hears of the item's messages."""
        self.queues.settled(item, state)

    def sentences(self) -> list[str]:
        """What was passed over, which steps were held back, and which input was not whole."""
        lost = [one.why for one in self.scanner.lost]
        return [*self.scanner.passed_over.sentences(), *self.steps.held_back(), *lost]
