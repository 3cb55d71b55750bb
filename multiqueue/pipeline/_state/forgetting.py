"""What a ledger forgets: items that were done long ago, with their files, so that a state does not grow for ever.

Promise     An item is forgotten as a whole, in one transaction, `forget_after` after it was done, if none of its files
            is younger than that. From then on files of its lane that are unknown, and no younger than the youngest
            that was forgotten, are refused, for one of them may have been done; a clock that was wrong for a while
            refuses no more than that. With `forgets_for_good` they are new ones. No file is refused that was there when
            the lane was last listed to its end: what is younger than `_CLOCKS_S` before the begin of that listing is
            neither forgotten nor refused. The numbers of what is forgotten are kept. The newest item of a state stays.
State       A row of `meta` for each such lane.
Threads     The ledger's one; readers beside it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from .._base.items import Lane
from .._base.lifecycle import ItemState
from .state import LaneCount, LedgerPart, StateConnection, lane_counts, note, noted, noted_of_lanes

_NAME = "forgotten of "
"""Before a lane, in the names of `meta`."""

# A clock that stamps files may be so far behind: S3 refuses requests whose clocks differ by more.
_CLOCKS_S = 900.0

# Of a transaction: a few milliseconds.
_MOST_FILES = 5_000
_MOST_ITEMS = 256


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Which items of a lane are forgotten."""

    below_ns: int = 0
    """Files that were written before are refused, if they are unknown."""
    whole_s: float = 0.0
    """All files that were written before were met by a listing."""
    items: int = 0
    files: int = 0
    size_bytes: int = 0


def forgotten(connection: StateConnection) -> dict[str, Forgotten]:
    """By lane."""
    return {lane: Forgotten(**json.loads(value)) for lane, value in noted_of_lanes(connection, _NAME).items()}


def all_counts(connection: StateConnection) -> list[LaneCount]:
    """A row per lane and state that has items, or had some that are forgotten: those were done."""
    counts = {(one.lane, one.state): one for one in lane_counts(connection)}
    for lane, gone in forgotten(connection).items():
        one = counts.get((lane, ItemState.DONE), LaneCount(lane, ItemState.DONE, 0, 0, 0))
        counts[lane, ItemState.DONE] = LaneCount(
            lane,
            ItemState.DONE,
            one.items + gone.items,
            one.files + gone.files,
            one.size_bytes + gone.size_bytes,
        )
    return [counts[key] for key in sorted(counts)]


class LedgerForgetting(LedgerPart):
    """Call `forget` inside the ledger's transactions."""

    def of(self, lane: str) -> Forgotten:
        value = noted(self._connection, _NAME + lane)
        return Forgotten() if value is None else Forgotten(**json.loads(value))

    def forget(self, lane: Lane, wall_s: float) -> None:
        """Forget some of the lane's items that were done long enough before this moment, if there are any."""
        if lane.forget_after_s is None:
            return
        now = before = self.of(lane.name)
        until_s = max(min(wall_s - lane.forget_after_s, before.whole_s), 0.0)
        below_ns = int(until_s * 1e9)
        rows = self._connection.execute(
            "SELECT seq, files, bytes, (SELECT max(mtime_ns) FROM files WHERE item = seq) FROM items "
            "WHERE state = 'done' AND lane = ? AND ended_at <= ? "
            "AND seq < (SELECT max(seq) FROM items) "
            "AND NOT EXISTS (SELECT 1 FROM files WHERE item = seq AND mtime_ns >= ?) ORDER BY ended_at, seq LIMIT ?",
            (lane.name, until_s, below_ns, _MOST_ITEMS),
        ).fetchall()
        for seq, files, size_bytes, youngest_ns in rows:
            if now.files - before.files >= _MOST_FILES:
                break
            self._connection.execute("DELETE FROM files WHERE item = ?", (seq,))
            self._connection.execute("DELETE FROM items WHERE seq = ?", (seq,))
            now = replace(
                now, items=now.items + 1, files=now.files + files, size_bytes=now.size_bytes + int(size_bytes)
            )
            if youngest_ns is not None and not lane.forgets_for_good:
                now = replace(now, below_ns=max(now.below_ns, youngest_ns + 1))
        if now != before:
            self._keep(lane.name, now)

    def note_listing(self, lane: Lane, began_s: float) -> None:
        """A listing that met all files from before then has come to the lane's end, and they are in items."""
        if lane.forget_after_s is not None:
            self._keep(lane.name, replace(self.of(lane.name), whole_s=began_s - _CLOCKS_S))

    def _keep(self, lane: str, now: Forgotten) -> None:
        note(self._connection, _NAME + lane, json.dumps(asdict(now)))
