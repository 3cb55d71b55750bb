"""A message as it is published: a body, where it is to go, and the properties an AMQP peer knows; what became of it.

A message is immutable and knows no queue. What happens to it on a queue (who holds it, how often it was
delivered) is the business of the queue's entry, so one message can stand on many queues at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from ..._kinds import check_kind, check_seconds

# What a message takes in memory beside its body and properties: entry, message, bytes object, and their places.
MESSAGE_BYTES: Final = 768
_NO_HEADERS: Final[Mapping[str, object]] = MappingProxyType({})


class WireForm:
    """A message's properties in the bytes that brought it, so that an unchanged one leaves as it came.

    `block` is the properties as they came; the room that knows the wire takes unchanged bytes from it.
    `kept` is the same block where fields alone would not give it again, and None where they would: what a store
    keeps. `bcc` are routing keys that the publisher named and no consumer sees; dead letters go there too.
    """

    __slots__ = ("bcc", "block", "kept")

    kept: bytes | None

    def __init__(self, block: bytes, bcc: tuple[str, ...] = ()) -> None:
        self.block: bytes = block
        self.bcc: tuple[str, ...] = bcc
        self.kept = block


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One message. Equality is identity: two messages with the same content are two messages.

    `body` is bytes, or any object when the message stays in this process. Times are seconds: `expiration`
    is the time to live counted from the put on each queue, `delay` how long the message is held on a queue
    before anyone may have it, `timestamp` seconds since 1970, for the application alone. `priority` None
    means that the publisher set none. `headers` is not copied: do not change it after publishing.

    Raises:
        TypeError: a time is no number of seconds, a priority no whole number, a name no string, headers no mapping.
        ValueError: a time is not a number (NaN).
    """

    body: object = b""
    routing_key: str = field(default="", kw_only=True)
    exchange: str = field(default="", kw_only=True)
    headers: Mapping[str, object] = field(default_factory=lambda: _NO_HEADERS, kw_only=True)
    persistent: bool = field(default=False, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    expiration: float | None = field(default=None, kw_only=True)
    delay: float | None = field(default=None, kw_only=True)
    content_type: str | None = field(default=None, kw_only=True)
    content_encoding: str | None = field(default=None, kw_only=True)
    correlation_id: str | None = field(default=None, kw_only=True)
    reply_to: str | None = field(default=None, kw_only=True)
    message_id: str | None = field(default=None, kw_only=True)
    timestamp: float | None = field(default=None, kw_only=True)
    type: str | None = field(default=None, kw_only=True)
    user_id: str | None = field(default=None, kw_only=True)
    app_id: str | None = field(default=None, kw_only=True)
    # The connection that published it; a noLocal consumer of the same connection does not get it.
    publisher: object = field(default=None, kw_only=True, repr=False)
    # None for a message that no wire brought.
    wire: WireForm | None = field(default=None, kw_only=True, repr=False)
    # Deliveries by the queues that it is a dead letter of which ended in a reject or with their consumer.
    failures: int = field(default=0, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        # Here, before any queue has the message: a queue in the middle of a fan-out could only refuse what others have.
        if self.expiration is not None or self.delay is not None:
            check_seconds("expiration", self.expiration)
            check_seconds("delay", self.delay)
        if self.priority is not None and not isinstance(self.priority, int):
            raise TypeError(f"priority is {self.priority!r}, a {type(self.priority).__name__}; it is a whole number")
        if type(self.routing_key) is not str or type(self.exchange) is not str:
            for name in ("routing_key", "exchange"):
                object.__setattr__(self, name, plain_name(name, getattr(self, name)))
        headers = self.headers
        if type(headers) is not dict and headers is not _NO_HEADERS and not isinstance(headers, Mapping):
            raise TypeError(f"headers is {headers!r}; leave it out, or give a mapping")

    @property
    def size(self) -> int:
        """Bytes of the body, as depth limits and byte credit count them; 0 for a body that is not bytes."""
        body = self.body
        if type(body) is bytes:
            return len(body)
        return memoryview(body).nbytes if isinstance(body, bytes | bytearray | memoryview) else 0

    @property
    def delivery_mode(self) -> int:
        """AMQP's number: 2 for persistent, 1 for transient."""
        return 2 if self.persistent else 1


def anew(message: Message) -> Message:
    """The message as one that has not failed anywhere yet: a dead letter that somebody publishes, moves or copies."""
    return replace(message, failures=0) if message.failures else message


def plain_name(what: str, name: object) -> str:
    """The name as a string whose hash and comparison run no user code: it is looked up under a lock."""
    check_kind(what, name, str, "a string")
    return str.__str__(name)


class PutOutcome(Enum):
    """The outcome of putting a message on a queue."""

    ENQUEUED = "enqueued"
    THROTTLED = "throttled"  # enqueued, but over the limit: wait for room before the next one
    REJECTED = "rejected"  # refused by the depth limit
    NO_CONSUMER = "no_consumer"  # immediate, and no consumer is willing to take it now
    DELETED = "deleted"  # the queue is gone

    @property
    def accepted(self) -> bool:
        """True when the message is on the queue, or was taken from it already."""
        return self is PutOutcome.ENQUEUED or self is PutOutcome.THROTTLED


class DeadLetterReason(Enum):
    """Why a message goes to the dead-letter callback. The values are RabbitMQ's, where it has one."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"
    QUEUE_DELETED = "queue_deleted"
