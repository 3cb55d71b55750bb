"""Connections of HTTP clients, of which so many are held, and none for nothing.

Promise     A client that sends no whole request, or does not read its answer, is cut after `_PATIENCE` to twice that.
            At most `_CONNECTIONS` are open: a further one takes the place of that which has been idle for longest, so
            that slow clients lock no other out; where all have a request in work it is answered with 503.
Who runs    The event loop alone.
Source      uvicorn's own limits end idle connections after an answer, and none before the first request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

_CONNECTIONS: Final = 512
_PATIENCE: Final = 10.0  # seconds for a request's head, or for reading an answer
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(H11Protocol):
    """One connection. `_idle_since` is when its latest request was done, or when it came."""

    _idle_since: float
    _was_idle: bool = False
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection in, in place of an idle one if need be."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._check = self.loop.call_later(_PATIENCE, self._look)
        if len(self.connections) > _CONNECTIONS:
            others = [each for each in self.connections if isinstance(each, PatientProtocol) and each is not self]
            idle = [each for each in others if not each._is_at_work()]
            if idle:
                oldest = min(idle, key=lambda each: each._idle_since)
                self.connections.discard(oldest)  # its end is told later, and many may come before
                oldest.transport.abort()
            else:
                transport.write(_FULL)
                transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """Cut it when it has been idle at two looks, and for the whole time between them."""
        is_idle = not self._is_at_work() and self.loop.time() - self._idle_since >= _PATIENCE
        if is_idle and self._was_idle:
            self.transport.abort()
            return
        if is_idle:
            self.transport.close()  # it may read what is written already
        self._was_idle = is_idle
        self._check = self.loop.call_later(_PATIENCE, self._look)
