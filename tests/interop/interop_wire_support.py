"""A client of frames: what it is told to send goes out, what comes in is kept, and nothing happens by itself.

pamqp encodes and decodes, so that neither end of a test is judged by this project's own codec. A `Wire` belongs to one
thread. Waiting for a frame ends with the frame, with the end of the connection, or with `Silence` after `PATIENCE`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pamqp import body, commands, frame, header
from pamqp.heartbeat import Heartbeat

from multiqueue.testing import PATIENCE

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {"consumer_cancel_notify": True, "basic.nack": True, "connection.blocked": True}
STRICT = {**CAPABILITIES, "authentication_failure_close": True}

Deliver, Return, GetOk, GetEmpty = (
    commands.Basic.Deliver,
    commands.Basic.Return,
    commands.Basic.GetOk,
    commands.Basic.GetEmpty,
)
_UNASKED = (Deliver, Return, commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Cancel)


class Silence(AssertionError):
    """The peer said nothing for `PATIENCE` seconds, and a frame was expected."""


class Closed(Exception):
    """The peer closed a channel or the connection: the reply code, and the name that its text begins with."""

    def __init__(self, method: Any) -> None:
        super().__init__(method.reply_code, method.reply_text)
        self.code: int = method.reply_code
        self.text: str = method.reply_text
        self.cause: tuple[int, int] = (method.class_id, method.method_id)

    @property
    def name(self) -> str:
        return self.text.partition(" - ")[0]


class ChannelClosed(Closed):
    """The peer sent channel.close; close-ok was sent."""


class ConnectionClosed(Closed):
    """The peer sent connection.close; close-ok was sent."""


class Hangup(Exception):
    """The peer ended the connection without a connection.close."""


class Content:
    """A method that carries a message: the method, its properties and its body."""

    def __init__(self, method: Any, start: header.ContentHeader) -> None:
        self.method = method
        self.properties: Any = start.properties
        self.size = start.body_size
        self.parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}

    @property
    def is_whole(self) -> bool:
        return sum(map(len, self.parts)) >= self.size


class Wire:
    """A connection to the broker on `port` of this machine; nothing is sent before `send_bytes` or `open`."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tune: commands.Connection.Tune | None = None
        self.heartbeats = 0
        self._bytes = bytearray()
        self._items: dict[int, deque[Any]] = {}
        self._unfinished: dict[int, Any] = {}

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    # -- bytes and frames

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, number: int, *frames: Any) -> None:
        self.socket.sendall(b"".join(frame.marshal(each, number) for each in frames))

    def read_frame(self) -> tuple[int, Any]:
        """The next frame that is not a heartbeat.

        Raises:
            Silence: none came.
            Hangup: none will come.
        """
        while True:
            number, what = frame_of(self._whole_frame())
            if not isinstance(what, Heartbeat):
                return number, what
            self.heartbeats += 1

    def wait_for_heartbeat(self) -> None:
        """The next frame is a heartbeat; any other would be lost, and is an error.

        Raises:
            Hangup: no frame will come.
        """
        _, what = frame_of(self._whole_frame())
        assert isinstance(what, Heartbeat), what
        self.heartbeats += 1

    def read_bytes(self) -> bytes:
        """Whatever comes next, at least one byte; empty at the end of the connection."""
        try:
            return self.socket.recv(65536)
        except ConnectionError:
            return b""
        except TimeoutError:
            raise Silence(f"nothing within {PATIENCE:g} s") from None

    def ends(self) -> bool:
        """True when the peer has ended the connection, whatever it said before."""
        while self.read_bytes():
            pass
        return True

    def _whole_frame(self) -> bytes:
        while len(self._bytes) < 7 or len(self._bytes) < 8 + int.from_bytes(self._bytes[3:7], "big"):
            data = self.read_bytes()
            if not data:
                raise Hangup
            self._bytes += data
        end = 8 + int.from_bytes(self._bytes[3:7], "big")
        whole = bytes(self._bytes[:end])
        del self._bytes[:end]
        return whole

    # -- the conversation of a connection

    def start(self) -> commands.Connection.Start:
        """Send the protocol header, and return what the peer begins with."""
        self.send_bytes(PROTOCOL_HEADER)
        start: commands.Connection.Start = self.wait(0)
        return start

    def start_ok(
        self,
        mechanism: str = "PLAIN",
        response: str = "\0guest\0guest",
        capabilities: dict[str, Any] = STRICT,
    ) -> None:
        properties: dict[str, Any] = {"product": "a test", "capabilities": capabilities}
        self.send(0, commands.Connection.StartOk(properties, mechanism, response, "en_US"))

    def open(
        self,
        *,
        virtual_host: str = "/",
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
    ) -> Wire:
        """Shake hands, agreeing to what the peer offers except for what is said here."""
        if self.tune is None:
            self.start()
            self.start_ok()
            self.tune = self.wait(0)
        tune = commands.Connection.TuneOk(
            self.tune.channel_max if channel_max is None else channel_max,
            self.tune.frame_max if frame_max is None else frame_max,
            heartbeat,
        )
        self.send(0, tune, commands.Connection.Open(virtual_host))
        assert isinstance(self.wait(0), commands.Connection.OpenOk)
        return self

    def channel(self, number: int = 1) -> WireChannel:
        """A channel, opened."""
        channel = WireChannel(self, number)
        channel.call(commands.Channel.Open())
        return channel

    def close(self) -> None:
        """Close as the specification says: the peer gives everything back before it answers."""
        self.send(0, commands.Connection.Close(200, "done", 0, 0))
        while not isinstance(self.wait(0), commands.Connection.CloseOk):
            pass
        self.socket.close()

    def wait(self, number: int) -> Any:
        """The next method, or content, for the channel `number`.

        Raises:
            ChannelClosed, ConnectionClosed: the peer closed it.
        """
        while not self._items.get(number):
            self._read_item()
        what = self._items[number].popleft()
        if isinstance(what, commands.Channel.Close):
            self.send(number, commands.Channel.CloseOk())
            raise ChannelClosed(what)
        return what

    def _read_item(self) -> None:
        number, what = self.read_frame()
        if isinstance(what, commands.Connection.Close):
            try:
                self.send(0, commands.Connection.CloseOk())
            except ConnectionError:
                pass  # the peer did not wait for it
            raise ConnectionClosed(what)
        if isinstance(what, header.ContentHeader):
            what = Content(self._unfinished.pop(number), what)
            self._unfinished[number] = what
        elif isinstance(what, body.ContentBody):
            self._unfinished[number].parts.append(what.value)
            what = self._unfinished[number]
        elif isinstance(what, (Deliver, Return, GetOk)):
            self._unfinished[number] = what
            return
        if isinstance(what, Content):
            if not what.is_whole:
                return
            del self._unfinished[number]
        self._items.setdefault(number, deque()).append(what)


class WireChannel:
    """One channel of a `Wire`. Contents and confirms that arrive during a call are kept, in order."""

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire = wire
        self.number = number
        self._kept: deque[Any] = deque()

    def call(self, method: Any) -> Any:
        """Send a method, and return its reply.

        Raises:
            ChannelClosed, ConnectionClosed: that was the reply.
        """
        self.wire.send(self.number, method)
        return self.reply()

    def reply(self) -> Any:
        """The reply to a method that was sent. Raises as `call`."""
        while True:
            what = self.wire.wait(self.number)
            if not _came_unasked(what):
                return what
            self._kept.append(what)

    def send(self, *methods: Any) -> None:
        self.wire.send(self.number, *methods)

    def next(self) -> Any:
        """What came next that was not a reply: a content, a confirm, a cancel.

        Raises:
            ChannelClosed, ConnectionClosed: that came next.
        """
        return self._kept.popleft() if self._kept else self.wire.wait(self.number)

    def contents(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    def bodies(self, count: int) -> list[bytes]:
        return [each.body for each in self.contents(count)]

    def kept(self) -> list[Any]:
        """What had come by the time of the last reply, unasked; forgotten with this call."""
        came = list(self._kept)
        self._kept.clear()
        return came

    # -- the usual methods in one word

    def declare(self, queue: str = "", *, arguments: dict[str, Any] | None = None, **flags: bool) -> str:
        return str(self.call(commands.Queue.Declare(queue=queue, arguments=arguments, **flags)).queue)

    def exchange(self, name: str, kind: str = "direct", *, arguments: dict[str, Any] | None = None, **on: bool) -> None:
        self.call(commands.Exchange.Declare(exchange=name, exchange_type=kind, arguments=arguments, **on))

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.call(commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments))

    def count(self, queue: str) -> int:
        """How many messages are ready in the queue. RabbitMQ may answer before it looks at what was published last."""
        return int(self.call(commands.Queue.Declare(queue=queue, passive=True)).message_count)

    def count_becomes(self, queue: str, count: int) -> None:
        """Ask again and again; the peer has `PATIENCE` to come to it."""
        deadline = time.monotonic() + PATIENCE
        while (now := self.count(queue)) != count:
            if time.monotonic() > deadline:
                raise Silence(f"{queue} has {now} messages ready for {PATIENCE:g} s, not {count}")

    def consumers(self, queue: str) -> int:
        return int(self.call(commands.Queue.Declare(queue=queue, passive=True)).consumer_count)

    def exists(self, queue: str) -> bool:
        """Asked on a channel of its own, since a no closes the channel."""
        try:
            with side_channel(self.wire) as aside:
                aside.count(queue)
        except ChannelClosed as closed:
            if closed.code != 404:
                raise
            return False
        return True

    def publish(
        self,
        key: str,
        content: bytes = b"",
        *,
        exchange: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        method = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
        start = header.ContentHeader(body_size=len(content), properties=commands.Basic.Properties(**properties))
        most = (self.wire.tune.frame_max if self.wire.tune else 4096) - 8
        parts = [body.ContentBody(content[at : at + most]) for at in range(0, len(content), most)]
        self.send(method, start, *parts)

    def fill(self, queue: str, *contents: bytes) -> None:
        """Publish to the queue, and return when all of it is there: confirmed, on a channel of its own."""
        with side_channel(self.wire) as aside:
            aside.call(commands.Confirm.Select())
            for each in contents:
                aside.publish(queue, each)
            missing = set(range(1, len(contents) + 1))
            while missing:
                came = aside.next()
                missing -= set(range(1, came.delivery_tag + 1)) if came.multiple else {came.delivery_tag}

    def get(self, queue: str, *, no_ack: bool = True) -> Content | None:
        answer = self.call(commands.Basic.Get(queue=queue, no_ack=no_ack))
        return answer if isinstance(answer, Content) else None

    def drain(self, queue: str) -> list[bytes]:
        return [each.body for each in iter(lambda: self.get(queue), None)]

    def consume(self, queue: str, *, arguments: dict[str, Any] | None = None, **settings: Any) -> str:
        return str(self.call(commands.Basic.Consume(queue=queue, arguments=arguments, **settings)).consumer_tag)

    def cancel(self, tag: str) -> None:
        self.call(commands.Basic.Cancel(tag))

    def prefetch(self, count: int, *, whole_channel: bool = False) -> None:
        self.call(commands.Basic.Qos(0, count, whole_channel))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(commands.Basic.Ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(commands.Basic.Nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self.send(commands.Basic.Reject(tag, requeue))

    def sync(self) -> None:
        """Return when the peer has done everything that was sent on this channel."""
        self.call(commands.Channel.Flow(True))

    def close(self) -> None:
        self.call(commands.Channel.Close(200, "done", 0, 0))


@contextmanager
def side_channel(wire: Wire, number: int = 900) -> Iterator[WireChannel]:
    channel = wire.channel(number)
    yield channel
    channel.close()


def frame_of(data: bytes) -> tuple[int, Any]:
    if data[0] == 3 and len(data) == 8:  # pamqp refuses an empty body frame
        return int.from_bytes(data[1:3], "big"), body.ContentBody(b"")
    _, number, what = frame.unmarshal(data)
    return number, what


def _came_unasked(what: Any) -> bool:
    if isinstance(what, Content):
        return not isinstance(what.method, GetOk)
    return isinstance(what, _UNASKED)
