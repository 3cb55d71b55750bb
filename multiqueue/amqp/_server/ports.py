"""The server and the connection as their parts see them, as Protocols: no part imports its whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...broker import VirtualHost
from .._session.effects import Effects
from .._session.session import Session
from .access import Access
from .connection_machine import ConnectionMachine
from .settings import ServerSettings
from .strangers import Logins, Newcomer, Newcomers, QuietLog


class ServerPort(Protocol):
    """A server, as its connections know it."""

    settings: ServerSettings
    access: Access
    properties: dict[str, Any]
    alarms: frozenset[str]
    strangers: QuietLog
    newcomers: Newcomers
    logins: Logins

    @property
    def is_closed(self) -> bool: ...
    def admit(self, connection: Any) -> bool: ...
    def forget(self, connection: Any) -> None: ...
    def channel_closed(self, virtual_host: str, confirmed: int, returned: int) -> None: ...
    def virtual_host(self, name: str) -> VirtualHost: ...
    def offload(self, work: Callable[[], object]) -> None: ...
    def offload_long(self, work: Callable[[], object]) -> None: ...
    def status_json(self) -> bytes: ...


class ConnectionPort(Effects, Protocol):
    """A connection, as its reader and its offloaded work know it."""

    sessions: dict[int, Session]
    name: str

    is_lost: bool
    machine: ConnectionMachine
    newcomer: Newcomer | None
    server: ServerPort

    def start(self, major: int, minor: int) -> None: ...
    def call_connection(self, payload: bytes) -> None: ...
    def new_session(self, number: int) -> Session: ...
    def hand_in(self) -> None: ...
    def end_turn(self) -> None: ...
    def cut_stranger(self) -> None: ...
    def close_transport(self) -> None: ...
    def finish(self) -> None: ...
