"""A file that holds disk space, to be given up when the disk is full so that messages can still be removed."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "reserve"


class SpaceReserve:
    """So many bytes of disk, held by a file of zeros or given up."""

    def __init__(self, directory: Path, size: int) -> None:
        self._file = directory / FILE_NAME
        self.size = size
        self.drop()  # what an earlier opening left is room for this one

    def take(self) -> bool:
        """Hold the space; False if the disk does not have it."""
        if self.size == 0:
            return True
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._fill(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """Give the space up; harmless if it was."""
        self._file.unlink(missing_ok=True)

    def _fill(self, descriptor: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, self.size)
            return
        block = bytes(1 << 20)
        left = self.size
        while left > 0:
            left -= os.write(descriptor, block[:left])
