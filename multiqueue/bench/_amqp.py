"""The suite `amqp`: publishing and consuming over TCP, with pika and with our client, at our server and at RabbitMQ.

1 KiB bodies over the loopback interface, one queue, one connection, the server in a separate process. The same
programs run against both servers, a message counts when the server has it or has given it away, and every attempt has
a new queue.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from ._amqp_programs import BATCH, BODY, OUR_CLIENT, PIKA, PREFETCH, PROGRAMS
from ._amqp_servers import DOES_NOT_SHOW, OURS, THEIRS, Server, servers
from ._harness import expect
from ._model import CPU_RATE, RATE, Figures, Goal, Metric, Rival, Suite, Workload

MESSAGES = 20_000  # a second or so for the slower programs

SERVER_CPU = Metric("server_cpu", "us/message", "less")

_numbers = itertools.count(1)


class _Work(NamedTuple):
    """A work on a queue: what a program does on it, and whether it is filled first."""

    name: str
    title: str
    do: Callable[[Any, int], None]  # with a program; one of batches is done by those that have batches
    fills: bool = False
    batches: bool = False
    durable: bool = False


def _works(durable: bool) -> list[_Work]:
    """The four works, on a queue that keeps nothing or on one that keeps everything."""
    confirms = f"publish with confirms, batches of {BATCH}"
    single = f"consume with prefetch {PREFETCH} and an acknowledgement each"
    works = (
        _Work("publish", "publish", lambda p, n: p.publish(n, durable)),
        _Work("confirm", confirms, lambda p, n: p.publish_confirmed(n, durable), batches=True),
        _Work("consume", "consume with automatic acknowledgement", lambda p, n: p.consume(n, True), fills=True),
        _Work("consume-ack", single, lambda p, n: p.consume(n, False), fills=True),
    )
    mark, kind = ("-durable", "persistent") if durable else ("", "transient")
    return [each._replace(name=each.name + mark, title=f"{each.title}, {kind}", durable=durable) for each in works]


class _Run:
    """One program doing one work at one server."""

    def __init__(self, work: _Work, server: Server, program: Callable[[str, str], Any], n: int) -> None:
        from multiqueue.client import connect

        self._server, self._work, self._n = server, work, n
        self._queue = f"bench-{os.getpid()}-{next(_numbers)}"
        self._control = connect(server.url, name="bench", recover=False)
        self._channel = self._control.channel()
        self._channel.queue_declare(self._queue, durable=work.durable)
        if work.fills:
            self._channel.confirm_select()
            for _ in range(n):
                self._channel.publish(BODY, routing_key=self._queue, delivery_mode=2 if work.durable else 1)
            self._channel.wait_for_confirms()
        self._program: Any = program(server.url, self._queue)

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
        expect(left, 0 if self._work.fills else self._n, f"messages are on the queue after {self._work.name}")

    def close(self) -> None:
        self._end_program()
        self._channel.queue_delete(self._queue)
        self._control.close()

    def _end_program(self) -> None:
        """Give back to the queue what a consumer has not settled."""
        program, self._program = self._program, None
        if program is not None:
            program.close()


def _throughput(work: _Work, servers: list[Server]) -> Workload:
    """A rival is a program at a server. pika's is to be as fast at ours, and our client twice as fast as pika's."""
    clients = [OUR_CLIENT] if work.batches else [PIKA, OUR_CLIENT]
    goals = [Goal(RATE.name, 2.0, f"{OUR_CLIENT}, {one.name}", f"{PIKA}, {one.name}") for one in servers]
    goals += [Goal(RATE.name, 1.0, f"{PIKA}, {OURS}", f"{PIKA}, {THEIRS}")] if len(servers) == 2 else []
    return Workload(
        work.name,
        work.title,
        MESSAGES,
        tuple(
            Rival(
                f"{client}, {server.name}",
                partial(_Run, work, server, PROGRAMS[client]),
                role="ours" if client == OUR_CLIENT or server.name == OURS else "rival",
                requires="pika" if client == PIKA else "pamqp",
            )
            for client in clients
            for server in servers
        ),
        baseline=f"{clients[0]}, {servers[-1].name}",
        metrics=(RATE, CPU_RATE, SERVER_CPU),
        n_unit="messages",
        goals=() if work.batches else tuple(goals),
        divisor=BATCH,
        note="items/CPU s counts the client's CPU time alone; server_cpu is the server's",
    )


def suite(servers: list[Server]) -> Suite:
    """The workloads for these servers, ours first."""
    works = (*_works(durable=False), *_works(durable=True))
    return Suite(
        "amqp",
        tuple(_throughput(work, servers) for work in works),
        does_not_show=(
            "several connections at once: one publishes or consumes at a time; `--load c` has several",
            *DOES_NOT_SHOW,
        ),
    )


# For the list of workloads in the help; the addresses are never used.
SUITE = suite([Server(OURS, "", None)])


@contextmanager
def measured_suite(against: str | None) -> Iterator[Suite]:
    """The suite with our server started, beside the one at `against`."""
    with servers(against) as started:
        yield suite(started)
