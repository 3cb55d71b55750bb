"""The package in another interpreter of the same process."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

CODE = """
import importlib, sys
try:
    interpreters = importlib.import_module("_interpreters")
    other = interpreters.create("legacy")
except (ImportError, AttributeError):
    interpreters = importlib.import_module("_xxsubinterpreters")
    other = interpreters.create(isolated=False)
import multiqueue.broker
inside = '''
import multiqueue, multiqueue.store, multiqueue.broker
queue = multiqueue.LinkedBlockingMultiQueue()
queue.add_subqueue("a").put(1)
assert queue.get() == 1
try:
    queue.get_nowait()
except multiqueue.Empty:
    print("works")
'''
failure = interpreters.run_string(other, inside)
assert failure is None, failure
interpreters.destroy(other)
"""


def test_the_broker_in_another_interpreter() -> None:
    """Queues and the broker can be imported there, and end with it; RE2, which would wait for ever, is left out."""
    if sys.version_info < (3, 13):
        importlib.import_module("_xxsubinterpreters")
    if sys.version_info[:2] == (3, 12):
        pytest.skip("modules of the standard library crash in other interpreters of 3.12.1")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr
