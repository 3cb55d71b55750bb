"""The same programs twice: with pika's blocking connection, and with our client.

Each is written the way its own documentation shows it. A program is made ready by its constructor; its methods do the
work and return when the server has it, or has no more: without confirms a publisher asks the queue until it has all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

BODY = b"x" * 1024
BATCH = 100  # messages between two waits for confirms
PREFETCH = 50
PATIENCE = 120.0  # seconds before a program is taken to be stuck


class PikaBlocking:
    """pika.BlockingConnection. It waits for each confirm by itself, so it has no batches of them."""

    def __init__(self, url: str, queue: str) -> None:
        import pika

        self._queue = queue
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel: Any = self._connection.channel()
        self._properties = {True: pika.BasicProperties(delivery_mode=2), False: pika.BasicProperties()}

    def publish(self, n: int, persistent: bool) -> None:
        publish, queue, properties = self._channel.basic_publish, self._queue, self._properties[persistent]
        for _ in range(n):
            publish("", queue, BODY, properties)
        while self._channel.queue_declare(queue, passive=True).method.message_count < n:
            pass

    def consume(self, n: int, auto_ack: bool) -> None:
        channel, left = self._channel, n

        def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal left
            left -= 1
            if not auto_ack:
                channel.basic_ack(method.delivery_tag)
            if not left:
                channel.stop_consuming()

        if not auto_ack:
            channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(self._queue, callback, auto_ack=auto_ack)
        channel.start_consuming()

    def close(self) -> None:
        self._connection.close()


class OurClient:
    """multiqueue.client, with a callback on its work pool."""

    def __init__(self, url: str, queue: str) -> None:
        from multiqueue.client import connect

        self._queue = queue
        self._connection = connect(url, recover=False)
        self._channel = self._connection.channel()

    def publish(self, n: int, persistent: bool) -> None:
        publish, queue, mode = self._channel.publish, self._queue, 2 if persistent else 1
        for _ in range(n):
            publish(BODY, routing_key=queue, delivery_mode=mode)
        while self._channel.queue_declare(queue, passive=True).message_count < n:
            pass

    def publish_confirmed(self, n: int, persistent: bool) -> None:
        channel, queue, mode = self._channel, self._queue, 2 if persistent else 1
        channel.confirm_select()
        for _ in range(n // BATCH):
            for _ in range(BATCH):
                channel.publish(BODY, routing_key=queue, delivery_mode=mode)
            if not channel.wait_for_confirms(PATIENCE):
                raise RuntimeError("the server could not take a message")

    def consume(self, n: int, auto_ack: bool) -> None:
        left, done = n, threading.Event()

        def callback(message: Any) -> None:
            nonlocal left
            left -= 1
            if not auto_ack:
                message.ack()
            if not left:
                done.set()

        if not auto_ack:
            self._channel.basic_qos(PREFETCH)
        self._channel.basic_consume(self._queue, callback, auto_ack=auto_ack)
        if not done.wait(PATIENCE):
            raise RuntimeError(f"{left} of {n} messages did not come")
        self._channel.close()

    def close(self) -> None:
        self._connection.close()


PIKA, OUR_CLIENT = "pika blocking", "multiqueue"
PROGRAMS: dict[str, Callable[[str, str], Any]] = {PIKA: PikaBlocking, OUR_CLIENT: OurClient}
