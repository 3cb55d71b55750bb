"""Where to connect, and what a connection can be asked for, with the reasons of the defaults.

Addresses are `amqp://user:password@host:port/vhost?heartbeat=30`, `amqps://`, several hosts with commas between.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from ..._kinds import check_kind
from .errors import BadAddress, CallbackFailure, close_channel

_PORTS = {"amqp": 5672, "amqps": 5671}
_PARAMETERS = ("heartbeat", "connection_timeout", "channel_max", "frame_max", "name")
_URL = re.compile(
    r"(?P<scheme>[a-z]+)://(?:(?P<login>[^@/?]*)@)?(?P<hosts>[^/?]*)(?:/(?P<vhost>[^?]*))?(?:\?(?P<query>.*))?"
)
_HOST = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>\d{1,5}))?")


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, as whom, and what the query of the address asks for. Times are seconds."""

    endpoints: tuple[Endpoint, ...]
    tls: bool = False
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    parameters: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Without the password."""
        hosts = ",".join(map(str, self.endpoints))
        return f"{'amqps' if self.tls else 'amqp'}://{self.user}@{hosts}/{'%2F' if self.vhost == '/' else self.vhost}"


def parse_address(urls: str | Iterable[str]) -> Address:
    """One address, or several that differ in their hosts alone and are tried in order.

    Without a path, or with `/` alone, the virtual host is `/`, as for pika and kombu; `/%2F` says it in full.

    Raises:
        BadAddress: the message names the mistake, the address, and a right one.
        TypeError: it is no address at all.
    """
    listed = [urls] if isinstance(urls, str | bytes) or not isinstance(urls, Iterable) else list(urls)
    for url in listed:
        if not isinstance(url, str):
            raise TypeError(f"{url!r} is no address such as 'amqp://localhost', and no broker of this process")
    addresses = [_parse(url) for url in listed]
    if not addresses:
        raise BadAddress("there is no address to connect to; give one such as amqp://guest:guest@localhost:5672/%2F")
    first = addresses[0]
    for other in addresses[1:]:
        if (other.tls, other.user, other.password, other.vhost) != (first.tls, first.user, first.password, first.vhost):
            raise BadAddress(f"{other} differs from {first} in more than its host; a list is for hosts of one cluster")
    endpoints = tuple(endpoint for address in addresses for endpoint in address.endpoints)
    return Address(endpoints, first.tls, first.user, first.password, first.vhost, first.parameters)


def _parse(url: str) -> Address:
    found = _URL.fullmatch(url)
    if found is None or found["scheme"] not in _PORTS:
        shown = re.sub(r"//[^@/]*@", "//...@", url)
        raise BadAddress(
            f"{shown!r} is not the address of a broker; write amqp://user:password@host:5672/vhost, or amqps://"
        )
    default_port = _PORTS[found["scheme"]]
    user, colon, password = (found["login"] or "guest:guest").partition(":")
    vhost = unquote(found["vhost"] or "/")
    parameters = dict(parse_qsl(found["query"] or "", keep_blank_values=True))
    unknown = parameters.keys() - set(_PARAMETERS)
    if unknown:
        raise BadAddress(f"the address asks for {', '.join(sorted(unknown))}; known are {', '.join(_PARAMETERS)}")
    return Address(
        tuple(_endpoint(text, default_port) for text in (found["hosts"] or "localhost").split(",")),
        found["scheme"] == "amqps",
        unquote(user),
        unquote(password) if colon else "",
        vhost,
        parameters,
    )


def _endpoint(text: str, default_port: int) -> Endpoint:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or default_port) if found else 0
    if found is None or not 0 < port < 65536:
        raise BadAddress(f"{text!r} is not a host with a port from 1 to 65535, such as localhost:5672 or [::1]:5672")
    return Endpoint(found["host"].strip("[]"), port)


MEBIBYTE = 1 << 20


def _at_least(least: float, default: float | None) -> Any:
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True, slots=True)
class Settings:
    """How a connection behaves. Times are seconds, sizes bytes.

    `heartbeat` and `frame_max` and `channel_max` are what we ask for; the server may ask for less. 0 for the heartbeat
    is none.
    """

    name: str = "multiqueue"
    heartbeat: float = _at_least(0, 60.0)
    channel_max: int = _at_least(0, 2047)
    frame_max: int = _at_least(4096, 131072)
    connection_timeout: float = _at_least(0.001, 10.0)  # to reach one host, and again to shake hands with it
    call_timeout: float = _at_least(0.001, 60.0)  # a declaration on a cluster that elects a leader can take long
    close_timeout: float = _at_least(0, 10.0)
    # Deliveries that no callback has begun with. Where it is reached the socket is read no further: all channels of
    # the connection share it, so it is far above what a sensible prefetch lets come.
    buffer_bytes: int = _at_least(1, 64 * MEBIBYTE)
    # Publishes that the socket has not taken. Enough to keep it busy, little enough to feel the server's brake soon.
    outbox_bytes: int = _at_least(1, MEBIBYTE)
    recover: bool = True
    recovery_interval: float = _at_least(0, 5.0)
    republish: bool = True
    executor: Executor | None = None
    threads: int | None = _at_least(1, None)  # of our own pool; None: as many as there are CPUs, two at least
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
        try:
            asked[name] = type(getattr(Settings(), name))(text)  # as its default: a text, a whole number, seconds
        except ValueError:
            raise BadAddress(f"{name}={text} in the address is not a number") from None
    settings = replace(Settings(), **asked | dict(options))
    for each in fields(Settings):
        least, value = each.metadata.get("least"), getattr(settings, each.name)
        if least is None or value == each.default:
            continue
        check_kind(each.name, value, (int, float), "a number")
        if value < least:
            raise BadAddress(f"{each.name} is {value:g}; it must be at least {least:g}")
    check_kind("client_properties", settings.client_properties, Mapping, "a mapping")
    if settings.login not in ("password", "external"):
        raise BadAddress(f"login is {settings.login!r}; it is 'password' or 'external'")
    return settings
