"""The workload `backlog`: millions of messages published and drained through a broker with little memory.

Runs in a process of its own, so that its memory is its own: `python -m multiqueue.bench._store_backlog N`.
`MULTIQUEUE_BENCH_BACKLOG` says how many messages; a record has 5,000,000, which take a quarter of an hour a round.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from multiqueue.broker import Message, VirtualHost
from multiqueue.store import SqliteStore

from ._model import Attempt, BenchError, Figures, ItemsLost, Metric, Rival, Workload

_VARIABLE = "MULTIQUEUE_BENCH_BACKLOG"


def _number_of_messages() -> int:
    given = os.environ.get(_VARIABLE, "500000")
    try:
        number = int(given)
    except ValueError:
        number = 0
    if number < 1:
        raise BenchError(f"{_VARIABLE} is {given!r}; give a number of messages from 1 on")
    return number


MESSAGES = _number_of_messages()
BODY_BYTES = 1024
MEMORY_LIMIT = 128 << 20
_PARTS = 10  # the rate of the last tenth is compared with that of the first


def _peak_bytes() -> int:
    """The most memory that this program ever had; where the system does not say, that the process had."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


class _Clock:
    """The rates of the parts of a run, in messages a second."""

    def __init__(self, n: int) -> None:
        self._part = max(n // _PARTS, 1)
        self._rates: list[float] = []
        self._since = time.perf_counter()

    def passed(self, number: int) -> None:
        """Message `number`, from 1, is done."""
        if number % self._part == 0:
            now = time.perf_counter()
            self._rates.append(self._part / (now - self._since))
            self._since = now

    @property
    def rate(self) -> float:
        """That of the whole run: every part has as many messages."""
        return len(self._rates) / sum(1 / rate for rate in self._rates)

    @property
    def steadiness(self) -> float:
        """The last part's rate over the first one's."""
        return self._rates[-1] / self._rates[0]


def run_here(n: int) -> dict[str, float]:
    """Publish n messages, then consume them; rates in messages a second, memory in MiB."""
    directory = tempfile.mkdtemp(prefix="multiqueue-bench-", dir=os.environ.get("MULTIQUEUE_BENCH_DIR"))
    host = VirtualHost(store=SqliteStore(directory), memory_limit=MEMORY_LIMIT)
    try:
        host.declare_queue("backlog", durable=True)
        publishing = _Clock(n)
        for number in range(1, n + 1):
            body = number.to_bytes(8, "big") + os.urandom(8) * ((BODY_BYTES - 8) // 8)
            host.publish_nowait(Message(body, routing_key="backlog", persistent=True))
            publishing.passed(number)
        host.wait_for_commits()
        draining = _Clock(n)
        lost = 0
        with host.subscribe("backlog", prefetch=1000) as subscription:
            for number in range(1, n + 1):
                received = subscription.get(timeout=60)
                came = received.body
                assert isinstance(came, bytes)
                lost += int.from_bytes(came[:8], "big") != number
                received.accept()
                draining.passed(number)
        host.wait_for_commits()
        return {
            "publish": publishing.rate,
            "publish_steady": publishing.steadiness,
            "drain": draining.rate,
            "drain_steady": draining.steadiness,
            "resident": _peak_bytes() / 2**20,
            "lost": lost,
        }
    finally:
        host.close()
        shutil.rmtree(directory, ignore_errors=True)


class _Backlog:
    """One run in a process of its own."""

    def __init__(self, n: int) -> None:
        self._command = [sys.executable, "-m", "multiqueue.bench._store_backlog", str(n)]
        self._lost = 0.0

    def run(self) -> Figures:
        printed = subprocess.run(self._command, check=True, capture_output=True, text=True).stdout
        figures: dict[str, float] = json.loads(printed)
        self._lost = figures.pop("lost")
        return figures

    def check(self) -> None:
        if self._lost:
            raise ItemsLost(f"{self._lost:g} messages were lost or out of order")

    def close(self) -> None:
        pass


def _open(n: int) -> Attempt:
    return _Backlog(n)


BACKLOG = Workload(
    "backlog",
    f"{BODY_BYTES} bytes each, published, then drained, by a virtual host with {MEMORY_LIMIT >> 20} MiB of memory",
    MESSAGES,
    (Rival("VirtualHost", _open, role="ours"),),
    "VirtualHost",
    metrics=(
        Metric("publish", "msg/s", has_ratio=False),
        Metric("publish_steady", "last tenth / first", has_ratio=False),
        Metric("drain", "msg/s", has_ratio=False),
        Metric("drain_steady", "last tenth / first", has_ratio=False),
        Metric("resident", "MiB at most", better="less", has_ratio=False),
    ),
    n_unit="messages",
    threads="1, the writer and 2 loaders",
    note="The goals: below 300 MiB throughout, and a last tenth at no less than 1/1.3 of the first one's rate.",
)

if __name__ == "__main__":
    print(json.dumps(run_here(int(sys.argv[1]))))
