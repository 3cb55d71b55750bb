"""Prefetch: how many deliveries a consumer, and its channel as a whole, may have unacknowledged.

Everything which changes a window runs on the thread of its session, so there is no lock. A publisher's thread that
looks at `is_open` meanwhile may see the value of before; the session then tells the queue, which looks again under its
own lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...broker import Credit


class ChannelWindow:
    """The limit over all consumers of a channel (`basic.qos` with global); None is none."""

    __slots__ = ("limit", "taken")

    def __init__(self) -> None:
        self.limit: int | None = None
        self.taken: int = 0

    @property
    def is_open(self) -> bool:
        return self.limit is None or self.taken < self.limit


class Window(Credit):
    """One consumer's limit, within its channel's; None is none."""

    __slots__ = ("_channel", "_limit", "taken")

    def __init__(self, limit: int | None, channel: ChannelWindow) -> None:
        super().__init__()
        self._limit = limit
        self._channel = channel
        self.taken: int = 0

    @property
    def limit(self) -> int | None:
        return self._limit

    @property
    def is_open(self) -> bool:
        limit, channel = self._limit, self._channel
        return (limit is None or self.taken < limit) and (channel.limit is None or channel.taken < channel.limit)

    def take_run(self, sizes: Sequence[int]) -> int:
        limit, channel = self._limit, self._channel
        count = len(sizes)
        if limit is not None:
            count = min(count, limit - self.taken)
        if channel.limit is not None:
            count = min(count, channel.limit - channel.taken)
        count = max(count, 0)
        self.taken += count
        channel.taken += count
        return count

    def settled(self, messages: int, size_bytes: int) -> bool:
        """Give back; True when the consumer was at its limit or its channel's, so that somebody must look again."""
        was_open = self.is_open
        self.taken -= messages
        self._channel.taken -= messages
        return not was_open

    def check_invariants(self) -> None:
        """Raise AssertionError when more was given back than taken."""
        assert 0 <= self.taken <= self._channel.taken, f"{self.taken} of {self._channel.taken}"
