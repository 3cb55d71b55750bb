"""The settings of a server: its limits, its patience, its certificate."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, fields
from typing import Any, Final

from .._wire.errors import ServerError
from .._wire.frames import DEFAULT_FRAME_MAX, MIN_FRAME_MAX

MEBIBYTE: Final = 2**20


def _limit(default: float | None, least: float, most: float) -> Any:
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits of a server. Times in seconds, sizes in bytes.

    `frame_max`, `channel_max` and `heartbeat` are offered to clients, which may lower them; a heartbeat of 0 is none.
    Beyond `memory_limit_bytes` of this process, or below `disk_free_limit_bytes` on the file system of the data,
    publishers are not read from until it is better; None is no limit. A client that reads slowly has
    `write_buffer_bytes` waiting at most, and its consumers get nothing further meanwhile.

    Raises:
        ValueError: a value out of range.
    """

    max_connections: int = _limit(10_000, 1, 1_000_000)
    channel_max: int = _limit(2047, 1, 65535)
    frame_max: int = _limit(DEFAULT_FRAME_MAX, MIN_FRAME_MAX, 2**31)
    heartbeat: int = _limit(60, 0, 65535)
    max_message_bytes: int = _limit(128 * MEBIBYTE, 1, 2**40)
    handshake_timeout: float = _limit(10.0, 0.01, 3600)
    write_buffer_bytes: int = _limit(256 * 1024, 1024, 2**31)
    memory_limit_bytes: int | None = _limit(None, 1, 2**50)
    disk_free_limit_bytes: int | None = _limit(None, 1, 2**60)
    alarm_interval: float = _limit(1.0, 0.001, 3600)
    io_threads: int = _limit(1, 1, 64)

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
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
