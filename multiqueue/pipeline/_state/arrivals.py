"""How the files of lanes with events came to be known, in the ledger: by events or by a listing, and when.

State       A row of `meta` for each such lane, written in the transaction that records its files.
Threads     The ledger's one; readers beside it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._base.items import Lane
from .state import LedgerPart, StateConnection, note, noted, noted_of_lanes

_NAME = "arrivals of "
"""Before a lane, in the names of `meta`."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How many of a lane's files came by events, and how many by listings. Moments are seconds since 1970."""

    section: str = ""
    """The lane's, in the configuration."""
    by_event: int = 0
    """Files, and new versions of files, that events brought."""
    by_listing: int = 0
    """Those that a listing found before an event did."""
    listed_at: float | None = None
    """The end of the last listing."""
    event_at: float | None = None
    """When the newest of the recorded events happened, as it says itself."""
    taken_at: float | None = None
    """When the last event was recorded."""

    @property
    def behind_s(self) -> float | None:
        """How old the newest event was when it was recorded."""
        return None if self.event_at is None or self.taken_at is None else max(self.taken_at - self.event_at, 0.0)


def arrivals(connection: StateConnection) -> dict[str, Arrivals]:
    """By lane."""
    return {lane: Arrivals(**json.loads(value)) for lane, value in noted_of_lanes(connection, _NAME).items()}


class LedgerArrivals(LedgerPart):
    """The arrivals that a ledger notes. Call `note` inside the ledger's transactions."""

    def of(self, lane: str) -> Arrivals:
        value = noted(self._connection, _NAME + lane)
        return Arrivals() if value is None else Arrivals(**json.loads(value))

    def note(self, lane: Lane, *, by_event: int = 0, by_listing: int = 0, **moments: float | None) -> None:
        """Add so many files, and set the moments that are given."""
        before = replace(self.of(lane.name), section=lane.section)
        told: dict[str, Any] = {name: at_s for name, at_s in moments.items() if at_s is not None}
        now = replace(before, by_event=before.by_event + by_event, by_listing=before.by_listing + by_listing, **told)
        if now != before:
            note(self._connection, _NAME + lane.name, json.dumps(asdict(now)))
