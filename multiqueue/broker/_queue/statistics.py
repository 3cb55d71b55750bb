"""A broker queue in figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import QueueCore


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """One moment of a broker queue, taken under its lock. `_bytes` are sizes of bodies.

    The first block are gauges; `unacked` entries are with consumers, `available_bytes` includes what is held.
    The second block counts since the queue was made; `delivered` counts what consumers and gets had, `acked` what they
    accepted by a call. The third holds the highest values that gauges had since
    then, or since `reset_statistics`; `highest_ready` is of available and held together, as limits count them.
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
    acked: int
    redelivered: int
    expired: int
    dead_lettered: int
    rejected: int

    highest_depth: int
    highest_depth_bytes: int
    highest_ready: int
    highest_ready_bytes: int


def take_statistics(core: QueueCore) -> QueueStatistics:
    """Read the figures; the queue's lock must be held."""
    consumers = core.consumers
    willing = len(consumers) - len(consumers.not_interested)
    return QueueStatistics(
        depth=core.depth,
        depth_bytes=core.depth_bytes,
        available=core.available,
        available_bytes=core.ready_bytes,
        held=core.held,
        unacked=core.depth - core.ready,
        unacked_bytes=core.depth_bytes - core.ready_bytes,
        consumers=len(consumers),
        consumers_willing=willing,
        is_throttled=core.throttled,
        enqueued=core.enqueued,
        enqueued_bytes=core.enqueued_bytes,
        dequeued=core.enqueued - core.depth,
        dequeued_bytes=core.enqueued_bytes - core.depth_bytes,
        delivered=core.delivered,
        acked=core.acked,
        redelivered=core.redelivered,
        expired=core.expired,
        dead_lettered=core.dead_lettered,
        rejected=core.rejected,
        highest_depth=core.highest_depth,
        highest_depth_bytes=core.highest_depth_bytes,
        highest_ready=core.highest_ready,
        highest_ready_bytes=core.highest_ready_bytes,
    )


def reset_high_water_marks(core: QueueCore) -> None:
    """Set the high-water marks to what is now, never to zero; the queue's lock must be held."""
    core.highest_depth, core.highest_depth_bytes = core.depth, core.depth_bytes
    core.highest_ready, core.highest_ready_bytes = core.ready, core.ready_bytes
