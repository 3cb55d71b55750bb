"""A channel and a connection as lower parts of the client see them: so no part imports its whole."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol, Self, Unpack

from ...amqp.wire import Properties


class MessageChannel(Protocol):
    """The channel of a message, as a callback uses it: to settle, to publish, to close. It is a `Channel`."""

    @property
    def number(self) -> int: ...

    def basic_ack(self, delivery_tag: int, *, multiple: bool = False) -> None: ...

    def basic_nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True) -> None: ...

    def basic_reject(self, delivery_tag: int, *, requeue: bool = False) -> None: ...

    def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> None: ...

    def holds(self, delivery_tag: int) -> bool: ...

    def abort(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None: ...

    def close(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None: ...


class Closing(ABC):
    """Closed at the end of a `with` block, and of an `async with` block without blocking its loop."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.close)
