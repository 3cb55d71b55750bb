"""Methods of the class basic that are not hot: consume, cancel, get, qos, recover."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...broker import consumer_arguments
from .._wire.errors import ChannelFault, ConnectionFault
from .._wire.fields import encode_short_string
from .._wire.hot import encode_get_ok
from .._wire.message import body_of, names_of, properties_of
from .._wire.methods import commands
from .._wire.properties import encode_properties
from .channel import Held, ServerChannel, handles
from .consumer import ServerConsumer
from .declaring import queue_name
from .replies import REPLY_TO, reply_queues
from .window import Window

if TYPE_CHECKING:
    from ...broker import BrokerQueue, Entry

STATUS_QUEUE: Final = "amq.multiqueue.status"
"""A `basic.get` from here is answered with the server's figures, as JSON."""


@handles(commands.Basic.Consume)
def _consume(channel: ServerChannel, method: Any) -> None:
    tag = method.consumer_tag or channel.unused_tag()
    if tag in channel.consumers:
        raise ConnectionFault(530, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == REPLY_TO:
        consumer = _reply_consumer(channel, tag, method.no_ack)
    else:
        consumer = _queue_consumer(channel, tag, method)
    channel.consumers[tag] = consumer
    if not method.nowait:
        channel.reply(commands.Basic.ConsumeOk, consumer_tag=tag)
    if not channel.connection.is_held_back:
        consumer.want(True)


def _queue_consumer(channel: ServerChannel, tag: str, method: Any) -> ServerConsumer:
    connection = channel.connection
    name = queue_name(channel, method.queue)
    connection.rights.check("read", "queue", name)
    queue = connection.host.queue(name, owner=connection.owner)
    arguments = consumer_arguments(queue.label, method.arguments)
    window = None if method.no_ack else Window(channel.prefetch, channel.window)
    consumer = ServerConsumer(channel, tag, queue, no_ack=method.no_ack, window=window)
    consumer.consumer = queue.add_consumer(
        consumer.on_work,
        tag=tag,
        credit=window,
        selector=arguments.selector,
        priority=arguments.priority,
        auto_accept=method.no_ack,
        exclusive=method.exclusive,
        no_local=method.no_local,
        connection=connection.owner,
        on_cancelled=consumer.on_cancelled,
    )
    return consumer


def _reply_consumer(channel: ServerChannel, tag: str, no_ack: bool) -> ServerConsumer:
    """Direct reply-to: a queue of the channel's own, which no exchange and no other client knows."""
    if not no_ack:
        raise ChannelFault(406, "reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise ChannelFault(406, "reply consumer already set")
    host = channel.connection.host
    queue = reply_queues(host).open(host.name)
    consumer = ServerConsumer(channel, tag, queue, no_ack=True, window=None)
    consumer.is_reply = True
    consumer.consumer = queue.add_consumer(consumer.on_work, tag=tag, auto_accept=True)
    channel.reply_consumer = consumer
    return consumer


@handles(commands.Basic.Cancel)
def _cancel(channel: ServerChannel, method: Any) -> None:
    consumer = channel.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        consumer.stop()
        if consumer is channel.reply_consumer:
            channel.reply_consumer = None
    if not method.nowait:
        channel.reply(commands.Basic.CancelOk, consumer_tag=method.consumer_tag)


@handles(commands.Basic.Get)
def _get(channel: ServerChannel, method: Any) -> None:
    connection = channel.connection
    name = queue_name(channel, method.queue)
    connection.rights.check("read", "queue", name)
    if name == STATUS_QUEUE:
        _answer_status(channel)
        return
    queue = connection.host.queue(name, owner=connection.owner)
    # The window does not apply: a get is asked for, one by one.
    entry = queue.get(channel, auto_accept=method.no_ack)
    if entry is None:
        channel.reply(commands.Basic.GetEmpty)
    else:
        _send_got(channel, queue, entry, method.no_ack)


def _send_got(channel: ServerChannel, queue: BrokerQueue, entry: Entry, no_ack: bool) -> None:
    connection, message = channel.connection, entry.message
    try:
        content = properties_of(message), body_of(message)
        names = names_of(message)
    except ValueError as error:
        if not no_ack:
            queue.reject(entry, channel)
        raise ChannelFault(541, f"a message of {queue.label} cannot go over a wire: {error}") from error
    tag = channel.next_tag()
    if not no_ack:
        channel.unacked[tag] = Held(entry, channel, None)
    left = queue.statistics().available
    connection.send(encode_get_ok(channel.number, tag, entry.redelivered, names, left, *content, connection.frame_max))


def _answer_status(channel: ServerChannel) -> None:
    connection = channel.connection
    names = encode_short_string("") + encode_short_string(STATUS_QUEUE)
    properties = encode_properties({"content_type": "application/json"})
    body = connection.server.status_json()
    connection.send(
        encode_get_ok(channel.number, channel.next_tag(), False, names, 0, properties, body, connection.frame_max)
    )


@handles(commands.Basic.Qos)
def _qos(channel: ServerChannel, method: Any) -> None:
    if method.prefetch_size:
        raise ConnectionFault(540, f"prefetch_size!=0 ({method.prefetch_size})")
    limit = method.prefetch_count or None
    if method.global_:
        channel.window.limit = limit
        channel.look_again()
    else:
        channel.prefetch = limit
    channel.reply(commands.Basic.QosOk)


@handles(commands.Basic.Recover)
def _recover(channel: ServerChannel, method: Any) -> None:
    _recover_all(channel, method, lambda: channel.reply(commands.Basic.RecoverOk))


@handles(commands.Basic.RecoverAsync)
def _recover_async(channel: ServerChannel, method: Any) -> None:
    _recover_all(channel, method, lambda: None)


def _recover_all(channel: ServerChannel, method: Any, answer: Callable[[], object]) -> None:
    if not method.requeue:
        raise ConnectionFault(540, "requeue=false")
    channel.connection.do_in_pieces(channel.recovering(), channel, method.index.to_bytes(4), answer)
