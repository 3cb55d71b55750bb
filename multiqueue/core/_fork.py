"""The needs of a child process after `fork`: locks that no thread holds, and no parked threads.

Of all threads only the one that forked goes on in the child. The locks the others held would stay held for ever,
and wake-ups would go to threads that are gone. So the child gives every queue new locks and empties the lists of
those who wait. A thread that forks in the middle of an operation (from a signal handler) ends that operation with
the lock it began with, which it holds in a local variable.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    def _renew_after_fork(self) -> None: ...


_renewable: WeakSet[Renewable] = WeakSet()


def renew_after_fork(queue: Renewable) -> None:
    """Have `queue._renew_after_fork()` called in every child process, for as long as `queue` lives."""
    _renewable.add(queue)


def _renew_all() -> None:
    for queue in list(_renewable):
        queue._renew_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)
