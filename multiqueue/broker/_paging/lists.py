"""Areas and target lists that come and go, events of messages, and their effect on lists, caches and accounts.

Promise     docs/design/bounded-memory.md has the numbered ones, 3 to 6 above all. A list that is admitted has room as
            long as it has credit: for the first line of its list, for a record of each message that it has, and for two
            of the largest messages.
State       Guarded by the memory manager's lock. Events in, changes out: no I/O, no threads, no clock, and no
            selectors, which loads ask.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import islice
from typing import Any

from .._base.errors import ConsumerNotAdmitted
from .._base.positions import END, Positions
from .budget import HIGH_WATER_SHARE, SLICE, UNPAGED_SHARE, PagingBudget
from .target_list import LEVEL_SHIFT, NUMBER_MASK, Account, Area, Nowhere, Share, Slot, TargetList, Windows


class Paging(PagingBudget):
    """Lists, caches and accounts of one virtual host."""

    unused: int  # of the budget

    # -- areas

    def open_area(self, area: Area) -> None:
        """A queue begins to page: rows still in the store that have left it, or another queue, are not on it."""
        self.deleting.update(dict.fromkeys(self.departed.copy(), area))

    def end_area(self, area: Area) -> None:
        left = [number for number, each in self.deleting.items() if each is area]
        self.departed.update(dict.fromkeys(left))
        for number in left:
            del self.deleting[number]

    def close_area(self, area: Area) -> None:
        """The queue is gone: nothing of it can be taken. `clear_some` lets go of its bodies in memory."""
        area.is_closed = True
        for target in area.lists:
            if target in self.leaving:
                del self.leaving[target]
            else:
                self._part_with(target)
            self.charge(Account.ENTRIES, -self.entry_bytes * len(target.entries))
            target.entries = Positions()
            target.mark, target.direct, target.direct_bytes = END, 0, 0
            target.windows = None if target.windows is None else Windows()
        area.lists.clear()
        for target in [each for each in self.served if each.area is area]:
            del self.served[target]
        area.unbacked = Positions()
        if area.slots:
            self.closing[area] = None

    def is_ready(self, area: Area, position: int) -> bool:
        """True when a message that a store has shown, perhaps a while ago, can be taken by somebody."""
        slot, number = area.slots.get(position), position & NUMBER_MASK
        if (slot is not None and slot.in_flight) or area.is_closed or number in self.deleting:
            return False
        for look in area.looks:  # seldom one, so no generator is made for them
            if number in look.gone:
                return False
        return position <= area.last[position >> LEVEL_SHIFT]  # else its commit was not told yet

    def deleted(self, number: int) -> None:
        """The store has committed that a message is gone. A look that is under way may have read it before.

        But not when its row is still on the way there. 1. A transient message takes its turn by a row, whose deletion
        is handed in.  2. It joins, and is handed in itself, under the same number.  3. It is settled.  4. The deletion
        of its turn is committed, and told here.  5. Its row is committed, and shown until another deletion is.
        """
        self.departed.pop(number, None)
        area = self.deleting.get(number)
        if area is None:
            return
        if number in area.writing:
            return
        del self.deleting[number]
        for look in area.looks:
            look.gone.add(number)

    # -- lists

    def join(
        self,
        area: Area,
        label: str,
        share: Share | None,
        *,
        target: TargetList | None = None,
        selector: Callable[[Any], bool] | None = None,
        browses: bool = False,
        is_here: bool = False,
    ) -> TargetList:
        """The list of a new consumer: `target`, which others have, or a new one.

        Raises ConsumerNotAdmitted. One that `is_here` since before the queue paged is not refused: nothing is set aside
        for it where its credit does not fit.
        """
        more = (0 if share is None else share.credit) + (target is None)
        if share is not None and is_here:
            share.credit = share.credit if self._can_promise(more) else 0
        elif not self._can_promise(more):
            promised = len(self.lists) + self.unused + more
            raise ConsumerNotAdmitted(
                f"consumer {label!r} of {area.name} is not admitted: {len(self.lists)} lists of consumers, {promised}"
                f" messages that they may have besides, and {self.in_flight} unsettled ones need {self._need_of(more)}"
                f" of {self.limit} bytes; raise the memory limit, or consume with a smaller prefetch"
            )
        if target is None:
            target = TargetList(area, label, selector=selector, browses=browses)
            area.lists.append(target)
            self.lists.append(target)
            self._share_out()
            if target.open_level is not None:
                self.want(target)
        if share is not None:
            self.set_aside(target, share)
        return target

    def set_aside(self, target: TargetList, share: Share) -> None:
        """Keep room for the records of a consumer that is fed by this list from now on."""
        target.shares[share] = None
        self.unused += share.unused

    def take_away(self, target: TargetList, share: Share) -> None:
        del target.shares[share]
        self.unused -= share.unused

    def give_up(self, target: TargetList, share: Share) -> None:
        """The consumer is gone; its unsettled messages are set aside for no one."""
        self.take_away(target, share)
        share.credit = 0

    def _need_of(self, more: int) -> int:
        """The bytes of so many more messages, of what is promised to consumers and lists, and of what is unsettled."""
        records = len(self.lists) + self.unused + more + self.in_flight
        return self.entry_bytes * records + 2 * self.largest_message

    def _can_promise(self, more: int) -> bool:
        while True:
            # What is reserved beyond its share gives way.
            reserved = min(self.amounts[Account.UNPAGED], int(self.limit * UNPAGED_SHARE))
            if self._need_of(more) <= self.limit - reserved:
                return True
            if not self._evict_what_ends():
                return False

    def leave(self, target: TargetList) -> None:
        """The last consumer of a list is gone: nothing comes to it any more, and it lets its entries go.

        Some of that at once; `clear_leaving` does the rest, called by a loader, or for a message that needs the room.
        """
        self._part_with(target)
        target.scans = Nowhere()
        if target.selector is None and not target.browses and target.windows is None:
            self._extend_head(target)
        self.leaving[target] = None
        self.clear_leaving()
        self.stirred: bool = self.stirred or bool(self.leaving)

    def _part_with(self, target: TargetList) -> None:
        target.is_closed = True
        for share in list(target.shares):
            self.give_up(target, share)
        self.lists.remove(target)
        self._share_out()
        self.wanting.pop(target, None)

    def _extend_head(self, target: TargetList) -> None:
        """Give the head of this list to the head cache. The list has everything ready up to its scan."""
        area = target.area
        # Not of a further level: what stands before it may not be looked at yet.
        entries = target.entries
        end = entries.before(min(target.mark, area.last[0] + 1))
        for _ in range(SLICE):  # the pending cache may have what follows
            following = entries.at_or_after(end + 1)
            if following > area.last[0] or area.slots[following].payload is None:
                break
            end = following
        area.head_end = max(area.head_end, end)

    def set_hungry(self, target: TargetList, hungry: bool) -> None:
        if hungry and not target.hungry and not target.is_closed:
            self.want_if_low(target, next(iter(target.windows.low), -1) if target.windows else 0)
        target.hungry = hungry

    def _share_out(self) -> None:
        """Lists, or the budget, have changed: set the high-water mark, and let lists give what is above it."""
        self.high_water: int = int(self.limit * HIGH_WATER_SHARE) // max(len(self.lists), 1)
        for target in self.lists:
            while target.direct > 1 and target.direct_bytes > self.high_water:
                self.demote_last(target)

    def set_limit(self, limit: int) -> None:
        """Change the budget. Bytes above a lower one are given up as far as any list can give."""
        self.limit = limit
        self._share_out()
        self.room(0, first=True)
        for target in self.lists:
            self.want(target)

    # -- messages

    def arrive(
        self,
        area: Area,
        position: int,
        cost: int,
        payload: object,
        *,
        backed: bool = True,
        seen_by: Container[TargetList] = (),
    ) -> None:
        """Take in a message that stands behind all others of its level; browsers that have `seen_by` do not see it
        again.

        `backed`: the store has it. Otherwise it stays in memory until it has.
        """
        level = position >> LEVEL_SHIFT
        previous = area.last[level]
        if backed and not area.lists and max(area.head_end, level << LEVEL_SHIFT) < previous:
            area.last[level] = position  # nobody waits for it, and the head ends before it
            return
        tail = END if area.is_keyed else area.tail
        area.last[level] = position
        slot = None
        if not backed:
            self.room(cost, first=True)  # it stays whether there is or not
            slot = self.new_slot(area, position, cost)
            slot.is_backed, slot.payload, slot.account = False, payload, Account.WRITING
            area.unbacked.add(position)
            self.charge(Account.WRITING, cost)
        for target in area.lists:
            if target.scans[level] != previous:
                continue
            if target in seen_by:
                target.scans[level] = position
                continue
            if target.windows is not None:
                if self._arrives_by_key(target, target.windows, position, cost, payload):
                    target.scans[level] = position
                self.note(target, target.windows, level)
                slot = area.slots.get(position)
                continue
            if target.selector is not None or not self.room_for_entry(target):
                self.want(target)
                continue
            target.scans[level] = position
            slot = slot or self.new_slot(area, position, cost)
            self.insert(target, slot, payload)
        if slot is None:
            self._offer_to_head(area, position, cost, payload, tail)
        elif position > tail and area.head_end >= tail:
            area.head_end = position  # named by a list, or in memory until the store has it

    def arrive_taken(
        self, area: Area, position: int, cost: int, payload: object, share: Share | None, *, backed: bool
    ) -> None:
        """As `arrive`, of a message that somebody has already."""
        self.room(cost + self.entry_bytes, first=True)
        # The others' selectors are asked by a load; a browser is given what was held unasked, and asks then.
        passed_by = [each for each in area.lists if each.selector is None or each.browses]
        self.arrive(area, position, cost, payload, backed=backed, seen_by=passed_by)
        self._dispatch(area, position, cost, payload, share)

    def _offer_to_head(self, area: Area, position: int, cost: int, payload: object, tail: int) -> None:
        if area.head_end < tail and position > area.head_end:
            return
        if self.free < cost:
            self.end_head(area, position)
            return
        area.head_end = max(area.head_end, position)
        self.place(self.new_slot(area, position, cost), payload)

    def backed(self, area: Area, position: int) -> bool:
        """The store has it now; False when the message is gone."""
        slot = area.slots.get(position)
        area.writing.discard(position & NUMBER_MASK)
        if slot is None or area.is_closed:
            return False
        slot.is_backed = True
        area.unbacked.discard(position)
        if slot.lists or slot.in_flight or position <= area.head_end or slot.account is not Account.WRITING:
            self.recharge(slot)
        else:  # it belongs nowhere: the same, without asking, for it is so of each message of a queue that only grows
            slot.payload = None
            slot.account = Account.NOWHERE
            self.charge(Account.WRITING, -slot.cost)
            del area.slots[position]
        self.room(0)  # now that it can be let go
        return True

    def begin_writing_out(self, area: Area, most: int) -> list[int]:
        """Up to `most` positions of what only memory has and is not on its way to the store; it is from now on."""
        idle = (each for each in area.unbacked if each & NUMBER_MASK not in area.writing and each not in area.kept)
        positions = list(islice(idle, most))
        area.writing.update([each & NUMBER_MASK for each in positions])
        return positions

    def writing_failed(self, area: Area, position: int, *, for_good: bool = False) -> None:
        """The store does not take it now; `for_good`: nor any store ever, so it is charged as what does not page."""
        area.writing.discard(position & NUMBER_MASK)
        slot = area.slots.get(position)
        if slot is None:
            self.deleting.pop(position & NUMBER_MASK, None)
        elif for_good:
            area.kept.add(position)
            self.recharge(slot)

    @staticmethod
    def is_at_end(target: TargetList) -> bool:
        """True when everything that this list was ever to have has left it."""
        return not (target.entries or target.is_incomplete or target.loading or target.is_closed)

    def forget_level(self, area: Area, level: int) -> None:
        """Forget an empty level of an area by key, of which no consumer has a message."""
        area.last.pop(level, None)
        for target in area.lists:
            if target.windows is not None:
                target.scans.pop(level, None)
                target.windows.forget(level)

    def first_of(self, target: TargetList, level: int, after: int = -1) -> Slot | None:
        """As `first`, of one level of an area by key. When only a load can tell, that load is the next."""
        assert target.windows is not None
        begin, end = level << LEVEL_SHIFT, (level + 1 << LEVEL_SHIFT) - 1
        position = target.entries.at_or_after(max(begin, after + 1))
        if position <= end:
            return target.area.slots[position]
        if target.scans[level] < target.area.last[level]:
            target.windows.due = level
            self.want(target)
        return None

    @staticmethod
    def first(target: TargetList, after: int = -1) -> Slot | None:
        """The first direct reference of a list, or behind a position. None while one before is to be looked at."""
        if (windows := target.windows) is not None:
            if windows.due is not None or not target.direct:
                return None
            return target.area.slots[target.entries.first]
        following = target.entries.at_or_after(after + 1)
        if following < target.mark and (target.is_in_order or following < target.horizon):
            return target.area.slots[following]
        return None

    def take(self, area: Area, position: int, cost: int, payload: object | None, share: Share | None = None) -> bool:
        """A consumer, or somebody else, takes a message; False when it is gone, or there is no room for its record."""
        if not self.is_ready(area, position):
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

    def let_wait(self, area: Area, position: int) -> None:
        """A message is held until its time, and nobody is to know of it but the store, which has it."""
        slot = area.slots.get(position)
        if slot is None:
            return
        if slot.in_flight:
            self.end_hold(slot)
        else:
            self._unlist(slot)
        del area.slots[position]
        self._leave_account(slot)

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
        if not self.is_ready(area, position):
            return False
        slot = area.slots.get(position) or self.new_slot(area, position, cost)
        slot.payload = None  # so that no list leaves it to a cache
        self._unlist(slot)
        self._forget(slot)
        return True

    def _unlist(self, slot: Slot) -> None:
        """Somebody takes it: take it out of the lists, which may want others."""
        slot.in_flight = True  # first: it is not let go when the last list has let go of it
        for target in slot.area.lists:
            if self.unlink(target, slot.position):
                self.note_match(target, slot)
            self.want_if_low(target, slot.position >> LEVEL_SHIFT)

    @staticmethod
    def note_match(target: TargetList, slot: Slot | None) -> None:
        """Note that a list would name a message that a consumer has: it is the list's when it comes back."""
        if slot is not None and slot.in_flight and target.selector is not None and target not in slot.matched:
            slot.matched += (target,)

    def _forget(self, slot: Slot, *, is_deleted: bool = False) -> None:
        """A message that was taken does not come back, though a reader has it or the store shows it still."""
        area, position = slot.area, slot.position
        del area.slots[position]
        self._leave_account(slot)
        is_shown = not is_deleted and (slot.is_backed or position & NUMBER_MASK in area.writing)
        area.unbacked.discard(position)
        area.kept.discard(position)
        self.have_gone(area, position & NUMBER_MASK, is_shown=is_shown)

    def have_gone(self, area: Area, number: int, *, is_shown: bool) -> None:
        """A message is gone for good; `is_shown`: the store shows it still."""
        if is_shown and not area.is_closed:
            self.deleting[number] = area
        for look in area.looks:
            look.gone.add(number)

    def requeue(self, area: Area, position: int, payload: object | None, *, is_new: bool = False) -> None:
        """A message that was taken returns to its place, in each list that has passed it; to browsers if `is_new`."""
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
            wants = is_new if target.browses else target.selector is None or target in slot.matched
            if wants and target.scans[position >> LEVEL_SHIFT] >= position:
                self._give_back(target, slot)
        slot.matched = ()
        slot.lists -= 1
        self.recharge(slot)

    def _give_back(self, target: TargetList, slot: Slot) -> None:
        if target.browses and target.windows is None:
            if self.room(self.entry_bytes, first=True):
                self.insert(target, slot, slot.payload)
        elif not self.room_for_entry(target):
            self.cut_from(target, slot.position)
        elif target.windows is None:
            self.insert(target, slot, slot.payload)
        elif not self.insert_by_key(target, target.windows, slot, slot.payload):
            self.cut_from(target, slot.position)

    def _arrives_by_key(self, target: TargetList, windows: Windows, position: int, cost: int, payload: object) -> bool:
        if target.selector is not None or not self.room_for_entry(target):
            return False
        slot = target.area.slots.get(position) or self.new_slot(target.area, position, cost)
        return self.insert_by_key(target, windows, slot, payload)

    def insert_by_key(self, target: TargetList, windows: Windows, slot: Slot, payload: object | None) -> bool:
        """As `insert`, of a list by key; False, and it is not in the list, without room or payload."""
        level = slot.position >> LEVEL_SHIFT
        is_due, own, scan = windows.due == level, windows.counts.get(level, 0), target.scans[level]
        while target.direct and target.direct_bytes + slot.cost > self.high_water:
            if not is_due and windows.counts[self.level_to_cut(target, windows)] <= max(own, 1):
                self.recharge(slot)
                return False
            self.cut_last(target)
        slot.lists += 1
        self.charge(Account.ENTRIES, self.entry_bytes)
        is_here = self._keep(slot, payload, first=target.hungry and (is_due or not target.direct))
        if not is_here or target.scans[level] < min(scan, slot.position):  # what stands before it gave way
            slot.lists -= 1
            self.charge(Account.ENTRIES, -self.entry_bytes)
            self.recharge(slot)
            return False
        target.entries.add(slot.position)
        self.refer(target, slot)
        self.note(target, windows, level)
        return True

    def insert(self, target: TargetList, slot: Slot, payload: object | None) -> None:
        """Put a ready message into a list at its place; the caller has made room for an entry."""
        position = slot.position
        target.entries.add(position)
        slot.lists += 1
        self.charge(Account.ENTRIES, self.entry_bytes)
        fits = not target.direct or target.direct_bytes + slot.cost <= self.high_water
        is_beyond = position > target.mark or (position == target.entries.before(target.mark) and not fits)
        if not is_beyond and self._keep(slot, payload, first=target.hungry and not target.direct):
            self.refer(target, slot)
            while target.direct > 1 and target.direct_bytes > self.high_water:
                self.demote_last(target)
            return
        self._lower_mark(target, position)
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
        self.want_if_low(target, position >> LEVEL_SHIFT)

    def place(self, slot: Slot, payload: object) -> None:
        slot.payload = payload
        self.recharge(slot)

    def new_slot(self, area: Area, position: int, cost: int) -> Slot:
        """A slot for a message of which nothing is in memory yet."""
        slot = area.slots[position] = Slot(area, position, cost)
        return slot
