"""A client without opinions: frames over a socket, one method at a time, for tests that decide every byte."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from amqp_parts_support import encode_ack, encode_nack
from pamqp import commands

from multiqueue import amqp
from multiqueue.testing import PATIENCE

KNOWS_EVERYTHING = dict.fromkeys(
    (
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
    ),
    True,
)

SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"  # RabbitMQ's words


class Content(NamedTuple):
    """A deliver, get-ok or return with what it carries."""

    method: Any
    properties: Mapping[str, Any]
    body: bytes


class Closed(Exception):
    """The peer has closed the socket."""


opened: list[socket.socket] = []  # by the test that runs; they are closed at its end, however it ends


class RawClient:
    """One connection. Made open, with channel 1, unless told otherwise."""

    def __init__(
        self,
        url: str,
        *,
        opens: bool = True,
        user: str | None = None,
        password: str | None = None,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        host: str | None = None,
        capabilities: Mapping[str, object] = KNOWS_EVERYTHING,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.user, self.password = user or parts.username or "guest", password or parts.password or "guest"
        self.host = unquote(parts.path[1:]) if host is None else host
        self.socket = socket.create_connection((parts.hostname, parts.port or 5672), PATIENCE)
        opened.append(self.socket)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame_max = 131072
        self._splitter = amqp.FrameSplitter(2**31)
        self._frames: deque[amqp.Frame] = deque()
        self._mechanism, self._response = mechanism, response
        self._capabilities = capabilities
        self._wanted = channel_max, frame_max, heartbeat
        if opens:
            self.handshake()
            self.call(1, commands.Channel.Open)

    # -- the handshake, step by step

    def handshake(self) -> None:
        """From nothing to an open connection."""
        self.start_ok()
        self.tune_ok()
        assert isinstance(self.call(0, commands.Connection.Open, virtual_host=self.host), commands.Connection.OpenOk)

    def start_ok(self) -> Any:
        """Up to start-ok; returns the server's start."""
        self.send(amqp.PROTOCOL_HEADER)
        start = self.method()
        response = self._response
        if response is None:
            response = f"\0{self.user}\0{self.password}".encode()
        self.send_method(
            0,
            commands.Connection.StartOk,
            client_properties={"product": "raw", "capabilities": dict(self._capabilities)},
            mechanism=self._mechanism,
            response=response,
            locale="en_US",
        )
        return start

    def tune_ok(self) -> Any:
        """From tune to tune-ok; returns the server's tune."""
        tune = self.method()
        assert isinstance(tune, commands.Connection.Tune), tune
        channel_max, frame_max, heartbeat = self._wanted
        self.frame_max = tune.frame_max if frame_max is None else frame_max
        self.send_method(
            0,
            commands.Connection.TuneOk,
            channel_max=tune.channel_max if channel_max is None else channel_max,
            frame_max=self.frame_max,
            heartbeat=heartbeat,
        )
        return tune

    # -- out

    def send(self, data: bytes) -> None:
        """Bytes, whatever they are."""
        self.socket.sendall(data)

    def send_method(self, channel: int, method: Any, **fields: Any) -> None:
        """A method, without a look at what comes."""
        self.send(amqp.encode_method(channel, method, **fields))

    def call(self, channel: int, method: Any, **fields: Any) -> Any:
        """A method, and what is answered; deliveries, returns and confirms that come before are kept."""
        self.send_method(channel, method, **fields)
        kept: list[amqp.Frame] = []
        while True:
            frame = self.frame()
            if frame[0] == amqp.FRAME_METHOD and amqp.decode_hot(frame[2]) is None:
                self._frames.extendleft(reversed(kept))
                return amqp.decode_method(frame[2])
            kept.append(frame)

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"",
        *,
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """A whole publish."""
        block = amqp.encode_properties(properties)
        self.send(
            amqp.encode_publish(
                channel, exchange, key, block, body, self.frame_max or 131072, mandatory=mandatory, immediate=immediate
            )
        )

    def ack(self, tag: int, *, multiple: bool = False, channel: int = 1) -> None:
        """A basic.ack."""
        self.send(encode_ack(channel, tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True, channel: int = 1) -> None:
        """A basic.nack."""
        self.send(encode_nack(channel, tag, multiple, requeue))

    # -- in

    def frame(self) -> amqp.Frame:
        """The next frame.

        Raises:
            Closed: there is none.
        """
        while not self._frames:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                raise Closed from None
            if not data:
                raise Closed
            self._frames += self._splitter.feed(data)
        return self._frames.popleft()

    def frame_of_channel(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat: its type and payload."""
        while True:
            kind, _, payload = self.frame()
            if kind != amqp.FRAME_HEARTBEAT:
                return kind, payload

    def method(self) -> Any:
        """The next method; contents come by `content`."""
        kind, payload = self.frame_of_channel()
        assert kind == amqp.FRAME_METHOD, kind
        return amqp.decode_method(payload)

    def content(self) -> Content:
        """The next deliver, get-ok or return, whole."""
        method = self.method()
        assert isinstance(method, amqp.Deliver | amqp.GetOk | amqp.Return), method
        return self._rest_of(method)

    def _rest_of(self, method: Any) -> Content:
        kind, payload = self.frame_of_channel()
        assert kind == amqp.FRAME_HEADER
        header = amqp.decode_header(payload)
        body = b""
        while len(body) < header.body_size:
            kind, payload = self.frame_of_channel()
            assert kind == amqp.FRAME_BODY
            body += payload
        return Content(method, amqp.decode_properties(header.properties), body)

    def get(self, queue: str, *, no_ack: bool = False, channel: int = 1) -> Content | None:
        """A basic.get."""
        self.send_method(channel, commands.Basic.Get, queue=queue, no_ack=no_ack)
        method = self.method()
        return None if isinstance(method, commands.Basic.GetEmpty) else self._rest_of(method)

    def bodies(self, count: int) -> list[bytes]:
        """The bodies of the next deliveries."""
        return [self.content().body for _ in range(count)]

    def is_silent(self) -> bool:
        """True when the peer has nothing more to say: it answers a call on channel 1 with nothing before it."""
        self.send_method(1, commands.Basic.Qos)
        return isinstance(self.method(), commands.Basic.QosOk)

    # -- shorthands for methods

    def declare(
        self, queue: str = "", *, channel: int = 1, arguments: Mapping[str, Any] | None = None, **flags: Any
    ) -> Any:
        """A queue.declare."""
        return self.call(channel, commands.Queue.Declare, queue=queue, arguments=dict(arguments or {}), **flags)

    def ready(self, queue: str) -> int:
        """How many messages are ready."""
        answer: Any = self.declare(queue, passive=True)
        assert isinstance(answer, commands.Queue.DeclareOk), answer
        return int(answer.message_count or 0)

    def exchange(self, name: str, type: str = "direct", **fields: Any) -> Any:
        """An exchange.declare."""
        return self.call(1, commands.Exchange.Declare, exchange=name, exchange_type=type, **fields)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None) -> Any:
        """A queue.bind."""
        fields = {"queue": queue, "exchange": exchange, "routing_key": key, "arguments": dict(arguments or {})}
        return self.call(1, commands.Queue.Bind, **fields)

    def consume(self, queue: str, *, channel: int = 1, tag: str = "", **fields: Any) -> str:
        """A basic.consume; returns the tag."""
        answer = self.call(channel, commands.Basic.Consume, queue=queue, consumer_tag=tag, **fields)
        assert isinstance(answer, commands.Basic.ConsumeOk), answer
        return str(answer.consumer_tag)

    def channel(self, number: int) -> None:
        """Open a further channel."""
        assert isinstance(self.call(number, commands.Channel.Open), commands.Channel.OpenOk)

    def channel_error(self, channel: int = 1) -> tuple[int, str]:
        """The next method is a channel.close: answer it, open the channel again, return code and text."""
        close = self.method()
        assert type(close) is commands.Channel.Close, close
        self.send_method(channel, commands.Channel.CloseOk)
        self.channel(channel)
        return int(close.reply_code or 0), close.reply_text

    def connection_error(self) -> tuple[int, str]:
        """The next method is a connection.close, and after its answer the socket is closed."""
        close = self.method()
        assert type(close) is commands.Connection.Close, close
        try:
            self.send_method(0, commands.Connection.CloseOk)
            while True:
                self.frame()
        except (Closed, OSError):
            self.socket.close()
        return int(close.reply_code or 0), close.reply_text

    def is_cut(self) -> bool:
        """True once the peer has closed the socket; everything before that is dropped."""
        try:
            while True:
                self.frame()
        except Closed:
            return True

    def close(self) -> None:
        """A clean end."""
        try:
            self.send_method(0, commands.Connection.Close, reply_code=200, reply_text="bye")
            while True:
                kind, channel, payload = self.frame()
                if kind == 1 and channel == 0 and isinstance(amqp.decode_method(payload), commands.Connection.CloseOk):
                    return
        except (Closed, OSError):
            pass
        finally:
            self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
