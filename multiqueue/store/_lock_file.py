"""One opener of a store at a time: the lock of its directory, in the store's words. No state of its own."""

from __future__ import annotations

import os
from pathlib import Path

from .. import _directory_lock
from ._errors import StoreError, StoreLocked

FILE_NAME = "lock"


class DirectoryLock(_directory_lock.DirectoryLock):
    """The right to use the store in a directory.

    Raises:
        StoreLocked: somebody has it; the message names the process.
        StoreError: the file system cannot lock.
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        try:
            super().__init__(directory, FILE_NAME, str(os.getpid()))
        except BlockingIOError as error:
            raise StoreLocked(
                f"the store {str(directory)!r} is open in {_opener(directory)}; "
                "close it there, or use another directory"
            ) from error
        except _directory_lock.Unlockable as error:
            raise StoreError(f"{error}; a store on disk needs a local file system with flock") from error


def _opener(directory: Path) -> str:
    """Who has the lock, as far as the file says."""
    holder = _directory_lock.holder_of(directory / FILE_NAME)
    if holder == str(os.getpid()):
        return "this process"
    return f"process {holder}" if holder else "another process"
