"""The server: sockets, threads, logins and settings. The names below are those that `multiqueue.amqp` shows."""

from .._session.figures import ChannelFigures, ConnectionFigures, ConsumerFigures, ServerPast
from .._wire.errors import ConfigError, FixedUser, ServerError
from .._wire.message import Digests, properties_of, wire_message
from .access import RABBITMQ_HASH, Access, Permissions, Rights, User, check_hash, guest, hash_password, is_loopback
from .collector import patient_collector
from .logins import Logins
from .server import Server, listening_socket, memory_used_bytes, open_files_limit, serve
from .settings import ServerSettings
from .tls import server_tls

__all__ = [
    "RABBITMQ_HASH",
    "Access",
    "ChannelFigures",
    "ConfigError",
    "ConnectionFigures",
    "ConsumerFigures",
    "Digests",
    "FixedUser",
    "Logins",
    "Permissions",
    "Rights",
    "Server",
    "ServerError",
    "ServerPast",
    "ServerSettings",
    "User",
    "check_hash",
    "guest",
    "hash_password",
    "is_loopback",
    "listening_socket",
    "memory_used_bytes",
    "open_files_limit",
    "patient_collector",
    "properties_of",
    "serve",
    "server_tls",
    "wire_message",
]
