"""Another connection's round trip while a broker does something with very many messages.

    python tests/amqp/round_trip_program.py [--count 1000000] [--default-collector] [OPERATION ...]

prints a line for each operation: how long it took, and the longest, the 99th and the 50th percentile of the round trips
(`basic.qos`, one a millisecond) of a client in this process meanwhile, in milliseconds. The broker is a process of its
own. On a machine that does other things the longest is often a wait for a CPU: `own` beside each leaves that out.
`turn` is the CPU time of the longest turn of the I/O thread, `hold` that of the longest hold of a queue's lock, and
`collector` that of the longest look of the garbage collector, with the generation that it was.
"""

# ruff: noqa: E402  # the parts are found first

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

sys.path[:0] = [str(Path(__file__).parents[1])]  # where the parts are

from amqp_parts_support import IoThread, ServerConnection, Turns
from amqp_raw_support import RawClient
from broker_parts_support import queue as queue_module
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import patient_collector
from multiqueue.amqp.wire import encode_properties, encode_publish
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
    _measure_turns_and_holds()
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
_longest = {"turn": 0.0, "hold": 0.0}  # seconds of CPU time


def _as_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    def turn(*args: Any) -> Any:
        begin = time.thread_time()
        try:
            return function(*args)
        finally:
            _longest["turn"] = max(_longest["turn"], time.thread_time() - begin)

    return turn


class MeasuredLock:
    """A queue's lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._begin = time.thread_time()

    def __exit__(self, *exc_info: object) -> None:
        _longest["hold"] = max(_longest["hold"], time.thread_time() - self._begin)
        self._lock.release()


def _measure_turns_and_holds() -> None:
    post: Any = IoThread.post
    IoThread.post = lambda self, callback, *args: post(self, _as_turn(callback), *args)  # type: ignore[method-assign]
    for part, name in ((IoThread, "_do_first_piece"), (Turns, "_take"), (ServerConnection, "buffer_updated")):
        setattr(part, name, _as_turn(getattr(part, name)))
    queue_module.Lock = MeasuredLock


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
    return broker.queue("q").life.limit.page_out()


@control
def lower_limit(broker: Broker, count: int) -> object:
    """What is on the queue is more than there is memory for from now on."""
    broker.virtual_host().memory_limit = 16 << 20
    return READY


@control
def empty(broker: Broker, count: int) -> object:
    broker.declare_queue("q")
    return READY


@control
def empty_durable(broker: Broker, count: int) -> object:
    broker.declare_queue("q", durable=True)
    return READY


@control
def paged_ring(broker: Broker, count: int) -> object:
    return len(fill(broker, count, x_max_length_bytes=count * SMALL)), page_out(broker, count)


@control
def left(broker: Broker, count: int) -> object:
    """How many messages are on the queue, and on that of dead letters."""
    names = [queue.name for queue in broker.virtual_host().queues()]
    return sum(len(broker.queue(name)) for name in ("q",) if name in names)


@control
def longest(broker: Broker, count: int) -> object:
    """Milliseconds of the longest turn, hold, and look of the garbage collector since the last time."""
    took, generation = max(_looks)
    _looks[1:] = []
    turn, hold = (1000 * _longest[each] for each in ("turn", "hold"))
    _longest.update(turn=0.0, hold=0.0)
    return f"{turn:.1f} {hold:.1f} {1000 * took:.1f}/{generation}"


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


def _eviction(kind: str) -> Callable[[Peer, int], Iterator[None]]:
    """One large message takes the place of all that are there."""

    def operate(peer: Peer, count: int) -> Iterator[None]:
        peer.tell(kind, count)
        with connect(peer.url) as client:
            body = bytes(count * SMALL)
            yield
            client.publish("", "q", body)
            while client.ready("q") != 1:
                time.sleep(0.01)
            yield

    return operate


def _publishing(kind: str, delivery_mode: int) -> Callable[[Peer, int], Iterator[None]]:
    """Somebody publishes as fast as the broker reads."""

    def operate(peer: Peer, count: int) -> Iterator[None]:
        peer.tell(kind)
        with connect(peer.url) as client:
            block = encode_properties({"delivery_mode": delivery_mode})
            run = encode_publish(1, "", "q", block, bytes(SMALL), 1 << 17) * 100
            yield
            for _ in range(count // 100):
                client.socket.sendall(run)
            while int(peer.tell("left")) < count // 100 * 100:
                time.sleep(0.05)
            yield

    return operate


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
    """A second in which no client does anything."""
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
    "begin to page, others need it": _by_control("transient", "lower_limit"),
    "publish past the limit": _publishing("empty", 1),
    "publish past the limit, durable": _publishing("empty_durable", 2),
    "expiry": _expiry("mortal"),
    "expiry, dead letters": _expiry("mortal_letters"),
    "a message evicts all": _eviction("ring"),
    "a message evicts all, paged": _eviction("paged_ring"),
    "last consumer of a long list": last_consumer,
}


def measure(peer: Peer, name: str, count: int) -> str:
    """Do one operation; its line of the table."""
    operation = OPERATIONS[name](peer, count)
    next(operation)
    peer.tell("longest")
    with Probe(peer) as probe:
        begin = time.perf_counter()
        next(operation)
        took = time.perf_counter() - begin
        time.sleep(0.3)  # for what is done afterwards
    turn, hold, collected = peer.tell("longest").split()
    for _ in operation:
        pass
    peer.tell("clear")
    figures = ""
    for share in (1, 0.99, 0.5):
        for trips in (sorted(probe.took), sorted(probe.own)):
            figures += f"{1000 * trips[int(share * (len(trips) - 1))]:>9.1f}"
    return f"{name:32}{count:>10,}{took:>9.2f} s{figures}{turn:>9}{hold:>9}{collected:>10} ms"


LIMITS = {"publish past the limit": 64 << 20, "publish past the limit, durable": 64 << 20}  # bytes


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
    columns = "".join(f"{each:>9}" for each in ("max", "own", "p99", "own", "p50", "own", "turn", "hold"))
    print(f"{'operation':32}{'messages':>10}{'takes':>11}{columns}{'collector':>10}", flush=True)
    for name in options.operations:
        with tempfile.TemporaryDirectory() as data:
            is_stored = name.endswith(("durable", "long list"))
            peer = Peer(not options.default_collector, LIMITS.get(name, options.limit), data if is_stored else None)
            try:
                print(measure(peer, name, options.count), flush=True)
            finally:
                peer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
