"""Members of the memory: areas and lists that come and go, the readers of an area, and the share of each list.

Promise     A list that is admitted has room as long as it has credit: for the first line of its list, for a record
            of each message that it has, and for two of the largest messages.
State       Guarded by the memory manager's lock. No I/O, no threads, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.errors import ConsumerNotAdmitted
from .._base.positions import END, Positions
from .budget import HIGH_WATER_SHARE, SLICE, UNPAGED_SHARE, PagingBudget
from .target_list import LEVEL_SHIFT, NUMBER_MASK, Account, Area, Look, Share, TargetList


class PagingMembers(PagingBudget):
    """Areas, their lists, and the high-water mark."""

    unused: int  # of the budget

    # -- areas

    def open_area(self, area: Area) -> None:
        """A queue begins to page: what has left it, or another queue, and is in the store still, is not on it."""
        self.deleting.update(dict.fromkeys(self.departed.copy(), area))

    def end_area(self, area: Area) -> None:
        left = [number for number, each in self.deleting.items() if each is area]
        self.departed.update(dict.fromkeys(left))
        for number in left:
            del self.deleting[number]

    def close_area(self, area: Area) -> None:
        """The queue is gone: nothing of it can be taken. `clear_some` lets go of what is in memory."""
        area.is_closed = True
        for target in area.lists:
            if target in self.leaving:
                del self.leaving[target]
            else:
                self._part_with(target)
            self.charge(Account.ENTRIES, -self.entry_bytes * (len(target.entries) + len(target.asked_again)))
            target.entries, target.asked_again = Positions(), Positions()
            target.mark, target.direct, target.direct_bytes = END, 0, 0
        area.lists.clear()
        area.unbacked = Positions()
        if area.slots:
            self.closing[area] = None

    def is_ready(self, look: Look, position: int) -> bool:
        """True when a message that the look has read can still be taken by somebody."""
        area = look.area
        slot = area.slots.get(position)
        return (
            not area.is_closed
            and (number := position & NUMBER_MASK) not in look.gone
            and number not in self.deleting
            and (slot is None or not slot.in_flight)
            and position <= area.last[position >> LEVEL_SHIFT]
        )

    def deleted(self, number: int) -> None:
        """The store has committed that a message is gone. A look that is under way may have read it before.

        But not when its row is still on the way there. 1. A transient message takes its turn by a row, whose deletion
        is handed in.  2. It joins, and is handed in itself, under the same number.  3. It is settled.  4. The deletion
        of its turn is committed, and told here.  5. Its row is committed, and shown until another deletion is.
        """
        self.departed.pop(number, None)
        area = self.deleting.get(number)
        if area is None or (area.writing and not area.writing.isdisjoint(area.positions_of(number))):
            return
        del self.deleting[number]
        for look in area.looks:
            look.gone.add(number)

    # -- lists

    def join(
        self,
        area: Area,
        label: str,
        *,
        selector: Callable[[Any], bool] | None = None,
        browses: bool = False,
        share: Share,
        is_here: bool = False,
    ) -> TargetList:
        """A list for a consumer that has come; `is_here` for one that was there before the queue paged.

        Raises:
            ConsumerNotAdmitted: the budget could not be kept with one list more; not if `is_here`.
        """
        if not is_here:
            self.admit(area.name, label, share.credit + 1)
        target = TargetList(area, label, selector=selector, browses=browses)
        self.set_aside(target, share)
        area.lists.append(target)
        self.lists.append(target)
        self._share_out()
        if target.open_level is not None:
            self.want(target)
        return target

    def set_aside(self, target: TargetList, share: Share) -> None:
        """Keep room for the records of a consumer that is fed by this list from now on."""
        target.shares[share] = None
        target.credit += share.credit
        self.unused += share.unused

    def take_away(self, target: TargetList, share: Share) -> None:
        """The consumer is fed by this list no longer."""
        del target.shares[share]
        target.credit -= share.credit
        self.unused -= share.unused

    def give_up(self, target: TargetList, share: Share) -> None:
        """The consumer is gone; what it has not settled is set aside for no one."""
        self.take_away(target, share)
        share.credit = 0

    def admit(self, queue: str, label: str, more: int) -> None:
        """Return if there is room for so many more messages with consumers, or on lists, than were promised.

        Raises:
            ConsumerNotAdmitted: there is not.
        """
        if not self._can_promise(more):
            promised = self._promised + more
            need = self._need_of(promised)
            raise ConsumerNotAdmitted(
                f"consumer {label!r} of {queue} is not admitted: {len(self.lists)} lists of consumers, {promised}"
                f" messages that they may have besides, and {self.in_flight} unsettled ones need {need} of {self.limit}"
                " bytes; raise the memory limit, or consume with a smaller prefetch"
            )

    def affordable(self, credit: int) -> int:
        """The part of a consumer's credit that can be set aside beside a list of its own: all or nothing.

        A consumer from before its queue paged cannot be refused. Its credit is a permission: where it does not fit,
        nothing is set aside, as for a consumer without a bound.
        """
        return credit if self._can_promise(credit + 1) else 0

    @property
    def _promised(self) -> int:
        return len(self.lists) + self.unused

    def _need_of(self, promised: int) -> int:
        return self.entry_bytes * (promised + self.in_flight) + 2 * self.largest_message

    def _can_promise(self, more: int) -> bool:
        while True:
            # What is reserved beyond its share gives way.
            reserved = min(self.amounts[Account.UNPAGED], int(self.limit * UNPAGED_SHARE))
            if self._need_of(self._promised + more) <= self.limit - reserved:
                return True
            if not self._evict_what_ends():
                return False

    def leave(self, target: TargetList) -> None:
        """The last consumer of a list is gone: nothing comes to it any more, and what it names it lets go.

        Some of that at once; `clear_leaving` does the rest, called by a loader, or for a message that needs the room.
        """
        self._part_with(target)
        target.scans = [-1] * len(target.scans)
        if not target.selective and not target.browses:
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
            self.want_if_low(target)
        target.hungry = hungry

    def _share_out(self) -> None:
        """Lists, or the budget, have changed: set the high-water mark, and let lists give what is above it."""
        self.high_water: int = int(self.limit * HIGH_WATER_SHARE) // max(len(self.lists), 1)
        for target in self.lists:
            while target.direct > 1 and target.direct_bytes > self.high_water:
                self.demote_last(target)

    def set_limit(self, limit: int) -> None:
        """Change the budget. What is above a lower one is given up as far as anybody can give."""
        self.limit = limit
        self._share_out()
        self.room(0, first=True)
        for target in self.lists:
            self.want(target)
