"""The file system as the spool uses it. Tests put another one in, which fails, or forgets unsynced bytes."""

from __future__ import annotations

import os
from pathlib import Path


class Files:
    """The operating system's."""

    def write(self, path: Path, data: bytes) -> None:
        """Have a file with this content, on the disk when the call returns; its name may still be lost."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, path: Path, name: Path) -> None:
        """Give a file another name, all at once."""
        path.replace(name)

    def sync_directory(self, directory: Path) -> None:
        """Have the names in a directory on the disk when the call returns."""
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        """Remove a file, which need not be there."""
        path.unlink(missing_ok=True)
