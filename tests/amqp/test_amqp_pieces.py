"""Settling and giving back very many messages: piece by piece, in order, with other connections' turns in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from amqp_parts_support import IoThread, Piecework, deliveries, transaction
from amqp_raw_support import PATIENCE, RawClient
from amqp_stored_support import StoredBroker
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Server
from multiqueue.broker import Broker, BrokerQueue, Message
from multiqueue.testing import Threads, wait_until_blocked

PIECE = 40
COUNT = 4 * PIECE + 20


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deliveries, transaction):
        monkeypatch.setattr(module, "PIECE", PIECE)
    monkeypatch.setattr(deliveries, "_SIZES", dict.fromkeys(deliveries._SIZES, PIECE))


class Steps:
    """What an I/O thread does: sizes of the holds in which messages are settled, and looks at its sockets between."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[int | None] = []
        do_piece = IoThread._do_first_piece

        def look(io: IoThread) -> None:
            self.log.append(None)
            do_piece(io)

        monkeypatch.setattr(IoThread, "_do_first_piece", look)
        for how in ("accept", "release", "discard", "reject"):  # `fail` releases
            self._watch(how, monkeypatch)

    def _watch(self, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        does = getattr(BrokerQueue, how)

        def settle(queue: BrokerQueue, entries: list[object], owner: object, **options: bool) -> int:
            self.log.append(len(entries))
            return int(does(queue, entries, owner, **options))

        monkeypatch.setattr(BrokerQueue, how, settle)

    @property
    def pieces(self) -> list[int]:
        return [each for each in self.log if each is not None]

    def assert_cut(self, count: int = COUNT) -> None:
        """So many were settled, never much at once, with a look between two pieces."""
        assert sum(self.pieces) == count
        assert max(self.pieces) <= PIECE
        assert not any(one is not None and other is not None for one, other in pairwise(self.log))


@pytest.fixture
def broker() -> Iterator[StoredBroker]:
    """One with a long queue whose dead letters are kept."""
    with StoredBroker(housekeeping_interval=60) as started:
        started.declare_queue("dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        started.declare_queue("q", arguments=arguments)
        for number in range(COUNT):
            started.publish(Message(b"%d" % number, routing_key="q"))
        yield started


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    with amqp.serve(broker) as started:
        yield started


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def holder(server: Server, count: int = COUNT, *, transactional: bool = False) -> RawClient:
    """A client that has everything, unacked; it takes nothing further by itself."""
    client = RawClient(server.url)
    if transactional:
        client.call(1, commands.Tx.Select)
    client.call(1, commands.Basic.Qos, prefetch_count=count)
    client.consume("q", tag="all")
    assert client.bodies(count) == bodies(count)
    return client


def bodies(count: int = COUNT, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, count)]


def counts(broker: Broker, name: str = "q") -> tuple[int, int]:
    figures = broker.queue(name).statistics()
    return figures.available, figures.unacked


def test_an_ack_of_very_many_lets_others_in(broker: Broker, server: Server, steps: Steps) -> None:
    """basic.ack multiple takes as many turns as it needs; what comes behind it sees it done."""
    with holder(server) as client:
        client.ack(COUNT - 10, multiple=True)
        assert client.ready("q") == 0
        assert counts(broker) == (0, 10)
        steps.assert_cut(COUNT - 10)


@pytest.mark.parametrize("how", ["nack", "recover", "channel close", "channel error", "close", "error", "reset"])
def test_giving_back_very_many_lets_others_in(broker: Broker, server: Server, steps: Steps, how: str) -> None:
    """Everything is back at its place, flagged, once: however it comes back, and in as many turns as it needs."""
    client = holder(server)
    if how == "nack":
        client.call(1, commands.Basic.Cancel, consumer_tag="all")
        client.nack(0, multiple=True)
        assert client.ready("q") == COUNT
    elif how == "recover":
        client.call(1, commands.Basic.Cancel, consumer_tag="all")
        client.call(1, commands.Basic.Recover, requeue=True)
    elif how == "channel close":
        client.call(1, commands.Channel.Close, reply_code=200)
    elif how == "channel error":
        client.ack(COUNT + 1)
        assert client.channel_error()[0] == 406
    elif how == "close":
        client.close()
    elif how == "error":
        client.send_method(0, commands.Connection.Open, virtual_host="/")
        assert client.connection_error()[0] == 504
    else:
        (connection,) = server.connections()
        connection.io.post(connection.abort)
        wait_until_blocked(lambda: not server.connections())
    assert counts(broker) == (COUNT, 0)
    steps.assert_cut()
    with RawClient(server.url) as other:
        other.consume("q")
        contents = [other.content() for _ in range(COUNT)]
    assert [each.body for each in contents] == bodies()
    assert all(each.method.redelivered for each in contents)


def test_rejecting_very_many_keeps_their_order(broker: Broker, server: Server, steps: Steps) -> None:
    """Dead letters come in order of delivery, in as many turns as they need."""
    with holder(server) as client:
        client.nack(0, multiple=True, requeue=False)
        assert client.ready("dead") == COUNT
        steps.assert_cut()
        client.consume("dead", tag="dead", no_ack=True)
        assert client.bodies(COUNT) == bodies()


def test_who_gives_back_very_many_gets_them_in_order(broker: Broker, server: Server, steps: Steps) -> None:
    """What comes behind a nack of everything does not overtake it, for the consumer that has sent the nack."""
    with RawClient(server.url) as client:
        client.consume("q")  # no prefetch: anything that is there may come
        client.bodies(COUNT)
        client.nack(0, multiple=True)
        client.publish("", "q", b"%d" % COUNT)
        assert client.bodies(COUNT + 1) == bodies(COUNT + 1)


def test_the_next_single_active_consumer_finds_everything_back(broker: Broker, server: Server) -> None:
    """It takes over when all that the former one had is at its place: not what stood behind that first."""
    broker.declare_queue("single", arguments={"x-single-active-consumer": True})
    for number in range(COUNT):
        broker.publish(Message(b"%d" % number, routing_key="single"))
    with RawClient(server.url) as first, RawClient(server.url) as second:
        first.call(1, commands.Basic.Qos, prefetch_count=COUNT - 10)
        first.consume("single")
        first.bodies(COUNT - 10)
        second.consume("single")
        first.send_method(1, commands.Channel.Close)
        assert second.bodies(COUNT) == bodies()


def test_a_rollback_of_very_many_lets_others_in(
    broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acked in the transaction is unacked again, under its old tags, in order of delivery."""
    client = holder(server, transactional=True)
    client.ack(COUNT)  # not in order
    client.ack(COUNT - 10, multiple=True)
    client.publish("", "q", b"forgotten")
    steps = Steps(monkeypatch)
    assert isinstance(client.call(1, commands.Tx.Rollback), commands.Tx.RollbackOk)
    assert steps.log.count(None) >= 2 * (COUNT // PIECE)
    (connection,) = server.connections()
    assert list(connection.sessions[1].deliveries.unacked) == list(range(1, COUNT + 1))
    client.ack(7, multiple=True)
    client.call(1, commands.Tx.Commit)
    assert counts(broker) == (0, COUNT - 7)
    client.close()
    assert counts(broker) == (COUNT - 7, 0)


def test_a_commit_of_very_many_lets_others_in(broker: Broker, server: Server, steps: Steps) -> None:
    """The windows open in turns before the answer."""
    with holder(server, transactional=True) as client:
        client.ack(0, multiple=True)
        client.call(1, commands.Tx.Commit)
        assert counts(broker) == (0, 0)
        assert steps.log.count(None) >= 2 * (COUNT // PIECE)  # to take the acks in, and to open the windows
        client.publish("", "q", b"next")
        client.call(1, commands.Tx.Commit)
        assert client.content().body == b"next"


class Gate:
    """The I/O thread stops in the second piece, once, until it is told what to do there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[Piecework], object]) -> None:
        self.pieces = 0
        take_turn = Piecework._take_turn

        def stop(piecework: Piecework) -> None:
            self.pieces += 1
            if self.pieces == 2:
                act(piecework)
            take_turn(piecework)

        monkeypatch.setattr(Piecework, "_take_turn", stop)


@pytest.mark.parametrize("end", ["abort", "shut_down", "failed"])
@pytest.mark.parametrize("work", ["ack", "nack", "channel close", "rollback"])
def test_an_end_in_the_middle_is_whole(
    broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch, end: str, work: str
) -> None:
    """What was begun is done to its end; then channels, consumers, queues and unacked messages go."""
    client = holder(server, COUNT - 10, transactional=work == "rollback")
    client.declare("own", exclusive=True)
    client.channel(2)
    if work == "rollback":
        client.ack(COUNT - 20, multiple=True)
    (connection,) = server.connections()

    def act(piecework: Piecework) -> None:
        reached.wait(PATIENCE)  # the client has said all
        if end == "failed":
            connection.failed(RuntimeError("nobody thought of this"))
        else:
            getattr(connection, end)()

    reached = threading.Event()
    gate = Gate(monkeypatch, act)
    if work == "ack":
        client.ack(COUNT - 20, multiple=True)
    elif work == "nack":
        client.nack(COUNT - 20, multiple=True)
    elif work == "channel close":
        client.send_method(1, commands.Channel.Close)
    else:
        client.send_method(1, commands.Tx.Rollback)
    client.send_method(2, commands.Queue.Declare, queue="late", exclusive=True)
    client.send_method(0, commands.Connection.CloseOk)
    reached.set()
    wait_until_blocked(lambda: not server.connections(), PATIENCE)
    assert gate.pieces > 2
    assert sorted(queue.name for queue in broker.virtual_host().queues()) == ["dead", "q"]
    assert broker.queue("q").statistics().consumers == 0
    assert counts(broker) == (20 if work == "ack" else COUNT, 0)


def test_pieces_of_many_connections_take_turns(broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections have long work, a thread does one piece between two looks at its sockets."""
    clients = []
    for number in range(2):
        broker.declare_queue(f"q{number}")
        for _ in range(COUNT):
            broker.publish(Message(b"", routing_key=f"q{number}"))
        client = RawClient(server.url)
        client.consume(f"q{number}")
        client.bodies(COUNT)
        clients.append(client)
    steps = Steps(monkeypatch)
    for connection in server.connections():
        connection.io.post(connection.abort)
    wait_until_blocked(lambda: not server.connections())
    begins = 2  # the first piece of each is done as its connection ends
    assert steps.log.count(None) >= len(steps.pieces) - begins
    assert sum(steps.pieces) == 2 * COUNT


def test_a_server_that_closes_ends_long_work(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads do not go before what has begun is done, even where its patience ends first."""
    with amqp.serve(broker) as server:
        client = holder(server)
        (connection,) = server.connections()
        with Threads() as threads:
            monkeypatch.setattr(server._has_ended, "wait_for", lambda predicate, timeout: False)
            Gate(monkeypatch, lambda _: threads.start(server.close))
            connection.io.post(connection.abort)
            wait_until_blocked(lambda: not server.connections())
    assert counts(broker) == (COUNT, 0)
    client.socket.close()
