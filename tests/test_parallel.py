"""The suite in several processes: what is dear is shared in one, and a test that kills its process fails once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUPPORT = ("conftest.py", "explorations_support.py", "hypothesis_support.py", "jvm_support.py", "process_support.py")

SUITE = """
import os, time, pytest

@pytest.mark.parametrize("broker", ["rabbitmq", "ours"])
@pytest.mark.parametrize("number", range(4))
def test_process(broker, number):
    print(f"{broker} in {os.getpid()}")
    print("a name: " + chr(0xDCFF))

def test_kills_its_process():
    os._exit(3)

@pytest.mark.timeout(5)
def test_hangs():
    time.sleep(600)

@pytest.mark.slow
def test_for_hours():
    raise AssertionError
"""


def run_suite(directory: Path, suite: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests of their own under this house's conftest, in a process of their own."""
    for name in SUPPORT:
        (directory / name).write_text((HERE / name).read_text())
    (directory / "test_suite.py").write_text(suite)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", *options, "."]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)


@pytest.mark.slow(selected=True)
def test_a_test_that_kills_its_process_fails_once(tmp_path: Path) -> None:
    """One that ends or blocks its process fails once, with the stacks of a blocked one; every other test runs."""
    done = run_suite(tmp_path, SUITE, "-n2", "-rP", "--timeout-method=thread", "-o", "faulthandler_timeout=4")
    assert done.stdout.splitlines()[-1].strip("= ").startswith("2 failed, 8 passed, 1 deselected"), done.stdout
    processes = {line for line in done.stdout.splitlines() if line.startswith("rabbitmq in ")}
    assert len(processes) == 1
    assert "in test_hangs" in done.stderr + done.stdout


@pytest.mark.slow(selected=True)
def test_slow_tests_begin_first(tmp_path: Path) -> None:
    """The processes begin with what is shared, then with the slow tests: one given such last would let others wait."""
    suite = (
        "import pytest as p\n@p.mark.parametrize('n', range(30))\ndef test_short(n): ...\n"
        "@p.mark.slow(selected=True)\n@p.mark.parametrize('n', range(4))\ndef test_long(n): ...\n"
        "def test_beside_postgres(): ...\n"
    )
    done = run_suite(tmp_path, suite, "-n2", "-v", "--slow=selected")
    assert "35 passed" in done.stdout, done.stdout
    for process in ("gw0", "gw1"):
        kinds = [line.split("::")[1][:9] for line in done.stdout.splitlines() if line.startswith(f"[{process}]")]
        assert kinds[0] in ("test_besi", "test_long"), done.stdout
        assert kinds == sorted(kinds), done.stdout


def test_a_test_that_would_start_a_peer_of_its_own_is_refused(tmp_path: Path) -> None:
    """A test that asks for a dear fixture, and that the scheduler does not know by its name, ends the run at once."""
    done = run_suite(tmp_path, "def test_of_frames(rabbitmq_peer):\n    pass\n", "-n0")
    assert "test_suite.py::test_of_frames would start a rabbitmq of its own" in done.stderr, done.stdout


@pytest.mark.parametrize(
    ("needed", "required", "said"),
    [
        ("no_such_library.part", "", ": no_such_library is not installed: pip install"),
        ("no_such_library.part", "1", "MULTIQUEUE_REQUIRE_PEERS is set, and no_such_library is not installed"),
        ("no_such_support", "", "No module named 'no_such_support'"),
    ],
)
def test_a_file_without_its_library_is_left_out_at_a_desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: str, required: str, said: str
) -> None:
    """A file that imports what is not installed is skipped, and fails in CI; without a part of ours it always fails."""
    monkeypatch.setenv("MULTIQUEUE_REQUIRE_PEERS", required)
    done = run_suite(tmp_path, f"import {needed}\n", "-n0", "-rs")
    assert said in done.stdout
    assert ("1 skipped" if said.startswith(":") else "1 error") in done.stdout, done.stdout


def test_a_test_that_leaves_its_process_changed_fails(tmp_path: Path) -> None:
    """It is named at once, with what it has left; those after it, which would only suffer from that, are not."""
    suite = (
        "import logging, os, sys\n"
        "def test_quiet():\n    logging.getLogger('multiqueue').setLevel(logging.CRITICAL)\n"
        "def test_elsewhere():\n    os.chdir('/')\n"
        "def test_environment():\n    os.environ['LEFT'] = 'here'\n"
        "def test_path(monkeypatch):\n    monkeypatch.setattr(sys, 'path', ['.', *sys.path])\n"
    )
    done = run_suite(tmp_path, suite, "-n0")
    assert "4 passed, 3 errors" in done.stdout, done.stdout
    assert "left changed: the logger multiqueue, which was (0, " in done.stdout
    assert "left changed: the working directory, which was" in done.stdout
    assert "left changed: the environment, which was {} and is {b'LEFT': b'here'}" in done.stdout
