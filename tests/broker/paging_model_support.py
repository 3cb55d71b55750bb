"""An area, its store and its consumers as plain lists, and an oracle that recounts everything by itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from broker_parts_support import (
    END,
    HEADER_BYTES,
    LEVEL_SHIFT,
    Account,
    Area,
    Found,
    Load,
    Loads,
    Paging,
    Share,
    Slot,
    TargetList,
    budget,
    lists,
)

from multiqueue.broker import ConsumerNotAdmitted

ENTRY_BYTES = 96
COLOURS = ("red", "green", "blue")
Wants = Callable[[str], bool]


@dataclass
class Row:
    """A message as the model knows it."""

    position: int
    size: int
    colour: str
    state: str = "ready"  # or "taken", "settled"
    visible: bool = True  # a page of the store shows it
    returned: bool = False
    owner: str | None = None

    @property
    def content(self) -> tuple[int, str]:
        return self.position, self.colour


@dataclass
class Consumer:
    """A target list with what the model knows of it."""

    target: TargetList
    colours: tuple[str, ...] | None
    share: Share
    credit: int
    delivered: list[Row] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def wants(self, row: Row) -> bool:
        return self.colours is None or row.colour in self.colours


@dataclass
class Flight:
    """A load under way: what it had reserved, and what it has read when it has read."""

    load: Load
    reserved: int
    found: list[Found] | None = None


class PagingModel:
    """Drives `Paging` by events, and knows what must be true after each."""

    def __init__(self, limit: int = 4000, levels: int = 1, *, is_keyed: bool = False) -> None:
        self.limit = self.highest_limit = limit
        self.paging = Paging(limit, ENTRY_BYTES)
        self.loads = Loads(self.paging)
        self.area = Area("model", levels, is_keyed)
        self.rows: dict[int, Row] = {}
        self.consumers: list[Consumer] = []
        self.flights: list[Flight] = []
        self.dying: list[Row] = []  # settled, and the store has not committed that
        self.kept: set[int] = set()  # positions of what no store can keep
        self.number = 0
        self.names = 0
        self.served: dict[int, int] = {}  # of an area by key: when each level was served last

    # -- events

    def publish(self, size: int = 100, colour: str = "red", *, level: int = 0, backed: bool = True) -> Row:
        self.number += 1
        row = Row(level << LEVEL_SHIFT | self.number, size, colour, visible=backed)
        if not backed and not self.paging.room(size, first=True):
            return self.publish(size, colour, level=level)
        self.rows[row.position] = row
        before = self.paging.amounts[Account.HEAD]
        self.paging.arrive(self.area, row.position, size, row.content, backed=backed)
        self._check_linked(row, before)
        self.check()
        return row

    def adopt_taken(self, size: int, *, backed: bool) -> None:
        """A message of a queue that begins to page: somebody has it already."""
        if not self.paging.room(size + ENTRY_BYTES, first=True):
            return
        self.number += 1
        row = Row(self.number, size, "red", state="taken", visible=backed, owner="somebody")
        self.rows[row.position] = row
        self.paging.arrive_taken(self.area, row.position, size, row.content, None, backed=backed)
        self.check()

    def keep(self, row: Row) -> None:
        """No store can keep a message that is only in memory."""
        self.kept.add(row.position)
        self.paging.writing_failed(self.area, row.position, for_good=True)
        self.check()

    def open(self, count: int, size: int, colour: str, levels: int = 1) -> None:
        """Messages that the store had when the queue was opened, and no consumer has seen yet."""
        for index in range(count):
            self.number += 1
            level = index * levels // count
            row = Row(level << LEVEL_SHIFT | self.number, size, colour, visible=True)
            self.rows[row.position] = row
            self.area.last[level] = row.position
        self.refill()

    def refill(self) -> None:
        """The head is to be read."""
        self.loads.refill_heads([] if self.area.is_keyed else [self.area])
        self.check()

    def back(self, row: Row) -> None:
        """The store has committed a message that was only in memory."""
        row.visible = row.state != "settled"
        self.paging.backed(self.area, row.position)
        self.check()

    def join(self, colours: tuple[str, ...] | None = None, *, browses: bool = False, credit: int = 1) -> Consumer:
        """One that there is room for."""
        consumer = self.try_join(colours, browses=browses, credit=credit)
        assert consumer is not None
        return consumer

    def try_join(self, colours: tuple[str, ...] | None, *, browses: bool, credit: int) -> Consumer | None:
        self.names += 1
        share = Share(credit)
        try:
            target = self.paging.join(
                self.area, f"c{self.names}", share, selector=None if colours is None else bool, browses=browses
            )
        except ConsumerNotAdmitted:
            return None
        consumer = Consumer(target, colours, share, credit)
        self.consumers.append(consumer)
        self.paging.set_hungry(target, True)
        self.check()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.paging.leave(consumer.target)
        self.check()

    def clear_leaving(self) -> None:
        """A loader lets go of some of what a list names that has left."""
        self.paging.clear_leaving()
        self.check()

    def set_hungry(self, consumer: Consumer, hungry: bool) -> None:
        self.paging.set_hungry(consumer.target, hungry)
        self.check()

    def set_limit(self, limit: int) -> None:
        self.limit, self.highest_limit = limit, max(limit, self.highest_limit)
        self.paging.set_limit(limit)
        self.check()

    def take(self, consumer: Consumer, *, settles: bool = False) -> Row | None:
        """What the consumer is given first, if anything of its list is in memory; it may settle it at once.

        The message is ready, and its body is what was published (bounded-memory 6, 7).
        """
        slot = self.first(consumer)
        if slot is None:
            return None
        row = self.rows[slot.position]
        assert row.state == "ready", f"promise 6: {row} was given to {consumer.target.label}"
        assert slot.payload == row.content, f"promise 7: {slot.payload} instead of {row.content}"
        assert consumer.wants(row), f"{row} does not suit {consumer.target.label}"
        self._check_order(consumer, row)
        self.served[row.position >> LEVEL_SHIFT] = len(self.served) + max(self.served.values(), default=0)
        if consumer.target.browses:
            assert row.position not in consumer.seen, f"browsed twice: {row}"
            consumer.seen.add(row.position)
            self.paging.refuse(consumer.target, row.position)
        elif settles:
            assert self.paging.consume(self.area, row.position, row.size), f"promise 6: {row} is gone"
            self._settled(row)
        else:
            room = self.paging.take(self.area, row.position, row.size, slot.payload, consumer.share)
            assert room, "no room for its record"
            row.state, row.owner = "taken", consumer.target.label
            consumer.delivered.append(row)
        self.check()
        return row

    def first(self, consumer: Consumer) -> Slot | None:
        """What a consumer is given: of an area by key, of the level whose turn it is, which waits for that."""
        if not self.area.is_keyed:
            return self.paging.first(consumer.target)
        for level in self._levels_with_work(consumer):
            return self.paging.first_of(consumer.target, level)
        return None

    def _levels_with_work(self, consumer: Consumer) -> list[int]:
        """The levels with something for a consumer, the one that was served last at the end."""
        rows = [row for row in self.ready() if consumer.wants(row) and self._may_see(consumer, row)]
        return sorted({row.position >> LEVEL_SHIFT for row in rows}, key=lambda level: self.served.get(level, -1))

    @staticmethod
    def _may_see(consumer: Consumer, row: Row) -> bool:
        return not consumer.target.browses or (row.position not in consumer.seen and not row.returned)

    def forget(self, level: int) -> None:
        """A level of an area by key has nothing that is ready or taken."""
        if not any(row.position >> LEVEL_SHIFT == level and row.state != "settled" for row in self.rows.values()):
            self.paging.forget_level(self.area, level)
            self.check()

    def seize(self, row: Row) -> bool:
        """Somebody takes a ready message that may be on the disk only."""
        taken = self.paging.take(self.area, row.position, row.size, None)
        if taken:
            row.state, row.owner = "taken", "management"
        self.check()
        return taken

    def settle(self, row: Row) -> None:
        self.paging.settle(self.area, row.position)
        self._settled(row)
        self.check()

    def _settled(self, row: Row) -> None:
        row.state = "settled"
        if row.visible:
            self.dying.append(row)

    def requeue(self, row: Row, *, with_body: bool = True) -> None:
        row.state, row.owner, row.returned = "ready", None, True
        self.paging.requeue(self.area, row.position, row.content if with_body else None)
        self.check()

    def commit_deletes(self) -> None:
        for row in self.dying:
            row.visible = False
            self.paging.deleted(row.position & (1 << LEVEL_SHIFT) - 1)
        self.dying.clear()
        self.check()

    # -- loads, in three steps: plan, read, bring

    def plan(self) -> bool:
        load = self.loads.next_load()
        if load is None:
            self.check()
            return self.paging.stirred  # a list took what memory has, and may want more
        self.flights.append(Flight(load, load.reserved))
        self.check()
        return True

    def read(self, flight: Flight) -> None:
        load = flight.load
        if load.spans:
            self._read_pages(flight)
            return
        rows = [self.rows[position] for position in load.positions if self.rows[position].visible]  # others are gone
        flight.found = [Found(row.position, row.size, row.content) for row in rows]

    def _read_pages(self, flight: Flight) -> None:
        load = flight.load
        consumer = self._consumer(load.target)
        positions: list[int] = []
        for span in load.spans:
            visible = sorted(row.position for row in self.rows.values() if row.visible and row.position > span.after)
            page = [position for position in visible if position >> LEVEL_SHIFT == span.level][: span.limit]
            span.through = min(page[-1] if len(page) == span.limit else span.through, span.through)
            here = {*page, *(each.position for each in load.unbacked if each.position >> LEVEL_SHIFT == span.level)}
            positions += sorted(position for position in here if position <= span.through)
        flight.found, room = [], load.body_bytes
        for position in positions:
            row = self.rows[position]
            if not load.is_for_head and (consumer is None or not consumer.wants(row)):
                continue
            room -= row.size
            flight.found.append(Found(position, row.size, row.content if room >= 0 else None))
        flight.found.sort()

    def bring(self, flight: Flight) -> None:
        if flight.found is None:
            self.read(flight)
        assert flight.found is not None
        self.flights.remove(flight)
        self.loads.loaded(flight.load, flight.found)
        self.check()

    def quiesce(self, most: int = 10_000) -> int:
        """Run loads until there are none; returns how many that took."""
        steps = 0
        while self.paging.leaving:
            self.clear_leaving()
        while True:
            while self.flights:
                self.bring(self.flights[0])
            if not self.plan():
                break
            steps += 1
            assert steps <= most, "the loader does not come to an end"
        self.check_progress()
        return steps

    # -- the oracle

    def check(self) -> None:
        """By the model's own knowledge and a recount of what is in memory (bounded-memory 1, 2, 3, 4, 5, 9)."""
        paging, slots = self.paging, self.area.slots
        recount = dict.fromkeys(Account, 0)
        for position, slot in slots.items():
            if slot.payload is not None:
                recount[self._account_of(position)] += self.rows[position].size
        recount[Account.LOADING] = sum(flight.reserved for flight in self.flights)
        taken = sum(row.state == "taken" for row in self.rows.values())
        lines = sum(len(list(each.entries)) for each in self.area.lists)
        most = max(self.limit, self.highest_limit) // 4 // ENTRY_BYTES + len(self.area.lists)
        assert lines <= most, f"{lines} entries take more than their share of {most}"
        recount[Account.ENTRIES] = ENTRY_BYTES * (taken + lines)
        recount[Account.NOWHERE] = 0
        for account in Account:
            assert paging.amounts[account] == recount[account], f"promise 2: {account.name} {paging.amounts} {recount}"
        assert sum(recount.values()) == paging.used
        assert sum(recount.values()) <= self.limit, f"promise 1: {recount} of {self.limit}"
        for consumer in self.consumers:
            self._check_list(consumer)
        self._check_head()
        have = [sum(row.owner == each.target.label for row in self.taken()) for each in self.consumers]
        unused = sum(max(each.credit - held, 0) for each, held in zip(self.consumers, have, strict=True))
        assert paging.unused == unused, f"{paging.unused} records are set aside, and {unused} may come"

    def _account_of(self, position: int) -> Account:
        row = self.rows[position]
        if position in self.area.unbacked:
            return Account.UNPAGED if position in self.kept else Account.WRITING
        if row.state == "taken":
            return Account.DISPATCHED
        holders = self.area.lists
        if any(position in target.entries and position < target.mark for target in holders):
            return Account.TARGET
        if any(position in target.entries for target in holders):
            return Account.PENDING
        return Account.HEAD

    def _check_list(self, consumer: Consumer) -> None:
        target = consumer.target
        entries = list(target.entries)
        assert entries == sorted(set(entries)), "promise 4: out of order"
        direct = [position for position in entries if position < target.mark]
        assert all(self.area.slots[position].payload is not None for position in direct), "promise 3: not a prefix"
        assert target.mark == END or target.mark in entries, "promise 3: the watermark is no entry"
        sizes = sum(self.rows[position].size for position in direct)
        assert (target.direct, target.direct_bytes) == (len(direct), sizes), "promise 3: miscounted"
        high_water = self.limit // 2 // len(self.consumers)
        assert len(direct) <= 1 or sizes <= high_water, "promise 9: above the high-water mark"
        for position in entries:
            row = self.rows[position]
            assert row.state == "ready", f"promise 4: {row} is listed"
            assert position <= target.scans[position >> LEVEL_SHIFT], f"promise 4: {row} is beyond the scan"
        if target.browses:
            return  # it does not see what comes back
        for row in self.rows.values():
            passed = row.position <= target.scans[row.position >> LEVEL_SHIFT]
            if row.state == "ready" and passed and consumer.wants(row):
                assert row.position in entries, f"promise 5: {row} was overlooked by {target.label}"

    def _check_head(self) -> None:
        listed = {position for each in self.area.lists for position in each.entries}
        for row in self.rows.values():
            if row.state == "ready" and row.position <= self.area.head_end and row.position not in listed:
                slot = self.area.slots.get(row.position)
                payload = None if slot is None else slot.payload
                assert payload is not None, f"the head cache has a gap at {row}"
        for position, slot in self.area.slots.items():
            row = self.rows[position]
            known = row.state == "taken" or position in listed or slot.payload is not None
            assert known, f"{slot!r} is kept for nobody"

    def _check_linked(self, row: Row, head_before: int) -> None:
        """While a list is refused room for a message, the head cache keeps nothing (bounded-memory 11)."""
        slot = self.area.slots.get(row.position)
        if slot is not None and slot.lists and slot.payload is None and row.size <= head_before:
            assert self.paging.amounts[Account.HEAD] == 0, "promise 11: the head cache did not give to a list"

    def _check_order(self, consumer: Consumer, row: Row) -> None:
        for earlier in self.rows.values():
            if self.area.is_keyed and earlier.position >> LEVEL_SHIFT != row.position >> LEVEL_SHIFT:
                continue
            better = earlier.position < row.position and earlier.state == "ready" and consumer.wants(earlier)
            if better and (not consumer.target.browses or not earlier.returned):
                assert earlier.position in consumer.seen, f"promise 9: {row} before {earlier}"

    def check_progress(self) -> None:
        """No consumer with credit has nothing while something is there for it that fits (bounded-memory 8)."""
        for consumer in self.consumers:
            if consumer.target.hungry and self.first(consumer) is None:
                while self.area.is_keyed and self.plan():  # it may have asked for another level only now
                    while self.flights:
                        self.bring(self.flights[0])
                if self.area.is_keyed and self.first(consumer) is not None:
                    continue
                for row in self.rows.values():
                    idle = row.state == "ready" and consumer.wants(row) and row.position not in consumer.seen
                    if consumer.target.browses and row.returned:
                        continue
                    if idle and self._can_give(consumer) >= max(HEADER_BYTES, row.size) + ENTRY_BYTES:
                        raise AssertionError(f"promise 8: {consumer.target.label} starves beside {row}")

    def _can_give(self, consumer: Consumer) -> int:
        """What is left for a consumer when everybody has given: not what is taken, what only memory has, nor the first
        message of a consumer with credit. Consumers take more in here than they were admitted for. One for whom
        nothing is set aside waits while what is taken has three eighths of the budget."""
        kept = self.paging.amounts[Account.WRITING] + self.paging.amounts[Account.UNPAGED]
        kept += ENTRY_BYTES * len(self.taken())
        for other in self.consumers:
            target = other.target
            lines = len(target.entries) if target.browses else min(len(target.entries), 1)
            kept += ENTRY_BYTES * lines
            if other is not consumer and target.hungry and target.direct:
                kept += self.rows[target.entries.first].size
        is_to_wait = not consumer.credit and ENTRY_BYTES * len(self.taken()) >= self.limit * 3 / 8
        return 0 if is_to_wait and not consumer.target.browses else self.limit - kept

    def end(self) -> None:
        """With everything settled and no consumer there, nothing is charged (bounded-memory 10)."""
        self.quiesce()
        while self.consumers:
            self.leave(self.consumers[0])
        while self.paging.leaving:
            self.clear_leaving()
        for row in self.taken():
            self.settle(row)
        for position in [*self.area.unbacked]:
            if position not in self.kept:
                self.back(self.rows[position])  # until then they may fill the memory, with no room for anybody's record
        for row in self.ready():
            assert self.seize(row)
            self.settle(row)
        self.commit_deletes()
        self.check()
        assert self.paging.amounts == [0] * len(Account), f"promise 10: {self.paging.amounts}"
        assert not self.area.slots
        assert not self.paging.deleting

    def _consumer(self, target: TargetList) -> Consumer | None:
        return next((each for each in self.consumers if each.target is target), None)

    def ready(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "ready"]

    def taken(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "taken"]


def random_history(seed: int, steps: int = 150, levels: int = 1, *, is_keyed: bool = False) -> None:
    """A history of random events with the oracle after every one, ended by I8 and I10."""
    random_ = random.Random(seed)
    with slices_of(random_.choice([2, 256])):
        _random_history(random_, steps, levels, is_keyed)


@contextmanager
def slices_of(size: int) -> Iterator[None]:
    """A block in which a list that has left lets go of so many messages at once."""
    before = budget.SLICE
    budget.SLICE = lists.SLICE = size  # type: ignore[misc]
    try:
        yield
    finally:
        budget.SLICE = lists.SLICE = before  # type: ignore[misc]


def _random_history(random_: random.Random, steps: int, levels: int, is_keyed: bool) -> None:
    model = PagingModel(limit=random_.choice([3000, 4000, 8000]), levels=levels, is_keyed=is_keyed)
    limit = model.limit
    if random_.random() < 0.5:
        model.open(random_.randrange(1, 60), random_.choice([10, 60, 150, 400]), random_.choice(COLOURS), levels)
    for _ in range(steps):
        _step(model, random_, limit, levels)
    model.set_limit(limit)
    model.end()


def _step(model: PagingModel, random_: random.Random, limit: int, levels: int) -> None:
    event = random_.choices(_EVENTS, _WEIGHTS)[0]
    consumer = random_.choice(model.consumers) if model.consumers else None
    taken, ready, flights = model.taken(), model.ready(), model.flights
    if event == "publish":
        backed = random_.random() < 0.9
        level = random_.randrange(levels)
        model.publish(random_.choice([10, 60, 150, 400]), random_.choice(COLOURS), level=level, backed=backed)
    elif event == "flood":
        colour = random_.choice(COLOURS)
        for _ in range(random_.randrange(20)):
            model.publish(1, colour)
    elif event == "grab" and consumer is not None:
        for _ in range(random_.randrange(20)):
            model.plan()
            while flights:
                model.bring(flights[0])
            model.take(consumer)
    elif event == "back" and model.area.unbacked:
        model.back(model.rows[random_.choice(list(model.area.unbacked))])
    elif event == "join" and len(model.consumers) < 5:
        colours = random_.choice([None, ("red",), ("green", "blue"), ("violet",)])
        model.try_join(colours, browses=random_.random() < 0.2, credit=random_.randrange(3))
    elif event == "leave" and consumer is not None:
        model.leave(consumer)
    elif event == "clear":
        model.clear_leaving()
    elif event == "hungry" and consumer is not None:
        model.set_hungry(consumer, random_.random() < 0.7)
    elif event == "take" and consumer is not None:
        model.take(consumer)
    elif event == "consume" and consumer is not None:
        model.take(consumer, settles=True)
    elif event == "seize" and ready:
        model.seize(random_.choice(ready))
    elif event == "settle" and taken:
        model.settle(random_.choice(taken))
    elif event == "requeue" and taken:
        model.requeue(random_.choice(taken), with_body=random_.random() < 0.5)
    elif event == "commit":
        model.commit_deletes()
        if model.area.is_keyed:
            model.forget(random_.randrange(levels))
    elif event == "plan" and len(flights) < 3:
        model.plan()
    elif event == "read" and flights:
        model.read(random_.choice(flights))
    elif event == "bring" and flights:
        model.bring(random_.choice(flights))
    elif event == "quiesce":
        model.quiesce()
    elif event == "refill":
        model.refill()


_WEIGHTED = {
    "publish": 20,
    "flood": 1,
    "grab": 1,
    "back": 6,
    "join": 5,
    "clear": 3,
    "leave": 3,
    "hungry": 3,
    "take": 14,
    "consume": 3,
    "seize": 2,
    "settle": 8,
    "requeue": 5,
    "commit": 3,
    "plan": 14,
    "read": 6,
    "bring": 12,
    "quiesce": 2,
    "refill": 2,
}
_EVENTS, _WEIGHTS = list(_WEIGHTED), list(_WEIGHTED.values())
