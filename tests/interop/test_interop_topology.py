"""Exchanges, queues and bindings: who gets a message, what may be declared, used and deleted, on both brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interop_wire_support import ChannelClosed, ConnectionClosed, Wire, WireChannel
from pamqp import commands
from rabbitmq_support import rules

Name = Callable[[str], str]
Connect = Callable[..., Wire]
Queue, Exchange, Basic = commands.Queue, commands.Exchange, commands.Basic


def routed(channel: WireChannel, exchange: str, key: str = "", **properties: Any) -> None:
    channel.publish(key, b"!", exchange=exchange, **properties)


def has_copies(channel: WireChannel, queue: str) -> int:
    """How many copies came; none is left."""
    return len(channel.drain(queue))


# -- exchanges


def test_a_direct_exchange_compares_keys(channel: WireChannel, name: Name) -> None:
    """All queues bound with the very key get a copy, the others none (B32)."""
    exchange, one, two, other = name("x"), *(channel.declare(name("q"), exclusive=True) for _ in range(3))
    channel.exchange(exchange)
    for queue, key in ((one, "k"), (two, "k"), (other, "K")):
        channel.bind(queue, exchange, key)
    routed(channel, exchange, "k")
    assert [has_copies(channel, queue) for queue in (one, two, other)] == [1, 1, 0]


def test_a_fanout_exchange_ignores_keys(channel: WireChannel, name: Name) -> None:
    """Every bound queue gets one copy (B33)."""
    exchange, *queues = name("x"), *(channel.declare(name("q"), exclusive=True) for _ in range(3))
    channel.exchange(exchange, "fanout")
    for number, queue in enumerate(queues):
        channel.bind(queue, exchange, f"key {number}")
    routed(channel, exchange, "anything")
    assert [has_copies(channel, queue) for queue in queues] == [1, 1, 1]


@pytest.mark.parametrize(
    ("pattern", "matching", "not_matching"),
    [
        ("*", ("a", "long"), ("", "a.b")),
        ("#", ("", "a", "a.b", "a..b"), ()),
        ("a.*", ("a.b", "a."), ("a", "a.b.c", "b.a")),
        ("a.#", ("a", "a.b", "a.b.c"), ("b", "ab", "b.a")),
        ("#.z", ("z", "y.z", "x.y.z"), ("z.y", "")),
        ("a.#.z", ("a.z", "a.b.z", "a.b.c.z"), ("a", "z", "a.b")),
        ("*.*", ("a.b", ".", "a."), ("a", "a.b.c")),
        ("#.*", ("a", "a.b"), ("",)),
        ("", ("",), ("a", ".")),
        ("a..b", ("a..b",), ("a.b", "a.x.b")),
        ("*.#.*", ("a.b", "a.b.c"), ("a",)),
        ("a*", ("a*",), ("a", "ab")),
        ("#.a.#.b.#", ("a.b", "x.a.y.b.z", "a.a.b"), ("b.a", "a")),
    ],
)
def test_a_topic_exchange_matches_words(
    channel: WireChannel, name: Name, pattern: str, matching: tuple[str, ...], not_matching: tuple[str, ...]
) -> None:
    """`*` is one word, `#` any number; nothing between two dots is a word; the empty key is matched by "" and #.

    (B34)
    """
    exchange, queue = name("x"), channel.declare(name("q"), exclusive=True)
    channel.exchange(exchange, "topic")
    channel.bind(queue, exchange, pattern)
    for key in (*matching, *not_matching):
        channel.publish(key, key.encode(), exchange=exchange)
    assert channel.drain(queue) == [key.encode() for key in matching]


@pytest.mark.parametrize(
    ("binding", "headers", "gets_it"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "more": True}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2}, False),
        ({"x-match": "any", "a": 1}, None, False),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "all"}, None, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "a": None}, {"a": "whatever"}, True),
        ({"x-match": "all", "a": 1}, {"a": "1"}, False),
        ({"x-match": "all", "x-ignored": 1}, {}, True),
    ],
)
def test_a_headers_exchange_compares_headers(
    channel: WireChannel, name: Name, binding: dict[str, Any], headers: dict[str, Any] | None, gets_it: bool
) -> None:
    """All of them unless x-match says any; x- headers of the binding do not count; no value means: is it there.

    (B35)
    """
    exchange, queue = name("x"), channel.declare(name("q"), exclusive=True)
    channel.exchange(exchange, "headers")
    channel.bind(queue, exchange, arguments=binding)
    routed(channel, exchange, headers=headers)
    assert has_copies(channel, queue) == gets_it


def test_a_headers_binding_must_know_how_to_match(channel: WireChannel, name: Name) -> None:
    """x-match is all or any (or, newer, all-with-x and any-with-x); anything else is 406."""
    exchange, queue = name("x"), channel.declare(name("q"), exclusive=True)
    channel.exchange(exchange, "headers")
    with pytest.raises(ChannelClosed) as closed:
        channel.bind(queue, exchange, arguments={"x-match": "some"})
    assert closed.value.code == 406


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_a_queue_gets_one_copy_however_many_bindings_match(channel: WireChannel, name: Name, kind: str) -> None:
    """Also when one of the ways leads through a second exchange (B36)."""
    exchange, second, queue = name("x"), name("y"), channel.declare(name("q"), exclusive=True)
    channel.exchange(exchange, kind)
    channel.exchange(second, "fanout")
    channel.bind(queue, exchange, "k")
    channel.bind(queue, exchange, "k", {"another": True})
    channel.bind(queue, second)
    channel.call(Exchange.Bind(destination=second, source=exchange, routing_key="k"))
    routed(channel, exchange, "k")
    assert has_copies(channel, queue) == 1


def test_exchanges_are_bound_to_exchanges(channel: WireChannel, name: Name) -> None:
    """Messages go on along the bindings, in circles if need be; an unbound one gets no more (B37)."""
    first, second, queue = name("x"), name("y"), channel.declare(name("q"), exclusive=True)
    channel.exchange(first, "topic")
    channel.exchange(second, "fanout")
    channel.bind(queue, second)
    channel.call(Exchange.Bind(destination=second, source=first, routing_key="a.*"))
    channel.call(Exchange.Bind(destination=first, source=second, routing_key="#"))
    for key in ("a.b", "b.b"):
        routed(channel, first, key)
    assert has_copies(channel, queue) == 1
    channel.call(Exchange.Unbind(destination=second, source=first, routing_key="a.*"))
    routed(channel, first, "a.b")
    assert has_copies(channel, queue) == 0


def test_an_alternate_exchange_gets_what_has_no_queue(channel: WireChannel, name: Name) -> None:
    """What is bound goes its way; the rest goes to the alternate one, and then counts as routed (B38)."""
    exchange, rest = name("x"), name("rest")
    bound, unbound = (channel.declare(name("q"), exclusive=True) for _ in range(2))
    channel.exchange(rest, "fanout")
    channel.exchange(exchange, arguments={"alternate-exchange": rest})
    channel.bind(bound, exchange, "k")
    channel.bind(unbound, rest)
    for key in ("k", "no such key"):
        channel.publish(key, key.encode(), exchange=exchange, mandatory=True)
    assert channel.drain(bound) == [b"k"]
    assert channel.drain(unbound) == [b"no such key"]
    assert channel.kept() == []


def test_an_internal_exchange_cannot_be_published_to(channel: WireChannel, name: Name) -> None:
    """403, though what comes from another exchange passes (B39)."""
    outer, inner, queue = name("x"), name("inner"), channel.declare(name("q"), exclusive=True)
    channel.exchange(outer, "fanout")
    channel.exchange(inner, "fanout", internal=True)
    channel.call(Exchange.Bind(destination=inner, source=outer))
    channel.bind(queue, inner)
    routed(channel, outer)
    assert has_copies(channel, queue) == 1
    routed(channel, inner)
    with pytest.raises(ChannelClosed, match="cannot publish to internal exchange") as closed:
        channel.sync()
    assert (closed.value.code, closed.value.name) == (403, "ACCESS_REFUSED")


def test_every_queue_is_bound_to_the_default_exchange(channel: WireChannel, name: Name) -> None:
    """With its name as key, and nothing else is."""
    queue = channel.declare(name("q"), exclusive=True)
    channel.publish(queue, b"!")
    channel.publish(queue + "x", b"lost")
    assert channel.drain(queue) == [b"!"]


def test_the_standard_exchanges_are_there(channel: WireChannel) -> None:
    """amq.direct, amq.fanout, amq.topic, amq.headers, amq.match: durable, of the kind their name says."""
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange(f"amq.{kind}", kind, durable=True)
    channel.exchange("amq.match", "headers", durable=True)


# -- what is refused: what was sent, the reply code, what the text must contain

REFUSED: dict[str, tuple[Callable[[str], Any], int, str, str]] = {
    "default exchange, bound": (lambda q: Queue.Bind(queue=q, exchange=""), 403, "ACCESS_REFUSED", "default exchange"),
    "default exchange, unbound": (lambda q: Queue.Unbind(queue=q), 403, "ACCESS_REFUSED", "default exchange"),
    "default exchange, deleted": (lambda q: Exchange.Delete(exchange=""), 403, "ACCESS_REFUSED", "default exchange"),
    "default exchange, declared": (
        lambda q: Exchange.Declare(exchange="", exchange_type="direct", durable=True),
        403,
        "ACCESS_REFUSED",
        "default exchange",
    ),
    "reserved exchange name": (lambda q: Exchange.Declare(exchange="amq.mine"), 403, "ACCESS_REFUSED", "amq.mine"),
    "reserved queue name": (lambda q: Queue.Declare(queue="amq.mine"), 403, "ACCESS_REFUSED", "amq.mine"),
    "standard exchange, deleted": (lambda q: Exchange.Delete(exchange="amq.direct"), 403, "ACCESS_REFUSED", "amq."),
    "no such queue, passive": (
        lambda q: Queue.Declare(queue="nope", passive=True),
        404,
        "NOT_FOUND",
        "no queue 'nope' in",
    ),
    "no such exchange, passive": (
        lambda q: Exchange.Declare(exchange="nope", passive=True),
        404,
        "NOT_FOUND",
        "no exchange 'nope' in vhost '/'",
    ),
    "no such queue, bound": (
        lambda q: Queue.Bind(queue="nope", exchange="amq.direct"),
        404,
        "NOT_FOUND",
        "no queue 'nope'",
    ),
    "no such exchange, bound": (lambda q: Queue.Bind(queue=q, exchange="nope"), 404, "NOT_FOUND", "no exchange 'nope'"),
    "no such queue, purged": (lambda q: Queue.Purge(queue="nope"), 404, "NOT_FOUND", "no queue 'nope'"),
    "no such queue, got from": (lambda q: Basic.Get(queue="nope"), 404, "NOT_FOUND", "no queue 'nope' in vhost '/'"),
    "no such queue, consumed": (
        lambda q: Basic.Consume(queue="nope"),
        404,
        "NOT_FOUND",
        "no queue 'nope' in vhost '/'",
    ),
    "no such source": (
        lambda q: Exchange.Bind(destination="amq.direct", source="nope"),
        404,
        "NOT_FOUND",
        "no exchange 'nope'",
    ),
    "other exclusiveness": (lambda q: Queue.Declare(queue=q), 405, "RESOURCE_LOCKED", "locked queue"),
    "other auto-delete": (
        lambda q: Queue.Declare(queue=q, auto_delete=True, exclusive=True),
        406,
        "PRECONDITION_FAILED",
        "inequivalent arg 'auto_delete' for queue",
    ),
    "other arguments": (
        lambda q: Queue.Declare(queue=q, exclusive=True, arguments={"x-max-length": 5}),
        406,
        "PRECONDITION_FAILED",
        "inequivalent arg 'x-max-length' for queue",
    ),
    "other exchange type": (
        lambda q: Exchange.Declare(exchange="amq.fanout", exchange_type="direct", durable=True),
        406,
        "PRECONDITION_FAILED",
        "inequivalent arg 'type' for exchange 'amq.fanout'",
    ),
    "other exchange durability": (
        lambda q: Exchange.Declare(exchange="amq.fanout", exchange_type="fanout"),
        406,
        "PRECONDITION_FAILED",
        "inequivalent arg 'durable' for exchange 'amq.fanout'",
    ),
    "an argument out of range": (
        lambda q: Queue.Declare(queue="new", arguments={"x-message-ttl": -1}),
        406,
        "PRECONDITION_FAILED",
        "x-message-ttl",
    ),
    "an argument of the wrong type": (
        lambda q: Queue.Declare(queue="new", arguments={"x-max-length": "many"}),
        406,
        "PRECONDITION_FAILED",
        "x-max-length",
    ),
    "an unknown overflow": (
        lambda q: Queue.Declare(queue="new", arguments={"x-overflow": "explode"}),
        406,
        "PRECONDITION_FAILED",
        "x-overflow",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_closes_the_channel_with_its_code(channel: WireChannel, name: Name, what: str) -> None:
    """403, 404 or 406, with RabbitMQ's name of it and what it was about; the connection goes on.

    (B24, B25, B27, B28)
    """
    make, code, reply, part = REFUSED[what]
    queue = channel.declare(name("q"), exclusive=True)
    with pytest.raises(ChannelClosed) as closed:
        channel.call(make(queue))
    assert (closed.value.code, closed.value.name) == (code, reply)
    assert part in closed.value.text
    assert channel.exists(queue)


def test_an_unknown_exchange_type_is_refused(channel: WireChannel, name: Name) -> None:
    """406 on the channel, as RabbitMQ does since 4.0; 3.10 ends the connection with 503 COMMAND_INVALID."""
    is_old = rules() == "3.10"
    with pytest.raises(ConnectionClosed if is_old else ChannelClosed, match="exchange type") as closed:
        channel.exchange(name("x"), "x-no-such-type")
    assert closed.value.code == (503 if is_old else 406)


# -- declaring and deleting what is there, and what is not


def test_declaring_again_alike_changes_nothing(channel: WireChannel, name: Name) -> None:
    """Equal settings and arguments are agreed to; the reply counts messages and consumers (B26)."""
    queue, exchange = name("q"), name("x")
    for _ in range(2):
        channel.exchange(exchange, "topic", auto_delete=True)
        channel.declare(queue, exclusive=True, arguments={"x-max-length": 10})
        channel.bind(queue, exchange, "k")
    channel.fill(queue, b"1", b"2")
    answer = channel.call(Queue.Declare(queue=queue, exclusive=True, arguments={"x-max-length": 10}))
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 2, 0)


def test_a_queues_durability_cannot_be_redeclared(channel: WireChannel, name: Name) -> None:
    """406, for a queue that is not exclusive; one that is lives with its connection, and the flag means nothing."""
    own = channel.declare(name("q"), exclusive=True)
    assert channel.declare(own, exclusive=True, durable=True) == own
    queue = channel.declare(name("q"))
    with pytest.raises(ChannelClosed, match="inequivalent arg 'durable' for queue") as closed:
        channel.declare(queue, durable=True)
    assert closed.value.code == 406
    channel.wire.channel(2).call(Queue.Delete(queue=queue))


def test_deleting_what_is_not_there_is_no_error(channel: WireChannel, name: Name) -> None:
    """delete-ok, unbind-ok; nothing was deleted (B29)."""
    queue = channel.declare(name("q"), exclusive=True)
    assert channel.call(Queue.Delete(queue=name("q"))).message_count == 0
    channel.call(Exchange.Delete(exchange=name("x")))
    channel.call(Queue.Unbind(queue=queue, exchange="amq.direct", routing_key="never bound"))


def test_deleting_counts_what_it_deletes(channel: WireChannel, name: Name) -> None:
    """delete-ok and purge-ok say how many messages went; unacknowledged ones stay in a purge."""
    queue = channel.declare(name("q"), exclusive=True)
    channel.fill(queue, b"1", b"2", b"3")
    channel.get(queue, no_ack=False)
    assert channel.call(Queue.Purge(queue=queue)).message_count == 2
    channel.fill(queue, b"4")
    assert channel.call(Queue.Delete(queue=queue)).message_count == 1
    assert not channel.exists(queue)


@pytest.mark.parametrize("reason", ["if_unused", "if_empty"])
def test_deleting_can_be_made_conditional(channel: WireChannel, name: Name, reason: str) -> None:
    """if-unused refuses while a consumer is there, if-empty while a message is: 406, and nothing is deleted."""
    queue = channel.declare(name("q"), exclusive=True)
    if reason == "if_unused":
        channel.consume(queue)
    else:
        channel.fill(queue, b"!")
    with pytest.raises(ChannelClosed) as closed:
        channel.call(Queue.Delete(queue=queue, **{reason: True}))
    assert (closed.value.code, closed.value.name) == (406, "PRECONDITION_FAILED")
    again = channel.wire.channel(2)
    if reason == "if_empty":
        again.drain(queue)
    again.call(Queue.Delete(queue=queue, **{reason: True}))
    assert not again.exists(queue)


def test_an_exchange_in_use_can_be_kept(channel: WireChannel, name: Name) -> None:
    """exchange.delete with if-unused is refused while something is bound; without, its bindings go with it."""
    exchange, queue = name("x"), channel.declare(name("q"), exclusive=True)
    channel.exchange(exchange, "fanout")
    channel.bind(queue, exchange)
    with pytest.raises(ChannelClosed, match="in use") as closed:
        channel.call(Exchange.Delete(exchange=exchange, if_unused=True))
    assert closed.value.code == 406
    again = channel.wire.channel(2)
    again.call(Exchange.Delete(exchange=exchange))
    again.exchange(exchange, "fanout")
    routed(again, exchange)
    assert has_copies(again, queue) == 0


def test_the_queue_declared_last_is_meant_by_an_empty_name(channel: WireChannel) -> None:
    """Bind, consume, get, purge and delete without a name are about it."""
    queue = channel.declare("", exclusive=True)
    assert queue.startswith("amq.gen-")
    channel.bind("", "amq.direct", "")
    channel.publish(queue, b"direct")
    assert channel.get("") is not None
    channel.consume("", consumer_tag="me")
    channel.cancel("me")
    assert channel.call(Queue.Delete(queue="")).message_count == 0
    assert not channel.exists(queue)


def test_an_empty_name_means_nothing_before_a_declaration(channel: WireChannel) -> None:
    """404 on a channel that declared no queue."""
    with pytest.raises(ChannelClosed, match="no previously declared queue") as closed:
        channel.consume("")
    assert closed.value.code == 404


# -- exclusive and auto-delete


LOCKED: dict[str, Callable[[str], Any]] = {
    "declare": lambda queue: Queue.Declare(queue=queue, exclusive=True),
    "passive declare": lambda queue: Queue.Declare(queue=queue, passive=True),
    "bind": lambda queue: Queue.Bind(queue=queue, exchange="amq.direct", routing_key=queue),
    "unbind": lambda queue: Queue.Unbind(queue=queue, exchange="amq.direct", routing_key=queue),
    "purge": lambda queue: Queue.Purge(queue=queue),
    "delete": lambda queue: Queue.Delete(queue=queue),
    "get": lambda queue: Basic.Get(queue=queue),
    "consume": lambda queue: Basic.Consume(queue=queue),
}


@pytest.mark.parametrize("use", LOCKED)
def test_an_exclusive_queue_is_locked_to_others(channel: WireChannel, connect: Connect, name: Name, use: str) -> None:
    """405 RESOURCE_LOCKED for another connection; a channel of the same one may do it (B19)."""
    queue = channel.declare(name("q"), exclusive=True)
    channel.bind(queue, "amq.direct", queue)
    with pytest.raises(ChannelClosed, match=f"exclusive access to locked queue '{queue}'") as closed:
        connect().channel().call(LOCKED[use](queue))
    assert (closed.value.code, closed.value.name) == (405, "RESOURCE_LOCKED")
    channel.wire.channel(2).call(LOCKED[use](queue))


def test_anybody_may_publish_to_an_exclusive_queue(channel: WireChannel, connect: Connect, name: Name) -> None:
    """Publishing is to an exchange, which does not ask whose queue it is (B20)."""
    queue = channel.declare(name("q"), exclusive=True)
    stranger = connect().channel()
    stranger.publish(queue, b"hello")
    stranger.close()
    channel.count_becomes(queue, 1)


@pytest.mark.parametrize("way", ["closed", "cut"])
def test_an_exclusive_queue_goes_with_its_connection(
    channel: WireChannel, connect: Connect, name: Name, way: str
) -> None:
    """Whether it is closed or lost; the name is free for the next (B21)."""
    queue, owner = name("q"), connect()
    owner.channel().declare(queue, exclusive=True)
    owner.close() if way == "closed" else owner.socket.close()
    becomes_free(channel, queue)


def becomes_free(channel: WireChannel, queue: str) -> None:
    """Ask until the queue is not locked and not there: what a cut does, it does soon, not at once."""
    number = 100
    while True:
        asking = channel.wire.channel(number)
        try:
            asking.count(queue)
        except ChannelClosed as closed:
            if closed.code == 404:
                return
            if closed.code != 405:
                raise
        number += 1
        assert number < 2000


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: WireChannel, connect: Connect, name: Name) -> None:
    """Not before it had one, not while one is left; however the last one goes (B22)."""
    queue = channel.declare(name("q"), auto_delete=True)
    assert channel.exists(queue)
    first = channel.consume(queue)
    other = connect()
    other.channel().consume(queue)
    channel.cancel(first)
    assert channel.exists(queue)
    other.close()
    assert not channel.exists(queue)


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: WireChannel, name: Name) -> None:
    """Not before it had one; also when the bound queue is deleted (B23)."""
    exchange, one, two = name("x"), *(channel.declare(name("q"), exclusive=True) for _ in range(2))
    channel.exchange(exchange, "fanout", auto_delete=True)
    channel.bind(one, exchange)
    channel.bind(two, exchange)
    channel.call(Queue.Unbind(queue=one, exchange=exchange))
    channel.call(Exchange.Declare(exchange=exchange, passive=True))
    channel.call(Queue.Delete(queue=two))
    with pytest.raises(ChannelClosed, match="no exchange"):
        channel.call(Exchange.Declare(exchange=exchange, passive=True))
