"""Who asks, and what they may see: basic authentication against the broker's users, and RabbitMQ's tags.

Promise     A request is answered for a known user with the right password, or not at all. A wrong password costs a
            hash on a thread that serves nothing else, one at a time; with too many of those waiting, more are refused.
Tags        `management`: one's own virtual hosts. `monitoring`: all connections and the node, too. `policymaker`: as
            `management`. `administrator`: everything, users and permissions included. Without a tag nobody comes in.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from ..amqp import Access, ChannelFault, ConnectionFault, Rights, User, is_loopback
from ._errors import Refused, not_authorised

_WAITING: Final = 32  # requests whose password is being hashed or waits for that
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
        """What the user may do to queues and exchanges.

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
    try:
        rights.check(operation, kind, name)  # type: ignore[arg-type]
    except ChannelFault as error:
        raise not_authorised(error.reply_text) from None


class Authenticator:
    """Tells who asks. One event loop uses it."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._hashing = anyio.CapacityLimiter(1)
        self._waiting = 0

    async def caller(self, authorization: str | None, address: str) -> Caller:
        """The user of a request's `Authorization` header.

        Raises:
            Refused: there is none, it is wrong, or too many wrong ones are being looked at.
        """
        name, password = _credentials(authorization)
        if not self._access.remembered(name, password) and not await self._verified(name, password):
            raise _login_failed()
        user = self._access.user(name)
        if user is None:
            raise _login_failed()
        if user.loopback_only and not is_loopback(address):
            raise _login_failed()
        if not user.tags & TAGS:
            raise not_authorised("Not management user")
        return Caller(user)

    async def _verified(self, name: str, password: bytes) -> bool:
        if self._waiting >= _WAITING:
            raise Refused(503, "too_many_logins", "too many passwords are being verified; try again later")
        self._waiting += 1
        try:
            verify = partial(self._access.verify, name, password)
            return await anyio.to_thread.run_sync(verify, limiter=self._hashing)
        finally:
            self._waiting -= 1


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
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise _login_failed()
