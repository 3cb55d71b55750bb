"""A connection that does nothing, at the cost of a socket: no threads, no heartbeats, one open channel."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import unquote, urlsplit

from pamqp import commands

from multiqueue.amqp import PROTOCOL_HEADER, Frame, FrameSplitter, decode_method, encode_method

from ._model import ItemsLost

PATIENCE = 30.0  # seconds for an answer


class BareConnection:
    """Logged in, with channel 1 open, and silent from then on."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._splitter = FrameSplitter()
        self._frames: list[Frame] = []
        self._socket = socket.create_connection((parts.hostname or "localhost", parts.port or 5672), PATIENCE)
        self._socket.sendall(PROTOCOL_HEADER)
        self._expect(commands.Connection.Start)
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        self._ask(
            commands.Connection.StartOk, commands.Connection.Tune, mechanism="PLAIN", response=login, locale="en_US"
        )
        self._socket.sendall(encode_method(0, commands.Connection.TuneOk, channel_max=2047, frame_max=131072))
        self._ask(commands.Connection.Open, commands.Connection.OpenOk, virtual_host=unquote(parts.path[1:]) or "/")
        self._ask(commands.Channel.Open, commands.Channel.OpenOk, channel=1)

    def _ask(self, method: type[Any], answer: type[Any], channel: int = 0, **fields: Any) -> None:
        self._socket.sendall(encode_method(channel, method, **fields))
        self._expect(answer)

    def _expect(self, expected: type[Any]) -> None:
        while not self._frames:
            data = self._socket.recv(65536)
            if not data:
                raise ItemsLost("the server closed the connection")
            self._frames = self._splitter.feed(data)
        method = decode_method(self._frames.pop(0)[2])
        if not isinstance(method, expected):
            raise ItemsLost(f"the server sent {type(method).__name__} where {expected.__name__} was due")

    def check(self) -> None:
        """Raise `ItemsLost` unless it is still there."""
        self._socket.setblocking(False)
        try:
            data = self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        raise ItemsLost(f"the server closed an idle connection, or wrote to it: {data!r}")

    def close(self) -> None:
        self._socket.close()
