"""Message groups: which consumer may have the messages of a group.

State       Guarded by the queue's lock. Acceptance and acquisition are one hold of it, so two consumers never own one
            group at once.
Waiting     Consumers pass over entries of groups that are not theirs. The call that frees such a group is told and
            must let every reader start over, because what they passed over may be theirs now.
Source      Broker-J's message groups, standard (AssignedConsumer...) and shared (DefinedGroup...).
"""

from __future__ import annotations

from typing import Final

from .._base.settings import MessageGroups
from .consumer import QueueConsumer
from .entry import Key

_BUCKETS: Final = 256  # bounds the memory of standard groups; groups of one bucket share a consumer


class SharedGroups:
    """A group is a consumer's while that consumer has unsettled entries of it. No group: everybody's."""

    def __init__(self) -> None:
        # Invariant: the counts are above 0, and count the acquired entries of the group.
        self._owners: dict[Key, tuple[object, int]] = {}
        # Groups (or buckets) that somebody was refused: only freeing one of these is news to anyone.
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

    def left(self, group: Key) -> bool:
        """An acquisition has ended; True when that freed a group somebody was refused."""
        if group is None:
            return False
        owner, count = self._owners.pop(group)
        if count == 1:
            return self._free(group)
        self._owners[group] = (owner, count - 1)
        return False

    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        """True when that freed a group somebody was refused."""
        return False  # what it has not settled still holds its groups

    def _free(self, group: Key) -> bool:
        contested = group in self._contested
        self._contested.discard(group)
        return contested


class StandardGroups(SharedGroups):
    """A group stays with the consumer that got its first message until that consumer goes.

    A `get` takes what belongs to no consumer and owns nothing afterwards.
    """

    def accepts(self, group: Key, owner: object) -> bool:
        return super().accepts(_bucket(group), owner)

    def acquired(self, group: Key, owner: object) -> None:
        if group is not None and isinstance(owner, QueueConsumer):
            self._owners[_bucket(group)] = (owner, 1)

    def left(self, group: Key) -> bool:
        return False

    def consumer_removed(self, consumer: QueueConsumer) -> bool:
        owned = [bucket for bucket, (owner, _) in self._owners.items() if owner is consumer]
        for bucket in owned:
            del self._owners[bucket]
        return sum(self._free(bucket) for bucket in owned) > 0


def _bucket(group: Key) -> Key:
    return None if group is None else hash(group) % _BUCKETS


def make_groups(groups: MessageGroups) -> SharedGroups | None:
    """The manager for a queue's setting, None for none."""
    if groups is MessageGroups.STANDARD:
        return StandardGroups()
    return SharedGroups() if groups is MessageGroups.SHARED else None
