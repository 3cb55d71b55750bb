"""Publishing: from a whole content to the broker, and what the publisher is told.

Promise     A publish is confirmed after the broker has answered for it, and never before its `basic.return`. One that
            needs no second look (no transaction, user-id, reply-to, CC or BCC) is neither decoded nor routed twice.
State       The publish of before, the confirms, the last run of publishes, the address of direct answers. One thread
            uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...broker import MessageRefused, Unroutable
from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.hot import decode_hot
from .._wire.message import WireMessage, body_of, names_of, properties_of, wire_message
from .client import Client
from .confirms import Confirms
from .effects import Effects, Output
from .machine import Content
from .replies import REPLY_PREFIX
from .routing import routed, with_reply_address
from .transaction import SessionTransaction

if TYPE_CHECKING:
    from ...broker import Message, Run, Sent


class Publishing:
    """The publishes of one session."""

    def __init__(self, number: int, client: Client, out: Output, effects: Effects) -> None:
        self._number = number
        self._client = client
        self._out = out
        self._effects = effects
        self.confirms: Confirms | None = None
        self.reply_address: str | None = None  # of the session's consumer of direct answers
        self.last_run: Run | None = None  # the last one with a publish of this session
        # The publish of before: its payload, and what was found out about it. Most publishers repeat themselves.
        self._last_publish = b""
        self._address: tuple[str, str, bytes, bool, bool] = ("", "", b"", False, False)

    def publish(self, content: Content, transaction: SessionTransaction | None) -> None:
        """Route a message and put it, now or at commit."""
        method, properties, body = content
        if method != self._last_publish:
            self._address = self._look_at(method)
            self._last_publish = method
        exchange, routing_key, names, mandatory, is_reply = self._address
        client = self._client
        known = client.digests.of(properties)
        number = self.confirms.begin() if self.confirms is not None else 0
        message = wire_message(body, exchange, routing_key, names, properties, known, client.owner)
        self._effects.publishes()
        if known.special or is_reply or transaction is not None:
            self._publish_specially(message, mandatory, number, transaction)
            return
        try:
            sent = client.publisher.publish(message, mandatory=mandatory, tag=self._tag(number))
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self.confirmed(number, refused=True)
        else:
            self._sent(sent, number)

    def _look_at(self, method: bytes) -> tuple[str, str, bytes, bool, bool]:
        """Exchange, routing key, both as on the wire, mandatory, and whether it answers a direct reply-to."""
        publish: Any = decode_hot(method)
        if publish.immediate:
            raise ConnectionFault(540, "immediate=true")
        self._client.rights.check("write", "exchange", publish.exchange)
        is_reply = not publish.exchange and publish.routing_key.startswith(REPLY_PREFIX)
        return publish.exchange, publish.routing_key, method[6:-1], publish.mandatory, is_reply

    def _publish_specially(
        self, message: WireMessage, mandatory: bool, number: int, transaction: SessionTransaction | None
    ) -> None:
        """A publish in a transaction, to several keys, with a reply-to of ours, or as an answer to one."""
        client = self._client
        try:
            self._check_user(message)
            message = with_reply_address(message, self.reply_address, client.digests)
            queues, message = routed(client.host, message, client.digests)
            if transaction is not None:
                transaction.publish(message, queues, mandatory=mandatory)
                return
            if mandatory and not queues:
                raise Unroutable("", message=message)
            self._sent(client.publisher.put_on(queues, message, tag=self._tag(number)), number)
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self.confirmed(number, refused=True)

    def _check_user(self, message: WireMessage) -> None:
        """Check what the publisher says of itself."""
        user, actual = message.user_id, self._client.user
        if user is not None and user != actual:
            raise ChannelFault(406, f"user_id property set to '{user}' but authenticated user was '{actual}'")

    def _tag(self, number: int) -> tuple[Publishing, int] | None:
        """The store's thread reports a publish by this: see `CommitReports`."""
        return (self, number) if number else None

    def _sent(self, sent: Sent, number: int) -> None:
        if sent.run is None:
            self.confirmed(number)
        else:
            self.last_run = sent.run
        if sent.throttled:
            self._effects.throttle(sent.throttled)

    def _unroutable(self, message: WireMessage, number: int) -> None:
        self.send_return(message)
        self.confirmed(number)

    def send_return(self, message: Message) -> None:
        """Give a message back to its publisher: no queue has it."""
        self._out.returned(self._number, 312, names_of(message), properties_of(message), body_of(message))

    def confirmed(self, number: int, *, refused: bool = False) -> None:
        """A publish is done; the client is told when the turn ends."""
        if number and self.confirms is not None:
            self.confirms.end(number, refused=refused)
            self._out.confirming[self.confirms] = None

    def end(self) -> None:
        """Confirm the publishes that are done. A commit that ends later is not reported any more."""
        confirms, self.confirms = self.confirms, None
        self.last_run = None  # and nothing to hold up
        if confirms is not None:
            self._out.confirming.pop(confirms, None)
            if confirms.is_waiting:
                self._out.confirm(confirms)
