"""Who is told of an entry, and who is not: the invariants of the pull model, and the gaps it must not have."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from broker_kernel_support import Bench
from broker_parts_support import ConsumerState

from multiqueue.broker import Credit, EntryState, IllegalStep, Message, MessageGroups, Overflow, PutOutcome, QueueKind

INTERESTED, NOTIFIED, NOT_INTERESTED = (
    ConsumerState.INTERESTED,
    ConsumerState.NOTIFIED,
    ConsumerState.NOT_INTERESTED,
)


def test_i1_counters_are_up_when_an_entry_can_be_seen() -> None:
    """I1: a consumer that is told of an entry finds it counted."""
    bench = Bench()
    seen: list[tuple[int, int]] = []

    def look(consumer: object) -> None:
        statistics = bench.queue.statistics()
        seen.append((statistics.depth, statistics.available))

    consumer = bench.queue.add_consumer(look)
    bench.queue.set_notify_work_desired(consumer, True)
    bench.put("a")
    assert seen == [(1, 1)]


def test_i2_interest_declared_after_a_put_finds_the_entry() -> None:
    """I2: a consumer that becomes interested looks for itself, however long the entry has been there."""
    bench = Bench()
    bench.put("a")
    consumer = bench.consumer()
    assert bench.taken_notices() == [consumer]
    assert consumer.state is NOTIFIED


def test_i2_a_put_finds_interest_declared_before() -> None:
    """I2: a put after the declaration tells the consumer, once."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a", "b")
    assert bench.taken_notices() == [consumer]


def test_i3_notified_lasts_until_a_pull_finds_nothing() -> None:
    """I3: NOTIFIED is an obligation; pulls that deliver do not end it, an empty one does."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a")
    assert bench.pull(consumer) is not None
    assert consumer.state is NOTIFIED
    assert bench.pull(consumer) is None
    assert consumer.state is INTERESTED
    bench.put("b")
    assert bench.taken_notices() == [consumer, consumer]


def test_i3_notified_lasts_until_nothing_is_left_where_that_may_end_it() -> None:
    """I3: where a pull may end the obligation, the one that takes the last message does, and no other that delivers."""
    bench = Bench()
    consumer = bench.consumer()
    bench.put("a", "b")
    for state, at_end in ((NOTIFIED, False), (INTERESTED, True)):
        assert bench.queue.deliver_single_message(consumer, may_end=True) is not None
        assert (consumer.state, consumer.at_end) == (state, at_end)
    bench.put("c")
    assert bench.taken_notices() == [consumer, consumer]


def test_i3_one_put_wakes_one_consumer() -> None:
    """A put tells a single interested consumer, not all of them."""
    bench = Bench()
    first, second = bench.consumer(), bench.consumer()
    bench.put("a")
    assert bench.taken_notices() == [first]
    assert (first.state, second.state) == (NOTIFIED, INTERESTED)


def test_i4_an_empty_pull_passes_the_baton() -> None:
    """I4: a consumer that was woken for what it cannot take wakes the next one that may."""
    bench = Bench()
    bench.put("blue", headers={"color": "blue"})
    red = bench.consumer(selector=lambda message: message.headers["color"] == "red")
    plain = bench.consumer(wants=False)
    bench.taken_notices()
    bench.queue.set_notify_work_desired(plain, True)  # NOTIFIED, but slow
    red_again = bench.consumer()
    assert bench.pull(red) is None
    assert bench.taken_notices() == [plain, red_again]


def test_i5_losing_interest_passes_the_baton() -> None:
    """I5: a notified consumer that no longer wants work hands its obligation on."""
    bench = Bench()
    first, second = bench.consumer(), bench.consumer()
    bench.put("a")
    bench.queue.set_notify_work_desired(first, False)
    assert bench.taken_notices() == [first, second]


def test_i5_spending_the_last_credit_passes_the_baton() -> None:
    """I5: a consumer whose credit ends with a delivery hands on what is left."""
    bench = Bench()
    first, second = bench.consumer(credit=Credit(1)), bench.consumer()
    bench.put("a", "b")
    bench.taken_notices()
    bench.queue.set_notify_work_desired(second, False)
    bench.queue.set_notify_work_desired(second, True)
    bench.taken_notices()
    third = bench.consumer()
    bench.taken_notices()
    assert bench.pull(first) is not None
    assert first.state is NOT_INTERESTED
    assert third.state is NOTIFIED


def test_i6_a_released_entry_is_available_when_the_next_is_told() -> None:
    """I6: the state changes first, the wake-up comes second."""
    bench = Bench()
    bench.put("a")
    first = bench.consumer()
    entry = bench.pulled(first)
    assert bench.pull(first) is None
    bench.queue.set_notify_work_desired(first, False)
    states: list[EntryState] = []
    other = bench.queue.add_consumer(lambda consumer: states.append(entry.state))
    bench.queue.set_notify_work_desired(other, True)
    bench.queue.release(entry, first)
    assert states == [EntryState.AVAILABLE]


def test_i7_what_comes_back_behind_a_cursor_is_found() -> None:
    """I7: an entry released before the place a consumer has reached is the next one it gets."""
    bench = Bench()
    bench.put(*"abcd")
    one, two = bench.consumer(), bench.consumer()
    entries = [bench.pull(one), bench.pull(two), bench.pull(two)]
    assert entries[0] is not None
    bench.queue.release(entries[0], one)
    bench.queue.check_invariants()
    assert bench.pull_bodies(two) == ["a", "d"]


def test_i7_many_releases_do_not_overtax_a_sleeper() -> None:
    """I7: a consumer that slept through more releases than are remembered starts over, and finds all."""
    bench = Bench()
    bench.put("a", "b", "c")
    sleeper, worker = bench.consumer(), bench.consumer()
    bench.pull(sleeper)
    for _ in range(3000):
        entry = bench.pulled(worker)
        bench.queue.release(entry, worker, counted=False)
    bench.queue.check_invariants()
    assert bench.pull_bodies(sleeper) == ["b", "c"]


def test_i8_a_release_straight_from_the_delivery_is_redelivered() -> None:
    """I8: the consumer's place has moved on before it can give the entry back, so the return counts."""
    bench = Bench()
    bench.put("a")
    consumer = bench.consumer()
    for _ in range(3):
        entry = bench.pulled(consumer)
        bench.queue.release(entry, consumer)


def test_i9_two_threads_do_not_pull_for_one_consumer() -> None:
    """I9: a pull inside the selector of a pull for the same consumer is refused and named."""
    bench = Bench()
    bench.put("a")

    def selector(message: Message) -> bool:
        bench.pull(consumer)
        return True

    consumer = bench.consumer(selector=selector)
    assert bench.pull(consumer) is None
    ((action, error),) = bench.errors
    assert action == "selector"
    assert "is being pulled already" in str(error)
    assert consumer.pulling is False


def test_i10_one_actor_wins_an_entry_and_credit_is_restored_once() -> None:
    """I10: a stolen entry is gone for its owner, whose settlement counts for nothing."""
    bench = Bench()
    credit = Credit(5)
    consumer = bench.consumer(credit=credit)
    bench.put("a")
    entry = bench.pulled(consumer)
    assert bench.queue.delete_messages(steal=True) == 1
    assert bench.queue.accept(entry, consumer) == 0
    assert bench.queue.release(entry, consumer) == 0
    credit.settled(1, entry.size)
    credit.check_invariants()


def test_i11_entries_arrive_after_the_last_one_was_removed() -> None:
    """I11: removing the tail loses no arrival, at the ends of chunks either."""
    bench = Bench()
    consumer = bench.consumer(auto_accept=True)
    for number in range(600):
        bench.put(number)
        assert bench.pull_bodies(consumer) == [number]
        bench.queue.check_invariants()


class Body:
    """A body whose end can be watched."""


def test_i12_a_settled_message_is_let_go_of() -> None:
    """I12: neither the list, a cursor nor the log of returns keeps a message alive that is gone."""
    bench = Bench()
    consumer, idle = bench.consumer(), bench.consumer()
    body = Body()
    watch = weakref.ref(body)
    bench.put(body)
    del body
    entry = bench.pulled(consumer)
    bench.queue.release(entry, consumer)
    entry = bench.pulled(consumer)
    bench.queue.accept(entry, consumer)
    del entry
    gc.collect()
    assert watch() is None
    assert idle.revisits == []


def test_i12_a_removed_consumer_is_let_go_of() -> None:
    """I12: lists forget a consumer that is removed."""
    bench = Bench()
    consumer = bench.consumer()
    watch = weakref.ref(consumer) if hasattr(consumer, "__weakref__") else None
    bench.queue.remove_consumer(consumer)
    bench.queue.check_invariants()
    assert bench.queue.consumers() == []
    assert watch is None or consumer.is_closed


def test_i14_two_consumers_never_have_one_group() -> None:
    """I14: a group that was accepted is owned in the same step."""
    bench = Bench(groups=MessageGroups.SHARED, group_key="g")
    one, two = bench.consumer(), bench.consumer()
    bench.put("a1", "a2", headers={"g": "a"})
    bench.put("b1", headers={"g": "b"})
    first = bench.pulled(one)
    assert bench.pull_bodies(two) == ["b1"]
    bench.taken_notices()
    bench.queue.accept(first, one)
    assert bench.taken_notices() == [two], "the freed group is on offer"
    assert bench.pull_bodies(two) == ["a2"]


def test_a_standard_group_is_on_offer_when_its_consumer_has_left() -> None:
    """It is its consumer's while that has nothing of it, and then that one's who gets its next message."""
    bench = Bench(groups=MessageGroups.STANDARD, group_key="g")
    one, two = bench.consumer(), bench.consumer()
    bench.put("a1", "a2", headers={"g": "a"})
    first = bench.pulled(one)
    bench.queue.accept(first, one)
    assert bench.pull(two) is None
    bench.taken_notices()
    bench.queue.remove_consumer(one)
    assert bench.taken_notices() == [two]
    assert bench.pull_bodies(two) == ["a2"]
    bench.queue.check_invariants()


def test_what_a_get_passes_over_for_its_group_another_get_is_given() -> None:
    """Each owner's gets look from the first message on: none shares a place in the queue with another's."""
    bench = Bench(groups=MessageGroups.SHARED, group_key="g")
    for body in ("a1", "a2", "b1"):
        bench.put(body, headers={"g": body[0]})
    got = [bench.queue.get(owner) for owner in ("one", "two", "one", "two")]
    assert [entry and entry.message.body for entry in got] == ["a1", "b1", "a2", None]
    bench.queue.check_invariants()


def test_a_queue_that_pages_refuses_what_no_store_can_keep_once_that_is_too_much() -> None:
    """Without a limit of its own too, while it pages and no longer."""
    bench, is_overfull = Bench(), False
    limit = bench.queue.life.limit
    limit.begin_paging(lambda: is_overfull)
    bench.put("has room")
    is_overfull = True
    assert bench.queue.put(Message("has none")) is PutOutcome.REJECTED
    limit.end_paging()
    bench.put("is in memory again")


def test_i15_a_browser_keeps_its_message_while_others_take_it() -> None:
    """I15: what a browser was given stays whole when the entry is consumed meanwhile."""
    bench = Bench()
    bench.put("a")
    browser, consumer = bench.consumer(browse=True), bench.consumer(auto_accept=True)
    seen = bench.pull(browser)
    assert bench.pull_bodies(consumer) == ["a"]
    assert seen is not None
    assert seen.message.body == "a"


def test_i17_positions_rise_within_a_level() -> None:
    """I17: later entries of one level have higher positions, through releases and removals."""
    bench = Bench(kind=QueueKind.PRIORITY, max_priority=1)
    bench.put("low", priority=0)
    bench.put("high 1", "high 2", priority=1)
    bench.queue.check_invariants()
    assert bench.bodies() == ["high 1", "high 2", "low"]


def test_i18_a_consumer_has_its_place_before_it_can_be_seen() -> None:
    """I16, I18: whatever the order of coming and going, each consumer is in exactly its lists."""
    bench = Bench()
    consumers = [bench.consumer(priority=priority) for priority in (1, 3, 2, 3, 1)]
    assert [consumer.priority for consumer in bench.queue.consumers()] == [3, 3, 2, 1, 1]
    for consumer in consumers:
        bench.queue.check_invariants()
        bench.queue.remove_consumer(consumer)
        bench.queue.remove_consumer(consumer)
    bench.queue.check_invariants()


def test_g1_a_consumer_without_credit_does_not_block_lower_priorities() -> None:
    """G1: spending the last credit, then a put: the lower consumer is told, nothing is stuck."""
    bench = Bench()
    high, low = bench.consumer(priority=10, credit=Credit(1)), bench.consumer(priority=1)
    bench.put("a")
    assert bench.pull(high) is not None
    bench.taken_notices()
    bench.put("b")
    assert bench.taken_notices() == [low]
    assert bench.pull_bodies(low) == ["b"]


def test_g1_suspension_wakes_the_lower_priority() -> None:
    """G1: when the high consumer is suspended with an entry waiting, the low one is told and gets it."""
    bench = Bench()
    high, low = bench.consumer(priority=10), bench.consumer(priority=1)
    bench.put("a")
    assert bench.pull(low) is None, "the high one would take it"
    bench.taken_notices()
    bench.queue.set_notify_work_desired(high, False)
    assert bench.taken_notices() == [low]
    assert bench.pull_bodies(low) == ["a"]


def test_g2_losing_an_entry_between_selector_and_claim_goes_on_with_the_next() -> None:
    """G2: an entry that is purged while a selector looks at it costs the consumer nothing."""
    bench = Bench()

    def selector(message: Message) -> bool:
        if message.body == "a":
            bench.queue.delete_messages(lambda other: other.body == "a")
        return True

    consumer = bench.consumer(selector=selector, wants=False)
    bench.put("a", "b")
    bench.queue.set_notify_work_desired(consumer, True)
    entry = bench.pulled(consumer)
    assert entry.message.body == "b"


def test_g3_too_little_byte_credit_blocks_nobody() -> None:
    """G3: a high consumer with credit, but too little for the next message, steps aside for lower ones."""
    bench = Bench()
    credit = Credit(size_bytes=10)
    assert credit.take_run([1]), "so that the window is not untouched"
    high = bench.consumer(priority=10, credit=credit)
    low = bench.consumer(priority=1)
    bench.put(b"x" * 100)
    assert bench.pull(low) is None, "as far as anyone knows the high one would take it"
    bench.taken_notices()
    assert bench.pull(high) is None
    assert bench.taken_notices() == [low]
    assert bench.pull(low) is not None


def test_g3_a_message_larger_than_the_window_passes_an_untouched_window() -> None:
    """G3: a prefetch of 10 bytes does not lock out a message of 100, but takes it alone."""
    bench = Bench()
    consumer = bench.consumer(credit=Credit(size_bytes=10))
    bench.put(b"x" * 100, b"y")
    entry = bench.pulled(consumer)
    assert entry.size == 100
    assert bench.pull(consumer) is None


def test_g4_immediate_is_accepted_when_a_consumer_waits_with_credit() -> None:
    """G4: an idle consumer is reason enough to keep an immediate message, long before it pulls."""
    bench = Bench()
    consumer = bench.consumer(credit=Credit(1))
    assert bench.queue.put(Message("a"), immediate=True) is PutOutcome.ENQUEUED
    assert bench.pull_bodies(consumer) == ["a"]
    assert bench.queue.put(Message("b"), immediate=True) is PutOutcome.NO_CONSUMER, "its credit is used up"
    assert len(bench.queue) == 1


def test_g4_immediate_is_refused_when_nobody_wants_the_message() -> None:
    """G4: a consumer whose selector refuses is no consumer for this message; nothing is left behind."""
    bench = Bench()
    bench.consumer(selector=lambda message: message.body == "b")
    bench.consumer(browse=True)
    assert bench.queue.put(Message("a"), immediate=True) is PutOutcome.NO_CONSUMER
    assert bench.queue.statistics().enqueued == 0
    assert bench.queue.put(Message("b"), immediate=True).accepted


def test_the_race_of_the_immediate_flag() -> None:
    """A consumer that goes while its selector is asked: the message is refused, or kept, but never both."""
    bench = Bench()

    def selector(message: Message) -> bool:
        bench.queue.remove_consumer(consumer)
        return True

    consumer = bench.consumer(selector=selector)
    assert bench.queue.put(Message("a"), immediate=True) is PutOutcome.NO_CONSUMER
    assert len(bench.queue) == 0
    bench.queue.check_invariants()


def test_g5_a_ring_evicts_the_lowest_priority_whatever_arrives() -> None:
    """G5: a full ring makes room at its least significant end, across levels."""
    bench = Bench(kind=QueueKind.PRIORITY, max_priority=9, overflow=Overflow.RING, max_length=3)
    bench.put("low", priority=0)
    bench.put("high 1", "high 2", priority=9)
    bench.put("high 3", priority=9)
    assert bench.bodies() == ["high 1", "high 2", "high 3"]
    bench.put("low again", priority=0)
    assert bench.bodies() == ["high 1", "high 2", "high 3"]
    assert bench.dead == [("low", "maxlen"), ("low again", "maxlen")]


def test_g6_a_limit_in_bytes_alone_is_kept() -> None:
    """G6: a limit of one measure works without the other."""
    bench = Bench(overflow=Overflow.RING, max_length_bytes=10)
    bench.put(b"12345", b"67890", b"abc")
    assert bench.bodies() == [b"67890", b"abc"]


def test_g7_closing_a_notified_consumer_passes_the_baton() -> None:
    """G7: a consumer that is removed without having lost interest first leaves no other waiting."""
    bench = Bench()
    first, second = bench.consumer(), bench.consumer()
    bench.put("a")
    bench.taken_notices()
    bench.queue.remove_consumer(first)
    assert bench.taken_notices() == [second]
    assert bench.queue.statistics().consumers_willing == 1


def test_g8_the_walk_over_consumers_ends_however_they_churn() -> None:
    """G8: a selector that makes its consumer leave and come back is asked once per put."""
    bench = Bench()
    asked: list[object] = []

    def selector(message: Message) -> bool:
        asked.append(message.body)
        bench.queue.set_notify_work_desired(consumer, False)
        bench.queue.set_notify_work_desired(consumer, True)
        return False

    consumer = bench.consumer(selector=selector)
    bench.put("a")
    assert asked == ["a"]


def test_a_browser_is_told_of_every_put_and_sees_each_message_once() -> None:
    """Browsers are always told, take nothing, and do not see again what is given back."""
    bench = Bench()
    browser, consumer = bench.consumer(browse=True), bench.consumer()
    bench.taken_notices()
    bench.put("a", "b")
    assert bench.taken_notices().count(browser) == 2
    assert bench.pull_bodies(browser) == ["a", "b"]
    assert browser.at_end
    entry = bench.pulled(consumer)
    bench.queue.release(entry, consumer)
    assert bench.pull_bodies(browser) == []
    assert len(bench.queue) == 2


@pytest.mark.parametrize("kind", [{"kind": QueueKind.PRIORITY}, {"kind": QueueKind.SORTED, "sort_key": "k"}])
def test_a_browser_sees_what_arrives_before_its_place(kind: dict[str, Any]) -> None:
    """An arrival ahead of what a browser has passed is still shown to it, once, however many there are."""
    bench = Bench(**kind)
    browser = bench.consumer(browse=True)
    bench.put("last", priority=0, headers={"k": 9})
    seen = bench.pull_bodies(browser)
    for number in range(3000):
        bench.put(number, priority=5, headers={"k": 3})
    seen += bench.pull_bodies(browser)
    assert seen == ["last", *range(3000)]
    bench.queue.check_invariants()


def test_higher_priority_first_and_round_robin_among_equals() -> None:
    """Equals are woken in turn; a higher consumer is woken before all of them."""
    bench = Bench()
    one, two, high = bench.consumer(), bench.consumer(), bench.consumer(priority=1)
    order = []
    for number in range(4):
        bench.put(number)
        (woken,) = bench.taken_notices()
        order.append(woken)
        if woken is high:
            bench.queue.set_notify_work_desired(high, False)
            (woken,) = bench.taken_notices()
            order.append(woken)
        bench.pull_bodies(woken)
    assert order == [high, one, two, one, two]


def test_settling_what_one_never_had_is_an_error_that_tells_the_entrys_story() -> None:
    """An illegal settlement names the entry's last steps and changes nothing, not even for the others."""
    bench = Bench()
    bench.put("a", "b")
    one, two = bench.consumer(), bench.consumer()
    first, second = bench.pulled(one), bench.pulled(two)
    with pytest.raises(IllegalStep, match="last steps: put, acquire, unlock"):
        bench.queue.accept([first, second], one)
    assert len(bench.queue) == 2
    assert bench.queue.accept([first, first], one) == 1
    with pytest.raises(IllegalStep, match="dequeue, delete"):
        bench.queue.accept(first, one)


def test_selectors_and_callbacks_may_call_the_queue() -> None:
    """User code runs without the lock: a selector that puts and a callback that purges do not hang."""
    bench = Bench()

    def selector(message: Message) -> bool:
        if message.body == "a":
            bench.put("from the selector")
        return True

    consumer = bench.consumer(selector=selector)
    bench.put("a")
    assert set(bench.pull_bodies(consumer)) == {"a", "from the selector"} or len(bench.queue) > 1
    assert bench.errors == []


def test_a_selector_that_fails_refuses_and_is_reported() -> None:
    """An exception in a selector goes to the error handler; the message stays for others."""
    bench = Bench()
    picky = bench.consumer(selector=lambda message: 1 / 0 > 0)
    plain = bench.consumer()
    bench.put("a")
    assert {action for action, _ in bench.errors} == {"selector"}
    assert bench.pull(picky) is None
    assert bench.pull_bodies(plain) == ["a"]


def test_a_selector_ended_by_the_keyboard_loses_nothing() -> None:
    """An exception that is not for catching goes through, and what was being looked at is still there."""
    bench = Bench()
    bench.put("a", "b")
    interrupt = [True]

    def selector(message: Message) -> bool:
        if interrupt:
            interrupt.pop()
            raise KeyboardInterrupt
        return True

    consumer = bench.consumer(selector=selector)
    with pytest.raises(KeyboardInterrupt):
        bench.pull(consumer)
    bench.queue.check_invariants()
    assert bench.pull_bodies(consumer) == ["a", "b"]


def test_a_lower_consumer_that_was_stopped_is_told_when_the_higher_one_is_done() -> None:
    """A consumer stopped by a rival for one entry gets the next one once the rival has found nothing more."""
    bench = Bench()
    low = bench.consumer()
    high = bench.consumer(priority=1, selector=lambda message: message.body == "red")
    bench.put("red", "blue")
    assert bench.taken_notices() == [high, low]
    assert bench.pull(low) is None, "the high one wants the first entry"
    assert bench.pull_bodies(high) == ["red"]
    assert bench.taken_notices() == [low]
    assert bench.pull_bodies(low) == ["blue"]


def test_only_a_consumer_that_wants_the_message_is_told_of_it() -> None:
    """A put asks the selectors of the interested, in order, and wakes the first that matches, alone."""
    bench = Bench()
    colors = ("red", "green", "blue")
    consumers = {
        color: bench.consumer(selector=lambda message, color=color: message.headers["color"] == color)
        for color in colors
    }
    for color in ("blue", "red", "black"):
        bench.put(color, headers={"color": color})
    assert bench.taken_notices() == [consumers["blue"], consumers["red"]]


def test_a_consumer_that_had_too_little_credit_gets_the_message_later() -> None:
    """What a consumer stepped aside from is still before it when its credit suffices."""
    bench = Bench()
    credit = Credit(size_bytes=110)
    assert credit.take_run([100])
    consumer = bench.consumer(credit=credit)
    bench.put(b"x" * 100, b"y")
    assert bench.pull(consumer) is None
    bench.taken_notices()
    assert credit.settled(1, 100) is True
    bench.queue.credit_changed(consumer)
    assert bench.taken_notices() == [consumer]
    assert bench.pull_bodies(consumer) == [b"x" * 100, b"y"]


def test_a_put_interrupted_in_a_selector_still_tells_somebody() -> None:
    """The message is on the queue when the selector is interrupted: a consumer that could take it is told."""
    bench = Bench()

    def interrupted(message: Message) -> bool:
        raise KeyboardInterrupt

    picky, plain = bench.consumer(selector=interrupted), bench.consumer()
    with pytest.raises(KeyboardInterrupt):
        bench.put("a")
    assert bench.taken_notices() == [picky]
    bench.queue.remove_consumer(picky)
    assert bench.pull_bodies(plain) == ["a"]


@pytest.mark.parametrize("selector", [None, lambda message: True])
@pytest.mark.parametrize("together", [False, True])
def test_a_callback_that_is_interrupted_keeps_nobody_else_from_being_told(selector: Any, together: bool) -> None:
    """A browser and a consumer are to be told; the first call is interrupted; the other still comes, also where the
    consumer's selector is asked first."""
    bench = Bench()
    calls_are_interrupted = [False, True, True]  # the last first

    def interrupted(consumer: object) -> None:
        if calls_are_interrupted.pop():
            raise KeyboardInterrupt

    browser = bench.queue.add_consumer(interrupted, browse=True)
    with pytest.raises(KeyboardInterrupt):
        bench.queue.set_notify_work_desired(browser, True)
    consumer = bench.consumer(selector=selector)
    with pytest.raises(KeyboardInterrupt):
        bench.queue.put_many([Message("a"), Message("b")]) if together else bench.put("a")
    assert bench.taken_notices() == [consumer]


def test_a_return_during_a_selector_keeps_the_order() -> None:
    """A consumer that has to start over while its selector runs is then given the earliest entry."""
    bench = Bench(groups=MessageGroups.SHARED, group_key="g")
    owner = bench.consumer()
    bench.put("a", "passed over", headers={"g": "a"})
    first = bench.pulled(owner)
    bench.queue.set_notify_work_desired(owner, False)
    wanted: set[object] = set()

    def selector(message: Message) -> bool:
        if message.body == "b1" and wanted:
            bench.queue.release(first, owner)
        return message.body in wanted

    consumer = bench.consumer(selector=selector)
    bench.put("x", "b1", "b2", headers={"g": "b"})
    bench.taken_notices()
    assert consumer.state is INTERESTED
    wanted |= {"a", "b1", "b2"}
    entry = bench.pulled(consumer)
    assert entry.message.body == "b1"
    wanted.remove("b1")
    assert bench.pull_bodies(consumer) == ["a", "b2"]


def test_a_browser_that_slept_sees_nothing_twice() -> None:
    """However many arrivals before its place have come and gone, what it has seen stays seen."""
    bench = Bench(kind=QueueKind.PRIORITY, max_priority=9)
    browser, consumer = bench.consumer(browse=True), bench.consumer(auto_accept=True)
    bench.put("low", "low too", priority=0)
    assert bench.pull_bodies(browser) == ["low", "low too"]
    for number in range(3000):
        bench.put(number, priority=9)
        assert bench.pull(consumer) is not None
    bench.put("new", priority=9)
    assert bench.pull_bodies(browser) == ["new"]
    assert len(browser.revisits) < 10


def test_the_logs_of_returns_stay_short() -> None:
    """Twenty thousand returns, with a consumer that never reads of them, cost a page of memory."""
    bench = Bench()
    bench.put("a")
    sleeper, owner = bench.consumer(), object()
    for _ in range(20_000):
        entry = bench.got(owner)
        bench.queue.release(entry, owner, counted=False)
    assert len(bench.queue.life.source.returns._positions) <= 1025
    assert bench.pull_bodies(sleeper) == ["a"]


def test_a_selector_that_changes_its_mind_stops_nobody() -> None:
    """A high consumer that refused a message and now claims it is given it; the low one does not wait for ever."""
    bench = Bench()
    open_for_business: list[bool] = []
    high = bench.consumer(priority=1, selector=lambda message: bool(open_for_business))
    low = bench.consumer(wants=False)
    bench.put("a", "b")
    assert bench.pull(high) is None
    open_for_business.append(True)
    bench.queue.set_notify_work_desired(low, True)
    bench.taken_notices()
    assert bench.pull(low) is None, "the high one claims it"
    assert bench.taken_notices() == [high]
    assert bench.pull_bodies(high) == ["a"]
    assert bench.pull_bodies(low) == []
    assert bench.pull_bodies(high) == ["b"]
