"""CPython's own tests of `ThreadPoolExecutor`, run against `MultiQueueExecutor`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# What the tests do not find by themselves: the class to test, two attributes of the standard library's executor, and
# the logger of a failed initializer. The rest of this program is CPython's.
PROGRAM = """
import sys, unittest, warnings
from concurrent import futures
from test.test_concurrent_futures import test_as_completed, test_init, test_shutdown, test_thread_pool, test_wait, util
from multiqueue import MultiQueueExecutor

warnings.simplefilter("ignore", DeprecationWarning)  # one test forks a process that has threads

class Peer(MultiQueueExecutor):
    _threads = property(lambda self: self._workers.threads())
    _max_workers = property(lambda self: self._workers.max_workers)

class Mixin(util.ThreadPoolMixin):
    executor_type = Peer

class Pool(Mixin, test_thread_pool.ThreadPoolExecutorTest):
    pass

class Wait(Mixin, test_wait.ThreadPoolWaitTests):
    pass

class AsCompleted(Mixin, test_as_completed.AsCompletedTests, util.BaseTestCase):
    pass

class Initializer(Mixin, test_init.InitializerMixin, util.BaseTestCase):
    pass

class Shutdown(Mixin, test_shutdown.ThreadPoolShutdownTest):
    def setUp(self):
        super().setUp()
        self._replaced = futures.ThreadPoolExecutor
        futures.ThreadPoolExecutor = Peer  # some of these tests do not ask for `executor_type`
        self.addCleanup(setattr, futures, "ThreadPoolExecutor", self._replaced)

    # These run programs that import from concurrent.futures; test_executor_shutdown.py has ours.
    test_interpreter_shutdown = test_submit_after_interpreter_shutdown = test_hang_gh83386 = None
    test_cancel_futures_wait_false = None
    # Names threads after the class it expects; test_executor_workers.py has ours.
    test_thread_names_default = None

unittest.main()
"""


@pytest.mark.slow(selected=sys.version_info >= (3, 13))  # before that they have another shape
def test_the_standard_librarys_tests_pass(tmp_path: Path, need_module: Callable[[str, str], None]) -> None:
    """CPython's tests of the thread pool, `wait`, `as_completed`, initializers and shutdown pass on ours."""
    need_module("test.test_concurrent_futures", "this Python came without its own tests")
    program = tmp_path / "peer.py"
    program.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=280, cwd=root, env={"PYTHONPATH": str(root)}
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.rstrip().endswith("OK"), run.stderr
