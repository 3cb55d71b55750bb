"""The queue's side of consumers: what each wants and has read, the lists it moves between, and whose a group is.

Promise     A consumer is in All and in exactly one of NonAcquiring, NotInterested, Interested and Notified, the one its
            state names. A consumer that returns to a list returns to its end: fairness.
            Every entry that is available at or before a reader's cursor was refused by it, is among its revisits, or is
            named in the part of the return log it has not merged yet.
State       Guarded by the lock of the queue, but for what never changes: the first block of a consumer's fields.
Waiting     A consumer never waits. Its queue calls `notify_work` without any lock when there may be work, and
            the consumer's target must then call `BrokerQueue.deliver_messages` until that returns
            nothing: being NOTIFIED is an obligation.
Groups      Acceptance and acquisition are one hold of the lock, so two consumers never own one group at once. Consumers
            pass over entries of groups that are not theirs. The call that frees such a group lets every reader start
            over, because entries that they passed over may be theirs now.
Cost        A return costs one append, however many readers there are; each merges when it next reads.
            "Where a consumer stands" in docs/design/broker-queue.md says when the log is cut.
Assumes     OrderedDict for its constant-time first element: a plain dict walks over removed slots.
Source      Broker-J, QueueConsumerManagerImpl, whose marked-and-swept lists are not needed under a lock, and the
            lastSeen and released pointers of its QueueContext. Its message groups, standard (AssignedConsumer...) and
            shared (DefinedGroup...).
"""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final

from .._base.credit import Credit
from .._base.message import Message
from .._base.settings import MessageGroups
from .entry import Entry, EntryQueue, Key, Position
from .entry_list import EntryList

_LEAST_CUT: Final = 1024  # positions; below this a log is too short to be worth cutting
_BUCKETS: Final = 256  # bounds the memory of standard groups; groups of one bucket share a consumer

Predicate = Callable[[Message], bool]


@dataclass(slots=True, eq=False)
class ReturnLog:
    """Positions in the order in which they became takeable behind somebody's cursor."""

    _positions: list[Position] = field(default_factory=list)
    end: int = 0  # it only grows: by one for each position, and for each time that readers are to start over

    def add(self, position: Position, length: int) -> None:
        """Tell readers that have passed this position; or all to start over, if that is less in so long a queue."""
        self._positions.append(position)
        self.end += 1
        if len(self._positions) > max(length, _LEAST_CUT):
            self.restart_all()

    def restart_all(self) -> None:
        self._positions.clear()
        self.end += 1

    def since(self, seen: int) -> Sequence[Position] | None:
        """The entries that were added after a reader last looked; None when they are forgotten."""
        begin = len(self._positions) - (self.end - seen)
        return self._positions[begin:] if begin >= 0 else None


@dataclass(slots=True, eq=False)
class Reader:
    """A place in a queue: everything up to `cursor` was seen, but for `revisits`."""

    cursor: Position = -1  # the source that it reads sets it
    owner_of_get: object = None
    # A heap of positions at or before the cursor that are to be looked at (again).
    revisits: list[Position] = field(default_factory=list)
    returns_seen: int = 0
    # The rules about what it may have; a consumer has its own.
    acquires: bool = True
    number: int = -1
    no_local: bool = False
    connection: object = None

    @property
    def owner(self) -> object:
        """The owner of the entries that are read, as message groups see it."""
        return self.owner_of_get or self

    def revisit(self, entry: Entry) -> None:
        """Look at an entry again that was passed over; one behind the cursor will be met anyway."""
        if entry.position <= self.cursor:
            heappush(self.revisits, entry.position)

    def pass_revisits(self, entries: Iterable[Entry]) -> None:
        """Revisit these no more: they were looked at."""
        positions = {entry.position for entry in entries}
        while self.revisits and self.revisits[0] in positions:
            positions.remove(heappop(self.revisits))
        if positions:  # others have come between them
            self.revisits = [position for position in self.revisits if position not in positions]
            heapify(self.revisits)

    def merge(self, log: ReturnLog, start: Position) -> None:
        returned = log.since(self.returns_seen)
        self.returns_seen = log.end
        if returned is None:
            self.cursor = start
            self.revisits.clear()
            return
        for position in returned:
            if position <= self.cursor:
                heappush(self.revisits, position)

    def prune(self, entries: EntryList) -> None:
        self.revisits = [position for position in set(self.revisits) if entries.get(position) is not None]
        heapify(self.revisits)


class ConsumerState(IntEnum):
    """In which of the manager's lists a consumer is, besides the list of all."""

    REMOVED = 0
    NOT_INTERESTED = 1
    NON_ACQUIRING = 2
    INTERESTED = 3
    NOTIFIED = 4


class Interest(IntEnum):
    """An event that can move a consumer from list to list."""

    ADD = 0
    WANT = 1
    UNWANT = 2
    NOTIFY = 3
    UNNOTIFY = 4
    REMOVE = 5


_C = ConsumerState
Moves = dict[Interest, dict[ConsumerState, ConsumerState]]

# Who may move where. A move that is not here does not happen, and its caller is told so.
ACQUIRING_MOVES: Final[Moves] = {
    Interest.ADD: {_C.REMOVED: _C.NOT_INTERESTED},
    Interest.WANT: {_C.NOT_INTERESTED: _C.INTERESTED},
    Interest.UNWANT: dict.fromkeys((_C.INTERESTED, _C.NOTIFIED, _C.NON_ACQUIRING), _C.NOT_INTERESTED),
    Interest.NOTIFY: {_C.INTERESTED: _C.NOTIFIED},
    Interest.UNNOTIFY: {_C.NOTIFIED: _C.INTERESTED},
    Interest.REMOVE: dict.fromkeys((_C.NOT_INTERESTED, _C.NON_ACQUIRING, _C.INTERESTED, _C.NOTIFIED), _C.REMOVED),
}
BROWSER_MOVES: Final[Moves] = {**ACQUIRING_MOVES, Interest.WANT: {_C.NOT_INTERESTED: _C.NON_ACQUIRING}}
_IDLE: Final = (_C.INTERESTED, _C.NON_ACQUIRING)


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class QueueConsumer(Reader):
    """One consumer of one broker queue; made by `BrokerQueue.add_consumer`."""

    queue: EntryQueue
    tag: str
    on_work: Callable[[QueueConsumer], object]
    on_cancelled: Callable[[QueueConsumer], object] | None
    credit: Credit | None
    selector: Predicate | None
    priority: int
    auto_accept: bool
    exclusive: bool
    lock_deliveries: bool
    timeout: float | None = None  # seconds that it may keep a message; None: as its queue says
    on_timed_out: Callable[[float], object] | None = None

    state: ConsumerState = ConsumerState.REMOVED
    is_willing: bool = False  # Invariant: True in the lists of those that may be given entries.
    lists: PriorityLists | None = None  # Invariant: None if and only if state is REMOVED.
    desired: bool = False  # what the target last said
    active: bool = True  # False while it waits behind the limit of active consumers
    is_late: bool = False  # it kept a message for too long: it is not made active again
    pulling: bool = False  # a thread asks selectors to find its next entry
    at_end: bool = False  # its last pull found nothing for it, or took the last

    def notify_work(self) -> None:
        """There may be something to take. Called by the queue, on any thread, under no lock."""
        self.on_work(self)

    def cancelled(self) -> None:
        """The queue was deleted and the consumer with it. Called on any thread, under no lock."""
        if self.on_cancelled is not None:
            self.on_cancelled(self)

    def timed_out(self, timeout: float) -> None:
        """It has lost messages that it kept for too long. Called on any thread, under no lock."""
        if self.on_timed_out is not None:
            self.on_timed_out(timeout)

    @property
    def wants_work(self) -> bool:
        """True when it desires work, is active and has credit. Reads the credit's leaf lock at most."""
        credit = self.credit
        return self.desired and self.active and (credit is None or credit.is_open)

    @property
    def is_closed(self) -> bool:
        """True once it was removed from its queue."""
        return self.state is ConsumerState.REMOVED

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of queue {self.queue.name!r}, {self.state.name}>"


ConsumerList = OrderedDict[QueueConsumer, None]


class PriorityLists:
    """The consumers of one priority: all of them, the interested and the notified."""

    __slots__ = ("all", "by_state", "interested", "notified", "priority")

    def __init__(self, priority: int, not_interested: ConsumerList, non_acquiring: ConsumerList) -> None:
        self.priority: int = priority
        self.all: ConsumerList = OrderedDict()
        self.interested: ConsumerList = OrderedDict()
        self.notified: ConsumerList = OrderedDict()
        # By ConsumerState: where a consumer of this priority is. The two lists given are those of all priorities.
        self.by_state: tuple[ConsumerList | None, ...]
        self.by_state = (None, not_interested, non_acquiring, self.interested, self.notified)


@dataclass(eq=False, repr=False, slots=True)
class QueueConsumerManager:
    """The lists of one broker queue."""

    # Invariants: one for each priority of a consumer, the highest first; none of them is empty.
    levels: list[PriorityLists] = field(default_factory=list)
    non_acquiring: ConsumerList = field(default_factory=OrderedDict)
    not_interested: ConsumerList = field(default_factory=OrderedDict)
    # Invariant: how many are INTERESTED or NON_ACQUIRING, that is, may have to be told of a new entry.
    idle: int = 0
    count: int = 0  # Invariant: of all consumers.

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[QueueConsumer]:
        """All consumers, the highest priority first, those of one priority in order of arrival."""
        for lists in self.levels:
            yield from lists.all

    def add(self, consumer: QueueConsumer) -> None:
        """Put a new consumer into All and NotInterested."""
        lists = next((each for each in self.levels if each.priority == consumer.priority), None)
        if lists is None:
            lists = PriorityLists(consumer.priority, self.not_interested, self.non_acquiring)
            insort(self.levels, lists, key=lambda each: -each.priority)
        consumer.lists = lists
        lists.all[consumer] = None
        self.count += 1
        self.move(consumer, Interest.ADD)

    def remove(self, consumer: QueueConsumer) -> bool:
        """Take a consumer out of every list; False when it was not there."""
        if not self.move(consumer, Interest.REMOVE):
            return False
        lists = consumer.lists
        assert lists is not None
        del lists.all[consumer]
        self.count -= 1
        consumer.lists = None
        if not lists.all:
            self.levels.remove(lists)
        return True

    def move(self, consumer: QueueConsumer, interest: Interest) -> bool:
        """Move a consumer as its table says; False, and nothing changes, when the table says nothing."""
        moves = ACQUIRING_MOVES if consumer.acquires else BROWSER_MOVES
        state = moves[interest].get(consumer.state)
        lists = consumer.lists
        if state is None or lists is None:
            return False
        current = lists.by_state[consumer.state]
        if current is not None:
            del current[consumer]
        self.idle += (state in _IDLE) - (consumer.state in _IDLE)
        consumer.state = state
        consumer.is_willing = state >= ConsumerState.NON_ACQUIRING
        target = lists.by_state[state]
        if target is not None:
            target[consumer] = None
        return True

    def interested(self) -> Iterator[QueueConsumer]:
        """The interested, highest priority first; the lists must not change meanwhile."""
        for lists in self.levels:
            yield from lists.interested

    def willing(self, above: float = -math.inf) -> list[QueueConsumer]:
        """Acquiring consumers that want work, of a priority above this one, highest priority first."""
        willing: list[QueueConsumer] = []
        for lists in self.levels:
            if lists.priority <= above:
                break
            willing += lists.notified
            willing += lists.interested
        return willing

    def check_invariants(self) -> None:
        everyone = list(self)
        assert self.count == len(everyone) == len(set(everyone))
        priorities = [lists.priority for lists in self.levels]
        assert priorities == sorted(set(priorities), reverse=True)
        assert all(lists.all for lists in self.levels), "an empty priority was kept"
        placed = [*self.non_acquiring, *self.not_interested]
        for lists in self.levels:
            placed += [*lists.interested, *lists.notified]
        assert sorted(map(id, placed)) == sorted(map(id, everyone)), "not in exactly one list each"
        assert self.idle == sum(consumer.state in _IDLE for consumer in everyone)
        for consumer in everyone:
            current = (consumer.lists and consumer.lists.by_state[consumer.state]) or ()
            assert consumer in current, f"{consumer!r} is in a wrong list"


class SharedGroups:
    """A group is a consumer's while that consumer has unsettled entries of it. No group: everybody's."""

    # Called when a group is free that somebody was refused: what readers have passed over may be theirs now.
    on_freed: Callable[[], object]

    def __init__(self) -> None:
        # Invariant: the counts are above 0, and count the acquired entries of the group.
        self._owners: dict[Key, tuple[object, int]] = {}
        # Groups (or buckets) that somebody was refused: only freeing one of these changes what anyone may have.
        self._contested: set[Key] = set()

    def accepts(self, group: Key, owner: object) -> bool:
        """True when this consumer, or holder of a `get`, may take entries of the group."""
        if group is None or self._owners.get(group, (owner,))[0] is owner:
            return True
        self._contested.add(group)
        return False

    def acquired(self, group: Key, owner: object) -> None:
        """An entry of a group that accepts the owner was taken."""
        if group is not None:
            _, count = self._owners.get(group, (owner, 0))
            self._owners[group] = (owner, count + 1)

    def left(self, group: Key) -> None:
        """An acquisition has ended."""
        if group is not None:
            owner, count = self._owners.pop(group)
            if count == 1:
                self._free(group)
            else:
                self._owners[group] = (owner, count - 1)

    def consumer_removed(self, consumer: QueueConsumer) -> None:
        """Its unsettled messages still hold their groups."""

    def _free(self, group: Key) -> None:
        if group in self._contested:
            self._contested.discard(group)
            self.on_freed()


class StandardGroups(SharedGroups):
    """A group stays with the consumer that got its first message until that consumer goes.

    A `get` takes what belongs to no consumer and owns nothing afterwards.
    """

    def accepts(self, group: Key, owner: object) -> bool:
        return super().accepts(_bucket(group), owner)

    def acquired(self, group: Key, owner: object) -> None:
        if group is not None and isinstance(owner, QueueConsumer):
            self._owners[_bucket(group)] = (owner, 1)

    def left(self, group: Key) -> None:
        pass

    def consumer_removed(self, consumer: QueueConsumer) -> None:
        for bucket in [bucket for bucket, (owner, _) in self._owners.items() if owner is consumer]:
            del self._owners[bucket]
            self._free(bucket)


def _bucket(group: Key) -> Key:
    return None if group is None else hash(group) % _BUCKETS


def make_groups(groups: MessageGroups) -> SharedGroups | None:
    """The manager for a queue's setting, None for none."""
    if groups is MessageGroups.STANDARD:
        return StandardGroups()
    return SharedGroups() if groups is MessageGroups.SHARED else None
