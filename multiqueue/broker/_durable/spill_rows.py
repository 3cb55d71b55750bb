"""Where a virtual host puts the rows of queues that are not durable, once they outgrow the memory.

Promise     In the host's own store if it has one, as transient rows; else in a store in the directory for temporary
            files, which is made when it is first needed, and removed by `close`, or after a crash by the host that
            makes the next one.
State       `_lock` guards `_scratch`, `_is_closed` and `_next_try`, and is held while the store is opened, so that
            there is one. It is taken under no other lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from multiqueue.store import SqliteStore, StoreError

from .._base.ports import Kept
from .._paging.memory import MemoryManager
from .._paging.spill import Spill
from .._queue.queue import BrokerQueue
from .batch import DeadLetterSubmission, QueueJournal
from .journal import Journal

_BETWEEN_TRIES: Final = 10.0  # seconds: publishers would try, and log, with every message


@dataclass(eq=False)
class SpillRows:
    """One virtual host's. `_journal` is that of its own store, None where it lives in memory."""

    _memory: MemoryManager
    _journal: Journal | None
    _dead_letter: DeadLetterSubmission
    _clock: Callable[[], float]
    _wall_clock: Callable[[], float]
    _look_after: Callable[[Kept], object] | None  # `Housekeeping.add`
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _scratch: Journal | None = None  # of the store that was made here
    _is_closed: bool = False
    _next_try: float = -math.inf  # on the clock

    def pager_of(self, queue: BrokerQueue) -> Spill:
        return Spill(queue, self._memory, self.rows)

    def rows(self) -> QueueJournal | None:
        """A place for the rows of one queue; None when the virtual host is closed, or a try has failed lately.

        Raises:
            StoreError, OSError: no store can be made, or it is at its end. For some seconds it is not tried again.
        """
        with self._lock:
            if self._is_closed or self._clock() < self._next_try:
                return None
            try:
                journal = self._journal or self._scratch
                if journal is None:
                    store = SqliteStore.scratch()
                    journal = self._scratch = Journal(
                        store, self._memory, clock=self._clock, wall_clock=self._wall_clock
                    )
                    if self._look_after is not None:
                        self._look_after(journal)
                return QueueJournal(journal, journal.store.allocate(), self._dead_letter)
            except (StoreError, OSError):
                self._next_try = self._clock() + _BETWEEN_TRIES
                raise

    def close(self) -> None:
        """Remove the store that was made here. Closing twice is harmless."""
        with self._lock:
            self._is_closed = True
            scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.store.close()
