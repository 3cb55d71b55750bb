"""How far the listing of a lane in a store came, in the ledger: the next run's goes on there.

Promise     All files of the lane up to there are in items, as they were when the listing began or later. Where globs
            have changed since, or what tells events of the lane, it counts for nothing.
State       A row of `meta` for each such lane, while its listing is under way; written with the files.
Threads     The ledger's one.
"""

from __future__ import annotations

import json

from .._base.items import Lane
from .state import LedgerPart, note, noted

_NAME = "listing of "
"""Before a lane, in the names of `meta`."""


class LedgerListings(LedgerPart):
    """Call `note` and `end` inside the ledger's transactions."""

    def of(self, lane: Lane) -> tuple[str, float]:
        """The URL of the last file, and when the listing began; empty where it begins at the start."""
        asked, path, began_s = json.loads(noted(self._connection, _NAME + lane.name) or '[null, "", 0.0]')
        return (path, began_s) if asked == _asked(lane) else ("", 0.0)

    def note(self, lane: Lane, path: str, began_s: float) -> None:
        """The files up to this one are recorded."""
        note(self._connection, _NAME + lane.name, json.dumps([_asked(lane), path, began_s]))

    def end(self, lane: Lane) -> None:
        """The listing came to its end."""
        self._connection.execute("DELETE FROM meta WHERE name = ?", (_NAME + lane.name,))


def _asked(lane: Lane) -> list[object]:
    return [str(lane.root), list(lane.globs), list(lane.exclude), lane.format, lane.events]
