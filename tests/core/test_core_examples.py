"""The examples of the core run, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "core_drop_in.py": ["[0, 1, 4, 9, 16, 25]"],
    "core_fair_queue.py": [
        "the first six: flood 0, gold 0, gold 1, small 0, flood 1, gold 2",
        "still waiting: [('flood', 998), ('gold', 1)]",
    ],
    "core_fair_tenants.py": [
        "the first seven: big 0, small 0, tiny 0, big 1, small 1, big 2, small 2",
        "the last of small was number 7 of 34",
    ],
    "core_pause_and_limit.py": [
        "under way: a b",
        "two are in flight, the third waits",
        "still paused: nothing",
        "on again: c",
    ],
    "core_coroutines_and_threads.py": ["{'door': [0, 1, 2], 'window': [10, 11, 12]}"],
}


def test_all_are_here() -> None:
    """Every example of the core is run by a test."""
    assert {path.name for path in EXAMPLES.glob("core_*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_it_prints_what_it_promises(name: str) -> None:
    """The example ends well and prints these lines."""
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[name]
