"""Message groups: which consumer may have the messages of a group.

State       Guarded by the queue's lock. Acceptance and acquisition are one hold of it, so two consumers never own one
            group at once.
Waiting     Consumers pass over entries of groups that are not theirs. The call that frees such a group is told and
            must let every reader start over, because what they passed over may be theirs now.
Source      Broker-J's message groups, standard (AssignedConsumer...) and shared (DefinedGroup...).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from .._base.settings import MessageGroups
from .consumer import QueueConsumer

if TYPE_CHECKING:
    from .entry import Key

_BUCKETS: Final = 256  # bounds the memory of standard groups; groups of one bucket share a consumer


class GroupManager(ABC):
    """Who owns which group. An entry without a group belongs to everybody."""

    def __init__(self) -> None:
        # Groups (or buckets) that somebody was refused: only freeing one of these is news to anyone.
        self._contested: set[Key] = set()

    @abstractmethod
    def accepts(self, group: Key, owner: object) -> bool:
        """True when this consumer, or holder of a `get`, may take entries of the group."""

    @abstractmethod
    def acquired(self, group: Key, owner: object) -> None:
        """An entry of a group that accepts the owner was taken."""

    @abstractmethod
    def left(self, group: Key) -> bool:
        """An acquisition has ended; True when that freed a group somebody was refused."""

    @abstractmethod
    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        """True when that freed a group somebody was refused."""

    def _free(self, group: Key) -> bool:
        contested = group in self._contested
        self._contested.discard(group)
        return contested


class StandardGroups(GroupManager):
    """A group stays with the consumer that got its first message until that consumer goes.

    A `get` takes what belongs to no consumer and owns nothing afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, QueueConsumer] = {}

    def accepts(self, group: Key, owner: object) -> bool:
        if group is None:
            return True
        bucket = hash(group) % _BUCKETS
        if self._owners.get(bucket, owner) is owner:
            return True
        self._contested.add(bucket)
        return False

    def acquired(self, group: Key, owner: object) -> None:
        if group is not None and isinstance(owner, QueueConsumer):
            self._owners[hash(group) % _BUCKETS] = owner

    def left(self, group: Key) -> bool:
        return False

    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        owned = [bucket for bucket, owner in self._owners.items() if owner is consumer]
        for bucket in owned:
            del self._owners[bucket]
        contested = [bucket for bucket in owned if self._free(bucket)]
        return bool(contested)


class SharedGroups(GroupManager):
    """A group is a consumer's while that consumer has unsettled entries of it."""

    def __init__(self) -> None:
        super().__init__()
        # Invariant: the counts are above 0, and count the acquired entries of the group.
        self._owners: dict[Key, tuple[object, int]] = {}

    def accepts(self, group: Key, owner: object) -> bool:
        current = self._owners.get(group)
        if current is None or current[0] is owner:
            return True
        self._contested.add(group)
        return False

    def acquired(self, group: Key, owner: object) -> None:
        if group is not None:
            _, count = self._owners.get(group, (owner, 0))
            self._owners[group] = (owner, count + 1)

    def left(self, group: Key) -> bool:
        if group is None:
            return False
        owner, count = self._owners.pop(group)
        if count == 1:
            return self._free(group)
        self._owners[group] = (owner, count - 1)
        return False

    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        return False  # what it has not settled still holds its groups


def make_groups(groups: MessageGroups) -> GroupManager | None:
    """The manager for a queue's setting, None for none."""
    if groups is MessageGroups.STANDARD:
        return StandardGroups()
    return SharedGroups() if groups is MessageGroups.SHARED else None
