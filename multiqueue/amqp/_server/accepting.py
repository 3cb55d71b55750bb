"""Accepting: a socket that listens becomes connections, each of which is a stranger until it has logged in.

Promise     A new connection is accepted, though strangers take all they can: in place of another where there are too
            many, or where no file is left. Files are shared out beforehand: HTTP has `http_connections_limit` of them,
            AMQP no more than `amqp_connections_limit`, and the rest is for the store. A TLS handshake has a patience,
            and counts.
Who runs    The event loop that accepts. Both servers do so, AMQP's and that of the windows.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from .settings import open_files_limit
from .strangers import Newcomer, Newcomers, QuietLog

_HTTP_MOST: Final = 1024
_OTHERS: Final = 64  # files of the store, event loops, a certificate, the program's own
_PAUSE: Final = 0.1  # seconds until it is tried again where there was no file


def http_connections_limit() -> int:
    """How many connections HTTP holds: 1,024, or a quarter of the files."""
    return min(_HTTP_MOST, max(4, open_files_limit() // 4))


def amqp_connections_limit(most: int) -> int:
    """How many connections AMQP holds: `most`, or what HTTP and the store leave of the files."""
    files = open_files_limit()
    return min(most, max(files // 2, files - http_connections_limit() - _OTHERS))


async def accept(
    listener: socket.socket, newcomers: Newcomers, log: QuietLog, hand_over: Callable[[socket.socket, str], object]
) -> None:
    """Accept for ever; `hand_over` gets each socket, and its peer's address."""
    loop = asyncio.get_running_loop()
    while True:
        while pause := newcomers.pause():
            await asyncio.sleep(pause)
        try:
            client, address = await loop.sock_accept(listener)
        except OSError as error:  # no file descriptors left: some may come back
            log.warning("cannot accept a connection: %s", error)
            newcomers.cut_one()
            await asyncio.sleep(_PAUSE)
            continue
        hand_over(client, str(address[0]))


def let_in(newcomer: Newcomer, newcomers: Newcomers, log: QuietLog) -> None:
    """Count a new connection; another is cut for it where there are too many."""
    if newcomers.come(newcomer) is not None:
        crowd = f"more than {newcomers.most_of_one} of one address, or {newcomers.most} in all"
        log.warning("a client that has not logged in is disconnected for a new one: there are %s", crowd)


async def connect(
    protocol: Callable[[], asyncio.BaseProtocol],
    client: socket.socket,
    newcomer: Newcomer,
    newcomers: Newcomers,
    tls: ssl.SSLContext | None,
    patience: float,
    log: QuietLog,
) -> None:
    """Make a connection of an accepted socket, which takes `patience` seconds where TLS is spoken. A failure is a line
    of the log."""
    loop = asyncio.get_running_loop()
    handshake = None if tls is None else patience
    try:
        await loop.connect_accepted_socket(protocol, client, ssl=tls, ssl_handshake_timeout=handshake)
    except (OSError, asyncio.CancelledError) as error:
        newcomers.leave(newcomer)
        client.close()
        if isinstance(error, asyncio.CancelledError):
            raise
        log.warning("a client did not get as far as its first request: %s", error)
