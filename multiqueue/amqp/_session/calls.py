"""The methods that a client calls on a channel, done with the broker; `Session` knows the hot ones.

In the order of the specification: channel, exchange, queue, basic, confirms, transactions.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ...broker import CONSUMER_ARGUMENTS, BrokerQueue, Entry, VirtualHost, consumer_arguments
from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.fields import encode_short_string
from .._wire.methods import commands
from .._wire.properties import encode_properties
from .confirms import Confirms
from .consumer import Held, SessionConsumer, Window
from .deliveries import counted_content
from .effects import Client, Kind, Operation
from .machine import CHANNEL_CLOSE
from .routing import REPLY_PREFIX, REPLY_TO, find_reply_queue, open_reply_queue
from .session import Session, answers, handles
from .transaction import Committed, SessionTransaction

Fields = dict[str, object]  # of an answer
_FEW: Final = 256  # messages that are purged at once: half a millisecond, where a thread takes a tenth
_NAP: Final = 0.0002  # seconds, between two slices of long work: a slice takes about as long
_GLOBAL_IS_EACH: Final = "a prefetch with global is each consumer's, unless `global_qos` is permitted"
_OPERATIONS: Final[tuple[Operation, ...]] = ("configure", "write", "read")
STATUS_QUEUE: Final = "amq.multiqueue.status"
"""A `basic.get` from here is answered with the server's figures, as JSON."""


Right = tuple[Operation, Kind, str]


def rights_for_queue(host: VirtualHost, name: str, arguments: Mapping[str, object]) -> Iterator[Right]:
    """What a user must be permitted for this declaration; of a queue that is there, its arguments are not looked at."""
    yield "configure", "queue", name
    if host.has_queue(name):
        return
    letters = arguments.get("x-dead-letter-exchange")
    if isinstance(letters, str):
        yield from (("read", "queue", name), ("write", "exchange", letters))


def rights_for_exchange(host: VirtualHost, name: str, arguments: Mapping[str, object]) -> Iterator[Right]:
    """As `rights_for_queue`."""
    yield "configure", "exchange", name
    if host.has_exchange(name):
        return
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        yield from (("read", "exchange", name), ("write", "exchange", alternate))


def _permitted(session: Session, operation: Operation, name: str) -> str:
    """The name of a queue with which the client may do this; where it is empty, of the one the channel declared last.
    Raises ChannelFault: it may not, or has declared none."""
    name = name or session.last_queue
    if not name:
        raise ChannelFault(404, "no previously declared queue")
    session.client.check(operation, "queue", name)
    return name


def _check_passive(client: Client, kind: Kind, name: str) -> None:
    """Return when the user may learn whether it is there: who may do something with it. Raises ChannelFault."""
    if client.host.compat.says("a passive declaration needs a permission, whichever"):
        for operation in _OPERATIONS[1:]:
            with suppress(ChannelFault):
                return client.check(operation, kind, name)
        client.check(_OPERATIONS[0], kind, name)


@answers(commands.Channel.Open)
def _open(session: Session, method: Any) -> None:
    """It is open: `ChannelMachine` says so."""


@answers(commands.Channel.Flow)
def _flow(session: Session, method: Any) -> Fields:
    if not method.active:
        raise ConnectionFault(540, "active=false")
    return {"active": True}


@handles(commands.Channel.Close)
def _close(session: Session, method: Any) -> None:
    def answer() -> None:
        session.effects.forget(session)
        session.reply(commands.Channel.CloseOk)

    session.effects.do_in_pieces(session.end(), session, CHANNEL_CLOSE, answer)


@handles(commands.Channel.CloseOk)
def _closed(session: Session, method: Any) -> None:
    session.effects.forget(session)


@answers(commands.Exchange.Declare)
def _declare_exchange(session: Session, method: Any) -> None:
    client = session.client
    if method.passive:
        _check_passive(client, "exchange", method.exchange)
    else:
        for right in rights_for_exchange(client.host, method.exchange, method.arguments):
            client.check(*right)
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
    session.client.check_key("read", method.source, method.routing_key)
    bind = host.bind_exchange if isinstance(method, commands.Exchange.Bind) else host.unbind_exchange
    bind(method.destination, method.source, method.routing_key, method.arguments)


@answers(commands.Queue.Declare)
def _declare_queue(session: Session, method: Any) -> Fields:
    if method.queue == REPLY_TO:  # as RabbitMQ: it is there without a declaration
        return {"queue": REPLY_TO, "message_count": 0, "consumer_count": 1}
    queue = _declared(session, method)
    now = queue.statistics()
    if queue.is_deleted:  # meanwhile: what was counted may be nothing
        queue = _declared(session, method)
        now = queue.statistics()
    session.last_queue = queue.name
    return {"queue": queue.name, "message_count": now.available, "consumer_count": now.consumers}


def _declared(session: Session, method: Any) -> BrokerQueue:
    client = session.client
    if method.queue.startswith(REPLY_PREFIX) and method.passive:
        queue = find_reply_queue(client.host, method.queue)
        if queue is None:
            raise ChannelFault(404, f"no queue '{method.queue}' in vhost '{client.host.name}'")
        return queue
    if method.passive:
        _check_passive(client, "queue", method.queue)
    else:
        for right in rights_for_queue(client.host, method.queue or "amq.gen-", method.arguments):
            client.check(*right)
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
    name = _permitted(session, "write", method.queue)
    check("read", "exchange", method.exchange)
    key = method.routing_key if method.queue or method.routing_key else name
    session.client.check_key("read", method.exchange, key)
    bind = host.bind_queue if isinstance(method, commands.Queue.Bind) else host.unbind_queue
    bind(name, method.exchange, key, method.arguments, owner=session.client.owner)


@handles(commands.Queue.Purge)
def _purge_queue(session: Session, method: Any) -> None:
    client, effects = session.client, session.effects
    name = _permitted(session, "read", method.queue)
    queue = client.host.queue(name, owner=client.owner)

    def is_to_stop() -> bool:
        time.sleep(_NAP)  # so that the I/O thread need not ask for the interpreter's lock, and wait 5 ms for it
        return effects.is_closed

    def answer(count: int) -> None:
        client.host.queue(name, owner=client.owner)  # raises where it is gone meanwhile, as `_get`
        if not method.nowait:
            session.reply(commands.Queue.PurgeOk, message_count=count)

    if len(queue) <= _FEW:
        answer(queue.purge())
    else:
        effects.offload_long(lambda: partial(answer, queue.purge(is_to_stop)), session, method.index.to_bytes(4))


@answers(commands.Queue.Delete)
def _delete_queue(session: Session, method: Any) -> Fields:
    client = session.client
    name = _permitted(session, "configure", method.queue)
    count = client.host.delete_queue(name, if_unused=method.if_unused, if_empty=method.if_empty, owner=client.owner)
    return {"message_count": count}


@handles(commands.Basic.Consume)
def _consume(session: Session, method: Any) -> None:
    tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    if tag in session.consumers:
        raise ConnectionFault(530, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == REPLY_TO:
        consumer = _reply_consumer(session, tag, method.no_ack)
    else:
        consumer = _queue_consumer(session, tag, method)
    session.consumers[tag] = consumer
    if not method.nowait:
        session.reply(commands.Basic.ConsumeOk, consumer_tag=tag)
    if not session.effects.is_held_back:
        consumer.want(True)


def _queue_consumer(session: Session, tag: str, method: Any) -> SessionConsumer:
    client, deliveries = session.client, session.deliveries
    name = _permitted(session, "read", method.queue)
    queue = client.host.queue(name, owner=client.owner)
    compat, type = client.host.compat, queue.settings.type
    compat.check_consumer(queue.label, type, method.arguments, CONSUMER_ARGUMENTS)
    compat.check_window(queue.label, type, is_global=deliveries.window.limit is not None)
    arguments = consumer_arguments(queue.label, method.arguments, compat)
    window = None if method.no_ack else Window(session.prefetch, deliveries.window)
    consumer = SessionConsumer(
        tag, queue, session.effects, deliveries.deliver, session.cancelled, session.end_late, window
    )
    consumer.consumer = queue.add_consumer(
        consumer.on_work,
        tag=tag,
        credit=window,
        selector=arguments.selector,
        priority=arguments.priority,
        auto_accept=method.no_ack,
        exclusive=method.exclusive,
        no_local=method.no_local,
        connection=client.owner,
        on_cancelled=consumer.on_cancelled,
        timeout=arguments.timeout,
        on_timed_out=consumer.on_timed_out,
    )
    return consumer


def _reply_consumer(session: Session, tag: str, no_ack: bool) -> SessionConsumer:
    """Direct reply-to: a queue of the session's own, which no exchange and no other client knows."""
    if not no_ack:
        raise ChannelFault(406, "reply consumer cannot acknowledge")
    if session.publishing.reply_address is not None:
        raise ChannelFault(406, "reply consumer already set")
    queue = open_reply_queue(session.client.host)
    deliver = session.deliveries.deliver
    consumer = SessionConsumer(
        tag, queue, session.effects, deliver, session.cancelled, session.end_late, None, is_reply=True
    )
    consumer.consumer = queue.add_consumer(consumer.on_work, tag=tag, auto_accept=True)
    session.publishing.reply_address = queue.name
    return consumer


@answers(commands.Basic.Cancel)
def _cancel(session: Session, method: Any) -> dict[str, object]:
    consumer = session.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        consumer.stop(session.client.host)
        if consumer.is_reply:
            session.publishing.reply_address = None
    return {"consumer_tag": method.consumer_tag}


@handles(commands.Basic.Get)
def _get(session: Session, method: Any) -> None:
    client = session.client
    name = _permitted(session, "read", method.queue)
    if name == STATUS_QUEUE:
        _answer_status(session)
        return
    queue = client.host.queue(name, owner=client.owner)
    settings = queue.settings
    client.host.compat.check_get(queue.label, settings.type, is_single=settings.single_active_consumer)
    # The window does not apply: a get is asked for, one by one.
    entry = queue.get(session, auto_accept=method.no_ack)
    if entry is None:
        client.host.queue(name, owner=client.owner)  # raises where it is gone meanwhile: that is not to be empty
        session.deliveries.got_empty += 1
        session.reply(commands.Basic.GetEmpty)
    else:
        _send_got(session, queue, entry, method.no_ack)


def _send_got(session: Session, queue: BrokerQueue, entry: Entry, no_ack: bool) -> None:
    try:
        content = counted_content(entry, is_got=True)
    except (ValueError, TypeError) as error:
        if not no_ack:
            queue.reject(entry, session)
        raise ChannelFault(541, f"a message of {queue.label} cannot go over a wire: {error}") from error
    tag = session.deliveries.next_tag(None if no_ack else Held(entry, session, None), redelivered=entry.redelivered)
    session.out.got(session.number, tag, entry.redelivered, queue.statistics().available, content)


def _answer_status(session: Session) -> None:
    names = encode_short_string("") + encode_short_string(STATUS_QUEUE)
    properties = encode_properties({"content_type": "application/json"})
    content = names, properties, session.effects.status_json()
    session.out.got(session.number, session.deliveries.next_tag(None), False, 0, content)


@answers(commands.Basic.Qos)
def _qos(session: Session, method: Any) -> None:
    if method.prefetch_size:
        raise ConnectionFault(540, f"prefetch_size!=0 ({method.prefetch_size})")
    limit = method.prefetch_count or None
    compat = session.client.host.compat
    if method.global_ and (compat.permits("global_qos") or not compat.says(_GLOBAL_IS_EACH)):
        compat.use("global_qos")
        session.deliveries.window.limit = limit
        session.deliveries.look_again()
    else:
        session.prefetch = limit


@handles(commands.Basic.Recover, commands.Basic.RecoverAsync)
def _recover(session: Session, method: Any) -> None:
    if not method.requeue:
        raise ConnectionFault(540, "requeue=false")

    def answer() -> None:
        if isinstance(method, commands.Basic.Recover):
            session.reply(commands.Basic.RecoverOk)

    work = session.deliveries.settle_all(0, "release", None)
    session.effects.do_in_pieces(work, session, method.index.to_bytes(4), answer)


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
        opening = session.deliveries.opening(outcome.settled)
        session.effects.do_in_pieces(opening, session, method.index.to_bytes(4), partial(answer, outcome))

    session.effects.offload(lambda: partial(committed, transaction.commit()), session)


@handles(commands.Tx.Rollback)
def _roll_back(session: Session, method: Any) -> None:
    _transaction(session)
    answer = partial(session.reply, commands.Tx.RollbackOk)
    session.effects.do_in_pieces(session.rolling_back(), session, method.index.to_bytes(4), answer)


def _transaction(session: Session) -> SessionTransaction:
    if session.transaction is None:
        raise ChannelFault(406, "channel is not transactional")
    return session.transaction
