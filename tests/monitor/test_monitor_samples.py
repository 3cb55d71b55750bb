"""Samples: taken all the time, and of what has changed."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import booleans, integers, sampled_from
from hypothesis_support import examples
from monitor_parts_support import Census, Gaps, History, Totals, Track, _sampler, _views, totals
from monitor_support import Client

from multiqueue.broker import (
    Broker,
    BrokerQueue,
    Entry,
    ExchangeStatistics,
    Message,
    NotFound,
    Overflow,
    QueueConsumer,
    QueueSettings,
    QueueStatistics,
    QueueWatch,
    VirtualHostPast,
)
from multiqueue.monitor import Sample, Sampler
from multiqueue.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def sampler(broker: Broker, clock: FakeClock) -> Sampler:
    """A sampler that was not started: samples are taken by those who look."""
    return Sampler(broker, clock=clock, wall_clock=clock)


def test_two_looks_at_one_moment_read_the_broker_once(sampler: Sampler) -> None:
    """A crowd of clients costs one sample. (monitor 3)"""
    first = sampler.look().latest
    assert sampler.look().latest is first
    sampler.close()


def test_a_queue_that_rests_says_since_when(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """Since the sample that first had its figures; one in which they are others says nothing. (monitor 2)"""
    broker.declare_queue("q")

    def idle_since() -> str | None:
        pair = sampler.refresh()
        return _views.queue_view(pair, pair.latest.queues["/", "q"])["idle_since"]  # type: ignore[no-any-return]

    assert idle_since() is None
    for _ in range(2):
        clock.advance(1.0)
        assert idle_since() == "1970-01-01T00:01:40.000+00:00"
    clock.advance(1.0)
    broker.publish(Message(b"", routing_key="q"))
    assert idle_since() is None


def test_the_first_look_in_a_second_is_of_now(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """One who looks now and then sees what is there, not what was there a second ago. (monitor 3)"""
    sampler.refresh()
    clock.advance(0.9)
    broker.declare_queue("orders")
    assert ("/", "orders") in sampler.look().latest.queues


@pytest.mark.parametrize(
    ("samples", "messages", "wait", "seconds", "rate"),
    [
        pytest.param(1, 3, 2.0, 2.0, 1.5, id="three messages in two seconds"),
        pytest.param(0, 1, 0.0, 0.0, 0.0, id="what came before anybody looked is no rate"),
        pytest.param(1, 1, 1000.0, 0.0, 0.0, id="messages of last week are not the rate of now"),
        pytest.param(2, 1, 0.01, 1.01, 1 / 1.01, id="one within 10 ms of a sample is not 100 per second"),
    ],
)
def test_a_rate_is_what_came_between_two_samples(
    sampler: Sampler,
    broker: Broker,
    clock: FakeClock,
    samples: int,
    messages: int,
    wait: float,
    seconds: float,
    rate: float,
) -> None:
    """Of the latest and the one before, where both are of about now."""
    broker.declare_queue("orders")
    for number in range(samples):
        clock.advance(1.0 if number else 0.0)
        sampler.refresh()
    for _ in range(messages):
        broker.publish(Message(b"", routing_key="orders"))
    clock.advance(wait)
    pair = sampler.refresh()
    assert pair.seconds == pytest.approx(seconds)
    assert pair.rate(pair.latest.total.published, pair.previous.total.published) == pytest.approx(rate)


def test_samples_are_taken_without_a_looker(many_samples: None, broker: Broker) -> None:
    """The first who ever looks sees the rate of the last second, and what was before. (monitor 3)"""
    broker.declare_queue("orders")
    with broker.listen_http() as http:
        sampler = http._sampler
        taken: list[Sample] = []
        take = sampler._census.take
        enough = threading.Event()

        def noted(at: float) -> Sample:
            taken.append(take(at))
            if len(taken) > 3:
                enough.set()
            return taken[-1]

        sampler._census.take = noted  # type: ignore[method-assign]
        broker.publish(Message(b"", routing_key="orders"))
        assert enough.wait(30)
        (queue,) = Client(http.url).get("/api/queues?lengths_age=60&lengths_incr=1")
    assert queue["messages"] == 1
    assert taken[0].at < taken[1].at < taken[2].at < taken[3].at


def test_a_fault_ends_no_sampling(many_samples: None, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A sample that fails is told once by the log, and the next one is taken all the same."""
    sampler = Sampler(broker)
    take, failed, well = sampler._census.take, [0], threading.Event()

    def failing(at: float) -> Sample:
        if failed[0] < 3:
            failed[0] += 1
            raise RuntimeError("out of order")
        well.set()
        return take(at)

    sampler._census.take = failing  # type: ignore[method-assign]
    sampler.start()
    assert well.wait(30)
    sampler.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "no sample could be taken of the broker; the next is tried in 0.05 s"
    ]


@pytest.mark.parametrize("changes", [0, 1, 50])
def test_a_sample_reads_what_has_changed_and_nothing_else(broker: Broker, changes: int) -> None:
    """Of 1,000 queues a sample takes the locks of those alone that have changed since the last one. (monitor 3)"""
    for number in range(1000):
        broker.declare_queue(f"q{number}")
    census = Census(broker)
    assert len(census.take(0.0).changed) == 1000
    for number in range(changes):
        broker.publish(Message(b"", routing_key=f"q{number}"))
    asked: list[str] = []
    original = BrokerQueue.statistics

    def counted(queue: BrokerQueue) -> QueueStatistics:
        asked.append(queue.name)
        return original(queue)

    BrokerQueue.statistics = counted  # type: ignore[method-assign]
    try:
        sample = census.take(1.0)
    finally:
        BrokerQueue.statistics = original  # type: ignore[method-assign]
    assert asked == [each.declared.name for each in sample.changed] == [f"q{number}" for number in range(changes)]
    assert sample.total.ready == changes == sum(each.figures.depth for each in sample.queues.values())


def test_ten_thousand_queues_cost_less_than_a_hundredth_of_a_processor(broker: Broker) -> None:
    """A sample each second of 10,000 queues that rest takes less than 10 ms of processor time; here a fifth of them.
    (monitor 3)"""
    for number in range(2000):
        broker.declare_queue(f"q{number}")
    sampler = Sampler(broker)
    sampler.refresh()
    costs = []
    for _ in range(7):
        began = time.thread_time()
        sampler.refresh()
        costs.append(time.thread_time() - began)
    assert min(costs) < 0.002


def _took(queue: BrokerQueue) -> Entry:
    entry = queue.get("me")
    assert entry is not None
    return entry


def _release(queue: BrokerQueue) -> None:
    queue.release(_took(queue), "me")


def _throttle(queue: BrokerQueue) -> None:
    queue.life.limit.throttled = True  # by want of memory, which nothing else of the queue shows


def _interested(queue: BrokerQueue) -> QueueConsumer:
    consumer = queue.add_consumer(lambda consumer: None)
    queue.set_notify_work_desired(consumer, True)
    return consumer


# What is done to a queue with one message before the look, and after it: each changes one column alone.
STEPS: dict[str, tuple[Callable[[BrokerQueue], Any], Callable[[BrokerQueue, Any], object]]] = {
    "a message comes": (lambda queue: None, lambda queue, _: queue.put(Message(b"x"))),
    "a message is taken": (lambda queue: None, lambda queue, _: queue.get("me")),
    "one is taken and one comes": (_took, lambda queue, _: (queue.put(Message(b"x")), queue.get("me"))),
    "a message is acked": (_took, lambda queue, entry: queue.accept(entry, "me")),
    "a message is rejected": (_took, lambda queue, entry: queue.reject(entry, "me")),
    "a message comes back": (_took, lambda queue, entry: queue.release(entry, "me")),
    "a message is taken and comes back": (lambda queue: None, lambda queue, _: _release(queue)),
    "nothing is found": (_took, lambda queue, _: queue.get("you")),
    "a message is refused": (lambda queue: queue.put(Message(b"x")), lambda queue, _: queue.put(Message(b"x"))),
    "a hold ends": (lambda queue: queue.put(Message(b"x", delay=1.0)), lambda queue, _: queue.housekeeping()),
    "publishers wait": (lambda queue: None, lambda queue, _: _throttle(queue)),
    "a consumer comes": (lambda queue: None, lambda queue, _: queue.add_consumer(lambda consumer: None)),
    "a consumer that wants work goes": (_interested, lambda queue, consumer: queue.remove_consumer(consumer)),
    "a consumer wants no more": (_interested, lambda queue, each: queue.set_notify_work_desired(each, False)),
}


@pytest.mark.parametrize("what", STEPS)
def test_a_watch_sees_each_change(what: str, clock: FakeClock) -> None:
    """Whatever changes the figures of a queue, one of the watched columns changes with it; and nothing else does."""
    before, after = STEPS[what]
    settings = QueueSettings(max_length=2, overflow=Overflow.REJECT)
    queue, other = (BrokerQueue(name, settings=settings, clock=clock) for name in ("q", "other"))
    queue.put(Message(b"x"))
    found = before(queue)
    watch = QueueWatch([queue, other])
    assert watch.changed().keys() == {0, 1}
    assert watch.changed() == {}
    clock.advance(2.0)
    last = queue.statistics()
    after(queue, found)
    assert queue.statistics() != last
    assert watch.changed() == {0: queue.statistics()}


def test_no_counter_falls_while_queues_come_and_go(broker: Broker) -> None:
    """A queue that is deleted during a sample is counted once, or by the next sample, and never taken back.
    (monitor 17)"""
    census = Census(broker)
    done = threading.Event()

    def use(name: str) -> None:
        for _ in range(150):
            broker.declare_queue(name)
            for _ in range(3):
                broker.publish(Message(b"x", routing_key=name))
                broker.get(name, auto_accept=True)
            broker.delete_queue(name)

    def use_all() -> None:
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(use, name) for name in "abc"]:
                future.result()
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    user = threading.Thread(target=use_all)
    user.start()
    try:
        last = census.take(0.0).total
        while not done.is_set():
            total = census.take(0.0).total
            fallen = [
                name
                for name in ("published", "routed", "enqueued", "delivered", "got_no_ack", "queues_deleted")
                if getattr(total, name) < getattr(last, name)
            ]
            assert fallen == []
            last = total
    finally:
        user.join()
        sys.setswitchinterval(interval)
    total = census.take(0.0).total
    assert (total.published, total.enqueued, total.delivered, total.queues_deleted) == (1350, 1350, 1350, 450)


def test_what_is_read_at_two_moments_never_falls() -> None:
    """A publish that is counted as returned before it is counted as unroutable makes no counter fall. (monitor 17)"""
    exchange = ExchangeStatistics("x", "topic", received=10, unroutable=3, bindings=0)
    closed = {"with_confirms": 0, "confirmed": 4, "returned": 1}
    sums = dict.fromkeys([*Totals.__dataclass_fields__, "available", "held"], 0)
    first = totals(sums, [exchange], VirtualHostPast(), [], closed, 5, Totals())
    assert (first.routed, first.dropped, first.confirmed) == (7, 2, 4)
    later = totals(
        sums,
        [dataclasses.replace(exchange, received=9, unroutable=4)],
        VirtualHostPast(),
        [],
        closed | {"returned": 3, "confirmed": 3},
        0,  # its store is at its end
        first,
    )
    assert (later.published, later.routed, later.dropped, later.returned, later.confirmed) == (10, 7, 2, 3, 4)
    assert later.syncs == 5


class Anything(RuleBasedStateMachine):
    """What can happen to queues and their consumers; the watched figures are always those that the queues have."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.census = Census(self.broker)
        self.consumers: list[QueueConsumer] = []
        self.taken: list[tuple[BrokerQueue, Entry, QueueConsumer | str]] = []

    @initialize()
    def begin(self) -> None:
        for name in "abc":
            self.declare(name)

    def queue(self, name: str) -> BrokerQueue | None:
        try:
            return self.broker.queue(name)
        except NotFound:
            return None

    @rule(name=sampled_from("abcd"))
    def declare(self, name: str) -> None:
        settings = QueueSettings(max_length=3, overflow=Overflow.REJECT)
        self.broker.declare_queue(name, settings=settings)

    @rule(name=sampled_from("abcd"))
    def delete(self, name: str) -> None:
        if (queue := self.queue(name)) is not None:
            queue.delete()

    @rule(name=sampled_from("abc"), count=integers(1, 4))
    def put(self, name: str, count: int) -> None:
        if (queue := self.queue(name)) is not None:
            for _ in range(count):
                queue.put(Message(b"x"))

    @rule(name=sampled_from("abc"), auto_accept=booleans())
    def take(self, name: str, auto_accept: bool) -> None:
        queue = self.queue(name)
        entry = None if queue is None else queue.get("me", auto_accept=auto_accept)
        if queue is not None and entry is not None and not auto_accept:
            self.taken.append((queue, entry, "me"))

    @rule(how=sampled_from(["accept", "release", "reject"]))
    def settle(self, how: str) -> None:
        for queue, entry, owner in self.taken:
            if not queue.is_deleted:
                getattr(queue, how)(entry, owner)
        self.taken.clear()

    @rule(name=sampled_from("abc"), wants=booleans())
    def consume(self, name: str, wants: bool) -> None:
        if (queue := self.queue(name)) is not None:
            consumer = queue.add_consumer(lambda consumer: None)
            queue.set_notify_work_desired(consumer, wants)
            self.consumers.append(consumer)

    @rule()
    def leave(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop()
            consumer.queue.remove_consumer(consumer)

    @rule(name=sampled_from("abc"))
    def purge(self, name: str) -> None:
        if (queue := self.queue(name)) is not None:
            queue.purge()

    @rule()
    def look(self) -> None:
        """The census is taken at any time, not after each step alone."""
        sample = self.census.take(0.0)
        (host,) = self.broker.virtual_hosts()
        found = {each.key: each.figures for each in sample.queues.values()}
        assert found == {("/", each.name): each.queue.statistics() for each in host.declared_queues()}
        assert sample.total.unacked == sum(each.unacked for each in found.values())

    def teardown(self) -> None:
        self.look()
        self.broker.close()


TestTheWatchOverlooksNothing = Anything.TestCase
TestTheWatchOverlooksNothing.settings = settings(max_examples=examples(100), stateful_step_count=30)


def test_a_busy_machine_makes_samples_no_rarer(
    sampler: Sampler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that waited long for its turn has cost little, and the next one comes as soon as ever. (monitor 3)"""
    take = sampler._census.take

    def waiting(at: float) -> Sample:
        clock.advance(3.0)
        return take(at)

    monkeypatch.setattr(sampler._census, "take", waiting)
    sampler.look()
    assert sampler._interval == _sampler.INTERVAL
    sampler.close()


def test_a_change_is_seen_by_the_next_look(sampler: Sampler, broker: Broker) -> None:
    """`expire` makes the next look take a sample, and only that one."""
    sampler.look()
    broker.declare_queue("new")
    assert ("/", "new") not in sampler.look().latest.queues
    sampler.expire()
    pair = sampler.look()
    assert ("/", "new") in pair.latest.queues
    assert sampler.look() is pair
    sampler.close()


def test_a_sample_counts_every_message_once(broker: Broker) -> None:
    """Ready, unacked, published, delivered and acked of all virtual hosts add up."""
    other = broker.add_virtual_host("other")
    for host in (broker, other):
        host.declare_queue("orders")
        for _ in range(3):
            host.publish(Message(b"tea", routing_key="orders"))
    received = broker.get("orders")
    assert received is not None
    census = Census(broker)
    total = census.take(0.0).total
    assert (total.ready, total.unacked, total.published, total.delivered, total.acked) == (5, 1, 6, 1, 0)
    received.accept()
    assert census.take(0.0).total.acked == 1
    broker.delete_queue("orders")
    broker.delete_virtual_host("other")
    total = census.take(0.0).total
    assert (total.ready, total.unacked, total.published, total.delivered, total.acked) == (0, 0, 6, 1, 1)
    assert census.take(0.0).queues == {}
    assert census.take(0.0).total.published == 6  # of those that went long ago, too


def test_closing_ends_the_thread_and_twice_is_harmless(broker: Broker) -> None:
    """A sampler that runs in real time ends when told."""
    sampler = Sampler(broker)
    sampler.start()
    sampler.start()
    thread = sampler._thread
    assert thread is not None
    sampler.close()
    sampler.close()
    assert not thread.is_alive()


def test_what_was_is_told_at_the_times_that_are_asked_for() -> None:
    """A level lasts until the next one; before the first there is nothing."""
    track = Track()
    for at, ready in ((10.0, 1), (11.0, 1), (13.0, 4)):
        track.add(at, (0, ready), most=60)
    found = track.samples(1, 14.0, age=60, step=1)
    assert [(each["timestamp"], each["sample"]) for each in found] == [
        (14000, 4),
        (13000, 4),
        (12000, 1),
        (11000, 1),
        (10000, 1),
    ]
    assert len(track.samples(1, 1e6, age=10**8, step=1)) == 601  # both ends of 600 steps


def test_a_time_without_samples_is_a_gap(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """A level is not drawn through an hour in which the machine slept: those samples are left out. (monitor 3)"""
    broker.declare_queue("orders")
    broker.publish(Message(b"", routing_key="orders"))
    for wait in (0.0, 1.0, 1.0, 20.0, 1.0):
        clock.advance(wait)
        sampler.refresh()
    view: dict[str, Any] = {"messages_details": {}}
    sampler.add_samples(view, {"lengths_age": "60", "lengths_incr": "1"}, "queue", ("/", "orders"))
    newest = view["messages_details"]["samples"][0]["timestamp"]
    ages = [round((newest - each["timestamp"]) / 1000) for each in view["messages_details"]["samples"]]
    assert ages == [0, 1, 21, 22, 23]


def test_figures_are_noted_when_the_wall_clock_is_set_back(broker: Broker, clock: FakeClock) -> None:
    """Set back by an hour, it stamps the samples since then, and those before lie behind them without a break."""
    steps = [0.0]
    sampler = Sampler(broker, clock=clock, wall_clock=lambda: clock() + steps[0])
    broker.declare_queue("orders")
    for steps[0] in (0.0, 0.0, -3600.0, -3600.0):
        clock.advance(1.0)
        broker.publish(Message(b"", routing_key="orders"))
        sampler.refresh()
    view: dict[str, Any] = {"messages_details": {}}
    sampler.add_samples(view, {"lengths_age": "3", "lengths_incr": "1"}, "queue", ("/", "orders"))
    found = view["messages_details"]["samples"]
    now = int(clock() - 3600.0)
    expected = [(4, now), (3, now - 1), (2, now - 2), (1, now - 3)]
    assert [(each["sample"], each["timestamp"] // 1000) for each in found] == expected


def test_a_track_has_so_many_rows_and_rests_for_nothing() -> None:
    """The oldest rows go first, and figures that stay as they are add none."""
    track = Track()
    for at in range(200):
        track.add(float(at), (at // 2, 0), most=60)
    assert len(track) == 60
    assert track.samples(0, 199.0, age=1, step=1)[0]["sample"] == 99


def test_histories_forget_what_is_gone_and_share_their_rows() -> None:
    """With 100,000 queues each has 60 rows at most, not 600."""
    history = History(["ack"], Gaps())
    for at in range(100):
        history.note(float(at), [("stays", (at,))], range(100_000))
    history.note(100.0, [("stays", (0,)), ("goes", (1,))], ("stays", "goes"))
    history.note(101.0, [], ("stays",))
    stays = history.get("stays")
    assert stays is not None
    assert len(stays) <= 61
    assert history.get("goes") is None


def test_samples_come_as_rabbitmq_writes_them(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """With an age and a step the details have samples, the newest first, their mean and their rate."""
    broker.declare_queue("orders")
    sampler.look()
    for _ in range(3):
        broker.publish(Message(b"", routing_key="orders"))
    clock.advance(1.0)
    sampler.refresh()
    query = {"lengths_age": "1", "lengths_incr": "1", "msg_rates_age": "1", "msg_rates_incr": "1"}
    view: dict[str, Any] = {"messages_details": {"rate": 3.0}, "message_stats": {"publish_details": {"rate": 3.0}}}
    sampler.add_samples(view, query, "queue", ("/", "orders"))
    assert view["messages_details"]["samples"][0]["sample"] == 3
    assert view["message_stats"]["publish_details"]["samples"][0]["sample"] == 3
    assert set(view["messages_details"]) == {"rate", "samples", "avg", "avg_rate"}
    for wrong in (
        {"lengths_age": "60"},
        {"lengths_age": "x", "lengths_incr": "1"},
        {"lengths_age": "1", "lengths_incr": "0"},
    ):
        plain = {"messages_details": {"rate": 3.0}}
        sampler.add_samples(plain, wrong, "queue", ("/", "orders"))
        assert plain == {"messages_details": {"rate": 3.0}}
    sampler.close()
