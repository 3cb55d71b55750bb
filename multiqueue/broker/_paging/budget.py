"""The budget: one sum of bytes for a virtual host, and who must give when somebody needs room.

Promise     The accounts never add up to more than the limit, and a body is charged exactly once. A list that
            needs bytes asks `room` first; there is no other way to get any.
State       Guarded by the memory manager's lock. No I/O, no threads, no clock.
Giving      What closed areas and lists without consumers have left goes before anything. Then the head cache gives,
            from its end; then the pending cache, from its end: least recently used would give exactly what is needed
            next. `_shed` takes further steps, for a consumer with credit that has nothing.
Source      "Durable Queue Memory Management" (Apache ActiveMQ): linked caches in a fixed amount of memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from .._base.positions import END
from .target_list import LEVEL_SHIFT, NUMBER_MASK, Account, Area, Share, Slot, TargetList, Windows

HIGH_WATER_SHARE: Final = 0.5  # of the budget: direct references, shared out among the lists
_ENTRIES_SHARE: Final = 0.25  # of the budget: beyond it a list's tail opens instead of growing
_UNSETTLED_SHARE: Final = 3 / 8  # of the budget: records, beyond which lists go on that something is set aside for
UNPAGED_SHARE: Final = 0.25  # of the budget: what queues reserve that keep everything in memory
SLICE: Final = 256  # messages of a closed area, or of a list that has left, that go at once; 1 or 2 ms
_LARGEST_SHARE: Final = 0.25  # of the budget: two such messages and a full account of entries always fit


class PagingBudget:
    """The accounts. `entry_bytes`: what a line of a list, or a record of a message with a consumer, is charged."""

    def __init__(self, limit: int, entry_bytes: int = 96) -> None:
        self.limit = limit
        self.entry_bytes = entry_bytes
        # Invariants: used is the sum of amounts; amounts[PENDING] and [HEAD] are those of the areas' caches.
        self.amounts: list[int] = [0] * len(Account)
        self.used: int = 0
        self.lists: list[TargetList] = []
        self.high_water: int = int(limit * HIGH_WATER_SHARE)  # bytes of direct references that each list should have
        # Invariant: the areas whose pending cache, or head cache, is not empty.
        self.cached: dict[Account, OrderedDict[Area, None]] = {
            Account.PENDING: OrderedDict(),
            Account.HEAD: OrderedDict(),
        }
        self.dispatched: OrderedDict[Slot, None] = OrderedDict()  # Invariant: the slots charged to DISPATCHED
        self.in_flight: int = 0
        self.unused: int = 0  # Invariant: the sum of what the lists' shares have not used
        # Numbers of what is settled: the store shows them until it has committed that.
        self.deleting: dict[int, Area] = {}
        # The same of queues that do not page. Written without the memory manager's lock, by one dictionary operation:
        # added before its deletion is handed in, and taken out when that is committed.
        self.departed: dict[int, None] = {}
        # Lists that have something new to give: their consumers are to be told. One that does that takes the list out
        # when it has the lock of its queue, before it looks: so whoever is interrupted leaves the others to the next.
        self.served: dict[TargetList, None] = {}
        # Lists that may need a load. A list that is not in here has enough, or nothing further to get.
        self.wanting: dict[TargetList, None] = {}
        # Invariant: the lists whose last consumer has left, and that name something still. Their areas have them still.
        self.leaving: dict[TargetList, None] = {}
        # Invariant: the areas that were closed and have something in memory still. No list names any of it.
        self.closing: dict[Area, None] = {}
        # The areas with messages in memory that wait for their time. Written without the lock, by one operation each.
        self.waiting: dict[Area, None] = {}
        self.stirred: bool = False  # something happened since the last plan that may let a load go ahead

    @property
    def free(self) -> int:
        return self.limit - self.used

    @property
    def largest_message(self) -> int:
        """The highest cost of one message that is accepted."""
        return int(self.limit * _LARGEST_SHARE)

    def charge(self, account: Account, amount: int) -> None:
        """Add to an account, or take from it. A caller that adds has asked `room`."""
        self.amounts[account] += amount
        self.used += amount
        if amount < 0 and self.wanting:
            self.stirred = True

    def want(self, target: TargetList) -> None:
        if not target.is_closed:
            self.wanting[target] = None
            self.stirred = True

    def want_if_low(self, target: TargetList, level: int) -> None:
        """The list may need a load, unless it has half of its share: loads come in batches."""
        if target.windows is not None:
            self.note(target, target.windows, level)
            return
        if target in self.wanting:
            return
        if target.is_behind or (2 * target.direct_bytes <= self.high_water and target.is_incomplete):
            self.want(target)

    # -- lists by key

    def share_of_level(self, target: TargetList) -> int:
        """How many messages a list by key should have of each level."""
        bytes_each = target.direct_bytes // target.direct if target.direct else 8 * self.entry_bytes
        return max(self.high_water // (bytes_each * max(len(target.area.last), 1)), 1)

    def note(self, target: TargetList, windows: Windows, level: int) -> None:
        """What a list by key has of a level, or has looked at, has changed."""
        count = windows.counts.get(level)
        is_open = target.scans[level] < target.area.last[level]
        if not is_open:
            windows.open.pop(level, None)
            windows.low.pop(level, None)
        elif not target.is_closed:
            windows.open[level] = None
            if count is None or 2 * count <= self.share_of_level(target):
                windows.low[level] = None
                if 2 * target.direct_bytes <= self.high_water or windows.due == level:
                    self.want(target)
        if windows.due == level and (count or not is_open):
            windows.due = None
            self.served[target] = None

    def level_to_cut(self, target: TargetList, windows: Windows) -> int:
        """One with more than its share, else the one whose turn came last, so comes last again."""
        share = self.share_of_level(target)
        while windows.rich:
            level = next(reversed(windows.rich))
            if windows.counts.get(level, 0) > share:
                return level
            del windows.rich[level]
        return next(reversed(windows.counts))

    def check_invariants(self) -> None:
        assert self.used == sum(self.amounts), "the accounts do not add up"
        areas = {target.area for target in self.lists}.union(*self.cached.values())
        for area in areas:
            for slot in area.slots.values():
                assert (slot.payload is None) == (slot.account is Account.NOWHERE), f"{slot!r}"
                position = slot.position
                named = sum(position in each.entries for each in area.lists)
                assert slot.lists == named or area.is_closed, f"{slot!r} is named by {named} lists"
                assert not (slot.in_flight and named), f"{slot!r} was taken and is listed"
            for account in self.cached:
                assert all(area.slots[position].account is account for position in area.cache(account))
        shares = [share for target in self.lists for share in target.shares]
        assert self.unused == sum(share.unused for share in shares), "what is set aside does not add up"
        for target in self.lists:
            direct = [position for position in target.entries if position < target.mark]
            assert target.direct == len(direct)
            assert target.direct_bytes == sum(target.area.slots[position].cost for position in direct)
            target.entries.check_invariants()
            if (windows := target.windows) is not None:
                assert (target.mark, target.direct) == (END, len(target.entries))
                assert windows.counts == Counter(position >> LEVEL_SHIFT for position in target.entries)
                assert windows.open.keys() == {
                    each for each, last in target.area.last.items() if target.scans[each] < last
                }
                assert windows.low.keys() <= windows.open.keys()

    # -- room

    def room(self, need: int, *, first: bool = False, pending: bool = False) -> bool:
        """Make `need` bytes free; False when no list gives any more.

        `first`: for a consumer with credit that has nothing, which is what everybody must give for. `pending`: for the
        pending cache, which pushes the head cache out, never itself.
        """
        while self.limit - self.used < need:
            if self._evict_what_ends() or self._evict(Account.HEAD):
                continue
            if pending or not (self._evict(Account.PENDING) or (first and self._shed())):
                return False
        return True

    def room_for_entry(self, target: TargetList) -> bool:
        """Room for one more entry; every list may have its first, while consumers leave room for that."""
        return self.may_grow(target) and self.room(self.entry_bytes, first=not target.entries)

    def may_grow(self, target: TargetList) -> bool:
        """True when entries are below their share of the budget, or the list has none and is not to wait.

        A list waits while much is unsettled, unless something is set aside for its consumers, or they only look:
        a consumer with unlimited credit is not to leave nothing to the others.
        """
        if not target.entries:
            is_low = self.in_flight * self.entry_bytes < self.limit * _UNSETTLED_SHARE
            return is_low or target.browses or any(share.credit for share in target.shares)
        return self.entry_bytes <= self.entries_left

    @property
    def entries_left(self) -> float:
        """How many bytes the entries have left of their share."""
        return self.limit * _ENTRIES_SHARE - self.amounts[Account.ENTRIES]

    def clear_some(self, area: Area, most: int) -> list[object]:
        """Let go of some of what a closed area has in memory; returns it, nothing when that was all."""
        gone: list[object] = []
        while area.slots and len(gone) < most:
            position, slot = area.slots.popitem()
            if slot.in_flight:
                self.end_hold(slot)
            self._leave_account(slot)
            area.kept.discard(position)
            gone.append(slot)
        if not area.slots:
            self.closing.pop(area, None)
        return gone

    def clear_leaving(self) -> bool:
        """Let go of some of what a list names that has left; False when none has."""
        for target in self.leaving:
            for _ in range(SLICE):
                if target.entries:
                    self.unlink(target, target.entries.first)
            if not target.entries:
                del self.leaving[target]
                area = target.area  # another list of lists: a message may just be on its way round this one
                area.lists = [each for each in area.lists if each is not target]
            return True
        return False

    def _evict_what_ends(self) -> bool:
        for area in self.closing:
            self.clear_some(area, SLICE)
            return True
        return self.clear_leaving()

    def _evict(self, account: Account) -> bool:
        """Let the last of a cache go, of one area after the other; False when there is none."""
        for area in self.cached[account]:
            self.cached[account].move_to_end(area)
            last = area.cache(account).last
            if account is Account.HEAD:
                area.head_end = last - 1
            self.let_go(area.slots[last])
            return True
        return False

    def _shed(self) -> bool:
        richest = max(self.lists, key=lambda each: each.direct_bytes if each.direct > 1 else -1, default=None)
        if richest is not None and richest.direct > 1:
            self.demote_last(richest)
            return True
        if self.dispatched:
            self.let_go(next(iter(self.dispatched)))
            return True
        for target in self.lists:
            if target.direct and not target.hungry:
                self.demote_last(target)
                return True
        # A browser's is not cut: what it has seen would be found again.
        cuttable = [target for target in self.lists if not target.browses]
        longest = max(cuttable, key=lambda target: len(target.entries), default=None)
        if longest is not None and len(longest.entries) > 1:
            self.cut_last(longest)
            return True
        return False

    # -- records

    def hold(self, slot: Slot, share: Share | None) -> None:
        """A message has a record from now on: of those that were set aside for its owner, if any were."""
        slot.in_flight = True
        self.in_flight += 1
        self.charge(Account.ENTRIES, self.entry_bytes)
        slot.share = share
        if share is not None:
            self.unused -= share.held < share.credit
            share.held += 1

    def end_hold(self, slot: Slot) -> None:
        self.in_flight -= 1
        self.charge(Account.ENTRIES, -self.entry_bytes)
        share, slot.share = slot.share, None
        if share is not None:
            share.held -= 1
            self.unused += share.held < share.credit

    # -- bodies

    def let_go(self, slot: Slot) -> None:
        assert slot.is_backed, f"{slot!r} is nowhere else"
        slot.payload = None
        self.recharge(slot)

    def recharge(self, slot: Slot) -> None:
        """Charge a slot to where it now belongs: move its bytes to that account, or give them back if it belongs to
        none.
        """
        account = self._account_of(slot)
        if account is not slot.account:
            self._leave_account(slot)
            self._enter_account(slot, account)
        if account is Account.NOWHERE and not slot.in_flight and not slot.lists:
            slot.area.slots.pop(slot.position, None)
            self._uncover(slot)

    def _account_of(self, slot: Slot) -> Account:
        if slot.payload is None:
            return Account.NOWHERE
        if not slot.is_backed:
            return Account.UNPAGED if slot.position in slot.area.kept else Account.WRITING
        if slot.in_flight:
            return Account.DISPATCHED
        if slot.direct:
            return Account.TARGET
        if slot.lists:
            return Account.PENDING
        if slot.position <= slot.area.head_end:
            return Account.HEAD
        slot.payload = None
        return Account.NOWHERE

    def _leave_account(self, slot: Slot) -> None:
        area, account = slot.area, slot.account
        if account is Account.NOWHERE:
            return
        self.charge(account, -slot.cost)
        if account in self.cached:
            cache = area.cache(account)
            cache.discard(slot.position)
            if not cache:
                del self.cached[account][area]
        elif account is Account.DISPATCHED:
            del self.dispatched[slot]

    def _enter_account(self, slot: Slot, account: Account) -> None:
        area = slot.area
        slot.account = account
        if account is Account.NOWHERE:
            return
        self.charge(account, slot.cost)
        if account in self.cached:
            area.cache(account).add(slot.position)
            self.cached[account][area] = None
        elif account is Account.DISPATCHED:
            self.dispatched[slot] = None

    def _uncover(self, slot: Slot) -> None:
        """A ready message that no list names is not in memory: the head cache ends before it."""
        if slot.position <= slot.area.head_end:
            self.end_head(slot.area, slot.position)

    def end_head(self, area: Area, position: int) -> None:
        """Let the head cache end before a position."""
        area.head_end = min(area.head_end, position - 1)
        while area.head.last > area.head_end:
            self.let_go(area.slots[area.head.last])

    # -- lists

    def raise_mark(self, target: TargetList) -> None:
        """Make the first cache reference of a list a direct one; its payload must be in memory."""
        slot = target.area.slots[target.mark]
        assert slot.payload is not None
        target.mark = target.entries.at_or_after(target.mark + 1)
        self.refer(target, slot)

    def refer(self, target: TargetList, slot: Slot, by: int = 1) -> None:
        """Count a direct reference of a list, or one less."""
        if (windows := target.windows) is not None:
            level = slot.position >> LEVEL_SHIFT
            count = windows.counts.get(level, 0) + by
            if count:
                windows.counts[level] = count
            else:
                del windows.counts[level]
            if by > 0 and count > self.share_of_level(target):
                windows.rich[level] = None
        target.direct += by
        target.direct_bytes += by * slot.cost
        slot.direct += by
        self.recharge(slot)

    def demote_last(self, target: TargetList) -> None:
        """Make the last direct reference of a list a cache reference; one by key has none, and is cut."""
        if target.windows is not None:
            self.cut_last(target)
            return
        position = target.entries.before(target.mark)
        target.mark = position
        self.refer(target, target.area.slots[position], -1)
        self.want(target)

    def unlink(self, target: TargetList, position: int) -> bool:
        """Have a list not name a message any more; False when it did not."""
        if not target.entries.discard(position):
            return False
        slot = target.area.slots[position]
        slot.lists -= 1
        self.charge(Account.ENTRIES, -self.entry_bytes)
        if position < target.mark:
            self.refer(target, slot, -1)
        else:
            if position == target.mark:
                target.mark = target.entries.at_or_after(position)
            self.recharge(slot)
        return True

    def cut_last(self, target: TargetList) -> None:
        """Let the last entry of a list go and open the tail before it."""
        position, windows = target.entries.last, target.windows
        if windows is not None:
            position = target.entries.before(self.level_to_cut(target, windows) + 1 << LEVEL_SHIFT)
        self.unlink(target, position)
        self._reopen(target, position)

    def cut_from(self, target: TargetList, position: int) -> None:
        """Let go of everything from a position on; it will be found again by scanning."""
        if target.windows is not None:
            for each in target.entries.between(position - 1, position | NUMBER_MASK):
                self.unlink(target, each)
        while target.windows is None and target.entries.last >= position:
            self.cut_last(target)
        self._reopen(target, position)

    def _reopen(self, target: TargetList, position: int) -> None:
        level = position >> LEVEL_SHIFT
        target.scans[level] = min(target.scans[level], position - 1)
        if target.windows is None:
            self.want(target)
        else:
            self.note(target, target.windows, level)
