"""A PostgreSQL server of the tests' own: a cluster in a new directory, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

_NUMBERS = count(1)
PASSWORD = "secret-of-the-tests"


class NoPeer(Exception):
    """There is no PostgreSQL here."""


def _program(name: str) -> str:
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    if found is None:
        raise NoPeer(f"{name} is not installed: apt-get install postgresql")
    return found


@dataclass
class Postgres:
    """A server that can be killed and started again."""

    directory: Path
    port: int
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"postgresql://tester:{PASSWORD}@{self.host}:{self.port}/postgres"

    def schema(self) -> str:
        """The name of a schema that there is not yet."""
        return f"pipeline{next(_NUMBERS)}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses={self.host} -c fsync=off -k {self.directory}"
        self._control("start", "-w", "-o", options, "-l", str(self.directory / "log"))

    def kill(self) -> None:
        """Stop it at once, as a machine that fails does: every connection is gone."""
        self._control("stop", "-m", "immediate")

    def _control(self, *arguments: str) -> None:
        _run(_program("pg_ctl"), "-D", str(self.directory / "data"), *arguments)


def _run(*command: str) -> None:
    """Run a program of PostgreSQL's, which refuses to be root."""
    user = "postgres" if os.geteuid() == 0 else None
    done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


@contextlib.contextmanager
def postgres(host: str = "127.0.0.1") -> Iterator[Postgres]:
    """A server for the time inside, on a free port of this address; whoever is in its network may come.

    Raises:
        NoPeer: PostgreSQL is not installed.
    """
    if find_spec("psycopg") is None:
        raise NoPeer("psycopg is not installed: pip install 'blocking-multiqueue[postgresql]'")
    initdb = _program("initdb")
    with tempfile.TemporaryDirectory(prefix="mq-pg-") as name:
        directory = Path(name)
        (directory / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            try:
                owner = pwd.getpwnam("postgres").pw_uid
            except KeyError:
                raise NoPeer("there is no user 'postgres' to run PostgreSQL as") from None
            for path in (directory, directory / "password"):
                os.chown(path, owner, -1)
        _run(
            initdb, "-D", str(directory / "data"), "-U", "tester", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C",
            f"--pwfile={directory / 'password'}", "--no-sync",
        )  # fmt: skip
        with socket.socket() as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        with open(directory / "data" / "pg_hba.conf", "a") as rules:
            rules.write("host all all samenet scram-sha-256\n")
        server = Postgres(directory, port, host)
        server.start()
        try:
            yield server
        finally:
            server.kill()
