"""The surroundings of a session: over a socket the server's connection, in a process the client's direct link.

`Output` takes methods and contents for the client; `Effects` do all else that reaches beyond the session. Both are used
on the session's thread, `post` and `notify` on any. Nothing here is called with a lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .confirms import Confirms

if TYPE_CHECKING:
    from ...broker import BrokerError, BrokerQueue, Run
    from .._wire.errors import AmqpError

Work = Callable[[], Callable[[], object]]
"""Something for another thread; it returns what follows on the session's."""
Content = tuple[bytes, bytes, bytes]
"""Exchange and routing key as on the wire, the block of properties, the body: as `content_of` gives them."""


class Addressee(Protocol):
    """A consumer, as far as its deliveries name it: its tag, and the begin of their frames."""

    tag: str
    prefix: bytes


class Sender(Protocol):
    """Where deliveries of a consumer go."""

    def flush(self) -> None: ...
    def failed(self, error: BaseException) -> None: ...


class Puller(Protocol):
    """A consumer that can be served. `queue` is where its messages come from."""

    sender: Sender

    @property
    def queue(self) -> object: ...

    def deliver(self, most: int) -> int: ...


class Served(Protocol):
    """A session, as its surroundings know it."""

    number: int

    @property
    def is_open(self) -> bool: ...
    def call(self, payload: bytes) -> None: ...
    def fault(self, code: int, text: str, method: bytes) -> None: ...


class Output(Protocol):
    """Methods and contents for a client."""

    confirming: dict[Confirms, None]
    """Confirms that are to be told before the turn ends."""

    def reply(self, number: int, method: Any, /, **fields: Any) -> None: ...

    def deliver(self, number: int, consumer: Addressee, tag: int, redelivered: bool, content: Content) -> None: ...

    def got(self, number: int, tag: int, redelivered: bool, left: int, content: Content) -> None: ...

    def returned(self, number: int, code: int, content: Content) -> None:
        """A message goes back to its publisher."""

    def confirm(self, confirms: Confirms) -> None: ...


class Effects(Sender, Protocol):
    """The actions that reach beyond one session."""

    @property
    def is_held_back(self) -> bool:
        """The client takes no deliveries now: a consumer that starts wants nothing yet."""

    @property
    def is_closed(self) -> bool:
        """The server, or the link, is closed: long work ends soon."""

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run this on the session's thread, soon. Any thread."""

    def notify(self, consumer: Puller) -> None:
        """A consumer may have work. Any thread."""

    def publishes(self) -> None: ...

    def throttle(self, queues: tuple[BrokerQueue, ...]) -> None: ...

    def postpone(self, session: Served, payload: bytes, run: Run) -> None:
        """Call a method when publishes before it are committed. Later steps of the session wait behind it."""

    def offload(self, work: Work, session: Served) -> None:
        """Run `work`, which may wait for a disk, then what it returns, on the session's thread. Nothing else of it is
        done meanwhile. `work` leaves the session fit to be ended: where the client is gone, the rest is left out."""

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
