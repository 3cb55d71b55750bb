"""What x- arguments make of a queue or a consumer: limits, lives, dead letters, priorities, on both brokers.

Times to live are a millisecond or an hour: a test waits for what happens, and never for a time to pass.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
from interop_wire_support import ChannelClosed, Content, Wire, WireChannel
from pamqp import commands

Name = Callable[[str], str]
Connect = Callable[..., Wire]
HOUR = 3_600_000  # milliseconds


def letter_box(channel: WireChannel, name: Name) -> tuple[str, dict[str, Any]]:
    """A queue for dead letters, and the arguments of a queue whose letters go there."""
    box = channel.declare(name("letters"), exclusive=True)
    return box, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": box}


def the_letter(channel: WireChannel, box: str) -> Content:
    channel.count_becomes(box, 1)
    letter = channel.get(box)
    assert letter is not None
    return letter


# -- how long messages and queues live


@pytest.mark.parametrize(
    ("argument", "expiration"), [(1, None), (None, "1"), (1, str(HOUR)), (HOUR, "1"), (0, None), (None, "0")]
)
def test_messages_expire(channel: WireChannel, name: Name, argument: int | None, expiration: str | None) -> None:
    """By the queue's x-message-ttl or their own expiration, whichever is less; then they are dead letters.

    (B47, B48)
    """
    box, arguments = letter_box(channel, name)
    if argument is not None:
        arguments["x-message-ttl"] = argument
    queue = channel.declare(name("q"), exclusive=True, arguments=arguments)
    channel.publish(queue, b"!", expiration=expiration)
    letter = the_letter(channel, box)
    assert letter.headers["x-death"][0]["reason"] == "expired"
    assert channel.get(queue) is None


def test_a_time_to_live_of_zero_reaches_a_waiting_consumer(channel: WireChannel, name: Name) -> None:
    """What can be delivered at once is; it never waits in the queue."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-message-ttl": 0})
    channel.consume(queue, no_ack=True)
    channel.publish(queue, b"now")
    assert channel.next().body == b"now"


def test_an_unused_queue_expires(channel: WireChannel, connect: Connect, name: Name) -> None:
    """x-expires: a queue without consume, get or redeclare for so long is gone; a consumer keeps it (B49)."""
    used, unused = (channel.declare(name("q"), arguments={"x-expires": 1 + HOUR * n}) for n in (1, 0))
    channel.consume(used)
    for _ in range(400):
        time.sleep(0.05)  # asking is using: leave it alone for longer than it may live
        if not channel.exists(unused):
            break
    else:
        pytest.fail("the queue was there after 20 s")
    assert channel.exists(used)
    channel.call(commands.Queue.Delete(queue=used))


# -- how much they hold


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ({"x-max-length": 3}, [b"22", b"33", b"44"]),
        ({"x-max-length-bytes": 5}, [b"33", b"44"]),
        ({"x-max-length": 3, "x-max-length-bytes": 2}, [b"44"]),
        ({"x-max-length": 0}, []),
    ],
)
def test_the_oldest_go_when_there_are_too_many(
    channel: WireChannel, name: Name, limit: dict[str, int], left: list[bytes]
) -> None:
    """x-max-length in messages and -bytes in bytes of bodies; what is dropped is dead-lettered, oldest first.

    (B50, B51)
    """
    box, arguments = letter_box(channel, name)
    queue = channel.declare(name("q"), exclusive=True, arguments=arguments | limit)
    sent = [b"00", b"11", b"22", b"33", b"44"]
    channel.fill(queue, *sent)
    channel.count_becomes(box, len(sent) - len(left))
    assert channel.drain(queue) == left
    assert channel.drain(box) == sent[: len(sent) - len(left)]


def test_unacknowledged_messages_do_not_count_against_a_limit(channel: WireChannel, name: Name) -> None:
    """Only what is ready does: what consumers have is neither dropped nor in the way."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-max-length": 2})
    channel.fill(queue, b"0", b"1")
    for _ in range(2):
        channel.get(queue, no_ack=False)
    channel.fill(queue, b"2", b"3", b"4")
    assert channel.drain(queue) == [b"3", b"4"]


# -- dead letters


def test_a_dead_letter_tells_of_its_death(channel: WireChannel, name: Name) -> None:
    """x-death and x-first-death-*: queue, reason, count, exchange, keys, time; the expiration moves in there (B52)."""
    box, arguments = letter_box(channel, name)
    exchange, queue = name("x"), channel.declare(name("q"), exclusive=True, arguments=arguments)
    channel.exchange(exchange)
    channel.bind(queue, exchange, "key")
    channel.publish("key", b"body", exchange=exchange, expiration="1", message_id="m", headers={"own": True})
    letter = the_letter(channel, box)
    assert (letter.body, letter.method.exchange, letter.method.routing_key) == (b"body", "", box)
    assert (letter.properties.message_id, letter.properties.expiration) == ("m", None)
    first = {
        f"x-first-death-{part}": letter.headers[f"x-first-death-{part}"] for part in ("queue", "reason", "exchange")
    }
    assert list(first.values()) == [queue, "expired", exchange]
    assert letter.headers["own"] is True
    (death,) = letter.headers["x-death"]
    assert isinstance(death.pop("time"), datetime.datetime)
    assert death == {
        "queue": queue,
        "reason": "expired",
        "count": 1,
        "exchange": exchange,
        "routing-keys": ["key"],
        "original-expiration": "1",
    }


@pytest.mark.parametrize("way", ["reject", "nack"])
def test_what_is_rejected_is_a_dead_letter(channel: WireChannel, name: Name, way: str) -> None:
    """To the dead-letter exchange, under the message's own key where the queue names none (B53)."""
    exchange, box = name("dlx"), channel.declare(name("letters"), exclusive=True)
    channel.exchange(exchange, "fanout")
    channel.bind(box, exchange)
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-dead-letter-exchange": exchange})
    channel.fill(queue, b"!")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    getattr(channel, way)(got.tag, requeue=False)
    letter = the_letter(channel, box)
    assert (letter.method.exchange, letter.method.routing_key) == (exchange, queue)
    assert letter.headers["x-first-death-reason"] == "rejected"


def test_deaths_are_counted(channel: WireChannel, name: Name) -> None:
    """A message that dies again in the same queue for the same reason raises the count; the latest death is first."""
    exchange, one, two = name("x"), name("one"), name("two")
    channel.exchange(exchange)
    for queue, other in ((one, two), (two, one)):
        channel.declare(
            queue,
            exclusive=True,
            arguments={"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": other},
        )
        channel.bind(queue, exchange, queue)
    channel.fill(one, b"!")
    for queue in (one, two, one):
        channel.count_becomes(queue, 1)
        got = channel.get(queue, no_ack=False)
        assert got is not None
        channel.reject(got.tag, requeue=False)
    letter = the_letter(channel, two)
    assert [(each["queue"], each["count"]) for each in letter.headers["x-death"]] == [(one, 2), (two, 1)]
    assert letter.headers["x-first-death-queue"] == one


def test_a_letter_that_dies_in_a_circle_by_itself_is_dropped(channel: WireChannel, name: Name) -> None:
    """What expired in a queue does not come back to it untouched; other queues still get it."""
    queue, exchange, log = name("q"), name("x"), channel.declare(name("log"), exclusive=True)
    channel.exchange(exchange, "fanout")
    channel.declare(queue, exclusive=True, arguments={"x-message-ttl": 1, "x-dead-letter-exchange": exchange})
    for each in (queue, log):
        channel.bind(each, exchange)
    channel.publish(queue, b"!")
    letter = the_letter(channel, log)
    assert letter.headers["x-death"][0]["count"] == 1
    assert channel.drain(queue) == channel.drain(log) == []


def test_a_missing_dead_letter_exchange_is_no_error(channel: WireChannel, name: Name) -> None:
    """The message is gone, as if the queue had none."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-dead-letter-exchange": "nope"})
    channel.fill(queue, b"!")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=False)
    assert channel.count(queue) == 0


# -- priorities


def test_what_matters_more_is_delivered_first(channel: WireChannel, name: Name) -> None:
    """Above the maximum counts as the maximum, none as 0; among equals the order of publishing holds (B54)."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-max-priority": 5})
    sent = [("a", 1), ("b", None), ("c", 5), ("d", 9), ("e", 0), ("f", 1)]
    for body, priority in sent:
        channel.publish(queue, body.encode(), priority=priority)
    channel.count_becomes(queue, len(sent))
    assert b"".join(channel.drain(queue)) == b"cdafbe"


def test_a_returned_message_keeps_its_priority(channel: WireChannel, name: Name) -> None:
    """It goes back to its place among its equals."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-max-priority": 5})
    for body, priority in ((b"low", 1), (b"high", 4), (b"high too", 4)):
        channel.publish(queue, body, priority=priority)
    channel.count_becomes(queue, 3)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag)
    channel.count_becomes(queue, 3)
    assert channel.drain(queue) == [b"high", b"high too", b"low"]


def test_a_consumer_of_higher_priority_comes_first(channel: WireChannel, wire: Wire, name: Name) -> None:
    """x-priority: others get something only while it can take no more (B55)."""
    queue = channel.declare(name("q"), exclusive=True)
    taker = wire.channel(2)
    taker.prefetch(2)
    taker.consume(queue, consumer_tag="low", arguments={"x-priority": -1})
    taker.consume(queue, consumer_tag="middle")
    taker.consume(queue, consumer_tag="high", arguments={"x-priority": 5})
    for number in range(6):
        channel.publish(queue, b"%d" % number)
    came = [each.method.consumer_tag for each in taker.contents(6)]
    assert came == ["high"] * 2 + ["middle"] * 2 + ["low"] * 2


def test_a_single_active_consumer_has_all(channel: WireChannel, wire: Wire, name: Name) -> None:
    """The others wait their turn, and the next one takes over when it goes (B56)."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-single-active-consumer": True})
    first, second = wire.channel(2), wire.channel(3)
    for taker in (first, second):
        taker.consume(queue)
    channel.fill(queue, b"0", b"1", b"2")
    assert first.bodies(3) == [b"0", b"1", b"2"]
    first.close()
    again = second.contents(3)
    assert [(each.body, each.method.redelivered) for each in again] == [(b"0", True), (b"1", True), (b"2", True)]


def test_a_single_active_consumer_is_not_exclusive(channel: WireChannel, name: Name) -> None:
    """403 for an exclusive consumer of such a queue."""
    queue = channel.declare(name("q"), exclusive=True, arguments={"x-single-active-consumer": True})
    with pytest.raises(ChannelClosed) as closed:
        channel.consume(queue, exclusive=True)
    assert closed.value.code == 403


# -- what does not fit

QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(
    ("arguments", "flags", "named"),
    [
        ({"x-max-age": "1h"}, {}, "x-max-age"),
        ({"x-max-age": "1h", **QUORUM}, {"durable": True}, "x-max-age"),
        ({"x-stream-max-segment-size-bytes": 300}, {}, "x-stream-max-segment-size-bytes"),
        ({"x-initial-cluster-size": 3}, {}, "x-initial-cluster-size"),
        ({"x-dead-letter-strategy": "at-least-once"}, {}, "x-dead-letter-strategy"),
        ({"x-dead-letter-strategy": "nonsense", **QUORUM}, {"durable": True}, "x-dead-letter-strategy"),
        ({"x-queue-mode": "nonsense"}, {}, "x-queue-mode"),
        ({"x-queue-mode": "lazy", **QUORUM}, {"durable": True}, "x-queue-mode"),
        ({"x-queue-version": 9}, {}, "x-queue-version"),
        ({"x-queue-version": "2"}, {}, "x-queue-version"),
        ({"x-max-in-memory-length": 3}, {}, "x-max-in-memory-length"),
        ({"x-quorum-initial-group-size": 3}, {}, "x-quorum-initial-group-size"),
        ({"x-queue-leader-locator": "nonsense", **QUORUM}, {"durable": True}, "x-queue-leader-locator"),
        ({"x-queue-type": "nonsense"}, {}, "x-queue-type"),
        ({"x-queue-type": 4}, {}, "x-queue-type"),
        ({"x-max-priority": 5, **QUORUM}, {"durable": True}, "x-max-priority"),
        (QUORUM, {}, "non-durable"),
        (QUORUM, {"durable": True, "exclusive": True}, "exclusive-owner"),
        (QUORUM, {"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_what_a_type_of_queue_cannot_have_is_refused(
    channel: WireChannel, name: Name, arguments: dict[str, Any], flags: dict[str, bool], named: str
) -> None:
    """An argument of another type of queue, a value that it does not take, a flag: 406, and there is no such queue."""
    queue = name("q")
    with pytest.raises(ChannelClosed) as closed:
        channel.call(commands.Queue.Declare(queue=queue, arguments=arguments, **flags))
    assert (closed.value.code, closed.value.name) == (406, "PRECONDITION_FAILED")
    assert f"'{named}' for queue '{queue}' in vhost '/'" in closed.value.text
    assert not channel.exists(queue)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-queue-type": "classic"},
        QUORUM,
        {"x-delivery-limit": -1, **QUORUM},
        {
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "",
            "x-dead-letter-strategy": "at-least-once",
            **QUORUM,
        },
        {"x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": 3, "x-max-in-memory-length": 9, **QUORUM},
        {"x-message-ttl": HOUR, "x-expires": HOUR, "x-single-active-consumer": True, **QUORUM},
        {"x-program-of-its-own": {"a": [1]}},
    ],
)
def test_what_a_type_of_queue_can_have_is_taken(channel: WireChannel, name: Name, arguments: dict[str, Any]) -> None:
    """Durable queues of both types, with all that belongs to them; a name that neither broker knows is kept."""
    queue = channel.declare(name("q"), durable=True, arguments=arguments)
    channel.fill(queue, b"1", b"2")
    channel.count_becomes(queue, 2)
    channel.call(commands.Queue.Delete(queue=queue))


def test_a_consumer_asks_a_queue_for_no_offset(channel: WireChannel, name: Name) -> None:
    """x-stream-offset is for streams: 406, not a consumer that gets everything."""
    queue = channel.declare(name("q"), exclusive=True)
    with pytest.raises(ChannelClosed) as closed:
        channel.call(commands.Basic.Consume(queue=queue, arguments={"x-stream-offset": "last"}))
    assert closed.value.code == 406
    assert "invalid arg 'x-stream-offset'" in closed.value.text
