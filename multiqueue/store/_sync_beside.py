"""A thread that syncs one file while its owner has SQLite sync another: the disk flushes once for both.

Promise     `end` returns when what was written to the file before `begin` is on the disk, and then the names in a
            directory, if one was given; or it raises why not.
            Where no thread can be started (too many, or the interpreter ends, from Python 3.12 on), `end` syncs itself.
Waiting     The thread waits for `begin`, or `close`, which ends it; `end` waits for the thread's one sync.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue


class SyncBeside:
    """For one owner's thread; the other one begins with the first sync."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._wanted: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._done: SimpleQueue[OSError | None] = SimpleQueue()
        self.is_running = False  # between `begin` and `end`

    def begin(self, descriptor: int, directory: int = -1) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="multiqueue-store-sync", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self.is_running = True
        self._wanted.put((descriptor, directory))

    def end(self, descriptor: int = -1) -> None:
        """Wait for the sync; where none was begun, sync this file.

        Raises:
            OSError: the disk failed, whatever it said: SQLite has committed, so nothing can be undone.
        """
        if not self.is_running:
            self._sync(descriptor)
        elif self._thread is None:
            self._wanted.put(None)
            self._run()
        error = self._done.get()
        self.is_running = False
        if error is not None:
            raise OSError(errno.EIO, f"a commit could not be synced: {error.strerror or error}") from error

    def close(self) -> None:
        if self._thread is not None:
            self._wanted.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            self._sync(*wanted)

    def _sync(self, descriptor: int, directory: int = -1) -> None:
        try:
            sync_data(descriptor)
            if directory >= 0:
                os.fsync(directory)
        except OSError as error:
            self._done.put(error)
        else:
            self._done.put(None)


def sync_data(descriptor: int) -> None:
    """Have a file's content on the disk.

    Raises:
        OSError: the disk failed.
    """
    if sys.platform == "darwin":
        import fcntl  # here, for where there is none this module is imported too, and never opens a store

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)
