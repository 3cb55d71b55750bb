"""Consumer targets over several queues, and the scheduler that runs their callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker_kernel_support import Bench

from multiqueue import Empty, ShutDown
from multiqueue.broker import (
    BrokerQueue,
    Connection,
    ConsumerTarget,
    Credit,
    Delivery,
    Entry,
    Message,
    Scheduler,
)
from multiqueue.testing import PATIENCE, wait_until_blocked


def drain(target: ConsumerTarget) -> list[object]:
    """The bodies of all that can be pulled now."""
    bodies = []
    while (delivery := target.pull()) is not None:
        bodies.append(delivery.message.body)
    return bodies


def filled(name: str, *bodies: object) -> BrokerQueue:
    queue = BrokerQueue(name)
    for body in bodies:
        queue.put(Message(body))
    return queue


# -- targets


def test_a_target_takes_from_its_queues_in_turn() -> None:
    """Round robin over the queues that have something, from call to call."""
    target = ConsumerTarget()
    for queue in (filled("a", "a1", "a2", "a3"), filled("b", "b1", "b2")):
        target.consume(queue)
    assert drain(target) == ["a1", "b1", "a2", "b2", "a3"]


def test_a_thread_blocks_on_all_queues_of_a_target() -> None:
    """`get` returns what arrives in any queue, and raises Empty when nothing does."""
    target = ConsumerTarget("t")
    queues = [BrokerQueue(name) for name in "abc"]
    for queue in queues:
        target.consume(queue)
    with pytest.raises(Empty, match="nothing delivered after 0 s"):
        target.get(timeout=0)
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(target.get(PATIENCE).message.body))
    waiter.start()
    queues[1].put(Message("b1"))
    waiter.join(PATIENCE)
    assert got == ["b1"]


def test_credit_is_shared_by_the_queues_of_a_target() -> None:
    """A prefetch of 3 is 3 over all queues; settling lets as many more through."""
    target = ConsumerTarget(credit=Credit(3))
    for queue in (filled("a", 1, 2, 3), filled("b", 4, 5, 6)):
        target.consume(queue)
    assert drain(target) == [1, 4, 2]
    assert drain(target) == []
    target.accept(*target.unsettled()[:2])
    assert len(drain(target)) == 2
    target.set_window(5)
    assert len(drain(target)) == 1
    target.credit.check_invariants()


def test_a_suspended_target_leaves_messages_to_others() -> None:
    """Suspension wakes the other consumers; resumption finds what is left."""
    queue = BrokerQueue("q")
    one, two = ConsumerTarget(), ConsumerTarget()
    one.consume(queue, priority=1)
    two.consume(queue)
    queue.put(Message("a"))
    assert two.pull() is None
    one.suspend()
    assert drain(two) == ["a"]
    two.close()
    assert drain(one) == []
    one.resume()
    assert drain(one) == ["a"], "closing gave it back"


def test_closing_gives_back_in_order_and_ends_the_waiting() -> None:
    """What was not settled returns to its places; a blocked `get` is told; late deliveries go back."""
    queue = filled("q", *"abcd")
    target = ConsumerTarget()
    target.consume(queue)
    for _ in range(3):
        target.get(0)
    target.accept(target.unsettled()[1])
    target.close()
    target.close()
    assert [message.body for message in queue.browse()] == ["a", "c", "d"]
    with pytest.raises(ShutDown):
        target.get(PATIENCE)
    with pytest.raises(ShutDown):
        target.consume(queue)
    assert queue.consumers() == []
    queue.check_invariants()


def test_a_pull_under_way_when_the_target_closes_gives_its_message_back() -> None:
    """A target closed by a selector, in the middle of a pull: the message is on the queue."""
    queue = filled("q", "a")
    target = ConsumerTarget()

    def selector(message: Message) -> bool:
        target.close()
        return True

    target.consume(queue, selector=selector)
    assert target.pull() is None
    assert [message.body for message in queue.browse()] == ["a"]
    queue.check_invariants()


def test_a_notification_in_the_middle_of_a_pull_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: the token is taken out before the pull: a message that comes behind one that ends it brings it back."""
    queue = filled("q", "first")
    target = ConsumerTarget()
    target.consume(queue)
    deliver = BrokerQueue.deliver_messages

    def put_behind_the_look(queue: BrokerQueue, *asked: Any, **options: Any) -> list[Entry]:
        entries = deliver(queue, *asked, **options)
        if not entries or asked[0].at_end:
            monkeypatch.undo()
            queue.put(Message("behind the look"))
        return entries

    monkeypatch.setattr(BrokerQueue, "deliver_messages", put_behind_the_look)
    assert drain(target) == ["first", "behind the look"]


def test_settling_twice_is_an_error_that_settles_nothing() -> None:
    """A delivery that is not the target's any more stops the whole call."""
    queue = filled("q", "a", "b")
    target = ConsumerTarget("t")
    target.consume(queue)
    first, second = target.get(0), target.get(0)
    target.accept(first)
    with pytest.raises(ValueError, match="is not with target 't'"):
        target.accept(second, first)
    assert target.unsettled() == [second]
    target.reject(second)
    assert len(queue) == 0


def test_a_deleted_queue_leaves_the_target_with_the_others() -> None:
    """The consumer of a deleted queue is gone and told; the other queues go on."""
    gone, stays = filled("gone", 1), filled("stays", 2)
    target = ConsumerTarget()
    told: list[object] = []
    consumer = target.consume(gone, on_cancelled=told.append)
    target.consume(stays)
    gone.delete()
    assert told == [consumer]
    assert drain(target) == [2]
    assert len(target.consumers()) == 1


def test_browsers_and_automatic_acceptance_need_no_settlement() -> None:
    """A browser's credit returns when it settles, and the message stays; automatic acceptance keeps nothing."""
    queue = filled("q", "a", "b")
    browsing, taking = ConsumerTarget(credit=Credit(1)), ConsumerTarget()
    browsing.consume(queue, browse=True)
    assert drain(browsing) == ["a"]
    browsing.accept(*browsing.unsettled())
    assert drain(browsing) == ["b"]
    taking.consume(queue, auto_accept=True)
    assert drain(taking) == ["a", "b"]
    assert taking.unsettled() == []
    assert len(queue) == 0


def test_deliveries_remember_what_they_were() -> None:
    """The redelivered flag and count of a delivery are those of its time."""
    bench = Bench()
    bench.put("a")
    target = ConsumerTarget()
    target.consume(bench.queue)
    first = target.get(0)
    target.release(first)
    second = target.get(0)
    assert (first.redelivered, second.redelivered, second.delivery_count) == (False, True, 2)
    assert second.queue is bench.queue


# -- the scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with Scheduler(3) as running:
        yield running


class Collector:
    """A callback that keeps what it gets and can be waited for."""

    def __init__(self, expected: int, then: Callable[[Delivery], object] = lambda delivery: None) -> None:
        self.bodies: list[object] = []
        self.threads: set[str] = set()
        self.done = threading.Event()
        self._expected = expected
        self._then = then
        self._inside = threading.Lock()
        self.overlapped = False

    def __call__(self, delivery: Delivery) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlapped = True
            return
        try:
            self.bodies.append(delivery.message.body)
            self.threads.add(threading.current_thread().name)
            self._then(delivery)
        finally:
            self._inside.release()
        if len(self.bodies) >= self._expected:
            self.done.set()


def test_callbacks_of_a_connection_never_overlap_and_keep_order(scheduler: Scheduler) -> None:
    """Three threads, one connection, two queues: one callback at a time, each queue in order."""
    queues = [BrokerQueue(name) for name in "ab"]
    collector = Collector(2000)
    session = scheduler.connection("c").session()
    target = session.target(collector)
    for queue in queues:
        target.consume(queue, auto_accept=True)
    for number in range(1000):
        for queue in queues:
            queue.put(Message((queue.name, number)))
    assert collector.done.wait(PATIENCE)
    assert collector.overlapped is False
    for name in "ab":
        assert [body for body in collector.bodies if body[0] == name] == [(name, n) for n in range(1000)]  # type: ignore[index]


def test_sessions_and_targets_take_turns() -> None:
    """One message per target per turn: a target with much work does not keep the others waiting."""
    with Scheduler(1) as scheduler:
        connection = scheduler.connection()
        order: list[object] = []
        done = threading.Event()
        gate = threading.Event()

        def collect(delivery: Delivery) -> None:
            gate.wait(PATIENCE)
            order.append(delivery.message.body)
            if len(order) == 9:
                done.set()

        many, few = connection.session().target(collect), connection.session().target(collect)
        many.consume(filled("many", *range(6)), auto_accept=True)
        few.consume(filled("few", "x", "y", "z"), auto_accept=True)
        gate.set()
        assert done.wait(PATIENCE)
        assert order[-1] == 5
        assert order.index("z") <= 6


def test_a_failing_callback_is_reported_and_the_next_message_comes(scheduler: Scheduler) -> None:
    """The handler gets delivery and error; the delivery is still the target's to settle."""
    failures: list[tuple[object, str]] = []

    def fail_first(delivery: Delivery) -> None:
        if delivery.message.body == 0:
            raise ValueError("no zeros")

    connection = scheduler.connection(
        on_error=lambda delivery, error: failures.append((delivery.message.body, str(error)))
    )
    collector = Collector(2, fail_first)
    target = connection.session().target(collector)
    target.consume(filled("q", 0, 1))
    assert collector.done.wait(PATIENCE)
    assert failures == [(0, "no zeros")]
    assert [delivery.message.body for delivery in target.unsettled()] == [0, 1]


def test_a_closed_connection_runs_no_callback_any_more(scheduler: Scheduler) -> None:
    """`close` waits for the running callback; what it had not settled is back on the queue."""
    queue = filled("q", *range(10))
    entered, leave = threading.Event(), threading.Event()

    def block(delivery: Delivery) -> None:
        entered.set()
        leave.wait(PATIENCE)

    connection = scheduler.connection()
    collector = Collector(1, block)
    connection.session().target(collector).consume(queue)
    assert entered.wait(PATIENCE)
    closing = threading.Thread(target=connection.close)
    closing.start()
    wait_until_blocked(closing)  # or the next callback might run before the close begins
    leave.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert collector.bodies == [0]
    assert [message.body for message in queue.browse()] == list(range(10))
    with pytest.raises(ShutDown):
        connection.session()


def test_a_callback_may_close_its_own_connection(scheduler: Scheduler) -> None:
    """Closing from inside does not wait for itself."""
    connections: list[Connection] = [scheduler.connection()]
    queue = filled("q", 0, 1, 2)
    collector = Collector(1, lambda delivery: connections[0].close())
    connections[0].session().target(collector).consume(queue)
    assert collector.done.wait(PATIENCE)
    assert len(queue) == 3


def test_a_callback_may_publish_and_settle(scheduler: Scheduler) -> None:
    """Callbacks run without any lock of the broker."""
    source, sink = filled("source", *range(50)), BrokerQueue("sink")

    def forward(delivery: Delivery) -> None:
        sink.put(delivery.message)
        target.accept(delivery)

    collector = Collector(50, forward)
    target = scheduler.connection().session().target(collector, credit=Credit(2))
    target.consume(source)
    assert collector.done.wait(PATIENCE)
    assert len(sink) == 50
    target.close()
    assert len(source) == 0


def test_a_closed_scheduler_has_no_threads_and_takes_no_connections() -> None:
    """`close` joins the threads; a second close is harmless; a new connection is refused."""
    scheduler = Scheduler(2, name="short-lived")
    scheduler.close()
    scheduler.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("short-lived")]
    with pytest.raises(ShutDown, match="short-lived"):
        scheduler.connection()
    with pytest.raises(ValueError, match="at least 1"):
        Scheduler(0)


def test_callbacks_may_close_each_others_connections() -> None:
    """Two callbacks, each closing the other's connection while both run: neither waits for ever."""
    with Scheduler(2) as scheduler:
        connections = [scheduler.connection(name) for name in "ab"]
        both = threading.Barrier(2)
        collectors = []
        for own, other in ((0, 1), (1, 0)):

            def close_other(delivery: Delivery, other: int = other) -> None:
                both.wait(PATIENCE)
                connections[other].close()

            collectors.append(Collector(1, close_other))
            connections[own].session().target(collectors[-1]).consume(filled("q", 0))
        assert all(collector.done.wait(PATIENCE) for collector in collectors)


def test_the_limit_of_active_consumers_may_be_more_than_one() -> None:
    """Of three consumers two are active; when one goes the third is."""
    bench = Bench(max_active_consumers=2)
    consumers = [bench.consumer() for _ in range(3)]
    bench.put("a", "b")
    assert [bench.pull(consumer) is not None for consumer in consumers] == [True, True, False]
    bench.put("c")
    bench.queue.remove_consumer(consumers[0])
    assert bench.pull_bodies(consumers[2]) == ["c"]


def test_a_window_does_not_bound_what_is_settled_on_delivery() -> None:
    """Automatic acceptance leaves nothing unsettled, so a prefetch has nothing to count."""
    target = ConsumerTarget(credit=Credit(1))
    target.consume(filled("q", 1, 2, 3), auto_accept=True)
    assert drain(target) == [1, 2, 3]


def test_a_closed_session_makes_no_targets(scheduler: Scheduler) -> None:
    """After `close` a session says so, instead of making targets that no thread runs."""
    session = scheduler.connection().session("s")
    session.close()
    session.close()
    with pytest.raises(ShutDown, match="session 's' is closed"):
        session.target(print)
