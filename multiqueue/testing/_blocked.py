"""Wait until a thread is really blocked, instead of sleeping and hoping.

Promise     `wait_until_blocked(predicate)` returns when the predicate held; it is exact if the predicate is,
            such as a count of waiters that the code under test raises under its lock before it parks.
            `wait_until_blocked(thread)` returns when the thread stood at the same instruction, was not ready
            to run and was not scheduled once, throughout several switch intervals.
Assumes     Linux counts how often a thread was scheduled and says R for one that is ready. A thread that
            waits for the interpreter's lock wakes at each switch interval to ask for it: its count grows.
            Elsewhere only the instruction is known, and a loaded machine could make a ready thread look
            blocked: prefer the predicate.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ._errors import StillBlocked, TestToolError
from ._patience import PATIENCE
from ._stacks import dump, places

# Consecutive looks, each longer than a switch interval, that must show the same.
_LOOKS = 3

# Seconds between two looks at a predicate: short beside a test, long beside an operation.
_PAUSE = 0.0005


def wait_until_blocked(target: threading.Thread | Callable[[], object], timeout: float = PATIENCE) -> None:
    """Block until `target`, a thread, waits for something, or until `target()`, a predicate, is true.

    A thread blocks on a lock, a queue, a sleep or I/O alike. The predicate is called often, from this thread.

    Raises: StillBlocked after `timeout` real seconds, with the thread's stack; TestToolError for a thread
    that is not running.
    """
    deadline = time.monotonic() + timeout
    if isinstance(target, threading.Thread):
        _wait_for_thread(target, deadline, timeout)
        return
    while not target():
        if time.monotonic() > deadline:
            raise StillBlocked(f"{target!r} was not true within {timeout} s")
        time.sleep(_PAUSE)


def _wait_for_thread(thread: threading.Thread, deadline: float, timeout: float) -> None:
    last, same = None, 0
    while same < _LOOKS:
        if not thread.is_alive():
            raise TestToolError(f"thread {thread.name!r} is not running, so it will not block")
        now = _look(thread)
        same = same + 1 if now is not None and now == last else 0
        last = now
        if time.monotonic() > deadline:
            raise StillBlocked(f"thread {thread.name!r} was not blocked within {timeout} s:\n{dump([thread])}")
        time.sleep(2 * sys.getswitchinterval())


def _look(thread: threading.Thread) -> tuple[str, str] | None:
    """Where the thread stands and how often it was scheduled; None if it could run."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return None
    state, scheduled = _scheduling(thread)
    return None if state == "R" else (places(frame), scheduled)


def _scheduling(thread: threading.Thread) -> tuple[str, str]:
    """The thread's state and its counts of context switches; empty where the platform does not tell."""
    try:
        lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
    except OSError:  # not Linux, or the thread has just ended
        return "", ""
    state = next((line.split()[1] for line in lines if line.startswith("State:")), "")
    return state, " ".join(line.split()[1] for line in lines if "ctxt_switches:" in line)
