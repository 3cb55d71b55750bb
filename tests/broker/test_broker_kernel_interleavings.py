"""What threads do to each other at one broker queue, in every order of its lock, explored to the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from broker_parts_support import credit as _credit
from broker_parts_support import queue as _queue_module
from broker_parts_support import received as _received
from broker_parts_support import target as _target
from explorations_support import explored, surprises

from multiqueue.broker import (
    BrokerQueue,
    ConsumerTarget,
    Credit,
    Entry,
    Message,
    MessageGroups,
    Overflow,
    PutOutcome,
    QueueConsumer,
    QueueKind,
    QueueSettings,
)
from multiqueue.errors import ShutDown
from multiqueue.testing import FakeClock, Run, explore

# In every order of lock operations, but for orders of operations that commute.
in_every_order = explored(lambda scenario: explore(scenario, modules=[_queue_module, _credit]))


class Office:
    """A queue, consumers that write down that they were told, and a record of what each was given."""

    def __init__(self, run: Run, **settings: Any) -> None:
        self.dead: list[Any] = []
        self.told: list[QueueConsumer] = []
        self.given: list[Any] = []
        self.clock = FakeClock()
        self.queue = BrokerQueue(
            "q",
            settings=QueueSettings(**settings),
            clock=self.clock,
            dead_letter=lambda queue, message, reason: self.dead.append(message.body),
            on_error=self._fail,
        )

    def _fail(self, queue: object, action: str, error: Exception) -> None:
        raise AssertionError(action) from error

    def consumer(self, *, wants: bool = True, **options: Any) -> QueueConsumer:
        consumer = self.queue.add_consumer(self.told.append, **options)
        if wants:
            self.queue.set_notify_work_desired(consumer, True)
        return consumer

    def put(self, *bodies: Any, **properties: Any) -> None:
        for body in bodies:
            self.queue.put(Message(body, **properties))

    def got(self, owner: object) -> Entry:
        entry = self.queue.get(owner)
        assert entry is not None
        return entry

    def pull(self, consumer: QueueConsumer) -> None:
        """What a consumer that was told does: pull until nothing comes. Keeps what it gets."""
        while (entry := self.queue.deliver_single_message(consumer)) is not None:
            self.given.append(entry.message.body)

    def work_off(self) -> list[Any]:
        """Let each consumer pull that was told; then none may be left waiting. All that was given, in order."""
        while self.told:
            self.pull(self.told.pop())
        self.queue.check_invariants()
        return self.given


SELECTORS = pytest.mark.parametrize("selector", [None, lambda message: True], ids=["plain", "with a selector"])


@SELECTORS
@in_every_order
def test_publish_against_interest(run: Run, selector: Any) -> None:
    """A put beside a declaration of interest: one of them sees the other, and the message is delivered."""
    office = Office(run)
    consumer = office.consumer(wants=False, selector=selector)
    run.spawn(office.put, "a")
    run.spawn(office.queue.set_notify_work_desired, consumer, True)
    run.join()
    assert office.work_off() == ["a"]


@SELECTORS
@in_every_order
def test_an_empty_pull_against_publish(run: Run, selector: Any) -> None:
    """A pull that is about to find nothing, beside a put: the message is pulled, or the consumer told again."""
    office = Office(run)
    consumer = office.consumer(selector=selector)
    office.put("a")
    office.told.clear()
    run.spawn(office.pull, consumer)
    run.spawn(office.put, "b")
    run.join()
    assert office.work_off() == ["a", "b"]


@SELECTORS
@in_every_order
def test_loss_of_interest_against_publish(run: Run, selector: Any) -> None:
    """A consumer that loses interest beside a put: another one gets the message."""
    office = Office(run)
    leaving = office.consumer(selector=selector)
    office.consumer()
    run.spawn(office.queue.set_notify_work_desired, leaving, False)
    run.spawn(office.put, "a")
    run.join()
    assert office.work_off() == ["a"]


@SELECTORS
@in_every_order
def test_close_against_delivery(run: Run, selector: Any) -> None:
    """A consumer removed while it pulls: the message is its own to settle, or somebody else gets it."""
    office = Office(run)
    leaving = office.consumer(selector=selector)
    office.put("a")
    office.told.clear()
    office.consumer()
    run.spawn(office.pull, leaving)
    run.spawn(office.queue.remove_consumer, leaving)
    run.join()
    assert office.work_off() == ["a"]


@in_every_order
def test_release_against_ring_eviction(run: Run) -> None:
    """An entry given back beside a put on a full ring: one message too many goes, each is in one place."""
    office = Office(run, overflow=Overflow.RING, max_length=1)
    consumer = office.consumer(wants=False)
    office.put("a")
    entry = office.got("owner")
    run.spawn(office.queue.release, entry, "owner")
    run.spawn(office.put, "b")
    run.join()
    assert office.dead == ["a"]
    office.queue.set_notify_work_desired(consumer, True)
    assert office.work_off() == ["b"]


@SELECTORS
@in_every_order
def test_expiry_against_acquisition(run: Run, selector: Any) -> None:
    """Housekeeping beside a pull at the end of a message's time: delivered or dead-lettered, not both."""
    office = Office(run)
    consumer = office.consumer(selector=selector)
    office.put("a", expiration=5)
    office.told.clear()

    def pass_time() -> None:
        office.clock.advance(5.0)
        office.queue.housekeeping()

    run.spawn(pass_time)
    run.spawn(office.pull, consumer)
    run.join()
    assert sorted(office.work_off() + office.dead) == ["a"]


@in_every_order
def test_delete_against_put(run: Run) -> None:
    """A put beside the deletion of its queue: refused, or dropped with the queue; nothing stays behind."""
    office = Office(run)
    office.consumer()
    put = run.spawn(office.queue.put, Message("a"))
    delete = run.spawn(office.queue.delete)
    run.join()
    assert (put.result is PutOutcome.DELETED) == (delete.result == 0)
    assert len(office.queue) == 0
    assert office.work_off() == []


@in_every_order
def test_purge_against_settlement(run: Run) -> None:
    """A steal beside the owner's acceptance: the entry goes once."""
    office = Office(run)
    office.put("a")
    entry = office.got("owner")
    accepted = run.spawn(office.queue.accept, entry, "owner")
    stolen = run.spawn(lambda: office.queue.delete_messages(steal=True))
    run.join()
    assert accepted.result + stolen.result == 1
    assert len(office.queue) == 0
    office.queue.check_invariants()


@SELECTORS
@in_every_order
def test_two_consumers_share_what_is_there(run: Run, selector: Any) -> None:
    """Two consumers pulling beside a put: every message is given once."""
    office = Office(run)
    one, two = office.consumer(selector=selector), office.consumer()
    office.put("a")
    office.told.clear()
    run.spawn(office.pull, one)
    run.spawn(office.pull, two)
    run.spawn(office.put, "b")
    run.join()
    assert sorted(office.work_off()) == ["a", "b"]


@in_every_order
def test_a_release_beside_an_empty_pull(run: Run) -> None:
    """What is given back while another consumer is about to find nothing is found, or told."""
    office = Office(run)
    office.put("a")
    entry = office.got("owner")
    consumer = office.consumer()
    run.spawn(office.queue.release, entry, "owner")
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() == ["a"]


@in_every_order
def test_credit_that_ends_beside_credit_that_comes_back(run: Run) -> None:
    """The last credit is spent while a settlement restores some: the consumer is not left asleep."""
    office = Office(run)
    credit = Credit(1)
    consumer = office.consumer(credit=credit)
    office.put("a", "b")
    office.told.clear()
    first = office.queue.deliver_single_message(consumer)
    assert first is not None

    def settle() -> None:
        office.queue.accept(first, consumer)
        if credit.settled(1, first.size):
            office.queue.credit_changed(consumer)

    run.spawn(settle)
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() == ["b"]


@in_every_order
def test_a_higher_consumer_that_loses_interest_beside_the_lower_ones_pull(run: Run) -> None:
    """The lower consumer gets the message, at once or by being told."""
    office = Office(run)
    high, low = office.consumer(priority=1), office.consumer()
    office.put("a")
    office.told.clear()
    run.spawn(office.queue.set_notify_work_desired, high, False)
    run.spawn(office.pull, low)
    run.join()
    assert office.work_off() == ["a"]


@in_every_order
def test_a_group_that_is_freed_beside_the_pull_of_who_waits_for_it(run: Run) -> None:
    """The settlement that frees a group and the pull that is refused by it: the group's next message is told."""
    office = Office(run, groups=MessageGroups.SHARED, group_key="g")
    office.put("a", "b", headers={"g": "group"})
    entry = office.got("owner")
    consumer = office.consumer()
    run.spawn(office.queue.accept, entry, "owner")
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() == ["b"]


@in_every_order
def test_an_immediate_put_against_the_only_consumer_going(run: Run) -> None:
    """Immediate beside a removal: kept for the consumer before it went, or refused; never both, never lost."""
    office = Office(run)
    consumer = office.consumer()
    put = run.spawn(lambda: office.queue.put(Message("a"), immediate=True))
    run.spawn(office.queue.remove_consumer, consumer)
    run.join()
    assert len(office.queue) == put.result.accepted


@in_every_order
def test_a_move_against_a_pull(run: Run) -> None:
    """A message that is moved while a consumer pulls is given to it or is on the other queue, not both."""
    office, target = Office(run), Office(run)
    consumer = office.consumer()
    office.put("a")
    office.told.clear()
    run.spawn(office.queue.move_messages, target.queue)
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() + [message.body for message in target.queue.browse()] == ["a"]


@in_every_order
def test_a_refused_move_against_a_consumer_that_waits(run: Run) -> None:
    """A message that the target refuses comes back, and the consumer that found nothing meanwhile is told."""
    office, target = Office(run), Office(run, overflow=Overflow.REJECT, max_length=0)
    consumer = office.consumer()
    office.put("a")
    office.told.clear()
    run.spawn(office.queue.move_messages, target.queue)
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() == ["a"]


@in_every_order
def test_a_change_of_priority_against_a_pull(run: Run) -> None:
    """The message is given once, with its old priority or its new one."""
    office = Office(run, kind=QueueKind.PRIORITY, max_priority=9)
    consumer = office.consumer(selector=lambda message: True)
    office.put("a", priority=1)
    office.told.clear()
    run.spawn(office.queue.change_priority, 5)
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() == ["a"]


@in_every_order
def test_the_end_of_a_hold_against_an_empty_pull(run: Run) -> None:
    """A delayed message whose time comes while a consumer is about to find nothing is found, or told."""
    office = Office(run)
    consumer = office.consumer()
    office.put("a", delay=5)
    office.clock.advance(5.0)
    run.spawn(office.queue.housekeeping)
    run.spawn(office.pull, consumer)
    run.join()
    assert office.work_off() == ["a"]


def with_targets(most: int = 2) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As well with the multi-queue that a target waits on, and at most so many surprises: one but in long runs."""
    modules = [_queue_module, _credit, _target, _received]
    options = {"modules": modules, "preemptions": surprises(most), "max_schedules": 200_000}
    return explored(lambda scenario: explore(scenario, **options))


@with_targets()
def test_a_target_that_waits_is_given_what_is_put(run: Run) -> None:
    """A blocked `get` beside a put into one of its queues: it returns with the message, whenever it began to wait."""
    queue = BrokerQueue("q")
    target = ConsumerTarget()
    target.consume(queue)
    get = run.spawn(target.get)
    run.spawn(queue.put, Message("a"))
    run.join()
    assert get.result.message.body == "a"


@with_targets()
def test_a_target_misses_nothing_that_comes_while_it_pulls(run: Run) -> None:
    """A put beside the pull that takes the message before it: a second `get` returns."""
    queue = BrokerQueue("q")
    target = ConsumerTarget()
    target.consume(queue)
    queue.put(Message("a"))
    get = run.spawn(lambda: [target.get().message.body, target.get().message.body])
    run.spawn(queue.put, Message("b"))
    run.join()
    assert get.result == ["a", "b"]


@with_targets(most=1)
def test_two_threads_may_wait_on_one_target(run: Run) -> None:
    """Two blocked `get`s and two puts: each gets one, and they never pull for one consumer at once."""
    queue = BrokerQueue("q")
    target = ConsumerTarget()
    target.consume(queue, selector=lambda message: True)
    gets = [run.spawn(target.get), run.spawn(target.get)]
    queue.put(Message("a"))
    run.spawn(queue.put, Message("b"))
    run.join()
    assert sorted(get.result.message.body for get in gets) == ["a", "b"]


@with_targets()
def test_closing_a_target_beside_its_pull_loses_nothing(run: Run) -> None:
    """A `get` beside `close`: it returns a delivery that is back on the queue, or is told of the end."""
    queue = BrokerQueue("q")
    target = ConsumerTarget()
    target.consume(queue)
    queue.put(Message("a"))
    run.spawn_expecting(ShutDown, target.get)
    run.spawn(target.close)
    run.join()
    assert [message.body for message in queue.browse()] == ["a"]
    queue.check_invariants()


@with_targets()
def test_a_settlement_beside_the_end_of_the_credit_keeps_the_target_going(run: Run) -> None:
    """Prefetch 1, two messages: settling the first beside a blocked `get` lets the second through."""
    queue = BrokerQueue("q")
    target = ConsumerTarget(credit=Credit(1))
    target.consume(queue)
    queue.put(Message("a"))
    queue.put(Message("b"))
    first = target.get()
    get = run.spawn(target.get)
    run.spawn(target.accept, first)
    run.join()
    assert get.result.message.body == "b"
