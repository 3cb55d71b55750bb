"""What is written without a copy: every byte goes once, in order, however little the socket takes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from amqp_parts_support import FrameWriter, deliver_prefix
from amqp_parts_support import frames as splitting


class Nobody:
    """The connection of a writer that has none."""

    awaits_turn = False


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield ours, theirs


@pytest.mark.parametrize("sizes", [[5, 200_000, 1], [3000, 0, 3000, 70_000], [1, *[1500] * 1200], [20_000] * 40])
def test_pieces_arrive_whole_and_in_order(ends: tuple[socket.socket, socket.socket], sizes: list[int]) -> None:
    """Pieces that the socket takes in part, and more of them than one call takes, are the bytes that arrive."""
    ours, theirs = ends
    sent = [bytes((number % 251,)) * size for number, size in enumerate(sizes)]
    arrived = bytearray()

    async def run() -> int:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        writer = FrameWriter(cast(Any, Nobody()), 131072, 1 << 20, lambda: None)
        writer.use(transport)
        for piece in sent:
            writer.pieces.append(piece)
            if len(piece) > 1000:
                writer.flush()
        writer.flush()
        assert writer.pieces == []
        while len(arrived) < sum(sizes):
            arrived.extend(await loop.sock_recv(theirs, 8192))
        transport.close()
        return writer.sent_bytes

    assert asyncio.run(run()) == sum(sizes)
    assert bytes(arrived) == b"".join(sent)


@pytest.mark.parametrize("size", [20_000, 131_064 + 16, 2 * 131_064 + 1])
def test_a_body_whose_last_frame_is_short_goes_without_a_copy(
    ends: tuple[socket.socket, socket.socket], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies of 256 KiB and of 1 MiB end with a frame of some bytes; they go to the socket as any large one."""
    ours, _ = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        writer = FrameWriter(cast(Any, Nobody()), 131072, 1 << 20, lambda: None)
        writer.use(transport)
        monkeypatch.setattr(transport, "write", lambda _: pytest.fail("it was joined"))
        writer.pieces += splitting.deliver_pieces(
            1, deliver_prefix("t"), 1, False, (b"\0\1q", b"\0\0", bytes(size)), 131072
        )
        writer.flush()
        assert writer.pieces == []
        transport.abort()

    asyncio.run(run())


def test_large_bodies_are_collected_up_to_a_mebibyte(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write wakes the peer: once it has taken one, several go in one write, but never very much."""
    ours, _ = ends
    written: list[int] = []

    def writev(_: int, pieces: list[bytes]) -> int:
        written.append(sum(map(len, pieces)) // 2**18)
        return sum(map(len, pieces))

    async def run() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        writer = FrameWriter(cast(Any, Nobody()), 131072, 1 << 20, lambda: None)
        writer.use(transport)
        monkeypatch.setattr(os, "writev", writev)
        consumer = cast(Any, SimpleNamespace(prefix=deliver_prefix("t")))
        for tag in range(10):
            writer.deliver_all(1, consumer, tag, [False], [(b"\0\1q", b"\0\0", bytes(2**18))])
        writer.flush()
        assert writer.pieces == []
        transport.abort()

    asyncio.run(run())
    assert written == [1, 4, 4, 1]


def test_nothing_is_written_past_a_transport_that_closes(ends: tuple[socket.socket, socket.socket]) -> None:
    """Once a transport is closing its descriptor may be another connection's: the transport decides."""
    ours, theirs = ends

    async def run() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        writer = FrameWriter(cast(Any, Nobody()), 131072, 1 << 20, lambda: None)
        writer.use(transport)
        transport.close()
        writer.send(b"x" * 20_000)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert theirs.recv(10) == b""


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_turn_whose_peer_has_left_is_no_line_of_the_log(
    ends: tuple[socket.socket, socket.socket], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The transport meets it at the first write; what the rest of the turn has to say is dropped."""
    ours, theirs = ends
    theirs.close()

    async def run() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        writer = FrameWriter(cast(Any, Nobody()), 131072, 1 << 20, lambda: None)
        writer.use(transport)
        for _ in range(20):
            writer.send(bytes(size))
            writer.flush()
        assert writer.pieces == []

    asyncio.run(run())
    assert caplog.messages == []
