"""What every kind of queue asks of its entry list, and the one place where a kind is added.

An entry list keeps entries in service order. It gives each entry its position, which never changes and never
comes back; readers keep positions instead of entries, and ask for the first entry after one. A kind of queue
is a subclass of `EntryList` and a line in `KINDS` of `_entry_list_kinds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ._entry import Entry, Key, Position

if TYPE_CHECKING:
    from ._message import Message
    from ._queue_settings import QueueSettings


class EntryList(ABC):
    """Entries in service order. Guarded by the lock of its queue but for `key_of`, which runs before it."""

    # Less than every position: `after(start)` is the first entry.
    start: ClassVar[Position] = -1

    @abstractmethod
    def __init__(self, settings: QueueSettings) -> None: ...

    def key_of(self, message: Message) -> Key:
        """What the list will order this message by. Reads the message's headers, so no lock may be held."""
        return None

    @abstractmethod
    def add(self, entry: Entry) -> Entry | None:
        """Give the entry its position; returns the entry it supersedes, if any, which stays until removed."""

    @abstractmethod
    def remove(self, entry: Entry) -> None:
        """Take the entry out, wherever it stands."""

    @abstractmethod
    def get(self, position: Position) -> Entry | None:
        """The entry at this position, None when it is gone."""

    @abstractmethod
    def after(self, position: Position) -> Entry | None:
        """The first entry behind this position, None at the end."""

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
