"""A server's settings, and its share of its machine: limits, TLS, memory, disk, files, the collector's patience.

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
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from ..._kinds import check_kind
from .._wire.errors import ServerError
from .._wire.frames import DEFAULT_FRAME_MAX, MIN_FRAME_MAX

_log = logging.getLogger("multiqueue.amqp")
MEBIBYTE: Final = 2**20
_YOUNG: Final = 20_000  # objects more than before, till the young are looked at: some 1 ms
_MIDDLE: Final = 2  # such looks till a look at all that were young since the last one: some 20 ms
_OLD: Final = 250  # those till a look at everything


def _limit(default: float | None, least: float, most: float) -> Any:
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits of a server. Times in seconds, sizes in bytes.

    `frame_max`, `channel_max` and `heartbeat` are offered to clients, which may lower them; a heartbeat of 0 is none.
    Beyond `memory_limit_bytes` of this process, or below `disk_free_limit_bytes` on the file system of the data,
    publishers are not read from until it is better; None is no limit. A client that reads slowly has
    `write_buffer_bytes` waiting at most, and its consumers get nothing further meanwhile. One user holds
    `max_connections_per_user` at most; None is half of all. One message has `max_message_bytes` at most; None is what
    RabbitMQ takes: 16 MiB with `compat` 4.3, else 128.

    Raises:
        ValueError: a value out of range.
    """

    max_connections: int = _limit(10_000, 1, 1_000_000)
    max_connections_per_user: int | None = _limit(None, 1, 1_000_000)
    channel_max: int = _limit(2047, 1, 65535)
    frame_max: int = _limit(DEFAULT_FRAME_MAX, MIN_FRAME_MAX, 2**31)
    heartbeat: int = _limit(60, 0, 65535)
    max_message_bytes: int | None = _limit(None, 1, 2**40)
    handshake_timeout: float = _limit(10.0, 0.01, 3600)
    write_buffer_bytes: int = _limit(256 * 1024, 1024, 2**31)
    memory_limit_bytes: int | None = _limit(None, 1, 2**50)
    disk_free_limit_bytes: int | None = _limit(None, 1, 2**60)
    alarm_interval: float = _limit(1.0, 0.001, 3600)
    io_threads: int = _limit(1, 1, 64)

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            check_kind(name, value, (int, float, type(None)), "a number")
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value!r}; it is from {least} to {most}")


RANGES: Final[dict[str, tuple[float, float]]] = {each.name: each.metadata["range"] for each in fields(ServerSettings)}

PathLike = str | os.PathLike[str]


def server_tls(
    certificate: PathLike, key: PathLike | None = None, *, client_ca: PathLike | None = None, required: bool = True
) -> ssl.SSLContext:
    """The value of `serve(tls=...)`: TLS 1.2 or later with this certificate (PEM, with its chain).

    With `client_ca` clients are asked for a certificate that it signed, and refused without one unless `required` is
    False; a client that has one may log in as its common name, by the mechanism EXTERNAL.

    Raises:
        ServerError: a file cannot be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        where = f"{os.fspath(certificate)}" + (f" with key {os.fspath(key)}" if key is not None else "")
        raise ServerError(f"cannot use the certificate {where}: {_why(error)}") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ServerError(f"cannot use the client CA {os.fspath(client_ca)}: {_why(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "it is no PEM, or the key is another's"
    return error.strerror or str(error)


@contextmanager
def patient_collector() -> Iterator[None]:
    """In this block, collect garbage seldom, and never among the objects that exist now.

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
        TypeError: the host is no text, or the port no number.
    """
    check_kind("host", host, str, "a name or an address, such as '127.0.0.1'")
    check_kind("port", port, int, "a number; 0 is a free port")
    if not 0 <= port <= 65535:  # the C library takes the rest of it
        raise ServerError(f"cannot listen on {host}: port {port} is not from 0 to 65535; choose another with {option}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServerError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(4096)  # who waits there while a crowd is accepted; one that is turned away asks after a second
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        is_used = error.errno == errno.EADDRINUSE
        what = (
            f"is in use; stop the program that uses it, or choose another with {option}" if is_used else error.strerror
        )
        raise ServerError(f"cannot listen on {host}: port {port} {what}") from error
    return listener


def memory_of_machine(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's, or less if a container or a service limits it.

    0 where the system does not say. `own` names the control groups of this process, `cgroups` has their limits.
    """
    try:
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        most = 0
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except (OSError, UnicodeDecodeError):
        return most
    for _, controllers, path in groups:
        if not controllers:  # version 2
            top, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = top / path.strip("/")
        for directory in (inside, *inside.parents):  # a group has what all above it have, at most
            limit = _number_in(directory / name)
            if limit and (not most or limit < most):
                most = limit
            if directory == top:
                break
    return most


def _number_in(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max" is no limit
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
