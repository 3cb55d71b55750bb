"""How many bytes of deliveries wait in the client, and whether the reader may go on.

At `limit` bytes the reader stops before it reads further; it goes on when half is left, and at once while a thread
waits for an answer, which stands behind the deliveries. docs/decisions/0822-a-full-buffer.md. `_lock` guards all
fields. The reader waits on `may_read`: `release` notifies at half, `answer_wanted` when the first waits, `nudge` when a
link ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("multiqueue.client")


class ReceiveBuffer:
    """The reader's brake."""

    def __init__(self, limit: int, name: str = "") -> None:
        self.limit = limit
        self._name = name
        self._lock = threading.Lock()
        self._may_read = threading.Condition(self._lock)  # predicate: not _is_stopped, or _wanted
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
            while self._is_stopped and not self._wanted and not is_over():
                self._may_read.wait()

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
