"""What threads do to each other at the broker's front, in every order of its locks and between its lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import cast

import pytest
from broker_front_support import bodies
from core_parts_support import _sync
from explorations_support import found_to

from multiqueue.broker import (
    BrokerClosed,
    Message,
    NotFound,
    Received,
    Scheduler,
    VirtualHost,
)
from multiqueue.testing import Run, explore

# Where the broker and the core look up their locks: some modules say `threading.Lock()`, some `Lock()`.
LOCKS = [threading, _sync] + [
    module
    for name, module in sorted(sys.modules.items())
    if name.startswith("multiqueue.broker") and any(value is threading.Lock for value in vars(module).values())
]


Scenario = Callable[[Run], None]


def in_every_order(scenario: Scenario) -> None:
    """The scenario holds in every order of lock operations."""
    assert explore(scenario, modules=LOCKS).schedules > 1


def stopped_at_any_line(scenario: Scenario) -> None:
    """The scenario holds when a thread is stopped once, at any line of the broker, while the other goes on."""
    explore(scenario, modules=LOCKS, preemptions=1, within=["multiqueue.broker"])


of_short_calls = found_to(in_every_order, pytest.param(stopped_at_any_line, marks=pytest.mark.slow(selected=True)))
# Such as declare and delete: a quarter of a minute for one stop.
of_long_declarations = found_to(in_every_order, pytest.param(stopped_at_any_line, marks=pytest.mark.slow))


def put(host: VirtualHost, key: str, body: object = None) -> int:
    return host.publish(Message(body, routing_key=key)).queues


@of_short_calls
def test_moving_a_binding_new_one_first_loses_no_message(run: Run) -> None:
    """A message that is published meanwhile reaches the old queue, the new one, or both; never neither.

    (broker-front 3)
    """
    host = VirtualHost()
    for name in ("old", "new"):
        host.declare_queue(name)
    host.bind_queue("old", "amq.topic", "a.*")

    def move() -> None:
        host.bind_queue("new", "amq.topic", "#.b")
        host.unbind_queue("old", "amq.topic", "a.*")

    run.spawn(move)
    publisher = run.spawn(lambda: host.publish(Message(exchange="amq.topic", routing_key="a.b")).queues)
    run.join()
    assert publisher.result == host.statistics().depth
    assert publisher.result in (1, 2)


@of_short_calls
def test_a_message_that_meets_the_deletion_of_its_queue_is_on_it_or_nowhere(run: Run) -> None:
    """The publisher's answer and the deletion's count agree: 1 and 1, or 0 and 0."""
    host = VirtualHost()
    host.declare_queue("q")
    deleter, publisher = run.spawn(host.delete_queue, "q"), run.spawn(put, host, "q")
    run.join()
    assert deleter.result == publisher.result
    assert (host.queues(), host.bindings()) == ([], [])


@of_long_declarations
def test_two_threads_that_declare_one_queue_get_one_queue(run: Run) -> None:
    """The second caller gets the queue of the first, and its own leaves no trace."""
    host = VirtualHost()
    threads = [run.spawn(host.declare_queue, "q") for _ in range(2)]
    run.join()
    one, two = (thread.result for thread in threads)
    assert one is two is host.queue("q")
    assert put(host, "q") == 1
    host.check_invariants()


@of_long_declarations
def test_a_queue_that_dies_while_it_is_declared_is_declared_anew(run: Run) -> None:
    """The last consumer of an auto-delete queue goes while another thread declares it: that thread has a queue."""
    host = VirtualHost()
    queue = host.declare_queue("q", auto_delete=True)
    consumer = queue.add_consumer(lambda consumer: None)
    run.spawn(queue.remove_consumer, consumer)
    declarer = run.spawn(lambda: host.declare_queue("q", auto_delete=True))
    run.join()
    # Declared just before it died, it is dead as any queue may be at the next moment; never a dead one beside
    # a living one, and never a living one that no caller can find.
    assert declarer.result.is_deleted == (host.queues() == [])
    assert put(host, "q") == len(host.queues())
    host.check_invariants()


@of_long_declarations
def test_no_binding_outlives_an_end_that_is_deleted_meanwhile(run: Run) -> None:
    """Binding against deleting the queue, and against deleting the exchange: bound and removed, or refused."""
    host = VirtualHost()
    host.declare_exchange("x", "fanout")
    host.declare_queue("q")

    def bind() -> bool:
        try:
            host.bind_queue("q", "x")
        except NotFound:
            return False
        return True

    run.spawn(bind)
    run.spawn(host.delete_queue, "q")
    run.spawn(host.delete_exchange, "x")
    run.join()
    assert host.bindings() == []
    host.check_invariants()


@of_long_declarations
def test_nothing_that_is_declared_while_the_host_closes_is_left(run: Run) -> None:
    """The declaration is refused, or its queue is closed with the host."""
    host = VirtualHost()

    def declare() -> None:
        try:
            host.declare_queue("q")
        except BrokerClosed:
            return

    run.spawn(declare)
    run.spawn(host.close)
    run.join()
    assert host.queues() == []


@of_short_calls
def test_a_message_got_while_everything_closes_is_not_lost(run: Run) -> None:
    """A get against the getter's end: the message is with the caller, unsettled, or back at its place."""
    host = VirtualHost()
    queue = host.declare_queue("q")
    put(host, "q", "m")
    getter = run.spawn(host.get, "q")
    run.spawn(host.parts.receiving.getter.close)
    run.join()
    assert getter.result is None or getter.result.body == "m"
    assert bodies(queue) == ["m"]
    queue.check_invariants()


@of_short_calls
def test_of_two_that_settle_one_message_one_is_refused(run: Run) -> None:
    """Accept against release: the message is gone or back, and the other thread is told."""
    host = VirtualHost()
    queue = host.declare_queue("q")
    put(host, "q", "m")
    received = host.get("q")
    assert received is not None

    def settle(how: Callable[[], None]) -> bool:
        try:
            how()
        except ValueError:
            return False
        return True

    accepts, releases = run.spawn(settle, received.accept), run.spawn(settle, received.release)
    run.join()
    assert accepts.result is not releases.result
    assert bodies(queue) == (["m"] if releases.result else [])


@of_short_calls
def test_a_commit_against_a_purge_settles_each_message_once(run: Run) -> None:
    """Management takes the messages away, or the commit has locked them; either way they are gone once."""
    host = VirtualHost()
    queue, other = host.declare_queue("q"), host.declare_queue("other")
    for number in range(2):
        put(host, "q", number)
    transaction = host.transaction()
    for _ in range(2):
        received = host.get("q")
        assert received is not None
        transaction.accept(received)
    transaction.publish(Message("done", routing_key="other"))
    run.spawn(transaction.commit)
    purger = run.spawn(lambda: queue.delete_messages(steal=True))
    run.join()
    assert purger.result in (0, 1, 2)
    assert (len(queue), bodies(other)) == (0, ["done"])
    assert queue.statistics().dequeued == 2
    host.check_invariants()


@of_short_calls
def test_a_subscription_that_closes_while_it_pulls_gives_the_message_back(run: Run) -> None:
    """Whether the pull came first or the close, the message ends at its place on the queue."""
    host = VirtualHost()
    queue = host.declare_queue("q")
    put(host, "q", "m")
    subscription = host.subscribe("q")
    run.spawn(subscription.target.pull)
    run.spawn(subscription.close)
    run.join()
    assert bodies(queue) == ["m"]
    assert not host.subscriptions()
    host.check_invariants()


class OnThisThread:
    """As much of a scheduler as a subscription needs, without threads."""

    def add(self, scheduled: object) -> None: ...

    def ready(self, scheduled: object) -> None: ...

    def remove(self, scheduled: object) -> None: ...


@of_short_calls
def test_no_callback_begins_or_goes_on_after_its_subscription_is_closed(run: Run) -> None:
    """Whichever comes first, the delivery or the close: the message is accepted by a callback, or on the queue.

    (broker-front 7)
    """
    host = VirtualHost(scheduler=cast("Scheduler", OnThisThread()))
    queue = host.declare_queue("q")
    events: list[str] = []

    def callback(received: Received) -> None:
        events.append("begun")
        received.accept()
        events.append("done")

    subscription = host.consume("q", callback)
    put(host, "q", "m")

    def close() -> None:
        subscription.close()
        events.append("closed")

    run.spawn(subscription.run_turn)  # type: ignore[attr-defined]
    run.spawn(close)
    run.join()
    assert events in (["begun", "done", "closed"], ["closed"])
    assert bodies(queue) == ([] if "done" in events else ["m"])
    host.check_invariants()
