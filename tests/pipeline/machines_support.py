"""Machines that share nothing but a network: a network namespace each, with directories and a name of its own.

They are on a bridge of their own, and know each other by name. `/srv` and `/tmp` of each are its own directories, and
what a machine without our package must not see is empty there. A machine that is cut off answers nobody, not even by an
end of its connections, as one whose power fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from multiqueue.testing import PATIENCE

HOUSE = Path(__file__).parents[2]
PROGRAMS = ("ip", "nsenter", "unshare", "mount")

# Of the Python that a worker has: what PySpark asks for, and nothing else of ours.
OF_SPARK = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "numpy.libs", "dateutil", "pytz", "tzdata", "six.py")


def missing_for_machines() -> str | None:
    """What is missing here to have such machines, as a sentence."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root can make network namespaces"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install iproute2 util-linux"
    name = f"mq{os.getpid()}"
    for command in (["unshare", "--mount", "--uts", "--pid", "--fork", "true"], ["ip", "netns", "add", name]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"this machine has no namespaces for us: {done.stderr.strip()}"
    _do("ip", "netns", "delete", name)
    return None


class Program:
    """A program on a machine, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: list[str] = []
        self._has_ended = False
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="program", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._more:
                    self._said.append(line)
                    self._more.notify_all()
        with self._more:
            self._has_ended = True
            self._more.notify_all()

    @property
    def said(self) -> str:
        return "".join(self._said)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in what it says, once it is there."""
        with self._more:
            self._more.wait_for(lambda: self._has_ended or re.search(pattern, self.said), 4 * PATIENCE)
        found = re.search(pattern, self.said)
        assert found, f"{pattern!r} is not in {self.said[-3000:]}"
        return found

    def status(self) -> int:
        """Its exit status, once it has ended and all that it said is here."""
        status = self.process.wait(4 * PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def kill(self) -> None:
        """And everything that it has started: it is the first process of its namespace."""
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)


@dataclass
class Machine:
    """One machine: its address, and the directory that is its `/srv`."""

    name: str
    address: str
    directory: Path
    hosts: Path
    hidden: Sequence[Path]
    environment: Mapping[str, str]
    namespace: str
    programs: list[Program] = field(default_factory=list)

    @property
    def link(self) -> str:
        return f"{self.namespace}l"

    def start(self, command: str, **environment: str) -> Program:
        """Start a shell's commands there, in `/srv`."""
        mounts = [
            "mount --make-rprivate /",
            f"mount --bind {self.hosts} /etc/hosts",
            *(f"mount -t tmpfs none {path}" for path in self.hidden),
            f"mount --bind {self.directory} /srv",
            f"mount --bind {self.directory / 'tmp'} /tmp",
            f"hostname {self.name}",
        ]
        inside = " && ".join([*mounts, "cd /srv", 'exec sh -c "$0"'])
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--uts", "--pid", "--fork",
             "--kill-child", "--mount-proc", "sh", "-c", inside, command],
            env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        program = Program(process)
        self.programs.append(program)
        return program

    def lose_power(self) -> None:
        """From now on nobody hears of it, as if its power had failed."""
        _do("ip", "link", "set", self.link, "down")

    def stop(self) -> None:
        """Kill its programs."""
        for program in self.programs:
            program.kill()


def services() -> str:
    """The address of this machine in the network of the others."""
    return f"10.213.{os.getpid() % 250}.254"


@contextlib.contextmanager
def machines(base: Path, with_package: Sequence[str], without: Sequence[str]) -> Iterator[dict[str, Machine]]:
    """Machines of these names; those `without` our package have a Python of Spark's needs alone.

    The machine of the test is in their network, as `services`, with the address `services()`.
    """
    network = services().rpartition(".")[0]
    prefix = f"mq{os.getpid()}"
    bridge = f"{prefix}b"
    names = [*with_package, *without]
    hosts = base / "hosts"
    addresses = {name: f"{network}.{place}" for place, name in enumerate(names, 1)}
    known = {"localhost": "127.0.0.1", "services": services(), **addresses}
    hosts.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
    with contextlib.ExitStack() as stack:
        _do("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_do, "ip", "link", "delete", bridge)
        _do("ip", "address", "add", f"{services()}/24", "dev", bridge)
        _do("ip", "link", "set", bridge, "up")
        made = {}
        for place, name in enumerate(names):
            directory = base / name
            (directory / "tmp").mkdir(parents=True)
            bare = name in without
            python = directory / "python"
            _make_python(python, OF_SPARK if bare else None)
            environment = {
                "PATH": f"/srv/python/bin:{os.environ['PATH']}",
                "HOME": "/srv",
                "SPARK_HOME": str(_site() / "pyspark"),
                "SPARK_DAEMON_MEMORY": "256m",
                "PYTHONDONTWRITEBYTECODE": "1",
                **{
                    key: value for key, value in os.environ.items() if key in ("LANG", "JAVA_HOME", "JAVA_TOOL_OPTIONS")
                },
            }
            hidden = [HOUSE / room for room in ("multiqueue", "tests", "examples")] if bare else []
            namespace = f"{prefix}{chr(97 + place)}"
            machine = Machine(name, addresses[name], directory, hosts, hidden, environment, namespace)
            _do("ip", "netns", "add", namespace)
            stack.callback(_do, "ip", "netns", "delete", namespace)
            _do("ip", "link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _do("ip", "link", "set", machine.link, "master", bridge, "up")
            stack.callback(_do, "ip", "link", "delete", machine.link)
            inside = ("ip", "-netns", namespace)
            _do(*inside, "address", "add", f"{machine.address}/24", "dev", "eth0")
            _do(*inside, "link", "set", "eth0", "up")
            _do(*inside, "link", "set", "lo", "up")
            stack.callback(machine.stop)
            made[name] = machine
        yield made


def _make_python(place: Path, packages: Sequence[str] | None) -> None:
    """A Python with these packages of ours, or with all of them; `pip` would bring them anew."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    there = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    if packages is None:
        (there / "all.pth").write_text(f"import site; site.addsitedir({str(_site())!r})\n")
        (place / "bin" / "multiqueue").write_text('#!/bin/sh\nexec python -m multiqueue "$@"\n')
        (place / "bin" / "multiqueue").chmod(0o755)
        return
    for package in packages:
        if (_site() / package).exists():
            (there / package).symlink_to(_site() / package)


def _site() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def pack(archive: Path, *names: str) -> None:
    """What `pip install --target` brings of our package and these ones, as an archive."""
    packages = archive.with_suffix("")
    shutil.copytree(HOUSE / "multiqueue", packages / "multiqueue", ignore=shutil.ignore_patterns("__pycache__"))
    wanted, seen = list(names), set()
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # it is for another Python
        wanted += [re.split(r"[^\w.-]", one)[0] for one in found.requires or () if "extra ==" not in one]
        for path in found.files or ():
            if ".." not in path.parts and path.suffix != ".pyc":
                (packages / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path.locate(), packages / path)
    with tarfile.open(archive, "w:gz", compresslevel=1) as stream:
        stream.add(packages, ".")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
