"""A session without a server: methods and contents in, what it tells and asks for out. No socket, no thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqp_parts_support import deliveries
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp.session import Client, Confirms, Session, Turns
from multiqueue.broker import Broker, Message

LIMIT = 100


class Paper:
    """Writes down what a session tells, and does at once what it asks for. `run` does what was posted."""

    is_held_back = is_closed = awaits_turn = False

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.confirming: dict[Confirms, None] = {}
        self.posted: list[Callable[[], object]] = []
        self.notify = Turns(self.posted.append).notify

    def run(self) -> list[Any]:
        """What was told since the last time, when all that was posted is done."""
        while self.posted:
            self.posted.pop(0)()
        while self.confirming:
            self.confirm(self.confirming.popitem()[0])
        told, self.told = self.told, []
        return told

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        self.posted.append(lambda: callback(*args))

    def reply(self, number: int, method: Any, /, **fields: Any) -> None:
        self.told.append((number, method.name, fields))

    def deliver_all(self, number: int, consumer: Any, first_tag: int, redelivered: Any, contents: Any) -> None:
        for tag, flag, content in zip(itertools.count(first_tag), redelivered, contents, strict=False):
            self.told.append((number, consumer.tag, tag, flag, content[2]))

    def confirm(self, confirms: Confirms) -> None:
        self.told += [(confirms.number, each) for each in confirms.take()]

    def returned(self, number: int, code: int, content: Any) -> None:
        self.told.append((number, code, content[2]))

    def do_in_pieces(
        self, work: Iterator[object], session: Any, method: bytes, then: Callable[[], object] = lambda: None
    ) -> None:
        list(work)
        then()

    def offload(self, work: Callable[[], Callable[[], object]], session: Any) -> None:
        work()()

    def flush(self) -> None: ...
    def took_turn(self) -> None: ...
    def publishes(self) -> None: ...
    def forget(self, session: Any) -> None: ...
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as started:
        started.declare_queue("q")
        yield started


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def session(broker: Broker, paper: Paper) -> Session:
    """Open, on channel 7."""
    host: Any = broker.virtual_host()
    out: Any = paper
    publisher = host.publisher(lambda reports: None)
    client = Client(host, paper, "guest", lambda operation, kind, name: None, publisher, LIMIT, hears_of_cancels=True)
    made = Session(7, client, out, out)
    call(made, commands.Channel.Open)
    assert paper.run() == [(7, "Channel.OpenOk", {})]
    return made


def call(session: Session, method: Any, **fields: Any) -> None:
    session.receive(amqp.FRAME_METHOD, amqp.encode_method(7, method, **fields)[7:-1])


def content(body: bytes, routing_key: str = "q", *, mandatory: bool = False) -> tuple[bytes, bytes, bytes]:
    return amqp.wire.encode_publish_method("", routing_key, mandatory=mandatory), amqp.NO_PROPERTIES, body


def test_a_publish_is_confirmed_when_the_turn_ends(session: Session, paper: Paper, broker: Broker) -> None:
    """A whole content goes to its queue; one that goes nowhere is returned before its confirm."""
    call(session, commands.Confirm.Select, nowait=True)
    session.receive_content(content(b"tea"))
    session.receive_content(content(b"milk", "nowhere", mandatory=True))
    assert len(broker.queue("q")) == 1
    assert paper.run() == [(7, 312, b"milk"), (7, amqp.Ack(2, True))]


def test_a_consumer_is_served_in_a_turn(session: Session, paper: Paper, broker: Broker) -> None:
    """A queue's notification schedules a turn, in which messages are delivered; a settlement needs no frame."""
    call(session, commands.Basic.Consume, queue="q", consumer_tag="t", nowait=True)
    broker.publish(Message(b"tea", routing_key="q"))
    assert not paper.told
    assert paper.run() == [(7, "t", 1, False, b"tea")]
    session.settle(amqp.Ack(1, False))
    assert broker.queue("q").statistics().unacked == 0


@pytest.mark.parametrize("ends", [None, commands.Tx.Commit, commands.Tx.Rollback])
@pytest.mark.parametrize(
    "settled", [amqp.Ack(1, False), amqp.Ack(0, True), amqp.Nack(1, False, True), amqp.Reject(1, False)]
)
def test_a_consumer_that_browses_settles_nothing(
    session: Session, paper: Paper, broker: Broker, settled: Any, ends: Any
) -> None:
    """Its queue keeps all messages, however the client settles them, and its prefetch holds; what no wire can carry is
    left out."""
    broker.declare_queue("b", arguments={"qpid.ensure_nondestructive_consumers": True})
    for body in ({"an": "object"}, b"1", b"2"):
        broker.publish(Message(body, routing_key="b"))
    if ends is not None:
        call(session, commands.Tx.Select)
    call(session, commands.Basic.Qos, prefetch_count=1)
    paper.run()
    call(session, commands.Basic.Consume, queue="b", consumer_tag="t", nowait=True)
    assert paper.run() == [(7, "t", 1, False, b"1")]
    session.settle(settled)
    if ends is not None:
        assert paper.run() == []
        call(session, ends)
    assert (7, "t", 2, False, b"2") in paper.run() or ends is commands.Tx.Rollback
    call(session, commands.Channel.Close, reply_code=200)
    assert paper.run() == [(7, "Channel.CloseOk", {})]
    figures = broker.queue("b").statistics()
    assert (figures.available, figures.unacked, figures.consumers) == (3, 0, 0)


@pytest.mark.parametrize(
    ("where", "nth"), [("content_of", 1), ("content_of", 3), ("content_of", 6), ("deliver_all", 1)]
)
def test_a_fault_of_ours_in_a_run_strands_nothing(
    session: Session, paper: Paper, broker: Broker, monkeypatch: pytest.MonkeyPatch, nth: int, where: str
) -> None:
    """Messages of a run in the middle of which memory ends, say, are on their queue when the session has ended."""
    whose: Any = deliveries if where == "content_of" else paper
    do, calls = getattr(whose, where), itertools.count(1)

    def fail(*args: Any) -> Any:
        if next(calls) == nth:
            raise MemoryError
        return do(*args)

    monkeypatch.setattr(whose, where, fail)
    monkeypatch.setattr(Paper, "failed", lambda _, error: list(session.end()), raising=False)
    for number in range(6):
        broker.publish(Message(b"%d" % number, routing_key="q"))
    call(session, commands.Basic.Consume, queue="q", consumer_tag="t", nowait=True)
    assert paper.run() == []
    assert [message.body for message in broker.queue("q").browse()] == [b"%d" % number for number in range(6)]
    assert broker.queue("q").statistics().unacked == 0


def test_an_end_gives_back_and_then_answers(session: Session, paper: Paper, broker: Broker) -> None:
    """A closed session has nothing: its unacked message is back when the close is answered."""
    call(session, commands.Basic.Consume, queue="q", consumer_tag="t", nowait=True)
    broker.publish(Message(b"tea", routing_key="q"))
    paper.run()
    call(session, commands.Channel.Close, reply_code=200)
    assert paper.run() == [(7, "Channel.CloseOk", {})]
    figures = broker.queue("q").statistics()
    assert (figures.available, figures.unacked, figures.consumers) == (1, 0, 0)


def test_a_content_above_the_limit_is_a_fault(session: Session, broker: Broker) -> None:
    """A body of more bytes than the client may send raises, and reaches no queue; after a fault all is dropped."""
    session.receive_content(content(bytes(LIMIT)))
    with pytest.raises(amqp.ChannelFault, match="message size 101 is larger than configured max size 100"):
        session.receive_content(content(bytes(LIMIT + 1)))
    session.fault(406, "too large", amqp.wire.encode_publish_method("", "q"))
    session.receive_content(content(b"late"))
    assert len(broker.queue("q")) == 1


def test_a_session_that_is_not_open_takes_nothing(session: Session) -> None:
    """A publish or a settlement on a closed session is 504, as its frames would be."""
    call(session, commands.Channel.Close, reply_code=200)
    with pytest.raises(amqp.ConnectionFault, match=r"expected 'channel.open'"):
        session.receive_content(content(b""))
    with pytest.raises(amqp.ConnectionFault, match=r"expected 'channel.open'"):
        session.settle(amqp.Ack(1, False))
