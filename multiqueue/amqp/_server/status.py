"""Asking a running server for its figures: a `basic.get` from a queue that it answers itself."""

from __future__ import annotations

import json
import socket
import ssl
from collections import deque
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from .._session.consuming import STATUS_QUEUE
from .._wire.errors import AmqpError, ServerError
from .._wire.frames import FRAME_BODY, FRAME_METHOD, PROTOCOL_HEADER, Frame, FrameSplitter
from .._wire.hot import GetOk, decode_header
from .._wire.methods import commands, decode_method, encode_method

_PATIENCE = 10.0  # seconds


def fetch_status(url: str) -> dict[str, Any]:
    """`Server.status` of the server at an AMQP URL. Raises ServerError: no server listens there, the login is refused,
    or it is another broker."""
    parts, port = _address(url)
    where = f"{parts.hostname}:{port}"
    try:
        with socket.create_connection((parts.hostname, port), _PATIENCE) as plain:
            if parts.scheme == "amqp":
                return _ask(plain, parts.username, parts.password, unquote(parts.path[1:]) or "/", where)
            with ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname) as wrapped:
                return _ask(wrapped, parts.username, parts.password, unquote(parts.path[1:]) or "/", where)
    except OSError as error:
        raise ServerError(f"no answer from {where}: {error.strerror or error}") from error
    except AmqpError as error:
        raise ServerError(f"what answers on {where} is no AMQP 0-9-1 broker: {error}") from error


def _address(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("amqp", "amqps") and parts.hostname:
            return parts, parts.port or (5671 if parts.scheme == "amqps" else 5672)
    except ValueError:  # a port that is no number, or a bracket that is not closed
        pass
    raise ServerError(f"{url!r} is no AMQP URL: amqp://user:password@host:port/vhost")


class _Conversation:
    def __init__(self, peer: socket.socket, where: str) -> None:
        self._peer = peer
        self._where = where
        self._splitter = FrameSplitter()
        self._frames: deque[Frame] = deque()

    def send(self, data: bytes) -> None:
        self._peer.sendall(data)

    def frame(self, kind: int) -> bytes:
        while not self._frames:
            data = self._peer.recv(65536)
            if not data:
                raise ServerError(f"{self._where} closed the connection")
            self._frames += self._splitter.feed(data)
        found, _, payload = self._frames.popleft()
        return payload if found == kind else self.frame(kind)

    def expect(self, *wanted: Any) -> Any:
        method: Any = decode_method(self.frame(FRAME_METHOD))
        if isinstance(method, wanted):
            return method
        text = getattr(method, "reply_text", type(method).__name__)
        raise ServerError(f"{self._where} does not tell: {text}")


def _ask(peer: socket.socket, user: str | None, password: str | None, host: str, where: str) -> dict[str, Any]:
    talk = _Conversation(peer, where)
    talk.send(PROTOCOL_HEADER)
    start = talk.expect(commands.Connection.Start)
    response = f"\0{unquote(user or 'guest')}\0{unquote(password or 'guest')}"
    told = {"capabilities": {"authentication_failure_close": True}}
    login = {"client_properties": told, "mechanism": "PLAIN", "response": response, "locale": "en_US"}
    talk.send(encode_method(0, commands.Connection.StartOk, **login))
    tune = talk.expect(commands.Connection.Tune)
    fields = {"channel_max": tune.channel_max, "frame_max": tune.frame_max, "heartbeat": 0}
    talk.send(encode_method(0, commands.Connection.TuneOk, **fields))
    talk.send(encode_method(0, commands.Connection.Open, virtual_host=host))
    talk.expect(commands.Connection.OpenOk)
    if start.server_properties.get("product") != "multiqueue":
        raise ServerError(f"{where} is {start.server_properties.get('product')}; only multiqueue tells its status so")
    talk.send(encode_method(1, commands.Channel.Open))
    talk.expect(commands.Channel.OpenOk)
    talk.send(encode_method(1, commands.Basic.Get, queue=STATUS_QUEUE, no_ack=True))
    talk.expect(GetOk)
    left = decode_header(talk.frame(2)).body_size
    body = b""
    while len(body) < left:
        body += talk.frame(FRAME_BODY)
    talk.send(encode_method(0, commands.Connection.Close, reply_code=200, reply_text="bye"))
    talk.expect(commands.Connection.CloseOk)
    status: dict[str, Any] = json.loads(body)
    return status
