"""Sockets that one thread reads while another writes, with TLS or without.

A plain socket is that already. OpenSSL's is not: reading and writing change one state. So with TLS both are done
without blocking, under a lock, and the waiting is done outside of it.

State       `_lock` of a `TlsSocket` is held for one call of OpenSSL that does not block. It is a leaf.
Waiting     Each side waits for its own socket to become readable or writable; `shutdown` ends both waits.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..._locks import Lock
from .._base.settings import Endpoint

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Stream(Protocol):
    """A connected socket. One thread reads, another writes, any thread shuts it down."""

    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


def open_stream(endpoint: Endpoint, timeout: float, tls: ssl.SSLContext | None) -> Stream:
    """A connected stream; every operation on it takes `timeout` seconds at most until another limit is set. Raises
    OSError: it cannot be reached, or its certificate is not trusted."""
    plain = socket.create_connection(endpoint, timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls is None:
            return plain
        return TlsSocket(tls.wrap_socket(plain, server_hostname=endpoint.host), timeout)
    except BaseException:
        plain.close()
        raise


class TlsSocket:
    def __init__(self, wrapped: ssl.SSLSocket, timeout: float | None) -> None:
        self._socket = wrapped
        self._socket.setblocking(False)
        self._timeout = timeout
        self._lock = Lock()

    def recv(self, size: int) -> bytes:
        try:
            return self._do(self._socket.recv, size)
        except ssl.SSLEOFError:
            return b""

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._do(self._socket.send, view) :]

    def _do(self, operation: Callable[[Argument], Result], argument: Argument) -> Result:
        while True:
            try:
                with self._lock:
                    return operation(argument)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(None if self._timeout is None else self._timeout * 1000):
            raise TimeoutError("timed out")

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._socket, how)  # SSLSocket's drops its keys first: the other thread would send bare

    def close(self) -> None:
        self._socket.close()
