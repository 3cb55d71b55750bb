"""What queues that keep everything in memory take of the budget, and how it is got back.

Promise     A queue's loan covers what is on it, but for a message that joins just now: it borrows in steps, so that
            most puts ask nobody. When no more is to be had, the largest queues that can page are made to, until there
            is room again.
State       `_borrowers` and the `lent` of each are guarded by the memory manager's lock. A queue reads its own
            `lent` under its own lock alone: a loan that is cut meanwhile is asked for again by the next message.
Who runs    `lend` runs under a queue's lock, so it pages nobody. `relieve` runs under no lock, on the thread that
            wanted room, and takes the locks of other queues, one after the other.
Share       What pages needs room for its lists, for two of the largest messages, and for what waits for its commit;
            what is lent has the quarter that remains. While no queue pages, nobody else wants the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from .budget import UNPAGED_SHARE
from .target_list import Account

if TYPE_CHECKING:
    from .loads import Paging
    from .memory import MemoryManager

_SHARE_ALONE: Final = 3 / 4  # of the budget: what is lent while no queue pages
_RELIEVED: Final = 3 / 4  # of the share: paging out goes on down to this, so that it is not each message's business
_LEAST_LOAN: Final = 1 / 4096  # of the budget, 64 KiB of 256 MiB: beyond what a queue uses
_LARGEST_LOAN: Final = 1 / 64  # of the budget


class Borrower(Protocol):
    """A queue's core that keeps everything in memory."""

    lent: int  # bytes; guarded by the memory manager's lock

    @property
    def in_use(self) -> int:
        """Bytes that its messages take."""

    @property
    def can_page(self) -> bool:
        """True for a kind of queue that can let go of messages."""

    def page_out(self) -> bool:
        """Begin to page, under no lock; False when that cannot be done now."""


class Lending:
    """The loans of one virtual host's memory."""

    def __init__(self, memory: MemoryManager) -> None:
        self._memory = memory
        self._borrowers: dict[Borrower, None] = {}  # Invariant: whoever has something lent

    def lend(self, borrower: Borrower) -> bool:
        """Lend a queue what it uses, and something for what comes next; False when that is not to be had."""
        with self._memory as paging:
            use = borrower.in_use
            ahead = min(max(use, int(paging.limit * _LEAST_LOAN)), int(paging.limit * _LARGEST_LOAN))
            if self._grant(paging, borrower, use + ahead):
                return True
            self._trim(paging)
            return self._grant(paging, borrower, use)

    def insist(self, borrower: Borrower) -> None:
        """Charge what a queue uses although it is more than its share: it is there."""
        with self._memory as paging:
            more = borrower.in_use - borrower.lent
            paging.room(max(more, 0), first=True)
            self._charge(paging, borrower, more)

    def forget(self, borrower: Borrower) -> None:
        """The queue is gone, or pages from now on."""
        with self._memory as paging:
            self._return(paging, borrower, 0)

    def trim(self) -> None:
        """Take back what was lent and is not in use."""
        with self._memory as paging:
            self._trim(paging)

    def relieve(self, asking: Borrower | None = None) -> None:
        """Have queues page, the largest first, until there is room for the one that asks, and some more."""
        tried: set[Borrower] = set()
        while True:
            with self._memory as paging:
                need = 0 if asking is None or asking in tried else max(asking.in_use - asking.lent, 0)
                if paging.amounts[Account.UNPAGED] + need <= self._share(paging) * _RELIEVED:
                    return
                self._trim(paging)
                candidates = {*self._borrowers, asking} - tried
                left = [each for each in candidates if each is not None and each.can_page]
                if paging.amounts[Account.UNPAGED] + need <= self._share(paging) * _RELIEVED or not left:
                    return
            largest = max(left, key=_use_of)
            tried.add(largest)
            largest.page_out()

    @property
    def is_exhausted(self) -> bool:
        """True when all of the budget is taken, by those who were asked to wait and did not. A moment's figure.

        Not the share, which gets smaller when a queue begins to page: whoever waits when he is asked to is not refused.
        """
        paging = self._memory.paging
        return paging.amounts[Account.UNPAGED] > paging.limit

    def _share(self, paging: Paging) -> float:
        return paging.limit * (UNPAGED_SHARE if self._memory.has_areas else _SHARE_ALONE)

    def _grant(self, paging: Paging, borrower: Borrower, amount: int) -> bool:
        more = max(amount - borrower.lent, 0)
        if paging.amounts[Account.UNPAGED] + more > self._share(paging) or not paging.room(more):
            return False
        self._charge(paging, borrower, more)
        return True

    def _charge(self, paging: Paging, borrower: Borrower, more: int) -> None:
        if more > 0:
            paging.charge(Account.UNPAGED, more)
            borrower.lent += more
            self._borrowers[borrower] = None

    def _trim(self, paging: Paging) -> None:
        for borrower in list(self._borrowers):
            self._return(paging, borrower, borrower.in_use)

    def _return(self, paging: Paging, borrower: Borrower, rest: int) -> None:
        if rest < borrower.lent and borrower in self._borrowers:
            paging.charge(Account.UNPAGED, rest - borrower.lent)
            borrower.lent = rest
            if not rest:
                del self._borrowers[borrower]

    def lent_locked(self) -> int:
        """The sum of what is lent; the memory manager's lock must be held. For tests."""
        return sum(borrower.lent for borrower in self._borrowers)


def _use_of(borrower: Borrower) -> int:
    return borrower.in_use
