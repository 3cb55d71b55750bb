"""GET requests over connections that stay open, by an event loop, at a third of the CPU of a library for all of HTTP.

Promise     An answer is given only if it came whole, with its length told: its status, its headers, its bytes. All else
            is an error, after which the connection is not used again: whoever asks has another way.
State       `_idle`, the connections on which nothing is asked. One that is asked on belongs to the one who asks.
Waiting     For an answer, until nothing has come for `_SILENT_S`. `close`, or the object's end, closes what is idle.
Threads     The loop's alone.
Ships       By value to executors: this module imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from typing import Any
from urllib.parse import urlsplit

# As botocore waits for an answer.
_SILENT_S = 60.0

_MOST_OF_HEAD = 64 << 10

Answer = tuple[int, dict[str, str], bytes]
"""The status, the headers by their names in lower case, and the bytes."""


class Untold(OSError):
    """An answer that only a library for all of HTTP reads."""


class Lines:
    """The connections to one server, as many as are asked on at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._loop, self._host, self._tls = loop, parts.hostname or "", tls
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._idle: list[_Line] = []
        self.close = weakref.finalize(self, _close, loop, self._idle)

    async def get(self, host: str, path: str, headers: dict[str, str]) -> Answer:
        """Ask for the path; `host` is what the server is told to be called.

        Raises:
            Untold: the answer came in another way, as this server's others will.
        OSError: no whole answer came.
        """
        while self._idle and self._idle[-1].is_over:
            self._idle.pop()
        line = self._idle.pop() if self._idle else await self._connected()
        try:
            told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            answer = await line.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{told}\r\n".encode("ascii"))
        except BaseException:
            line.transport.abort()
            raise
        if line.is_over:
            line.transport.abort()
        else:
            self._idle.append(line)
        return answer

    async def _connected(self) -> _Line:
        async with asyncio.timeout(_SILENT_S):
            _, line = await self._loop.create_connection(
                lambda: _Line(self._loop), self._host, self._port, ssl=self._tls
            )
        return line


class _Line(asyncio.Protocol):
    """One connection: one request at a time."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._came: list[bytes] = []
        self._missing = 0
        """Bytes of the answer, once `_told` is known."""
        self._told: tuple[int, dict[str, str]] | None = None
        """The status and the headers of the answer."""
        self._heard_s = 0.0
        self._answer: asyncio.Future[Answer] | None = None
        self.is_over = False

    async def ask(self, request: bytes) -> Answer:
        self._came, self._told = [], None
        self._answer, self._heard_s = self._loop.create_future(), self._loop.time()
        self.transport.write(request)
        watch = self._loop.call_later(_SILENT_S, self._look)
        try:
            return await self._answer
        finally:
            watch.cancel()
            self._answer = None

    def _look(self) -> None:
        """End the wait where nothing came for too long."""
        due_s = self._heard_s + _SILENT_S
        if due_s <= self._loop.time():
            self._end(TimeoutError("no answer came"))
        elif self._answer is not None:
            self._loop.call_at(due_s, self._look)

    def _end(self, error: OSError) -> None:
        self.is_over = True
        self.transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if self._answer is None or self._answer.done():
            self._end(OSError("nothing was asked"))
            return
        if self._told is None:
            head, found, data = b"".join((*self._came, data)).partition(b"\r\n\r\n")
            if not found:
                self._came = [head]
                if len(head) > _MOST_OF_HEAD:
                    self._end(OSError("the headers have no end"))
                return
            try:
                self._told, self._missing, self._came = *_told(head), []
            except OSError as error:
                self._end(error)
                return
        self._came.append(data)
        self._missing -= len(data)
        if self._missing < 0:
            self._end(OSError("more came than the answer's length"))
        elif not self._missing:
            self.is_over = self._told[1].get("connection", "").lower() == "close"
            self._answer.set_result((*self._told, b"".join(self._came)))


def _told(head: bytes) -> tuple[tuple[int, dict[str, str]], int]:
    """The status and the headers, and how many bytes follow."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    version, _, status = first.partition(" ")
    length = headers.get("content-length", "")
    if version != "HTTP/1.1" or not status[:3].isdecimal() or not length.isdecimal() or "transfer-encoding" in headers:
        raise Untold(f"the answer is {first!r}, of no length told before")
    return (int(status[:3]), headers), int(length)


def _close(loop: asyncio.AbstractEventLoop, idle: list[_Line]) -> None:
    def abort() -> None:
        for line in idle:
            line.transport.abort()

    if not loop.is_closed():
        loop.call_soon_threadsafe(abort)
