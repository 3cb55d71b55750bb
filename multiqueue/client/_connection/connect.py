"""From an address, or a broker of this process, to an open connection, and to its end with the program.

A connection that is still open when the program ends is closed then: docs/decisions/0877-closed-at-exit.md.
`close_all` runs where `atexit` does: on the main thread, after threads that are no daemons have ended, and before the
daemon threads of the connections are stopped. `_lock` guards `_open`; a leaf, not held while a connection is closed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from .._base.settings import parse_address, settings_for
from .._link.wire_link import open_wire
from .connection import Connection


def connect(target: str | Iterable[str] | Any, **options: Any) -> Connection:
    """A connection to a broker, open.

        with connect("amqp://guest:guest@localhost:5672/%2F") as connection, connection.channel() as channel:
            channel.publish(b"one tea", routing_key="orders")

    `target` is an address, a list of addresses of one cluster, or a `multiqueue.broker` broker or virtual host of this
    process. `options` are the fields of `Settings`. Blocks until a server agreed; each host is tried once. A connection
    that is open when the program ends is closed then.

    Raises:
        BadAddress: the address or an option does not fit.
        ConnectionFailed: no host agreed.
        TypeError: there is no such option.
    """
    if hasattr(target, "declare_queue"):
        settings = replace(settings_for(None, options), recover=False)  # a broker that was closed stays closed
        from .._link.direct_link import DirectLink  # here, because it loads the broker's side of a channel

        host: Any = target.virtual_host() if hasattr(target, "virtual_host") else target
        made = Connection(lambda listener: DirectLink(host, settings, listener), settings)
    else:
        address = parse_address(target)
        settings = settings_for(address, options)
        made = Connection(lambda listener: open_wire(address, settings, listener), settings)
    close_at_exit(made.open())
    return made


async def async_connect(target: str | Iterable[str] | Any, **options: Any) -> Connection:
    """`connect()` for a coroutine. `async with` closes the connection; see `Channel` for what can be awaited."""
    return await asyncio.to_thread(connect, target, **options)


_lock = threading.Lock()
_open: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()  # with the process that made it


def close_at_exit(connection: Connection) -> None:
    """Have a connection closed at the end of the program, unless it is gone by then."""
    with _lock:
        _open[connection] = os.getpid()


def close_all() -> None:
    with _lock:
        mine = [connection for connection, process in _open.items() if process == os.getpid()]
    for connection in mine:
        connection.close("the program has ended")


def _forked() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
