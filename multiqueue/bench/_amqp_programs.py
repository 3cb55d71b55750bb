"""The same programs three times: with pika's blocking connection, with its select connection, with our client.

Each is written the way its own documentation shows it. A program is made ready by its constructor; its methods do the
work and return when the server has it, or has no more: without confirms a publisher asks the queue until it has all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

BODY = b"x" * 1024
BATCH = 100  # messages between two waits for confirms
PREFETCH = 50
PATIENCE = 120.0  # seconds before a program is taken to be stuck


class Program(Protocol):
    """Every client's operations on one queue. Those that have batches of confirms can `publish_confirmed` as well."""

    def publish(self, n: int, persistent: bool) -> None: ...
    def consume(self, n: int, auto_ack: bool) -> None: ...
    def close(self) -> None: ...


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


class PikaSelect:
    """pika.SelectConnection: everything is a callback of its loop, which runs in the caller's thread."""

    _loop: Any

    def __init__(self, url: str, queue: str) -> None:
        import pika

        self._queue = queue
        self._properties = {True: pika.BasicProperties(delivery_mode=2), False: pika.BasicProperties()}
        self._connection: Any = pika.SelectConnection(
            pika.URLParameters(url), on_open_callback=self._opened, on_close_callback=lambda *_: self._loop.stop()
        )
        self._loop = self._connection.ioloop
        self._loop.start()

    def _opened(self, connection: Any) -> None:
        self._channel: Any = connection.channel(on_open_callback=lambda channel: self._loop.stop())

    def publish(self, n: int, persistent: bool) -> None:
        left, properties = n, self._properties[persistent]

        def some() -> None:
            nonlocal left
            for _ in range(min(BATCH, left)):
                self._channel.basic_publish("", self._queue, BODY, properties)
            left -= min(BATCH, left)
            if left:
                self._loop.call_later(0, some)
            else:
                self._channel.queue_declare(self._queue, passive=True, callback=counted)

        def counted(frame: Any) -> None:
            if frame.method.message_count < n:
                self._channel.queue_declare(self._queue, passive=True, callback=counted)
            else:
                self._loop.stop()

        self._loop.call_later(0, some)
        self._loop.start()

    def publish_confirmed(self, n: int, persistent: bool) -> None:
        published, confirmed, properties = 0, 0, self._properties[persistent]

        def some(_: object = None) -> None:
            nonlocal published
            for _ in range(BATCH):
                self._channel.basic_publish("", self._queue, BODY, properties)
            published += BATCH

        def answered(frame: Any) -> None:
            nonlocal confirmed
            confirmed = frame.method.delivery_tag if frame.method.multiple else confirmed + 1
            if confirmed >= n:
                self._loop.stop()
            elif confirmed >= published:
                some()

        self._channel.confirm_delivery(ack_nack_callback=answered, callback=some)
        self._loop.start()

    def consume(self, n: int, auto_ack: bool) -> None:
        left = n

        def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal left
            left -= 1
            if not auto_ack:
                channel.basic_ack(method.delivery_tag)
            if not left:
                channel.close()
                self._loop.stop()

        if not auto_ack:
            self._channel.basic_qos(prefetch_count=PREFETCH)
        self._channel.basic_consume(self._queue, callback, auto_ack=auto_ack)
        self._loop.start()

    def close(self) -> None:
        self._connection.close()
        self._loop.start()
        self._loop.close()


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


PROGRAMS: dict[str, Callable[[str, str], Program]] = {
    "pika blocking": PikaBlocking,
    "pika select": PikaSelect,
    "multiqueue": OurClient,
}
