"""An inbox over many queues, which take turns: for servers whose own queues are first in, first out.

Promise     Queues that match are consumed from, at the latest `every` seconds after they came. What befalls one queue
            costs the others nothing; one that is found again is consumed from again.
State       `_turn` guards `_sources`. The reader sets `is_consuming`, once, and `_error` before `_ended`.
Lock order  `_turn`, which is held while the server is asked for channels and consumers -> the locks of a channel.
Waiting     Takers end with a message, with `close`, or with the connection; so does the wait for the next look.
Who runs    `accept` and `ended` on the reader thread; `_watch` on `NAME-inbox`; the rest on any.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from ..._locks import Lock
from ...core import FairQueue
from ...errors import ShutDown
from .._base.errors import ChannelClosed, ClientError, ConnectionClosed, ConnectionFailed
from .._base.message import Message
from .._base.settings import Address
from .._channel.channel import Channel
from .._channel.consumers import ConsumerRequest, Inbox

if TYPE_CHECKING:
    from .connection import Connection

_log = logging.getLogger("multiqueue.client")

_PATIENCE = 10.0  # seconds for the API's answer
Names = Callable[[], list[str]]


@dataclass(eq=False, repr=False)
class _Source:
    """One queue, on a channel of its own: what the server refuses costs this queue alone."""

    request: ConsumerRequest
    channel: Channel
    _messages: FairQueue[Message]
    is_consuming: bool = True

    def accept(self, message: Message) -> None:
        try:
            self._messages.put_nowait(message, key=self.request.queue)
        except ShutDown:
            self.channel.consumers.drop(message)

    def ended(self, error: Exception | None) -> None:
        self.is_consuming = False
        if isinstance(error, ChannelClosed):
            extra = {"queue": self.request.queue}
            _log.warning("queue %r leaves its inbox: %s", self.request.queue, error, extra=extra)


class FairInbox(Inbox):
    """An inbox over many queues, which take turns; made by `Connection.inbox`. At its end all that is not settled goes
    back: what waits in it, and what you took."""

    _messages: FairQueue[Message]

    def __init__(
        self, connection: Connection, names: Names, prefetch: int, weights: Mapping[str, float] | None, every: float
    ) -> None:
        if not 0 < every <= threading.TIMEOUT_MAX:
            raise ValueError(f"every is {every}; it is a number of seconds above 0")
        self._connection, self._names, self._prefetch, self._every = connection, names, prefetch, every
        self._messages = FairQueue(weights=weights)
        self._turn = Lock()
        self._sources: dict[str, _Source] = {}
        self._ended = threading.Event()
        self._error = None

    def open(self) -> Self:
        """Consume from the queues that there are, and look for others from now on."""
        try:
            self.look()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name=f"{self._connection.name}-inbox", daemon=True).start()
        return self

    def look(self) -> None:
        """Look now which queues came and went. Raises as `Connection.inbox`."""
        names = dict.fromkeys(self._names())
        with self._turn:
            for name, source in list(self._sources.items()):
                if name not in names and source.is_consuming and source.channel.is_open:
                    source.channel.basic_cancel(source.request.consumer_tag)
                if not (source.is_consuming or source.channel.statistics().unacked):  # else you can settle it still
                    self._sources.pop(name).channel.abort()
            for name in names:
                if name not in self._sources and not self._ended.is_set():
                    self._consume(name)

    def _consume(self, name: str) -> None:
        channel = self._connection.channel()
        request = ConsumerRequest(name, f"mq.{secrets.token_hex(16)}", False, False, False, {})
        source = self._sources[name] = _Source(request, channel, self._messages)
        try:
            channel.basic_qos(self._prefetch)
            channel.consumers.start(source)
        except BaseException as error:
            del self._sources[name]
            channel.abort()
            if not isinstance(error, ChannelClosed):
                raise
            # It went, or is somebody's own.
            _log.info("queue %r does not come into its inbox: %s", name, error, extra={"queue": name})

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self.look()
            except ConnectionClosed:
                pass  # it comes back, or ends the inbox
            except ClientError as error:
                extra = {"connection": repr(self)}
                _log.warning("%r: %s; looking again in %g s", self, error, self._every, extra=extra)

    @property
    def queues(self) -> frozenset[str]:
        """The queues that it consumes from."""
        return frozenset(name for name, source in self._sources.copy().items() if source.is_consuming)

    def ended(self, error: Exception | None) -> None:
        """Nothing will follow. Called by the reader, at the connection's end."""
        self._error = error
        self._ended.set()
        self._messages.shutdown()

    def close(self) -> None:
        """End its consumers and channels, and wait until the server agrees. Closing twice does nothing."""
        self.ended(self._error)
        with self._turn:
            channels = [source.channel for source in self._sources.values()]
            self._sources.clear()
        for channel in channels:
            channel.abort()
        while (message := self._messages.poll()) is not None:
            self._begin(message)
        for channel in channels:
            channel.close()

    def _begin(self, message: Message) -> bool:
        return message.channel.consumers.begin(message)

    def _end(self) -> Exception:
        return copy.copy(self._error) or ShutDown(f"{self!r} is closed")

    def __repr__(self) -> str:
        return f"<inbox of {len(self._sources)} queues of {self._connection.name!r}>"


def finder(where: Any, pattern: str, queues: Iterable[str] | None, api: str | None) -> Names:
    """What tells the names that match: of those given, of a virtual host of this process, or of a server's API."""
    listed = None if queues is None else list(queues)

    def names() -> list[str]:
        if listed is not None:
            return listed
        return _ask(where, api) if isinstance(where, Address) else [queue.name for queue in where.queues()]

    return lambda: [name for name in names() if fnmatchcase(name, pattern)]


def _ask(address: Address, api: str | None) -> list[str]:
    host = address.endpoints[0]._replace(port=15671 if address.tls else 15672)
    url = urlsplit(api or f"{'https' if address.tls else 'http'}://{host}")
    login = f"{unquote(url.username or address.user)}:{unquote(url.password or address.password)}"
    place = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}/api/queues"
    place = f"{place}/{quote(address.vhost, safe='')}?columns=name"
    header = {"authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    try:
        with urlopen(Request(place, headers=header), timeout=_PATIENCE) as reply:
            return [str(each["name"]) for each in json.load(reply)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it has the socket, and lives as long as what is raised here
        text = f"{place} does not list the queues: {error}; api= says where a server does, queues= names them"
        raise ConnectionFailed(text) from error
