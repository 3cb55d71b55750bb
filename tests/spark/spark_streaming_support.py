"""What the tests of the source and the sink share: a disk that forgets, a broker with durable queues, ways to look."""

from __future__ import annotations

import shutil
from pathlib import Path

from multiqueue.spark._spool_files import Files


class PowerCut(BaseException):
    """The machine stops. Not an Exception: no handler of ours may go on."""


class ForgetfulDisk(Files):
    """A disk that notes what is synced, so that a test can see what a power cut leaves.

    `fails_at` is the number of the operation, from 1, at which the machine stops (or `error` is raised); `before`
    says whether that operation has had its effect.
    """

    def __init__(self, fails_at: int = 0, *, before: bool = True, error: BaseException | None = None) -> None:
        self.operations = 0
        self._fails_at, self._before, self._error = fails_at, before, error or PowerCut()
        self._unsynced: list[tuple[str, Path, Path | None]] = []  # changes of names, oldest first

    def write(self, path: Path, data: bytes) -> None:
        if self._strikes(before=True):
            path.write_bytes(data[: len(data) // 2])  # torn
            raise self._error
        super().write(path, data)
        self._strike_after()

    def rename(self, path: Path, name: Path) -> None:
        self._strike_before()
        super().rename(path, name)
        self._unsynced.append(("rename", path, name))
        self._strike_after()

    def sync_directory(self, directory: Path) -> None:
        self._strike_before()
        super().sync_directory(directory)
        self._unsynced = [change for change in self._unsynced if change[1].parent != directory]
        self._strike_after()

    def remove(self, path: Path) -> None:
        self._strike_before()
        kept = path.with_name(path.name + ".removed")
        shutil.copy(path, kept)
        super().remove(path)
        self._unsynced.append(("remove", kept, path))
        self._strike_after()

    def lose(self) -> None:
        """Undo the changes of names that no sync has made last."""
        for kind, path, name in reversed(self._unsynced):
            assert name is not None
            if kind == "rename":
                name.replace(path)
            else:
                path.replace(name)

    def _strikes(self, *, before: bool) -> bool:
        self.operations += before
        return self.operations == self._fails_at and self._before == before

    def _strike_before(self) -> None:
        if self._strikes(before=True):
            raise self._error

    def _strike_after(self) -> None:
        if self._strikes(before=False):
            raise self._error
