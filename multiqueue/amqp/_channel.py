"""A channel of the server: publishes into the broker, deliveries out of it, and who has what until it is acked.

Promise     What was delivered and not acked goes back to its place, flagged, when the channel ends for any reason. A
            publish is confirmed after the broker has answered for it, and never before its `basic.return`.
State       Everything here belongs to the I/O thread of the connection. What other threads have to say (a commit, a
            deleted queue) is posted to it.
Effects     Frames go to `connection.send`; the connection writes them when its turn ends.
Membership  `end` is the one way out: consumers first, so that nothing comes back to a channel that ends, then what is
            unacked, in order of delivery.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..broker import IllegalStep, MessageRefused, Unroutable
from . import _message
from ._channel_machine import CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_OPEN, ChannelMachine, ChannelState, Content
from ._confirms import Confirms
from ._errors import REPLY_NAMES, ChannelFault, ConnectionFault
from ._hot import ACK, NACK, REJECT, Ack, Nack, Reject, decode_hot, encode_deliver, encode_return
from ._message import WireMessage, body_of, names_of, properties_of, wire_message
from ._methods import commands, decode_method, encode_method
from ._window import ChannelWindow

if TYPE_CHECKING:
    from ..broker import BrokerQueue, Entry, Message, Published
    from ._connection import ServerConnection
    from ._consumer import ServerConsumer
    from ._transaction import ChannelTransaction

_log = logging.getLogger("multiqueue.amqp")

REPLY_TO: Final = "amq.rabbitmq.reply-to"
_REPLY_PREFIX: Final = REPLY_TO + "."


class Held(NamedTuple):
    """A message in a client's hands: its entry, who has it by the queue's books, and the consumer if there is one."""

    entry: Entry
    owner: object
    consumer: ServerConsumer | None


class ServerChannel:
    """One channel. Made by the connection when the client opens it."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.machine = ChannelMachine(connection.settings.max_message_bytes)
        self.consumers: dict[str, ServerConsumer] = {}
        self.unacked: dict[int, Held] = {}  # by delivery tag, rising
        self.window = ChannelWindow()
        self.prefetch: int | None = None  # of consumers that start from now on
        self.confirms: Confirms | None = None
        self.transaction: ChannelTransaction | None = None
        self.last_queue = ""  # what an empty queue name means
        self.reply_consumer: ServerConsumer | None = None
        self._last_tag = 0
        self._last_published: Published | None = None  # the last one that had to be committed
        # The publish of before: its payload, and what was found out about it. Most publishers repeat themselves.
        self._last_publish = b""
        self._address: tuple[str, str, bytes, bool, bool] = ("", "", b"", False, False)

    # -- frames

    def receive(self, kind: int, payload: bytes) -> None:
        """A frame has come.

        Raises:
            AmqpError, BrokerError: it cannot be done; the connection knows what that costs.
        """
        effect = self.machine.receive(kind, payload)
        if effect is None:
            return
        if not isinstance(effect, bytes):
            self._publish(effect)
            return
        hot = _HOT.get(effect[:4])
        if hot is not None:
            hot(self, decode_hot(effect))
        elif self._last_published is not None and not self._last_published.is_confirmed:
            self._after_commits(effect)
        else:
            self._call(effect)

    def _after_commits(self, payload: bytes) -> None:
        """A method comes after publishes whose commit is under way: it has to see them, so it waits for them.

        Commits end in the order of publishing, so the last one is enough to wait for.
        """
        connection, last = self.connection, self._last_published
        assert last is not None
        self._last_published = None
        connection.set_aside(self, payload)
        last.add_done_callback(lambda _: connection.io.post(connection.go_on, self))

    def resume(self, payload: bytes) -> None:
        """A method that was set aside is called now. Raises as `receive`."""
        if self.machine.state is not ChannelState.CLOSING:
            self._call(payload)

    def _call(self, payload: bytes) -> None:
        method = payload[:4]
        if method == CHANNEL_OPEN:
            self.reply(commands.Channel.OpenOk)
        elif method == CHANNEL_CLOSE:
            self.end()
            self.connection.forget_channel(self)
            self.reply(commands.Channel.CloseOk)
        elif method == CHANNEL_CLOSE_OK:
            self.connection.forget_channel(self)
        else:
            handler = HANDLERS.get(method)
            if handler is None:
                raise ConnectionFault(503, f"no way to call {method.hex()} on a channel")
            handler(self, decode_method(payload))

    def reply(self, method: Any, **fields: Any) -> None:
        """Send a method."""
        self.connection.send(encode_method(self.number, method, **fields))

    def fault(self, code: int, text: str, method: bytes) -> None:
        """Close the channel for a fault of the client's."""
        self.end()
        self.machine.close()
        self.reply(
            commands.Channel.Close,
            reply_code=code,
            reply_text=text.encode()[:255].decode(errors="ignore"),
            class_id=int.from_bytes(method[:2]),
            method_id=int.from_bytes(method[2:4]),
        )

    # -- publishing

    def _publish(self, content: Content) -> None:
        method, properties, body = content
        if method != self._last_publish:
            self._address = self._look_at(method)
            self._last_publish = method
        exchange, routing_key, names, mandatory, is_reply = self._address
        connection = self.connection
        known = connection.digests.of(properties)
        number = self.confirms.begin() if self.confirms is not None else 0
        message = wire_message(body, exchange, routing_key, names, properties, known, connection.owner)
        connection.publishes()
        if known.special or is_reply or self.transaction is not None:
            self._publish_specially(message, mandatory, number)
            return
        try:
            published = connection.host.publish_nowait(message, mandatory=mandatory)
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self._refused(number)
        else:
            self._published(published, number)

    def _look_at(self, method: bytes) -> tuple[str, str, bytes, bool, bool]:
        """Exchange, routing key, both as on the wire, mandatory, and whether it answers a direct reply-to."""
        publish: Any = decode_hot(method)
        if publish.immediate:
            raise ConnectionFault(540, "immediate=true")
        self.connection.rights.check("write", "exchange", publish.exchange)
        is_reply = not publish.exchange and publish.routing_key.startswith(_REPLY_PREFIX)
        return publish.exchange, publish.routing_key, method[6:-1], publish.mandatory, is_reply

    def _publish_specially(self, message: WireMessage, mandatory: bool, number: int) -> None:
        """A publish in a transaction, to several keys, with a reply-to of ours, or as an answer to one."""
        host = self.connection.host
        try:
            message = self._with_direct_reply(message)
            queues, message = self._route(message)
            if mandatory and not queues:
                raise Unroutable("", message=message)
            if self.transaction is not None:
                self.transaction.publish(message, queues)
                return
            self._published(host.put_on(queues, message), number)
        except Unroutable:
            self._unroutable(message, number)
        except MessageRefused:
            self._refused(number)

    def _with_direct_reply(self, message: WireMessage) -> WireMessage:
        """Check what the publisher says of itself; name its own reply queue where it asks for that."""
        user = message.user_id
        if user is not None and user != self.connection.user.name:
            actual = self.connection.user.name
            raise ChannelFault(406, f"user_id property set to '{user}' but authenticated user was '{actual}'")
        if message.reply_to != REPLY_TO:
            return message
        if self.reply_consumer is None:
            raise ChannelFault(406, "fast reply consumer does not exist")
        return self._readdressed(message, _message.with_reply_to(message.properties, self.reply_consumer.queue.name))

    def _route(self, message: WireMessage) -> tuple[list[BrokerQueue], WireMessage]:
        """All queues that routing key, CC and BCC lead to, each once; and the message without BCC."""
        if not message.exchange and message.routing_key.startswith(_REPLY_PREFIX):
            queue = self.connection.server.reply_queue(message.routing_key)
            return [] if queue is None else [queue], message
        host = self.connection.host
        queues = dict.fromkeys(host.route(message))
        for key in (*_keys(message, "CC"), *_keys(message, "BCC")):
            queues.update(dict.fromkeys(host.route(self._readdressed(message, message.properties, key))))
        if "BCC" in message.headers:
            message = self._readdressed(message, _message.without_header(message.properties, "BCC"))
        return list(queues), message

    def _readdressed(self, message: WireMessage, properties: bytes, key: str | None = None) -> WireMessage:
        known = self.connection.digests.of(properties)
        address = message.routing_key if key is None else key
        return wire_message(
            message.body,  # type: ignore[arg-type] # the body of a wire message is bytes
            message.exchange,
            address,
            message.names,
            properties,
            known,
            message.publisher,
        )

    def _published(self, published: Published, number: int) -> None:
        if published.commit is not None:
            self._last_published = published
        if number:
            if published.is_confirmed:
                self.confirmed(number)
            else:
                published.add_done_callback(partial(self._post_committed, number))
        if published.throttled:
            self.connection.throttle(published.throttled)

    def _post_committed(self, number: int, error: BaseException | None) -> None:
        """The store's thread says what became of a commit."""
        self.connection.post_committed(self, number, error is not None)

    def _unroutable(self, message: WireMessage, number: int) -> None:
        self.send_return(message, 312)
        self.confirmed(number)

    def _refused(self, number: int) -> None:
        self.confirmed(number, refused=True)

    def send_return(self, message: Message, code: int) -> None:
        """Give a message back to its publisher."""
        connection = self.connection
        content = names_of(message), properties_of(message), body_of(message)
        connection.send(encode_return(self.number, code, REPLY_NAMES[code], *content, connection.frame_max))

    def confirmed(self, number: int, *, refused: bool = False) -> None:
        """A publish is done; the client is told when the connection's turn ends."""
        if number and self.confirms is not None and self.machine.state is not ChannelState.CLOSING:
            self.confirms.end(number, refused=refused)
            self.connection.confirming[self] = None

    # -- delivering

    def next_tag(self) -> int:
        """The delivery tag of the next delivery."""
        self._last_tag = tag = self._last_tag + 1
        return tag

    def deliver(self, consumer: ServerConsumer, entry: Entry) -> None:
        """Write a message's frames."""
        message = entry.message
        try:
            names, properties, body = names_of(message), properties_of(message), body_of(message)
        except ValueError as error:
            self._cannot_deliver(consumer, entry, error)
            return
        self._last_tag = tag = self._last_tag + 1
        if not consumer.no_ack:
            self.unacked[tag] = Held(entry, consumer.consumer, consumer)
        self.connection.send(
            encode_deliver(
                self.number,
                consumer.prefix,
                tag,
                entry.redelivered,
                names,
                properties,
                body,
                self.connection.frame_max,
            )
        )

    def _cannot_deliver(self, consumer: ServerConsumer, entry: Entry, error: ValueError) -> None:
        _log.error("message of %s cannot go over a wire, and is rejected: %s", entry.queue.label, error)
        if not consumer.no_ack:
            entry.queue.reject(entry, consumer.consumer)
            consumer.settled(1)

    def consumer_cancelled(self, consumer: ServerConsumer) -> None:
        """The queue of a consumer was deleted."""
        if self.consumers.get(consumer.tag) is not consumer:
            return
        del self.consumers[consumer.tag]
        if self.connection.can("consumer_cancel_notify"):
            self.reply(commands.Basic.Cancel, consumer_tag=consumer.tag, nowait=True)
            self.connection.flush()

    def unused_tag(self) -> str:
        """A consumer tag that the client did not choose."""
        return "amq.ctag-" + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()

    # -- settling

    def _on_ack(self, ack: Ack) -> None:
        if ack.multiple or self.transaction is not None:
            self._settle(ack.delivery_tag, ack.multiple, accept)
            return
        held = self.unacked.pop(ack.delivery_tag, None)
        if held is None:
            raise _unknown_tag(ack.delivery_tag)
        entry, owner, consumer = held
        try:
            entry.queue.accept(entry, owner)
        except IllegalStep:
            if not entry.queue.is_deleted:
                raise
        if consumer is not None and consumer.settled(1):
            self.look_again(consumer)

    def _on_nack(self, nack: Nack) -> None:
        self._settle(nack.delivery_tag, nack.multiple, release if nack.requeue else reject)

    def _on_reject(self, rejected: Reject) -> None:
        self._settle(rejected.delivery_tag, False, release if rejected.requeue else reject)

    def _settle(self, tag: int, multiple: bool, how: Settle) -> None:
        taken = self.take_unacked(tag, multiple)
        if self.transaction is not None:
            self.transaction.settle(taken, how)
        else:
            self.settle(taken.values(), how)

    def take_unacked(self, tag: int, multiple: bool) -> dict[int, Held]:
        """Take out what a tag means: one, or with `multiple` everything up to it, 0 being everything.

        Raises:
            ChannelFault: nothing unacked has this tag.
        """
        unacked = self.unacked
        if not multiple:
            if tag not in unacked:
                raise _unknown_tag(tag)
            return {tag: unacked.pop(tag)}
        if tag == 0:
            self.unacked = {}
            return unacked
        if tag > self._last_tag:
            raise _unknown_tag(tag)
        taken: dict[int, Held] = {}
        for each in unacked:
            if each > tag:
                break
            taken[each] = unacked[each]
        if not taken:
            raise _unknown_tag(tag)
        for each in taken:
            del unacked[each]
        return taken

    def settle(self, held: Iterable[Held], how: Settle) -> None:
        """Settle messages, those of one consumer in one step of the queue."""
        groups: dict[tuple[BrokerQueue, object], list[Held]] = {}
        for each in held:
            groups.setdefault((each.entry.queue, each.owner), []).append(each)
        stopped: ServerConsumer | None = None
        for (queue, owner), group in groups.items():
            try:
                how(queue, [each.entry for each in group], owner)
            except IllegalStep:
                if not queue.is_deleted:
                    raise
            consumer = group[0].consumer
            if consumer is not None and consumer.settled(len(group)):
                stopped = consumer
        if stopped is not None:
            self.look_again(stopped)

    def look_again(self, but: ServerConsumer | None = None) -> None:
        """The channel's window may have opened: its other consumers look again."""
        if self.window.limit is None and but is not None:
            return
        for consumer in self.consumers.values():
            if consumer is not but:
                consumer.queue.credit_changed(consumer.consumer)

    def recover(self) -> None:
        """Everything unacked goes back."""
        unacked, self.unacked = self.unacked, {}
        self.settle(unacked.values(), release)

    # -- the end

    def end(self) -> None:
        """Stop the consumers, give back what is unacked, forget what is not committed. Twice is harmless.

        Publishes that are done are confirmed before it.
        """
        if self.confirms is not None and self.confirms.is_waiting:
            self.connection.send(self.confirms.frames(self.number))
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.stop()
        if self.reply_consumer is not None:
            self.connection.server.forget_reply_queue(self.reply_consumer.queue.name)
            self.reply_consumer = None
        if self.transaction is not None:
            self.transaction.rollback()
        self.recover()
        self.connection.confirming.pop(self, None)

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.connection!r}>"


def accept(queue: BrokerQueue, entries: list[Entry], owner: object) -> object:
    """Be done with messages."""
    return queue.accept(entries, owner)


def release(queue: BrokerQueue, entries: list[Entry], owner: object) -> object:
    """Put messages back at their places."""
    return queue.release(entries, owner)


def reject(queue: BrokerQueue, entries: list[Entry], owner: object) -> object:
    """Dead-letter messages."""
    return queue.reject(entries, owner)


def _unknown_tag(tag: int) -> ChannelFault:
    return ChannelFault(406, f"unknown delivery tag {tag}")


def _keys(message: Message, header: str) -> list[str]:
    """The further routing keys in a header."""
    keys = message.headers.get(header, [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ChannelFault(406, f"invalid value for header '{header}': a list of strings is needed")
    return keys


Settle = Callable[["BrokerQueue", "list[Entry]", object], object]
_Handler = Callable[[ServerChannel, Any], None]

_HOT: Final[dict[bytes, _Handler]] = {
    ACK: ServerChannel._on_ack,
    NACK: ServerChannel._on_nack,
    REJECT: ServerChannel._on_reject,
}
# The other methods a client may call on a channel, by class and number; filled by the modules that know them.
HANDLERS: Final[dict[bytes, _Handler]] = {}


def handles(method: Any) -> Callable[[_Handler], _Handler]:
    """Register a function for a method of `pamqp.commands`."""

    def register(handler: _Handler) -> _Handler:
        HANDLERS[method.index.to_bytes(4)] = handler
        return handler

    return register
