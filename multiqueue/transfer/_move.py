"""Declares at another broker what a virtual host keeps, then hands its messages over, queue by queue.

Promise     1. A message is acknowledged here after the other broker confirmed it: however a move ends, each message is
            on one side at least, and the same move again goes on. Those in the window may then arrive twice. 2.
            Messages of a queue arrive in the order in which a consumer here would be given them. 3. A declaration or a
            message that the other side refuses, or one that cannot be read, ends the move with its name and the
            reason. 4. A message arrives in its queue alone: what `CC` sent to other queues moves with those.
State       None of its own: moved messages are no longer here. A window of messages is between the two sides.
Names       A queue whose name a broker gave must be there: brokers refuse it to clients. Ours takes it in definitions.
Not moved   The exchange and the routing key that a message was published with, for it goes straight to its queue. The
            property `user_id`, for the other side would take it for a forgery. Queues that are not durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..broker import Exchange, VirtualHost
from ..client import Channel, ClientError, Confirm, Connection, ConnectionClosed, Message, connect
from ..errors import MultiQueueError

_GENERATED = "amq.gen-"  # names that a broker gave
_WINDOW = 1000  # messages that were published and are not confirmed yet
_ANSWER_S = 60.0  # the longest wait for a confirm


class NotMoved(MultiQueueError):
    """The other broker refused something, and the same move again goes on; or a message cannot be read."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class Moved:
    """How much a move brought over. `left` counts messages that no consumer could be given now: delayed ones."""

    exchanges: int
    queues: int
    bindings: int
    messages: int
    left: int


def move(host: VirtualHost, target: Connection, progress: Callable[[str, int], object] | None = None) -> Moved:
    """Declare the durable part of a virtual host at `target`, and move its messages.

    Blocks until all is moved. `progress` is called with the name of each queue and how many messages it had. Publishers
    and consumers of the virtual host are to have ended: a move does not wait for theirs.

    Raises:
        NotMoved: `target` refused a declaration or a message, or a message cannot be read here.
        ConnectionClosed: the connection to `target` was lost.
    """
    exchanges, queues, bindings = _declare(host, target)
    messages = 0
    with connect(host) as ours, ours.channel() as giving, target.channel() as taking:
        for name in queues:
            count = _move_queue(name, giving, taking)
            messages += count
            if progress is not None:
                progress(name, count)
    left = sum(host.queue(name).statistics().depth for name in queues)  # the acknowledgements are through now
    return Moved(exchanges, len(queues), bindings, messages, left)


def _declare(source: VirtualHost, target: Connection) -> tuple[int, list[str], int]:
    """How many exchanges, which queues and how many bindings there are at `target` now."""
    exchanges = [one for one in source.exchanges() if one.durable and one.name and not one.name.startswith("amq.")]
    queues = [one for one in source.declared_queues() if one.queue.settings.durable]
    for exchange in exchanges:
        with _one_declaration(target, f"the exchange {exchange.name!r}") as channel:
            channel.exchange_declare(
                exchange.name,
                exchange.type,
                durable=True,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
    for queue in queues:
        is_there = queue.name.startswith(_GENERATED)
        hint = ", whose name no client may choose; move its messages to another queue first" if is_there else ""
        with _one_declaration(target, f"the queue {queue.name!r}{hint}") as channel:
            settings = queue.queue.settings
            flags = {"passive": is_there, "durable": True, "auto_delete": settings.auto_delete}
            channel.queue_declare(queue.name, **flags, arguments=queue.arguments)
    lasting = {id(one) for one in exchanges} | {id(one.queue) for one in queues}
    bindings = 0
    for binding in source.bindings():
        begin, end = binding.source, binding.destination
        if not begin.name or id(end) not in lasting or not (id(begin) in lasting or begin.name.startswith("amq.")):
            continue
        with _one_declaration(target, f"the binding of {end.name!r} to {begin.name!r}") as channel:
            bind = channel.exchange_bind if isinstance(end, Exchange) else channel.queue_bind
            bind(end.name, begin.name, binding.routing_key, binding.arguments)
        bindings += 1
    return len(exchanges), [one.name for one in queues], bindings


@contextmanager
def _one_declaration(target: Connection, what: str) -> Iterator[Channel]:
    """A channel of its own, for a refusal closes it."""
    try:
        with target.channel() as channel:
            yield channel
    except ConnectionClosed:
        raise
    except ClientError as error:
        raise NotMoved(f"the other broker refused {what}: {error}") from error


def _move_queue(name: str, giving: Channel, taking: Channel) -> int:
    """Move what a queue has; how many messages that was."""
    window: deque[tuple[Message, Confirm]] = deque()
    count = 0
    try:
        while True:
            message = _next(name, giving)
            if message is None:
                break
            properties = _properties(message)
            confirm = taking.publish_confirmed(
                message.body, routing_key=name, mandatory=True, timeout=_ANSWER_S, **properties
            )
            window.append((message, confirm))
            if len(window) == _WINDOW:
                _settle(window)
            count += 1
        for _ in range(len(window)):
            _settle(window)
    except ConnectionClosed:
        raise
    except ClientError as error:
        raise NotMoved(f"the other broker refused a message of the queue {name!r}: {error}") from error
    finally:
        for message, confirm in window:  # of a move that ends here: what has arrived is not to arrive again
            if confirm.done() and confirm.exception() is None:
                message.ack()
    return count


def _next(name: str, giving: Channel) -> Message | None:
    try:
        return giving.basic_get(name)
    except ClientError as error:
        raise NotMoved(
            f"the next message of the queue {name!r} cannot be read: {error}; move instead what"
            " `multiqueue store dump` saves, once `load` has it in a new directory of the same name"
        ) from error


def _settle(window: deque[tuple[Message, Confirm]]) -> None:
    """Wait until the oldest message is over there, and let it go here."""
    message, confirm = window[0]
    confirm.result(_ANSWER_S)
    message.ack()
    window.popleft()


def _properties(message: Message) -> dict[str, Any]:
    """A message's properties, without those that the other side would act upon once more."""
    properties: dict[str, Any] = dict(message.properties)
    properties.pop("user_id", None)
    headers = properties.get("headers")
    if headers and "CC" in headers:
        properties["headers"] = {key: value for key, value in headers.items() if key != "CC"}
    return properties
