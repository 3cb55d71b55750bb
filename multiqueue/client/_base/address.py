"""Addresses: `amqp://user:password@host:port/vhost?heartbeat=30`, `amqps://`, several hosts with commas between."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from .errors import BadAddress

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
        BadAddress: what is wrong, in which address, and what would be right.
        TypeError: it is no address at all.
    """
    listed = [urls] if isinstance(urls, str) or not isinstance(urls, Iterable) else list(urls)
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
            f"{shown!r} is no address of a broker; one is amqp://user:password@host:5672/vhost, or amqps://"
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
        raise BadAddress(f"{text!r} is no host with a port from 1 to 65535, such as localhost:5672 or [::1]:5672")
    return Endpoint(found["host"].strip("[]"), port)
