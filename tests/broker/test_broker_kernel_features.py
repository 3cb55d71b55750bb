"""What a broker queue does beyond order: limits, time, dead letters, management, lifetime, figures, alerts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from broker_kernel_support import Bench
from broker_parts_support import AlertKind, Housekeeping

from multiqueue.broker import (
    AccessRefused,
    AlertThresholds,
    BrokerQueue,
    Credit,
    DelayedRetry,
    DeliveryCounting,
    Message,
    NotFound,
    Overflow,
    PreconditionFailed,
    PutOutcome,
    QueueKind,
    QueueSettings,
)
from multiqueue.testing import FakeClock

# -- limits


def test_a_ring_evicts_the_oldest_that_nobody_has() -> None:
    """The limit counts what is ready; what consumers have is neither counted nor evicted."""
    bench = Bench(overflow=Overflow.RING, max_length=2)
    consumer = bench.consumer()
    bench.put("with the consumer")
    entry = bench.pulled(consumer)
    bench.put("a", "b", "c")
    assert bench.bodies() == ["b", "c"]
    assert bench.dead == [("a", "maxlen")]
    bench.queue.release(entry, consumer)
    assert bench.bodies() == ["b", "c"], "what comes back is the oldest, and goes"
    bench.queue.check_invariants()


def test_reject_refuses_the_new_message() -> None:
    """A full queue refuses; room made is room for the next one."""
    bench = Bench(overflow=Overflow.REJECT, max_length=1)
    bench.put("a")
    assert bench.queue.put(Message("b")) is PutOutcome.REJECTED
    assert bench.dead == []
    assert bench.queue.purge() == 1
    assert bench.queue.put(Message("c")).accepted
    assert bench.queue.statistics().rejected == 1


def test_reject_by_bytes_counts_the_new_message() -> None:
    """A message that would exceed the limit in bytes is refused, a smaller one is not."""
    bench = Bench(overflow=Overflow.REJECT_DEAD_LETTER, max_length_bytes=10)
    bench.put(b"12345678")
    assert bench.queue.put(Message(b"123")) is PutOutcome.REJECTED
    assert bench.dead == [(b"123", "maxlen")]
    bench.put(b"12")


def test_flow_control_holds_producers_until_four_fifths() -> None:
    """Over the limit puts say so; producers wait until the queue is down to 80 % of it."""
    bench = Bench(overflow=Overflow.FLOW_CONTROL, max_length=10)
    consumer = bench.consumer(auto_accept=True)
    assert [bench.queue.put(Message(n)) for n in range(10)] == [PutOutcome.ENQUEUED] * 10
    assert bench.queue.put(Message(10)) is PutOutcome.THROTTLED
    resumed: list[str] = []
    assert bench.queue.when_room(lambda: resumed.append("now"))
    for expected in ([], [], ["now"]):
        assert bench.pull(consumer) is not None
        assert resumed == expected
    assert bench.queue.is_throttled is False
    assert bench.queue.when_room(lambda: None) is False
    assert bench.queue.wait_for_room(0.0) is True


def test_deleting_a_throttled_queue_lets_its_producers_go() -> None:
    """A producer that waits for room is not left waiting for a queue that is gone."""
    bench = Bench(overflow=Overflow.FLOW_CONTROL, max_length=0)
    assert bench.queue.put(Message("a")) is PutOutcome.THROTTLED
    assert bench.queue.wait_for_room(0.0) is False
    assert bench.queue.life.limit.room_waiters == [], "who gave up is forgotten"
    waiter = threading.Thread(target=bench.queue.wait_for_room)
    waiter.start()
    bench.queue.delete()
    waiter.join(60)
    assert not waiter.is_alive()
    assert bench.queue.put(Message("b")) is PutOutcome.DELETED


# -- time


def test_expired_messages_are_dead_lettered_wherever_they_are_met() -> None:
    """An expired message is never delivered: a pull passes it, housekeeping drops it, a release ends it."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("held by the consumer", expiration=5)
    entry = bench.pulled(consumer)
    bench.put("met by a pull", expiration=5)
    bench.put("stays")
    bench.clock.advance(5)
    assert bench.pull_bodies(consumer) == ["stays"]
    bench.queue.release(entry, consumer)
    assert len(bench.queue) == 1, "it does not come back first"
    bench.put("met by housekeeping", expiration=1)
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert bench.dead == [
        ("met by a pull", "expired"),
        ("held by the consumer", "expired"),
        ("met by housekeeping", "expired"),
    ]
    assert bench.queue.statistics().expired == 3


@pytest.mark.parametrize("kind", [QueueKind.STANDARD, QueueKind.PRIORITY])
def test_a_late_message_stays_until_it_is_at_the_head(kind: QueueKind) -> None:
    """As in RabbitMQ: it is counted, and goes when what is before it is taken, gone, or late too."""
    bench = Bench(kind=kind, max_priority=9 if kind is QueueKind.PRIORITY else None, expires_at_head=True)
    bench.put("first")
    bench.put("late", expiration=1)
    bench.put("later", expiration=2)
    bench.put("last")
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert (len(bench.queue), bench.dead) == (4, [])
    first = bench.got(bench)
    bench.queue.housekeeping()
    assert (len(bench.queue), bench.dead) == (3, [("late", "expired")])
    bench.queue.release([first], bench)
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert bench.bodies() == ["first", "later", "last"]
    assert bench.queue.delete_messages(lambda message: message.body == "first") == 1
    bench.queue.housekeeping()
    assert bench.bodies() == ["last"]
    bench.queue.check_invariants()


def test_a_late_message_that_comes_back_stays_behind_others() -> None:
    """What its time passed with a consumer is ready again where it was, and goes from the head."""
    bench = Bench(expires_at_head=True)
    bench.put("first")
    bench.put("late", expiration=1)
    first, late = (bench.got(bench) for _ in range(2))
    bench.clock.advance(1)
    bench.queue.housekeeping()
    bench.queue.release([first], bench)
    bench.queue.release([late], bench)
    bench.queue.housekeeping()
    assert bench.bodies() == ["first", "late"]
    assert bench.queue.get(bench) is not None
    bench.queue.housekeeping()
    assert (bench.bodies(), bench.dead) == ([], [("late", "expired")])


def test_a_ring_keeps_what_the_expired_make_room_for() -> None:
    """A message above the limit drops no other when one is past its time."""
    bench = Bench(overflow=Overflow.RING, max_length=2)
    bench.put("late", expiration=1)
    bench.put("b")
    bench.clock.advance(1)
    bench.put("c")
    assert (bench.bodies(), bench.dead) == (["b", "c"], [("late", "expired")])


def test_the_queues_ttl_bounds_and_the_minimum_raises() -> None:
    """`message_ttl` also gives a time to messages without one; the minimum lengthens those that have one."""
    bench = Bench(message_ttl=10, minimum_message_ttl=5, expired_to_dead_letter=False)
    bench.put("none set")
    bench.put("short", expiration=1)
    bench.put("long", expiration=100)
    bench.clock.advance(4)
    bench.queue.housekeeping()
    assert bench.bodies() == ["none set", "short", "long"]
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert bench.bodies() == ["none set", "long"]
    bench.clock.advance(5)
    bench.queue.housekeeping()
    assert bench.bodies() == []
    assert bench.dead == [], "what expires is gone"


def test_the_timers_of_messages_that_are_gone_are_swept() -> None:
    """Millions of consumed messages with a long time to live leave no timers behind."""
    bench = Bench(message_ttl=1e6)
    consumer = bench.consumer(auto_accept=True)
    for number in range(5000):
        bench.put(number)
        bench.pull(consumer)
    assert len(bench.queue.life.source._deadlines._heap) < 2000


def test_a_held_message_that_was_claimed_and_came_back_has_one_timer() -> None:
    """However often management fails to move it: timers that are there twice would be looked at with each message."""
    bench, full = Bench(message_ttl=1e6), Bench(overflow=Overflow.REJECT, max_length=0)
    bench.put(*range(100), delay=1000)
    for _ in range(50):
        assert bench.queue.move_messages(full.queue) == 0
    assert len(bench.queue.life.source._deadlines._heap) < 2000


def test_a_delayed_message_is_overtaken_and_then_takes_its_place() -> None:
    """Before its time no consumer gets it; after it consumers are told, and it stands where it was put."""
    bench = Bench()
    consumer, browser = bench.consumer(), bench.consumer(browse=True)
    bench.put("later", delay=5)
    bench.put("now")
    assert bench.pull_bodies(consumer) == ["now"]
    assert bench.pull_bodies(browser) == []
    bench.put("last")
    bench.taken_notices()
    bench.clock.advance(5)
    bench.queue.housekeeping()
    assert consumer in bench.taken_notices() or consumer.state.name == "NOTIFIED"
    assert bench.pull_bodies(consumer) == ["later", "last"]
    assert bench.queue.statistics().held == 0


def test_browsers_see_what_was_held_when_its_time_has_come() -> None:
    """The end of a hold is an arrival for browsers that have passed the place."""
    bench = Bench()
    browser = bench.consumer(browse=True)
    bench.put("later", delay=5)
    bench.put("now")
    assert bench.pull_bodies(browser) == ["now"]
    bench.clock.advance(5)
    bench.queue.housekeeping()
    assert bench.pull_bodies(browser) == ["later"]


def test_housekeeping_looks_after_many_queues_and_forgets_the_deleted() -> None:
    """One failing queue keeps none of the others waiting; a deleted one is let go of."""
    first, second = Bench(message_ttl=1), Bench(message_ttl=1)
    keeper = Housekeeping(clock=(clock := FakeClock(1000.0)))
    for bench in (first, second):
        keeper.add(bench.queue)
        bench.put("a")
        bench.clock.advance(2)
    clock.advance(2)
    keeper.run_once()
    assert first.dead == second.dead == [("a", "expired")]
    for bench in (first, second):
        bench.put("b")
    first.queue.delete()
    keeper.remove(first.queue)
    assert list(keeper._planned) == [second.queue]


def test_housekeeping_runs_on_a_thread_of_its_own_until_closed() -> None:
    """Started, it runs; closed, its thread is gone, and it cannot be started again."""
    done = threading.Event()
    queue = BrokerQueue("q", settings=QueueSettings(expires=0.0), on_deleted=lambda queue: done.set())
    with Housekeeping(0.001) as keeper:
        keeper.add(queue)
        assert done.wait(30)
    assert queue.is_deleted
    with pytest.raises(RuntimeError, match="closed"):
        keeper.start()


# -- dead letters


def test_a_message_delivered_too_often_is_dead_lettered() -> None:
    """The last permitted delivery that is given back goes to the dead letters, its count with it."""
    bench = Bench(max_delivery_attempts=2)
    consumer = bench.consumer()
    bench.put("poison")
    counts = []
    while (entry := bench.pull(consumer)) is not None:
        counts.append((entry.delivery_count, entry.redelivered))
        bench.queue.release(entry, consumer)
    assert counts == [(1, False), (2, True)]
    assert bench.dead == [("poison", "delivery_limit")]


FAILURES = {"delivery_counting": DeliveryCounting.FAILURES}


def test_only_failures_come_nearer_to_the_limit() -> None:
    """Of a quorum queue's deliveries a nack is free, a reject is not, and the counts of both are kept."""
    bench = Bench(max_delivery_attempts=2, **FAILURES)
    consumer = bench.consumer()
    bench.put("poison")
    counts = []
    for how in ("release", "release", "fail", "release", "fail"):
        entry = bench.pulled(consumer)
        counts.append((entry.delivery_count, entry.failures))
        getattr(bench.queue, how)(entry, consumer)
    assert counts == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    assert bench.dead == [("poison", "delivery_limit")]


@pytest.mark.parametrize("how", ["release", "fail"])
@pytest.mark.parametrize("kind", DelayedRetry)
def test_a_message_that_comes_back_waits(kind: DelayedRetry, how: str) -> None:
    """The first failure costs the least delay, each further one as much again, up to the greatest."""
    bench = Bench(delayed_retry=kind, delayed_retry_min=2.0, delayed_retry_max=3.0, **FAILURES)
    consumer, waits = bench.consumer(), []
    bench.put("a")
    for _ in range(3):
        entry = bench.pulled(consumer)
        getattr(bench.queue, how)(entry, consumer)
        due = bench.queue.housekeeping()
        waits.append(0.0 if due is None else due - bench.clock())
        bench.clock.advance(waits[-1])
        bench.queue.housekeeping()
    is_chosen = kind is DelayedRetry.ALL or kind.value == {"release": "returned", "fail": "failed"}[how]
    chosen = [2.0, 3.0, 3.0] if how == "fail" else [2.0, 2.0, 2.0]
    assert waits == (chosen if is_chosen else [0.0, 0.0, 0.0])
    bench.queue.check_invariants()


def test_a_message_that_is_kept_for_too_long_goes_back() -> None:
    """Its consumer gets nothing further and is told, others get it, and the late settlement counts for nothing."""
    told: list[float] = []
    bench = Bench(consumer_timeout=10.0)
    late = bench.consumer(on_timed_out=told.append)
    bench.put("a", "b")
    kept, done = bench.pulled(late), bench.pulled(late)
    bench.queue.accept(done, late)
    bench.clock.advance(9.0)
    bench.queue.housekeeping()
    assert told == []
    bench.clock.advance(1.0)
    bench.queue.housekeeping()
    assert told == [10.0]
    assert bench.queue.accept(kept, late) == 0
    assert bench.pull(late) is None
    entry = bench.pull(bench.consumer())
    assert entry is kept
    assert (entry.delivery_count, entry.failures) == (2, 0)
    bench.queue.check_invariants()


def test_an_active_consumer_that_is_late_gives_way() -> None:
    """Nobody else was served while it stayed the active one, and it is not made active again."""
    bench = Bench(consumer_timeout=10.0, single_active_consumer=True)
    late, waiting = bench.consumer(), bench.consumer()
    bench.put("a")
    bench.put("b")
    assert bench.pulled(late).message.body == "a"
    bench.clock.advance(11)
    bench.queue.housekeeping()
    assert bench.pull_bodies(late) == []
    assert bench.pull_bodies(waiting) == ["a", "b"]
    bench.queue.remove_consumer(waiting)
    assert not late.active
    assert bench.consumer().active


def test_a_consumer_has_a_timeout_of_its_own() -> None:
    """It wins over the queue's, and housekeeping comes when the first deadline passes."""
    bench = Bench(consumer_timeout=10.0)
    quick, usual = bench.consumer(timeout=3.0), bench.consumer()
    bench.put("a", "b")
    bench.pull(usual)
    bench.pull(quick)
    assert bench.queue.housekeeping() == bench.clock() + 3.0
    bench.clock.advance(3.0)
    assert bench.queue.housekeeping() == bench.clock() + 7.0
    assert bench.queue.statistics().available == 1


def test_a_delivery_that_never_arrived_does_not_count() -> None:
    """Given back uncounted, a message is as if it had not been delivered."""
    bench = Bench(max_delivery_attempts=1)
    consumer = bench.consumer()
    bench.put("a")
    for _ in range(3):
        entry = bench.pulled(consumer)
        assert entry.redelivered is False
        bench.queue.release(entry, consumer, counted=False)
    assert bench.dead == []


def test_refused_messages_do_not_come_back_to_who_refused_them() -> None:
    """A refusal is remembered per consumer; others get the message."""
    bench = Bench()
    one, two = bench.consumer(), bench.consumer()
    bench.put("a")
    entry = bench.pulled(one)
    bench.queue.release(entry, one, refused=True)
    assert bench.pull(one) is None
    assert bench.pull_bodies(two) == ["a"]


def test_a_consumer_that_waits_gets_a_message_however_short_its_life() -> None:
    """RabbitMQ hands it over at once. Here the consumer pulls a little later, and what is behind it expires."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("next", "behind", expiration=0.02)
    bench.clock.advance(0.5)
    entry = bench.pulled(consumer)
    assert (bench.pull(consumer), bench.dead) == (None, [("behind", "expired")])
    bench.queue.release([entry], consumer)  # its life was over long ago
    assert bench.pull(consumer) is None
    assert bench.dead == [("behind", "expired"), ("next", "expired")]


def test_dead_letters_may_go_round_in_a_long_circle() -> None:
    """Two full rings that dead-letter into each other: a loop, not a recursion, and it ends with the callback."""
    queues: dict[str, BrokerQueue] = {}
    hops = [0]

    def dead_letter(queue: BrokerQueue, message: Message, reason: object) -> None:
        hops[0] += 1
        if hops[0] < 5000:
            queues["b" if queue.name == "a" else "a"].put(message)

    ring = QueueSettings(overflow=Overflow.RING, max_length=1)
    for name in "ab":
        queues[name] = BrokerQueue(name, settings=ring, dead_letter=dead_letter)
        queues[name].put(Message(name))
    queues["a"].put(Message("c"))
    assert hops == [5000]
    assert len(queues["a"]) == len(queues["b"]) == 1


@pytest.mark.parametrize(
    ("callback", "settings"),
    [
        ("dead_letter", {"overflow": Overflow.RING, "max_length": 0}),
        ("on_alert", {"alerts": AlertThresholds(depth=1)}),
    ],
)
def test_a_failing_callback_is_reported(callback: str, settings: dict[str, Any]) -> None:
    """Failures of a callback go to the error handler; the queue goes on, and no publisher pays for a listener."""
    errors: list[str] = []
    queue = BrokerQueue(
        "q",
        settings=QueueSettings(**settings),
        on_error=lambda queue, action, error: errors.append(f"{action}: {error}"),
        **{callback: lambda *args: 1 / 0},
    )
    assert queue.put(Message("a")).accepted
    action = {"dead_letter": "dead letter", "on_alert": "alert"}[callback]
    assert errors == [f"{action} callback: division by zero"]


# -- management


def test_purge_leaves_what_consumers_have() -> None:
    """A purge deletes what is ready; what is unsettled stays with its consumers."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a", "b")
    entry = bench.pull(consumer)
    assert bench.queue.purge() == 1
    assert entry is not None
    assert bench.queue.accept(entry, consumer) == 1


def test_move_keeps_what_the_target_refuses() -> None:
    """Moved messages leave, refused ones are back in their places, and the selector decides which."""
    bench, target = Bench(), Bench("target", overflow=Overflow.REJECT, max_length=2)
    bench.put("a", "x", "b", "c")
    assert bench.queue.move_messages(target.queue, lambda message: message.body != "x") == 2
    assert target.bodies() == ["a", "b"]
    assert bench.bodies() == ["x", "c"]
    with pytest.raises(ValueError, match="to itself"):
        bench.queue.move_messages(bench.queue)
    bench.queue.check_invariants()


def test_copy_leaves_the_original() -> None:
    """A copy is one more message elsewhere; the limit bounds how many."""
    bench, target = Bench(), Bench("target")
    bench.put(*range(600))
    assert bench.queue.copy_messages(target.queue, limit=500) == 500
    assert target.bodies() == list(range(500))
    assert len(bench.queue) == 600


def test_delete_with_steal_takes_unlocked_entries_but_not_locked_ones() -> None:
    """What is being settled or sent cannot be stolen."""
    bench = Bench()
    consumer = bench.consumer(lock_deliveries=True)
    bench.put("locked", "unlocked")
    locked, unlocked = bench.pulled(consumer), bench.pulled(consumer)
    assert bench.queue.unlock(unlocked, consumer) == 1
    assert bench.queue.delete_messages(steal=True) == 1
    assert bench.queue.lock(unlocked, consumer) == 0
    assert bench.queue.accept([locked, unlocked], consumer) == 1
    assert len(bench.queue) == 0


def test_change_of_priority_moves_to_the_end_of_the_new_level() -> None:
    """The message goes behind those of its new level and is still what it was."""
    bench = Bench(kind=QueueKind.PRIORITY, max_priority=9)
    consumer = bench.consumer()
    bench.put("low", priority=1)
    bench.put("high", priority=5)
    assert bench.queue.change_priority(5, lambda message: message.body == "low") == 1
    assert bench.pull_bodies(consumer) == ["high", "low"]
    with pytest.raises(ValueError, match="knows no priorities"):
        Bench().queue.change_priority(1)


def test_a_get_takes_the_first_and_can_give_it_back() -> None:
    """A get is an acquisition by its caller; no other consumer may settle it."""
    bench = Bench()
    owner = object()
    assert bench.queue.get(owner) is None
    bench.put("a", "b")
    entry = bench.got(owner)
    assert bench.queue.get(owner, auto_accept=True) is not None
    bench.queue.release(entry, owner)
    again = bench.queue.get(owner)
    assert again is entry
    assert again.redelivered


# -- consumers and lifetime


def test_an_exclusive_consumer_is_alone() -> None:
    """It refuses others, and is refused where others are."""
    bench = Bench()
    consumer = bench.consumer(exclusive=True)
    with pytest.raises(AccessRefused, match="in exclusive use"):
        bench.consumer()
    bench.queue.remove_consumer(consumer)
    bench.consumer()
    with pytest.raises(AccessRefused):
        bench.consumer(exclusive=True)


def test_a_consumer_that_goes_costs_the_same_however_many_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none waits to become active, nobody looks for one among all the others."""
    bench = Bench()
    consumers = [bench.consumer() for _ in range(3)]

    def look(manager: object) -> Iterator[object]:
        raise AssertionError("all consumers were looked at")

    monkeypatch.setattr(type(bench.queue.life.consumers), "__iter__", look)
    for consumer in consumers:
        bench.queue.remove_consumer(consumer)


def test_a_single_active_consumer_is_followed_by_the_next() -> None:
    """One consumer gets everything; when it goes the next one in order does."""
    bench = Bench(single_active_consumer=True)
    first, second, high = bench.consumer(), bench.consumer(), bench.consumer(priority=5)
    bench.put("a", "b", "c")
    assert bench.pull(second) is None
    assert bench.pull(first) is not None
    bench.taken_notices()
    bench.queue.remove_consumer(first)
    assert bench.taken_notices() == [high]
    bench.queue.remove_consumer(high)
    assert bench.taken_notices() == [second]
    assert bench.pull_bodies(second) == ["b", "c"]


@pytest.mark.parametrize(
    ("settle", "bodies"),
    [("accept", ["c"]), ("reject", ["c"]), ("release", ["a", "b", "c"])],
)
def test_the_active_consumer_of_a_quorum_queue_gives_way(settle: str, bodies: list[str]) -> None:
    """To one of a higher priority, once it has settled what it has; seen at RabbitMQ 4.3.6."""
    bench = Bench(single_active_consumer=True, delivery_counting=DeliveryCounting.FAILURES)
    low = bench.consumer()
    bench.put("a", "b")
    taken = [bench.pulled(low), bench.pulled(low)]
    high, same = bench.consumer(priority=5), bench.consumer()
    bench.put("c")
    getattr(bench.queue, settle)([taken[0]], low)
    bench.queue.remove_consumer(same)
    assert [bench.pull(each) for each in (low, high)] == [None, None]
    getattr(bench.queue, settle)([taken[1]], low)
    assert bench.pull(low) is None
    for body in bodies:
        entry = bench.pulled(high)
        assert entry.message.body == body
        bench.queue.accept([entry], high)
    highest = bench.consumer(priority=6)  # when it comes there is nothing to settle
    bench.put("d")
    assert bench.pull(high) is None
    bench.queue.remove_consumer(highest)
    assert bench.pull_bodies(high) == ["d"]


def test_one_that_has_given_way_leaves_with_messages() -> None:
    """Its messages come back, and the next consumer is active."""
    bench = Bench(single_active_consumer=True, delivery_counting=DeliveryCounting.FAILURES)
    low = bench.consumer()
    bench.put("a")
    taken = bench.pulled(low)
    high = bench.consumer(priority=5)
    bench.queue.remove_consumer(low)
    bench.queue.release([taken], low)
    assert bench.pull_bodies(high) == ["a"]


@pytest.mark.parametrize("counting", [DeliveryCounting.NONE, DeliveryCounting.FAILURES])
def test_a_browser_does_not_stand_in_for_the_active_consumer(counting: DeliveryCounting) -> None:
    """It takes nothing, so that its coming, first or later, and its priority change nothing for the others."""
    bench = Bench(single_active_consumer=True, delivery_counting=counting)
    first = bench.consumer(browse=True)
    low = bench.consumer()
    high = bench.consumer(browse=True, priority=5)
    bench.put("a")
    assert [bench.pulled(each).message.body for each in (first, high, low)] == ["a", "a", "a"]


def test_a_short_life_ends_in_time_after_it_came_back() -> None:
    """The dead letter does not wait until the second is over that the consumer had to pull its message."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a", expiration=0.5)
    bench.queue.release([bench.pulled(consumer)], consumer)
    bench.clock.advance(0.6)
    bench.queue.housekeeping()
    assert bench.dead == [("a", "expired")]


def test_no_local_consumers_do_not_get_their_own_connections_messages() -> None:
    """noLocal goes by the publishing connection."""
    bench = Bench()
    connection = object()
    local, remote = bench.consumer(no_local=True, connection=connection), bench.consumer()
    bench.put("own", publisher=connection)
    bench.put("other", publisher=object())
    assert bench.pull_bodies(local) == ["other"]
    assert bench.pull_bodies(remote) == ["own"]


def test_auto_delete_goes_with_the_last_consumer() -> None:
    """Not before it had one, not while another is there."""
    bench = Bench(auto_delete=True)
    bench.put("a")
    first, second = bench.consumer(), bench.consumer()
    bench.queue.remove_consumer(first)
    assert bench.deleted == []
    bench.queue.remove_consumer(second)
    assert bench.deleted == [bench.queue]
    assert bench.queue.is_deleted
    with pytest.raises(NotFound):
        bench.consumer()


def test_a_queue_expires_when_nobody_uses_it() -> None:
    """Consumers, gets and `touch` keep it; idleness for `expires` seconds ends it."""
    bench = Bench(expires=10)
    consumer = bench.consumer()
    bench.clock.advance(100)
    bench.queue.housekeeping()
    bench.queue.remove_consumer(consumer)
    bench.clock.advance(9)
    bench.queue.touch()
    bench.clock.advance(9)
    bench.queue.housekeeping()
    assert not bench.queue.is_deleted
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert bench.deleted == [bench.queue]


def test_delete_tells_consumers_and_leaves_them_what_they_have() -> None:
    """Consumers are told once; what they have they may settle, and what they release is gone."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a", "b", "c")
    first, second = bench.pulled(consumer), bench.pulled(consumer)
    with pytest.raises(PreconditionFailed, match="in use"):
        bench.queue.delete(if_unused=True)
    with pytest.raises(PreconditionFailed, match="not empty"):
        bench.queue.delete(if_empty=True)
    assert bench.queue.delete(dead_letter=True) == 1
    assert bench.queue.delete() == 0
    assert bench.cancelled == [consumer]
    assert bench.pull(consumer) is None
    assert bench.queue.accept(first, consumer) == 1
    assert bench.queue.release(second, consumer) == 1
    assert bench.dead == [("c", "queue_deleted"), ("b", "queue_deleted")]
    assert len(bench.queue) == 0
    assert bench.deleted == [bench.queue]


# -- last value


def test_last_value_keeps_the_newest_of_each_key() -> None:
    """A newer value replaces the older; one that a consumer had does not come back."""
    bench = Bench(kind=QueueKind.LAST_VALUE, lvq_key="k")
    consumer = bench.consumer()
    bench.put("a1", headers={"k": "a"})
    held = bench.pull(consumer)
    bench.put("plain")
    bench.put("a2", headers={"k": "a"})
    bench.put("a3", headers={"k": "a"})
    assert bench.bodies() == ["plain", "a3"]
    assert held is not None
    bench.queue.release(held, consumer)
    assert bench.bodies() == ["plain", "a3"]
    assert bench.dead == []
    bench.queue.check_invariants()


# -- figures and alerts


def test_statistics_count_and_remember_the_highest() -> None:
    """Gauges, totals and high-water marks agree with what was done; a reset starts from what is."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put(b"1234", b"5678", b"9")
    entry = bench.pulled(consumer)
    bench.queue.accept(entry, consumer)
    bench.pull(consumer)
    statistics = bench.queue.statistics()
    assert (statistics.depth, statistics.depth_bytes) == (2, 5)
    assert (statistics.available, statistics.unacked, statistics.unacked_bytes) == (1, 1, 4)
    assert (statistics.enqueued, statistics.dequeued, statistics.dequeued_bytes) == (3, 1, 4)
    assert (statistics.highest_depth, statistics.highest_depth_bytes) == (3, 9)
    assert (statistics.consumers, statistics.consumers_willing) == (1, 1)
    bench.queue.reset_statistics()
    assert bench.queue.statistics().highest_depth == 2


def test_alerts_come_once_per_gap() -> None:
    """A threshold that is passed is told, and told again only after the gap."""
    thresholds = AlertThresholds(depth=2, message_bytes=5, age=60, repeat_gap=30)
    bench = Bench(alerts=thresholds)
    bench.put(b"a", b"123456")
    bench.put(b"c")
    assert [(alert.kind, alert.value) for alert in bench.alerts] == [
        (AlertKind.MESSAGE_BYTES, 6),
        (AlertKind.DEPTH, 2),
    ]
    bench.clock.advance(60)
    bench.queue.housekeeping()
    assert [alert.kind for alert in bench.alerts[2:]] == [AlertKind.DEPTH, AlertKind.AGE]
    assert str(bench.alerts[-1]) == "queue 'q': age is 60, its threshold 60"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_length": -1}, "max_length: -1 is out of range; from 0 upwards"),
        ({"max_length": "5"}, "max_length: '5' is of type str; a whole number is needed"),
        ({"max_length": True}, "max_length: True is of type bool; a whole number is needed"),
        ({"message_ttl": float("nan")}, "message_ttl: nan is out of range; from 0 to 315360000"),
        ({"durable": "yes"}, "durable: 'yes' is of type str; bool is needed"),
        ({"alerts": {"depth": 5}}, "alerts: {'depth': 5} is of type dict; AlertThresholds or None is needed"),
        ({"dead_letter_routing_key": "k"}, "dead_letter_routing_key needs dead_letter_exchange"),
        ({"overflow": "ring"}, "overflow: 'ring' is of type str; Overflow is needed"),
        ({"dead_letter_exchange": "x" * 256}, "dead_letter_exchange: 'x+'... has 256 bytes; 255 are the most"),
        ({"kind": "own", "kind_options": {"a": {1}}}, "kind_options: a set cannot be in a table: {1}"),
        ({"kind": QueueKind.PRIORITY, "max_priority": 3000}, "max_priority: 3000 is out of range; from 0 to 255"),
        ({"max_priority": 5}, "max_priority belongs to a priority queue, not to a standard one"),
        ({"kind": QueueKind.SORTED}, "needs sort_key"),
        ({"kind": QueueKind.LAST_VALUE}, "needs lvq_key"),
        ({"kind": QueueKind.PRIORITY, "max_priority": 5, "priority_levels": 3}, "two scales"),
        ({"group_key": "g"}, "without groups"),
        ({"single_active_consumer": True, "max_active_consumers": 2}, "set one"),
        ({"flow_resume_ratio": 0}, "a share of the limit"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, Any], problem: str) -> None:
    """A wrong setting is an error where it is written, and says what would be right."""
    with pytest.raises((ValueError, TypeError), match=problem):
        QueueSettings(**settings)


def test_credit_is_restored_by_settling() -> None:
    """Credit is back when the message is settled; a suspension stops it whatever is left."""
    credit = Credit(1)
    assert credit.take_run([5])
    assert not credit.take_run([5])
    assert credit.is_open is False
    assert credit.settled(1, 5) is True
    assert credit.is_open is True
    credit.suspend()
    assert not credit.take_run([1])
    assert credit.resume() is True
    assert credit.take_run([1])
    with pytest.raises(ValueError, match="0 or more"):
        Credit(-1)


def test_the_clock_is_asked_only_where_time_matters() -> None:
    """A queue without times costs no look at the clock per message."""
    clock = FakeClock(1000.0)
    asked = [0]

    def count() -> float:
        asked[0] += 1
        return clock()

    queue = BrokerQueue("q", clock=count)
    consumer = queue.add_consumer(lambda consumer: None)
    queue.set_notify_work_desired(consumer, True)
    before = asked[0]
    queue.put(Message("a"))
    entry = queue.deliver_single_message(consumer)
    assert entry is not None
    queue.accept(entry, consumer)
    assert asked[0] == before


def test_released_to_a_deleted_queue_is_gone_without_a_trace_unless_asked() -> None:
    """A plain deletion dead-letters nothing, not even what comes back or is rejected later."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a", "b", "c")
    first, second = bench.pulled(consumer), bench.pulled(consumer)
    bench.queue.delete()
    bench.queue.release(first, consumer)
    bench.queue.reject(second, consumer)
    assert bench.dead == []
    bench.clock.advance(1)
    bench.queue.housekeeping()
    assert bench.deleted == [bench.queue]


def test_management_leaves_the_expired_to_housekeeping() -> None:
    """What is past its time is neither shown nor moved nor deleted: it is dead-lettered."""
    bench, target = Bench(), Bench("target")
    bench.put("a", expiration=1)
    bench.put("b")
    bench.clock.advance(1)
    assert bench.bodies() == ["b"]
    assert bench.queue.move_messages(target.queue) == 1
    assert bench.queue.purge() == 0
    bench.queue.housekeeping()
    assert bench.dead == [("a", "expired")]
