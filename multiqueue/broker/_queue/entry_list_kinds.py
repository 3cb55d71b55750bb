"""The four kinds of entry list: standard, priority, sorted, last-value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

from .._base.message import Message
from .._base.positions import SortedSet
from .._base.settings import QueueSettings
from .entry import Entry, Key, Position
from .entry_list import EntryList
from .entry_list_log import EntryLog


def plain_key(value: object) -> Key:
    """A header's value as a key whose comparison and hash run no user code: a number, or else text.

    NaN, which has no place in any order, is None, as is a missing value.
    """
    if value is None:
        return None
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return None if math.isnan(value) else float.__float__(value)
    return str.__str__(value if isinstance(value, str) else str(value))


class StandardEntryList(EntryLog, EntryList):
    """First in, first out: the log itself, whose numbers are the positions."""

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__()

    def add(self, entry: Entry) -> Entry | None:
        self.append_all((entry,))
        return None

    def remove(self, entry: Entry) -> None:
        self.discard_all((entry,))

    def newcomers(self) -> Callable[[Entry], bool]:
        end = self.next_number
        return lambda entry: bool(entry.position >= end)

    def check_invariants(self) -> None:
        EntryList.check_invariants(self)
        super().check_invariants()


_LEVEL_SHIFT: Final = 48  # a level's log may count 2^48 arrivals: 89 years at 100,000 a second
_AMQP_PRIORITIES: Final = 10
_AMQP_DEFAULT_PRIORITY: Final = 4


def amqp_level(priority: int | None, levels: int) -> int:
    """Which of `levels` levels, 0 the lowest, a priority of AMQP's ten falls on.

    Fewer levels share out the priorities around the middle, 4 and 5: of three levels the lowest has 0 to 3,
    the middle one 4, the highest 5 to 9.

    Source: AMQP 0-10, section 26.3.1; the default is Jakarta Messaging's.
    """
    wanted = _AMQP_DEFAULT_PRIORITY if priority is None else priority
    return min(max(wanted - (_AMQP_PRIORITIES // 2 - (levels + 1) // 2), 0), levels - 1)


def levels_of(settings: QueueSettings) -> int:
    """How many levels a priority queue has, or a list of that kind under another name."""
    return settings.priority_levels or _AMQP_PRIORITIES if settings.max_priority is None else settings.max_priority + 1


class PriorityEntryList(EntryList):
    """An ordered list of standard lists: the tail of a level is followed by the head of the next lower one.

    A position is the level, counted from the highest, and the number within the level in one integer: each level's
    log begins with its own numbers.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._scale = settings.max_priority
        self._levels = levels_of(settings)
        self._logs = [EntryLog(index << _LEVEL_SHIFT) for index in range(self._levels)]  # [0] is the highest level

    def key_of(self, message: Message) -> int:
        if self._scale is not None:
            level = min(max(message.priority or 0, 0), self._scale)
        else:
            level = amqp_level(message.priority, self._levels)
        return self._levels - 1 - level

    def add(self, entry: Entry) -> Entry | None:
        index = entry.key
        assert isinstance(index, int)
        self._logs[index].append_all((entry,))
        return None

    def remove(self, entry: Entry) -> None:
        self._logs[entry.position >> _LEVEL_SHIFT].discard_all((entry,))

    def get(self, position: Position) -> Entry | None:
        return self._logs[position >> _LEVEL_SHIFT].get(position) if position >= 0 else None

    def after(self, position: Position) -> Entry | None:
        index = max(position, 0) >> _LEVEL_SHIFT
        entry: Entry | None = self._logs[index].after(position)
        if entry is not None:
            return entry
        for log in self._logs[index + 1 :]:
            if log:
                return log.after(position)
        return None

    def newcomers(self) -> Callable[[Entry], bool]:
        ends = [log.next_number for log in self._logs]
        return lambda entry: bool(entry.position >= ends[entry.position >> _LEVEL_SHIFT])

    def __len__(self) -> int:
        return sum(map(len, self._logs))

    def __iter__(self) -> Iterator[Entry]:
        for log in self._logs:
            yield from log

    def least_significant(self) -> Iterator[Entry]:
        """The lowest level first, the oldest of a level first."""
        for log in reversed(self._logs):
            yield from log

    def check_invariants(self) -> None:
        super().check_invariants()
        for log in self._logs:
            log.check_invariants()


class SortedEntryList(EntryList):
    """By the value of a header: none first, then numbers, then text; equal values by arrival."""

    start: ClassVar[Position] = ()

    def __init__(self, settings: QueueSettings) -> None:
        self._header = settings.sort_key or ""
        self._positions: SortedSet[tuple[Any, ...]] = SortedSet()  # Invariant: those of _entries
        self._entries: dict[Position, Entry] = {}
        self._arrivals = 0

    def key_of(self, message: Message) -> Key:
        return plain_key(message.headers.get(self._header))

    def add(self, entry: Entry) -> Entry | None:
        key, arrival = entry.key, self._arrivals
        self._arrivals += 1
        kind = 0 if key is None else 2 if isinstance(key, str) else 1
        entry.position = (kind, 0 if key is None else key, arrival)
        self._entries[entry.position] = entry
        self._positions.add(entry.position)
        return None

    def remove(self, entry: Entry) -> None:
        del self._entries[entry.position]
        self._positions.discard(entry.position)

    def get(self, position: Position) -> Entry | None:
        return self._entries.get(position)

    def after(self, position: Position) -> Entry | None:
        found = self._positions.after(position)
        return None if found is None else self._entries[found]

    def newcomers(self) -> Callable[[Entry], bool]:
        end = self._arrivals
        return lambda entry: bool(entry.position[2] >= end)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entries.__getitem__, self._positions)

    def least_significant(self) -> Iterator[Entry]:
        """The one that would be served last comes first."""
        return map(self._entries.__getitem__, reversed(self._positions))

    def check_invariants(self) -> None:
        super().check_invariants()
        self._positions.check_invariants()


class LastValueEntryList(StandardEntryList):
    """First in, first out, of each key the latest; entries without the key are ordinary.

    A new entry stands at the end and supersedes the one of its key. The superseded entry goes at once when no
    one has it, and otherwise when it is settled or comes back.
    """

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(settings)
        self._header = settings.lvq_key or ""
        # Invariant: maps each key to an entry of the log that is not superseded, and holds every such entry.
        self._latest: dict[Key, Entry] = {}

    def key_of(self, message: Message) -> Key:
        return plain_key(message.headers.get(self._header))

    def add(self, entry: Entry) -> Entry | None:
        super().add(entry)
        if entry.key is None:
            return None
        previous = self._latest.get(entry.key)
        self._latest[entry.key] = entry
        if previous is not None:
            previous.superseded = True
        return previous

    def remove(self, entry: Entry) -> None:
        super().remove(entry)
        if entry.key is not None and not entry.superseded:
            del self._latest[entry.key]

    def check_invariants(self) -> None:
        super().check_invariants()
        current = {entry.key: entry for entry in self if entry.key is not None and not entry.superseded}
        assert current == self._latest, "the map of latest entries differs from the list"


def newcomers(entries: EntryList) -> Callable[[Entry], bool]:
    """A test for entries of a list: was one added from now on? Another kind's positions are remembered: a set."""
    if isinstance(entries, StandardEntryList | PriorityEntryList | SortedEntryList):
        return entries.newcomers()
    known = {entry.position for entry in entries}
    return lambda entry: entry.position not in known
