"""RabbitMQ as a peer: a node of its own on free loopback ports, in a temporary directory, gone afterwards.

    with rabbitmq() as peer:
        connect(peer.url)

From a shell, `python tests/rabbitmq_support.py COMMAND...` runs a command with such a node beside it; `{url}` in the
command becomes its address.

The node has its own Erlang port mapper and its own cookie, so it neither finds nor disturbs one that the machine
runs. Both are children of this process, ended by their process ids, and when this process dies they end too.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

STARTS_WITHIN = 90.0  # seconds; on a quiet machine it takes 5
# Runs a command until its standard input ends, which it does when the holder of the other end closes it or dies.
_WHILE_WE_LIVE = 'trap : TERM; ("$@"; kill -TERM 0) & cat >/dev/null; kill -TERM 0; wait'
_SERVERS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server")


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that runs: where it listens, and the process that leads its process group.

    `version` is RabbitMQ's, `(4, 3, 6)`; ours has none.
    """

    url: str
    port: int
    pid: int
    version: tuple[int, ...] = ()


class NoPeer(Exception):
    """There is no RabbitMQ on this machine, or it did not start; the message says which and what next."""


def server_program() -> str:
    """The program that starts a node, past the distribution's wrapper that insists on its own user.

    Raises:
        NoPeer: RabbitMQ or Erlang's port mapper is not installed.
    """
    found = next((path for path in _SERVERS if os.access(path, os.X_OK)), None) or shutil.which("rabbitmq-server")
    if found is None or shutil.which("epmd") is None:
        raise NoPeer("RabbitMQ is not installed: apt-get install rabbitmq-server")
    return found


def version_of(program: str) -> tuple[int, ...]:
    """The version of a program that starts a node, from the directory that it lies in: `rabbitmq_server-4.3.6`."""
    found = re.search(r"rabbitmq_server-([\d.]+\d)", os.path.realpath(program))
    return tuple(map(int, found[1].split("."))) if found else ()


def rules() -> str:
    """The `compat` of a broker of ours that runs beside the RabbitMQ of this machine."""
    try:
        return "4.3" if version_of(server_program()) >= (4, 0) else "3.10"
    except NoPeer:
        return "3.10"


@contextmanager
def rabbitmq(configuration: str = "", plugins: Sequence[str] = ()) -> Iterator[Peer]:
    """A RabbitMQ node for the length of the block; `configuration` is appended to its rabbitmq.conf.

    Raises:
        NoPeer: not installed, or it did not answer within 90 seconds.
    """
    program = server_program()
    version = version_of(program)
    if version >= (4, 3):
        configuration += "\ndeprecated_features.permit.global_qos = true\n"
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq-", ignore_cleanup_errors=True)))
        port, mapper_port, distribution_port = free_ports(3)
        environment = _environment(base, port, mapper_port, distribution_port, configuration)
        (base / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        stack.enter_context(child(["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"], environment, base))
        node = stack.enter_context(child([program], environment, base))
        _wait_until_it_answers(port, node, base / "rabbitmq-server.out")
        yield Peer(f"amqp://guest:guest@127.0.0.1:{port}/%2F", port, node.pid, version)


def _environment(base: Path, port: int, mapper_port: int, distribution_port: int, configuration: str) -> dict[str, str]:
    (base / "rabbitmq.conf").write_text(
        f"listeners.tcp.default = 127.0.0.1:{port}\n"
        "log.console = true\nlog.console.level = warning\nlog.file = false\n"
        "vm_memory_high_watermark.relative = 0.6\ndisk_free_limit.absolute = 50MB\n" + configuration
    )
    cookie = base / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o600)
    return os.environ | {
        "HOME": str(base),
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"peer{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(base / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(base / "data"),
        "RABBITMQ_LOG_BASE": str(base / "log"),
        "RABBITMQ_PID_FILE": str(base / "pid"),
    }


@contextmanager
def child(command: list[str], environment: dict[str, str], base: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process and whatever it starts, as one group that is ended with the block."""
    with (base / f"{Path(command[0]).name}.out").open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WHILE_WE_LIVE, "sh", *command],
            env=environment,
            cwd=base,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(15)
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what the shell script left behind
    except (ProcessLookupError, PermissionError):
        pass


def _wait_until_it_answers(port: int, node: subprocess.Popen[bytes], output: Path) -> None:
    """An AMQP header is answered with connection.start, or the wait ends with what the node said."""
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline and node.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as attempt:
                attempt.sendall(b"AMQP\x00\x00\x09\x01")
                if attempt.recv(1) == b"\x01":
                    return
        except OSError:
            pass
        time.sleep(0.1)
    said = output.read_text(errors="replace")[-2000:]
    raise NoPeer(f"RabbitMQ did not answer on port {port} within {STARTS_WITHIN:g} s; it said:\n{said}")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def main(command: list[str]) -> int:
    """Run a command beside a node; returns its status."""
    with rabbitmq() as peer:
        return subprocess.run([part.replace("{url}", peer.url) for part in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
