"""Which target list each reader of one paged queue is assigned to: consumers, and gets without a consumer.

Promise     Consumers that want the same things share a list, so that a message costs the same however many compete
            for it. A consumer that meets an entry that only it may not have (it has refused it, or published it) gets a
            separate list. A browser has a separate one; gets without a consumer have one as long as they go on. A list
            goes with the last of its readers.
State       Guarded by the queue's lock, as are a list's `key` and `willing`; the memory manager's guards its rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .._base.errors import ConsumerNotAdmitted
from .._queue.consumer import QueueConsumer, Reader
from .._selector.selector import Selector
from .memory import MemoryManager
from .target_list import Area, Share, TargetList


@dataclass(eq=False)
class Assignments:
    """The readers of one paged queue, and their lists."""

    _area: Area
    _memory: MemoryManager
    _readers: dict[Reader, tuple[TargetList, Share]] = field(default_factory=dict)  # with what is set aside for each
    _shared: dict[object, TargetList] = field(default_factory=dict)  # Invariant: those that have a key, by it

    def target_of(self, reader: Reader) -> TargetList | None:
        found = self._readers.get(reader)
        return None if found is None else found[0]

    def share_of(self, owner: object) -> Share | None:
        """The room that is set aside for a consumer; None for an owner of another kind, and for one that has left."""
        found = self._readers.get(owner) if isinstance(owner, QueueConsumer) else None
        return None if found is None else found[1]

    def enter(self, consumer: QueueConsumer, *, is_here: bool = False) -> None:
        """Give a consumer a list, its own or one that it shares.

        `is_here`: it consumed before the queue paged, and is not refused. Raises as `Paging.join`.
        """
        key = _key_of(consumer) if consumer.acquires else None
        share = Share(0 if consumer.credit is None else consumer.credit.limit or 0)
        target = self._join(consumer, share, target=self._shared.get(key), is_here=is_here)
        if key is not None:
            target.key = key
            self._shared[key] = target
        self._assign(consumer, target, share)

    def enter_once(self, reader: Reader) -> None:
        """Give gets without a consumer a list, unless they have one. Nothing is set aside. Raises as `Paging.join`."""
        if reader not in self._readers:
            share = Share(0)
            self._assign(reader, self._join(reader, share), share)

    def separate(self, reader: Reader) -> bool:
        """Give a reader that shares a list a separate one; False when there is no memory for it."""
        try:
            own = self._join(reader, None)
        except ConsumerNotAdmitted:
            return False
        self._assign(reader, own, self._part(reader, own))
        return True

    def leave(self, reader: Reader) -> None:
        """The reader has no list any longer. Harmless when it had none."""
        if reader in self._readers:
            self._part(reader, None)

    def _part(self, reader: Reader, other: TargetList | None) -> Share:
        """Take a reader from its list. What is set aside for it goes to the other, or nowhere: then it is gone."""
        self.note_demand(reader, willing=False)
        target, share = self._readers.pop(reader)
        with self._memory as paging:
            if other is None:
                paging.give_up(target, share)
            else:
                paging.take_away(target, share)
                paging.set_aside(other, share)
            if not target.shares:
                self._shared.pop(target.key, None)
                paging.leave(target)
        return share

    def clear(self) -> None:
        self._readers.clear()
        self._shared.clear()

    def note_demand(self, reader: Reader, *, willing: bool) -> None:
        """It has credit and wants work, or has not; a list is hungry while one of its readers is."""
        target = self.target_of(reader)
        if target is None:
            return
        if willing:
            target.willing.add(reader)
        else:
            target.willing.discard(reader)
        if bool(target.willing) != target.hungry:
            with self._memory as paging:
                paging.set_hungry(target, bool(target.willing))

    def _join(
        self, reader: Reader, share: Share | None, *, target: TargetList | None = None, is_here: bool = False
    ) -> TargetList:
        label, selector = (reader.tag, reader.selector) if isinstance(reader, QueueConsumer) else ("get", None)
        with self._memory as paging:
            return paging.join(
                self._area, label, share, target=target, selector=selector, browses=not reader.acquires, is_here=is_here
            )

    def _assign(self, reader: Reader, target: TargetList, share: Share) -> None:
        self._readers[reader] = (target, share)
        if isinstance(reader, QueueConsumer) and reader.is_willing:
            self.note_demand(reader, willing=True)


def _key_of(consumer: QueueConsumer) -> object:
    selector = consumer.selector
    wants = selector if selector is None or isinstance(selector, Selector) else id(selector)
    return wants, id(consumer.connection) if consumer.no_local else None
