"""What a broker queue asks of its store and of its memory, which stand above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from multiqueue.store import Commit, Level, MessageStore, Operation, Put

    from .._base.message import Message
    from .._base.outcome import DeadLetterReason, PutOutcome
    from .entry import Entry


class Joining(Protocol):
    """How messages that are committed join a queue: its `Enqueuer`."""

    @property
    def store_number(self) -> int:
        """The queue's number in the store."""

    def admit(
        self, message: Message, *, immediate: bool = False, unlimited: bool = False
    ) -> tuple[PutOutcome, Entry | None]:
        """Decide about a message that is to be committed before it joins, and keep its room."""

    def admit_all(self, messages: Sequence[Message]) -> list[Entry] | None:
        """`admit` in one hold; None, and nothing was done: admit each."""

    def hand_over_all(self, entries: Sequence[Entry], puts: Sequence[Put]) -> None:
        """`hand_over` what `admit_all` admitted, in one hold."""

    def hand_over(self, entry: Entry, put: Put) -> None:
        """Let an admitted entry join: its commit is there."""

    def join_in_turn(self, entry: Entry, turn: Put) -> None:
        """Let an admitted entry join that is not stored: its turn has come."""

    def withdraw(self, entry: Entry) -> None:
        """Give back the room of an admitted entry that will not come."""


class StoredQueue(Protocol):
    """A queue that a batch may put messages on."""

    @property
    def joining(self) -> Joining: ...


class MoveTarget(StoredQueue, Protocol):
    """A queue that messages are moved or copied to."""

    @property
    def label(self) -> str:
        """The queue as error messages name it."""

    @property
    def is_stored(self) -> bool:
        """True when a store keeps this queue and its persistent messages."""

    @property
    def journal(self) -> Rows | None:
        """Where a durable queue has its rows."""

    def put(self, message: Message, *, immediate: bool = False) -> PutOutcome:
        """As `BrokerQueue.put`."""


class Batch(Protocol):
    """What is stored together, all or nothing, and what follows."""

    def put(
        self, queue: StoredQueue, message: Message, *, immediate: bool = False, like: Entry | None = None
    ) -> PutOutcome:
        """Put a message on a durable queue when this is committed; what the queue says to it is decided now."""

    def take_turn(self, joining: Joining, entry: Entry, otherwise: Callable[[Put], object]) -> None:
        """Let an entry that is not stored join among those that are."""

    def delete(self, number: int) -> None:
        """Delete a message when this is committed."""

    def then(self, action: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        """What else follows the commit; and what a refusal."""

    def submit(self) -> Commit | None:
        """Hand it in."""

    def submit_if_open(self) -> None:
        """As `submit`; a store at its end is no error."""

    def withdraw(self) -> None:
        """Give back what was kept for it; it will not be submitted."""


class RowsHost(Protocol):
    """A virtual host's side of its store."""

    @property
    def may_wait(self) -> bool:
        """False on the store's thread: the commit that it would wait for is its own to make."""

    @property
    def is_at_end(self) -> bool:
        """True when the store failed or was closed."""

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """Block until everything that was handed in before is committed."""

    def wall_clock(self) -> float:
        """Seconds since 1970."""

    def wall_time(self, when: float) -> float:
        """A moment of the queues' clock in seconds since 1970."""

    def queue_time(self, when: float) -> float:
        """A moment in seconds since 1970 on the queues' clock."""


class Rows(Protocol):
    """Where one queue has its rows."""

    @property
    def number(self) -> int:
        """The queue's number in the store."""

    @property
    def host(self) -> RowsHost: ...

    @property
    def store(self) -> MessageStore: ...

    def delete(self, numbers: Sequence[int]) -> Commit | None:
        """Have messages deleted by one of the next commits, which is returned; does not wait."""

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> Commit:
        """As `MessageStore.submit`."""

    def drop_queue(self) -> None:
        """The queue is gone, and all its messages with it."""

    def batch(self, *, is_owed: bool = False) -> Batch:
        """A new batch; one that `is_owed` is tried again when the store is full."""

    def dead_letter(self, queue: object, message: Message, reason: DeadLetterReason, batch: Batch) -> object:
        """Add what becomes of a dead letter to the batch that deletes it."""


class Pager(Protocol):
    """What lets a queue page: its `Spill`. Nothing of it is called under the queue's lock."""

    def recover(self, levels: Iterable[Level]) -> bool:
        """Take in what a store has by its figures alone; False where the entries themselves are needed."""

    def check_size(self, size: int) -> None:
        """Return if a message of this size, in bytes of its body, can be kept.

        Raises:
            MessageTooLarge: it cannot.
        """

    def relieve(self) -> None:
        """More is on the queue than there is memory for: page, or hold publishers back."""

    def load_for_get(self) -> bool:
        """Do one load for gets without a consumer; False when that can bring nothing.

        Raises:
            ConsumerNotAdmitted: there is something, and no room for it.
            StoreError: the store cannot be read.
        """

    def check_for_loss(self) -> None:
        """Return if a get that found nothing has met no contradiction.

        Raises:
            StoreDamaged: messages are counted, and the store shows none.
        """

    def drop_each(self, reason: DeadLetterReason) -> int:
        """Dead-letter what is ready and in a store; returns how many messages that was."""

    def expire(self) -> None:
        """Have what the store alone knows to be past its time dropped."""


class Walk(Protocol):
    """A way through everything on a queue, for management, under no lock."""

    def pages(self, *, bodies: bool, lowest_first: bool = False) -> Iterator[list[Entry]]:
        """What stands on the queue now, in batches; without `bodies`, what has to be read may have none."""

    def purge(self, stop: Callable[[], bool]) -> int:
        """Delete what is ready and stands on the queue now; returns how many messages that was."""
