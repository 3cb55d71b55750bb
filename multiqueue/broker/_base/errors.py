"""The broker's refusals, each with the reply code and text an AMQP 0-9-1 peer knows.

The type says whose fault it was; `reply_code` and `reply_text` are what a wire server sends, in RabbitMQ's
words, so that a client written against RabbitMQ reads the text it expects. `closes` says how far the damage
reaches over a wire: the channel, or the whole connection. In process nothing is closed.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from multiqueue.errors import MultiQueueError

from .message import Message

Scope = Literal["channel", "connection"]


class BrokerError(MultiQueueError):
    """The root of the broker's refusals. Unless the type says otherwise, nothing was changed."""

    reply_code: ClassVar[int] = 541
    reply_name: ClassVar[str] = "INTERNAL_ERROR"
    closes: ClassVar[Scope] = "channel"

    def __init_subclass__(cls, code: int = 0, name: str = "", closes: Scope | None = None) -> None:
        super().__init_subclass__()
        cls.reply_code = code or cls.reply_code
        cls.reply_name = name or cls.reply_name
        cls.closes = closes or cls.closes

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @property
    def reply_text(self) -> str:
        """The text of a `channel.close` or `connection.close`: `NOT_FOUND - no queue 'x' in vhost '/'`."""
        return f"{self.reply_name} - {self.detail}"

    def __str__(self) -> str:
        return self.reply_text


class AccessRefused(BrokerError, code=403, name="ACCESS_REFUSED"):
    """The name is reserved or internal, or another connection uses the queue exclusively."""


class NotFound(BrokerError, code=404, name="NOT_FOUND"):
    """No such queue, exchange or virtual host."""


class ResourceLocked(BrokerError, code=405, name="RESOURCE_LOCKED"):
    """An exclusive queue of another connection."""


class PreconditionFailed(BrokerError, code=406, name="PRECONDITION_FAILED"):
    """The thing exists but not as asked: unequal redeclaration, in use, not empty, an invalid argument."""


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


class NotAllowed(BrokerError, code=530, name="NOT_ALLOWED", closes="connection"):
    """Asked of the wrong virtual host, or a consumer tag used twice."""


class MessageTooLarge(PreconditionFailed):
    """The message needs more than a quarter of the virtual host's memory limit."""


class ConsumerNotAdmitted(BrokerError, code=506, name="RESOURCE_ERROR"):
    """The virtual host's memory limit has no room for another consumer: raise it, or lower prefetches."""


class NotImplementedByBroker(BrokerError, code=540, name="NOT_IMPLEMENTED", closes="connection"):
    """A part of the protocol this broker, like RabbitMQ, does not offer."""


class CommandInvalid(BrokerError, code=503, name="COMMAND_INVALID", closes="connection"):
    """RabbitMQ 3.10's answer to a type of exchange that it does not know."""


class DeprecatedFeature(BrokerError, code=541, name="INTERNAL_ERROR", closes="connection"):
    """A feature that RabbitMQ will drop, and that `deprecated_features.permit` does not permit here."""

    def __init__(self, feature: str) -> None:
        super().__init__(
            f"Feature `{feature}` is deprecated.\nBy default, this feature is not permitted anymore.\nThe feature will"
            " be removed from a future major RabbitMQ version, regardless of the configuration; actual version to be"
            " determined.\nTo continue using this feature when it is not permitted by default, set the following"
            f' parameter in your configuration:\n    "deprecated_features.permit.{feature} = true"'
        )


class BrokerClosed(BrokerError, code=320, name="CONNECTION_FORCED", closes="connection"):
    """The broker, virtual host, connection or session was closed. Open another one."""


class Undeliverable(BrokerError):
    """A message did not reach its destination. It stays reachable as `message`."""

    def __init__(self, detail: str, *, message: Message) -> None:
        super().__init__(detail)
        self.message = message


class MessageRefused(Undeliverable, code=311, name="CONTENT_TOO_LARGE"):
    """Queues at their limit refused the message: `queues` names them. Every other queue it was for has it."""

    def __init__(self, detail: str, *, message: Message, queues: tuple[str, ...]) -> None:
        super().__init__(detail, message=message)
        self.queues = queues


class Unroutable(Undeliverable, code=312, name="NO_ROUTE"):
    """A mandatory message reached no queue."""


class NoConsumers(Undeliverable, code=313, name="NO_CONSUMERS"):
    """An immediate message reached no queue that has a consumer for it now."""


class SelectorError(PreconditionFailed, ValueError):
    """A selector that does not parse. `position` counts characters from 0 in `text`."""

    def __init__(self, problem: str, *, text: str, position: int) -> None:
        excerpt = text[max(0, position - 20) : position + 20]
        super().__init__(f"selector, character {position}: {problem} (near {excerpt!r})")
        self.problem = problem
        self.text = text
        self.position = position
