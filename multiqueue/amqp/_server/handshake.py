"""The words exchanged before a connection is open: what the server says of itself, and who the client says it is.

Pure functions and values: no I/O, no threads. Mechanisms are SASL's PLAIN and EXTERNAL, and AMQPLAIN, which is a
table without its length.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from .._wire.errors import ConnectionFault, MalformedFrame
from .._wire.fields import decode_table

CAPABILITIES: Final[Mapping[str, bool]] = dict.fromkeys(
    (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ),
    True,
)


def server_properties(version: str) -> dict[str, object]:
    return {
        "product": "multiqueue",
        "version": version,
        "platform": f"Python {platform.python_version()}",
        "information": "AMQP 0-9-1 with RabbitMQ's extensions",
        "capabilities": dict(CAPABILITIES),
    }


class Claim(NamedTuple):
    """The user that a client says it is: by password, or (None) by the certificate it came with."""

    user: str
    password: bytes | None


class RefusedLogin(ConnectionFault):
    """The credentials do not suffice. The client is told no more than that."""

    def __init__(self, mechanism: str, reason: str) -> None:
        super().__init__(
            403,
            f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
        )
        self.reason = reason


def claim(mechanism: str, response: bytes, offered: Iterable[str], certified: str | None) -> Claim:
    """The user that the response of a mechanism names; `certified` is the name in its certificate. Raises
    ConnectionFault: the mechanism is not offered, or the response is none."""
    if mechanism not in offered:
        raise RefusedLogin(mechanism[:40], "the mechanism is not offered")
    if mechanism == "EXTERNAL":
        if certified is None:
            raise RefusedLogin(mechanism, "no certificate")
        return Claim(certified, None)
    read = _read_plain if mechanism == "PLAIN" else _read_amqplain
    return read(response)


def _read_plain(response: bytes) -> Claim:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise RefusedLogin("PLAIN", "the response has not the form of PLAIN")
    try:
        return Claim(parts[1].decode(), parts[2])
    except UnicodeDecodeError:
        raise RefusedLogin("PLAIN", "the name is no UTF-8") from None


def _read_amqplain(response: bytes) -> Claim:
    try:
        table, _ = decode_table(len(response).to_bytes(4) + response, 0)
    except MalformedFrame:
        raise RefusedLogin("AMQPLAIN", "the response is no table") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str | bytes):
        raise RefusedLogin("AMQPLAIN", "LOGIN or PASSWORD is missing")
    return Claim(user, password.encode() if isinstance(password, str) else password)


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """The common name of a verified certificate, as `ssl` shows it; None when there is none."""
    subject = certificate.get("subject", ()) if certificate else ()
    if isinstance(subject, tuple):
        for relative in subject:
            for key, value in relative:
                if key == "commonName":
                    return str(value)
    return None
