"""Methods of the classes exchange, queue and tx, and what a channel is told about itself (flow, confirm)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from ...broker import BrokerQueue
from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.methods import commands
from .confirms import Confirms
from .routing import REPLY_PREFIX, REPLY_TO, find_reply_queue
from .session import Session, answers, handles
from .transaction import Committed, SessionTransaction

Fields = dict[str, object]  # of an answer
_FEW: Final = 256  # messages that are purged at once: half a millisecond, where a thread takes a tenth
_NAP: Final = 0.0002  # seconds, between two slices of long work: a slice takes about as long
_PURGE: Final = commands.Queue.Purge.index.to_bytes(4)
_COMMIT: Final = commands.Tx.Commit.index.to_bytes(4)
_ROLLBACK: Final = commands.Tx.Rollback.index.to_bytes(4)


def queue_name(session: Session, name: str) -> str:
    """The name, or that of the queue the channel declared last where it is empty. Raises ChannelFault: it declared
    none."""
    if name:
        return name
    if not session.last_queue:
        raise ChannelFault(404, "no previously declared queue")
    return session.last_queue


@answers(commands.Exchange.Declare)
def _declare_exchange(session: Session, method: Any) -> None:
    client = session.client
    if not method.passive:
        client.check("configure", "exchange", method.exchange)
        alternate = method.arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            client.check("read", "exchange", method.exchange)
            client.check("write", "exchange", alternate)
    client.host.declare_exchange(
        method.exchange,
        method.exchange_type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        passive=method.passive,
        arguments=method.arguments,
    )


@answers(commands.Exchange.Delete)
def _delete_exchange(session: Session, method: Any) -> None:
    session.client.check("configure", "exchange", method.exchange)
    session.client.host.delete_exchange(method.exchange, if_unused=method.if_unused)


@answers(commands.Exchange.Bind, commands.Exchange.Unbind)
def _bind_exchange(session: Session, method: Any) -> None:
    """Make or undo a binding."""
    host, check = session.client.host, session.client.check
    check("write", "exchange", method.destination)
    check("read", "exchange", method.source)
    bind = host.bind_exchange if isinstance(method, commands.Exchange.Bind) else host.unbind_exchange
    bind(method.destination, method.source, method.routing_key, method.arguments)


@answers(commands.Queue.Declare)
def _declare_queue(session: Session, method: Any) -> Fields:
    if method.queue == REPLY_TO:  # as RabbitMQ: it is there without a declaration
        return {"queue": REPLY_TO, "message_count": 0, "consumer_count": 1}
    queue = _declared(session, method)
    session.last_queue = queue.name
    now = queue.statistics()
    return {"queue": queue.name, "message_count": now.available, "consumer_count": now.consumers}


def _declared(session: Session, method: Any) -> BrokerQueue:
    client = session.client
    if method.queue.startswith(REPLY_PREFIX) and method.passive:
        queue = find_reply_queue(client.host, method.queue)
        if queue is None:
            raise ChannelFault(404, f"no queue '{method.queue}' in vhost '{client.host.name}'")
        return queue
    if not method.passive:
        client.check("configure", "queue", method.queue or "amq.gen-")
        letters = method.arguments.get("x-dead-letter-exchange")
        if isinstance(letters, str):
            client.check("read", "queue", method.queue or "amq.gen-")
            client.check("write", "exchange", letters)
    return client.host.declare_queue(
        method.queue,
        durable=method.durable and not method.exclusive,  # an exclusive queue does not outlive its connection
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        passive=method.passive,
        arguments=method.arguments,
        owner=client.owner,
    )


@answers(commands.Queue.Bind, commands.Queue.Unbind)
def _bind_queue(session: Session, method: Any) -> None:
    """Make or undo a binding; without queue and key, of the queue declared last by its name."""
    host, check = session.client.host, session.client.check
    name = queue_name(session, method.queue)
    check("write", "queue", name)
    check("read", "exchange", method.exchange)
    key = method.routing_key if method.queue or method.routing_key else name
    bind = host.bind_queue if isinstance(method, commands.Queue.Bind) else host.unbind_queue
    bind(name, method.exchange, key, method.arguments, owner=session.client.owner)


@handles(commands.Queue.Purge)
def _purge_queue(session: Session, method: Any) -> None:
    client = session.client
    name = queue_name(session, method.queue)
    client.check("read", "queue", name)
    queue = client.host.queue(name, owner=client.owner)

    effects = session.effects

    def is_to_stop() -> bool:
        time.sleep(_NAP)  # so that the I/O thread need not ask for the interpreter's lock, and wait 5 ms for it
        return effects.is_closed

    def answer(count: int) -> None:
        if not method.nowait:
            session.reply(commands.Queue.PurgeOk, message_count=count)

    if len(queue) <= _FEW:
        answer(queue.purge())
    else:
        effects.offload_long(lambda: partial(answer, queue.purge(is_to_stop)), session, _PURGE)


@answers(commands.Queue.Delete)
def _delete_queue(session: Session, method: Any) -> Fields:
    client = session.client
    name = queue_name(session, method.queue)
    client.check("configure", "queue", name)
    count = client.host.delete_queue(name, if_unused=method.if_unused, if_empty=method.if_empty, owner=client.owner)
    return {"message_count": count}


@answers(commands.Channel.Flow)
def _flow(session: Session, method: Any) -> Fields:
    if not method.active:
        raise ConnectionFault(540, "active=false")
    return {"active": True}


@answers(commands.Confirm.Select)
def _select_confirms(session: Session, method: Any) -> None:
    if session.transaction is not None:
        raise ChannelFault(406, "cannot switch from tx to confirm mode")
    if session.publishing.confirms is None:
        session.publishing.confirms = Confirms(session.number)


@answers(commands.Tx.Select)
def _select_transactions(session: Session, method: Any) -> None:
    if session.publishing.confirms is not None:
        raise ChannelFault(406, "cannot switch from confirm to tx mode")
    if session.transaction is None:
        session.transaction = SessionTransaction(session.client.host)


@handles(commands.Tx.Commit)
def _commit(session: Session, method: Any) -> None:
    transaction = _transaction(session)

    def answer(outcome: Committed) -> None:
        for message in outcome.returned:
            session.publishing.send_return(message)
        if not outcome.is_complete:
            raise ChannelFault(406, "partial tx completion")
        session.reply(commands.Tx.CommitOk)

    def committed(outcome: Committed) -> None:
        opening = session.deliveries.opening(transaction.take_committed())
        session.effects.do_in_pieces(opening, session, _COMMIT, partial(answer, outcome))

    session.effects.offload(lambda: partial(committed, transaction.commit()), session)


@handles(commands.Tx.Rollback)
def _roll_back(session: Session, method: Any) -> None:
    _transaction(session)
    answer = partial(session.reply, commands.Tx.RollbackOk)
    session.effects.do_in_pieces(session.rolling_back(), session, _ROLLBACK, answer)


def _transaction(session: Session) -> SessionTransaction:
    if session.transaction is None:
        raise ChannelFault(406, "channel is not transactional")
    return session.transaction
