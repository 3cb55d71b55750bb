"""Bytes that requests hold: bodies that have come, and answers with messages that go.

Promise     All requests together hold `_ALL` bytes of them at the most, those of a user `_ONE`. What would be more is
            refused with 503 before anything was taken from a queue.
State       `_lock`, a leaf, guards the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..._locks import Lock
from .errors import Refused

_ALL: Final = 64 * 2**20
_ONE: Final = 32 * 2**20

Hold = Callable[[int], None]  # raises Refused: there is no room for so many bytes more


class Held:
    """The account of one server. Any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bytes: Counter[str] = Counter()  # by user; only those that hold something
        self._all = 0

    @contextmanager
    def of(self, user: str) -> Iterator[Hold]:
        """A request of a user: the end of the block gives its bytes back."""
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            with self._lock:
                if self._bytes[user] + size > _ONE:
                    raise _full(f"requests of user '{user}' hold {self._bytes[user]} bytes already")
                if self._all + size > _ALL:
                    raise _full(f"requests hold {self._all} bytes already")
                self._bytes[user] += size
                self._all += size
                mine += size

        try:
            yield hold
        finally:
            with self._lock:
                self._all -= mine
                self._bytes[user] -= mine
                if not self._bytes[user]:
                    del self._bytes[user]


def _full(reason: str) -> Refused:
    return Refused(503, "too_much_at_once", f"{reason}; try again later")
