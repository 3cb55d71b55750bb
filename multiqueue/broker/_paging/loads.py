"""The loader's side of paging: which load comes next, and what follows from its rows.

Promise     A load never makes anything wrong: its bytes are reserved before it begins, and all its rows are checked
            again on arrival. Each brings a list further, so loads end where nothing more is wanted.
State       Guarded by the memory manager's lock, which is not held while a load runs. No I/O in here: a `Load` says
            what to read, and `loaded` takes the rows. See "Loads" in docs/design/bounded-memory.md.
Source      "Durable Queue Memory Management" (Apache ActiveMQ), the eager loader. Reserving, checking again, and
            the scan are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from .._base.positions import END
from .lists import Paging
from .target_list import LEVEL_SHIFT, Account, Area, Look, Slot, TargetList, Windows

HEADER_BYTES: Final = 256  # what a header takes while its page is looked at
_LOAD_SHARE: Final = 1 / 16  # of the budget: what one load may reserve, apart from its first message
_LARGEST_LOAD: Final = 256  # bodies in one load: some 300 us of reading
_LARGEST_PAGE: Final = 500  # headers in one load: some 200 us of reading
_HEAD_SHARE: Final = 1 / 2  # of the budget: what the heads of all queues that were opened may take


@dataclass(slots=True, eq=False, repr=False)
class Span:
    """What a load looks at of one level: up to `limit` headers after a position, none beyond `through`.

    Who reads fewer lets it end `through` the last one."""

    level: int
    after: int
    through: int
    limit: int = 0


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Load(Look):
    """What to read for a list, without the lock: the messages it names, or more that it wants. Its bytes are
    reserved.
    """

    target: TargetList
    is_for_head: bool = False  # for the head cache: no consumer asks for it yet
    reserved: int = 0
    positions: list[int] = field(default_factory=list)  # what the list names and is to be read; then there are no spans
    # Where it looks for more, in which order, and what the bodies of the first of what it finds may cost.
    spans: list[Span] = field(default_factory=list)
    body_bytes: int = 0
    unbacked: list[Slot] = field(default_factory=list)  # in the spans, and not in the store when this was planned
    horizon_ms: int | None = None  # messages that are held until then, or longer, were not read


class Found(NamedTuple):
    """A message that a load has found for its list, with its payload if that was read."""

    position: int
    cost: int
    payload: object | None
    held_until_ms: int | None = None


@dataclass(slots=True, eq=False)
class _Refill:
    """A queue whose head is being read for consumers to come."""

    reader: TargetList  # names nothing and is none of the area's: what a load is for, where no consumer is
    left: int  # bytes that it may still take
    end: int  # where the last piece ended; the cache has given since if it ends before


@dataclass(eq=False)
class Loads:
    """The loads that feed the lists and caches of one virtual host."""

    _paging: Paging
    count: int = 0  # of loads that have begun
    _refills: dict[Area, _Refill] = field(default_factory=dict)

    # -- planning

    def next_load(self) -> Load | None:
        """The load that is needed most and for which there is room, or None."""
        self._paging.stirred = False
        for target in sorted(self._paging.wanting, key=lambda each: (not each.is_starving, each.direct_bytes)):
            load = self.load_for(target)
            if load is not None:
                return load
        return self._next_refill()

    def _begin(self, load: Load) -> Load:
        load.target.loading = True
        load.area.looks.append(load)
        self.count += 1
        return load

    def refill_heads(self, areas: Collection[Area]) -> None:
        """These were opened, and have no consumer yet."""
        share = int(self._paging.limit * _HEAD_SHARE) // max(len(areas), 1)
        readers = [TargetList(area, "consumers to come") for area in areas]
        self._refills = {each.area: _Refill(each, share, each.area.head_end) for each in readers}
        self._paging.stirred = self._paging.stirred or bool(areas)

    def _next_refill(self) -> Load | None:
        """A piece of the next queue in turn; none while a list wants something."""
        if self._paging.wanting:
            return None
        for area, refill in list(self._refills.items()):
            if refill.reader.loading:
                continue
            del self._refills[area]
            load = self._plan_refill(area, refill)
            if load is not None:
                self._refills[area] = refill  # behind the others
                return self._begin(load)
        return None

    def _plan_refill(self, area: Area, refill: _Refill) -> Load | None:
        """None when the queue is consumed or wholly read, or has what it may have, or the cache had to give."""
        if area.is_closed or area.lists or area.head_end < refill.end:
            return None
        reached = ((level, max(area.head_end, level << LEVEL_SHIFT)) for level in area.last)
        level, after = next(((level, after) for level, after in reached if after < area.last[level]), (-1, 0))
        body_bytes = min(refill.left, int(self._paging.limit * _LOAD_SHARE), self._paging.free // 2)
        limit = min(body_bytes // HEADER_BYTES, _LARGEST_PAGE)
        if level < 0 or limit < 1:
            return None
        load = Load(area, target=refill.reader, is_for_head=True)
        load.spans, load.body_bytes = [Span(level, after, area.last[level], limit)], body_bytes
        self._take(load, body_bytes + limit * HEADER_BYTES)
        self._note_unbacked(load)
        return load

    def load_for(self, target: TargetList) -> Load | None:
        """The load that this list needs now, None when it needs none, has one, or there is no room for it."""
        if target.loading or target.is_closed:
            return None
        load = self._plan(target)
        return None if load is None else self._begin(load)

    def _plan(self, target: TargetList) -> Load | None:
        self._raise_without_load(target)
        if target.windows is not None:
            return self._plan_by_key(target, target.windows)
        level = target.open_level
        is_behind = target.is_behind
        following = target.area.slots[target.mark].cost if target.mark < END else 0
        if not is_behind and target.direct and target.direct_bytes + following >= self._paging.high_water:
            level = None  # it has what it should have
        elif not is_behind and target.mark < END:
            return self._reserve(Load(target.area, target=target), self._bodies)
        if level is None:
            self._paging.wanting.pop(target, None)
            return None
        while is_behind and target.entries and not self._paging.may_grow(target):
            self._paging.cut_last(target)
        if not self._paging.may_grow(target):
            return None  # until somebody's entries go
        if self._is_in_memory(target, level) and self._take_from_head(target, level):
            return None if self._paging.first(target) is not None else self._plan(target)
        load = Load(target.area, target=target)
        load.spans = [Span(level, target.scans[level], target.area.last[level])]
        return self._reserve(load, self._page)

    def _plan_by_key(self, target: TargetList, windows: Windows) -> Load | None:
        """A load for the levels whose turns come next and that have little: some of each, in one reading."""
        paging, due = self._paging, windows.due
        if due is None and (not windows.low or target.direct_bytes >= paging.high_water):
            paging.wanting.pop(target, None)
            return None
        while due is not None and target.entries and not paging.may_grow(target):
            paging.cut_last(target)
        if not paging.may_grow(target):
            return None  # until somebody's entries go
        levels = [
            *(() if due is None else (due,)),
            *islice((each for each in windows.low if each != due), _LARGEST_LOAD),
        ]
        cost = windows.costs.get(levels[0])
        load, share = Load(target.area, target=target), paging.share_of_level(target)
        lines = int(paging.entries_left) // paging.entry_bytes
        is_first, most = target.is_starving, 1 if cost is not None else max(min(len(levels), lines), 1)
        each = 1 if cost is not None else max(min(share, _LARGEST_LOAD // most), 1)
        if target.selector is not None:
            each = max(each, _LARGEST_PAGE // most)
        body_bytes = max(min(int(paging.limit * _LOAD_SHARE), paging.high_water - target.direct_bytes), 0)
        while not self._take(load, most * each * HEADER_BYTES + (body_bytes if cost is None else cost), first=is_first):
            if most == each == 1 and not body_bytes:
                return None
            most, each, body_bytes = max(most // 4, 1), max(each // 4, 1), 0 if most == each == 1 else body_bytes // 4
        load.body_bytes = body_bytes if cost is None else cost
        load.spans = [Span(level, target.scans[level], target.area.last[level], each) for level in levels[:most]]
        self._note_unbacked(load)
        return load

    def _reserve(self, load: Load, choose: Callable[[Load, bool], None]) -> Load | None:
        choose(load, load.target.is_starving)
        return load if load.reserved else None

    def _take(self, load: Load, amount: int, *, first: bool = False) -> bool:
        if not self._paging.room(amount, first=first):
            return False
        self._paging.charge(Account.LOADING, amount)
        load.reserved += amount
        return True

    def _bodies(self, load: Load, first: bool) -> None:
        target, paging = load.target, self._paging
        position, coming = target.mark, target.direct_bytes
        while position < END and len(load.positions) < _LARGEST_LOAD:
            slot = target.area.slots[position]
            if slot.payload is None:
                coming += slot.cost
                enough = coming > paging.high_water or load.reserved + slot.cost > paging.limit * _LOAD_SHARE
                if load.positions and enough:
                    return
                if not self._take(load, slot.cost, first=first and not load.positions):
                    return
                load.positions.append(position)
            position = target.entries.at_or_after(position + 1)

    def _page(self, load: Load, first: bool) -> None:
        share = int(self._paging.limit * _LOAD_SHARE)
        (span,) = load.spans
        span.limit = min(max(share // HEADER_BYTES, 1), _LARGEST_PAGE)
        while not self._take(load, span.limit * HEADER_BYTES, first=first):
            if span.limit == 1:
                return
            span.limit = max(span.limit // 4, 1)
        if load.target.selector is None:
            load.body_bytes = min(share, self._paging.high_water - load.target.direct_bytes)
            if load.body_bytes <= 0 or not self._take(load, load.body_bytes):
                load.body_bytes = 0
        self._note_unbacked(load)

    def _note_unbacked(self, load: Load) -> None:
        """The messages that belong to a page and are in memory alone."""
        area = load.area
        for span in load.spans:
            unbacked = area.unbacked.between(span.after, span.through, span.limit + 1)
            if len(unbacked) > span.limit:
                span.through = unbacked[span.limit - 1]
            load.unbacked += [area.slots[position] for position in unbacked[: span.limit]]

    def _is_in_memory(self, target: TargetList, level: int) -> bool:
        """True when the head cache reaches beyond the scan. What a selector must be asked about is not meant."""
        reaches = min(target.area.head_end, target.area.last[level]) > target.scans[level]
        return reaches and target.selector is None and target.mark == END

    def _raise_without_load(self, target: TargetList) -> None:
        """Change the account of a message that is in memory already."""
        slots = target.area.slots
        while target.mark < END:
            slot = slots[target.mark]
            if slot.payload is None or (target.direct and target.direct_bytes + slot.cost > self._paging.high_water):
                return
            self._paging.raise_mark(target)
            self._paging.served[target] = None

    # -- taking what was read

    def loaded(self, load: Load, found: Iterable[Found]) -> None:
        """Take what a load has read, in order: the positions that matched, of those it looked at."""
        self._release(load)
        if self._refills:
            self._paging.stirred = True  # a queue may be next that has no demand
        try:  # a look until then: what goes meanwhile is known to have gone
            if not (load.target.is_closed or load.area.is_closed):
                self._take_found(load, found)
        finally:
            load.area.looks.remove(load)

    def failed(self, load: Load) -> None:
        """The load could not be done; it is planned again when its list is wanting again."""
        self._release(load)
        load.area.looks.remove(load)
        self._paging.wanting.pop(load.target, None)
        if load.is_for_head:
            self._refills.pop(load.area, None)

    def _release(self, load: Load) -> None:
        load.target.loading = False
        self._paging.charge(Account.LOADING, -load.reserved)
        load.reserved = 0

    def _take_found(self, load: Load, found: Iterable[Found]) -> None:
        target = load.target
        if load.horizon_ms is not None and load.horizon_ms <= load.area.near[0]:
            return  # what was not read may be near by now: it is planned again
        if load.is_for_head:
            self._take_head(load, load.spans[0], found)
            return
        if load.spans and target.windows is not None:
            if not self._take_windows(target, target.windows, load, found):
                self._paging.wanting.pop(target, None)  # until something leaves it, or it is another level's turn
                return
        elif load.spans:
            self._take_page(target, load.spans[0], found)
        else:
            self._take_bodies(load, {each.position: each for each in found})
        self._go_on(target)

    def _go_on(self, target: TargetList) -> None:
        """A list has got further: it may want more, and its consumers are told, also that there is nothing."""
        self._raise_without_load(target)
        self._paging.want(target)
        if self._paging.first(target) is not None or self._paging.is_at_end(target):
            self._paging.served[target] = None

    def _take_page(self, target: TargetList, span: Span, found: Iterable[Found]) -> None:
        level, through, area = span.level, span.through, target.area
        if target.scans[level] != span.after:
            return  # the list was cut meanwhile: what was read may leave a gap
        for position, cost, payload, held_until_ms in found:
            if not self._paging.is_ready(area, position):
                self._paging.note_match(target, area.slots.get(position))
                continue
            if held_until_ms is not None and (held_until_ms, position) > area.near:
                continue
            if not self._paging.room_for_entry(target):
                through = position - 1
                break
            slot = area.slots.get(position) or self._paging.new_slot(area, position, cost)
            target.scans[level] = position
            self._append(target, slot, payload)
        target.scans[level] = max(target.scans[level], through)

    def _take_windows(self, target: TargetList, windows: Windows, load: Load, found: Iterable[Found]) -> bool:
        """As `_take_page`, of a list by key: a level's messages as far as they were read whole; False if none was."""
        due, has_moved = windows.due, False
        area, paging = load.area, self._paging
        scans = {span.level: target.scans[span.level] for span in load.spans}
        by_level: dict[int, list[Found]] = {}
        for each in found:
            by_level.setdefault(each.position >> LEVEL_SHIFT, []).append(each)
        for span in load.spans:
            level, through, before = span.level, span.through, target.scans[span.level]
            has_moved = has_moved or (level in area.last and scans[level] != span.after)
            is_taken = level in area.last and before == span.after  # else it was cut, or forgotten
            reached = before if is_taken else END
            for position, cost, payload, held_until_ms in by_level.get(level, ()):
                slot = area.slots.get(position)
                if not is_taken or not paging.is_ready(area, position):
                    paging.note_match(target, slot)
                    continue
                if held_until_ms is not None and (held_until_ms, position) > area.near:
                    continue
                if payload is None and (slot is None or slot.payload is None):
                    has_moved = has_moved or (level == due and windows.costs.get(level) != cost)
                    windows.costs[level] = cost
                elif paging.room_for_entry(target):
                    slot = slot or paging.new_slot(area, position, cost)
                    if paging.insert_by_key(target, windows, slot, payload):
                        windows.costs.pop(level, None)
                        paging.served[target] = None
                        reached = target.scans[level] = position
                        continue
                is_taken, through = False, position - 1
            if level in area.last and target.scans[level] == reached:  # else it gave way for what was taken
                target.scans[level] = max(reached, through)
            if level in area.last:
                windows.low.pop(level, None)  # behind the others, if it is low still
                paging.note(target, windows, level)
        # At the end: what one level was given may have gone for a message of another, which had no room all the same.
        return has_moved or any(level in area.last and target.scans[level] != scan for level, scan in scans.items())

    def _take_from_head(self, target: TargetList, level: int) -> bool:
        """Go on as far as the head cache reaches, some hundred messages at most; False when there is no room.

        All that is ready up to there has a slot: it is in the cache, on other lists, or not in the store yet.
        """
        area, after = target.area, target.scans[level]
        others = [each for each in area.lists if each is not target]
        known = [area.head, area.unbacked, *(other.entries for other in others)]
        through = min(each.at_or_after(after + 1) for each in known) + _LARGEST_PAGE
        through = min(through, area.head_end, area.last[level])
        positions = sorted({position for each in known for position in each.between(after, through)})
        found = [Found(each, area.slots[each].cost, None) for each in positions]
        self._take_page(target, Span(level, after, through), found)
        if target.scans[level] == after:
            return False
        self._go_on(target)
        return True

    def _take_head(self, load: Load, span: Span, found: Iterable[Found]) -> None:
        """Let the head cache go on over what was read, as far as there are bytes that no list wants."""
        area, through = load.area, span.through
        refill = self._refills.pop(area, None)
        if refill is None or area.lists or max(area.head_end, span.level << LEVEL_SHIFT) != span.after:
            return  # somebody consumes it meanwhile, or the cache was cut
        for position, cost, payload, held_until_ms in found:
            is_far = held_until_ms is not None and (held_until_ms, position) > area.near
            if is_far or not self._paging.is_ready(area, position):
                continue
            slot = area.slots.get(position)
            if slot is None and payload is not None and cost <= min(self._paging.free, refill.left):
                area.head_end = position
                refill.left -= cost
                self._paging.place(self._paging.new_slot(area, position, cost), payload)
            elif slot is None or slot.payload is None:
                through = position - 1
                break
        area.head_end = max(area.head_end, through)
        if area.head_end > refill.end:  # else its next message is larger than what there is for it
            refill.end = area.head_end
            self._refills[area] = refill

    def _append(self, target: TargetList, slot: Slot, payload: object | None) -> None:
        before = target.direct
        self._paging.insert(target, slot, payload)
        if target.direct > before:
            self._paging.served[target] = None

    def _take_bodies(self, load: Load, payloads: Mapping[int, Found]) -> None:
        target = load.target
        for position in load.positions:
            slot = load.area.slots.get(position)
            if slot is None or slot.in_flight or position not in target.entries:
                continue
            if slot.payload is None:
                found = payloads.get(position)
                if found is None:  # the row is no message, or its reader would have said so: it is passed over
                    for each in slot.area.lists:
                        self._paging.unlink(each, position)
                    continue
                if not self._paging.room(slot.cost):
                    return
                self._paging.place(slot, found.payload)
            if target.mark == position:
                self._raise_without_load(target)
