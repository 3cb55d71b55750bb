"""A wire that can be cut: a forwarder between a client and a broker, which ends connections when it is told to."""

from __future__ import annotations

import socket
import threading
from types import TracebackType


class Proxy:
    """Listens on `port` of this machine and forwards to the broker's. Its threads end with the block."""

    def __init__(self, broker_port: int) -> None:
        self._broker = ("127.0.0.1", broker_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="proxy-accept")]
        self.connections = 0
        self._threads[0].start()

    def url(self, options: str = "") -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F{options}"

    def cut(self) -> None:
        """End every connection there is; new ones are accepted."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it had ended already

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for each in self._threads[1:]:
            each.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            broker = socket.create_connection(self._broker)
            with self._lock:
                self._sockets += [client, broker]
                self.connections += 1
            for source, sink in ((client, broker), (broker, client)):
                thread = threading.Thread(target=_forward, args=(source, sink), name="proxy-forward")
                self._threads.append(thread)
                thread.start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with source:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass  # cut
        try:
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other direction was first
