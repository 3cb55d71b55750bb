"""What the parts that let a queue page ask of that queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .._queue.callbacks import Callbacks
from .._queue.dead_letters import DeadLetters
from .._queue.state import QueueState

if TYPE_CHECKING:
    from multiqueue.store import Header

    from .._base.settings import QueueSettings
    from .._queue.entry import Entry
    from .._queue.ports import Rows


class Recovering(Protocol):
    """Makes entries of rows: the queue's `Enqueuer`."""

    def recovered(self, rows: Rows, header: Header, body: bytes) -> Entry:
        """The entry that a row is of; not on the queue yet."""


class PagingQueue(Protocol):
    """A broker queue that may page."""

    name: str
    settings: QueueSettings
    state: QueueState
    callbacks: Callbacks
    dead_letters: DeadLetters
    journal: Rows | None

    @property
    def joining(self) -> Recovering: ...

    @property
    def label(self) -> str:
        """The queue as error messages name it."""

    def keep_in_memory(self, departed: dict[int, None] | None = None) -> None:
        """Have a source that keeps everything in memory; nothing is on the queue. The lock must be held.

        `departed` is told of stored messages that leave.
        """
