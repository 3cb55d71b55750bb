"""The broker's refusals, each with the reply code and text an AMQP 0-9-1 peer knows.

The type says whose fault it was; `reply_code` and `reply_text` are what a wire server sends, in RabbitMQ's
words, so that a client written against RabbitMQ reads the text it expects. `closes` says how far the damage
reaches over a wire: the channel, or the whole connection. In process nothing is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from multiqueue.errors import MultiQueueError

if TYPE_CHECKING:
    from .message import Message

Scope = Literal["channel", "connection"]


class BrokerError(MultiQueueError):
    """The root of what the broker refuses. Unless the type says otherwise, nothing was changed."""

    reply_code: ClassVar[int] = 541
    reply_name: ClassVar[str] = "INTERNAL_ERROR"
    closes: ClassVar[Scope] = "channel"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @property
    def reply_text(self) -> str:
        """The text of a `channel.close` or `connection.close`: `NOT_FOUND - no queue 'x' in vhost '/'`."""
        return f"{self.reply_name} - {self.detail}"

    def __str__(self) -> str:
        return self.reply_text


class AccessRefused(BrokerError):
    """The name or the queue belongs to somebody else: reserved, internal, in exclusive use."""

    reply_code = 403
    reply_name = "ACCESS_REFUSED"


class NotFound(BrokerError):
    """No such queue, exchange or virtual host."""

    reply_code = 404
    reply_name = "NOT_FOUND"


class ResourceLocked(BrokerError):
    """An exclusive queue of another connection."""

    reply_code = 405
    reply_name = "RESOURCE_LOCKED"


class PreconditionFailed(BrokerError):
    """The thing exists but not as asked: unequal redeclaration, in use, not empty, an invalid argument."""

    reply_code = 406
    reply_name = "PRECONDITION_FAILED"


class UnknownQueueKind(PreconditionFailed):
    """A queue is of a kind that this process has not registered. Nothing was declared, opened or changed.

    `kind` is its name, `queue` says which queue it is.
    """

    def __init__(self, kind: str, queue: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"{queue} is of the kind '{kind}', which is not registered; call register_queue_kind('{kind}', ...) before"
            f" the queue is declared or its broker opened. Known are {', '.join(known)}"
        )
        self.kind = kind
        self.queue = queue


class NotAllowed(BrokerError):
    """Asked of the wrong virtual host, or a consumer tag used twice."""

    reply_code = 530
    reply_name = "NOT_ALLOWED"
    closes: ClassVar[Scope] = "connection"


class MessageTooLarge(PreconditionFailed):
    """The message alone would take so much of the virtual host's memory that others could not go on."""


class ConsumerNotAdmitted(BrokerError):
    """The virtual host's memory is not enough for one consumer more: raise its limit, or lower prefetches."""

    reply_code = 506
    reply_name = "RESOURCE_ERROR"


class NotImplementedByBroker(BrokerError):
    """A part of the protocol this broker, like RabbitMQ, does not offer."""

    reply_code = 540
    reply_name = "NOT_IMPLEMENTED"
    closes: ClassVar[Scope] = "connection"


class BrokerClosed(BrokerError):
    """The broker, virtual host, connection or session was closed. Open another one."""

    reply_code = 320
    reply_name = "CONNECTION_FORCED"
    closes: ClassVar[Scope] = "connection"


class Undeliverable(BrokerError):
    """A message that did not get where it was meant to go. It stays reachable as `message`."""

    def __init__(self, detail: str, *, message: Message) -> None:
        super().__init__(detail)
        self.message = message


class MessageRefused(Undeliverable):
    """Queues at their limit refused the message: `queues` names them. Every other queue it was for has it."""

    reply_code = 311
    reply_name = "CONTENT_TOO_LARGE"

    def __init__(self, detail: str, *, message: Message, queues: tuple[str, ...]) -> None:
        super().__init__(detail, message=message)
        self.queues = queues


class Unroutable(Undeliverable):
    """A mandatory message reached no queue."""

    reply_code = 312
    reply_name = "NO_ROUTE"


class NoConsumers(Undeliverable):
    """An immediate message reached no queue that has a consumer for it now."""

    reply_code = 313
    reply_name = "NO_CONSUMERS"


class SelectorError(PreconditionFailed, ValueError):
    """A selector that does not parse. `position` counts characters from 0 in `text`."""

    def __init__(self, problem: str, *, text: str, position: int) -> None:
        excerpt = text[max(0, position - 20) : position + 20]
        super().__init__(f"selector, character {position}: {problem} (near {excerpt!r})")
        self.problem = problem
        self.text = text
        self.position = position
