"""Connections of HTTP clients, of which so many are held, and none for nothing.

Promise     A client that sends no whole request, or does not read its answer, is cut after `_PATIENCE` to twice that.
            Strangers are those that have not logged in: they have half of the places, and one that comes takes that of
            another, of the address with the most: of one that was refused, or of the first that came. Those that have
            logged in have the other half, an eighth of all for one user: beyond it the user's connection that has been
            idle for longest goes, and where all have a request in work the request is answered with 503. So neither
            wrong logins nor silent peers nor a user's own crowd lock another out.
Who runs    The event loop alone.
Source      uvicorn's own limits end idle connections after an answer, and none before the first request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ...amqp import Newcomer, Newcomers, QuietLog
from .._base.errors import Refused

_PATIENCE: Final = 10.0  # seconds for a request's head, or for reading an answer
_log = logging.getLogger("multiqueue.monitor")


class Visitors:
    """All connections of a server: newcomers, and guests, who have logged in."""

    def __init__(self, most: int, proxies: Sequence[str] = ()) -> None:
        places = max(2, most // 2)
        self.newcomers: Newcomers = Newcomers(places, places)  # the address with the most gives its places to others
        self.most: int = max(2, most // 2)  # guests
        self.most_of_one: int = max(1, most // 8)
        self.strangers: QuietLog = QuietLog(_log)
        self._proxies = [ipaddress.ip_network(each) for each in proxies]
        self._proxied = 0
        self._guests: dict[str, dict[PatientProtocol, None]] = {}  # by user; none is empty

    def newcomer(self, address: str) -> Newcomer:
        """One that comes. Those that a proxy brings are of no address that has a share."""
        if any(ipaddress.ip_address(address.partition("%")[0]) in each for each in self._proxies):
            self._proxied += 1
            address = f"proxied {self._proxied}"
        return Newcomer(address, lambda: None)

    def welcome(self, visitor: PatientProtocol, user: str) -> None:
        """Note a request with the right password of a user.

        Raises:
            Refused: the user has too many connections, or all have, and each is at work.
        """
        if visitor.user == user:
            return
        mine, all_ = self._guests.get(user, {}), list(chain.from_iterable(self._guests.values()))
        if len(mine) >= self.most_of_one:
            _make_room(mine, f"{self.most_of_one} connections of user '{user}' are at work already")
        elif len(all_) >= self.most:
            _make_room(all_, f"{self.most} connections are at work already")
        self.leave(visitor)
        visitor.user = user
        self._guests.setdefault(user, {})[visitor] = None

    def leave(self, visitor: PatientProtocol) -> None:
        """It is no newcomer any more, or no guest. A second call does nothing."""
        self.newcomers.leave(visitor.newcomer)
        mine = self._guests.get(visitor.user or "", {})
        if mine.pop(visitor, self) is None and not mine:
            del self._guests[visitor.user or ""]
        visitor.user = None


def _make_room(crowd: Iterable[PatientProtocol], full: str) -> None:
    idle = [each for each in crowd if not each.is_at_work]
    if not idle:
        raise Refused(503, "too_many_connections", full)
    min(idle, key=lambda each: each.idle_since).cut()


class PatientProtocol(H11Protocol):
    """One connection. `idle_since` is when its latest request was done, or when it came."""

    idle_since: float
    _was_idle: bool = False
    _stuck_since: float | None = None  # when the peer began not to read
    _check: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        visitors: Visitors,
        newcomer: Newcomer,
    ) -> None:
        super().__init__(config, server_state, {"visitor": self}, loop)
        self.logger: Any = _Quiet(visitors.strangers)  # uvicorn's, whose lines strangers would cause without a bound
        self.visitors = visitors
        self.newcomer = newcomer
        self.user: str | None = None  # who has logged in

    def connection_made(self, transport: Any) -> None:
        """Take the connection in."""
        super().connection_made(transport)
        self.newcomer.cut = self.cut
        self.idle_since = self.loop.time()
        self._check = self.loop.call_later(_PATIENCE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._check is not None:
            self._check.cancel()
        self.visitors.leave(self)
        self.app_state = {}  # it refers to this
        super().connection_lost(exc)

    def welcome(self, user: str) -> None:
        """Its request is that of a user. Raises as `Visitors.welcome`."""
        self.visitors.welcome(self, user)

    def was_refused(self) -> None:
        """Its login is wrong: until a right one comes, it is cut first where room is short."""
        self.newcomer.was_refused = True

    def cut(self) -> None:
        """End it at once."""
        self.visitors.leave(self)  # its end is told later, and many may come before
        self.transport.abort()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._stuck_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer has read."""
        self._stuck_since = None
        super().resume_writing()

    @property
    def is_at_work(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """Cut it when it was idle at two looks, and for the whole time between them, or has not read for so long."""
        now = self.loop.time()
        is_idle = not self.is_at_work and now - self.idle_since >= _PATIENCE
        is_stuck = self._stuck_since is not None and now - self._stuck_since >= _PATIENCE
        if is_stuck or (is_idle and self._was_idle):
            self.transport.abort()
            return
        if is_idle:
            self.transport.close()  # it may read what is written already
        self._was_idle = is_idle
        self._check = self.loop.call_later(_PATIENCE, self._look)


class _Quiet:
    """What uvicorn has to say of a connection, as lines that are counted where there are many."""

    level: Final = logging.WARNING

    def __init__(self, strangers: QuietLog) -> None:
        self._strangers = strangers

    def log(self, level: int, text: str, *args: object) -> None:
        """Nothing: uvicorn traces by it."""

    def warning(self, text: str, *args: object, exc_info: object = None) -> None:
        """A request that is none, most likely."""
        self._strangers.warning("HTTP: %s", text % args if args else text)

    error = warning
