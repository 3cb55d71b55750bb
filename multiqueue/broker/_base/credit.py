"""Credit: how many messages and bytes more a consumer target may receive.

Promise     Unsettled messages never exceed the limit, with one exception: a message larger than
            the whole byte window passes when nothing is outstanding, or it could never be delivered.
State       One small lock guards every field. It is a leaf, taken under a queue's.
Waiting     A caller that makes credit larger learns from the return value that a consumer may have been refused for
            lack of it, and then asks the queues to look again.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxsize

from ..._locks import Lock


class Credit:
    """How many messages and bytes may be outstanding at once; None is unlimited. Any thread may call.

    Settling a message restores its credit.

    Raises:
        ValueError: a limit below 0.
    """

    __slots__ = ("_bytes", "_lock", "_messages", "_open", "_refused", "_suspended", "_taken", "_taken_bytes")

    def __init__(self, messages: int | None = None, size_bytes: int | None = None) -> None:
        _check(messages, size_bytes)
        self._lock = Lock()
        self._messages = messages  # what is left; None is unlimited
        self._bytes = size_bytes  # the same in bytes; below 0 while an oversized message is outstanding
        self._taken = 0  # outstanding
        self._taken_bytes = 0
        self._refused = False  # somebody asked for more than there was
        self._suspended = False
        self._open = False  # what `is_open` says; `_change` sets it
        self._change(0, 0)

    @property
    def limit(self) -> int | None:
        """How many messages may be outstanding at once, as far as is known; None is unlimited."""
        return None if self._messages is None else self._messages + self._taken

    @property
    def is_open(self) -> bool:
        """True when the next message, if it is small enough, may be taken."""
        return self._open

    @property
    def of_any_size(self) -> int:
        """For how many messages of any size there is credit now; 0 where bytes are limited."""
        if self._bytes is not None:
            return 0
        return maxsize if self._messages is None else self._messages

    def take_run(self, sizes: Sequence[int]) -> int:
        """Use credit for messages of these sizes, one after the other; returns for how many there was enough."""
        with self._lock:
            count = len(sizes)
            if not self._open:
                count = 0
            elif self._messages is not None and self._messages < count:
                count = self._messages
            if count and self._bytes is not None:
                count = self._within(self._bytes, sizes[:count])
            if count < len(sizes):
                self._refused = True
                sizes = sizes[:count]
            self._change(count, sum(sizes))
            return count

    def settled(self, messages: int, size_bytes: int) -> bool:
        """Messages were settled and their credit is back; True when a consumer may wait for it."""
        with self._lock:
            return self._regain(messages, size_bytes)

    def set_window(self, messages: int | None, size_bytes: int | None = None) -> bool:
        """Change the limits; unsettled messages count. True when a consumer may wait for it."""
        _check(messages, size_bytes)
        with self._lock:
            self._messages = None if messages is None else messages - self._taken
            self._bytes = None if size_bytes is None else size_bytes - self._taken_bytes
            return self._regain(0, 0)

    def suspend(self) -> None:
        """Nothing more is taken until `resume`."""
        with self._lock:
            self._suspended = True
            self._change(0, 0)

    def resume(self) -> bool:
        """End a suspension; True when a consumer may wait for that."""
        with self._lock:
            self._suspended = False
            return self._regain(0, 0)

    def _within(self, left: int, sizes: Sequence[int]) -> int:
        """How many of these sizes so many bytes cover; where nothing is out, one is covered in any case."""
        for count, size in enumerate(sizes):
            if left <= 0 or (size > left and (self._taken or count)):
                return count
            left -= size
        return len(sizes)

    def _change(self, messages: int, size_bytes: int) -> None:
        """So much more is outstanding, or what else `is_open` depends on has changed."""
        self._taken += messages
        self._taken_bytes += size_bytes
        if self._messages is not None:
            self._messages -= messages
        if self._bytes is not None:
            self._bytes -= size_bytes
        messages_left, bytes_left = self._messages, self._bytes
        self._open = (
            not self._suspended
            and (messages_left is None or messages_left > 0)
            and (bytes_left is None or bytes_left > 0)
        )

    def _regain(self, messages: int, size_bytes: int) -> bool:
        """So much less is outstanding; True when a consumer may wait for that, or for what else has changed."""
        was_open = self._open
        self._change(-messages, -size_bytes)
        useful = (self._refused or not was_open) and self._open
        if useful:
            self._refused = False
        return useful

    def check_invariants(self) -> None:
        """Raise AssertionError when more is left, or given back, than there can be."""
        with self._lock:
            assert self._taken >= 0, "more settled than taken"
            assert self._taken_bytes >= 0
            assert self._taken or not self._taken_bytes
            was_open = self._open
            self._change(0, 0)
            assert self._open == was_open, "a change went unnoticed"

    def __repr__(self) -> str:
        return f"<credit messages={self._messages} bytes={self._bytes} suspended={self._suspended}>"


def _check(messages: int | None, size_bytes: int | None) -> None:
    for name, value in (("messages", messages), ("size_bytes", size_bytes)):
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}; credit is 0 or more, None is unlimited")
