"""Leases at our own broker: what a move is when broker, connection or reader stop in it, and what reading takes."""

from __future__ import annotations

import math
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_parts_support import (
    Lease,
    Leased,
    LeasedQueueReader,
    SourceOptions,
    Supply,
    _lease,
    _lease_backlog,
    _lease_reading,
)
from spark_streaming_support import (
    Engine,
    bodies,
    broker_process,
    depth,
    numbers,
    port_of,
    publish,
    source_reader,
    wait_for_depth,
)

from multiqueue.amqp import Permissions, User
from multiqueue.broker import Broker, Transaction
from multiqueue.client import Channel, ChannelClosed, Connection, ConnectionClosed, Inbox, Message, connect
from multiqueue.spark import BadOption, DataLoss, LeaseInUse, SourceUnavailable
from multiqueue.testing import PATIENCE


@pytest.fixture
def way() -> dict[str, str]:
    return {"sourceId": "s"}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two messages of 100 bytes."""
    monkeypatch.setattr(_lease_backlog, "CHUNK_BYTES", 150)


def in_full(count: int) -> list[bytes]:
    return [b"%0100d" % number for number in range(count)]


def sequences(stream: Engine) -> list[int]:
    return [row["sequence"] for row in stream.rows()]


# ---- a move is whole or nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
def test_a_connection_that_ends_in_a_commit(
    url: str, engine: Any, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """If the connection is lost with the answer to a commit, done or not, each message is in the stream once.

    (streaming source 4)
    """
    publish(url, "orders", *numbers(0, 10))
    stream = engine(maxMessagesPerBatch="5")
    stream.reader.initialOffset()
    commit, cuts = Channel.tx_commit, []

    def cut(channel: Channel) -> None:
        if is_done or cuts:
            commit(channel)
        if not cuts:
            cuts.append(channel)
            raise ConnectionClosed("cut")

    monkeypatch.setattr(Channel, "tx_commit", cut)
    stream.run_until(10)
    assert sorted(bodies(stream.rows()), key=int) == numbers(0, 10)
    assert sequences(stream) == list(range(10))
    assert cuts
    stream.reader.stop()
    assert depth(url, "orders") == 0


def test_a_commit_that_outlives_its_reader(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a dead reader's commit is under way no other reader has the lease; then its messages are there."""
    publish(url, "orders", b"0")
    commit, is_in, may_go = Transaction.commit, threading.Event(), threading.Event()

    def held(transaction: Transaction) -> None:
        is_in.set()
        assert may_go.wait(PATIENCE)
        commit(transaction)

    first = engine()
    first.reader.initialOffset()
    monkeypatch.setattr(Transaction, "commit", held)
    monkeypatch.setattr(Supply, "lost", lambda supply, error: supply.close())  # a dead reader does not come back
    backlog = first.reader._opened.backlog
    moving = threading.Thread(target=backlog.fetch, args=(1, math.inf, PATIENCE), name="first reader")
    moving.start()
    assert is_in.wait(PATIENCE)
    backlog._supply.reader()._connection._link._stream.shutdown(socket.SHUT_RDWR)
    told = pytest.raises(LeaseInUse, match=r"lease 's' has been in use .* for 0 s; stop that query")
    try:
        with connect(url) as connection, told:
            Lease.open(connection, "s", patience=0)
    finally:
        may_go.set()
        moving.join()
    with connect(url) as connection:
        lease = Lease.open(connection, "s")
        assert (lease.chunks.first, lease.chunks.end) == (0, 1)
    assert depth(url, "orders") == 0


class MortalBroker(threading.Thread):
    """A broker that gets a hundred orders, is killed at some time, and starts again, `lives` times. The first one lives
    until `may_die` is set and the last one until `may_end` is."""

    def __init__(self, data: Path, lives: int, dice: random.Random) -> None:
        super().__init__(name="mortal broker")
        self._data, self._lives, self._dice = data, lives, dice
        with broker_process(data) as (self.url, _):
            publish(self.url, "orders")
        self.is_there, self.may_die, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self.batches: Callable[[], int] = int  # how far the stream is

    def run(self) -> None:
        for life in range(self._lives):
            with broker_process(self._data, port_of(self.url)):
                publish(self.url, "orders", *numbers(life * 100, 100))
                self.is_there.set()
                self.may_die.wait()  # both are set whatever becomes of the stream
                if life == self._lives - 1:
                    self.may_end.wait()
                else:
                    self._live_for(self._dice.randrange(3))
                    time.sleep(self._dice.uniform(0.0, 0.2))  # where the stream is then is for the dice

    def _live_for(self, batches: int) -> None:
        """Until the stream, which may only be connecting again, has got on by so many batches."""
        end = self.batches() + batches
        while self.batches() < end and not self.may_end.is_set():
            time.sleep(0.005)


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(3, id="a-few", marks=pytest.mark.slow(selected=True)),
        pytest.param(30, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_a_broker_that_is_killed_under_a_lease(tmp_path: Path, lives: int) -> None:
    """A broker that is killed at any point of a stream, and started again, makes no double and loses nothing.

    (streaming source 4)
    """
    broker = MortalBroker(tmp_path / "data", lives, random.Random(lives))
    options = {"url": broker.url, "queue": "orders", "sourceId": "s", "maxMessagesPerBatch": "7"}
    stream = Engine(lambda: source_reader(options))
    broker.batches = lambda: len(stream.output)
    broker.start()
    try:
        assert broker.is_there.wait(PATIENCE)
        stream.reader.initialOffset()
        broker.may_die.set()
        stream.run_until(100 * lives)
    finally:
        broker.may_die.set()
        broker.may_end.set()
        broker.join()
        stream.reader.stop()
    assert sorted(map(int, bodies(stream.rows()))) == list(range(100 * lives))
    assert sequences(stream) == list(range(100 * lives))


def test_a_move_of_several_queues(url: str) -> None:
    """A move takes off the queues what it has moved and nothing else, whatever came first on the connection."""
    publish(url, "returns", *numbers(100, 5))
    publish(url, "orders", *numbers(0, 5))
    reader = LeasedQueueReader(SourceOptions.parse({"url": url, "queue": "returns:1,orders", "sourceId": "s"}))
    reader.consume()
    deadline = time.monotonic() + PATIENCE
    while reader.waiting < 10:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reader.move(reader.take(7, math.inf, 0.0), 7)
    reader.close()
    wait_for_depth(url, "returns", 3)
    wait_for_depth(url, "orders", 0)


def test_a_broker_that_comes_back_in_the_middle(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the broker is away at the first look of a fetch and back at the second, nothing is taken and not moved."""
    from pyarrow.ipc import open_stream

    publish(url, "orders", *numbers(0, 2))
    backlog = Leased(SourceOptions.parse({"url": url, "queue": "orders", "sourceId": "s"}))
    there, looks = backlog._supply.reader, iter([None])
    monkeypatch.setattr(backlog._supply, "reader", lambda: next(looks, there()))
    while backlog.chunks.end < 2:
        backlog.fetch(1, math.inf, PATIENCE)
    payloads = backlog.partition(0, 2, lossy=False).payloads(backlog._options)
    rows = [row for payload, _, _ in payloads for row in open_stream(payload).read_all().to_pylist()]
    assert bodies(rows) == numbers(0, 2)
    backlog.close()


def test_numbers_outlive_their_messages(url: str) -> None:
    """A lease of which everything is committed goes on with the next numbers, under the same identity."""
    publish(url, "orders", *numbers(0, 3))
    options = SourceOptions.parse({"url": url, "queue": "orders", "sourceId": "s"})
    leases = []
    for _ in range(2):
        way = Leased(options)
        assert way.fetch(1, math.inf, PATIENCE) == 1
        leases.append((way.id, way.chunks.end))
        way.trim(way.chunks.end)
        way.close()
    assert leases == [(leases[0][0], 1), (leases[0][0], 2)]


# ---- what reading takes, and what it finds --------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
def test_a_batch_of_several_chunks_is_read_however_often(url: str, engine: Any) -> None:
    """Tasks read their parts of a batch from the lease, one beside the other and again, and take nothing."""
    publish(url, "orders", *in_full(9))
    stream = engine(partitions="2", maxMessagesPerBatch="7")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.plan()
    start, end = stream.reader.initialOffset(), stream.offsets[0]
    for _ in range(2):
        first, second = (stream.reader.read(part) for part in stream.reader.partitions(start, end))
        pairs = [next(second), next(first), *second, *first]
        found = sorted((row["sequence"], row["body"]) for batch in pairs for row in batch.to_pylist())
        assert found == list(enumerate(in_full(7)))
    stream.restart()
    stream.run_until(9)
    assert bodies(stream.rows()) == in_full(9)


@pytest.mark.usefixtures("small_chunks")
def test_a_lease_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    """A broker whose memory is smaller than the lease gives it from its disk."""
    with Broker(data=tmp_path, memory_limit=1 << 20) as broker:
        url = broker.listen().url
        publish(url, "orders", *(b"%d" % number + bytes(50_000) for number in range(60)), message_id="m")
        stream = Engine(lambda: source_reader({"url": url, "queue": "orders", "sourceId": "s", "prefetch": "5"}))
        stream.reader.prepareForTriggerAvailableNow()
        while stream.batch():
            pass
        assert [int(row["body"].rstrip(b"\0")) for row in stream.rows()] == list(range(60))
        stream.reader.stop()


def planned(engine: Any, url: str, **options: str) -> tuple[Engine, Any]:
    """An engine, and what a task of its first batch of six messages reads."""
    publish(url, "orders", *in_full(6))
    stream = engine(**options)
    stream.reader.prepareForTriggerAvailableNow()
    stream.plan()
    [part] = stream.reader.partitions(stream.reader.initialOffset(), stream.offsets[0])
    return stream, part


@pytest.mark.usefixtures("small_chunks")
def test_a_task_goes_on_after_a_loss(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose connection is lost between two chunks reads on, and reads none twice."""
    stream, part = planned(engine, url)
    get, gets = Inbox.get, list[Inbox]()

    def cut(inbox: Inbox, timeout: float | None = None) -> Message:
        gets.append(inbox)
        if len(gets) == 2:
            raise ConnectionClosed("cut")
        return get(inbox, timeout)

    monkeypatch.setattr(Inbox, "get", cut)
    rows = [row for batch in stream.reader.read(part) for row in batch.to_pylist()]
    assert bodies(rows) == in_full(6)
    assert gets[1] is not gets[2]


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_that_is_gone(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that does not find its chunk says so, and reads nothing else in its place."""
    monkeypatch.setattr(_lease_reading, "SLOW", 0.2)
    stream, part = planned(engine, url)
    with connect(url) as connection, connection.channel() as channel:
        for _ in range(2):
            assert channel.basic_get("lease.s", auto_ack=True) is not None
        with pytest.raises(DataLoss, match=r"chunk of message 0 is not in lease\.s: message 2 of lease \w+ came"):
            list(stream.reader.read(part))
        channel.queue_purge("lease.s")
        with pytest.raises(DataLoss, match=r"chunk of message 0 is not in lease\.s: nothing came within 0\.2 s"):
            list(stream.reader.read(part))
        channel.queue_delete("lease.s")
        with pytest.raises(DataLoss, match=r"lease\.s is gone: somebody has deleted it"):
            list(stream.reader.read(part))


def test_a_task_without_a_broker(url: str, engine: Any) -> None:
    """A task that cannot reach the broker says so after `reconnectSeconds`."""
    _, part = planned(engine, url)
    elsewhere = source_reader(
        {"url": "amqp://127.0.0.1:1", "queue": "orders", "sourceId": "s", "reconnectSeconds": "0"}
    )
    with pytest.raises(SourceUnavailable, match=r"lease\.s could not be read for 0 s: .*127\.0\.0\.1:1"):
        list(elsewhere.read(part))


# ---- a lease that is not what it should be --------------------------------------------------------------------------


def tamper_by_purging(channel: Channel) -> None:
    channel.queue_purge("lease.s")


def tamper_by_deleting(channel: Channel) -> None:
    channel.queue_delete("lease.s")


def tamper_by_publishing(channel: Channel) -> None:
    channel.publish(b"x", routing_key="lease.s")


@pytest.mark.parametrize("tamper", [tamper_by_purging, tamper_by_deleting, tamper_by_publishing])
def test_a_lease_that_somebody_changes(url: str, engine: Any, tamper: Callable[[Channel], None]) -> None:
    """Nothing is moved into a lease that is not as it was left: the messages stay on their queue."""
    publish(url, "orders", *numbers(0, 2))
    stream = engine()
    stream.run_until(2)
    with connect(url) as connection, connection.channel() as channel:
        tamper(channel)
        publish(url, "orders", *numbers(2, 3))
    with pytest.raises(DataLoss, match=r"lease\.s holds \d chunks instead of \d: somebody has removed or added"):
        stream.run_until(5)
    stream.reader.stop()
    wait_for_depth(url, "orders", 3)


def test_what_is_no_chunk(url: str, engine: Any) -> None:
    """A foreign message in a lease's queue ends the query when it opens the lease."""
    with connect(url) as connection, connection.channel() as channel:
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("lease.s", durable=True, arguments=_lease.BROWSED)
        channel.publish(b"x", routing_key="lease.s")
    with pytest.raises(DataLoss, match="no chunk; somebody has published to it"):
        engine().batch()


def test_another_broker_cannot_lease(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is none of ours is refused before anything is declared there."""
    publish(url, "orders")
    monkeypatch.setattr(Connection, "server_properties", {"product": "RabbitMQ", "version": "4.1"})
    with pytest.raises(BadOption, match=r"the broker is RabbitMQ 4\.1, and only .*option\(.spool"):
        engine().batch()
    with connect(url) as connection, pytest.raises(ChannelClosed, match=r"no queue 'lease\.s'"):
        connection.channel().queue_declare("lease.s", passive=True)


def test_a_move_that_the_broker_refuses(url: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker refuses ends the query with its words; the messages stay on their queue."""
    publish(url, "orders", *numbers(0, 3))

    def full(channel: Channel) -> None:
        channel.close()
        raise ChannelClosed("the store is full", reply_code=506)

    stream = engine()
    stream.reader.initialOffset()
    monkeypatch.setattr(Channel, "tx_commit", full)
    with pytest.raises(SourceUnavailable, match="does not let messages be leased: the store is full"):
        stream.run_until(3)
    stream.reader.stop()
    wait_for_depth(url, "orders", 3)


def test_the_rights_that_a_source_needs(tmp_path: Path) -> None:
    """A user who may do what the guide says, and nothing else, can lease."""
    rights = Permissions(configure=r"^lease", write=r"^(lease|amq\.default$)", read=r"^(lease|orders$)")
    with Broker() as broker:
        publish(broker.listen().url, "orders", *numbers(0, 3))
        url = broker.listen(users=[User.with_password("spark", "secret", {"/": rights})]).url
        url = url.replace("guest:guest@", "spark:secret@")
        stream = Engine(lambda: source_reader({"url": url, "queue": "orders", "sourceId": "s"}))
        assert bodies(stream.run_until(3)) == numbers(0, 3)
        stream.reader.stop()


def test_a_checkpoint_of_a_spool(url: str, engine: Any, tmp_path: Path) -> None:
    """A query that read by a spool does not go on with a lease as if nothing were missing."""
    publish(url, "orders", *numbers(0, 3))
    options = {"url": url, "queue": "orders", "spool": str(tmp_path)}
    spooled = Engine(lambda: source_reader(options))
    spooled.run_until(3)
    spooled.reader.stop()
    with pytest.raises(DataLoss, match=r"at message 3 of a spool, but the lease \w+ of source 's' is another one"):
        engine().reader.latestOffset(spooled.offsets[-1])


def test_batches_stay_bounded(url: str, engine: Any) -> None:
    """One message larger than a chunk is a chunk of its own; a batch ends with the message that reaches its bytes."""
    publish(url, "orders", *(bytes(9 << 20) for _ in range(3)), message_id="m")
    stream = engine(maxBytesPerBatch=str(10 << 20))
    stream.reader.prepareForTriggerAvailableNow()
    deadline = time.monotonic() + PATIENCE
    while stream.batch():
        assert time.monotonic() < deadline
    assert [len(rows) for rows in stream.output.values()] == [1, 1, 1]
