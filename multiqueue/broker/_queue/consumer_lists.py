"""The queue consumer manager: who wants work, who was told of some, in lists per priority.

Promise     A consumer is in All and in exactly one of NonAcquiring, NotInterested, Interested and Notified, the one its
            state names. A consumer that returns to a list returns to its end: fairness.
State       Guarded by the queue's lock.
Assumes     OrderedDict for its constant-time first element: a plain dict walks over what was removed before.
Source      Broker-J, QueueConsumerManagerImpl; its marked-and-swept lists are not needed under a lock.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from .consumer import (
    ACQUIRING_MOVES,
    BROWSER_MOVES,
    ConsumerList,
    ConsumerState,
    Interest,
    PriorityLists,
    QueueConsumer,
)

_IDLE: Final = (ConsumerState.INTERESTED, ConsumerState.NON_ACQUIRING)


class QueueConsumerManager:
    """The lists of one broker queue."""

    __slots__ = ("_by_priority", "idle", "levels", "non_acquiring", "not_interested", "total")

    def __init__(self) -> None:
        # Invariants: levels holds the values of _by_priority, highest priority first; none of them is empty.
        self.levels: list[PriorityLists] = []
        self._by_priority: dict[int, PriorityLists] = {}
        self.non_acquiring: ConsumerList = OrderedDict()
        self.not_interested: ConsumerList = OrderedDict()
        self.total: int = 0
        # Invariant: how many are INTERESTED or NON_ACQUIRING, that is, may have to be told of a new entry.
        self.idle: int = 0

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[QueueConsumer]:
        """All consumers, the highest priority first, those of one priority in order of arrival."""
        for lists in self.levels:
            yield from lists.all

    def add(self, consumer: QueueConsumer) -> None:
        """Put a new consumer into All and NotInterested."""
        lists = self._by_priority.get(consumer.priority)
        if lists is None:
            lists = self._by_priority[consumer.priority] = PriorityLists(
                consumer.priority, self.not_interested, self.non_acquiring
            )
            insort(self.levels, lists, key=lambda each: -each.priority)
        consumer.lists = lists
        lists.all[consumer] = None
        self.total += 1
        self.move(consumer, Interest.ADD)

    def remove(self, consumer: QueueConsumer) -> bool:
        """Take a consumer out of every list; False when it was not there."""
        if not self.move(consumer, Interest.REMOVE):
            return False
        lists = consumer.lists
        assert lists is not None
        del lists.all[consumer]
        consumer.lists = None
        self.total -= 1
        if not lists.all:
            self.levels.remove(lists)
            del self._by_priority[lists.priority]
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
        """Raise AssertionError when a consumer is in a list that its state does not name, or in none."""
        everyone = list(self)
        assert len(everyone) == len(set(everyone)) == self.total
        assert [lists.priority for lists in self.levels] == sorted(self._by_priority, reverse=True)
        assert all(lists.all for lists in self.levels), "an empty priority was kept"
        placed = [*self.non_acquiring, *self.not_interested]
        for lists in self.levels:
            placed += [*lists.interested, *lists.notified]
        assert sorted(map(id, placed)) == sorted(map(id, everyone)), "not in exactly one list each"
        assert self.idle == sum(consumer.state in _IDLE for consumer in everyone)
        for consumer in everyone:
            current = (consumer.lists and consumer.lists.by_state[consumer.state]) or ()
            assert consumer in current, f"{consumer!r} is in a wrong list"
