"""Connections that are still open when the program ends are closed then: docs/decisions/0877-closed-at-exit.md.

`close_all` runs where `atexit` does: on the main thread, after threads that are no daemons have ended, and before the
daemon threads of the connections are stopped. `_lock` guards `_open`; a leaf, not held while a connection is closed.
"""

from __future__ import annotations

import atexit
import os
import threading
from weakref import WeakKeyDictionary

from .._base.ports import ClosesAtExit

_lock = threading.Lock()
_open: WeakKeyDictionary[ClosesAtExit, int] = WeakKeyDictionary()  # with the process that made it


def close_at_exit(connection: ClosesAtExit) -> None:
    """Have a connection closed at the end of the program, unless it is gone by then."""
    with _lock:
        _open[connection] = os.getpid()


def close_all() -> None:
    with _lock:
        mine = [connection for connection, process in _open.items() if process == os.getpid()]
    for connection in mine:
        connection.close("the program has ended")


def _forked() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
