"""Where a message goes that asks for more than its routing key: CC, BCC, direct reply-to.

A queue gets one copy, however many keys lead to it. BCC is taken out of what is delivered, CC stays; the address of an
answer takes the place of the name that asked for it. Source: RabbitMQ's sender-selected distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker import WireForm, keys_in
from .._wire.errors import ChannelFault
from .._wire.message import Digests, WireMessage, wire_message, with_reply_to, without_header
from .replies import REPLY_PREFIX, REPLY_TO, find_reply_queue

if TYPE_CHECKING:
    from ...broker import BrokerQueue, VirtualHost


def with_reply_address(message: WireMessage, address: str | None, digests: Digests) -> WireMessage:
    """The message with the address of its channel's reply consumer, where it asks for one. Raises ChannelFault: the
    channel has none."""
    if message.reply_to != REPLY_TO:
        return message
    if address is None:
        raise ChannelFault(406, "fast reply consumer does not exist")
    return _with_properties(message, with_reply_to(message.properties, address), digests)


def routed(host: VirtualHost, message: WireMessage, digests: Digests) -> tuple[list[BrokerQueue], WireMessage]:
    """All queues that routing key, CC and BCC lead to, each once; and the message without BCC. Raises ChannelFault: CC
    or BCC is no list. BrokerError: what the broker says of the exchange."""
    if not message.exchange and message.routing_key.startswith(REPLY_PREFIX):
        queue = find_reply_queue(host, message.routing_key)
        return [] if queue is None else [queue], message
    bcc = _keys(message, "BCC")
    queues = host.route(message, [*_keys(message, "CC"), *bcc])
    if "BCC" in message.headers:
        message = _with_properties(message, without_header(message.properties, "BCC"), digests, tuple(bcc))
    return queues, message


def _with_properties(message: WireMessage, block: bytes, digests: Digests, bcc: tuple[str, ...] = ()) -> WireMessage:
    known = digests.of(block)
    if bcc:
        known = known._replace(wire=WireForm(block, bcc))
    return wire_message(
        message.body,  # type: ignore[arg-type] # the body of a wire message is bytes
        message.exchange,
        message.routing_key,
        message.names,
        block,
        known,
        message.publisher,
    )


def _keys(message: WireMessage, header: str) -> list[str]:
    if not isinstance(message.headers.get(header, []), list):
        raise ChannelFault(406, f"invalid value for header '{header}': a list of strings is needed")
    return keys_in(message, header)
