"""What has expired in a store, where nobody has it in memory, found by the store's index of times.

State       `_last`: when it was looked for last. Two threads that look at once find the same, and whoever claims a
            message first drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiqueue.store import StoreError

if TYPE_CHECKING:
    from ._journal import Journal
    from ._memory import MemoryManager

_FIRST_LOOK: Final = 256  # messages; more while all of them are with consumers
_LAST_LOOK: Final = 65_536
_LEAST_GAP: Final = 0.05  # seconds: every queue of the virtual host asks, and one look is for all


class StoredExpiry:
    """One virtual host's."""

    def __init__(self, journal: Journal, memory: MemoryManager) -> None:
        self._journal = journal
        self._memory = memory
        self._last = -_LEAST_GAP

    def look(self) -> None:
        """Drop what is past its time, on every paged queue; nothing when that was done just now."""
        now = self._journal.clock()
        if now - self._last < _LEAST_GAP:
            return
        self._last = now
        limit = _FIRST_LOOK
        while limit <= _LAST_LOOK and not self._journal.is_at_end:
            try:
                due = self._journal.store.expired(self._journal.wall_clock(), limit)
            except StoreError:
                return  # it is at its end, and somebody has been told
            dropped = self._memory.expire(due)
            if len(due) < limit:
                return
            if not dropped:
                limit *= 4  # consumers have all of these
