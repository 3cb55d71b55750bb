"""A server's share of its machine: memory, disk, files, sockets, and the patience of the garbage collector.

A message on a queue is five objects in no cycle. By default the collector looks at all of them again when they have
grown by a quarter: a third of what a durable message cost. docs/decisions/0861 has the figures.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .._wire.errors import ServerError
from .settings import ServerSettings

_log = logging.getLogger("multiqueue.amqp")

_YOUNG: Final = 20_000  # objects more than before, till the young are looked at: some 1 ms
_MIDDLE: Final = 2  # such looks till a look at all that were young since the last one: some 20 ms
_OLD: Final = 250  # those till a look at everything


@contextmanager
def patient_collector() -> Iterator[None]:
    """Look for cycles seldom in this block, and never among the objects that are there now.

    For a program whose process is mostly a broker: `with patient_collector(), serve(broker): ...`. It is the whole
    process's collector; its thresholds are as before when the block ends. One such block at a time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def low_resources(settings: ServerSettings, data: Path | None) -> set[str]:
    low: set[str] = set()
    if settings.memory_limit_bytes is not None and memory_used_bytes() > settings.memory_limit_bytes:
        low.add("memory")
    if settings.disk_free_limit_bytes is not None and data is not None:
        try:
            if shutil.disk_usage(data).free < settings.disk_free_limit_bytes:
                low.add("disk")
        except OSError as error:
            _log.error("cannot tell how much is free in %s: %s", data, error)
    return low


def memory_used_bytes() -> int:
    """Bytes of memory this process occupies; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as figures:
            return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def open_files_limit() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return 2**31
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 2**31


def listening_socket(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens, and does not block; port 0 is a free one. `option` is what chooses another port.

    Raises:
        ServerError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServerError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        what = (
            f"is in use; stop what uses it, or choose another with {option}"
            if error.errno == errno.EADDRINUSE
            else error.strerror
        )
        raise ServerError(f"cannot listen on {host}: port {port} {what}") from error
    return listener


def memory_of_machine() -> int:
    """Bytes of memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def disk_bytes(directory: Path) -> int:
    """Bytes of the disk on which a directory is, or will be made; 0 where the system does not say."""
    for path in (directory, *directory.absolute().parents):
        try:
            return shutil.disk_usage(path).total
        except FileNotFoundError:
            continue
        except OSError:
            break
    return 0
