"""One holder of a directory at a time: an exclusive `flock` on it and on a file in it, which dies with its process.

Promise     While a `DirectoryLock` is held no other one is given for the directory, in no process and nowhere in this
            one, also after somebody removed the file. A lock of a dead process is free, however it died.
State       The file holds what its holder says of itself. It is locked too because earlier versions lock it alone, and
            because a network's file system may lock no directory; and it is never removed here: one who waits for the
            removed file would hold nothing. `_held` has every lock of this process.
Membership  A forked child inherits the descriptors, and with them the lock would outlive its owner. So the owner
            unlocks before it closes: a child that was forked just now may have the descriptors still. And the child
            closes them without unlocking, which leaves the owner's lock as it is, and frees it if the owner is killed.
Waiting     No thread waits: a second one gets an error at once.
"""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Unlockable(Exception):
    """There can be no locks here; the message says why."""


class DirectoryLock:
    """The right to use a directory.

    `holder` is what the file says while it is held. With `on_network` the file alone is locked where the file system
    cannot lock a directory, as NFS.

    Raises:
        BlockingIOError: somebody has it; `holder_of` tells who.
        Unlockable: the file system, or this operating system, has no locks.
        OSError: the directory or the file cannot be opened.
    """

    def __init__(self, directory: Path, name: str, holder: str, *, on_network: bool = False) -> None:
        self._descriptors: list[int] = []
        if fcntl is None:
            raise Unlockable("this operating system has no flock")
        try:
            self._lock(directory, os.O_RDONLY, errno.EBADF if on_network else None)
            self._lock(directory / name, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self._close()
            raise
        try:
            os.ftruncate(self._descriptors[-1], 0)
            os.pwrite(self._descriptors[-1], f"{holder}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same, only its holder is not named
        _held.add(self)

    def _lock(self, path: Path, flags: int, ignored: int | None = None) -> None:
        self._descriptors.append(os.open(path, flags | os.O_CLOEXEC, 0o644))
        try:
            fcntl.flock(self._descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno != ignored:
                raise Unlockable(f"cannot lock {str(path)!r}: {error.strerror}") from error

    def release(self) -> None:
        """Let go; harmless if it was."""
        if fcntl is not None:
            for descriptor in self._descriptors:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)


def holder_of(file: Path) -> str:
    """What the holder has said of itself; empty if unknown."""
    try:
        return file.read_text("utf-8", "replace")[:200].strip()
    except OSError:
        return ""


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
