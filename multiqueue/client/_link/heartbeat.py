"""Heartbeats: when to send one, when the peer is dead. No threads or clocks: times go in, what to do comes out.

Promise     Looked at every half interval: the peer hears from us at least once per interval, and a peer that has been
            silent for two intervals is dead. One that we do not listen to, because our buffer is full, is not.
State       Two times, each written by one thread and read by the one that looks.
"""

from __future__ import annotations

from enum import Enum


class Beat(Enum):
    """What is to be done."""

    NOTHING = "nothing"
    SEND = "send"
    DEAD = "dead"


class Heart:
    """The two times of one connection. `interval` is the negotiated heartbeat, in seconds."""

    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self._sent_at = now
        self._received_at = now

    def sent(self, now: float) -> None:
        """Bytes have gone out."""
        self._sent_at = now

    def received(self, now: float) -> None:
        """Bytes have come in."""
        self._received_at = now

    def look(self, now: float, *, is_listening: bool = True) -> Beat:
        """What is to be done now."""
        if not is_listening:
            self._received_at = now
        elif now - self._received_at >= 2 * self.interval:
            return Beat.DEAD
        return Beat.SEND if now - self._sent_at >= self.interval / 2 else Beat.NOTHING
