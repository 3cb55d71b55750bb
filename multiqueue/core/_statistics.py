"""Frozen snapshots of what a sub-queue and a multi-queue have done and hold."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubQueueStatistics:
    """One sub-queue at one moment. Counts are elements since the sub-queue was made.

    `put` = `taken` + `discarded` + `size`, and `taken` = `completed` + `in_flight`, at every moment.
    """

    key: Hashable
    size: int  # elements in it now
    capacity: int | None  # elements; None: unbounded
    put: int
    taken: int
    completed: int  # task_done() was called for them
    in_flight: int  # taken, and not yet completed
    discarded: int  # removed, cleared, or thrown away by an immediate shutdown
    waiting_putters: int  # threads and coroutines parked because it is full
    waiting_takers: int  # parked on this sub-queue alone
    is_enabled: bool
    is_attached: bool
    is_shutdown: bool


@dataclass(frozen=True, slots=True)
class MultiQueueStatistics:
    """A multi-queue at one moment: its own figures, and those of each attached sub-queue."""

    size: int  # elements that could be taken now, as qsize()
    waiting_takers: int  # parked on the multi-queue; those of a sub-queue are in its own figures
    is_shutdown: bool
    subqueues: tuple[SubQueueStatistics, ...]
