"""From the lanes' files to the ledger, a slice of one lane at a time.

The runner calls `step` between other work, so that a lane with a million files delays nobody: each step reads
at most `_SLICE` files, and lanes take turns. What a scan finds waits on disk, not here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from . import _scan
from ._items import FileSeen, Lane
from ._ledger import Ledger, Scanned

# 256 files are looked up and recorded in a few milliseconds: short enough for jobs that end in between.
_SLICE = 256


@dataclass(slots=True)
class _LaneScan:
    lane: Lane
    files: Iterator[FileSeen]
    rest: list[FileSeen] = field(default_factory=list)


class Intake:
    """The scans of all lanes. Use it from the ledger's thread."""

    def __init__(self, lanes: Sequence[Lane], base: Path, avoid: Collection[Path], ledger: Ledger) -> None:
        self.passed_over = _scan.PassedOver()
        self._ledger = ledger
        self._scans = deque(_LaneScan(lane, _scan.scan(lane, base, self.passed_over, avoid)) for lane in lanes)
        self._unseen = len(self._scans)

    @property
    def has_seen_every_lane(self) -> bool:
        """Whether each lane had its first turn: before that, feeding would favour the first ones."""
        return self._unseen == 0

    @property
    def finished(self) -> bool:
        """Whether every lane was read to its end."""
        return not self._scans

    def step(self, known_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Record one slice of the lane whose turn it is and tell `found` what it came to."""
        if not self._scans:
            return
        scan = self._scans.popleft()
        self._unseen = max(self._unseen - 1, 0)
        files = list(islice(scan.files, _SLICE))
        with self._ledger.transaction():
            scanned = self._ledger.record_scan(scan.lane.name, scan.rest + files, scan.lane.batch, known_s)
            if len(files) < _SLICE and scanned.rest:
                self._ledger.record_rest(scan.lane.name, scanned.rest, known_s)
                scanned = Scanned(scanned.added + 1, scanned.reopened, scanned.unchanged, [])
        scan.rest = scanned.rest
        if len(files) == _SLICE:
            self._scans.append(scan)
        found(scan.lane.name, scanned)
