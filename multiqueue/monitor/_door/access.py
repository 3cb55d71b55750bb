"""The user of a request, and its rights: basic authentication against the broker's users, and RabbitMQ's tags.

Promise     A request is answered for a known user with the right password, or not at all. Passwords are hashed as
            those of AMQP clients are (`Logins`): on one thread, in fair turns by address and user, with a bound.
Tags        `management`: one's own virtual hosts. `monitoring`: all connections and the node, too. `policymaker`: as
            `management`. `administrator`: everything, users and permissions included. A user without a tag is refused.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from ...amqp import Access, ChannelFault, ConnectionFault, Logins, Rights, User, is_loopback, network_of
from ...broker import VirtualHost
from .._base.errors import Refused, not_authorised

REFUSED_AFTER: Final = 1.0  # seconds from the request: neither a name nor a hash shows in the time
_CROWD: Final = 50  # refusals of one address in that time: some 50 ms of a processor
TAGS: Final = frozenset({"administrator", "monitoring", "policymaker", "management"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The user behind a request."""

    user: User

    @property
    def is_administrator(self) -> bool:
        """May change users, permissions and virtual hosts, and see everything."""
        return "administrator" in self.user.tags

    @property
    def sees_all(self) -> bool:
        """May see the connections of others, and the node."""
        return bool(self.user.tags & {"administrator", "monitoring"})

    def may_enter(self, host: str) -> bool:
        """Whether the user has business in a virtual host."""
        return self.user.permissions_in(host) is not None

    def sees_host(self, host: str) -> bool:
        """Whether the user may look at a virtual host."""
        return self.may_enter(host) or self.sees_all

    def check_host(self, host: str, *, look: bool = True) -> None:
        """Nothing, when the user may look at the virtual host, or act in it.

        Raises:
            Refused: it may not.
        """
        if not (self.sees_host(host) if look else self.may_enter(host)):
            raise not_authorised("User not authorised to access virtual host")

    def check_administrator(self) -> None:
        """Raise Refused when the user is none."""
        if not self.is_administrator:
            raise not_authorised("Not administrator user")

    def check_monitor(self) -> None:
        """Raise Refused when the user sees its own things alone."""
        if not self.sees_all:
            raise not_authorised("Not monitor user")

    def rights(self, host: str) -> Rights:
        """The rights of the user on queues and exchanges.

        Raises:
            Refused: nothing, in this virtual host.
        """
        try:
            return Rights(self.user, host)
        except ConnectionFault as error:
            raise not_authorised(error.reply_text) from None


def check_right(rights: Rights, operation: str, kind: str, name: str) -> None:
    """Nothing, when the user may `configure`, `write` or `read` the queue or exchange.

    Raises:
        Refused: it may not.
    """
    _or_refused(partial(rights.check, operation, kind, name))  # type: ignore[arg-type]


def check_key(rights: Rights, host: VirtualHost, operation: Literal["read", "write"], exchange: str, key: str) -> None:
    """Nothing, when the user may use this routing key at the exchange. Raises Refused: it may not."""
    if host.is_topic(exchange):
        _or_refused(partial(rights.check_topic, operation, exchange, key))


def _or_refused(check: Callable[[], object]) -> None:
    try:
        check()
    except ChannelFault as error:
        raise not_authorised(error.reply_text) from None


class Authenticator:
    """Tells who asks. One event loop uses it; `close` is for any thread."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._logins = Logins(access)
        self._refused: Counter[str] = Counter()  # requests that wait for their refusal, by address

    async def caller(
        self, authorization: str | None, address: str, was_refused: Callable[[], object] = lambda: None
    ) -> Caller:
        """The user of a request's `Authorization` header. A refusal comes a second after the request, where a crowd of
        an address is refused later; `was_refused` is called when that wait begins.

        Raises:
            Refused: there is none, it is wrong, or too many passwords wait to be hashed.
        """
        began = time.monotonic()
        name, password = _credentials(authorization)
        refusal = _login_failed()
        try:
            known = self._access.look(name, password)
            is_right = await self._verified(name, password, address) if known is None else known
        except Refused as full:
            is_right, refusal = False, full
        user = self._access.user(name)
        if not is_right or user is None or (user.loopback_only and not is_loopback(address)):
            was_refused()
            await self._wait(began, network_of(address))
            raise refusal
        if not user.tags & TAGS:
            raise not_authorised("Not management user")
        return Caller(user)

    async def _wait(self, began: float, network: str) -> None:
        """Until a refusal is told: a time that says nothing of the name, and that makes a crowd come less often."""
        self._refused[network] += 1
        try:
            after = REFUSED_AFTER * max(1.0, self._refused[network] / _CROWD)
            await asyncio.sleep(began + after - time.monotonic())
        finally:
            self._refused[network] -= 1
            if not self._refused[network]:
                del self._refused[network]

    def close(self) -> None:
        """Hash nothing further."""
        self._logins.close()

    async def _verified(self, name: str, password: bytes, address: str) -> bool:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bool] = loop.create_future()

        def answer(is_right: bool) -> None:
            if not told.done():  # the client has left
                told.set_result(is_right)

        def tell(is_right: bool) -> None:
            try:
                loop.call_soon_threadsafe(answer, is_right)
            except RuntimeError:
                pass  # the server has closed, and the loop with it

        job = self._logins.verify(address, name, password, tell)
        if job is None:
            raise Refused(503, "too_many_logins", "too many passwords are being verified; try again later")
        try:
            return await told
        finally:
            job.cancel()  # of a client that has left; one that is done is none


def _login_failed() -> Refused:
    return Refused(401, "not_authorized", "Login failed")


def _credentials(authorization: str | None) -> tuple[str, bytes]:
    if authorization is None:
        raise Refused(401, "", "")  # RabbitMQ says nothing but what scheme it wants
    scheme, _, encoded = authorization.partition(" ")
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        if scheme.lower() == "basic" and colon:
            return name.decode(), password
    except ValueError:  # no Base64, no ASCII or no UTF-8
        pass
    raise _login_failed()
