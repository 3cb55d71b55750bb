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

    def housekeeping(self) -> float | None:
        """Do what time asks for; returns when to come again, on the clock, None for not before it asks."""

    def attend(self, ask: Callable[[Kept, float], object] | None) -> None:
        """From now on, `ask(self, when)` has it visited; None: nothing has."""
