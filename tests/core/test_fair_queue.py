"""`FairQueue`: its keys take turns within the bound of the ring, come and go, and lose nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Hashable
from typing import Any, cast

import pytest
from fair_model_support import FairModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from hypothesis_support import examples

from multiqueue import Empty, FairQueue, FairTaken, Full, ShutDown
from multiqueue.testing import PATIENCE, interruptions, wait_until_blocked
from multiqueue.testing.contracts import QueueContract

KEYS: list[Hashable] = ["a", "b", "c", ("n", "x"), ("n", "y"), ("n", "y", "deep"), ("m", "x")]
PLACES: list[Hashable] = [*KEYS, "n", "m"]
keys, places = st.sampled_from(KEYS), st.sampled_from(PLACES)
costs = st.sampled_from([0.25, 1.0, 1.0, 3.0, 10.0])


class TestFairQueue(QueueContract):
    """Without keys it is a `queue.Queue`."""

    def make(self, maxsize: int = 0) -> Any:
        return FairQueue(capacity=maxsize or None)


class OfOneKey(FairQueue[Any]):
    """What it tells is of one key, beside one that is paused."""

    __slots__ = ()

    def qsize(self, key: Any = ("tenant", "project")) -> int:
        return super().qsize(key)

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self, key: Any = ("tenant", "project")) -> bool:
        return super().full(key)


class TestByKeys(QueueContract):
    """Nor is one key disturbed by others."""

    def make(self, maxsize: int = 0) -> Any:
        queue = OfOneKey(lambda _: ("tenant", "project"), weights={"other": 3.0}, capacity=maxsize or None)
        queue.pause("paused")
        queue.put("of one that is paused", key="paused")
        queue.task_done()
        return queue


class FairQueueMachine(RuleBasedStateMachine):
    """One thread, and every option; each delivery is that of the model, whose accounts keep the bound."""

    @initialize(limit=st.sampled_from([None, None, 1, 2]), capacity=st.sampled_from([None, None, 3]))
    def begin(self, limit: int | None, capacity: int | None) -> None:
        self.queue: FairQueue[int] = FairQueue(max_in_flight=limit, capacity=capacity)
        self.model = FairModel(limit, capacity)
        self.number = 0

    @rule(key=keys, cost=costs, count=st.integers(1, 4))
    def put(self, key: Hashable, cost: float, count: int) -> None:
        for _ in range(count):
            self.number += 1
            if self.model.is_shutdown or self.model.is_full(key):
                with pytest.raises(ShutDown if self.model.is_shutdown else Full) as refused:
                    self.queue.put_nowait(self.number, key=key, cost=cost)
                assert cast(Any, refused.value).item == self.number
                assert self.model.is_shutdown or self.queue.full(key)
            else:
                self.queue.put(self.number, key=key, cost=cost)
                self.model.put(key, self.number, cost)

    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        for _ in range(count):
            expected = self.model.take()
            self.model.check_bound()
            if expected is None:
                is_over = self.model.is_shutdown and not self.model.size()
                with pytest.raises(ShutDown if is_over else Empty):
                    self.queue.take(block=False)
                break
            assert self.queue.peek() == expected[1]
            assert self.queue.take(block=False) == expected

    @rule(count=st.integers(1, 9))
    def get_many(self, count: int) -> None:
        expected: list[Any] = []
        while len(expected) < count and (taken := self.model.take()) is not None:
            self.model.check_bound()
            expected.append(taken[1])
        if expected:
            assert self.queue.get_many(count, block=False) == expected

    @rule(key=places)
    def task_done(self, key: Hashable) -> None:
        if self.model.done(key):
            self.queue.task_done(key)
        else:
            with pytest.raises(ValueError, match="too many times"):
                self.queue.task_done(key)

    def in_use(self, key: Hashable) -> bool:
        """Whether a setting of this key can be changed: once shut down nothing comes any more."""
        if self.model.is_shutdown and key not in self.model.tenants:
            with pytest.raises(ShutDown):
                self.queue.set_weight(key, 1)
            return False
        return True

    @rule(key=places, weight=st.sampled_from([0.5, 1, 1, 2, 4]))
    def set_weight(self, key: Hashable, weight: float) -> None:
        if self.in_use(key):
            self.queue.set_weight(key, weight)
            self.model.tenant(key).turn.weight = weight
            self.model.is_uneven = self.model.is_uneven or weight != 1
            self.model.settle(self.model.tenant(key))

    @rule(key=places, limit=st.sampled_from([None, None, 1, 2]))
    def set_max_in_flight(self, key: Hashable, limit: int | None) -> None:
        if self.in_use(key):
            self.queue.set_max_in_flight(key, limit)
            self.model.limit_to(key, limit)

    @rule(key=places, reason=st.sampled_from([None, "why"]), is_paused=st.booleans())
    def pause_or_resume(self, key: Hashable, reason: Hashable, is_paused: bool) -> None:
        if self.in_use(key):
            (self.queue.pause if is_paused else self.queue.resume)(key, reason)
            tenant = self.model.tenant(key)
            (tenant.paused.add if is_paused else tenant.paused.discard)(reason)
            self.model.settle(tenant)

    @rule(immediate=st.booleans(), chance=st.integers(0, 9))
    def shutdown(self, immediate: bool, chance: int) -> None:
        if chance:
            return
        self.queue.shutdown(immediate)
        self.model.is_shutdown = True
        if immediate:
            self.model.unfinished -= self.model.size()
            for tenant in list(self.model.tenants.values()):
                tenant.items.clear()
            for tenant in list(self.model.tenants.values()):
                self.model.settle(tenant)

    @invariant()
    def is_as_the_model(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check_invariants()
            assert self.queue.qsize() == self.model.size()
            assert self.queue.waiting() == {key: len(t.items) for key, t in self.model.tenants.items() if t.items}


def test_a_fair_queue_is_as_the_model() -> None:
    """Each delivery, after any history of puts, takes, settings and ends; and the bound holds after each (core 11)."""
    run_state_machine_as_test(
        FairQueueMachine, settings=settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
    )


# ---- the bound -------------------------------------------------------------------------------------------------------


def test_one_job_does_not_wait_behind_a_flood() -> None:
    """A new key's first element is served after at most one of each key that is active."""
    queue: FairQueue[str] = FairQueue(lambda job: job.partition(" ")[0])
    for tenant in range(10):
        for job in range(1000):
            queue.put(f"{tenant} {job}")
    for _ in range(25):
        queue.get()
    queue.put("new 0")
    assert "new 0" in [queue.get() for _ in range(11)]


@pytest.mark.parametrize("weight", [1, 2, 0.5])
def test_jains_index_of_backlogged_tenants(weight: float) -> None:
    """Over any window of 50 rounds Jain's index of what tenants were served, by their weights, is at least 0.99."""
    tenants = 20
    queue: FairQueue[int] = FairQueue(weights=dict.fromkeys(range(0, tenants, 2), weight))
    for _ in range(400):
        for tenant in range(tenants):
            queue.put(tenant, key=tenant)
    shares = [weight if tenant % 2 == 0 else 1.0 for tenant in range(tenants)]
    window = int(50 * sum(shares) / min(1.0, weight))
    order = [queue.get() for _ in range(window + 500)]
    for start in range(0, 500, 7):
        counts = Counter(order[start : start + window])
        served = [counts[tenant] / shares[tenant] for tenant in range(tenants)]
        assert sum(served) ** 2 / (tenants * sum(share**2 for share in served)) >= 0.99


def test_what_is_left_of_a_turn_is_not_kept() -> None:
    """A key that is emptied in the middle of its turn, and filled again, stands at the end of the round."""
    queue: FairQueue[str] = FairQueue(weights={"k": 2})
    for _ in range(4):
        queue.put("h", key="h", cost=10.0)
    for name in "m" * 40 + "k":
        queue.put(name, key=name)
    while queue.get() != "k":
        pass
    queue.put("k", key="k")
    assert [queue.get() for _ in range(12)] == ["h", *"m" * 10, "k"]


def test_one_heavy_element_at_a_time_is_no_advantage() -> None:
    """A key that puts its next element when it has the last one is charged for each, though it comes and goes."""
    queue: FairQueue[str] = FairQueue(cost=lambda key: 100.0 if key == "heavy" else 1.0)
    for _ in range(5000):
        queue.put("light", key="light")
    queue.put("heavy", key="heavy")
    served: Counter[str] = Counter()
    for _ in range(2000):
        item = queue.get()
        served[item] += 100 if item == "heavy" else 1
        if item == "heavy":
            queue.put("heavy", key="heavy")
    assert abs(served["heavy"] - served["light"]) <= 200


# ---- tails that come and go ------------------------------------------------------------------------------------------


class Key:
    """A key that can be watched as it goes."""


def test_a_key_is_let_go_with_its_last_element() -> None:
    """Nothing of a key is kept once its last element is taken, whether or not task_done() is called."""
    queue: FairQueue[int] = FairQueue()
    key = Key()
    gone = weakref.ref(key)
    queue.put(1, key=key)
    queue.put(2, key=key)
    del key
    assert queue.get() == 1
    gc.collect()
    assert gone() is not None
    assert queue.get() == 2
    gc.collect()
    assert gone() is None
    queue.check_invariants()


def test_a_key_in_flight_under_a_limit_stays_until_it_is_done() -> None:
    """Then its limit counts; and it goes when the last of its elements is done."""
    queue: FairQueue[int] = FairQueue(max_in_flight=1)
    queue.put(1, key="a")
    assert queue.take() == FairTaken("a", 1)
    queue.put(2, key="a")
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(ValueError, match="say whose"):
        queue.task_done()
    queue.task_done("a")
    assert queue.get_nowait() == 2
    queue.task_done("a")
    queue.join()
    queue.check_invariants()


def test_a_limit_of_a_customer_holds_for_all_its_projects() -> None:
    """What is nested counts in flight for what it is nested in."""
    queue: FairQueue[int] = FairQueue()
    queue.set_max_in_flight("acme", 2)
    for project in range(3):
        queue.put(project, key=("acme", project))
    queue.put(9, key="other")
    assert {queue.get(), queue.get(), queue.get()} >= {9}
    with pytest.raises(Empty):
        queue.get_nowait()
    queue.task_done(("acme", 0))
    assert queue.get_nowait() in (1, 2)


def test_an_equal_key_of_another_type_is_the_same_key() -> None:
    """Keys are those of a dict: 1, 1.0 and True are one."""
    queue: FairQueue[str] = FairQueue()
    for number, key in enumerate((1, 1.0, True, "1")):
        queue.put(str(number), key=key)
    assert queue.waiting() == {1: 3, "1": 1}
    assert [queue.take().key for _ in range(4)] == [1, "1", 1, 1]


def test_a_tuple_of_one_is_its_element() -> None:
    """A path of one step is that step."""
    queue: FairQueue[int] = FairQueue(max_in_flight=1)
    queue.put(1, key=("a",))
    queue.put(2, key="a")
    assert queue.take() == ("a", 1)
    queue.task_done(("a",))
    assert queue.take() == ("a", 2)


# ---- keys and functions that raise, or that do odd things ------------------------------------------------------------


def _no_such_key(item: Any) -> Any:
    return item["tenant"]


@pytest.mark.parametrize(
    ("options", "arguments", "error"),
    [
        ({}, {"key": []}, TypeError),
        ({}, {"key": ("a", [])}, TypeError),
        ({"key": _no_such_key}, {}, KeyError),
        ({"key": lambda item: {}}, {}, TypeError),
        ({"cost": lambda item: 0 - 1}, {}, ValueError),
        ({"cost": lambda item: "1"}, {}, TypeError),
        ({}, {"cost": 0}, ValueError),
        ({}, {"cost": -1.0}, ValueError),
        ({}, {"cost": float("nan")}, ValueError),
        ({}, {"cost": float("inf")}, ValueError),
        ({}, {"cost": True}, TypeError),
        ({}, {"timeout": -1}, ValueError),
    ],
)
def test_a_put_that_raises_has_put_nothing(options: Any, arguments: Any, error: type[Exception]) -> None:
    """Unhashable keys, functions that raise, costs that are none."""
    queue: FairQueue[Any] = FairQueue(**options)
    with pytest.raises(error):
        queue.put({}, **arguments)
    assert queue.empty()
    assert queue.waiting() == {}
    queue.check_invariants()
    queue.join()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"key": 3}, TypeError),
        ({"cost": 2.0}, TypeError),
        ({"weights": {"a": 0}}, ValueError),
        ({"weights": {"a": "2"}}, TypeError),
        ({"weights": {"a": True}}, TypeError),
        ({"weights": [("a", 2)]}, TypeError),
        ({"max_in_flight": 0}, ValueError),
        ({"capacity": 0}, ValueError),
        ({"capacity": 1.5}, TypeError),
    ],
)
def test_wrong_settings_are_refused(arguments: Any, error: type[Exception]) -> None:
    """With what was wrong, and what would be right."""
    with pytest.raises(error, match=r"key|cost|weight|max_in_flight|capacity"):
        FairQueue(**arguments)


def test_a_limit_that_was_refused_is_none() -> None:
    """Nothing is half-done: task_done() asks for no key after it."""
    queue: FairQueue[int] = FairQueue()
    with pytest.raises(TypeError, match="unhashable"):
        queue.set_max_in_flight(cast(Any, []), 1)
    queue.put(1)
    queue.get()
    queue.task_done()
    queue.join()


def test_it_is_initialized_once() -> None:
    """Before, it says what is missing; again, it keeps its elements."""

    class Forgetful(FairQueue[int]):
        def __init__(self) -> None:
            self._key = self._cost = None

    with pytest.raises(TypeError, match=r"FairQueue.__init__\(\) was not called of this"):
        Forgetful().put(1)
    queue: FairQueue[int] = FairQueue()
    queue.put(1, key="a")
    with pytest.raises(TypeError, match="initialized once"):
        queue.__init__(capacity=3)  # type: ignore[misc]
    assert queue.take() == ("a", 1)


class OddKey:
    """All of these collide; `act` runs when two are compared."""

    def __init__(self, name: str, act: Any = None) -> None:
        self.name, self.act = name, act

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        for each in (self, other):
            if isinstance(each, OddKey) and each.act is not None:
                each.act()
        return isinstance(other, OddKey) and self.name == other.name


def test_keys_that_collide_are_told_apart() -> None:
    """By their equality; and one that goes leaves the others."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(3):
        for name in "abc":
            queue.put(name, key=OddKey(name))
    for name in "abcabcabc":
        assert queue.get() == name
        queue.check_invariants()
    assert queue.waiting() == {}


def test_an_equality_that_raises_puts_nothing() -> None:
    """It reaches the caller, and the queue goes on."""

    def refuse() -> None:
        raise RuntimeError("not comparable")

    queue: FairQueue[str] = FairQueue()
    queue.put("there", key=OddKey("a"))
    with pytest.raises(RuntimeError, match="not comparable"):
        queue.put("new", key=OddKey("b", refuse))
    queue.check_invariants()
    assert queue.get() == "there"
    queue.put("new", key=OddKey("b", refuse))  # nothing is there to be compared with
    assert queue.get() == "new"
    queue.check_invariants()


def test_an_equality_may_use_the_queue() -> None:
    """No lock is held while keys are compared: it may take the last element of the key it is compared with, and put."""
    queue: FairQueue[str] = FairQueue()
    acts: list[Any] = []

    def act() -> None:
        if acts:
            acts.pop()()

    queue.put("first", key=OddKey("a", act))
    acts.append(queue.get)
    queue.put("second", key=OddKey("a", act))
    assert queue.waiting() == {OddKey("a"): 1}
    acts.append(lambda: queue.put("third", key=OddKey("b")))
    queue.put("fourth", key=OddKey("b"))
    queue.check_invariants()
    assert sorted(queue.get() for _ in range(3)) == ["fourth", "second", "third"]
    queue.check_invariants()


def test_keys_in_deep_nests_end_with_an_error() -> None:
    """Not with a crash; and nothing is left. How deep is too deep is the interpreter's."""
    queue: FairQueue[int] = FairQueue()
    try:
        queue.put(1, key=tuple(range(5000)))
    except RecursionError:
        assert queue.empty()
    else:
        assert queue.get() == 1
    assert queue.waiting() == {}
    queue.check_invariants()


# ---- strikes ---------------------------------------------------------------------------------------------------------


class Struck(BaseException):
    """What strikes."""


def _house() -> FairQueue[Any]:
    """Keys with many elements, with one, nested, limited; costs differ, and one key has faded."""
    queue: FairQueue[Any] = FairQueue(capacity=4)
    queue.set_max_in_flight("limited", 2)
    queue.set_max_in_flight("n", 3)
    for number, key in enumerate(
        ["a", "a", "a", "a", ("n", "x"), ("n", "x"), ("n", "y"), "limited", "limited", "once"]
    ):
        queue.put(number, key=key, cost=1.0 + number % 3)
    queue.put("faded", key="z", cost=50.0)
    while queue.take().item != "faded":
        pass
    for number in range(20, 24):
        queue.put(number, key=("b", number % 2, number % 3))
    return queue


STRUCK: dict[str, Any] = {
    "put": lambda queue: queue.put("new", key="new"),
    "put of a nested key": lambda queue: queue.put("new", key=("n", "deep", "er")),
    "put to what has faded": lambda queue: queue.put("new", key="z"),
    "put to one that is full": lambda queue: queue.offer("new", key="a"),
    "get": lambda queue: queue.get(),
    "take": lambda queue: queue.take(),
    "get_many": lambda queue: queue.get_many(99),
    "task_done": lambda queue: queue.task_done("limited"),
    "task_done of a nested key": lambda queue: queue.task_done(("n", "x")),
    "set_weight": lambda queue: queue.set_weight(("n", "y"), 2.0),
    "set_max_in_flight": lambda queue: queue.set_max_in_flight("b", 1),
    "pause": lambda queue: queue.pause("n"),
    "resume": lambda queue: queue.resume("other"),
    "shutdown": lambda queue: queue.shutdown(),
    "shutdown at once": lambda queue: queue.shutdown(True),
    "waiting": lambda queue: queue.waiting(),
}


@pytest.mark.parametrize("operation", STRUCK)
def test_a_strike_loses_nothing_and_leaves_no_key(operation: str) -> None:
    """At any point: the queue is as before, or as after; and it goes on to its end (core 6, 11)."""
    call = STRUCK[operation]
    after = _house()
    call(after)
    is_take = operation in ("get", "take", "get_many")
    is_shutting = operation.startswith("shutdown")
    for point in interruptions("multiqueue.core"):
        queue = _house()
        before = Counter(queue.waiting())
        with point.raising(Struck):
            call(queue)
        queue.check_invariants()
        if not point.reached:
            break
        found = Counter(queue.waiting())
        assert found in ((before,) if is_take else (before, Counter(after.waiting()))), point.place
        if is_shutting and not queue.is_shutdown:  # struck before it began
            queue.put("new", key="once")
            continue
        for key in ("n", "b", "other"):
            if not is_shutting:
                queue.resume(key)
                queue.set_max_in_flight(key, None)
                queue.set_weight(key, 1)
        if not is_shutting:
            queue.set_max_in_flight("limited", None)
            queue.set_weight(("n", "y"), 1)
            left = queue.get_many(99, block=False)
            assert len(set(left)) == len(left) == sum(found.values()), point.place
            queue.check_invariants()
            assert queue.waiting() == {}


INSIDE: dict[str, tuple[Any, Any]] = {
    "put, in a put": (lambda queue: queue.put("in", key="k"), lambda queue: queue.put("out", key="k")),
    "put, in a put to one that collides": (
        lambda queue: queue.put("in", key=OddKey("b")),
        lambda queue: queue.put("out", key=OddKey("c")),
    ),
    "put, in a put to one that is nested": (
        lambda queue: queue.put("in", key=("k", 2)),
        lambda queue: queue.put("out", key=("k", 1)),
    ),
    "get, in a put": (lambda queue: queue.poll(), lambda queue: queue.put("out", key="k")),
    "put, in a get": (lambda queue: queue.put("in", key=OddKey("a")), lambda queue: queue.get()),
    "get, in a get": (lambda queue: queue.poll(), lambda queue: queue.get()),
    "put, in a pause": (lambda queue: queue.put("in", key="k"), lambda queue: (queue.pause("k"), queue.resume("k"))),
    "put, in get_many": (lambda queue: queue.put("in", key=OddKey("a")), lambda queue: queue.get_many(9)),
}


@pytest.mark.parametrize("case", INSIDE)
def test_an_operation_inside_of_another_corrupts_nothing(case: str) -> None:
    """At any point a signal handler may put and take: each element is there once, each key has one tail (core 7)."""
    inside, outside = INSIDE[case]
    for point in interruptions("multiqueue.core"):
        queue: FairQueue[str] = FairQueue()
        queue.put("a", key=OddKey("a"))
        queue.put("n", key=("n", 1))
        with point.running(lambda queue=queue: inside(queue)):  # type: ignore[misc]
            outside(queue)
        queue.check_invariants()
        assert sum(queue.waiting().values()) == queue.qsize(), point
        while queue.poll() is not None:
            pass
        assert queue.empty(), point
        queue.check_invariants()
        if not point.reached:
            break


# ---- threads and coroutines ------------------------------------------------------------------------------------------


def test_a_full_key_holds_up_no_other() -> None:
    """Capacity is that of one key: its putter waits, others put."""
    queue: FairQueue[str] = FairQueue(capacity=1)
    queue.put("a1", key="a")
    thread = threading.Thread(target=queue.put, args=("a2",), kwargs={"key": "a"})
    thread.start()
    wait_until_blocked(thread)
    queue.put("b1", key="b")
    with pytest.raises(Full, match="key 'b' is full: 1 of 1 items"):
        queue.put_nowait("b2", key="b")
    assert queue.get() == "a1"
    thread.join(PATIENCE)
    assert sorted([queue.get(), queue.get()]) == ["a2", "b1"]
    queue.check_invariants()


def test_shutdown_ends_all_waits() -> None:
    """Of takers, and of putters into keys that are full."""
    queue: FairQueue[int] = FairQueue(capacity=1)
    ended: list[str] = []

    def until_shut(call: Any, *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except ShutDown:
            ended.append(call.__name__)

    queue.pause("a")
    queue.put(1, key="a")
    threads = [
        threading.Thread(target=until_shut, args=(queue.put, 2), kwargs={"key": "a"}),
        threading.Thread(target=until_shut, args=(queue.get,)),
    ]
    for thread in threads:
        thread.start()
        wait_until_blocked(thread)
    queue.shutdown(immediate=True)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ended) == ["get", "put"]
    queue.check_invariants()


def test_a_join_ends_with_what_is_discarded() -> None:
    """Also where more was said to be done than had been taken, as `queue.Queue` allows."""
    queue: FairQueue[int] = FairQueue()
    queue.put(1)
    queue.task_done()
    queue.put(2)
    thread = threading.Thread(target=queue.join, daemon=True)
    thread.start()
    wait_until_blocked(thread)
    queue.shutdown(immediate=True)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    queue.check_invariants()


def test_coroutines_wait_for_elements_and_for_room() -> None:
    """As threads do; one that is cancelled has taken and put nothing."""

    async def program() -> None:
        queue: FairQueue[int] = FairQueue(capacity=1)
        taking = asyncio.create_task(queue.async_take())
        await asyncio.sleep(0)
        await queue.async_put(1, key="a")
        assert await taking == ("a", 1)
        await queue.async_put(2, key="a")
        putting = [asyncio.create_task(queue.async_put(number, key="a")) for number in (3, 4)]
        await asyncio.sleep(0)
        putting[0].cancel()
        await asyncio.sleep(0)
        assert await queue.async_get() == 2
        assert await queue.async_get() == 4
        getting = asyncio.create_task(queue.async_get())
        await asyncio.sleep(0)
        getting.cancel()
        await asyncio.gather(getting, *putting, return_exceptions=True)
        await queue.async_put(5, key="b")
        assert await queue.async_get() == 5
        queue.check_invariants()

    asyncio.run(program())


def test_many_threads_lose_nothing_while_keys_come_and_go() -> None:
    """Each element is taken once, in the order of its putter within its key; and in the end no key is left."""
    queue: FairQueue[tuple[int, int]] = FairQueue(max_in_flight=3, capacity=5)
    taken: list[list[tuple[Hashable, Any]]] = [[] for _ in range(3)]

    def put(number: int) -> None:
        for index in range(1000):
            queue.put((number, index), key=(index % 5, number % 2))

    def take(out: list[tuple[Hashable, Any]]) -> None:
        while True:
            try:
                got = queue.take()
            except ShutDown:
                return
            out.append(got)
            queue.task_done(got.key)

    takers = [threading.Thread(target=take, args=(out,)) for out in taken]
    putters = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in (*takers, *putters):
        thread.start()
    for thread in putters:
        thread.join(PATIENCE)
    queue.join()
    queue.shutdown()
    for thread in takers:
        thread.join(PATIENCE)
    assert Counter(item for out in taken for _, item in out) == Counter((n, i) for n in range(4) for i in range(1000))
    assert queue.waiting() == {}
    queue.check_invariants()
