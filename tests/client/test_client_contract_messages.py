"""Messages and what becomes of them, over every peer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from client_contract_support import Seen, ack, numbered, publish

from multiqueue import Empty, LinkedBlockingMultiQueue
from multiqueue.broker import Broker
from multiqueue.client import (
    Channel,
    ChannelClosed,
    Connection,
    ConnectionClosed,
    Message,
    Nacked,
    Returned,
    TooManyChannels,
    UnknownDelivery,
    connect,
)
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_properties_arrive_as_they_were_sent(channel: Channel, queue: str) -> None:
    """Every property that the publisher sets, and none that it does not."""
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "headers": {"tenant": "north", "nested": {"n": 1}},
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "type": "order",
        "app_id": "a",
    }
    channel.publish(b"body", routing_key=queue, **properties)
    channel.publish(b"", routing_key=queue)
    first, second = channel.consume(queue, auto_ack=True), None
    message = first.get(PATIENCE)
    assert (message.body, message.properties, message.headers["tenant"]) == (b"body", properties, "north")
    second = first.get(PATIENCE)
    assert (second.body, second.properties, second.headers) == (b"", {}, {})
    assert (second.exchange, second.routing_key, second.redelivered) == ("", queue, False)


def test_a_body_larger_than_a_frame_arrives_whole(channel: Channel, queue: str) -> None:
    """Whatever the negotiated size of frames."""
    body = bytes(range(256)) * 4000
    channel.publish(body, routing_key=queue)
    with channel.consume(queue, auto_ack=True) as inbox:
        assert inbox.get(PATIENCE).body == body


def test_get_answers_at_once(channel: Channel, queue: str) -> None:
    """A message, or None when there is none: it does not wait."""
    assert channel.basic_get(queue) is None
    publish(channel, queue, b"1", b"2")
    first, second = channel.basic_get(queue), channel.basic_get(queue, auto_ack=True)
    assert first is not None
    assert second is not None
    assert (first.body, first.is_settled, second.body, second.is_settled) == (b"1", False, b"2", True)
    first.ack()
    assert first.is_settled
    assert channel.queue_declare(queue, passive=True).message_count == 0


def test_prefetch_bounds_what_is_unsettled(channel: Channel, queue: str) -> None:
    """With a prefetch of two a third message comes only after a settlement."""
    publish(channel, queue, *numbered(5))
    channel.basic_qos(2)
    seen = Seen()
    channel.basic_consume(queue, seen)
    first, _ = seen.wait_for(2)
    assert channel.queue_declare(queue, passive=True).message_count == 3
    assert channel.statistics().unacked == 2
    first.ack()
    assert seen.bodies(3) == numbered(3)


def test_prefetch_of_all_bounds_the_channel(channel: Channel, queue: str) -> None:
    """With `global_` the consumers of a channel share the limit."""
    publish(channel, queue, *numbered(6))
    channel.basic_qos(3, global_=True)
    seen = Seen()
    for _ in range(2):
        channel.basic_consume(queue, seen)
    messages = seen.wait_for(3)
    for _ in range(3):
        channel.queue_declare(queue, passive=True)
    assert len(seen.all) == 3
    messages[0].ack()
    seen.wait_for(4)


@pytest.mark.parametrize("how", ["channel", "connection"])
def test_unsettled_messages_go_back_in_order(how: str, peer: Any, opened: Callable[..., Connection]) -> None:
    """When a channel or connection closes, to their old places and flagged; settled ones do not."""
    other = opened().channel()
    name = other.queue_declare(auto_delete=False).queue
    publish(other, name, *numbered(6))
    connection = opened()
    channel = connection.channel()
    seen = Seen()
    channel.basic_consume(name, seen)
    messages = seen.wait_for(6)
    messages[2].ack()
    (channel if how == "channel" else connection).close()
    left = [other.basic_get(name, auto_ack=True) for _ in range(5)]
    assert [(message.body, message.redelivered) for message in left if message] == [
        (body, True) for body in numbered(6) if body != b"2"
    ]
    other.queue_delete(name)


def test_a_settlement_of_many(channel: Channel, queue: str) -> None:
    """`multiple` settles all up to a tag, tag 0 all there are, and nothing twice."""
    publish(channel, queue, *numbered(5))
    messages = [channel.basic_get(queue) for _ in range(5)]
    assert messages[2] is not None
    messages[2].ack(multiple=True)
    assert channel.statistics().unacked == 2
    with pytest.raises(UnknownDelivery, match="no unsettled message 2"):
        channel.basic_ack(2)
    with pytest.raises(UnknownDelivery, match="no unsettled message 99"):
        channel.basic_ack(99)
    channel.basic_ack(0, multiple=True)
    assert channel.statistics().unacked == 0
    channel.close()
    with channel.connection.channel() as other:
        assert other.basic_get(queue) is None


def test_nack_puts_back_or_drops(channel: Channel, queue: str) -> None:
    """With requeue at the old place and flagged; without, and by reject, it is gone."""
    publish(channel, queue, b"1", b"2", b"3")
    first, second, third = (channel.basic_get(queue) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    second.nack(requeue=False)
    third.reject()
    first.nack()
    again = _next(channel, queue)
    assert (again.body, again.redelivered) == (b"1", True)
    assert channel.basic_get(queue) is None


def test_recover_gives_everything_back(channel: Channel, queue: str) -> None:
    """basic.recover: unsettled messages come again, flagged, under new tags."""
    publish(channel, queue, b"1", b"2")
    seen = Seen()
    channel.basic_consume(queue, seen)
    seen.wait_for(2)
    channel.basic_recover()
    again = seen.wait_for(4)[2:]
    assert [(message.body, message.redelivered) for message in again] == [(b"1", True), (b"2", True)]
    for message in again:
        message.ack()


def test_any_thread_may_settle(channel: Channel, queue: str) -> None:
    """Acknowledgements of one channel from four threads at once (client 4)."""
    publish(channel, queue, *numbered(40))
    messages = [channel.basic_get(queue) for _ in range(40)]
    threads = [
        threading.Thread(target=lambda part: [each.ack() for each in part], args=(messages[start::4],))
        for start in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.close()
    with channel.connection.channel() as other:
        assert other.basic_get(queue) is None


def test_confirms_come_as_futures(channel: Channel, queue: str) -> None:
    """C18: one per message; and `wait_for_confirms` for all of them."""
    confirms = [channel.publish_confirmed(body, routing_key=queue) for body in numbered(50)]
    assert [confirm.exception(PATIENCE) for confirm in confirms] == [None] * 50
    for body in numbered(50):
        channel.publish(body, routing_key=queue)
    assert channel.wait_for_confirms(PATIENCE)
    assert channel.statistics().unconfirmed == 0
    assert channel.queue_declare(queue, passive=True).message_count == 100


def test_a_refused_message_is_told(channel: Channel) -> None:
    """C18: a queue at its limit that rejects publishes has the message's future raise, and the wait say False."""
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    name = channel.queue_declare(exclusive=True, arguments=arguments).queue
    channel.publish_confirmed(b"1", routing_key=name).result(PATIENCE)
    with pytest.raises(Nacked, match="could not take the message of 1 bytes"):
        channel.publish_confirmed(b"2", routing_key=name).result(PATIENCE)
    assert not channel.wait_for_confirms(PATIENCE)
    assert channel.wait_for_confirms(PATIENCE)


def test_threads_share_a_confirming_channel(channel: Channel, queue: str) -> None:
    """C18: numbers are counted in the order of the wire, whichever thread publishes: every future is its message's own.

    (client 6)
    """
    limit = 50
    arguments = {"x-max-length": limit, "x-overflow": "reject-publish"}
    name = channel.queue_declare(exclusive=True, arguments=arguments).queue
    channel.confirm_select()
    confirms: dict[bytes, Any] = {}

    def work(start: int) -> None:
        for number in range(start, start + 50):
            body = b"%d" % number
            confirms[body] = channel.publish_confirmed(body, routing_key=name)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = {body for body, confirm in confirms.items() if confirm.exception(PATIENCE) is None}
    on_queue = set()
    while (message := channel.basic_get(name, auto_ack=True)) is not None:
        on_queue.add(message.body)
    assert taken == on_queue


def test_a_mandatory_message_comes_back_before_its_confirm(connection: Connection) -> None:
    """C19: the return handler is called first, with reason and content."""
    order = Seen()
    channel = connection.channel(on_returned=order)
    confirm = channel.publish_confirmed(b"lost", routing_key="nowhere", mandatory=True, message_id="m")
    confirm.result(PATIENCE)
    (returned,) = order.wait_for(1)
    assert isinstance(returned, Returned)
    assert (returned.body, returned.reply_code, returned.routing_key) == (b"lost", 312, "nowhere")
    assert returned.properties == {"message_id": "m"}


def test_exchanges_route(channel: Channel) -> None:
    """Declared, bound, unbound and deleted; exchange to exchange too."""
    channel.exchange_declare("client-topic", "topic", auto_delete=True)
    channel.exchange_declare("client-source", "fanout", auto_delete=True)
    channel.exchange_bind("client-topic", "client-source")
    name = channel.queue_declare(exclusive=True).queue
    channel.queue_bind(name, "client-topic", "eu.#")
    channel.publish(b"hit", exchange="client-source", routing_key="eu.west")
    channel.publish(b"miss", exchange="client-topic", routing_key="us.west")
    channel.confirm_select()
    publish(channel, name, b"direct")
    assert [_next(channel, name).body for _ in range(2)] == [b"hit", b"direct"]
    channel.queue_unbind(name, "client-topic", "eu.#")
    channel.exchange_unbind("client-topic", "client-source")
    channel.exchange_delete("client-topic")
    channel.exchange_delete("client-source")


def test_a_prefetch_for_all_consumers_leaves_the_rest_in_the_queue(channel: Channel, queue: str) -> None:
    """For other channels; it can be raised while they consume, and what waits goes back when they are cancelled."""
    publish(channel, queue, *numbered(6))
    with channel.connection.channel() as taker:
        taker.basic_qos(1, global_=True)
        inboxes = [taker.consume(queue), taker.consume(queue)]
        wait_until_blocked(lambda: taker.statistics().unacked == 1)
        assert channel.queue_declare(queue, passive=True).message_count >= 4  # each may have asked for one
        taker.basic_qos(3, global_=True)
        wait_until_blocked(lambda: taker.statistics().unacked == 3)
        for inbox in inboxes:
            taker.basic_cancel(inbox.request.consumer_tag)
        wait_until_blocked(lambda: channel.queue_declare(queue, passive=True).message_count == 3)


def test_a_refusal_closes_its_channel_alone(connection: Connection) -> None:
    """C16: the call raises with code and text, the channel is of no further use, its number is."""
    channel, other = connection.channel(), connection.channel()
    with pytest.raises(ChannelClosed, match="no queue 'missing'") as caught:
        channel.queue_declare("missing", passive=True)
    assert caught.value.reply_code == 404
    assert not channel.is_open
    assert other.is_open
    assert connection.channel().number == channel.number
    with pytest.raises(ChannelClosed, match="NOT_FOUND"):
        channel.publish(b"x")


def test_a_publish_to_no_exchange_closes_the_channel_later(connection: Connection) -> None:
    """No thread waits for the answer of a publish: the next call is told."""
    channel = connection.channel()
    channel.publish(b"x", exchange="missing")
    with pytest.raises(ChannelClosed, match="no exchange 'missing'"):
        channel.queue_declare(exclusive=True)


def test_exclusive_means_nobody_beside(opened: Callable[..., Connection]) -> None:
    """An exclusive consumer, 403; an exclusive queue for another connection, 405."""
    first, second = opened(), opened()
    channel = first.channel()
    name = channel.queue_declare(exclusive=True).queue
    channel.basic_consume(name, ack, exclusive=True)
    with pytest.raises(ChannelClosed) as caught:
        first.channel().basic_consume(name, ack)
    assert caught.value.reply_code == 403
    with pytest.raises(ChannelClosed) as caught:
        second.channel().queue_declare(name, passive=True)
    assert caught.value.reply_code == 405


def test_closing_is_safe_from_everywhere(connection: Connection) -> None:
    """C17: twice, from several threads, channels and connection alike; what waits then raises."""
    channels = [connection.channel() for _ in range(4)]
    threads = [threading.Thread(target=channel.close) for channel in channels for _ in range(2)]
    threads += [threading.Thread(target=connection.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connection.is_closed
    with pytest.raises(ConnectionClosed):
        connection.channel()
    with pytest.raises((ChannelClosed, ConnectionClosed)):
        channels[0].queue_declare("x")


def test_numbers_of_channels_are_used_again(opened: Callable[..., Connection]) -> None:
    """The lowest first; beyond what was agreed there is none."""
    connection = opened(channel_max=3)
    channels = [connection.channel() for _ in range(3)]
    with pytest.raises(TooManyChannels, match="has 3 channels"):
        connection.channel()
    channels[1].close()
    assert connection.channel().number == 2


def test_a_loop_over_a_queue(channel: Channel, queue: str) -> None:
    """Iteration blocks for the next message; what was not taken when the inbox is closed goes back."""
    publish(channel, queue, *numbered(5))
    got = []
    with channel.consume(queue) as inbox:
        for message in inbox:
            message.ack()
            got.append(message.body)
            if len(got) == 3:
                break
        with pytest.raises(ValueError, match="already"):
            channel.consume(queue, consumer_tag=inbox.request.consumer_tag)
    assert got == numbered(3)
    assert list(inbox) == []
    assert [_next(channel, queue).body for _ in range(2)] == numbered(5)[3:]


def test_an_inbox_waits_no_longer_than_asked(channel: Channel, queue: str) -> None:
    """`get` raises Empty after its timeout."""
    with channel.consume(queue) as inbox, pytest.raises(Empty):
        inbox.get(timeout=0.01)


def test_an_inbox_raises_what_ended_it(connection: Connection, queue: str) -> None:
    """A channel that the server closes under a loop is no silent end."""
    channel = connection.channel()
    inbox = channel.consume(queue)
    channel.publish(b"x", exchange="missing")
    with pytest.raises(ChannelClosed, match="no exchange"):
        list(inbox)


def test_one_thread_blocks_on_queues_of_several_connections(opened: Callable[..., Connection]) -> None:
    """A consumer's callback can be the `put` of a sub-queue: fan-in over channels and connections."""
    inbox: LinkedBlockingMultiQueue[Message] = LinkedBlockingMultiQueue()
    names = {}
    for number in range(3):
        channel = opened().channel()
        names[number] = channel.queue_declare(exclusive=True).queue
        channel.basic_consume(names[number], inbox.add_subqueue(number, capacity=2).put)
        publish(channel, names[number], *[b"%d" % number] * 4)
    got = []
    for _ in range(12):
        taken = inbox.take(timeout=PATIENCE)
        assert taken.item.routing_key == names[int(str(taken.subqueue.key))]
        taken.item.ack()
        got.append(taken.item.body)
    assert sorted(got) == [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4


def test_statistics_say_what_waits_where(connection: Connection, channel: Channel, queue: str) -> None:
    """Consumers, queued, running, unacked and unconfirmed, per channel."""
    gate = threading.Event()
    seen = Seen(lambda message: gate.wait(PATIENCE))
    channel.basic_consume(queue, seen)
    publish(channel, queue, *numbered(4))
    wait_until_blocked(lambda: channel.statistics().unacked == 4 and channel.statistics().running_for is not None)
    wait_until_blocked(lambda: connection.statistics().buffered_bytes == 3)  # counted a moment after the channel's
    figures = channel.statistics()
    assert (figures.state, figures.consumers, figures.queued, figures.unconfirmed) == ("open", 1, 3, 0)
    assert figures.blocked_for is None
    whole = connection.statistics()
    assert (whole.state, whole.is_reading) == ("open", True)
    gate.set()
    for message in seen.wait_for(4):
        message.ack()


async def _conversation(connection: Connection) -> list[bytes]:
    async with await connection.async_channel() as channel:
        name = channel.queue_declare(exclusive=True).queue
        for body in numbered(3):
            await channel.publish_confirmed(body, routing_key=name)
        got = []
        async with channel.consume(name) as inbox:
            async for message in inbox:
                message.ack()
                got.append(message.body)
                if len(got) == 3:
                    return got
    return got


def test_coroutines_use_the_same_classes(connection: Connection) -> None:
    """Confirms are awaited, inboxes iterated over with `async for`, everything is closed by `async with`."""
    import asyncio

    assert asyncio.run(_conversation(connection)) == numbered(3)


def test_a_coroutine_that_is_cancelled_leaves_nothing_open(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still being opened, or is open already and was not handed over, is closed."""
    import asyncio

    begun, go_on, opened = threading.Event(), threading.Event(), Seen()
    open_ = connection.channel

    def open_late() -> Channel:
        begun.set()
        go_on.wait(PATIENCE)
        channel = open_()
        opened(channel)
        return channel

    monkeypatch.setattr(connection, "channel", open_late)

    async def cancelled() -> None:
        opening = asyncio.create_task(connection.async_channel())
        await asyncio.to_thread(begun.wait, PATIENCE)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()

    asyncio.run(cancelled())
    opened.wait_for(1)
    wait_until_blocked(lambda: connection.statistics().channels == ())


def _next(channel: Channel, queue: str) -> Message:
    """The next message of a queue that is known to have one soon."""
    found: list[Message] = []
    wait_until_blocked(lambda: found.extend(filter(None, [channel.basic_get(queue, auto_ack=True)])) or found)
    return found[0]


def test_in_process_a_confirm_means_that_it_is_kept(tmp_path: Any) -> None:
    """A broker that keeps its data in a directory: what was confirmed is there when it is opened again."""
    with Broker(data=tmp_path) as broker, connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        confirms = [channel.publish_confirmed(body, routing_key="kept", delivery_mode=2) for body in numbered(20)]
        assert [confirm.exception(PATIENCE) for confirm in confirms] == [None] * 20
    with Broker(data=tmp_path) as broker, connect(broker) as connection:
        channel = connection.channel()
        assert [_next(channel, "kept").body for _ in range(20)] == numbered(20)
