"""Strangers, who are connected and have not logged in: their share of places, hashes and lines of the log.

Places      There are `most` of them at the most, and `most_of_one` from one address. A new one is let in; when there
            are too many, another is cut: one that was refused already, else the one that came first. So a peer that
            logs in at once gets through, however many others from its address only sit there. Where all places are
            taken by peers that have just come, the next is accepted when the first of them has had `_CHANCE`.
Hashes      Every address has its turn on one thread, so a crowd that guesses passwords delays a login from elsewhere by
            one hash. Of one name at one address 8 wait, of one address 32, of all 256; more are refused. Names that are
            not known are hashed too, and count the same. A login whose peer has left is dropped. No call waits: `told`
            is called on the thread that hashes.
Lines       Strangers cost the log `LINES` lines of each kind in `PERIOD` seconds, and one that counts the rest. Kinds
            are format strings, so there are few. The server calls `flush` now and then.
State       The lock of each class guards its fields; any thread may call. That of `Logins` is held while its executor's
            locks are taken, never the other way around; the others are leaves.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from ..._locks import Lock
from ...core import Lane, MultiQueueExecutor
from .access import Access

_log = logging.getLogger("multiqueue.amqp")
LINES: Final = 10  # of a kind, in a period
PERIOD: Final = 10.0  # seconds
_CHANCE: Final = 0.1  # seconds in which a peer that has a place sends something, on a busy machine
_OF_NAME: Final = 8  # logins that wait
_OF_ADDRESS: Final = 32  # at 50 ms each, all of them have an answer within two seconds
_OF_ALL: Final = 256


class Newcomer:
    """One peer, from its accept to its login."""

    __slots__ = ("came", "cut", "network", "was_refused")

    def __init__(self, address: str, cut: Callable[[], object]) -> None:
        self.network: str = network_of(address)
        self.cut: Callable[[], object] = cut  # ends it; any thread may call
        self.was_refused: bool = False
        self.came: float = 0.0  # when a place was given to it


_Crowd = dict[Newcomer, None]  # those of one address, in the order in which they came


class Newcomers:
    """All of a server's."""

    def __init__(self, most: int, most_of_one: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self.most_of_one: int = most_of_one or max(1, most // 2)
        self._lock = Lock()
        self._crowds: dict[str, _Crowd] = {}  # none is empty; each newcomer is in that of its address until it leaves
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def come(self, newcomer: Newcomer) -> Newcomer | None:
        """Take one in; the one that was cut for it, if that was necessary."""
        goes: Newcomer | None = None
        newcomer.came = self._clock()
        with self._lock:
            crowd = self._crowds.get(newcomer.network, {})
            if len(crowd) >= self.most_of_one:
                goes = self._take_first_locked(crowd)
            elif self._count >= self.most:
                goes = self._take_first_locked(max(self._crowds.values(), key=len))
            self._crowds.setdefault(newcomer.network, {})[newcomer] = None
            self._count += 1
        if goes is not None:
            goes.cut()
        return goes

    def pause(self) -> float:
        """How many seconds are to pass until the next is accepted; 0 where there is a place, or one to be cut."""
        with self._lock:
            if self._count < self.most:
                return 0.0
            crowd = max(self._crowds.values(), key=len)
            if any(each.was_refused for each in crowd):
                return 0.0
            return max(0.0, next(iter(crowd)).came + _CHANCE - self._clock())

    def leave(self, newcomer: Newcomer) -> None:
        """It has logged in, or is gone. A second call does nothing."""
        with self._lock:
            self._leave_locked(newcomer)

    def cut_one(self) -> None:
        with self._lock:
            if not self._crowds:
                return
            goes = self._take_first_locked(max(self._crowds.values(), key=len))
        goes.cut()

    def _take_first_locked(self, crowd: _Crowd) -> Newcomer:
        goes = next((newcomer for newcomer in crowd if newcomer.was_refused), next(iter(crowd)))
        self._leave_locked(goes)
        return goes

    def _leave_locked(self, newcomer: Newcomer) -> None:
        crowd = self._crowds.get(newcomer.network, {})
        if newcomer in crowd:
            del crowd[newcomer]
            self._count -= 1
            if not crowd:
                del self._crowds[newcomer.network]


def network_of(address: str) -> str:
    """The address that a peer is counted by: itself, or the first half of one of IPv6, which a site is given."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.exploded[:19]


@dataclass(slots=True)
class _Period:
    began: float
    lines: int = 0
    last: tuple[object, ...] = ()


class QuietLog:
    """Warnings of one logger, bounded."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._kinds: dict[str, _Period] = {}

    def warning(self, kind: str, connection: object, *args: object) -> None:
        now = self._clock()
        with self._lock:
            left_out = self._ended_locked(now)
            period = self._kinds.setdefault(kind, _Period(now))
            period.lines += 1
            period.last = (connection, *args)
            is_told = period.lines <= LINES
        self._tell(left_out)
        if is_told:
            self._log.warning(kind, connection, *args, extra={"connection": connection})

    def flush(self, *, everything: bool = False) -> None:
        """Log how many lines were left out in periods that have ended; with `everything`, in those that go on too."""
        with self._lock:
            left_out = self._ended_locked(float("inf") if everything else self._clock())
        self._tell(left_out)

    def _ended_locked(self, now: float) -> dict[str, _Period]:
        """The kinds of which lines were left out, with their periods, which are over."""
        ended = [kind for kind, period in self._kinds.items() if now - period.began >= PERIOD]
        periods = {kind: self._kinds.pop(kind) for kind in ended}
        return {kind: period for kind, period in periods.items() if period.lines > LINES}

    def _tell(self, left_out: dict[str, _Period]) -> None:
        for kind, period in left_out.items():
            message = f"{period.lines - LINES} more lines like this in {PERIOD:g} s were left out; the last: {kind}"
            self._log.warning(message, *period.last, extra={"connection": period.last[0]})


class _Waiting:
    """The logins of one address that are not done: their names, and the lane that hashes one after the other."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.names: Counter[str] = Counter()


class Logins:
    """The logins of a server whose passwords have to be hashed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._executor = MultiQueueExecutor(1, thread_name_prefix="multiqueue-amqp-logins")
        self._lock = Lock()
        self._waiting: dict[str, _Waiting] = {}  # by address; none is empty
        self._count = 0
        self._made = 0
        self._is_closed = False

    def verify(self, address: str, user: str, password: bytes, told: Callable[[bool], object]) -> Future[None] | None:
        """Have `told(is_right)` called when the password is hashed; None when too many wait. `cancel` drops it."""
        network = network_of(address)
        with self._lock:
            if self._is_closed or self._count >= _OF_ALL:
                return None
            mine = self._waiting.get(network)
            if mine is None:
                self._made += 1
                lane = self._executor.lane((network, self._made), max_in_flight=1)
                mine = self._waiting[network] = _Waiting(lane)
            if mine.names[user] > _OF_NAME or mine.names.total() > _OF_ADDRESS:  # one runs
                return None
            future = mine.lane.submit(self._verify, user, password, told)
            mine.names[user] += 1
            self._count += 1
        future.add_done_callback(lambda _: self._done(network, user, mine))
        return future

    def close(self) -> None:
        """Drop what waits, and end the thread: it hashes one password at the most."""
        with self._lock:
            self._is_closed = True
        self._executor.shutdown(cancel_futures=True)

    def _verify(self, user: str, password: bytes, told: Callable[[bool], object]) -> None:
        is_right = False
        try:
            known = self._access.look(user, password)  # another login may have shown it by now
            is_right = self._access.verify(user, password) if known is None else known
        except Exception:  # noqa: BLE001  # no memory for the hash, most likely: this login is refused
            _log.exception("a password cannot be verified")
        told(is_right)

    def _done(self, network: str, user: str, mine: _Waiting) -> None:
        with self._lock:
            self._count -= 1
            mine.names[user] -= 1
            mine.names += Counter()  # names without a login go
            if mine.names:
                return
            del self._waiting[network]
        mine.lane.shutdown(wait=False)
