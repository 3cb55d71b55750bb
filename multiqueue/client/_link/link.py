"""A connection's way to the broker: a socket with frames on it, or a broker in this process.

A link is one life of a connection: it begins when the broker has agreed, ends once, and is never used again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ...amqp.wire import Settlement
from .._base.errors import ConnectionClosed
from .._dispatch.buffers import ReceiveBuffer


class Event(NamedTuple):
    """A method that arrived on a channel, with its content if it has one. `properties` are a block as on the wire."""

    number: int
    method: Any
    properties: bytes = b""
    body: bytes = b""


class Listener(Protocol):
    """The receiver of what arrives. Called on the link's reader thread, which must not be made to wait."""

    @property
    def receive_buffer(self) -> ReceiveBuffer: ...
    def arrived(self, link: Link, events: list[Event]) -> None: ...

    def lost(self, link: Link, error: ConnectionClosed) -> None:
        """The link has ended, asked for or not. Called once."""


class Link(Protocol):
    """One life of a connection. Any thread may call every method; none but `close` waits for the broker."""

    channel_max: int
    server_properties: dict[str, Any]

    def start(self) -> None: ...

    def send(self, number: int, frame: bytes) -> bool:
        """Send a method without content, the frame that `wire.encode_method` makes; False when the link has ended.
        After True either the method arrives, or `Listener.lost` comes."""

    def prepare(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> Any:
        """The frames for `publish`: to be made before a lock is taken. Raises ValueError when a name does not fit."""

    def publish(self, prepared: Any) -> bool:
        """Send a message; False when the link has ended. Messages of one channel arrive in the order of the calls."""

    @property
    def is_full(self) -> bool: ...

    def settle(self, number: int, settled: Settlement) -> None: ...

    def wait_for_room(self, timeout: float | None) -> bool:
        """Block while the broker does not take what we publish; False when the time is up."""

    def end(self, error: ConnectionClosed, *, linger: float = 0.0) -> None:
        """End it: written frames leave within `linger` seconds or not at all, then `Listener.lost(error)`."""

    def join(self, timeout: float | None) -> None:
        """Wait for its threads, the calling one aside."""
