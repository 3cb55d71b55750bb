"""The gatehouse: AMQP 0-9-1 frames, and the server that lets clients from outside reach a broker.

Promises that any bytes are either a frame or a clean end of one connection. The frames are for both sides: the
client's room imports them from `multiqueue.amqp.wire`, which loads no broker; the server and its broker are loaded with
the first of their names that somebody asks for. Knows `multiqueue.core` and `multiqueue.broker`, through their doors.
Needs pamqp (`blocking-multiqueue[amqp]`), whose description of the methods the codec of the rare ones reads.
"""

# ruff: noqa: F405  # type checkers know the names of the server by a star import
from typing import TYPE_CHECKING

from .._logs import one_line_each as _one_line_each
from . import wire as wire
from .wire import *  # noqa: F403

if TYPE_CHECKING:
    from ._server import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """A name of the server: all of them are loaded now."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import _server

        globals().update({each: getattr(_server, each) for each in __all__ if each not in globals()})
        return globals()[name]


_one_line_each("multiqueue.amqp")

__all__ = [
    "RABBITMQ_HASH",
    "USER_LIMITS",
    "Access",
    "ChannelFigures",
    "ConfigError",
    "ConnectionFigures",
    "ConsumerFigures",
    "FixedUser",
    "Logins",
    "Newcomer",
    "Newcomers",
    "Permissions",
    "QuietLog",
    "Rights",
    "Server",
    "ServerError",
    "ServerPast",
    "ServerSettings",
    "TopicPermissions",
    "User",
    "accept",
    "check_hash",
    "connect",
    "counts_of",
    "digest_of",
    "guest",
    "hash_password",
    "http_connections_limit",
    "is_loopback",
    "let_in",
    "listening_socket",
    "memory_used_bytes",
    "network_of",
    "new_user",
    "open_files_limit",
    "patient_collector",
    "properties_of",
    "publish_alone",
    "rights_for_exchange",
    "rights_for_queue",
    "serve",
    "server_tls",
    "wire_message",
]
__all__ += wire.__all__
