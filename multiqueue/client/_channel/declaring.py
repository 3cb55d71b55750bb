"""Exchanges, queues and bindings of a channel. They are made again after a recovery: see `recorded_topology`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pamqp import commands

from .calls import ChannelCalls


class QueueDeclared(NamedTuple):
    """What the server says of a queue. `message_count` counts those that are ready to be delivered."""

    queue: str
    message_count: int
    consumer_count: int


class ChannelDeclaring(ChannelCalls):
    """Declares, binds, purges and deletes. Each call blocks until the server has answered."""

    def exchange_declare(
        self,
        exchange: str,
        exchange_type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an exchange, unless it is there as asked; `passive` only looks."""
        self._declare(
            commands.Exchange.Declare,
            commands.Exchange.DeclareOk,
            exchange=exchange,
            exchange_type=exchange_type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )

    def exchange_delete(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; it need not be there."""
        self._declare(commands.Exchange.Delete, commands.Exchange.DeleteOk, exchange=exchange, if_unused=if_unused)

    def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Let messages of `source` that match reach `destination`."""
        names = {"destination": destination, "source": source, "routing_key": routing_key}
        self._bind(commands.Exchange.Bind, commands.Exchange.BindOk, arguments, **names)

    def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Undo an `exchange_bind` of the same parts."""
        names = {"destination": destination, "source": source, "routing_key": routing_key}
        self._bind(commands.Exchange.Unbind, commands.Exchange.UnbindOk, arguments, **names)

    def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueDeclared:
        """Make a queue, unless it is there as asked; without a name the server gives it one. `passive` only looks."""
        answer = self._declare(
            commands.Queue.Declare,
            commands.Queue.DeclareOk,
            queue=queue,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        return QueueDeclared(answer.queue, answer.message_count, answer.consumer_count)

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, which need not be there; returns how many messages it had."""
        fields = {"queue": self._current(queue), "if_unused": if_unused, "if_empty": if_empty}
        return int(self._declare(commands.Queue.Delete, commands.Queue.DeleteOk, **fields).message_count)

    def queue_purge(self, queue: str) -> int:
        """Drop the messages that are ready; returns how many there were."""
        return int(self.call(commands.Queue.Purge, commands.Queue.PurgeOk, queue=self._current(queue)).message_count)

    def queue_bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Let messages of the exchange that match reach the queue."""
        names = {"queue": self._current(queue), "exchange": exchange, "routing_key": routing_key}
        self._bind(commands.Queue.Bind, commands.Queue.BindOk, arguments, **names)

    def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Undo a `queue_bind` of the same parts."""
        names = {"queue": self._current(queue), "exchange": exchange, "routing_key": routing_key}
        self._bind(commands.Queue.Unbind, commands.Queue.UnbindOk, arguments, **names)

    def _bind(self, method: type[Any], expected: type[Any], arguments: Mapping[str, Any] | None, **names: str) -> None:
        self._declare(method, expected, **names, arguments=dict(arguments or {}))

    def _declare(self, method: type[Any], expected: type[Any], **fields: Any) -> Any:
        answer = self.call(method, expected, **fields)
        if not fields.get("passive"):
            self.connection.topology.record(method, fields, getattr(answer, "queue", ""))
        return answer
