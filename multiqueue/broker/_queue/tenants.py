"""The tenants of a fair queue: whose turn it is, what each has waiting, and who is passed over.

Promise     Each operation costs O(1), or O(log n) for an entry that comes back, however many tenants there are. A
            tenant at a limit, or paused, is out of the ring: nothing of it is looked at. Within a tenant and a level
            the entry that arrived first is the first, though others came back in between. An entry is charged at
            every other delivery, from the first on.
State       Guarded by the queue's lock. No I/O, no user code: the clock is asked under the lock.
Membership  A tenant comes with its first message. All are looked at in turn: every half minute if there are more than
            `_FEW`, and with each settled message while there are more than `_MANY_KNOWN`. One that has no message goes
            then, unless its rate remembers it.
Nesting     `acme/web` is a tenant within `acme`: a turn in the ring that the turn of `acme` stands for, with options at
            both.
Source      The ring: `multiqueue.core.Ring`. The rate: the generic cell rate algorithm (ATM Forum, 1996).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, TypeVar

from multiqueue.core import Ring, Turn

from .._base.fair_options import DROP_HEAD, HIGHEST_PRIORITY, REJECT, FairOptions, TenantOptions, fair_key
from .._base.settings import Overflow
from .entry import Entry, Position
from .fair_runs import ASIDE, GONE, HELD, SHORT, TAKEN, WAITING, Runs

# Tenants that stay without messages, so that one which comes and goes costs little; and that stay for half a minute.
_FEW: Final = 256
_MANY_KNOWN: Final = 1 << 14
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


# A tuple of one at most; a list while there are few: a tenant with few messages takes little memory.
Slots = tuple[Any, ...] | list[Any] | deque[Any]
_NONE_CAME_BACK: Final[dict[Position, FairEntry]] = {}  # of many lanes; stays empty


@dataclass(slots=True, init=False, eq=False, repr=False)
class Lane(Turn):
    """What a tenant has waiting on one level, and its turn there. That of a tenant with others in it has no entries.

    `_new_lane` makes it: with an `__init__` of its own a new tenant costs half as much again.
    """

    outer: Lane | None
    level: int
    inner: Ring | None
    another: Lane | None  # of the same tenant
    is_blocked: bool  # as its tenant: out of the ring
    # Entries that wait, in the order of their arrival, and places of entries that were taken out of the midst of
    # them. Invariants: `holes` counts the places; the first is none.
    arrived: Slots
    holes: int
    returned: dict[Position, FairEntry]  # entries that wait again, by position
    # A heap of these positions, and of some whose entries do not wait any more; not set before there are any.
    _order: list[Position]
    far: int  # entries that wait and are no objects here: the queue pages
    waiting_bytes: int  # of the bodies of what waits
    in_flight: int  # entries that consumers have
    aside: int  # entries that are HELD or ASIDE
    busy_since: float  # since when something waits, if anything does
    served: int
    extra_cost: float  # of these, where it was not 1 each
    # The half minute in which it was served last; the cost of what it was served before it; and in the one before.
    half_minute: float
    served_before: float
    lately: float

    @property
    @abstractmethod
    def tenant(self) -> Tenant:
        """Whose it is."""

    @property
    def live(self) -> int:
        """How many entries wait."""
        return self.far + len(self.arrived) - self.holes + len(self.returned)

    @property
    def served_cost(self) -> float:
        return self.served + self.extra_cost

    def enter_half_minute(self, half_minute: float) -> None:
        """It is served for the first time in this half minute."""
        self.lately = self.served_cost - self.served_before if self.half_minute == half_minute - 1 else 0.0
        self.half_minute, self.served_before = half_minute, self.served_cost

    def served_lately(self, half_minute: float) -> float:
        if self.half_minute < half_minute - 1:
            return 0.0
        cost = self.served_cost - self.served_before
        return cost + self.lately if self.half_minute == half_minute else cost

    def put_back(self, entry: FairEntry) -> None:
        """It waits again."""
        if not self.returned:
            self.returned, self._order = {}, []
        self.returned[entry.position] = entry
        heappush(self._order, entry.position)
        if len(self._order) > 2 * len(self.returned) + _TRIM:
            self._order = sorted(self.returned)

    @property
    def first(self) -> FairEntry | None:
        """The first entry that waits, of those that are objects here."""
        first: Any = self.arrived[0] if self.arrived else None
        if self.returned:
            while self._order[0] not in self.returned:
                heappop(self._order)
            if first is None or self._order[0] < first.position:
                first = self.returned[self._order[0]]
        return first  # type: ignore[no-any-return]

    def become_long(self) -> None:
        """Have slots of which the first goes at no cost, if there are many."""
        if type(self.arrived) is list and len(self.arrived) > SHORT:
            self.arrived = deque(self.arrived)

    def take_out(self, entry: FairEntry) -> None:
        """It does not wait any more."""
        self.become_long()
        arrived = self.arrived
        if self.returned.pop(entry.position, None) is not None:
            return
        if isinstance(arrived, tuple):
            self.arrived = ()
            return
        head: Any = arrived[0]
        if head is entry:
            del arrived[0]
            while self.holes and type(arrived[0]) is int:
                del arrived[0]
                self.holes -= 1
            return
        arrived[self._slot_of(entry.position)] = entry.position
        self.holes += 1
        if self.holes > _TRIM and 2 * self.holes > len(arrived):
            self.arrived, self.holes = [each for each in arrived if type(each) is not int], 0

    def _slot_of(self, position: int) -> int:
        """The first slot that is not before a position."""
        arrived, low, high = self.arrived, 0, len(self.arrived)
        while low < high:
            middle = (low + high) // 2
            slot = arrived[middle]
            if (slot if type(slot) is int else slot.position) < position:
                low = middle + 1
            else:
                high = middle
        return low

    def after(self, position: int) -> FairEntry | None:
        """The first entry that waits behind a position, and has been there since it arrived."""
        for index in range(self._slot_of(position + 1), len(self.arrived)):
            entry: Any = self.arrived[index]
            if type(entry) is not int:
                return entry  # type: ignore[no-any-return]
        return None

    def let_go(self) -> None:
        """Forget the objects."""
        self.far, self.arrived, self.returned, self.holes = self.live, (), _NONE_CAME_BACK, 0

    def closed(self) -> Lane | None:
        """It, or one that it is nested in, if its tenant is passed over."""
        lane: Lane | None = self
        while lane is not None and not lane.is_blocked:
            lane = lane.outer
        return lane

    def check_invariants(self) -> None:
        slots = [each if type(each) is int else each.position for each in self.arrived]
        assert slots == sorted(set(slots)), "not in the order of arrival"
        assert self.holes == sum(type(each) is int for each in self.arrived)
        assert not self.arrived or type(self.arrived[0]) is not int
        entries = [each for each in self.arrived if type(each) is not int] + list(self.returned.values())
        assert len(entries) == len(set(map(id, entries))), "an entry has two slots"
        assert all(entry.where == WAITING for entry in entries)
        assert not self.returned or self.returned.keys() <= set(self._order)
        assert not _NONE_CAME_BACK
        assert type(self.arrived) is not tuple or len(self.arrived) < 2
        assert self.is_blocked is self.tenant.is_blocked
        if self.inner is None:
            assert self.is_in == (self.live > 0 and not self.is_blocked), f"{self.tenant.name!r} is in the ring"


@dataclass(slots=True, init=False, eq=False, repr=False)
class Tenant(Lane):
    """One tenant that has messages, or had some lately; or all that are nested in it. It is its lane of one level."""

    name: str
    options: TenantOptions
    children: int  # tenants that are nested in it
    inside: int  # entries of these that consumers have
    free_at: float  # when its rate lets it be served,
    full_at: float  # and has forgotten what it was served

    @property
    def tenant(self) -> Tenant:
        return self

    @property
    def is_counted(self) -> bool:
        """True when its deliveries count against a limit of its own, or of what it is nested in."""
        return self.options.max_in_flight is not None or self.options.rate is not None or self.outer is not None

    @property
    def lanes(self) -> Iterator[Lane]:
        """One for each level that it has used."""
        lane: Lane | None = self
        while lane is not None:
            yield lane
            lane = lane.another

    def chain(self) -> Iterator[Tenant]:
        """It, and the tenants that it is nested in."""
        lane: Lane | None = self
        while lane is not None:
            yield lane.tenant
            lane = lane.tenant.outer

    def reason(self, now: float) -> str | None:
        """Why it is passed over: "paused", "max_in_flight" or "rate"; None when it is not."""
        options = self.options
        if options.paused:
            return "paused"
        if options.max_in_flight is not None and self.all_in_flight >= options.max_in_flight:
            return "max_in_flight"
        return "rate" if options.rate is not None and self.free_at > now + _INSTANT else None

    @property
    def drops_head(self) -> bool:
        return self.options.is_limited and self.options.overflow in (None, DROP_HEAD)

    @property
    def all_in_flight(self) -> int:
        return self.inside + sum([lane.in_flight for lane in self.lanes])

    @property
    def waiting(self) -> int:
        return sum([lane.live for lane in self.lanes])

    @property
    def all_waiting_bytes(self) -> int:
        return sum([lane.waiting_bytes for lane in self.lanes])

    @property
    def is_empty(self) -> bool:
        """True when it has no entry."""
        lane: Lane | None = self
        while lane is not None:
            if lane.in_flight or lane.aside or lane.arrived or lane.far or lane.returned:
                return False
            lane = lane.another
        return not self.inside

    def cost_of_late(self, half_minute: float) -> float:
        """The cost of its service in this half minute and the one before."""
        return sum([lane.served_lately(half_minute) for lane in self.lanes])

    def is_over(self) -> bool:
        """True when it has more waiting than it may."""
        return is_over(self.options, self.waiting, self.all_waiting_bytes)


@dataclass(slots=True, init=False, eq=False, repr=False)
class OtherLane(Lane):
    """A tenant's lane of another level."""

    own: Tenant

    @property
    def tenant(self) -> Tenant:
        return self.own


AnyLane = TypeVar("AnyLane", Tenant, OtherLane)


def _new_lane(
    kind: type[AnyLane],
    ring: Ring,
    outer: Lane | None,
    level: int,
    options: TenantOptions,
    is_blocked: bool,
    half_minute: float,
) -> AnyLane:
    if level or options.priority or options.weight != 1:
        lane = kind(ring, weight=options.weight, priority=_ring_priority(level, options.priority))
    else:
        lane = kind(ring)  # as that would, for half
    lane.outer, lane.inner = outer, None  # of more than three a tuple would be made
    lane.level, lane.another, lane.is_blocked = level, None, is_blocked
    lane.arrived, lane.returned, lane.half_minute = (), _NONE_CAME_BACK, half_minute
    lane.holes = lane.far = lane.waiting_bytes = lane.in_flight = lane.aside = lane.served = 0
    lane.busy_since = lane.extra_cost = lane.served_before = lane.lately = 0.0
    if is_blocked:
        lane.leave()
    return lane


def is_over(options: TenantOptions, length: int, size: int) -> bool:
    """True when so much is more than a tenant may have waiting."""
    return (options.max_length is not None and length > options.max_length) or (
        options.max_length_bytes is not None and size > options.max_length_bytes
    )


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
        self._known: deque[Tenant] = deque()  # Invariant: all; first the one that was looked at longest ago
        self._next_look = math.inf  # when the next of them is looked at for its time
        self._left = 0  # to be looked at in the look that is going on
        self._half_minute = _LONG_AGO  # in which something was served last
        self.wakes: list[tuple[float, int, Tenant]] = []  # a heap of the times at which a rate lets one go on
        self._numbers = count()
        self._changed = changed  # options of a tenant's own that were changed since the declaration
        self._has_all = True  # Lanes have their entries. Of a queue that pages they count them: its source has these.
        self.misread: int = 0  # messages whose key, or cost, was not what it should be
        self._over: dict[Tenant, None] = {}  # those that may have more waiting than they may, and drop their heads
        # Of a ring: a heap with the longest lane of the lowest level, as they were once. Invariant: has each as it is.
        self._longest: list[tuple[int, int, int, Lane]] | None = None
        self._coming: dict[str, tuple[int, int]] = {}  # admitted, on their way to a store: messages and bytes
        self._find_limits()
        # As most tenants come; it never joins.
        self._usual = self._new_tenant("", 0, None, self.ring, options.each)
        slots = (*Lane.__slots__, *Tenant.__slots__)
        own = None if self._is_nested else dict(options.tenants)
        self._runs = Runs(FairEntry, Lane, self._usual, slots, self.by_name, self._known.append, own, changed)

    # -- entries

    def arrive(self, entries: Sequence[Any]) -> None:
        """New entries, which have their positions. What is held is told apart by `move`."""
        self._runs.arrive(entries, self._lane_for)
        self._look_in_time_if_many()
        for entry in () if self._is_plain else entries:
            self._look_at_length(entry.lane)

    def _lane_for(self, entry: Any) -> Lane:
        """The lane of an entry, which may be new; takes note of its cost."""
        key = entry.key
        if type(key) is str and not self._is_nested:
            return self._come(key, 0, None, self.ring)
        name, level, entry.cost, is_odd = fair_key(key)
        self.misread += is_odd
        return self.lane_of(name, level)

    def count(self, lane: Lane, count: int, size: int, *, is_aside: bool = False) -> None:
        """So many messages more wait that are no objects here, or fewer, with bodies of `size` bytes together; with
        `is_aside` they were held before, or are now.
        """
        had_some = lane.live > 0
        lane.far += count
        lane.waiting_bytes += size
        lane.aside -= count if is_aside else 0
        if (lane.live > 0) != had_some:
            if had_some:
                lane.leave()
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

    @staticmethod
    def _has_some(lane: Lane, now: float, enter: Callable[[], object]) -> None:
        """Something of a lane waits, which is to `enter` the ring."""
        lane.busy_since = now
        if not lane.is_blocked:
            enter()

    def _look_at_some(self, most: int) -> None:
        """Some of those that were looked at longest ago go, if they have no entries."""
        known = self._known
        for _ in range(min(most, len(known))):
            tenant = known.popleft()
            if tenant.children or not tenant.is_empty or tenant.full_at > self._clock():
                known.append(tenant)
                continue
            del self.by_name[tenant.name]
            for lane in tenant.lanes:
                self._forgotten(lane)
            tenant.another = None  # it refers to the tenant: without this cycle both are freed at once
            if tenant.outer is not None:
                tenant.outer.tenant.children -= 1

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

    def have_objects(self, *, has_all: bool) -> None:
        self._has_all = has_all
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
        if self._half_minute != (now := self._clock() // HALF_MINUTE):
            self._half_minute = self._usual.half_minute = now
        limits = self._limit_lane if self._is_counting else None
        return self._runs.take(run, most, most_bytes, self._half_minute, self.take, limits)

    def take(self, entry: Any) -> None:
        """It is delivered: charge its turn, unless it was at the delivery before."""
        lane, cost, half_minute = entry.lane, entry.cost, self._clock() // HALF_MINUTE
        self._take_out(lane, entry)
        lane.in_flight += 1
        entry.where = TAKEN
        entry.cost = -cost
        if lane.half_minute != half_minute:
            lane.enter_half_minute(half_minute)
        if cost > 0:
            lane.charge(cost)
            lane.served += 1
            lane.extra_cost += cost - 1
        if not lane.live:
            lane.leave()
        if self._is_counting:
            self._limit(lane.tenant)

    def _take_out(self, lane: Lane, entry: FairEntry) -> None:
        """It does not wait any more."""
        if lane.far:
            lane.far -= 1
        else:
            lane.take_out(entry)
        lane.waiting_bytes -= entry.size

    def _limit_lane(self, lane: Lane) -> None:
        self._limit(lane.tenant)

    def _limit(self, tenant: Tenant) -> None:
        """One delivery more: it, or one that it is nested in, may be at a limit now."""
        if not tenant.is_counted:
            return
        now = self._clock()
        for each in tenant.chain():
            options = each.options
            each.inside += each is not tenant
            if options.rate is not None:
                each.full_at = max(each.full_at, now) + 1 / options.rate
                each.free_at = each.full_at - (options.burst_size - 1) / options.rate
            self.look_at(each, now)

    def end(self, entries: Sequence[Any]) -> None:
        """They are gone for good."""
        if self._is_counting:
            for entry in entries:
                self._leave(entry)
        else:
            self._runs.end(entries, self._leave)
        if len(self._known) > _MANY_KNOWN:
            self._look_at_some(2 * len(entries))

    def _leave(self, entry: Any) -> None:
        self.move(entry, GONE)

    def move(self, entry: Any, where: int) -> None:
        """It waits, is held, or is taken aside, for good if it is GONE; never by a delivery."""
        before, lane = entry.where, entry.lane
        tenant: Tenant = lane.tenant
        had_some = lane.live > 0
        entry.where = where
        if before == WAITING:
            self._take_out(lane, entry)
        elif before == TAKEN:
            lane.in_flight -= 1
            for each in tenant.chain() if tenant.is_counted else ():
                each.inside -= each is not tenant
                if each.is_blocked:
                    self.look_at(each, self._clock())
        else:
            lane.aside -= 1
        if where in (HELD, ASIDE):
            lane.aside += 1
        if where == WAITING:
            if self._has_all:
                lane.put_back(entry)
            else:
                lane.far += 1
            lane.waiting_bytes += entry.size
            if not had_some:
                self._has_some(lane, self._clock(), lane.resume)
            if not self._is_plain:
                self._look_at_length(lane)
        elif had_some and not lane.live:
            lane.leave()

    # -- what one tenant may have waiting

    def _find_limits(self) -> None:
        """Look again whether any tenant has limits of its own."""
        tables: list[Mapping[str, object]] = [self._options.each.table(), *self._options.tenants.values()]
        tables += self._changed.values()
        self.may_be_capped: bool = any("max_in_flight" in table for table in tables)
        self._is_counting = self._is_nested or self.may_be_capped or any("rate" in table for table in tables)
        self._has_limits = any(name in table for table in tables for name in ("max_length", "max_length_bytes"))
        is_rejecting = any(str(table.get("overflow")).startswith("reject") for table in tables)
        self._is_plain = not self._has_limits and self._longest is None
        self.may_overflow: bool = self._has_limits
        self.may_refuse: bool = self._has_limits and is_rejecting

    def refusal(self, entry: Entry) -> Overflow | None:
        """The overflow policy by which a message that is to come is refused; None when it is not."""
        name = fair_key(entry.key)[0]
        tenant = self.by_name.get(name)
        options = self.options_of(name) if tenant is None else tenant.options
        if not options.is_limited or options.overflow in (None, DROP_HEAD):
            return None
        count, size = self._coming.get(name, (0, 0))
        if tenant is not None:
            count, size = count + tenant.waiting, size + tenant.all_waiting_bytes
        policy = Overflow.REJECT if options.overflow == REJECT else Overflow.REJECT_DEAD_LETTER
        return policy if is_over(options, count + 1, size + entry.size) else None

    def expect(self, entry: Entry, count: int) -> None:
        """It is admitted, and comes later; or, with -1, it comes now, or not at all."""
        if not self._has_limits and not self._coming:
            return
        name = fair_key(entry.key)[0]
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
                return max(lanes, key=lambda lane: lane.level)
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
        for lane in tenant.lanes:
            lane.is_blocked = reason is not None
            if lane.is_blocked:
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
        if self._next_look <= now:
            left = self._left or len(self._known) - _FEW
            self._look_at_some(min(left, _FEW))
            self._left = max(0, left - _FEW)
            if not self._left:
                self._look_in_time(now)
        return woken

    # -- tenants come, change and go

    def options_of(self, name: str) -> TenantOptions:
        if name in self._changed or name in self._options.tenants or self._is_nested:
            return self._options.options_of(name, self._own(name))
        return self._options.each

    def _own(self, name: str) -> Mapping[str, object]:
        own = self._changed.get(name)
        return self._options.tenants.get(name, {}) if own is None else own

    def note(self, name: str, changes: Mapping[str, object] | None, *, anew: bool) -> None:
        """Other options for a tenant, which it has after `follow`; None: as it was declared. Raises ValueError."""
        declared = self._options.tenants.get(name, {})
        before = declared if anew or changes is None else self._own(name)
        own = self._options.merged(name, before, {} if changes is None else changes)
        self._options.options_of(name, own)  # raises where they do not go together
        if own == declared:
            self._changed.pop(name, None)
        else:
            self._changed[name] = own

    def follow(self, name: str) -> None:
        """Let a tenant have its options as they are noted."""
        self._find_limits()
        tenant = self.by_name.get(name)
        if tenant is None:
            return
        options = tenant.options = self.options_of(name)
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
        if tenant is not None:
            for each in tenant.lanes:
                if each.level == level:
                    return each
        outer, ring, lane = None, self.ring, None
        if self._is_nested and "/" in name:
            outer = self.lane_of(name.rpartition("/")[0], level)
            ring = outer.inner = outer.inner or Ring(outer=outer)
        if tenant is not None:
            lane = _new_lane(OtherLane, ring, outer, level, tenant.options, tenant.is_blocked, self._half_minute)
            lane.own, lane.another, tenant.another = tenant, tenant.another, lane
            return lane
        return self._come(name, level, outer, ring)

    def _come(self, name: str, level: int, outer: Lane | None, ring: Ring) -> Tenant:
        """A new tenant, with a lane on one level."""
        tenant = self._new_tenant(name, level, outer, ring, self.options_of(name))
        if outer is not None:
            outer.tenant.children += 1
        self.by_name[name] = tenant
        self._known.append(tenant)
        self._look_in_time_if_many()
        return tenant

    def _new_tenant(self, name: str, level: int, outer: Lane | None, ring: Ring, options: TenantOptions) -> Tenant:
        tenant = _new_lane(Tenant, ring, outer, level, options, options.paused, self._half_minute)
        tenant.name, tenant.options = name, options
        tenant.children = tenant.inside = 0
        tenant.free_at = tenant.full_at = _LONG_AGO
        return tenant

    def _look_in_time_if_many(self) -> None:
        if self._next_look == math.inf and len(self._known) > _FEW:
            self._look_in_time(self._clock())

    def _look_in_time(self, now: float) -> None:
        """Look at all tenants in half a minute, if they are not few."""
        self._next_look = now + HALF_MINUTE if len(self._known) > _FEW else math.inf
        self._visit_by(self._next_look)

    def close(self) -> None:
        """The queue is deleted: forget all tenants now, and not when the collector finds them in the queue's cycles."""
        for tenant in self.by_name.values():
            for lane in list(tenant.lanes):
                lane.leave()
                lane.another = None
        self.by_name.clear()
        self._known.clear()
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
        total = sum(each.cost_of_late(half_minute) for each in leaves)
        weights = sum(each.options.weight for each in leaves)
        longest = sorted(leaves, key=lambda each: -each.waiting)
        shown = [
            TenantStatistics(
                name=each.name,
                waiting=each.waiting,
                waiting_bytes=each.all_waiting_bytes,
                in_flight=each.all_in_flight,
                served=sum([lane.served for lane in each.lanes]),
                served_cost=sum([lane.served_cost for lane in each.lanes]),
                longest_wait=max(
                    (now - entry.arrived_at for lane in each.lanes if (entry := lane.first) is not None), default=0.0
                ),
                share=each.cost_of_late(half_minute) / total if total else 0.0,
                fair_share=each.options.weight / weights,
                passed_over=next((why for one in each.chain() if (why := one.reason(now)) is not None), None),
                options=each.options,
            )
            for each in longest[:most]
        ]
        since = now - 2 * HALF_MINUTE
        busy = [each for each in leaves if any(lane.live and lane.busy_since <= since for lane in each.lanes)]
        shares = [
            each.cost_of_late(half_minute) / each.options.weight
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
        assert sorted(map(id, self._known)) == sorted(map(id, self.by_name.values()))
        assert len(self._known) <= _FEW or self._next_look < math.inf
        for lane in self.lanes():
            lane.check_invariants()
