"""The program that measures round trips while a broker does something with very many messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from round_trip_program import OPERATIONS

PROGRAM = Path(__file__).with_name("round_trip_program.py")


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_program_measures_every_operation(operation: str) -> None:
    """Each is done to its end, and gets a line; what the figures are is for those who read them."""
    done = subprocess.run(
        [sys.executable, PROGRAM, "--count", "2000", operation], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    header, line = done.stdout.splitlines()
    assert header.split()[0] == "operation"
    assert line.startswith(operation)
    assert line.endswith(" ms")
