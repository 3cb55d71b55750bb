"""Which queues a message reaches, and what remains of bindings when their ends go."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from typing import Any

import pytest
from broker_front_support import RoutingPlan
from broker_parts_support import HeadersIndex, frozen, headers_condition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis_support import examples

from multiqueue.broker import AccessRefused, Binding, Exchange, Message, NotFound, PreconditionFailed


def reached(plan: RoutingPlan, exchange: str, key: str = "", **headers: object) -> list[str]:
    message = Message(routing_key=key, exchange=exchange, headers=headers)
    return [queue.name for queue in plan.topology.route(message)]


@pytest.fixture
def plan() -> RoutingPlan:
    return RoutingPlan()


def test_the_default_exchange_leads_to_the_queue_of_that_name(plan: RoutingPlan) -> None:
    """Every queue is bound to the default exchange by its name, from its declaration to its deletion."""
    plan.queue("a")
    assert (reached(plan, "", "a"), reached(plan, "", "b")) == (["a"], [])
    declared = plan.topology.find_queue("a")
    assert declared is not None
    assert plan.topology.remove_queue(declared.queue)
    assert reached(plan, "", "a") == []
    assert not plan.topology.remove_queue(declared.queue)


def test_a_direct_exchange_leads_by_routing_key_and_a_fanout_one_everywhere(plan: RoutingPlan) -> None:
    """Direct asks for the same routing key; fanout does not look at it."""
    direct, fanout = plan.exchange("d", "direct"), plan.exchange("f", "fanout")
    for name in ("a", "b"):
        queue = plan.queue(name)
        plan.bind(direct, queue, name)
        plan.bind(fanout, queue, name)
    assert (reached(plan, "d", "a"), reached(plan, "d", "c")) == (["a"], [])
    assert reached(plan, "f", "c") == ["a", "b"]


def test_a_queue_gets_one_copy_however_many_bindings_match(plan: RoutingPlan) -> None:
    """Two patterns that match, and two ways through other exchanges, are still one delivery (broker-front 1)."""
    topic, other = plan.exchange("t", "topic"), plan.exchange("o", "fanout")
    queue = plan.queue("q")
    plan.bind(topic, queue, "a.*")
    plan.bind(topic, queue, "#")
    plan.bind(topic, other, "a.b")
    plan.bind(other, queue)
    assert reached(plan, "t", "a.b") == ["q"]


def test_exchanges_bound_in_a_circle_are_each_visited_once(plan: RoutingPlan) -> None:
    """A message goes round a cycle of exchange-to-exchange bindings once, and reaches all their queues.

    (broker-front 2)
    """
    circle = [plan.exchange(f"x{n}", "fanout") for n in range(3)]
    for n, exchange in enumerate(circle):
        plan.bind(exchange, circle[(n + 1) % 3])
        plan.bind(exchange, exchange)
        plan.bind(exchange, plan.queue(f"q{n}"))
    assert sorted(reached(plan, "x1")) == ["q0", "q1", "q2"]
    assert [each.received for each in circle] == [1, 1, 1]


def test_an_alternate_exchange_gets_what_nothing_matches(plan: RoutingPlan) -> None:
    """The alternate is asked when no binding matches, its own alternate after it; a circle of them ends.

    (broker-front 2)
    """
    first = plan.exchange("first", "direct", alternate="second")
    second = plan.exchange("second", "direct", alternate="third")
    third = plan.exchange("third", "fanout", alternate="first")
    plan.bind(first, plan.queue("matched"), "key")
    assert reached(plan, "first", "other") == []
    plan.bind(third, plan.queue("last resort"))
    assert reached(plan, "first", "key") == ["matched"]
    assert reached(plan, "first", "other") == ["last resort"]
    plan.topology.remove_exchange(second)
    assert reached(plan, "first", "other") == []
    assert (first.received, first.unroutable) == (4, 2)


def test_an_exchange_that_matches_but_leads_nowhere_does_not_ask_its_alternate(plan: RoutingPlan) -> None:
    """A binding to an exchange without bindings is a match: as in RabbitMQ, the alternate is not asked."""
    first = plan.exchange("first", "fanout", alternate="alternate")
    plan.bind(first, plan.exchange("dead end", "fanout"))
    plan.bind(plan.exchange("alternate", "fanout"), plan.queue("q"))
    assert reached(plan, "first") == []


def test_publishing_to_an_exchange_that_is_missing_or_internal_is_refused(plan: RoutingPlan) -> None:
    """The two refusals read as RabbitMQ's do; a dead letter may enter at an internal exchange."""
    internal = plan.exchange("hidden", "fanout", internal=True)
    plan.bind(internal, plan.queue("q"))
    plan.bind(plan.exchange("open", "fanout"), internal)
    with pytest.raises(NotFound, match=re.escape("NOT_FOUND - no exchange 'x' in vhost '/'")):
        reached(plan, "x")
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange 'hidden' in vhost '/'"):
        reached(plan, "hidden")
    assert reached(plan, "open") == ["q"]
    assert len(plan.topology.route(Message(exchange="hidden"), internal=True)) == 1


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"x-tenant": "t", "a": 1}, {"a": 1}, True),
        ({"x-match": "all-with-x", "x-tenant": "t"}, {"a": 1}, False),
        ({"x-match": "any-with-x", "x-tenant": "t"}, {"x-tenant": "t"}, True),
    ],
)
def test_a_headers_exchange_compares_headers(
    arguments: dict[str, object], headers: dict[str, object], expected: bool
) -> None:
    """All of them or any of them, by presence or by value and type, with the `x-` ones only when asked."""
    assert headers_condition(arguments)(Message(headers=headers)) is expected


VALUES = [None, 0, 1, True, 1.0, -0.0, float("nan"), "1", "", b"1", [1], {"a": 1}, Decimal(1), 2**70]


def some_pairs(random_: random.Random, names: str) -> dict[str, object]:
    return {name: random_.choice(VALUES) for name in names if random_.random() < 0.4}


@pytest.mark.parametrize("seed", range(5))
def test_the_index_of_a_headers_exchange_finds_what_a_scan_finds(plan: RoutingPlan, seed: int) -> None:
    """Whatever bindings come and go, each that matches is among the candidates, once, also where they changed since the
    headers were read."""
    random_ = random.Random(seed)
    source, index = plan.exchange("h", "headers"), HeadersIndex()
    bindings: list[Binding] = []
    queue = plan.queue("q")
    for number in range(600):
        message = Message(headers={name.replace("x", "x-t"): one for name, one in some_pairs(random_, "abcdx").items()})
        asked = index.key_of(message)
        if bindings and random_.random() < (0.3 if number < 400 else 0.8):
            index.remove(bindings.pop(random_.randrange(len(bindings))))
        else:
            mode = (
                {"x-match": random_.choice(["all", "any", "all-with-x", "any-with-x"])}
                if random_.random() < 0.8
                else {}
            )
            pairs = {name.replace("x", "x-t"): one for name, one in some_pairs(random_, "abcdx").items()}
            arguments: dict[str, object] = (
                {"number": number, **pairs, **mode} if random_.random() < 0.1 else pairs | mode
            )
            binding = Binding(source, queue, "", arguments, headers_condition(arguments))
            bindings.append(binding)
            index.add(binding)
        for key in (asked, index.key_of(message)):
            candidates = index.matching(key)
            assert len(set(candidates)) == len(candidates)
            found = [binding for binding in bindings if binding.condition and binding.condition(message)]
            assert {each for each in candidates if each.condition and each.condition(message)} == set(found)
    for binding in bindings:
        index.remove(binding)
    assert index.matching(index.key_of(Message(headers={"a": 1}))) == ()
    assert (vars(index)["_by_key"], vars(index)["_names"]) == ({}, ())


def test_a_headers_exchange_looks_at_few_of_many_bindings(plan: RoutingPlan) -> None:
    """Each is found by the pair that fewest others ask for, wherever that stands among its arguments."""
    index, source = HeadersIndex(), plan.exchange("h", "headers")
    queue = plan.queue("q")
    for number in range(500):
        for arguments in ({"type": "order", "tenant": number}, {"x-match": "any", "tenant": number, "never": number}):
            index.add(Binding(source, queue, "", arguments, headers_condition(arguments)))
    assert len(index.matching(index.key_of(Message(headers={"type": "order", "tenant": 7})))) <= 3
    assert len(index.matching(index.key_of(Message(headers={"type": "order"})))) <= 1


def test_a_mode_of_headers_matching_that_does_not_exist_is_refused() -> None:
    """The refusal says what was received and what would have been accepted."""
    text = "Invalid x-match field value 'some'; expected all, any, all-with-x, any-with-x"
    with pytest.raises(PreconditionFailed, match=text):
        headers_condition({"x-match": "some"})


def test_a_condition_that_routes_a_message_itself_does_not_deadlock(plan: RoutingPlan) -> None:
    """Conditions are asked outside the lock, since header values may be objects with a mind of their own.

    (broker-front 8)
    """
    plan.queue("q")

    class Nosy:
        def __eq__(self, other: object) -> bool:
            return reached(plan, "", "q") == ["q"]

        __hash__ = None  # type: ignore[assignment]

    nosy = Nosy()
    source = plan.exchange("h", "headers")
    declared = plan.topology.find_queue("q")
    assert declared is not None
    binding = Binding(source, declared.queue, "", condition=lambda message: message.headers["a"] == nosy)
    assert plan.topology.bind(binding)
    assert reached(plan, "h", a=nosy) == ["q"]


def test_binding_twice_is_binding_once_and_other_arguments_make_another(plan: RoutingPlan) -> None:
    """Source, destination, key and arguments together are a binding's identity, and unbinding asks for it."""
    source, queue = plan.exchange("x", "fanout"), plan.queue("q")
    for arguments in ({"a": 1}, {"a": 1}, {"a": True}):
        assert plan.topology.bind(Binding(source, queue, "k", arguments))
    assert len(source.bindings) == 2
    assert not plan.topology.unbind(source, Binding(source, queue, "k", {}).identity)
    assert plan.topology.unbind(source, Binding(source, queue, "k", {"a": 1}).identity)
    assert not plan.topology.unbind(source, Binding(source, queue, "k", {"a": 1}).identity)
    plan.topology.check_invariants()
    assert reached(plan, "x") == ["q"]


def test_arguments_are_compared_by_value_and_type_however_they_are_nested() -> None:
    """Equal tables are one identity, and True is not 1."""
    assert frozen({"a": [1, {"b": "c"}]}) == frozen({"a": (1, {"b": "c"})})
    assert frozen({"a": 1}) != frozen({"a": True})


def test_an_auto_delete_exchange_goes_with_its_last_binding_and_may_take_others_along(
    plan: RoutingPlan,
) -> None:
    """Deleting a queue unbinds it; an auto-delete exchange left without bindings goes, and so on upwards."""
    upper = plan.exchange("upper", "fanout", auto_delete=True)
    lower = plan.exchange("lower", "fanout", auto_delete=True)
    keeper = plan.exchange("keeper", "fanout")
    plan.bind(upper, lower)
    plan.bind(keeper, lower)
    assert plan.topology.find_exchange("lower") is lower
    plan.bind(lower, plan.queue("q"))
    declared = plan.topology.find_queue("q")
    assert declared is not None
    plan.topology.remove_queue(declared.queue)
    assert [each.name for each in plan.topology.exchanges()] == ["", "keeper"]
    plan.topology.check_invariants()


def test_a_binding_to_an_end_that_is_gone_is_not_made(plan: RoutingPlan) -> None:
    """A caller that looked an exchange up before it was deleted cannot bring it back by binding."""
    source, queue = plan.exchange("x"), plan.queue("q")
    plan.topology.remove_exchange(source)
    assert not plan.topology.bind(Binding(source, queue, "k"))
    assert not plan.topology.bind(Binding(plan.default, source, "k"))
    plan.topology.check_invariants()


def test_an_exchange_with_bindings_is_not_removed_if_it_is_to_be_unused(plan: RoutingPlan) -> None:
    """`if_unused` looks at the bindings and removes in one step."""
    source, queue = plan.exchange("x"), plan.queue("q")
    binding = plan.bind(source, queue, "k")
    assert not plan.topology.remove_exchange(source, if_unused=True)
    plan.topology.unbind(source, binding.identity)
    assert plan.topology.remove_exchange(source, if_unused=True)
    assert plan.topology.find_exchange("x") is None


class TopologyMachine(RuleBasedStateMachine):
    """Exchanges, queues and bindings come and go; a set of triples says what should be left of them."""

    names = st.sampled_from(["a", "b", "c", "d"])
    keys = st.sampled_from(["k", "l", "*", "#"])

    def __init__(self) -> None:
        super().__init__()
        self.plan = RoutingPlan()
        self.kinds: dict[str, tuple[str, bool]] = {}
        self.queues: set[str] = set()
        self.bound: set[tuple[str, str, str]] = set()  # exchange, "x:" or "q:" and destination, key

    @rule(name=names, kind=st.sampled_from(["direct", "fanout", "topic"]), auto_delete=st.booleans())
    def declare_exchange(self, name: str, kind: str, auto_delete: bool) -> None:
        self.plan.exchange(name, kind, auto_delete=auto_delete)
        self.kinds.setdefault(name, (kind, auto_delete))

    @rule(name=names)
    def declare_queue(self, name: str) -> None:
        self.plan.queue(name)
        self.queues.add(name)

    @rule(name=names)
    def delete_exchange(self, name: str) -> None:
        if exchange := self.plan.topology.find_exchange(name):
            self.plan.topology.remove_exchange(exchange)
            del self.kinds[name]
            self.bound -= {each for each in self.bound if each[0] == name}
            self.forget(f"x:{name}")

    @rule(name=names)
    def delete_queue(self, name: str) -> None:
        if declared := self.plan.topology.find_queue(name):
            self.plan.topology.remove_queue(declared.queue)
            self.queues.discard(name)
            self.forget(f"q:{name}")

    @rule(source=names, destination=names, to_queue=st.booleans(), key=keys)
    def bind(self, source: str, destination: str, to_queue: bool, key: str) -> None:
        self.kinds.setdefault(source, ("topic", True))
        at = self.plan.exchange(source, "topic", auto_delete=True)
        to: Any
        if to_queue:
            to = self.plan.queue(destination)
            self.queues.add(destination)
        else:
            self.kinds.setdefault(destination, ("fanout", False))
            to = self.plan.exchange(destination, "fanout")
        self.plan.bind(at, to, key)
        self.bound.add((source, f"{'q' if to_queue else 'x'}:{destination}", key))

    @precondition(lambda self: self.bound)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        triple = data.draw(st.sampled_from(sorted(self.bound)))
        source, destination, key = triple
        (found,) = (
            binding
            for binding in self.plan.topology.bindings()
            if (binding.source.name, binding.destination.name, binding.routing_key) == (source, destination[2:], key)
            and isinstance(binding.destination, Exchange) is destination.startswith("x:")
        )
        assert self.plan.topology.unbind(found.source, found.identity)
        self.remove({triple})

    def forget(self, destination: str) -> None:
        self.remove({each for each in self.bound if each[1] == destination})

    def remove(self, triples: set[tuple[str, str, str]]) -> None:
        """Unbind, and let auto-delete exchanges that lost their last binding go."""
        self.bound -= triples
        for source in {each[0] for each in triples}:
            if self.kinds.get(source, ("", False))[1] and not any(each[0] == source for each in self.bound):
                del self.kinds[source]
                self.forget(f"x:{source}")

    @rule(start=names, key=st.sampled_from(["k", "l", "k.l", ""]))
    def publish(self, start: str, key: str) -> None:
        if start not in self.kinds:
            return
        seen, pending, expected = {start}, [start], set()
        while pending:
            at = pending.pop()
            for source, destination, pattern in self.bound:
                if source != at or not self.matches(self.kinds[at][0], pattern, key):
                    continue
                if destination.startswith("q:"):
                    expected.add(destination[2:])
                elif destination[2:] not in seen:
                    seen.add(destination[2:])
                    pending.append(destination[2:])
        assert sorted(reached(self.plan, start, key)) == sorted(expected)

    @staticmethod
    def matches(kind: str, pattern: str, key: str) -> bool:
        if kind == "fanout":
            return True
        if kind == "topic" and pattern in ("*", "#"):
            return pattern == "#" or key in ("k", "l")
        return pattern == key

    @invariant()
    def everything_stands_where_it_should(self) -> None:
        self.plan.topology.check_invariants()
        assert {each.name for each in self.plan.topology.exchanges()} == {"", *self.kinds}
        assert {each.name for each in self.plan.topology.queues()} == self.queues
        assert len(self.plan.topology.bindings()) == len(self.bound) + len(self.queues)


TopologyMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestTopologyMachine = TopologyMachine.TestCase
