"""What each way to have a broker queue's entries has in common: `EntrySource`, and `Walk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from .._base.ports import After
from .consumer import QueueConsumer, Reader
from .entry import Entry


class Walk(Protocol):
    """A way through everything on a queue, for management, under no lock."""

    def pages(self, *, bodies: bool) -> Iterator[list[Entry]]:
        """The messages on the queue now, in batches; without `bodies`, entries in a store may lack theirs."""

    def purge(self, stop: Callable[[], bool]) -> int:
        """Delete the entries that are ready now; returns how many messages that was."""


# An entry, a consumer, and what is wrong unless the consumer has a selector that does not match the entry.
Doubt = tuple[Entry, QueueConsumer, str]


class EntrySource(Protocol):
    """Where the entries of one broker queue are: `ResidentEntries` has all of them in memory, `PagedEntries` most of
    them in a store. Figures are the caller's, and so are the entries' states.

    A method with a body is that of a source that has everything in memory.
    """

    expires_at_head: bool = False  # what is past its time and not at the head is ready
    has_all: bool  # in memory; False where what a reader is given was matched against its selector before

    # -- entries

    @property
    def has_late(self) -> bool:
        """True when something may be at the head that is past its time, and was not at the head before."""
        return False

    def add(self, entries: Sequence[Entry], after: After) -> Entry | None:
        """Give new entries their places; returns the one that a single one supersedes, if any, which stays until
        removed. Several are of a standard queue, and none of them is held.
        """

    def take(self, entries: Sequence[Entry], owner: object) -> None:
        """Somebody takes entries that `next_for` or `next_run` gave."""
        return

    def claim(self, entry: Entry) -> bool:
        """Take a ready entry for no consumer, or find one that was taken; False when it is gone, or somebody's."""
        return True

    def remove(self, entries: Sequence[Entry], *, taker: object = None) -> None:
        """Entries are gone for good; with a `taker`, they are taken by that in this step."""

    def give_back(self, entry: Entry, *, is_new: bool) -> None:
        """A taken or held entry can be had again, at its place; `is_new`: browsers have not seen it."""

    def remind(self, when: float, entry: Entry, *, holds: bool) -> bool:
        """Have an entry `due` at this time, when it expires, or, if it `holds`, can be taken again.

        One that is held is kept aside until then; False when it is gone. False for an expiry that is found without.
        """

    def due(self, now: float, most: int, after: After) -> list[Entry]:
        """Up to `most` entries that are past their time, or were to be held until now; perhaps one of them twice."""

    def next_time(self) -> float:
        """When time asks for something next, infinity for never."""

    def surplus(self, after: After) -> Entry | None:
        """The ready entry that goes first at a limit, or None."""

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest entry arrived; 0 without one."""

    def deliveries(self) -> list[tuple[int, int]]:
        """Of what a store has and consumers had: number, and how often."""

    # -- readers

    def next_for(self, reader: Reader, after: After) -> Entry | None:
        """The first entry this reader can have; it stays before that one. None if the reader finds none now."""

    def next_run(self, reader: Reader, most: int, after: After) -> list[Entry]:
        """The entries that `next_for` would give one after the other: `most`, or fewer. Empty if the reader finds none
        now.
        """
        first = self.next_for(reader, after)
        return [] if first is None else [first]

    def take_turns(self, consumer: QueueConsumer, most: int, most_bytes: int, after: After) -> list[Entry]:
        """As `next_for`, `pass_over` and `take` for one entry after the other; fewer where there are no more. Of a fair
        queue."""
        return []

    def pass_over(self, reader: Reader, entry: Entry) -> None:
        """Move a reader past the entry that `next_for` just gave it, or past that of a run, and those before."""

    def look_again(self, reader: Reader, entries: Sequence[Entry]) -> None:
        """Have a reader revisit entries that it was moved past."""
        for entry in entries:
            reader.revisit(entry)

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        """The selector has refused what `next_for` gave, and the reader would revisit."""

    def reader_joined(self, consumer: QueueConsumer) -> None:
        """Take in a consumer. Raises ConsumerNotAdmitted: there is no memory for it. Nothing was changed."""

    def reader_left(self, consumer: QueueConsumer) -> None:
        """A consumer is gone."""

    def demand_changed(self, reader: Reader, *, willing: bool) -> None:
        """A reader has credit and wants work now, or does not."""
        return

    def take_first(self, owner: object, after: After) -> tuple[Entry | None, bool]:
        """Take the first entry for an owner that is no consumer; and whether a load may bring one when it finds
        none.
        """

    # -- its end, and what must hold

    def close(self, after: After) -> None:
        """The queue is deleted: ready entries cannot be taken."""

    def some_left(self, most: int) -> tuple[list[Any], bool]:
        """Some entries of a deleted queue, and whether more are left: the next ready entries, of a source that
        has all in memory, else those it has let go.
        """

    def check(self, consumers: Sequence[QueueConsumer]) -> list[Doubt]:
        """Raise AssertionError when entries contradict each other or the figures. For tests.

        Returns each entry that a consumer has overlooked, or waits beside while none is notified; its selector decides.
        """
