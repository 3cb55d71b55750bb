"""Runs of a fair queue's entries: in C and in Python they do the same."""

from __future__ import annotations

import gc
import os
import weakref
from importlib import import_module, util
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from broker_parts_support import (
    ASIDE,
    TAKEN,
    WAITING,
    FairEntry,
    FairOptions,
    Lane,
    OtherLane,
    PlainRuns,
    Tenant,
    Tenants,
)
from broker_parts_support import (
    tenants as module,
)

from multiqueue.broker import Message
from multiqueue.testing import FakeClock

NAME = "multiqueue.broker._queue._fair_runs"
RUNS: list[Any] = [PlainRuns]
if "MULTIQUEUE_REQUIRE_ENGINE" in os.environ or util.find_spec(NAME) is not None:
    RUNS.append(import_module(NAME).Runs)
each_form = pytest.mark.parametrize("runs", RUNS, ids=lambda runs: runs.__name__)

QUEUE: Any = SimpleNamespace(name="q")
TABLES: list[dict[str, Any]] = [
    {},
    {"weights": {"t1": 3, "t2": 0.5}, "tenants": {"t3": {"paused": True}, "t4": {"priority": 1}}},
    {"max_in_flight": 2, "tenants": {"t1": {"max_in_flight": 5}}},
    {"cost": "header:cost"},
    {"key": ["header:tenant", "header:project"]},
    {"rate": 2, "burst": 3},
]


class Hall:
    """The tenants of one queue, with one of the two forms of runs, and a log of what they served."""

    def __init__(self, runs: Any, monkeypatch: pytest.MonkeyPatch, **table: Any) -> None:
        self.clock = FakeClock(1000.0)
        self.options = FairOptions.of(table)
        self.read = self.options.reader(None)
        with monkeypatch.context() as patch:
            patch.setattr(module, "Runs", runs)
            self.tenants = Tenants(self.options, self.clock, lambda when: None, {})
        self.tenants.have_objects(has_all=True)
        self.number = 0
        self.taken: list[Any] = []
        self.log: list[Any] = []

    def entries(self, headers: list[dict[str, Any]], **fields: Any) -> list[Any]:
        entries: list[Any] = []
        for each in headers:
            entry = FairEntry(QUEUE, Message(b""), self.number % 7)
            entry.position, entry.arrived_at = self.number, self.clock()
            (entry.key,) = self.read([Message(b"", headers=each)])
            for name, value in fields.items():
                setattr(entry, name, value)
            entries.append(entry)
            self.number += 1
        return entries

    def arrive(self, headers: list[dict[str, Any]], **fields: Any) -> None:
        self.tenants.arrive(self.entries(headers, **fields))

    def take(self, most: int, most_bytes: int = 1000) -> list[int]:
        run: list[Any] = []
        left = self.tenants.take_turns(run, most, most_bytes)
        self.taken += run
        positions = [entry.position for entry in run]
        self.log.append((positions, left))
        return positions

    def step(self, random: Random) -> None:
        """One thing that happens to a fair queue."""
        self.clock.advance(random.choice([0, 0, 0.3, 20]))
        self.tenants.wake(self.clock())
        what = random.random()
        taken = [self.taken.pop(random.randrange(len(self.taken))) for _ in range(min(len(self.taken), 3))]
        if what < 0.35:
            keys = [f"t{random.choice([0, 0, *range(12)])}" for _ in range(random.choice([1, 4, 90]))]
            headers = [{"tenant": key, "project": random.choice("ab"), "cost": random.randrange(3)} for key in keys]
            headers += [{"tenant": 7}] * (what < 0.05)
            self.arrive(headers, expires_at=5000.0 if what < 0.03 else None)
        elif what < 0.65:
            self.take(random.randrange(1, 40), random.choice([0, 5, 1000]))
        elif what < 0.8:
            for entry in taken:
                self.tenants.move(entry, random.choice([WAITING, ASIDE]))
            for entry in taken:
                if entry.where == ASIDE:
                    self.tenants.end([entry])
        elif what < 0.85:
            waiting = [each for lane in self.tenants.lanes() for each in lane.arrived if type(each) is not int]
            if waiting:
                self.tenants.end([random.choice(waiting)])
        elif what < 0.9 and len(self.options.keys) == 1:
            name = f"t{random.randrange(12)}"
            self.tenants.note(name, {"weight": random.choice([1, 2]), "paused": random.random() < 0.3}, anew=False)
            self.tenants.follow(name)
        else:
            self.tenants.end(taken)
            taken = []
        self.taken += [entry for entry in taken if entry.where == TAKEN]

    def state(self) -> list[Any]:
        """All that the lanes have."""

        def plain(value: Any) -> Any:
            if isinstance(value, Lane):
                return value.tenant.name, value.level
            if isinstance(value, FairEntry):
                return value.position, value.where, value.cost, value.lane.tenant.name
            if isinstance(value, dict):
                return {key: plain(each) for key, each in value.items()}
            if isinstance(value, str | int | float | None):
                return value
            return type(value).__name__, [plain(each) for each in value] if hasattr(value, "__iter__") else None

        names = {kind: [*Lane.__slots__, *kind.__slots__] for kind in (Tenant, OtherLane)}
        return [
            {name: plain(getattr(lane, name, "unset")) for name in names[type(lane)]} for lane in self.tenants.lanes()
        ]


@pytest.mark.parametrize("table", TABLES, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_both_forms_do_the_same(seed: int, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step of a history the tenants of both have the same in every slot, and served the same."""
    halls = [Hall(runs, monkeypatch, **table) for runs in RUNS]
    randoms = [Random(seed) for _ in RUNS]
    for _ in range(60):
        for hall, random in zip(halls, randoms, strict=True):
            hall.step(random)
            hall.tenants.check_invariants()
        for hall in halls[1:]:
            assert hall.log == halls[0].log
            assert hall.state() == halls[0].state()
            assert [*hall.tenants.by_name] == [*halls[0].tenants.by_name]


@each_form
def test_a_long_line_goes_in_order(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand messages of one tenant come one by one, or as a run, and go in the order in which they came."""
    hall = Hall(runs, monkeypatch)
    for count in (1, 1, 700, 298):
        hall.arrive([{"tenant": "a"}] * count)
    assert hall.take(10) + hall.take(2000, 10_000) == list(range(1000))
    hall.tenants.end(hall.taken)
    assert hall.tenants.by_name["a"].is_empty


@each_form
def test_a_run_ends_before_what_has_a_time(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with a time to live, or one that a consumer refused, is left to those who look at each."""
    for fields in ({"expires_at": 2000.0}, {"refused_by": {1}}):
        hall = Hall(runs, monkeypatch)
        hall.arrive([{"tenant": "a"}, {"tenant": "b"}])
        hall.arrive([{"tenant": "c"}], **fields)
        assert hall.take(9) == [0, 1]
        assert hall.take(9) == []


@each_form
def test_a_failure_names_the_entry_at_fault(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised while a new tenant's options are looked for comes to the caller; others have arrived."""
    hall = Hall(runs, monkeypatch, tenants={"b": {"weight": 2}})

    def broken(name: str) -> Any:
        raise KeyError(name)

    monkeypatch.setattr(hall.tenants, "options_of", broken)
    hall.tenants.by_name["a"] = Hall(PlainRuns, monkeypatch).tenants._come("a", 0, None, hall.tenants.ring)
    with pytest.raises(KeyError, match="b"):
        hall.arrive([{"tenant": "a"}, {"tenant": "b"}])
    assert hall.take(9) == [0]


@each_form
def test_tenants_are_freed(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the tenants of a queue are forgotten, no cycle keeps what they had."""
    hall = Hall(runs, monkeypatch)
    hall.arrive([{"tenant": "a"}, {"tenant": "b"}])
    gc.collect()
    gc.disable()
    try:
        assert len(hall.take(1)) == 1
        hall.taken[0].refused_by = kept = type("Kept", (set,), {})()
        gone = weakref.ref(kept)
        hall.tenants.end(hall.taken)
        hall.taken.clear()
        del kept
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.skipif(len(RUNS) < 2, reason="what is in C was not built")
def test_c_refuses_what_is_no_entry_and_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of other classes, and those with empty slots, raise and are not looked into."""
    hall, runs = Hall(RUNS[1], monkeypatch), RUNS[1]
    own: Any = hall.tenants._runs
    (entry,) = hall.entries([{"tenant": "a"}])
    empty: Any = FairEntry.__new__(FairEntry)
    for wrong in (None, object(), hall.tenants._usual):
        with pytest.raises(TypeError, match="is no"):
            own.arrive([wrong], None)
        with pytest.raises(TypeError, match="is no"):
            own.end([wrong], None)
        with pytest.raises(TypeError):
            own.arrive(wrong, None)
    for call in (own.arrive, own.end):
        with pytest.raises(AttributeError, match="is empty"):
            call([empty], None)
    with pytest.raises(TypeError, match="is no"):
        own.arrive(hall.entries([{"tenant": 7}]), lambda entry: "no lane")
    with pytest.raises(TypeError, match="is no"):
        own.end([FairEntry(QUEUE, Message(b""), 0, where=TAKEN)], None)
    for call in (own.arrive, own.take, own.end):
        with pytest.raises(TypeError):
            call([entry])
    with pytest.raises(TypeError, match="is no slot"):
        runs(FairEntry, Lane, hall.tenants._usual, ("live",), {}, list, {}, {})
    with pytest.raises(TypeError, match="is no slot"):
        runs(type("Odd", (), {"key": 1}), Lane, hall.tenants._usual, (), {}, list, {}, {})
    with pytest.raises(TypeError, match="is no usual"):
        runs(FairEntry, Lane, object(), (), {}, list, {}, {})
