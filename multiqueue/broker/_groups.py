"""Message groups: which consumer may have the messages of a group.

Promise     Acceptance and acquisition happen in one hold of the queue's lock, so two consumers never own one
            group at once.
State       Guarded by the queue's lock.
Waiting     Consumers pass over entries of groups that are not theirs. Whoever frees a group is told so and must
            let every reader start over, because what they passed over may be theirs now. Such a scan costs
            what stands before the first entry that can be taken.
Source      Broker-J's AssignedConsumerMessageGroupManager (standard) and DefinedGroupMessageGroupManager (shared).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from ._queue_settings import MessageGroups

if TYPE_CHECKING:
    from ._consumer import QueueConsumer
    from ._entry import Entry, Key

_BUCKETS: Final = 256  # bounds the memory of standard groups; groups of one bucket share a consumer


class GroupManager(ABC):
    """Who owns which group. An entry without a group belongs to everybody."""

    @abstractmethod
    def accepts(self, group: Key, consumer: QueueConsumer) -> bool:
        """True when this consumer may take entries of the group."""

    @abstractmethod
    def acquired(self, entry: Entry, consumer: QueueConsumer) -> None:
        """The consumer took an entry of a group that accepts it."""

    @abstractmethod
    def left(self, entry: Entry) -> bool:
        """A consumer's acquisition of the entry has ended; True when that freed its group."""

    @abstractmethod
    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        """True when that freed a group."""


class StandardGroups(GroupManager):
    """A group stays with the consumer that got its first message until that consumer goes."""

    def __init__(self) -> None:
        self._owners: dict[int, QueueConsumer] = {}

    def accepts(self, group: Key, consumer: QueueConsumer) -> bool:
        return group is None or self._owners.get(hash(group) % _BUCKETS, consumer) is consumer

    def acquired(self, entry: Entry, consumer: QueueConsumer) -> None:
        if entry.group is not None:
            self._owners[hash(entry.group) % _BUCKETS] = consumer

    def left(self, entry: Entry) -> bool:
        return False

    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        owned = [bucket for bucket, owner in self._owners.items() if owner is consumer]
        for bucket in owned:
            del self._owners[bucket]
        return bool(owned)


class SharedGroups(GroupManager):
    """A group is a consumer's while that consumer has unsettled entries of it."""

    def __init__(self) -> None:
        # Invariant: the counts are above 0, and count the acquired entries of the group.
        self._owners: dict[Key, tuple[QueueConsumer, int]] = {}

    def accepts(self, group: Key, consumer: QueueConsumer) -> bool:
        owner = self._owners.get(group)
        return owner is None or owner[0] is consumer

    def acquired(self, entry: Entry, consumer: QueueConsumer) -> None:
        if entry.group is not None:
            _, count = self._owners.get(entry.group, (consumer, 0))
            self._owners[entry.group] = (consumer, count + 1)

    def left(self, entry: Entry) -> bool:
        if entry.group is None:
            return False
        owner, count = self._owners.pop(entry.group)
        if count > 1:
            self._owners[entry.group] = (owner, count - 1)
        return count == 1

    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        return False  # what it has not settled still holds its groups


def make_groups(groups: MessageGroups) -> GroupManager | None:
    """The manager for a queue's setting, None for none."""
    if groups is MessageGroups.STANDARD:
        return StandardGroups()
    return SharedGroups() if groups is MessageGroups.SHARED else None
