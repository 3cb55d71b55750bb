"""Which target list each reader of one paged queue is assigned to: consumers, and gets without a consumer.

Promise     Consumers that want the same things share a list, so that a message costs the same however many compete
            for it. A consumer that meets an entry that only it may not have (it has refused it, or published it) gets
            a list of its own. A browser has one of its own; gets without a consumer have one as long as they go on.
            A list goes with the last of its readers.
State       Guarded by the queue's lock, except for the lists themselves, which the memory manager's lock guards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .._base.errors import ConsumerNotAdmitted
from .._queue.consumer import QueueConsumer
from .._queue.cursor import Reader
from .._selector.selector import Selector
from .memory import MemoryManager
from .target_list import Area, Share, TargetList


@dataclass(slots=True, eq=False)
class Assignment:
    """Readers that share a target list. `willing` of them want work now."""

    target: TargetList
    key: object  # None for a list that no other consumer may join
    readers: dict[Reader, Share] = field(default_factory=dict)  # with what is set aside for each
    willing: set[Reader] = field(default_factory=set)


class Assignments:
    """The readers of one paged queue, and their lists."""

    def __init__(self, area: Area, memory: MemoryManager) -> None:
        self._area = area
        self._memory = memory
        self._assignments: dict[Reader, Assignment] = {}
        self._shared: dict[object, Assignment] = {}  # Invariant: those that have a key, by it

    def of(self, reader: Reader) -> Assignment | None:
        """The list that a reader shares, and with whom; None for one that has no list."""
        return self._assignments.get(reader)

    def target_of(self, reader: Reader) -> TargetList | None:
        assignment = self._assignments.get(reader)
        return None if assignment is None else assignment.target

    def share_of(self, owner: object) -> Share | None:
        """The room that is set aside for a consumer; None for an owner of another kind, and for one that has left."""
        if not isinstance(owner, QueueConsumer):
            return None
        assignment = self._assignments.get(owner)
        return None if assignment is None else assignment.readers[owner]

    def enter(self, consumer: QueueConsumer, *, is_here: bool = False) -> None:
        """Give a consumer a list, its own or one that it shares.

        `is_here`: it consumed before the queue paged, and is not refused.

        Raises:
            ConsumerNotAdmitted: there is no memory for it; not if `is_here`.
        """
        key = _key_of(consumer) if consumer.acquires else None
        assignment = None if key is None else self._shared.get(key)
        credit = consumer.credit
        share = Share(0 if credit is None else credit.limit or 0)
        with self._memory as paging:
            if is_here:
                share.credit = paging.affordable(share.credit)
            elif assignment is not None:
                paging.admit(self._area.name, consumer.tag, share.credit)
            if assignment is not None:
                paging.set_aside(assignment.target, share)
        self._add(consumer, assignment or self._new_assignment(consumer, key, share, is_here=is_here), share)

    def enter_once(self, reader: Reader) -> None:
        """Give gets without a consumer a list, unless they have one. Nothing is set aside for them.

        Raises:
            ConsumerNotAdmitted: there is no memory for it.
        """
        if reader not in self._assignments:
            share = Share(0)
            self._add(reader, self._new_assignment(reader, None, share), share)

    def separate(self, reader: Reader) -> bool:
        """Give a reader that shares a list one of its own; False when there is no memory for it."""
        nothing = Share(0)
        try:
            own = self._new_assignment(reader, None, nothing)
        except ConsumerNotAdmitted:
            return False
        assignment = self._assignments[reader]
        share = assignment.readers[reader]
        with self._memory as paging:
            paging.take_away(own.target, nothing)
            paging.take_away(assignment.target, share)
            paging.set_aside(own.target, share)
        self._part(reader)
        self._add(reader, own, share)
        return True

    def leave(self, reader: Reader) -> None:
        """The reader has no list any longer. Harmless when it had none."""
        assignment = self._assignments.get(reader)
        if assignment is None:
            return
        with self._memory as paging:
            paging.give_up(assignment.target, assignment.readers[reader])
        self._part(reader)

    def _part(self, reader: Reader) -> None:
        self.note_demand(reader, willing=False)
        assignment = self._assignments.pop(reader)
        del assignment.readers[reader]
        if assignment.readers:
            return
        if assignment.key is not None:
            del self._shared[assignment.key]
        with self._memory as paging:
            paging.leave(assignment.target)

    def clear(self) -> None:
        """Forget them all: their area goes, and the lists with it."""
        self._assignments.clear()
        self._shared.clear()

    def note_demand(self, reader: Reader, *, willing: bool) -> None:
        """It has credit and wants work, or has not; a list is hungry while one of its readers is."""
        assignment = self._assignments.get(reader)
        if assignment is None:
            return
        if willing:
            assignment.willing.add(reader)
        else:
            assignment.willing.discard(reader)
        if bool(assignment.willing) != assignment.target.hungry:
            with self._memory as paging:
                paging.set_hungry(assignment.target, bool(assignment.willing))

    def _new_assignment(self, reader: Reader, key: object, share: Share, *, is_here: bool = False) -> Assignment:
        label = reader.tag if isinstance(reader, QueueConsumer) else "get"
        selector = reader.selector if isinstance(reader, QueueConsumer) else None
        with self._memory as paging:
            target = paging.join(
                self._area, label, selector=selector, browses=not reader.acquires, share=share, is_here=is_here
            )
        assignment = Assignment(target, key)
        if key is not None:
            self._shared[key] = assignment
        return assignment

    def _add(self, reader: Reader, assignment: Assignment, share: Share) -> None:
        self._assignments[reader] = assignment
        assignment.readers[reader] = share
        if isinstance(reader, QueueConsumer) and reader.is_willing:
            self.note_demand(reader, willing=True)


def _key_of(consumer: QueueConsumer) -> object:
    selector = consumer.selector
    wants = selector if selector is None or isinstance(selector, Selector) else id(selector)
    return wants, id(consumer.connection) if consumer.no_local else None
