"""The consumers of a channel: started and ended, and served with what the server delivers.

Promise     A consumer is registered before its first delivery can come: its tag is ours, not the server's. A delivery
            has its tag before any thread can settle it. `ended` is called once for each, after its last delivery.
State       The channel's lock guards `_consumers`.
Who runs    `delivered`, `cancelled`, `cancel_answered`, `accept` and `ended` on the reader thread, which never waits
            here; callbacks on the work pool, in the lane of the channel; `resume` on the thread of recovery; the rest,
            and what takes from an inbox, on any thread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from ...core import LinkedBlockingMultiQueue
from ...errors import ShutDown
from .._base.errors import ConsumerCancelled
from .._base.message import Message
from .._base.ports import Closing
from .._base.states import ENDING, State
from .._dispatch.receive_buffer import ReceiveBuffer
from .._link.link import Event, Link
from .inbound import Inbound, MessageCallback
from .lifecycle import Lifecycle
from .settlements import DeliveryTags


@dataclass(frozen=True, slots=True)
class ConsumerRequest:
    """A consumer as it was asked for, to be asked for again after a recovery."""

    queue: str
    tag: str
    auto_ack: bool = False
    exclusive: bool = False
    no_local: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Consumer:
    _inbound: Inbound
    request: ConsumerRequest
    callback: MessageCallback
    _on_ended: Callable[[Exception | None], object] | None = None

    def ended(self, error: Exception | None) -> None:
        """No delivery will follow: `error` says why, None when it was asked for."""
        if self._on_ended is not None:
            self._inbound.dispatch(self._on_ended, error)


class Inbox(Closing):
    """A consumer without a callback: messages wait in it until somebody takes them.

        with channel.consume("orders") as inbox:
            for message in inbox:
                message.ack()

    Threads and coroutines may take from it at the same time. Iteration ends when the consumer is closed, and raises
    why when it was ended by the server or with the connection. Messages that wait at the end go back to the queue.
    """

    def __init__(self, inbound: Inbound, request: ConsumerRequest, cancel: Callable[[Inbox], object]) -> None:
        self.request = request
        self._inbound = inbound
        self._cancel = cancel
        self._messages: LinkedBlockingMultiQueue[Message] = LinkedBlockingMultiQueue()
        self._tail = self._messages.add_subqueue(request.tag)
        self._error: Exception | None = None

    def accept(self, message: Message) -> None:
        """Put a delivery in. Called by the reader."""
        try:
            self._tail.put_nowait(message)
        except ShutDown:
            self._inbound.drop(message)

    def ended(self, error: Exception | None) -> None:
        """Nothing will follow. Called by the reader."""
        self._error = error
        self._messages.shutdown()

    def get(self, timeout: float | None = None) -> Message:
        """The next message; blocks until there is one.

        Raises:
            Empty: `timeout` seconds passed first.
            ShutDown: the consumer was closed and nothing is left.
            ConsumerCancelled, ChannelClosed, ConnectionClosed: what ended it, once nothing is left.
        """
        while True:
            try:
                message = self._messages.get(timeout=timeout)
            except ShutDown:
                raise self._end() from None
            if self._inbound.begin(message):
                return message

    async def async_get(self) -> Message:
        """`get()` for a coroutine; one that is cancelled has taken nothing."""
        while True:
            try:
                message = await self._messages.async_get()
            except ShutDown:
                raise self._end() from None
            if self._inbound.begin(message):
                return message

    def qsize(self) -> int:
        """How many messages wait in it."""
        return self._messages.qsize()

    def close(self) -> None:
        """Cancel the consumer and give back the messages that wait. Closing twice is harmless."""
        self._cancel(self)
        self.ended(None)
        while (message := self._messages.poll()) is not None:
            self._inbound.drop(message)

    def _end(self) -> Exception:
        return self._error or ShutDown(f"consumer {self.request.tag!r} is closed")

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.get()
            except ShutDown:
                return
            yield message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                message = await self.async_get()
            except ShutDown:
                return
            yield message


_log = logging.getLogger("multiqueue.client")


@dataclass(eq=False, repr=False)
class Consumers:
    """The consumers of one channel. `current_name(queue)` is the name that a queue has now, after recoveries."""

    _life: Lifecycle
    _tags: DeliveryTags
    _inbound: Inbound
    _receive_buffer: ReceiveBuffer
    _current_name: Callable[[str], str]
    _consumers: dict[str, Consumer | Inbox] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._consumers)

    def start(self, consumer: Consumer | Inbox) -> None:
        """Register a consumer and ask the server to serve it. Raises ValueError: the channel has one with that tag. As
        a call."""
        life, tag = self._life, consumer.request.tag
        with self._life.lock:
            life.link_locked()
            if tag in self._consumers:
                raise ValueError(f"{life.label} has a consumer {tag!r} already; choose another tag")
            self._consumers[tag] = consumer
        try:
            self._ask_for(consumer.request)
        except BaseException:
            with self._life.lock:
                self._consumers.pop(tag, None)
            raise

    def resume(self, link: Link) -> None:
        with self._life.lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            self._ask_for(consumer.request, link)

    def _ask_for(self, request: ConsumerRequest, link: Link | None = None) -> None:
        fields = {
            "queue": self._current_name(request.queue),
            "consumer_tag": request.tag,
            "no_local": request.no_local,
            "no_ack": request.auto_ack,
            "exclusive": request.exclusive,
            "arguments": dict(request.arguments),
        }
        self._life.call(commands.Basic.Consume, fields, link=link)

    def cancel(self, consumer_tag: str) -> None:
        self._life.call(commands.Basic.Cancel, {"consumer_tag": consumer_tag})

    def cancel_inbox(self, inbox: Inbox) -> None:
        with self._life.lock:
            tag = inbox.request.tag
            is_here = self._consumers.get(tag) is inbox
            if is_here and self._life.state is not State.OPEN:
                del self._consumers[tag]  # recovery will not start it again
                is_here = False
        if is_here:
            self.cancel(tag)

    def take_locked(self) -> list[Consumer | Inbox]:
        consumers, self._consumers = list(self._consumers.values()), {}
        return consumers

    def delivered(self, event: Event) -> None:
        _, (consumer_tag, wire_tag, redelivered, exchange, routing_key), block, body = event
        inbound = self._inbound
        with self._life.lock:
            consumer = self._consumers.get(consumer_tag)
            if consumer is None or self._life.state in ENDING:
                tag = self._tags.deliver(wire_tag, False)
                message = None  # cancelled or closed meanwhile: the server takes it back with the channel
            else:
                auto_ack = consumer.request.auto_ack
                tag = self._tags.deliver(wire_tag, not auto_ack)
                message = Message(
                    inbound.channel, body, block, exchange, routing_key, tag, consumer_tag, redelivered, auto_ack
                )
                inbound.queued += 1
                if isinstance(consumer, Consumer):
                    inbound.add_locked(consumer.callback, message)
        if message is None or consumer is None:
            _log.debug("%s: delivery %d for %r, which is no consumer any more", self._life.label, tag, consumer_tag)
            return
        self._receive_buffer.hold(len(body))
        if not isinstance(consumer, Consumer):
            consumer.accept(message)

    def cancel_answered(self, event: Event) -> None:
        self._end(event.method.consumer_tag, None)
        self._life.answered(event)

    def cancelled(self, event: Event) -> None:
        tag = event.method.consumer_tag
        self._end(tag, ConsumerCancelled(f"{self._life.label}: the server ended consumer {tag!r}"))

    def _end(self, tag: str, error: Exception | None) -> None:
        with self._life.lock:
            consumer = self._consumers.pop(tag, None)
        if consumer is not None:
            consumer.ended(error)
