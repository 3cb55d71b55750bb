"""Consumer targets over several queues, and the scheduler that runs their callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker_kernel_support import Bench
from broker_parts_support import ResidentEntries

from multiqueue import Empty, ShutDown
from multiqueue.broker import (
    BrokerQueue,
    ConsumerTarget,
    Credit,
    Entry,
    Message,
    Received,
    Scheduler,
    Settler,
    Subscription,
    VirtualHost,
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
    assert second.entry.queue is bench.queue


def test_a_browser_has_seen_a_message_when_it_was_given_it() -> None:
    """While its selector is asked it has not: a queue that begins to page in that time offers it the message again."""
    queue = filled("q", "a")
    entries = queue.life.source
    assert isinstance(entries, ResidentEntries)
    seen: list[bool] = []

    def selector(message: Message) -> bool:
        seen.append(entries.has_seen(browser)(0))
        return True

    browser = queue.add_consumer(lambda _: None, browse=True, selector=selector)
    queue.set_notify_work_desired(browser, True)
    assert queue.deliver_single_message(browser) is not None
    assert (seen, entries.has_seen(browser)(0)) == ([False], True)


def test_a_settler_asks_a_browser_for_nothing() -> None:
    """A browser has not taken what it was shown: accepting that changes nothing, and is no error."""
    queue = filled("q", "a")
    browser = queue.add_consumer(lambda _: None, browse=True)
    queue.set_notify_work_desired(browser, True)
    entry = queue.deliver_single_message(browser)
    assert entry is not None
    Received(Settler(), browser, entry).accept()
    assert len(queue) == 1


# -- the scheduler


@pytest.fixture
def host() -> Iterator[VirtualHost]:
    with Scheduler(3) as scheduler:
        host = VirtualHost(scheduler=scheduler)
        yield host
        host.close()


def declared(host: VirtualHost, name: str, *bodies: object) -> BrokerQueue:
    queue = host.declare_queue(name)
    for body in bodies:
        queue.put(Message(body))
    return queue


class Collector:
    """A callback that keeps what it gets and can be waited for."""

    def __init__(self, expected: int, then: Callable[[Received], object] = lambda received: None) -> None:
        self.bodies: list[object] = []
        self.done = threading.Event()
        self._expected = expected
        self._then = then
        self._inside = threading.Lock()
        self.overlapped = False

    def __call__(self, received: Received) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlapped = True
            return
        try:
            self.bodies.append(received.body)
            self._then(received)
        finally:
            self._inside.release()
        if len(self.bodies) >= self._expected:
            self.done.set()


def test_callbacks_of_a_subscription_never_overlap_and_keep_order(host: VirtualHost) -> None:
    """Three threads, one subscription, two queues: one callback at a time, each queue in order."""
    queues = [declared(host, name) for name in "ab"]
    collector = Collector(2000)
    host.consume(list("ab"), collector, auto_accept=True)
    for number in range(1000):
        for queue in queues:
            queue.put(Message((queue.name, number)))
    assert collector.done.wait(PATIENCE)
    assert collector.overlapped is False
    for name in "ab":
        assert [body for body in collector.bodies if body[0] == name] == [(name, n) for n in range(1000)]  # type: ignore[index]


def test_a_subscription_that_runs_gets_no_second_thread() -> None:
    """While its callback runs, the other thread passes over its next message and serves another subscription."""
    entered, leave, served = threading.Event(), threading.Event(), threading.Event()

    def linger(received: Received) -> None:
        entered.set()
        leave.wait(PATIENCE)

    with Scheduler(2) as scheduler:
        host = VirtualHost(scheduler=scheduler)
        busy, other = declared(host, "busy", 0), declared(host, "other")
        collector = Collector(2, linger)
        host.consume("busy", collector)
        host.consume("other", lambda received: served.set())
        assert entered.wait(PATIENCE)
        busy.put(Message(1))
        other.put(Message(2))
        assert served.wait(PATIENCE)
        leave.set()
        assert collector.done.wait(PATIENCE)
        assert collector.overlapped is False
        host.close()


def test_subscriptions_take_turns() -> None:
    """A subscription with much work, on the only thread, does not keep another one waiting."""
    with Scheduler(1) as scheduler:
        host = VirtualHost(scheduler=scheduler)
        order: list[object] = []
        gate, done = threading.Event(), threading.Event()

        def collect(received: Received) -> None:
            gate.wait(PATIENCE)
            order.append(received.body)
            if len(order) == 203:
                done.set()

        declared(host, "many", *range(200))
        declared(host, "few", "x", "y", "z")
        host.consume("many", collect, auto_accept=True)
        host.consume("few", collect, auto_accept=True)
        gate.set()
        assert done.wait(PATIENCE)
        assert order[-1] == 199
        assert order.index("z") <= 34
        host.close()


def test_a_failing_callback_is_reported_and_the_next_message_comes(host: VirtualHost) -> None:
    """The handler gets message and error; the message is still the subscription's to settle."""
    failures: list[tuple[object, str]] = []

    def fail_first(received: Received) -> None:
        if received.body == 0:
            raise ValueError("no zeros")

    declared(host, "q", 0, 1)
    collector = Collector(2, fail_first)
    subscription = host.consume(
        "q", collector, on_error=lambda received, error: failures.append((received.body, str(error)))
    )
    assert collector.done.wait(PATIENCE)
    assert failures == [(0, "no zeros")]
    assert [received.body for received in subscription.unsettled()] == [0, 1]


def test_a_closed_subscription_runs_no_callback_any_more(host: VirtualHost) -> None:
    """`close` waits for the running callback; what it had not settled is back on the queue."""
    queue = declared(host, "q", *range(10))
    entered, leave = threading.Event(), threading.Event()

    def block(received: Received) -> None:
        entered.set()
        leave.wait(PATIENCE)

    collector = Collector(1, block)
    subscription = host.consume("q", collector)
    assert entered.wait(PATIENCE)
    closing = threading.Thread(target=subscription.close)
    closing.start()
    wait_until_blocked(closing)  # or the next callback might run before the close begins
    leave.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert collector.bodies == [0]
    assert [message.body for message in queue.browse()] == list(range(10))


def test_a_callback_may_close_its_own_subscription(host: VirtualHost) -> None:
    """Closing from inside does not wait for itself."""
    queue = declared(host, "q", 0, 1, 2)
    collector = Collector(1, lambda received: host.subscriptions()[0].close())
    host.consume("q", collector)
    assert collector.done.wait(PATIENCE)
    assert len(queue) == 3


def test_a_callback_may_publish_and_settle(host: VirtualHost) -> None:
    """Callbacks run without any lock of the broker."""
    source, sink = declared(host, "source", *range(50)), BrokerQueue("sink")

    def forward(received: Received) -> None:
        sink.put(received.message)
        received.accept()

    collector = Collector(50, forward)
    subscription = host.consume("source", collector, prefetch=2)
    assert collector.done.wait(PATIENCE)
    assert len(sink) == 50
    subscription.close()
    assert len(source) == 0


def test_a_closed_scheduler_has_no_threads_and_takes_no_subscriptions() -> None:
    """`close` joins the threads; a second close is harmless; a new subscription is refused."""
    scheduler = Scheduler(2, name="short-lived")
    host = VirtualHost(scheduler=scheduler)
    declared(host, "q")
    scheduler.close()
    scheduler.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("short-lived")]
    with pytest.raises(ShutDown, match="short-lived"):
        host.consume("q", print)
    assert not host.subscriptions()
    with pytest.raises(ValueError, match="at least 1"):
        Scheduler(0)


def test_callbacks_may_close_each_others_subscriptions(host: VirtualHost) -> None:
    """Two callbacks, each closing the other's subscription while both run: neither waits for ever."""
    both = threading.Barrier(2)
    subscriptions: dict[str, Subscription] = {}

    def close_other(received: Received) -> None:
        both.wait(PATIENCE)
        subscriptions["b" if received.queue == "a" else "a"].close()

    collectors = []
    for name in "ab":
        collectors.append(Collector(1, close_other))
        subscriptions[name] = host.consume(declared(host, name).name, collectors[-1])
    for name in "ab":
        host.queue(name).put(Message(0))
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
