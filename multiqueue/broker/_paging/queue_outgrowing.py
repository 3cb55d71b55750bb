"""Outgrowing the memory: how a queue that is not durable begins to page, and holds publishers back when it cannot.

Promise     A queue that keeps everything in memory asks before it takes more of the budget. When that has no more, the
            largest of such queues are paged out, this one or others, until they are found empty. Kinds that cannot
            page, sorted and last-value queues and those with message groups, hold their publishers back instead, and
            refuse once those go on all the same; whoever consumes them makes room. So does a queue whose messages no
            store can keep.
State       `_core` and `_reading` change together, in one hold of the queue's lock: whoever uses the core reads it in
            the hold in which he uses it. `_walks`, tokens of those who look at what is on the queue between holds, put
            that off; a token is taken away without the lock, for a generator's end may come anywhere. `_rows` stays
            when the queue is back in memory: what was settled before is deleted there still.
Waiting     A publisher that is held back waits as for any limit (`wait_for_room`). That ends when what is on the queue
            gets less and the memory lends again, at once when the queue is empty; and, should others have given memory
            back, at the next housekeeping.
Who runs    The publisher that wanted room, under no lock. On a store's thread nothing is waited for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from multiqueue.store import StoreError

from .._queue.core import QueueCore
from .._queue.stock import After
from .outgrown_core import OutgrownCore
from .paged_core import may_page
from .queue_paging import QueuePaging
from .reader import PagedReading

if TYPE_CHECKING:
    from .._durable.journal import QueueJournal
    from .memory import MemoryManager

_log = logging.getLogger("multiqueue.broker")


class QueueOutgrowing(QueuePaging):
    """The part of `BrokerQueue` that lets a queue without a store page once it outgrows the memory."""

    def relieve(self) -> None:
        if self._memory is None:
            return
        core = self._core
        self._memory.lending.relieve(None if core.is_paged else core)
        with self._lock:
            # Others have all that they may have, and the share has room: it is what pages that takes the rest.
            must_page = self._core.can_page and self._core.lacks_memory()
        if must_page:
            self.page_out()
        after: After = []
        with self._lock:
            self._core.seek_room(after)
        self._act(after)

    def page_out(self) -> bool:
        rows = self._rows_for_overflow()
        memory = self._memory
        if rows is None or memory is None:
            return False
        after: After = []
        with self._lock:
            core = self._core
            if core.is_paged:
                return True
            if not self._may_page_out_locked(core):
                return False
            self._core = self._outgrow_locked(core, memory, rows, after)
        self._act(after)
        self.write_out()
        return True

    def keep_in_memory(self) -> None:
        """Page no longer, should nothing be on the queue, and nobody look. Under no lock."""
        with self._lock:
            old = self._core
            if isinstance(old, OutgrownCore) and not (old.depth or old.deleted or self._walks):
                core = self._new_core()
                old.give_way(core)
                self._core, self._reading = core, None

    def _new_core(self) -> QueueCore:
        core = super()._new_core()
        if self._memory is not None and not core.is_paged:
            can_page = self._overflow is not None and self._journal is None and may_page(self.settings)
            core.borrow_from(self._memory.lending, can_page=can_page)
        return core

    def _rows_for_overflow(self) -> QueueJournal | None:
        if self._overflow is None or self._core.is_paged or self._core.deleted:
            return None
        try:
            return self._overflow()
        except (StoreError, OSError) as error:
            _log.error("%s cannot page, and holds publishers back", self.label, exc_info=error)
            return None

    def _may_page_out_locked(self, core: QueueCore) -> bool:
        if core.deleted or self._walks:
            return False
        first = core.entries.after(core.entries.start)
        # Objects of this process: memory alone can keep them.
        return first is None or isinstance(first.message.body, bytes | bytearray | memoryview)

    def _outgrow_locked(self, old: QueueCore, memory: MemoryManager, rows: QueueJournal, after: After) -> OutgrownCore:
        core = OutgrownCore(self, self.settings, self._clock, memory, self, rows)
        reading = PagedReading(self, core, rows.store, rows.number)
        memory.open_area(core.area, rows.number, reading)
        old.return_loan()
        core.take_over(old, after)
        self._rows, self._reading = rows, reading
        return core
