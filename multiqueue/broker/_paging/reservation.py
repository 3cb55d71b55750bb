"""The share of the budget that queues take which keep everything in memory, and how they give it back.

Promise     A queue's reservation covers what is on it, but for a message that joins just now: it is made in steps,
            so that most puts do not ask. When no more is to be had, the largest queues that can page are made to, until
            there is room again.
State       `_holders` and the `reserved` of each are guarded by the memory manager's lock. A queue reads its own
            `reserved` under its own lock alone: what is taken back meanwhile is asked for again by the next message.
Who runs    `reserve` runs under a queue's lock, so it pages no queue. `relieve` runs under no lock, and takes the locks
            of other queues, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from .._base.waits import InPieces
from .._queue.depth_limit import DepthLimit
from .budget import UNPAGED_SHARE
from .lists import Paging
from .target_list import Account

# Of the budget: what is reserved while no queue pages, for then nothing else wants the rest.
_SHARE_ALONE: Final = 3 / 4
_RELIEVED: Final = 3 / 4  # of the share: paging out goes on down to this, so that it is not each message's business
_LEAST: Final = 1 / 4096  # of the budget, 64 KiB of 256 MiB: beyond what a queue uses
_LARGEST: Final = 1 / 64  # of the budget
_MOST_BACKED: Final = UNPAGED_SHARE  # of the budget: what a queue keeps in memory that a store has already


@dataclass(eq=False)
class Reservations:
    """What queues have reserved, as `MemoryReservations` says. `with memory as paging` holds the manager's lock."""

    _memory: AbstractContextManager[Paging]
    _paging: Paging
    _some_page: Callable[[], bool]  # True while a queue pages
    _relieving: InPieces
    _holders: dict[DepthLimit, None] = field(default_factory=dict)  # Invariant: those that have something reserved

    def reserve(self, holder: DepthLimit) -> bool:
        with self._memory as paging:
            use = holder.in_use
            if use > paging.limit * _MOST_BACKED and holder.is_backed():
                return False
            ahead = min(max(use, int(paging.limit * _LEAST)), int(paging.limit * _LARGEST))
            if self._grant(paging, holder, use + ahead):
                return True
            self._trim(paging)
            return self._grant(paging, holder, use)

    def reserve_anyway(self, holder: DepthLimit) -> None:
        with self._memory as paging:
            more = holder.in_use - holder.reserved
            paging.room(max(more, 0), first=True)
            self._charge(paging, holder, more)

    def release(self, holder: DepthLimit) -> None:
        with self._memory as paging:
            self._return(paging, holder, 0)

    def trim(self) -> None:
        """Take back what was reserved and is not in use."""
        with self._memory as paging:
            self._trim(paging)

    def relieve(self, asking: DepthLimit | None = None) -> None:
        """Have queues page, the largest first, until there is room for the one that asks, and some more."""
        self._relieving.run(self._relieve(asking))

    def _relieve(self, asking: DepthLimit | None) -> Iterator[None]:
        """Yields after each queue that was made to page."""
        tried: set[DepthLimit] = set()
        while True:
            with self._memory as paging:
                need = 0 if asking is None or asking in tried else max(asking.in_use - asking.reserved, 0)
                if paging.amounts[Account.UNPAGED] + need <= self._share(paging) * _RELIEVED:
                    return
                self._trim(paging)
                candidates = {*self._holders, asking} - tried
                left = [each for each in candidates if each is not None and each.can_page]
                if paging.amounts[Account.UNPAGED] + need <= self._share(paging) * _RELIEVED or not left:
                    return
            largest = max(left, key=lambda each: each.in_use)
            tried.add(largest)
            largest.page_out()
            yield

    @property
    def is_exhausted(self) -> bool:
        return self._paging.amounts[Account.UNPAGED] > self._paging.limit

    def _share(self, paging: Paging) -> float:
        return paging.limit * (UNPAGED_SHARE if self._some_page() else _SHARE_ALONE)

    def _grant(self, paging: Paging, holder: DepthLimit, amount: int) -> bool:
        more = max(amount - holder.reserved, 0)
        if paging.amounts[Account.UNPAGED] + more > self._share(paging) or not paging.room(more):
            return False
        self._charge(paging, holder, more)
        return True

    def _charge(self, paging: Paging, holder: DepthLimit, more: int) -> None:
        if more > 0:
            paging.charge(Account.UNPAGED, more)
            holder.reserved += more
            self._holders[holder] = None

    def _trim(self, paging: Paging) -> None:
        for holder in list(self._holders):
            self._return(paging, holder, holder.in_use)

    def _return(self, paging: Paging, holder: DepthLimit, rest: int) -> None:
        if rest < holder.reserved and holder in self._holders:
            paging.charge(Account.UNPAGED, rest - holder.reserved)
            holder.reserved = rest
            if not rest:
                del self._holders[holder]

    def reserved_locked(self) -> int:
        """The sum of what is reserved; the memory manager's lock must be held. For tests."""
        return sum(holder.reserved for holder in self._holders)
