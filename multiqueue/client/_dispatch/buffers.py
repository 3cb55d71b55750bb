"""The bytes that wait in the client: deliveries for their callbacks, and frames for the socket.

Deliveries  At `limit` bytes the reader stops before it reads further; it goes on when half is left, and at once while a
            thread waits for an answer, which stands behind the deliveries. It waits on `may_read`: `release` notifies
            at half, `answer_wanted` when the first waits, `nudge` when a link ends.
Outbox      Any thread appends, one thread sends: frames for a socket, steps for a broker in process. The writer takes
            all there is at once: under load hundreds of frames with one system call. It waits on `has_pieces`:
            appending to an empty outbox notifies, so does `close`. Publishers wait on `has_room`: the writer notifies
            whenever it has taken everything out, so does `close`. Acknowledgements and calls never wait for room: they
            are small, and bounded by what the server sent.
State       Each has a `_lock` that guards all its fields; leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..._locks import Condition, Lock

Piece = TypeVar("Piece")

_log = logging.getLogger("multiqueue.client")


class ReceiveBuffer:
    """The reader's brake."""

    def __init__(self, limit: int, name: str = "") -> None:
        self.limit = limit
        self._name = name
        self._lock = Lock()
        self._may_read = Condition(self._lock)  # predicate: not _is_stopped, or _wanted
        self._held = 0
        self._wanted = 0  # who wait for an answer
        self._is_stopped = False  # from reaching the limit down to half of it

    @property
    def held_bytes(self) -> int:
        return self._held

    @property
    def is_stopped(self) -> bool:
        """Is the reader held back now? A silent peer is no dead one then."""
        return self._is_stopped and not self._wanted

    def hold(self, size: int) -> None:
        with self._lock:
            self._held += size
            news = self._held >= self.limit and not self._is_stopped
            if news:
                self._is_stopped = True
        if news:
            _log.warning(
                "connection %r: %d bytes of deliveries wait for callbacks, the limit; nothing more is read until half"
                " of them are done with: set a prefetch, make callbacks faster, or raise buffer_bytes",
                self._name,
                self._held,
                extra={"connection": self._name},
            )

    def release(self, size: int) -> None:
        with self._lock:
            self._held -= size
            if self._is_stopped and self._held <= self.limit // 2:
                self._is_stopped = False
                self._may_read.notify_all()

    def wait_until_free(self, is_over: Callable[[], bool]) -> None:
        """Block the reader while the limit is reached, unless its link `is_over`."""
        if not self._is_stopped:
            return
        with self._lock:
            self._may_read.wait_for(lambda: not self._is_stopped or self._wanted or is_over())

    @contextmanager
    def answer_wanted(self) -> Iterator[None]:
        """Let the reader go on during the block, which waits for something that it will read."""
        with self._lock:
            self._wanted += 1
            if self._is_stopped:
                self._may_read.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1

    def nudge(self) -> None:
        with self._lock:
            self._may_read.notify_all()

    def check_invariants(self) -> None:
        """Raise AssertionError when the counts contradict each other. For tests."""
        with self._lock:
            assert self._held >= 0, self._held
            assert self._wanted >= 0, self._wanted
            assert self._is_stopped or self._held < self.limit
            assert not self._is_stopped or self._held > self.limit // 2


class Outbox(Generic[Piece]):
    """The bytes or steps that were written and not sent. At `limit` bytes it has no room for publishes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = Lock()
        self._has_pieces = Condition(self._lock)  # predicate: _pieces or _is_closed
        self._has_room = Condition(self._lock)  # predicate: _size < limit or _is_closed
        self._pieces: list[Piece] = []
        self._size = 0
        self._is_closed = False
        self._writer_waits = False
        self._publishers_wait = 0

    @property
    def is_full(self) -> bool:
        return self._size >= self.limit

    def append(self, piece: Piece, size: int) -> bool:
        """Have this sent, which counts as `size` bytes; False when the outbox is closed."""
        with self._lock:
            if self._is_closed:
                return False
            self._pieces.append(piece)
            self._size += size
            if self._writer_waits:
                self._writer_waits = False
                self._has_pieces.notify()
        return True

    def take(self) -> list[Piece]:
        """All pieces, for the writer; blocks until there is something. Nothing at all when closed."""
        with self._lock:
            while not self._pieces and not self._is_closed:
                self._writer_waits = True
                self._has_pieces.wait()
            pieces, self._pieces = self._pieces, []
            self._size = 0
            if self._publishers_wait:
                self._has_room.notify_all()
        return pieces

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Block while it is full; False when `timeout` seconds passed first. True when it is closed."""
        if self._size < self.limit:
            return True
        with self._lock:
            self._publishers_wait += 1
            try:
                return self._has_room.wait_for(lambda: self._size < self.limit or self._is_closed, timeout)
            finally:
                self._publishers_wait -= 1

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._has_pieces.notify_all()
            self._has_room.notify_all()
