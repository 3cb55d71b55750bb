#!/usr/bin/env python3
"""Random programs, at a RabbitMQ and at this project's server, until they differ; then the shortest that does.

    python tools/differences.py --amqp 5672 --http 15672 --programs 10000 --seed 1 --processes 4

RabbitMQ runs on this machine and takes guest. Each process has a virtual host of its own there, and a server of ours
by the rules of `--compat`. A program has 30 steps beside its declarations, and is made by its seed alone; the seeds
follow one another. At a difference the shortest program that has it is told, and the run goes on, unless it is told to
`--stop`; the end says how many programs in a row had none. The status is 1 after any.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random

from hypothesis import given

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop")]

from interop_differential_support import HOSTS, asked_for, forget_idle  # type: ignore[import-not-found]  # noqa: E402
from interop_programs_support import (  # type: ignore[import-not-found]  # noqa: E402
    LAG,
    Ports,
    Program,
    compare,
    is_short_lived,
    programs,
    settings_for,
)

from multiqueue.amqp._server import access  # noqa: E402
from multiqueue.broker import Broker  # noqa: E402

BYTES = 20_000  # more than any program is made of
TELL = 100  # programs after which the run says where it is
_ports: list[Ports] = []  # of RabbitMQ and of our server, as this process has them


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--amqp", type=int, default=5672, help="the port of RabbitMQ")
    parser.add_argument("--http", type=int, default=0, help="the port of its management; 0: no requests, in vhost '/'")
    parser.add_argument("--compat", default="4.3")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="at the first difference")
    asked = parser.parse_args()
    run = in_a_row = best = found = 0
    began = time.monotonic()
    numbers = range(asked.seed, asked.seed + asked.programs)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    with ProcessPoolExecutor(asked.processes, None, begin, (asked.amqp, asked.http, asked.compat)) as pool:
        try:
            each = pool.map(partial(look, steps=asked.steps), numbers, chunksize=5)
            for number, told in zip(numbers, each, strict=True):
                run, in_a_row = run + 1, in_a_row + 1
                if told is not None:
                    print(f"seed {number}, after {in_a_row - 1} in a row:", told, sep="\n", flush=True)
                    found, in_a_row = found + 1, 0
                    if asked.stop:
                        return 1
                best = max(best, in_a_row)
                if not run % TELL:
                    print(f"{run} programs, {in_a_row} in a row, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    seconds = time.monotonic() - began
    print(f"{run} programs, {best} in a row without a difference, {found} differences, {seconds:.0f} s")
    return 1 if found else 0


def begin(amqp: int, web: int, compat: str) -> None:
    """Have a virtual host there, and a server here, while this process lives."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the first process says
    logging.disable()
    access._N = 2  # or each password takes a tenth of a second of CPU
    stack = ExitStack()
    if web:
        HOSTS[amqp] = f"differences-{os.getpid()}"
        management = HTTPConnection("127.0.0.1", web)
        asked_for(management, "PUT", f"/api/vhosts/{HOSTS[amqp]}")
        stack.callback(asked_for, management, "DELETE", f"/api/vhosts/{HOSTS[amqp]}")
    broker = stack.enter_context(Broker(compat=compat))
    server = stack.enter_context(broker.listen())
    page = stack.enter_context(broker.listen_http(amqp=server))
    stack.callback(forget_idle)
    _ports[:] = (amqp, web), (server.port, page.port)
    Finalize(None, stack.close, exitpriority=1)


def look(number: int, steps: int) -> str | None:
    """What differs in the program of this number, with the shortest program that has it."""
    program = program_of(number, steps)
    difference = differs(_ports, program)
    if difference is None or (is_short_lived(program) and any(differs(_ports, program) is None for _ in range(3))):
        return None  # or a broker was late once for a message that lives for 20 ms
    program, difference = shortest(_ports, program, difference)
    return "\n".join([*(f"    {who} {step}" for who, step in program), difference])


def program_of(number: int, steps: int) -> Program:
    """The program of a seed: as Hypothesis reads it from bytes that are random by the seed."""
    made: list[Program] = []

    def make(program: Program) -> None:
        made.append(program)

    test = settings_for(1)(given(program=programs(steps, fewest=steps))(make))
    test.hypothesis.fuzz_one_input(Random(number).randbytes(BYTES))
    return made.pop()


def differs(ports: Sequence[Ports], program: Program, lag: float = LAG) -> str | None:
    """What the brokers do not agree on, or None."""
    try:
        compare(ports, program, lambda line: None, lag)
    except Exception as error:  # noqa: BLE001 - a client that is told what it cannot read differs too
        return f"{type(error).__name__}: {error}"
    return None


def shortest(ports: Sequence[Ports], program: Program, difference: str) -> tuple[Program, str]:
    """The program without the steps that its difference does not need: halves first, single steps last."""
    size = len(program) // 2
    while size:
        at = len(program)
        while at > 0:
            at = max(0, at - size)
            shorter = program[:at] + program[at + size :]
            if (again := differs(ports, shorter, 1.0)) is not None:
                program, difference = shorter, again
        size //= 2
    return program, difference


if __name__ == "__main__":
    sys.exit(main())
