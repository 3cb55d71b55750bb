"""A consumer: from its deliveries on the reader thread to the application.

`accept` and `ended` are called by the reader, which never waits here; callbacks run on the work pool, in the lane of
the channel; any thread takes from an inbox. `ended` comes once, after the last delivery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core import LinkedBlockingMultiQueue
from ...errors import ShutDown
from .._base.closing import Closing
from .._base.message import Message
from .inbound import Inbound, MessageCallback


@dataclass(frozen=True, slots=True)
class ConsumerRequest:
    """What was asked for, to be asked for again after a recovery."""

    queue: str
    tag: str
    auto_ack: bool = False
    exclusive: bool = False
    no_local: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Consumer:
    def __init__(
        self,
        inbound: Inbound,
        request: ConsumerRequest,
        callback: MessageCallback,
        on_ended: Callable[[Exception | None], object] | None = None,
    ) -> None:
        self.request = request
        self._inbound = inbound
        self.callback = callback
        self._on_ended = on_ended

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
