"""Housekeeping: which queues it visits, when, and that it visits no other."""

from __future__ import annotations

import gc
import math
import queue
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from broker_parts_support import AT_ONCE, Housekeeping, Kept, housekeeping
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples

from multiqueue.broker import Alert, AlertThresholds, Message, QueueSettings, VirtualHost
from multiqueue.store import MemoryStore
from multiqueue.testing import PATIENCE, FakeClock, wait_until_blocked


class Desk:
    """A virtual host, its housekeeping, and a clock that is moved by hand. Visits are counted by queue."""

    def __init__(self, **options: object) -> None:
        self.clock = FakeClock(1000.0)
        self.visits: list[str] = []
        self.keeper = Housekeeping(clock=self.clock)
        self.host = VirtualHost(
            clock=self.clock,
            wall_clock=self.clock,
            housekeeping=self.keeper,
            **options,  # type: ignore[arg-type]
        )

    def declare(self, name: str = "q", **settings: object) -> None:
        queue = self.host.declare_queue(name, settings=QueueSettings(**settings))  # type: ignore[arg-type]
        visit = queue.housekeeping

        def visited() -> float | None:
            self.visits.append(name)
            return visit()

        queue.housekeeping = visited  # type: ignore[method-assign]

    def pass_time(self, seconds: float) -> list[str]:
        """Who is visited when so much time has passed."""
        self.clock.advance(seconds)
        self.visits.clear()
        self.keeper.run_once()
        return list(self.visits)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_idle_queues_are_not_visited(desk: Desk) -> None:
    """A queue for which time can do nothing is visited once, when it is new, with messages and consumers or without."""
    for number in range(10):
        desk.declare(f"q{number}")
    assert len(desk.pass_time(0.25)) == 10
    desk.host.publish(Message(b"", routing_key="q3"))
    subscription = desk.host.subscribe("q3")
    subscription.get(timeout=60).accept()
    subscription.close()
    assert desk.pass_time(1e6) == []
    assert not desk.keeper._planned


def test_a_queue_is_visited_when_its_first_message_expires(desk: Desk) -> None:
    """The soonest deadline counts, also one that was set after a later one; with the last one visits end."""
    desk.declare()
    desk.pass_time(0)
    for seconds in (50, 10, 30):
        desk.host.publish(Message(b"", routing_key="q", expiration=seconds))
    assert desk.pass_time(9) == []
    for left in (2, 1, 0):
        assert desk.pass_time(20) == ["q"]
        assert len(desk.host.queue("q")) == left
    assert desk.pass_time(1e6) == []


def test_a_queue_is_visited_when_a_hold_ends(desk: Desk) -> None:
    """What is held until its time is available then, without anybody touching the queue."""
    desk.declare()
    desk.pass_time(0)
    desk.host.publish(Message(b"", routing_key="q", delay=5))
    assert desk.pass_time(4) == []
    assert desk.host.get("q") is None
    assert desk.pass_time(1) == ["q"]
    assert desk.host.get("q") is not None


def test_a_queue_that_expires_is_visited_when_nobody_has_used_it_for_so_long(desk: Desk) -> None:
    """A use puts the visit off, a consumer does away with it, and the last one's end brings it back."""
    desk.declare(expires=100)
    desk.pass_time(0)
    desk.clock.advance(60)
    desk.host.queue("q").touch()
    assert desk.pass_time(60) == ["q"]
    subscription = desk.host.subscribe("q")
    assert desk.pass_time(60) == ["q"]
    assert desk.pass_time(1000) == []
    subscription.close()
    assert desk.pass_time(99) == []
    assert desk.pass_time(1) == ["q"]
    assert desk.host.queues() == []
    assert desk.pass_time(0) == ["q"]  # to be forgotten
    assert not desk.keeper._planned


def test_a_deleted_queue_is_forgotten_at_once(desk: Desk) -> None:
    """What time would have asked for in an hour does not keep it in memory until then."""
    desk.declare(expires=3600)
    desk.pass_time(0)
    assert desk.keeper._planned
    desk.host.delete_queue("q")
    assert desk.pass_time(0.25) == ["q"]
    assert not desk.keeper._planned


def test_a_queue_with_alerts_is_visited_when_there_may_be_one() -> None:
    """When the oldest message reaches its age, and when what was told may be told again; never on an empty queue."""
    alerts: list[Alert] = []
    desk = Desk(on_alert=alerts.append)
    desk.declare(alerts=AlertThresholds(age=50, depth=3, repeat_gap=30))
    desk.pass_time(0)
    assert desk.pass_time(1e6) == []
    desk.host.publish(Message(b"", routing_key="q"))
    assert desk.pass_time(49) == []
    assert desk.pass_time(1) == ["q"]
    for _ in range(2):
        desk.host.publish(Message(b"", routing_key="q"))
    assert [each.kind.value for each in alerts] == ["age", "depth"]
    assert desk.pass_time(29) == []
    assert desk.pass_time(1) == ["q"]
    assert len(alerts) == 4
    desk.host.queue("q").purge()
    assert desk.pass_time(30) == ["q"]
    assert desk.pass_time(1e6) == []
    assert len(alerts) == 4


def test_an_outgrown_queue_is_visited_when_it_becomes_empty() -> None:
    """A queue that pages is back in memory at the visit after its last message has gone, and has none until then."""
    desk = Desk(memory_limit=1 << 20)
    desk.declare()
    desk.pass_time(0)
    desk.host.publish(Message(b"", routing_key="q"))
    queue = desk.host.queue("q")
    assert queue.life.limit.page_out()
    subscription = desk.host.subscribe("q")
    received = subscription.get(timeout=60)
    assert desk.pass_time(1000) == []
    received.accept()
    assert desk.pass_time(0.25) == ["q"]
    assert queue.life.source.has_all
    assert desk.pass_time(1000) == []
    desk.host.close()


def test_what_expires_in_a_temporary_store_is_dropped() -> None:
    """The rows of a queue that pages have their time too, though no visit is planned for them."""
    desk = Desk(memory_limit=1 << 20)
    desk.declare()
    for _ in range(100):
        desk.host.publish(Message(b"x" * 1000, routing_key="q", expiration=30))
    queue = desk.host.queue("q")
    assert queue.life.limit.page_out()
    desk.pass_time(31)
    assert len(queue) == 0
    desk.host.close()


@pytest.mark.parametrize("is_durable", [False, True], ids=["transient", "durable"])
def test_what_is_in_a_store_alone_expires_when_its_time_has_come(
    is_durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that pages looks at the store's times when the next has come, also at those that come while it pages."""
    desk = Desk(memory_limit=1 << 20, store=MemoryStore() if is_durable else None)
    hours = Hours(desk.keeper, desk.clock, monkeypatch)
    desk.declare(durable=is_durable)

    def publish(*seconds: float) -> None:
        for each in seconds:
            message = Message(b"x" * 1000, routing_key="q", expiration=each, persistent=is_durable)
            assert desk.host.publish(message).queues == 1

    queue = desk.host.queue("q")
    publish(30, 30.001, 7200)
    assert queue.life.limit.page_out()
    desk.keeper.run_once()  # everything is new
    publish(0.5)
    journal = desk.host._journal or desk.host._scratch
    assert journal is not None
    journal.wait_for_commits()
    gone: list[float] = []

    def watch(visit: Callable[[], float | None]) -> Callable[[], float | None]:
        def visited() -> float | None:
            before, again = len(queue), visit()
            gone.extend([desk.clock() - 1000.0] * (before - len(queue)))
            return again

        return visited

    for each in (queue, journal):
        each.housekeeping = watch(each.housekeeping)  # type: ignore[method-assign]
    desk.keeper._run()
    assert gone == pytest.approx([0.5, 30, 30.001, 7200], abs=0.01)
    assert len(hours.waits) < 30
    desk.host.close()


class Hours:
    """What a housekeeping thread waits on, the test's thread being that: each wait is over at once, and has taken all
    its time. When the thread would wait for ever, it ends."""

    def __init__(self, keeper: Housekeeping, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[float | None] = []
        self.keeper, self.clock = keeper, clock
        keeper._longest_wait = math.inf  # as if the clock were the machine's
        keeper._is_sooner = self  # type: ignore[assignment]
        monkeypatch.setattr(housekeeping.time, "monotonic", clock)

    def notify(self) -> None: ...

    def wait(self, seconds: float | None) -> None:
        self.waits.append(seconds)
        if seconds is None:
            self.keeper._is_closing = True
        else:
            self.clock.advance(seconds)


def times_of_visits(desk: Desk) -> list[tuple[str, float]]:
    """Which queue is visited from now on, and when."""
    visits: list[tuple[str, float]] = []

    def watch(name: str, visit: Callable[[], float | None]) -> Callable[[], float | None]:
        def visited() -> float | None:
            visits.append((name, desk.clock() - 1000.0))
            return visit()

        return visited

    for each in desk.host.queues():
        each.housekeeping = watch(each.name, each.housekeeping)  # type: ignore[method-assign]
    return visits


def test_a_visit_without_a_time_keeps_no_message_past_its_own(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a queue asks to have done at the next interval does not put off what it asks for sooner."""
    Hours(desk.keeper, desk.clock, monkeypatch)
    desk.declare()
    desk.keeper.run_once()
    queue, visits = desk.host.queue("q"), times_of_visits(desk)
    with queue._lock:
        queue.visit_by(AT_ONCE)
    desk.host.publish(Message(b"", routing_key="q", expiration=0.1))
    desk.keeper._run()
    assert visits == [("q", pytest.approx(0.1, abs=0.002))]
    assert len(queue) == 0


def test_a_visit_comes_when_its_time_has(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times to live, delays and expiries are kept to the millisecond, and nothing is looked at in between."""
    hours = Hours(desk.keeper, desk.clock, monkeypatch)
    desk.declare("dies", expires=7200)
    desk.declare("dies soon", expires=0.05)
    desk.declare()
    for seconds, what in ((0.1, "expiration"), (3600, "expiration"), (0.3, "delay"), (5, "delay")):
        desk.host.publish(Message(b"", routing_key="q", **{what: seconds}))  # type: ignore[arg-type]
    visits = times_of_visits(desk)
    desk.keeper._run()
    expected = [
        ("dies soon", 0.05),
        ("q", 0.1),
        ("dies", 0.25),  # it is new
        ("dies soon", 0.25),  # it is deleted, and forgotten
        ("q", 0.3),
        ("q", 5),
        ("q", 3600),
        ("dies", 7200),
        ("dies", 7200.25),
    ]
    assert visits == [(name, pytest.approx(when, abs=0.06)) for name, when in expected]
    assert [when for name, when in visits if name != "dies"][:2] == pytest.approx([0.05, 0.1], abs=0.002)
    assert len(hours.waits) < 20


def test_a_hundred_thousand_times_to_come_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sleeps through until the first of them, however long that is, and those that lie in one millisecond
    wake it once."""
    clock = FakeClock(1000.0)
    keeper = Housekeeping(clock=clock)
    hours = Hours(keeper, clock, monkeypatch)
    many = [Asking(None, None) for _ in range(100_000)]
    for number, each in enumerate(many):
        keeper.ask(each, 87_400.0 + number * 1e-8)
    keeper._run()
    assert all(each.visits == 1 for each in many)
    assert hours.waits[0] == 86_400.0
    assert len(hours.waits) <= 4


def test_an_earlier_time_wakes_the_thread() -> None:
    """It sleeps until tomorrow, and is asked for something that is due now, or names no time."""
    visited: queue.SimpleQueue[Asking] = queue.SimpleQueue()

    class Telling(Asking):
        def housekeeping(self) -> float | None:
            visited.put(self)
            return super().housekeeping()

    keeper = Housekeeping(interval=0.01)
    tomorrow, now, soon = (Telling(None, None) for _ in range(3))
    keeper.ask(tomorrow, time.monotonic() + 86_400.0)
    with keeper:
        assert keeper._thread is not None
        for each, when in ((now, time.monotonic()), (soon, AT_ONCE)):
            wait_until_blocked(keeper._thread)
            keeper.ask(each, when)
            assert visited.get(timeout=PATIENCE) is each
    assert tomorrow.visits == 0


def test_what_names_no_time_puts_off_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visit that waits for its interval does not keep the queue from being visited before it."""
    clock = FakeClock(1000.0)
    keeper = Housekeeping(interval=10.0, clock=clock)
    Hours(keeper, clock, monkeypatch)
    times: list[float] = []

    class Timed(Asking):
        def housekeeping(self) -> float | None:
            times.append(clock() - 1000.0)
            if len(times) == 1:
                keeper.ask(self, 1010.1)
                return AT_ONCE
            return 1010.2 if len(times) == 2 else None

    keeper.add(Timed(None, None))
    keeper._run()
    assert times == pytest.approx([10, 10.1, 10.2], abs=0.002)


def test_what_names_no_time_is_visited_once_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks for the next without a time does not keep the thread busy."""
    clock = FakeClock(1000.0)
    keeper = Housekeeping(interval=0.25, clock=clock)
    hours = Hours(keeper, clock, monkeypatch)
    times: list[float] = []

    class Restless(Asking):
        def housekeeping(self) -> float | None:
            times.append(clock() - 1000.0)
            return AT_ONCE if len(times) < 4 else None

    keeper.add(Restless(None, None))
    keeper._run()
    assert times == pytest.approx([0.25, 0.5, 0.75, 1], abs=0.005)
    assert len(hours.waits) < 10


def planned(keeper: Housekeeping, kept: Kept) -> float | None:
    """When it is visited next."""
    return AT_ONCE if kept in keeper._soon else keeper._planned.get(kept, (None,))[0]


class Asking:
    """Asks for what it is told to in the middle of a visit."""

    def __init__(self, answer: float | None, asks_for: float | None, fails: bool = False) -> None:
        self.answer, self.asks_for, self.fails = answer, asks_for, fails
        self.visits = 0

    def attend(self, ask: Callable[[Kept, float], object] | None) -> None:
        self.ask = ask

    def housekeeping(self) -> float | None:
        self.visits += 1
        if self.asks_for is not None and self.ask is not None:
            self.ask(self, self.asks_for)
        if self.fails:
            raise RuntimeError("on purpose")
        return self.answer


@pytest.mark.parametrize(
    ("answer", "asks_for", "comes"),
    [(None, None, None), (None, 1010.0, 1010.0), (1020.0, 1010.0, 1010.0), (1010.0, 1020.0, 1010.0), (AT_ONCE,) * 3],
)
def test_of_the_answer_and_what_is_asked_for_meanwhile_the_sooner_counts(
    answer: float | None, asks_for: float | None, comes: float | None
) -> None:
    """A visit is not lost when it is asked for while another is made; nor is one made twice at a time."""
    clock, kept = FakeClock(1000.0), Asking(answer, asks_for)
    keeper = Housekeeping(clock=clock)
    keeper.add(kept)
    keeper.run_once()
    assert (kept.visits, planned(keeper, kept)) == (1, comes)
    kept.asks_for = None
    for seconds in (0, 9, 1):
        clock.advance(seconds)
        keeper.run_once()
    assert kept.visits == {None: 1, 1010.0: 2, AT_ONCE: 4}[comes]


def test_a_visit_that_fails_is_made_again() -> None:
    """A queue whose visit fails is visited at the next interval, and keeps no other waiting."""
    kept, other = Asking(None, None, fails=True), Asking(None, None)
    keeper = Housekeeping(clock=FakeClock(1000.0))
    for each in (kept, other):
        keeper.add(each)
    keeper.run_once()
    keeper.run_once()
    assert (kept.visits, other.visits) == (2, 1)


def test_what_was_planned_anew_does_not_pile_up() -> None:
    """The plan's memory follows how many are planned, however often they were, and it keeps none that went."""
    keeper = Housekeeping(clock=FakeClock(1000.0))
    kept = Asking(None, None)
    keeper.add(kept)
    keeper.run_once()
    for later, sooner in pairwise(range(10_000, 0, -1)):
        assert sooner < later
        keeper.ask(kept, 1000.0 + sooner)
    assert len(keeper._due) < 100
    for _ in range(1000):
        gone = Asking(None, None)
        keeper.add(gone)
        keeper.remove(gone)
    assert len(keeper._due) < 100
    assert list(keeper._planned) == [kept]
    assert not keeper._soon


def test_a_plan_keeps_no_queue_alive_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a queue, and of the bodies on it, comes where its last user lets go of it, and under no lock."""
    clock = FakeClock(1000.0)
    keeper = Housekeeping(clock=clock)
    ends: list[bool] = []

    class Mortal(Asking):
        def __del__(self) -> None:
            ends.append(keeper._lock.locked())

    kept = Mortal(None, None)
    for when in (3000.0, 2000.0, AT_ONCE):
        keeper.ask(kept, when)
    keeper.run_once()
    del kept
    gc.collect()
    assert ends == [False]
    Hours(keeper, clock, monkeypatch)
    for when in (2000.0, 3000.0):  # the thread's rounds have the last references
        keeper.ask(Mortal(None, None), when)
    keeper._run()
    assert ends == [False] * 3


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.just("ask"), st.integers(0, 3), st.sampled_from([AT_ONCE, 0, 1, 2, 3, 5]))
        | st.tuples(st.just("remove"), st.integers(0, 3), st.just(0))
        | st.tuples(st.just("round"), st.integers(0, 3), st.just(0)),
        max_size=40,
    )
)
def test_every_visit_that_was_asked_for_is_made_once(steps: list[tuple[str, int, float]]) -> None:
    """Against a list of what was asked for: a round visits each that has something due, once, and forgets the rest of
    what it asked; what was forgotten is not visited."""
    clock = FakeClock(1000.0)
    keeper = Housekeeping(clock=clock)
    queues = [Asking(None, None) for _ in range(4)]
    asked: list[set[float]] = [set() for _ in queues]
    for step, number, when in steps:
        if step == "ask":
            keeper.ask(queues[number], AT_ONCE if when == AT_ONCE else clock() + when)
            asked[number].add(AT_ONCE if when == AT_ONCE else clock() + when)
        elif step == "remove":
            keeper.remove(queues[number])
            asked[number].clear()
        else:
            clock.advance(number)
            before = [each.visits for each in queues]
            keeper.run_once()
            due = [bool(times) and min(times) <= clock() for times in asked]
            assert [each.visits - was for each, was in zip(queues, before, strict=True)] == due
            for times, is_due in zip(asked, due, strict=True):
                if is_due:
                    times.clear()
        assert keeper._planned.keys() | keeper._soon.keys() == {
            queue for queue, times in zip(queues, asked, strict=True) if times
        }
        assert set(keeper._by_number.values()) == keeper._planned.keys()
