"""An S3 server in this process, for what lies in object stores."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Protocol
from urllib.parse import urlsplit

_NUMBERS = count(1)

KEYS = {"key": "access-of-the-tests", "secret": "secret-of-the-tests", "region": "us-east-1"}


@dataclass(frozen=True)
class Store:
    """A server that speaks S3's protocol."""

    endpoint: str
    client: Any
    """boto3's."""

    def bucket(self, objects: Mapping[str, bytes] | None = None) -> str:
        """A new bucket with these objects; its name."""
        name = f"bucket{next(_NUMBERS)}"
        self.client.create_bucket(Bucket=name)
        if objects:
            from moto.core import DEFAULT_ACCOUNT_ID
            from moto.s3.models import s3_backends

            here = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]  # the server's own: a request for each takes 5 ms
            for key, body in objects.items():
                here.put_object(name, key, body)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Every key in the bucket."""
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=bucket).get("Contents", ())]

    def section(self, bucket: str) -> dict[str, str]:
        """A section `[storage.NAME]` for the bucket."""
        return {"url": f"s3://{bucket}", "endpoint": self.endpoint, **KEYS}


@contextlib.contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[Store]:
    """The server, on a free port of this address."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.start()
        try:
            host, port = server.get_host_and_port()
            endpoint = f"http://{host}:{port}"
            client = boto3.client(
                "s3",
                endpoint_url=endpoint,
                aws_access_key_id=KEYS["key"],
                aws_secret_access_key=KEYS["secret"],
                region_name=KEYS["region"],
            )
            yield Store(endpoint, client)
            client.close()
        finally:
            server.stop()


class Weather(Protocol):
    """What happens to requests on their way. Called by the proxy's threads."""

    def before(self, method: str, path: str) -> str | None:
        """How the request is to fail: None, `500`, `503`, `before` or `after` the server has done it, `late`."""

    def done(self, method: str, path: str) -> None:
        """The server has done it, and its answer is on its way."""

    def answered(self, method: str, path: str) -> None:
        """The answer was sent."""


@dataclass
class Failing:
    """A store that fails by chance."""

    chance: random.Random
    share: float
    kinds: tuple[str, ...] = ("500", "503", "before", "after")
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, method: str, path: str) -> str | None:
        with self.lock:
            kind = self.chance.choice(self.kinds) if self.chance.random() < self.share else None
            self.failed += kind is not None
            return kind

    def done(self, method: str, path: str) -> None:
        pass

    def answered(self, method: str, path: str) -> None:
        pass


Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and content."""

Ask = Callable[[str, str, dict[str, str], bytes], Answer]
"""Asks a server: method, path, headers, content."""

# A client that waits so long for an answer has none: the connection ends then.
_LATE_S = 3.0
# What a proxy answers, or says anew, by itself.
_OF_ONE_HOP = ("transfer-encoding", "content-length", "connection", "expect")


@contextlib.contextmanager
def between(
    endpoint: str, weather: Weather | None = None, translated: Callable[[Ask], Ask] = lambda ask: ask
) -> Iterator[str]:
    """A proxy before a server, which may ask it in other words than the client; its address."""
    there = urlsplit(endpoint)
    assert there.hostname is not None
    weather = weather or Failing(random.Random(0), 0.0)

    def forward(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(there.hostname or "", there.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    ask = translated(forward)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self._body()
            failure = weather.before(self.command, self.path)
            if failure in ("500", "503"):
                self.send_response(int(failure))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if failure in ("before", "late"):
                time.sleep(_LATE_S if failure == "late" else 0.0)
                self.close_connection = True
                return
            kept = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
            answer = ask(self.command, self.path, kept, body)
            weather.done(self.command, self.path)
            if failure == "after":
                self.close_connection = True
                return
            with contextlib.suppress(ConnectionError):  # the client is dead
                self._answer(*answer)
            weather.answered(self.command, self.path)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                    self.send_header(name, value)
            lengths = {name.lower(): value for name, value in headers}
            length = lengths.get("content-length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _forward

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Proxy(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that was killed has left its connection."""

    server = Proxy(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
