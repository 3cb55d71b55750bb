"""What a channel keeps: its consumers, what is unacked, its modes.

State       Everything on a channel belongs to the I/O thread of its connection. What other threads have to say (a
            commit, a deleted queue) is posted to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._wire.methods import encode_method
from .confirms import Confirms
from .figures import ChannelFigures
from .machine import ChannelMachine
from .window import ChannelWindow

if TYPE_CHECKING:
    from ...broker import Entry, Run
    from .._server.connection import ServerConnection
    from .consumer import ServerConsumer
    from .transaction import ChannelTransaction


class Held(NamedTuple):
    """A message in a client's hands: its entry, who has it by the queue's books, and the consumer if there is one."""

    entry: Entry
    owner: object
    consumer: ServerConsumer | None


class ChannelBase:
    """A channel that does nothing yet: `publishing`, `delivering` and `channel` do."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.machine = ChannelMachine(connection.settings.max_message_bytes)
        self.consumers: dict[str, ServerConsumer] = {}
        self.unacked: dict[int, Held] = {}  # by delivery tag, rising
        self.window = ChannelWindow()
        self.prefetch: int | None = None  # of consumers that start from now on
        self.confirms: Confirms | None = None
        self.transaction: ChannelTransaction | None = None
        self.last_queue = ""  # what an empty queue name means
        self.reply_consumer: ServerConsumer | None = None
        self._last_tag = 0
        self._last_run: Run | None = None  # the last one with a publish of this channel
        # The publish of before: its payload, and what was found out about it. Most publishers repeat themselves.
        self._last_publish = b""
        self._address: tuple[str, str, bytes, bool, bool] = ("", "", b"", False, False)

    def reply(self, method: Any, **fields: Any) -> None:
        """Send a method."""
        self.connection.send(encode_method(self.number, method, **fields))

    def confirmed(self, number: int, *, refused: bool = False) -> None:
        """A publish is done; the client is told when the connection's turn ends."""
        if number and self.confirms is not None:
            self.confirms.end(number, refused=refused)
            self.connection.confirming[self] = None

    def next_tag(self) -> int:
        """The delivery tag of the next delivery."""
        self._last_tag = tag = self._last_tag + 1
        return tag

    def figures(self) -> ChannelFigures:
        """The channel in figures. Any thread."""
        confirms = self.confirms
        return ChannelFigures(
            number=self.number,
            confirm=confirms is not None,
            transactional=self.transaction is not None,
            prefetch=self.prefetch or 0,
            global_prefetch=self.window.limit or 0,
            unacked=len(self.unacked),
            unconfirmed=0 if confirms is None else confirms.unconfirmed,
            delivered=self._last_tag,
            consumers=tuple(each.figures() for each in list(self.consumers.values())),
        )

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.connection!r}>"
