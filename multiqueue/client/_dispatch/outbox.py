"""Frames on their way out: any thread appends, one thread sends. Frames for a socket, steps for a broker in process.

State       `_lock` guards all fields.
Waiting     The writer waits on `has_pieces`: appending to an empty outbox notifies, so does `close`. Publishers
            wait on `has_room`: the writer notifies whenever it has taken everything out, so does `close`.
            Acknowledgements and calls never wait for room: they are small, and bounded by what the server sent.
Batches     The writer takes all there is at once. Under load it sends hundreds of frames with one system call.
"""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

Piece = TypeVar("Piece")


class Outbox(Generic[Piece]):
    """The bytes or steps that were written and not sent. At `limit` bytes it has no room for publishes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._has_pieces = threading.Condition(self._lock)  # predicate: _pieces or _is_closed
        self._has_room = threading.Condition(self._lock)  # predicate: _size < limit or _is_closed
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
        """All that is there, for the writer; blocks until there is something. Nothing at all when closed."""
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
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._size >= self.limit and not self._is_closed:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return False
                self._publishers_wait += 1
                try:
                    self._has_room.wait(remaining)
                finally:
                    self._publishers_wait -= 1
        return True

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._has_pieces.notify_all()
            self._has_room.notify_all()
