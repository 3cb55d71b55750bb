"""Methods of the classes exchange, queue and tx, and what a channel is told about itself (flow, confirm)."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.methods import commands
from .channel import ServerChannel, handles
from .confirms import Confirms
from .replies import REPLY_PREFIX, REPLY_TO, reply_queues
from .transaction import ChannelTransaction, Committed

if TYPE_CHECKING:
    from ...broker import BrokerQueue


_FEW: Final = 256  # messages that are purged at once: half a millisecond, where a thread takes a tenth
_NAP: Final = 0.0002  # seconds, between two slices of long work: a slice takes about as long
_PURGE: Final = commands.Queue.Purge.index.to_bytes(4)
_COMMIT: Final = commands.Tx.Commit.index.to_bytes(4)
_ROLLBACK: Final = commands.Tx.Rollback.index.to_bytes(4)


def queue_name(channel: ServerChannel, name: str) -> str:
    """The name, or that of the queue the channel declared last where it is empty.

    Raises:
        ChannelFault: it declared none.
    """
    if name:
        return name
    if not channel.last_queue:
        raise ChannelFault(404, "no previously declared queue")
    return channel.last_queue


@handles(commands.Exchange.Declare)
def _declare_exchange(channel: ServerChannel, method: Any) -> None:
    connection = channel.connection
    if not method.passive:
        connection.rights.check("configure", "exchange", method.exchange)
        alternate = method.arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            connection.rights.check("read", "exchange", method.exchange)
            connection.rights.check("write", "exchange", alternate)
    connection.host.declare_exchange(
        method.exchange,
        method.exchange_type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        passive=method.passive,
        arguments=method.arguments,
    )
    if not method.nowait:
        channel.reply(commands.Exchange.DeclareOk)


@handles(commands.Exchange.Delete)
def _delete_exchange(channel: ServerChannel, method: Any) -> None:
    channel.connection.rights.check("configure", "exchange", method.exchange)
    channel.connection.host.delete_exchange(method.exchange, if_unused=method.if_unused)
    if not method.nowait:
        channel.reply(commands.Exchange.DeleteOk)


def _checked_exchanges(channel: ServerChannel, method: Any) -> tuple[str, str]:
    """Source and destination of a binding that the user may make and undo."""
    channel.connection.rights.check("write", "exchange", method.destination)
    channel.connection.rights.check("read", "exchange", method.source)
    return method.source, method.destination


@handles(commands.Exchange.Bind)
def _bind_exchange(channel: ServerChannel, method: Any) -> None:
    source, destination = _checked_exchanges(channel, method)
    channel.connection.host.bind_exchange(destination, source, method.routing_key, method.arguments)
    if not method.nowait:
        channel.reply(commands.Exchange.BindOk)


@handles(commands.Exchange.Unbind)
def _unbind_exchange(channel: ServerChannel, method: Any) -> None:
    source, destination = _checked_exchanges(channel, method)
    channel.connection.host.unbind_exchange(destination, source, method.routing_key, method.arguments)
    if not method.nowait:
        channel.reply(commands.Exchange.UnbindOk)


@handles(commands.Queue.Declare)
def _declare_queue(channel: ServerChannel, method: Any) -> None:
    if method.queue == REPLY_TO:  # as RabbitMQ: it is there, though nobody needs to declare it
        if not method.nowait:
            channel.reply(commands.Queue.DeclareOk, queue=REPLY_TO, message_count=0, consumer_count=1)
        return
    queue = _declared(channel, method)
    channel.last_queue = queue.name
    if not method.nowait:
        now = queue.statistics()
        channel.reply(
            commands.Queue.DeclareOk,
            queue=queue.name,
            message_count=now.available,
            consumer_count=now.consumers,
        )


def _declared(channel: ServerChannel, method: Any) -> BrokerQueue:
    connection = channel.connection
    if method.queue.startswith(REPLY_PREFIX) and method.passive:
        queue = reply_queues(connection.host).find(method.queue)
        if queue is None:
            raise ChannelFault(404, f"no queue '{method.queue}' in vhost '{connection.host.name}'")
        return queue
    if not method.passive:
        connection.rights.check("configure", "queue", method.queue or "amq.gen-")
        letters = method.arguments.get("x-dead-letter-exchange")
        if isinstance(letters, str):
            connection.rights.check("read", "queue", method.queue or "amq.gen-")
            connection.rights.check("write", "exchange", letters)
    name = queue_name(channel, method.queue) if method.passive else method.queue
    return connection.host.declare_queue(
        name,
        durable=method.durable and not method.exclusive,  # an exclusive queue does not outlive its connection
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        passive=method.passive,
        arguments=method.arguments,
        owner=connection.owner,
    )


@handles(commands.Queue.Bind)
def _bind_queue(channel: ServerChannel, method: Any) -> None:
    connection = channel.connection
    name, key = _checked_queue(channel, method)
    connection.host.bind_queue(name, method.exchange, key, method.arguments, owner=connection.owner)
    if not method.nowait:
        channel.reply(commands.Queue.BindOk)


@handles(commands.Queue.Unbind)
def _unbind_queue(channel: ServerChannel, method: Any) -> None:
    connection = channel.connection
    name, key = _checked_queue(channel, method)
    connection.host.unbind_queue(name, method.exchange, key, method.arguments, owner=connection.owner)
    channel.reply(commands.Queue.UnbindOk)


def _checked_queue(channel: ServerChannel, method: Any) -> tuple[str, str]:
    """Queue and key of a binding that the user may make and undo; without both, the queue declared last."""
    name = queue_name(channel, method.queue)
    channel.connection.rights.check("write", "queue", name)
    channel.connection.rights.check("read", "exchange", method.exchange)
    return name, method.routing_key if method.queue or method.routing_key else name


@handles(commands.Queue.Purge)
def _purge_queue(channel: ServerChannel, method: Any) -> None:
    connection = channel.connection
    name = queue_name(channel, method.queue)
    connection.rights.check("read", "queue", name)
    queue = connection.host.queue(name, owner=connection.owner)

    def answer(count: int) -> None:
        if not method.nowait:
            channel.reply(commands.Queue.PurgeOk, message_count=count)

    if len(queue) <= _FEW:
        answer(queue.purge())
        return
    server = connection.server

    def is_to_stop() -> bool:
        time.sleep(_NAP)  # so that the I/O thread need not ask for the interpreter's lock, and wait 5 ms for it
        return server.is_closed

    connection.run_long(lambda: queue.purge(is_to_stop), answer, channel, _PURGE)


@handles(commands.Queue.Delete)
def _delete_queue(channel: ServerChannel, method: Any) -> None:
    connection = channel.connection
    name = queue_name(channel, method.queue)
    connection.rights.check("configure", "queue", name)
    count = connection.host.delete_queue(
        name, if_unused=method.if_unused, if_empty=method.if_empty, owner=connection.owner
    )
    if not method.nowait:
        channel.reply(commands.Queue.DeleteOk, message_count=count)


# The channel itself


@handles(commands.Channel.Flow)
def _flow(channel: ServerChannel, method: Any) -> None:
    if not method.active:
        raise ConnectionFault(540, "active=false")
    channel.reply(commands.Channel.FlowOk, active=True)


@handles(commands.Confirm.Select)
def _select_confirms(channel: ServerChannel, method: Any) -> None:
    if channel.transaction is not None:
        raise ChannelFault(406, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms()
    if not method.nowait:
        channel.reply(commands.Confirm.SelectOk)


@handles(commands.Tx.Select)
def _select_transactions(channel: ServerChannel, method: Any) -> None:
    if channel.confirms is not None:
        raise ChannelFault(406, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = ChannelTransaction(channel)
    channel.reply(commands.Tx.SelectOk)


@handles(commands.Tx.Commit)
def _commit(channel: ServerChannel, method: Any) -> None:
    transaction = _transaction(channel)

    def answer(outcome: Committed) -> None:
        for message in outcome.returned:
            channel.send_return(message, 312)
        if not outcome.is_complete:
            raise ChannelFault(406, "partial tx completion")
        channel.reply(commands.Tx.CommitOk)

    def committed(outcome: Committed) -> None:
        connection.do_in_pieces(transaction.committed(), channel, _COMMIT, partial(answer, outcome))

    connection = channel.connection
    connection.run_aside(transaction.commit, committed, channel)


@handles(commands.Tx.Rollback)
def _roll_back(channel: ServerChannel, method: Any) -> None:
    work = _transaction(channel).roll_back()
    channel.connection.do_in_pieces(work, channel, _ROLLBACK, lambda: channel.reply(commands.Tx.RollbackOk))


def _transaction(channel: ServerChannel) -> ChannelTransaction:
    if channel.transaction is None:
        raise ChannelFault(406, "channel is not transactional")
    return channel.transaction
