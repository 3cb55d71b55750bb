"""Transactions: all of it at commit, none of it before, none of it after a rollback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broker_front_support import bodies
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis_support import examples

from multiqueue.broker import Broker, IllegalStep, Message, MessageRefused, NotFound, Received, Unroutable, VirtualHost


@pytest.fixture
def host() -> VirtualHost:
    host = VirtualHost()
    for name in ("a", "b"):
        host.declare_queue(name)
    return host


def put(host: VirtualHost, queue: str, *contents: bytes) -> None:
    for content in contents:
        host.publish(Message(content, routing_key=queue))


def take(host: VirtualHost, queue: str) -> Received:
    received = host.get(queue)
    assert received is not None
    return received


def test_nothing_is_visible_before_the_commit_and_everything_after_it(host: VirtualHost) -> None:
    """Publishes to two queues and the settling of three messages wait for the commit."""
    put(host, "a", b"1", b"2", b"3")
    first, second, third = (take(host, "a") for _ in range(3))
    transaction = host.transaction()
    assert transaction.publish(Message(b"x", routing_key="a")) == 1
    transaction.publish(Message(b"y", routing_key="b"))
    transaction.accept(first, second)
    transaction.release(third)
    assert len(transaction) == 5
    assert (len(host.queue("a")), bodies(host.queue("a")), len(host.queue("b"))) == (3, [], 0)
    transaction.commit()
    assert (bodies(host.queue("a")), bodies(host.queue("b"))) == ([b"3", b"x"], [b"y"])
    assert len(transaction) == 0
    host.check_invariants()


def test_messages_of_one_holder_are_settled_together(host: VirtualHost) -> None:
    """A hundred messages of one subscription are accepted in one step of their queue."""
    subscription = host.subscribe("a")
    put(host, "a", *[b"x"] * 100)
    calls: list[int] = []
    accept = subscription.target.accept
    subscription.target.accept = lambda *each: calls.append(len(each)) or accept(*each)  # type: ignore[method-assign, func-returns-value]
    with host.transaction() as transaction:
        for _ in range(100):
            transaction.accept(subscription.get(timeout=30))
    assert calls == [100]
    assert len(host.queue("a")) == 0
    subscription.close()


def test_after_a_rollback_nothing_has_happened_and_messages_can_still_be_settled(host: VirtualHost) -> None:
    """Rolled-back publishes are gone, rolled-back acks are not done, and the transaction begins anew."""
    put(host, "a", b"1")
    received = take(host, "a")
    transaction = host.transaction()
    transaction.publish(Message(b"x", routing_key="b"))
    transaction.accept(received)
    transaction.rollback()
    transaction.commit()
    assert (len(host.queue("a")), len(host.queue("b"))) == (1, 0)
    transaction.reject(received)
    transaction.commit()
    assert len(host.queue("a")) == 0


def test_a_message_that_is_not_the_callers_any_more_stops_the_whole_commit(host: VirtualHost) -> None:
    """Nothing is published, nothing else is settled, and the transaction is as it was (broker-front 6)."""
    put(host, "a", b"1", b"2")
    mine, settled = take(host, "a"), take(host, "a")
    transaction = host.transaction()
    transaction.publish(Message(b"x", routing_key="b"))
    transaction.accept(mine, settled)
    settled.release()
    with pytest.raises(IllegalStep):
        transaction.commit()
    assert (bodies(host.queue("a")), len(host.queue("b")), len(transaction)) == ([b"2"], 0, 3)
    assert host.queue("a").delete_messages(steal=True) == 2, "the other message was left locked"
    host.check_invariants()


def test_what_management_took_away_counts_for_nothing(host: VirtualHost) -> None:
    """A message that was stolen stops no transaction: the rest is committed."""
    put(host, "a", b"1")
    with host.transaction() as transaction:
        transaction.accept(take(host, "a"))
        transaction.publish(Message(b"x", routing_key="b"))
        assert host.queue("a").delete_messages(steal=True) == 1
    assert (len(host.queue("a")), bodies(host.queue("b"))) == (0, [b"x"])


def test_messages_of_a_deleted_queue_do_not_stop_a_commit(host: VirtualHost) -> None:
    """Nothing is left to settle there; the messages of other queues are settled as they should be."""
    put(host, "a", b"1")
    put(host, "b", b"2")
    alone, both = host.subscribe("a"), host.subscribe("b")
    transaction = host.transaction()
    transaction.accept(alone.get(timeout=30), both.get(timeout=30))
    host.delete_queue("a")
    assert alone.is_closed
    transaction.commit()
    assert len(host.queue("b")) == 0
    both.close()


def test_a_message_is_settled_once_in_a_transaction(host: VirtualHost) -> None:
    """Accepting and rejecting the same message would contradict; the second is refused, also among others."""
    put(host, "a", b"1", b"2")
    first, second = take(host, "a"), take(host, "a")
    transaction = host.transaction()
    transaction.accept(first)
    with pytest.raises(ValueError, match="is settled in this transaction already"):
        transaction.reject(second, first)
    transaction.commit()
    assert len(host.queue("a")) == 1


def test_leaving_the_block_commits_and_an_exception_rolls_back(host: VirtualHost) -> None:
    """As with a database: what the block did is kept when it ends, and forgotten when it fails."""
    with host.transaction() as transaction:
        transaction.publish(Message(b"kept", routing_key="a"))

    def fail() -> None:
        with host.transaction() as transaction:
            transaction.publish(Message(b"forgotten", routing_key="a"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert bodies(host.queue("a")) == [b"kept"]


def test_a_message_is_routed_when_it_is_published(host: VirtualHost) -> None:
    """Errors of addressing are told at once; a queue that is deleted before the commit does not hinder it."""
    transaction = host.transaction()
    with pytest.raises(NotFound, match="no exchange 'x'"):
        transaction.publish(Message(exchange="x"))
    message = Message(routing_key="nowhere")
    with pytest.raises(Unroutable, match=re.escape("NO_ROUTE - exchange '' in vhost '/' leads")) as raised:
        transaction.publish(message, mandatory=True)
    assert raised.value.message is message
    assert transaction.publish(message) == 0
    transaction.publish(Message(b"1", routing_key="a"))
    transaction.publish(Message(b"2", routing_key="b"))
    host.delete_queue("a")
    transaction.commit()
    assert bodies(host.queue("b")) == [b"2"]


def test_a_full_queue_does_not_undo_a_commit_and_is_named_afterwards(host: VirtualHost) -> None:
    """What a queue at its limit refuses is told when all the rest is done, one error per message."""
    host.declare_queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    put(host, "a", b"1")
    refused = [Message(b"%d" % number, routing_key="full") for number in range(2)]
    transaction = host.transaction()
    transaction.publish(refused[0])
    transaction.publish(Message(b"x", routing_key="b"))
    transaction.accept(take(host, "a"))
    with pytest.raises(MessageRefused, match="'full'") as raised:
        transaction.commit()
    assert raised.value.message is refused[0]
    assert (len(host.queue("a")), bodies(host.queue("b"))) == (0, [b"x"])
    for message in refused:
        transaction.publish(message)
    with pytest.raises(ExceptionGroup) as group:
        transaction.commit()
    assert [error.message for error in group.value.exceptions] == refused


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "stored"])
def test_a_mandatory_message_is_given_back_at_commit(stored: bool, tmp_path: Path) -> None:
    """Mandatory messages that no queue has are told at commit, in the order of publishing, and everything is done.
    A queue that went meanwhile is none; after a rollback nothing is told."""
    with Broker(data=tmp_path if stored else None) as broker:
        queue = broker.declare_queue("q", durable=stored)
        gone = broker.declare_queue("gone", durable=stored)
        with broker.transaction() as transaction:
            transaction.publish_on([], Message(1), mandatory=True)
            transaction.rollback()
        messages = [Message(str(number).encode(), persistent=stored) for number in range(4)]
        transaction.publish_on([], messages[0], mandatory=True)
        transaction.publish_on([queue], messages[1], mandatory=True)
        transaction.publish_on([], messages[2])
        transaction.publish_on([gone], messages[3], mandatory=True)
        broker.delete_queue("gone")
        with pytest.raises(ExceptionGroup) as told:
            transaction.commit()
        assert [error.message for error in told.value.exceptions if isinstance(error, Unroutable)] == [
            messages[0],
            messages[3],
        ]
        assert len(queue) == 1
        transaction.commit()


class TransactionMachine(RuleBasedStateMachine):
    """Publishing and settling with and without a transaction, against lists of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.host = VirtualHost()
        self.queue = self.host.declare_queue("q")
        self.transaction = self.host.transaction()
        self.number = 0
        self.order: list[int] = []  # everything on the queue, at its place
        self.held: dict[int, Received] = {}  # what of it is in our hands
        self.to_publish: list[int] = []
        self.to_accept: list[int] = []
        self.to_release: list[int] = []

    @property
    def ready(self) -> list[int]:
        return [number for number in self.order if number not in self.held]

    @property
    def free(self) -> list[int]:
        return [number for number in self.held if number not in self.to_accept + self.to_release]

    @rule(in_transaction=st.booleans())
    def publish(self, in_transaction: bool) -> None:
        self.number += 1
        message = Message(self.number, routing_key="q")
        if in_transaction:
            self.transaction.publish(message)
            self.to_publish.append(self.number)
        else:
            self.host.publish(message)
            self.order.append(self.number)

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        held = take(self.host, "q")
        assert held.body == self.ready[0]
        self.held[self.ready[0]] = held

    @precondition(lambda self: self.free)
    @rule(data=st.data(), accept=st.booleans())
    def settle(self, data: st.DataObject, accept: bool) -> None:
        number = data.draw(st.sampled_from(self.free))
        if accept:
            self.transaction.accept(self.held[number])
            self.to_accept.append(number)
        else:
            self.transaction.release(self.held[number])
            self.to_release.append(number)

    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        if commit:
            self.transaction.commit()
            for number in self.to_accept + self.to_release:
                del self.held[number]
            self.order = [number for number in self.order if number not in self.to_accept] + self.to_publish
        else:
            self.transaction.rollback()
        self.to_publish, self.to_accept, self.to_release = [], [], []

    @invariant()
    def the_queue_has_what_the_lists_say(self) -> None:
        assert bodies(self.queue) == self.ready
        assert len(self.queue) == len(self.order)
        assert len(self.transaction) == len(self.to_publish) + len(self.to_accept) + len(self.to_release)
        self.host.check_invariants()


TransactionMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestTransactionMachine = TransactionMachine.TestCase
