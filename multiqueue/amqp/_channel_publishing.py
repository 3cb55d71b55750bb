"""Publishing: from a whole content to the broker, and what the publisher is told.

Promise     A publish is confirmed after the broker has answered for it, and never before its `basic.return`. One that
            needs no second look (no transaction, user-id, reply-to, CC or BCC) is neither decoded nor routed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..broker import MessageRefused, Unroutable
from . import _message
from ._channel_base import ChannelBase
from ._channel_machine import Content
from ._errors import REPLY_NAMES, ChannelFault, ConnectionFault
from ._hot import decode_hot, encode_return
from ._message import WireMessage, body_of, names_of, properties_of, wire_message
from ._replies import REPLY_PREFIX, REPLY_TO, reply_queues

if TYPE_CHECKING:
    from ..broker import BrokerQueue, Message, Sent


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
            message = self._with_direct_reply(message)
            queues, message = self._route(message)
            if mandatory and not queues:
                raise Unroutable("", message=message)
            if self.transaction is not None:
                self.transaction.publish(message, queues)
                return
            self._sent(self.connection.publisher.put_on(queues, message, tag=self._tag(number)), number)
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self._refused(number)

    def _with_direct_reply(self, message: WireMessage) -> WireMessage:
        """Check what the publisher says of itself; name its own reply queue where it asks for that."""
        user = message.user_id
        if user is not None and user != self.connection.user.name:
            actual = self.connection.user.name
            raise ChannelFault(406, f"user_id property set to '{user}' but authenticated user was '{actual}'")
        if message.reply_to != REPLY_TO:
            return message
        if self.reply_consumer is None:
            raise ChannelFault(406, "fast reply consumer does not exist")
        return self._readdressed(message, _message.with_reply_to(message.properties, self.reply_consumer.queue.name))

    def _route(self, message: WireMessage) -> tuple[list[BrokerQueue], WireMessage]:
        """All queues that routing key, CC and BCC lead to, each once; and the message without BCC."""
        if not message.exchange and message.routing_key.startswith(REPLY_PREFIX):
            queue = reply_queues(self.connection.host).find(message.routing_key)
            return [] if queue is None else [queue], message
        host = self.connection.host
        queues = dict.fromkeys(host.route(message))
        for key in (*_keys(message, "CC"), *_keys(message, "BCC")):
            queues.update(dict.fromkeys(host.route(self._readdressed(message, message.properties, key))))
        if "BCC" in message.headers:
            message = self._readdressed(message, _message.without_header(message.properties, "BCC"))
        return list(queues), message

    def _readdressed(self, message: WireMessage, properties: bytes, key: str | None = None) -> WireMessage:
        known = self.connection.digests.of(properties)
        address = message.routing_key if key is None else key
        return wire_message(
            message.body,  # type: ignore[arg-type] # the body of a wire message is bytes
            message.exchange,
            address,
            message.names,
            properties,
            known,
            message.publisher,
        )

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


def _keys(message: Message, header: str) -> list[str]:
    """The further routing keys in a header."""
    keys = message.headers.get(header, [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ChannelFault(406, f"invalid value for header '{header}': a list of strings is needed")
    return keys
