"""Those who are connected and have not logged in: how many there may be, and which of them has to go.

Promise     There are `most` of them at the most, and half as many from one address. A new one is let in; when there
            are too many, another is cut: one that was refused already, else the one that came first. So a peer that
            logs in at once gets through, however many others from its address only sit there.
State       `_lock` guards the crowds; a leaf. Each newcomer is in that of its address until it leaves.
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


_Crowd = dict[Newcomer, bool]  # those of one address, in the order in which they came; True: refused


def _first(crowd: _Crowd) -> Newcomer:
    """Which of them goes: one that was refused, else the one that came first."""
    return next((newcomer for newcomer, was_refused in crowd.items() if was_refused), next(iter(crowd)))


class Newcomers:
    """All of a server's. Any thread may call."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_one: int = max(1, most // 2)
        self._lock = threading.Lock()
        self._crowds: dict[str, _Crowd] = {}  # none is empty
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def come(self, newcomer: Newcomer) -> Newcomer | None:
        """Take one in; the one that was cut for it, if that was necessary."""
        goes: Newcomer | None = None
        with self._lock:
            crowd = self._crowds.get(newcomer.network, {})
            if len(crowd) >= self.most_of_one:
                goes = self._take_first_locked(crowd)
            elif self._count >= self.most:
                goes = self._take_first_locked(max(self._crowds.values(), key=len))
            self._crowds.setdefault(newcomer.network, {})[newcomer] = False
            self._count += 1
        if goes is not None:
            goes.cut()
        return goes

    def refuse(self, newcomer: Newcomer) -> None:
        with self._lock:
            crowd = self._crowds.get(newcomer.network, {})
            if newcomer in crowd:
                crowd[newcomer] = True

    def leave(self, newcomer: Newcomer) -> None:
        """It has logged in, or is gone. Twice is harmless."""
        with self._lock:
            self._leave_locked(newcomer)

    def cut_one(self) -> None:
        with self._lock:
            if not self._crowds:
                return
            goes = self._take_first_locked(max(self._crowds.values(), key=len))
        goes.cut()

    def _take_first_locked(self, crowd: _Crowd) -> Newcomer:
        goes = _first(crowd)
        self._leave_locked(goes)
        return goes

    def _leave_locked(self, newcomer: Newcomer) -> None:
        crowd = self._crowds.get(newcomer.network, {})
        if crowd.pop(newcomer, None) is not None:
            self._count -= 1
            if not crowd:
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
