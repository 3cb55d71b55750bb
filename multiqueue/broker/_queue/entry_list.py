"""Entry lists, which say in which order a queue has its entries: the protocol, the five kinds of this room, and those
that programs register, whose tests derive from `multiqueue.testing.contracts.EntryListContract`.

Promise     The numbers of a standard list, a log, rise strictly and are never reused. Its `append_all`, `discard_all`
            and `get` cost the same for any length; `after` skips removed entries a chunk at a time.
State       A list is guarded by the lock of its queue. `_lock`, a leaf, guards changes of the dictionary of kinds,
            which is read without it.
Who runs    A factory runs on the thread that declares the queue or opens its broker, under no lock. The list's methods
            run under the lock of its queue, but for `key_of`. A name and plain options fit into AMQP's arguments and
            into a file; an import path there would have a store run what its file says.
Memory      8 bytes per slot. A chunk goes with its last living entry, so one survivor pins 2 KiB at most.
Source      Broker-J's OrderedQueueEntryList for the promise. It links nodes and scavenges the dead ones,
            which CPython pays dearly for; chunks need no scavenger.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, cast

from ..._locks import Lock
from .._base.errors import PreconditionFailed, UnknownQueueKind
from .._base.fair_options import FairKey, FairOptions, fair_key
from .._base.message import Message
from .._base.positions import SortedSet
from .._base.settings import QueueKind, QueueSettings
from .entry import Entry, Key, Position

_CHUNK_BITS: Final = 8
_CHUNK: Final = 1 << _CHUNK_BITS  # 256 slots, 2 KiB
_SLOT_MASK: Final = _CHUNK - 1
_LEVEL_SHIFT: Final = 48  # a level's log may count 2^48 arrivals: 89 years at 100,000 a second
_AMQP_PRIORITIES: Final = 10
_AMQP_DEFAULT_PRIORITY: Final = 4


class EntryList(Protocol):
    """Entries in service order: what a kind of queue is.

    One for each queue, guarded by the lock of its queue but for `key_of`, which runs before it. So its methods must be
    short, and neither block nor call anybody else; they compare positions and keys, which are plain values.
    To derive from it gives the last three methods; any class that has them all will do.
    """

    # Less than every position: `after(start)` is the first entry.
    start: ClassVar[Position] = -1

    def key_of(self, message: Message) -> Any:
        """The key by which the list will order this message: a number, text, None, or a tuple of these.

        `add` finds it as `entry.key`.

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
        """All entries, beginning with the one that a full ring drops first."""
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


@dataclass(slots=True, eq=False)
class _Chunk:
    """Up to 256 consecutive slots. Invariant: live counts the slots that are not None."""

    slots: list[Entry | None] = field(default_factory=list)
    live: int = 0


class StandardEntryList(EntryList):
    """First in, first out: entries with numbers from `first` upwards, which are their positions."""

    def __init__(self, settings: QueueSettings, first: int = 0) -> None:
        # Invariant: _numbers is sorted, holds the keys of _chunks, and ends with the one of _tail.
        self._tail = _Chunk()
        self._chunks: dict[int, _Chunk] = {first >> _CHUNK_BITS: self._tail}
        self._numbers: list[int] = [first >> _CHUNK_BITS]
        self._size = 0
        self.next_number: int = first

    def add(self, entry: Entry) -> Entry | None:
        self.append_all((entry,))
        return None

    def remove(self, entry: Entry) -> None:
        self.discard_all((entry,))

    def __len__(self) -> int:
        return self._size

    def append_all(self, entries: Sequence[Entry]) -> None:
        while entries:
            tail, number = self._tail, self.next_number
            room = _CHUNK - len(tail.slots)
            if not room:
                tail, room = self._new_tail(number >> _CHUNK_BITS), _CHUNK
            part, entries = (entries[:room], entries[room:]) if len(entries) > room else (entries, ())
            for entry in part:
                entry.position = number
                number += 1
            tail.slots += part
            added = number - self.next_number
            tail.live += added
            self._size += added
            self.next_number = number

    def discard_all(self, entries: Iterable[Entry]) -> None:
        chunks = self._chunks
        for entry in entries:
            number = entry.position
            chunk = chunks[number >> _CHUNK_BITS]
            assert chunk.slots[number & _SLOT_MASK] is not None
            chunk.slots[number & _SLOT_MASK] = None
            chunk.live -= 1
            self._size -= 1
            if not chunk.live and chunk is not self._tail:
                self._drop(number >> _CHUNK_BITS)

    def get(self, number: int) -> Entry | None:
        chunk = self._chunks.get(number >> _CHUNK_BITS)
        slot = number & _SLOT_MASK
        return chunk.slots[slot] if chunk is not None and slot < len(chunk.slots) else None

    def after(self, number: int) -> Entry | None:
        number += 1
        if number >= self.next_number:
            return None
        chunk_number = number >> _CHUNK_BITS
        chunk = self._chunks.get(chunk_number)
        if chunk is not None:
            entry = chunk.slots[number & _SLOT_MASK]
            if entry is not None:
                return entry
        return self._search(chunk_number, number & _SLOT_MASK)

    def following(self, number: int, most: int) -> list[Entry]:
        """Entries with the next higher numbers, `most` numbers on at most. A chunk's end cuts them short."""
        chunk, slot = self._chunks[number >> _CHUNK_BITS], (number & _SLOT_MASK) + 1
        return [entry for entry in chunk.slots[slot : slot + most] if entry is not None]

    def __iter__(self) -> Iterator[Entry]:
        for number in self._numbers:
            for entry in self._chunks[number].slots:
                if entry is not None:
                    yield entry

    def newcomers(self) -> Callable[[Entry], bool]:
        end = self.next_number
        return lambda entry: bool(entry.position >= end)

    def check_invariants(self) -> None:
        super().check_invariants()
        assert self._numbers == sorted(self._chunks), "chunk numbers out of step"
        assert self._chunks[self._numbers[-1]] is self._tail
        for chunk in self._chunks.values():
            assert chunk.live == sum(entry is not None for entry in chunk.slots)
            assert chunk.live or chunk is self._tail, "an empty chunk was kept"
        assert self._size == sum(chunk.live for chunk in self._chunks.values())

    def _search(self, chunk_number: int, slot: int) -> Entry | None:
        index = bisect_left(self._numbers, chunk_number)
        for number in self._numbers[index : index + 2]:
            start = slot if number == chunk_number else 0
            slots = self._chunks[number].slots
            for position in range(start, len(slots)):
                entry = slots[position]
                if entry is not None:
                    return entry
        return None

    def _new_tail(self, chunk_number: int) -> _Chunk:
        full, full_number = self._tail, self._numbers[-1]
        self._tail = self._chunks[chunk_number] = _Chunk()
        self._numbers.append(chunk_number)
        if not full.live:
            self._drop(full_number)
        return self._tail

    def _drop(self, chunk_number: int) -> None:
        del self._chunks[chunk_number]
        del self._numbers[bisect_left(self._numbers, chunk_number)]


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
    if settings.kind is QueueKind.FAIR and not settings.has_levels:
        return 1
    return settings.priority_levels or _AMQP_PRIORITIES if settings.max_priority is None else settings.max_priority + 1


class PriorityEntryList(EntryList):
    """An ordered list of standard lists: the tail of a level is followed by the head of the next lower one.

    A position is the level, counted from the highest, and the number within the level in one integer: each level's
    log begins with its own numbers.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._scale = settings.max_priority
        self._usual = settings.default_priority
        self._levels = levels_of(settings)
        # The first is that of the highest level.
        self._logs = [StandardEntryList(settings, level << _LEVEL_SHIFT) for level in range(self._levels)]

    def key_of(self, message: Message) -> Any:
        if self._scale is not None:
            wanted = self._usual if message.priority is None else message.priority
            level = min(max(wanted, 0), self._scale)
        else:
            level = amqp_level(message.priority, self._levels)
        return self._levels - 1 - level

    def _level_of(self, key: Any) -> int:
        return int(key)

    def add(self, entry: Entry) -> Entry | None:
        return self._logs[self._level_of(entry.key)].add(entry)

    def remove(self, entry: Entry) -> None:
        self._logs[entry.position >> _LEVEL_SHIFT].remove(entry)

    def get(self, position: Position) -> Entry | None:
        level = position >> _LEVEL_SHIFT  # of a list that pages it is a tenant's place, perhaps
        return self._logs[level].get(position) if 0 <= level < self._levels else None

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


class FairEntryList(PriorityEntryList):
    """Arrivals, by level: the order in which a fair queue is looked through, and that of each of its tenants.

    `FairEntries` has whose turn it is.
    """

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(settings)
        level_of = super().key_of if settings.has_levels else None
        self.read = FairOptions.of(settings.kind_options).reader(level_of)

    def key_of(self, message: Message) -> FairKey | str:
        return self.read((message,))[0]

    def _level_of(self, key: FairKey | str) -> int:
        return fair_key(key)[1]

    @property
    def only_log(self) -> StandardEntryList | None:
        """The one log of a list without levels."""
        return self._logs[0] if len(self._logs) == 1 else None

    def heads(self) -> list[Entry]:
        """The first entry of each level that has any."""
        return [next(iter(log)) for log in self._logs if log]


def newcomers(entries: EntryList) -> Callable[[Entry], bool]:
    """A test for entries of a list: was one added from now on? Another kind's positions are remembered: a set."""
    if isinstance(entries, StandardEntryList | PriorityEntryList | SortedEntryList):
        return entries.newcomers()
    known = {entry.position for entry in entries}
    return lambda entry: entry.position not in known


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


MakeEntryList = Callable[[QueueSettings], Any]
"""A factory of new, empty `EntryList`s; a queue that asks for one checks it."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,254}")
_OURS: Final[dict[str, MakeEntryList]] = {
    QueueKind.STANDARD.value: StandardEntryList,
    QueueKind.PRIORITY.value: PriorityEntryList,
    QueueKind.SORTED.value: SortedEntryList,
    QueueKind.LAST_VALUE.value: LastValueEntryList,
    QueueKind.FAIR.value: FairEntryList,
}
_MEMBERS: Final = [name for name in vars(EntryList) if name in ("__len__", "__iter__") or not name.startswith("_")]
_lock = Lock()
_makers = dict(_OURS)


def register_queue_kind(name: str, make: MakeEntryList) -> None:
    """Register your own kind of queue: `make(settings)` returns a new, empty `EntryList` for each.

    Queues are declared as it by `QueueSettings(kind=name)` or the argument `x-queue-kind`. `settings.kind_options`,
    from the argument `x-queue-kind-options`, are the kind's own. Any thread may call; it does not block.

    Raises:
        ValueError: no name for a kind (small letters, digits, `_`, `.` and `-`), or one that is taken.
        TypeError: `make` cannot be called.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name for a queue kind: small letters, digits, _ . and -, a letter first")
    if not callable(make):
        raise TypeError(f"queue kind '{name}' needs a callable that makes its lists, not {make!r}")
    with _lock:
        if name in _makers:
            raise ValueError(f"queue kind '{name}' is taken; choose another name, or unregister it first")
        _makers[name] = make


def unregister_queue_kind(name: str) -> None:
    """Forget a kind: you can declare no further queue of it. Existing queues keep their lists.

    Raises:
        KeyError: it is not registered.
    """
    with _lock:
        if name in _OURS or _makers.pop(name, None) is None:
            raise KeyError(f"queue kind '{name}' is not registered")


def known_queue_kinds() -> tuple[str, ...]:
    """The names that a queue can be declared with."""
    return tuple(_makers)


def make_entry_list(settings: QueueSettings, queue: str) -> EntryList:
    """A new list for a queue; `queue` names it in errors: `queue 'x' in vhost '/'`.

    Raises:
        UnknownQueueKind: its kind is not registered.
        PreconditionFailed: the kind does not take the settings, or has made something else than a list.
    """
    kind = settings.kind_name
    make = _makers.get(kind)
    if make is None:
        raise UnknownQueueKind(kind, queue, known_queue_kinds())
    try:
        made: object = make(settings)
    except Exception as error:
        raise PreconditionFailed(f"queue kind '{kind}' makes no list for {queue}: {error}") from error
    missing = [name for name in _MEMBERS if not hasattr(type(made), name)]
    if missing:
        raise PreconditionFailed(
            f"queue kind '{kind}' has made a {type(made).__name__} for {queue}, which lacks {', '.join(missing)};"
            " multiqueue.broker.EntryList says what a list has"
        )
    return cast(EntryList, made)
