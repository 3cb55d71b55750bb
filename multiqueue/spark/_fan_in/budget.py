"""The bytes that the sources of a fan-in have on their way from Spark to the consumer, and where they may be.

Promise     A job of known size begins when it fits twice, or is the only one there: beside what Spark computes, for the
            heap of its driver, and beside all that is not yet handed out, for the memory of this process. Of the
            sources that wait, one of a lower number goes first, then the one that has waited longest.
            The size of a source's first job is not known: it counts as the largest one seen until its bytes are here,
            and no more such jobs run at a time than Spark has cores. So the bounds can be exceeded by these, and by
            one job that is larger than all of a bound.
State       `_changed` guards all fields. Invariant: `_held` is the sum of the sizes of the jobs under way, `_computed`
            of those whose bytes are not here.
Lock order  `_changed` alone; Spark is asked without it.
Waiting     A reader waits for room: another job's end, its size becoming known, and `close` wake all that wait.
            None waits while nothing is under way, so some job always can end; it needs its consumer, not another job.
Membership  A job is under way from `job`'s entry to its exit, however it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager

from ..._locks import Condition
from ...errors import ShutDown


class Budget:
    """At most `most` bytes in all and `most_computed` within Spark, and `unknown_at_once` jobs of unknown size."""

    def __init__(self, most: int, most_computed: int, unknown_at_once: int) -> None:
        self._most = most
        self._most_computed = most_computed
        self._unknown_at_once = unknown_at_once
        self._changed = Condition()  # a lock that its thread can take again: see `close`
        self._waiting: list[tuple[int, int]] = []  # a heap: priority, number
        self._number = 0
        self._held = 0
        self._computed = 0
        self._unknown = 0
        self._largest = 0  # of all jobs
        self._is_closed = False

    @property
    def held(self) -> int:
        """The bytes of the jobs under way, a guess for those that are not here yet: a snapshot."""
        return self._held

    @property
    def waiting(self) -> int:
        """How many jobs wait: a snapshot."""
        return len(self._waiting)

    def is_small(self, size: int) -> bool:
        """Whether a job of this size can be one of several."""
        return size <= min(self._most, self._most_computed)

    @contextmanager
    def job(self, priority: int, size: int | None) -> Iterator[Reservation]:
        """Wait until a job of this size may begin, None for one that is not known; inside, it is under way.

        Raises:
            ShutDown: the budget was closed.
        """
        reservation = self._reserve(priority, size)
        try:
            yield reservation
        finally:
            self._resize(reservation, 0)

    def close(self) -> None:
        """End all waits, and let no job begin.

        A collected fan-in calls it from any thread, also from one that has the lock.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _reserve(self, priority: int, size: int | None) -> Reservation:
        with self._changed:
            self._number += 1
            mine = priority, self._number
            heapq.heappush(self._waiting, mine)
            try:
                self._changed.wait_for(
                    lambda: self._is_closed or (self._waiting[0] == mine and self._fits_locked(size))
                )
            finally:
                self._waiting.remove(mine)
                heapq.heapify(self._waiting)
                self._changed.notify_all()  # another is the first now
            if self._is_closed:
                raise ShutDown
            reservation = Reservation(self, self._size_locked(size), is_known=size is not None)
            self._held += reservation.size
            self._computed += reservation.size
            self._unknown += size is None
            return reservation

    def _size_locked(self, size: int | None) -> int:
        return self._largest if size is None else size

    def _fits_locked(self, size: int | None) -> bool:
        if size is None and self._unknown >= self._unknown_at_once:
            return False
        size = self._size_locked(size)
        computed, held = self._computed + size, self._held + size
        return (computed == size or computed <= self._most_computed) and (held == size or held <= self._most)

    def _resize(self, reservation: Reservation, size: int) -> None:
        with self._changed:
            self._held += size - reservation.size
            self._largest = max(self._largest, size)
            if not reservation.is_here:
                self._computed -= reservation.size
                self._unknown -= not reservation.is_known
            reservation.size, reservation.is_here = size, True
            self._changed.notify_all()


class Reservation:
    """A job under way. Its budget's lock guards it."""

    def __init__(self, budget: Budget, size: int, *, is_known: bool) -> None:
        self._budget = budget
        self.size = size
        self.is_known = is_known
        self.is_here = False

    def took(self, size: int) -> None:
        """The job's bytes are here, and are so many."""
        self._budget._resize(self, size)
