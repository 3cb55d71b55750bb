"""Callbacks, over every peer: RabbitMQ's threading model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from client_contract_support import Seen, ack, numbered, publish
from client_parts_support import DirectLink

from multiqueue import broker as brokers
from multiqueue.client import (
    CallbackFailure,
    Channel,
    ChannelClosed,
    Connection,
    ConsumerCancelled,
    Message,
    connect,
    log_failure,
)
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_callbacks_of_a_channel_never_overlap(channel: Channel, queue: str) -> None:
    """C1: two consumers on one channel, and never two callbacks at once (client 2)."""
    busy, overlaps = threading.Lock(), []

    def callback(message: Message) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(message)
            return
        message.channel.queue_declare(queue, passive=True)  # gives others every chance
        busy.release()

    seen = Seen(callback)
    for body in numbered(200):  # more than are handed on together
        channel.publish(body, routing_key=queue)
    for _ in range(2):
        channel.basic_consume(queue, seen, auto_ack=True)
    seen.wait_for(200)
    assert not overlaps


def test_callbacks_of_several_channels_run_in_parallel(opened: Callable[..., Connection]) -> None:
    """C2: as many as there are channels and threads, at least and at most (client 2)."""
    connection = opened(threads=3)
    all_three, running, most = threading.Barrier(3), threading.Semaphore(3), []

    def callback(message: Message) -> None:
        most.append(running.acquire(blocking=False))
        all_three.wait(PATIENCE)
        running.release()

    seen = Seen(callback)
    channels = [connection.channel() for _ in range(6)]
    for channel in channels:
        name = channel.queue_declare(exclusive=True).queue
        channel.basic_consume(name, seen, auto_ack=True)
        publish(channel, name, b"x")
    seen.wait_for(6)
    assert all(most)


def test_one_thread_serves_all_channels_in_turn(opened: Callable[..., Connection]) -> None:
    """C2: with one thread nothing runs in parallel, and every channel is served."""
    connection = opened(executor=None, threads=1)
    seen = Seen()
    for number in range(3):
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        channel.basic_consume(name, seen, auto_ack=True)
        publish(channel, name, *[b"%d" % number] * 20)
    assert sorted(seen.bodies(60)) == sorted([b"0", b"1", b"2"] * 20)
    assert len(set(seen.threads)) == 1


def test_a_channel_has_no_thread_of_its_own(opened: Callable[..., Connection]) -> None:
    """C3: callbacks run on the executor that was given, and what one writes the next reads."""
    total = 0

    def add(message: Message) -> None:
        nonlocal total
        total += int(message.body)  # no lock: callback n happens before callback n + 1

    with ThreadPoolExecutor(4, thread_name_prefix="given") as executor:
        connection = opened(executor=executor)
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        seen = Seen(add)
        channel.basic_consume(name, seen, auto_ack=True)
        for start in range(0, 60, 20):
            publish(channel, name, *numbered(60)[start : start + 20])
        seen.wait_for(60)
        assert total == sum(range(60))
        assert all(name.startswith("given") for name in seen.threads)
        connection.close()


def test_callbacks_start_in_the_order_of_delivery(channel: Channel, queue: str) -> None:
    """C4: across the consumers of a channel; the end of the consumer comes after the last delivery, once.

    (client 2, 3)
    """
    ended: list[Any] = []
    seen = Seen(lambda message: ended.append(message) if ended else None)
    publish(channel, queue, *numbered(50))
    done = Seen()

    def end(error: Exception | None) -> None:
        ended.append(error)
        done(error)

    tag = channel.basic_consume(queue, seen, auto_ack=True, on_ended=end)
    assert seen.bodies(50) == numbered(50)
    channel.basic_cancel(tag)
    assert done.wait_for(1) == [None]
    channel.close()
    channel.connection.close()
    assert ended == [None]


def test_no_callback_runs_on_the_thread_that_reads(connection: Connection) -> None:
    """C5: deliveries, returns, confirms and ends are told on the work pool, where a call can wait for its answer.

    (client 1)
    """
    answered = Seen()

    def call(argument: Any) -> None:
        connection.channel().close()
        answered(argument)

    channel = connection.channel(on_returned=call, on_closed=call)
    name = channel.queue_declare(exclusive=True).queue
    tag = channel.basic_consume(name, call, auto_ack=True, on_ended=call)
    channel.publish_confirmed(b"x", routing_key=name).add_done_callback(call)
    answered.wait_for(2)  # delivery, confirm
    channel.publish(b"x", routing_key="nowhere", mandatory=True)
    answered.wait_for(3)
    channel.basic_cancel(tag)
    answered.wait_for(4)
    channel.close()
    answered.wait_for(5)
    assert all("worker" in name for name in answered.threads), answered.threads


@pytest.mark.parametrize("what", ["call", "cancel", "close the channel", "close the connection"])
def test_a_callback_may_do_what_any_thread_may(what: str, opened: Callable[..., Connection]) -> None:
    """C6: a call on its own channel, the end of its own consumer, its channel, its connection."""
    connection = opened(threads=1)
    channel = connection.channel()
    name = channel.queue_declare(exclusive=True).queue

    def callback(message: Message) -> None:
        match what:
            case "call":
                assert channel.queue_declare(name, passive=True).queue == name
            case "cancel":
                channel.basic_cancel(message.consumer_tag)
            case "close the channel":
                channel.close()
            case "close the connection":
                connection.close()

    seen = Seen(callback)
    channel.basic_consume(name, seen, auto_ack=True)
    channel.publish(b"x", routing_key=name)
    seen.wait_for(1)
    assert channel.is_open == (what in ("call", "cancel"))
    assert connection.is_open == (what != "close the connection")


def test_a_slow_consumer_delays_no_other_channel(connection: Connection) -> None:
    """C8: two thousand deliveries wait behind one callback, and another channel is served and answered."""
    gate = threading.Event()
    slow, fast = connection.channel(), connection.channel()
    try:
        slow_queue, fast_queue = (each.queue_declare(exclusive=True).queue for each in (slow, fast))
        for _ in range(2000):
            slow.publish(b"x" * 100, routing_key=slow_queue)
        blocked = Seen(lambda message: gate.wait(PATIENCE))
        slow.basic_consume(slow_queue, blocked, auto_ack=True)
        while slow.statistics().queued < 1999:
            fast.queue_declare(fast_queue, passive=True)
        seen = Seen()
        fast.basic_consume(fast_queue, seen, auto_ack=True)
        fast.publish(b"fast", routing_key=fast_queue)
        assert seen.bodies(1) == [b"fast"]
        figures = slow.statistics()
        assert figures.queued == 1999
        assert figures.running_for is not None
    finally:
        gate.set()
    blocked.wait_for(2000)


def test_an_exception_closes_the_channel_alone(connection: Connection, queue: str, channel: Channel) -> None:
    """C9: its messages go back, its pool thread and its connection live on, and waiting deliveries still run.

    (client 10)
    """
    ended = Seen()
    other = connection.channel()
    publish(channel, queue, b"poison")

    def fail(message: Message) -> None:
        raise ZeroDivisionError("of the callback")

    other.basic_consume(queue, fail, on_ended=ended)
    ended.wait_for(1)
    assert not other.is_open
    message = _get(channel, queue)
    assert message.redelivered
    message.ack()
    with pytest.raises(ChannelClosed, match=r"a callback failed: ZeroDivisionError\('of the callback'\)"):
        other.queue_declare(queue, passive=True)


def test_a_handler_may_choose_otherwise(opened: Callable[..., Connection]) -> None:
    """C9: a handler of one's own is told callback, message and error, and the channel goes on (client 10)."""
    failures = Seen(log_failure)
    channel = opened(on_callback_error=failures).channel()
    name = channel.queue_declare(exclusive=True).queue

    def fail(message: Message) -> None:
        raise ZeroDivisionError("of the callback")

    channel.basic_consume(name, fail, auto_ack=True)
    publish(channel, name, b"1", b"2")
    for failure, body in zip(failures.wait_for(2), [b"1", b"2"], strict=True):
        assert isinstance(failure, CallbackFailure)
        assert isinstance(failure.error, ZeroDivisionError)
        assert isinstance(failure.argument, Message)
        assert failure.argument.body == body
    assert channel.is_open


def test_after_close_what_waits_still_runs_and_can_settle_nothing(connection: Connection) -> None:
    """C10: then comes the consumer's end; an acknowledgement raises and never reaches the wire (client 3)."""
    channel, order = connection.channel(), Seen()
    name = channel.queue_declare(auto_delete=True).queue
    gate = threading.Event()
    refused = []

    def callback(message: Message) -> None:
        gate.wait(PATIENCE)
        try:
            message.ack()
        except ChannelClosed:
            refused.append(message.body)
        order(message.body)

    channel.basic_consume(name, callback, on_ended=order)
    publish(channel, name, *numbered(3))
    while channel.statistics().unacked < 3:
        channel.queue_declare(name, passive=True)
    channel.close()
    gate.set()
    assert order.wait_for(4) == [*numbered(3), None]
    assert refused == numbered(3)


def test_cancelling_under_load_loses_nothing(channel: Channel, connection: Connection, queue: str) -> None:
    """C11: what was on its way when a consumer was cancelled comes back with its channel, and the reader lives."""
    count = 300
    for body in numbered(count):
        channel.publish(body, routing_key=queue)
    consumers: list[Seen] = []

    def got() -> set[bytes]:  # by all of them: what a callback acknowledged in time may be noted after the close
        return {message.body for seen in consumers for message in seen.all}

    while len(got()) < count // 2:
        other = connection.channel()
        consumers.append(Seen(ack))
        tag = other.basic_consume(queue, consumers[-1])
        consumers[-1].wait_for(1)
        other.basic_cancel(tag)
        other.close()
    consumers.append(Seen(ack))
    connection.channel().basic_consume(queue, consumers[-1])
    wait_until_blocked(lambda: len(got()) == count)


def test_the_end_of_a_queue_ends_its_consumers(channel: Channel, connection: Connection, queue: str) -> None:
    """C21: callback and inbox are told that the server ended them; the channel goes on."""
    ended = Seen()
    channel.basic_consume(queue, ended, on_ended=ended)
    inbox = channel.consume(queue)
    connection.channel().queue_delete(queue)
    assert isinstance(ended.wait_for(1)[0], ConsumerCancelled)
    with pytest.raises(ConsumerCancelled):
        inbox.get(PATIENCE)
    assert channel.is_open


def _get(channel: Channel, queue: str) -> Message:
    found: list[Message] = []
    wait_until_blocked(lambda: found.extend(filter(None, [channel.basic_get(queue)])) or found)
    return found[0]


def test_a_turn_that_meets_the_end_of_its_channel(broker: brokers.Broker) -> None:
    """In process: a consumer's turn that comes after its channel's end leaves the message in its queue."""
    with connect(broker) as connection:
        channel = connection.channel()
        name = channel.queue_declare().queue
        channel.basic_consume(name, Seen())
        held, gate, link = threading.Event(), threading.Event(), connection._link
        assert isinstance(link, DirectLink)
        link.post(held.set)
        link.post(gate.wait)
        wait_until_blocked(lambda: held.is_set() and not link._outbox._pieces)  # what comes now is behind the gate
        channel.abort()
        broker.publish(brokers.Message(b"late", routing_key=name))
        wait_until_blocked(lambda: len(link._outbox._pieces) == 2)  # the close, and the turn
        gate.set()
        other = connection.channel()
        returned = other.basic_get(name)
        assert returned is not None
        assert (returned.body, returned.redelivered) == (b"late", False)
