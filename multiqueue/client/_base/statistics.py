"""Snapshots in figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel, at one moment. Times are seconds."""

    number: int
    state: str
    consumers: int
    queued: int  # deliveries that no callback has begun with
    running_for: float | None  # how long the present callback has been running; None when none is
    unacked: int  # deliveries that are not settled, those that wait included
    unconfirmed: int
    blocked_for: float | None  # how long the server has not let us publish; None when it does


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """One connection and its channels."""

    name: str
    state: str
    channels: tuple[ChannelStatistics, ...]
    buffered_bytes: int
    is_reading: bool  # False while the buffer is full
    recoveries: int
