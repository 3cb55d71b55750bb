"""Settling what durable queues delivered: what a crash may bring back, and how it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_durable_support import Keeper, bodies, holding, keepers, persistent, take_all

from multiqueue.broker import (
    Compat,
    DeadLetterReason,
    Message,
    MessageRefused,
    QueueKind,
    QueueSettings,
    Received,
    VirtualHost,
    deaths_of,
)
from multiqueue.store import MemoryStore, StoreFailed, StoreFull
from multiqueue.testing import PATIENCE, FakeClock, wait_until_blocked


@pytest.fixture(params=["memory", "sqlite"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keeper]:
    for keeper in keepers(tmp_path, request.param):
        keeper.host.declare_queue("q", durable=True)
        yield keeper


def got(host: VirtualHost, queue: str = "q") -> Received:
    received = host.get(queue)
    assert received is not None
    return received


def fill(host: VirtualHost, *bodies: bytes, queue: str = "q") -> None:
    for body in bodies:
        host.publish(persistent(body, key=queue))


def wall(clock: FakeClock) -> Callable[[], float]:
    """The time of day that goes with a clock."""
    return lambda: clock() + 1_700_000_000


def letters(host: VirtualHost) -> None:
    """Have what dies in `q` come to a quorum queue `dead`."""
    host.delete_queue("q")
    host.declare_queue("q", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    host.declare_queue("dead", durable=True, arguments={"x-queue-type": "quorum"})


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_dead_letter_goes_on_counting_its_failures(keeper: Keeper, in_a_transaction: bool) -> None:
    """What was rejected twice is redelivered at its first delivery elsewhere, and has failed twice: also later on."""
    letters(keeper.host)
    fill(keeper.host, b"1")
    got(keeper.host).release(failed=True)
    if in_a_transaction:
        with keeper.host.transaction() as transaction:
            transaction.reject(got(keeper.host))
    else:
        got(keeper.host).reject(wait=True)
    host = keeper.crash()
    for failures in (2, 3):
        received = got(host, "dead")
        assert (received.redelivered, received.entry.failures) == (True, failures)
        received.release(failed=True)


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_dead_letter_that_is_published_again_is_new(keeper: Keeper, in_a_transaction: bool) -> None:
    """Its failures were those of another delivery: only the broker itself sends them on."""
    letters(keeper.host)
    fill(keeper.host, b"1")
    got(keeper.host).reject(wait=True)
    letter = got(keeper.host, "dead")
    again = replace(letter.message, exchange="", routing_key="dead")
    letter.accept()
    with keeper.host.transaction() as transaction:
        (transaction if in_a_transaction else keeper.host).publish(again)
    assert (received := got(keeper.host, "dead")).redelivered is False
    assert received.entry.failures == 0


@pytest.mark.parametrize("verb", ["move_messages", "copy_messages"])
def test_a_dead_letter_that_is_moved_or_copied_back_is_new(keeper: Keeper, verb: str) -> None:
    """Somebody mended the cause and sends it to its queue again: there it has all its deliveries."""
    letters(keeper.host)
    fill(keeper.host, b"1")
    got(keeper.host).reject(wait=True)
    assert getattr(keeper.host.queue("dead"), verb)(keeper.host.queue("q")) == 1
    keeper.host.wait_for_commits()
    assert (received := got(keeper.host)).redelivered is False
    assert received.entry.failures == 0


def test_a_dead_letter_of_3_10_is_new(keeper: Keeper) -> None:
    """With the rules of RabbitMQ 3.10 a dead letter has no past in its next queue."""
    host = VirtualHost("new", compat=Compat("3.10"))
    host.declare_queue("q")
    letters(host)
    fill(host, b"1")
    got(host).reject()
    received = got(host, "dead")
    assert (received.redelivered, received.entry.failures) == (False, 0)
    host.close()


# Accepted


def test_a_waited_accept_is_for_good(keeper: Keeper) -> None:
    """What was accepted with `wait` does not come back, whatever way the process ends (broker-durability 4)."""
    fill(keeper.host, b"1", b"2", b"3")
    got(keeper.host).accept(wait=True)
    assert bodies(keeper.crash()) == [b"2", b"3"]
    got(keeper.host).accept(wait=True)
    assert bodies(keeper.restart()) == [b"3"]


def test_a_plain_accept_that_a_crash_undid_is_delivered_again_flagged() -> None:
    """The delete had not been committed: the message is there, and says that somebody may have had it.

    (broker-durability 4)
    """
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    fill(host, b"1", b"2")
    store.hold()
    got(host).accept()
    left = store.reopened(crashed=True)
    store.release()
    host.close()
    again = VirtualHost(store=left)
    assert take_all(again) == [(b"1", True), (b"2", True)]
    fill(again, b"3")
    assert take_all(again) == [(b"3", False)]
    again.close()


def test_a_waited_accept_raises_when_the_store_fails() -> None:
    """A caller that waits for an accept is told that it may come back; a plain accept is silent."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    fill(host, b"1", b"2")
    first, second = got(host), got(host)
    store.fail_at(1, StoreFailed("the disk failed"))
    with pytest.raises(StoreFailed, match="the disk failed"):
        first.accept(wait=True)
    second.accept()
    host.close()


def test_what_is_settled_on_delivery_is_deleted(keeper: Keeper) -> None:
    """With auto_accept a get, a subscription and one with a selector leave nothing in the store."""
    host = keeper.host
    fill(host, b"1", b"2", b"3")
    assert host.get("q", auto_accept=True) is not None
    with host.subscribe("q", auto_accept=True) as subscription:
        subscription.get(PATIENCE)
    with host.subscribe("q", auto_accept=True, selector=lambda message: True) as subscription:
        subscription.get(PATIENCE)
    host.wait_for_commits()
    assert keeper.store.statistics().messages == 0


def test_a_browser_leaves_everything(keeper: Keeper) -> None:
    """Browsing settles nothing, on delivery or otherwise."""
    fill(keeper.host, b"1")
    with keeper.host.subscribe("q", browse=True, auto_accept=True) as browser:
        assert browser.get(PATIENCE).body == b"1"
    assert bodies(keeper.crash()) == [b"1"]


# Given back


def test_what_was_given_back_keeps_its_place_and_its_count(keeper: Keeper) -> None:
    """A clean close keeps how often each message was delivered; nothing else is flagged."""
    host = keeper.host
    fill(host, b"1", b"2", b"3")
    first, second = got(host), got(host)
    second.release()
    first.release()
    got(host).release()
    host = keeper.restart()
    counts = []
    while (received := host.get("q")) is not None:
        counts.append((received.body, received.delivery_count, received.redelivered))
    assert counts == [(b"1", 3, True), (b"2", 2, True), (b"3", 1, False)]


def test_what_nobody_settled_comes_back_after_a_clean_close(keeper: Keeper) -> None:
    """Messages in somebody's hands return to their places, with the delivery counted."""
    fill(keeper.host, b"1", b"2", b"3")
    subscription = keeper.host.subscribe("q")
    assert subscription.get(PATIENCE).body == b"1"
    got(keeper.host)
    assert take_all(keeper.restart()) == [(b"1", True), (b"2", True), (b"3", False)]


def test_what_a_crash_left_in_doubt_stays_in_doubt(keeper: Keeper) -> None:
    """A message that may have been delivered says so, after clean restarts too; later ones do not.

    (broker-durability 5)
    """
    fill(keeper.host, b"1")
    keeper.crash()
    fill(keeper.host, b"2")
    keeper.restart()
    assert take_all(keeper.host) == [(b"1", True), (b"2", False)]


def test_doubt_is_no_delivery(keeper: Keeper) -> None:
    """A crash does not bring a message nearer to its delivery limit (broker-durability 5)."""
    host = keeper.host
    host.declare_queue("limited", durable=True, arguments={"x-qpid-maximum-delivery-count": 2})
    fill(host, b"1", queue="limited")
    for _ in range(3):
        host = keeper.crash()
    received = got(host, "limited")
    assert (received.delivery_count, received.redelivered) == (1, True)
    received.release()
    assert got(host, "limited").delivery_count == 2


def test_doubt_goes_along_to_another_place(keeper: Keeper) -> None:
    """A message whose priority is changed after a crash may still have been delivered, and was not counted."""
    host = keeper.host
    host.declare_queue("p", durable=True, arguments={"x-max-priority": 9})
    host.publish(persistent(b"1", key="p", delay=0.0))
    host = keeper.crash()
    assert host.queue("p").change_priority(5) == 1
    host = keeper.restart()
    received = got(host, "p")
    assert (received.delivery_count, received.redelivered, received.message.priority) == (1, True, 5)


def test_deliveries_count_towards_the_limit_across_a_restart(keeper: Keeper) -> None:
    """Two deliveries before a clean close and one after it make three (broker-durability 5)."""
    host = keeper.host
    host.declare_queue("limited", settings=QueueSettings(durable=True, max_delivery_attempts=3))
    fill(host, b"1", queue="limited")
    got(host, "limited").release()
    got(host, "limited").release()
    host = keeper.restart()
    got(host, "limited").release()
    assert bodies(host, "limited") == []
    host.wait_for_commits()
    assert keeper.store.statistics().messages == 0


# Dead letters and moves: one commit


def with_dead_letters(host: VirtualHost, **arguments: object) -> None:
    """A durable queue `sick` whose dead letters go to the durable queue `dead`."""
    host.declare_queue("dead", durable=True)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **arguments}
    host.declare_queue("sick", durable=True, arguments=letters)


def lives(store: MemoryStore, act: Callable[[], object], look: Callable[[VirtualHost], object]) -> list[object]:
    """What `look` sees after a crash behind each of the commits that `act` causes, the first with none of them."""
    store.hold()
    act()
    seen: list[object] = []
    while True:
        again = VirtualHost(store=store.reopened(crashed=True))
        seen.append(look(again))
        again.close()
        if not store.statistics().pending_operations:
            return seen
        commit_one(store)


def commit_one(store: MemoryStore) -> None:
    pending = store.statistics().pending_operations
    store.release(1)
    wait_until_blocked(lambda: store.statistics().pending_operations < pending)


def where(host: VirtualHost) -> dict[str, list[object]]:
    return {queue.name: bodies(host, queue.name) for queue in host.queues()}


def test_a_dead_letter_is_never_nowhere_and_never_twice() -> None:
    """Whatever commit a crash comes behind, the message is on the one queue or on the other (broker-durability 6)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    with_dead_letters(host)
    fill(host, b"1", b"2", queue="sick")
    received = [got(host, "sick"), got(host, "sick")]

    def reject() -> None:
        for each in received:
            each.reject()

    assert lives(store, reject, where) == [
        {"dead": [], "sick": [b"1", b"2"]},
        {"dead": [b"1"], "sick": [b"2"]},
        {"dead": [b"1", b"2"], "sick": []},
    ]
    store.release()
    host.wait_for_commits()
    [first, second] = host.queue("dead").browse()
    assert [deaths_of(first)[0]["queue"], deaths_of(second)[0]["reason"]] == ["sick", "rejected"]
    host.close()


def test_a_waited_reject_is_where_it_should_be(keeper: Keeper) -> None:
    """After `reject(wait=True)` a crash finds the message on the dead-letter queue, without doubt about its past."""
    with_dead_letters(keeper.host)
    fill(keeper.host, b"1", queue="sick")
    got(keeper.host, "sick").reject(wait=True)
    assert where(keeper.crash()) == {"q": [], "sick": [], "dead": [b"1"]}


def test_a_dead_letter_that_a_full_store_refuses_is_tried_again() -> None:
    """The message stays where it is stored until housekeeping finds room for the move (broker-durability 10)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    with_dead_letters(host)
    fill(host, b"1", queue="sick")
    store.fail_at(1, StoreFull("no room"))
    with pytest.raises(StoreFull, match="could not be stored"):
        got(host, "sick").reject(wait=True)
    assert where(host) == {"dead": [], "sick": []}
    assert store.statistics().messages == 1
    assert host._journal is not None
    host._journal.housekeeping()
    host.wait_for_commits()
    assert where(host) == {"dead": [b"1"], "sick": []}
    assert store.statistics().messages == 1
    host.close()


@pytest.mark.parametrize("ends", [False, True])
def test_what_a_full_store_would_not_delete_is_deleted_later(ends: bool) -> None:
    """Who waits is told. When there is room, housekeeping deletes it, or the close does: nothing comes back that was
    settled. (broker-durability 4, 10)"""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    fill(host, *(b"%d" % number for number in range(200)))
    store.fail_at(1, StoreFull("no room"))
    with pytest.raises(StoreFull, match="could not be stored"):
        got(host).accept(wait=True)
    store.fail_at(1, StoreFull("no room"))
    host.queue("q").purge()
    with pytest.raises(StoreFull):
        host.wait_for_commits()
    assert store.statistics().messages == 200
    assert host._journal is not None
    if ends:
        host.close()
    else:
        host._journal.housekeeping()
        assert host.wait_for_commits()
    host.close()
    assert store.reopened().statistics().messages == 0


def test_a_dead_letter_for_nowhere_is_deleted(keeper: Keeper) -> None:
    """No dead-letter exchange, no such exchange, no queue bound to it: the message is gone, in the store too."""
    keeper.host.declare_queue("lost", durable=True, arguments={"x-dead-letter-exchange": "nowhere"})
    fill(keeper.host, b"1")
    fill(keeper.host, b"2", queue="lost")
    got(keeper.host).reject(wait=True)
    got(keeper.host, "lost").reject(wait=True)
    assert keeper.store.statistics().messages == 0


def test_time_goes_on_while_nobody_has_the_store_open(tmp_path: Path) -> None:
    """What expires, and what is held until its time, count the hours that the process was not there."""
    clock = FakeClock(1000.0)
    for kind in ("memory", "sqlite"):
        keeper = next(keepers(tmp_path, kind, clock=clock, wall_clock=wall(clock)))
        with_dead_letters(keeper.host, **{"x-message-ttl": 10_000})
        keeper.host.declare_queue("q", durable=True)
        fill(keeper.host, b"old", queue="sick")
        keeper.host.publish(persistent(b"held", delay=20))
        clock.advance(6)
        fill(keeper.host, b"young", queue="sick")
        keeper.restart()
        clock.advance(5)
        keeper.crash()
        for queue in keeper.host.queues():
            queue.housekeeping()
        keeper.host.wait_for_commits()
        assert where(keeper.host) == {"dead": [b"old"], "sick": [b"young"], "q": [b"held"]}
        assert keeper.host.get("q") is None
        clock.advance(9)
        keeper.host.queue("q").housekeeping()
        assert got(keeper.host).body == b"held"
        keeper.close()


@pytest.mark.parametrize("kind", [QueueKind.STANDARD, QueueKind.SORTED])
def test_nobody_gets_what_expired_in_another_life(tmp_path: Path, kind: QueueKind) -> None:
    """A message past its time is not delivered, though housekeeping has not met it yet; one within its time is."""
    clock = FakeClock(1000.0)
    settings = QueueSettings(durable=True, kind=kind, sort_key="key" if kind is QueueKind.SORTED else None)
    keeper = next(keepers(tmp_path, "sqlite", clock=clock, wall_clock=wall(clock)))
    keeper.host.declare_queue("q", settings=settings)
    keeper.host.publish(persistent(b"old", expiration=10))
    keeper.host.publish(persistent(b"young", expiration=20))
    clock.advance(9)
    keeper.restart()
    clock.advance(2)
    assert take_all(keeper.host) == [(b"young", False)]
    keeper.close()


def test_messages_are_moved_in_one_commit_each() -> None:
    """A crash behind any commit of a move finds every message on one of the two queues (broker-durability 6)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    for name in ("from", "to"):
        host.declare_queue(name, durable=True)
    fill(host, b"1", b"2", queue="from")
    mover = threading.Thread(target=lambda: host.queue("from").move_messages(host.queue("to")))
    with holding(store):
        mover.start()
        wait_until_blocked(lambda: store.statistics().pending_operations == 4)
        assert where(host) == {"from": [], "to": []}
        assert lives(store, lambda: None, where)[:3] == [
            {"from": [b"1", b"2"], "to": []},
            {"from": [b"2"], "to": [b"1"]},
            {"from": [], "to": [b"1", b"2"]},
        ]
    mover.join(PATIENCE)
    assert where(host) == {"from": [], "to": [b"1", b"2"]}
    host.close()


def test_a_move_that_the_store_refuses_leaves_the_message_at_its_place() -> None:
    """Of three messages the one that finds no room stays; the others have moved, and the count says so."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    for name in ("from", "to"):
        host.declare_queue(name, durable=True)
    fill(host, b"1", b"2", b"3", queue="from")
    store.fail_at(2, StoreFull("no room"))
    assert host.queue("from").move_messages(host.queue("to")) == 2
    assert where(host) == {"from": [b"2"], "to": [b"1", b"3"]}
    assert not got(host, "from").redelivered
    host.close()


def test_management_reaches_the_store(keeper: Keeper) -> None:
    """Purging, deleting some, copying, moving between durable and transient queues, changing a priority."""
    host = keeper.host
    host.declare_queue("t")
    host.declare_queue("p", durable=True, arguments={"x-max-priority": 9})
    fill(host, b"1", b"2", b"3", b"4")
    assert host.queue("q").delete_messages(lambda message: message.body == b"2") == 1
    assert host.queue("q").copy_messages(host.queue("p"), lambda message: message.body == b"4") == 1
    assert host.queue("q").move_messages(host.queue("t"), lambda message: message.body == b"1") == 1
    assert host.queue("t").move_messages(host.queue("p")) == 1
    host.wait_for_commits()
    assert host.queue("p").change_priority(9, lambda message: message.body == b"1") == 1
    assert where(host) == {"q": [b"3", b"4"], "t": [], "p": [b"1", b"4"]}
    assert where(keeper.crash()) == {"q": [b"3", b"4"], "p": [b"1", b"4"]}
    assert keeper.host.queue("p").browse()[0].priority == 9
    assert keeper.host.queue("q").purge() == 2
    keeper.host.wait_for_commits()
    assert keeper.store.statistics().messages == 2


def test_the_messages_of_a_deleted_queue_can_go_on(keeper: Keeper) -> None:
    """Deleting with dead_letter moves what is there; without, it is gone with the queue."""
    with_dead_letters(keeper.host)
    fill(keeper.host, b"1", b"2", queue="sick")
    assert keeper.host.queue("sick").delete(dead_letter=True) == 2
    keeper.host.wait_for_commits()
    assert where(keeper.crash()) == {"q": [], "dead": [b"1", b"2"]}
    death = deaths_of(keeper.host.queue("dead").browse()[0])[0]
    assert death["reason"] == DeadLetterReason.QUEUE_DELETED.value


# What comes back, as it was


@pytest.mark.parametrize(
    ("settings", "values", "expected"),
    [
        (QueueSettings(durable=True, kind=QueueKind.PRIORITY, max_priority=5), [1, 5, 0, 5], [1, 3, 0, 2]),
        (QueueSettings(durable=True, kind=QueueKind.SORTED, sort_key="key"), [3, 1, 2, 1], [1, 3, 2, 0]),
        (QueueSettings(durable=True, kind=QueueKind.LAST_VALUE, lvq_key="key"), [1, 2, 1, 3], [1, 2, 3]),
    ],
)
def test_every_kind_of_queue_comes_back_in_its_order(
    keeper: Keeper, settings: QueueSettings, values: list[int], expected: list[int]
) -> None:
    """Priority, sorted and last-value queues serve after a restart in the order of before."""
    keeper.host.declare_queue("kind", settings=settings)
    for number, value in enumerate(values):
        keeper.host.publish(persistent(b"%d" % number, key="kind", priority=value, headers={"key": value}))
    keeper.host.wait_for_commits()
    assert bodies(keeper.host, "kind") == [b"%d" % number for number in expected]
    assert bodies(keeper.crash(), "kind") == [b"%d" % number for number in expected]
    assert bodies(keeper.restart(), "kind") == [b"%d" % number for number in expected]
    keeper.host.check_invariants()


def test_a_message_comes_back_with_all_its_properties(keeper: Keeper) -> None:
    """Every property but the connection that published it."""
    message = Message(
        b"\x00body",
        routing_key="q",
        headers={"a": [1, {"b": b"c"}], "": None},
        persistent=True,
        priority=3,
        expiration=3600.0,
        content_type="text/plain",
        content_encoding="",
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1.5,
        type="t",
        user_id="u",
        app_id="a",
        publisher=object(),
    )
    keeper.host.publish(message)
    [back] = keeper.restart().queue("q").browse()
    for name in Message.__slots__:
        expected = None if name == "publisher" else getattr(message, name)
        assert getattr(back, name) == expected, name


def test_transient_messages_are_gone(keeper: Keeper) -> None:
    """A durable queue keeps what is persistent, and that alone, in its order."""
    for body in (b"1", b"2", b"3"):
        keeper.host.publish(Message(b"not " + body, routing_key="q"))
        keeper.host.publish(persistent(body))
    assert len(bodies(keeper.host)) == 6
    assert bodies(keeper.restart()) == [b"1", b"2", b"3"]


# Transactions


def test_a_transaction_is_one_commit() -> None:
    """Publishes to several queues, accepts and rejects: a crash finds all of it, or nothing (broker-durability 7)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    with_dead_letters(host)
    host.declare_queue("q", durable=True)
    fill(host, b"accepted", b"kept")
    fill(host, b"rejected", queue="sick")
    transaction = host.transaction()
    transaction.accept(got(host))
    transaction.reject(got(host, "sick"))
    transaction.publish(persistent(b"new"))
    transaction.publish(persistent(b"new", key="sick"))
    transaction.publish(Message(b"transient", routing_key="q"))
    committer = threading.Thread(target=transaction.commit)
    with holding(store):
        committer.start()
        wait_until_blocked(lambda: store.statistics().pending_operations)
        assert where(host) == {"dead": [], "sick": [], "q": [b"kept"]}
        before, after, *later = lives(store, lambda: None, where)
    assert before == {"dead": [], "sick": [b"rejected"], "q": [b"accepted", b"kept"]}
    assert after == {"dead": [b"rejected"], "sick": [b"new"], "q": [b"kept", b"new"]}
    assert later == [after]  # the transient message's turn in the order is over
    committer.join(PATIENCE)
    host.wait_for_commits()
    assert where(host) == {"dead": [b"rejected"], "sick": [b"new"], "q": [b"kept", b"new", b"transient"]}
    assert store.statistics().messages == 4
    host.check_invariants()
    host.close()


def test_a_transaction_that_the_store_refuses_is_as_it_was() -> None:
    """Nothing was done; the same commit succeeds when there is room (broker-durability 7)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    host.declare_queue("t")
    fill(host, b"old")
    received = got(host)
    transaction = host.transaction()
    transaction.accept(received)
    transaction.publish(persistent(b"new"))
    transaction.publish(Message(b"transient", routing_key="t"))
    store.fail_at(1, StoreFull("no room"))
    with pytest.raises(StoreFull):
        transaction.commit()
    assert where(host) == {"q": [], "t": []}
    assert len(transaction) == 3
    assert len(host.queue("q")) == 1
    transaction.commit()
    assert where(host) == {"q": [b"new"], "t": [b"transient"]}
    host.check_invariants()
    host.close()


@pytest.mark.parametrize("is_full", [False, True])
def test_what_a_refused_commit_would_have_settled_can_be_taken_away_again(is_full: bool) -> None:
    """A commit keeps management from its messages while it runs, and no longer, whether it was refused by the store
    or never got so far."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    fill(host, b"1", b"2")
    transaction = host.transaction()
    transaction.accept(got(host))
    transaction.release(got(host))
    transaction.publish(Message(b"x" if is_full else {"no": "bytes"}, routing_key="q", persistent=True))
    if is_full:
        store.fail_at(1, StoreFull("no room"))
    with pytest.raises(StoreFull if is_full else TypeError):
        transaction.commit()
    assert host.queue("q").delete_messages(steal=True) == 2
    host.close()


def test_a_transaction_with_a_message_that_cannot_be_stored_does_nothing(keeper: Keeper) -> None:
    """The commit raises before anything is handed to the store."""
    fill(keeper.host, b"old")
    transaction = keeper.host.transaction()
    transaction.accept(got(keeper.host))
    transaction.publish(persistent(b"fine"))
    transaction.publish(Message({"no": "bytes"}, routing_key="q", persistent=True))
    with pytest.raises(TypeError):
        transaction.commit()
    transaction.rollback()
    keeper.host.check_invariants()
    assert bodies(keeper.crash()) == [b"old"]


def test_a_transaction_says_what_limits_refused(keeper: Keeper) -> None:
    """Limits are decided before the commit, count its own messages, and do not undo it."""
    keeper.host.declare_queue("small", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    transaction = keeper.host.transaction()
    for body in (b"1", b"2"):
        transaction.publish(persistent(body, key="small"))
    transaction.publish(persistent(b"3"))
    with pytest.raises(MessageRefused):
        transaction.commit()
    assert where(keeper.crash()) == {"q": [b"3"], "small": [b"1"]}
