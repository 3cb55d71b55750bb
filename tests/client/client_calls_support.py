"""Calls on a channel that tell servers apart, each with what a client sees of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from client_contract_support import Seen

from multiqueue.client import Channel, Closed, Connection, Message, connect
from multiqueue.testing import PATIENCE

REPLY_TO = "amq.rabbitmq.reply-to"


@dataclass
class Desk:
    """Where one call is made: connections to one peer, and names that no other call has."""

    peer: Any
    label: str
    stack: ExitStack = field(default_factory=ExitStack)
    returned: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.channel = self.connection().channel(on_returned=self.returned)

    def connection(self) -> Connection:
        """A further connection, closed after the call."""
        connection = connect(self.peer, recover=False)
        self.stack.callback(connection.close)
        return connection

    def name(self, what: str = "q") -> str:
        """A name of this call's own."""
        return f"calls-{self.label.replace(' ', '-')}-{what}"

    def queue(self, *bodies: bytes, **options: Any) -> str:
        """A queue that goes with its connection, with these messages."""
        queue = self.channel.queue_declare(self.name(), **{"exclusive": True, **options}).queue
        self.put(queue, *bodies)
        return queue

    def put(self, queue: str, *bodies: bytes) -> None:
        """Publish, and know that the messages are there."""
        with self.channel.connection.channel() as other:
            for body in bodies:
                other.publish_confirmed(body, routing_key=queue).result(PATIENCE)

    def settled(self, queue: str) -> tuple[object, ...]:
        """After all that was sent on the channel is done: how many the queue has ready."""
        return ("ready", self.channel.queue_declare(queue, passive=True).message_count)

    def done(self) -> str:
        """Everything that was sent on the channel is done, and the channel is open."""
        self.channel.basic_qos(0)
        return "done"

    def exchange(self, kind: str = "direct", **options: Any) -> str:
        """An exchange that is deleted after the call."""
        name = self.name("x")
        self.channel.exchange_declare(name, kind, **options)
        self.stack.callback(self._delete_exchange, name)
        return name

    def _delete_exchange(self, name: str) -> None:
        with connect(self.peer, recover=False) as connection, connection.channel() as channel:
            channel.exchange_delete(name)


def outcome(peer: Any, label: str, call: Callable[[Desk], object]) -> object:
    """What a client sees of a call: what it returns, or what is closed with which code and text."""
    desk = Desk(peer, label)
    with desk.stack:
        try:
            return call(desk)
        except Closed as error:
            return type(error).__name__, error.reply_code, error.reply_text


def seen(message: Message | None) -> object:
    """A message as far as it is the same everywhere."""
    if message is None:
        return None
    return message.body, message.exchange, message.routing_key, message.redelivered, message.delivery_tag


def _wire_default(call: Callable[[Desk, str], object]) -> Callable[[Desk], object]:
    """A call on a channel that has declared a queue, with one message in it, and names none."""
    return lambda desk: call(desk, desk.queue(b"tea"))


def _prefetch_and_get(desk: Desk, global_: bool) -> object:
    queue = desk.queue(b"a", b"b")
    desk.channel.basic_qos(1, global_=global_)
    got = desk.channel.basic_get(queue)
    return seen(got), seen(desk.channel.consume(queue).get(PATIENCE))


def _served_in_turn(desk: Desk) -> object:
    """Two consumers of a channel whose prefetch is one for both: which messages come, with an ack after each."""
    queue = desk.queue(b"a", b"b", b"c")
    desk.channel.basic_qos(1, global_=True)
    came = Seen(lambda message: message.ack())
    desk.channel.basic_consume(queue, came)
    desk.channel.basic_consume(queue, came)
    return [message.body for message in came.wait_for(3)]


def _requeued(desk: Desk, how: Callable[[Channel, Message], object]) -> object:
    queue = desk.queue(b"a", b"b")
    first = desk.channel.basic_get(queue)
    assert first is not None
    how(desk.channel, first)
    return seen(desk.channel.basic_get(queue)), desk.settled(queue)


def _settled(desk: Desk, how: Callable[[Channel, Message], object]) -> object:
    queue = desk.queue(b"a", b"b", b"c")
    last = [desk.channel.basic_get(queue) for _ in range(3)][1]
    assert last is not None
    how(desk.channel, last)
    desk.done()
    return desk.settled(queue)


def _returned(desk: Desk, **how: Any) -> object:
    desk.channel.publish(b"tea", mandatory=True, **{"routing_key": "calls-nowhere", **how})
    (message,) = desk.returned.wait_for(1)
    return message.body, message.reply_code, message.reply_text, desk.done()


def _committed(desk: Desk, end: str) -> object:
    queue = desk.queue(b"old")
    desk.channel.tx_select()
    got = desk.channel.basic_get(queue)
    assert got is not None
    desk.channel.publish(b"new", routing_key=queue)
    got.ack()
    getattr(desk.channel, end)()
    after = desk.settled(queue)
    if end == "tx_rollback":
        got.ack()  # it is unsettled again
        desk.channel.tx_commit()
    return after, desk.settled(queue)


def _exclusive_elsewhere(desk: Desk, use: Callable[[Channel, str], object]) -> object:
    return use(desk.connection().channel(), desk.queue(b"tea"))


def _expired(desk: Desk) -> object:
    letters = desk.channel.queue_declare(desk.name("letters"), exclusive=True).queue
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-message-ttl": 1}
    desk.queue(b"tea", arguments=arguments)
    message = desk.channel.consume(letters, auto_ack=True).get(PATIENCE)
    return message.body, message.headers["x-first-death-reason"], message.headers["x-death"][0]["count"]


def _answered(desk: Desk) -> object:
    answers = desk.channel.consume(REPLY_TO, auto_ack=True)
    queue = desk.queue()
    desk.channel.publish(b"?", routing_key=queue, reply_to=REPLY_TO)
    question = desk.channel.consume(queue, auto_ack=True).get(PATIENCE)
    desk.channel.publish(b"!", routing_key=question.properties["reply_to"])
    return answers.get(PATIENCE).body, question.properties["reply_to"].startswith(REPLY_TO + ".")


def _published(desk: Desk, **how: Any) -> object:
    queue = desk.queue()
    desk.channel.publish(b"tea", routing_key=queue, **how)
    return desk.done(), desk.settled(queue)


def _copied_to(desk: Desk, header: str) -> object:
    queues = [desk.queue(), desk.channel.queue_declare(desk.name("copy"), exclusive=True).queue]
    desk.channel.publish(b"tea", routing_key=queues[0], headers={header: [queues[1]]})
    desk.done()
    got = [desk.channel.basic_get(queue) for queue in queues]
    return [(seen(message), header in message.headers) for message in got if message is not None]


def _refused_by_overflow(desk: Desk) -> object:
    queue = desk.queue(b"tea", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    error = desk.channel.publish_confirmed(b"more", routing_key=queue).exception(PATIENCE)
    return type(error).__name__, desk.settled(queue)


def _ended(desk: Desk) -> object:
    queue = desk.queue()
    ended = Seen()
    desk.channel.basic_consume(queue, lambda message: None, on_ended=ended)
    desk.channel.queue_delete(queue)
    (error,) = ended.wait_for(1)
    return type(error).__name__, desk.done()


def _after_close(desk: Desk) -> object:
    queue = desk.queue(b"a", b"b")
    with desk.channel.connection.channel() as other:
        other.basic_get(queue)
    return [seen(desk.channel.basic_get(queue)) for _ in range(2)]


def _twice_consumed(desk: Desk, **second: Any) -> object:
    queue = desk.queue()
    desk.channel.basic_consume(queue, lambda message: None, exclusive=second.pop("first", False))
    desk.channel.connection.channel().basic_consume(queue, lambda message: None, **second)
    return "two"


def _bound(desk: Desk, *keys: str, kind: str = "direct", route: str = "k") -> object:
    exchange, queue = desk.exchange(kind), desk.queue()
    for key in keys:
        desk.channel.queue_bind(queue, exchange, key)
    desk.channel.publish(b"tea", exchange=exchange, routing_key=route)
    return desk.done(), desk.settled(queue)


def _declared_twice(desk: Desk, first: dict[str, Any], second: dict[str, Any]) -> object:
    name = desk.name()
    desk.channel.queue_declare(name, **{"exclusive": True, **first})
    return tuple(desk.channel.queue_declare(name, **{"exclusive": True, **second}))[1:]


NOWHERE = "calls-nowhere"

CALLS: dict[str, Callable[[Desk], object]] = {
    # queues, declared and named
    "declare a queue": lambda d: tuple(d.channel.queue_declare(d.name(), exclusive=True)),
    "declare without a name": lambda d: d.channel.queue_declare(exclusive=True).queue.startswith("amq.gen-"),
    "declare twice alike": lambda d: _declared_twice(d, {}, {}),
    "declare twice, auto-delete": lambda d: _declared_twice(d, {}, {"auto_delete": True}),
    "declare twice, with an argument": lambda d: _declared_twice(d, {}, {"arguments": {"x-max-length": 1}}),
    "declare an exclusive queue durable": lambda d: _declared_twice(d, {}, {"durable": True}),
    "declare a durable exclusive queue again": lambda d: _declared_twice(d, {"durable": True}, {}),
    "declare passively": lambda d: d.settled(d.queue(b"tea")),
    "declare passively what is not there": lambda d: d.channel.queue_declare(NOWHERE, passive=True),
    "declare passively without a name": _wire_default(lambda d, queue: d.settled("")),
    "declare passively, nothing before": lambda d: d.channel.queue_declare(passive=True),
    "declare a reserved name": lambda d: d.channel.queue_declare("amq.mine"),
    "declare the reply queue": lambda d: tuple(d.channel.queue_declare(REPLY_TO, passive=True)),
    "declare with a wrong argument": lambda d: d.channel.queue_declare(d.name(), arguments={"x-message-ttl": "soon"}),
    "declare an exclusive queue of another": lambda d: _exclusive_elsewhere(
        d, lambda channel, queue: channel.queue_declare(queue, exclusive=True)
    ),
    "look at an exclusive queue of another": lambda d: _exclusive_elsewhere(
        d, lambda channel, queue: channel.queue_declare(queue, passive=True)
    ),
    "consume an exclusive queue of another": lambda d: _exclusive_elsewhere(
        d, lambda channel, queue: channel.consume(queue)
    ),
    "delete an exclusive queue of another": lambda d: _exclusive_elsewhere(
        d, lambda channel, queue: channel.queue_delete(queue)
    ),
    "delete a queue": lambda d: d.channel.queue_delete(d.queue(b"tea")),
    "delete what is not there": lambda d: d.channel.queue_delete(NOWHERE),
    "delete a queue that is not empty": lambda d: d.channel.queue_delete(d.queue(b"tea"), if_empty=True),
    "delete without a name": _wire_default(lambda d, queue: d.channel.queue_delete("")),
    "purge": lambda d: d.channel.queue_purge(d.queue(b"a", b"b")),
    "purge what is not there": lambda d: d.channel.queue_purge(NOWHERE),
    "purge without a name": _wire_default(lambda d, queue: d.channel.queue_purge("")),
    "purge, nothing before": lambda d: d.channel.queue_purge(""),
    # exchanges and bindings
    "declare an exchange": lambda d: d.exchange() and d.done(),
    "declare an exchange of another type": lambda d: d.channel.exchange_declare(d.exchange(), "fanout"),
    "declare an unknown type": lambda d: d.channel.exchange_declare(d.name("x"), "no-such-type"),
    "declare the default exchange": lambda d: d.channel.exchange_declare(""),
    "look at an exchange": lambda d: d.channel.exchange_declare(d.exchange(), passive=True),
    "look at what is no exchange": lambda d: d.channel.exchange_declare(NOWHERE, passive=True),
    "declare a reserved exchange": lambda d: d.channel.exchange_declare("amq.mine"),
    "delete an exchange that is not there": lambda d: d.channel.exchange_delete(NOWHERE),
    "delete a default exchange": lambda d: d.channel.exchange_delete("amq.direct"),
    "bind and publish": lambda d: _bound(d, "k"),
    "bind two keys": lambda d: _bound(d, "k", "#", kind="topic"),
    "bind without a name": lambda d: _bound_without_name(d),
    "bind without a name or a key": lambda d: _bound_without_name(d, ""),
    "bind to what is not there": lambda d: d.channel.queue_bind(d.queue(), NOWHERE),
    "bind what is not there": lambda d: d.channel.queue_bind(NOWHERE, "amq.direct"),
    "bind to the default exchange": lambda d: d.channel.queue_bind(d.queue(), ""),
    "unbind what was not bound": lambda d: d.channel.queue_unbind(d.queue(), "amq.direct", "k"),
    "bind an exchange": lambda d: d.channel.exchange_bind(d.exchange(), "amq.direct", "k"),
    "bind an exchange that is not there": lambda d: d.channel.exchange_bind(NOWHERE, "amq.direct"),
    # publishing
    "publish to the default exchange": _published,
    "publish to no exchange": lambda d: _published(d, exchange=NOWHERE),
    "publish to an internal exchange": lambda d: _published(d, exchange=d.exchange(internal=True)),
    "publish what goes nowhere": lambda d: d.channel.publish(b"tea", routing_key=NOWHERE) or d.done(),
    "publish what must not go nowhere": _returned,
    "publish to a reply address that is gone": lambda d: _returned(d, routing_key=REPLY_TO + ".gone"),
    "publish with a user of another name": lambda d: _published(d, user_id="somebody"),
    "publish with a user of one's own name": lambda d: _published(d, user_id="guest"),
    "publish with copies": lambda d: _copied_to(d, "CC"),
    "publish with hidden copies": lambda d: _copied_to(d, "BCC"),
    "publish with copies that are no list": lambda d: _published(d, headers={"CC": "q"}),
    "publish a question without a reply consumer": lambda d: _published(d, reply_to=REPLY_TO),
    "publish with an expiration that is none": lambda d: _published(d, expiration="soon"),
    "publish to a full queue": _refused_by_overflow,
    "confirm what is to be returned": lambda d: d.channel.publish_confirmed(b"", routing_key=NOWHERE).result(PATIENCE),
    # consuming
    "get": lambda d: seen(d.channel.basic_get(d.queue(b"tea"))),
    "get from an empty queue": lambda d: d.channel.basic_get(d.queue()),
    "get from what is not there": lambda d: d.channel.basic_get(NOWHERE),
    "get without a name": _wire_default(lambda d, queue: seen(d.channel.basic_get(""))),
    "get, nothing before": lambda d: d.channel.basic_get(""),
    "consume": lambda d: seen(d.channel.consume(d.queue(b"tea")).get(PATIENCE)),
    "consume what is not there": lambda d: d.channel.consume(NOWHERE),
    "consume without a name": _wire_default(lambda d, queue: seen(d.channel.consume("").get(PATIENCE))),
    "consume with a wrong priority": lambda d: d.channel.consume(d.queue(), arguments={"x-priority": "high"}),
    "consume beside an exclusive consumer": lambda d: _twice_consumed(d, first=True),
    "consume exclusively beside another": lambda d: _twice_consumed(d, exclusive=True),
    "consume with a tag of another channel": lambda d: _twice_consumed(d, consumer_tag="t"),
    "consume answers with acks": lambda d: d.channel.consume(REPLY_TO),
    "consume answers twice": lambda d: [d.channel.consume(REPLY_TO, auto_ack=True) for _ in range(2)],
    "ask and answer": _answered,
    "cancel what is not there": lambda d: d.channel.basic_cancel("nobody") or d.done(),
    "delete a queue under its consumer": _ended,
    "get within a prefetch for all": lambda d: _prefetch_and_get(d, global_=True),
    "get within a prefetch": lambda d: _prefetch_and_get(d, global_=False),
    "consume within a prefetch for all": _served_in_turn,
    # settling
    "ack": lambda d: _settled(d, lambda channel, message: message.ack()),
    "ack all up to it": lambda d: _settled(d, lambda channel, message: message.ack(multiple=True)),
    "ack everything": lambda d: _settled(d, lambda channel, message: channel.basic_ack(0, multiple=True)),
    "nack all up to it": lambda d: _settled(
        d, lambda channel, message: channel.basic_nack(message.delivery_tag, multiple=True)
    ),
    "reject": lambda d: _settled(d, lambda channel, message: message.reject()),
    "requeue": lambda d: _requeued(d, lambda channel, message: message.reject(requeue=True)),
    "recover": lambda d: _requeued(d, lambda channel, message: channel.basic_recover()),
    "close a channel that has a message": _after_close,
    "expire to a dead-letter queue": _expired,
    # transactions and confirms
    "commit": lambda d: _committed(d, "tx_commit"),
    "roll back": lambda d: _committed(d, "tx_rollback"),
    "commit outside a transaction": lambda d: d.channel.tx_commit(),
    "transactions after confirms": lambda d: d.channel.confirm_select() or d.channel.tx_select(),
    "confirms after transactions": lambda d: d.channel.tx_select() or d.channel.confirm_select(),
    "ask for the server's figures": lambda d: bool(d.channel.basic_get("amq.multiqueue.status", auto_ack=True)),
}


def _bound_without_name(desk: Desk, key: str = "k") -> object:
    exchange, queue = desk.exchange(), desk.queue()
    desk.channel.queue_bind("", exchange, key)
    desk.channel.publish(b"tea", exchange=exchange, routing_key=key or queue)
    return desk.done(), desk.settled(queue)
