"""How many surprises a schedule has: as many as a test names in the long runs, one else."""

from __future__ import annotations

_most = 1


def set_surprises(is_short: bool) -> None:
    """Set whether this run is none of the long ones."""
    global _most
    _most = 1 if is_short else 1000


def surprises(count: int) -> int:
    """The number for a scenario that names one: nearly every race needs one, and two cost ten times the schedules."""
    return min(count, _most)
