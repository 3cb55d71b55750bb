"""A broker queue in figures.

State       Guarded by the queue's lock. The figures change in the hold that changes the entries they count, so
            `available == 0` means that a pull finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """One moment of a broker queue, taken under its lock. `_bytes` are sizes of bodies.

    The first block are gauges; `unacked` entries are with consumers, `available_bytes` includes held entries.
    The second block counts since the queue was made; `delivered` counts the messages that consumers and gets had,
    `acked` those they accepted by a call. Of the delivered ones, `delivered_no_ack` went to consumers that accept by
    taking, `got` to gets, and `got_no_ack` to gets that accept so; `got_empty` counts gets that found nothing. The
    third holds the highest values that gauges had since then, or since `reset_statistics`; `highest_ready` is of
    available and held together, as limits count them.
    """

    depth: int
    depth_bytes: int
    available: int
    available_bytes: int
    held: int
    unacked: int
    unacked_bytes: int
    consumers: int
    consumers_willing: int
    is_throttled: bool

    enqueued: int
    enqueued_bytes: int
    dequeued: int
    dequeued_bytes: int
    delivered: int
    delivered_no_ack: int
    got: int
    got_no_ack: int
    got_empty: int
    acked: int
    redelivered: int
    expired: int
    dead_lettered: int
    rejected: int

    highest_depth: int
    highest_depth_bytes: int
    highest_ready: int
    highest_ready_bytes: int


@dataclass(slots=True, eq=False)
class Figures:
    """The counters of one broker queue."""

    # Invariants: depth counts the entries; ready those that no consumer has; held those of the ready that wait for
    # their time. The _bytes are the sums of the same entries' sizes.
    depth: int = 0
    depth_bytes: int = 0
    ready: int = 0
    ready_bytes: int = 0
    held: int = 0
    enqueued: int = 0
    enqueued_bytes: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    got_empty: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    rejected: int = 0
    # Invariants: none of these is lower than its gauge.
    highest_depth: int = 0
    highest_depth_bytes: int = 0
    highest_ready: int = 0
    highest_ready_bytes: int = 0

    @property
    def available(self) -> int:
        """Entries that could be taken now."""
        return self.ready - self.held

    def arrived(self, count: int, size: int) -> None:
        """So many entries have joined, with bodies of `size` bytes together."""
        self.enqueued += count
        self.enqueued_bytes += size
        depth = self.depth = self.depth + count
        depth_bytes = self.depth_bytes = self.depth_bytes + size
        if depth > self.highest_depth:
            self.highest_depth = depth
        if depth_bytes > self.highest_depth_bytes:
            self.highest_depth_bytes = depth_bytes
        ready = self.ready = self.ready + count  # as `returned`, without a call for each message
        ready_bytes = self.ready_bytes = self.ready_bytes + size
        if ready > self.highest_ready:
            self.highest_ready = ready
        if ready_bytes > self.highest_ready_bytes:
            self.highest_ready_bytes = ready_bytes

    def returned(self, count: int, size: int) -> None:
        """So many entries are ready: they have joined, or were given back."""
        ready = self.ready = self.ready + count
        ready_bytes = self.ready_bytes = self.ready_bytes + size
        if ready > self.highest_ready:
            self.highest_ready = ready
        if ready_bytes > self.highest_ready_bytes:
            self.highest_ready_bytes = ready_bytes

    def reset_high_water_marks(self) -> None:
        self.highest_depth, self.highest_depth_bytes = self.depth, self.depth_bytes
        self.highest_ready, self.highest_ready_bytes = self.ready, self.ready_bytes

    def statistics(self, *, consumers: int, consumers_willing: int, is_throttled: bool) -> QueueStatistics:
        """All of them, and figures that are not counted here, at this moment."""
        return QueueStatistics(
            available=self.available,
            available_bytes=self.ready_bytes,
            unacked=self.depth - self.ready,
            unacked_bytes=self.depth_bytes - self.ready_bytes,
            consumers=consumers,
            consumers_willing=consumers_willing,
            is_throttled=is_throttled,
            dequeued=self.enqueued - self.depth,
            dequeued_bytes=self.enqueued_bytes - self.depth_bytes,
            **dict(zip(_SAME, _READ_SAME(self), strict=True)),
        )


# What is counted, and shown as it is; read at once, for a sampler has it of thousands of queues.
_SAME: Final = tuple({each.name for each in fields(Figures)} & {each.name for each in fields(QueueStatistics)})
_READ_SAME: Final = attrgetter(*_SAME)
