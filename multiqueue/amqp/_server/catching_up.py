"""Waiting until the server has read what its clients have sent: for tests, which look right after a publish.

What stands in a connection's socket when `catch_up` is called, and the rest of a message that has begun to come, is
read and done before it returns. A connection that the server itself holds back, at a full queue or an alarm, counts as
read. The caller waits for the I/O threads, which look again every millisecond, or for its timeout.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import time
from collections.abc import Iterable
from typing import Protocol, TypeVar

from .io_thread import IoThread


class Reading(Protocol):
    io: IoThread

    @property
    def is_behind(self) -> bool: ...


R = TypeVar("R", bound=Reading)

_LOOK_AGAIN = 0.001  # seconds; between two looks the loop reads


def catch_up(connections: Iterable[R], timeout: float) -> list[R]:
    """Wait until what has been sent on the connections is done; those where it is not after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    by_thread: dict[IoThread, list[R]] = {}
    for connection in connections:
        by_thread.setdefault(connection.io, []).append(connection)
    told: queue.SimpleQueue[list[R]] = queue.SimpleQueue()
    for io, left in by_thread.items():
        io.post(_look, io, left, deadline, told)
    behind: list[R] = []
    for _ in by_thread:
        try:
            behind += told.get(timeout=max(0.0, deadline - time.monotonic()) + 1.0)
        except queue.Empty:  # a loop that has ended, or is busy with something else
            break
    return behind


def _look(io: IoThread, left: list[R], deadline: float, told: queue.SimpleQueue[list[R]]) -> None:
    left = [connection for connection in left if connection.is_behind]
    if left and time.monotonic() < deadline:
        io.loop.call_later(_LOOK_AGAIN, _look, io, left, deadline, told)
    else:
        told.put(left)


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether bytes, or the end, stand in the socket. On its I/O thread."""
    number = transport.get_extra_info("socket").fileno()
    if number < 0:
        return False
    with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as peeking:
        try:
            peeking.setblocking(False)
            peeking.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the loop will meet it too
    return True
