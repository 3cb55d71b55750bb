"""Publishing: from a whole content to the broker, and what the publisher is told.

Promise     A publish is confirmed after the broker has answered for it, and never before its `basic.return`. One that
            needs no second look (no transaction, user-id, reply-to, CC or BCC) is neither decoded nor routed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...broker import MessageRefused, Unroutable
from .._wire.errors import REPLY_NAMES, ChannelFault, ConnectionFault
from .._wire.hot import decode_hot, encode_return
from .._wire.message import WireMessage, body_of, names_of, properties_of, wire_message
from .channel_base import ChannelBase
from .machine import Content
from .replies import REPLY_PREFIX
from .routing import routed, with_reply_address

if TYPE_CHECKING:
    from ...broker import Message, Sent


class ChannelPublishing(ChannelBase):
    """The part of a channel that takes publishes."""

    def _publish(self, content: Content) -> None:
        method, properties, body = content
        if method != self._last_publish:
            self._address = self._look_at(method)
            self._last_publish = method
        exchange, routing_key, names, mandatory, is_reply = self._address
        connection = self.connection
        known = connection.digests.of(properties)
        number = self.confirms.begin() if self.confirms is not None else 0
        message = wire_message(body, exchange, routing_key, names, properties, known, connection.owner)
        connection.publishes()
        if known.special or is_reply or self.transaction is not None:
            self._publish_specially(message, mandatory, number)
            return
        try:
            sent = connection.publisher.publish(message, mandatory=mandatory, tag=self._tag(number))
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self._refused(number)
        else:
            self._sent(sent, number)

    def _look_at(self, method: bytes) -> tuple[str, str, bytes, bool, bool]:
        """Exchange, routing key, both as on the wire, mandatory, and whether it answers a direct reply-to."""
        publish: Any = decode_hot(method)
        if publish.immediate:
            raise ConnectionFault(540, "immediate=true")
        self.connection.rights.check("write", "exchange", publish.exchange)
        is_reply = not publish.exchange and publish.routing_key.startswith(REPLY_PREFIX)
        return publish.exchange, publish.routing_key, method[6:-1], publish.mandatory, is_reply

    def _publish_specially(self, message: WireMessage, mandatory: bool, number: int) -> None:
        """A publish in a transaction, to several keys, with a reply-to of ours, or as an answer to one."""
        try:
            self._check_user(message)
            digests = self.connection.digests
            address = None if self.reply_consumer is None else self.reply_consumer.queue.name
            queues, message = routed(self.connection.host, with_reply_address(message, address, digests), digests)
            if self.transaction is not None:
                self.transaction.publish(message, queues, mandatory=mandatory)
                return
            if mandatory and not queues:
                raise Unroutable("", message=message)
            self._sent(self.connection.publisher.put_on(queues, message, tag=self._tag(number)), number)
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self._refused(number)

    def _check_user(self, message: WireMessage) -> None:
        """Check what the publisher says of itself."""
        user = message.user_id
        if user is not None and user != self.connection.user.name:
            actual = self.connection.user.name
            raise ChannelFault(406, f"user_id property set to '{user}' but authenticated user was '{actual}'")

    def _tag(self, number: int) -> tuple[ChannelPublishing, int] | None:
        """What the store's thread calls a publish by: see `post_committed`."""
        return (self, number) if number else None

    def _sent(self, sent: Sent, number: int) -> None:
        if sent.run is None:
            self.confirmed(number)
        else:
            self._last_run = sent.run
        if sent.throttled:
            self.connection.throttle(sent.throttled)

    def _unroutable(self, message: WireMessage, number: int) -> None:
        self.send_return(message, 312)
        self.confirmed(number)

    def _refused(self, number: int) -> None:
        self.confirmed(number, refused=True)

    def send_return(self, message: Message, code: int) -> None:
        """Give a message back to its publisher."""
        connection = self.connection
        content = names_of(message), properties_of(message), body_of(message)
        connection.send(encode_return(self.number, code, REPLY_NAMES[code], *content, connection.frame_max))
