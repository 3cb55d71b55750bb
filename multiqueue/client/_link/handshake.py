"""Shaking hands with a server: from the protocol header to connection.open-ok, on the connecting thread."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pamqp import commands

from ...amqp.wire import PROTOCOL_HEADER, AmqpError, encode_method, encode_table
from .._base.errors import ConnectionFailed
from .._base.settings import Address, Settings
from .assembler import Assembler
from .link import Event
from .socket import Stream

CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "exchange_exchange_bindings": True,
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The limits that client and server agreed on, and the bytes that arrived with the last answer already."""

    frame_max: int
    channel_max: int
    heartbeat: float
    server_properties: dict[str, Any]
    early: list[Event]


def shake_hands(stream: Stream, assembler: Assembler, address: Address, settings: Settings) -> Agreement:
    """Introduce ourselves, log in, tune, and open the virtual host.

    Raises:
        ConnectionFailed: the server refused, in its words.
        OSError: the connection was cut, or there was no answer in time.
        AmqpError: the other side does not speak AMQP 0-9-1.
    """
    stream.sendall(PROTOCOL_HEADER)
    events: list[Event] = []
    expect = partial(_expect, events, stream, assembler)
    start = expect(commands.Connection.Start)
    mechanism, response = _login(address, settings, bytes(start.mechanisms).split())
    fields = {"client_properties": _introduction(settings), "mechanism": mechanism, "response": response}
    stream.sendall(encode_method(0, commands.Connection.StartOk, **fields, locale="en_US"))
    try:
        tune = expect(commands.Connection.Tune)
    except (EOFError, ConnectionError):
        text = f"the server closed the connection at the login as {address.user!r}: wrong password, or not allowed"
        raise ConnectionFailed(text) from None
    frame_max = _lower(settings.frame_max, tune.frame_max) or settings.frame_max
    channel_max = _lower(settings.channel_max, tune.channel_max) or 65535
    heartbeat = _lower(max(1, round(settings.heartbeat)) if settings.heartbeat else 0, tune.heartbeat)
    tuned = {"channel_max": channel_max, "frame_max": frame_max, "heartbeat": heartbeat}
    assembler.frame_max = frame_max
    stream.sendall(
        encode_method(0, commands.Connection.TuneOk, **tuned)
        + encode_method(0, commands.Connection.Open, virtual_host=address.vhost)
    )
    expect(commands.Connection.OpenOk)
    return Agreement(frame_max, channel_max, heartbeat, dict(start.server_properties), events)


def _expect(events: list[Event], stream: Stream, assembler: Assembler, expected: type[Any]) -> Any:
    """The next method on channel 0; what came with it stays in `events`."""
    while not events:
        data = stream.recv(65536)
        if not data:
            raise EOFError("the server closed the connection")
        if data[:4] == b"AMQP":
            raise ConnectionFailed(f"the server speaks another version of AMQP: {data[:8]!r}")
        events += assembler.feed(data)
    method = events.pop(0).method
    if isinstance(method, commands.Connection.Close):
        raise ConnectionFailed(f"the server refused: {method.reply_text}")
    if not isinstance(method, expected):
        raise ConnectionFailed(f"the server sent {type(method).__name__} where {expected.__name__} was due")
    return method


def _login(address: Address, settings: Settings, offered: list[bytes]) -> tuple[str, bytes]:
    if settings.login == "external":
        return "EXTERNAL", b""
    if b"PLAIN" in offered:
        return "PLAIN", b"\0".join((b"", address.user.encode(), address.password.encode()))
    if b"AMQPLAIN" in offered:
        return "AMQPLAIN", encode_table({"LOGIN": address.user, "PASSWORD": address.password})[4:]
    names = b", ".join(offered).decode(errors="replace")
    raise ConnectionFailed(f"the server offers {names}, and we know PLAIN and AMQPLAIN")


def _introduction(settings: Settings) -> Mapping[str, Any]:
    return {
        "product": "multiqueue",
        "platform": f"Python {platform.python_version()}",
        "connection_name": f"{settings.name}@{socket.gethostname()}",
        "capabilities": CAPABILITIES,
        **settings.client_properties,
    }


def _lower(ours: float, theirs: int) -> int:
    return int(min(ours, theirs) if ours and theirs else max(ours, theirs))


HANDSHAKE_ERRORS = (OSError, EOFError, AmqpError, ConnectionFailed)
