"""Threads that wait, where something else looks at the process: the collector, the end of the interpreter, a fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from multiqueue import LinkedBlockingMultiQueue, Taken
from multiqueue.core import engine

PATIENCE = 30  # seconds until a test gives up

DAEMONS = """
import gc, sys, threading, time
from multiqueue import LinkedBlockingMultiQueue, Queue

queue, multi_queue = Queue(), LinkedBlockingMultiQueue()
sub = multi_queue.add_subqueue("a")
begun = threading.Semaphore(0)

def take(get):
    begun.release()
    while True:
        try:
            get(timeout=0.02)
        except Exception:
            pass

for get in [queue.get, multi_queue.get, sub.get] * 14:
    threading.Thread(target=take, args=(get,), daemon=True).start()
for _ in range(42):
    begun.acquire()

class Last:
    def __init__(self):
        self.itself, self.print, self.put = self, print, (queue.put, sub.put)
        self.sleep, self.collect = time.sleep, gc.collect

    def __del__(self):
        self.print("last")
        self.sleep(0.1)  # longer than their timeout: they end in it
        self.collect()
        for put in self.put:
            put(1)
        self.collect()

sys.modules["last"], last = Last(), Last()
"""

FORKS = """
import os, signal, threading, time
from multiqueue import Queue

queue = Queue()
here = os.getpid()
child = 0

def fork(*_):
    global child
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        threading.Thread(target=lambda: [time.sleep(0.05), queue.put("child")]).start()
    else:
        queue.put("parent")

def strike():
    while not queue.statistics().waiting_takers:
        time.sleep(0.001)
    os.kill(here, signal.SIGUSR1)

signal.signal(signal.SIGUSR1, fork)
threading.Thread(target=strike).start()
got = queue.get()
queue.check_invariants()
if child:
    assert got == "parent" and os.waitpid(child, 0)[1] == 0
else:
    os._exit(got != "child")
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_interpreter_ends_while_daemons_wait() -> None:
    """Daemon threads whose waits time out as the interpreter ends leave nothing that the collector trips over."""
    assert "last" in run(DAEMONS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.skipif(engine == "python", reason="a wait in Python does not outlast a fork in the handler that cuts it")
def test_a_wait_goes_on_in_the_child_of_a_handler_that_forks() -> None:
    """A signal handler that interrupts a wait and forks: an element put in the child ends the wait there."""
    run(FORKS)


def test_nobody_sees_a_pair_before_it_is_one() -> None:
    """While a thread waits in `take`, no object that the collector lists is a `Taken` without its two parts."""
    queue: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue()
    sub = queue.add_subqueue("a")
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(queue.take()))
    thread.start()
    try:
        while not queue.statistics().waiting_takers:
            pass
        assert [repr(each) for each in gc.get_objects() if isinstance(each, Taken)] == []
    finally:
        sub.put(1)
        thread.join()
    assert out == [Taken(sub, 1)]
    assert gc.is_tracked(out[0])
