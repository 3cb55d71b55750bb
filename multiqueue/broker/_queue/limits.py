"""Whether more may come to a broker queue: its depth limits, the memory it may fill, and publishers that are held back.

Promise     A publisher that is held back learns of room again: when the ready entries fall to the ratio of the limit
            that settings name, and when memory is free again, or the queue is empty.
State       Guarded by the queue's lock. `reserved` is written under the memory manager's lock.
Lock order  queue lock -> the memory manager's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .._base.message import MESSAGE_BYTES
from .._base.ports import After
from .._base.settings import Overflow, QueueSettings
from .figures import Figures

if TYPE_CHECKING:
    from .._paging.memory import MemoryManager

_LOW: Final = 0.8  # of its limits, where a quorum queue takes messages again. Source: RabbitMQ 4.3.6 and 3.10.8


class DepthLimit:
    """The limits of one broker queue."""

    def __init__(self, settings: QueueSettings, figures: Figures) -> None:
        self._figures = figures
        self._is_full: bool = False  # a quorum queue has had too many ready, and has not yet few enough
        self._tenants_may_refuse = self._tenants_overflow = False
        self._look_at(settings)
        # Invariant: True while short_of_memory, and while the queue pages.
        self.may_refuse: bool = self._refuses_at_limit
        self.may_overflow: bool = self._may_overflow  # Invariant: True while is_behind
        self.throttled: bool = False
        # Publishers wait for what is on its way to a store, which ends by itself. Invariant: implies throttled.
        self.is_behind: bool = False
        # Invariant: empty unless throttled.
        self.room_waiters: list[Callable[[], object]] = []
        # Of those who wait for no more than that it is not behind. Invariant: empty unless is_behind.
        self.catch_up_waiters: list[Callable[[], object]] = []

        self._memory: MemoryManager | None = None  # None where no one counts what the queue has in memory
        # Bytes that may be in use before more must be asked for. Guarded by the memory manager's lock as well.
        self.reserved: int = sys.maxsize
        self.can_page: bool = False  # a store could have what is on the queue
        # Lets it have that, the lock being free; False when that cannot be done now.
        self.page_out: Callable[[], bool] = lambda: False
        # True when a store has the messages already, and the queue can page now: it need not keep many in memory.
        self.is_backed: Callable[[], bool] = lambda: False
        self.short_of_memory: bool = False  # there is no more memory. Invariant: implies throttled
        # Of a queue that pages: whether what no store can keep has filled the memory.
        self._is_overfull: Callable[[], bool] | None = None

    def _look_at(self, settings: QueueSettings) -> None:
        self._settings = settings
        # Asked for every message, so asked of the settings once.
        self._refuses_at_limit = settings.overflow in (Overflow.REJECT, Overflow.REJECT_DEAD_LETTER)
        # As a quorum queue: refuse after a message too many, until there is room for several.
        self._refuses_late = self._refuses_at_limit and settings.type == "quorum"
        overflows = settings.overflow in (Overflow.RING, Overflow.FLOW_CONTROL) or self._refuses_late
        self._may_overflow = overflows or self._tenants_overflow

    def govern(self, settings: QueueSettings, after: After) -> None:
        """Limit by other settings; publishers that those do not hold back go on."""
        self._look_at(settings)
        self.may_overflow = self._may_overflow or self.is_behind
        self._forget_refusals()
        if self.throttled and self.has_room():
            self.end_throttling(after)

    # -- depth

    def refuses(self, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """True when one more message of this size is to be turned away; `coming` have been admitted before it."""
        if self._is_overfull is not None and self._is_overfull():
            return True
        if self._refuses_at_limit:
            if self._refuses_late:
                self.watch(coming, coming_bytes)
                return self.short_of_memory or self._is_full
            return self.short_of_memory or self.is_exceeded(coming + 1, coming_bytes + size)
        return self.short_of_memory and self._memory is not None and self._memory.is_exhausted

    def watch(self, more: int = 0, more_bytes: int = 0) -> None:
        """Note whether a quorum queue refuses, before and after it has one more ready."""
        if self._refuses_late:
            length, size = self._settings.max_length, self._settings.max_length_bytes
            is_low = (length is None or self._figures.ready <= length * _LOW) and (
                size is None or self._figures.ready_bytes <= size * _LOW
            )
            self._is_full = not is_low if self._is_full else self.is_exceeded(more, more_bytes)

    def is_exceeded(self, more: int = 0, more_bytes: int = 0, *, share: float = 1) -> bool:
        """True when the ready entries exceed the limits, or that share of them, or would with so many messages more."""
        settings, figures = self._settings, self._figures
        length, size = settings.max_length, settings.max_length_bytes
        return (length is not None and figures.ready + more > math.ceil(length * share)) or (
            size is not None and figures.ready_bytes + more_bytes > math.ceil(size * share)
        )

    def has_room(self) -> bool:
        """True when publishers that were held back may go on. An empty queue always has room."""
        figures = self._figures
        if figures.depth and (self.is_behind or (self.short_of_memory and not self.reserve())):
            return False
        if self._settings.overflow is not Overflow.FLOW_CONTROL:
            return True  # other policies hold no publisher back: it was for want of memory
        return not self.is_exceeded(share=self._settings.flow_resume_ratio)

    def end_throttling(self, after: After) -> None:
        self.throttled = self.short_of_memory = self.is_behind = False
        self.may_overflow = self._may_overflow
        self._forget_refusals()
        after.extend(self.room_waiters + self.catch_up_waiters)
        self.room_waiters.clear()
        self.catch_up_waiters.clear()

    def fall_behind(self) -> None:
        """Hold publishers back until `catch_up`, which comes in any case."""
        self.is_behind = self.throttled = self.may_overflow = True

    def catch_up(self, after: After) -> None:
        """Count that a message on its way to a store is far enough on its way."""
        if self.is_behind:
            self.is_behind, self.may_overflow = False, self._may_overflow
            after.extend(self.catch_up_waiters)
            self.catch_up_waiters.clear()
            if self.has_room():
                self.end_throttling(after)

    # -- memory

    def keep_within(
        self, memory: MemoryManager, page_out: Callable[[], bool] | None, is_backed: Callable[[], bool]
    ) -> None:
        """Reserve memory for the queue's entries from now on; `page_out` lets a store have it instead."""
        self._memory, self.is_backed, self.reserved = memory, is_backed, 0
        self.can_page = page_out is not None
        self.page_out = page_out or self.page_out

    def begin_paging(self, is_overfull: Callable[[], bool]) -> None:
        """The queue's entries are in a store from now on; `is_overfull` says when what no store keeps is too much."""
        self.release_memory()
        self._is_overfull = is_overfull
        self.may_refuse = True

    def end_paging(self) -> None:
        self._is_overfull = None
        self._forget_refusals()

    def _forget_refusals(self) -> None:
        """Refuse only as the state says now."""
        is_limited = self._refuses_at_limit or self._tenants_may_refuse
        self.may_refuse = is_limited or self.short_of_memory or self._is_overfull is not None

    def ask_tenants(self, *, refuse: bool, overflow: bool) -> None:
        """Whether a fair queue's tenants have limits, which their `EntrySource` knows."""
        self._tenants_may_refuse, self._tenants_overflow = refuse, overflow
        self._look_at(self._settings)
        self.may_overflow = self._may_overflow or self.is_behind
        self._forget_refusals()

    @property
    def takes_runs(self) -> bool:
        """False: each message is to be asked for, for it may be refused now, or its publisher held back."""
        if self.short_of_memory or self.is_behind or self._refuses_at_limit or self._tenants_may_refuse:
            return False
        return self._is_overfull is None or not self._is_overfull()

    @property
    def in_use(self) -> int:
        """Bytes that the messages take in memory, as far as their sizes tell; headers are not looked at."""
        return self._figures.depth_bytes + MESSAGE_BYTES * self._figures.depth

    @property
    def is_reserving(self) -> bool:
        return self._memory is not None

    def reserve(self) -> bool:
        """Reserve memory for the queue's entries now; False without room."""
        return self._memory is None or self._memory.reserve(self)

    def seek_room(self, after: After) -> bool:
        """Hold publishers back while there is no memory, and let them go on; True when they are held back."""
        if self._memory is not None and not self._memory.reserve(self):
            self.short_of_memory = self.throttled = self.may_refuse = True
            self._memory.reserve_anyway(self)
            return True
        if self.short_of_memory and self.has_room():
            self.end_throttling(after)
        return False

    def release_memory(self) -> None:
        if self._memory is not None:
            self._memory.release(self)
            self._memory = None
            self.reserved = sys.maxsize
