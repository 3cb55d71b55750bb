"""A publisher that hands what it publishes to the store in runs: each message is as if it were published alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_durable_support import bodies, persistent, take_all
from broker_parts_support import PagedEntries

from multiqueue.broker import (
    Broker,
    Message,
    MessageRefused,
    NotFound,
    Overflow,
    Publisher,
    QueueSettings,
    Unroutable,
    VirtualHost,
)
from multiqueue.store import MemoryStore, StoreClosed, StoreFailed, StoreFull
from multiqueue.testing import wait_until_blocked

FULL = StoreFull("no room")
FAILED = StoreFailed("the disk failed")
Told = list[tuple[object, bool]]


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


@pytest.fixture
def told() -> Told:
    """What the publisher was told, in order: tags, and whether they were refused."""
    return []


@pytest.fixture
def publisher(host: VirtualHost, told: Told) -> Publisher:
    return host.publisher(told.extend)


def pending(store: MemoryStore) -> int:
    return store.statistics().pending_operations


def test_the_store_has_nothing_before_it_is_handed_in(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """Messages gather, are handed in together, and are one commit; then they are told in order."""
    store.hold()
    for number in range(5):
        assert publisher.publish(persistent(b"%d" % number), tag=number).run is not None
    assert pending(store) == 0
    publisher.hand_in()
    assert pending(store) == 5
    assert bodies(host) == []
    store.release(1)
    wait_until_blocked(lambda: told)
    assert bodies(host) == [b"0", b"1", b"2", b"3", b"4"]
    assert told == [(number, False) for number in range(5)]
    assert host.memory_statistics().writing == 0


def test_a_long_run_is_handed_in_by_itself(store: MemoryStore, publisher: Publisher) -> None:
    """A publisher without a pause keeps the store at work: it gets 64 messages at a time."""
    store.hold()
    for _ in range(150):
        publisher.publish(persistent())
    assert pending(store) == 128
    publisher.hand_in()
    assert pending(store) == 150


def test_a_run_keeps_within_the_budget(host: VirtualHost, store: MemoryStore, publisher: Publisher) -> None:
    """A run is no more than a sixteenth of the memory limit and a message, whatever the messages' sizes."""
    host.memory_limit = 160 * 1024
    store.hold()
    count = 0
    while not pending(store):
        publisher.publish(persistent(bytes(1000)))
        count += 1
    assert (count - 1) * 1768 < 10 * 1024 <= count * 1768
    assert host.memory_statistics().writing <= 10 * 1024 + 1768 + 100


def test_a_run_that_is_done_keeps_no_body(host: VirtualHost, publisher: Publisher) -> None:
    """Its publisher may keep a run, and the message may be large: when it was taken, its body is gone."""
    body = b"%1000d" % 1
    sent = publisher.publish(persistent(body))
    publisher.hand_in()
    host.wait_for_commits()
    (received,) = take_all(host)
    del received
    host.wait_for_commits()
    assert sent.run is not None
    assert sent.run.is_done
    assert gc.get_referrers(body) == []


def test_who_is_told_of_nothing_is_not_called(host: VirtualHost, publisher: Publisher, told: Told) -> None:
    """Messages without a tag are stored like any other."""
    publisher.publish(persistent(b"a"))
    publisher.hand_in()
    host.wait_for_commits()
    assert bodies(host) == [b"a"]
    assert told == []


def test_a_queue_that_pages_takes_runs_unless_it_is_to_refuse_or_to_hold(tmp_path: Path, told: Told) -> None:
    """Its store has the room. Where it is behind, or its memory is full of what no store keeps, each is asked for."""
    with Broker(data=tmp_path, durability="relaxed", memory_limit=1 << 19) as broker:
        queue, host = broker.declare_queue("q", durable=True), broker.virtual_host()
        sent = [b"%d" % number for number in range(700)]
        for body in sent[:600]:
            broker.publish(persistent(body.ljust(1024)))
        assert isinstance(queue.life.source, PagedEntries)
        publisher = host.publisher(told.extend)
        for first in range(600, 700, 20):
            run = [persistent(body.ljust(1024)) for body in sent[first : first + 20]]
            limit = queue.life.limit
            limit.fall_behind()
            assert publisher.publish_all(run, []) is None
            limit.catch_up([])
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(limit, "_is_overfull", lambda: True)
                assert publisher.publish_all(run, []) is None
            assert publisher.publish_all(run, range(first, first + 20)) is not None
            publisher.hand_in()
        host.wait_for_commits()
        assert told == [(number, False) for number in range(600, 700)]
        assert [bytes(body).strip() for body, _ in take_all(host)] == sent  # type: ignore[call-overload]
        host.check_invariants()


# One refused among others


def test_a_store_refuses_one_message_of_a_run_alone(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """The third finds no room: it is told so, its place on the queue is free again, and the others are there."""
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    host.declare_queue("small", durable=True, arguments=arguments)
    store.fail_at(3, FULL)
    for number in range(1, 6):
        publisher.publish(persistent(b"%d" % number, key="small"), tag=number)
    publisher.hand_in()
    host.wait_for_commits()
    assert told == [(1, False), (2, False), (3, True), (4, False), (5, False)]
    assert bodies(host, "small") == [b"1", b"2", b"4", b"5"]
    host.publish(persistent(b"6", key="small"))
    with pytest.raises(MessageRefused):
        host.publish(persistent(b"7", key="small"))
    host.queue("small").check_invariants()


def test_a_store_refuses_one_of_messages_that_were_put_together(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """Behind one that came alone the second of three finds no room: the others are there, and no room is kept."""
    store.fail_at(3, FULL)
    publisher.publish(persistent(b"0"), tag=0)
    assert publisher.publish_all([persistent(b"%d" % number) for number in (1, 2, 3)], (1, 2, 3)) is not None
    publisher.hand_in()
    host.wait_for_commits()
    assert told == [(0, False), (1, False), (2, True), (3, False)]
    assert host.queue("q").life._admitted == 0
    assert bodies(host) == [b"0", b"1", b"3"]
    host.queue("q").check_invariants()


def test_a_message_of_a_run_is_refused_on_all_of_its_queues(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """A message for two durable queues is on both or on neither; a queue in memory has it at once."""
    host.declare_exchange("all", "fanout", durable=True)
    host.declare_queue("r", durable=True)
    host.declare_queue("t")
    for queue in ("q", "r", "t"):
        host.bind_queue(queue, "all")
    store.hold()
    store.fail_at(2, FULL)
    for body in (b"1", b"2", b"3"):
        publisher.publish(Message(body, exchange="all", persistent=True), tag=body)
    assert [bodies(host, queue) for queue in "qrt"] == [[], [], [b"1", b"2", b"3"]]
    publisher.hand_in()
    store.release()
    host.wait_for_commits()
    assert told == [(b"1", False), (b"2", True), (b"3", False)]
    assert [bodies(host, queue) for queue in "qr"] == [[b"1", b"3"], [b"1", b"3"]]


def test_a_limit_in_the_middle_of_a_run(host: VirtualHost, publisher: Publisher, told: Told) -> None:
    """A queue counts what is not handed in yet: the third raises at once, before anything is stored."""
    host.declare_queue("small", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in (1, 2):
        publisher.publish(persistent(b"%d" % number, key="small"), tag=number)
    with pytest.raises(MessageRefused):
        publisher.publish(persistent(b"3", key="small"), tag=3)
    publisher.publish(persistent(b"4"), tag=4)
    publisher.hand_in()
    host.wait_for_commits()
    assert told == [(1, False), (2, False), (4, False)]
    assert (bodies(host, "small"), bodies(host)) == ([b"1", b"2"], [b"4"])


def test_a_message_that_one_of_its_queues_refuses_is_told_once(
    host: VirtualHost, publisher: Publisher, told: Told
) -> None:
    """Its publisher hears of the refusal at once and of nothing later; the other queue gets it."""
    host.declare_exchange("all", "fanout", durable=True)
    host.declare_queue("small", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for queue in ("q", "small"):
        host.bind_queue(queue, "all")
    with pytest.raises(MessageRefused):
        publisher.publish(Message(b"1", exchange="all", persistent=True), tag=1)
    publisher.publish(persistent(b"2"), tag=2)
    publisher.hand_in()
    host.wait_for_commits()
    assert told == [(2, False)]
    assert bodies(host) == [b"1", b"2"]


def test_what_leads_nowhere_does_not_stop_a_run(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """Unroutable and NotFound are raised at once, in between; what is not mandatory is simply gone."""
    store.hold()
    publisher.publish(persistent(b"1"), tag=1)
    with pytest.raises(Unroutable):
        publisher.publish(persistent(key="nowhere"), mandatory=True, tag=2)
    with pytest.raises(NotFound):
        publisher.publish(Message(exchange="nonesuch", persistent=True), tag=3)
    assert publisher.publish(persistent(key="nowhere"), tag=4) == ((), None)
    publisher.publish(persistent(b"5"), mandatory=True, tag=5)
    assert pending(store) == 0
    publisher.hand_in()
    store.release()
    host.wait_for_commits()
    assert told == [(1, False), (5, False)]
    assert bodies(host) == [b"1", b"5"]


def test_flow_control_asks_at_once(host: VirtualHost, publisher: Publisher, told: Told) -> None:
    """The message that goes over the limit says so when it is published; it is stored like the others."""
    settings = QueueSettings(durable=True, max_length=1, overflow=Overflow.FLOW_CONTROL)
    queue = host.declare_queue("flow", settings=settings)
    assert publisher.publish(persistent(key="flow"), tag=1).throttled == ()
    sent = publisher.publish(persistent(key="flow"), tag=2)
    assert sent.throttled == (queue,)
    publisher.hand_in()
    host.wait_for_commits()
    assert told == [(1, False), (2, False)]


# Order


def test_transient_messages_keep_their_place_between_durable_ones(
    host: VirtualHost, store: MemoryStore, publisher: Publisher
) -> None:
    """Messages of one publisher join a queue in its order, whichever of them are stored (broker-durability 3)."""
    store.hold()
    for number in range(6):
        publisher.publish(Message(b"%d" % number, routing_key="q", persistent=number % 3 < 2))
    publisher.hand_in()
    store.release()
    for _ in range(3):
        host.wait_for_commits()
    assert bodies(host) == [b"%d" % number for number in range(6)]


def test_publishers_keep_their_orders(host: VirtualHost) -> None:
    """Two that fill runs at the same time: each one's messages are in its order, and its runs are in one piece."""
    one, other = host.publisher(lambda told: None), host.publisher(lambda told: None)
    for number in range(4):
        one.publish(persistent(b"a%d" % number))
        other.publish(persistent(b"b%d" % number))
    other.hand_in()
    one.hand_in()
    host.wait_for_commits()
    assert bodies(host) == [b"b0", b"b1", b"b2", b"b3", b"a0", b"a1", b"a2", b"a3"]


# Ends


def test_a_crash_leaves_a_beginning(host: VirtualHost, store: MemoryStore, publisher: Publisher) -> None:
    """What was handed in before a crash is there in order, without what was not committed yet."""
    store.hold()
    for number in range(6):
        publisher.publish(persistent(b"%d" % number))
        if number % 2:
            publisher.hand_in()
    store.release(2)
    wait_until_blocked(lambda: len(host.queue("q")) == 4)
    again = VirtualHost(store=store.reopened(crashed=True))
    assert take_all(again) == [(b"%d" % number, True) for number in range(4)]
    again.close()


def test_a_store_that_fails_in_a_run_tells_of_all_of_it(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """The store may have any of them, so none is confirmed, no room is kept, and the virtual host is at its end."""
    queue = host.queue("q")
    store.fail_at(2, FAILED)
    for number in range(3):
        publisher.publish(persistent(), tag=number)
    publisher.hand_in()
    wait_until_blocked(lambda: told)
    assert told == [(0, True), (1, True), (2, True)]
    assert (len(queue), queue.life._admitted) == (0, 0)
    with pytest.raises(StoreFailed):
        publisher.publish(persistent(), tag=3)


def test_a_store_at_its_end_takes_nothing(
    host: VirtualHost, store: MemoryStore, publisher: Publisher, told: Told
) -> None:
    """Handing in raises; what was kept for the messages is given back, and no publisher is told anything later."""
    queue = host.queue("q")
    for number in range(3):
        publisher.publish(persistent(), tag=number)
    store.close()
    with pytest.raises(StoreClosed):
        publisher.hand_in()
    assert told == []
    assert (len(queue), queue.life._admitted, queue.life._admitted_bytes) == (0, 0, 0)
    assert host.memory_statistics().writing == 0
    assert host._journal is not None
    assert host._journal.is_at_end
    publisher.hand_in()  # there is nothing left of it


def test_messages_of_a_run_join_their_queue_together(
    host: VirtualHost, publisher: Publisher, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was published for one queue joins it in one hold of its lock, though others' messages are between."""
    host.declare_queue("r", durable=True)
    joined: list[tuple[str, list[bytes]]] = []
    life_of = type(host.queue("q").life)
    arrive = life_of.arrive

    def note(life: Any, entries: Any, after: Any) -> Any:
        joined.append((entries[0].queue.name, [entry.message.body for entry in entries]))
        return arrive(life, entries, after)

    monkeypatch.setattr(life_of, "arrive", note)
    for body, key in ((b"1", "q"), (b"2", "q"), (b"3", "r"), (b"4", "q")):
        publisher.publish(persistent(body, key), tag=body)
    publisher.hand_in()
    wait_until_blocked(lambda: told)
    assert joined == [("q", [b"1", b"2", b"4"]), ("r", [b"3"])]


def test_what_one_queue_cannot_take_is_not_stored_on_another(
    host: VirtualHost, publisher: Publisher, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish that raises leaves nothing in the run, and keeps no room; those around it are stored as ever."""
    host.declare_exchange("all", "fanout")
    transient = host.declare_queue("t")
    host.bind_queue("q", "all")
    host.bind_queue("t", "all")
    publisher.publish(persistent(b"before"), tag=1)
    with monkeypatch.context() as patch:
        patch.setattr(transient, "put", raising)
        with pytest.raises(ZeroDivisionError):
            publisher.publish(Message(b"neither", exchange="all", persistent=True), tag=2)
    publisher.publish(persistent(b"after"), tag=3)
    publisher.hand_in()
    wait_until_blocked(lambda: told)
    assert told == [(1, False), (3, False)]
    assert bodies(host) == [b"before", b"after"]
    assert host.queue("q").life._admitted == 0


def raising(*arguments: object, **named: object) -> None:
    raise ZeroDivisionError


def test_a_queue_that_goes_while_a_run_gathers(host: VirtualHost, store: MemoryStore, publisher: Publisher) -> None:
    """Its messages go with it; those for other queues do not."""
    host.declare_queue("r", durable=True)
    publisher.publish(persistent(b"1"))
    publisher.publish(persistent(b"2", key="r"))
    host.delete_queue("q")
    publisher.hand_in()
    host.wait_for_commits()
    assert bodies(host, "r") == [b"2"]
    assert store.statistics().messages == 1


def test_a_teller_that_fails_stops_nobody(host: VirtualHost, caplog: pytest.LogCaptureFixture) -> None:
    """What it raises is logged; the messages are there, and the store goes on."""

    def fail(told: Told) -> None:
        raise RuntimeError("told in vain")

    publisher = host.publisher(fail)
    publisher.publish(persistent(b"1"), tag=1)
    publisher.hand_in()
    host.publish(persistent(b"2"))
    assert bodies(host) == [b"1", b"2"]
    assert "told in vain" in caplog.text


def test_who_is_told_may_publish(host: VirtualHost) -> None:
    """On the store's thread a publish waits for no commit: it is under way when it returns."""
    waited: list[bool] = []

    def echo(told: Told) -> None:
        waited.append(host.publish(persistent(b"echo")).is_confirmed)

    publisher = host.publisher(echo)
    publisher.publish(persistent(b"1"), tag=1)
    publisher.hand_in()
    host.wait_for_commits()
    host.wait_for_commits()
    assert waited == [False]
    assert bodies(host) == [b"1", b"echo"]


def test_without_a_store_everything_is_there_at_once() -> None:
    """A publisher of a virtual host in memory has nothing to hand in."""
    host = VirtualHost()
    host.declare_queue("q", durable=True)
    publisher = host.publisher(lambda told: None)
    assert publisher.publish(persistent(b"1"), tag=1) == ((), None)
    assert bodies(host) == [b"1"]
    publisher.hand_in()
    host.close()
