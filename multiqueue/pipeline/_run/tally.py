"""How far a run is: counters per lane, the rate of the last seconds, the time left."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .._base.lifecycle import ItemState
from .._state.ledger import Scanned
from .._state.state import LaneCount

# The rate is that of the last half minute: long enough to be steady, short enough to notice a change.
_WINDOW_S = 30.0


@dataclass(slots=True)
class LaneProgress:
    """Items of one lane: `waiting` are all that are known and have not begun, in the lane or on disk."""

    lane: str
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    committing: int = 0
    """Their jobs are over, and the commit that has their rows is not made yet."""

    @property
    def total(self) -> int:
        """Items of the lane, in any state."""
        return self.waiting + self.running + self.committing + self.done + self.failed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of a run. `left_s` is None while files are still being found or nothing has ended yet."""

    lanes: list[LaneProgress]
    total: LaneProgress
    elapsed_s: float
    items_per_s: float
    left_s: float | None
    scanning: bool
    stopping: bool


@dataclass(slots=True)
class Tally:
    """The counters of a run. Use it from the runner's thread."""

    lanes: dict[str, LaneProgress]
    scanning: bool = True
    stopping: bool = False
    _ended: deque[tuple[float, int]] = field(default_factory=deque)

    @classmethod
    def of(cls, lanes: Iterable[str], counts: Iterable[LaneCount]) -> Tally:
        """The counters as the ledger has them; lanes that the configuration no longer has are left out."""
        tally = cls({name: LaneProgress(name) for name in lanes})
        for count in counts:
            lane = tally.lanes.get(count.lane)
            if lane is None:
                continue
            if count.state is ItemState.DONE:
                lane.done = count.items
            elif count.state is ItemState.FAILED:
                lane.failed = count.items
            else:
                lane.waiting += count.items
        return tally

    def add_lane(self, lane: str) -> None:
        """Count one more lane."""
        self.lanes.setdefault(lane, LaneProgress(lane))

    def found(self, lane: str, scanned: Scanned) -> None:
        progress = self.lanes[lane]
        progress.waiting += scanned.added + scanned.reopened.total()
        progress.done -= scanned.reopened[ItemState.DONE]
        progress.failed -= scanned.reopened[ItemState.FAILED]

    def regrouped(self, lane: str, more: int) -> None:
        """So many more items wait, of the same files."""
        self.lanes[lane].waiting += more

    def started(self, lane: str) -> None:
        self.lanes[lane].waiting -= 1
        self.lanes[lane].running += 1

    def committing(self, lane: str) -> None:
        """A job is over, and its rows wait for a commit."""
        self.lanes[lane].running -= 1
        self.lanes[lane].committing += 1

    def ended(
        self,
        lane: str,
        state: ItemState,
        at_s: float,
        *,
        was_running: bool,
        was_committing: bool = False,
        split_into: int = 0,
    ) -> None:
        """An attempt ended and left the item, or the items that it was split into, in this state."""
        progress = self.lanes[lane]
        if was_committing:
            progress.committing -= 1
        elif was_running:
            progress.running -= 1
        else:
            progress.waiting -= 1
        if state is ItemState.DONE:
            progress.done += 1
        elif state is ItemState.FAILED:
            progress.failed += 1
        else:
            progress.waiting += max(split_into, 1)
            return
        self._note_end(at_s)

    def snapshot(self, worked_s: float, elapsed_s: float) -> Snapshot:
        total = LaneProgress("all lanes")
        for lane in self.lanes.values():
            total.waiting += lane.waiting
            total.running += lane.running
            total.committing += lane.committing
            total.done += lane.done
            total.failed += lane.failed
        rate = self._rate(worked_s)
        left = total.waiting + total.running + total.committing
        left_s = left / rate if rate and not self.scanning else None
        lanes = [dataclasses.replace(lane) for lane in self.lanes.values() if lane.total]
        return Snapshot(lanes, total, elapsed_s, rate, left_s, self.scanning, self.stopping)

    def _note_end(self, at_s: float) -> None:
        # One entry per second at most: the window stays small however fast items end.
        if self._ended and at_s - self._ended[-1][0] < 1.0:
            second, count = self._ended.pop()
            self._ended.append((second, count + 1))
        else:
            self._ended.append((at_s, 1))

    def _rate(self, now_s: float) -> float:
        while self._ended and self._ended[0][0] < now_s - _WINDOW_S:
            self._ended.popleft()
        if not self._ended:
            return 0.0
        return sum(count for _, count in self._ended) / max(now_s - self._ended[0][0], 1.0)
