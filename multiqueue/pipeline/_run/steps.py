"""When a step may run: what it needs has nothing left to do, and is not what it was when the step ran last.

Promise     A step's item exists for what the step reads as it is now: when that changes, the item waits again. It is
            made or reopened only while everything before it stands still: no item waits or runs there, none is set
            aside (unless the step allows that), and steps before it are up to date themselves.
State       What has changed since the last look, by lane and part: with a part also the lane as a whole. The ledger
            has the rest: a step's item has a `FileSeen` that names the part and carries a digest of what it reads.
Threads     One, the runner's.
Cost        A look asks a few indexed questions for each part behind a change. The digest, which goes through all items
            that the part reads, is made only once they stand still.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Sequence

from .._base.items import STEP, FileSeen, Lane, Step
from .._state.ledger import Ledger, Scanned

ALL = ""
"""The part of a step that has one item, and of a lane."""

Source = tuple[str, str]
"""A lane, or a step and one of its parts."""


class Steps:
    """The steps of a run, each after those that it needs."""

    def __init__(self, steps: Sequence[Step], lanes: Iterable[Lane], ledger: Ledger) -> None:
        self._steps = {step.name: step for step in steps}
        self._ledger = ledger
        self._lanes: dict[str, list[str]] = {}
        self._changed: set[Source] = set()
        # Lanes and sections whose input is not whole: what comes after them waits.
        self.incomplete: Container[str] = ()
        # At first everything is looked at: a dead run may have ended between what a step needs and the step.
        self._looked = False
        for lane in lanes:
            self.add_lane(lane)

    def add_lane(self, lane: Lane) -> None:
        """Know one more lane."""
        self._lanes.setdefault(lane.section, []).append(lane.name)
        self.touch(lane.name)

    def touch(self, lane: str, part: str | None = None) -> None:
        """Something came in for the lane, or ended there; for a step, in this part of it."""
        self._changed |= {(lane, ALL), (lane, part or ALL)}

    def take_in(self, now_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Make or reopen the items of steps that may run now, and tell `found` of each step that has some.

        Call it while no scan is under way: files that are not yet known cannot be waited for.
        """
        if self._changed or not self._looked:
            for step in self._steps.values():
                self._look_at(step, now_s, found)
            self._changed.clear()
            self._looked = True

    def held_back(self) -> list[str]:
        """Why steps did not run: a sentence each. Ask at the end of a run."""
        held = [
            f"step {step.name!r} was held back: the input of {source!r} is not whole"
            for step in self._steps.values()
            if (source := self.incomplete_before(step)) is not None
        ]
        return held + [
            f"step {step.name!r} was held back: items of {self._failed_before(step)!r} are set aside; "
            "put them back with `retry`, or set allow_failed"
            for step in self._steps.values()
            if self._failed_before(step) is not None and self.incomplete_before(step) is None
        ]

    def _look_at(self, step: Step, now_s: float, found: Callable[[str, Scanned], None]) -> None:
        parts = [part for part in self._parts(step) if self._may_have_changed(step, part)]
        refs = [ref for part in parts if self._is_ready(step, part) and (ref := self._ref(step, part))]
        if not refs:
            return
        with self._ledger.transaction():
            scanned = self._ledger.record_scan(step.name, refs, 1, now_s)
        if scanned.added or scanned.reopened:
            for part in parts:
                self.touch(step.name, part)
        found(step.name, scanned)

    def _may_have_changed(self, step: Step, part: str) -> bool:
        """Whether anything has that this part reads; or the part itself: what it reads may have while it ran."""
        return not self._looked or not self._changed.isdisjoint([(step.name, part), *self._sources(step, part)])

    def _parts(self, step: Step) -> list[str]:
        """The parts that the step has items for."""
        if not step.each_lane:
            return [ALL]
        (source,) = step.after
        return self._parts(self._steps[source]) if source in self._steps else self._lanes.get(source, [])

    def _names(self, source: str) -> set[str]:
        """The lanes in the ledger behind a name in `after`."""
        return {source} if source in self._steps else set(self._lanes.get(source, ()))

    def _sources(self, step: Step, part: str) -> list[Source]:
        """The directories that the item of this part reads."""
        found: list[Source] = []
        for source in step.after:
            if source in self._steps:
                found.append((source, part))
            else:
                found += [(lane, ALL) for lane in ([part] if step.each_lane else self._lanes.get(source, ()))]
        return found

    def _is_ready(self, step: Step, part: str) -> bool:
        if any(name in self.incomplete for name in step.after):
            return False
        for lane, lane_part in self._sources(step, part):
            standing = self._ledger.standing(lane, lane_part or None)
            if lane in self.incomplete:
                return False
            if standing.is_open or (standing.has_failed and not step.allow_failed):
                return False
            if lane in self._steps and not self._is_up_to_date(self._steps[lane], lane_part):
                return False
        return True

    def _is_up_to_date(self, step: Step, part: str) -> bool:
        """Whether every item that the step is to have is there, for what there is to read."""
        parts = [part] if part else self._parts(step)
        return all(self._is_ready(step, one) and self._has_item(step, one) for one in parts)

    def _has_item(self, step: Step, part: str) -> bool:
        ref = self._ref(step, part)
        return ref is None or self._ledger.knows(step.name, ref)

    def _ref(self, step: Step, part: str) -> FileSeen | None:
        """The input of the item of this part, as a ledger compares it, or None."""
        digest, count = hashlib.blake2b(digest_size=7), 0
        for lane, lane_part in self._sources(step, part):
            for identity, attempt in self._ledger.done_of(lane, lane_part or None):
                digest.update(f"{identity} {attempt}\n".encode())
                count += 1
        return FileSeen(STEP + part, count, int.from_bytes(digest.digest())) if count else None

    def incomplete_before(self, step: Step) -> str | None:
        """Something that the step reads whose input is not whole."""
        names = (name for source in step.after for name in (source, *sorted(self._names(source))))
        return next((name for name in names if name in self.incomplete), None)

    def _failed_before(self, step: Step) -> str | None:
        if step.allow_failed:
            return None
        names = (lane for source in step.after for lane in sorted(self._names(source)))
        return next((lane for lane in names if self._ledger.standing(lane).has_failed), None)
