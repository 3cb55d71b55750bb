"""What has expired in a store and is not in memory, found by the store's index of times.

State       `_last`: when it was looked for last. Two threads that look at once find the same, and the one that claims a
            message first drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiqueue.store import StoreError

from .._base.ports import AT_ONCE

if TYPE_CHECKING:
    from .._paging.memory import MemoryManager
    from .journal import Journal

_FIRST_LOOK: Final = 256  # messages; more while all of them are with consumers
_LAST_LOOK: Final = 65_536
_LEAST_GAP: Final = 0.05  # seconds: every queue of the virtual host asks, and one look is for all


class StoredExpiry:
    """One virtual host's."""

    def __init__(self, journal: Journal, memory: MemoryManager) -> None:
        self._journal = journal
        self._memory = memory
        self._last = -_LEAST_GAP

    is_deleted = False  # for `Housekeeping`, which forgets it with its thread

    def attend(self, ask: object) -> None:
        """For `Housekeeping`: this asks for nothing between two visits."""

    def housekeeping(self) -> float | None:
        """`look` once an interval, for nothing tells of what comes to the store; None once that is at its end."""
        return AT_ONCE if self.look() else None

    def look(self) -> bool:
        """Drop what is past its time, on every paged queue; nothing when that was done just now.

        False when the store is at its end.
        """
        now = self._journal.clock()
        if now - self._last < _LEAST_GAP:
            return True
        self._last = now
        limit = _FIRST_LOOK
        while limit <= _LAST_LOOK and not self._journal.is_at_end:
            try:
                due = self._journal.store.expired(self._journal.wall_clock(), limit)
            except StoreError:
                return False  # somebody has been told
            dropped = self._memory.expire(due)
            if len(due) < limit:
                break
            if not dropped:
                limit *= 4  # consumers have all of these
        return not self._journal.is_at_end
