"""Policies in process: what applies to what, at once and after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_durable_support import holding
from broker_parts_support import Topology
from hypothesis import given
from hypothesis import strategies as st

from multiqueue.broker import (
    Broker,
    BrokerQueue,
    DelayedRetry,
    Message,
    MessageRefused,
    Overflow,
    Policy,
    QueueSettings,
    UnknownPolicySetting,
    VirtualHost,
)
from multiqueue.store import MemoryStore, StoreFull
from multiqueue.testing import FakeClock, wait_until_blocked


def a_policy(name: str = "p", pattern: str = "^a", priority: int = 0, **definition: Any) -> Policy:
    """A policy of keys written with `_`; an operator's where the name begins with `op`."""
    said = {key.replace("_", "-"): value for key, value in definition.items()}
    return Policy(name=name, pattern=pattern, priority=priority, definition=said, is_operators=name.startswith("op"))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made
        made.virtual_host("/").check_invariants()


def fill(broker: Broker, queue: str, count: int) -> None:
    for number in range(count):
        broker.publish(Message(b"%d" % number, routing_key=queue))


def bodies(queue: BrokerQueue) -> list[bytes]:
    return [message.body for message in queue.browse()]


def test_a_policy_applies_to_what_is_there_and_to_what_comes(broker: Broker) -> None:
    """A smaller ring lets go of its oldest messages at once; without the policy all is as it was declared.

    (broker-front 10)"""
    there = broker.declare_queue("a there")
    other = broker.declare_queue("other")
    fill(broker, "a there", 600)
    assert broker.policies.set(a_policy(max_length=3))
    comes = broker.declare_queue("a comes")
    for queue in (there, comes):
        assert (queue.effective_settings.max_length, queue.effective_settings.overflow) == (3, Overflow.RING)
        assert queue.settings == QueueSettings(expires_at_head=True)
        assert queue.governing.policy == "p"
    fill(broker, "a comes", 5)
    broker.virtual_host("/").check_invariants()
    assert bodies(comes) == [b"2", b"3", b"4"]
    assert bodies(there)[-3:] == [b"597", b"598", b"599"]
    assert other.effective_settings == other.settings
    assert broker.declare_queue("a there") is there  # as it was declared
    assert not broker.policies.set(a_policy(max_length=4))
    assert broker.policies.clear("p")
    assert not broker.policies.clear("p")
    assert there.effective_settings == QueueSettings(expires_at_head=True)
    assert there.governing.policy is None


_RING = {"x-overflow": "drop-head"}
_RETRY = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 20}
_RETRIES = {"delayed-retry-type": "all", "delayed-retry-min": 50, "delayed-retry-max": 90}
_ALL, _NEVER = DelayedRetry.ALL, DelayedRetry.NONE


@pytest.mark.parametrize(
    ("declared", "policies", "expected"),
    [
        ({"x-max-length": 10}, [{"max-length": 5}], {"max_length": 5}),
        ({"x-max-length": 5}, [{"max-length": 10}], {"max_length": 5}),
        ({}, [{"max-length": 10}, {"max-length": 5}], {"max_length": 5, "overflow": Overflow.RING}),
        ({}, [{"max-length": 5}, {"max-length": 10}], {"max_length": 5}),
        ({}, [{"message-ttl": 5000}, {"expires": 9000}], {"message_ttl": 5.0, "expires": 9.0}),
        ({"x-message-ttl": 1000}, [{"message-ttl": 5000}], {"message_ttl": 1.0}),
        ({"x-queue-type": "quorum"}, [{"delivery-limit": -1}, {"delivery-limit": 4}], {"max_delivery_attempts": 5}),
        ({"x-queue-type": "quorum"}, [{"delivery-limit": 30}], {"max_delivery_attempts": 31}),
        ({"x-queue-type": "quorum", "x-delivery-limit": 3}, [{"delivery-limit": 30}], {"max_delivery_attempts": 4}),
        ({"x-dead-letter-exchange": "x"}, [{"dead-letter-exchange": "y"}], {"dead_letter_exchange": "x"}),
        ({}, [{"dead-letter-exchange": "y", "dead-letter-routing-key": "k"}], {"dead_letter_routing_key": "k"}),
        ({"x-dead-letter-exchange": "x"}, [{"dead-letter-routing-key": "k"}], {"dead_letter_routing_key": "k"}),
        ({}, [{"dead-letter-routing-key": "k"}], {"dead_letter_routing_key": None}),
        ({"x-max-length": 5}, [{"overflow": "reject-publish"}], {"overflow": Overflow.REJECT}),
        ({"x-overflow": "drop-head"}, [{"overflow": "reject-publish"}], {"overflow": Overflow.RING}),
        ({}, [{"overflow": "drop-head"}, {"overflow": "reject-publish"}], {"overflow": Overflow.REJECT}),
        ({"x-queue-type": "quorum"}, [{"consumer-timeout": 9000}], {"consumer_timeout": 9.0}),
        ({"x-queue-type": "quorum", **_RING}, [{"overflow": "reject-publish"}], {"overflow": Overflow.REJECT}),
        ({"x-queue-type": "quorum", **_RETRY}, [{"delayed-retry-type": "disabled"}], {"delayed_retry": _NEVER}),
        ({"x-queue-type": "quorum", **_RETRY}, [_RETRIES], {"delayed_retry": _ALL, "delayed_retry_min": 0.02}),
        (
            {"x-queue-type": "quorum"},
            [_RETRIES, {"delayed-retry-min": 30, "delayed-retry-max": 80}],
            {"delayed_retry": _ALL, "delayed_retry_min": 0.05, "delayed_retry_max": 0.08},
        ),
        ({}, [{**_RETRIES, "consumer-timeout": 9}], {"delayed_retry": _NEVER, "consumer_timeout": None}),
        ({}, [{"queue-mode": "lazy"}], {"overflow": Overflow.NONE}),
    ],
)
def test_what_counts_where_several_speak(
    broker: Broker, declared: dict[str, Any], policies: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    """The policy, the operator's, and the arguments of the queue, as RabbitMQ 4.3.6 puts them together."""
    queue = broker.declare_queue("a", durable=True, arguments=declared)
    for name, definition in zip(("p", "op"), policies, strict=False):
        broker.policies.set(Policy(name=name, pattern="a", definition=definition, is_operators=name == "op"))
    assert {name: getattr(queue.effective_settings, name) for name in expected} == expected


def test_the_highest_priority_counts_and_of_equal_ones_the_first_by_name(broker: Broker) -> None:
    """Whatever the order in which they are set."""
    queue = broker.declare_queue("a")
    for name, priority in (("m", 1), ("z", 2), ("b", 2), ("a", -1)):
        broker.policies.set(a_policy(name, priority=priority, max_length=priority + 2))
    assert (queue.governing.policy, queue.effective_settings.max_length) == ("b", 4)
    broker.policies.clear("b")
    assert queue.governing.policy == "z"


def test_what_it_applies_to(broker: Broker) -> None:
    """Queues of a type, or exchanges."""
    classic = broker.declare_queue("a classic")
    quorum = broker.declare_queue("a quorum", durable=True, arguments={"x-queue-type": "quorum"})
    for apply_to, expected in (
        ("queues", [classic, quorum]),
        ("all", [classic, quorum]),
        ("classic_queues", [classic]),
        ("quorum_queues", [quorum]),
        ("streams", []),
        ("exchanges", []),
    ):
        broker.policies.set(Policy(name="p", pattern="^a", definition={"max-length": 3}, apply_to=apply_to))
        assert [queue for queue in (classic, quorum) if queue.effective_settings.max_length == 3] == expected


# What RabbitMQ 4.3.6 and 3.10.8 showed of a classic and of a quorum queue: the version that lets a key apply to each.
_APPLIED: dict[str, tuple[Any, str, str]] = {
    "message-ttl": (5, "4.3 3.10 lenient", "4.3 3.10 lenient"),
    "delivery-limit": (3, "lenient", "4.3 3.10 lenient"),
    "dead-letter-strategy": ("at-most-once", "lenient", "4.3 3.10 lenient"),
    "max-in-memory-length": (3, "3.10 lenient", "4.3 3.10 lenient"),
    "max-in-memory-bytes": (3, "3.10 lenient", "4.3 3.10 lenient"),
    "target-group-size": (3, "3.10 lenient", "4.3 3.10 lenient"),
    "queue-leader-locator": ("balanced", "4.3 lenient", "4.3 3.10 lenient"),
    "queue-mode": ("lazy", "4.3 3.10 lenient", "lenient"),
    "initial-cluster-size": (1, "lenient", "lenient"),
    "max-age": ("1D", "lenient", "lenient"),
    "stream-max-segment-size-bytes": (3, "lenient", "lenient"),
    "delayed-retry-min": (3, "4.3 3.10 lenient", "4.3 3.10 lenient"),
}


@pytest.mark.parametrize("compat", ["4.3", "3.10", "lenient"])
@pytest.mark.parametrize("key", _APPLIED)
def test_a_policy_with_a_key_that_the_type_lacks_is_passed_over(key: str, compat: str) -> None:
    """As a whole, for the next one; so is an operator's."""
    value, *applied = _APPLIED[key]
    with Broker(compat=compat) as broker:
        queues = [
            broker.declare_queue(f"a {kind}", durable=True, arguments={"x-queue-type": kind})
            for kind in ("classic", "quorum")
        ]
        broker.policies.set(a_policy("next", max_length=9))
        broker.policies.set(Policy(name="first", pattern="^a", priority=1, definition={key: value, "max-length": 3}))
        for queue, versions in zip(queues, applied, strict=True):
            expected = ("first", 3) if compat in versions.split() else ("next", 9)
            assert (queue.governing.policy, queue.effective_settings.max_length) == expected
    if key != "delivery-limit":
        return
    with Broker(compat=compat) as broker:
        queue = broker.declare_queue("a classic", durable=True)
        broker.policies.set(a_policy("op", delivery_limit=3, max_length=5))
        assert queue.governing.operator_policy == ("op" if compat == "lenient" else None)


def test_an_exchange_gets_an_alternate(broker: Broker) -> None:
    """Of its policy, unless it was declared with one."""
    broker.declare_exchange("a", "direct")
    broker.declare_exchange("a own", "direct", arguments={"alternate-exchange": "amq.direct"})
    kept = broker.declare_queue("kept")
    broker.bind_queue("kept", "amq.fanout")
    broker.policies.set(a_policy(pattern="^a( own)?$", alternate_exchange="amq.fanout"))
    for exchange in ("a", "a own"):
        broker.publish(Message(exchange.encode(), exchange=exchange, routing_key="nowhere"))
    assert bodies(kept) == [b"a"]
    broker.policies.clear("p")
    broker.publish(Message(b"", exchange="a", routing_key="nowhere"))
    assert len(kept) == 1


def test_times_of_a_policy() -> None:
    """A time to live is of what comes later; an idle queue has all of its time from then on."""
    clock = FakeClock()
    with Broker(clock=clock) as broker:
        broker.declare_queue("a")
        fill(broker, "a", 1)
        clock.advance(100)
        broker.policies.set(a_policy(message_ttl=1000))
        fill(broker, "a", 1)
        clock.advance(2)
        assert broker.get("a", auto_accept=True) is not None
        assert broker.get("a", auto_accept=True) is None


def test_a_policy_says_how_long_a_consumer_may_keep_a_message() -> None:
    """Of a quorum queue, for what is taken next; without the policy it is the server's time again."""
    clock = FakeClock()
    with Broker(clock=clock, consumer_timeout=500.0) as broker:
        queue = broker.declare_queue("a", durable=True, arguments={"x-queue-type": "quorum"})
        fill(broker, "a", 3)
        for seconds in (500.0, 60.0, 500.0):
            if seconds == 60.0:
                broker.policies.set(a_policy(consumer_timeout=60_000))
            received = broker.get("a")
            assert received is not None
            assert queue.housekeeping() == clock() + seconds
            received.accept()
            broker.policies.clear("p")


def test_dead_letters_go_where_the_policy_says_now(broker: Broker) -> None:
    """It is asked when the message dies."""
    broker.declare_queue("dead")
    queue = broker.declare_queue("a")
    fill(broker, "a", 2)
    assert queue.purge() == 2
    fill(broker, "a", 1)
    broker.policies.set(a_policy(dead_letter_exchange="", dead_letter_routing_key="dead"))
    received = broker.get("a")
    assert received is not None
    received.reject()
    assert bodies(broker.queue("dead")) == [b"0"]


def test_publishers_that_a_limit_refused_go_on_without_it(broker: Broker) -> None:
    """A limit that refuses comes and goes with its policy."""
    broker.declare_queue("a")
    broker.policies.set(a_policy("op", max_length=1, overflow="reject-publish"))
    fill(broker, "a", 1)
    with pytest.raises(MessageRefused):
        fill(broker, "a", 1)
    broker.policies.clear("op", is_operators=True)
    fill(broker, "a", 2)
    assert len(broker.queue("a")) == 3


def test_a_policy_of_many_queues_lets_others_have_their_turn(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices others have the interpreter, and no lock is held: a queue declared there has the policy."""
    for number in range(40):
        broker.declare_queue(f"a {number}")

    def declare() -> None:
        other = threading.Thread(target=broker.declare_queue, args=(f"a meanwhile {len(meanwhile)}",))
        other.start()
        other.join()
        meanwhile.append(other)

    meanwhile: list[threading.Thread] = []
    monkeypatch.setattr("multiqueue.broker._host.policies.nap", declare)
    broker.policies.set(a_policy(max_length=3))
    assert len(meanwhile) >= 2
    assert {queue.effective_settings.max_length for queue in broker.virtual_host("/").queues()} == {3}


@pytest.mark.parametrize("before", [{}, {"overflow": "drop-head"}, {"max_length": 900}])
def test_a_limit_that_refuses_cuts_first_what_was_not_refused(broker: Broker, before: dict[str, Any]) -> None:
    """As RabbitMQ, which has the new length before the new overflow; what comes back later is not cut."""
    queue = broker.declare_queue("a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    dead = broker.declare_queue("dead")
    broker.policies.set(a_policy(**before or {"expires": 900_000}))
    fill(broker, "a", 600)
    broker.policies.set(a_policy("op", max_length=2, overflow="reject-publish"))
    wait_until_blocked(lambda: (len(queue), len(dead)) == (2, 598))
    assert bodies(queue) == [b"598", b"599"]
    held = [broker.get("a") for _ in range(2)]
    fill(broker, "a", 2)
    for received in held:
        assert received is not None
        received.release()
    broker.policies.set(a_policy("op", max_length=1, overflow="reject-publish"))
    assert len(queue) == 4


def test_a_restart_cuts_nothing_that_a_limit_would_refuse(tmp_path: Path) -> None:
    """Messages above the limit came back to it, and are kept."""
    with Broker(data=tmp_path) as broker:
        broker.declare_queue("a", durable=True)
        broker.policies.set(a_policy("op", max_length=1, overflow="reject-publish"))
        for number in range(3):
            broker.publish(Message(b"%d" % number, routing_key="a", persistent=True))
            assert broker.get("a") is not None
    with Broker(data=tmp_path) as broker:
        assert bodies(broker.queue("a")) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"definition": {}}, ValueError, "no policy provided"),
        ({"definition": {"delayed-retry-type": "all"}}, ValueError, "delayed-retry-min is required"),
        (
            {"definition": {"delayed-retry-min": 9, "delayed-retry-max": 3}},
            ValueError,
            r"delayed-retry-max \(3\) must not be smaller than delayed-retry-min \(9\)",
        ),
        ({"definition": {"max-length": -1}}, ValueError, "max-length: -1 is out of range"),
        ({"definition": {"max-length": "5"}}, TypeError, "max-length: '5' is of type str"),
        ({"definition": {"max-length": True}}, TypeError, "max-length: True is of type bool"),
        ({"definition": {"ha-mode": "all"}}, UnknownPolicySetting, "ha-mode are not recognised policy settings"),
        ({"definition": {"alternate-exchange": 5}}, TypeError, "no name of an exchange"),
        ({"definition": {"overflow": "x"}}, ValueError, "overflow: 'x' is not known; one of drop-head"),
        ({"definition": {"dead-letter-exchange": "x"}, "is_operators": True}, UnknownPolicySetting, "operator policy"),
        ({"pattern": "("}, ValueError, "is not a regular expression"),
        ({"pattern": "(?!x)(a+)+"}, ValueError, "could take any time"),
        ({"priority": 1.5}, TypeError, "priority should be a whole number"),
        ({"apply_to": "things"}, ValueError, "apply-to 'things' unrecognised; should be one of queues"),
        ({"name": "x" * 256}, ValueError, "255 are the most"),
    ],
)
def test_what_no_policy_can_be(said: dict[str, Any], error: type[Exception], words: str) -> None:
    """It is refused when it is made, in words that say what can be."""
    with pytest.raises(error, match=words):
        Policy(**{"name": "p", "pattern": "a", "definition": {"max-length": 5}, **said})


def test_policies_are_kept(tmp_path: Path) -> None:
    """A restart has them, and what they apply to, in each virtual host its own."""
    with Broker(data=tmp_path) as broker:
        broker.declare_queue("a", durable=True)
        broker.declare_exchange("a", durable=True)
        broker.add_virtual_host("other")
        broker.policies.set(a_policy(max_length=5))
        broker.policies.set(a_policy("op", max_length=4))
        broker.policies.set(a_policy("gone", max_length=1))
        broker.policies.clear("gone")
        before = broker.policies.all(), broker.policies.all(is_operators=True)
    with Broker(data=tmp_path) as broker:
        assert (broker.policies.all(), broker.policies.all(is_operators=True)) == before
        queue = broker.queue("a")
        assert (queue.governing.policy, queue.governing.operator_policy) == ("p", "op")
        assert queue.effective_settings.max_length == 4
        assert queue.settings.max_length is None
        assert broker.virtual_host("other").policies.all() == []


@given(
    st.lists(
        st.tuples(st.sampled_from(["p1", "p2", "op1", "op2"]), st.integers(-2, 2), st.integers(0, 6) | st.none()),
        max_size=12,
    )
)
def test_any_history_ends_as_its_last_policies_say(history: list[tuple[str, int, int | None]]) -> None:
    """Whatever was set and cleared: what applies is that of the policies that are left, and the ring keeps to it."""
    with Broker() as broker:
        queue = broker.declare_queue("a")
        left: dict[str, tuple[int, int]] = {}
        for name, priority, length in history:
            if length is None:
                assert broker.policies.clear(name, is_operators=name.startswith("op")) == (name in left)
                left.pop(name, None)
            else:
                broker.policies.set(a_policy(name, priority=priority, max_length=length))
                left[name] = (priority, length)
            fill(broker, "a", 2)
            chosen = []
            for sort in ("p", "op"):
                of_sort = sorted((-rank, each, most) for each, (rank, most) in left.items() if each.startswith(sort))
                chosen += [most for _, _, most in of_sort[:1]]
            assert queue.effective_settings.max_length == min(chosen, default=None)
            assert not chosen or len(queue) <= min(chosen)


def test_a_change_that_the_store_refuses_is_undone() -> None:
    """A full store: it raises, and what applies is as before, to a queue that is declared meanwhile too."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    queue = host.declare_queue("a", durable=True)
    host.policies.set(a_policy(max_length=5))
    for attempt in (
        lambda: host.policies.set(a_policy(max_length=1)),
        lambda: host.policies.clear("p"),
        lambda: host.limits.set("max-queues", 1),
    ):
        store.fail_at(1, StoreFull("no room"))
        with pytest.raises(StoreFull):
            attempt()
        assert [each.definition for each in host.policies.all()] == [{"max-length": 5}]
        assert queue.effective_settings.max_length == 5
        assert host.limits.all() == {}
    host.close()


def changed_at_once(store: MemoryStore, *changes: Callable[[], object]) -> list[type[BaseException] | None]:
    """How changes ended of which each was begun before the commit of the one before: the first is refused, for want
    of room."""
    ended: list[type[BaseException] | None] = [None] * len(changes)

    def run(index: int, change: Callable[[], object]) -> None:
        try:
            change()
        except StoreFull as error:
            ended[index] = type(error)

    store.fail_at(1, StoreFull("no room"))
    threads = [threading.Thread(target=run, args=each) for each in enumerate(changes)]
    with holding(store):
        for thread in threads:
            thread.start()
            wait_until_blocked(thread)
    for thread in threads:
        thread.join()
    return ended


def test_a_change_that_is_refused_beside_another_leaves_what_is_kept() -> None:
    """Two threads set the same limit to the same number: one is refused, and the other one's is there and kept."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    set_limit = partial(host.limits.set, "max-queues", 5)
    assert changed_at_once(store, set_limit, set_limit) == [StoreFull, None]
    assert host.limits.all() == {"max-queues": 5}
    assert [each.document for each in store.definitions()] == ["5"]
    host.close()


def test_changes_that_are_refused_together_leave_nothing() -> None:
    """The second of two finds the first one's value, and must not bring it back."""

    class Full(MemoryStore):
        def submit(self, operations: Any, *rest: Any, **options: Any) -> Any:
            if operations:
                self.fail_at(1, StoreFull("no room"))
            return super().submit(operations, *rest, **options)

    store = Full()
    host = VirtualHost(store=store)
    changes = [partial(host.limits.set, "max-queues", most) for most in (5, 6)]
    assert changed_at_once(store, *changes) == [StoreFull, StoreFull]
    assert host.limits.all() == {}
    host.close()


def test_changes_of_a_tenant_that_are_refused_together_leave_nothing() -> None:
    """The second of two waits for the first one's end, and brings back what was kept."""

    class Full(MemoryStore):
        is_full = False

        def submit(self, operations: Any, *rest: Any, **options: Any) -> Any:
            if operations and self.is_full:
                self.fail_at(1, StoreFull("no room"))
            return super().submit(operations, *rest, **options)

    store = Full()
    host = VirtualHost(store=store)
    queue = host.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
    queue.change_tenant("a", {"weight": 2})
    store.is_full = True
    changes = [partial(queue.change_tenant, "a", {"weight": weight}) for weight in (3, 4)]
    assert changed_at_once(store, *changes) == [StoreFull, StoreFull]
    assert queue.changed_tenants == {"a": {"weight": 2}}
    host.close()


def test_a_limit_of_a_tenant_that_is_refused_drops_nothing() -> None:
    """Only what the store keeps is followed: what a limit drops would not come back."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    queue = host.declare_queue("q", durable=True, arguments={"x-queue-kind": "fair"})
    for _ in range(3):
        host.publish(Message(b"", routing_key="q", persistent=True, headers={"tenant": "a"}))
    store.fail_at(1, StoreFull("no room"))
    with pytest.raises(StoreFull):
        queue.change_tenant("a", {"max_length": 1})
    host.publish(Message(b"", routing_key="q", persistent=True, headers={"tenant": "a"}))
    assert (len(queue), queue.changed_tenants) == (4, {})
    queue.change_tenant("a", {"max_length": 1})
    assert len(queue) == 1
    host.close()


def test_a_callback_of_a_commit_cannot_wait_for_another() -> None:
    """It is told so, and nothing is changed."""
    host = VirtualHost(store=MemoryStore())
    host.declare_queue("a", durable=True)
    told: list[str] = []

    def change(tags: object) -> None:
        with pytest.raises(RuntimeError, match="callback of a commit") as caught:
            host.limits.set("max-queues", 1)
        told.append(str(caught.value))

    publisher = host.publisher(change)
    publisher.publish(Message(b"", routing_key="a", persistent=True), tag=1)
    publisher.hand_in()
    host.wait_for_commits()
    assert len(told) == 1
    assert host.limits.all() == {}
    host.close()


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_what_is_declared_has_its_policy_as_soon_as_it_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that comes to it before its declaration is committed has the time to live, or the alternate."""
    clock = FakeClock()
    with Broker(clock=clock.monotonic) as broker:
        broker.declare_queue("other")
        broker.policies.set(a_policy(message_ttl=1000))
        broker.policies.set(a_policy("e", "^e", alternate_exchange="amq.fanout"))
        broker.bind_queue("other", "amq.fanout")
        add = getattr(Topology, f"add_{kind}")

        def early(topology: Topology, *declared: Any) -> object:
            found = add(topology, *declared)
            broker.publish(Message(b"", routing_key="a") if kind == "queue" else Message(b"", exchange="e"))
            return found

        monkeypatch.setattr(Topology, f"add_{kind}", early)
        if kind == "queue":
            queue = broker.declare_queue("a")
            clock.advance(2)
            queue.housekeeping()
            assert len(queue) == 0
        else:
            broker.declare_exchange("e")
            assert len(broker.queue("other")) == 1
