"""How fast files of a lane may begin: so many, or so many bytes, a second.

Promise     From any moment on, what has begun is at most the rate times the seconds since, and one item: the next item
            begins when what began before has used up its share of the time. Attempts count as often as they begin.
State       `free_s`, when the next item may begin; it is not in the ledger, so each run may begin at once.
Threads     The runner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .items import Item, Lane


@dataclass(slots=True)
class Rate:
    """The rate of one lane, in seconds of the clock it is asked by."""

    lane: Lane
    free_s: float = 0.0

    def allowed(self, items: Sequence[Item], now_s: float) -> list[Item]:
        """The first of these items, which may begin now, and count."""
        chosen: list[Item] = []
        for item in items:
            if self.free_s > now_s:
                break
            self.free_s = max(self.free_s, now_s) + share_s(self.lane, len(item.files), item.size_bytes)
            chosen.append(item)
        return chosen


def share_s(lane: Lane, files: int, size_bytes: int) -> float:
    """How many seconds so many files of so many bytes use up."""
    by_files = files / lane.max_files_per_s if lane.max_files_per_s else 0.0
    by_bytes = size_bytes / lane.max_bytes_per_s if lane.max_bytes_per_s else 0.0
    return max(by_files, by_bytes)


def rate_told(lane: Lane) -> str | None:
    """The rate for people, or None."""
    files = f"{lane.max_files_per_s:g} files" if lane.max_files_per_s else ""
    size = f"{lane.max_bytes_per_s:,g} bytes" if lane.max_bytes_per_s else ""
    return f"at most {' and '.join(filter(None, (files, size)))} a second" if files or size else None
