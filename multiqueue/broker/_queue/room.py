"""How much is on a broker queue, and whether more may come: counters, limits, and what the memory lends.

Promise     A publisher that is held back is told when there is room again: when what is ready falls to the ratio of
            the limit that settings name, and when the memory lends again, or the queue is empty.
State       All of it is guarded by the lock of `BrokerQueue`; `lent` is written under the memory manager's lock.
Lock order  queue lock -> the memory manager's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .._base.message import MESSAGE_BYTES
from .._base.outcome import DeadLetterReason, PutOutcome
from .._base.settings import Overflow, QueueSettings
from .._delivery.housekeeping import AT_ONCE

if TYPE_CHECKING:
    from .._paging.reservation import Lending
    from .base import QueueBase

# What to do when the lock is free.
After = list[Callable[[], object]]

# What is counted from the beginning of a queue on, whatever core it has.
FIGURES: Final = (
    "depth",
    "depth_bytes",
    "ready",
    "ready_bytes",
    "held",
    "enqueued",
    "enqueued_bytes",
    "expired",
    "dead_lettered",
    "rejected",
    "redelivered",
    "delivered",
    "acked",
    "highest_depth",
    "highest_depth_bytes",
    "highest_ready",
    "highest_ready_bytes",
)


class QueueRoom:
    """The figures and the limits of one broker queue."""

    def __init__(self, queue: QueueBase, settings: QueueSettings) -> None:
        self.queue = queue
        self.settings = settings

        # Invariants: depth counts the list; ready those of it that nobody has; held those of the ready that wait
        # for their time. The _bytes are the sums of the same entries' sizes.
        self.depth = self.depth_bytes = 0
        self.ready = self.ready_bytes = 0
        self.held = 0
        self.enqueued = self.enqueued_bytes = 0
        self.expired = self.dead_lettered = self.rejected = self.redelivered = 0
        self.delivered = self.acked = 0
        # Invariants: none of these is lower than its gauge.
        self.highest_depth = self.highest_depth_bytes = 0
        self.highest_ready = self.highest_ready_bytes = 0

        # Asked for every message, so asked of the settings once.
        self._refuses_at_limit = settings.overflow in (Overflow.REJECT, Overflow.REJECT_DEAD_LETTER)
        self.may_refuse = self._refuses_at_limit  # Invariant: True while short_of_memory
        self.may_overflow = settings.overflow in (Overflow.RING, Overflow.FLOW_CONTROL)
        self.deleted = False
        self.reason_of_deletion: DeadLetterReason | None = None  # None: what was on the queue is simply gone
        self.throttled = False
        # Invariant: empty unless throttled.
        self.room_waiters: list[Callable[[], object]] = []

        self._lending: Lending | None = None  # None where nobody counts what the queue keeps in memory
        # Bytes that may be in use before more must be asked for. Guarded by the memory manager's lock as well.
        self.lent = sys.maxsize
        self.can_page = False  # the store could have what is on the queue
        self.short_of_memory = False  # the memory lends no more. Invariant: implies throttled

    @property
    def available(self) -> int:
        """Entries that could be taken now."""
        return self.ready - self.held

    # -- limits

    def is_too_full_for(self, size: int) -> bool:
        """True when one more message of this size exceeds the limits."""
        if self.short_of_memory and (self._refuses_at_limit or self._is_memory_exhausted):
            return True
        if not self._refuses_at_limit:
            return False
        settings = self.settings
        return _exceeds(self.ready + 1, settings.max_length) or _exceeds(
            self.ready_bytes + size, settings.max_length_bytes
        )

    @property
    def is_over_limit(self) -> bool:
        """True when more is ready than the limits allow."""
        settings = self.settings
        return _exceeds(self.ready, settings.max_length) or _exceeds(self.ready_bytes, settings.max_length_bytes)

    def has_room(self) -> bool:
        """True when publishers that were held back may go on. An empty queue always has room."""
        if self.short_of_memory and self.depth and not self._borrow():
            return False
        settings, ratio = self.settings, self.settings.flow_resume_ratio
        if settings.overflow is not Overflow.FLOW_CONTROL:
            return True  # other policies hold nobody back: it was for want of memory
        length, size = settings.max_length, settings.max_length_bytes
        return not (
            (length is not None and self.ready > math.ceil(length * ratio))
            or (size is not None and self.ready_bytes > math.ceil(size * ratio))
        )

    def end_throttling(self, after: After) -> None:
        """Let the producers go on."""
        self.throttled = self.short_of_memory = False
        self.may_refuse = self._refuses_at_limit
        after.extend(self.room_waiters)
        self.room_waiters.clear()

    # -- memory

    def borrow_from(self, lending: Lending, *, can_page: bool) -> None:
        """Keep what is on the queue within what the virtual host's memory lends; nobody uses the queue yet."""
        self._lending, self.can_page = lending, can_page
        self.lent = 0

    @property
    def in_use(self) -> int:
        """Bytes that the messages take in memory, as far as their sizes tell; headers are not looked at."""
        return self.depth_bytes + MESSAGE_BYTES * self.depth

    def page_out(self) -> bool:
        """Let the store have what is on the queue, the lock being free; False when that cannot be done now."""
        return self.queue.page_out()

    def lacks_memory(self) -> bool:
        """True when the memory does not lend what is on the queue."""
        return self._lending is not None and not self.deleted and not self._borrow()

    def seek_room(self, after: After) -> None:
        """What was asked of the memory is decided: hold publishers back while it has nothing, and let them go on."""
        if self.lacks_memory():
            assert self._lending is not None
            self.short_of_memory = self.throttled = self.may_refuse = True
            self.queue.visit_by(AT_ONCE)
            self._lending.insist(self)
        elif self.short_of_memory and self.has_room():
            self.end_throttling(after)

    def return_loan(self) -> None:
        """Keep nothing of what the memory has lent."""
        if self._lending is not None:
            self._lending.forget(self)
            self._lending = None
            self.lent = sys.maxsize

    @property
    def _is_memory_exhausted(self) -> bool:
        return self._lending is not None and self._lending.is_exhausted

    def _borrow(self) -> bool:
        return self._lending is None or self._lending.lend(self)

    def _lacks_memory(self, outcome: PutOutcome, after: After) -> PutOutcome:
        after.append(self.queue.relieve)
        return outcome if self.can_page and not self.short_of_memory else PutOutcome.THROTTLED


def _exceeds(amount: int, limit: int | None) -> bool:
    return limit is not None and amount > limit
