"""Spark beyond this process, from the pip package: a standalone master with two workers, and a Connect server.

Everything listens on loopback. The workers are on 127.0.0.2 and 127.0.0.3, so that Spark takes them for two hosts.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiqueue.testing import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")


@dataclass
class Server:
    """A process of Spark's, its log, and what it said of itself."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in the log, once it is there."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found:
                return found
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} is not in {self.log}: {self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Cluster:
    """A standalone master and its workers."""

    url: str
    workers: list[Server]
    start_worker: Callable[[str], Server]

    def heal(self) -> None:
        """Start the workers anew that were killed."""
        for place, host in enumerate(_WORKER_HOSTS):
            if self.workers[place].process.poll() is not None:
                self.workers[place] = self.start_worker(host)
                self.workers[place].wait_for("Successfully registered with master")


@contextlib.contextmanager
def standalone_cluster(
    directory: Path, cores_per_worker: int = 1, without: Sequence[Path] | None = None
) -> Iterator[Cluster]:
    """A master and two workers; `url` is the master's.

    With `without` each worker, and its executors, has a file system in which these directories are empty and its own.
    The first is that of its work.
    """
    with contextlib.ExitStack() as stack:
        master_class = "org.apache.spark.deploy.master.Master"
        port = free_port()
        command = [_spark("bin/spark-class"), master_class, "--host", "127.0.0.1", "--port", str(port)]
        master = stack.enter_context(_server("master", [*command, "--webui-port", "0"], directory))
        master.wait_for("Starting Spark master at")
        url = f"spark://127.0.0.1:{port}"

        def start_worker(host: str) -> Server:
            work = directory if without is None else without[0]
            command = [*_apart(without or ()), *_worker(url, host, cores_per_worker, work)]
            return stack.enter_context(_server(f"worker-{host}", command, directory))

        workers = [start_worker(host) for host in _WORKER_HOSTS]
        for worker in workers:
            worker.wait_for("Successfully registered with master")
        yield Cluster(url, workers, start_worker)


@contextlib.contextmanager
def connect_server(directory: Path, master: str = "local[2]") -> Iterator[str]:
    """A Spark Connect server; its URL."""
    port = free_port()
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",  # compiling code for seven rows takes longer than reading them
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    command = [_spark("sbin/start-connect-server.sh")]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    here = str(Path(__file__).parents[2])  # sources of ours run beside the server
    with _server("connect", command, directory, {"SPARK_NO_DAEMONIZE": "1", "PYTHONPATH": here}) as server:
        server.wait_for("Spark Connect server started at")
        yield f"sc://127.0.0.1:{port}"


_shared: dict[str, Any] = {}
"""What all tests of a run have in common, by its name. Who asks for it first starts it, and must be the last to let go,
as the fixtures of a session are."""


@contextlib.contextmanager
def shared_connect_server(directory: Path) -> Iterator[str]:
    """The URL of one Connect server for all tests, which runs a failed task again."""
    with _one_for_all("connect", lambda: connect_server(directory, "local[2,4]")) as url:
        yield url


@contextlib.contextmanager
def shared_cluster(directory: Path) -> Iterator[Cluster]:
    """One standalone cluster for all tests. Its workers may have been killed: `heal` it first."""
    with _one_for_all("cluster", lambda: standalone_cluster(directory)) as cluster:
        yield cluster


@contextlib.contextmanager
def _one_for_all(name: str, start: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[Any]:
    if name in _shared:
        yield _shared[name]
        return
    with start() as started:
        _shared[name] = started
        try:
            yield started
        finally:
            del _shared[name]


def common_session() -> SparkSession:
    """The classic session of all tests, on two cores. No test stops it: other tests may have the same one."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("multiqueue tests")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine connects late
        "spark.python.daemon.module": "preloaded_daemon_support",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent),
    }
    session = builder.config(map=settings).getOrCreate()
    # Spark looks up the format of a write in the active session of the thread, and another test may have left its own.
    session._get_j_spark_session_class(session.sparkContext._jvm).setActiveSession(session._jsparkSession)
    return session


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _worker(url: str, host: str, cores: int, directory: Path) -> list[str]:
    worker_class = "org.apache.spark.deploy.worker.Worker"
    place = ["--host", host, "--webui-port", "0", "--work-dir", str(directory / f"work-{host}")]
    return [_spark("bin/spark-class"), worker_class, url, "--cores", str(cores), "--memory", "1g", *place]


def _apart(directories: Sequence[Path]) -> list[str]:
    """What starts a program in a mount namespace of its own, in which these directories are empty."""
    if not directories:
        return []
    mounts = " && ".join(f"mount -t tmpfs none '{directory}'" for directory in directories)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && cd / && exec "$@"', "sh"]


def may_part_mounts() -> bool:
    """Whether a program of ours may have mounts of its own."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def _server(
    name: str, command: Sequence[str], directory: Path, extra: Mapping[str, str] | None = None
) -> Iterator[Server]:
    log = directory / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": _spark(""),
        "SPARK_LOG_DIR": str(directory),
        "SPARK_PID_DIR": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **(extra or {}),
    }
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    server = Server(process, log)
    try:
        yield server
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and what it has started: its group is its own, and the executors of a worker are in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 15)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _spark(path: str) -> str:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / path)
