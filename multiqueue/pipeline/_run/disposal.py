"""Files that are done, treated by a lane's `after`: moved or deleted, once their rows are there to stay.

Promise     D1  A file is taken away only after its item was recorded as done, which is after the rename or the commit
                of its rows, after `after_delay`, and after this machine's disks have the rows. Files of items
                that are set aside stay.
            D2  A file that is not the one that was read stays, and is input again. One that comes under the name of a
            file that was taken away is another file. D3  After kill -9 at any moment the next run goes on: a file is
            moved once, and nothing that lies at its
                place there is replaced.
How         The ledger notes in `leaving` which files go, and forgets them as input; a thread takes them away; the
            ledger forgets them. A file that lies in the new place with the same bytes was moved before a crash; any
            other stays there, and the one that comes gets another name (`Storage.move`). A directory whose
            files have all gone makes no lane in a store; the note of one is forgotten all the same.
State       The runner's: `_is_busy`; `_nothing_until_s`, before which nothing is due; `_again_s`, when the files in
            `leaving` are looked at once more; the work done, for the end. The thread has one batch.
Threads     The runner's, and one of its own between `open` and its end.
Waiting     The thread waits for a batch, or the end. A run does not end before the batch that is under way.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from ..._words import counted
from .._base.items import KEEP, MOVE, FileSeen, Lane, place_seen
from .._base.place import Place
from .._base.storage import Status, Storage
from .._state.leaving import Leaving
from .._state.ledger import Ledger
from .mailbox import Left, Message

# Files of a batch: one is noted in one transaction, and so many may be between two places after a crash.
_MOST = 256

# A store that does not answer is asked again after so long, or by the next run.
_PAUSE_S = 60.0

_PAST = {MOVE: "moved", "delete": "deleted"}
_CANNOT = "cannot"


@dataclass(slots=True)
class Disposal:
    """Takes away the files of lanes that say so. Use it from the ledger's thread, but for `work`."""

    lanes: dict[str, Lane]
    """Those that say so."""
    ledger: Ledger
    base: Path
    storage: Storage
    post: Callable[[Message], None]
    wall: Callable[[], float] = time.time
    sync: Callable[[], None] = os.sync
    monotonic: Callable[[], float] = time.monotonic
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many files of a lane, by what became of them."""
    _batches: SimpleQueue[Sequence[Leaving] | None] = field(default_factory=SimpleQueue)
    _is_busy: bool = False
    _nothing_until_s: float = 0.0
    _again_s: float = 0.0
    """When those that could not be taken away are tried again, by the monotonic clock; never, while there are none."""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """While inside, files are taken away."""
        thread = threading.Thread(target=self._work_on, name="multiqueue-pipeline-disposal", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._batches.put(None)
            thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether a batch is under way."""
        return self._is_busy

    @property
    def finished(self) -> bool:
        """Whether nothing is under way, and nothing is due."""
        return not self.lanes or (not self._is_busy and self._left_s() > 0)

    def patience_s(self) -> float | None:
        """In how many seconds something is due; None for never, or while a batch is under way."""
        left_s = self._left_s()
        return None if not self.lanes or self._is_busy or left_s == math.inf else max(left_s, 0.0)

    def _left_s(self) -> float:
        return min(self._nothing_until_s - self.wall(), self._again_s - self.monotonic())

    def add(self, lane: Lane) -> None:
        """Know one more lane."""
        if lane.after != KEEP:
            self.lanes[lane.name] = lane

    def touch(self, lane: str) -> None:
        """An item of the lane is done."""
        if lane in self.lanes:
            self._nothing_until_s = min(self._nothing_until_s, self.wall() + self.lanes[lane].after_delay_s)

    def step(self) -> None:
        """Begin the next batch, if one is due and none is under way."""
        if self.finished or self._is_busy:
            return
        batch = self._left_over() or self._next_batch()
        if batch:
            self._is_busy = True
            self._batches.put(batch)
        else:
            firsts = {name: self.ledger.leaving.first_done(name) for name in self.lanes}
            due = [at + self.lanes[name].after_delay_s for name, at in firsts.items() if at is not None]
            self._nothing_until_s = min(due, default=math.inf)

    def record(self, left: Left) -> None:
        """Forget the files that were taken away. Call it inside a transaction."""
        self._is_busy = False
        self.ledger.leaving.forget([one for one, what in left.outcomes if not what.startswith(_CANNOT)])
        for one, what in left.outcomes:
            self.told[one.lane, what] += 1
        if any(what.startswith(_CANNOT) for _, what in left.outcomes):
            self._again_s = self.monotonic() + _PAUSE_S
        counts = Counter(one.lane for one, what in left.outcomes if what in _PAST.values())
        for lane, count in counts.items():
            self.ledger.leaving.count(lane, count)

    def sentences(self) -> list[str]:
        """The outcome for files in this run, a sentence for each lane and outcome."""
        return [
            f"lane {lane!r}: {counted(count, 'file')} {self._said(lane, what)}"
            for (lane, what), count in sorted(self.told.items())
        ]

    def _said(self, lane: str, what: str) -> str:
        if what == _PAST[MOVE]:
            return f"moved to {str(self.lanes[lane].after_place)!r}"
        return what

    def _left_over(self) -> list[Leaving]:
        """The files that an earlier run has noted and not taken away, or this one could not."""
        if self.monotonic() < self._again_s:
            return []
        found = self.ledger.leaving.noted(list(self.lanes), _MOST)
        if not found:
            self._again_s = math.inf
        return found

    def _next_batch(self) -> list[Leaving]:
        """Note the next files that go: all of an item, unless one of them is not the one that was read."""
        for lane in self.lanes.values():
            found = self.ledger.leaving.done_before(lane.name, self.wall() - lane.after_delay_s, _MOST)
            if not found:
                continue
            are_same = [self._are_same(files) for files in found]
            with self.ledger.transaction():
                for files, is_same in zip(found, are_same, strict=True):
                    self.ledger.leaving.begin(files) if is_same else self.ledger.leaving.stay(files[0].item)
            return [one for files, is_same in zip(found, are_same, strict=True) if is_same for one in files]
        return []

    def _are_same(self, files: Sequence[Leaving]) -> bool:
        statuses = self.storage.statuses([place_seen(one.seen.path, self.base) for one in files])
        return all(
            not isinstance(status, Status) or _version(status) == _version(one.seen)
            for one, status in zip(files, statuses, strict=True)
        )

    # The thread

    def work(self) -> bool:
        """Take the next batch away if there is one; whether there was. The thread does the same, or tests do."""
        if self._batches.empty():
            return False
        batch = self._batches.get()
        assert batch is not None
        self._take_away(batch)
        return True

    def _work_on(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._take_away(batch)

    def _take_away(self, batch: Sequence[Leaving]) -> None:
        self.sync()
        places = [place_seen(one.seen.path, self.base) for one in batch]
        outcomes = self.storage.each(self._outcome, batch, is_local=all(place.is_local for place in places))
        self.post(Left([(one, str(what)) for one, what in zip(batch, outcomes, strict=True)]))

    def _outcome(self, one: Leaving) -> str:
        lane, place = self.lanes[one.lane], place_seen(one.seen.path, self.base)
        try:
            if _version(self.storage.status(place)) != _version(one.seen):
                return "left in place: changed since it was read"
            if lane.after == MOVE:
                assert lane.after_place is not None
                self.storage.move(place, _below(lane.after_place, one.seen.path))
            else:
                self.storage.remove(place)
        except FileNotFoundError:
            return "gone already"
        except OSError as error:
            return f"{_CANNOT} be {_PAST[lane.after]}: {error.strerror or error}"
        return _PAST[lane.after]


def planned_end(lane: Lane) -> str:
    """A plan's sentence on the lane's files that are done."""
    if lane.after == KEEP:
        return KEEP
    where = f" to {str(lane.after_place)!r}" if lane.after == MOVE else ""
    when = f", {lane.after_delay_s:g} s after they are done" if lane.after_delay_s else " once they are done"
    return f"files are {_PAST[lane.after]}{where}{when}"


def _version(seen: FileSeen | Status) -> tuple[int, int]:
    return seen.size_bytes, seen.mtime_ns


def _below(directory: Place, path: str) -> Place:
    """Where a file goes: its path as people see it, below the directory; of an object with its bucket."""
    return directory / path.partition("://")[2] if "://" in path else directory / path.lstrip("/")
