"""The suite `amqp --load c`: C clients at our server and at RabbitMQ, one and several connections at a time.

A client in Python is slower than either server, so the suite `amqp` measures mostly it. This one has librabbitmq
publish and consume, in a separate process with a thread to a connection: the server is the limit. The program is
`_amqp_load.c`, compiled when the suite begins. A queue to a connection, over the loopback interface.

A fair queue is measured beside a standard one of the same server. Both have the same depth, for a deep one costs more,
and take turns of some 30 ms: from second to second a shared machine's speed changes by half.

Ours syncs before it confirms, a classic queue of RabbitMQ's does not: some loads come again at the end, beside its
quorum queue, which does. Among the others its remains would slow the classic queues down.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from .._words import counted
from ._amqp_servers import DOES_NOT_SHOW, OURS, QUORUM, RELAXED, THEIRS, Server, servers
from ._harness import expect
from ._model import RATE, BenchError, Figures, Goal, Metric, Rival, Suite, Workload

KIB: Final = 1024
PREFETCH: Final = 100
LATENCY_RATE: Final = 1_000  # messages per second
BACKLOG: Final = 10_000  # messages that wait on a fair queue, and on the standard one beside it
_LEAVES_MUCH: Final = 32 << 20  # bytes: servers have so much left to write, or to remove, when an attempt has ended,
_REST: Final = 1.0  # and get these seconds for it, or the next attempt pays: up to a third of its rate
SETTLING: Final = 5  # seconds after which a count that is still wrong is a loss
SOURCE: Final = Path(__file__).with_name("_amqp_load.c")
PUBLISH, CONFIRM, CONSUME = "publish", "confirm", "consume"
PUBLISH_CONSUME, PUBLISH_ACK, LATENCY = "publish-consume", "publish-ack", "latency"

_TITLES: Final = {
    PUBLISH: "publish",
    CONFIRM: "publish with at most 100 unconfirmed messages",
    CONSUME: "consume with automatic acknowledgement",
    PUBLISH_CONSUME: "publish, and consume with automatic acknowledgement",
    PUBLISH_ACK: f"publish, and consume with prefetch {PREFETCH} and an acknowledgement each",
    LATENCY: "from publish to delivery (to confirm, where persistent)",
}
STANDARD, FAIR = "standard queue", "fair queue"
SERVER_CPU: Final = Metric("server_cpu", "us/message", "less")
P50, P99 = Metric("p50", "ms", "less"), Metric("p99", "ms", "less")
# Of the messages that are confirmed: until the confirm comes.
CONFIRM_P50, CONFIRM_P99 = Metric("confirm_p50", "ms", "less"), Metric("confirm_p99", "ms", "less")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Load:
    """One work of the C program: how many connections on each side, how many messages on each connection.

    One that fans out has a single publisher, at an exchange to which the queues of all consumers are bound. One at half
    rate is paced by half of what the same server does just before, the others that are paced by `LATENCY_RATE`. One
    with tenants compares kinds of queues at our server.
    """

    work: str
    connections: int
    messages: int
    persistent: bool = False
    size: int = KIB  # bytes of a body
    fans_out: bool = False
    at_half_rate: bool = False
    tenants: int = 0  # that messages name in turn; 0: none
    label: str = ""
    parts: int = 1
    quorum: bool = False  # beside RabbitMQ's quorum queue

    @property
    def name(self) -> str:
        return f"{self.label or f'{self.work}-{self.connections}'}{'-durable' if self.persistent else ''}"

    @property
    def title(self) -> str:
        sides = counted(self.connections, "connection")
        sides += " for as many queues of a fanout exchange" if self.fans_out else " on each side"
        size = "" if self.size == KIB else f", bodies of {self.size:,} bytes"
        if self.work == LATENCY:
            size += " at half of the server's own rate" if self.at_half_rate else f" at {LATENCY_RATE} messages/s"
        if self.tenants:
            size += f", {counted(self.tenants, 'tenant')} named in turn, {BACKLOG:,} messages waiting"
        return f"{_TITLES[self.work]}, {'persistent' if self.persistent else 'transient'}, {sides}{size}"


_BODIES: Final = {"16b": 16, **{f"{n}k": n * KIB for n in (1, 4, 16, 64, 256)}, "1m": KIB * KIB}
_LOADS: Final = (
    Load(PUBLISH, 1, 40_000),
    Load(PUBLISH, 4, 10_000),
    Load(CONSUME, 1, 40_000),
    Load(PUBLISH_CONSUME, 1, 40_000),
    Load(PUBLISH_CONSUME, 4, 10_000),
    Load(PUBLISH_ACK, 1, 40_000),
    Load(PUBLISH_ACK, 8, 5_000),
    Load(CONFIRM, 4, 8_000),
    Load(CONFIRM, 1, 20_000, persistent=True),
    Load(CONFIRM, 4, 8_000, persistent=True),
    Load(PUBLISH, 1, 30_000, persistent=True),
    Load(PUBLISH_ACK, 1, 20_000, persistent=True),
    Load(PUBLISH_ACK, 4, 6_000, persistent=True),
    Load(CONSUME, 1, 30_000, persistent=True),
    Load(LATENCY, 1, 4 * LATENCY_RATE),
    Load(LATENCY, 1, 4 * LATENCY_RATE, persistent=True),
    Load(LATENCY, 1, 20_000, at_half_rate=True, label="latency-half"),
    Load(LATENCY, 1, 20_000, True, at_half_rate=True, label="latency-half"),
    *(
        Load(work, connections, count, persistent, size, label=f"{label}-{name}")
        for work, label, connections, persistent in (
            (PUBLISH, "body-publish", 1, False),
            (PUBLISH_CONSUME, "body-both", 1, False),
            (CONSUME, "body-consume", 1, False),
            (PUBLISH_ACK, "body", 1, False),
            (PUBLISH_ACK, "body", 1, True),
            (PUBLISH_ACK, "body-ack-4", 4, True),
            (CONFIRM, "body-confirm", 4, True),
        )
        for name, size in _BODIES.items()
        for count in (min(20_000, 256 * KIB * KIB // size) // connections,)
    ),
    *(
        Load(PUBLISH_CONSUME, queues, 40_000 // queues, persistent, fans_out=True, label=f"fan-out-{queues}")
        for persistent in (False, True)
        for queues in (1, 10, 100)
    ),
    *(
        Load(PUBLISH_ACK, 1, 3_000, persistent, tenants=tenants, label=f"fair-{tenants}", parts=20)
        for persistent in (False, True)
        for tenants in (1, 100, 10_000)
    ),
)
LOADS: Final = (
    *_LOADS,
    *(
        dataclasses.replace(load, label=f"quorum-{load.label}", quorum=True)
        for load in _LOADS
        if load.label and load.persistent and (load.connections == 4 or load.at_half_rate)
    ),
)


def compiled(directory: str) -> Path:
    """The program, made in this directory. Raises BenchError: there is no C compiler, or no librabbitmq."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchError("--load c needs a C compiler; on Debian: apt-get install gcc libc6-dev librabbitmq-dev")
    program = Path(directory) / "amqp-load"
    command = [compiler, "-O2", "-o", str(program), str(SOURCE), "-lrabbitmq", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise BenchError(
            f"--load c cannot be compiled: {complaint}; it needs librabbitmq's headers, on Debian:"
            " apt-get install librabbitmq-dev"
        )
    return program


class _Attempt:
    """One load at one server, over queues of its own."""

    def __init__(self, program: Path, server: Server, load: Load, kind: str, n: int) -> None:
        from multiqueue.client import connect

        self._program, self._server, self._load, self._kind = program, server, load, kind
        self._backlog = BACKLOG if load.tenants else 0
        self._messages = max(n // load.connections, 1)
        self._prefix = f"load-{os.getpid()}-{next(_numbers)}"
        self._queues = [f"{self._prefix}-{number}" for number in range(load.connections)]
        self._control = connect(server.url, name="bench", recover=False)
        self._channel = self._control.channel()
        if load.fans_out:
            self._channel.exchange_declare(self._prefix, "fanout")
            for queue in self._queues:
                self._channel.queue_declare(queue, durable=load.persistent)
                self._channel.queue_bind(queue, self._prefix)
        self._rate = LATENCY_RATE
        if load.work == CONSUME:
            self._once(PUBLISH)
        if load.at_half_rate:
            seconds = self._once(CONFIRM if load.persistent else PUBLISH_CONSUME)[0]
            self._rate = max(1, int(self._messages / seconds / 2))
            for queue in self._queues:
                self._channel.queue_purge(queue)
        if load.persistent and self._messages * load.connections * load.size > _LEAVES_MUCH:
            sleep(_REST)
            os.sync()
        self._clients = self._begun(load.work, load.parts)

    def run(self) -> Figures:
        seconds, spent, *latencies = _part(self._clients)
        count = self._messages * self._load.connections
        figures = {RATE.name: count / seconds, SERVER_CPU.name: spent / count * 1e6}
        metrics = (P50, P99, CONFIRM_P50, CONFIRM_P99)[: len(latencies)]
        return figures | {metric.name: each * 1e3 for metric, each in zip(metrics, latencies, strict=True)}

    def _once(self, work: str) -> list[float]:
        with self._begun(work, 1) as clients:
            return _part(clients)

    def _begun(self, work: str, parts: int) -> subprocess.Popen[str]:
        """The program, which connects, and waits to be told to do each part."""
        url, load = urlsplit(self._server.url), self._load
        command = [
            str(self._program),
            url.hostname or "127.0.0.1",
            str(url.port or 5672),
            unquote(url.username or "guest"),
            unquote(url.password or "guest"),
            unquote(url.path[1:]) or "/",
            self._prefix,
            work,
            *map(str, (load.connections, self._messages, load.size, int(load.persistent), PREFETCH)),
            self._prefix if load.fans_out else "",
            str(self._rate),
            str(load.tenants),
            self._kind,
            *map(str, (self._backlog, self._server.pid or 0, parts)),
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def check(self) -> None:
        self._clients.wait()  # what their prefetch holds comes back
        expected = self._messages if self._load.work in (PUBLISH, CONFIRM) else self._backlog
        deadline = monotonic() + SETTLING  # RabbitMQ answers for a publish before it counts it
        for queue in self._queues:
            while (left := self._left_on(queue)) != expected and monotonic() < deadline:
                sleep(0.01)
            expect(left, expected, f"messages are on {queue}")

    def _left_on(self, queue: str) -> int:
        return self._channel.queue_declare(queue, passive=True).message_count

    def close(self) -> None:
        with self._clients:
            self._clients.kill()
        for queue in self._queues:
            self._channel.queue_purge(queue)  # or what waits would go in the background, beside what runs next
            self._channel.queue_delete(queue)
        if self._load.fans_out:
            self._channel.exchange_delete(self._prefix)
        self._control.close()


def _part(clients: subprocess.Popen[str]) -> list[float]:
    """Have the program do a part; returns the seconds, the server's CPU seconds, and what else it says.

    Raises:
        BenchError: it says why it could not, or is stuck.
    """
    assert clients.stdin is not None
    assert clients.stdout is not None
    assert clients.stderr is not None
    with suppress(BrokenPipeError):
        print(file=clients.stdin, flush=True)
    said = clients.stdout.readline().split()
    if not said:
        raise BenchError(f"the C clients failed: {clients.stderr.read().strip() or 'they did not end in time'}")
    return [float(each) for each in said]


def suite(servers: list[Server], program: Path = SOURCE, *, missing: tuple[str, ...] = ()) -> Suite:
    """The workloads for these servers, ours first; RabbitMQ's figures are the baseline where it is there. `missing`
    says which server is not among them, and why."""
    has_quorum = QUORUM in [server.name for server in servers]
    return Suite(
        "amqp-load",
        tuple(_workload(load, servers, program) for load in LOADS if has_quorum or not load.quorum),
        does_not_show=(
            *missing,
            *DOES_NOT_SHOW,
            f"equal safety, but for {RELAXED!r} and {QUORUM!r}: {OURS} confirms a persistent message after a sync,"
            " RabbitMQ 4 one of a classic queue without",
        ),
    )


def _workload(load: Load, servers: list[Server], program: Path) -> Workload:
    metrics: tuple[Metric, ...] = (RATE, SERVER_CPU)
    left_out = {RELAXED: not load.persistent or load.quorum, THEIRS: load.quorum, QUORUM: not load.quorum}
    names = [server.name for server in servers if not left_out.get(server.name)]
    goal, note = RATE, ""
    if load.work == LATENCY:
        metrics, goal = (P50, P99, SERVER_CPU), P99
    if load.work == LATENCY and load.persistent:
        metrics, goal = (CONFIRM_P50, CONFIRM_P99, *metrics), CONFIRM_P99
        note = (
            "p50 and p99 are the delivery's: ours comes after the commit; RabbitMQ delivers before it writes, and"
            " confirms without writing what was acknowledged meanwhile"
        )
    if QUORUM in names:
        note += f"{'; ' if note else ''}the quorum queue syncs before it confirms, as {OURS} does"
    roles: dict[str, Literal["rival"]] = {THEIRS: "rival", QUORUM: "rival"}
    rivals = tuple(
        Rival(server.name, partial(_Attempt, program, server, load, kind), role=roles.get(server.name, "ours"))
        for server in servers
        if server.name in names
        for kind in ("quorum" if server.name == QUORUM else "",)
    )
    baseline = next((name for name in names if name in roles), OURS)
    goals = tuple(Goal(goal.name, 1.0, name, baseline) for name in names if baseline in roles and name not in roles)
    if load.tenants:
        metrics, baseline, goals = (SERVER_CPU, RATE), STANDARD, (Goal(RATE.name, 0.9, FAIR, STANDARD),)
        kinds = ("", STANDARD), ("fair", FAIR)
        rivals = tuple(
            Rival(name, partial(_Attempt, program, servers[0], load, kind), role="ours") for kind, name in kinds
        )
    return Workload(
        load.name,
        load.title,
        load.connections * load.messages,
        rivals,
        baseline=baseline,
        metrics=metrics,
        n_unit="messages",
        threads=f"{1 if load.fans_out else load.connections} and {load.connections}, in a process of their own",
        goals=goals,
        divisor=load.connections,
        note=note,
        parts=load.parts,
    )


# For the list of workloads in the help; neither the address nor the program is ever used.
SUITE = suite([Server(OURS, "", None), Server(QUORUM, "", None)])


@contextmanager
def measured_suite(against: str | None) -> Iterator[Suite]:
    """The suite with the program compiled and our server started, beside the server at `against`."""
    with tempfile.TemporaryDirectory(prefix="multiqueue-bench-") as directory:
        program = compiled(directory)
        with servers(against, with_relaxed=True) as started:
            if against is None:
                yield suite(started, program)
            elif refusal := _quorum_refusal(against):
                yield suite(started, program, missing=(f"{QUORUM!r}, left out: {refusal}",))
            else:
                yield suite([*started, dataclasses.replace(started[-1], name=QUORUM)], program)


def _quorum_refusal(url: str) -> str:
    """Why the server has no quorum queues; empty where it has."""
    from multiqueue.client import ClientError, connect

    queue = f"load-{os.getpid()}"
    try:
        with connect(url, name="bench", recover=False) as connection, connection.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_delete(queue)
    except ClientError as error:
        return str(error)
    return ""
