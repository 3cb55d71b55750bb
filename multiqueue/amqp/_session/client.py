"""Whom sessions serve: what is the same for all of one connection's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from ...broker import Publisher, VirtualHost
    from .._wire.message import Digests

Operation = Literal["configure", "write", "read"]


class Rights(Protocol):
    """The operations that a user may do in one virtual host."""

    def check(self, operation: Operation, kind: Literal["queue", "exchange"], name: str) -> None:
        """Nothing, when it is permitted.

        Raises:
            ChannelFault: it is not.
        """


class AllRights:
    """The rights of a client in the broker's own process: all."""

    def check(self, operation: Operation, kind: Literal["queue", "exchange"], name: str) -> None:
        """Nothing: it is permitted."""


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One connection's end: where it is at work, as whom, and what it shares between its sessions."""

    host: VirtualHost
    owner: object  # of its exclusive queues, and of what it publishes
    user: str
    rights: Rights
    publisher: Publisher
    digests: Digests
    max_message_bytes: int
    hears_of_cancels: bool  # it knows `basic.cancel` from the server
