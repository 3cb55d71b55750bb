"""The core on the other CPythons of this machine: what each of them makes of the code that the proofs rely on.

The rest of tests/core runs on them by `.ci/core`, which finds them; CONTRIBUTING.md says how to get each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent.parent


def others() -> list[tuple[str, str]]:
    """The version and the path of each CPython here that does not run this test, the oldest first."""
    found = subprocess.run([HOUSE / ".ci" / "core", "--list"], capture_output=True, text=True, check=True, timeout=60)
    this = f"3.{sys.version_info[1]}{'t' if 'free-threading' in sys.version else ''}"
    known = [(version, path) for version, _, path in (line.partition(" ") for line in found.stdout.splitlines())]
    assert known, "the one that runs this test is on PATH or not, but there is a python3"
    return [each for each in known if each[0] != this] or pytest.skip("this machine has no other CPython from 3.11 on")


def run(python: str, program: str, *arguments: str) -> str:
    """What a program of tests/core says, run by another interpreter with the standard library alone."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (HOUSE, HOUSE / "tests")))}
    command = [python, HOUSE / "tests" / "core" / program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow(selected=True)
def test_no_other_cpython_compiles_a_loop_outside_of_its_try() -> None:
    """The exception tables that each CPython of this machine makes of the house lead where the source says."""
    for version, python in others():
        said = run(python, "protection_support.py")
        assert said.startswith(f"CPython {version.rstrip('t')}.")
        assert said.endswith(" 0 holes\n")


@pytest.mark.slow(selected=True)
def test_the_oldest_and_the_newest_lose_nothing_to_an_exception() -> None:
    """Every operation, struck at every point, on the oldest and the newest other CPython of this machine."""
    found = others()
    for _, python in {found[0], found[-1]}:
        said = run(python, "interruption_support.py", "one object", "coroutines take")
        assert said.splitlines()[-1].split()[-1] == "0"
