"""The suite `amqp`: publishing and consuming over TCP, with pika and with our client, at our server and at RabbitMQ.

1 KiB bodies over the loopback interface, one queue, one connection, the server in a process of its own. The same
programs run against both servers, a message counts when the server has it or has given it away, and every attempt has
a new queue. A round of everything takes two minutes and a half beside RabbitMQ, so four of them are ten.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ._amqp_bare import BareConnection
from ._amqp_programs import BATCH, BODY, PREFETCH, PROGRAMS, Program
from ._amqp_servers import OURS, THEIRS, Server, listening_server, our_server
from ._model import CPU_RATE, RATE, Attempt, Figures, Goal, ItemsLost, Metric, Rival, Suite, Workload

MESSAGES = 20_000  # a second or so for the slower programs
LATENCY_MESSAGES = 2_000
LATENCY_RATE = 1_000  # messages per second
CONNECTIONS = 1_000

SERVER_CPU = Metric("server_cpu", "us/message", "less")
P50, P99 = Metric("p50", "ms", "less"), Metric("p99", "ms", "less")
IDLE, LOADED = Metric("idle", "MiB", "less"), Metric("connections", "MiB", "less")

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Work:
    """A work on a queue: the messages that must be on it before and after, and the work itself."""

    name: str
    title: str
    before: bool  # is the queue filled first?
    do: Callable[[Any, int], None]  # with a program; one of batches is done by those that have batches
    durable: bool = False
    batches: bool = False


def _works(durable: bool) -> tuple[_Work, ...]:
    """The four works, on a queue that keeps nothing or on one that keeps everything."""
    mark, kind = ("-durable", "persistent") if durable else ("", "transient")
    acks = "automatic acknowledgement"
    single = f"prefetch {PREFETCH} and an acknowledgement each"
    return (
        _Work(f"publish{mark}", f"publish, {kind}", False, lambda p, n: p.publish(n, durable), durable),
        _Work(
            f"confirm{mark}",
            f"publish with confirms, batches of {BATCH}, {kind}",
            False,
            lambda p, n: p.publish_confirmed(n, durable),
            durable,
            batches=True,
        ),
        _Work(f"consume{mark}", f"consume with {acks}, {kind}", True, lambda p, n: p.consume(n, True), durable),
        _Work(f"consume-ack{mark}", f"consume with {single}, {kind}", True, lambda p, n: p.consume(n, False), durable),
    )


class _Run:
    """One program doing one work at one server."""

    def __init__(self, server: Server, program: Callable[[str, str], Program], work: _Work, n: int) -> None:
        from multiqueue.client import connect

        self._server, self._work, self._n = server, work, n
        self._queue = f"bench-{os.getpid()}-{next(_numbers)}"
        self._control = connect(server.url, name="bench", recover=False)
        self._channel = self._control.channel()
        self._channel.queue_declare(self._queue, durable=work.durable)
        if work.before:
            mode = 2 if work.durable else 1
            self._channel.confirm_select()
            for _ in range(n):
                self._channel.publish(BODY, routing_key=self._queue, delivery_mode=mode)
            self._channel.wait_for_confirms()
        self._program = program(server.url, self._queue)
        self._is_ended = False

    def run(self) -> Figures:
        server_before, cpu, wall = self._server.cpu_seconds(), time.process_time(), time.perf_counter()
        self._work.do(self._program, self._n)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        spent = self._server.cpu_seconds() - server_before
        return {
            RATE.name: self._n / wall,
            CPU_RATE.name: self._n / max(cpu, 1e-9),
            SERVER_CPU.name: spent / self._n * 1e6,
        }

    def check(self) -> None:
        self._end_program()
        left = self._channel.queue_declare(self._queue, passive=True).message_count
        if left != (0 if self._work.before else self._n):
            raise ItemsLost(f"{left} messages are on the queue after {self._n} of {self._work.name}")

    def close(self) -> None:
        self._end_program()
        self._channel.queue_delete(self._queue)
        self._control.close()

    def _end_program(self) -> None:
        """Give back to the queue what a consumer has not settled."""
        if not self._is_ended:
            self._is_ended = True
            self._program.close()


class _Latency:
    """A publisher at a fixed rate, a consumer on a connection of its own, both with the same client."""

    def __init__(self, server: Server, client: str, n: int) -> None:
        self._n = n
        self._queue = f"bench-{os.getpid()}-{next(_numbers)}"
        self._latencies: list[float] = []
        self._done = threading.Event()
        self._start = {"pika blocking": self._with_pika, "multiqueue": self._with_ours}[client]
        self._publish, self._end = self._start(server.url)

    def _received(self, body: bytes) -> None:
        self._latencies.append(time.perf_counter() - float(body[:24]))
        if len(self._latencies) == self._n:
            self._done.set()

    def _with_ours(self, url: str) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        from multiqueue.client import connect

        consumer, publisher = connect(url), connect(url)
        channel, out = consumer.channel(), publisher.channel()
        channel.queue_declare(self._queue, auto_delete=True)
        channel.basic_consume(self._queue, lambda message: self._received(message.body), auto_ack=True)

        def end() -> None:
            consumer.close()
            publisher.close()

        return lambda body: out.publish(body, routing_key=self._queue), end

    def _with_pika(self, url: str) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        import pika

        publisher = pika.BlockingConnection(pika.URLParameters(url))
        out: Any = publisher.channel()
        out.queue_declare(self._queue)

        def consume() -> None:
            consumer = pika.BlockingConnection(pika.URLParameters(url))
            channel: Any = consumer.channel()

            def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
                self._received(body)
                if self._done.is_set():
                    channel.stop_consuming()

            channel.basic_consume(self._queue, callback, auto_ack=True)
            ready.set()
            channel.start_consuming()
            consumer.close()

        ready = threading.Event()
        thread = threading.Thread(target=consume, name="bench-consumer")
        thread.start()
        ready.wait()

        def end() -> None:
            thread.join(30)
            out.queue_delete(self._queue)
            publisher.close()

        return lambda body: out.basic_publish("", self._queue, body), end

    def run(self) -> Figures:
        filling = BODY[24:]
        start = time.perf_counter()
        for number in range(self._n):
            due = start + number / LATENCY_RATE
            while (now := time.perf_counter()) < due:
                time.sleep(due - now)
            self._publish(b"%024.9f" % time.perf_counter() + filling)
        self._done.wait(30)
        ordered = sorted(self._latencies)
        return {P50.name: ordered[len(ordered) // 2] * 1e3, P99.name: ordered[len(ordered) * 99 // 100] * 1e3}

    def check(self) -> None:
        if len(self._latencies) != self._n:
            raise ItemsLost(f"{len(self._latencies)} of {self._n} messages came")

    def close(self) -> None:
        self._end()


class _Idle:
    """Memory of the server as it is, and with so many connections that do nothing."""

    def __init__(self, server: Server, n: int) -> None:
        self._server, self._n = server, n
        self._connections: list[BareConnection] = []
        self._files = ExitStack()
        self._files.enter_context(_files(n + 100))

    def run(self) -> Figures:
        idle = self._server.memory_bytes()
        for _ in range(self._n):
            self._connections.append(BareConnection(self._server.url))
        return {IDLE.name: idle / 2**20, LOADED.name: self._server.memory_bytes() / 2**20}

    def check(self) -> None:
        for connection in self._connections:
            connection.check()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._files.close()


@contextmanager
def _files(count: int) -> Iterator[None]:
    """Let this process have so many files open in this block."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _rivals(
    servers: list[Server], clients: list[str], make: Callable[[Server, str, int], Attempt]
) -> tuple[Rival, ...]:
    return tuple(
        Rival(
            _name(client, server.name),
            partial(make, server, client),
            role="ours" if client == "multiqueue" or server.name == OURS else "rival",
            requires="pika" if "pika" in client else None,
        )
        for client in clients
        for server in servers
    )


def _name(client: str, server: str) -> str:
    return f"{client}, {server}"


def _goals(metric: str, servers: list[Server], clients: list[str], least: float) -> tuple[Goal, ...]:
    """Our server beside RabbitMQ with every pika program; our client beside pika's blocking one at every server."""
    goals = []
    if len(servers) == 2:
        pika = [client for client in clients if "pika" in client]
        goals += [Goal(metric, least, _name(client, OURS), _name(client, THEIRS)) for client in pika]
    if "pika blocking" in clients and metric == RATE.name:
        for server in servers:
            goals.append(Goal(metric, 2.0, _name("multiqueue", server.name), _name("pika blocking", server.name)))
    return tuple(goals)


def _throughput(work: _Work, servers: list[Server]) -> Workload:
    clients = [client for client in PROGRAMS if not (work.batches and client == "pika blocking")]

    def make(server: Server, client: str, n: int) -> Attempt:
        return _Run(server, PROGRAMS[client], work, n)

    return Workload(
        work.name,
        work.title,
        MESSAGES,
        _rivals(servers, clients, make),
        baseline=_name(clients[0], servers[-1].name),
        metrics=(RATE, CPU_RATE, SERVER_CPU),
        n_unit="messages",
        goals=_goals(RATE.name, servers, clients, 1.0),
        divisor=BATCH,
        note="items/CPU s counts the client's CPU time alone; server_cpu is the server's",
    )


def _latency(servers: list[Server]) -> Workload:
    clients = ["pika blocking", "multiqueue"]
    return Workload(
        "latency",
        f"from publish to callback, {LATENCY_RATE} messages/s",
        LATENCY_MESSAGES,
        _rivals(servers, clients, _Latency),
        baseline=_name(clients[0], servers[-1].name),
        metrics=(P50, P99),
        n_unit="messages",
        threads="publisher and consumer in one process",
        goals=_goals(P50.name, servers, clients, 0.5),
    )


def _idle(servers: list[Server]) -> Workload:
    goals = tuple(Goal(metric.name, 2.0, OURS, THEIRS) for metric in (IDLE, LOADED)) if len(servers) == 2 else ()
    return Workload(
        "idle",
        f"resident memory at idle, and with {CONNECTIONS} idle connections of one channel",
        CONNECTIONS,
        tuple(
            Rival(server.name, partial(_Idle, server), role="ours" if server.name == OURS else "rival")
            for server in servers
        ),
        baseline=servers[-1].name,
        metrics=(IDLE, LOADED),
        n_unit="connections",
        goals=goals,
    )


def suite(servers: list[Server]) -> Suite:
    """The workloads for these servers, ours first."""
    works = (*_works(durable=False), *_works(durable=True))
    return Suite(
        "amqp",
        # Memory first: what a server has used once, its process seldom gives back.
        (_idle(servers), *(_throughput(work, servers) for work in works), _latency(servers)),
        does_not_show=(
            "a network: client and server share this machine's CPUs and its loopback interface",
            "several connections at once: one publishes or consumes at a time",
            "a cluster, mirrored or quorum queues: both servers have one classic queue",
            "what a sync of the disk costs: that depends on the disk under the temporary directory",
        ),
    )


# For the list of workloads in the help; the addresses are never used.
SUITE = suite([Server(OURS, "", None)])


@contextmanager
def measured_suite(against: str | None) -> Iterator[Suite]:
    """The suite with our server started, its durable queues in a temporary directory, beside the one at `against`."""
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="multiqueue-bench-"))
        servers = [stack.enter_context(our_server(data))]
        if against is not None:
            servers.append(listening_server(against))
        yield suite(servers)
