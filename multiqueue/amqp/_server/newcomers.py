"""Those who are connected and have not logged in: how many there may be, and which of them has to go.

Promise     There are `most` of them at the most, and half as many from one address. A new one is let in; when there
            are too many, another is cut: one that was refused already, else the one that came first. So a peer that
            logs in at once gets through, however many others from its address only sit there.
State       `_lock` guards the tables; a leaf. Each newcomer is in one of the two tables of its address until it leaves.
Assumes     A login takes milliseconds, and a crowd of half of `most` takes longer to come.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable


class Newcomer:
    """One peer, from its accept to its login."""

    __slots__ = ("cut", "network")

    def __init__(self, address: str, cut: Callable[[], object]) -> None:
        self.network: str = network_of(address)
        self.cut: Callable[[], object] = cut  # ends it; any thread may call


class _Crowd:
    """Those of one address, each table in the order in which they came into it."""

    __slots__ = ("refused", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Newcomer, None] = {}
        self.refused: dict[Newcomer, None] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.refused)

    def first(self) -> Newcomer:
        return next(iter(self.refused or self.waiting))


class Newcomers:
    """All of a server's. Any thread may call."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_one: int = max(1, most // 2)
        self._lock = threading.Lock()
        self._crowds: dict[str, _Crowd] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def come(self, newcomer: Newcomer) -> Newcomer | None:
        """Take one in; the one that was cut for it, if that was necessary."""
        with self._lock:
            crowd = self._crowds.setdefault(newcomer.network, _Crowd())
            goes: Newcomer | None = None
            if len(crowd) >= self.most_of_one:
                goes = crowd.first()
            elif self._count >= self.most:
                goes = max(self._crowds.values(), key=len).first()
            if goes is not None:
                self._leave_locked(goes)
            # After a crowd became empty it was forgotten.
            self._crowds.setdefault(newcomer.network, crowd).waiting[newcomer] = None
            self._count += 1
        if goes is not None:
            goes.cut()
        return goes

    def refuse(self, newcomer: Newcomer) -> None:
        """Its login was wrong: it goes before others do."""
        with self._lock:
            crowd = self._crowds.get(newcomer.network)
            if crowd is not None and newcomer in crowd.waiting:
                del crowd.waiting[newcomer]
                crowd.refused[newcomer] = None

    def leave(self, newcomer: Newcomer) -> None:
        """It has logged in, or is gone. Twice is harmless."""
        with self._lock:
            self._leave_locked(newcomer)

    def cut_one(self) -> None:
        with self._lock:
            goes = max(self._crowds.values(), key=len).first() if self._crowds else None
            if goes is not None:
                self._leave_locked(goes)
        if goes is not None:
            goes.cut()

    def _leave_locked(self, newcomer: Newcomer) -> None:
        crowd = self._crowds.get(newcomer.network)
        if crowd is None:
            return
        for table in (crowd.waiting, crowd.refused):
            if newcomer in table:
                del table[newcomer]
                self._count -= 1
        if not len(crowd):
            del self._crowds[newcomer.network]


def network_of(address: str) -> str:
    """What counts as one address: itself, or the first half of one of IPv6, which is what a site is given."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.exploded[:19]
