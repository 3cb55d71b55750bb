"""One opener at a time: an exclusive `flock` on a directory and a file in it, which dies with its process.

Promise     While a `DirectoryLock` is held no other one is given for the directory, in no process and nowhere in this
            one, also after somebody removed the file. A lock of a dead process is free, however it died.
State       The file holds the number of the process that has the lock. It is locked too because earlier versions lock
            it alone; and it is never removed here: one of them that waits for the removed file would hold nothing.
            `_held` has every lock of this process.
Membership  A forked child inherits the descriptors, and with them the lock would outlive its owner. So the owner
            unlocks before it closes: a child that was forked just now may have the descriptors still. And the child
            closes them without unlocking, which leaves the owner's lock as it is, and frees it if the owner is killed.
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
        self._descriptors: list[int] = []
        file = directory / FILE_NAME
        try:
            for path, flags in ((directory, os.O_RDONLY), (file, os.O_RDWR | os.O_CREAT)):
                self._descriptors.append(os.open(path, flags | os.O_CLOEXEC, 0o644))
                self._lock(self._descriptors[-1], path)
        except BlockingIOError as error:
            self._close()
            raise StoreLocked(
                f"the store {str(directory)!r} is open in {_holder(file)}; close it there, or use another directory"
            ) from error
        except BaseException:
            self._close()
            raise
        try:
            os.ftruncate(self._descriptors[-1], 0)
            os.pwrite(self._descriptors[-1], b"%d\n" % os.getpid(), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same, only its holder is not named
        _held.add(self)

    @staticmethod
    def _lock(descriptor: int, path: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StoreError(f"cannot lock {str(path)!r}: {error.strerror}; use a local file system") from error

    def release(self) -> None:
        """Let go; harmless if it was."""
        if fcntl is not None:
            for descriptor in self._descriptors:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)


def _holder(file: Path) -> str:
    """Who has the lock, as far as the file says."""
    try:
        holder = file.read_text("ascii", "replace")[:20].strip()
    except OSError:
        holder = ""
    if holder == str(os.getpid()):
        return "this process"
    return f"process {holder}" if holder else "another process"


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
