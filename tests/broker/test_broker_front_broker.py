"""The broker in process: consuming by callback and by blocking, and a clean end whatever is going on."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from broker_front_support import bodies

from multiqueue.broker import (
    AccessRefused,
    Alert,
    AlertThresholds,
    Broker,
    BrokerClosed,
    BrokerError,
    Getter,
    Message,
    NotAllowed,
    NotFound,
    Overflow,
    PreconditionFailed,
    QueueSettings,
    Received,
    ResourceLocked,
    Selector,
    VirtualHost,
)
from multiqueue.errors import Empty, ShutDown
from multiqueue.store import StoreFailed
from multiqueue.testing import PATIENCE, FakeClock, wait_until_blocked


@pytest.fixture
def broker() -> Iterator[Broker]:
    before = set(threading.enumerate())
    with Broker() as broker:
        yield broker
    assert set(threading.enumerate()) <= before, "the broker left threads behind"


def put(host: VirtualHost, queue: str, *contents: object) -> None:
    for content in contents:
        host.publish(Message(content, routing_key=queue))


class Inbox:
    """A callback that keeps what it receives, and settles it unless told otherwise."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.received: Queue[Received] = Queue()
        self._accepts = accepts

    def __call__(self, received: Received) -> None:
        if self._accepts:
            received.accept()
        self.received.put(received)

    def bodies(self, count: int) -> list[object]:
        return [self.received.get(timeout=PATIENCE).body for _ in range(count)]


def test_a_callback_receives_messages_in_order(broker: Broker) -> None:
    """What is there already and what comes later, once each, in the order of publishing."""
    broker.declare_queue("q")
    put(broker, "q", 1, 2)
    inbox = Inbox()
    subscription = broker.consume("q", inbox)
    put(broker, "q", 3)
    assert inbox.bodies(3) == [1, 2, 3]
    assert subscription.queues == ["q"]
    assert len(broker.queue("q")) == 0


def test_callbacks_of_one_subscription_never_overlap_and_two_subscriptions_run_at_once(broker: Broker) -> None:
    """Two callbacks of two subscriptions meet at a barrier; the second message of one waits for its first."""
    both = threading.Barrier(2, timeout=PATIENCE)
    running: Counter[str] = Counter()
    overlaps: list[str] = []
    done: Queue[object] = Queue()

    def callback(received: Received) -> None:
        running[received.queue] += 1
        if running[received.queue] > 1:
            overlaps.append(received.queue)
        both.wait()
        running[received.queue] -= 1
        received.accept()
        done.put(received.body)

    for name in ("a", "b"):
        broker.declare_queue(name)
        put(broker, name, 1, 2, 3)
        broker.consume(name, callback)
    assert sorted(str(done.get(timeout=PATIENCE)) for _ in range(6)) == ["1", "1", "2", "2", "3", "3"]
    assert overlaps == []


def test_a_callback_may_call_the_broker_as_it_likes(broker: Broker) -> None:
    """It publishes, declares, gets, consumes, and closes its own subscription: no lock is held (broker-front 8)."""
    broker.declare_queue("q")
    inbox = Inbox()

    def callback(received: Received) -> None:
        broker.declare_queue("answers")
        put(broker, "answers", "first", "second")
        got = broker.get("answers", auto_accept=True)
        assert got is not None
        assert got.body == "first"
        broker.consume("answers", inbox)
        received.accept()
        subscription.close()

    subscription = broker.consume("q", callback)
    put(broker, "q", 1)
    assert inbox.bodies(1) == ["second"]
    put(broker, "q", 2)
    assert bodies(broker.queue("q")) == [2]


def test_a_callback_that_raises_is_reported_and_the_next_message_follows(broker: Broker) -> None:
    """The handler gets the message, still unsettled, and the error."""
    broker.declare_queue("q")
    failures: Queue[tuple[Received, Exception]] = Queue()
    inbox = Inbox()

    def callback(received: Received) -> None:
        if received.body == "bad":
            raise ZeroDivisionError("bad")
        inbox(received)

    broker.consume("q", callback, on_error=lambda received, error: failures.put((received, error)))
    put(broker, "q", "bad", "good")
    received, error = failures.get(timeout=PATIENCE)
    assert (received.body, str(error)) == ("bad", "bad")
    assert inbox.bodies(1) == ["good"]
    received.reject()
    assert len(broker.queue("q")) == 0


def test_at_most_prefetch_messages_are_unsettled(broker: Broker) -> None:
    """The third message comes when one of the first two is settled, from whatever thread."""
    broker.declare_queue("q")
    inbox = Inbox(accepts=False)
    subscription = broker.consume("q", inbox, prefetch=2)
    put(broker, "q", 1, 2, 3)
    first, second = (inbox.received.get(timeout=PATIENCE) for _ in range(2))
    assert [received.body for received in subscription.unsettled()] == [1, 2]
    assert bodies(broker.queue("q")) == [3]
    second.accept()
    assert inbox.bodies(1) == [3]
    first.accept()
    assert [received.body for received in subscription.unsettled()] == [3]


def test_a_suspended_subscription_leaves_messages_to_others(broker: Broker) -> None:
    """Between `suspend` and `resume` everything goes to the other subscription."""
    broker.declare_queue("q")
    idle, busy = Inbox(), Inbox()
    suspended = broker.consume("q", idle)
    suspended.suspend()
    other = broker.consume("q", busy)
    put(broker, "q", 1, 2, 3)
    assert busy.bodies(3) == [1, 2, 3]
    other.close()
    put(broker, "q", 4)
    suspended.resume()
    assert idle.bodies(1) == [4]


def test_closing_a_subscription_waits_for_its_callback_and_gives_the_rest_back(broker: Broker) -> None:
    """The callback's own message is finished and settled; unsettled ones return to their places, flagged.

    (broker-front 7)
    """
    broker.declare_queue("q")
    entered, proceed, closed = threading.Event(), threading.Event(), threading.Event()

    def callback(received: Received) -> None:
        if received.body == 1:
            return  # never settled
        entered.set()
        assert proceed.wait(PATIENCE)
        received.accept()

    subscription = broker.consume("q", callback)
    put(broker, "q", 1, 2, 3)
    assert entered.wait(PATIENCE)

    def close() -> None:
        subscription.close()
        closed.set()

    closing = threading.Thread(target=close, name="closes")
    closing.start()
    wait_until_blocked(lambda: not subscription.target.credit.is_open)
    assert not closed.is_set()
    proceed.set()
    closing.join(PATIENCE)
    assert closed.is_set()
    assert subscription.is_closed
    assert bodies(broker.queue("q")) == [1, 3]
    first, third = broker.get("q"), broker.get("q")
    assert first is not None
    assert third is not None
    assert (first.redelivered, first.delivery_count, third.redelivered) == (True, 2, False)


def test_a_getter_settles_a_message_once_that_one_call_names_twice(broker: Broker) -> None:
    """What a getter is given twice in one call leaves its queue once; it may be settled no more after that."""
    broker.declare_queue("q")
    put(broker, "q", "only")
    getter = Getter()
    received = getter.get(broker.queue("q"))
    assert received is not None
    getter.accept(received, received)
    assert len(broker.queue("q")) == 0
    with pytest.raises(ValueError, match="settled before"):
        getter.reject(received)


def test_a_thread_blocks_on_several_queues_and_is_served_from_each_in_turn(broker: Broker) -> None:
    """A queue with many messages does not keep the others waiting."""
    for name in ("a", "b"):
        broker.declare_queue(name)
    put(broker, "a", "a1", "a2", "a3")
    put(broker, "b", "b1")
    with broker.subscribe(["a", "b"]) as subscription:
        received = [subscription.get(timeout=PATIENCE) for _ in range(4)]
        assert [each.body for each in received] == ["a1", "b1", "a2", "a3"]
        assert [each.queue for each in received] == ["a", "b", "a", "a"]
        with pytest.raises(Empty, match="nothing delivered"):
            subscription.get(timeout=0.0)
    assert bodies(broker.queue("a")) == ["a1", "a2", "a3"]


def test_iterating_ends_when_the_last_queue_is_deleted(broker: Broker) -> None:
    """A worker's loop ends by itself; what it has in hand when its queue goes can be settled without error."""
    for name in ("a", "b"):
        broker.declare_queue(name)
    put(broker, "a", 1)
    put(broker, "b", 2)
    seen: list[object] = []
    for received in broker.subscribe(["a", "b"]):
        seen.append(received.body)
        broker.delete_queue(received.queue)
        received.accept()
    assert sorted(map(str, seen)) == ["1", "2"]


def test_a_queue_that_goes_while_a_subscription_begins_does_not_end_it(broker: Broker) -> None:
    """It consumes from the others, by either verb; it is closed if there are none."""

    def names(*others: str) -> Iterator[str]:
        broker.declare_queue("gone")
        yield "gone"
        broker.delete_queue("gone")
        yield from others

    broker.declare_queue("here")
    put(broker, "here", 1, 2)
    seen: Queue[object] = Queue()
    with broker.subscribe(names("here"), prefetch=1) as subscription:
        assert subscription.queues == ["here"]
        assert subscription.get(timeout=PATIENCE).body == 1
        with broker.consume(names("here"), lambda received: seen.put(received.body), prefetch=1):
            assert seen.get(timeout=PATIENCE) == 2
    assert broker.subscribe(names()).is_closed


def test_a_blocked_thread_is_told_when_the_broker_closes() -> None:
    """Ten threads that wait for messages end with the broker, and so do its own."""
    broker = Broker()
    broker.declare_queue("q")
    ended: Queue[str] = Queue()

    def wait() -> None:
        with pytest.raises(ShutDown):
            broker.subscribe("q").get()
        ended.put("by shutdown")

    threads = [threading.Thread(target=wait, name=f"waits-{n}") for n in range(10)]
    for thread in threads:
        thread.start()
    wait_until_blocked(lambda: len(broker.queue("q").consumers()) == 10)
    broker.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert ended.qsize() == 10
    broker.close()


def test_a_callback_may_close_the_broker() -> None:
    """It is not waited for by itself; everything else is closed when `close` returns."""
    broker = Broker()
    broker.declare_queue("q")
    closed = threading.Event()

    def callback(received: Received) -> None:
        broker.close()
        closed.set()

    broker.consume("q", callback)
    put(broker, "q", 1)
    assert closed.wait(PATIENCE)
    assert broker.is_closed
    broker._scheduler_threads.close()  # joins the thread that the callback ran on


def test_two_callbacks_that_both_close_the_broker_do_not_wait_for_each_other() -> None:
    """Nor does an alert's handler that closes it on the housekeeping thread meanwhile."""
    everybody = threading.Barrier(3, timeout=PATIENCE)
    closed: Queue[str] = Queue()
    clock = FakeClock()

    def close(by: object) -> None:
        everybody.wait()
        subject.close()
        closed.put(str(type(by).__name__))

    subject = Broker(threads=2, clock=clock, housekeeping_interval=0.001, on_alert=close)
    aging = QueueSettings(alerts=AlertThresholds(age=60.0))
    subject.declare_queue("aging", settings=aging)
    put(subject, "aging", 0)
    for name in ("a", "b"):
        subject.declare_queue(name)
        subject.consume(name, close)
        put(subject, name, 1)
    clock.advance(60)
    assert sorted(closed.get(timeout=PATIENCE) for _ in range(3)) == ["Alert", "Received", "Received"]
    subject.close()


def test_closing_waits_for_a_stuck_callback_only_as_long_as_it_is_told(broker: Broker) -> None:
    """The broker is closed after the timeout; what the late callback then settles is refused."""
    broker.declare_queue("q")
    entered, proceed = threading.Event(), threading.Event()
    outcome: Queue[str] = Queue()

    def callback(received: Received) -> None:
        entered.set()
        assert proceed.wait(PATIENCE)
        try:
            received.accept()
        except ValueError:
            outcome.put("refused")
        else:
            outcome.put("accepted")

    subscription = broker.consume("q", callback)
    put(broker, "q", 1)
    assert entered.wait(PATIENCE)
    subscription.close(timeout=0.0)
    assert bodies(broker.queue("q")) == [1]
    proceed.set()
    assert outcome.get(timeout=PATIENCE) == "refused"


def test_closing_with_messages_in_flight_is_clean(broker: Broker) -> None:
    """A callback that is at work when the broker closes can still settle, and no error is reported."""
    broker.declare_queue("q")
    entered, proceed = threading.Event(), threading.Event()
    failures: list[Exception] = []
    outcome: Queue[str] = Queue()

    def callback(received: Received) -> None:
        entered.set()
        assert proceed.wait(PATIENCE)
        received.accept()
        outcome.put("settled")

    broker.consume("q", callback, on_error=lambda received, error: failures.append(error))
    put(broker, "q", 1, 2, 3)
    assert entered.wait(PATIENCE)
    closing = threading.Thread(target=broker.close, name="closes")
    closing.start()
    wait_until_blocked(closing)  # or the next callback might run before the subscription's close begins
    with pytest.raises(BrokerClosed):
        put(broker, "q", 4)
    proceed.set()
    closing.join(PATIENCE)
    assert outcome.get(timeout=PATIENCE) == "settled"
    assert (outcome.qsize(), failures) == (0, [])


def test_a_message_that_was_got_is_settled_once(broker: Broker) -> None:
    """Accepted it is gone, released it is back at its place, and a second settling is refused."""
    broker.declare_queue("q")
    put(broker, "q", 1, 2)
    first, second = broker.get("q"), broker.get("q")
    assert first is not None
    assert second is not None
    assert broker.get("q") is None
    first.release()
    second.accept()
    for settle in (first.accept, first.release, second.reject):
        with pytest.raises(ValueError, match="was settled before"):
            settle()
    again = broker.get("q", auto_accept=True)
    assert again is not None
    assert (again.body, again.redelivered, len(broker.queue("q"))) == (1, True, 0)


def test_a_selector_as_text_or_predicate_chooses_messages(broker: Broker) -> None:
    """Two consumers share a queue by what their selectors say; the rest stays."""
    broker.declare_queue("q")
    for amount in (5, 15, 25):
        broker.publish(Message(amount, routing_key="q", headers={"amount": amount}))
    with (
        broker.subscribe("q", selector="amount BETWEEN 10 AND 20") as text,
        broker.subscribe("q", selector=lambda message: message.headers["amount"] == 25) as predicate,
    ):
        assert (predicate.get(timeout=PATIENCE).body, text.get(timeout=PATIENCE).body) == (25, 15)
        assert bodies(broker.queue("q")) == [5]


def test_a_predicate_that_is_false_as_an_object_chooses(broker: Broker) -> None:
    """Such as a list of wanted amounts, empty yet: it is a selector, and not none."""

    class Wanted(list[int]):
        def __call__(self, message: Message) -> bool:
            return message.body in self

    broker.declare_queue("q")
    put(broker, "q", 1, 2)
    with broker.subscribe("q", selector=(wanted := Wanted())) as subscription:
        with pytest.raises(Empty):
            subscription.get(timeout=0)
        wanted.append(3)
        put(broker, "q", 3)
        assert subscription.get(timeout=PATIENCE).body == 3
    assert bodies(broker.queue("q")) == [1, 2, 3]


def test_a_browser_sees_messages_and_leaves_them(broker: Broker) -> None:
    """A live queue can be watched: its messages are still there for those who consume."""
    broker.declare_queue("q")
    put(broker, "q", 1, 2)
    with broker.subscribe("q", browse=True) as browser:
        assert [browser.get(timeout=PATIENCE).body for _ in range(2)] == [1, 2]
        put(broker, "q", 3)
        assert browser.get(timeout=PATIENCE).body == 3
    assert bodies(broker.queue("q")) == [1, 2, 3]


def test_a_higher_priority_is_served_first_and_exclusive_use_excludes(broker: Broker) -> None:
    """The consumer of lower priority gets what the other one has no credit for; no consumer joins an exclusive one."""
    broker.declare_queue("q")
    low, high = Inbox(accepts=False), Inbox(accepts=False)
    broker.consume("q", low, priority=-1)
    preferred = broker.consume("q", high, priority=5, prefetch=2)
    put(broker, "q", 1, 2, 3)
    assert (high.bodies(2), low.bodies(1)) == ([1, 2], [3])
    with pytest.raises(AccessRefused, match="exclusive"):
        broker.subscribe("q", exclusive=True)
    preferred.close()
    broker.declare_queue("alone")
    broker.consume("alone", low, exclusive=True)
    with pytest.raises(AccessRefused, match="exclusive"):
        broker.consume("alone", high)


def test_a_consumer_takes_rabbitmqs_arguments(broker: Broker) -> None:
    """`x-priority` and a selector among the arguments mean what the keywords mean; a wrong one is refused."""
    broker.declare_queue("q")
    arguments = {"x-priority": 3, "x-filter-jms-selector": "region = 'eu'"}
    with broker.subscribe("q", arguments=arguments), broker.subscribe("q", priority=1, arguments={"x-priority": 7}):
        consumers = broker.queue("q").consumers()
        assert [(each.priority, each.selector) for each in consumers] == [(3, Selector("region = 'eu'")), (1, None)]
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-priority' for a consumer in vhost '/'"):
        broker.subscribe("q", arguments={"x-priority": "high"})
    assert broker.queue("q").consumers() == []


def test_no_local_passes_over_what_the_connection_published_itself(broker: Broker) -> None:
    """The owner's own message stays for somebody else."""
    me = object()
    broker.declare_queue("q")
    broker.publish(Message("mine", routing_key="q", publisher=me))
    broker.publish(Message("yours", routing_key="q", publisher=object()))
    with broker.subscribe("q", no_local=True, owner=me) as subscription:
        assert subscription.get(timeout=PATIENCE).body == "yours"
    assert bodies(broker.queue("q")) == ["mine", "yours"]


def test_consuming_from_what_is_missing_or_anothers_is_refused_and_leaves_nothing(broker: Broker) -> None:
    """A subscription to two queues of which one is refused does not consume from the other either."""
    me, you = object(), object()
    queue = broker.declare_queue("q")
    broker.declare_queue("mine", exclusive=True, owner=me)
    with pytest.raises(NotFound):
        broker.consume(["q", "missing"], print)
    with pytest.raises(ResourceLocked):
        broker.subscribe(["q", "mine"], owner=you)
    with pytest.raises(ResourceLocked):
        broker.get("mine", owner=you)
    assert queue.consumers() == []
    assert not broker.virtual_host().subscriptions()


def test_without_threads_there_are_no_callbacks() -> None:
    """A virtual host of its own can be blocked on; for callbacks it says what to do instead."""
    host = VirtualHost()
    host.declare_queue("q")
    with pytest.raises(RuntimeError, match="use subscribe, or a Broker"):
        host.consume("q", print)
    put(host, "q", 1)
    with host.subscribe("q") as subscription:
        assert subscription.get(timeout=PATIENCE).body == 1


def test_time_passes_for_queues_without_anybody_touching_them() -> None:
    """An expired message reaches the dead-letter queue by housekeeping alone."""
    clock = FakeClock()
    with Broker(clock=clock, housekeeping_interval=0.001) as broker:
        broker.declare_queue("dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        broker.declare_queue("q", arguments={"x-message-ttl": 60_000, **arguments})
        put(broker, "q", "milk")
        with broker.subscribe("dead") as letters:
            clock.advance(60)
            assert letters.get(timeout=PATIENCE).body == "milk"


def test_a_deleted_queue_is_forgotten_by_housekeeping_and_by_memory() -> None:
    """Nothing keeps a queue alive once it is deleted: no binding, no timer, no table."""
    with Broker(housekeeping_interval=3600) as broker:
        gone = weakref.ref(broker.declare_queue("q"))
        broker.delete_queue("q")
        broker._housekeeping_thread.run_once()
        gc.collect()
        assert gone() is None


def test_alerts_are_told_to_listeners() -> None:
    """A threshold of depth that is reached is reported once, with the queue and the figures."""
    alerts: list[Alert] = []
    with Broker(on_alert=alerts.append) as broker:
        broker.declare_queue("q", settings=QueueSettings(alerts=AlertThresholds(depth=2)))
        put(broker, "q", 1, 2, 3)
    assert [(alert.queue, alert.value, alert.threshold) for alert in alerts] == [("q", 2, 2)]


def test_an_alert_nobody_asked_for_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Without a handler a threshold is a warning in the log."""
    with Broker() as broker:
        broker.declare_queue("q", settings=QueueSettings(alerts=AlertThresholds(depth=1)))
        put(broker, "q", 1)
    assert "queue 'q': depth is 1, its threshold 1" in caplog.text


def test_a_publisher_waits_for_room_where_a_queue_asks_for_it(broker: Broker) -> None:
    """It goes on when consumers have made room; with a timeout it learns that there is none; a callback never waits."""
    settings = QueueSettings(max_length=2, overflow=Overflow.FLOW_CONTROL)
    broker.declare_queue("q", settings=settings)
    put(broker, "q", 1, 2)
    published = broker.publish(Message(3, routing_key="q"))
    assert [queue.name for queue in published.throttled] == ["q"]
    assert not broker.wait_for_room(published, timeout=0.0)
    answers: Queue[bool] = Queue()
    broker.declare_queue("other")
    broker.consume("other", lambda received: answers.put(broker.wait_for_room(published)), auto_accept=True)
    put(broker, "other", 1)
    assert answers.get(timeout=PATIENCE) is False
    waiting = threading.Thread(target=lambda: answers.put(broker.wait_for_room(published)), name="waits")
    waiting.start()
    broker.queue("q").purge()
    assert answers.get(timeout=PATIENCE) is True
    waiting.join(PATIENCE)


def test_virtual_hosts_are_worlds_apart_and_end_with_their_broker() -> None:
    """Names mean something else in each; the verbs of the broker mean `/`; a missing one is named."""
    with Broker() as broker:
        other = broker.add_virtual_host("other")
        assert broker.add_virtual_host("other") is other
        assert broker.virtual_host().name == "/"
        assert broker.virtual_host("other") is other
        broker.declare_queue("q")
        other.declare_queue("q", durable=True)
        inbox = Inbox()
        other.consume("q", inbox)
        put(other, "q", 1)
        assert inbox.bodies(1) == [1]
        assert other.publish(Message(exchange="amq.fanout")).queues == 0
        with pytest.raises(NotAllowed, match="vhost 'missing' not found"):
            broker.virtual_host("missing")
    assert other.is_closed
    with pytest.raises(BrokerClosed):
        broker.add_virtual_host("late")


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_among_many_producers_and_consumers(broker: Broker) -> None:
    """Forty thousand messages, four producers, four consumers, every tenth given back once: each is accepted once."""
    count, producers = 10_000, 4
    for name in ("a", "b"):
        broker.declare_queue(name)
        broker.bind_queue(name, "amq.topic", f"{name}.#")
    accepted: Queue[object] = Queue()

    def callback(received: Received) -> None:
        assert isinstance(received.body, int)
        if received.body % 10 == 0 and not received.redelivered:
            received.release()
        else:
            received.accept()
            accepted.put(received.body)

    for number in range(4):
        broker.consume(["a", "b"], callback, prefetch=1 + number)

    def produce(start: int) -> None:
        for number in range(start, start + count):
            key = f"{'ab'[number % 2]}.x"
            broker.publish(Message(number, exchange="amq.topic", routing_key=key), mandatory=True)

    threads = [threading.Thread(target=produce, args=(n * count,), name=f"produces-{n}") for n in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = Counter(accepted.get(timeout=PATIENCE) for _ in range(count * producers))
    assert seen == Counter(range(count * producers))
    broker.virtual_host().check_invariants()
    assert broker.virtual_host().statistics().depth == 0


def test_a_deleted_virtual_host_is_closed_and_its_name_is_free() -> None:
    """Subscriptions end, calls on it raise, the default one stays."""
    with Broker() as broker:
        other = broker.add_virtual_host("other")
        other.declare_queue("q")
        subscription = other.consume("q", Inbox())
        broker.delete_virtual_host("other")
        assert other.is_closed
        assert subscription.is_closed
        with pytest.raises(BrokerClosed):
            other.declare_queue("late")
        assert broker.add_virtual_host("other") is not other
        for name, why in (("/", "lives as long as its broker"), ("missing", "not found")):
            with pytest.raises(NotAllowed, match=why):
                broker.delete_virtual_host(name)


# -- which RabbitMQ's rules hold


def test_no_other_rules_can_be_chosen() -> None:
    """A version or a deprecated feature that is unknown is named beside those that are known."""
    with pytest.raises(ValueError, match=r"compat is '4.2'; one of '4.3', '3.10', 'lenient'"):
        Broker(compat="4.2")
    with pytest.raises(ValueError, match="no deprecated feature 'mirroring'; one of global_qos, "):
        Broker(deprecated_features={"mirroring": True})


def test_a_feature_that_is_not_permitted_is_refused() -> None:
    """As RabbitMQ's deprecated_features.permit.NAME = false."""
    with Broker(deprecated_features={"transient_nonexcl_queues": False}) as broker:
        broker.declare_queue("kept", durable=True)
        with pytest.raises(BrokerError, match="Feature `transient_nonexcl_queues` is deprecated") as refused:
            broker.declare_queue("lost")
        assert (refused.value.reply_code, refused.value.closes) == (541, "connection")


def test_a_slip_of_the_pen_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """RabbitMQ takes an argument that it does not know, as this broker, which logs what is near to a known one."""
    with Broker() as broker:
        for name in ("a", "b"):
            broker.declare_queue(name, arguments={"x-mesage-ttl": 1, "x-of-our-program": 1})
    told = [each.getMessage() for each in caplog.records]
    assert told == [
        "argument 'x-mesage-ttl' of queue 'a' in vhost '/' is unknown and ignored; did you mean 'x-message-ttl'?"
    ]


def test_a_queue_of_other_rules_is_found_again(tmp_path: Path) -> None:
    """A quorum queue that was declared leniently opens by the rules of 4.3, and its declaration is the same one."""
    quorum = {"x-queue-type": "quorum"}
    with Broker(data=tmp_path, compat="lenient") as broker:
        broker.declare_queue("q", durable=True, arguments=quorum)
    with Broker(data=tmp_path) as broker:
        broker.declare_queue("q", durable=True, arguments=quorum)
        broker.declare_queue("new", durable=True, arguments=quorum)
        assert [broker.queue(name).settings.type for name in ("q", "new")] == ["classic", "quorum"]
    with Broker(data=tmp_path) as broker:
        assert broker.queue("new").settings.max_delivery_attempts == 21


@pytest.mark.parametrize("which", ["housekeeping", "reopening", "loader"])
def test_a_thread_that_cannot_be_started_keeps_nothing_open(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends without it: nobody waits for what never ran, and the directory is free."""
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if which in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    if which == "housekeeping":
        with pytest.raises(RuntimeError, match="can't start"):
            Broker(data=tmp_path)
    else:
        broker = Broker(data=tmp_path, on_store_failure="reopen")
        host = broker.virtual_host()
        assert host._journal is not None
        if which == "reopening":
            host._journal.note(StoreFailed("the disk failed"))
        else:
            with pytest.raises(RuntimeError, match="can't start"):
                host._memory.do_later(lambda: False)
        broker.close()
    monkeypatch.undo()
    Broker(data=tmp_path).close()
