#!/usr/bin/env python3
"""The suites of other libraries, as they are and with `queue` replaced by `multiqueue`: which tests end otherwise.

    python tools/swapped_suites.py                     # all suites
    python tools/swapped_suites.py pebble watchdog     # these
    python tools/swapped_suites.py --python /usr/bin/python3.13 --work build/swapped

Each library's source distribution comes from PyPI, with its tests, and is installed in a virtual environment together
with this checkout. Its suite runs twice there: unswapped and swapped (`tools/swapped/sitecustomize.py`). A test whose
outcome differs runs twice more, once each way, alone; one that differs again is printed, and the status is 1. The rest
is a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITE_S = 900  # a suite that takes longer is ended; it counts what it has done


@dataclass(frozen=True)
class Suite:
    """A library and those of its tests that need no server."""

    package: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    swapped: str = "queue"


SUITES = {
    "watchdog": Suite(
        "watchdog",
        ("tests",),
        ("flaky", "pytest-timeout", "eventlet", "PyYAML"),
    ),
    "pebble": Suite(
        "pebble",
        ("test/test_pebble.py", "test/test_thread_pool.py", "test/test_concurrent_thread.py"),
    ),
    "kombu": Suite(
        "kombu",
        (
            *("t/unit/test_connection.py", "t/unit/test_pools.py", "t/unit/test_simple.py", "t/unit/test_messaging.py"),
            *("t/unit/transport/test_memory.py", "t/unit/transport/test_filesystem.py", "t/unit/transport/virtual"),
            *("t/unit/asynchronous/test_hub.py", "t/unit/utils"),
        ),
        ("pytz", "pytest-freezer", "hypothesis", "urllib3", "tzdata"),
    ),
    "redis-py": Suite(
        "redis",
        ("tests/test_connection_pool.py",),
        ("pytest-asyncio", "numpy", "mock"),
        ("-k", "TestBlockingConnectionPool or URLParsing or EventEmission"),  # the others want a server
    ),
    "urllib3": Suite(
        "urllib3",
        ("test/test_connectionpool.py", "test/test_queue_monkeypatch.py", "test/test_poolmanager.py"),
        ("trustme", "cryptography", "pytest-socket", "h2", "hypercorn", "quart", "quart-trio", "trio", "httpx", "idna"),
    ),
    "SQLAlchemy": Suite(
        "sqlalchemy",
        ("test/engine/test_pool.py", "test/base/test_concurrency.py"),
    ),
    "dask": Suite(
        "dask",
        ("dask/tests/test_threaded.py", "dask/tests/test_local.py", "dask/tests/test_system.py"),
        ("numpy", "pandas", "pytest-timeout", "pytest-rerunfailures"),
        ("-o", "addopts="),
        swapped="queue executor",
    ),
}

Outcomes = dict[str, str]


class Library:
    """A suite in a virtual environment."""

    def __init__(self, name: str, python: str, work: Path) -> None:
        self.name = name
        self.suite = SUITES[name]
        self.home = (work / name).resolve()
        self.python = self.home / "venv" / "bin" / "python"
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            self._run(python, "-m", "venv", str(self.home / "venv"))
        self._pip("install", str(HERE.parent), "pytest", "pytest-timeout", *self.suite.needs)
        self.source = self._source()

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def _pip(self, *arguments: str) -> None:
        self._run(str(self.python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments)

    def _source(self) -> Path:
        """The folder of the source distribution, installed."""
        downloads = self.home / "sdist"
        if not any(downloads.glob("*.tar.gz")):
            self._pip(
                "download", "--no-deps", "--no-binary", self.suite.package, "-d", str(downloads), self.suite.package
            )
        sdist = next(downloads.glob("*.tar.gz"))
        self._pip("install", str(sdist))
        with tarfile.open(sdist) as archive:
            archive.extractall(self.home, filter="data")
            return self.home / archive.getnames()[0].split("/")[0]

    def outcomes(self, swapped: str, tests: tuple[str, ...]) -> Outcomes:
        """Run these tests; how each ended."""
        file = self.home / f"outcomes-{swapped.replace(' ', '-') or 'unswapped'}"
        file.unlink(missing_ok=True)
        environment = os.environ | {
            "PYTHONPATH": str(HERE / "swapped"),
            "SWAPPED": swapped,
            "OUTCOMES": str(file),
            "PYTHONHASHSEED": "0",
        }
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "outcomes",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore:Module already imported:pytest.PytestAssertRewriteWarning",  # the plugin of multiqueue
            "--timeout",
            "120",
        ]
        log = file.with_suffix(".log")
        with log.open("w") as output:
            try:
                subprocess.run(
                    [*command, *self.suite.options, *tests],
                    cwd=self.source,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=SUITE_S,
                )
            except subprocess.TimeoutExpired:
                print(f"{self.name}: ended after {SUITE_S} s; its output is {log}", file=sys.stderr)
        if not file.exists():
            sys.exit(f"{self.name}: no test ran; its output is {log}")
        return dict(json.loads(line) for line in file.read_text().splitlines())

    def differing(self) -> tuple[Outcomes, Outcomes, list[str]]:
        """The outcomes unswapped and swapped, and the tests that end otherwise each time."""
        before, after = (self.outcomes(swapped, self.suite.tests) for swapped in ("", self.suite.swapped))
        candidates = differences(before, after)
        if not candidates:
            return before, after, []
        again = tuple(candidates)
        confirmed = set(differences(self.outcomes("", again), self.outcomes(self.suite.swapped, again)))
        return before, after, [test for test in candidates if test in confirmed]


def differences(before: Outcomes, after: Outcomes) -> list[str]:
    return [test for test in sorted({*before, *after}) if before.get(test) != after.get(test)]


def counts(outcomes: Outcomes) -> str:
    found = Counter(outcomes.values())
    return ", ".join(
        f"{found[each]} {each}" for each in ("passed", "failed", "skipped", "not collected") if found[each]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--python", default=sys.executable, help="the interpreter")
    parser.add_argument("--work", type=Path, default=Path("build/swapped"), help="where the environments are made")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    found = 0
    print("| suite | swapped | as it is | swapped | differ |\n|---|---|---|---|---|", flush=True)
    for name in arguments.names or SUITES:
        library = Library(name, arguments.python, arguments.work)
        before, after, differing = library.differing()
        cells = (library.source.name, library.suite.swapped, counts(before), counts(after), str(len(differing)))
        print(f"| {' | '.join(cells)} |", flush=True)
        for test in differing:
            print(f"  {test}: {before.get(test)}, swapped {after.get(test)}", file=sys.stderr, flush=True)
        found += len(differing)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
