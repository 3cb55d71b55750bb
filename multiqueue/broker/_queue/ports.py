"""A broker queue's view of its store and of its memory, which stand above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from multiqueue.store import Commit, Level, MessageStore, Operation, Put

from .._base.message import Message
from .._base.outcome import DeadLetterReason, PutOutcome
from .entry import Entry, EntryQueue


class MoveTarget(EntryQueue, Protocol):
    """A queue that messages are moved or copied to: see `BrokerQueue`."""

    @property
    def journal(self) -> Rows | None: ...
    def put(self, message: Message, *, immediate: bool = False) -> PutOutcome: ...


class Batch(Protocol):
    """Operations that are stored together, all or nothing, and their callbacks: see `_durable.batch.Submission`."""

    # `queue` is a `BrokerQueue`, which knows this module.
    def put(
        self, queue: Any, message: Message, *, immediate: bool = False, like: Entry | None = None
    ) -> PutOutcome: ...
    def take_turn(self, join: Callable[[Put], object], otherwise: Callable[[Put], object]) -> None: ...
    def delete(self, number: int) -> None: ...
    def then(self, action: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None: ...
    def submit(self) -> Commit | None: ...
    def submit_if_open(self) -> None: ...
    def withdraw(self) -> None: ...


class RowsHost(Protocol):
    """A virtual host's side of its store: see `_durable.journal.Journal`."""

    @property
    def may_wait(self) -> bool: ...
    @property
    def is_at_end(self) -> bool: ...
    def wait_for_commits(self, timeout: float | None = None) -> bool: ...
    def drop_expired(self) -> object: ...
    def wall_clock(self) -> float: ...
    def wall_time(self, when: float) -> float: ...
    def queue_time(self, when: float) -> float: ...


class Rows(Protocol):
    """Where one queue has its rows: see `_durable.batch.QueueJournal`, `_durable.spill_rows.SpillRows`."""

    @property
    def number(self) -> int: ...
    @property
    def host(self) -> RowsHost: ...
    @property
    def store(self) -> MessageStore: ...
    def delete(self, numbers: Sequence[int]) -> Commit | None: ...
    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> Commit: ...
    def drop_queue(self) -> object: ...
    def batch(self, *, is_owed: bool = False) -> Batch: ...
    def dead_letter(self, queue: object, message: Message, reason: DeadLetterReason, batch: Batch) -> object: ...


class Pager(Protocol):
    """The part that lets a queue page: its `Spill`. Nothing of it is called under the queue's lock."""

    def recover(self, levels: Iterable[Level]) -> bool:
        """Take in what a store has by its figures alone; False where the entries themselves are needed."""

    def check_size(self, size: int) -> None:
        """Return if a message of this size, in bytes of its body, can be kept. Raises MessageTooLarge: it cannot."""

    def relieve(self) -> None:
        """More is on the queue than there is memory for: page, or hold publishers back."""

    def load_for_get(self, *, may_come: bool) -> bool:
        """Do one load for a get that found nothing, if something `may_come`; False when that can bring nothing.
        Raises as `BrokerQueue.get`.
        """

    def drop_each(self, reason: DeadLetterReason) -> int:
        """Dead-letter what is ready and in a store; returns how many messages that was."""

    def expire(self) -> None:
        """Have what the store alone knows to be past its time dropped."""


class Walk(Protocol):
    """A way through everything on a queue, for management, under no lock."""

    def pages(self, *, bodies: bool) -> Iterator[list[Entry]]:
        """The messages on the queue now, in batches; without `bodies`, what has to be read may have none."""

    def purge(self, stop: Callable[[], bool]) -> int:
        """Delete what is ready and stands on the queue now; returns how many messages that was."""
