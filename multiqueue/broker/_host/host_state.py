"""Whether a virtual host still takes anything: its parts ask, `VirtualHost.close` says no, once. And its past.

State       `Past._lock` guards the figures. It is a leaf, and is held for a moment when a queue is declared or deleted,
            and when a dead letter has gone on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ..._locks import Lock
from .._base.errors import BrokerClosed
from .._durable.journal import Journal
from .._queue.figures import QueueStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualHostPast:
    """Counters since a virtual host was opened.

    `received` and `unroutable` are of exchanges that were deleted, what follows them of queues that were deleted.
    """

    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    received: int = 0
    unroutable: int = 0
    enqueued: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    got_empty: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0


_OF_QUEUES: Final = tuple(VirtualHostPast.__dataclass_fields__)[5:]


class Past:
    def __init__(self) -> None:
        self._lock = Lock()
        self._figures: Counter[str] = Counter()
        self._dead_letters = [0, 0]  # that a queue has, and that no queue has

    def declared(self, *, is_new: bool) -> None:
        with self._lock:
            self._figures.update(queues_declared=1, queues_created=is_new)

    def deleted(self, queue: QueueStatistics) -> None:
        with self._lock:
            self._figures.update({name: getattr(queue, name) for name in _OF_QUEUES}, queues_deleted=1)

    def dead_letter(self, *, is_lost: bool) -> None:
        with self._lock:
            self._dead_letters[is_lost] += 1

    def dead_letters(self) -> tuple[int, int]:
        """How many dead letters a queue has, and how many no queue."""
        with self._lock:
            return self._dead_letters[False], self._dead_letters[True]

    def figures(self, *, received: int, unroutable: int) -> VirtualHostPast:
        """All of it, at this moment; with what deleted exchanges have received, and could not route."""
        with self._lock:
            return VirtualHostPast(received=received, unroutable=unroutable, **self._figures)


@dataclass(slots=True, eq=False)
class HostState:
    """Of one virtual host. `journal` is that of its store; None where it lives in memory."""

    _name: str
    journal: Journal | None
    is_closed: bool = False
    past: Past = field(default_factory=Past)

    def check(self) -> None:
        """Return when the virtual host can be used. Raises as `VirtualHost.check_open`."""
        if self.journal is not None and self.journal.failure is not None:
            self.journal.check()  # first: one that is closed to be opened again is down
        if self.is_closed:
            raise BrokerClosed(f"vhost '{self._name}' is closed")
