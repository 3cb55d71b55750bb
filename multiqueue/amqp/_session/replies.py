"""Direct reply-to: answers that go straight to the channel that asked, without a queue that others see.

Promise     The address of a reply consumer is known to those who got one of its requests, and leads to it from every
            connection to the same virtual host, over a wire or in the process. When it ends, answers are unroutable.
State       `_lock` guards the queues of a virtual host, `_hosts_lock` what is known of hosts; both are leaves.
Source      RabbitMQ's direct reply-to.
"""

from __future__ import annotations

import base64
import os
import threading
from typing import Final
from weakref import WeakKeyDictionary

from ...broker import BrokerQueue

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The queue that an asking channel consumes from, and names as the `reply_to` of its requests."""
REPLY_PREFIX: Final = REPLY_TO + "."
"""The begin of every reply consumer's address."""


class ReplyQueues:
    """The reply consumers of one virtual host. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, BrokerQueue] = {}

    def open(self, vhost: str) -> BrokerQueue:
        """A new queue for one reply consumer; its name is the address of answers, and cannot be guessed."""
        secret = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
        queue = BrokerQueue(REPLY_PREFIX + secret, vhost=vhost)
        with self._lock:
            self._queues[queue.name] = queue
        return queue

    def find(self, address: str) -> BrokerQueue | None:
        with self._lock:
            return self._queues.get(address)

    def close(self, queue: BrokerQueue) -> None:
        """The consumer is gone, and its queue with it. Twice is harmless."""
        with self._lock:
            self._queues.pop(queue.name, None)
        queue.delete()


_hosts_lock = threading.Lock()
_hosts: WeakKeyDictionary[object, ReplyQueues] = WeakKeyDictionary()


def reply_queues(host: object) -> ReplyQueues:
    with _hosts_lock:
        found = _hosts.get(host)
        if found is None:
            found = _hosts[host] = ReplyQueues()
        return found
