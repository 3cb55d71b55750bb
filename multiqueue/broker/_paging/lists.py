"""Events of messages, and their effect on target lists, caches and accounts.

Promise     docs/design/bounded-memory.md has the numbered ones, 3 to 6 above all.
State       Guarded by the memory manager's lock. Events in, changes out: no I/O, no threads, no clock, and no
            selectors, which loads ask.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from .members import PagingMembers
from .target_list import LEVEL_SHIFT, NUMBER_MASK, Account, Area, Share, Slot, TargetList


class Paging(PagingMembers):
    """Lists, caches and accounts of one virtual host: the events of messages."""

    def arrive(
        self,
        area: Area,
        position: int,
        cost: int,
        payload: object,
        *,
        backed: bool = True,
        seen_by: Container[TargetList] = (),
    ) -> bool:
        """A message has come to stand behind everything of its level.

        `backed`: the store has it. Otherwise it stays in memory until it has. Browsers that have `seen_by` do not see
        it again.
        False when no list refers to it and it is not in memory, so that the payload can be forgotten at once.
        """
        level = position >> LEVEL_SHIFT
        previous, tail = area.last[level], area.tail
        area.last[level] = position
        slot = None
        if not backed:
            self.room(cost, first=True)  # it stays whether there is or not
            slot = self._new_unbacked(area, position, cost, payload)
        for target in area.lists:
            if target.scans[level] != previous:
                continue
            if target in seen_by:
                target.scans[level] = position
                continue
            if target.selective or not self.room_for_entry(target):
                self.want(target)
                continue
            target.scans[level] = position
            slot = slot or self.new_slot(area, position, cost)
            self.insert(target, slot, payload)
        if slot is None:
            slot = self._offer_to_head(area, position, cost, payload, tail)
        elif position > tail and area.head_end >= tail:
            area.head_end = position  # named by a list, or in memory until the store has it
        return slot is not None and slot.payload is not None

    def arrive_taken(
        self, area: Area, position: int, cost: int, payload: object, share: Share | None, *, backed: bool
    ) -> None:
        """As `arrive`, of a message that somebody has already."""
        self.room(cost + self.entry_bytes, first=True)
        self.arrive(area, position, cost, payload, backed=backed, seen_by=area.lists)
        self._dispatch(area, position, cost, payload, share)

    def _new_unbacked(self, area: Area, position: int, cost: int, payload: object) -> Slot:
        slot = self.new_slot(area, position, cost)
        slot.is_backed = False
        slot.payload = payload
        area.unbacked.add(position)
        self.recharge(slot)
        return slot

    def _offer_to_head(self, area: Area, position: int, cost: int, payload: object, tail: int) -> Slot | None:
        if area.head_end < tail and position > area.head_end:
            return None
        if self.free < cost:
            self.end_head(area, position)
            return None
        area.head_end = max(area.head_end, position)
        slot = self.new_slot(area, position, cost)
        self.place(slot, payload)
        return slot

    def backed(self, area: Area, position: int) -> bool:
        """The store has it now; False when the message is gone."""
        slot = area.slots.get(position)
        if slot is None or area.is_closed:
            area.writing.discard(position)
            return False
        slot.is_backed = True
        area.unbacked.discard(position)
        area.writing.discard(position)
        self.recharge(slot)
        self.room(0)  # now that it can be let go
        return True

    def begin_writing_out(self, area: Area, most: int) -> list[int]:
        """Up to `most` positions of what only memory has and is not on its way to the store; it is from now on."""
        idle = (each for each in area.unbacked if each not in area.writing and each not in area.kept)
        positions = list(islice(idle, most))
        area.writing.update(positions)
        return positions

    def writing_failed(self, area: Area, position: int, *, for_good: bool = False) -> None:
        """The store does not take it now; `for_good`: nor any store ever, so it is charged as what does not page."""
        area.writing.discard(position)
        slot = area.slots.get(position)
        if slot is None:
            self.deleting.pop(position & NUMBER_MASK, None)
        elif for_good:
            area.kept.add(position)
            self.recharge(slot)

    def first(self, target: TargetList) -> Slot | None:
        """The first direct reference of a list. None while something before it is to be looked at."""
        return self.after(target, -1)

    @staticmethod
    def is_at_end(target: TargetList) -> bool:
        """True when everything that this list was ever to have has left it."""
        return not (target.entries or target.is_incomplete or target.loading or target.is_closed)

    def after(self, target: TargetList, position: int) -> Slot | None:
        """The first direct reference behind a position."""
        following = target.entries.at_or_after(position + 1)
        if following < target.mark and (target.is_in_order or following < target.horizon):
            return target.area.slots[following]
        return None

    def take(self, area: Area, position: int, cost: int, payload: object | None, share: Share | None = None) -> bool:
        """A consumer, or somebody else, takes a message; False when it is gone, or there is no room for its record."""
        if not self._is_there(area, position):
            return False
        slot = area.slots.get(position)
        # A line of a list becomes the record; one that no list names needs room.
        if (slot is None or not slot.lists) and not self.room(self.entry_bytes, first=True):
            return False
        self._dispatch(area, position, cost, payload, share)
        return True

    def _dispatch(self, area: Area, position: int, cost: int, payload: object | None, share: Share | None) -> None:
        slot = area.slots.get(position) or self.new_slot(area, position, cost)
        self._unlist(slot)
        self.hold(slot, share)
        self.recharge(slot)
        self._keep(slot, payload)

    def settle(self, area: Area, position: int, *, is_deleted: bool = False) -> None:
        """A message that was taken is gone for good; `is_deleted`: from the store already."""
        slot = area.slots.get(position)
        if slot is None or area.is_closed:
            return  # the queue was deleted
        assert slot.in_flight, f"{slot!r} was not taken"
        self.end_hold(slot)
        self._forget(slot, is_deleted=is_deleted)

    def consume(self, area: Area, position: int, cost: int) -> bool:
        """As `take` and `settle` in one, by somebody who never gives it back: no record is kept in between."""
        if not self._is_there(area, position):
            return False
        slot = area.slots.get(position) or self.new_slot(area, position, cost)
        slot.payload = None  # so that no list leaves it to a cache
        self._unlist(slot)
        self._forget(slot)
        return True

    def _is_there(self, area: Area, position: int) -> bool:
        slot = area.slots.get(position)
        number = position & NUMBER_MASK
        if (slot is not None and slot.in_flight) or area.is_closed or number in self.deleting:
            return False
        for look in area.looks:  # seldom one, so no generator is made for them
            if number in look.gone:
                return False
        return True

    def _unlist(self, slot: Slot) -> None:
        """Somebody takes it: take it out of the lists, which may want others."""
        slot.in_flight = True  # first: it is not let go when the last list has let go of it
        for target in slot.area.lists:
            self.unlink(target, slot.position)
            if self.forget_question(target, slot.position):
                self.served[target] = None  # what stands behind the question can be had now
                self.stirred = True
            self.want_if_low(target)

    def _forget(self, slot: Slot, *, is_deleted: bool = False) -> None:
        """A message that was taken does not come back, though a reader has it or the store shows it still."""
        area, position = slot.area, slot.position
        del area.slots[position]
        self._leave_account(slot)
        number = position & NUMBER_MASK
        if not is_deleted and (slot.is_backed or position in area.writing):
            self.deleting[number] = area
        area.unbacked.discard(position)
        area.kept.discard(position)
        for look in area.looks:
            look.gone.add(number)

    def leave_unadopted(self, area: Area, number: int, *, is_deleted: bool) -> None:
        """A stored message is gone for good before it came to stand on the area."""
        if not is_deleted and not area.is_closed:
            self.deleting[number] = area
        for look in area.looks:
            look.gone.add(number)

    def requeue(self, area: Area, position: int, payload: object | None, *, is_new: bool = False) -> None:
        """A message that was taken returns to its place, in every list that has passed it.

        `is_new`: no list has seen it before, so browsers are shown it as well.
        """
        slot = area.slots.get(position)
        if slot is None or area.is_closed:
            return  # the queue was deleted
        assert slot.in_flight, f"{slot!r} was not taken"
        slot.in_flight = False
        self.end_hold(slot)
        slot.lists += 1  # held while it is handed round, so that it is not let go in between
        self.recharge(slot)
        self._keep(slot, payload)
        for target in area.lists:
            if target.scans[slot.level] >= position and (is_new or not target.browses):
                self._give_back(target, slot)
        slot.lists -= 1
        self.recharge(slot)

    def _give_back(self, target: TargetList, slot: Slot) -> None:
        if target.browses:
            if self.room(self.entry_bytes, first=True):
                self.insert(target, slot, slot.payload)
        elif not self.room_for_entry(target):
            self.cut_from(target, slot.position)
        elif target.selective:
            target.asked_again.add(slot.position)
            slot.lists += 1
            self.charge(Account.ENTRIES, self.entry_bytes)
            self.want(target)
        else:
            self.insert(target, slot, slot.payload)

    def insert(self, target: TargetList, slot: Slot, payload: object | None) -> None:
        """Put a ready message into a list at its place; the caller has made room for an entry."""
        position = slot.position
        target.entries.add(position)
        slot.lists += 1
        self.charge(Account.ENTRIES, self.entry_bytes)
        fits = not target.direct or target.direct_bytes + slot.cost <= self.high_water
        if position > target.mark or (position == target.entries.before(target.mark) and not fits):
            self._insert_reference(target, slot, payload)
        elif self._keep(slot, payload, first=target.hungry and not target.direct):
            self.refer(target, slot)
            while target.direct > 1 and target.direct_bytes > self.high_water:
                self.demote_last(target)
        else:
            self._lower_mark(target, position)
            self._insert_reference(target, slot, payload)

    def _insert_reference(self, target: TargetList, slot: Slot, payload: object | None) -> None:
        target.mark = min(target.mark, slot.position)
        self._keep(slot, payload, pending=True)
        self.recharge(slot)
        self.want(target)

    def _keep(self, slot: Slot, payload: object | None, *, first: bool = False, pending: bool = False) -> bool:
        """Take a payload into memory, if there is one and room for it; True when it is there."""
        if slot.payload is None and payload is not None and self.room(slot.cost, first=first, pending=pending):
            self.place(slot, payload)
        return slot.payload is not None

    def _lower_mark(self, target: TargetList, position: int) -> None:
        """Direct references are a prefix: those behind a message that is not in memory are none."""
        while target.direct and target.entries.before(target.mark) > position:
            self.demote_last(target)
        target.mark = min(target.mark, position)

    def refuse(self, target: TargetList, position: int) -> None:
        """A list does not want this message after all, or its browser has seen it."""
        self.unlink(target, position)
        self.want_if_low(target)

    def place(self, slot: Slot, payload: object) -> None:
        slot.payload = payload
        self.recharge(slot)

    def new_slot(self, area: Area, position: int, cost: int) -> Slot:
        """A slot for a message of which nothing is in memory yet."""
        slot = area.slots[position] = Slot(area, position, cost)
        return slot
