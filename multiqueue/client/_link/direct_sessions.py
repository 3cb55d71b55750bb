"""The sessions of one direct link: what a server's connection is to its sessions, without a socket.

State       Everything belongs to the link's thread, but for `throttled`, which publishers read.
Waiting     A call behind publishes whose commit is under way waits for it, and what its channel sends after it waits
            behind it; other channels go on. A commit and a purge are done on the link's thread, which waits for the
            disk. The thread waits for the receive buffer while that is full: queues serve other consumers meanwhile.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

from pamqp import commands

from ...amqp.session import (
    Addressee,
    Client,
    CommitReports,
    Confirms,
    Content,
    Digests,
    Served,
    Session,
    Turns,
    Work,
    end_each,
    fail,
    host_figures,
    reason,
    to_wait_for,
    want,
)
from ...amqp.wire import (
    FRAME_METHOD,
    REPLY_NAMES,
    Ack,
    ConnectionFault,
    Deliver,
    GetOk,
    Nack,
    Reject,
    Return,
    decode_short_string,
)
from .._dispatch.receive_buffer import ReceiveBuffer
from .link import Event

_log = logging.getLogger("multiqueue.client")
_MOST_BYTES = 128 * 1024 * 1024  # of a message, as at a server whose settings say nothing else
_EVENTS = 16  # that are told together; the client has the deliveries of such a batch run as one
_USER = "guest"  # the user that a client in the broker's own process is
_CLOSE = commands.Connection.Close.index.to_bytes(4)
_BASIC = b"\x00\x3c\x00\x00"  # where a fault is about a publish or a settlement: its class


class DirectSessions:
    """Runs sessions, and is what they tell and ask."""

    def __init__(
        self,
        host: Any,
        name: str,
        post: Callable[..., None],
        tell: Callable[[list[Event]], None],
        receive_buffer: ReceiveBuffer,
        is_over: Callable[[], bool],
    ) -> None:
        self.post = post
        self.notify = Turns(post).notify
        self.confirming: dict[Confirms, None] = {}
        self.throttled: tuple[Any, ...] = ()  # queues that publishers have to wait for
        self.is_held_back = False  # the receive buffer is full
        self.is_closed = False
        self._name = name
        self._tell = tell
        self._receive_buffer = receive_buffer
        self._is_over = is_over
        self._events: list[Event] = []  # to be told
        self._sessions: dict[int, Session] = {}
        self._behind: dict[int, list[Callable[[], object]]] = {}  # of channels whose call waits for commits
        self._has_published = False
        self._client = Client(
            host=host,
            owner=self,
            user=_USER,
            check=lambda operation, kind, name: None,
            publisher=host.publisher(CommitReports(post, self.flush).report),
            digests=Digests(),
            max_message_bytes=_MOST_BYTES,
            hears_of_cancels=True,
        )

    def call(self, number: int, payload: bytes) -> None:
        if number == 0:
            if payload[:4] == _CLOSE:
                self.close()
                self.reply(0, commands.Connection.CloseOk)
            return
        if self.is_closed or self._waits(number, partial(self.call, number, payload)):
            return
        self._hand_in()
        session = self._sessions.get(number)
        if session is None:
            session = self._sessions[number] = Session(number, self._client, self, self)
        self._do(session, partial(session.receive, FRAME_METHOD, payload), payload[:4])

    def publish(self, number: int, content: tuple[bytes, bytes, bytes]) -> None:
        session = self._sessions.get(number)
        if session is not None and not self._waits(number, partial(self.publish, number, content)):
            self._do(session, partial(session.receive_content, content), _BASIC)

    def settle(self, number: int, settled: Ack | Nack | Reject) -> None:
        session = self._sessions.get(number)
        if session is not None and not self._waits(number, partial(self.settle, number, settled)):
            self._hand_in()
            self._do(session, partial(session.settle, settled), _BASIC)

    def _waits(self, number: int, step: Callable[[], object]) -> bool:
        behind = self._behind.get(number)
        if behind is not None:
            behind.append(step)
        return behind is not None

    def _do(self, session: Session, step: Callable[[], object], method: bytes) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # every one ends a channel or the connection
            fail(self, session, error, method)

    def _hand_in(self) -> None:
        """Have the store commit what was published: nothing that follows overtakes it."""
        if self._has_published:
            self._has_published = False
            try:
                self._client.publisher.hand_in()
            except Exception as error:  # noqa: BLE001  # every one ends a channel or the connection
                fail(self, None, error, _BASIC)

    def flush(self) -> None:
        """Tell everything that is to be told. A turn of the link's thread ends with this."""
        self._hand_in()
        while self.confirming:
            self.confirm(self.confirming.popitem()[0])
        events, self._events = self._events, []
        if events:
            self._tell(events)

    def reply(self, number: int, method: Any, /, **fields: Any) -> None:
        """A method without content, without the checks of pamqp, which refuses names that brokers take."""
        made: Any = object.__new__(method)
        for name in method.__slots__:
            setattr(made, name, fields.get(name))
        self._events.append(Event(number, made))

    def deliver(self, number: int, consumer: Addressee, tag: int, redelivered: bool, content: Content) -> None:
        names, properties, body = content
        if self._receive_buffer.is_stopped:
            self._wait_for_buffer()
        self._events.append(Event(number, Deliver(consumer.tag, tag, redelivered, *_names(names)), properties, body))
        if len(self._events) >= _EVENTS:
            self.flush()

    def _wait_for_buffer(self) -> None:
        self.flush()
        self.is_held_back = True
        want(self._sessions, False)
        self._receive_buffer.wait_until_free(self._is_over)
        self.is_held_back = False
        want(self._sessions, True)

    def got(self, number: int, tag: int, redelivered: bool, left: int, content: Content) -> None:
        names, properties, body = content
        exchange, routing_key = _names(names)
        self._events.append(Event(number, GetOk(tag, redelivered, exchange, routing_key, left), properties, body))

    def returned(self, number: int, code: int, content: Content) -> None:
        names, properties, body = content
        self._events.append(Event(number, Return(code, REPLY_NAMES[code], *_names(names)), properties, body))

    def confirm(self, confirms: Confirms) -> None:
        self._events += [Event(confirms.number, each) for each in confirms.take()]

    def publishes(self) -> None:
        self._has_published = True

    def throttle(self, queues: tuple[Any, ...]) -> None:
        """Queues ask their producers to wait for room: `DirectLink.wait_for_room` does."""
        self.throttled = tuple(to_wait_for(self._sessions, queues))

    def has_room(self, queues: tuple[Any, ...]) -> None:
        """These queues have room again, and none has asked to wait since. Any thread."""
        if self.throttled is queues:
            self.throttled = ()

    def postpone(self, session: Served, payload: bytes, run: Any) -> None:
        self._behind[session.number] = []
        run.add_done_callback(lambda _: self.post(self._committed, session, payload))

    def _committed(self, session: Served, payload: bytes) -> None:
        behind = self._behind.pop(session.number, [])
        if self._sessions.get(session.number) is session:
            self._do(self._sessions[session.number], partial(session.call, payload), payload[:4])
        for step in behind:  # one that has to wait again has those after it behind itself
            step()

    def offload(self, work: Work, session: Served) -> None:
        self.flush()
        work()()

    def offload_long(self, work: Work, session: Served, method: bytes) -> None:
        self.offload(work, session)

    def do_in_pieces(
        self, work: Iterator[object], session: Served, method: bytes, then: Callable[[], object] = lambda: None
    ) -> None:
        for _ in work:
            pass
        then()

    def forget(self, session: Served) -> None:
        self._sessions.pop(session.number, None)

    def status_json(self) -> bytes:
        host = self._client.host
        return json.dumps({"product": "multiqueue", "virtual_hosts": {host.name: host_figures(host)}}).encode()

    def failed(self, error: BaseException) -> None:
        _log.error("%r: failed", self, exc_info=error, extra={"connection": repr(self)})
        self.fault(ConnectionFault(541, "an internal error; see the log"))
        self.flush()

    def fault(self, error: Any, method: bytes = b"\0\0\0\0") -> None:
        if not self.is_closed:
            self.close()
            self.reply(0, commands.Connection.Close, **reason(error.reply_code, error.reply_text, method))

    def close(self) -> None:
        """End all sessions; exclusive queues go. Twice is harmless."""
        self.is_closed = True
        self._behind.clear()
        sessions = list(self._sessions.values())
        self._sessions.clear()
        endings = [(f"end {session!r}", partial(_exhaust, session)) for session in sessions]
        release = ("delete its exclusive queues", partial(self._client.host.release_owner, self))
        end_each(self, [*endings, release], _log)

    def __repr__(self) -> str:
        return f"<direct link {self._name!r}>"


def _exhaust(session: Session) -> None:
    for _ in session.end():
        pass


@lru_cache(maxsize=1024)
def _names(names: bytes) -> tuple[str, str]:
    """Exchange and routing key; most messages have those of another one."""
    exchange, at = decode_short_string(names, 0)
    return exchange, decode_short_string(names, at)[0]
