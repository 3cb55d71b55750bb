"""The same steps on two brokers: what each of them answers, and where their queues stand afterwards.

A step is a function of a `Side` that returns what was seen, in words that do not depend on the broker. Names are of one
program: another program's begin with another number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from interop_wire_support import ChannelClosed, ConnectionClosed, Content, Wire, WireChannel
from pamqp import commands

QUEUES = ("q0", "q1", "q2")
EXCHANGES = ("x0", "x1")
NEVER_WAS = -1
LAG = 5.0  # seconds a broker has to come to where the other one is: dead letters and returns are not immediate

Step = Callable[["Side"], Any]


class Side:
    """One of the two brokers, as one program sees it: a connection, a channel with confirms, what is unsettled."""

    def __init__(self, port: int, prefix: str) -> None:
        self.port, self.prefix = port, prefix
        self.unsettled: list[int] = []
        self._connect()

    def _connect(self) -> None:
        self.wire = Wire(self.port).open()
        self.number = 0
        self._watching = self._open()
        self.channel = self._open(confirms=True)

    def _open(self, *, confirms: bool = False) -> WireChannel:
        self.number += 1
        channel = self.wire.channel(self.number)
        if confirms:
            channel.call(commands.Confirm.Select())
        self.unsettled = []
        return channel

    def name(self, short: str) -> str:
        return f"{self.prefix}-{short}" if short in QUEUES + EXCHANGES else short

    def named(self, value: Any) -> Any:
        """A table, or another value, with the names of this program."""
        if isinstance(value, dict):
            return {key: self.named(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.named(each) for each in value]
        return self.name(value) if isinstance(value, str) else value

    def short(self, value: Any) -> Any:
        """The reverse of `named`. Times are left out, and x-last-death-*, which RabbitMQ writes since 3.13."""
        if isinstance(value, dict):
            kept = (key for key in value if key != "time" and not key.startswith("x-last-death-"))
            return {key: self.short(value[key]) for key in kept}
        if isinstance(value, list):
            return [self.short(each) for each in value]
        return value.removeprefix(f"{self.prefix}-") if isinstance(value, str) else value

    def do(self, step: Step) -> Any:
        """What the step saw; after an error there is a new channel, or connection."""
        try:
            return step(self)
        except ChannelClosed as closed:
            self.channel = self._open(confirms=True)
            return ("channel closed", closed.code, closed.name, closed.cause)
        except ConnectionClosed as closed:
            self.wire.socket.close()
            self._connect()
            return ("connection closed", closed.code, closed.name, closed.cause)

    def state(self) -> dict[str, int | None]:
        """How many messages are ready in each queue; None where there is none."""
        return {queue: self._ready(queue) for queue in QUEUES}

    def _ready(self, queue: str) -> int | None:
        try:
            return self._watching.count(self.name(queue))
        except ChannelClosed:
            self._watching = self.wire.channel(self._watching.number)
            return None

    def shown(self, content: Content) -> Any:
        """A delivered message, as far as it is the same everywhere."""
        method, properties = content.method, content.properties
        return (
            content.body,
            bool(getattr(method, "redelivered", False)),
            self.short(method.exchange),
            self.short(method.routing_key),
            self.short(content.headers),
            properties.priority,
            properties.expiration,
        )

    def close(self) -> None:
        for queue in QUEUES:
            self._watching.call(commands.Queue.Delete(queue=self.name(queue)))
        for exchange in EXCHANGES:
            self._watching.call(commands.Exchange.Delete(exchange=self.name(exchange)))
        self.wire.close()


def agree(one: Side, other: Side) -> tuple[Any, Any]:
    """Where the two stand, as soon as they stand alike, or after `LAG` seconds."""
    deadline = time.monotonic() + LAG
    while True:
        states = one.state(), other.state()
        if states[0] == states[1] or time.monotonic() > deadline:
            return states


# -- steps


def call(method: type, **fields: Any) -> Step:
    """A synchronous method; the reply's name is what is seen, and how many messages it counts."""

    def step(side: Side) -> Any:
        reply = side.channel.call(method(**{key: side.named(value) for key, value in fields.items()}))
        return (type(reply).__name__, getattr(reply, "message_count", None) if method is commands.Queue.Purge else None)

    return step


def publish(body: bytes, exchange: str, key: str, *, mandatory: bool, **properties: Any) -> Step:
    def step(side: Side) -> Any:
        named = {each: side.named(value) for each, value in properties.items()}
        side.channel.publish(side.name(key), body, exchange=side.name(exchange), mandatory=mandatory, **named)
        seen: list[Any] = []
        while True:
            came = side.channel.next()
            if not isinstance(came, Content):
                return [*seen, type(came).__name__]
            seen.append((came.method.reply_code, side.shown(came)))

    return step


def get(queue: str, *, no_ack: bool) -> Step:
    def step(side: Side) -> Any:
        got = side.channel.get(side.name(queue), no_ack=no_ack)
        if got is None:
            return "nothing"
        if not no_ack:
            side.unsettled.append(got.tag)
        return side.shown(got)

    return step


def consume_one(queue: str, **settings: Any) -> Step:
    """Start a consumer, let it have one message if there is any, and cancel it."""

    def step(side: Side) -> Any:
        name = side.name(queue)
        waiting = side._ready(queue)
        side.channel.prefetch(1)
        tag = side.channel.consume(name, **settings)
        seen = None
        if waiting:
            came = side.channel.next()
            side.unsettled.append(came.tag)
            seen = side.shown(came)
        side.channel.cancel(tag)
        return seen

    return step


def settle(method: type, which: int, **fields: Any) -> Step:
    """Settle one of the unsettled messages, or a tag that never was; then see whether the channel is open."""

    def step(side: Side) -> Any:
        if which == NEVER_WAS:
            tag = 1000
        elif side.unsettled:
            tag = side.unsettled[which % len(side.unsettled)]
        else:
            return "nothing to settle"
        side.channel.send(method(tag, **fields))
        side.channel.sync()
        is_several = fields.get("multiple", False)
        side.unsettled = [each for each in side.unsettled if each != tag and not (is_several and each < tag)]
        return "settled"

    return step


def recover(requeue: bool) -> Step:
    """Give back everything that is unsettled; without requeue, which no server implements."""

    def step(side: Side) -> Any:
        side.channel.call(commands.Basic.Recover(requeue))
        side.unsettled = []
        return "recovered"

    return step
