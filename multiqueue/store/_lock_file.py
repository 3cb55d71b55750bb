"""One opener at a time: an exclusive `flock` on a file, which the operating system releases when the process dies.

Promise     While a `DirectoryLock` is held no other one is given for the directory, in no process and nowhere in this
            one. A lock of a dead process is free, however it died.
State       The file holds the number of the process that has the lock; it is never removed: a process that waits for
            the removed one would hold nothing. `_held` has every lock of this process.
Membership  A forked child inherits the descriptor, and with it the lock would outlive its owner. So the owner unlocks
            before it closes: a child that was forked just now may have the descriptor still. And the child closes it
            without unlocking, which leaves the owner's lock as it is, and frees it if the owner is killed.
Waiting     No thread waits: a second opener is told at once.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from ._errors import StoreError, StoreLocked

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

FILE_NAME = "lock"


class DirectoryLock:
    """The right to use the store in a directory.

    Raises:
        StoreLocked: somebody has it; the message names the process.
        StoreError: the file system cannot lock.
    """

    def __init__(self, directory: Path) -> None:
        if fcntl is None:
            raise StoreError("a store on disk needs flock, which this operating system does not have")
        self._descriptor: int | None = None
        file = directory / FILE_NAME
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "?"
            os.close(descriptor)
            which = "this process" if holder == str(os.getpid()) else f"process {holder}"
            raise StoreLocked(
                f"the store {str(directory)!r} is open in {which}; close it there, or use another directory"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"cannot lock {str(file)!r}: {error.strerror}; use a local file system") from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same, only its holder is not named
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Let go; harmless if it was."""
        if self._descriptor is not None and fcntl is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
