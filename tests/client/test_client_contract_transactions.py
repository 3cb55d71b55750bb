"""Transactions of a channel, over every peer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from client_contract_support import PATIENCE, numbered, publish

from multiqueue.client import Channel, ChannelClosed, Message, Returned, UnknownDelivery


@pytest.fixture
def transactional(channel: Channel) -> Iterator[Channel]:
    """A channel with transactions."""
    with channel.connection.channel() as made:
        made.tx_select()
        yield made


def got(channel: Channel, queue: str, count: int) -> list[Message]:
    """The next messages, unsettled."""
    messages = [channel.basic_get(queue) for _ in range(count)]
    return [message for message in messages if message is not None]


def test_transactions_are_all_or_nothing(channel: Channel, transactional: Channel, queue: str) -> None:
    """What was published and settled becomes true at commit, and not at all at rollback."""
    publish(channel, queue, b"old")
    (message,) = got(transactional, queue, 1)
    message.ack()
    transactional.publish(b"new", routing_key=queue)
    transactional.tx_rollback()
    transactional.publish(b"newer", routing_key=queue)
    assert channel.basic_get(queue) is None
    transactional.tx_commit()
    assert [each.body for each in got(channel, queue, 2)] == [b"newer"]
    transactional.close()
    assert [each.body for each in got(channel, queue, 2)] == [b"old"]


def test_a_rollback_makes_settled_messages_unsettled(channel: Channel, transactional: Channel, queue: str) -> None:
    """They are counted, and settled again, in another way if need be; those that were not stay as they were.

    (client 13)
    """
    publish(channel, queue, *numbered(4))
    messages = got(transactional, queue, 4)
    messages[0].ack()
    messages[2].ack(multiple=True)
    assert [each.is_settled for each in messages] == [True, True, True, False]
    with pytest.raises(UnknownDelivery):
        messages[0].ack()
    transactional.tx_rollback()
    assert [each.is_settled for each in messages] == [False] * 4
    assert transactional.statistics().unacked == 4
    messages[1].ack(multiple=True)
    messages[2].nack()
    transactional.tx_commit()
    assert transactional.statistics().unacked == 1
    transactional.tx_rollback()
    assert [each.is_settled for each in messages] == [True, True, True, False]
    assert [each.body for each in got(channel, queue, 2)] == [b"2"]


def test_a_channel_that_closes_undoes_its_transaction(channel: Channel, transactional: Channel, queue: str) -> None:
    """What was settled and not committed is back in its queue, in its place, and flagged."""
    publish(channel, queue, *numbered(3))
    first, second = got(transactional, queue, 2)
    first.ack()
    second.reject()
    transactional.close()
    found = [(each.body, each.redelivered) for each in got(channel, queue, 4)]
    assert found == [(b"0", True), (b"1", True), (b"2", False)]


def test_a_commit_that_a_queue_refuses_in_part(channel: Channel, transactional: Channel, queue: str) -> None:
    """The rest is done, and the channel is closed with 406: the committer does not take it for done."""
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    small = channel.queue_declare(exclusive=True, arguments=limits).queue
    publish(channel, queue, b"old")
    (message,) = got(transactional, queue, 1)
    message.ack()
    for where, body in ((small, b"1"), (small, b"2"), (queue, b"3")):
        transactional.publish(body, routing_key=where)
    with pytest.raises(ChannelClosed, match="partial tx completion") as caught:
        transactional.tx_commit()
    assert caught.value.reply_code == 406
    assert [each.body for each in got(channel, small, 2)] == [b"1"]
    assert [each.body for each in got(channel, queue, 2)] == [b"3"]


def test_a_mandatory_message_is_returned_at_commit(transactional: Channel, queue: str) -> None:
    """One that reaches no queue comes back with the commit, in order with its like, and never after a rollback."""
    returned: list[bytes] = []
    both = threading.Event()

    def on_returned(message: Returned) -> None:
        returned.append(message.body)
        if len(returned) == 2:
            both.set()

    transactional.on_returned = on_returned
    transactional.publish(b"rolled back", routing_key="nowhere", mandatory=True)
    transactional.tx_rollback()
    transactional.publish(b"first", routing_key="nowhere", mandatory=True)
    transactional.publish(b"arrives", routing_key=queue, mandatory=True)
    transactional.publish(b"second", routing_key="nowhere", mandatory=True)
    assert transactional.basic_get(queue) is None  # an answer: whatever was returned by now would be here before it
    assert returned == []
    transactional.tx_commit()
    assert both.wait(PATIENCE)
    assert returned == [b"first", b"second"]
