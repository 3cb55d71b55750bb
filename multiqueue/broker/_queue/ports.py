"""A broker queue's view of its entries, and of its store and its memory, which stand above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from multiqueue.store import Commit, Level, MessageStore, Operation, Put

from .._base.message import DeadLetterReason, Message, PutOutcome
from .._base.ports import After
from .consumer import QueueConsumer, Reader
from .entry import Entry, EntryQueue, Key, Position


class WholeQueue(EntryQueue, Protocol):
    """A queue as its parts know it, which have its `journal` if it is durable. See `BrokerQueue`."""

    @property
    def journal(self) -> Rows | None: ...
    def put(self, message: Message, *, immediate: bool = False) -> PutOutcome: ...
    def visit_by(self, when: float) -> None: ...  # under its lock; the others when that is free
    def relieve(self) -> None: ...
    def in_slices(self, do_some_locked: Callable[[After], bool]) -> bool: ...
    def in_visits(self, do_some_locked: Callable[[After], bool], at_once: int) -> None: ...


class Batch(Protocol):
    """What is stored together, all or nothing, and what follows: see `_durable.submission.Submission`."""

    # `queue` is a `BrokerQueue`, which knows this module.
    def put(
        self, queue: Any, message: Message, *, immediate: bool = False, like: Entry | None = None
    ) -> PutOutcome: ...
    def take_turn(self, join: Callable[[Put], object], otherwise: Callable[[Put], object]) -> None: ...
    def delete(self, number: int) -> None: ...
    def then(self, action: Callable[[], object], otherwise: Callable[[], object] = ...) -> None: ...
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

    def begin_paging(self) -> None: ...
    def wall_clock(self) -> float: ...
    def wall_time(self, when: float) -> float: ...
    def queue_time(self, when: float) -> float: ...


class Rows(Protocol):
    """Where one queue has its rows: see `_durable.submission.QueueJournal`."""

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


# An entry, a consumer, and what is wrong unless the consumer has a selector that does not match the entry.
Doubt = tuple[Entry, QueueConsumer, str]


class EntrySource(Protocol):
    """Where the entries of one broker queue are: `ResidentEntries` has all of them in memory, `PagedEntries` most of
    them in a store. Figures are the caller's, and so are the entries' states.

    A method with a body is that of a source that has everything in memory.
    """

    start: Position  # where a reader begins
    asks_selectors: bool  # False where what a reader is given was matched against its selector before
    key_of: Callable[[Message], Key]  # as `EntryList.key_of`; under no lock

    # -- entries

    def add(self, entry: Entry, after: After) -> Entry | None:
        """Give a new entry its place; returns the one that it supersedes, if any, which stays until removed."""

    def add_all(self, entries: Sequence[Entry], after: After) -> None:
        """`add` new entries of a standard queue, none of which is held."""
        for entry in entries:
            self.add(entry, after)

    def take(self, entries: Sequence[Entry], owner: object) -> None:
        """Somebody takes entries that `next_for` or `next_run` gave."""
        return

    def claim(self, entry: Entry) -> bool:
        """Take a ready entry for no consumer, or find one that was taken; False when it is gone, or somebody's."""
        return True

    def remove(self, entries: Sequence[Entry]) -> None:
        """Taken entries are gone for good."""

    def consume(self, entries: Sequence[Entry]) -> None:
        """`take` and `remove` in one."""
        self.remove(entries)

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        """A taken or held entry can be had again, at its place; `is_new`: browsers have not seen it."""

    def hold(self, entry: Entry, until: float) -> bool:
        """Keep an entry aside until its time; False when it is gone."""

    def note_expiry(self, entry: Entry, when: float) -> bool:
        """Find this entry when it is past its time; False when that is found without."""

    def due(self, now: float, most: int) -> list[Entry]:
        """Up to `most` entries that are past their time, or were to be held until now; perhaps one of them twice."""

    def next_time(self) -> float:
        """When time asks for something next, infinity for never."""

    @property
    def is_to_be_watched(self) -> bool:
        """True while housekeeping has something to do of which no time is known."""
        return False

    def keep_time(self, now: float, after: After) -> None:
        """Do what else time asks for."""
        return

    def least_significant(self, after: After) -> Entry | None:
        """The ready entry that a ring evicts; None when there is none here now."""

    def head(self, after: After) -> Entry | None:
        """The entry that a get would have next; None where it cannot be found at once."""
        return None

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest entry arrived; 0 when there is none."""

    def deliveries(self) -> list[tuple[int, int]]:
        """Of what a store has and consumers had: number, and how often."""

    # -- readers

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        """The first entry this reader can have; it stays before that one. None when there is none now."""

    def next_run(self, reader: Reader, most: int, after: After) -> list[Entry]:
        """The entries that `next_for` would give one after the other: `most`, or fewer. Empty if there is none now."""
        first = self.next_for(reader, after)
        return [] if first is None else [first]

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        """Move a reader past the entry that `next_for` just gave it, or past that of a run, and those before."""

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        """The selector has refused what `next_for` gave, and the reader would revisit."""

    def reader_joined(self, consumer: QueueConsumer) -> None:
        """A consumer has come. Raises ConsumerNotAdmitted: there is no memory for it. Nothing was changed."""

    def reader_left(self, consumer: QueueConsumer) -> None:
        """A consumer is gone."""

    def restart_readers(self) -> None:
        """Tell readers that an entry they have passed over may be theirs now."""

    def demand_changed(self, reader: Reader, *, willing: bool) -> None:
        """A reader has credit and wants work now, or does not."""
        return

    def look_for_loss(self, reader: Reader, after: After) -> None:
        """A reader was given nothing although something is available: see that no consumer waits for what is lost."""
        return

    def begin_get(self, owner: object) -> Reader:
        """A get without a consumer begins; returns the reader for it."""

    def end_get(self, *, found: bool) -> bool:
        """It has what is in memory; True when there may be more that is not."""
        return False

    # -- its end, and what must hold

    def some_ready(self, most: int) -> tuple[list[Entry], bool]:
        """The next ready ones of a deleted queue, of a source that has all in memory; and whether there may be more."""
        return [], False

    def close(self, after: After) -> None:
        """The queue is deleted: what is ready cannot be taken."""

    def clear_some(self, most: int) -> tuple[list[object], bool]:
        """Let go of some of what is left of a closed source: what that was, and whether there is more."""

    def check_structure(self) -> None:
        """Raise AssertionError when entries contradict each other or the figures. For tests."""

    def check_liveness(self, consumers: Sequence[QueueConsumer]) -> list[Doubt]:
        """Each entry that a consumer has overlooked, or waits beside while none is notified; its selector decides."""
