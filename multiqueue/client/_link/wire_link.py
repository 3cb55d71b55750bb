"""A link over a socket: shaking hands on the connecting thread, then a reader, a writer, and a thread for heartbeats.

State       `_lock` guards `_error`, why the link ends; it is a leaf. The socket is read by the reader and written by
            the writer alone; any thread may shut it down.
Waiting     The reader waits for the socket, and for the receive buffer: `end` shuts the one down and nudges the other.
            The writer waits for the outbox, which `end` closes, or in `sendall`, which the shut-down ends. The
            heartbeat thread waits on `_over`, and finds a peer dead that neither reads nor writes.
Membership  The reader calls `Listener.lost` once, after both other threads have ended and the socket is closed.
"""

from __future__ import annotations

import platform
import socket
import ssl
import threading
from functools import partial
from typing import Any, NamedTuple

from pamqp import commands

from ..._locks import Lock
from ...amqp import wire
from .._base.errors import ConnectionClosed, ConnectionFailed
from .._base.settings import Address, Endpoint, Settings
from .._dispatch.buffers import Outbox
from .assembler import Assembler
from .link import Event, Listener
from .socket import Stream, open_stream

READ_BYTES = 65536  # about sixty messages of 1 KiB; larger buffers are mapped and unmapped by every read
CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "exchange_exchange_bindings": True,
}


class Agreement(NamedTuple):
    """The limits that client and server agreed on, and what arrived with the last answer already."""

    frame_max: int
    channel_max: int
    heartbeat: float
    server_properties: dict[str, Any]
    early: list[Event]


def open_wire(address: Address, settings: Settings, listener: Listener) -> WireLink:
    """A link to the first endpoint that agrees, not started yet. Raises ConnectionFailed: none did; the message has the
    reason of each."""
    reasons = []
    for endpoint in address.endpoints:
        try:
            return _open_endpoint(endpoint, address, settings, listener)
        except (OSError, EOFError, wire.AmqpError, ConnectionFailed) as error:
            reasons.append(f"{endpoint}: {error or type(error).__name__}")
    raise ConnectionFailed(f"cannot connect to {address}: {'; '.join(reasons)}")


def _open_endpoint(endpoint: Endpoint, address: Address, settings: Settings, listener: Listener) -> WireLink:
    tls = (settings.tls or ssl.create_default_context()) if address.tls else None
    stream = open_stream(endpoint, settings.connection_timeout, tls)
    try:
        assembler = Assembler(settings.frame_max)
        agreement = shake_hands(stream, assembler, address, settings)
        stream.settimeout(None)
        return WireLink(stream, assembler, agreement, settings, listener, str(endpoint))
    except BaseException:
        stream.close()
        raise


def shake_hands(stream: Stream, assembler: Assembler, address: Address, settings: Settings) -> Agreement:
    """Introduce ourselves, log in, tune, and open the virtual host.

    Raises:
        ConnectionFailed: the server refused, in its words.
        OSError: the connection was cut, or there was no answer in time.
        AmqpError: the other side does not speak AMQP 0-9-1.
    """
    stream.sendall(wire.PROTOCOL_HEADER)
    events: list[Event] = []
    expect = partial(_expect, events, stream, assembler)
    start = expect(commands.Connection.Start)
    mechanism, response = _login(address, settings, bytes(start.mechanisms).split())
    introduction = {
        "product": "multiqueue",
        "platform": f"Python {platform.python_version()}",
        "connection_name": f"{settings.name}@{socket.gethostname()}",
        "capabilities": CAPABILITIES,
        **settings.client_properties,
    }
    fields = {"client_properties": introduction, "mechanism": mechanism, "response": response}
    stream.sendall(wire.encode_method(0, commands.Connection.StartOk, **fields, locale="en_US"))
    try:
        tune = expect(commands.Connection.Tune)
    except (EOFError, ConnectionError):
        text = f"the server closed the connection at the login as {address.user!r}: wrong password, or not allowed"
        raise ConnectionFailed(text) from None
    frame_max = assembler.frame_max = _lower(settings.frame_max, tune.frame_max)
    channel_max = _lower(settings.channel_max, tune.channel_max) or 65535
    heartbeat = _lower(max(1, round(settings.heartbeat)) if settings.heartbeat else 0, tune.heartbeat)
    tuned = {"channel_max": channel_max, "frame_max": frame_max, "heartbeat": heartbeat}
    stream.sendall(
        wire.encode_method(0, commands.Connection.TuneOk, **tuned)
        + wire.encode_method(0, commands.Connection.Open, virtual_host=address.vhost)
    )
    expect(commands.Connection.OpenOk)
    return Agreement(frame_max, channel_max, heartbeat, dict(start.server_properties), events)


def _expect(events: list[Event], stream: Stream, assembler: Assembler, expected: type[Any]) -> Any:
    """The next method on channel 0; what came with it stays in `events`."""
    while not events:
        data = stream.recv(65536)
        if not data:
            raise EOFError("the server closed the connection")
        if data[:4] == b"AMQP":
            raise ConnectionFailed(f"the server speaks another version of AMQP: {data[:8]!r}")
        events += assembler.feed(data)
    method = events.pop(0).method
    if isinstance(method, commands.Connection.Close):
        raise ConnectionFailed(f"the server refused: {method.reply_text}")
    if not isinstance(method, expected):
        raise ConnectionFailed(f"the server sent {type(method).__name__} where {expected.__name__} was due")
    return method


def _login(address: Address, settings: Settings, offered: list[bytes]) -> tuple[str, bytes]:
    if settings.login == "external":
        return "EXTERNAL", b""
    if b"PLAIN" in offered:
        return "PLAIN", b"\0".join((b"", address.user.encode(), address.password.encode()))
    if b"AMQPLAIN" in offered:
        return "AMQPLAIN", wire.encode_table({"LOGIN": address.user, "PASSWORD": address.password})[4:]
    names = b", ".join(offered).decode(errors="replace")
    raise ConnectionFailed(f"the server offers {names}, and this client has PLAIN and AMQPLAIN")


def _lower(ours: float, theirs: int) -> int:
    return int(min(ours, theirs) if ours and theirs else max(ours, theirs))


class WireLink:
    """A connection to a server, from the handshake to the end."""

    def __init__(
        self,
        stream: Stream,
        assembler: Assembler,
        agreement: Agreement,
        settings: Settings,
        listener: Listener,
        label: str,
    ) -> None:
        self.frame_max, self.channel_max, self.heartbeat, self.server_properties, self._early = agreement
        self._stream = stream
        self._assembler = assembler
        self._listener = listener
        self._label = label
        self._outbox: Outbox[bytes] = Outbox(settings.outbox_bytes)
        self.wait_for_room = self._outbox.wait_for_room
        self._monitor = wire.HeartbeatMonitor()
        self._lock = Lock()
        self._error: ConnectionClosed | None = None
        self._over = threading.Event()
        name = partial("{}-{}".format, settings.name)
        self._reader = threading.Thread(target=self._read, name=name("reader"), daemon=True)
        self._writer = threading.Thread(target=self._write, name=name("writer"), daemon=True)
        self._beater = threading.Thread(target=self._beat, name=name("heartbeat"), daemon=True)

    def start(self) -> None:
        # The reader last: what it reads may end the link, and then it waits for the others.
        for thread in (self._writer, *([self._beater] if self.heartbeat else []), self._reader):
            thread.start()

    def send(self, number: int, frame: bytes) -> bool:
        return self.publish(frame)

    def prepare(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> bytes:
        return wire.encode_publish(number, exchange, routing_key, properties, body, self.frame_max, mandatory=mandatory)

    def publish(self, prepared: bytes) -> bool:
        return self._outbox.append(prepared, len(prepared))

    def settle(self, number: int, settled: wire.Settlement) -> None:
        self.publish(wire.encode_settlement(number, settled))

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full

    def _read(self) -> None:
        listener, feed, monitor = self._listener, self._assembler.feed, self._monitor
        receive_buffer = listener.receive_buffer
        try:
            if self._early:
                listener.arrived(self, self._early)
            while True:
                receive_buffer.wait_until_free(self._over.is_set)
                data = self._stream.recv(READ_BYTES)
                monitor.heard = True
                if not data:
                    raise EOFError("closed by the other side")
                listener.arrived(self, feed(data))
        except (OSError, EOFError) as cause:
            error = ConnectionClosed(f"the connection to {self._label} was lost: {cause}")
        except wire.AmqpError as cause:
            error = ConnectionClosed(f"{self._label} sent what is no AMQP: {cause}", reply_code=cause.reply_code)
        except Exception as cause:  # noqa: BLE001  # a defect of ours must be seen, and must not leave a deaf connection
            error = ConnectionClosed(f"the reader of {self._label} failed: {cause!r}", reply_code=541)
            error.__cause__ = cause
        self.end(error)
        self.join(None)
        self._stream.close()
        assert self._error is not None
        listener.lost(self, self._error)

    def _write(self) -> None:
        try:
            while frames := self._outbox.take():
                self._stream.sendall(frames[0] if len(frames) == 1 else b"".join(frames))
        except OSError as cause:
            self.end(ConnectionClosed(f"the connection to {self._label} was lost while writing: {cause}"))

    def _beat(self) -> None:
        while not self._over.wait(self.heartbeat / 2):
            if self._monitor.tick(listening=not self._listener.receive_buffer.is_stopped):
                silent = 2 * self.heartbeat
                self.end(ConnectionClosed(f"{self._label} missed its heartbeats: not a byte in {silent:g} s"))
            else:
                self.publish(wire.HEARTBEAT)

    def end(self, error: ConnectionClosed, *, linger: float = 0.0) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._outbox.close()
        if linger and self._writer is not threading.current_thread():
            self._writer.join(linger)
        self._over.set()
        self._listener.receive_buffer.nudge()
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster

    def join(self, timeout: float | None) -> None:
        for thread in (self._reader, self._writer, self._beater):
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(timeout)
