"""The record a dead letter carries, and how it keeps messages from going round for ever."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from broker_parts_support import dead_letter, dying, is_cycle

from multiqueue.broker import Broker, DeadLetterReason, Message, WireForm, deaths_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EXPIRED, REJECTED = DeadLetterReason.EXPIRED, DeadLetterReason.REJECTED


def died(message: Message, queue: str, reason: DeadLetterReason = EXPIRED) -> Message:
    return dead_letter(message, queue=queue, reason=reason, exchange="dlx", routing_key=None, now=NOON)


def test_a_dead_letter_tells_where_and_why_it_died() -> None:
    """The record has RabbitMQ's fields, and the address it had; body and other headers are untouched."""
    message = Message(
        b"body", exchange="orders", routing_key="eu", headers={"a": 1}, expiration=1.5, delay=3.0, priority=4
    )
    letter = dead_letter(message, queue="q", reason=EXPIRED, exchange="dlx", routing_key="dead", now=NOON)
    assert (letter.exchange, letter.routing_key, letter.body, letter.priority) == ("dlx", "dead", b"body", 4)
    assert letter.headers["a"] == 1
    assert deaths_of(letter) == [
        {
            "count": 1,
            "reason": "expired",
            "queue": "q",
            "time": NOON,
            "exchange": "orders",
            "routing-keys": ["eu"],
            "original-expiration": "1500",
        }
    ]
    assert message.headers == {"a": 1}


def test_a_dead_letter_has_no_time_to_live_and_no_delay_of_its_own_any_more() -> None:
    """Otherwise it would die again, or wait again, where it was meant to be looked at."""
    letter = died(Message(expiration=1.0, delay=1.0), "q")
    assert (letter.expiration, letter.delay) == (None, None)
    assert "original-expiration" not in deaths_of(died(letter, "q"))[0]


def test_without_a_routing_key_of_its_own_a_dead_letter_keeps_its_address() -> None:
    """`x-dead-letter-routing-key` replaces the key; without it the message's own is used."""
    assert died(Message(routing_key="eu"), "q").routing_key == "eu"


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_message_is_on_all_its_queues_before_what_died_of_it_goes_on(in_a_transaction: bool) -> None:
    """The dead letter of one queue comes to another after the message, whose place it might have taken."""
    with Broker() as broker:
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "second"}
        broker.declare_queue("first", arguments={"x-max-length": 1, **letters})
        second = broker.declare_queue("second", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        for queue in ("first", "second"):
            broker.bind_queue(queue, "amq.fanout")
        with broker.transaction() as transaction:
            for body in (b"1", b"2"):
                publish = transaction.publish if in_a_transaction else broker.publish
                publish(Message(body, exchange="amq.fanout"))
        assert [message.body for message in second.browse()] == [b"1", b"2"]


def test_what_dies_of_a_dead_letter_that_holds_others_back_is_a_loop_not_a_stack() -> None:
    """A callback that publishes to several queues holds its line once more."""
    done: list[int] = []

    def publish() -> None:
        dying.hold()
        done.append(1)
        dying.let_go()

    dying.hold()
    for _ in range(2000):
        dying.run(publish)
    assert not done
    dying.let_go()
    assert len(done) == 2000


def test_a_dead_letter_goes_to_all_keys_it_was_published_with() -> None:
    """CC and BCC lead on as the routing key does, each queue once; a key of the queue's is the only one, and takes CC
    out. BCC stays hidden, and what is no text in CC is no key."""
    with Broker(housekeeping_interval=0.01) as broker:
        broker.declare_exchange("letters")
        for queue in ("own", "cc", "bcc", "named"):
            broker.declare_queue(queue)
            broker.bind_queue(queue, "letters", queue)
        message = Message(
            b"m", headers={"CC": ["cc", "own", 5], "a": 1}, wire=WireForm(b"\0\0", bcc=("bcc",)), routing_key="own"
        )
        dies = broker.declare_queue("dies", arguments={"x-dead-letter-exchange": "letters"})
        dies.put(message)
        died_by_reject(broker, "dies")
        for queue in ("own", "cc", "bcc"):
            letter = broker.get(queue, auto_accept=True)
            assert letter is not None
            assert letter.message.headers["CC"] == ["cc", "own", 5]
            assert deaths_of(letter.message)[0]["routing-keys"] == ["own", "cc", "own"]
            assert broker.get(queue) is None
        arguments = {"x-dead-letter-exchange": "letters", "x-dead-letter-routing-key": "named"}
        broker.declare_queue("moves", arguments=arguments).put(message)
        died_by_reject(broker, "moves")
        letter = broker.get("named", auto_accept=True)
        assert letter is not None
        assert "CC" not in letter.message.headers
        assert letter.message.headers["a"] == 1
        assert all(broker.get(queue) is None for queue in ("own", "cc", "bcc"))


def died_by_reject(broker: Broker, queue: str) -> None:
    received = broker.get(queue)
    assert received is not None
    received.reject()


def test_dying_again_counts_up_and_moves_to_the_front() -> None:
    """One entry per queue and reason, the latest first; the first death is remembered for ever."""
    letter = died(died(died(Message(exchange="x"), "a"), "b"), "a")
    assert [(death["queue"], death["count"]) for death in deaths_of(letter)] == [("a", 2), ("b", 1)]
    other = died(letter, "a", REJECTED)
    assert [(death["reason"], death["count"]) for death in deaths_of(other)][:2] == [
        ("rejected", 1),
        ("expired", 2),
    ]
    ends = ("x-first-death-queue", "x-first-death-exchange", "x-last-death-queue", "x-last-death-reason")
    assert [other.headers[end] for end in ends] == ["a", "x", "a", "rejected"]


def test_a_message_that_died_here_and_was_not_rejected_since_is_going_round_in_circles() -> None:
    """The broker sends nothing back to a queue that it expired from, or was pushed out of."""
    letter = died(died(Message(), "a"), "b")
    assert is_cycle(letter, "a")
    assert is_cycle(letter, "b")
    assert not is_cycle(letter, "c")


def test_a_circle_with_a_rejection_in_it_may_go_on() -> None:
    """Work queue, rejection, waiting queue, expiry, work queue: the usual way to build retries."""
    letter = died(died(Message(), "work", REJECTED), "wait")
    assert not is_cycle(letter, "work")
    assert is_cycle(letter, "wait")
    assert not is_cycle(died(Message(), "work", REJECTED), "work")


@pytest.mark.parametrize("forged", ["text", 7, [1, "x"], {"queue": "a"}, [{"count": "many", "queue": "a"}]])
def test_a_forged_record_does_no_harm(forged: object) -> None:
    """A publisher may send any header of that name; the message can still die and is counted from one."""
    letter = died(Message(headers={"x-death": forged}), "q")
    assert deaths_of(letter)[0]["count"] == 1
