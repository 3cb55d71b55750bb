"""What the direct link asks of a broker in this process, as Protocols: the two rooms do not import each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Refusal(Protocol):
    """An exception of the broker's: what a wire would say of it, and how far the damage reaches."""

    reply_code: int
    reply_text: str
    closes: str


class Refused(Exception):
    """A refusal of our own, as the broker's."""

    def __init__(self, reply_code: int, reply_text: str, closes: str = "channel") -> None:
        super().__init__(reply_text)
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.closes = closes


class HeldMessage(Protocol):
    """The broker's `Received`."""

    @property
    def message(self) -> Any: ...
    @property
    def redelivered(self) -> bool: ...
    def accept(self) -> None: ...
    def release(self, *, refused: bool = False) -> None: ...
    def reject(self) -> None: ...


class Host(Protocol):
    """A `multiqueue.broker.VirtualHost`."""

    name: str

    def declare_exchange(self, name: str, type: str = ..., **options: Any) -> Any: ...
    def delete_exchange(self, name: str, *, if_unused: bool = ...) -> bool: ...
    def declare_queue(self, name: str = ..., **options: Any) -> Any: ...
    def delete_queue(self, name: str, **options: Any) -> int: ...
    def queue(self, name: str, *, owner: object = ...) -> Any: ...
    def release_owner(self, owner: object) -> None: ...
    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = ..., arguments: Any = ..., *, owner: object = ...
    ) -> None: ...
    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = ..., arguments: Any = ..., *, owner: object = ...
    ) -> bool: ...
    def bind_exchange(self, destination: str, source: str, routing_key: str = ..., arguments: Any = ...) -> None: ...
    def unbind_exchange(self, destination: str, source: str, routing_key: str = ..., arguments: Any = ...) -> bool: ...
    def publish_nowait(self, message: Any, *, mandatory: bool = ...) -> Any: ...
    def route(self, message: Any, further_keys: Any = ...) -> list[Any]: ...
    def put_on(self, queues: list[Any], message: Any, *, mandatory: bool = ...) -> Any: ...
    def wait_for_room(self, published: Any, timeout: float | None = ...) -> bool: ...
    def get(self, queue: str, *, auto_accept: bool = ..., owner: object = ...) -> HeldMessage | None: ...
    def consume(
        self, queues: str | Iterable[str], callback: Callable[[Any], object], *, name: str = ..., **options: Any
    ) -> Any: ...
    def transaction(self) -> Any: ...


def broker_room(host: Host) -> Any:
    """The room that a broker is from. It is loaded: somebody has made the broker."""
    for cls in type(host).__mro__:
        if cls.__name__ == "VirtualHost":
            return sys.modules[".".join(cls.__module__.split(".")[:2])]
    raise TypeError(f"{host!r} is no broker of this process, and no address; connect() takes either")


def body_of(message: Any) -> bytes:
    """The body as bytes; one that is none arrives as its text."""
    body = message.body
    if isinstance(body, bytes):
        return body
    return bytes(body) if isinstance(body, bytearray | memoryview) else str(body).encode()
