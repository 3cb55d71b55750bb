"""A broker queue that nobody needs to keep, and that has outgrown the memory: it pages, from some moment on.

Promise     What was on the queue is on it still, in its order, and with whoever has it; consumers and figures stay.
            What is written out is transient: it goes with the queue, with the virtual host, or with the process.
State       As `_paging/paged_core`. Entries get a number of the store as they join, in the hold in which they do.
Taking over Under the queue's lock, so nobody sees half of it: 1. consumers get their lists, on an empty area.  2. Each
            entry arrives there, in service order, as if it came now; one that somebody has is known as taken. Browsers
            do not see again what they have seen. A pull that asks a selector meanwhile finds another core when it
            comes back, and begins again.
Giving way  At housekeeping an empty queue gets a core that keeps everything in memory again: no entry has to be moved.
            Nobody has one, nor looks at what is on the queue, so no entry of this core meets another core.
Waiting     Nobody is told. Whoever was NOTIFIED is to pull still, and passes the baton if that finds nothing; for whom
            there was nothing, there is nothing now. What a list has to be asked about first is a load's, which tells.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from .._base.settings import QueueKind, QueueSettings
from .._delivery.housekeeping import AT_ONCE
from .._queue.consumer import QueueConsumer
from .._queue.entry import Entry, EntryState
from .._queue.room import FIGURES, After
from .paged_core import PagedCore, PagingQueue

if TYPE_CHECKING:
    from .._base.outcome import DeadLetterReason, PutOutcome
    from .._durable.journal import QueueJournal
    from .._queue.base import QueueBase
    from .._queue.core import QueueCore
    from .._queue.entry import Position
    from .memory import MemoryManager
    from .target_list import TargetList


class OutgrownQueue(PagingQueue, Protocol):
    """What a queue does besides, that nobody needs to keep."""

    def keep_in_memory(self) -> None:
        """Page no longer, now that nothing is on the queue."""


class OutgrownCore(PagedCore):
    """One broker queue without a store of its own, while it pages. `rows` is where it has rows."""

    def __init__(
        self,
        queue: QueueBase,
        settings: QueueSettings,
        clock: Callable[[], float],
        memory: MemoryManager,
        outgrown_queue: OutgrownQueue,
        rows: QueueJournal,
    ) -> None:
        super().__init__(queue, settings, clock, memory, outgrown_queue)
        self._outgrown_queue = outgrown_queue
        self.rows = rows
        self._has_levels = settings.kind is QueueKind.PRIORITY
        self.may_refuse = True

    def append(self, entry: Entry, after: After) -> PutOutcome:
        self._number(entry)
        return super().append(entry, after)

    def is_too_full_for(self, size: int) -> bool:
        is_kept = bool(self.area.kept) and self.memory.lending.is_exhausted
        return is_kept or super().is_too_full_for(size)

    def end_throttling(self, after: After) -> None:
        super().end_throttling(after)
        self.may_refuse = True

    def keep_time(self, now: float, after: After) -> bool:
        there_is_more = super().keep_time(now, after)
        if not self.depth and not self.deleted:
            after.append(self._outgrown_queue.keep_in_memory)
        return there_is_more

    def next_visit(self) -> float:
        return super().next_visit() if self.depth else AT_ONCE

    def _has_left(self, entry: Entry, owner: object, after: After) -> None:
        super()._has_left(entry, owner, after)
        self._visit_if_empty()

    def have_gone(self, count: int, size: int, after: After) -> None:
        super().have_gone(count, size, after)
        self._visit_if_empty()

    def _visit_if_empty(self) -> None:
        if not self.depth:
            self.queue.visit_by(AT_ONCE)

    def delete(self, reason: DeadLetterReason | None, after: After) -> int:
        after.append(self.rows.drop_queue)
        return super().delete(reason, after)

    def take_over(self, old: QueueCore, after: After) -> None:
        """Go on where the queue's former core stands."""
        _inherit(self, old)
        for consumer in self.consumers:
            self.feeds.enter(consumer, is_here=True)
        seen = [(self.feeds.target_of(browser), _has_seen(browser, old)) for browser in self._browsing()]
        for entry in list(old.entries):
            seen_by = [target for target, has_seen in seen if target and has_seen(entry.position)]
            self._number(entry)
            self._take_in(entry, seen_by)
        if self.throttled and self.has_room():
            self.end_throttling(after)

    def give_way(self, core: QueueCore) -> None:
        """Have another core go on that keeps everything in memory, now that there is nothing."""
        _inherit(core, self)
        for consumer in core.consumers:
            log = core.returns if consumer.acquires else core.late_arrivals
            consumer.cursor, consumer.returns_seen = core.entries.start, log.end
            consumer.revisits.clear()
        self.memory.close_area(self.area)

    def _take_in(self, entry: Entry, seen_by: list[TargetList]) -> None:
        if entry.state is EntryState.AVAILABLE:
            self.entries.adopt(entry, seen_by)
        else:
            self.entries.adopt_taken(entry, self.feeds.share_of(entry.owner))
        if entry.state is EntryState.HELD and entry.held_until is not None:
            self.holds.add(entry.held_until, entry)
        if entry.expires_at is not None:
            self._note_expiry(entry.expires_at, entry)

    def _browsing(self) -> list[QueueConsumer]:
        return [consumer for consumer in self.consumers if not consumer.acquires]

    def _number(self, entry: Entry) -> None:
        entry.number = self.rows.store.allocate()
        if self._has_levels:
            assert isinstance(entry.key, int)
            entry.level = entry.key


def _inherit(core: QueueCore, old: QueueCore) -> None:
    """Give a queue's next core what does not depend on where its messages are."""
    for figure in FIGURES:
        setattr(core, figure, getattr(old, figure))
    core.consumers, core.browsers = old.consumers, old.browsers
    core._consumer_numbers = old.next_consumer_number()
    core.last_used = old.last_used
    core.throttled, core.room_waiters = old.throttled, old.room_waiters


def _has_seen(browser: QueueConsumer, old: QueueCore) -> Callable[[Position], bool]:
    """Whether a browser was given what stood at a position of the former core."""
    if browser.returns_seen != old.late_arrivals.end:
        browser.merge(old.late_arrivals, old.entries.start)
    return partial(_is_before, browser.cursor, frozenset(browser.revisits))


def _is_before(cursor: Position, to_come: frozenset[Position], position: Position) -> bool:
    return bool(position <= cursor) and position not in to_come
