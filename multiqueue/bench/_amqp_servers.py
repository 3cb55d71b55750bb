"""The servers that the suites over TCP measure: ours, in a separate process, and one that listens already.

A server's CPU time is read from the system by its process, which is found by the port it listens on: that
works for servers on this machine and this user's, and is left out for any other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ._model import BenchError

OURS = "our server"
RELAXED = "ours, relaxed"
THEIRS = "RabbitMQ"
QUORUM = "RabbitMQ, quorum"

DOES_NOT_SHOW = (
    "a network: clients and server share this machine's CPUs and its loopback interface",
    "a cluster: each queue has one copy, and is of the type classic unless its name says quorum",
    "what a sync of the disk costs: that depends on the disk under the temporary directory",
)

# The command that users run; it is interrupted when its standard input ends, which it does when we do.
_SERVE = """
import os, signal, sys, threading

def end():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end, daemon=True).start()
from multiqueue.cli import main
main(["broker", "--port", "0", *sys.argv[1:]])
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server under measurement. `pid` is None where its process cannot be seen; its CPU time is not a number then."""

    name: str
    url: str
    pid: int | None

    def cpu_seconds(self) -> float:
        """CPU time of its process until now."""
        if self.pid is None:
            return float("nan")
        return time.clock_gettime(~self.pid << 3 | 2)  # clock_getcpuclockid(3), on Linux


@contextmanager
def servers(against: str | None, *, with_relaxed: bool = False) -> Iterator[list[Server]]:
    """Ours, with its durable queues in a temporary directory, and the one at `against`.

    `with_relaxed`: ours a second time between them, with the durability that RabbitMQ has.

    Raises:
        BenchError: ours did not start.
    """
    with ExitStack() as stack:
        started = [stack.enter_context(_our_server(OURS, "sync"))]
        if with_relaxed:
            started.append(stack.enter_context(_our_server(RELAXED, "relaxed")))
        if against is not None:
            started.append(Server(THEIRS, against, _pid_listening_on(urlsplit(against).port or 5672)))
        yield started


@contextmanager
def _our_server(name: str, durability: str) -> Iterator[Server]:
    """`multiqueue broker` in a separate process."""
    with (
        tempfile.TemporaryDirectory(prefix="multiqueue-bench-") as data,
        subprocess.Popen(
            [sys.executable, "-u", "-c", _SERVE, "--data", data, "--durability", durability],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        said = re.match(r"listening on ([^;]+);", process.stdout.readline())
        if said is None:
            raise BenchError("our server did not start; its complaint is above")
        try:
            yield Server(name, f"amqp://guest:guest@{said[1]}/%2F", process.pid)
        finally:
            process.stdin.close()
            process.wait(30)


def _pid_listening_on(port: int) -> int | None:
    """The process on this machine that listens on a TCP port, if we may see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(file) in inodes for file in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue  # another user's, or gone
    return None
