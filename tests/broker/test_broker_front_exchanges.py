"""Types of exchange that RabbitMQ has with a plug-in, or since 4.0: delayed, consistent hash, random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from multiqueue.broker import BrokerError, Compat, Message, PreconditionFailed, VirtualHost
from multiqueue.store import MemoryStore
from multiqueue.testing import FakeClock

DELAYED: Mapping[str, object] = {"x-delayed-type": "topic"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def delaying(clock: FakeClock, **options: object) -> VirtualHost:
    """A virtual host whose exchange `later` leads to the queue `q`, both durable."""
    host = VirtualHost(clock=clock, wall_clock=clock, **options)  # type: ignore[arg-type]
    host.declare_exchange("later", "x-delayed-message", durable=True, arguments=DELAYED)
    host.declare_queue("q", durable=True)
    host.bind_queue("q", "later", "a.*")
    return host


def later(body: bytes, delay: object, **properties: object) -> Message:
    return Message(body, exchange="later", routing_key="a.b", headers={"x-delay": delay, "own": 1}, **properties)  # type: ignore[arg-type]


def ready(host: VirtualHost) -> list[object]:
    """The bodies that can be had now, taken out."""
    return [received.message.body for received in iter(lambda: host.get("q", auto_accept=True), None)]


def pass_time(host: VirtualHost, clock: FakeClock, seconds: float) -> None:
    clock.advance(seconds)
    host.queue("q").housekeeping()


def test_a_delayed_message_waits_for_its_time(clock: FakeClock) -> None:
    """By x-delay, whatever came before it; the header says on arrival, negated, that it has waited."""
    host = delaying(clock)
    for body, delay in ((b"3", 3000), (b"1", 1000), (b"now", None), (b"text", "1000"), (b"past", -5)):
        host.publish(later(body, delay))
    assert ready(host) == [b"now", b"text", b"past"]
    pass_time(host, clock, 1.0)
    received = host.get("q", auto_accept=True)
    assert received is not None
    assert (received.message.body, received.message.headers) == (b"1", {"x-delay": -1000, "own": 1})
    pass_time(host, clock, 1.9)
    assert ready(host) == []
    pass_time(host, clock, 0.1)
    assert ready(host) == [b"3"]


def test_what_waits_is_seen_and_can_be_cancelled(clock: FakeClock) -> None:
    """It is in the queue's figures, and deleted by a selector or a purge."""
    host = delaying(clock)
    for number in range(3):
        host.publish(later(b"%d" % number, 1000 + number))
    figures = host.queue("q").statistics()
    assert (figures.held, figures.available) == (3, 0)
    assert host.queue("q").delete_messages(lambda message: message.body == b"1") == 1
    assert host.queue("q").purge() == 2
    pass_time(host, clock, 5.0)
    assert ready(host) == []


def test_what_waits_outlives_its_process(clock: FakeClock) -> None:
    """A persistent message keeps its time, and its exchange what it delays for."""
    store = MemoryStore()
    host = delaying(clock, store=store)
    host.publish(later(b"kept", 10_000, persistent=True))
    host.close()
    clock.advance(4.0)
    host = VirtualHost(store=store.reopened(crashed=False), clock=clock, wall_clock=clock)
    host.publish(later(b"new", 7_000))
    pass_time(host, clock, 5.9)
    assert ready(host) == []
    pass_time(host, clock, 0.1)
    assert ready(host) == [b"kept"]
    pass_time(host, clock, 1.0)
    assert ready(host) == [b"new"]
    host.close()


def test_a_transaction_delays_too(clock: FakeClock) -> None:
    """The time runs from the commit."""
    host = delaying(clock)
    with host.transaction() as transaction:
        transaction.publish(later(b"!", 1000))
        clock.advance(5.0)
    assert ready(host) == []
    pass_time(host, clock, 1.0)
    assert ready(host) == [b"!"]


def test_a_dead_letter_waits_too(clock: FakeClock) -> None:
    """As at the plug-in: an exchange delays all that comes to it, and what has waited once does not wait again."""
    host = delaying(clock)
    letters = {"x-dead-letter-exchange": "later", "x-dead-letter-routing-key": "a.b"}
    host.declare_queue("work", arguments=letters)
    host.publish(Message(b"1", routing_key="work", headers={"x-delay": 1000}))
    host.publish(Message(b"waited", routing_key="work", headers={"x-delay": -1000}))
    for _ in range(2):
        received = host.get("work")
        assert received is not None
        received.reject()
    assert ready(host) == [b"waited"]
    pass_time(host, clock, 1.0)
    assert ready(host) == [b"1"]


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": 1}])
def test_an_exchange_delays_for_a_type(clock: FakeClock, arguments: Mapping[str, object]) -> None:
    """Without a type of its own it could route nothing: refused, in the plug-in's words."""
    with pytest.raises(PreconditionFailed, match="'x-delayed-type' must be an existing exchange type"):
        VirtualHost(clock=clock).declare_exchange("x", "x-delayed-message", arguments=arguments)


# -- one of many


def with_queues(kind: str, weights: Mapping[str, str], **arguments: object) -> VirtualHost:
    host = VirtualHost()
    host.declare_exchange("x", kind, arguments={name.replace("_", "-"): value for name, value in arguments.items()})
    for queue, weight in weights.items():
        host.declare_queue(queue)
        host.bind_queue(queue, "x", weight)
    return host


def where(host: VirtualHost, *keys: str, **properties: object) -> list[str]:
    """The queues that get a message of each key, one each."""
    found = []
    for key in keys:
        (queue,) = host.route(Message(exchange="x", routing_key=key, **properties))  # type: ignore[arg-type]
        found.append(queue.name)
    return found


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_a_random_exchange_chooses_for_each_message(kind: str) -> None:
    """Each message goes to one queue, and no queue is forgotten, whatever the key; with no queue it is unroutable."""
    host = with_queues(kind, {"a": "", "b": "", "c": ""})
    assert set(where(host, *["k"] * 300)) == {"a", "b", "c"}
    publisher = host.publisher(lambda *told: None)
    assert publisher.publish_all([Message(b"", exchange="x")] * 2, []) is None
    assert with_queues(kind, {}).route(Message(exchange="x")) == []


def test_a_ring_keeps_a_key_at_its_queue() -> None:
    """As long as the queues stay; of a queue that goes the keys alone move."""
    host = with_queues("x-consistent-hash", {"a": "10", "b": "10", "c": "20"})
    keys = [f"key {number}" for number in range(2000)]
    before = where(host, *keys)
    assert where(host, *keys) == before
    shares = Counter(before)
    assert set(shares) == {"a", "b", "c"}
    host.unbind_queue("c", "x", "20")
    after = where(host, *keys)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "c")
    assert set(after) == {"a", "b"}


def test_a_ring_gives_by_weight() -> None:
    """A binding with nine times the places has most of the keys."""
    host = with_queues("x-consistent-hash", {"small": "50", "large": "450"})
    shares = Counter(where(host, *map(str, range(3000))))
    assert 0.8 < shares["large"] / 3000 < 0.97


def test_a_ring_hashes_what_it_is_told_to() -> None:
    """A header or a property stands for the routing key."""
    host = with_queues("x-consistent-hash", {"a": "20", "b": "20"}, hash_header="tenant")
    assert len(set(where(host, *map(str, range(100)), headers={"tenant": "t"}))) == 1
    host = with_queues("x-consistent-hash", {"a": "20", "b": "20"}, hash_property="message_id")
    assert len(set(where(host, *map(str, range(100)), message_id="m"))) == 1
    found = {where(host, "k", message_id=str(number))[0] for number in range(100)}
    assert found == {"a", "b"}


@pytest.mark.parametrize("weight", ["", "0", "-1", "x", "1.5", "1001", "00010000"])
def test_a_place_on_a_ring_is_a_number(weight: str) -> None:
    """The binding is refused, and is not there."""
    host = with_queues("x-consistent-hash", {})
    host.declare_queue("q")
    with pytest.raises(PreconditionFailed, match="The binding key must be an integer from 1 to 1000"):
        host.bind_queue("q", "x", weight)
    assert host.route(Message(exchange="x", routing_key="k")) == []


@pytest.mark.parametrize(
    "arguments", [{"hash-property": "type"}, {"hash-property": "message_id", "hash-header": "h"}], ids=str
)
def test_a_ring_is_refused_that_hashes_nothing_known(arguments: Mapping[str, object]) -> None:
    """And it is not declared."""
    host = VirtualHost()
    with pytest.raises(PreconditionFailed, match=r"hash-header|property"):
        host.declare_exchange("x", "x-consistent-hash", arguments=arguments)
    assert "x" not in {exchange.name for exchange in host.exchanges()}


def test_only_newer_versions_have_a_local_random_exchange() -> None:
    """3.10 knows no such type, and closes the connection of who asks."""
    with pytest.raises(BrokerError, match="unknown exchange type 'x-local-random'") as refused:
        VirtualHost(compat=Compat("3.10")).declare_exchange("x", "x-local-random")
    assert (refused.value.reply_code, refused.value.closes) == (503, "connection")
