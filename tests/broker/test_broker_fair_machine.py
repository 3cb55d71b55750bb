"""The fair queue against a model, and the bound of its turns, for any options and any sequence of operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pytest
from broker_parts_support import PlainRuns, tenants
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_support import examples

from multiqueue.broker import BrokerQueue, Credit, Entry, Governing, Message, Overflow, QueueConsumer, QueueSettings
from multiqueue.testing import FakeClock

TENANTS = ("a", "b", "c", "")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weights": {"a": 3, "b": 0.5}},
    "cost": {"cost": "header:cost"},
    "in flight": {"max_in_flight": 1, "tenants": {"b": {"max_in_flight": None}}},
    "rate": {"rate": 0.5, "burst": 2},
    "priority": {"tenants": {"a": {"priority": 5}}, "weights": {"b": 2}},
    "drop head": {"max_length": 2},
    "reject": {"max_length": 2, "overflow": "reject-publish", "tenants": {"a": {"overflow": "reject-publish-dlx"}}},
    "bytes": {"tenants": {"a": {"max_length_bytes": 3}, "b": {"max_length_bytes": 0, "overflow": "reject-publish"}}},
    "nested": {"key": ["header:firm", "header:tenant"], "weights": {"x": 2, "x/a": 2}},
    "nested limits": {"key": ["header:firm", "header:tenant"], "tenants": {"x": {"max_in_flight": 2}}, "rate": 1},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "levels": {"max_priority": 1},
    "ring": {"max_length": 5, "overflow": Overflow.RING},
    "attempts": {"max_delivery_attempts": 3},
}
CHANGES: list[dict[str, Any]] = [{"max_in_flight": 1}, {"max_in_flight": None}, {"priority": 2}]
MESSAGES = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(TENANTS),
        "firm": st.sampled_from(["x", "y"]),
        "cost": st.sampled_from([1, 1, 3, 0.5]),
        "color": st.sampled_from(["red", "blue"]),
        "priority": st.sampled_from([0, 0, 1]),
        "ttl": st.sampled_from([None, None, None, 5.0]),
        "delay": st.sampled_from([None, None, None, 3.0]),
    }
)


@dataclass(eq=False)
class Item:
    """A message as the model sees it."""

    number: int
    names: tuple[str, ...]  # of its tenant, the outermost first
    level: int
    cost: float
    color: str
    is_waiting: bool
    owner: object = None
    is_charged: bool = False  # at the last delivery
    refused_by: frozenset[object] = frozenset()


def with_tenants_that_go(few: bool) -> pytest.MonkeyPatch:
    """With `few`, a queue remembers few tenants that have nothing, so that they go."""
    patch = pytest.MonkeyPatch()
    if few:
        patch.setattr(tenants, "_FEW", 1)
        patch.setattr(tenants, "_MANY_KNOWN", 2)
    return patch


class FairMachine(RuleBasedStateMachine):
    """After each delivery: it is its tenant's first, no better level was passed over, and the shares keep the bound."""

    @initialize(option=st.sampled_from(sorted(OPTIONS)), setting=st.sampled_from(sorted(SETTINGS)), few=st.booleans())
    def begin(self, option: str, setting: str, few: bool) -> None:
        self.patch = with_tenants_that_go(few)
        self.clock = FakeClock(1000.0)
        self.options = OPTIONS[option]
        kind_options = None if option == "plain" else self.options
        self.queue = BrokerQueue(
            "q",
            settings=QueueSettings(kind="fair", kind_options=kind_options, **SETTINGS[setting]),
            clock=self.clock,
            dead_letter=lambda queue, message, reason: self.dead.append(message.body),
            on_error=lambda queue, action, error: pytest.fail(f"{action}: {error!r}"),
        )
        self.is_nested, self.has_levels = "key" in self.options, setting == "levels"
        self.items: list[Item] = []
        self.dead: list[object] = []
        self.own: dict[str, dict[str, Any]] = {}
        self.taken: list[tuple[Entry, Item, QueueConsumer]] = []
        self.starts: dict[tuple[str, ...], list[float]] = {}
        # Of two that could both be served since then: what the one was served more than the other, by cost / weight.
        self.leads: dict[tuple[tuple[int, str], tuple[int, str]], float] = {}
        self.greatest = 0.0
        self.obliged: set[QueueConsumer] = set()
        self.consumers = [self._consumer(), self._consumer(), self._consumer("red"), self._consumer(credit=2)]

    def _consumer(self, color: str | None = None, credit: int | None = None) -> QueueConsumer:
        consumer = self.queue.add_consumer(
            self.obliged.add,
            selector=None if color is None else (lambda message: message.headers["color"] == color),
            credit=None if credit is None else Credit(credit),
            tag=color or "",
        )
        self.queue.set_notify_work_desired(consumer, True)
        return consumer

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    # -- the model

    def _option(self, name: str, what: str, usual: Any) -> Any:
        is_whole = not self.is_nested or "/" in name
        for table in (self.own.get(name, {}), self.options.get("tenants", {}).get(name, {})):
            if what in table:
                return table[what]
        if what == "weight":
            return self.options.get("weights", {}).get(name, 1)
        return self.options.get(what, usual) if is_whole else usual

    def _is_open(self, item: Item) -> bool:
        return not any(self._is_limited(name) for name in item.names)

    def _is_limited(self, name: str) -> bool:
        if self._option(name, "paused", False):
            return True
        cap = self._option(name, "max_in_flight", None)
        if cap is not None and sum(each.owner is not None and name in each.names for each in self.items) >= cap:
            return True
        rate = self._option(name, "rate", None)
        return rate is not None and self.tokens(name, rate) < 1 - 1e-6

    def tokens(self, name: str, rate: float) -> float:
        burst = self._option(name, "burst", None) or max(1, int(rate))
        left, last = float(burst), -1e9
        for when in self.starts.get((name,), []):
            left, last = min(burst, left + rate * (when - last)) - 1, when
        return float(min(burst, left + rate * (self.clock() - last)))

    def _sync(self) -> None:
        """What time and limits did, the queue shows: see which are still there, and which wait."""
        self.queue.housekeeping()
        entries = {entry.message.body: entry for entry in self.queue.life.walk.entries}  # type: ignore[attr-defined]
        self.items = [item for item in self.items if item.number in entries]
        for item in self.items:
            item.is_waiting = entries[item.number].state == 0
        waiting = [item for item in self.items if item.is_waiting and item.owner is None and self._is_open(item)]
        open_now = {(item.level, item.names[-1]) for item in waiting}
        self.leads = {pair: lead for pair, lead in self.leads.items() if open_now.issuperset(pair)}

    def _ready(self, consumer: QueueConsumer) -> list[Item]:
        return [
            item
            for item in self.items
            if item.is_waiting
            and item.owner is None
            and self._is_open(item)
            and (consumer.selector is None or item.color == consumer.tag)
            and consumer not in item.refused_by
        ]

    def _rank(self, item: Item) -> tuple[int, int]:
        return item.level, -self._option(item.names[0], "priority", 0)

    # -- the rules

    @rule(messages=st.lists(MESSAGES, min_size=1, max_size=6))
    def put(self, messages: list[dict[str, Any]]) -> None:
        for each in messages:
            number = next(NUMBERS)
            names = (each["firm"], f"{each['firm']}/{each['tenant']}") if self.is_nested else (each["tenant"],)
            headers = {name: each[name] for name in ("firm", "tenant", "cost", "color")}
            message = Message(
                number, headers=headers, priority=each["priority"], expiration=each["ttl"], delay=each["delay"]
            )
            cost = each["cost"] if "cost" in self.options else 1
            item = Item(number, names, 1 - each["priority"] if self.has_levels else 0, cost, each["color"], True)
            limit = self._option(names[-1], "max_length", None)
            overflow = self._option(names[-1], "overflow", "drop-head")
            self._sync()
            waiting = [other for other in self.items if other.names == names and other.is_waiting and not other.owner]
            outcome = self.queue.put(message)
            if outcome.accepted:
                self.items.append(item)
                assert overflow == "drop-head" or limit is None or len(waiting) < limit
            else:
                assert overflow != "drop-head"
                assert limit is not None or self._option(names[-1], "max_length_bytes", None) is not None
            self._sync()
            waiting = [other for other in self.items if other.names == names and other.is_waiting and not other.owner]
            # What came back, or was held, is refused by no policy of publishers.
            assert overflow != "drop-head" or limit is None or len(waiting) <= limit

    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        self._pull(data.draw(st.sampled_from(self.consumers)))

    @rule(times=st.integers(2, 12))
    def drain(self, times: int) -> None:
        """One plain consumer takes many: here the shares are compared."""
        for _ in range(times):
            self._pull(self.consumers[0])

    def _pull(self, consumer: QueueConsumer) -> None:
        self._sync()
        ready = self._ready(consumer) if consumer.wants_work else []
        entry = self.queue.deliver_single_message(consumer)
        self.obliged.discard(consumer)
        assert (entry is None) == (not ready), f"{entry} of {ready}"
        if entry is None:
            return
        item = next(each for each in ready if each.number == entry.message.body)
        first = next(each for each in ready if (each.names, each.level) == (item.names, item.level))
        assert item is first, "within a tenant the one that arrived first is the first"
        assert self._rank(item) == min(map(self._rank, ready)), "levels, then priorities, are strict"
        self._check_bound(item, consumer)
        item.owner, item.is_charged = consumer, not item.is_charged
        for name in item.names:
            self.starts.setdefault((name,), []).append(self.clock())
        self.taken.append((entry, item, consumer))
        if consumer.wants_work:
            self.obliged.add(consumer)
        self._sync()

    def _check_bound(self, item: Item, consumer: QueueConsumer) -> None:
        """Of two tenants of a level and one outer tenant that can be served all the while, neither leads by more than
        the greatest cost / weight of both; what is out of turn (a selector's) counts for nobody."""
        depth = len(item.names) - 1
        weight = self._option(item.names[depth], "weight", 1)
        step = 0.0 if item.is_charged else item.cost / weight
        self.greatest = max(self.greatest, step)
        open_ones = {
            (each.level, each.names[-1])
            for each in self.items
            if each.is_waiting
            and each.owner is None
            and self._is_open(each)
            and each.names[:-1] == item.names[:-1]
            and self._rank(each) == self._rank(item)
        }
        me = (item.level, item.names[-1])
        if consumer is not self.consumers[0]:
            self.leads.clear()
            return
        leads = {pair: lead for pair, lead in self.leads.items() if pair[0] in open_ones and pair[1] in open_ones}
        for other in open_ones - {me}:
            leads[me, other] = leads.get((me, other), 0.0) + step
            leads[other, me] = leads.get((other, me), 0.0) - step
        self.leads = leads
        for (mine, theirs), lead in leads.items():
            assert lead <= 3 * self.greatest + 1e-9, f"{mine} leads {theirs} by {lead}"

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), how=st.sampled_from(["accept", "accept", "release", "refuse", "undo", "reject"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        self._sync()
        entry, item, consumer = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        item.owner = None
        if how == "accept":
            self.queue.accept(entry, consumer)
        elif how == "reject":
            self.queue.reject(entry, consumer)
        else:
            if how == "refuse":
                item.refused_by |= {consumer}
            self.queue.release(entry, consumer, refused=how == "refuse", counted=how != "undo")
        if consumer.credit is not None and consumer.credit.settled(1, entry.size):
            self.queue.credit_changed(consumer)
        self.leads.clear()  # what comes back, or is open again, may have its turn in this round still
        self._sync()

    @rule(seconds=st.sampled_from([1.0, 2.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.leads.clear()
        self._sync()

    @rule(color=st.sampled_from(["red", "blue"]))
    def delete_messages(self, color: str) -> None:
        self.queue.delete_messages(lambda message: message.headers["color"] == color)
        self._sync()

    @rule(
        name=st.sampled_from(TENANTS),
        firm=st.sampled_from(["x", "y", ""]),
        change=st.sampled_from([None, {"weight": 3}, {"paused": True}, {"paused": False}, *CHANGES]),
    )
    def change_tenant(self, name: str, firm: str, change: dict[str, Any] | None) -> None:
        if self.is_nested:
            name = f"{firm}/{name}" if firm else "x"
            change = change and {key: value for key, value in change.items() if key != "priority"}
        self.queue.change_tenant(name, change)
        if change is None:
            self.own.pop(name, None)
        else:
            self.own[name] = {**self.own.get(name, {}), **change}
        self.leads.clear()
        self._sync()

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        self._sync()
        assert not any(item.is_waiting for item in self.items)

    @rule(most=st.sampled_from([None, 0, 3]))
    def change_policy(self, most: int | None) -> None:
        """A ring drops what is too much; without a limit all may stay."""
        overflow = Overflow.NONE if most is None else Overflow.RING
        self.queue.govern(replace(self.queue.settings, max_length=most, overflow=overflow), Governing())
        self._sync()

    # -- what must hold after every step

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check_invariants()

    @invariant()
    def nothing_waits_unnoticed(self) -> None:
        """While a message could go to a willing consumer, somebody has been told and has not come back empty."""
        if hasattr(self, "queue") and not self.obliged:
            self._sync()
            if not self.obliged:
                for consumer in self.consumers:
                    assert not consumer.wants_work or not self._ready(consumer), "nobody was told"


class Side:
    """A fair queue with one form of runs, its consumers and what they have."""

    def __init__(self, runs: object, settings: QueueSettings) -> None:
        self.clock = FakeClock(1000.0)
        self.dead: list[tuple[object, object]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tenants, "Runs", runs)
            self.queue = BrokerQueue(
                "q",
                settings=settings,
                clock=self.clock,
                dead_letter=lambda queue, message, reason: self.dead.append((message.body, reason)),
                on_error=lambda queue, action, error: pytest.fail(f"{action}: {error!r}"),
            )
        self.notified: list[str] = []
        self.taken: list[tuple[Entry, object]] = []
        self.consumers = [self.consumer(number) for number in range(5)]

    def consumer(self, number: int) -> QueueConsumer:
        consumer = self.queue.add_consumer(
            lambda consumer: self.notified.append(consumer.tag),
            selector=(lambda message: message.headers["color"] == "red") if number == 2 else None,
            credit=Credit(4) if number == 3 else None,
            auto_accept=number == 4,
            tag=f"{number}",
        )
        self.queue.set_notify_work_desired(consumer, True)
        return consumer

    def replace(self, number: int) -> None:
        """A consumer leaves, and gives back what it has; another one comes."""
        self.queue.remove_consumer(consumer := self.consumers[number])
        kept = [(entry, owner) for entry, owner in self.taken if owner is not consumer]
        self.queue.release([entry for entry, owner in self.taken if owner is consumer], consumer, failed=True)
        self.taken, self.consumers[number] = kept, self.consumer(number)

    def put(self, messages: list[Message]) -> object:
        return self.queue.put_all(messages) or [self.queue.put(each) for each in messages]

    def deliver(self, number: int, most: int, most_bytes: int) -> object:
        consumer = self.consumers[number]
        entries = self.queue.deliver_messages(consumer, most, most_bytes)
        self.taken += [(entry, consumer) for entry in entries if number != 4]
        return [(entry.message.body, entry.delivery_count) for entry in entries]

    def get(self) -> object:
        entry = self.queue.get(self)
        self.taken += [] if entry is None else [(entry, self)]
        return entry and entry.message.body

    def settle(self, how: str, first: int, count: int) -> object:
        """Settle some that were delivered one after the other, of one owner; returns what the queue answers."""
        part = self.taken[first : first + count]
        (owner,) = {owner for _, owner in part[:1]} or {None}
        entries = [entry for entry, each in part if each is owner]
        self.taken = [each for each in self.taken if each[0] not in entries]
        if how == "refuse":
            done = self.queue.release(entries, owner, refused=True)
        elif how == "undo":
            done = self.queue.release(entries, owner, counted=False)
        else:
            done = getattr(self.queue, how)(entries, owner)
        credit = owner.credit if isinstance(owner, QueueConsumer) else None
        if credit is not None and credit.settled(len(entries), sum(entry.size for entry in entries)):
            self.queue.credit_changed(owner)
        return done

    def seen(self) -> list[object]:
        figures, tenant_figures = self.queue.statistics(), self.queue.tenants()
        taken = [entry.message.body for entry, _ in self.taken]
        return [figures, tenant_figures, self.dead, self.notified, taken, self.queue.changed_tenants]


class TwinMachine(RuleBasedStateMachine):
    """Two brokers' queues, whose runs are in C and in Python: the same is done to both, and the same comes of it."""

    @initialize(option=st.sampled_from(sorted(OPTIONS)), setting=st.sampled_from(sorted(SETTINGS)), few=st.booleans())
    def begin(self, option: str, setting: str, few: bool) -> None:
        self.patch = with_tenants_that_go(few)
        settings = QueueSettings(kind="fair", kind_options=OPTIONS[option] or None, **SETTINGS[setting])
        self.sides = [Side(runs, settings) for runs in (tenants.Runs, PlainRuns)]
        self.is_nested, self.numbers = "key" in OPTIONS[option], _Numbers()

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    def both(self, do: Callable[[Side], object]) -> None:
        results = [do(side) for side in self.sides]
        assert results[0] == results[1]

    @rule(messages=st.lists(MESSAGES, min_size=1, max_size=8), times=st.sampled_from([1, 1, 1, 20]))
    def put(self, messages: list[dict[str, Any]], times: int) -> None:
        """In a run, where none of them has a time; some lines get long."""
        run = [
            Message(
                str(next(self.numbers)).encode(),
                headers={name: each[name] for name in ("firm", "tenant", "cost", "color")},
                priority=each["priority"],
                expiration=each["ttl"] if times == 1 else None,
                delay=each["delay"] if times == 1 else None,
            )
            for each in messages * times
        ]
        has_times = any(each.expiration is not None or each.delay is not None for each in run)
        self.both(lambda side: [side.queue.put(each) for each in run] if has_times else side.put(run))

    @rule(number=st.integers(0, 4), most=st.sampled_from([1, 3, 40, 200]), most_bytes=st.sampled_from([1, 5, 10_000]))
    def deliver(self, number: int, most: int, most_bytes: int) -> None:
        self.both(lambda side: side.deliver(number, most, most_bytes))

    @rule()
    def get(self) -> None:
        self.both(Side.get)

    @rule(
        how=st.sampled_from(["accept", "accept", "accept", "release", "refuse", "undo", "fail", "reject", "discard"]),
        first=st.sampled_from([0, 0, 1, 5]),
        count=st.sampled_from([1, 3, 100]),
    )
    def settle(self, how: str, first: int, count: int) -> None:
        self.both(lambda side: side.settle(how, first, count))

    @rule(seconds=st.sampled_from([1.0, 6.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.both(lambda side: (side.clock.advance(seconds), side.queue.housekeeping()))

    @rule(
        name=st.sampled_from(TENANTS),
        change=st.sampled_from([None, {"weight": 3}, {"paused": True}, {"paused": False}, {"rate": 2}, *CHANGES]),
    )
    def change_tenant(self, name: str, change: dict[str, Any] | None) -> None:
        if self.is_nested:
            name, change = f"x/{name}", change and {key: each for key, each in change.items() if key != "priority"}
        self.both(lambda side: side.queue.change_tenant(name, change))

    @rule(what=st.sampled_from(["purge", "red", "blue"]), number=st.integers(0, 4))
    def clear(self, what: str, number: int) -> None:
        """Messages are taken out of the midst, a consumer goes."""
        self.both(lambda side: side.replace(number))
        if what == "purge":
            self.both(lambda side: side.queue.purge())
        else:
            self.both(lambda side: side.queue.delete_messages(lambda message: message.headers["color"] == what))

    @invariant()
    def are_alike(self) -> None:
        for side in getattr(self, "sides", ()):
            side.queue.check_invariants()
        if hasattr(self, "sides"):
            self.both(Side.seen)


class _Numbers:
    def __init__(self) -> None:
        self.last = 0

    def __next__(self) -> int:
        self.last += 1
        return self.last


NUMBERS = _Numbers()

TestFairMachine = pytest.mark.slow(selected=True)(FairMachine.TestCase)
TestFairMachine.settings = settings(max_examples=examples(250), stateful_step_count=50, deadline=None)

TestTwinMachine = pytest.mark.slow(selected=True)(TwinMachine.TestCase)
TestTwinMachine.settings = settings(max_examples=examples(250), stateful_step_count=50, deadline=None)
