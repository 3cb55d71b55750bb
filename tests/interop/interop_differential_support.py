"""The same steps on two brokers: what each of them answers, and where their queues stand afterwards.

A step is a function of a `Side` that returns what was seen, in words that do not depend on the broker. Names are of one
program: another program's begin with another number. A program may have several sides at each broker, one a connection.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from http.client import HTTPConnection, RemoteDisconnected
from typing import Any
from urllib.parse import quote

from interop_wire_support import ChannelClosed, ConnectionClosed, Content, Hangup, Wire, WireChannel
from pamqp import commands, frame

from multiqueue.testing import PATIENCE

QUEUES = ("q0", "q1", "q2")
EXCHANGES = ("x0", "x1")
OTHERS = ("p0", "p1", "u0", "v0", "g0", "wrong")  # policies, a user, a virtual host, a global parameter
NEVER_WAS = -1
SHORT = "20"  # milliseconds that a message may live; what was published so is waited for
LAG = 20.0  # seconds a broker has to come to where the other one is: dead letters and returns are not immediate

# RabbitMQ names the type of a number as the client sent it. Four texts of ours say more, or say it otherwise.
_NUMBERS = re.compile(r"\b(?:byte|short|signedint|long|float|double)\b")
_SAYS_MORE = (
    re.compile(r"PRECONDITION_FAILED - invalid expiration '.*?':"),
    re.compile(r"PRECONDITION_FAILED - Invalid x-match field value"),
    re.compile(r"\w+ is not a valid queue type"),
    re.compile(r"RESOURCE_ERROR - failed to deliver message:"),
    re.compile(r"ACCESS_REFUSED - queue '.*?' in vhost '/'"),
)

Step = Callable[["Side"], Any]

_SELECT = {"confirms": (commands.Confirm.Select(),), "transactions": (commands.Tx.Select(),)}
HOSTS: dict[int, str] = {}  # the virtual host of a broker by its port, where it is not `/`
_idle: dict[int, list[Wire]] = {}  # connections that programs have left, by port: a new one costs as much as a program


def forget_idle() -> None:
    """Close the connections that are kept for the next program."""
    for wire in [each for some in _idle.values() for each in some]:
        wire.close()
    _idle.clear()


@lru_cache
def _asked(prefix: str, number: int) -> bytes:
    """The frames that ask for the state of a program's queues, and for what came on the channel of this number."""
    asks = [commands.Queue.Declare(queue=f"{prefix}-{queue}", passive=True) for queue in (QUEUES if prefix else ())]
    frames = [frame.marshal(each, 900 + at) for at, each in enumerate(asks)]
    return b"".join([*frames, frame.marshal(commands.Channel.Flow(True), number)])


class Side:
    """A connection to one of the two brokers, as a program sees it: a channel, what it was given, what is unsettled."""

    def __init__(
        self, port: int, prefix: str, mode: str = "confirms", http_port: int = 0, *, counts_consumers: bool = True
    ) -> None:
        # A quorum queue of RabbitMQ counts a consumer that was cancelled until it has settled all.
        self._counts_consumers = counts_consumers
        self.port, self.prefix, self.mode, self.http_port = port, prefix, mode, http_port
        self.host = HOSTS.get(port, "/")
        self.seen: dict[str, list[Any]] = {}  # by consumer
        self.web = HTTPConnection("127.0.0.1", http_port, timeout=PATIENCE)
        self._connect()

    def _connect(self) -> None:
        idle = _idle.get(self.port)
        self.wire = idle.pop() if idle else Wire(self.port).open(virtual_host=self.host)
        self.number = 0
        self._watching: dict[str, WireChannel] = {}  # opened when they are asked
        self.channel = self._open()

    def _open(self) -> WireChannel:
        self.number += 1
        channel = WireChannel(self.wire, self.number)
        select = _SELECT.get(self.mode, ())
        channel.send(commands.Channel.Open(), *select)
        for _ in range(1 + len(select)):
            channel.reply()
        self.unsettled: list[tuple[str, int]] = []  # where each is from, and its tag
        self.came_back: set[int] = set()  # the tags of those that had been delivered before
        self._no_ack: set[str] = set()
        return channel

    def name(self, short: str) -> str:
        return f"{self.prefix}-{short}" if short in (*QUEUES, *EXCHANGES, *OTHERS) else short

    def named(self, value: Any) -> Any:
        """A table, or another value, with the names of this program."""
        if isinstance(value, dict):
            return {key: self.named(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.named(each) for each in value]
        return self.name(value) if isinstance(value, str) else value

    def short(self, value: Any) -> Any:
        """The reverse of `named`, without what is meant to differ."""
        if isinstance(value, dict):
            return {key: self.short(value[key]) for key in _comparable(value)}
        if isinstance(value, list):
            return [self.short(each) for each in value]
        return value.removeprefix(f"{self.prefix}-") if isinstance(value, str) else value

    def do(self, step: Step) -> Any:
        """What the step saw; after an error there is a new channel, or connection."""
        try:
            return step(self)
        except ChannelClosed as closed:
            self.channel = self._open()
            return ("channel closed", closed.code, self.plain(closed.text), closed.cause)
        except ConnectionClosed as closed:
            self.die()
            return ("connection closed", closed.code, self.plain(closed.text), closed.cause)

    def plain(self, text: str) -> str:
        """A text without this program's names, and without what the table of differences excuses."""
        text = text.replace(f"{self.prefix}-", "").replace(f"vhost '{self.host}'", "vhost '/'")
        text = _NUMBERS.sub("number", text)
        return next((f"{cause[0]} ..." for cause in (each.match(text) for each in _SAYS_MORE) if cause), text)

    def die(self) -> None:
        """The connection ends without a word, and there is another."""
        self.wire.socket.close()
        self._connect()

    def reopen(self) -> None:
        self.channel.close()
        self.channel = self._open()

    def consume(self, queue: str, tag: str, **settings: Any) -> str:
        """Start a consumer that lasts."""
        tag = self.channel.consume(self.name(queue), consumer_tag=tag, **settings)
        if settings.get("no_ack"):
            self._no_ack.add(tag)
        return tag

    def take(self, came: Any) -> None:
        """Note what came unasked."""
        if not isinstance(came, Content):
            tag = getattr(came, "consumer_tag", None)
            self.seen.setdefault(tag or "", []).append(type(came).__name__)
            return
        tag = getattr(came.method, "consumer_tag", "returned")
        self.seen.setdefault(tag, []).append(self.shown(came))
        if tag != "returned" and tag not in self._no_ack:
            self.has(tag, came)

    def has(self, source: str, came: Content) -> None:
        self.unsettled.append((source, came.tag))
        if came.method.redelivered:
            self.came_back.add(came.tag)

    @property
    def holds_what_came_back(self) -> bool:
        """Whether one of the unsettled messages had been delivered before."""
        return any(tag in self.came_back for _, tag in self.unsettled)

    def look(self) -> dict[str, list[Any]]:
        """What the consumers have had so far; it was asked for."""
        self.do(lambda side: side.channel.reply())
        for came in self.channel.kept():
            self.take(came)
        return self.seen

    def ask(self, *, state: bool) -> None:
        """Ask for what `state` and `look` tell: nobody waits for one answer after the other."""
        for at, queue in enumerate(QUEUES if state else ()):
            if queue not in self._watching:
                self._watching[queue] = self.wire.channel(900 + at)
        self.wire.send_bytes(_asked(self.prefix if state else "", self.number))

    def state(self) -> dict[str, Any]:
        """How many messages are ready in each queue, and its consumers; the code where it cannot be told."""
        return {queue: self._counts(queue, self._watching[queue]) for queue in QUEUES}

    def _counts(self, queue: str, channel: WireChannel) -> Any:
        try:
            reply = channel.reply()
            return (reply.message_count, reply.consumer_count if self._counts_consumers else 0)
        except ChannelClosed as closed:
            del self._watching[queue]
            return closed.code

    def shown(self, content: Content) -> Any:
        """A delivered message, as far as it is the same everywhere."""
        method, properties = content.method, content.properties
        is_redelivered = bool(getattr(method, "redelivered", False))
        if isinstance(method, commands.Basic.Deliver) and "x-death" in content.headers and self._counts_consumers:
            is_redelivered = False  # at RabbitMQ not so for a consumer of a classic queue that waited for it
        return (
            content.body,
            is_redelivered,
            self.short(method.exchange),
            self.short(method.routing_key),
            self.short(content.headers),
            properties.priority,
            properties.expiration,
            properties.delivery_mode,
            properties.user_id,
            properties.message_id,
            properties.app_id,
        )

    def leave(self, *, is_last: bool, keeps: bool) -> None:
        """Be done with it; who `is_last` deletes what the program has declared. `keeps`: there is nothing on the
        connection but its channels, so the next program may have it.
        """
        channels = [self.channel, *self._watching.values()] if keeps else []
        for each in channels:
            each.send(commands.Channel.Close(200, "done", 0, 0))
        for each in channels:
            each.reply()
        if is_last:
            self._delete_all()
        if keeps:
            _idle.setdefault(self.port, []).append(self.wire)
        else:
            self.wire.close()

    def _delete_all(self) -> None:
        left: list[Any] = [commands.Queue.Delete(queue=self.name(each)) for each in (*QUEUES, "wrong")]
        left += [commands.Exchange.Delete(exchange=self.name(each)) for each in EXCHANGES]
        while left:
            channel = self.wire.channel(910)
            channel.send(*left)
            try:
                while left:
                    channel.reply()
                    del left[0]
                channel.close()
            except ChannelClosed:  # another connection's, and gone with it
                del left[0]

    def clean(self, requests: Sequence[str]) -> None:
        """Delete what requests have made."""
        for path in requests:
            http("DELETE", path, None)(self)
        self.web.close()


def asked_for(web: HTTPConnection, method: str, path: str, content: str | None = None) -> tuple[int, str]:
    """A request of the management API: the status and the text of the answer."""
    try:
        web.request(method, path, content, _GUEST)
        response = web.getresponse()
    except (RemoteDisconnected, ConnectionError):  # it had been idle for too long
        web.close()
        web.request(method, path, content, _GUEST)
        response = web.getresponse()
    return response.status, response.read().decode()


def agree(one: Sequence[Side], other: Sequence[Side], lag: float = LAG) -> tuple[Any, Any]:
    """Where the two brokers stand, as soon as they stand alike, or after `lag` seconds."""
    deadline = time.monotonic() + lag
    while True:
        for sides in (one, other):
            for side in sides:
                side.ask(state=side is sides[0])
        states = [(sides[0].state(), [side.look() for side in sides]) for sides in (one, other)]
        if states[0] == states[1] or time.monotonic() > deadline:
            return states[0], states[1]
        time.sleep(0.001)


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
        while side.mode == "confirms":
            came = side.channel.next()
            if isinstance(came, Content) and isinstance(came.method, commands.Basic.Return):
                seen.append((came.method.reply_code, side.shown(came)))
            elif isinstance(came, (commands.Basic.Ack, commands.Basic.Nack)):
                seen.append(type(came).__name__)
                break
            else:
                side.take(came)
        if side.mode != "confirms":
            side.channel.sync()
        return seen

    return step


def get(queue: str, *, no_ack: bool) -> Step:
    def step(side: Side) -> Any:
        got = side.channel.get(side.name(queue), no_ack=no_ack)
        if got is None:
            return "nothing"
        if not no_ack:
            side.has(f"got from {queue}", got)
        return side.shown(got)

    return step


def consume_one(queue: str, **settings: Any) -> Step:
    """Start a consumer, let it have one message if there is any, and cancel it."""

    def step(side: Side) -> Any:
        side.channel.prefetch(1)
        tag = side.consume(queue, "one", **settings)
        side.channel.cancel(tag)
        return None

    return step


def settle(method: type, which: int, **fields: Any) -> Step:
    """Settle one of the unsettled messages, or a tag that never was; then see whether the channel is open."""

    def step(side: Side) -> Any:
        side.unsettled.sort()
        if which == NEVER_WAS:
            tag = 1000
        elif side.unsettled:
            _, tag = side.unsettled[which % len(side.unsettled)]
        else:
            return "nothing to settle"
        if len({source for source, _ in side.unsettled}) > 1:
            fields.pop("multiple", None)  # the order of messages of several queues on a channel is anyone's
        side.channel.send(method(tag, **fields))
        side.channel.sync()
        is_several = fields.get("multiple", False)
        side.unsettled = [each for each in side.unsettled if each[1] != tag and not (is_several and each[1] < tag)]
        return "settled"

    return step


def recover(requeue: bool) -> Step:
    """Give back everything that is unsettled; without requeue, which no server implements."""

    def step(side: Side) -> Any:
        side.channel.call(commands.Basic.Recover(requeue))
        side.unsettled = []
        return "recovered"

    return step


def http(method: str, path: str, body: dict[str, Any] | None) -> Step:
    """A request of the management API; `{}` stands before each name of the program in the path."""

    def step(side: Side) -> Any:
        content = None if body is None else json.dumps(side.named(body))
        named = path.replace("{}", f"{side.prefix}-").replace("%2F", quote(side.host, ""))
        status, found = asked_for(side.web, method, named, content)
        found = found.replace(f'"vhost":"{side.host}"', '"vhost":"/"')
        if (
            status == 404 and method == "GET" and path.endswith("/bindings/source")
        ):  # RabbitMQ has none of what is not there, by the table
            return 200, []
        shown = _kept(json.loads(found.replace(f"{side.prefix}-", "")), side) if found else None
        if (status, method) == (400, "POST") and "limit" in shown["reason"]:
            shown.pop("reason")  # which queues are full
        if (status, method) == (400, "PUT") and any(word in path for word in ("policies", "-limits")):
            shown.pop("reason")  # a word of Erlang, or what would be right
        if (status, method) == (404, "DELETE") and "user-limits" in path:
            shown = None  # RabbitMQ misses a virtual host where there is no such user
        return status, shown

    return step


def enter(user: str, password: str, host: str, tune: dict[str, int], doings: Sequence[tuple[type, Any]]) -> Step:
    """Another connection, by a user, to a virtual host: whether it is open, and what it may do there.

    How a connection is refused before it is open is not compared: RabbitMQ may end it without a word.
    """

    def step(side: Side) -> Any:
        seen: list[Any] = []
        with Wire(side.port) as wire:
            try:
                wire.start()
                wire.start_ok(response=f"\0{side.name(user)}\0{password}")
                wire.tune = wire.wait(0)
                wire.open(virtual_host=side.name(host), **tune)
            except (ConnectionClosed, Hangup, ConnectionError):
                return "refused"
            channel = wire.channel()
            for method, fields in doings:
                try:
                    named = {key: side.named(value) for key, value in fields.items()}
                    if method is commands.Basic.Publish:
                        channel.publish(side.name(fields["routing_key"]), b"!", exchange=named["exchange"])
                        channel.sync()
                    else:
                        channel.call(method(**named))
                    seen.append("done")
                except ChannelClosed as closed:
                    seen.append((closed.code, side.plain(closed.text), closed.cause))
                    channel = wire.channel()
            wire.close()
        return seen

    return step


_GUEST = {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "content-type": "application/json"}
_FIELDS = {
    *("error", "reason", "name", "durable", "auto_delete", "arguments", "type", "routed", "source", "destination"),
    *("destination_type", "routing_key", "payload", "payload_bytes", "redelivered", "exchange", "message_count"),
    *("properties", "payload_encoding", "properties_key", "headers", "priority", "expiration"),
    *(
        "policy",
        "operator_policy",
        "effective_policy_definition",
        "pattern",
        "definition",
        "apply-to",
        "vhost",
        "value",
    ),
    *("tags", "limits", "user", "configure", "read", "write", "default_queue_type", "description", "component"),
}


def _kept(found: Any, side: Side) -> Any:
    """The fields that do not depend on when one asks. 4.3 shows its default type of queue among the arguments."""
    if isinstance(found, list):
        kept = [_kept(each, side) for each in found]
        return kept if "payload" in repr(kept) else sorted(kept, key=partial(json.dumps, sort_keys=True))
    if isinstance(found, dict):
        found = {key: _inner(found[key]) for key in found.keys() & _FIELDS if found[key] is not None}
        if not found.get("effective_policy_definition"):
            found.pop("effective_policy_definition", None)  # RabbitMQ shows an empty one after a while
        if "reason" in found:
            found["reason"] = side.plain(str(found["reason"]))
        if "properties" in found:
            found["properties"] = found["properties"] or []  # without an empty table of headers
        if "properties_key" in found:
            found["properties_key"] = found["properties_key"].partition("~")[0]  # then a hash of the arguments, or "~"
    return found


def _comparable(table: dict[str, Any]) -> list[str]:
    """The keys without times, without x-last-death-*, which RabbitMQ writes since 3.13, and without the CC of a dead
    letter, which it has kept since then.
    """
    kept = [key for key in table if key != "time" and not key.startswith("x-last-death-")]
    return [key for key in kept if key != "CC" or "x-death" not in table]


def _inner(value: Any) -> Any:
    if isinstance(value, list):
        return [_inner(each) for each in value]
    if isinstance(value, dict):
        kept = [key for key in _comparable(value) if key != "x-queue-type"]
        kept = [key for key in kept if key != "headers" or value[key]]  # an empty table is not shown here
        return {key: _inner(value[key]) for key in kept}
    if value == "undefined":  # nothing, within a table or a list at RabbitMQ
        return None
    return 1.5 if value == 1.15 else value  # 1.5 as a decimal field there: its scale, and its digits
