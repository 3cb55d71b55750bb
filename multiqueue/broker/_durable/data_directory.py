"""Where a broker keeps its virtual hosts: a directory each, under one.

A directory's name is the virtual host's, written so that no file system confuses two of them: lower-case letters,
digits, `-` and `_` stand for themselves, every other byte of UTF-8 is `%` and two digits. `/` is `%2f`. A directory
that is being removed has another name first, so that a crash leaves the whole store or none.
"""

from __future__ import annotations

import os
import shutil
import string
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from multiqueue.store import Durability, MessageStore, SqliteStore, StoreError

from ..._kinds import check_path

_PLAIN: Final = frozenset((string.ascii_lowercase + string.digits + "-_").encode())
_LONGEST: Final = 255  # bytes of one name, as the usual file systems allow
_GOING: Final = ".deleted-"


class DataDirectory:
    """The stores of one broker's virtual hosts. Knows names and paths; opens the store of each virtual host."""

    def __init__(self, path: str | Path, durability: str) -> None:
        check_path("data", path)
        if not str(path):
            raise ValueError("data is an empty path; name a directory, or None to keep everything in memory")
        self.path = Path(path)
        self.durability = Durability(durability)

    def open(self, virtual_host: str, *, again: bool = False) -> MessageStore:
        """The store of a virtual host, created if it does not exist. Raises as `Broker.add_virtual_host`.

        `again`: it was there. One that is gone with its disk is not begun anew where the disk was: raises StoreError.
        """
        path = self.path / directory_name(virtual_host)
        if again and not SqliteStore.is_in(path):
            raise StoreError(f"there is no store in {str(path)!r} any more: mount its disk again, or restore it")
        return SqliteStore(path, durability=self.durability)

    def virtual_hosts(self) -> list[str]:
        """The names of those that have a store here, in order. Other directories are somebody else's."""
        if not self.path.is_dir():
            return []
        for left in self.path.glob(f"{_GOING}*"):  # a process died while it removed it
            shutil.rmtree(left, ignore_errors=True)
        names = (virtual_host_name(entry.name) for entry in self.path.iterdir() if SqliteStore.is_in(entry))
        return sorted(name for name in names if name is not None)

    def remove(self, virtual_host: str) -> None:
        """Remove the store of a closed virtual host. Raises OSError if it cannot be renamed; then nothing has
        changed.
        """
        going = tempfile.mkdtemp(prefix=_GOING, dir=self.path)
        (self.path / directory_name(virtual_host)).rename(going)
        if os.name == "posix":
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        shutil.rmtree(going, ignore_errors=True)


def directory_name(virtual_host: str) -> str:
    """The name of a virtual host's directory. Raises ValueError: it would be too long, or empty."""
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in virtual_host.encode())
    if not 0 < len(name) <= _LONGEST:
        raise ValueError(
            f"vhost {virtual_host!r} cannot be kept on disk: its directory would have a name of {len(name)} bytes,"
            f" and 1 to {_LONGEST} are possible; choose another name"
        )
    return name


def virtual_host_name(directory: str) -> str | None:
    """The virtual host whose directory this is, None when it is something else."""
    try:
        name = unquote_to_bytes(directory).decode()
        return name if directory_name(name) == directory else None
    except ValueError:
        return None
