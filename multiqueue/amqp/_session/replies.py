"""Direct reply-to: answers that go straight to the channel that asked, without a queue that others see.

Promise     The address of a reply consumer is known to those who got one of its requests, and leads to it from every
            connection to the same virtual host, over a wire or in the process. When it ends, answers are unroutable.
State       `_lock`, a leaf, guards the queues of all virtual hosts. A host that is gone takes its own with it.
Source      RabbitMQ's direct reply-to.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ...broker import BrokerQueue

if TYPE_CHECKING:
    from ...broker import VirtualHost

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The queue that an asking channel consumes from, and names as the `reply_to` of its requests."""
REPLY_PREFIX: Final = REPLY_TO + "."
"""The begin of every reply consumer's address."""


_lock = threading.Lock()
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
    """The consumer is gone, and its queue with it. Twice is harmless."""
    with _lock:
        _queues.get(host, {}).pop(queue.name, None)
    queue.delete()
