"""The surroundings of a session: over a socket the server's connection, in a process the client's direct link.

`Output` takes methods and contents for the client; `Effects` do all else that reaches beyond the session. Both are used
on the session's thread, `post` and `notify` on any. Nothing here is called with a lock held. A `Client` is the peer
that the sessions of one connection serve; `fail` says what an error closes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from ...broker import BrokerError, BrokerQueue, Publisher, PutOff, Submission, VirtualHost
from ...errors import MultiQueueError
from .._wire.errors import AmqpError, ChannelFault
from .._wire.frames import Content
from .confirms import Confirms
from .consumer import Sender, SessionConsumer

_log = logging.getLogger("multiqueue.amqp")
PIECE: Final = 512  # messages that are settled at once: 1 to 3 ms

Work = Callable[[], Callable[[], object]]
"""Something for another thread; it returns what follows on the session's."""
AfterCommit = Callable[[BaseException | None], object]
"""A step that follows a commit, and gets the error of one that failed."""


class Served(Protocol):
    """A session, as its surroundings know it."""

    number: int

    @property
    def is_open(self) -> bool: ...
    def fault(self, code: int, text: str, method: bytes) -> None: ...


class Output(Protocol):
    """Methods and contents for a client."""

    confirming: dict[Confirms, None]
    """Confirms that are to be told before the turn ends."""

    def reply(self, number: int, method: Any, /, **fields: Any) -> None: ...
    def deliver_all(
        self, number: int, consumer: SessionConsumer, first_tag: int, redelivered: list[bool], contents: list[Content]
    ) -> None:
        """Deliveries whose tags rise by one; there is one at least."""

    def got(self, number: int, tag: int, redelivered: bool, left: int, content: Content) -> None: ...
    def returned(self, number: int, code: int, content: Content) -> None: ...
    def confirm(self, confirms: Confirms) -> None: ...


class Effects(Sender, Protocol):
    """The actions that reach beyond one session."""

    @property
    def is_held_back(self) -> bool:
        """The client takes no deliveries now: a consumer that starts wants nothing yet."""

    @property
    def is_closed(self) -> bool:
        """The server, or the link, is closed: long work ends soon."""

    def publishes(self) -> None: ...
    def throttle(self, queues: tuple[BrokerQueue, ...]) -> None: ...

    def postpone(self, step: AfterCommit, session: Served, method: bytes, commit: Submission | PutOff) -> None:
        """Do a step of `method` when `commit` is done, with its error if it has one. Later steps of the session wait
        behind it."""

    def offload(self, work: Work, session: Served) -> None:
        """Run `work`, which may wait for a disk, then the call that it returns, on the session's thread. Nothing else
        of it is done meanwhile. `work` leaves the session fit to be ended: where the client is gone, the rest is left
        out.
        """

    def offload_long(self, work: Work, session: Served, method: bytes) -> None:
        """As `offload`, for `work` that may take any time and touches nothing of the session's, to answer `method`."""

    def do_in_pieces(
        self, work: Iterator[object], session: Served, method: bytes, then: Callable[[], object] = ...
    ) -> None:
        """Do what `method` asks for, a piece at each step of `work`, on the session's thread, then call `then`. It is
        done to its end, also when the client goes. Nothing else of the client is done meanwhile."""

    def forget(self, session: Served) -> None: ...
    def status_json(self) -> bytes: ...
    def fault(self, error: AmqpError | BrokerError, method: bytes = ...) -> None: ...


Operation = Literal["configure", "write", "read"]
Kind = Literal["queue", "exchange"]
Check = Callable[[Operation, Kind, str], None]
"""Returns when the user may do this to a queue or exchange of the name. Raises ChannelFault: it may not."""


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One connection's end: its virtual host and user, and what its sessions share."""

    host: VirtualHost
    owner: object  # of its exclusive queues, and of what it publishes
    user: str
    check: Check
    publisher: Publisher
    max_message_bytes: int
    hears_of_cancels: bool  # it knows `basic.cancel` from the server
    # Of exchange and routing key, where the user has permissions for topics.
    check_topic: Callable[[Operation, str, str], None] | None = None

    def check_key(self, operation: Operation, exchange: str, key: str) -> None:
        """Nothing, when the user may use this routing key there. Raises ChannelFault."""
        if self.check_topic is not None and self.host.is_topic(exchange):
            self.check_topic(operation, exchange, key)


def fail(connection: Effects, session: Served | None, error: BaseException, method: bytes) -> None:
    """Close what an error costs; `method` is the one that was called."""
    is_known = isinstance(error, BrokerError | AmqpError)
    if session is not None and isinstance(error, MultiQueueError) and not is_known:
        # The store has no room, or cannot be read: other sessions may have nothing to do with it.
        _log.error("%r: channel %d: %s", connection, session.number, error, extra={"connection": repr(connection)})
        error = ChannelFault(541, str(error))
    if not isinstance(error, BrokerError | AmqpError):
        connection.failed(error)
    elif session is not None and error.closes == "channel":
        session.fault(error.reply_code, error.reply_text, method)
    else:
        connection.fault(error, method)


Step = tuple[str, Callable[[], object]]
"""A step's name for the log, and the step."""


def end_each(whose: object, steps: Iterable[Step], log: logging.Logger = _log) -> None:
    """Do all steps in order; log an error of one, and do the others."""
    for what, step in steps:
        try:
            step()
        except Exception:  # the steps behind it must not depend on this one
            text = "%r ends, and cannot %s; the rest of it ends all the same"
            log.exception(text, whose, what, extra={"connection": repr(whose)})
