"""Publisher confirms: which publishes of a channel are done, told in as few frames as they fit into.

Promise     Every number from 1 on is told once: acked or nacked, alone or by a `multiple` of a higher one. A
            `multiple` is used only when nothing below it is open.
State       One I/O thread uses a tracker; what a store's thread reports is posted to that thread first.
"""

from __future__ import annotations

from .._wire.hot import encode_ack, encode_nack


class Confirms:
    """The confirms of one channel."""

    __slots__ = ("_acked", "_nacked", "_open", "published")

    def __init__(self) -> None:
        self.published = 0  # the number of the last publish
        # Invariants: rising, because numbers are given in order; no number is in two of the three.
        self._open: dict[int, None] = {}
        self._acked: list[int] = []
        self._nacked: list[int] = []

    def begin(self) -> int:
        """A publish has come; its number."""
        self.published = number = self.published + 1
        self._open[number] = None
        return number

    def end(self, number: int, *, refused: bool = False) -> None:
        """A publish is where it should be, or was refused."""
        del self._open[number]
        (self._nacked if refused else self._acked).append(number)

    @property
    def unconfirmed(self) -> int:
        """How many publishes are not done yet."""
        return len(self._open)

    @property
    def is_waiting(self) -> bool:
        """True while something is to be told."""
        return bool(self._acked or self._nacked)

    def frames(self, channel: int) -> bytes:
        """What is to be told now, as frames; it is told with this."""
        pieces = [encode_nack(channel, number, requeue=False) for number in self._nacked]
        acked = self._acked
        self._acked, self._nacked = [], []
        if acked:
            acked.sort()
            lowest_open = next(iter(self._open), self.published + 1)
            below = [number for number in acked if number < lowest_open]
            if below:
                pieces.append(encode_ack(channel, below[-1], len(below) > 1))
            pieces += [encode_ack(channel, number) for number in acked[len(below) :]]
        return b"".join(pieces)
