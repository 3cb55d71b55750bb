"""The ring of turns: one contract over the one in C and the one in Python."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from core_parts_support import PlainRing, PlainTurn, Ring, Turn
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from hypothesis_support import examples
from ring_model_support import ModelRing, ModelTurn

KINDS: dict[str, tuple[Any, Any]] = {"of the engine": (Ring, Turn), "plain": (PlainRing, PlainTurn)}


class Kind:
    """A ring and a class of turns that have names."""

    def __init__(self, ring: Any, turn: Any) -> None:
        self.Ring = ring

        class Named(turn):  # type: ignore[misc]
            def __init__(self, ring: Any, name: str = "", **settings: Any) -> None:
                super().__init__(ring, **settings)
                self.name = name

        self.Turn = Named

    def joined(self, ring: Any, names: str, **settings: Any) -> list[Any]:
        turns = [self.Turn(ring, name, **settings) for name in names]
        for turn in turns:
            turn.join()
        return turns


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(*KINDS[request.param])


def serve(ring: Any, count: int, cost: Callable[[Any], float] = lambda turn: 1.0) -> str:
    """Charge the turn that is due, so many times; their names."""
    names = []
    for _ in range(count):
        turn = ring.due()
        names.append(turn.name)
        turn.charge(cost(turn))
        ring.check_invariants()
    return "".join(names)


def test_nobody(kind: Kind) -> None:
    """Nothing is due in an empty ring, nor before a turn joins."""
    ring = kind.Ring()
    assert ring.due() is None
    turn = kind.Turn(ring)
    assert ring.due() is None
    assert not turn.is_in
    turn.join()
    assert ring.due() is turn
    assert turn.is_in
    turn.leave()
    assert ring.due() is None


def test_equal_ones_take_turns(kind: Kind) -> None:
    """Of equal weights and costs each is served one at a time, in the order in which they joined."""
    ring = kind.Ring()
    kind.joined(ring, "abc")
    assert serve(ring, 7) == "abcabca"


@pytest.mark.parametrize(("least", "order"), [(0.0, "aaabaaabaaab"), (2.0, "aaaaaabbaaaaaabb")])
def test_weights(kind: Kind, least: float, order: str) -> None:
    """Each round serves by weight; `least` makes the turns longer."""
    ring = kind.Ring(least=least)
    (a,) = kind.joined(ring, "a", weight=3)
    (b,) = kind.joined(ring, "b")
    serve(ring, 16 if least else 2)
    assert Counter(serve(ring, 2 * len(order))) == Counter(order * 2)
    assert (a.weight, b.weight) == (3, 1)


def test_the_turn_of_a_multi_queue(kind: Kind) -> None:
    """With `least` 1 a turn is `weight` messages in a row."""
    ring = kind.Ring(least=1.0)
    kind.joined(ring, "a", weight=4)
    kind.joined(ring, "b", weight=2)
    kind.joined(ring, "c")
    assert serve(ring, 14) == "aaaabbc" * 2


def test_costs(kind: Kind) -> None:
    """Whose messages cost more is served fewer: what they cost in all is alike."""
    ring = kind.Ring()
    kind.joined(ring, "ab")
    names = Counter(serve(ring, 1100, lambda turn: 10.0 if turn.name == "a" else 1.0))
    assert abs(names["a"] * 10 - names["b"]) <= 20


def test_priorities_are_strict(kind: Kind) -> None:
    """A lower number is served as long as it can be; one that is assigned joins at the end of its new round."""
    ring = kind.Ring()
    late, other = kind.joined(ring, "lo", priority=7)
    (first,) = kind.joined(ring, "f", priority=-2)
    assert serve(ring, 3) == "fff"
    first.leave()
    assert serve(ring, 3) == "lol"
    first.priority = 7
    assert (first.priority, first.is_in) == (7, False)
    first.join()
    assert serve(ring, 3) == "olf"
    late.priority = 1
    assert serve(ring, 2) == "ll"
    assert (late.priority, other.priority) == (1, 7)


def test_one_that_was_idle_saves_nothing_up(kind: Kind) -> None:
    """A tail that comes back joins the round that goes on; a new one is served after one message of each."""
    ring = kind.Ring()
    idle, _ = kind.joined(ring, "ib")
    idle.leave()
    serve(ring, 1000)
    idle.join()
    assert serve(ring, 4) in ("bibi", "ibib")
    kind.joined(ring, "n")
    assert "n" in serve(ring, 3)


def test_what_was_served_in_advance_stays_charged(kind: Kind) -> None:
    """A tail that leaves after an expensive message and comes back at once has gained nothing."""
    ring = kind.Ring()
    a, _ = kind.joined(ring, "ab")
    total = Counter[str]()
    for _ in range(1000):
        turn = ring.due()
        cost = 10.0 if turn is a else 1.0
        total[turn.name] += int(cost)
        turn.charge(cost)
        if turn is a:
            a.leave()
            a.join()
    assert abs(total["a"] - total["b"]) <= 20


def test_a_pause_within_a_round_costs_no_turn(kind: Kind) -> None:
    """`resume` in the round in which it was paused: it has its turn in it still; `join` puts it at the end."""
    ring = kind.Ring()
    _, _, c = kind.joined(ring, "abc")
    serve(ring, 4)
    for come_back, order in ((c.resume, "bcabca"), (c.join, "bacbac")):
        assert ring.due().name == "b"
        c.leave()
        come_back()
        assert serve(ring, 6) == order


def test_joining_and_leaving_again_is_nothing(kind: Kind) -> None:
    """One that joins twice stands where it stands; one that leaves twice is out."""
    ring = kind.Ring()
    a, b = kind.joined(ring, "ab")
    a.join()
    a.resume()
    assert serve(ring, 4) == "abab"
    a.leave()
    a.leave()
    b.leave()
    assert ring.due() is None


def test_a_charge_out_of_turn(kind: Kind) -> None:
    """What a tail was served out of turn counts, in the ring or outside of it: it is served the less later."""
    ring = kind.Ring()
    a, b = kind.joined(ring, "ab")
    for charged in (b, a, b):
        charged.charge(20.0)
        ring.check_invariants()
        charged.leave()
        charged.charge(20.0)
        charged.join()
        served = Counter(serve(ring, 240))
        other = a if charged is b else b
        assert 34 <= served[other.name] - served[charged.name] <= 46


def test_a_pause_with_an_advance(kind: Kind) -> None:
    """A tail that was served in advance during its pause does not take the turn that it had before."""
    ring = kind.Ring()
    _, _, c = kind.joined(ring, "abc")
    serve(ring, 4)
    c.leave()
    c.charge(5.0)
    assert serve(ring, 2) == "ba"
    c.resume()
    ring.check_invariants()
    assert "c" not in serve(ring, 2)


def test_nested_turns(kind: Kind) -> None:
    """Customers take turns, and within a customer its projects; an empty customer is passed over."""
    ring = kind.Ring()
    one, two = (kind.Turn(ring, name) for name in "12")
    ones, twos = kind.Ring(one), kind.Ring(two)
    a, b, c = kind.joined(ones, "abc")
    (x,) = kind.joined(twos, "x")
    assert one.is_in
    assert two.is_in
    assert serve(ring, 8) == "axbxcxax"
    x.leave()
    assert not two.is_in
    assert serve(ring, 3) == "bca"
    x.join()
    assert Counter(serve(ring, 20)) == {"x": 10, "a": 3, "b": 4, "c": 3} | Counter()
    one.leave()
    assert serve(ring, 2) == "xx"
    a.leave()
    b.leave()
    c.leave()
    a.join()
    assert not one.is_in, "who took it out puts it in"
    one.join()
    assert Counter(serve(ring, 4)) == {"a": 2, "x": 2}
    assert one.ring is ring
    assert a.ring is ones


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_numbers_that_are_refused(kind: Kind, wrong: float) -> None:
    """A weight and a cost are above 0."""
    ring = kind.Ring()
    turn = kind.Turn(ring)
    with pytest.raises(ValueError, match=f"'weight' must be a number above 0, not {wrong}"):
        kind.Turn(ring, weight=wrong)
    with pytest.raises(ValueError, match=f"'weight' must be a number above 0, not {wrong}"):
        turn.weight = wrong
    with pytest.raises(ValueError, match=f"'cost' must be a number above 0, not {wrong}"):
        turn.charge(wrong)


@pytest.mark.parametrize("wrong", [1.1e100, 9e-101, 1e308, 5e-324, 10**400])
def test_numbers_whose_sums_or_quotients_would_overflow(kind: Kind, wrong: float) -> None:
    """Refused is what could make a quotient or a sum 0 or infinite; and nothing has changed."""
    shown = r"2e\+100" if wrong == 10**400 else f"{wrong:g}".replace("+", r"\+")
    between = rf"must be between 1e-100 and 1e\+100, not {shown}: its quotients or sums would be 0 or infinite"
    ring = kind.Ring()
    first, _ = kind.joined(ring, "ab")
    with pytest.raises(ValueError, match=f"'weight' {between}"):
        kind.Turn(ring, weight=wrong)
    with pytest.raises(ValueError, match=f"'weight' {between}"):
        first.weight = wrong
    with pytest.raises(ValueError, match=f"'cost' {between}"):
        first.charge(wrong)
    with pytest.raises(ValueError, match=f"'least' {between}"):
        kind.Ring(least=wrong)
    assert first.weight == 1.0
    assert serve(ring, 4) == "abab"


def test_the_extremes_of_numbers(kind: Kind) -> None:
    """At both ends of what is accepted the turns are finite and go on."""
    ring = kind.Ring(least=1e100)
    turns = [kind.Turn(ring, name, weight=weight) for name, weight in (("a", 1e-100), ("b", 1e100))]
    for turn in turns:
        turn.join()
    for _ in range(200):
        due = ring.due()
        due.charge(1e100 if due.name == "a" else 1e-100)
        ring.check_invariants()
    assert ring.due() in turns


def test_an_int_below_all_floats(kind: Kind) -> None:
    """An int beyond a double is told as another number is."""
    with pytest.raises(ValueError, match=f"'weight' must be a number above 0, not -{10**400}"):
        kind.Turn(kind.Ring(), weight=-(10**400))


def test_types_that_are_refused(kind: Kind) -> None:
    """What is no number, no ring or no turn is named."""
    ring = kind.Ring()
    turn = kind.Turn(ring)
    with pytest.raises(TypeError, match="'cost' must be a number, not '1'"):
        turn.charge("1")
    with pytest.raises(TypeError, match="'weight' must be a number, not True"):
        turn.weight = True
    with pytest.raises(TypeError, match=r"'priority' must be an int, not 1\.5"):
        turn.priority = 1.5
    with pytest.raises(TypeError, match="'ring' must be a Ring, not None"):
        kind.Turn(None)
    with pytest.raises(TypeError, match="'outer' must be a Turn, not 3"):
        kind.Ring(3)
    with pytest.raises(TypeError, match="'least' must be a number, not None"):
        kind.Ring(least=None)
    with pytest.raises(ValueError, match="'priority' must fit 64 bits, not 9223372036854775808"):
        turn.priority = 2**63
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"'least' must be a number of at least 0, not {wrong}"):
            kind.Ring(least=wrong)
    inner = kind.Ring(turn)
    inner.check_invariants()
    for outer in (turn, inner_turn_of(kind, ring)):
        with pytest.raises(ValueError, match="'outer' must be a turn that stands for no ring yet"):
            kind.Ring(outer)


def inner_turn_of(kind: Kind, ring: Any) -> Any:
    """A turn that has joined its ring."""
    turn = kind.Turn(ring)
    turn.join()
    return turn


def test_classes_that_forget_to_initialize(kind: Kind) -> None:
    """A ring and a turn are initialized once; one that never was is refused or empty, and does no harm."""

    class Forgetful(kind.Ring):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            pass

    ring = kind.Ring()
    turn = kind.Turn.__new__(kind.Turn)
    for use in (turn.join, turn.leave, turn.charge, lambda: turn.priority, lambda: setattr(turn, "priority", 1)):
        with pytest.raises((TypeError, AttributeError)):
            use()
    if kind.Ring is not PlainRing:
        kind.Turn(Forgetful()).join()
    kind.joined(ring, "a")
    for outer in (None, kind.Turn(ring), kind.Turn(kind.Ring(kind.Turn(ring)))):
        with pytest.raises(TypeError, match="a Ring is initialized once"):
            ring.__init__(outer)  # nested in itself a charge would go round for ever
    with pytest.raises(TypeError, match="a Turn is initialized once"):
        ring.due().__init__(ring)


def test_copies_are_refused(kind: Kind) -> None:
    """A copy would stand in a circle that knows nothing of it."""
    ring = kind.Ring()
    for one in (ring, kind.Turn(ring)):
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot pickle"):
                make(one)


def test_the_outermost_ring_keeps_all_turns(kind: Kind) -> None:
    """A ring that only its turns refer to is served on while the ring that it is nested in lives."""
    outermost = kind.Ring()
    inner = kind.Ring(kind.Turn(kind.Ring(kind.Turn(outermost))))
    kind.joined(inner, "ab")
    del inner
    gc.collect()
    assert serve(outermost, 4) == "abab"
    outermost.due().leave()
    assert serve(outermost, 2) == "bb"


def test_very_deep_nesting(kind: Kind) -> None:
    """A turn in a ring that is nested very deep joins, is charged, leaves and ends without recursion."""
    outermost = ring = kind.Ring()
    for _ in range(5_000 if kind.Ring is PlainRing else 100_000):  # more than either stack has room for
        ring = kind.Ring(kind.Turn(ring))
    (turn,) = kind.joined(ring, "a")
    assert serve(outermost, 3) == "aaa"
    turn.leave()
    assert outermost.due() is None
    turn.join()
    ended = weakref.ref(turn)
    del outermost, ring, turn
    gc.collect()
    assert ended() is None


def test_tails_come_and_go(kind: Kind) -> None:
    """A turn that has left is gone with its last reference; one that is in lives by its ring, and dies with it."""
    ring = kind.Ring()
    turn = kind.Turn(ring, "t", priority=3)
    alive = weakref.ref(turn)
    turn.join()
    del turn
    gc.collect()
    assert alive() is not None
    ring.due().leave()
    gc.collect()
    assert alive() is None
    left = weakref.ref(inner_turn_of(kind, ring))
    inner = kind.Ring(kind.Turn(ring))
    nested = weakref.ref(inner_turn_of(kind, inner))
    del ring, inner
    gc.collect()
    assert left() is None
    assert nested() is None


def lines_of(call: Callable[[], object]) -> int:
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        # Of the ring alone: a garbage collection may come in between, and finalizers with it.
        lines += event == "line" and frame.f_code.co_filename.endswith("_ring.py")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_a_turn_costs_the_same_however_many_tails() -> None:
    """The most lines of Python that one turn runs, and one that comes or goes: the same with 10 tails and 10,000."""

    def most(count: int) -> list[int]:
        ring = PlainRing()
        turns = [PlainTurn(ring, weight=1 + number % 3) for number in range(count)]
        for turn in turns:
            turn.join()

        def turn_of_one(number: int) -> None:
            due = ring.due()
            assert due is not None
            due.charge(1.0 + number % 5)

        def come_back() -> None:
            due = ring.due()
            assert due is not None
            due.leave()
            due.resume()

        served = [lines_of(lambda number=number: turn_of_one(number)) for number in range(5 * count)]
        return [max(served), max(lines_of(come_back) for _ in range(20))]

    assert most(10) == most(10_000)


class RingMachine(RuleBasedStateMachine):
    """Random joins, leaves, pauses, costs, weights, priorities and nesting, beside the model."""

    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[Any, ModelTurn]] = []
        self.rings: list[tuple[Any, ModelRing]] = []

    @initialize(least=st.sampled_from([0.0, 1.0, 3.5]))
    def begin(self, least: float) -> None:
        self.rings.append((self.kind.Ring(least=least), ModelRing(least=least)))

    def make(self, at: int, weight: float, priority: int) -> tuple[Any, ModelTurn]:
        ring, model = self.rings[at % len(self.rings)]
        made = self.kind.Turn(ring, weight=weight, priority=priority), ModelTurn(model, weight, priority)
        self.turns.append(made)
        return made

    @rule(at=st.integers(0, 9), weight=st.sampled_from([0.1, 0.5, 1, 2, 3, 10]), priority=st.integers(0, 1))
    def add(self, at: int, weight: float, priority: int) -> None:
        turn, model = self.make(at, weight, priority)
        turn.join()
        model.ring.put_in(model, False)

    @rule(at=st.integers(0, 9), weight=st.sampled_from([1, 4]))
    def nest(self, at: int, weight: float) -> None:
        if len(self.rings) < 4:
            turn, model = self.make(at, weight, 0)
            model.inner = ModelRing(model)
            self.rings.append((self.kind.Ring(turn), model.inner))

    @rule(times=st.integers(1, 12), costs=st.lists(st.sampled_from([0.5, 1, 2, 7, 100]), min_size=1, max_size=5))
    def serve(self, times: int, costs: list[float]) -> None:
        ring, model = self.rings[0]
        for number in range(times):
            expected = model.due()
            if expected is None:
                return
            turn = ring.due()
            assert turn is self.real(expected)
            turn.charge(costs[number % len(costs)])
            expected.ring.charge(expected, costs[number % len(costs)])
            self.agree()

    def real(self, model: ModelTurn) -> Any:
        return next(turn for turn, other in self.turns if other is model)

    @rule(at=st.integers(0, 99), how=st.sampled_from(["join", "resume", "leave", "leave and resume"]))
    def switch(self, at: int, how: str) -> None:
        if not self.turns:
            return
        turn, model = self.turns[at % len(self.turns)]
        for each in how.split(" and "):
            getattr(turn, each)()
            model.held = each == "leave"
            if each == "leave":
                model.ring.take_out(model)
            else:
                model.ring.put_in(model, each == "resume")

    @rule(at=st.integers(0, 99), cost=st.sampled_from([1, 30]))
    def charge(self, at: int, cost: float) -> None:
        if self.turns:
            turn, model = self.turns[at % len(self.turns)]
            turn.charge(cost)
            model.ring.charge(model, cost)

    @rule(at=st.integers(0, 99), weight=st.sampled_from([0.2, 1, 5]))
    def weigh(self, at: int, weight: float) -> None:
        if self.turns:
            turn, model = self.turns[at % len(self.turns)]
            turn.weight = model.weight = weight

    @rule(at=st.integers(0, 99), priority=st.integers(0, 1))
    def promote(self, at: int, priority: int) -> None:
        if self.turns:
            turn, model = self.turns[at % len(self.turns)]
            turn.priority = priority
            was_in = model.is_in
            model.ring.take_out(model)
            advance = max(0.0, model.served - model.level.line)
            old, model.priority, model.round = model.priority, priority, 0
            if not any(other.ring is model.ring and other.priority == old for _, other in self.turns):
                del model.ring.levels[old]  # a level lives as long as a turn names it
            model.served = model.level.line + advance
            if was_in:
                model.ring.put_in(model, False)

    @invariant()
    def agree(self) -> None:
        for ring, model in self.rings:
            ring.check_invariants()
            for level in model.levels.values():
                level.check_bound(model.least)
        if self.rings:
            expected = self.rings[0][1].due()
            assert self.rings[0][0].due() is (None if expected is None else self.real(expected))


@pytest.mark.parametrize("name", KINDS)
def test_any_history(name: str) -> None:
    """Whatever comes, the tail that the model names is due, and no pair drifts apart by more than the bound."""
    machine = type("Machine", (RingMachine,), {"kind": Kind(*KINDS[name])})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(200), stateful_step_count=40))
