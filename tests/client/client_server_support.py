"""A server that a test plays itself, frame by frame, over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from amqp_parts_support import deliver_prefix, encode_deliver, encode_short_string
from pamqp import commands

from multiqueue.amqp import FRAME_HEARTBEAT, FRAME_METHOD, NO_PROPERTIES, FrameSplitter, decode_method, encode_method
from multiqueue.client import Connection, connect
from multiqueue.testing import PATIENCE


class Conversation:
    """One accepted connection, seen from the server's side. Used by the test's own thread."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.socket.settimeout(PATIENCE)
        self._splitter = FrameSplitter()
        self._frames: list[tuple[int, int, bytes]] = []
        self.heartbeats = 0

    def frame(self) -> tuple[int, int, bytes]:
        """The next frame but heartbeats, which are counted."""
        while True:
            while not self._frames:
                data = self.socket.recv(65536)
                if not data:
                    raise EOFError("the client has closed the connection")
                self._frames = self._splitter.feed(data)
            frame = self._frames.pop(0)
            if frame[0] != FRAME_HEARTBEAT:
                return frame
            self.heartbeats += 1

    def expect(self, expected: type[Any], channel: int | None = None) -> Any:
        """The next method, which must be this one; contents of publishes are passed over."""
        while True:
            kind, number, payload = self.frame()
            if kind == FRAME_METHOD:
                break
        method = decode_method(payload)
        assert isinstance(method, expected), f"{method} came where {expected} was expected"
        assert channel is None or number == channel
        return method

    def send(self, channel: int, method: type[Any], **fields: Any) -> None:
        self.socket.sendall(encode_method(channel, method, **fields))

    def deliver(
        self, channel: int, consumer_tag: str, delivery_tag: int, body: bytes, redelivered: bool = False
    ) -> None:
        content = encode_short_string("") + encode_short_string("q"), NO_PROPERTIES, body
        prefix = deliver_prefix(consumer_tag)
        self.socket.sendall(encode_deliver(channel, prefix, delivery_tag, redelivered, content, 131072))

    def answer(self, expected: type[Any], answer: type[Any], **fields: Any) -> Any:
        """Expect a method and answer it on its channel."""
        while True:
            kind, number, payload = self.frame()
            if kind == FRAME_METHOD:
                break
        method = decode_method(payload)
        assert isinstance(method, expected), f"{method} came where {expected} was expected"
        self.send(number, answer, **fields)
        return method

    def open_channel(self) -> None:
        self.answer(commands.Channel.Open, commands.Channel.OpenOk)

    def consume(self) -> str:
        """Accept a consumer; returns its tag."""
        _, number, payload = self.frame()
        method = decode_method(payload)
        assert isinstance(method, commands.Basic.Consume), method
        tag = str(method.consumer_tag)
        self.send(number, commands.Basic.ConsumeOk, consumer_tag=tag)
        return tag

    def agree_to_close(self) -> None:
        """Answer connection.close, whatever comes before it."""
        while True:
            kind, _, payload = self.frame()
            if kind == FRAME_METHOD and isinstance(decode_method(payload), commands.Connection.Close):
                self.send(0, commands.Connection.CloseOk)
                return

    def handshake(self, heartbeat: int = 0, channel_max: int = 2047) -> None:
        header = self.socket.recv(8, socket.MSG_WAITALL)
        assert header == b"AMQP\x00\x00\x09\x01"
        self.send(0, commands.Connection.Start, version_minor=9, mechanisms=b"PLAIN", locales=b"en_US")
        self.expect(commands.Connection.StartOk)
        self.send(0, commands.Connection.Tune, channel_max=channel_max, frame_max=131072, heartbeat=heartbeat)
        self.expect(commands.Connection.TuneOk)
        self.answer(commands.Connection.Open, commands.Connection.OpenOk)


class Listener:
    """A socket that waits for clients."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.port = self._listener.getsockname()[1]
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        self._accepted: list[socket.socket] = []

    def accept(self) -> Conversation:
        accepted, _ = self._listener.accept()
        self._accepted.append(accepted)
        return Conversation(accepted)

    def connect(self, *, heartbeat: int = 0, **options: Any) -> tuple[Connection, Conversation]:
        """A client's connection, and the server's side of it, with hands shaken."""
        conversation: list[Conversation] = []

        def play() -> None:
            conversation.append(self.accept())
            conversation[0].handshake(heartbeat)

        with playing(play):
            connection = connect(self.url, **options)
        return connection, conversation[0]

    def close(self) -> None:
        self._listener.close()
        for accepted in self._accepted:
            accepted.close()


@contextmanager
def playing(*parts: Any) -> Iterator[None]:
    """Run the server's part on a thread while the block runs; what goes wrong there is raised at the end."""
    errors: list[BaseException] = []

    def run(part: Any) -> None:
        try:
            part()
        except BaseException as error:  # noqa: BLE001  # raised at the end
            errors.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(PATIENCE)
    if errors:
        raise errors[0]
