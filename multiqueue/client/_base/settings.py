"""What a connection can be asked for, with the reasons of the defaults."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from .address import Address
from .errors import BadAddress
from .failures import CallbackFailure, close_channel

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """How a connection behaves. Times are seconds, sizes bytes.

    `heartbeat` and `frame_max` and `channel_max` are what we ask for; the server may ask for less. 0 for the heartbeat
    is none.
    """

    name: str = "multiqueue"
    heartbeat: float = 60.0
    channel_max: int = 2047
    frame_max: int = 131072
    connection_timeout: float = 10.0  # to reach one host, and again to shake hands with it
    call_timeout: float = 60.0  # a declaration on a cluster that elects a leader can take long
    close_timeout: float = 10.0
    # Deliveries that no callback has begun with. Where it is reached the socket is read no further: all channels of
    # the connection share it, so it is far above what a sensible prefetch lets come.
    buffer_bytes: int = 64 * MEBIBYTE
    # Publishes that the socket has not taken. Enough to keep it busy, little enough to feel the server's brake soon.
    outbox_bytes: int = MEBIBYTE
    recover: bool = True
    recovery_interval: float = 5.0
    republish: bool = True
    executor: Executor | None = None
    threads: int | None = None  # of our own pool; None: as many as there are CPUs, two at least
    tls: ssl.SSLContext | None = None  # None: what `ssl.create_default_context` trusts, for amqps://
    login: Literal["password", "external"] = "password"  # external: by the certificate of the TLS connection
    client_properties: Mapping[str, object] = field(default_factory=dict)
    on_callback_error: Callable[[CallbackFailure], object] = close_channel
    # Each gets the `Connection` first, which settings do not know: `Any` lets a callback say so.
    on_blocked: Callable[[Any, str | None], object] | None = None
    on_interrupted: Callable[[Any, Exception], object] | None = None
    on_recovered: Callable[[Any], object] | None = None
    on_closed: Callable[[Any, Exception | None], object] | None = None


def settings_for(address: Address | None, options: Mapping[str, Any]) -> Settings:
    """Defaults, over them what the address asks for, over that the options of the call. Raises TypeError: there is no
    such option. BadAddress: a value does not fit; it says which and what would."""
    unknown = options.keys() - {each.name for each in fields(Settings)}
    if unknown:
        known = ", ".join(each.name for each in fields(Settings))
        raise TypeError(f"connect() has no option {', '.join(sorted(unknown))}; it has {known}")
    asked: dict[str, Any] = {}
    for name, text in ({} if address is None else address.parameters).items():
        asked[name] = text if name == "name" else _number(name, text)
    return _checked(replace(Settings(), **asked | dict(options)))


def _number(name: str, text: str) -> float | int:
    try:
        return float(text) if name in {"heartbeat", "connection_timeout"} else int(text)
    except ValueError:
        raise BadAddress(f"{name}={text} in the address is no number") from None


def _checked(settings: Settings) -> Settings:
    least: dict[str, float] = {
        "heartbeat": 0,
        "channel_max": 0,
        "frame_max": 4096,
        "connection_timeout": 0.001,
        "call_timeout": 0.001,
        "close_timeout": 0,
        "buffer_bytes": 1,
        "outbox_bytes": 1,
        "recovery_interval": 0,
    }
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise BadAddress(f"{name} is {getattr(settings, name):g}; it must be at least {bound:g}")
    if settings.login not in ("password", "external"):
        raise BadAddress(f"login is {settings.login!r}; it is 'password' or 'external'")
    if settings.threads is not None and settings.threads < 1:
        raise BadAddress(f"threads is {settings.threads}; it must be at least 1")
    return settings
