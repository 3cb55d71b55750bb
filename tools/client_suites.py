#!/usr/bin/env python3
"""The suites of other people's clients and frameworks at this checkout's broker: which still pass as many as were seen.

    python tools/client_suites.py                      # all suites
    python tools/client_suites.py amqpstorm rascal     # these
    python tools/client_suites.py --running            # at the server that listens already, a RabbitMQ for example
    python tools/client_suites.py --prepare            # fetch and install only

The suites name their server's address in their code, so ports 5672 and 15672 of loopback must be free, or have the
server with `--running`: `guest` may do all there and has the tag `administrator`. Each suite is cloned from GitHub at
one commit, with git; what it needs comes from npm or PyPI, with npm and uv. It prints what was seen beside the recorded
count; the status is 1 if fewer pass. The clones stay in `--work`, with the output of each run. RabbitMQ 4.3 passes
rascal with `max_message_size = 134217728` and `deprecated_features.permit.global_qos = true` only.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUITE_S = 900  # a suite that takes longer is ended; what it said until then counts
NPM = "npm install --ignore-scripts --no-audit --no-fund --no-package-lock"
PYTEST = "venv/bin/python -m pytest -q -p no:cacheprovider --timeout 120"
AMQPSTORM = "AMQP_HOST=127.0.0.1 AMQP_USERNAME=guest AMQP_PASSWORD=guest AMQP_URI=amqp://guest:guest@127.0.0.1:5672/%2F"


@dataclass(frozen=True)
class Suite:
    """Where a suite is, how it is run, and how many of its tests pass, fail and are skipped at our broker."""

    repository: str
    commit: str
    prepare: str
    command: str
    recorded: tuple[int, int, int]
    left: str = ""  # why tests fail
    config: str = ""  # of the broker


SUITES = {
    "amqp-client.js": Suite(
        "cloudamqp/amqp-client.js",
        "67b3ba3",
        "npm ci --ignore-scripts",
        "npx vitest run test/test.ts test/amqp-session.ts test/amqp-codec-registry.ts test/type-safety.ts",
        (246, 0, 2),
    ),
    "amqp-connection-manager": Suite(
        "jwalton/node-amqp-connection-manager",
        "1f26c31",
        NPM,
        "npx jest",
        (86, 0, 0),
    ),
    "amqplib": Suite(
        "amqp-node/amqplib",
        "f7503e5",
        "npm ci --ignore-scripts",
        "node --test --test-timeout=120000",  # its own second is for each file: too little on a busy machine
        (317, 2, 0),
        "it wants a product named RabbitMQ, and a listener on ::1",
    ),
    "amqpstorm": Suite(
        "eandersson/amqpstorm",
        "88d6c6f",
        "uv venv -q venv && uv pip install -q -p venv . pytest pytest-timeout requests",
        f"{AMQPSTORM} AMQP_HTTP_URL=http://127.0.0.1:15672 {PYTEST} amqpstorm/tests/functional"
        " --ignore amqpstorm/tests/functional/ssl",
        (153, 1, 0),
        "it wants the cluster's name to be that of its author's machine",
    ),
    "Dramatiq": Suite(
        "Bogdanp/dramatiq",
        "848b35f",
        "uv venv -q venv && uv pip install -q -p venv . pika pytest pytest-timeout freezegun gevent prometheus-client"
        " pylibmc redis watchdog",
        f"{PYTEST} -o addopts= tests/test_rabbitmq.py",
        (28, 0, 0),
    ),
    "pika": Suite(
        "pika/pika",
        "2126d43",
        "uv venv -q venv && uv pip install -q -p venv . pytest pytest-timeout gevent tornado twisted",
        f"{PYTEST} tests/acceptance",
        (561, 0, 40),
    ),
    "rascal": Suite(
        "onebeyond/rascal",
        "22017c3",
        f"npm pkg delete devDependencies.random-readable && {NPM} && touch node_modules/random-readable.js",
        "CI=1 npx zUnit",  # without the test of that package, which npm has no longer, and one that is slow
        (376, 0, 0),
        config="deprecated_features.permit.global_qos = true",
    ),
}


def cloned(suite: Suite, home: Path) -> Path:
    """The suite's folder, installed."""
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run(["git", "clone", "-q", f"https://github.com/{suite.repository}", str(home)], check=True)
        subprocess.run(["git", "checkout", "-q", suite.commit], cwd=home, check=True)
        subprocess.run(suite.prepare, shell=True, cwd=home, check=True, stdout=subprocess.DEVNULL)
        (home / "installed").touch()
    return home


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def broker(data: Path, config: str) -> Iterator[None]:
    """Our broker, so configured, at the ports of AMQP and of its management, with an empty store."""
    if taken := [port for port in (5672, 15672) if listens(port)]:
        sys.exit(f"port {taken[0]} is taken; --running has the suites use the server that is there")
    shutil.rmtree(data, ignore_errors=True)
    (file := data.with_suffix(".toml")).write_text(config)
    command = [sys.executable, "-m", "multiqueue", "broker", "--config", str(file), "--http", "15672"]
    with data.with_suffix(".log").open("w") as log:
        process = subprocess.Popen([*command, "--data", str(data)], stdout=log, stderr=log)
        try:
            while not listens(5672):
                if process.poll() is not None:
                    sys.exit(f"the broker did not start: {log.name}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def count(output: str, *words: str) -> int:
    """The last number that the runner of the tests prints beside one of these words; none is 0."""
    said = "|".join(words)
    found = re.findall(rf"(\d+) (?:{said})\b|\b(?:{said}):? (\d+)", re.sub(r"\x1b\[[\d;]*m", "", output), re.IGNORECASE)
    return int("".join(found[-1])) if found else 0


def run(suite: Suite, home: Path) -> tuple[int, int, int]:
    """How many tests pass, fail and are skipped."""
    log = home / "output.log"
    with log.open("w") as output:
        command = ["timeout", str(SUITE_S), "bash", "-c", suite.command]  # it ends the whole process group
        ended = subprocess.run(command, cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    if ended.returncode == 124:
        print(f"ended after {SUITE_S} s: {log}", file=sys.stderr)
    said = log.read_text(errors="replace")[-4000:]
    return count(said, "passed", "pass"), count(said, "failed", "fail"), count(said, "skipped", "pending")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--running", action="store_true", help="at the server that listens at 5672 and 15672 already")
    parser.add_argument("--prepare", action="store_true", help="fetch and install, run nothing")
    parser.add_argument("--work", type=Path, default=Path("build/clients"), help="where the suites are cloned")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    homes = {name: cloned(SUITES[name], work / name) for name in arguments.names or SUITES}
    if arguments.prepare:
        return 0
    fell = False
    print("| suite | passed, failed, skipped | recorded | why tests fail |\n|---|---|---|---|", flush=True)
    for name, home in homes.items():
        suite = SUITES[name]
        if arguments.running:
            seen = run(suite, home)
        else:
            with broker(home / "data", suite.config):
                seen = run(suite, home)
        fell |= seen[0] < suite.recorded[0]
        cells = (f"{name} {suite.commit}", *(", ".join(map(str, each)) for each in (seen, suite.recorded)), suite.left)
        print(f"| {' | '.join(cells)} |", flush=True)
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
