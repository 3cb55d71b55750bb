"""From the lanes' files to the ledger, a slice of one lane at a time.

The runner calls `step` between other work, so that a lane with a million files delays no other: each step reads
at most `_SLICE` files, and lanes take turns. What a scan finds waits on disk, not here.

Following   The lanes are scanned again and again, `poll_s` after the last scan has ended. A file is taken when it
            was not written to for `settle_s`, told by its time of modification: nothing is remembered per file. A batch
            that is not full at the end of a scan is found again by the next one, until the lane's `batch_s` is over.
Events      A lane whose files events tell is listed when its `listing_s` are over, also between runs.
Resumed     Of a lane in a store the ledger keeps how far its listing came. The next run's goes on there. Where neither
            events nor the next look find what came before meanwhile, it lists from the start to there as well.
Lost        At the end of a lane's scan it is known whether its input is whole: `lost` has those of the last scans.
Memory      A slice per lane while it is scanned; while following, a moment per lane besides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from pathlib import Path

from .._base.items import INOTIFY, FileSeen, Lane
from .._base.place import Place
from .._base.storage import Storage
from .._config import scan as _scan
from .._state.ledger import REFUSED, Ledger, Scanned
from .presence import Lost, lost_lane

# 256 files are looked up and recorded in a few milliseconds: short enough for jobs that end in between.
_SLICE = 256


@dataclass(frozen=True, slots=True)
class Follow:
    """How new files are watched for."""

    poll_s: float
    settle_s: float
    lanes: Callable[[], Sequence[Lane]]
    """The lanes as they are now: directories come."""
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """The clock that files are stamped with."""

    def has_settled(self, seen: FileSeen) -> bool:
        """Whether the file has stopped growing; one from the future has another clock, and is taken."""
        age_s = self.wall() - seen.mtime_ns / 1e9
        return age_s >= self.settle_s or age_s < -self.settle_s


@dataclass(slots=True)
class _LaneScan:
    lane: Lane
    files: Iterator[FileSeen]
    met: _scan.PassedOver
    began_s: float
    """Files that were written before are met."""
    is_in_order: bool
    """The listing can go on behind any file."""
    listed_at: float | None
    """When a listing that goes on here began: before, other files may have come."""
    rest: list[FileSeen] = field(default_factory=list)


class Scanner:
    """The scans of all lanes. Use it from the ledger's thread."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        base: Path,
        avoid: Collection[Path | Place],
        ledger: Ledger,
        follow: Follow | None = None,
        lost: Sequence[Lost] = (),
        storage: Storage | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        # What came while no run watched, nothing has told.
        self._to_list_soon = {lane.name for lane in lanes if lane.events == INOTIFY}
        self._storage = storage or Storage()
        self._lost_sections = tuple(lost)
        self._lost_lanes: dict[str, Lost] = {}
        self.passed_over = _scan.PassedOver()
        self._base = base
        self._avoid = avoid
        self._ledger = ledger
        self._follow = follow
        self._told: list[Lane] = []
        self._known = {lane.name for lane in lanes}
        self._scans = deque(map(self._scan_of, self._to_list(lanes)))
        self._unseen = len(self._scans)
        self.looked_at = 0
        self._next_s = 0.0
        # Since when the lane has files that do not fill a batch; only while following.
        self._short_since_s: dict[str, float] = {}

    @property
    def has_seen_every_lane(self) -> bool:
        """Whether each lane had its first turn: before that, feeding would favour the first ones."""
        return self._unseen == 0

    @property
    def stands_still(self) -> bool:
        """Whether every lane was read to its end; while following, until the next time."""
        return not self._scans

    @property
    def finished(self) -> bool:
        """Whether every lane with files was read to its end for good."""
        return self.stands_still and self._follow is None

    @property
    def unread(self) -> list[str]:
        """The lanes that are not read to their end yet."""
        return sorted(scan.lane.name for scan in self._scans)

    @property
    def lost(self) -> list[Lost]:
        """The sections and lanes whose input is not whole: sections as they were at first, lanes as last scanned."""
        return [*self._lost_sections, *self._lost_lanes.values()]

    def is_gone(self, lane: str) -> bool:
        """Whether the lane has no files any more: its items that wait would only fail."""
        lost = self._lost_lanes.get(lane)
        return lost is not None and lost.is_gone

    @property
    def is_following(self) -> bool:
        return self._follow is not None

    def patience_s(self) -> float | None:
        """In how many seconds there is something to read; None for never."""
        if self._scans:
            return 0.0
        return None if self._follow is None else max(self._next_s - self._follow.monotonic(), 0.0)

    def begin_if_due(self) -> list[Lane]:
        """While following, start to read all lanes once more when it is time; the lanes that are new."""
        if self._follow is None or self._scans or self._follow.monotonic() < self._next_s:
            return []
        self._next_s = self._follow.monotonic() + self._follow.poll_s  # should there be nothing to scan
        lanes = self._follow.lanes()
        there = {lane.name for lane in lanes}
        lanes = [*lanes, *(lane for lane in self._told if lane.name not in there)]
        new = [lane for lane in lanes if lane.name not in self._known]
        self._known.update(lane.name for lane in new)
        self.passed_over = _scan.PassedOver()
        self._scans.extend(map(self._scan_of, self._to_list(lanes)))
        return new

    def know(self, lanes: Sequence[Lane]) -> None:
        """These lanes are there already: no look finds them first."""
        self._known.update(lane.name for lane in lanes)
        self._told += lanes

    def step(self, known_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Record one slice of the lane whose turn it is and call `found` with the outcome."""
        if not self._scans:
            return
        scan = self._scans.popleft()
        self._unseen = max(self._unseen - 1, 0)
        files = list(islice(scan.files, _SLICE))
        self.looked_at += len(files)
        lane = scan.lane
        # A directory or a store that changes meanwhile may tell of a file twice.
        seen = list({one.path: one for one in chain(scan.rest, files)}.values())
        with self._ledger.transaction():
            scanned = self._ledger.record_scan(lane.name, seen, lane.batch, known_s, lane.batch_bytes)
            if len(files) < _SLICE and self._is_to_go(lane, scanned.rest):
                self._ledger.record_rest(lane.name, scanned.rest, known_s)
                scanned = scanned.with_rest()
            self._ledger.forget(lane)
            if lane.events is not None:
                self._ledger.arrivals.note(lane, by_listing=scanned.files)
            recorded = seen[: seen.index(scanned.rest[0])] if scanned.rest else seen
            if len(files) < _SLICE:
                self._ledger.listings.end(lane)
            elif (
                scan.is_in_order and recorded and scan.met.unread is None
            ):  # what could not be read, the next run lists again
                self._ledger.listings.note(lane, recorded[-1].path, scan.began_s)
        for one in scanned.refused:
            scan.met.add(REFUSED, one.path)
        scan.rest = scanned.rest
        if len(files) == _SLICE:
            self._scans.append(scan)
        elif not self._scans and self._follow is not None:
            self._next_s = self._follow.monotonic() + self._follow.poll_s
        if len(files) < _SLICE:
            self._judge(scan)
        found(lane.name, scanned)

    def _judge(self, scan: _LaneScan) -> None:
        """The lane was read to its end: note whether that was all of it."""
        self.passed_over.include(scan.met)
        if scan.lane.events is not None and scan.met.unread is None:
            with self._ledger.transaction():
                self._ledger.arrivals.note(scan.lane, listed_at=scan.listed_at or self._wall())
        if scan.met.unread is None and scan.met.missing is None and not scan.rest:
            with self._ledger.transaction():
                self._ledger.forgetting.note_listing(scan.lane, scan.began_s)
        lost = lost_lane(scan.lane, scan.met, self._ledger, following=self._follow is not None)
        if lost is None:
            self._lost_lanes.pop(scan.lane.name, None)
        else:
            self._lost_lanes[scan.lane.name] = lost

    def _is_to_go(self, lane: Lane, rest: Sequence[FileSeen]) -> bool:
        """Whether these last files of a lane are an item as they are, or wait for others."""
        if self._follow is None or not rest:
            self._short_since_s.pop(lane.name, None)
            return bool(rest)
        now_s = self._follow.monotonic()
        if now_s - self._short_since_s.setdefault(lane.name, now_s) < lane.batch_s:
            return False
        del self._short_since_s[lane.name]
        return True

    def _to_list(self, lanes: Sequence[Lane]) -> list[Lane]:
        """The lanes that are listed now: of those that events tell, the ones whose last listing is long ago."""
        return [lane for lane in lanes if lane.source is None and self._is_due(lane)]

    def _is_due(self, lane: Lane) -> bool:
        if lane.events is None or lane.name in self._to_list_soon:
            self._to_list_soon.discard(lane.name)
            return True
        listed_at = self._ledger.arrivals.of(lane.name).listed_at
        return listed_at is None or not 0 <= self._wall() - listed_at < lane.listing_s

    def list_soon(self, lane: str) -> None:
        """List the lane with the next look, however long ago the last one is: events of it were lost."""
        self._to_list_soon.add(lane)

    def _scan_of(self, lane: Lane) -> _LaneScan:
        met = _scan.PassedOver()
        began_s = self._wall() - (0.0 if self._follow is None else self._follow.settle_s)
        is_in_order, listed_at = _scan.is_in_order(lane), None
        after, resumed_s = self._ledger.listings.of(lane) if is_in_order else ("", 0.0)
        files = _scan.scan(lane, self._base, met, self._avoid, self._storage, after)
        if after and self._follow is None and lane.events is None:
            others = _scan.scan(lane, self._base, met, self._avoid, self._storage)
            files = chain(files, takewhile(lambda seen: seen.path <= after, others))
        elif after:
            met.matched, began_s, listed_at = 1, resumed_s, resumed_s
        if self._follow is not None:
            files = filter(self._follow.has_settled, files)
        return _LaneScan(lane, files, met, began_s, is_in_order, listed_at)
