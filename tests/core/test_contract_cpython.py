"""CPython's own tests of `queue.Queue`, run against ours."""

from __future__ import annotations

import os
import unittest
from importlib import import_module
from typing import Any

import pytest

import multiqueue

cpython: Any
try:
    cpython = import_module("test.test_queue")
except ImportError:  # some distributions package the interpreter without its tests
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        raise
    pytest.skip("this interpreter comes without its own tests", allow_module_level=True)


class TestQueueAsCPython(cpython.QueueTest, unittest.TestCase):  # type: ignore[misc]
    """`multiqueue` in the place of the module `queue`."""

    queue = multiqueue
