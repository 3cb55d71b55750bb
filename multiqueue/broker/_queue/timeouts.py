"""How long consumers may keep messages: the deadlines of one queue.

State       Guarded by the queue's lock. Invariant: the keys are entries that an owner has, in the order in which they
            were taken.
Cost        A step of a dictionary for each message, and a look at all of them when the first deadline has passed.
Source      RabbitMQ 4.3, quorum queues, `consumer_timeout`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .consumer import QueueConsumer
from .entry import Entry


class ConsumerTimeouts:
    """`usual` seconds are the time of an owner without another; another time holds for later messages."""

    def __init__(self, usual: float) -> None:
        self.usual = usual
        self._deadlines: dict[Entry, float] = {}

    def of(self, owner: object) -> float:
        """Seconds that this owner may keep a message."""
        own = owner.timeout if isinstance(owner, QueueConsumer) else None
        return self.usual if own is None else own

    def took(self, entries: Iterable[Entry], owner: object, now: float) -> float:
        """The owner has these from now on; returns until when."""
        deadline = now + self.of(owner)
        self._deadlines.update(dict.fromkeys(entries, deadline))
        return deadline

    def left(self, entries: Sequence[Entry]) -> None:
        """Their owner has settled them, or they were taken from it."""
        for entry in entries:
            self._deadlines.pop(entry, None)

    def due(self, now: float) -> list[Entry]:
        """The entries that are past their deadline, and that their owner may lose."""
        return [entry for entry, deadline in self._deadlines.items() if deadline <= now]

    def next_time(self) -> float:
        return min(self._deadlines.values(), default=float("inf"))
