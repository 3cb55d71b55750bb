"""What a client of RabbitMQ relies on, one promise per test, against our server and against RabbitMQ.

The numbers are those of docs/design/amqp.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from amqp_raw_support import RawClient
from pamqp import commands

from multiqueue import amqp

Name = Callable[[str], str]


@pytest.fixture
def client(any_url: str) -> Iterator[RawClient]:
    with RawClient(any_url) as client:
        yield client


@pytest.fixture
def other(any_url: str) -> Iterator[RawClient]:
    with RawClient(any_url) as client:
        yield client


@pytest.fixture
def queue(client: RawClient, name: Name) -> str:
    declared = name("q")
    client.declare(declared)
    return declared


def fill(client: RawClient, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Publish, and wait until they are there."""
    for body in bodies:
        client.publish("", queue, body, **properties)
    while client.ready(queue) < len(bodies):
        pass


# -- order, redelivery, acks


def test_order_and_tags(client: RawClient, queue: str) -> None:
    """Messages of a queue come in the order they were published, with delivery tags from 1 (B1, B6)."""
    fill(client, queue, b"a", b"b", b"c")
    client.consume(queue)
    assert [(client.content().method.delivery_tag) for _ in range(3)] == [1, 2, 3]


def test_tags_count_per_channel_over_consumers(client: RawClient, queue: str, name: Name) -> None:
    """Two consumers of one channel share one count of delivery tags; another channel has its own (B6)."""
    client.declare(name("r"))
    client.consume(queue)
    client.consume(name("r"))
    client.channel(2)
    for target in (queue, name("r"), queue):
        client.publish("", target, b"x", channel=2)
    assert sorted(client.content().method.delivery_tag for _ in range(3)) == [1, 2, 3]


@pytest.mark.parametrize("way", ["nack", "reject", "recover", "close", "cut"])
def test_what_comes_back_takes_its_old_place(
    way: str, any_url: str, client: RawClient, other: RawClient, queue: str
) -> None:
    """Nack, reject, recover, a closed channel and a cut socket put messages back in order and flagged (B2, B3)."""
    fill(client, queue, b"a", b"b", b"c", b"d")
    holder = RawClient(any_url)
    first, second = holder.get(queue), holder.get(queue)
    assert first is not None
    assert second is not None
    if way == "nack":
        holder.nack(2, multiple=True)
    elif way == "reject":
        holder.send(amqp.encode_reject(1, 1) + amqp.encode_reject(1, 2))
    elif way == "recover":
        holder.call(1, commands.Basic.Recover, requeue=True)
    elif way == "close":
        holder.call(1, commands.Channel.Close)
    if way == "cut":
        holder.socket.close()
    while client.ready(queue) < 4:
        pass
    got = [other.get(queue, no_ack=True) for _ in range(4)]
    assert [(each.body, each.method.redelivered) for each in got if each] == [
        (b"a", True),
        (b"b", True),
        (b"c", False),
        (b"d", False),
    ]
    if way != "cut":
        holder.close()


def test_unacked_are_not_ready(client: RawClient, queue: str) -> None:
    """A message that was delivered and not acked is not in message_count (B4)."""
    fill(client, queue, b"a", b"b")
    client.get(queue)
    assert client.ready(queue) == 1


def test_cancel_keeps_what_is_unacked(client: RawClient, queue: str) -> None:
    """After a cancel, unacked messages stay with the channel and can be acked (B5)."""
    fill(client, queue, b"a")
    tag = client.consume(queue)
    client.content()
    client.call(1, commands.Basic.Cancel, consumer_tag=tag)
    assert client.ready(queue) == 0
    client.ack(1)
    client.call(1, commands.Channel.Close)
    client.channel(1)
    assert client.ready(queue) == 0


def test_multiple_and_zero(client: RawClient, queue: str) -> None:
    """An ack with `multiple` covers lower tags, tag 0 with `multiple` everything (B7, B8)."""
    fill(client, queue, b"a", b"b", b"c", b"d")
    for _ in range(4):
        client.get(queue)
    client.ack(2, multiple=True)
    client.ack(0, multiple=True)
    client.call(1, commands.Basic.Recover, requeue=True)
    assert client.ready(queue) == 0


@pytest.mark.parametrize("tag", [7, 1])
def test_an_unknown_tag_costs_the_channel(tag: int, client: RawClient, queue: str) -> None:
    """An ack for a tag that was never given, or a second ack, is a channel error 406 (B9)."""
    fill(client, queue, b"a")
    client.get(queue)
    client.ack(1)
    client.ack(tag)
    assert client.channel_error() == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        (commands.Basic.Recover, {"requeue": False}),
        (commands.Basic.Qos, {"prefetch_size": 1}),
        (commands.Channel.Flow, {"active": False}),
    ],
)
def test_what_is_not_implemented(method: Any, fields: dict[str, Any], any_url: str) -> None:
    """recover without requeue, a prefetch in bytes and flow from the client cost the connection: 540 (B10, B11)."""
    client = RawClient(any_url)
    client.send_method(1, method, **fields)
    code, text = client.connection_error()
    assert (code, text[:17]) == (540, "NOT_IMPLEMENTED -")


def test_immediate_is_not_implemented(any_url: str, name: Name) -> None:
    """An immediate publish costs the connection: 540 (B12)."""
    client = RawClient(any_url)
    client.publish("", name("q"), immediate=True)
    assert client.connection_error() == (540, "NOT_IMPLEMENTED - immediate=true")


# -- prefetch


def test_prefetch_per_consumer(client: RawClient, queue: str, name: Name) -> None:
    """qos without `global` holds for each consumer that starts later (B13)."""
    client.declare(name("r"))
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    for target in (queue, name("r")):
        fill(client, target, b"a", b"b")
    client.consume(queue)
    client.consume(name("r"))
    client.content(), client.content()
    assert (client.ready(queue), client.ready(name("r"))) == (1, 1)
    client.ack(1)
    client.content()


def test_prefetch_per_channel(client: RawClient, queue: str, name: Name) -> None:
    """qos with `global` holds for all consumers of the channel together (B14)."""
    client.declare(name("r"))
    client.call(1, commands.Basic.Qos, prefetch_count=1, global_=True)
    fill(client, queue, b"a")
    fill(client, name("r"), b"b")
    client.consume(queue)
    client.consume(name("r"))
    first = client.content().body
    assert client.is_silent()
    client.ack(1)
    assert {first, client.content().body} == {b"a", b"b"}


def test_prefetch_leaves_auto_ack_and_get_alone(client: RawClient, queue: str) -> None:
    """Neither a consumer without acks nor basic.get is limited by a prefetch (B15)."""
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    fill(client, queue, b"a", b"b", b"c", b"d")
    assert client.get(queue) is not None
    assert client.get(queue) is not None
    client.consume(queue, no_ack=True)
    assert client.bodies(2) == [b"c", b"d"]


def test_consumers_take_turns(client: RawClient, queue: str) -> None:
    """Consumers of one queue are served in turn (B16)."""
    client.channel(2)
    one, two = client.consume(queue, tag="one"), client.consume(queue, tag="two")
    for _ in range(6):
        client.publish("", queue, b"x", channel=2)
    tags = [client.content().method.consumer_tag for _ in range(6)]
    assert (tags.count(one), tags.count(two)) == (3, 3)


def test_a_stuck_consumer_gets_no_more_than_its_prefetch(client: RawClient, other: RawClient, queue: str) -> None:
    """With prefetch 1 a consumer that does not ack gets one message, the other all the rest (B17)."""
    for each in (client, other):
        each.call(1, commands.Basic.Qos, prefetch_count=1)
    client.consume(queue)
    client.publish("", queue, b"stuck")
    assert client.content().body == b"stuck"
    other.consume(queue)
    for number in range(5):
        client.publish("", queue, b"%d" % number)
    for number in range(5):
        got = other.content()
        assert got.body == b"%d" % number
        other.ack(got.method.delivery_tag)


# -- exclusive, auto-delete, names


@pytest.mark.parametrize("first", [True, False])
def test_exclusive_consumer(first: bool, client: RawClient, queue: str) -> None:
    """An exclusive consumer tolerates no other, and begins beside none: 403 (B18)."""
    client.consume(queue, exclusive=first)
    client.channel(2)
    client.send_method(2, commands.Basic.Consume, queue=queue, exclusive=not first)
    code, text = client.channel_error(2)
    assert code == 403
    assert text.startswith("ACCESS_REFUSED - queue '")
    assert text.endswith("in exclusive use")


def test_exclusive_queue(client: RawClient, other: RawClient, name: Name) -> None:
    """An exclusive queue is its connection's: 405 for others, who may publish to it all the same (B19, B20)."""
    mine = name("x")
    client.declare(mine, exclusive=True)
    client.channel(2)
    assert isinstance(client.declare(mine, exclusive=True, channel=2), commands.Queue.DeclareOk)
    for method, fields in (
        (commands.Queue.Declare, {"passive": True}),
        (commands.Queue.Declare, {}),
        (commands.Queue.Bind, {"exchange": "amq.direct"}),
        (commands.Queue.Purge, {}),
        (commands.Queue.Delete, {}),
        (commands.Basic.Get, {}),
        (commands.Basic.Consume, {}),
    ):
        other.send_method(1, method, queue=mine, **fields)
        code, text = other.channel_error()
        assert (code, text[:18]) == (405, "RESOURCE_LOCKED - "), method
    other.publish("", mine, b"for you")
    other.is_silent()
    while client.ready(mine) < 1:
        pass


@pytest.mark.parametrize("clean", [True, False])
def test_an_exclusive_queue_goes_with_its_connection(clean: bool, any_url: str, client: RawClient, name: Name) -> None:
    """However the connection ends (B21)."""
    owner = RawClient(any_url)
    owner.declare(name("x"), exclusive=True)
    if clean:
        owner.close()
    else:
        owner.socket.close()
    while isinstance(client.declare(name("x"), passive=True), commands.Channel.Close):
        client.send_method(1, commands.Channel.CloseOk)
        client.channel(1)
        answer = client.declare(name("x"))
        if isinstance(answer, commands.Queue.DeclareOk):
            return
        client.send_method(1, commands.Channel.CloseOk)
        client.channel(1)


def test_auto_delete_queue(client: RawClient, name: Name) -> None:
    """It goes after its last consumer, never before the first (B22)."""
    mine = name("a")
    client.declare(mine, auto_delete=True)
    assert client.ready(mine) == 0
    one, two = client.consume(mine), client.consume(mine)
    client.call(1, commands.Basic.Cancel, consumer_tag=one)
    assert client.ready(mine) == 0
    client.call(1, commands.Basic.Cancel, consumer_tag=two)
    client.send_method(1, commands.Queue.Declare, queue=mine, passive=True)
    assert client.channel_error()[0] == 404


def test_auto_delete_exchange(client: RawClient, queue: str, name: Name) -> None:
    """It goes after its last binding (B23)."""
    client.exchange(name("e"), "fanout", auto_delete=True)
    client.bind(queue, name("e"))
    client.exchange(name("e"), passive=True)
    client.call(1, commands.Queue.Unbind, queue=queue, exchange=name("e"))
    client.send_method(1, commands.Exchange.Declare, exchange=name("e"), passive=True)
    assert client.channel_error()[0] == 404


def test_reserved_names(client: RawClient, queue: str) -> None:
    """The default exchange takes no bindings and cannot be deleted; names with `amq.` are reserved (B24, B25)."""
    for method, fields in (
        (commands.Queue.Bind, {"queue": queue, "exchange": ""}),
        (commands.Exchange.Delete, {"exchange": ""}),
        (commands.Queue.Declare, {"queue": "amq.mine"}),
        (commands.Exchange.Declare, {"exchange": "amq.mine", "exchange_type": "direct"}),
    ):
        client.send_method(1, method, **fields)
        code, text = client.channel_error()
        assert (code, text[:17]) == (403, "ACCESS_REFUSED - "), method


def test_redeclaring(client: RawClient, queue: str, name: Name) -> None:
    """As it is: fine. Otherwise: 406, and it says what differs. Not there: 404 (B26, B27, B28)."""
    assert isinstance(client.declare(queue), commands.Queue.DeclareOk)
    client.send_method(1, commands.Queue.Declare, queue=queue, auto_delete=True)
    code, text = client.channel_error()
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue")
    client.send_method(1, commands.Queue.Declare, queue=queue, arguments={"x-max-length": 4})
    assert client.channel_error()[0] == 406
    client.exchange(name("e"), "fanout")
    client.send_method(1, commands.Exchange.Declare, exchange=name("e"), exchange_type="topic")
    assert client.channel_error()[0] == 406
    client.send_method(1, commands.Queue.Declare, queue=name("nonesuch"), passive=True)
    code, text = client.channel_error()
    assert (code, text.partition(" in vhost")[0]) == (404, f"NOT_FOUND - no queue '{name('nonesuch')}'")


def test_undoing_what_is_not_there(client: RawClient, queue: str, name: Name) -> None:
    """Deleting or unbinding what is not there is no error (B29)."""
    assert client.call(1, commands.Queue.Delete, queue=name("nonesuch")).message_count == 0
    assert isinstance(client.call(1, commands.Exchange.Delete, exchange=name("nonesuch")), commands.Exchange.DeleteOk)
    unbound = client.call(1, commands.Queue.Unbind, queue=queue, exchange="amq.direct", routing_key="never")
    assert isinstance(unbound, commands.Queue.UnbindOk)


def test_consumer_tags(any_url: str, name: Name) -> None:
    """A tag used twice costs the connection: 530; cancelling an unknown one is fine (B30, B31)."""
    client = RawClient(any_url)
    client.declare(name("q"), auto_delete=True)
    assert client.call(1, commands.Basic.Cancel, consumer_tag="nobody").consumer_tag == "nobody"
    client.consume(name("q"), tag="me")
    client.send_method(1, commands.Basic.Consume, queue=name("q"), consumer_tag="me")
    assert client.connection_error() == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'me'")


# -- exchanges

ROUTES = [
    ("direct", "a.b", "a.b", True),
    ("direct", "a.b", "a", False),
    ("fanout", "whatever", "", True),
    ("topic", "a.*", "a.b", True),
    ("topic", "a.*", "a", False),
    ("topic", "a.*", "a.b.c", False),
    ("topic", "a.#", "a", True),
    ("topic", "a.#", "a.b.c", True),
    ("topic", "#", "", True),
    ("topic", "", "", True),
    ("topic", "*", "", False),
    ("topic", "a.*.c", "a..c", True),
    ("topic", "a.#.c", "a.c", True),
]


@pytest.mark.parametrize(("type", "binding", "key", "reaches"), ROUTES)
def test_routing(type: str, binding: str, key: str, reaches: bool, client: RawClient, queue: str, name: Name) -> None:
    """Direct, fanout and topic exchanges lead a key where it belongs (B32, B33, B34)."""
    client.exchange(name("e"), type)
    client.bind(queue, name("e"), binding)
    client.publish(name("e"), key, b"x", mandatory=True)
    if reaches:
        while client.ready(queue) < 1:
            pass
    else:
        assert client.content().method[:2] == (312, "NO_ROUTE")


@pytest.mark.parametrize(
    ("arguments", "headers", "reaches"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 1}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"a": 1}, {"a": 1}, True),
    ],
)
def test_headers_exchange(
    arguments: dict[str, Any], headers: dict[str, Any], reaches: bool, client: RawClient, queue: str
) -> None:
    """All or any of the headers, all by default (B35)."""
    client.bind(queue, "amq.headers", "", arguments)
    client.publish("amq.headers", "", b"x", mandatory=True, headers=headers)
    if reaches:
        while client.ready(queue) < 1:
            pass
    else:
        assert client.content().method.reply_code == 312


def test_one_copy_per_queue(client: RawClient, queue: str, name: Name) -> None:
    """However many bindings match (B36)."""
    client.exchange(name("e"), "topic")
    for key in ("a.#", "#", "a.b"):
        client.bind(queue, name("e"), key)
    client.publish(name("e"), "a.b", b"x")
    client.publish("", queue, b"y")
    while client.ready(queue) < 2:
        pass
    assert client.ready(queue) == 2


def test_exchange_to_exchange_and_alternate(client: RawClient, queue: str, name: Name) -> None:
    """An exchange can be bound to another, and have one for what it cannot route (B37, B38)."""
    client.exchange(name("last"), "fanout")
    client.exchange(name("first"), "direct", arguments={"alternate-exchange": name("last")})
    client.exchange(name("middle"), "direct")
    fields = {"destination": name("middle"), "source": name("first"), "routing_key": "k"}
    assert isinstance(client.call(1, commands.Exchange.Bind, **fields), commands.Exchange.BindOk)
    client.bind(queue, name("middle"), "k")
    client.bind(queue, name("last"))
    client.publish(name("first"), "k", b"bound")
    client.publish(name("first"), "other", b"alternate")
    while client.ready(queue) < 2:
        pass
    assert isinstance(client.call(1, commands.Exchange.Unbind, **fields), commands.Exchange.UnbindOk)


def test_internal_exchange(client: RawClient, name: Name) -> None:
    """Nobody publishes to it: 403 (B39)."""
    client.exchange(name("i"), "fanout", internal=True)
    client.publish(name("i"), "", b"x")
    code, text = client.channel_error()
    assert (code, text[:53]) == (403, "ACCESS_REFUSED - cannot publish to internal exchange ")


# -- publishing


def test_publish_to_nowhere(client: RawClient, name: Name) -> None:
    """A missing exchange costs the channel: 404 (B40)."""
    client.publish(name("nonesuch"), "", b"x")
    code, text = client.channel_error()
    assert (code, text.partition(" in vhost")[0]) == (404, f"NOT_FOUND - no exchange '{name('nonesuch')}'")


def test_mandatory(client: RawClient, name: Name) -> None:
    """What reaches no queue comes back whole, before its confirm (B41, B42)."""
    client.call(1, commands.Confirm.Select)
    client.publish("", name("nonesuch"), b"body" * 100, mandatory=True, message_id="m1")
    returned = client.content()
    assert returned.method == (312, "NO_ROUTE", "", name("nonesuch"))
    assert (returned.properties["message_id"], returned.body) == ("m1", b"body" * 100)
    assert client.method() == amqp.Ack(1, False)


def test_confirms(client: RawClient, queue: str, name: Name) -> None:
    """Every publish is acked, routed or not, one by one or several at once (B42)."""
    client.call(1, commands.Confirm.Select)
    for number in range(30):
        client.publish("", queue if number % 3 else name("nonesuch"), b"x")
    open_ = set(range(1, 31))
    while open_:
        ack = client.method()
        assert isinstance(ack, amqp.Ack)
        open_ -= {each for each in open_ if each == ack.delivery_tag or (ack.multiple and each < ack.delivery_tag)}


def test_reject_publish(client: RawClient, name: Name) -> None:
    """A queue that refuses at its limit nacks (B43)."""
    client.declare(name("l"), arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call(1, commands.Confirm.Select)
    client.publish("", name("l"), b"a")
    assert client.method() == amqp.Ack(1, False)
    client.publish("", name("l"), b"b")
    nack = client.method()
    assert isinstance(nack, amqp.Nack)
    assert nack.delivery_tag == 2


def test_transactions(client: RawClient, other: RawClient, queue: str) -> None:
    """Publishes and acks are invisible until the commit, and a rolled back ack was none (B44, B45)."""
    fill(client, queue, b"a")
    client.call(1, commands.Tx.Select)
    client.publish("", queue, b"b")
    got = client.get(queue)
    assert got is not None
    client.ack(1)
    assert other.ready(queue) == 0
    assert isinstance(client.call(1, commands.Tx.Rollback), commands.Tx.RollbackOk)
    client.publish("", queue, b"c")
    assert other.ready(queue) == 0
    client.ack(1)
    assert isinstance(client.call(1, commands.Tx.Commit), commands.Tx.CommitOk)
    assert other.ready(queue) == 1
    client.call(1, commands.Channel.Close)
    client.channel(1)
    assert other.ready(queue) == 1


def test_transactions_exclude_confirms(client: RawClient) -> None:
    """A channel is in one of the two modes: 406 (B46)."""
    client.call(1, commands.Tx.Select)
    client.send_method(1, commands.Confirm.Select)
    assert client.channel_error() == (406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")
    client.call(1, commands.Confirm.Select)
    client.send_method(1, commands.Tx.Select)
    assert client.channel_error() == (406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")


# -- extensions


def test_time_to_live_and_dead_letter(client: RawClient, queue: str, name: Name) -> None:
    """An expired message goes on with the record of its death, and without its expiration (B47, B48, B52)."""
    client.declare(
        name("short"), arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-message-ttl": 1}
    )
    client.consume(queue, no_ack=True)
    client.publish("", name("short"), b"x", expiration="1", message_id="m")
    letter = client.content()
    assert letter.method[3:] == ("", queue)
    assert "expiration" not in letter.properties
    assert letter.properties["message_id"] == "m"
    headers = letter.properties["headers"]
    (death,) = headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (name("short"), "expired", 1)
    assert (death["exchange"], death["routing-keys"], death["original-expiration"]) == ("", [name("short")], "1")
    assert isinstance(death["time"], datetime)
    assert headers["x-first-death-reason"] == "expired"
    assert headers["x-first-death-queue"] == name("short")


def test_expiration_is_a_number(client: RawClient, queue: str) -> None:
    """An expiration that is none is refused (B48)."""
    client.publish("", queue, b"x", expiration="soon")
    code, text = client.channel_error()
    assert (code, text[:42]) == (406, "PRECONDITION_FAILED - invalid expiration '")


def test_queue_expires(client: RawClient, name: Name) -> None:
    """A queue that nobody uses goes (B49)."""
    client.declare(name("x"), arguments={"x-expires": 20})
    while True:
        client.publish("", name("x"), b"x", mandatory=True)
        client.send_method(1, commands.Basic.Qos)
        if isinstance(client.method(), amqp.Return):
            client._rest_of(None)
            client.method()
            return


def test_length_limits(client: RawClient, name: Name) -> None:
    """The oldest goes when there are too many messages, or bytes (B50, B51)."""
    client.declare(name("n"), arguments={"x-max-length": 2})
    client.declare(name("b"), arguments={"x-max-length-bytes": 4})
    for number in range(4):
        client.publish("", name("n"), b"%d" % number)
        client.publish("", name("b"), b"%d%d" % (number, number))
    client.is_silent()
    for target, expected in ((name("n"), [b"2", b"3"]), (name("b"), [b"22", b"33"])):
        client.consume(target, no_ack=True)
        assert client.bodies(2) == expected


def test_reject_dead_letters(client: RawClient, queue: str, name: Name) -> None:
    """A reject without requeue dead-letters to the exchange, under the old key by default (B53)."""
    client.exchange(name("dlx"), "fanout")
    client.bind(queue, name("dlx"))
    client.declare(name("d"), arguments={"x-dead-letter-exchange": name("dlx")})
    fill(client, name("d"), b"x")
    client.get(name("d"))
    client.nack(1, requeue=False)
    client.consume(queue, no_ack=True)
    letter = client.content()
    assert letter.method[3:] == (name("dlx"), name("d"))
    assert letter.properties["headers"]["x-death"][0]["reason"] == "rejected"


def test_priorities(client: RawClient, name: Name) -> None:
    """Higher first; above the maximum is the maximum; none is 0 (B54)."""
    client.declare(name("p"), arguments={"x-max-priority": 5})
    fill(client, name("p"), b"none")
    for body, priority in ((b"one", 1), (b"nine", 9), (b"five", 5), (b"zero", 0)):
        client.publish("", name("p"), body, priority=priority)
    while client.ready(name("p")) < 5:
        pass
    client.consume(name("p"), no_ack=True)
    assert client.bodies(5) == [b"nine", b"five", b"one", b"none", b"zero"]


def test_consumer_priorities(client: RawClient, queue: str) -> None:
    """The consumer of higher priority is served while it may have more (B55)."""
    client.channel(2)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    client.consume(queue, tag="low")
    client.consume(queue, tag="high", arguments={"x-priority": 10})
    for number in range(4):
        client.publish("", queue, b"%d" % number, channel=2)
    assert sorted(client.content().method.consumer_tag for _ in range(4)) == ["high", "high", "low", "low"]


def test_single_active_consumer(client: RawClient, name: Name) -> None:
    """One consumer has it all, the next one when that goes (B56)."""
    client.declare(name("s"), arguments={"x-single-active-consumer": True})
    client.consume(name("s"), tag="first", no_ack=True)
    client.consume(name("s"), tag="second", no_ack=True)
    client.channel(2)
    for _ in range(4):
        client.publish("", name("s"), b"x", channel=2)
    assert {client.content().method.consumer_tag for _ in range(4)} == {"first"}
    client.call(1, commands.Basic.Cancel, consumer_tag="first")
    client.publish("", name("s"), b"x", channel=2)
    assert client.content().method.consumer_tag == "second"


def test_direct_reply_to(client: RawClient, other: RawClient, queue: str) -> None:
    """A request names its channel as reply-to, and the answer comes without a queue (B57)."""
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", queue, b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    other.consume(queue, no_ack=True)
    question = other.content()
    address = question.properties["reply_to"]
    assert address.startswith("amq.rabbitmq.reply-to.")
    other.publish("", address, b"answer", correlation_id=question.properties["correlation_id"])
    answer = client.content()
    assert (answer.body, answer.properties["correlation_id"]) == (b"answer", "7")
    other.publish("", address + "x", b"to nobody", mandatory=True)
    assert other.content().method.reply_code == 312


def test_direct_reply_to_needs_a_consumer(client: RawClient, queue: str) -> None:
    """A request with that reply-to on a channel without the consumer is refused (B57)."""
    client.publish("", queue, b"question", reply_to="amq.rabbitmq.reply-to")
    assert client.channel_error() == (406, "PRECONDITION_FAILED - fast reply consumer does not exist")
    client.send_method(1, commands.Basic.Consume, queue="amq.rabbitmq.reply-to")
    assert client.channel_error() == (406, "PRECONDITION_FAILED - reply consumer cannot acknowledge")


def test_copies(client: RawClient, queue: str, name: Name) -> None:
    """CC and BCC lead to further queues; whoever gets it sees the one and not the other (B58)."""
    for each in ("cc", "bcc"):
        client.declare(name(each))
    headers = {"CC": [name("cc"), queue], "BCC": [name("bcc")], "kept": 1}
    client.publish("", queue, b"x", headers=headers)
    for each in (queue, name("cc"), name("bcc")):
        while client.ready(each) < 1:
            pass
        got = client.get(each, no_ack=True)
        assert got is not None
        assert got.method.routing_key == queue
        assert got.properties["headers"] == {"CC": headers["CC"], "kept": 1}


def test_user_id(client: RawClient, queue: str) -> None:
    """The user a message names is who sends it: 406 otherwise (B59)."""
    client.publish("", queue, b"x", user_id="guest")
    assert client.is_silent()
    client.publish("", queue, b"x", user_id="somebody")
    expected = "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    assert client.channel_error() == (406, expected)


def test_cancel_notification(client: RawClient, other: RawClient, queue: str) -> None:
    """Whoever consumes from a queue that is deleted is told, and its tag is free again (B60)."""
    client.consume(queue, tag="me")
    other.call(1, commands.Queue.Delete, queue=queue)
    cancel = client.method()
    assert isinstance(cancel, commands.Basic.Cancel)
    assert cancel.consumer_tag == "me"
    client.declare(queue)
    client.consume(queue, tag="me")


def test_empty_names_mean_the_last_queue(client: RawClient) -> None:
    """A server-named queue is meant by an empty name on the same channel afterwards."""
    named = client.declare("", exclusive=True).queue
    assert named.startswith("amq.gen-")
    client.bind("", "amq.fanout")
    client.publish("amq.fanout", "", b"x")
    while client.ready(named) < 1:
        pass
    got = client.get("")
    assert got is not None
    assert got.body == b"x"


def test_nothing_answers_nowait(client: RawClient, name: Name) -> None:
    """Methods with no-wait are not answered (P18)."""
    mine, exchange = name("w"), name("we")
    for method, fields in (
        (commands.Queue.Declare, {"queue": mine}),
        (commands.Exchange.Declare, {"exchange": exchange, "exchange_type": "fanout"}),
        (commands.Queue.Bind, {"queue": mine, "exchange": exchange}),
        (commands.Basic.Consume, {"queue": mine, "consumer_tag": "t"}),
        (commands.Basic.Cancel, {"consumer_tag": "t"}),
        (commands.Queue.Purge, {"queue": mine}),
        (commands.Queue.Delete, {"queue": mine}),
        (commands.Exchange.Delete, {"exchange": exchange}),
        (commands.Confirm.Select, {}),
    ):
        client.send_method(1, method, nowait=True, **fields)
    assert client.is_silent()
