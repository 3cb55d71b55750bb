"""The reports of a run: the protocol, and a reporter that says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .._base.items import Item
from .._base.lifecycle import ItemState
from .tally import Snapshot


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt and the state in which it left the item."""

    item: Item
    state: ItemState
    took_s: float
    error: str | None = None
    """None for a success and for an attempt that was cancelled."""
    retry_in_s: float | None = None
    split_into: int = 0
    """How many smaller items wait in its place."""
    corrupt: int = 0
    """Records of a done item that were set aside."""


class Reporter(Protocol):
    """Told by the runner's thread, outside of any transaction. `update` comes often: show less."""

    def note(self, text: str) -> None:
        """A sentence that is not about one item."""

    def begin(self, snapshot: Snapshot) -> None: ...
    def update(self, snapshot: Snapshot) -> None: ...
    def attempt_ended(self, ended: AttemptEnded) -> None: ...

    def stopping(self, requests: int, in_flight: int) -> None:
        """Ctrl-C came for the first, second ... time; so many items run and end first, the others stay waiting."""

    def end(self, snapshot: Snapshot) -> None:
        """No more calls follow for this run."""


class Silent:
    """A reporter that says nothing."""

    def note(self, text: str) -> None:
        pass

    def begin(self, snapshot: Snapshot) -> None:
        pass

    def update(self, snapshot: Snapshot) -> None:
        pass

    def attempt_ended(self, ended: AttemptEnded) -> None:
        pass

    def stopping(self, requests: int, in_flight: int) -> None:
        pass

    def end(self, snapshot: Snapshot) -> None:
        pass
