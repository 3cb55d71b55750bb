"""Settling: what the owner of entries may do with them.

Promise     Entries are settled together or not at all: ownership is checked for every one before any is changed.
            What was taken away from the owner meanwhile (a steal) is left aside, not an error.
            What a store has of an accepted entry is deleted by one of the next commits; nobody waits for that here.
            Of more than 512, some that another thread settles meanwhile are found too late: others are settled then.
Lock        One hold of the queue's lock per call; of more than 512 entries, one to check and one to settle 512 of them,
            with others' turns in between. What the entries come out of (a caller's generator) is used up before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from .._base.outcome import DeadLetterReason
from .base import QueueBase
from .consumer import QueueConsumer
from .entry import LOCK, SETTLE, UNLOCK, Entry, Move
from .stock import After

Entries = Entry | Iterable[Entry]
_SLICE: Final = 512  # entries in one hold of the lock: a millisecond
_NAP: Final = 0.0002  # seconds, between two slices: without it this thread would have the lock again first


class QueueSettlement(QueueBase):
    """The part of `BrokerQueue` that owners of entries use."""

    def accept(self, entries: Entries, consumer: object) -> int:
        """Delete entries the consumer (or owner of a `get`) has; returns how many were still its own.

        What was stolen from it meanwhile does not count. All or nothing otherwise.

        Raises:
            IllegalStep: it never had one of them, or has settled it already.
            ValueError: an entry of another queue.
        """
        if not isinstance(entries, Entry):
            entries = tuple(entries)
            if len(entries) > _SLICE:
                return self._settle_slices(entries, consumer, self.accept)
        after: After = []
        with self._lock:
            core = self._core
            owned = self._owned_locked(entries, consumer)
            for entry in owned:
                core.accept(entry, consumer, after)
            core.acked += len(owned)
            if core.groups is not None:
                core.pass_baton(after)
        if after:
            self._act(after)
        if self._rows is not None:
            self._forget_stored(self._rows, owned)
        return len(owned)

    def release(self, entries: Entries, consumer: object, *, refused: bool = False, counted: bool = True) -> int:
        """Give entries back to their places in the queue; returns how many were still the consumer's.

        `refused`: not to this consumer again. `counted=False`: the delivery never reached it and is not counted.
        What has expired meanwhile or was delivered `max_delivery_attempts` times is dead-lettered instead.

        Raises:
            IllegalStep, ValueError: as `accept`.
        """
        if not isinstance(entries, Entry):
            entries = tuple(entries)
            if len(entries) > _SLICE:
                return self._settle_slices(entries, consumer, partial(self.release, refused=refused, counted=counted))
        after: After = []
        with self._lock:
            core = self._core
            owned = self._owned_locked(entries, consumer)
            for entry in owned:
                if refused and isinstance(consumer, QueueConsumer):
                    entry.refused_by = {consumer.number, *(entry.refused_by or ())}
                core.release(entry, consumer, after, counted=counted)
            core.pass_baton(after, len(owned))
        self._act(after)
        return len(owned)

    def reject(self, entries: Entries, consumer: object) -> int:
        """Dead-letter entries the consumer has; returns how many were still its own.

        Raises:
            IllegalStep, ValueError: as `accept`.
        """
        if not isinstance(entries, Entry):
            entries = tuple(entries)
            if len(entries) > _SLICE:
                return self._settle_slices(entries, consumer, self.reject)
        after: After = []
        with self._lock:
            core = self._core
            owned = self._owned_locked(entries, consumer)
            for entry in owned:
                core.reject(entry, consumer, DeadLetterReason.REJECTED, after)
            core.pass_baton(after)
        self._act(after)
        return len(owned)

    def lock(self, entries: Entries, consumer: object) -> int:
        """Make entries the consumer has impossible to steal, as a transaction needs; returns how many it has."""
        return self._step(entries, consumer, LOCK)

    def unlock(self, entries: Entries, consumer: object) -> int:
        """End a `lock`, or the one a delivery came with."""
        return self._step(entries, consumer, UNLOCK)

    def _settle_slices(
        self, entries: tuple[Entry, ...], consumer: object, settle: Callable[[Entries, object], int]
    ) -> int:
        """Check all of very many entries, then settle them in order, slice by slice."""
        distinct: dict[Entry, None] = {}
        for each in _slices_of(entries):
            distinct |= dict.fromkeys(each)
        slices = _slices_of(list(distinct))
        for each in slices:
            with self._lock:
                self._owned_locked(tuple(each), consumer)
        count = 0
        for each in slices:
            count += settle(each, consumer)
            time.sleep(_NAP)
        return count

    def _owned_locked(self, entries: Entry | tuple[Entry, ...], consumer: object) -> Sequence[Entry]:
        """Those of the entries that the consumer has; raises before anything is changed."""
        if isinstance(entries, Entry):
            if entries.owner is consumer and entries.queue is self and consumer is not None:
                return (entries,)
            entries = (entries,)
        owned: list[Entry] = []
        for entry in dict.fromkeys(entries):
            if entry.queue is not self:
                raise ValueError(f"{entry!r} does not stand on {self.label}")
            if entry.owner is consumer and consumer is not None:
                owned.append(entry)
            elif not entry.was_stolen:
                raise entry.illegal(SETTLE, consumer)
        return owned

    def _step(self, entries: Entries, consumer: object, move: Move) -> int:
        if not isinstance(entries, Entry):
            entries = tuple(entries)
        with self._lock:
            owned = self._owned_locked(entries, consumer)
            for entry in owned:
                entry.apply(move, consumer)
        return len(owned)


def _slices_of(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    return [entries[begin : begin + _SLICE] for begin in range(0, len(entries), _SLICE)]
