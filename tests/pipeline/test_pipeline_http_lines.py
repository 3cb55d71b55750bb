"""Requests over connections of our own: what is an answer, and what is left to a library for all of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pipeline_parts_support import http_lines

Lines, Untold = http_lines.Lines, http_lines.Untold
WHOLE = b'HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag: "1"\r\n\r\nbytes'


class Server:
    """Answers each request with the next of the scripts, in pieces; after None it ends the connection."""

    def __init__(self, *scripts: list[bytes | None]) -> None:
        self.scripts = list(scripts)
        self.asked: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with_end = False
        while not with_end:
            try:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            except asyncio.IncompleteReadError:
                break
            for piece in self.scripts.pop(0):
                with_end = piece is None
                writer.write(piece or b"")
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()


def with_lines(server: Server, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        lines = Lines(asyncio.get_running_loop(), f"http://127.0.0.1:{port}/bucket/", None)
        await work(lambda: lines.get("the-host", "/bucket/key", {"Range": "bytes=0-4"}))
        lines.close()
        for _ in range(3):  # what is closed is heard of
            await asyncio.sleep(0)
        listening.close()

    asyncio.run(run())


def test_answers_in_pieces() -> None:
    """Wherever it is cut, an answer is whole; the connection is asked on again, and no other is made."""
    scripts: list[list[bytes | None]] = [[WHOLE[:cut], WHOLE[cut:]] for cut in range(1, len(WHOLE))]
    server = Server(*scripts, [bytes([one]) for one in WHOLE])

    async def work(get: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        for _ in range(len(WHOLE)):
            assert await get() == (206, {"content-length": "5", "etag": '"1"'}, b"bytes")

    with_lines(server, work)
    assert server.connections == 1
    assert set(server.asked) == {b"GET /bucket/key HTTP/1.1\r\nHost: the-host\r\nRange: bytes=0-4\r\n\r\n"}


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbytes\r\n0\r\n\r\n"], Untold, id="chunks"
        ),
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\nbytes", None], Untold, id="until the end"),
        pytest.param([b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nbytes"], Untold, id="another version"),
        pytest.param([b"nonsense\r\n\r\n"], Untold, id="no status"),
        pytest.param([WHOLE[:-1], None], OSError, id="cut off"),
        pytest.param([WHOLE + b"!"], OSError, id="more"),
        pytest.param([b"x" * 100_000], OSError, id="no end of headers"),
        pytest.param([None], OSError, id="nothing"),
    ],
)
def test_what_is_no_answer(script: list[bytes | None], error: type[Exception]) -> None:
    """It is an error, and its connection is not used again."""
    server = Server(script, [WHOLE])

    async def work(get: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        with pytest.raises(error) as caught:
            await get()
        assert isinstance(caught.value, Untold) == (error is Untold)
        assert (await get())[2] == b"bytes"

    with_lines(server, work)
    assert server.connections == 2


def test_a_server_that_ends_connections() -> None:
    """A connection that the server has ended, or said to end, is not asked on again."""
    closing = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    server = Server([closing], [WHOLE, None], [WHOLE])

    async def work(get: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        for _ in range(2):
            assert (await get())[2] == b"bytes"
        for _ in range(100):  # the server ends the second connection meanwhile
            await asyncio.sleep(0)
        assert (await get())[2] == b"bytes"

    with_lines(server, work)
    assert server.connections == 3


def test_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for an answer has an end."""
    monkeypatch.setattr(http_lines, "_SILENT_S", 0.01)

    async def work(get: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        with pytest.raises(TimeoutError, match="no answer came"):
            await get()

    with_lines(Server([WHOLE[:20]]), work)
