"""The messages of one paged queue that wait for their time: the soonest in memory, the others in the store alone.

Words       A message's *moment* is until when its row says that it is held (milliseconds since 1970), and its position.
            What waits beyond `Area.near` and is not in memory is *far*: no list names it, and loads pass over it. The
            others are *near*: entries that are held, as those of a queue in memory.
Promise     A far message is brought before it is due, while its store can be read and the queues' share of memory is
            not taken by others that are due before. Nothing can be had before all that is due earlier is near, so what
            stands up to `Area.near` is near or can be had.
State       Guarded by the queue's lock. Loads read `Area.near` under the memory manager's alone: it is lowered before
            a message is let go, and raised once what was read has its record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from .._queue.entry import Entry
from .memory import MemoryManager
from .target_list import LEVEL_SHIFT, Area, Moment

_SHARE: Final = 1 / 16  # of the budget: what is near, of all queues together
_FILLED: Final = 3 / 4  # of a queue's part of it: up to there messages are brought, down to there they are let go
_LOW: Final = 1 / 2  # of it: below, more are brought; at 2,000 due a second a slice every 0.1 s
_AFTER_ALL: Final = (1 << 63) - 1 << LEVEL_SHIFT  # behind every position
_PAUSE: Final = 1.0  # seconds until a store that could not be read, or memory that was full, is tried again


def moment_of(entry: Entry) -> Moment:
    """Of an entry whose row says that it is held."""
    assert entry.held_until_ms is not None
    return entry.held_until_ms, entry.position


@dataclass(eq=False, slots=True)
class Held:
    """Which of them are near, and where to read on."""

    _area: Area
    _memory: MemoryManager
    far: int = 0  # how many the store alone has
    _near: dict[int, tuple[Entry, int]] = field(default_factory=dict)  # by position, with their costs
    _bytes: int = 0  # Invariant: the sum of these
    _ended: Moment = (0, 0)  # the last moment of what can be had. Invariant: `Area.near` is not before it
    _missed: Moment = (math.inf, 0)  # while rows are read: just before the first that was let go meanwhile
    _is_reading: bool = False
    _not_before: float = 0.0  # on the queue's clock

    def recover(self, now_ms: int, far: int) -> None:
        """A queue is opened: so many wait in the store, until after this moment, and all others can be had."""
        self.far = far
        self._area.near = self._ended = (now_ms, _AFTER_ALL)

    # -- of entries that are in memory

    def may_go(self, entry: Entry) -> bool:
        """True when the store has an entry and says that it is held until later than anything that can be had."""
        return entry.is_stored and entry.held_until_ms is not None and moment_of(entry) > self._ended

    def keep(self, entry: Entry, cost: int) -> bool:
        """True when a held entry, which may go, is to stay in memory for now."""
        moment = moment_of(entry)
        if self.far and moment > self._area.near:
            return False
        self._area.near = max(self._area.near, moment)
        self._add(entry, cost)
        return True

    def surplus(self) -> list[Entry]:
        """The entries that are to be let go, for there are too many: those that are due last."""
        if self._bytes <= self._share:
            return []
        gone: list[Entry] = []
        left = self._share * _FILLED
        for index, (entry, cost) in enumerate(sorted(self._near.values(), key=lambda each: moment_of(each[0]))):
            left -= cost
            if left < 0 and index and self.may_go(entry):
                gone.append(entry)
        return gone

    def let_go(self, entry: Entry) -> None:
        """From now on the store alone has it."""
        self.leave(entry.position)
        moment, position = moment_of(entry)
        before = (moment, position - 1)
        self.far += 1
        self._area.near = min(self._area.near, before)
        self._missed = min(self._missed, before)

    def leave(self, position: int) -> None:
        """It is held no longer, if it was."""
        _, cost = self._near.pop(position, (None, 0))
        self._bytes -= cost
        if not self._near:
            self._memory.paging.waiting.pop(self._area, None)

    def may_end(self, entry: Entry) -> bool:
        """True when an entry can be had from now on; False while something that is due before it is far."""
        if entry.held_until_ms is None:
            return True
        moment = moment_of(entry)
        if self.far and moment > self._area.near:
            return False
        self._area.near = max(self._area.near, moment)
        self._ended = max(self._ended, moment)
        self.leave(entry.position)
        return True

    def is_far(self, moment_ms: int | None, position: int) -> bool:
        return moment_ms is not None and self.far > 0 and (moment_ms, position) > self._area.near

    def horizon_ms(self, wall_ms: int) -> int | None:
        """What is held until then, or longer, need not be read by a load; None: all is to be read."""
        near, _ = self._area.near
        return None if not self.far or near == math.inf else max(int(near), wall_ms) + 60_000

    # -- reading on

    def next_time(self, now: float) -> float:
        """When to read on; infinity for not before something happens."""
        wants = self.far and not self._is_reading and self._bytes <= self._share * _LOW
        return max(now, self._not_before) if wants and self._area.near[0] < math.inf else math.inf

    def begin(self, now: float) -> tuple[Moment, float] | None:
        """Behind which moment to read on, and how many bytes may come; None for not now. `end` must follow."""
        if self.next_time(now) > now:
            return None
        self._is_reading, self._missed = True, (math.inf, 0)
        return self._area.near, self._share * _FILLED - self._bytes

    def bring(self, entry: Entry, cost: int) -> None:
        """An entry was far, and has a record now."""
        self.far -= 1
        self._add(entry, cost)

    def end(self, through: Moment | None, now: float) -> None:
        """What was read up to a moment is near; None: nothing could be read."""
        self._is_reading = False
        if through is None:
            self._not_before = now + _PAUSE
        else:
            self._area.near = max(min(through, self._missed), self._ended)

    def close(self) -> None:
        self.far = self._bytes = 0
        self._near.clear()
        self._memory.paging.waiting.pop(self._area, None)

    @property
    def _share(self) -> float:
        paging = self._memory.paging
        return paging.limit * _SHARE / max(len(paging.waiting), 1)

    def _add(self, entry: Entry, cost: int) -> None:
        self.leave(entry.position)
        self._near[entry.position] = entry, cost
        self._bytes += cost
        self._memory.paging.waiting[self._area] = None
