"""Two directories change places in one step, where the operating system and the file system can do that.

Linux has `renameat2` with `RENAME_EXCHANGE`, on ext4, XFS, btrfs, tmpfs and overlayfs; macOS has `renamex_np` with
`RENAME_SWAP`. Python has neither. NFS and SMB take no such call.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2


def exchange(one: Path, other: Path) -> bool:
    """Give each of two directories the name of the other; False, and nothing done, where that cannot be."""
    call = _call()
    return call is not None and call(os.fsencode(one), os.fsencode(other)) == 0


@cache
def _call() -> Callable[[bytes, bytes], int] | None:
    try:
        library = ctypes.CDLL(None)
        if sys.platform == "darwin":
            swap = library.renamex_np
            return lambda one, other: int(swap(one, other, ctypes.c_uint(_RENAME_SWAP)))
        rename = library.renameat2
    except (AttributeError, OSError, TypeError):  # an older libc, musl before 1.2.6, Windows
        return None
    return lambda one, other: int(rename(_AT_FDCWD, one, _AT_FDCWD, other, ctypes.c_uint(_RENAME_EXCHANGE)))
