"""The tenants of a fair queue: whose turn it is, what each has waiting, and who is passed over.

Promise     Each operation costs O(1), or O(log n) for an entry that comes back, however many tenants there are. A
            tenant at a limit, or paused, is out of the ring: nothing of it is looked at. Within a tenant and a level
            the entry that arrived first is the first, though others came back in between. An entry is charged at
            every other delivery, from the first on.
State       Guarded by the queue's lock. No I/O, no user code: the clock is asked under the lock.
Membership  A tenant comes with its first message. Without one it stays for about half a minute, among `_MOST_IDLE` such
            at most, and then among `_IDLE`; or until its rate has forgotten it.
Nesting     `acme/web` is a tenant within `acme`: a turn in the ring that the turn of `acme` stands for, with options at
            both.
Source      The ring: `multiqueue.core.Ring`. The rate: the generic cell rate algorithm (ATM Forum, 1996).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from multiqueue.core import Ring, Turn

from .._base.fair_options import DROP_HEAD, HIGHEST_PRIORITY, REJECT, FairOptions, TenantOptions
from .._base.settings import Overflow
from .entry import Entry, Position

WAITING, HELD, TAKEN, ASIDE, GONE = range(5)  # where an entry is; WAITING is 0, as it is asked most
# Tenants without messages that are kept, so that one which comes and goes costs little; and that are kept at first.
_IDLE: Final = 256
_MOST_IDLE: Final = 1 << 14
_TRIM: Final = 32  # slots
HALF_MINUTE: Final = 30.0  # seconds
_MANY: Final = 1024  # records of lengths
_LONG_AGO: Final = -math.inf  # seconds
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


@dataclass(slots=True, eq=False, repr=False)
class FairEntry(Entry):
    """A message on a fair queue."""

    lane: Any = None  # its `Lane`, once it is known there
    # What its turn costs; negative when its next delivery is free, as every other one is: what comes back once is not
    # charged again, and what comes back for ever does not keep the turn.
    cost: float = 1.0
    where: int = WAITING
    # Invariant: it stands in the lane's `arrived` or `returned`; without meaning while lanes only count.
    has_slot: bool = True


class Tenant:
    """One tenant that has messages, or had some lately; or all that are nested in it."""

    __slots__ = (
        "aside",
        "busy",
        "busy_since",
        "children",
        "free_at",
        "full_at",
        "half_minute",
        "in_flight",
        "is_blocked",
        "is_counted",
        "is_idle",
        "lane",
        "lately",
        "name",
        "options",
        "outer",
        "served",
        "served_before",
        "served_cost",
        "waiting_bytes",
    )

    def __init__(self, name: str, outer: Tenant | None, options: TenantOptions) -> None:
        self.name: str = name
        self.outer: Tenant | None = outer
        self.lane: Lane | None = None  # that of the level it used last first: the others follow by their `another`
        self.busy: int = 0  # lanes with entries that are WAITING
        self.waiting_bytes: int = 0  # of the bodies of these entries
        self.children: int = 0  # tenants that are nested in it
        self.in_flight: int = 0  # entries that consumers have, of those nested in it too
        self.aside: int = 0  # entries that are HELD or ASIDE
        self.is_idle: bool = False  # Invariant: it is in `Tenants._idle`
        self.is_blocked: bool = options.paused  # Invariant: its lanes are out of the ring
        self.free_at: float = _LONG_AGO  # when its rate lets it be served,
        self.full_at: float = _LONG_AGO  # and has forgotten what it was served
        self.served: int = 0
        self.served_cost: float = 0.0
        self.busy_since: float = 0.0  # since when something of it waits, if anything does
        # The half minute in which it was served last; the cost of what it was served before it; and in the one before.
        self.half_minute: float = 0.0
        self.served_before: float = 0.0
        self.lately: float = 0.0
        self.have(options)

    def have(self, options: TenantOptions) -> None:
        """Let these be its options."""
        self.options: TenantOptions = options
        # Its deliveries count against a limit of its own, or of what it is nested in.
        is_limited = options.max_in_flight is not None or options.rate is not None
        self.is_counted: bool = is_limited or self.outer is not None

    @property
    def lanes(self) -> Iterator[Lane]:
        """One for each level that it has used."""
        lane = self.lane
        while lane is not None:
            yield lane
            lane = lane.another

    def chain(self) -> Iterator[Tenant]:
        """It, and the tenants that it is nested in."""
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

    @property
    def waiting(self) -> int:
        return sum([lane.live for lane in self.lanes])

    @property
    def is_empty(self) -> bool:
        """True when it has no entry."""
        return not (self.in_flight or self.aside or self.busy)

    def served_lately(self, half_minute: float) -> float:
        """The cost of its service in this half minute and the one before."""
        cost = self.served_cost - self.served_before
        if self.half_minute == half_minute:
            return cost + self.lately
        return cost if self.half_minute == half_minute - 1 else 0.0

    def is_over(self, more: int = 0, more_bytes: int = 0) -> bool:
        """True when it has more waiting than it may, or would have with so much more."""
        options = self.options
        length, size = options.max_length, options.max_length_bytes
        return (length is not None and self.waiting + more > length) or (
            size is not None and self.waiting_bytes + more_bytes > size
        )


# Invariant: empty. Most lanes have this list, and never one of their own.
_NONE_CAME_BACK: Final[list[tuple[Position, FairEntry]]] = []


class Lane(Turn):
    """What a tenant has waiting on one level, and its turn there. That of a tenant with others in it has no entries."""

    __slots__ = (
        "_dead",
        "another",
        "arrived",
        "begin",
        "inner",
        "level",
        "live",
        "outer",
        "returned",
        "tenant",
    )

    def __init__(self, ring: Ring, tenant: Tenant, outer: Lane | None, level: int) -> None:
        options = tenant.options
        if level or options.priority or options.weight != 1:
            priority = _ring_priority(level, options.priority)
            Turn.__init__(self, ring, weight=options.weight, priority=priority)
        else:
            Turn.__init__(self, ring)  # as that would, for half
        self.tenant: Tenant = tenant
        self.outer: Lane | None = outer
        self.level: int = level
        self.inner: Ring | None = None
        self.live: int = 0  # Invariant: counts the entries that are WAITING
        self.another: Lane | None = tenant.lane
        tenant.lane = self
        # Entries in the order of their arrival, from `begin` on, and those that came back after their slot had gone.
        # What is not WAITING any more stays until it is met, or there is more of it than of others.
        self.arrived: list[FairEntry | None] = []
        self.begin: int = 0
        self.returned: list[tuple[Position, FairEntry]] = _NONE_CAME_BACK
        self._dead = 0  # Invariant: counts the slots of entries that are GONE

    def put_back(self, entry: FairEntry) -> None:
        if not entry.has_slot:
            entry.has_slot = True
            if self.returned is _NONE_CAME_BACK:
                self.returned = []
            heappush(self.returned, (entry.position, entry))

    @property
    def first(self) -> FairEntry | None:
        """The first entry that waits."""
        returned, arrived, begin = self.returned, self.arrived, self.begin
        while returned and returned[0][1].where:
            self._pop_returned()
        end = len(arrived)
        entry = None
        while begin < end:
            entry = arrived[begin]
            assert entry is not None
            if not entry.where:
                break
            begin = self._pop_arrived(entry)
            end, entry = len(arrived), None
        if returned and (entry is None or returned[0][0] < entry.position):
            return returned[0][1]
        return entry

    def pop(self, entry: FairEntry) -> None:
        """The entry does not wait any more; its slot goes if that is the first."""
        arrived, begin = self.arrived, self.begin
        if begin < len(arrived) and arrived[begin] is entry:
            self._pop_arrived(entry)
        elif self.returned and self.returned[0][1] is entry:
            self._pop_returned()

    def bury(self) -> None:
        """An entry with a slot is GONE; when more than half of them are, all their slots go."""
        self._dead += 1
        if self._dead > _TRIM and 2 * self._dead > len(self.arrived) - self.begin + len(self.returned):
            self.arrived = [entry for entry in self.arrived if entry is not None and entry.where != GONE]
            self.returned = [item for item in self.returned if item[1].where != GONE]
            self.returned.sort(key=_position)
            self.begin = self._dead = 0

    def after(self, position: Position) -> FairEntry | None:
        """The first entry that waits behind a position, and has been there since it arrived."""
        arrived, low, high = self.arrived, self.begin, len(self.arrived)
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
            if entry is not None and not entry.where:
                return entry
        return None

    def let_go(self) -> None:
        """Forget the slots."""
        self.arrived, self.returned, self.begin, self._dead = [], _NONE_CAME_BACK, 0, 0

    def closed(self) -> Lane | None:
        """It, or one that it is nested in, if its tenant is passed over."""
        lane: Lane | None = self
        while lane is not None and not lane.tenant.is_blocked:
            lane = lane.outer
        return lane

    def came_back(self) -> list[Position]:
        """Where entries stood that came back, in order."""
        return sorted([position for position, _ in self.returned])

    def _pop_arrived(self, entry: FairEntry) -> int:
        arrived = self.arrived
        entry.has_slot = False
        self._dead -= entry.where == GONE
        arrived[self.begin] = None
        self.begin += 1
        if not self.begin % _TRIM:
            self.trim()
        return self.begin

    def trim(self) -> None:
        """Drop empty slots, if they are more than the others."""
        if 2 * self.begin > len(self.arrived):
            del self.arrived[: self.begin]
            self.begin = 0

    def _pop_returned(self) -> None:
        entry = heappop(self.returned)[1]
        entry.has_slot = False
        self._dead -= entry.where == GONE

    def check_invariants(self) -> None:
        slots = [entry for entry in self.arrived[self.begin :] if entry is not None]
        assert len(slots) == len(self.arrived) - self.begin, "a slot was dropped in the middle"
        positions = [entry.position for entry in slots]
        assert positions == sorted(set(positions)), "not in the order of arrival"
        slots += [entry for _, entry in self.returned]
        assert len(slots) == len(set(map(id, slots))), "an entry has two slots"
        assert all(entry.has_slot for entry in slots)
        assert self._dead == sum(entry.where == GONE for entry in slots)
        assert self.live == sum(entry.where == WAITING for entry in slots)
        if self.inner is None:
            assert self.is_in == (self.live > 0 and not self.tenant.is_blocked), f"{self.tenant.name!r} is in the ring"


def _level(lane: Lane) -> int:
    return lane.level


def _position(item: tuple[Position, Entry]) -> Position:
    return item[0]


def _ring_priority(level: int, priority: int) -> int:
    return level * (HIGHEST_PRIORITY + 1) - priority


class Tenants:
    """All tenants of one fair queue."""

    def __init__(
        self,
        options: FairOptions,
        clock: Callable[[], float],
        visit_by: Callable[[float], None],
        changed: dict[str, dict[str, object]],
    ) -> None:
        self._options = options
        self._is_nested = len(options.keys) > 1
        self._clock = clock
        self._visit_by = visit_by
        self.listen()
        self.ring: Ring = Ring()
        self.by_name: dict[str, Tenant] = {}
        # Invariant: has those that have no entries, but for some that are only kept for their rates; and others, which
        # have some again.
        self._idle: deque[Tenant] = deque()
        self._next_look = math.inf  # when those of them go that are too many
        self.wakes: list[tuple[float, int, Tenant]] = []  # a heap of the times at which a rate lets one go on
        self._numbers = count()
        self._changed = changed  # options of a tenant's own that were changed since the declaration
        self.only_counts: bool = False  # the queue pages: lanes have no slots
        self.misread: int = 0  # messages whose key, or cost, was not what it should be
        self._over: dict[Tenant, None] = {}  # those that may have more waiting than they may, and drop their heads
        # Of a ring: a heap with the longest lane of the lowest level, as they were once. Invariant: has each as it is.
        self._longest: list[tuple[int, int, int, Lane]] | None = None
        self._coming: dict[str, tuple[int, int]] = {}  # admitted, on their way to a store: messages and bytes
        self._find_limits()

    # -- entries

    def arrive(self, entries: Sequence[Any]) -> None:
        """New entries, which have their positions."""
        by_name = self.by_name
        for entry in entries:
            name, level, cost, is_odd = entry.key
            tenant: Any = by_name.get(name)
            if tenant is None or (lane := tenant.lane).level != level:
                lane = self.lane_of(name, level)
            entry.lane = lane
            lane.arrived.append(entry)
            if cost != 1 or is_odd:
                entry.cost = cost
                self.misread += is_odd
            if entry.held_until is not None:
                entry.where = HELD
                lane.tenant.aside += 1
                continue
            lane.live += 1
            lane.tenant.waiting_bytes += entry.size
            if lane.live == 1:
                self._has_some(lane, entry.arrived_at, lane.join)
            if not self._is_plain:
                self._look_at_length(lane)

    def count(self, lane: Lane, count: int, size: int) -> None:
        """So many messages more wait that are no objects here, or fewer, with bodies of `size` bytes together."""
        had_some = lane.live > 0
        lane.live += count
        lane.tenant.waiting_bytes += size
        if (lane.live > 0) != had_some:
            if had_some:
                self._has_none(lane)
            else:
                self._has_some(lane, self._clock(), lane.join)
        if count > 0 and not self._is_plain:
            self._look_at_length(lane)

    def listen(
        self,
        opened: Callable[[Lane], object] = lambda lane: None,
        forgotten: Callable[[Lane], object] = lambda lane: None,
        reweighed: Callable[[Tenant], object] = lambda tenant: None,
    ) -> None:
        """Tell others from now on: of a lane that is not passed over any more, of one that is gone, of options."""
        self._opened, self._forgotten, self._reweighed = opened, forgotten, reweighed

    def _has_some(self, lane: Lane, now: float, enter: Callable[[], object]) -> None:
        """Something of a lane waits, which is to `enter` the ring."""
        tenant = lane.tenant
        if not tenant.busy:
            tenant.busy_since = now
        tenant.busy += 1
        if not tenant.is_blocked:
            enter()

    def _has_none(self, lane: Lane) -> None:
        """Nothing of a lane waits any more."""
        tenant = lane.tenant
        tenant.busy -= 1
        if not tenant.is_blocked:
            lane.leave()
        if tenant.is_empty:
            self._rest(tenant)

    def _rest(self, tenant: Tenant) -> None:
        """It has no entries now."""
        if tenant.lane is not None and not tenant.is_idle:  # one without lanes is a deleted queue's
            tenant.is_idle = True
            self._idle.append(tenant)
            if len(self._idle) > _MOST_IDLE:
                self._look_at_idle()
            elif len(self._idle) > _IDLE and self._next_look == math.inf:
                self._next_look = self._clock() + HALF_MINUTE
                self._visit_by(self._next_look)

    def _look_at_idle(self) -> None:
        """The first of those that had no entries goes, if it has none."""
        tenant = self._idle.popleft()
        tenant.is_idle = False
        if tenant.is_empty:
            self._retire(tenant)

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

    def only_count(self) -> None:
        """The queue pages from now on: its source knows which entry is the first of a lane."""
        self.only_counts = True
        for lane in self.lanes():
            lane.let_go()

    def know_ring(self, is_ring: bool) -> None:
        """Whether the queue is a ring, which drops from its longest lane."""
        if is_ring is (self._longest is None):
            self._longest = None
            if is_ring:
                self._measure()
            self._is_plain = not self._has_limits and not is_ring

    def take_turns(self, run: list[Entry], most: int, most_bytes: int) -> int:
        """Take the first entries of those whose turn it is, until there are `most` in the run, or the sizes of the new
        ones reach `most_bytes`; returns what is left of these. It ends before one that has a time, or was refused."""
        due, take = self.ring.due, self._take
        half_minute = self._clock() // HALF_MINUTE
        for _ in range(most - len(run)):
            lane: Any = due()
            if lane is None or most_bytes <= 0:
                break
            entry = None if lane.returned else lane.arrived[lane.begin]
            if entry is None or entry.where:
                entry = lane.first
            if entry.expires_at is not None or entry.refused_by is not None:
                break
            take(entry, half_minute)
            run.append(entry)
            most_bytes -= entry.size
        return most_bytes

    def take(self, entry: Any) -> None:
        """It is delivered: charge its turn, unless it was at the delivery before."""
        self._take(entry, self._clock() // HALF_MINUTE)

    def _take(self, entry: FairEntry, half_minute: float) -> None:
        lane, cost = entry.lane, entry.cost
        tenant, arrived, begin = lane.tenant, lane.arrived, lane.begin
        entry.cost, entry.where = -cost, TAKEN
        # As `pop`, without a call for each message. Where nothing came back, an entry that waits has a slot here.
        if arrived and not lane.returned and arrived[begin] is entry:
            entry.has_slot = False
            arrived[begin] = None
            lane.begin = begin + 1
            if not lane.begin % _TRIM:
                lane.trim()
        else:
            lane.pop(entry)
        lane.live -= 1
        tenant.waiting_bytes -= entry.size
        tenant.in_flight += 1
        if cost > 0:
            lane.charge(cost)
            if tenant.half_minute != half_minute:
                is_next = tenant.half_minute == half_minute - 1
                tenant.lately = tenant.served_cost - tenant.served_before if is_next else 0.0
                tenant.half_minute, tenant.served_before = half_minute, tenant.served_cost
            tenant.served += 1
            tenant.served_cost += cost
        if not lane.live:
            tenant.busy -= 1
            if not tenant.is_blocked:
                lane.leave()
        if tenant.is_counted:
            self._limit(tenant)

    def _limit(self, tenant: Tenant) -> None:
        """One delivery more: it, or one that it is nested in, may be at a limit now."""
        now = self._clock()
        for each in tenant.chain():
            options = each.options
            each.in_flight += each is not tenant
            if options.rate is not None:
                each.full_at = max(each.full_at, now) + 1 / options.rate
                each.free_at = each.full_at - (options.burst_size - 1) / options.rate
            self.look_at(each, now)

    def end(self, entries: Sequence[Any]) -> None:
        """They are gone for good."""
        for entry in entries:
            tenant = entry.lane.tenant
            if entry.where != TAKEN or entry.has_slot or tenant.is_counted:
                self.move(entry, GONE)
                continue
            entry.where = GONE  # as `move`, without a call for each message
            tenant.in_flight -= 1
            if not (tenant.in_flight or tenant.is_idle) and tenant.is_empty:
                self._rest(tenant)

    def move(self, entry: Any, where: int) -> None:
        """It waits, is held, or is taken aside, for good if it is GONE; never by a delivery."""
        before, lane = entry.where, entry.lane
        tenant: Tenant = lane.tenant
        entry.where = where
        if before == WAITING:
            lane.live -= 1
            tenant.waiting_bytes -= entry.size
            lane.pop(entry)
        elif before == TAKEN:
            for each in tenant.chain() if tenant.is_counted else (tenant,):
                each.in_flight -= 1
                if each.is_blocked:
                    self.look_at(each, self._clock())
        else:
            tenant.aside -= 1
        if where in (HELD, ASIDE):
            tenant.aside += 1
        if where == WAITING:
            if not self.only_counts:
                lane.put_back(entry)
            lane.live += 1
            tenant.waiting_bytes += entry.size
            if lane.live == 1:
                self._has_some(lane, self._clock(), lane.resume)
            if not self._is_plain:
                self._look_at_length(lane)
            return
        if where == GONE and entry.has_slot and not self.only_counts:
            lane.bury()
        if before == WAITING and not lane.live:
            self._has_none(lane)
        elif tenant.is_empty:
            self._rest(tenant)

    # -- what one tenant may have waiting

    def _find_limits(self) -> None:
        """Look again whether any tenant has limits of its own."""
        tables: list[Mapping[str, object]] = [self._options.each.table(), *self._options.tenants.values()]
        tables += self._changed.values()
        self.may_be_capped: bool = any("max_in_flight" in table for table in tables)
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
    def may_go(entry: Any) -> bool:
        """False while an entry is passed over for all readers."""
        return entry.lane.closed() is None

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
        return min(self.wakes[0][0], self._next_look) if self.wakes else self._next_look

    def wake(self, now: float) -> int:
        """Let those go on whose pause is over; how many."""
        woken = 0
        while self.wakes and self.wakes[0][0] <= now:
            tenant = heappop(self.wakes)[2]
            if tenant.is_blocked:
                self.look_at(tenant, now)
                woken += not tenant.is_blocked
            if tenant.is_empty and not tenant.is_idle:
                self._retire(tenant)
        if self._next_look <= now:
            for _ in range(min(len(self._idle) - _IDLE, _IDLE)):
                self._look_at_idle()
            if len(self._idle) <= _IDLE:
                self._next_look = math.inf
        return woken

    # -- tenants come, change and go

    def options_of(self, name: str) -> TenantOptions:
        if name in self._changed or name in self._options.tenants or self._is_nested:
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
        tenant.have(options)
        if options.rate is None:
            tenant.free_at = tenant.full_at = -math.inf
        else:
            tenant.free_at = tenant.full_at - (options.burst_size - 1) / options.rate
        for lane in tenant.lanes:
            lane.weight = options.weight
            if lane.priority != (priority := _ring_priority(lane.level, options.priority)):
                lane.priority = priority
        self._reweighed(tenant)
        if tenant.drops_head and tenant.is_over():
            self._over[tenant] = None
        self.look_at(tenant, self._clock())

    def lane_of(self, name: str, level: int) -> Lane:
        """A tenant's lane on one level, which may be new, as the tenant may."""
        tenant = self.by_name.get(name)
        for lane in () if tenant is None else tenant.lanes:
            if lane.level == level:
                return lane
        outer, ring = None, self.ring
        if self._is_nested and "/" in name:
            outer = self.lane_of(name.rpartition("/")[0], level)
            ring = outer.inner = outer.inner or Ring(outer=outer)
        if tenant is None:
            tenant = self.by_name[name] = Tenant(name, None if outer is None else outer.tenant, self.options_of(name))
            if tenant.outer is not None:
                tenant.outer.children += 1
        lane = Lane(ring, tenant, outer, level)
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
            self._forgotten(lane)
        tenant.lane = None  # it refers to the tenant: without this cycle both are freed at once
        outer = tenant.outer
        if outer is not None:
            outer.children -= 1
            self._retire(outer)

    def close(self) -> None:
        """The queue is deleted: forget all tenants now, and not when the collector finds them in the queue's cycles."""
        for lane in list(self.lanes()):
            lane.leave()
            lane.tenant.lane = None
        self.by_name.clear()
        self._idle.clear()
        self.wakes.clear()
        self._over.clear()
        self._longest = None

    def lanes(self) -> Iterator[Lane]:
        for tenant in self.by_name.values():
            yield from tenant.lanes

    def figures(self, most: int | None = None) -> FairStatistics:
        """What each tenant has, the longest lines first."""
        now = self._clock()
        half_minute = now // HALF_MINUTE
        leaves = [each for each in self.by_name.values() if not (each.children or each.is_empty)]
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
            assert not tenant.is_empty or tenant.is_idle or tenant.full_at > -math.inf or tenant.children
        assert sum(tenant.is_idle for tenant in self.by_name.values()) == len(self._idle) <= _MOST_IDLE
        for lane in self.lanes():
            lane.check_invariants()
