"""Another connection's round trip while a broker does something with very many messages.

    python tests/amqp/round_trip_program.py [--count 1000000] [--default-collector] [OPERATION ...]

prints a line for each operation: how long it took, and the longest, the 99th and the 50th percentile of the round trips
(`basic.qos`, one a millisecond) of a client in this process meanwhile, in milliseconds. The broker is a process of its
own. On a machine that does other things the longest is often a wait for a CPU: `own max` leaves that out. `collector`
is the CPU time of the longest look of the garbage collector, and the generation that it was.
"""

from __future__ import annotations

import argparse
import gc
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amqp_raw_support import RawClient
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import patient_collector
from multiqueue.broker import Broker, BrokerQueue, Message

PAUSE = 0.001  # seconds between two round trips
SMALL = 16  # bytes of a message
READY = "ready"

Words = dict[str, Any]


# -- the broker's process: prepares what it is told to, and does what no client can ask for


def fill(broker: Broker, count: int, name: str = "q", durable: bool = False, **arguments: Any) -> BrokerQueue:
    queue = broker.declare_queue(
        name, durable=durable, arguments={key.replace("_", "-"): arguments[key] for key in arguments}
    )
    body = bytes(SMALL)
    for _ in range(count):
        broker.publish_nowait(Message(body, routing_key=name, persistent=durable))
    broker.wait_for_commits()
    return queue


def serve(limit: int | None, data: str | None, is_patient: bool) -> None:
    """Read operations from stdin, one a line, and answer each with a line."""
    options: Words = {} if limit is None else {"memory_limit": limit}
    if data:
        options["data"] = data
    with Broker(housekeeping_interval=0.05, **options) as broker, amqp.serve(broker) as server:
        print(server.url, flush=True)
        gc.callbacks.append(_time_collector)
        with patient_collector() if is_patient else _nothing():
            for line in sys.stdin:
                word, count = line.split()
                print(CONTROLS[word](broker, int(count)), flush=True)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


CONTROLS: dict[str, Callable[[Broker, int], object]] = {}

_began = [0.0]  # when the present look of the garbage collector has
_looks: list[tuple[float, int]] = [(0.0, 0)]  # how long looks have taken, and of which generation they were


def _time_collector(phase: str, info: dict[str, int]) -> None:
    now = time.thread_time()
    if phase == "start":
        _began[0] = now
    else:
        _looks.append((now - _began[0], info["generation"]))


def control(function: Callable[[Broker, int], object]) -> Callable[[Broker, int], object]:
    CONTROLS[function.__name__] = function
    return function


@control
def transient(broker: Broker, count: int) -> object:
    return len(fill(broker, count))


@control
def durable(broker: Broker, count: int) -> object:
    return len(fill(broker, count, durable=True))


@control
def mortal(broker: Broker, count: int) -> object:
    """They expire at once, when they all are there."""
    return _mortal(broker, count, {})


@control
def mortal_letters(broker: Broker, count: int) -> object:
    broker.declare_queue("dead")
    return _mortal(broker, count, {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"})


def _mortal(broker: Broker, count: int, arguments: Words) -> object:
    start = broker.clock() if hasattr(broker, "clock") else time.monotonic()
    queue = fill(broker, count, x_message_ttl=int(count * 0.1) + 5000, **arguments)
    return len(queue), start


@control
def letters(broker: Broker, count: int) -> object:
    broker.declare_queue("dead")
    fill(broker, count, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    return count


@control
def ring(broker: Broker, count: int) -> object:
    """Full of small messages."""
    return len(fill(broker, count, x_max_length_bytes=count * SMALL))


@control
def delete_with_letters(broker: Broker, count: int) -> object:
    return broker.queue("q").delete(dead_letter=True)


@control
def page_out(broker: Broker, count: int) -> object:
    return broker.queue("q").state.limit.page_out()


@control
def left(broker: Broker, count: int) -> object:
    """How many messages are on the queue, and on that of dead letters."""
    names = [queue.name for queue in broker.virtual_host().queues()]
    return sum(len(broker.queue(name)) for name in ("q",) if name in names)


@control
def collector(broker: Broker, count: int) -> object:
    """Milliseconds that the longest look of the garbage collector has taken since the last time."""
    longest, generation = max(_looks)
    _looks[1:] = []
    return f"{1000 * longest:.1f}/{generation}"


@control
def clear(broker: Broker, count: int) -> object:
    for queue in broker.virtual_host().queues():
        broker.delete_queue(queue.name)
    broker.wait_for_commits()
    gc.collect()
    return READY


# -- this process


class Peer:
    """The broker's process, and a client of it."""

    def __init__(self, is_patient: bool, limit: int | None, data: str | None) -> None:
        command = [sys.executable, __file__, "--serve", "--limit", str(limit or 0)]
        command += ["--data", data] if data else []
        command += [] if is_patient else ["--default-collector"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def tell(self, word: str, count: int = 0) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word} {count}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"the broker's process has died at {word}"
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Probe:
    """Round trips of one connection, on a thread, until the block ends.

    `own` are the same without what was spent waiting for a CPU: by this thread, and by those two of the broker's
    process that waited longest.
    """

    def __init__(self, peer: Peer) -> None:
        self._client = connect(peer.url)
        self._tasks = Path(f"/proc/{peer.process.pid}/task")
        self.took: list[float] = []
        self.own: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            before = self._delays()
            begin = time.perf_counter()
            self._client.call(1, commands.Basic.Qos)
            took = time.perf_counter() - begin
            after = self._delays()
            mine, *others = sorted((after[each] - before.get(each, 0.0) for each in after), reverse=True)
            self.took.append(took)
            self.own.append(max(took - mine - sum(others[:2]), 0.0))

    def _delays(self) -> dict[str, float]:
        """Seconds that each thread has waited for a CPU so far; nothing where the system does not say."""
        delays = {"": 0.0}
        try:
            files = [Path("/proc/thread-self/schedstat"), *(each / "schedstat" for each in self._tasks.iterdir())]
            for file in files:
                delays[str(file)] = int(file.read_text().split()[1]) / 1e9
        except OSError:
            pass
        return delays

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def connect(url: str) -> RawClient:
    """A client that waits for an answer as long as it takes."""
    client = RawClient(url)
    client.socket.settimeout(None)
    return client


def holder(url: str, count: int, *, transactional: bool = False) -> RawClient:
    """A client that has so many, unacked. It does not look at what comes, but for how much it is."""
    client = connect(url)
    if transactional:
        client.call(1, commands.Tx.Select)
    client.call(1, commands.Basic.Qos, prefetch_count=0)
    client.consume("q", tag="all")
    frames = len(client._frames)
    while frames < 3 * count:
        frames += len(client._splitter.feed(client.socket.recv(1 << 20)))
    return client


def _ready(client: RawClient) -> None:
    client.ready("q")


def ack(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("transient", count)
    client = holder(peer.url, count)
    yield
    client.ack(0, multiple=True)
    _ready(client)
    yield
    client.close()


def nack(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("transient", count)
    client = holder(peer.url, count)
    client.call(1, commands.Basic.Cancel, consumer_tag="all")
    yield
    client.nack(0, multiple=True)
    _ready(client)
    yield
    client.close()


def reject(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("letters", count)
    client = holder(peer.url, count)
    yield
    client.nack(0, multiple=True, requeue=False)
    _ready(client)
    yield
    client.close()


def end(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("transient", count)
    client = holder(peer.url, count)
    yield
    client.socket.shutdown(socket.SHUT_RDWR)
    client.socket.close()
    while int(peer.tell("left")) and not _are_back(peer, count):
        time.sleep(0.01)
    yield


def _are_back(peer: Peer, count: int) -> bool:
    with connect(peer.url) as client:
        return client.ready("q") == count


def rollback(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("transient", count)
    client = holder(peer.url, count, transactional=True)
    client.ack(0, multiple=True)
    _ready(client)
    yield
    client.call(1, commands.Tx.Rollback)
    yield
    client.close()


def commit(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("transient", count)
    client = holder(peer.url, count, transactional=True)
    client.ack(0, multiple=True)
    _ready(client)
    yield
    client.call(1, commands.Tx.Commit)
    yield
    client.close()


def ack_durable(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("durable", count)
    client = holder(peer.url, count)
    yield
    client.ack(0, multiple=True)
    _ready(client)
    yield
    client.close()


def end_durable(peer: Peer, count: int) -> Iterator[None]:
    peer.tell("durable", count)
    client = holder(peer.url, count)
    yield
    client.socket.shutdown(socket.SHUT_RDWR)
    client.socket.close()
    while not _are_back(peer, count):
        time.sleep(0.01)
    yield


def _by_client(kind: str, method: Any) -> Callable[[Peer, int], Iterator[None]]:
    def operate(peer: Peer, count: int) -> Iterator[None]:
        peer.tell(kind, count)
        with connect(peer.url) as client:
            yield
            client.call(1, method, queue="q")
            yield

    return operate


def _by_control(kind: str, word: str) -> Callable[[Peer, int], Iterator[None]]:
    def operate(peer: Peer, count: int) -> Iterator[None]:
        peer.tell(kind, count)
        yield
        peer.tell(word)
        yield

    return operate


def _expiry(kind: str) -> Callable[[Peer, int], Iterator[None]]:
    def operate(peer: Peer, count: int) -> Iterator[None]:
        peer.tell(kind, count)
        while int(peer.tell("left")) == count:
            time.sleep(0.001)
        yield
        while int(peer.tell("left")):
            time.sleep(0.05)
        yield

    return operate


def evict(peer: Peer, count: int) -> Iterator[None]:
    """One large message takes the place of all that are there."""
    peer.tell("ring", count)
    with connect(peer.url) as client:
        body = bytes(count * SMALL)
        yield
        client.publish("", "q", body)
        _ready(client)
        yield


def last_consumer(peer: Peer, count: int) -> Iterator[None]:
    """The last consumer of a queue that pages goes, whose list is long."""
    peer.tell("durable", count)
    client = connect(peer.url)
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    client.consume("q", tag="one")
    client.content()
    time.sleep(2)  # until the list has what it may
    yield
    client.call(1, commands.Basic.Cancel, consumer_tag="one")
    yield
    client.close()


def nothing(peer: Peer, count: int) -> Iterator[None]:
    """A second in which nobody does anything."""
    peer.tell("transient", count)
    yield
    time.sleep(1)
    yield


OPERATIONS: dict[str, Callable[[Peer, int], Iterator[None]]] = {
    "nothing": nothing,
    "ack multiple": ack,
    "nack multiple": nack,
    "reject multiple, dead letters": reject,
    "end of a connection": end,
    "rollback": rollback,
    "commit": commit,
    "ack multiple, durable": ack_durable,
    "end of a connection, durable": end_durable,
    "purge": _by_client("transient", commands.Queue.Purge),
    "purge, durable": _by_client("durable", commands.Queue.Purge),
    "delete": _by_client("transient", commands.Queue.Delete),
    "delete, durable": _by_client("durable", commands.Queue.Delete),
    "delete, dead letters": _by_control("letters", "delete_with_letters"),
    "begin to page": _by_control("transient", "page_out"),
    "expiry": _expiry("mortal"),
    "expiry, dead letters": _expiry("mortal_letters"),
    "a message evicts all": evict,
    "last consumer of a long list": last_consumer,
}


def measure(peer: Peer, name: str, count: int) -> str:
    """Do one operation; its line of the table."""
    operation = OPERATIONS[name](peer, count)
    next(operation)
    peer.tell("collector")
    with Probe(peer) as probe:
        begin = time.perf_counter()
        next(operation)
        took = time.perf_counter() - begin
        time.sleep(0.3)  # for what is done afterwards
    collected = peer.tell("collector")
    for _ in operation:
        pass
    peer.tell("clear")
    trips, own = sorted(probe.took), 1000 * max(probe.own)
    longest, late, middle = (1000 * trips[int(share * (len(trips) - 1))] for share in (1, 0.99, 0.5))
    return f"{name:32}{count:>10,}{took:>9.2f} s{longest:>9.1f}{own:>9.1f}{late:>9.1f}{middle:>9.1f}{collected:>10} ms"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("operations", nargs="*", default=list(OPERATIONS))
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--default-collector", action="store_true")
    parser.add_argument("--limit", type=int, default=8 << 30, help="the broker's memory limit, in bytes")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--data")
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.limit or None, options.data, not options.default_collector)
        return
    print(
        f"{'operation':32}{'messages':>10}{'takes':>11}{'max':>9}{'own max':>9}{'p99':>9}{'p50':>9}{'collector':>10}",
        flush=True,
    )
    for name in options.operations:
        with tempfile.TemporaryDirectory() as data:
            peer = Peer(
                not options.default_collector, options.limit, data if name.endswith(("durable", "long list")) else None
            )
            try:
                print(measure(peer, name, options.count), flush=True)
            finally:
                peer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
