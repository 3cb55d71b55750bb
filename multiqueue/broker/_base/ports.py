"""Types that parts of this room pass to each other where neither may import the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

# What to do when the lock is free.
After = list[Callable[[], object]]

AT_ONCE: Final = -math.inf  # the time of a visit by housekeeping at the next interval


class Kept(Protocol):
    """A queue or host that housekeeping visits."""

    @property
    def is_deleted(self) -> bool: ...

    def housekeeping(self) -> float | None:
        """Do what time asks for; returns when to come again, on the clock, None for not before it asks."""

    def attend(self, ask: Callable[[Kept, float], object] | None) -> None:
        """From now on, `ask(self, when)` has it visited; None: nothing has."""


class Visitor(Protocol):
    """Housekeeping, for those that are to be visited."""

    def add(self, queue: Kept) -> None:
        """Look after it from now on."""


class MemoryHolder(Protocol):
    """A queue that keeps messages in memory alone."""

    reserved: int  # bytes; guarded by the memory manager's lock

    @property
    def in_use(self) -> int:
        """Bytes that its messages take."""

    @property
    def can_page(self) -> bool:
        """True when its messages can be written out."""

    @property
    def is_backed(self) -> bool:
        """True when a store has its messages already, and it can page now: it need not keep many in memory."""

    def page_out(self) -> bool:
        """Begin to page, under no lock; False when that cannot be done now."""


class MemoryReservations(Protocol):
    """The memory that queues may fill; any of it may be called under a queue's lock."""

    def reserve(self, holder: MemoryHolder) -> bool:
        """Reserve what the holder uses, and something for what comes next; False when that is not to be had."""

    def reserve_anyway(self, holder: MemoryHolder) -> None:
        """Charge what the holder uses although there is no room for it: it is there."""

    def release(self, holder: MemoryHolder) -> None:
        """The holder keeps nothing in memory any more."""

    @property
    def is_exhausted(self) -> bool:
        """True when all of the budget is taken, by those who were asked to wait and did not. A moment's figure."""
