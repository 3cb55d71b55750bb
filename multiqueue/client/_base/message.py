"""A message in the application's hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...amqp.wire import NO_PROPERTIES, Properties, decode_properties

if TYPE_CHECKING:
    from .._channel.channel import Channel


@dataclass(eq=False, repr=False, slots=True)
class Message:
    """A message that was consumed, got or returned. Any thread may settle it, once.

    `delivery_tag` numbers the deliveries of its channel from 1; `consumer_tag` is empty for one that was got.
    `redelivered` says that somebody had it before.
    """

    channel: Channel
    body: bytes
    _block: bytes  # of properties, as on the wire
    exchange: str
    routing_key: str
    delivery_tag: int = 0
    consumer_tag: str = ""
    redelivered: bool = False
    auto_ack: bool = True
    _properties: Properties | None = None

    @property
    def properties(self) -> Properties:
        """The properties that the publisher set, by name. Decoded at the first access."""
        found = self._properties
        if found is None:
            found = self._properties = {} if self._block == NO_PROPERTIES else decode_properties(self._block)
        return found

    @property
    def headers(self) -> Mapping[str, Any]:
        """The `headers` of the properties, empty when there are none."""
        return self.properties.get("headers", {})

    @property
    def is_settled(self) -> bool:
        """Is nothing left to settle: automatically acknowledged, settled, or lost with its connection?"""
        return self.auto_ack or not self.channel.holds(self.delivery_tag)

    def ack(self, *, multiple: bool = False) -> None:
        """Done; with `multiple` also with all messages of the channel before it. Waits for nothing.

        Raises:
            UnknownDelivery: it was settled before.  ChannelClosed, ConnectionClosed: it has gone back to its queue.
        """
        self.channel.basic_ack(self.delivery_tag, multiple=multiple)

    def nack(self, *, requeue: bool = True, multiple: bool = False) -> None:
        """Give it back to its place in the queue, or without `requeue` dead-letter or drop it. Raises as `ack`."""
        self.channel.basic_nack(self.delivery_tag, multiple=multiple, requeue=requeue)

    def reject(self, *, requeue: bool = False) -> None:
        """Dead-letter or drop it, or give it back. Raises as `ack`."""
        self.channel.basic_reject(self.delivery_tag, requeue=requeue)

    def __repr__(self) -> str:
        return f"<message {self.delivery_tag} of {self.exchange!r} {self.routing_key!r}, {len(self.body)} bytes>"


@dataclass(eq=False, repr=False, slots=True)
class Returned(Message):
    """A mandatory message that no queue took, with the server's reason."""

    reply_code: int = 0
    reply_text: str = ""
