#!/usr/bin/env python3
"""Random programs, at a RabbitMQ and at this project's server, until they differ; then the shortest that does.

    python tools/differences.py --amqp 5672 --http 15672 --programs 10000 --seed 1

RabbitMQ runs on this machine and takes guest. `--vhost` is its virtual host, one for each run, whose `amq.*` programs
use. The server runs in this process by the rules of `--compat`. A program has 30 steps beside its declarations, and is
made by its seed alone. At a difference the shortest program that has it is told, and the run goes on with the next
seed, unless it is told to `--stop`; the end says how many programs in a row had none. The status is 1 after any.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, seed

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop")]

from interop_differential_support import HOSTS  # noqa: E402
from interop_programs_support import LAG, Ports, Program, compare, programs, settings_for  # noqa: E402

from multiqueue.amqp._server import access  # noqa: E402
from multiqueue.broker import Broker  # noqa: E402

TELL = 100  # programs after which the run says where it is


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--amqp", type=int, default=5672, help="the port of RabbitMQ")
    parser.add_argument("--http", type=int, default=0, help="the port of its management; 0: no requests")
    parser.add_argument("--vhost", default="/")
    parser.add_argument("--compat", default="4.3")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="at the first difference")
    asked = parser.parse_args()
    logging.disable()
    HOSTS[asked.amqp] = asked.vhost
    access._N = 2  # or each password takes a tenth of a second of CPU
    run = in_a_row = best = found = 0
    began = time.monotonic()
    with Broker(compat=asked.compat) as broker, broker.listen() as server, broker.listen_http(amqp=server) as web:
        ports = ((asked.amqp, asked.http), (server.port, web.port))
        for number in range(asked.seed, asked.seed + asked.programs):
            program = program_of(number, asked.steps)
            run, in_a_row = run + 1, in_a_row + 1
            if (difference := differs(ports, program)) is None:
                best = max(best, in_a_row)
            else:
                found += 1
                print(f"seed {number}, after {in_a_row - 1} in a row:", flush=True)
                program, difference = shortest(ports, program, difference)
                print(*[f"    {who} {step}" for who, step in program], difference, sep="\n", flush=True)
                in_a_row = 0
                if asked.stop:
                    return 1
            if not run % TELL:
                print(f"{run} programs, {in_a_row} in a row, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{run} programs, {best} in a row without a difference, {found} differences")
    return 1 if found else 0


def program_of(number: int, steps: int) -> Program:
    """The program of a seed: what Hypothesis makes first is alike for all of them."""
    made: list[Program] = []

    @seed(number)
    @settings_for(2, derandomize=False)
    @given(program=programs(steps))
    def make(program: Program) -> None:
        made.append(program)

    make()
    return made[-1]


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
