#!/usr/bin/env python3
"""Random programs, at a RabbitMQ and at this project's server, until they differ; then the shortest that does.

    python tools/differences.py --amqp 5672 --http 15672 --programs 10000 --seed 1

RabbitMQ runs on this machine and takes guest. The server runs in this process by the rules of `--compat`. A program has
30 steps beside its declarations. At a difference the shortest program that has it is told, and the run goes on with the
next seed, unless it is told to `--stop`; the end says how many programs in a row had none. The status is 1 after any.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from hypothesis import given, seed

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop")]

from interop_programs_support import Program, compare, programs, settings_for  # noqa: E402

from multiqueue.broker import Broker  # noqa: E402

BATCH = 100  # programs of one seed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--amqp", type=int, default=5672, help="the port of RabbitMQ")
    parser.add_argument("--http", type=int, default=0, help="the port of its management; 0: no requests")
    parser.add_argument("--compat", default="4.3")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="at the first difference")
    asked = parser.parse_args()
    logging.disable()
    run = in_a_row = best = found = 0
    began = time.monotonic()
    with Broker(compat=asked.compat) as broker, broker.listen() as server, broker.listen_http(amqp=server) as web:
        ports = ((asked.amqp, asked.http), (server.port, web.port))
        for number in range(asked.seed, asked.seed + -(-asked.programs // BATCH)):

            @seed(number)
            @settings_for(BATCH, shrinks=True, derandomize=False)
            @given(program=programs(asked.steps))
            def differ(program: Program) -> None:
                nonlocal run, in_a_row
                compare(ports, program)
                run, in_a_row = run + 1, in_a_row + 1

            try:
                differ()
            except Exception as error:  # noqa: BLE001 - also a program that differs only at times
                found += 1
                print(f"seed {number}, after {in_a_row} in a row: {type(error).__name__}: {error}", flush=True)
                print("\n".join(f"    {note}" for note in getattr(error, "__notes__", ())), flush=True)
                if asked.stop:
                    break
                in_a_row = 0
            best = max(best, in_a_row)
            print(f"seed {number}: {run} programs, {in_a_row} in a row, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{run} programs, {best} in a row without a difference, {found} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
