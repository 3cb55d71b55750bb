"""Whom a request is for, and whose page it comes from: what keeps other sites away from a browser's own machine.

A page whose name was made to lead here (DNS rebinding) is of this server's origin to its browser. Only the name tells:
it stands in `Host`, and is none of ours. An address there is no name, so it is always taken.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping

from ...amqp import is_loopback
from .._base.errors import Refused


class Hosts:
    """The names under which a server answers: `localhost`, this machine's, that of its listener, and `named` ones."""

    def __init__(self, host: str, named: Iterable[str] = ()) -> None:
        self._names = frozenset(each.lower() for each in ("localhost", socket.gethostname(), host, *named))

    def check(self, header: str | None) -> None:
        """Nothing, when the `Host` header has an address, or one of the names. A program may leave it out.

        Raises:
            Refused: it has another name.
        """
        if header is None:
            return
        name = _name(header)
        if name not in self._names and not _is_address(name):
            raise Refused(
                421, "misdirected_request", f"no host {name[:255]!r} here; [http] hosts in broker.toml names it"
            )


def names_this_machine(header: str) -> bool:
    """Whether a `Host` header names loopback."""
    name = _name(header)
    return name == "localhost" or is_loopback(name)


def is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site's page made this request. Programs say nothing of the kind."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")


def _name(header: str) -> str:
    name = (
        header.rpartition(":")[0] if header.count(":") == 1 or (header.startswith("[") and "]:" in header) else header
    )
    return name.strip("[]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
