"""Where a message goes that asks for more than its routing key: CC, BCC, direct reply-to. As the server does it.

Promise     A queue gets one copy, however many keys lead to it. BCC is taken out of what is delivered, CC stays. The
            address of an answer is written into a request in the place of the name that asked for it.
Source      RabbitMQ's sender-selected distribution and direct reply-to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..amqp import REPLY_PREFIX, REPLY_TO, reply_queues
from ._direct_host import Host, Refused


def is_special(message: Any) -> bool:
    """Does the message ask for more than its routing key says?"""
    if message.reply_to == REPLY_TO or (not message.exchange and message.routing_key.startswith(REPLY_PREFIX)):
        return True
    return "CC" in message.headers or "BCC" in message.headers


def with_reply_address(message: Any, address: str | None) -> Any:
    """The message with the address of its channel's reply consumer, where it asks for one.

    Raises:
        Refused: the channel has none.
    """
    if message.reply_to != REPLY_TO:
        return message
    if address is None:
        raise Refused(406, "PRECONDITION_FAILED - fast reply consumer does not exist")
    return replace(message, reply_to=address)


def routed(host: Host, message: Any) -> tuple[list[Any], Any]:
    """All queues that routing key, CC and BCC lead to, each once; and the message without BCC.

    Raises:
        Refused: CC or BCC is no list of strings.  What the broker says of its exchange.
    """
    if not message.exchange and message.routing_key.startswith(REPLY_PREFIX):
        queue = reply_queues(host).find(message.routing_key)
        return [] if queue is None else [queue], message
    queues = dict.fromkeys(host.route(message))
    for key in (*_keys(message, "CC"), *_keys(message, "BCC")):
        queues.update(dict.fromkeys(host.route(replace(message, routing_key=key))))
    if "BCC" in message.headers:
        message = replace(message, headers={name: each for name, each in message.headers.items() if name != "BCC"})
    return list(queues), message


def _keys(message: Any, header: str) -> list[str]:
    keys = message.headers.get(header, [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        text = f"PRECONDITION_FAILED - invalid value for header '{header}': a list of strings is needed"
        raise Refused(406, text)
    return keys
