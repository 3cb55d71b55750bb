"""Publishing to durable queues: the commit comes first, for all queues of a message together."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from broker_durable_support import bodies, holding, persistent, take_all

from multiqueue.broker import (
    Alert,
    AlertThresholds,
    Message,
    MessageRefused,
    NoConsumers,
    Overflow,
    QueueSettings,
    Unroutable,
    VirtualHost,
)
from multiqueue.store import MemoryStore, StoreClosed, StoreFailed, StoreFull
from multiqueue.testing import PATIENCE, wait_until_blocked

FULL = StoreFull("no room")
FAILED = StoreFailed("the disk failed")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def host(store: MemoryStore) -> Iterator[VirtualHost]:
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    yield host
    store.release()
    host.close()


def both(host: VirtualHost) -> None:
    """A fanout exchange to two durable queues, `q` and `r`, and to one that is not, `t`."""
    host.declare_exchange("all", "fanout", durable=True)
    host.declare_queue("r", durable=True)
    host.declare_queue("t")
    for queue in ("q", "r", "t"):
        host.bind_queue(queue, "all")


# Before the commit


def test_a_message_is_seen_by_nobody_before_its_commit(host: VirtualHost, store: MemoryStore) -> None:
    """Neither a get, nor a consumer that waits, nor a browser has it while the store has not committed it.

    (broker-durability 1)
    """
    with host.subscribe("q") as subscription, host.subscribe("q", browse=True) as browser:
        store.hold()
        published = host.publish_nowait(persistent(b"a"))
        assert host.get("q") is None
        assert (bodies(host), len(host.queue("q"))) == ([], 0)
        assert not subscription.target.pull()
        assert not browser.target.pull()
        assert not published.is_confirmed
        assert not published.wait(timeout=0)
        store.release()
        assert published.wait(PATIENCE)
        assert published.commit is not None
        assert published.commit.is_done
        assert browser.get(timeout=PATIENCE).body == b"a"
        assert subscription.get(timeout=PATIENCE).body == b"a"


def test_publish_returns_when_the_message_can_be_got(host: VirtualHost) -> None:
    """The commit hands the message over before it lets the publisher go on."""
    for number in range(50):
        host.publish(persistent(b"%d" % number))
        assert take_all(host) == [(b"%d" % number, False)]


def test_publish_waits_for_its_commit(host: VirtualHost, store: MemoryStore) -> None:
    """A publish of a persistent message to a durable queue blocks while the store holds its commit."""
    store.hold()
    publisher = threading.Thread(target=host.publish, args=(persistent(b"a"),))
    publisher.start()
    wait_until_blocked(lambda: store.statistics().pending_operations == 1)
    assert publisher.is_alive()
    store.release()
    publisher.join(PATIENCE)
    assert bodies(host) == [b"a"]


def test_what_needs_no_store_does_not_wait_for_it(host: VirtualHost, store: MemoryStore) -> None:
    """Transient messages, and persistent ones for queues that are not durable, are there at once.

    (broker-durability 12)
    """
    host.declare_queue("t")
    store.hold()
    assert host.publish(Message(b"transient", routing_key="q")).commit is None
    assert host.publish(persistent(b"in memory", key="t")).commit is None
    assert (bodies(host), bodies(host, "t")) == ([b"transient"], [b"in memory"])


def test_a_transient_message_does_not_overtake_one_that_waits_for_its_commit(
    host: VirtualHost, store: MemoryStore
) -> None:
    """Behind a durable message on its way the transient ones take their turn, one after the other.

    (broker-durability 3)
    """
    store.hold()
    for body in (b"1", b"2"):
        host.publish_nowait(persistent(body))
        host.publish(Message(body + b"'", routing_key="q"))
        host.publish(Message([body], routing_key="q"))  # no bytes: it is never stored
    assert bodies(host) == []
    store.release(2)
    wait_until_blocked(lambda: len(host.queue("q")) == 2)
    assert bodies(host) == [b"1", b"1'"]
    store.release()
    host.wait_for_commits()
    assert bodies(host) == [b"1", b"1'", [b"1"], b"2", b"2'", [b"2"]]
    host.wait_for_commits()
    assert store.statistics().messages == 2


def test_a_transient_message_joins_even_when_its_turn_is_refused(host: VirtualHost, store: MemoryStore) -> None:
    """A full store keeps no publisher out that needs no room in it."""
    store.hold()
    first = host.publish_nowait(persistent(b"1"))
    host.publish(Message(b"2", routing_key="q"))
    store.fail_at(2, FULL)
    store.release()
    host.wait_for_commits()
    assert first.wait(PATIENCE)
    assert bodies(host) == [b"1", b"2"]
    host.queue("q").check_invariants()


def test_a_transient_message_that_waits_for_its_turn_goes_with_the_store(host: VirtualHost, store: MemoryStore) -> None:
    """When the store fails before the turn, the message is on no queue, and no room is kept for it."""
    store.hold()
    host.publish_nowait(persistent(b"1"))
    host.publish(Message(b"2", routing_key="q"))
    store.fail_at(1, FAILED)
    store.release()
    with pytest.raises(StoreFailed):
        host.wait_for_commits()
    wait_until_blocked(lambda: host._topology.queues()[0].queue.life._admitted == 0)
    assert len(host._topology.queues()[0].queue) == 0


def test_messages_join_in_the_order_in_which_they_were_published(host: VirtualHost) -> None:
    """Pipelined publishes of one thread keep their order, and confirms come in the same (broker-durability 3)."""
    confirmed: list[int] = []
    for number in range(500):
        published = host.publish_nowait(persistent(b"%d" % number))
        published.add_done_callback(lambda error, number=number: confirmed.append(number))  # type: ignore[misc]
    wait_until_blocked(lambda: len(confirmed) == 500)
    assert bodies(host) == [b"%d" % number for number in range(500)]
    assert confirmed == list(range(500))


# All queues, or none


def test_one_commit_is_for_all_queues_of_a_message(host: VirtualHost, store: MemoryStore) -> None:
    """A message for two durable queues is one submission; the queue in memory has it meanwhile.

    (broker-durability 1)
    """
    both(host)
    store.hold()
    published = host.publish_nowait(Message(b"a", exchange="all", persistent=True))
    assert published.queues == 3
    assert [bodies(host, queue) for queue in "qrt"] == [[], [], [b"a"]]
    store.release(1)
    assert published.wait(PATIENCE)
    assert [bodies(host, queue) for queue in "qrt"] == [[b"a"], [b"a"], [b"a"]]


def test_a_full_store_refuses_a_message_on_all_durable_queues(host: VirtualHost, store: MemoryStore) -> None:
    """The publish raises, the confirm fails, no durable queue has it, and the next publish is as good as any.

    (broker-durability 1, 10)
    """
    both(host)
    message = Message(b"a", exchange="all", persistent=True)
    store.fail_at(1, FULL)
    with pytest.raises(StoreFull):
        host.publish(message)
    store.fail_at(1, FULL)
    errors: list[BaseException | None] = []
    published = host.publish_nowait(message)
    published.add_done_callback(errors.append)
    wait_until_blocked(lambda: errors)
    assert [type(error) for error in errors] == [StoreFull]
    assert [bodies(host, queue) for queue in "qrt"] == [[], [], [b"a", b"a"]]
    host.publish(message)
    assert [len(bodies(host, queue)) for queue in "qrt"] == [1, 1, 3]


def test_acks_go_on_while_the_store_is_full() -> None:
    """Messages leave a full store, and then others find room (broker-durability 10)."""
    host = VirtualHost(store=MemoryStore(max_bytes=1000))
    host.declare_queue("q", durable=True)
    host.publish(persistent(bytes(900)))
    with pytest.raises(StoreFull, match="900 of 1000"):
        host.publish(persistent(bytes(200)))
    received = host.get("q")
    assert received is not None
    received.accept(wait=True)
    host.publish(persistent(bytes(200)))
    assert len(host.queue("q")) == 1
    host.close()


def test_what_cannot_be_stored_is_refused_before_anything_happens(host: VirtualHost, store: MemoryStore) -> None:
    """A body that is no bytes, and a header that is no value of AMQP's, raise; no queue of the message has it."""
    both(host)
    commits = store.statistics().commits
    with pytest.raises(TypeError, match="dict; a durable queue keeps bytes"):
        host.publish(Message({"a": 1}, exchange="all", persistent=True))
    with pytest.raises(TypeError, match=r"headers\['who'\] is .* a set, which cannot be stored"):
        host.publish(Message(b"", exchange="all", persistent=True, headers={"who": {1}}))
    assert [bodies(host, queue) for queue in "qrt"] == [[], [], []]
    host.publish(Message(bytearray(b"a"), exchange="all", persistent=True))
    assert [bytes(body) for queue in "qr" for body in bodies(host, queue)] == [b"a", b"a"]  # type: ignore[call-overload]
    assert store.statistics().commits == commits + 1


# Limits, mandatory, immediate


def test_a_limit_counts_what_is_on_its_way(host: VirtualHost, store: MemoryStore) -> None:
    """A queue of at most two refuses the third while no commit is done yet, and takes one when one was refused.

    (broker-durability 9)
    """
    host.declare_queue("small", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    store.hold()
    first, second = (host.publish_nowait(persistent(body, key="small")) for body in (b"1", b"2"))
    with pytest.raises(MessageRefused):
        host.publish_nowait(persistent(b"3", key="small"))
    with pytest.raises(MessageRefused):
        host.publish(Message(b"transient", routing_key="small"))
    store.fail_at(1, FULL)
    store.release()
    with pytest.raises(StoreFull):
        first.wait(PATIENCE)
    assert second.wait(PATIENCE)
    host.publish(persistent(b"4", key="small"))
    with pytest.raises(MessageRefused):
        host.publish(persistent(b"5", key="small"))
    assert bodies(host, "small") == [b"2", b"4"]


def test_a_byte_limit_counts_what_is_on_its_way(host: VirtualHost, store: MemoryStore) -> None:
    """As many bytes as the queue may have, those that wait for a commit included."""
    settings = QueueSettings(durable=True, max_length_bytes=10, overflow=Overflow.REJECT)
    host.declare_queue("small", settings=settings)
    store.hold()
    host.publish_nowait(persistent(bytes(6), key="small"))
    with pytest.raises(MessageRefused):
        host.publish_nowait(persistent(bytes(5), key="small"))
    host.publish_nowait(persistent(bytes(4), key="small"))


def test_a_refusal_tells_of_the_queues_that_refused_after_the_others_have_it(host: VirtualHost) -> None:
    """MessageRefused comes when the commit for the other queues is done."""
    both(host)
    host.declare_queue("small", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    host.bind_queue("small", "all")
    with pytest.raises(MessageRefused) as refusal:
        host.publish(Message(b"a", exchange="all", persistent=True))
    assert refusal.value.queues == ("small",)
    assert [bodies(host, queue) for queue in "qrt"] == [[b"a"], [b"a"], [b"a"]]


def test_a_ring_drops_the_oldest_in_the_store_too(host: VirtualHost, store: MemoryStore) -> None:
    """What a ring evicts is deleted where it is stored."""
    host.declare_queue("ring", durable=True, arguments={"x-max-length": 2})
    for body in (b"1", b"2", b"3"):
        host.publish(persistent(body, key="ring"))
    host.wait_for_commits()
    assert bodies(host, "ring") == [b"2", b"3"]
    assert store.statistics().messages == 2


def test_flow_control_asks_the_publisher_of_a_durable_queue_to_wait(host: VirtualHost) -> None:
    """The message that goes over the limit is stored, and its publisher told."""
    settings = QueueSettings(durable=True, max_length=1, overflow=Overflow.FLOW_CONTROL)
    queue = host.declare_queue("flow", settings=settings)
    assert host.publish(persistent(key="flow")).throttled == ()
    published = host.publish(persistent(key="flow"))
    assert published.throttled == (queue,)
    assert not host.wait_for_room(published, timeout=0)
    take_all(host, "flow")
    assert host.wait_for_room(published, timeout=0)


def test_mandatory_and_immediate_are_decided_before_anything_is_stored(host: VirtualHost, store: MemoryStore) -> None:
    """Unroutable and NoConsumers come at once, with the store held; a willing consumer gets the message."""
    store.hold()
    with pytest.raises(Unroutable):
        host.publish(persistent(key="nowhere"), mandatory=True)
    with pytest.raises(NoConsumers):
        host.publish(persistent(), immediate=True)
    assert store.statistics().pending_operations == 0
    store.release()
    with host.subscribe("q") as subscription:
        host.publish(persistent(b"now"), immediate=True, mandatory=True)
        assert subscription.get(timeout=PATIENCE).body == b"now"


def test_a_message_whose_queue_is_deleted_meanwhile_leaves_nothing(host: VirtualHost, store: MemoryStore) -> None:
    """The queue went while the commit was under way: no row stays behind."""
    store.hold()
    published = host.publish_nowait(persistent(b"a"))
    deleter = threading.Thread(target=host.delete_queue, args=("q",))
    deleter.start()
    wait_until_blocked(lambda: store.statistics().pending_operations > 1)
    store.release()
    deleter.join(PATIENCE)
    assert published.wait(PATIENCE)
    host.wait_for_commits()
    assert store.statistics().messages == 0
    assert store.definitions() == []


# The end of the store


def test_a_store_that_fails_ends_everything(host: VirtualHost, store: MemoryStore) -> None:
    """Waiting publishers are told, subscriptions end, and nothing is accepted until the virtual host is opened again.

    (broker-durability 11)
    """
    host.publish(persistent(b"there"))
    subscription = host.subscribe("q")
    held = subscription.get(timeout=PATIENCE)
    store.hold()
    published = host.publish_nowait(persistent(b"lost"))
    errors: list[BaseException | None] = []
    published.add_done_callback(errors.append)
    store.fail_at(1, FAILED)
    store.release()
    with pytest.raises(StoreFailed):
        published.wait(PATIENCE)
    wait_until_blocked(lambda: errors)
    assert [type(error) for error in errors] == [StoreFailed]
    wait_until_blocked(lambda: subscription.is_closed)
    refused = (
        lambda: host.publish(persistent(b"x")),
        lambda: host.publish(Message(b"x", routing_key="q")),
        lambda: host.get("q"),
        lambda: host.declare_queue("x", durable=True),
        lambda: host.transaction().commit(),
        host.wait_for_commits,
    )
    for call in refused:
        with pytest.raises(StoreFailed, match="the disk failed"):
            call()
    with pytest.raises(ValueError, match="settled before"):
        held.accept()
    host.close()
    again = VirtualHost(store=store.reopened(crashed=True))
    assert take_all(again) == [(b"there", True)]
    again.close()


def test_a_publish_after_the_close_is_refused(host: VirtualHost, store: MemoryStore) -> None:
    """A store that was closed accepts nothing; a publisher that comes through at the last moment is told."""
    queue = host.queue("q")
    store.close()
    with pytest.raises(StoreClosed):
        host.publish(persistent(b"a"))
    for message in (persistent(b"a"), Message(b"a", routing_key="q")):
        with pytest.raises(StoreClosed):
            queue.put(message)
    assert len(queue) == 0
    queue.check_invariants()


def test_a_confirm_may_publish(host: VirtualHost, caplog: pytest.LogCaptureFixture) -> None:
    """A callback of a confirm waits for no commit, and one that fails stops no other."""
    echoes: list[bool] = []

    def confirmed(error: BaseException | None) -> None:
        published = host.publish(persistent(b"echo"))
        echoes.append(published.commit is not None)
        raise RuntimeError("after the echo")

    assert isinstance(host.store, MemoryStore)
    with holding(host.store):
        host.publish_nowait(persistent(b"a")).add_done_callback(confirmed)
        host.publish_nowait(persistent(b"b"))
    host.wait_for_commits()
    host.wait_for_commits()
    assert echoes == [True]
    assert bodies(host) == [b"a", b"b", b"echo"]
    assert "after the echo" in caplog.text


def test_what_is_committed_while_the_virtual_host_closes_stays(host: VirtualHost, store: MemoryStore) -> None:
    """A message that was admitted before its queue was closed and committed after it is there in the next life."""
    queue = host.queue("q")
    assert queue.journal is not None
    submission = queue.journal.batch()
    submission.put(queue, persistent(b"late"))
    queue.close()
    commit = submission.submit()
    assert commit is not None
    assert commit.wait(PATIENCE)
    host.close()
    again = VirtualHost(store=store.reopened())
    assert take_all(again) == [(b"late", False)]
    again.close()


def test_what_follows_a_commit_may_publish(store: MemoryStore) -> None:
    """An alert runs on the store's thread: its publish is under way when it returns, and waits for nothing."""
    echoed: list[object] = []

    def on_alert(alert: Alert) -> None:
        echoed.append(alerted.publish(persistent(b"alert", key="log")).commit)
        with pytest.raises(RuntimeError, match="store's thread"):
            alerted.wait_for_commits()
        with pytest.raises(RuntimeError, match="cannot be closed"):
            alerted.close()
        alerted.declare_queue("made by an alert", durable=True)

    alerted = VirtualHost(store=store, on_alert=on_alert)
    alerted.declare_queue("log", durable=True)
    alerted.declare_queue("q", settings=QueueSettings(durable=True, alerts=AlertThresholds(depth=1)))
    alerted.publish(persistent(b"1"))
    alerted.wait_for_commits()
    assert len(echoed) == 1
    assert bodies(alerted, "log") == [b"alert"]
    assert alerted.queue("made by an alert").is_stored
    alerted.close()
