"""Fair queues: turns of tenants, who is passed over, what is refused at the declaration, what a restart keeps."""

from __future__ import annotations

import gc
import subprocess
import sys
from bisect import insort
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker_kernel_support import Bench

from multiqueue.broker import Broker, Credit, Entry, Message, Overflow, PreconditionFailed, QueueSettings, VirtualHost
from multiqueue.store import MemoryStore, StoreFull


def fair(**options: Any) -> Bench:
    settings = {name: options.pop(name) for name in ("max_priority", "max_length", "overflow") if name in options}
    return Bench(kind="fair", kind_options=options or None, **settings)


def fill(bench: Bench, text: str, **properties: Any) -> None:
    """Messages of the tenants named by letters; their bodies are the letter and a number."""
    for number, tenant in enumerate(text):
        bench.put(f"{tenant}{number}", headers={"tenant": tenant}, **properties)


def test_a_quiet_tenant_does_not_wait_behind_a_flood() -> None:
    """After 10,000 messages of one tenant, the first of another is served at the second delivery."""
    bench = fair()
    fill(bench, "a" * 10_000 + "b")
    consumer = bench.consumer()
    assert [bench.pull(consumer).message.body for _ in range(2)] == ["a0", "b10000"]  # type: ignore[union-attr]


def test_ten_thousand_tenants_get_one_each() -> None:
    """One round serves each of 10,000 tenants once, however long the first one's line is; few stay for a minute."""
    bench = fair()
    bench.put(*["flood"] * 500, headers={"tenant": "0"})
    for number in range(1, 10_000):
        bench.put("quiet", headers={"tenant": str(number)})
    consumer = bench.consumer()
    assert bench.pull_bodies(consumer).index("flood", 1) == 10_000
    source: Any = bench.queue.life.source
    bench.queue.delete_messages(steal=True)
    bench.queue.housekeeping()
    assert len(source.tenants.by_name) == 10_000
    bench.clock.advance(30)
    while (when := bench.queue.housekeeping()) is not None:
        assert when <= bench.clock()
    assert len(source.tenants.by_name) == 256, "tenants without messages stay"
    bench.queue.check_invariants()


def test_weights_are_shares() -> None:
    """A tenant of weight 3 gets three of four; weights may be fractions."""
    bench = fair(weights={"a": 1.5, "b": 0.5})
    fill(bench, "ab" * 100)
    consumer = bench.consumer()
    served = [bench.pull(consumer).message.body[0] for _ in range(40)]  # type: ignore[union-attr, index]
    assert abs(served.count("a") - 30) <= 1


def test_what_comes_back_returns_to_its_place_and_is_not_charged_again() -> None:
    """A released message is the first of its tenant again, and its second delivery takes nobody's turn."""
    bench = fair()
    fill(bench, "aabb")
    consumer = bench.consumer()
    first = bench.pull(consumer)
    assert first is not None
    assert first.message.body == "a0"
    bench.queue.release(first, consumer)
    assert bench.pull_bodies(consumer) == ["b2", "a0", "a1", "b3"]


def test_a_tenant_at_its_limit_is_passed_over_until_one_is_settled() -> None:
    """With max_in_flight=1 each tenant has one message out; settling it lets the next one go, and tells a consumer."""
    bench = fair(max_in_flight=1)
    fill(bench, "aaab")
    consumer = bench.consumer()
    entries = [bench.pull(consumer), bench.pull(consumer)]
    assert [entry and entry.message.body for entry in entries] == ["a0", "b3"]
    assert bench.pull(consumer) is None
    bench.taken_notices()
    bench.queue.accept(entries[0], consumer)  # type: ignore[arg-type]
    assert bench.taken_notices() == [consumer]
    assert bench.pull_bodies(consumer) == ["a1"]
    bench.queue.check_invariants()


def test_a_rate_wakes_consumers_at_the_moment() -> None:
    """Two at once and one a second: housekeeping is asked to come at that moment, and tells the consumer."""
    bench = fair(rate=1, burst=2)
    fill(bench, "aaaa")
    consumer = bench.consumer(auto_accept=True)
    assert bench.pull_bodies(consumer) == ["a0", "a1"]
    assert bench.queue.housekeeping() == 1001.0
    bench.taken_notices()
    bench.clock.advance(0.5)
    bench.queue.housekeeping()
    assert bench.taken_notices() == []
    bench.clock.advance(0.5)
    bench.queue.housekeeping()
    assert bench.taken_notices() == [consumer]
    assert bench.pull_bodies(consumer) == ["a2"]


def test_a_rate_is_remembered_while_its_tenant_has_nothing() -> None:
    """A tenant that puts one message at a time is above its rate all the same."""
    bench = fair(rate=1, burst=1)
    consumer = bench.consumer(auto_accept=True)
    fill(bench, "a")
    assert bench.pull_bodies(consumer) == ["a0"]
    for number in range(300):  # others come and go meanwhile
        bench.put("other", headers={"tenant": f"t{number}"})
    assert bench.pull_bodies(consumer) == ["other"] * 300
    fill(bench, "a")
    assert bench.pull_bodies(consumer) == []
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert bench.pull_bodies(consumer) == ["a0"]


def test_levels_come_before_tenants_and_a_tenants_priority_before_turns() -> None:
    """The highest level is served first, then the tenant of the highest priority, then turns are taken."""
    bench = fair(max_priority=1, tenants={"b": {"priority": 1}})
    fill(bench, "aab", priority=0)
    fill(bench, "cab", priority=1)
    assert bench.pull_bodies(bench.consumer()) == ["b2", "c0", "a1", "b2", "a0", "a1"]


def test_cost_is_what_turns_are_charged() -> None:
    """A tenant whose messages cost ten times as much gets a tenth of the messages."""
    bench = fair(cost="header:cost")
    for _ in range(100):
        bench.put("a", headers={"tenant": "a", "cost": 10})
        bench.put("b", headers={"tenant": "b", "cost": 1})
    consumer = bench.consumer()
    served = [bench.pull(consumer).message.body for _ in range(55)]  # type: ignore[union-attr]
    assert served.count("a") == 5


def test_nested_turns() -> None:
    """Customers take turns, and within a customer its projects; a slash in a name is no border."""
    bench = fair(key=["header:customer", "header:project"], tenants={"c~1d": {"weight": 2}})
    for customer, project, times in (("a", "x", 8), ("a", "y", 8), ("c/d", "x", 8)):
        for _ in range(times):
            bench.put(f"{customer} {project}", headers={"customer": customer, "project": project})
    consumer = bench.consumer()
    served = [bench.pull(consumer).message.body for _ in range(12)]  # type: ignore[union-attr]
    assert {name: served.count(name) for name in set(served)} == {"a x": 2, "a y": 2, "c/d x": 8}


@pytest.mark.parametrize(
    ("headers", "misread"),
    [({}, 0), ({"tenant": None}, 0), ({"tenant": 5}, 1), ({"tenant": "x" * 256}, 1), ({"tenant": "é" * 128}, 1)],
)
def test_a_message_without_a_name_belongs_to_the_tenant_without_one(headers: dict[str, object], misread: int) -> None:
    """What is no text of at most 255 bytes is the tenant "", and is counted unless it is nothing."""
    bench = fair()
    bench.put("m", headers=headers)
    tenants = bench.queue.life.source.tenants  # type: ignore[attr-defined]
    assert (list(tenants.by_name), tenants.misread) == ([""], misread)


def test_a_tenants_limit_drops_its_own_head() -> None:
    """A flood drops its own oldest message; the messages of others stay. So does a ring's limit of the whole queue."""
    bench = fair(max_length=4, overflow=Overflow.RING, tenants={"c": {"max_length": 1}})
    fill(bench, "abccaaaa")
    assert sorted(bench.bodies()) == ["a6", "a7", "b1", "c3"]
    assert [body for body, _ in bench.dead] == ["c2", "a0", "a4", "a5"]


def test_a_tenants_limit_refuses() -> None:
    """reject-publish refuses that tenant's message alone; with -dlx it is a dead letter."""
    bench = fair(tenants={name: {"max_length": 1, "overflow": f"reject-publish{name}"} for name in ("", "-dlx")})
    outcomes = [bench.queue.put(Message(name, headers={"tenant": name})).accepted for name in ("", "", "-dlx", "-dlx")]
    assert outcomes == [True, False, True, False]
    assert bench.dead == [("-dlx", "maxlen")]
    assert bench.queue.put(Message("x", headers={"tenant": "x"})).accepted


@pytest.mark.parametrize("limit", ["max_length", "max_length_bytes"])
def test_a_tenants_limit_counts_what_is_on_its_way_to_a_store(limit: str) -> None:
    """Each message that was admitted and has not joined counts once, and no longer when it was withdrawn."""
    life = fair(tenants={"a": {limit: 3, "overflow": "reject-publish"}}).queue.life

    def admit(tenant: str) -> Any:
        return life.admit(Message(b"1", headers={"tenant": tenant}))[1]

    entries = [admit("a") for _ in range(4)]
    assert [entry is not None for entry in entries] == [True, True, True, False]
    assert admit("b") is not None
    life.withdraw(entries[0])
    life.join([entries[1]])
    assert [admit("a") is not None for _ in range(2)] == [True, False]


def test_a_selector_has_turns_among_what_it_wants() -> None:
    """A consumer with a selector is served in turns too, and sees what comes back."""
    bench = fair()
    for tenant in "aaaabb":
        bench.put(f"{tenant} red", headers={"tenant": tenant, "color": "red"})
        bench.put(f"{tenant} blue", headers={"tenant": tenant, "color": "blue"})
    red = bench.consumer(selector=lambda message: message.headers["color"] == "red")
    entries = [bench.pull(red) for _ in range(4)]
    assert [entry and entry.message.body for entry in entries] == ["a red", "b red", "a red", "b red"]
    bench.queue.release([entry for entry in entries if entry], red)
    assert len(bench.pull_bodies(red)) == 6
    assert len(bench.pull_bodies(bench.consumer())) == 6


@pytest.mark.parametrize("seed", range(6))
def test_within_a_long_line_the_first_is_the_first(seed: int) -> None:
    """However many are taken out of its midst, come back, and are taken in runs: a consumer has them in their order."""
    random, bench = Random(seed), fair()
    bench.put(*range(600), headers={"tenant": "a"})
    waiting, taken, consumer = list(range(600)), dict[Any, Entry](), bench.consumer()
    while waiting or taken:
        if random.random() < 0.2:
            gone = set(random.sample(waiting, len(waiting) // random.randint(2, 9)))
            assert bench.queue.delete_messages(lambda message, gone=gone: message.body in gone) == len(gone)
            waiting = [each for each in waiting if each not in gone]
        for entry in bench.queue.deliver_messages(consumer, random.randint(1, 40)):
            taken[entry.message.body] = entry
            assert waiting.pop(0) == entry.message.body
        for each in [each for each in taken if random.random() < 0.5]:
            if random.random() < 0.3:
                bench.queue.release(taken.pop(each), consumer)
                insort(waiting, each)
            else:
                bench.queue.accept(taken.pop(each), consumer)
        bench.queue.check_invariants()


def test_prefetch_bounds_what_one_consumer_has() -> None:
    """A consumer with credit for two has one message of each of two tenants."""
    bench = fair()
    fill(bench, "aaab")
    assert bench.pull_bodies(bench.consumer(credit=Credit(2))) == ["a0", "b3"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"key": "tenant"},
            "key is 'tenant'; a message says its tenant in 'header:NAME', 'routing-key' or 'property:'",
        ),
        ({"key": ["header:a", "header:a"]}, "a list of different ones, the outermost first"),
        ({"keys": "header:a"}, "kind_options has no option 'keys' for a fair queue; there are key, weights"),
        ({"weights": {"a": 0}}, "tenant 'a': weight is 0; a number above 0 is needed"),
        ({"weights": {"a": True}}, "tenant 'a': weight is True; a number above 0 is needed"),
        ({"weights": {"a": 1e101}}, "; a number between 1e-100 and 1e+100 is needed"),
        ({"weights": {"a": 1e-101}}, "tenant 'a': weight is 1e-101; a number between 1e-100 and 1e+100 is needed"),
        ({"rate": "fast"}, "kind_options: rate is 'fast'; a number above 0 is needed"),
        ({"burst": 2}, "kind_options: burst needs rate"),
        ({"overflow": "drop-head"}, "overflow needs max_length or max_length_bytes"),
        ({"max_length": 1, "overflow": "ring"}, "overflow is 'ring'; one of drop-head, reject-publish, reject-publish"),
        ({"max_in_flight": 1.5}, "max_in_flight is 1.5; a whole number of at least 1 is needed"),
        ({"cost": "seconds"}, "cost is 'seconds'; 'header:NAME' is needed"),
        ({"tenants": {"a": {"key": "header:b"}}}, "tenant 'a' has no option 'key'; there are weight, priority"),
        ({"tenants": {"a": {"priority": 256}}}, "priority is 256; a whole number from 0 to 255 is needed"),
        ({"tenants": {"a": 1}}, "tenants: 'a' is 1; a table of options is needed"),
        ({"tenants": {"x" * 256: {}}}, "has 256 bytes; 255 are the most"),
        ({"weights": {"a": 1}, "tenants": {"a": {"weight": 2}}}, "is in weights and in tenants; leave one out"),
        ({"key": ["header:a", "header:b"], "weights": {"x/y/z": 2}}, "tenant 'x/y/z' has 3 parts; this queue has 2"),
        ({"key": ["header:a", "header:b"], "tenants": {"x": {"max_length": 2}}}, "'x' has others in it; max_length is"),
    ],
)
def test_a_wrong_option_refuses_the_declaration(options: dict[str, Any], said: str) -> None:
    """With a sentence that says what is wrong, and nothing is declared."""
    with Broker() as broker:
        with pytest.raises(PreconditionFailed) as told:
            broker.declare_queue("q", arguments={"x-queue-kind": "fair", "x-queue-kind-options": options})
        assert said in str(told.value)
        with pytest.raises(ValueError, match=r"\w"):
            QueueSettings(kind="fair", kind_options=options)
        assert broker.virtual_host().queues() == []


@pytest.mark.parametrize("options", [{"rate": Decimal("2.5"), "burst": 1, "key": "header:tenant"}, {"rate": 3}, None])
def test_a_redeclaration_is_compared_by_what_it_means(options: Any) -> None:
    """pika has decimals where other clients have doubles; a default that is spelled out is what it was."""
    with Broker() as broker:
        said = {"rate": 2.5, "burst": 1} if options and "burst" in options else {"key": ["header:tenant"]}
        broker.declare_queue("q", arguments={"x-queue-kind": "fair", "x-queue-kind-options": said})
        arguments = {"x-queue-kind": "fair"} | ({} if options is None else {"x-queue-kind-options": options})
        if options == {"rate": 3}:
            with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-kind-options'"):
                broker.declare_queue("q", arguments=arguments)
        else:
            broker.declare_queue("q", arguments=arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"qpid.group_header_key": "g"}, "a fair queue takes no message groups"),
        ({"qpid.queue_sort_key": "k"}, "sort_key belongs to a sorted queue, not to a fair one"),
        ({"qpid.last_value_queue_key": "k"}, "lvq_key belongs to a last_value queue, not to a fair one"),
    ],
)
def test_what_a_fair_queue_cannot_have(arguments: dict[str, Any], said: str) -> None:
    """Refused at the declaration, by name."""
    with Broker() as broker, pytest.raises(PreconditionFailed, match=said):
        broker.declare_queue("q", arguments={"x-queue-kind": "fair", **arguments})


def test_a_restart_keeps_options_and_the_order_within_tenants(tmp_path: Path) -> None:
    """Arguments are the same, so a redeclaration is one; each tenant's messages come in their order."""
    arguments = {"x-queue-kind": "fair", "x-queue-kind-options": {"weights": {"a": 2}}, "x-max-priority": 3}
    with Broker(data=tmp_path) as broker:
        queue = broker.declare_queue("q", durable=True, arguments=arguments)
        for number, tenant in enumerate("aaaabb"):
            body = f"{tenant}{number}".encode()
            broker.publish(Message(body, routing_key="q", headers={"tenant": tenant}, persistent=True))
        held = broker.get("q")
        assert held is not None
        assert held.body == b"a0"
    with Broker(data=tmp_path) as broker:
        queue = broker.declare_queue("q", durable=True, arguments=arguments)
        queue.check_invariants()
        got = [broker.get("q", auto_accept=True) for _ in range(6)]
        bodies = [each.body for each in got if each]
        assert [body for body in bodies if body < b"b"] == [b"a0", b"a1", b"a2", b"a3"]
        assert [body for body in bodies if body > b"b"] == [b"b4", b"b5"]
        assert len(queue) == 0


def test_under_a_limit_of_memory_tenants_drop_their_heads_on_the_disk(tmp_path: Path) -> None:
    """A fair queue that drops its tenants' heads pages as others do: each tenant has its last ones."""
    with Broker(data=tmp_path, memory_limit=1 << 20, durability="relaxed") as broker:
        arguments = {"x-queue-kind": "fair", "x-queue-kind-options": {"max_length": 250}}
        queue = broker.declare_queue("q", durable=True, arguments=arguments)
        for number in range(2100):
            body = b"%d" % number
            headers = {"tenant": str(number % 7)}
            broker.publish_nowait(Message(body.ljust(1024), routing_key="q", headers=headers, persistent=True))
        broker.wait_for_commits()
        while len(queue) > 1750:
            queue.housekeeping()
        assert not queue.life.source.has_all
        with broker.subscribe("q", auto_accept=True) as jobs:
            assert sorted(int(jobs.get().body) for _ in range(1750)) == list(range(350, 2100))


def test_options_of_a_tenant_change_while_it_runs() -> None:
    """A pause, a weight, a cap, a limit: at once, and consumers are told of what may go on."""
    bench = fair(tenants={"b": {"weight": 2}})
    fill(bench, "aaaaaabb")
    consumer = bench.consumer()
    bench.queue.change_tenant("a", {"paused": True})
    assert bench.pull_bodies(consumer) == ["b6", "b7"]
    bench.taken_notices()
    bench.queue.change_tenant("a", {"paused": False, "max_in_flight": 1})
    assert bench.taken_notices() == [consumer]
    assert bench.pull_bodies(consumer) == ["a0"]
    bench.queue.change_tenant("a", {"max_in_flight": None})
    assert bench.taken_notices() == [consumer]
    bench.queue.change_tenant("a", {"max_length": 2})
    assert bench.pull_bodies(consumer) == ["a4", "a5"]
    assert [body for body, _ in bench.dead] == ["a1", "a2", "a3"]
    bench.queue.change_tenant("b", {"weight": 5})
    bench.queue.change_tenant("b", None)
    fill(bench, "b")
    assert next(each.options.weight for each in bench.queue.tenants().largest if each.name == "b") == 2
    with pytest.raises(PreconditionFailed, match="tenant 'a': weight is 0; a number above 0 is needed"):
        bench.queue.change_tenant("a", {"weight": 0})
    bench.queue.check_invariants()
    with pytest.raises(PreconditionFailed, match="queue 'q' in vhost '/' is a standard queue; it has no tenants"):
        Bench().queue.change_tenant("a", {})


def test_a_weight_that_changes_counts_for_a_consumer_with_a_selector_too() -> None:
    """Its turns are as many as the new weight says, from the next on."""
    bench = fair()
    fill(bench, "ab" * 50)
    consumer = bench.consumer(selector=lambda message: True)
    assert bench.pull(consumer) is not None
    bench.queue.change_tenant("a", {"weight": 3})
    served = [bench.pull(consumer).message.body[0] for _ in range(40)]  # type: ignore[union-attr, index]
    assert abs(served.count("a") - 30) <= 1


def test_nobody_is_told_of_what_a_pause_keeps_back() -> None:
    """A message of a tenant that is passed over notifies no consumer, be it new or returned; the pause's end does."""
    bench = fair()
    fill(bench, "a")
    first, second = bench.consumer(), bench.consumer()
    taken = bench.pull(first)
    assert taken is not None
    assert bench.pull(first) is bench.pull(second) is None
    bench.queue.change_tenant("a", {"paused": True})
    bench.taken_notices()
    fill(bench, "a")
    bench.queue.release([taken], first)
    assert bench.taken_notices() == []
    bench.queue.change_tenant("a", {"paused": False})
    assert set(bench.taken_notices()) == {first, second}


def test_figures_of_tenants() -> None:
    """What waits, is in flight, was served; the share beside the weight; the longest wait; why one is passed over."""
    bench = fair(weights={"a": 3}, max_in_flight=2)
    fill(bench, "aaaaab")
    consumer = bench.consumer()
    bench.clock.advance(10)
    assert bench.pull_bodies(consumer) == ["a0", "b5", "a1"]
    found = bench.queue.tenants()
    assert (found.tenants, found.misread, found.jain) == (2, 0, None)
    a, b = found.largest
    assert (a.name, a.waiting, a.in_flight, a.served, a.longest_wait, a.passed_over) == (
        "a",
        3,
        2,
        2,
        10,
        "max_in_flight",
    )
    assert (a.share, a.fair_share) == (2 / 3, 3 / 4)
    assert (b.waiting, b.in_flight, b.longest_wait, b.passed_over) == (0, 1, 0, None)
    assert bench.queue.tenants(1).largest == [a]


def test_sums_of_a_tenant_count_runs_and_gets_and_what_came_back() -> None:
    """What a tenant was served in the last half minute to minute is one sum, by runs of a consumer and one at a time;
    what waits is one sum too, in bytes, where some of it came back.
    """
    bench = fair()
    fill(bench, "abaaab")
    consumer = bench.consumer()
    for _ in range(2):
        bench.clock.advance(30)
        entry = bench.queue.get(bench)
        assert entry is not None
        assert len(bench.queue.deliver_messages(consumer, 2)) == 2
    found = {each.name: each for each in bench.queue.tenants().largest}
    assert (found["a"].served, found["b"].served) == (4, 2)
    assert (found["a"].share, found["b"].share) == (4 / 6, 2 / 6)
    headers = entry.message.headers
    bench.put(b"four", headers=headers)
    again = bench.queue.get(bench)
    assert again is not None
    bench.queue.release([again], bench)
    bench.put(b"five.", headers=headers)
    assert bench.queue.tenants(1).largest[0].waiting_bytes == 9
    bench.queue.check_invariants()


def test_a_deleted_queue_keeps_no_tenants() -> None:
    """They go at once, without the collector: with messages, without, and those of which a consumer has something."""
    bench = fair()
    fill(bench, "abcdef")
    consumer = bench.consumer()
    taken = [bench.pull(consumer) for _ in range(3)]
    assert taken[0] is not None
    bench.queue.accept(taken[0], consumer)
    source: Any = bench.queue.life.source
    lane = type(next(source.tenants.lanes()))
    gc.collect()
    gc.disable()
    try:
        before = sum(type(each) is lane for each in gc.get_objects())
        bench.queue.delete()
        bench.queue.housekeeping()
        bench.queue.release([each for each in taken[1:] if each is not None], consumer)
        del taken
        assert before - sum(type(each) is lane for each in gc.get_objects()) == 6
    finally:
        gc.enable()


def test_jains_index_of_tenants_with_long_lines() -> None:
    """It is above 0.99 for 50 rounds of tenants of any weight, and is that of a minute in which all of them waited."""
    bench = fair(weights={"a": 3, "b": 0.5})
    fill(bench, "abc" * 400)
    consumer = bench.consumer(auto_accept=True)
    for _ in range(120):
        bench.clock.advance(0.5)
        assert bench.pull(consumer) is not None
    for _ in range(240):
        assert bench.pull(consumer) is not None
    jain = bench.queue.tenants().jain
    assert jain is not None
    assert jain > 0.99


@pytest.mark.parametrize("most", [1, 7, 100])
def test_any_fifty_rounds_are_shared_by_weight(most: int) -> None:
    """Of ten tenants, weights 0.5 to 20, one of which comes late and one of which returns messages: whenever 50 rounds
    begin, Jain's index of what each was served in them, by its weight, is 0.99 at least."""
    weights = {"a": 0.5, "b": 20.0, "c": 1.0, "d": 1.0, "e": 3.0, "f": 0.5, "g": 7.5, "h": 1.0, "i": 2.0, "j": 5.0}
    bench = fair(weights=weights)
    fill(bench, "".join(name * int(140 * weight) for name, weight in weights.items() if name != "c"))
    consumer, served = bench.consumer(), ""
    window = 50 * int(sum(weights.values()))
    while len(served) < 2 * window:
        if "c" not in served and len(served) > window // 4:
            fill(bench, "c" * 140)
            served = ""  # from here on all of them wait
        entries = bench.queue.deliver_messages(consumer, most)
        back = [each for each in entries if each.message.body[0] == "d" and each.delivery_count == 1]  # type: ignore[index]
        served += "".join(each.message.body[0] for each in entries if each.delivery_count == 1)  # type: ignore[misc, index]
        bench.queue.accept([each for each in entries if each not in back], consumer)
        bench.queue.release(back, consumer)
    for begin in range(len(served) - window):
        part = served[begin : begin + window]
        shares = [part.count(name) / weight for name, weight in weights.items()]
        assert sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares)) >= 0.99, begin


def test_credit_that_another_queue_uses_meanwhile_costs_no_place_and_no_turn() -> None:
    """What was taken for a credit that is used up by then goes back to its place; its turn is charged once."""

    class Shared(Credit):
        @property
        def of_any_size(self) -> int:
            return 4  # before another queue's consumer has taken two

    bench = fair()
    fill(bench, "aaabbb")
    consumer = bench.consumer(credit=Shared(2))
    first = bench.queue.deliver_messages(consumer, 6)
    assert [entry.message.body for entry in first] == ["a0", "b3"]
    bench.queue.check_invariants()
    bodies = bench.pull_bodies(bench.consumer())
    assert [[body for body in bodies if tenant in str(body)] for tenant in "ab"] == [["a1", "a2"], ["b4", "b5"]]
    assert [each.served for each in bench.queue.tenants().largest] == [3, 3]


def test_credit_in_bytes_is_asked_before_a_turn() -> None:
    """A message for which there are too few bytes is not taken, and its tenant keeps its turn."""
    bench = fair()
    for tenant in "aabb":
        bench.put(b"xxx", headers={"tenant": tenant})
    credit = Credit(size_bytes=4)
    consumer = bench.consumer(credit=credit)
    order: list[object] = []
    while taken := bench.queue.deliver_messages(consumer, 4):
        order += [entry.message.headers["tenant"] for entry in taken]
        assert len(taken) == 1
        bench.queue.accept(taken, consumer)
        credit.settled(1, 3)
        bench.queue.credit_changed(consumer)
    assert order == ["a", "b", "a", "b"]


CHILD = """
import os, signal, sys
from multiqueue.broker import Broker, Message
broker = Broker(data=sys.argv[1])
queue = broker.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
for number in range(60):
    tenant = "abc"[number * 7 % 3]
    broker.publish(Message(b"%d" % number, routing_key="q", headers={"tenant": tenant}, persistent=True))
queue.change_tenant("a", {"weight": 4})
queue.change_tenant("b", {"paused": True})
broker.wait_for_commits()
for _ in range(10):
    broker.get("q", auto_accept=True)
broker.wait_for_commits()
held = [broker.get("q") for _ in range(12)]
for received in held[::-2]:
    received.release()
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_order_pauses_and_weights_are_as_they_were(tmp_path: Path) -> None:
    """kill -9: nothing confirmed is lost, each tenant's messages come in order, also those that a consumer had or gave
    back, and what was changed of tenants is kept."""
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert child.stdout == "ready\n", child.stderr
    with Broker(data=tmp_path) as broker:
        queue = broker.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
        options = {each.name: each.options for each in queue.tenants().largest}
        assert (options["a"].weight, options["b"].paused, options["c"].table()) == (4, True, {})
        assert len(queue) == 50
        got: dict[object, list[int]] = {}
        while (received := broker.get("q", auto_accept=True)) is not None:
            got.setdefault(received.message.headers["tenant"], []).append(int(received.body))  # type: ignore[call-overload]
        assert set(got) == {"a", "c"}
        assert all(numbers == sorted(numbers) for numbers in got.values())
        queue.change_tenant("b", None)
        numbers = []
        while (received := broker.get("q", auto_accept=True)) is not None:
            numbers.append(int(received.body))  # type: ignore[call-overload]
        assert len(numbers) == 20
        assert numbers == sorted(numbers)


def test_what_follows_a_commit_cannot_change_a_tenant(tmp_path: Path) -> None:
    """On the store's own thread a change would wait for itself: it is refused, and nothing is changed."""
    with Broker(data=tmp_path) as broker:
        queue = broker.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
        raised: list[RuntimeError] = []

        def follow(consumer: object) -> None:
            try:
                queue.change_tenant("a", {"paused": True})
            except RuntimeError as error:
                raised.append(error)

        queue.set_notify_work_desired(queue.add_consumer(follow), True)
        broker.publish(Message(b"", routing_key="q", headers={"tenant": "a"}, persistent=True))
        broker.wait_for_commits()
        assert ["callback of a commit" in str(error) for error in raised] == [True]
        assert queue.changed_tenants == {}
        queue.change_tenant("a", {"paused": True})  # any other thread may


def test_a_change_that_a_store_cannot_keep_is_undone() -> None:
    """Its caller is told that the store is full, and the tenant has what it had."""
    store = MemoryStore()
    host = VirtualHost("/", store=store)
    queue = host.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
    queue.change_tenant("a", {"weight": 2})
    for changes in ({"weight": 3}, {"paused": True}, None):
        store.fail_at(1, StoreFull("no room"))
        with pytest.raises(StoreFull):
            queue.change_tenant("a", changes)
        assert queue.life.changed_tenants == {"a": {"weight": 2}}
    host.publish(Message(b"", routing_key="q", headers={"tenant": "a"}))
    assert queue.tenants().largest[0].options.weight == 2
    host.close()


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("x" * 256, {"weight": 1}, "is not the name of a tenant: text of at most 255 bytes"),
        ("\ud800", {"weight": 1}, "is not the name of a tenant"),
        (5, {"weight": 1}, "5 is not the name of a tenant"),
        ("a", 5, "5 is no table of options"),
    ],
)
def test_what_no_change_of_a_tenant_can_be(name: Any, changes: Any, said: str) -> None:
    """Refused with a sentence, and nothing is changed."""
    with Broker() as broker:
        queue = broker.declare_queue("q", arguments={"x-queue-kind": "fair"})
        with pytest.raises(PreconditionFailed, match=said):
            queue.change_tenant(name, changes)
        assert queue.life.changed_tenants == {}


def test_a_limit_that_is_taken_away_takes_along_what_needs_it() -> None:
    """A rate its burst, and the last length what happens above it."""
    with Broker() as broker:
        queue = broker.declare_queue("q", arguments={"x-queue-kind": "fair"})
        queue.change_tenant(
            "a", {"rate": 5, "burst": 2, "max_length": 1, "max_length_bytes": 9, "overflow": "drop-head"}
        )
        queue.change_tenant("a", {"rate": None})
        queue.change_tenant("a", {"max_length": None})
        assert queue.life.changed_tenants["a"]["overflow"] == "drop-head"
        queue.change_tenant("a", {"max_length_bytes": None})
        broker.publish(Message(b"", routing_key="q", headers={"tenant": "a"}))
        options = queue.tenants().largest[0].options
        assert (options.rate, options.burst, options.max_length_bytes, options.overflow) == (None, None, None, None)


def test_a_delay_that_ends_stands_behind_what_a_selector_has_not_looked_at() -> None:
    """Within a tenant the first is the first, for a consumer with a selector too."""
    bench = fair()
    red = bench.consumer(selector=lambda message: True)
    bench.put("first", headers={"tenant": "a"})
    bench.put("second", headers={"tenant": "a"}, delay=3.0)
    bench.clock.advance(3.0)
    bench.queue.housekeeping()
    assert bench.pull_bodies(red) == ["first", "second"]


def test_a_dump_of_a_fair_queue_loads(tmp_path: Path) -> None:
    """A tenant's level is any number of 63 bits; messages, options and pauses come back."""
    with Broker(data=tmp_path / "x") as broker:
        queue = broker.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
        queue.change_tenant("t3", {"paused": True})
        for number in range(64):
            headers = {"tenant": f"t{number % 16}"}
            broker.publish(Message(b"%d" % number, routing_key="q", headers=headers, persistent=True))
    store = [sys.executable, "-m", "multiqueue", "store"]
    dumped = subprocess.run([*store, "dump", str(tmp_path / "x" / "%2f")], check=True, capture_output=True)
    subprocess.run([*store, "load", str(tmp_path / "y" / "%2f")], check=True, input=dumped.stdout, capture_output=True)
    with Broker(data=tmp_path / "y") as broker:
        queue = broker.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
        assert queue.changed_tenants == {"t3": {"paused": True}}
        assert len(queue) == 64
