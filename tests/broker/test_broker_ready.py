"""The consumers of a target in turns: nothing that is notified is without a turn, and no thread waits beside one."""

from __future__ import annotations

from broker_parts_support import ReadyConsumers
from broker_parts_support import target as _target
from explorations_support import explored, surprises

from multiqueue.broker import BrokerQueue, QueueConsumer
from multiqueue.errors import Empty, ShutDown
from multiqueue.testing import Run, explore


def consumers(count: int) -> list[QueueConsumer]:
    queue = BrokerQueue("q")
    return [queue.add_consumer(lambda consumer: None) for _ in range(count)]


def made_ready(*members: QueueConsumer) -> ReadyConsumers:
    ready = ReadyConsumers("t")
    for consumer in members:
        ready.add(consumer)
    return ready


in_orders = explored(
    lambda scenario: explore(scenario, modules=[_target], preemptions=surprises(2), max_schedules=200_000)
)


def test_consumers_take_turns_in_the_order_of_their_notifications() -> None:
    """A consumer has one place in the line, however often it is notified, and goes to its end after a turn."""
    one, two = consumers(2)
    ready = made_ready(one, two)
    assert [ready.notify(two), ready.notify(one), ready.notify(two)] == [True, True, False]
    assert ready.poll() is two
    assert ready.end_turn(two, goes_on=True)
    assert [ready.poll(), ready.poll(), ready.poll()] == [one, two, None]


def test_a_notification_in_a_turn_brings_another_turn() -> None:
    """A turn that ends idle although its consumer was notified meanwhile is followed by another."""
    (consumer,) = consumers(1)
    ready = made_ready(consumer)
    ready.notify(consumer)
    assert ready.poll() is consumer
    assert not ready.notify(consumer)
    assert ready.poll() is None, "turns of one consumer never overlap"
    assert ready.end_turn(consumer, goes_on=False)
    assert ready.poll() is consumer
    assert not ready.end_turn(consumer, goes_on=False)
    assert ready.poll() is None


def test_a_consumer_that_is_gone_has_no_turn() -> None:
    """Removal ends a consumer wherever it is: idle, ready or in its turn."""
    idle, waiting, running = consumers(3)
    ready = made_ready(idle, waiting, running)
    ready.notify(running)
    assert ready.poll() is running
    ready.notify(waiting)
    for consumer in (idle, waiting, running, running):
        ready.remove(consumer)
    assert not any([ready.notify(idle), ready.notify(waiting), ready.end_turn(running, goes_on=True)])
    assert ready.poll() is None


@in_orders
def test_a_thread_that_begins_to_wait_beside_a_notification_has_the_turn(run: Run) -> None:
    """A wait beside a notification: the thread is woken, or never parks."""
    (consumer,) = consumers(1)
    ready = made_ready(consumer)
    taken = run.spawn(ready.take, None)
    run.spawn(ready.notify, consumer)
    run.join()
    assert taken.result is consumer


@in_orders
def test_a_chosen_thread_whose_time_is_up_leaves_the_turn_to_another(run: Run) -> None:
    """Two threads wait, one of them for a second only: whichever is chosen, the other has the next turn."""
    (consumer,) = consumers(1)
    ready = made_ready(consumer)

    def hurried() -> None:
        try:
            ready.take(_target.monotonic() + 1.0)
        except Empty:
            return
        ready.end_turn(consumer, goes_on=True)

    run.spawn(hurried)
    patient = run.spawn(ready.take, None)
    run.spawn(ready.notify, consumer)
    run.join()
    assert patient.result is consumer


@in_orders
def test_two_threads_and_two_turns(run: Run) -> None:
    """A turn that goes on wakes a thread that waits, while the first thread goes on to something else."""
    (consumer,) = consumers(1)
    ready = made_ready(consumer)

    def turn() -> None:
        ready.end_turn(ready.take(None), goes_on=True)

    run.spawn(turn)
    run.spawn(turn)
    run.spawn(ready.notify, consumer)
    run.join()
    assert ready.poll() is consumer


@in_orders
def test_closing_tells_every_thread_that_waits(run: Run) -> None:
    """Close beside two waits: both end, whenever they began."""
    ready = made_ready(*consumers(1))
    for _ in range(2):
        run.spawn_expecting(ShutDown, ready.take, None)
    run.spawn(ready.close)
    run.join()
