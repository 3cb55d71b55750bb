"""Pulling and settling in runs: as one by one come the same messages, and no consumer waits longer."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from broker_kernel_support import Bench
from broker_parts_support import credit as _credit
from broker_parts_support import queue as _queue_module
from broker_parts_support import received as _received
from broker_parts_support import target as _target
from explorations_support import explored, surprises
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples

from multiqueue import Empty, ShutDown
from multiqueue.broker import (
    Broker,
    BrokerQueue,
    ConsumerTarget,
    Credit,
    Delivery,
    Entry,
    Message,
    MessageGroups,
    Overflow,
    PutOutcome,
    QueueConsumer,
    QueueKind,
)
from multiqueue.testing import PATIENCE, Run, Threads, explore, switch_interval

MUCH = 1 << 30  # bytes


class OneByOne(Bench):
    """A queue with two consumers, one of which may settle on delivery; what it is asked, it does one by one."""

    def __init__(self, window: int, window_bytes: int, *, auto_accept: bool, **settings: object) -> None:
        super().__init__(**settings)
        self.consumers_ = [
            self.consumer(credit=Credit(window, window_bytes)),
            self.consumer(auto_accept=auto_accept, no_local=not auto_accept, connection=self),
        ]
        self.held: list[tuple[Entry, QueueConsumer]] = []

    def deliver(self, consumer: QueueConsumer, most: int, most_bytes: int) -> list[Entry]:
        entries: list[Entry] = []
        while len(entries) < most and most_bytes > 0 and (entry := self.pull(consumer)) is not None:
            entries.append(entry)
            most_bytes -= entry.size
        return entries

    def accept(self, entries: list[Entry], consumer: QueueConsumer) -> None:
        for entry in entries:
            self.queue.accept(entry, consumer)

    def take(self, number: int, most: int, most_bytes: int) -> list[object]:
        """Pull; the bodies, and how often each was delivered."""
        consumer = self.consumers_[number]
        entries = self.deliver(consumer, most, most_bytes)
        if not consumer.auto_accept:
            self.held += [(entry, consumer) for entry in entries]
        return [(entry.message.body, entry.delivery_count) for entry in entries]

    def settle(self, first: int, count: int, release: bool) -> None:
        """Accept, or release, some of what is held."""
        chosen = self.held[first : first + count]
        del self.held[first : first + count]
        for consumer in self.consumers_:
            entries = [entry for entry, owner in chosen if owner is consumer]
            if release:
                self.queue.release(entries, consumer)
            else:
                self.accept(entries, consumer)
            if consumer.credit is not None:
                consumer.credit.settled(len(entries), sum(entry.size for entry in entries))
                self.queue.credit_changed(consumer)


class InRuns(OneByOne):
    """The same in runs."""

    def deliver(self, consumer: QueueConsumer, most: int, most_bytes: int) -> list[Entry]:
        entries: list[Entry] = []
        while most > len(entries) and most_bytes > 0:
            run = self.queue.deliver_messages(consumer, most - len(entries), most_bytes)
            if not run:
                break
            entries += run
            most_bytes -= sum(entry.size for entry in run)
        return entries

    def accept(self, entries: list[Entry], consumer: QueueConsumer) -> None:
        self.queue.accept(entries, consumer)


SMALL = st.integers(0, 6)
COUNTS = st.sampled_from([1, 2, 3, 5, 9, 270])  # the last goes beyond a chunk of the log
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), COUNTS, SMALL, st.sampled_from([None, None, 5.0])),
        st.tuples(st.just("take"), st.integers(0, 1), COUNTS, st.integers(1, 2000)),
        st.tuples(st.just("settle"), SMALL, SMALL, st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 5.0])),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=examples(60))
@pytest.mark.parametrize(
    "declared",
    [{}, {"kind": QueueKind.PRIORITY}, {"groups": MessageGroups.STANDARD, "group_key": "g"}, {"max_length": 20}],
    ids=["plain", "priority", "groups", "limited"],
)
@example(
    steps=[("put", 1, 0, 5.0), ("wait", 5.0), ("settle", 0, 0, False)], window=1, window_bytes=1, auto_accept=False
)
@given(steps=STEPS, window=st.sampled_from([1, 3, 400]), window_bytes=st.integers(1, 600), auto_accept=st.booleans())
def test_runs_bring_what_single_pulls_bring(
    declared: dict[str, object], steps: list[tuple[object, ...]], window: int, window_bytes: int, auto_accept: bool
) -> None:
    """The same messages in the same order with the same counts, whatever expires, comes back or exceeds the credit."""
    twins = [kind(window, window_bytes, auto_accept=auto_accept, **declared) for kind in (OneByOne, InRuns)]
    serial = 0
    for what, *arguments in steps:
        if what == "put":
            count, size, expiration = arguments
            for _ in range(count):  # type: ignore[call-overload]
                serial += 1
                body = b"%d" % serial + b"." * size  # type: ignore[operator]
                headers = {"g": str(serial % 3)}
                for twin in twins:
                    twin.queue.put(Message(body, priority=serial % 3, expiration=expiration, headers=headers))  # type: ignore[arg-type]
        elif what == "wait":
            for twin in twins:
                twin.clock.advance(*arguments)  # type: ignore[arg-type]
        else:
            singly, in_runs = [getattr(twin, str(what))(*arguments) for twin in twins]
            assert singly == in_runs
        for twin in twins:
            twin.queue.check_invariants()
    singly, in_runs = [twin.queue.statistics() for twin in twins]
    assert singly == in_runs
    assert twins[0].dead == twins[1].dead


def test_a_run_ends_with_the_entry_that_reaches_its_bytes() -> None:
    """The entry with which the sizes reach `most_bytes` is the last; the next run goes on behind it."""
    bench = Bench()
    bench.put(*[b"%d" % number * 10 for number in range(5)])
    consumer = bench.consumer()
    runs = [[entry.message.body[:1] for entry in bench.queue.deliver_messages(consumer, 9, 15)] for _ in range(4)]
    assert runs == [[b"0", b"1"], [b"2", b"3"], [b"4"], []]


def test_a_consumer_of_higher_priority_goes_before_a_run() -> None:
    """A consumer of lower priority has nothing while a higher one wants work; the run that ends that tells it."""
    bench = Bench()
    low, high = bench.consumer(), bench.consumer(priority=1, credit=Credit(2))
    bench.put(*"abcd")
    assert bench.queue.deliver_messages(low, 9, MUCH) == []
    bench.taken_notices()
    assert len(bench.queue.deliver_messages(high, 2, MUCH)) == 2
    assert bench.taken_notices() == [low]
    assert [entry.message.body for entry in bench.queue.deliver_messages(low, 9, MUCH)] == ["c", "d"]


def test_a_run_leaves_out_what_is_past_its_time() -> None:
    """A message in the middle of a run that has expired goes to the dead letters."""
    bench = Bench()
    bench.put("a")
    bench.put("late", expiration=1.0)
    bench.put("b")
    consumer = bench.consumer()
    bench.clock.advance(2.0)
    assert [entry.message.body for entry in bench.queue.deliver_messages(consumer, 9, MUCH)] == ["a", "b"]
    assert bench.dead == [("late", "expired")]


def test_a_run_leaves_out_what_its_consumer_has_refused() -> None:
    """A reader that starts over, as after very many returns, passes over what it has refused before."""
    bench = Bench()
    bench.put("a", "refused", "b")
    consumer = bench.consumer()
    first, refused = bench.queue.deliver_messages(consumer, 2, MUCH)
    bench.queue.release(refused, consumer, refused=True)
    bench.queue.release(first, consumer)
    bench.queue.life.source.returns.restart_all()
    assert [entry.message.body for entry in bench.queue.deliver_messages(consumer, 9, MUCH)] == ["a", "b"]
    assert bench.bodies() == ["refused"]


# -- putting


def test_put_many_is_put_for_each() -> None:
    """Order, limits, delays and times to live are those of single puts, and each message has its own outcome."""
    bench = Bench(max_length=4, overflow=Overflow.REJECT)
    messages = [Message("a"), Message("late", expiration=1.0), Message("held", delay=5.0), Message("b"), Message("c")]
    outcomes = bench.queue.put_many(iter(messages))
    assert outcomes == [PutOutcome.ENQUEUED] * 4 + [PutOutcome.REJECTED]
    assert bench.queue.put_many([]) == []
    bench.clock.advance(2.0)
    assert bench.pull_bodies(bench.consumer()) == ["a", "b"]
    assert bench.dead == [("late", "expired")]
    bench.queue.delete()
    assert bench.queue.put_many(messages[:1]) == [PutOutcome.DELETED]


def test_a_run_that_is_put_tells_as_many_consumers_as_it_has_messages() -> None:
    """Each message of a run tells one interested consumer, as long as there are any."""
    bench = Bench()
    one, two, three = bench.consumer(), bench.consumer(), bench.consumer()
    bench.queue.put_many([Message("a"), Message("b")])
    assert bench.taken_notices() == [one, two]
    bench.queue.put_many([Message("c"), Message("d")])
    assert bench.taken_notices() == [three]


# -- targets


def filled(*bodies: object) -> BrokerQueue:
    queue = BrokerQueue("q")
    for body in bodies:
        queue.put(Message(body))
    return queue


def bodies(deliveries: list[Delivery]) -> list[object]:
    return [delivery.message.body for delivery in deliveries]


def test_get_many_gives_what_is_there_as_credit_allows() -> None:
    """Not more than asked for, than there is, or than the prefetch leaves; what is settled comes back as credit."""
    target = ConsumerTarget(credit=Credit(4))
    target.consume(filled(*range(9)))
    first = target.get_many(3)
    assert bodies(first) == [0, 1, 2]
    assert bodies(target.get_many(3)) == [3]
    with pytest.raises(Empty):
        target.get_many(3, timeout=0)
    target.accept(*first)
    assert bodies(target.get_many(9)) == [4, 5, 6]
    target.accept(*target.unsettled())
    assert bodies(target.get_many(9)) == [7, 8]
    target.credit.check_invariants()


def test_a_message_too_large_for_the_rest_of_the_bytes_comes_after_a_settlement() -> None:
    """A run ends before a message for which the credit in bytes is too small; settling the others lets it through."""
    target = ConsumerTarget(credit=Credit(None, 10))
    target.consume(filled(b"6 byte", b"again6"))
    first = target.get_many(5)
    assert bodies(first) == [b"6 byte"]
    with pytest.raises(Empty):
        target.get_many(5, timeout=0)
    target.accept(*first)
    assert bodies(target.get_many(5, timeout=0)) == [b"again6"]


def test_get_many_takes_from_queues_in_turn() -> None:
    """A run is of one queue; the next one is of the next queue that has something."""
    target = ConsumerTarget()
    target.consume(filled(1, 2, 3))
    target.consume(filled(4, 5))
    assert [bodies(target.get_many(2)) for _ in range(3)] == [[1, 2], [4, 5], [3]]


@pytest.mark.parametrize("most", [0, -1])
def test_get_many_of_none_is_refused(most: int) -> None:
    """Fewer than one cannot be waited for."""
    with pytest.raises(ValueError, match=f"most is {most}; ask for 1"):
        ConsumerTarget().get_many(most)


def test_a_dead_consumers_run_goes_back_in_order_flagged() -> None:
    """What a target had in a run and did not settle returns to its places, redelivered; what it settled is gone."""
    queue = filled(*"abcd")
    target, other = ConsumerTarget(), ConsumerTarget()
    target.consume(queue)
    deliveries = target.get_many(3)
    target.accept(deliveries[1])
    target.close()
    other.consume(queue)
    again = other.get_many(9)
    assert [(each.message.body, each.redelivered) for each in again] == [("a", True), ("c", True), ("d", False)]


def test_a_run_leaves_other_consumers_their_turn() -> None:
    """A target that has its run does not keep what it did not ask for: the other one gets it."""
    queue = filled(*"abcd")
    one, two = ConsumerTarget(), ConsumerTarget()
    one.consume(queue)
    two.consume(queue)
    assert bodies(one.get_many(3)) == ["a", "b", "c"]
    one.suspend()
    assert bodies(two.get_many(3, timeout=0)) == ["d"]


# -- subscriptions


def test_a_subscription_takes_and_settles_in_runs() -> None:
    """`get_many` gives messages, `accept` settles them together, and neither exceeds the prefetch."""
    with Broker() as broker:
        broker.declare_queue("q")
        for body in "abc":
            broker.publish(Message(body, routing_key="q"))
        with broker.subscribe("q", prefetch=2) as subscription:
            run = subscription.get_many(5)
            assert [received.body for received in run] == ["a", "b"]
            subscription.accept(*run)
            subscription.accept()
            with pytest.raises(ValueError, match="settled before"):
                subscription.accept(*subscription.get_many(5), run[0])
            assert [received.body for received in subscription.unsettled()] == ["c"]


def test_a_run_of_a_deleted_queue_is_accepted_without_an_error() -> None:
    """What a subscription has of a queue that is deleted is gone with it; accepting it is nothing to do."""
    with Broker() as broker:
        broker.declare_queue("q")
        broker.publish(Message("a", routing_key="q"))
        subscription = broker.subscribe("q")
        run = subscription.get_many(5)
        broker.delete_queue("q")
        subscription.accept(*run)


@pytest.mark.parametrize("seed", [*range(3), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 100)]])
def test_every_message_of_a_run_is_settled_once(seed: int) -> None:
    """Three that put runs, three that get, give back and accept runs, threads switched every microsecond."""
    queue, count = BrokerQueue("q"), 200
    targets = [ConsumerTarget(credit=Credit(prefetch)) for prefetch in (1, 3, 50)]
    accepted: Counter[object] = Counter()  # of bodies; each thread adds under the lock
    lock = threading.Lock()
    left = threading.Semaphore(0)

    def produce(number: int) -> None:
        dice, serial = random.Random(10 * seed + number), 0
        while serial < count:
            size = min(count - serial, dice.randrange(1, 20))
            queue.put_many(Message((number, each)) for each in range(serial, serial + size))
            serial += size

    def consume(number: int) -> None:
        dice, target = random.Random(10 * seed + 5 + number), targets[number]
        try:
            while True:
                deliveries = target.get_many(dice.randrange(1, 30))
                done = [delivery for delivery in deliveries if dice.random() > 0.05]
                target.release(*[delivery for delivery in deliveries if delivery not in done])
                target.accept(*done)
                with lock:
                    accepted.update(bodies(done))
                for _ in done:
                    left.release()
        except ShutDown:
            pass

    for target in targets:
        target.consume(queue)
    with switch_interval(), Threads() as threads:
        for number in range(3):
            threads.start(consume, number)
            threads.start(produce, number)
        all_came = all(left.acquire(timeout=PATIENCE) for _ in range(3 * count))
        for target in targets:
            target.close()
    assert all_came, queue.statistics()
    queue.check_invariants()
    assert accepted == Counter((number, each) for number in range(3) for each in range(count))


# -- in every order


def in_orders(most: int = 2) -> Callable[[Callable[..., None]], Callable[..., None]]:
    modules = [_queue_module, _credit, _target, _received]
    options = {"modules": modules, "preemptions": surprises(most), "max_schedules": 200_000}
    return explored(lambda scenario: explore(scenario, **options))


@in_orders()
def test_a_run_beside_a_put(run: Run) -> None:
    """Two runs beside a put: what the first does not bring, the second waits for and gets."""
    queue = filled("a")
    target = ConsumerTarget()
    target.consume(queue)

    def consume() -> list[object]:
        got: list[object] = []
        while len(got) < 2:
            got += bodies(target.get_many(5))
        return got

    consumed = run.spawn(consume)
    run.spawn(queue.put, Message("b"))
    run.join()
    assert consumed.result == ["a", "b"]
    queue.check_invariants()


@in_orders(most=1)
def test_a_run_that_is_put_reaches_two_targets_that_wait(run: Run) -> None:
    """Two blocked `get`s beside one `put_many` of two: both return."""
    queue = BrokerQueue("q")
    targets = [ConsumerTarget(), ConsumerTarget()]
    for target in targets:
        target.consume(queue)
    gets = [run.spawn(target.get) for target in targets]
    run.spawn(queue.put_many, [Message("a"), Message("b")])
    run.join()
    assert sorted(get.result.message.body for get in gets) == ["a", "b"]


@in_orders(most=1)
def test_two_targets_share_runs(run: Run) -> None:
    """Two targets that pull runs until all is settled: each message once, and neither waits beside one."""
    queue = filled(*"abc")
    given: list[object] = []
    targets = [ConsumerTarget(credit=Credit(2)), ConsumerTarget(credit=Credit(2))]

    def consume(target: ConsumerTarget) -> None:
        try:
            while True:
                deliveries = target.get_many(2)
                target.accept(*deliveries)
                given.extend(bodies(deliveries))
                if len(given) == 3:
                    for each in targets:
                        each.close()
        except ShutDown:
            pass

    for target in targets:
        target.consume(queue)
        run.spawn(consume, target)
    run.join()
    assert sorted(given) == ["a", "b", "c"]  # type: ignore[type-var]
    assert len(queue) == 0


@in_orders()
def test_a_release_beside_a_run_is_found(run: Run) -> None:
    """A message that comes back beside a run of the messages behind it: the run has it, or the next one."""
    queue = filled(*"abc")
    one, two = ConsumerTarget(), ConsumerTarget()
    one.consume(queue)
    two.consume(queue)
    first = one.get()

    def consume() -> list[object]:
        got: list[object] = []
        while len(got) < 3:
            got += bodies(two.get_many(5))
        return got

    one.suspend()
    consumed = run.spawn(consume)
    run.spawn(one.release, first)
    run.join()
    assert sorted(consumed.result) == ["a", "b", "c"]


@in_orders()
def test_credit_that_comes_back_beside_the_end_of_a_run(run: Run) -> None:
    """A run that uses up the prefetch, beside a settlement: the next `get_many` returns."""
    target = ConsumerTarget(credit=Credit(2))
    target.consume(filled(*"abc"))
    first = target.get()

    def consume() -> list[object]:
        got: list[object] = []
        while len(got) < 2:
            got += bodies(target.get_many(5))
        return got

    consumed = run.spawn(consume)
    run.spawn(target.accept, first)
    run.join()
    assert consumed.result == ["b", "c"]


@in_orders()
def test_a_run_beside_the_close_of_its_target_goes_back(run: Run) -> None:
    """A `get_many` beside `close`: what it pulled is on the queue again, in order."""
    queue = filled(*"abc")
    target = ConsumerTarget()
    target.consume(queue)
    run.spawn_expecting(ShutDown, target.get_many, 2)
    run.spawn(target.close)
    run.join()
    assert [message.body for message in queue.browse()] == ["a", "b", "c"]
    queue.check_invariants()


@in_orders(most=1)
def test_a_run_beside_the_move_of_its_messages(run: Run) -> None:
    """A run beside a move of everything to another queue: each message is in one place."""
    queue, other = filled(*"abc"), BrokerQueue("other")
    consumer = queue.add_consumer(lambda consumer: None)
    queue.set_notify_work_desired(consumer, True)
    pulled = run.spawn(queue.deliver_messages, consumer, 2, MUCH)
    run.spawn(queue.move_messages, other)
    run.join()
    there = [message.body for message in other.browse()]
    here = [entry.message.body for entry in pulled.result] + [message.body for message in queue.browse()]
    assert sorted(here + there) == ["a", "b", "c"]
    queue.check_invariants()
