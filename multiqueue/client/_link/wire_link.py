"""A link over a socket: a reader thread, a writer thread, and one for heartbeats.

State       `_lock` guards `_error`, why the link ends; it is a leaf. The socket is read by the reader and written by
            the writer alone; any thread may shut it down.
Waiting     The reader waits for the socket, and for the receive buffer: `end` shuts the one down and nudges the other.
            The writer waits for the outbox, which `end` closes, or in `sendall`, which the shut-down ends. The
            heartbeat thread waits on `_over`, and finds a peer dead that neither reads nor writes.
Membership  The reader calls `Listener.lost` once, after both other threads have ended and the socket is closed.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

from ...amqp import wire
from .._base.errors import ConnectionClosed, ConnectionFailed
from .._base.settings import Address, Endpoint, Settings
from .._dispatch.outbox import Outbox
from .assembler import Assembler
from .handshake import HANDSHAKE_ERRORS, Agreement, shake_hands
from .link import Listener
from .socket import Stream, open_stream

READ_BYTES = 65536  # about sixty messages of 1 KiB; larger buffers are mapped and unmapped by every read


def open_wire(address: Address, settings: Settings, listener: Listener) -> WireLink:
    """A link to the first endpoint that agrees, not started yet. Raises ConnectionFailed: none did; the message has the
    reason of each."""
    reasons = []
    for endpoint in address.endpoints:
        try:
            return _open_endpoint(endpoint, address, settings, listener)
        except HANDSHAKE_ERRORS as error:
            reasons.append(f"{endpoint}: {error or type(error).__name__}")
    raise ConnectionFailed(f"cannot connect to {address}: {'; '.join(reasons)}")


def _open_endpoint(endpoint: Endpoint, address: Address, settings: Settings, listener: Listener) -> WireLink:
    tls = (settings.tls or ssl.create_default_context()) if address.tls else None
    stream = open_stream(endpoint, settings.connection_timeout, tls)
    try:
        assembler = Assembler(max(settings.frame_max, 4096))
        agreement = shake_hands(stream, assembler, address, settings)
        stream.settimeout(None)
        return WireLink(stream, assembler, agreement, settings, listener, str(endpoint))
    except BaseException:
        stream.close()
        raise


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
        self.frame_max = agreement.frame_max
        self.channel_max = agreement.channel_max
        self.heartbeat = agreement.heartbeat
        self.server_properties = agreement.server_properties
        self._early = agreement.early
        self._stream = stream
        self._assembler = assembler
        self._listener = listener
        self._label = label
        self._outbox: Outbox[bytes] = Outbox(settings.outbox_bytes)
        self._monitor = wire.HeartbeatMonitor()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._over = threading.Event()
        name = partial("{}-{}".format, settings.name)
        self._reader = threading.Thread(target=self._read, name=name("reader"), daemon=True)
        self._writer = threading.Thread(target=self._write, name=name("writer"), daemon=True)
        self._beater = threading.Thread(target=self._beat, name=name("heartbeat"), daemon=True)

    def start(self) -> None:
        for thread in (self._reader, self._writer, *([self._beater] if self.heartbeat else [])):
            thread.start()

    def send(self, number: int, method: type[Any], /, **fields: Any) -> bool:
        return self._append(wire.encode_method(number, method, **fields))

    def prepare(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> bytes:
        return wire.encode_publish(number, exchange, routing_key, properties, body, self.frame_max, mandatory=mandatory)

    def publish(self, prepared: bytes) -> bool:
        return self._append(prepared)

    def _append(self, frames: bytes) -> bool:
        return self._outbox.append(frames, len(frames))

    def settle(self, number: int, settled: wire.Settlement) -> None:
        self._append(wire.encode_settlement(number, settled))

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full

    def wait_for_room(self, timeout: float | None) -> bool:
        return self._outbox.wait_for_room(timeout)

    def _read(self) -> None:
        error: Exception
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
        self._finish()

    def _write(self) -> None:
        try:
            while frames := self._outbox.take():
                self._stream.sendall(frames[0] if len(frames) == 1 else b"".join(frames))
                self._monitor.said = True
        except OSError as cause:
            self.end(ConnectionClosed(f"the connection to {self._label} was lost while writing: {cause}"))

    def _beat(self) -> None:
        while not self._over.wait(self.heartbeat / 2):
            sends, is_gone = self._monitor.tick(listening=not self._listener.receive_buffer.is_stopped)
            if is_gone:
                silent = 2 * self.heartbeat
                self.end(ConnectionClosed(f"{self._label} missed its heartbeats: not a byte in {silent:g} s"))
            elif sends:
                self._append(wire.HEARTBEAT)

    def end(self, error: Exception, *, linger: float = 0.0) -> None:
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

    def _finish(self) -> None:
        self._join((self._writer, self._beater), None)
        self._stream.close()
        assert self._error is not None
        self._listener.lost(self, self._error)

    def join(self, timeout: float | None) -> None:
        self._join((self._reader, self._writer, self._beater), timeout)

    @staticmethod
    def _join(threads: Iterable[threading.Thread], timeout: float | None) -> None:
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(timeout)
