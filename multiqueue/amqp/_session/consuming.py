"""Methods of the class basic that are not hot: consume, cancel, get, qos, recover."""

from __future__ import annotations

import secrets
from typing import Any, Final

from ...broker import BrokerQueue, Entry, consumer_arguments
from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.fields import encode_short_string
from .._wire.message import content_of
from .._wire.methods import commands
from .._wire.properties import encode_properties
from .consumer import Held, SessionConsumer, Window
from .declaring import queue_name
from .routing import REPLY_TO, open_reply_queue
from .session import Session, answers, handles

STATUS_QUEUE: Final = "amq.multiqueue.status"
"""A `basic.get` from here is answered with the server's figures, as JSON."""


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
    name = queue_name(session, method.queue)
    client.check("read", "queue", name)
    queue = client.host.queue(name, owner=client.owner)
    arguments = consumer_arguments(queue.label, method.arguments)
    window = None if method.no_ack else Window(session.prefetch, deliveries.window)
    consumer = SessionConsumer(
        tag, queue, session.effects, deliveries.deliver, session.cancelled, no_ack=method.no_ack, window=window
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
        tag, queue, session.effects, deliver, session.cancelled, no_ack=True, window=None, is_reply=True
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
    name = queue_name(session, method.queue)
    client.check("read", "queue", name)
    if name == STATUS_QUEUE:
        _answer_status(session)
        return
    queue = client.host.queue(name, owner=client.owner)
    # The window does not apply: a get is asked for, one by one.
    entry = queue.get(session, auto_accept=method.no_ack)
    if entry is None:
        session.deliveries.got_empty += 1
        session.reply(commands.Basic.GetEmpty)
    else:
        _send_got(session, queue, entry, method.no_ack)


def _send_got(session: Session, queue: BrokerQueue, entry: Entry, no_ack: bool) -> None:
    try:
        content = content_of(entry.message)
    except ValueError as error:
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
    if method.global_:
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

    session.effects.do_in_pieces(session.deliveries.recovering(), session, method.index.to_bytes(4), answer)
