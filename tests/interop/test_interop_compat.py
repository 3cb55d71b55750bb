"""What RabbitMQ 4.3 and 3.10 do with arguments, methods and types of exchange, and this broker by their rules.

`SEEN` was written down beside RabbitMQ 4.3.6 and 3.10.8 on 2026-11-25: a code and how its text goes on, or None where
the last of the methods is answered as asked. Each row runs here by the rules of both versions, and beside the RabbitMQ
of this machine. `MULTIQUEUE_RABBITMQ_4_3` names the port of a RabbitMQ 4.3 on this machine, beside which it runs too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from interop_wire_support import ChannelClosed, ConnectionClosed, Content, Hangup, Wire, WireChannel
from pamqp import commands
from rabbitmq_support import Peer, rules

from multiqueue.broker import Broker

REAL = os.environ.get("MULTIQUEUE_RABBITMQ_4_3")
Name = Callable[[str], str]
Answer = tuple[int, str] | None
Queue, Exchange, Basic = commands.Queue, commands.Exchange, commands.Basic


class Row(NamedTuple):
    methods: tuple[Callable[[str], Any], ...]
    newest: Answer  # at 4.3; `{}` stands for the name
    older: Answer  # at 3.10


def _queue(type: str | None = None, *, durable: bool = True, **more: Any) -> Callable[[str], Any]:
    flags = {name: more.pop(name, False) for name in ("exclusive", "auto_delete", "passive")}
    arguments = {f"x-{name.replace('_', '-')}": value for name, value in more.items()}
    arguments |= {} if type is None else {"x-queue-type": type}
    return lambda name: Queue.Declare(queue=name, durable=durable, arguments=arguments, **flags)


def _declared(newest: Answer, older: Answer, type: str | None = None, **more: Any) -> Row:
    return Row((_queue(type, **more),), newest, older)


def _invalid(argument: str, why: str) -> Answer:
    return 406, f"PRECONDITION_FAILED - invalid arg 'x-{argument}' for queue '{{}}' in vhost '/'{why}"


def _other(argument: str, received: str) -> Answer:
    inequivalent = f"PRECONDITION_FAILED - inequivalent arg 'x-{argument}' for queue '{{}}' in vhost '/'"
    return 406, f"{inequivalent}: received {received}"


def _foreign(argument: str, type: str) -> Answer:
    return _invalid(argument, f" of queue type rabbit_{type}_queue")


def _property(called: str) -> Answer:
    return 406, f"PRECONDITION_FAILED - invalid property '{called}' for queue '{{}}' in vhost '/'"


def _consumed(newest: Answer, older: Answer, type: str, **arguments: Any) -> Row:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Row((_queue(type), lambda name: Basic.Consume(queue=name, arguments=given)), newest, older)


def _again(newest: Answer, older: Answer, first: dict[str, Any], second: dict[str, Any]) -> Row:
    return Row((_queue(**first), _queue(**second)), newest, older)


def _typed(newest: Answer, older: Answer, kind: str) -> Row:
    return Row((lambda name: Exchange.Declare(exchange=name, exchange_type=kind),), newest, older)


_NEGATIVE, _TEXT = ": {{value_negative,-1}}", ': "expected integer, got longstr"'


_TIME = datetime(2026, 1, 2, tzinfo=UTC)
_REFUSED = "PRECONDITION_FAILED"


def _local(newest: Answer, type: str, key: str) -> Row:
    def exchange(name: str) -> Any:
        return Exchange.Declare(exchange=name, exchange_type="x-local-random")

    older = 503, "COMMAND_INVALID - unknown exchange type 'x-local-random'"
    bound = (_queue(type), exchange, lambda name: Queue.Bind(queue=name, exchange=name, routing_key=key))
    return Row(bound, newest, older)


_FAR = "cannot delete queue '{}' in vhost '/'. queue.delete operations with"
SEEN: dict[str, Row] = {
    # Properties
    "classic, transient": _declared(None, None, durable=False),
    "quorum, transient": _declared(*[_property("non-durable")] * 2, "quorum", durable=False),
    "quorum, exclusive": _declared(*[_property("exclusive-owner")] * 2, "quorum", exclusive=True),
    "quorum, auto-delete": _declared(*[_property("auto-delete")] * 2, "quorum", auto_delete=True),
    "quorum, exclusive and auto-delete": _declared(
        *[_property("auto-delete")] * 2, "quorum", durable=False, exclusive=True, auto_delete=True
    ),
    # Values
    "ttl -1": _declared(*[_invalid("message-ttl", _NEGATIVE)] * 2, message_ttl=-1),
    "ttl text": _declared(*[_invalid("message-ttl", _TEXT)] * 2, "quorum", message_ttl="1"),
    "ttl a time": _declared(*[_invalid("message-ttl", ': "expected integer, got timestamp"')] * 2, message_ttl=_TIME),
    "ttl bytes": _declared(
        *[_invalid("message-ttl", ': "expected integer, got binary"')] * 2, message_ttl=bytearray(b"1")
    ),
    "ttl huge": _declared(*[_invalid("message-ttl", f": {{{{value_too_large,{10**15}}}}}")] * 2, message_ttl=10**15),
    "expires 0": _declared(*[_invalid("expires", ": {{value_zero,0}}")] * 2, expires=0),
    "max-length -1": _declared(*[_invalid("max-length", _NEGATIVE)] * 2, max_length=-1),
    "overflow": _declared(*[_invalid("overflow", ": invalid_overflow")] * 2, overflow="bad"),
    "dead-letter key alone": _declared(
        *[_invalid("dead-letter-routing-key", ": routing_key_but_no_dlx_defined")] * 2, dead_letter_routing_key="k"
    ),
    "dead-letter exchange": _declared(*[(406, "PRECONDITION_FAILED - invalid type '")] * 2, dead_letter_exchange=5),
    "strategy": _declared(
        *[_invalid("dead-letter-strategy", ": invalid_dlx_strategy")] * 2, "quorum", dead_letter_strategy="bad"
    ),
    "max-priority 256": _declared(*[_invalid("max-priority", ": {{max_value_exceeded,256}}")] * 2, max_priority=256),
    "single active consumer": _declared(
        *[_invalid("single-active-consumer", ": {{unacceptable_type,longstr}}")] * 2, single_active_consumer="true"
    ),
    "queue type": _declared(*[_invalid("queue-type", ": \"unsupported queue type 'bad'\"")] * 2, "bad"),
    "queue type empty": _declared(None, _invalid("queue-type", ": \"unsupported queue type ''\""), ""),
    "queue mode": _declared(None, _invalid("queue-mode", ": \"unsupported queue mode 'bad'\""), queue_mode="bad"),
    "queue version 1": _declared(
        _invalid("queue-version", ": \"unsupported queue version '1'\""), None, queue_version=1
    ),
    "group size 0": _declared(
        *[_invalid("quorum-initial-group-size", ": {{value_zero,0}}")] * 2, "quorum", quorum_initial_group_size=0
    ),
    "leader locator": _declared(
        *[_invalid("queue-leader-locator", ": invalid_queue_locator_arg")] * 2, "quorum", queue_leader_locator="bad"
    ),
    "delivery limit text": _declared(None, None, "quorum", delivery_limit="a"),
    "delayed retry odd": _declared(None, None, "quorum", delayed_retry_type="bad", delayed_retry_min="a"),
    "value before type": _declared(*[_invalid("message-ttl", _NEGATIVE)] * 2, delivery_limit=3, message_ttl=-1),
    # Types
    "classic, delivery limit": _declared(*[_foreign("delivery-limit", "classic")] * 2, delivery_limit=3),
    "classic, strategy": _declared(
        *[_foreign("dead-letter-strategy", "classic")] * 2, dead_letter_strategy="at-most-once"
    ),
    "classic, leader locator": _declared(
        None, _foreign("queue-leader-locator", "classic"), queue_leader_locator="balanced"
    ),
    "classic, consumer timeout": _declared(_foreign("consumer-timeout", "classic"), None, consumer_timeout=1000),
    "classic, delayed retry": _declared(_foreign("delayed-retry-min", "classic"), None, delayed_retry_min=10),
    "classic, max age": _declared(*[_foreign("max-age", "classic")] * 2, max_age="1D"),
    "classic, filter size": _declared(
        _foreign("stream-filter-size-bytes", "classic"), None, stream_filter_size_bytes=16
    ),
    "quorum, max priority": _declared(*[_foreign("max-priority", "quorum")] * 2, "quorum", max_priority=5),
    "quorum, mode": _declared(*[_foreign("queue-mode", "quorum")] * 2, "quorum", queue_mode="lazy"),
    "quorum, version": _declared(*[_foreign("queue-version", "quorum")] * 2, "quorum", queue_version=2),
    "quorum, consumer timeout -1": _declared(
        _invalid("consumer-timeout", _NEGATIVE), None, "quorum", consumer_timeout=-1
    ),
    "quorum, master locator": _declared(
        *[_foreign("queue-master-locator", "quorum")] * 2, "quorum", queue_master_locator="min-masters"
    ),
    "quorum, all that it has": _declared(
        None,
        None,
        "quorum",
        delivery_limit=-1,
        message_ttl=3600000,
        expires=3600000,
        max_length=9,
        max_in_memory_length=3,
        single_active_consumer=True,
        overflow="reject-publish",
        dead_letter_exchange="",
        dead_letter_strategy="at-least-once",
    ),
    "a name that is unknown": _declared(None, None, mesage_ttl=1),
    "master locator": _declared(
        (541, "INTERNAL_ERROR - Feature `queue_master_locator` is deprecated.\n"),
        None,
        queue_master_locator="min-masters",
    ),
    # A second declaration
    "quorum, then no type": _again(
        (406, "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{}' in vhost '/': received 'classic'"),
        (406, "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{}' in vhost '/': received none"),
        {"type": "quorum"},
        {},
    ),
    "no type, then classic": _again(None, None, {}, {"type": "classic"}),
    "classic, then no type": _again(None, None, {"type": "classic"}, {}),
    "limit, then none": _again(
        *[(406, "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue '{}' in vhost '/': received")] * 2,
        {"type": "quorum", "delivery_limit": 3},
        {"type": "quorum"},
    ),
    "unknown, then none": _again(None, None, {"unknown": 1}, {}),
    "then an argument of another type": _again(None, None, {}, {"delivery_limit": 3}),
    "then a wrong one": _again(*[_other("expires", "the value '0' of type '")] * 2, {}, {"expires": 0}),
    "then a wrong one, which is exclusive": _again(
        *[(405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}'")] * 2,
        {},
        {"exclusive": True, "expires": 0},
    ),
    "two that differ": _again(
        *[_other("message-ttl", "none but current")] * 2, {"message_ttl": 9, "dead_letter_exchange": ""}, {}
    ),
    "two that differ, of a quorum queue": _again(
        *[_other("dead-letter-exchange", "none but current")] * 2,
        {"type": "quorum", "message_ttl": 9, "dead_letter_exchange": ""},
        {"type": "quorum"},
    ),
    "another type, and what is compared before it": _again(
        *[_other("single-active-consumer", "the value 'true' of type 'bool' but current is none")] * 2,
        {"type": "quorum"},
        {"single_active_consumer": True, "type": "classic"},
    ),
    # The order in which they are looked at
    "dead-letter exchange first": _declared(
        *[(406, "PRECONDITION_FAILED - invalid type '")] * 2, dead_letter_exchange=5, expires=0
    ),
    "dead-letter key before length": _declared(
        *[_invalid("dead-letter-routing-key", ": routing_key_but_no_dlx_defined")] * 2,
        dead_letter_routing_key="k",
        max_length=-1,
    ),
    "an exchange and a queue that are missing": Row(
        (lambda name: Queue.Bind(queue=name, exchange=name),), *[(404, "NOT_FOUND - no exchange '{}'")] * 2
    ),
    # Consumers
    "priority text": _consumed(*[_invalid("priority", _TEXT)] * 2, "quorum", priority="a"),
    "classic, consumer's timeout": _consumed(
        _foreign("consumer-timeout", "classic"), None, "classic", consumer_timeout=1000
    ),
    "quorum, consumer's timeout": _consumed(None, None, "quorum", consumer_timeout=100000),
    "quorum, consumer's timeout -1": _consumed(
        _invalid("consumer-timeout", _NEGATIVE), None, "quorum", consumer_timeout=-1
    ),
    "classic, offset": _consumed(*[_foreign("stream-offset", "classic")] * 2, "classic", stream_offset="first"),
    "quorum, filter": _consumed(_foreign("stream-filter", "quorum"), None, "quorum", stream_filter="a"),
    "quorum, failover": _consumed(
        None, _foreign("cancel-on-ha-failover", "quorum"), "quorum", cancel_on_ha_failover=True
    ),
    "quorum, an exclusive consumer beside others": Row(
        (
            _queue("quorum", single_active_consumer=True),
            lambda name: Basic.Consume(queue=name, consumer_tag="a", exclusive=True),
            lambda name: Basic.Consume(queue=name, consumer_tag="b", exclusive=True),
        ),
        None,
        None,
    ),
    # Methods
    "a global prefetch before a quorum queue's consumer": Row(
        (
            _queue("quorum"),
            lambda name: Basic.Qos(0, 1, True),
            lambda name: Basic.Consume(queue=name, consumer_tag="t"),
        ),
        None,
        (540, "NOT_IMPLEMENTED - queue '{}' in vhost '/' does not support global qos"),
    ),
    "quorum, deleted if unused": Row(
        (_queue("quorum"), lambda name: Queue.Delete(queue=name, if_unused=True)),
        *[(540, f"NOT_IMPLEMENTED - {_FAR} if-unused flag set are not supported by quorum queues")] * 2,
    ),
    "quorum, deleted if empty": Row(
        (_queue("quorum"), lambda name: Queue.Delete(queue=name, if_empty=True)),
        *[(540, f"NOT_IMPLEMENTED - {_FAR} if-empty flag set are not supported by quorum queues")] * 2,
    ),
    "quorum, named by the server": Row(
        (lambda name: Queue.Declare(queue="", durable=True, arguments={"x-queue-type": "quorum"}),),
        *[(406, "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue")] * 2,
    ),
    "quorum, a get beside a single consumer": Row(
        (_queue("quorum", single_active_consumer=True), lambda name: Basic.Get(queue=name)),
        *[(405, "RESOURCE_LOCKED - cannot obtain access to locked queue '{}' in vhost '/'. basic.get operations")] * 2,
    ),
    # Exchanges
    "no such type": _typed(
        (406, "PRECONDITION_FAILED - unknown exchange type 'bogus'"),
        (503, "COMMAND_INVALID - unknown exchange type 'bogus'"),
        "bogus",
    ),
    "local random, a classic queue": _local(None, "classic", ""),
    "local random, with a key": _local((406, f"{_REFUSED} - Non empty binding 'k' key not permitted"), "classic", "k"),
    "local random, a quorum queue": _local(
        (406, f"{_REFUSED} - Queue type rabbit_quorum_queue not valid for this exchange type"), "quorum", ""
    ),
    "local random, an exchange": Row(
        (
            lambda name: Exchange.Declare(exchange=name, exchange_type="x-local-random"),
            lambda name: Exchange.Bind(destination="amq.fanout", source=name),
        ),
        (406, f"{_REFUSED} - Destination not found"),
        (503, "COMMAND_INVALID - unknown exchange type 'x-local-random'"),
    ),
}


@pytest.fixture(scope="module", params=["4.3", "3.10", "rabbitmq", "rabbitmq 4.3"])
def version_and_port(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Rules, and where a broker listens that keeps them: ours twice, and RabbitMQ."""
    if request.param == "rabbitmq":
        peer: Peer = request.getfixturevalue("rabbitmq_peer")
        yield rules(), peer.port
    elif request.param == "rabbitmq 4.3":
        if REAL is None:
            pytest.skip("MULTIQUEUE_RABBITMQ_4_3 names no port")
        yield "4.3", int(REAL)
    else:
        with Broker(compat=request.param, housekeeping_interval=0.01) as broker, broker.listen() as server:
            yield request.param, server.port


@pytest.fixture
def version(version_and_port: tuple[str, int]) -> str:
    return version_and_port[0]


@pytest.fixture
def port(version_and_port: tuple[str, int]) -> int:
    return version_and_port[1]


@pytest.fixture
def queue(port: int, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a queue that is deleted afterwards."""
    name = f"compat-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    with Wire(port) as wire:
        channel = wire.open().channel()
        channel.call(Queue.Delete(queue=name))
        channel.call(Exchange.Delete(exchange=name))


@pytest.mark.parametrize("called", SEEN)
def test_a_version_answers_as_it_was_seen_to(called: str, version: str, port: int, queue: str) -> None:
    """The code, and RabbitMQ's text from its beginning; what is taken there is taken here."""
    row = SEEN[called]
    wanted = row.newest if version == "4.3" else row.older
    found: Answer = None
    with Wire(port) as wire:
        channel = wire.open().channel()
        try:
            for method in row.methods:
                channel.call(method(queue))
        except (ChannelClosed, ConnectionClosed) as closed:
            found = closed.code, closed.text
    if wanted is None or found is None:
        assert found == wanted
    else:
        code, text = wanted
        assert (found[0], found[1][: len(text.format(queue))]) == (code, text.format(queue))


# -- what quorum queues do


def _channel(wire: Wire, queue: str, **arguments: Any) -> WireChannel:
    channel = wire.open().channel()
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.declare(queue, durable=True, arguments={"x-queue-type": "quorum", **given})
    return channel


def _next(channel: WireChannel, queue: str, within: float = 5.0) -> Content | None:
    deadline = time.monotonic() + within
    while (message := channel.get(queue, no_ack=False)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return message


def _counts(message: Content) -> tuple[bool, object, object]:
    headers = message.headers
    return message.method.redelivered, headers.get("x-delivery-count"), headers.get("x-acquired-count")


@pytest.mark.parametrize("how", ["reject", "nack", "recover", "channel"])
def test_a_quorum_queue_counts_deliveries(how: str, version: str, port: int, queue: str) -> None:
    """4.3: a reject and a lost channel come nearer to the limit, a nack and a recover not. 3.10: all do."""
    seen = []
    with Wire(port) as wire:
        channel = _channel(wire, queue, delivery_limit=2)
        channel.publish(queue, b"!")
        for turn in range(4):
            other = channel if how != "channel" else wire.channel(turn + 2)
            message = _next(other, queue, 1.0 if turn == 3 else 5.0)
            if message is None:
                break
            seen.append(_counts(message))
            if how == "reject":
                other.reject(message.tag)
            elif how == "nack":
                other.nack(message.tag)
            elif how == "recover":
                other.call(Basic.Recover(True))
            else:
                other.close()
    if version == "3.10":
        assert seen == [(turn > 0, turn, None) for turn in range(3)]
    elif how in ("reject", "channel"):
        assert seen == [(turn > 0, turn or None, turn or None) for turn in range(3)]
    else:
        assert seen == [(turn > 0, None, turn or None) for turn in range(4)]


@pytest.mark.parametrize("first", ["reject", "nack"])
@pytest.mark.parametrize("last", ["reject", "nack"])
def test_a_dead_letter_has_its_past(first: str, last: str, version: str, port: int, queue: str) -> None:
    """4.3: what was rejected, also at last, is redelivered in the next queue, which counts on. 3.10: it is new."""
    with Wire(port) as wire:
        channel = _channel(wire, queue, dead_letter_exchange="amq.fanout")
        targets = {kind: f"{queue}-{kind}" for kind in ("classic", "quorum")}
        for kind, target in targets.items():
            channel.declare(target, durable=True, arguments={"x-queue-type": kind})
            channel.call(commands.Queue.Bind(queue=target, exchange="amq.fanout"))
        channel.publish(queue, b"!")
        for how, requeue in ((first, True), (last, False)):
            message = _next(channel, queue)
            assert message is not None
            if how == "reject":
                channel.send(Basic.Reject(message.tag, requeue=requeue))
            else:
                channel.send(Basic.Nack(message.tag, multiple=False, requeue=requeue))
        seen = {}
        for kind, target in targets.items():
            seen[kind] = []
            for _ in range(2):
                message = _next(channel, target)
                assert message is not None
                seen[kind].append(_counts(message))
                channel.reject(message.tag)
            channel.call(Queue.Delete(queue=target))
    if version == "3.10":
        assert seen == {
            "classic": [(turn, None, None) for turn in (False, True)],
            "quorum": [(False, 0, None), (True, 1, None)],
        }
    else:
        failures = (first, last).count("reject")
        was, now = failures > 0, failures or None
        assert seen == {
            "classic": [(was, None, None), (True, None, None)],
            "quorum": [(was, now, now), (True, failures + 1, 1)],
        }


def test_the_first_delivery_of_a_quorum_queue(version: str, port: int, queue: str) -> None:
    """3.10 tells of no delivery before it, but only where the message was got."""
    with Wire(port) as wire:
        channel = _channel(wire, queue)
        channel.publish(queue, b"!")
        channel.publish(queue, b"!")
        got = _next(channel, queue)
        channel.consume(queue)
        assert got is not None
        counts = [_counts(each)[1] for each in (got, channel.next())]
        assert counts == [0 if version == "3.10" else None, None]


def test_a_poisoned_message_ends_after_21_deliveries(version: str, port: int, queue: str) -> None:
    """4.3 has a limit of 20 where none is given; 3.10 has none."""
    with Wire(port) as wire:
        channel = _channel(wire, queue)
        channel.publish(queue, b"!")
        for _ in range(21):
            message = _next(channel, queue)
            assert message is not None
            channel.reject(message.tag)
        assert (_next(channel, queue, 0.3) is None) == (version == "4.3")


def test_a_quorum_queue_has_32_priorities(version: str, port: int, queue: str) -> None:
    """4.3: the highest first, 4 where none is set, all above 31 are 31. 3.10: as they came."""
    sent = [0, None, 3, 4, 5, 31, 32, 255, 1]
    with Wire(port) as wire:
        channel = _channel(wire, queue)
        for priority in sent:
            channel.publish(queue, str(priority).encode(), priority=priority)
        channel.count_becomes(queue, len(sent))
        found = [body.decode() for body in channel.drain(queue)]
    assert found == (["31", "32", "255", "5", "None", "4", "3", "1", "0"] if version == "4.3" else list(map(str, sent)))


@pytest.mark.parametrize(
    ("most", "doings", "seen"),
    [
        (1, "ppp g p g ppp", "AAN g N g AAN"),
        (3, "ppppp g p g ppp", "AAAAN g N g AAN"),
        (3, "ppppp t p t ppp rr p", "AAAAN t N t AAN rr N"),
        (1, "p t p r g p", "A t A r g N"),
        (0, "pp g p", "AN g A"),
    ],
)
def test_a_quorum_queue_refuses_late(most: int, doings: str, seen: str, port: int, queue: str) -> None:
    """It takes one message too many, and then none until four fifths of its length or less are ready."""
    found, taken = "", []
    with Wire(port) as wire:
        channel = _channel(wire, queue, max_length=most, overflow="reject-publish")
        publisher = wire.channel(2)
        publisher.call(commands.Confirm.Select())
        for doing in doings:
            ready = channel.count(queue)
            if doing == "p":
                publisher.publish(queue, b"!")
                found += type(publisher.next()).__name__[0]
                continue
            found += doing
            if doing == "t":
                taken.append(channel.get(queue, no_ack=False).tag)
            elif doing == "g":
                channel.get(queue)
            elif doing == "r":
                channel.nack(taken.pop(0))
            if doing != " ":
                channel.count_becomes(queue, ready + (1 if doing == "r" else -1))
    assert found == seen


@pytest.mark.parametrize("most", [4096, 8192])
def test_a_frame_may_have_as_much(most: int, version: str, port: int) -> None:
    """4.3: 8192 bytes at least, or the connection ends (P3)."""
    with Wire(port) as wire:
        if version == "4.3" and most < 8192:
            with pytest.raises((ConnectionClosed, Hangup)):
                wire.open(frame_max=most)
        else:
            wire.open(frame_max=most)


def test_what_begins_a_connection(version: str, port: int) -> None:
    """4.3 does not answer clients of AMQP 0-8, 3.10 does (P21)."""
    with Wire(port) as wire:
        wire.send_bytes(b"AMQP\x01\x01\x08\x00")
        assert wire.read_bytes().startswith(b"AMQP") == (version == "4.3")


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_late_message_stays_until_it_is_at_the_head(kind: str, no_ack: bool, port: int, queue: str) -> None:
    """Of both versions and types: it is counted behind another, and goes when that is taken, settled or not."""
    with Wire(port) as wire:
        channel = wire.open().channel()
        channel.declare(queue, durable=True, arguments={"x-queue-type": kind})
        other = channel.declare(exclusive=True)
        channel.publish(queue, b"first")
        channel.publish(queue, b"late", expiration="50")
        channel.publish(other, b"of a longer life", expiration="100")
        channel.count_becomes(queue, 2)
        channel.count_becomes(other, 0)
        assert channel.count(queue) == 2
        assert channel.get(queue, no_ack=no_ack) is not None
        channel.count_becomes(queue, 0)


@pytest.mark.parametrize(("kind", "how", "is_held"), [
    ("all", "reject", True), ("all", "nack", True), ("failed", "reject", True), ("failed", "nack", False),
    ("returned", "reject", False), ("returned", "nack", True), ("disabled", "nack", False),
])  # fmt: skip
def test_a_message_that_came_back_waits(
    kind: str, how: str, is_held: bool, version: str, port: int, queue: str
) -> None:
    """4.3: as x-delayed-retry-type chooses. What waits is not ready."""
    with Wire(port) as wire:
        channel = _channel(wire, queue, delayed_retry_type=kind, delayed_retry_min=400)
        channel.publish(queue, b"!")
        message = _next(channel, queue)
        assert message is not None
        began = time.monotonic()
        channel.reject(message.tag) if how == "reject" else channel.nack(message.tag)
        message = _next(channel, queue)
        assert message is not None
        assert (time.monotonic() - began >= 0.39) or not (is_held and version == "4.3")


@pytest.mark.parametrize("by", ["queue", "consumer"])
@pytest.mark.parametrize("hears", [True, False])
def test_a_consumer_settles_in_time(by: str, hears: bool, version: str, port: int, queue: str) -> None:
    """4.3: past the timeout the message goes back; the client hears of a cancel, or loses its channel."""
    if version != "4.3":
        pytest.skip("x-consumer-timeout is 4.3's")
    arguments = {"x-consumer-timeout": 100}
    with Wire(port) as wire:
        wire.start()
        wire.start_ok(capabilities={"basic.nack": True, "consumer_cancel_notify": hears})
        wire.tune = wire.wait(0)
        channel = _channel(wire, queue, **({"consumer_timeout": 100} if by == "queue" else {}))
        channel.publish(queue, b"!")
        channel.consume(queue, consumer_tag="late", arguments=arguments if by == "consumer" else None)
        assert channel.next().body == b"!"
        if hears:
            assert channel.next().consumer_tag == "late"
        else:
            with pytest.raises(ChannelClosed, match="delivery acknowledgement on channel 1 timed out") as closed:
                channel.next()
            assert closed.value.code == 406


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_commit_needs_the_queues_of_its_messages(kind: str, version: str, port: int, queue: str) -> None:
    """4.3 closes the connection where one is gone; 3.10 leaves its message out."""
    with Wire(port) as wire:
        channel, other = wire.open().channel(1), wire.channel(2)
        channel.declare(queue, durable=True, arguments={"x-queue-type": kind})
        other.call(commands.Tx.Select())
        other.publish(queue, b"!")
        other.sync()
        channel.call(Queue.Delete(queue=queue))
        if version == "3.10":
            other.call(commands.Tx.Commit())
            return
        with pytest.raises(ConnectionClosed, match="failed to deliver message: ") as closed:
            other.call(commands.Tx.Commit())
        assert (closed.value.code, closed.value.cause) == (506, (90, 20))


# -- publishing


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_a_delivery_mode_that_means_nothing(mode: int, version: str, port: int, queue: str) -> None:
    """4.3 keeps it, and the message is transient; 3.10 refuses it."""
    with Wire(port) as wire:
        channel = wire.open().channel()
        channel.declare(queue, durable=True)
        channel.send(Basic.Publish(exchange="", routing_key=queue))
        payload = b"\0\x3c\0\0" + bytes(8) + b"\x10\0" + bytes([mode])
        wire.send_bytes(b"\x02\0\x01" + len(payload).to_bytes(4) + payload + b"\xce")
        if version == "3.10":
            with pytest.raises(ChannelClosed, match=r"delivery mode|delivery_mode") as closed:
                channel.sync()
            assert closed.value.code == 406
        else:
            message = _next(channel, queue)
            assert message is not None
            assert message.properties.delivery_mode == mode


def test_an_expiration_with_a_sign(port: int, queue: str) -> None:
    """As Erlang reads numbers: +60000 is one."""
    with Wire(port) as wire:
        channel = wire.open().channel()
        channel.declare(queue, durable=True)
        channel.publish(queue, b"!", expiration="+60000")
        message = _next(channel, queue)
        assert message is not None
        assert message.body == b"!"


# -- channels


def test_a_channel_that_is_opened_again_before_its_close_is_answered(port: int, queue: str) -> None:
    """504: the client has not said that it knows of the end."""
    with Wire(port) as wire:
        channel = wire.open().channel()
        channel.send(Queue.Declare(queue=queue, passive=True))
        assert isinstance(wire.read_frame()[1], commands.Channel.Close)
        channel.send(commands.Channel.Open())
        with pytest.raises(ConnectionClosed, match=r"second 'channel.open' seen") as closed:
            wire.wait(1)
        assert closed.value.code == 504
