"""The protocol of entry lists, which every kind of queue has.

The kinds of this room are in `_queue/entry_list_kinds`; programs register theirs (`_queue/kinds`), and derive their
tests from `multiqueue.testing.contracts.EntryListContract`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

from .._base.message import Message
from .entry import Entry, Key, Position


class EntryList(Protocol):
    """Entries in service order: what a kind of queue is.

    One for each queue, guarded by the lock of its queue but for `key_of`, which runs before it. So its methods must be
    short, and neither block nor call anybody else; they compare positions and keys, which are plain values.
    To derive from it gives the last three methods; any class that has them all will do.
    """

    # Less than every position: `after(start)` is the first entry.
    start: ClassVar[Position] = -1

    def key_of(self, message: Message) -> Key:
        """The key by which the list will order this message: a number, text or None, found as `entry.key` by `add`.

        Reads the message, whose headers are anybody's objects, so no lock is held. May run for a message that is never
        added, and on many threads at once.
        """
        return None

    @abstractmethod
    def add(self, entry: Entry) -> Entry | None:
        """Give the entry its position; returns the entry it supersedes, if any, which stays until removed.

        `entry.position` is set here, once: an int or a tuple, comparable with every other of this list and greater than
        `start`. It is no position that any entry of this list ever had.
        """

    @abstractmethod
    def remove(self, entry: Entry) -> None:
        """Take the entry out, wherever it stands. It is in the list, and so is every entry until this call."""

    @abstractmethod
    def get(self, position: Position) -> Entry | None:
        """The entry at this position, None when it is gone."""

    @abstractmethod
    def after(self, position: Position) -> Entry | None:
        """The first entry behind this position, None at the end. The position may be one of an entry that is gone."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Entry]:
        """All entries in service order; the list must not change meanwhile."""

    def deliveries(self) -> list[tuple[int, int]]:
        """Of what a store has and consumers had: its number there, and how often. For a clean close."""
        return [(entry.number, entry.delivery_count) for entry in self if entry.is_stored and entry.delivery_count]

    def least_significant(self) -> Iterator[Entry]:
        """All entries, first the one a ring would miss least."""
        return iter(self)

    def check_invariants(self) -> None:
        """Raise AssertionError when the list contradicts itself."""
        last: Position = self.start
        count = 0
        for entry in self:
            assert entry.position > last, f"{entry!r} stands behind {last}"
            assert self.get(entry.position) is entry
            last = entry.position
            count += 1
        assert count == len(self), f"{count} entries counted, {len(self)} claimed"
