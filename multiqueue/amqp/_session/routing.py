"""Where a message goes that asks for more than its routing key: CC, BCC, direct reply-to.

CC, BCC     A queue gets one copy, however many keys lead to it. BCC is taken out of deliveries, CC stays.
Reply-to    The address of a reply consumer takes the place of the name that asked for it. It is known to those who got
            one of its requests, and leads to the consumer from every connection to the same virtual host, over a wire
            or in the process, through no queue that others see. When it ends, answers are unroutable.
State       `_lock`, a leaf, guards the reply queues of all virtual hosts. A host that is gone takes its own with it.
Source      RabbitMQ's sender-selected distribution, and its direct reply-to.
"""

from __future__ import annotations

import secrets
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..._locks import Lock
from ...broker import BrokerQueue, VirtualHost, keys_in
from .._wire.errors import ChannelFault
from .._wire.message import WireMessage, digest_of, wire_message, without_header
from .._wire.properties import rewritten

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The queue that an asking channel consumes from, and names as the `reply_to` of its requests."""
REPLY_PREFIX: Final = REPLY_TO + "."
"""The begin of every reply consumer's address."""

_lock = Lock()
_queues: WeakKeyDictionary[VirtualHost, dict[str, BrokerQueue]] = WeakKeyDictionary()  # of each host, by address


def open_reply_queue(host: VirtualHost) -> BrokerQueue:
    """A new queue for one reply consumer; its name is the address of answers, and cannot be guessed."""
    queue = BrokerQueue(REPLY_PREFIX + secrets.token_urlsafe(16), vhost=host.name)
    with _lock:
        _queues.setdefault(host, {})[queue.name] = queue
    return queue


def find_reply_queue(host: VirtualHost, address: str) -> BrokerQueue | None:
    """The queue of this address; None when its consumer is gone."""
    with _lock:
        return _queues.get(host, {}).get(address)


def close_reply_queue(host: VirtualHost, queue: BrokerQueue) -> None:
    """The consumer is gone, and its queue with it. A second call does nothing."""
    with _lock:
        _queues.get(host, {}).pop(queue.name, None)
    queue.delete()


def with_reply_address(message: WireMessage, address: str | None) -> WireMessage:
    """The message with the address of its channel's reply consumer, where it asks for one. Raises ChannelFault: the
    channel has none."""
    if message.reply_to != REPLY_TO:
        return message
    if address is None:
        raise ChannelFault(406, "fast reply consumer does not exist")
    return _with_properties(message, rewritten(message.properties, reply_to=address))


def routed(host: VirtualHost, message: WireMessage) -> tuple[list[BrokerQueue], WireMessage]:
    """All queues that routing key, CC and BCC lead to, each once; and the message without BCC. Raises ChannelFault: CC
    or BCC is no list. BrokerError: what the broker says of the exchange."""
    if not message.exchange and message.routing_key.startswith(REPLY_PREFIX):
        queue = find_reply_queue(host, message.routing_key)
        return [] if queue is None else [queue], message
    bcc = _keys(message, "BCC")
    queues = host.route(message, [*_keys(message, "CC"), *bcc])
    if "BCC" in message.headers:
        message = _with_properties(message, without_header(message.properties, "BCC"), tuple(bcc))
    return queues, message


def _with_properties(message: WireMessage, block: bytes, bcc: tuple[str, ...] = ()) -> WireMessage:
    body: Any = message.body  # of a wire message: bytes
    address = message.exchange, message.routing_key, message.names
    return wire_message(body, *address, block, digest_of(block), message.publisher, bcc)


def _keys(message: WireMessage, header: str) -> list[str]:
    if not isinstance(message.headers.get(header, []), list):
        raise ChannelFault(406, f"invalid value for header '{header}': a list of strings is needed")
    return keys_in(message, header)
