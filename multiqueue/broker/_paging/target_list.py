"""Target lists, and their areas: the messages of an area that may be in memory.

An area is one broker queue as the store has it. A message that a list, a cache or a consumer holds has a slot; its
payload is the message, or None when only the store has it; docs/design/bounded-memory.md has the words. Data without
behaviour: `budget` and `loads` say what happens to it.

Source      "Durable Queue Memory Management" (Apache ActiveMQ), for TargetList, TargetEntry and the watermark.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from typing import Any, Final

from .._base.positions import END, Positions

# A position is level << 48 | number: 2^48 messages are 89 years at 100,000 a second. The level is a priority, the first
# of them 0, or in an area by key anything from 0 on below 2^63 that stands for the key.
LEVEL_SHIFT: Final = 48
NUMBER_MASK: Final = (1 << LEVEL_SHIFT) - 1

# Until when a message is held, in milliseconds since 1970, and its position.
Moment = tuple[float, int]


def number_of(position: int) -> int:
    """The store's id of a message at a position."""
    return position & NUMBER_MASK


class Account(IntEnum):
    """Where bytes of the budget are charged. A body is charged once: to the first that holds it."""

    NOWHERE = 0  # not in memory
    WRITING = 1  # W: not committed yet, so no other place has it
    DISPATCHED = 2  # D: with a consumer
    TARGET = 3  # T: at least one list refers to it directly
    PENDING = 4  # P: a list refers to it, none directly
    HEAD = 5  # H: no list refers to it; kept for consumers still to come
    LOADING = 6  # L: reserved for what a load under way will bring
    ENTRIES = 7  # E: the lists themselves, and records of what is with consumers
    UNPAGED = 8  # lent to queues that keep everything in memory, and messages that no store can keep


class Ends(dict[int, int]):
    """A position on each level, from the level's very beginning on."""

    __slots__ = ()

    def __missing__(self, level: int) -> int:
        return level << LEVEL_SHIFT


class Nowhere(dict[int, int]):
    """As `Ends`, of a list that is to get nothing any more: before everything."""

    __slots__ = ()

    def __missing__(self, level: int) -> int:
        return -1


@dataclass(slots=True, eq=False)
class Share:
    """The room that is set aside for one consumer: for a record of each message that its credit lets it have."""

    credit: int  # 0 for one whose credit has no bound, or that has left its list
    held: int = 0  # records of the messages that it has

    @property
    def unused(self) -> int:
        """How many records may still come; those that are there are counted already."""
        return max(self.credit - self.held, 0)


@dataclass(slots=True, eq=False, repr=False)
class Slot:
    """A message of an area that somebody knows of without asking the store."""

    area: Area
    position: int
    cost: int  # bytes that the payload takes in memory
    payload: Any = None
    account: Account = Account.NOWHERE  # Invariant: NOWHERE if and only if payload is None.
    lists: int = 0  # Invariant: how many lists name it.
    direct: int = 0  # Invariant: how many lists name it before their watermark.
    in_flight: bool = False  # Invariant: then no list names it.
    is_backed: bool = True  # the store has it, so the payload can be let go
    share: Share | None = None  # of the consumer that has it; None for whom nothing can be set aside
    # Of those with selectors, the lists that named it when it was taken, or met it since: theirs when it comes back.
    matched: tuple[TargetList, ...] = ()

    def __repr__(self) -> str:
        return f"<slot {self.position} of {self.area.name!r}, {self.cost} bytes {self.account.name}>"


@dataclass(slots=True, eq=False, repr=False)
class Windows:
    """What a list of an area by key has of each level: some of its first messages, all of them in memory."""

    counts: dict[int, int] = field(default_factory=dict)  # Invariant: how many entries of a level, if any
    open: dict[int, None] = field(default_factory=dict)  # Invariant: the levels with something not looked at
    low: dict[int, None] = field(default_factory=dict)  # those of them of which more is to be loaded, oldest first
    rich: dict[int, None] = field(default_factory=dict)  # those that may have more than their share, perhaps others
    costs: dict[int, int] = field(default_factory=dict)  # of a level's next message, where a load had no room for it
    due: int | None = None  # it is the turn of this level, of which nothing is in memory

    def forget(self, level: int) -> None:
        """Nothing is on a level any longer."""
        for each in (self.open, self.low, self.costs):
            each.pop(level, None)
        self.due = None if self.due == level else self.due


@dataclass(slots=True, eq=False, repr=False)
class TargetList:
    """The messages for the consumers of one area that want the same ones, in order."""

    area: Area
    label: str
    selector: Callable[[Any], bool] | None = None  # which only a load may ask; None takes everything
    browses: bool = False  # does not see what comes back
    shares: dict[Share, None] = field(default_factory=dict)  # of its consumers
    entries: Positions = field(default_factory=Positions)
    # The watermark. Invariant: END, or the position of the first entry that is a cache reference.
    mark: int = END
    direct: int = 0  # Invariants: how many entries stand before the mark, and their costs.
    direct_bytes: int = 0
    # scans[level]: every message of the level up to this position was looked at. The tail is closed when
    # that is the level's last, and open otherwise: then the rest is found by scanning.
    scans: dict[int, int] = field(default_factory=Ends)
    windows: Windows | None = field(init=False)  # of an area by key; then the mark is `END`
    key: object = None  # what consumers that may share it have in common; None for a reader's own list
    willing: set[object] = field(default_factory=set)  # of its readers, those that have credit and want work
    hungry: bool = False  # Invariant: as `willing`, as far as the memory manager has been told
    loading: bool = False  # a load for it is under way
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.windows = Windows(open=dict.fromkeys(self.area.last)) if self.area.is_keyed else None
        if self.windows is not None:
            self.windows.low.update(self.windows.open)

    @property
    def open_level(self) -> int | None:
        """The first level with something that was not looked at, None when the tail is closed."""
        if self.windows is not None:
            return next(iter(self.windows.open), None)
        return next((level for level, last in self.area.last.items() if self.scans[level] < last), None)

    @property
    def is_starving(self) -> bool:
        """True when a consumer wants work, and this list has nothing for it in memory."""
        is_due = self.windows is not None and self.windows.due is not None
        return self.hungry and (not self.direct or is_due or self.is_behind)

    @property
    def is_behind(self) -> bool:
        """True when something may stand before the first entry that this list was not asked about."""
        return self.windows is None and not self.is_in_order and self.horizon < self.entries.first

    @property
    def is_in_order(self) -> bool:
        """True when entries are found in order, so that nothing turns up before one of them."""
        return len(self.area.last) == 1

    @property
    def horizon(self) -> int:
        """The first position where something may stand that this list was not asked about, `END` for none."""
        level = self.open_level
        return END if level is None else self.scans[level] + 1

    @property
    def is_incomplete(self) -> bool:
        """True when there may be more for this list than its direct references."""
        return self.mark < END or self.open_level is not None

    def __repr__(self) -> str:
        return f"<target list {self.label!r}: {self.direct} direct of {len(self.entries)}>"


@dataclass(slots=True, eq=False, repr=False)
class Look:
    """Somebody reads the area from the store without the lock: messages that leave meanwhile must not come back."""

    area: Area
    gone: set[int] = field(default_factory=set)  # numbers of messages


@dataclass(slots=True, eq=False, repr=False)
class Area:
    """One broker queue, as paging sees it."""

    name: str
    levels: InitVar[int] = 1
    is_keyed: bool = False  # its levels come and go, and take turns
    slots: dict[int, Slot] = field(default_factory=dict)
    lists: list[TargetList] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=Ends)  # of each level, the last that arrived
    pending: Positions = field(default_factory=Positions)  # the PendingCache: slots charged to PENDING
    head: Positions = field(default_factory=Positions)  # the HeadQueueCache: slots charged to HEAD
    # Invariant: all that is ready up to here and named by no list is in `head`: so that is a prefix.
    head_end: int = -1
    unbacked: Positions = field(default_factory=Positions)  # slots that the store does not have yet
    writing: set[int] = field(default_factory=set)  # the numbers of those of them that are on their way to it
    kept: set[int] = field(default_factory=set)  # those of them that no store can keep
    looks: list[Look] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)  # positions of rows that are no messages
    near: Moment = (math.inf, 0)  # what is held beyond it is passed over; see `held`
    is_closed: bool = False

    def __post_init__(self, levels: int) -> None:
        if not self.is_keyed:
            self.last.update((level, level << LEVEL_SHIFT) for level in range(levels))

    def cache(self, account: Account) -> Positions:
        """The bytes that are charged to PENDING or to HEAD."""
        return self.pending if account is Account.PENDING else self.head

    @property
    def tail(self) -> int:
        """The last position that anything stood on, -1 when nothing ever did."""
        if len(self.last) == 1:
            ((level, last),) = self.last.items()
            return last if last > level << LEVEL_SHIFT else -1
        return max((last for level, last in self.last.items() if last > level << LEVEL_SHIFT), default=-1)
