"""The protocol of a connection, which is that of its channel 0: a table, and the words before it is open.

A method that the table does not allow in a state raises, in RabbitMQ's words, and changes nothing. While a connection
is closing, everything but the end of it is dropped. Mechanisms are SASL's PLAIN and EXTERNAL, and AMQPLAIN, which is a
table without its length. No I/O, no threads, no broker. Source: AMQP 0-9-1, section 2.2.4; h11 for the shape.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from .._wire.errors import ConnectionFault, MalformedFrame
from .._wire.fields import decode_table


class ConnectionState(Enum):
    """Where a connection is in its life; the value is RabbitMQ's word for it."""

    HEADER = "pre_init"  # the peer has to send the protocol header
    STARTING = "starting"  # start was sent: start-ok
    TUNING = "tuning"  # tune was sent: tune-ok
    OPENING = "opening"  # tuned: open
    RUNNING = "running"
    CLOSING = "closing"  # the server has sent close: close-ok
    CLOSED = "closed"


START_OK: Final = b"\x00\x0a\x00\x0b"
TUNE_OK: Final = b"\x00\x0a\x00\x1f"
OPEN: Final = b"\x00\x0a\x00\x28"
CLOSE: Final = b"\x00\x0a\x00\x32"
CLOSE_OK: Final = b"\x00\x0a\x00\x33"
UPDATE_SECRET: Final = b"\x00\x0a\x00\x46"

_S = ConnectionState

# The whole state machine. Credentials that do not suffice end the connection from TUNING; no mechanism has a second
# step, so secure-ok is never expected.
MOVES: Final[Mapping[ConnectionState, Mapping[bytes, ConnectionState]]] = {
    _S.HEADER: {},
    _S.STARTING: {START_OK: _S.TUNING, CLOSE: _S.CLOSED},  # a peer may give up at any time
    _S.TUNING: {TUNE_OK: _S.OPENING, CLOSE: _S.CLOSED},
    _S.OPENING: {OPEN: _S.RUNNING, CLOSE: _S.CLOSED},
    _S.RUNNING: {CLOSE: _S.CLOSED, UPDATE_SECRET: _S.RUNNING},
    _S.CLOSING: {CLOSE: _S.CLOSING, CLOSE_OK: _S.CLOSED},
    _S.CLOSED: {},
}
DROPS_WHAT_IT_DOES_NOT_KNOW: Final = frozenset({_S.CLOSING, _S.CLOSED})


class ConnectionMachine:
    """The protocol of channel 0. One thread at a time."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: ConnectionState = _S.HEADER

    def started(self) -> None:
        self.state = _S.STARTING

    @property
    def is_running(self) -> bool:
        """A virtual host is open, and no close was sent or received."""
        return self.state is _S.RUNNING

    def expects(self, method: bytes) -> bool:
        return method in MOVES[self.state]

    def receive(self, method: bytes) -> bool:
        """Take a method (its class and number); False: drop it. Raises ConnectionFault: it may not come now."""
        to = MOVES[self.state].get(method)
        if to is not None:
            self.state = to
            return True
        if self.state in DROPS_WHAT_IT_DOES_NOT_KNOW:
            return False
        raise ConnectionFault(504, f"unexpected method in connection state {self.state.value}")

    def check_channel_frame(self) -> bool:
        """Whether a frame of another channel is to be looked at now. Raises ConnectionFault: it may not come yet."""
        if self.state is _S.RUNNING:
            return True
        if self.state in DROPS_WHAT_IT_DOES_NOT_KNOW:
            return False
        raise ConnectionFault(505, f"unexpected frame in connection state {self.state.value}")

    def check_heartbeat(self, channel: int, payload: bytes) -> None:
        """Take a heartbeat. Raises ConnectionFault: it is another channel's, or says something."""
        if self.state in DROPS_WHAT_IT_DOES_NOT_KNOW:
            return
        if payload:
            raise ConnectionFault(501, f"a heartbeat with {len(payload)} bytes of payload")
        if channel:
            raise ConnectionFault(505, f"a heartbeat on channel {channel}; it is channel 0's")

    def closed_by_server(self) -> None:
        self.state = _S.CLOSING


def check_limit(name: str, offered: int, answered: int, least: int = 0) -> None:
    """Nothing, when the answer to an offer keeps or lowers the limit; 0 is none. Raises ConnectionFault: it raises the
    limit, or the peer cannot take the least."""
    if offered and (answered > offered or not answered):
        text = f"{answered or 'no limit'} is higher than the maximum allowed value ({offered})"
    elif 0 < answered < least:
        text = f"{answered} is lower than the minimum allowed value ({least})"
    else:
        return
    raise ConnectionFault(530, f"negotiated {name} = {text}")


CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def server_properties(version: str) -> dict[str, object]:
    return {
        "product": "multiqueue",
        "version": version,
        "platform": f"Python {platform.python_version()}",
        "information": "AMQP 0-9-1 with RabbitMQ's extensions",
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }


Claim = tuple[str, bytes | None]
"""The user that a client says it is, and the password; None: it shows this by the certificate it came with."""


def claim(mechanism: str, response: bytes, offered: Iterable[str], certified: str | None) -> Claim:
    """The user that the response of a mechanism names; `certified` is the name in its certificate. Raises ValueError:
    the mechanism is not offered, or the response is none."""
    if mechanism not in offered:
        raise ValueError("the mechanism is not offered")
    if mechanism == "EXTERNAL":
        if certified is None:
            raise ValueError("no certificate")
        return certified, None
    return _read_plain(response) if mechanism == "PLAIN" else _read_amqplain(response)


def _read_plain(response: bytes) -> Claim:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise ValueError("the response does not have the form of PLAIN")
    try:
        return parts[1].decode(), parts[2]
    except UnicodeDecodeError:
        raise ValueError("the name is not UTF-8") from None


def _read_amqplain(response: bytes) -> Claim:
    try:
        table, _ = decode_table(len(response).to_bytes(4) + response, 0)
    except MalformedFrame:
        raise ValueError("the response is not a table") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str | bytes):
        raise ValueError("LOGIN or PASSWORD is missing")
    return user, password.encode() if isinstance(password, str) else password


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """The common name of a verified certificate, as `ssl` shows it, or None."""
    subject = certificate.get("subject", ()) if certificate else ()
    if isinstance(subject, tuple):
        for relative in subject:
            for key, value in relative:
                if key == "commonName":
                    return str(value)
    return None
