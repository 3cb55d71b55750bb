"""A connection of the server without a socket: the test is its transport, its event loop and its peer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from amqp_parts_support import ConnectionState, IoThread, ServerConnection
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Server


class PaperTransport:
    """Takes what is written and keeps it until somebody reads. Speaks to its connection as asyncio's do."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.is_read_from = True
        self.most_waiting = 0
        self._unread = bytearray()
        self._low, self._high = 0, 0
        self._is_full = False
        self._is_closing = False

    def read(self) -> bytes:
        """All that waits, as the peer gets it."""
        data = bytes(self._unread)
        self._unread.clear()
        if self._is_full:
            self._is_full = False
            self.connection.resume_writing()
        return data

    # -- for the connection

    def write(self, data: bytes) -> None:
        self._unread += data
        self.most_waiting = max(self.most_waiting, len(self._unread))
        if not self._is_full and len(self._unread) > self._high:
            self._is_full = True
            self.connection.pause_writing()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def pause_reading(self) -> None:
        self.is_read_from = False

    def resume_reading(self) -> None:
        self.is_read_from = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.connection.io.loop.call_soon(self.connection.connection_lost, None)

    abort = close

    def get_extra_info(self, key: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if key in ("peername", "sockname") else None


class Desk:
    """One connection, its transport, and an I/O thread that is this one: `run` gives its loop a moment.

    The caller, which made the I/O thread, closes its loop.
    """

    def __init__(self, server: Server, io: IoThread) -> None:
        self.io = io
        self.connection = ServerConnection(server, self.io)
        self.transport = PaperTransport(self.connection)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def run(self) -> None:
        """Do what is posted to the loop now."""
        self.io.loop.run_until_complete(asyncio.sleep(0))

    def wait_for_others(self) -> None:
        """Until what runs aside for the connection is back."""
        while self.connection.committing is not None or self.connection._login is not None:
            self.run()

    def say(self, data: bytes) -> None:
        """Bytes come in, if they are read at all."""
        assert self.transport.is_read_from
        while data:
            buffer = self.connection.get_buffer(len(data))
            count = min(len(data), len(buffer))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            self.take_turns()
            data = data[count:]

    def take_turns(self) -> None:
        """Let it deal with what was too much for one turn."""
        while "next turn" in self.connection.gate.reasons and len(self.connection.gate.reasons) == 1:
            self.run()

    def say_method(self, channel: int, method: Any, **fields: Any) -> None:
        """A method comes in."""
        self.say(amqp.encode_method(channel, method, **fields))

    def open(self, heartbeat: int = 0) -> None:
        """All a client says to have channel 1, and nothing of the answers left."""
        login = {"client_properties": {}, "mechanism": "PLAIN", "response": b"\0guest\0guest"}
        self.say(amqp.PROTOCOL_HEADER)
        self.say_method(0, commands.Connection.StartOk, **login, locale="en_US")
        self.wait_for_others()  # the password is verified on another thread
        self.say_method(0, commands.Connection.TuneOk, channel_max=9, frame_max=131072, heartbeat=heartbeat)
        self.say_method(0, commands.Connection.Open, virtual_host="/")
        self.say_method(1, commands.Channel.Open)
        assert self.connection.machine.state is ConnectionState.RUNNING
        self.transport.read()

    def close(self) -> None:
        """The peer is gone."""
        self.transport.close()
        for _ in range(3):
            self.run()


@contextmanager
def desk(server: Server, heartbeat: int = 0) -> Iterator[Desk]:
    """A desk whose connection is open, with channel 1."""
    io = IoThread("desk")
    made = Desk(server, io)
    try:
        made.open(heartbeat)
        yield made
    finally:
        made.close()
        io.loop.close()
