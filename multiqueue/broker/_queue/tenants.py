"""The tenants of a fair queue: whose turn it is, what each has waiting, and who is passed over.

Promise     Each operation costs O(1), or O(log n) for an entry that comes back, however many tenants there are. A
            tenant at a limit, or paused, is out of the ring: nothing of it is looked at. Within a tenant and a level
            the entry that arrived first is the first, whatever came back in between. An entry is charged at
            every other delivery, from the first on.
State       Guarded by the queue's lock. No I/O, no user code: the clock is asked under the lock.
Membership  A tenant comes with its first message. Without one it stays among the last 256 that have none, or until its
            rate has forgotten it.
Nesting     `acme/web` is a tenant within `acme`: a turn in the ring that the turn of `acme` stands for, with options of
            its own at both.
Source      The ring: `multiqueue.core.Ring`. The rate: the generic cell rate algorithm (ATM Forum, 1996).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from multiqueue.core import Ring, Turn

from .._base.fair_options import DROP_HEAD, HIGHEST_PRIORITY, REJECT, FairKey, FairOptions, TenantOptions
from .._base.settings import Overflow
from .entry import Entry, Position

WAITING, HELD, TAKEN, ASIDE, GONE = range(5)  # where an entry is; WAITING is 0, as it is asked most
_IDLE: Final = 256  # tenants without messages that are kept: so one that comes and goes costs little
_TRIM: Final = 32  # slots
HALF_MINUTE: Final = 30.0  # seconds
_MANY: Final = 1024  # records of lengths
_INSTANT: Final = 1e-9  # seconds that sums of times may be off


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatistics:
    """One tenant of a fair queue, in figures."""

    name: str
    waiting: int
    waiting_bytes: int
    in_flight: int
    served: int  # since it came, as is the cost
    served_cost: float
    longest_wait: float  # seconds, of what waits now
    share: float  # of the cost of all that was served in the last half minute to minute
    fair_share: float  # its weight among those of all tenants that have messages
    passed_over: str | None  # "paused", "max_in_flight" or "rate"
    options: TenantOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FairStatistics:
    """A fair queue's tenants, in figures."""

    tenants: int
    misread: int  # messages whose key, or cost, was not what it should be
    # Jain's index over the last half minute to minute, of what tenants were served, by cost / weight, that had messages
    # waiting all the while and are not passed over; None with fewer than two such.
    jain: float | None
    largest: Sequence[TenantStatistics]  # those with most waiting first


class Ticket:
    """A fair queue's part of an entry, its `key` there."""

    __slots__ = ("cost", "has_slot", "lane", "where")

    def __init__(self, lane: Lane, cost: float) -> None:
        self.lane = lane
        # What its turn costs; negative when its next delivery is free, as every other one is: what comes back once is
        # not charged again, and what comes back for ever does not keep the turn.
        self.cost = cost
        self.where = WAITING
        # Invariant: it stands in the lane's `arrived` or `returned`; True where the queue pages, and lanes only count.
        self.has_slot = True


class Tenant:
    """One tenant that has messages, or had some lately; or all that are nested in it."""

    __slots__ = (
        "busy_since",
        "children",
        "count",
        "free_at",
        "full_at",
        "in_flight",
        "is_blocked",
        "lanes",
        "name",
        "options",
        "outer",
        "recent",
        "served",
        "served_cost",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, name: str, outer: Tenant | None, options: TenantOptions) -> None:
        self.name: str = name
        self.outer: Tenant | None = outer
        self.options: TenantOptions = options
        self.lanes: list[Lane] = []  # one for each level that it has used
        self.children: int = 0  # tenants that are nested in it
        # Invariants: count is of its entries; waiting of those that wait; in_flight of those that consumers have.
        self.count: int = 0
        self.waiting: int = 0
        self.waiting_bytes: int = 0
        self.in_flight: int = 0
        self.is_blocked: bool = False  # Invariant: its lanes are out of the ring
        self.free_at: float = -math.inf  # when its rate lets it be served,
        self.full_at: float = -math.inf  # and has forgotten what it was served
        self.served: int = 0
        self.served_cost: float = 0.0
        self.busy_since: float = math.inf  # since when something of it waits
        self.recent: tuple[float, float, float] = (
            0.0,
            0.0,
            0.0,
        )  # a half minute, the cost of what was served in it, and in the one before

    def chain(self) -> Iterator[Tenant]:
        """It, and what it is nested in."""
        each: Tenant | None = self
        while each is not None:
            yield each
            each = each.outer

    def reason(self, now: float) -> str | None:
        """Why it is passed over: "paused", "max_in_flight" or "rate"; None when it is not."""
        options = self.options
        if options.paused:
            return "paused"
        if options.max_in_flight is not None and self.in_flight >= options.max_in_flight:
            return "max_in_flight"
        return "rate" if options.rate is not None and self.free_at > now + _INSTANT else None

    @property
    def drops_head(self) -> bool:
        return self.options.is_limited and self.options.overflow in (None, DROP_HEAD)

    def served_lately(self, half_minute: float) -> float:
        """The cost of what it was served in this half minute and the one before."""
        slot, cost, before = self.recent
        return cost + before if slot == half_minute else cost if slot == half_minute - 1 else 0.0

    def is_over(self, more: int = 0, more_bytes: int = 0) -> bool:
        """True when it has more waiting than it may, or would have with so much more."""
        options = self.options
        length, size = options.max_length, options.max_length_bytes
        return (length is not None and self.waiting + more > length) or (
            size is not None and self.waiting_bytes + more_bytes > size
        )


class Lane(Turn):
    """What a tenant has waiting on one level, and its turn there. That of a tenant with others in it has no entries."""

    __slots__ = ("_arrived", "_begin", "_dead", "_returned", "inner", "level", "live", "outer", "tenant")

    def __init__(self, ring: Ring, tenant: Tenant, outer: Lane | None, level: int) -> None:
        options = tenant.options
        super().__init__(ring, weight=options.weight, priority=_ring_priority(level, options))
        self.tenant: Tenant = tenant
        self.outer: Lane | None = outer
        self.level: int = level
        self.inner: Ring | None = None
        self.live: int = 0  # Invariant: counts the entries that are WAITING
        # Entries in the order of their arrival, from _begin on, and those that came back after their slot had gone.
        # What is not WAITING any more stays until it is met, or there is more of it than of others.
        self._arrived: list[Entry | None] = []
        self._begin = 0
        self._returned: list[tuple[Position, Entry]] = []
        self._dead = 0  # Invariant: counts the slots of entries that are GONE

    def append(self, entry: Entry) -> None:
        self._arrived.append(entry)

    def put_back(self, entry: Entry) -> None:
        if not entry.key.has_slot:
            entry.key.has_slot = True
            heappush(self._returned, (entry.position, entry))

    @property
    def first(self) -> Entry | None:
        """The first entry that waits."""
        returned, arrived, begin = self._returned, self._arrived, self._begin
        while returned and returned[0][1].key.where:
            self._pop_returned()
        end = len(arrived)
        entry = None
        while begin < end:
            entry = arrived[begin]
            assert entry is not None
            if not entry.key.where:
                break
            begin = self._pop_arrived(entry)
            end, entry = len(arrived), None
        if returned and (entry is None or returned[0][0] < entry.position):
            return returned[0][1]
        return entry

    def pop(self, entry: Entry) -> None:
        """The entry does not wait any more; its slot goes if that is the first."""
        arrived, begin = self._arrived, self._begin
        if begin < len(arrived) and arrived[begin] is entry:
            self._pop_arrived(entry)
        elif self._returned and self._returned[0][1] is entry:
            self._pop_returned()

    def bury(self) -> None:
        """An entry with a slot is GONE; when more than half of them are, all their slots go."""
        self._dead += 1
        if self._dead > _TRIM and 2 * self._dead > len(self._arrived) - self._begin + len(self._returned):
            self._arrived = [entry for entry in self._arrived if entry is not None and entry.key.where != GONE]
            self._returned = [item for item in self._returned if item[1].key.where != GONE]
            self._returned.sort(key=_position)
            self._begin = self._dead = 0

    def after(self, position: Position) -> Entry | None:
        """The first entry that waits behind a position, and has been there since it arrived."""
        arrived, low, high = self._arrived, self._begin, len(self._arrived)
        while low < high:
            middle = (low + high) // 2
            entry = arrived[middle]
            assert entry is not None
            if entry.position <= position:
                low = middle + 1
            else:
                high = middle
        for index in range(low, len(arrived)):
            entry = arrived[index]
            if entry is not None and not entry.key.where:
                return entry
        return None

    def let_go(self) -> None:
        """Only count what waits from now on. What a consumer has must not look for its slot later."""
        for entry in (*self._arrived[self._begin :], *(entry for _, entry in self._returned)):
            if entry is not None:
                entry.key.has_slot = False
        self._arrived, self._returned, self._begin, self._dead = [], [], 0, 0

    def closed(self) -> Lane | None:
        """It, or one that it is nested in, if its tenant is passed over."""
        lane: Lane | None = self
        while lane is not None and not lane.tenant.is_blocked:
            lane = lane.outer
        return lane

    def came_back(self) -> list[Position]:
        """Where entries stood that came back, in order."""
        return sorted([position for position, _ in self._returned])

    def _pop_arrived(self, entry: Entry) -> int:
        ticket, arrived = entry.key, self._arrived
        ticket.has_slot = False
        self._dead -= ticket.where == GONE
        arrived[self._begin] = None
        self._begin += 1
        if self._begin >= _TRIM and 2 * self._begin > len(arrived):
            del arrived[: self._begin]
            self._begin = 0
        return self._begin

    def _pop_returned(self) -> None:
        ticket = heappop(self._returned)[1].key
        ticket.has_slot = False
        self._dead -= ticket.where == GONE

    def check_invariants(self) -> None:
        slots = [entry for entry in self._arrived[self._begin :] if entry is not None]
        assert len(slots) == len(self._arrived) - self._begin, "a slot was dropped in the middle"
        positions = [entry.position for entry in slots]
        assert positions == sorted(set(positions)), "not in the order of arrival"
        slots += [entry for _, entry in self._returned]
        assert len(slots) == len(set(map(id, slots))), "an entry has two slots"
        assert all(entry.key.has_slot for entry in slots)
        assert self._dead == sum(entry.key.where == GONE for entry in slots)
        assert self.live == sum(entry.key.where == WAITING for entry in slots)
        if self.inner is None:
            assert self.is_in == (self.live > 0 and not self.tenant.is_blocked), f"{self.tenant.name!r} is in the ring"


def _level(lane: Lane) -> int:
    return lane.level


def _position(item: tuple[Position, Entry]) -> Position:
    return item[0]


def _ring_priority(level: int, options: TenantOptions) -> int:
    return level * (HIGHEST_PRIORITY + 1) + HIGHEST_PRIORITY - options.priority


class Tenants:
    """All tenants of one fair queue."""

    def __init__(
        self,
        options: FairOptions,
        levels: int,
        clock: Callable[[], float],
        visit_by: Callable[[float], None],
        changed: dict[str, dict[str, object]],
    ) -> None:
        self._options = options
        self._clock = clock
        self._visit_by = visit_by
        self.listen()
        self.ring: Ring = Ring()
        self.by_name: dict[str, Tenant] = {}
        # Invariant: those that have no entries, but for some that are only kept for their rates.
        self._idle: OrderedDict[Tenant, None] = OrderedDict()
        self._lanes: list[dict[str, Lane]] = [{} for _ in range(levels)]
        self.wakes: list[tuple[float, int, Tenant]] = []  # a heap of the times at which a rate lets one go on
        self._numbers = count()
        self._changed = changed  # options of a tenant's own that were changed since the declaration
        self.misread: int = 0  # messages whose key, or cost, was not what it should be
        self._over: dict[Tenant, None] = {}  # those that may have more waiting than they may, and drop their heads
        # Of a ring: a heap with the longest lane of the lowest level, as they were once. Invariant: has each as it is.
        self._longest: list[tuple[int, int, int, Lane]] | None = None
        self._coming: dict[str, tuple[int, int]] = {}  # admitted, on their way to a store: messages and bytes
        self._find_limits()

    # -- entries

    def arrive(self, entry: Entry) -> Lane:
        """A new entry, which has its position."""
        key: FairKey = entry.key
        name, level, cost, is_odd = key
        lane = self._lanes[level].get(name) or self._new_lane(name, level)
        ticket = entry.key = Ticket(lane, cost)
        self.misread += is_odd
        lane.append(entry)
        waits = entry.held_until is None
        own = lane.tenant
        if waits and own.count and own.outer is None and self._is_plain:
            own.count += 1  # as below, without a call for each message
            own.waiting += 1
            own.waiting_bytes += entry.size
            lane.live += 1
            if own.waiting == 1:
                own.busy_since = entry.arrived_at
            if lane.live == 1 and not own.is_blocked:
                lane.join()
            return lane
        tenant: Tenant | None = own
        while tenant is not None:
            if not tenant.count:
                self._idle.pop(tenant, None)
            tenant.count += 1
            if waits:
                tenant.waiting += 1
                tenant.waiting_bytes += entry.size
            tenant = tenant.outer
        if waits:
            self._waits(lane, is_new=True)
        else:
            ticket.where = HELD
        return lane

    def lane_of(self, name: str, level: int) -> Lane:
        return self._lanes[level].get(name) or self._new_lane(name, level)

    def count(self, lane: Lane, count: int, size: int) -> None:
        """So many messages more wait that are no objects here, or fewer, with bodies of `size` bytes together."""
        had_some = lane.live > 0
        if not lane.tenant.waiting:
            lane.tenant.busy_since = self._clock()
        lane.live += count
        tenant: Tenant | None = lane.tenant
        while tenant is not None:
            tenant.count += count
            tenant.waiting += count
            tenant.waiting_bytes += size
            if not tenant.count:
                self._idle[tenant] = None
            elif count > 0:
                self._idle.pop(tenant, None)
            tenant = tenant.outer
        if not lane.tenant.is_blocked and (lane.live > 0) != had_some:
            if had_some:
                lane.leave()
            else:
                lane.join()
        if count > 0 and not self._is_plain:
            self._look_at_length(lane)
        if len(self._idle) > _IDLE:
            self._retire(self._idle.popitem(last=False)[0])

    def listen(
        self,
        opened: Callable[[Lane], object] = lambda lane: None,
        forgotten: Callable[[Lane], object] = lambda lane: None,
        reweighed: Callable[[Tenant], object] = lambda tenant: None,
    ) -> None:
        """Tell others from now on: of a lane that is not passed over any more, of one that is gone, of options."""
        self._opened, self._forgotten, self._reweighed = opened, forgotten, reweighed

    def _waits(self, lane: Lane, *, is_new: bool) -> None:
        """One entry of a lane more waits."""
        lane.live += 1
        if lane.tenant.waiting == 1:
            lane.tenant.busy_since = self._clock()
        if lane.live == 1 and not lane.tenant.is_blocked:
            if is_new:
                lane.join()
            else:
                lane.resume()
        if not self._is_plain:
            self._look_at_length(lane)

    def _look_at_length(self, lane: Lane) -> None:
        """A lane has become longer."""
        if self._has_limits and lane.tenant.drops_head and lane.tenant.is_over():
            self._over[lane.tenant] = None
        if self._longest is not None:
            heappush(self._longest, (-lane.level, -lane.live, next(self._numbers), lane))
            if len(self._longest) > 2 * len(self.by_name) + _MANY:
                self._measure()

    def _measure(self) -> None:
        self._longest = [(-each.level, -each.live, next(self._numbers), each) for each in self.lanes()]
        heapify(self._longest)

    def know_ring(self, is_ring: bool) -> None:
        """Whether the queue is a ring, which drops from its longest lane."""
        if is_ring is (self._longest is None):
            self._longest = None
            if is_ring:
                self._measure()
            self._is_plain = not self._has_limits and not is_ring

    def take(self, entry: Entry) -> None:
        """It is delivered: charge its turn, unless it was at the delivery before."""
        ticket: Ticket = entry.key
        lane, cost = ticket.lane, ticket.cost
        ticket.cost = -cost
        if cost > 0:
            lane.charge(cost)
        half_minute = self._clock() // HALF_MINUTE
        ticket.where = TAKEN
        lane.pop(entry)
        lane.live -= 1
        if not lane.live and not lane.tenant.is_blocked:
            lane.leave()
        tenant: Tenant | None = lane.tenant
        while tenant is not None:
            tenant.waiting -= 1
            tenant.waiting_bytes -= entry.size
            tenant.in_flight += 1
            if cost > 0:
                tenant.served += 1
                tenant.served_cost += cost
                slot, lately, before = tenant.recent
                if slot != half_minute:
                    lately, before = 0.0, lately if slot == half_minute - 1 else 0.0
                tenant.recent = half_minute, lately + cost, before
            options = tenant.options
            if options.max_in_flight is not None or options.rate is not None:
                self._limit(tenant)
            tenant = tenant.outer

    def _limit(self, tenant: Tenant) -> None:
        """One delivery more: it may be at a limit now."""
        options, now = tenant.options, self._clock()
        if options.rate is not None:
            tenant.full_at = max(tenant.full_at, now) + 1 / options.rate
            tenant.free_at = tenant.full_at - (options.burst_size - 1) / options.rate
        self.look_at(tenant, now)

    def end(self, entry: Entry) -> None:
        """It is gone for good."""
        ticket: Ticket = entry.key
        tenant = ticket.lane.tenant
        if ticket.where != TAKEN or ticket.has_slot or tenant.outer is not None:
            self.move(entry, GONE)
            return
        ticket.where = GONE  # as `move`, without a walk for each message
        tenant.in_flight -= 1
        tenant.count -= 1
        if tenant.is_blocked:
            self.look_at(tenant, self._clock())
        if not tenant.count:
            self._idle[tenant] = None
            if len(self._idle) > _IDLE:
                self._retire(self._idle.popitem(last=False)[0])

    def move(self, entry: Entry, where: int) -> None:
        """It waits, is held, or is taken aside, for good if it is GONE; never by a delivery."""
        ticket: Ticket = entry.key
        before, lane = ticket.where, ticket.lane
        ticket.where = where
        if before == WAITING:
            lane.live -= 1
            lane.pop(entry)
            if not lane.live and not lane.tenant.is_blocked:
                lane.leave()
        if where == GONE and ticket.has_slot:
            lane.bury()
        waits = (where == WAITING) - (before == WAITING)
        tenant: Tenant | None = lane.tenant
        while tenant is not None:
            if waits:
                tenant.waiting += waits
                tenant.waiting_bytes += waits * entry.size
            if before == TAKEN:
                tenant.in_flight -= 1
                if tenant.is_blocked:
                    self.look_at(tenant, self._clock())
            if where == GONE:
                tenant.count -= 1
                if not tenant.count:
                    self._idle[tenant] = None
            tenant = tenant.outer
        if where == WAITING:
            lane.put_back(entry)
            self._waits(lane, is_new=False)
        elif len(self._idle) > _IDLE:
            self._retire(self._idle.popitem(last=False)[0])

    # -- what one tenant may have waiting

    def _find_limits(self) -> None:
        """Look again whether any tenant has limits of its own."""
        tables: list[Mapping[str, object]] = [self._options.each.table(), *self._options.tenants.values()]
        tables += self._changed.values()
        self._has_limits = any(name in table for table in tables for name in ("max_length", "max_length_bytes"))
        is_rejecting = any(str(table.get("overflow")).startswith("reject") for table in tables)
        self._is_plain = not self._has_limits and self._longest is None
        self.may_overflow: bool = self._has_limits
        self.may_refuse: bool = self._has_limits and is_rejecting

    def refusal(self, entry: Entry) -> Overflow | None:
        """The overflow policy by which a message that is to come is refused; None when it is not."""
        name = entry.key[0]
        tenant = self.by_name.get(name)
        options = self.options_of(name) if tenant is None else tenant.options
        if not options.is_limited or options.overflow in (None, DROP_HEAD):
            return None
        count, size = self._coming.get(name, (0, 0))
        tenant = tenant or Tenant(name, None, options)
        policy = Overflow.REJECT if options.overflow == REJECT else Overflow.REJECT_DEAD_LETTER
        return policy if tenant.is_over(count + 1, size + entry.size) else None

    def expect(self, entry: Entry, count: int) -> None:
        """It is admitted, and comes later; or, with -1, it comes now, or not at all."""
        if not self._has_limits and not self._coming:
            return
        name = entry.key[0]
        before, size = self._coming.pop(name, (0, 0))
        if before + count > 0:
            self._coming[name] = before + count, size + count * entry.size

    @property
    def has_surplus(self) -> bool:
        return bool(self._over)

    def surplus(self) -> Lane | None:
        """A lane of which the head is to go: its tenant has more waiting than it may."""
        while self._over:
            tenant = next(iter(self._over))
            lanes = [lane for lane in tenant.lanes if lane.live] if tenant.drops_head and tenant.is_over() else []
            if lanes:
                return max(lanes, key=_level)
            del self._over[tenant]
        return None

    def longest(self) -> Lane | None:
        """Of the lowest level the lane in which most waits."""
        heap = self._longest
        while heap:
            lane, length = heap[0][3], -heap[0][1]
            if lane.live == length > 0:
                return lane
            heappop(heap)
            if 0 < lane.live < length:
                heappush(heap, (-lane.level, -lane.live, next(self._numbers), lane))
        return None

    # -- who is passed over

    @staticmethod
    def may_go(entry: Entry) -> bool:
        """False while an entry is passed over, whoever asks."""
        ticket: Ticket = entry.key
        return ticket.lane.closed() is None

    def look_at(self, tenant: Tenant, now: float) -> None:
        """Take it out of the ring, or back, as its limits say."""
        reason = tenant.reason(now)
        if reason == "rate":
            self._wake_at(tenant, tenant.free_at)
        if (reason is not None) is tenant.is_blocked:
            return
        tenant.is_blocked = reason is not None
        for lane in tenant.lanes:
            if tenant.is_blocked:
                lane.leave()
            elif lane.live or lane.inner is not None:
                lane.resume()
                self._opened(lane)

    def _wake_at(self, tenant: Tenant, when: float) -> None:
        heappush(self.wakes, (when, next(self._numbers), tenant))
        self._visit_by(when)

    @property
    def next_wake(self) -> float:
        return self.wakes[0][0] if self.wakes else math.inf

    def wake(self, now: float) -> int:
        """Let those go on whose time has come; how many."""
        woken = 0
        while self.wakes and self.wakes[0][0] <= now:
            tenant = heappop(self.wakes)[2]
            if tenant.is_blocked:
                self.look_at(tenant, now)
                woken += not tenant.is_blocked
            if not tenant.count and tenant not in self._idle:
                self._retire(tenant)
        return woken

    # -- tenants come, change and go

    def options_of(self, name: str) -> TenantOptions:
        if name in self._changed or name in self._options.tenants or len(self._options.keys) > 1:
            return self._options.options_of(name, self._own(name))
        return self._options.each

    def _own(self, name: str) -> Mapping[str, object]:
        own = self._changed.get(name)
        return self._options.tenants.get(name, {}) if own is None else own

    def change(self, name: str, changes: Mapping[str, object] | None) -> None:
        """Let a tenant have other options from now on; None: those that it was declared with. Raises ValueError."""
        declared = self._options.tenants.get(name, {})
        before, changes = (declared, {}) if changes is None else (self._own(name), changes)
        own = self._options.merged(name, before, changes)
        options = self._options.options_of(name, own)
        if own == declared:
            self._changed.pop(name, None)
        else:
            self._changed[name] = own
        self._find_limits()
        tenant = self.by_name.get(name)
        if tenant is None:
            return
        tenant.options = options
        if options.rate is None:
            tenant.free_at = tenant.full_at = -math.inf
        else:
            tenant.free_at = tenant.full_at - (options.burst_size - 1) / options.rate
        for lane in tenant.lanes:
            lane.weight = options.weight
            if lane.priority != (priority := _ring_priority(lane.level, options)):
                lane.priority = priority
        self._reweighed(tenant)
        if tenant.drops_head and tenant.is_over():
            self._over[tenant] = None
        self.look_at(tenant, self._clock())

    def _new_lane(self, name: str, level: int) -> Lane:
        outer_name, is_nested, _ = name.rpartition("/") if len(self._options.keys) > 1 else ("", "", "")
        outer: Lane | None = None
        ring = self.ring
        if is_nested:
            outer = self._lanes[level].get(outer_name) or self._new_lane(outer_name, level)
            ring = outer.inner = outer.inner or Ring(outer=outer)
        tenant = self.by_name.get(name)
        if tenant is None:
            tenant = Tenant(name, None if outer is None else outer.tenant, self.options_of(name))
            self.by_name[name] = tenant
            tenant.is_blocked = tenant.options.paused
            if tenant.outer is not None:
                tenant.outer.children += 1
        lane = self._lanes[level][name] = Lane(ring, tenant, outer, level)
        tenant.lanes.append(lane)
        if tenant.is_blocked:
            lane.leave()
        return lane

    def _retire(self, tenant: Tenant) -> None:
        """Forget a tenant that has no entries; later, if others are nested in it, or its rate remembers it."""
        if tenant.children or self.by_name.get(tenant.name) is not tenant:
            return
        if tenant.full_at > self._clock():
            self._wake_at(tenant, tenant.full_at)
            return
        del self.by_name[tenant.name]
        for lane in tenant.lanes:
            del self._lanes[lane.level][tenant.name]
            self._forgotten(lane)
        tenant.lanes.clear()  # they refer to it: without this cycle both are freed at once
        outer = tenant.outer
        if outer is not None:
            outer.children -= 1
            if not outer.count and outer not in self._idle:
                self._retire(outer)

    def lanes(self) -> Iterator[Lane]:
        for lanes in self._lanes:
            yield from lanes.values()

    def figures(self, most: int | None = None) -> FairStatistics:
        """What each tenant has, the longest lines first."""
        now = self._clock()
        half_minute = now // HALF_MINUTE
        leaves = [each for each in self.by_name.values() if each.count and not each.children]
        total = sum(each.served_lately(half_minute) for each in leaves)
        weights = sum(each.options.weight for each in leaves)
        longest = sorted(leaves, key=lambda each: -each.waiting)
        shown = [
            TenantStatistics(
                name=each.name,
                waiting=each.waiting,
                waiting_bytes=each.waiting_bytes,
                in_flight=each.in_flight,
                served=each.served,
                served_cost=each.served_cost,
                longest_wait=max(
                    (now - entry.arrived_at for lane in each.lanes if (entry := lane.first) is not None), default=0.0
                ),
                share=each.served_lately(half_minute) / total if total else 0.0,
                fair_share=each.options.weight / weights,
                passed_over=next((why for one in each.chain() if (why := one.reason(now)) is not None), None),
                options=each.options,
            )
            for each in longest[:most]
        ]
        busy = [each for each in leaves if each.waiting and each.busy_since <= now - 2 * HALF_MINUTE]
        shares = [
            each.served_lately(half_minute) / each.options.weight
            for each in busy
            if not any(one.is_blocked for one in each.chain())
        ]
        squares = len(shares) * sum(share * share for share in shares)
        jain = sum(shares) ** 2 / squares if len(shares) > 1 and squares else None
        return FairStatistics(tenants=len(leaves), misread=self.misread, jain=jain, largest=shown)

    def check_invariants(self) -> None:
        self.ring.check_invariants()
        now = self._clock()
        for tenant in self.by_name.values():
            assert not (tenant.is_blocked and tenant.reason(now) is None and self.next_wake > now), tenant.name
            assert tenant.is_blocked or tenant.reason(now) is None, f"{tenant.name!r} is not passed over"
            assert tenant.count >= tenant.waiting + tenant.in_flight
            assert tenant.count or tenant in self._idle or tenant.full_at > -math.inf or tenant.children
        for lane in self.lanes():
            lane.check_invariants()
