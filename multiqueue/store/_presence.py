"""That the files of a store are there: all of them at its opening, and the same ones while it is open.

A file that was removed or replaced takes writes and syncs as before, and loses them all when it is closed.

Promise     `gone` names one that is not there any more. It looks once a second at most, so a store that was quiet looks
            before its next commit is confirmed; a busy one may have confirmed a second's commits before.
State       The device and the inode of each file at the opening. The writer thread's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ._bodies import body_file, newest_files

_SECONDS = 1.0  # between two looks: each lets go of the interpreter's lock four times


class Presence:
    """Made when all files are open. `clock` is monotonic."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = {path: _identity(path) for path in (f"{file}", f"{file}-wal", f"{file}-shm")}
        self._clock = clock
        self._next = clock() + _SECONDS

    def gone(self, written: tuple[Path, int] | None, *, at_once: bool = False) -> str:
        """The file that was removed or replaced, or nothing; `written` is another one, with its descriptor."""
        now = self._clock()
        if now < self._next and not at_once:
            return ""
        self._next = now + _SECONDS
        for path, identity in self._files.items():
            if _identity(path) != identity:
                return path
        if written is not None and _identity(written[0]) != _identity(written[1]):
            return str(written[0])
        return ""


def left_alone(file: Path) -> Path | None:
    """A file that a store left beside its file, where that is gone or empty: a log that is not empty, or one of bodies.

    SQLite removes a log beside an empty file, also where it is only to read.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        if file.stat().st_size:
            return None
    log = file.with_name(f"{file.name}-wal")
    with suppress(FileNotFoundError, NotADirectoryError):
        if log.stat().st_size:
            return log
    newest = newest_files(file.parent) if file.parent.is_dir() else []
    return body_file(file.parent, newest[-1]) if newest else None


def _identity(file: str | Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
