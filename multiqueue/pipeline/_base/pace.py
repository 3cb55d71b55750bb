"""How large the items of `batch = "auto"` are: a job takes about `target_seconds`, by its earlier jobs.

Promise     A lane's next item has as many files and bytes as its jobs have shown to take `target_seconds`; before any
            has ended, as jobs of all lanes have shown; before those, as a small machine would need. It has one file at
            least and `MOST_FILES` at most, and of a lane with a rate no more than that allows in `target_seconds`.
How         A guess of what a job takes (a job, its files, its bytes), times the lane's *slowness*: how much longer its
            jobs took than guessed, the last one counting as much as all before it. One number suffices, for the files
            of a lane are alike.
State       The slowness of each lane, and of all. An earlier run's is in the ledger: `of`.
Threads     The runner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .items import Lane
from .rate import share_s

# Seconds on two cores, orders of magnitude: an empty job, then a file, then bytes.
_JOB_S = 0.3
_FILE_S = 0.01
_BYTES_PER_S = 30e6

MOST_FILES = 5_000
"""Of one item: its files are held in memory while it waits and runs."""

CHUNK_FILES = 64
CHUNK_BYTES = 64 << 20
"""A scan makes items of so many files and bytes; what was never submitted is joined or divided when it is."""

QUEUED = 2
"""Items of such a lane that wait in memory, where the size can no longer change."""

Fits = Callable[[int, int], bool]
"""Whether so many files of so many bytes are an item."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The sums of what jobs have taken."""

    lane: str
    items: int
    files: int
    size_bytes: int
    seconds: float


def _guess_s(items: int, files: int, size_bytes: int) -> float:
    return items * _JOB_S + files * _FILE_S + size_bytes / _BYTES_PER_S


@dataclass(slots=True)
class Pace:
    """The sizes of a run's items. Use it from the runner's thread."""

    _slowness: dict[str, float] = field(default_factory=dict)
    _of_all: float = 1.0

    @classmethod
    def of(cls, measured: Iterable[Measured]) -> Pace:
        """As an earlier run has left it."""
        pace = cls()
        for one in measured:
            pace.note(one)
        return pace

    def note(self, measured: Measured) -> None:
        """A job has ended well."""
        found = measured.seconds / _guess_s(measured.items, measured.files, measured.size_bytes)
        self._slowness[measured.lane] = (self._slowness.get(measured.lane, found) + found) / 2
        self._of_all = (self._of_all + found) / 2

    def fits(self, lane: Lane) -> Fits:
        """Whether so many files of so many bytes are not too many for an item of the lane."""
        target_s = lane.target_s or 0.0
        allowed_s = target_s / max(self._slowness.get(lane.name, self._of_all), 1e-3)
        most_bytes = lane.most_bytes

        def fit(files: int, size_bytes: int) -> bool:
            within = most_bytes is None or size_bytes <= most_bytes
            in_time = max(_guess_s(1, files, size_bytes) - allowed_s, share_s(lane, files, size_bytes) - target_s) <= 0
            return files <= MOST_FILES and within and in_time

        return fit

    def files(self, lane: Lane, mean_bytes: float) -> int:
        """How many files of this size are an item of the lane, for people."""
        fits = self.fits(lane)
        low, high = 1, MOST_FILES
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle, int(middle * mean_bytes)) else (low, middle - 1)
        return low
