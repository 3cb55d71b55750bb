"""A link to a broker in this process: no sockets and no frames, one thread in the place of reader and server.

The link is to its sessions what a server's connection is, without a socket: their `Output` and their `Effects`.

State       Everything belongs to the link's thread, but for `_error`, which `_lock` guards, and `_throttled`, which
            publishers read.
Waiting     The thread waits on the outbox, to which the client appends its requests and the broker's threads their
            reports; and for the receive buffer when that is full: queues serve other consumers meanwhile. `end` closes
            the one and nudges the other. Publishers wait for room in the outbox, and for that of queues that asked for
            it. A call behind publishes whose commit is under way waits for it, and what its channel sends after it
            waits behind it; other channels go on. A commit and a purge are done on the link's thread, which waits for
            the disk.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import count
from typing import Any

from pamqp import commands

from ..._locks import Lock
from ...amqp import session as amqp
from ...amqp import wire
from .._base.errors import ConnectionClosed
from .._base.settings import Settings
from .._dispatch.buffers import Outbox
from .link import Event, Listener

_log = logging.getLogger("multiqueue.client")
_MOST_BYTES = 128 * 1024 * 1024  # of a message, as at a server whose settings say nothing else
_EVENTS = 16  # that are told together; the client has the deliveries of such a batch run as one
_USER = "guest"  # the user that a client in the broker's own process is
_CLOSE = commands.Connection.Close.index.to_bytes(4)
_BASIC = b"\x00\x3c\x00\x00"  # where a fault is about a publish or a settlement: its class


class DirectLink:
    """A connection to a virtual host of this process, which is a `multiqueue.broker.VirtualHost`."""

    def __init__(self, host: Any, settings: Settings, listener: Listener) -> None:
        self.channel_max = settings.channel_max or 65535
        self.server_properties: dict[str, Any] = {"product": "multiqueue", "in_process": True}
        self._name = settings.name
        self._listener = listener
        self._receive_buffer = listener.receive_buffer
        self._outbox: Outbox[Callable[[], object]] = Outbox(settings.outbox_bytes)
        self._lock = Lock()
        self._error: ConnectionClosed | None = None
        self._thread = threading.Thread(target=self._run, name=f"{settings.name}-direct", daemon=True)
        self.notify = amqp.Turns(self.post).notify
        self.awaits_turn = False
        self.confirming: dict[amqp.Confirms, None] = {}
        self._throttled: tuple[Any, ...] = ()  # queues that publishers have to wait for
        self.is_held_back = False  # the receive buffer is full
        self.is_closed = False
        self._events: list[Event] = []  # to be told
        self._sessions: dict[int, amqp.Session] = {}
        self._behind: dict[int, list[Callable[[], object]]] = {}  # of channels whose call waits for commits
        self._has_published = False
        self._client = amqp.Client(
            host=host,
            owner=self,
            user=_USER,
            check=lambda operation, kind, name: None,
            publisher=host.publisher(amqp.CommitReports(self.post, self.flush).report),
            max_message_bytes=_MOST_BYTES,
            hears_of_cancels=True,
        )

    # -- what the connection asks for, on any thread

    def start(self) -> None:
        self._thread.start()

    def send(self, number: int, frame: bytes) -> bool:
        payload = frame[7:-1]
        if number == 0:
            return self._outbox.append(partial(self._control, payload), 0)
        receive = amqp.Session.receive
        return self._outbox.append(partial(self._step, number, payload[:4], receive, wire.FRAME_METHOD, payload), 0)

    def prepare(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> Any:
        content = wire.encode_publish_method(exchange, routing_key, mandatory=mandatory), properties, bytes(body)
        return partial(self._step, number, _BASIC, amqp.Session.receive_content, content), len(body)

    def publish(self, prepared: Any) -> bool:
        return self._outbox.append(*prepared)

    def settle(self, number: int, settled: wire.Settlement) -> None:
        self._outbox.append(partial(self._step, number, _BASIC, amqp.Session.settle, settled), 0)

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full or bool(self._throttled)

    def wait_for_room(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._outbox.wait_for_room(timeout):
            return False
        throttled = self._throttled
        for queue in throttled:
            if not queue.wait_for_room(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return False
        if self._throttled is throttled:  # none has asked to wait since
            self._throttled = ()
        return True

    def end(self, error: ConnectionClosed, *, linger: float = 0.0) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._outbox.close()
        self._receive_buffer.nudge()

    def join(self, timeout: float | None) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def post(self, step: Callable[..., object], *arguments: Any) -> None:
        self._outbox.append(partial(step, *arguments) if arguments else step, 0)

    # -- the link's thread

    def _run(self) -> None:
        try:
            while steps := self._outbox.take():
                for step in steps:
                    step()
                self.flush()
        except Exception as defect:  # noqa: BLE001  # must be seen, and must not leave a deaf connection
            error = ConnectionClosed(f"the direct link failed: {defect!r}", reply_code=541)
            error.__cause__ = defect
            self.end(error)
        self._close()
        assert self._error is not None
        self._listener.lost(self, self._error)

    def _control(self, payload: bytes) -> None:
        if payload[:4] == _CLOSE:
            self._close()
            self.reply(0, commands.Connection.CloseOk)

    def _step(self, number: int, method: bytes, do: Callable[..., object], *arguments: Any) -> None:
        """Have the session of a channel do something, behind its call that waits for commits."""
        if (behind := self._behind.get(number)) is not None:
            behind.append(partial(self._step, number, method, do, *arguments))
            return
        if do is not amqp.Session.receive_content:
            self._hand_in()  # or, where the store has failed, end all sessions
        session = self._sessions.get(number)
        if session is None and do is amqp.Session.receive and not self.is_closed:
            session = self._sessions[number] = amqp.Session(number, self._client, self, self)
        if session is not None:
            self._do(session, method, do, session, *arguments)

    def _do(self, session: amqp.Session, method: bytes, do: Callable[..., object], *arguments: Any) -> None:
        try:
            do(*arguments)
        except Exception as error:  # noqa: BLE001  # every one ends a channel or the connection
            amqp.fail(self, session, error, method)

    def _hand_in(self) -> None:
        """Have the store commit what was published: nothing that follows overtakes it."""
        if self._has_published:
            self._has_published = False
            try:
                self._client.publisher.hand_in()
            except Exception as error:  # noqa: BLE001  # every one ends a channel or the connection
                amqp.fail(self, None, error, _BASIC)

    # -- what sessions ask for, and tell

    def flush(self) -> None:
        """Tell everything that is to be told. A turn of the link's thread ends with this."""
        self._hand_in()
        if not self.awaits_turn:
            for confirms in self.confirming:
                self.confirm(confirms)
            self.confirming.clear()
        events, self._events = self._events, []
        if events:
            self._listener.arrived(self, events)

    def took_turn(self) -> None:
        self.awaits_turn = False
        self.flush()

    def reply(self, number: int, method: Any, /, **fields: Any) -> None:
        """A method without content, without the checks of pamqp, which refuses names that brokers take."""
        made: Any = object.__new__(method)
        for name in method.__slots__:
            setattr(made, name, fields.get(name))
        self._events.append(Event(number, made))

    def deliver_all(
        self,
        number: int,
        consumer: amqp.SessionConsumer,
        first_tag: int,
        redelivered: list[bool],
        contents: list[amqp.Content],
    ) -> None:
        for tag, flag, (names, properties, body) in zip(count(first_tag), redelivered, contents):
            if self._receive_buffer.is_stopped:
                self._wait_for_buffer()
            self._events.append(Event(number, wire.Deliver(consumer.tag, tag, flag, *_names(names)), properties, body))
            if len(self._events) >= _EVENTS:
                self.flush()

    def _wait_for_buffer(self) -> None:
        self.took_turn()
        self.is_held_back = True
        amqp.want(self._sessions, False)
        self._receive_buffer.wait_until_free(lambda: self._error is not None)
        self.is_held_back = False
        amqp.want(self._sessions, True)

    def got(self, number: int, tag: int, redelivered: bool, left: int, content: amqp.Content) -> None:
        names, properties, body = content
        exchange, routing_key = _names(names)
        self._events.append(Event(number, wire.GetOk(tag, redelivered, exchange, routing_key, left), properties, body))

    def returned(self, number: int, code: int, content: amqp.Content) -> None:
        names, properties, body = content
        method = wire.Return(code, wire.REPLY_NAMES[code], *_names(names))
        self._events.append(Event(number, method, properties, body))

    def confirm(self, confirms: amqp.Confirms) -> None:
        self._events += [Event(confirms.number, each) for each in confirms.take()]

    def publishes(self) -> None:
        self._has_published = True

    def throttle(self, queues: tuple[Any, ...]) -> None:
        """Queues ask their producers to wait for room: `wait_for_room` does."""
        self._throttled = tuple(amqp.to_wait_for(self._sessions, queues))

    def postpone(self, step: amqp.AfterCommit, session: amqp.Served, method: bytes, commit: Any) -> None:
        self._behind[session.number] = []
        commit.add_done_callback(lambda error: self.post(self._committed, step, session, method, error))

    def _committed(
        self, step: amqp.AfterCommit, session: amqp.Served, method: bytes, error: BaseException | None
    ) -> None:
        behind = self._behind.pop(session.number, [])
        if self._sessions.get(session.number) is session:
            self._do(self._sessions[session.number], method, step, error)
        for each in behind:  # one that has to wait again has those after it behind itself
            each()

    def offload(self, work: amqp.Work, session: amqp.Served) -> None:
        self.flush()
        work()()

    def offload_long(self, work: amqp.Work, session: amqp.Served, method: bytes) -> None:
        self.offload(work, session)

    def do_in_pieces(
        self, work: Iterator[object], session: amqp.Served, method: bytes, then: Callable[[], object] = lambda: None
    ) -> None:
        for _ in work:
            pass
        then()

    def forget(self, session: amqp.Served) -> None:
        self._sessions.pop(session.number, None)

    def status_json(self) -> bytes:
        host = self._client.host
        return json.dumps({"product": "multiqueue", "virtual_hosts": {host.name: amqp.host_figures(host)}}).encode()

    def failed(self, error: BaseException) -> None:
        _log.error("%r: failed", self, exc_info=error, extra={"connection": repr(self)})
        self.fault(wire.ConnectionFault(541, "an internal error; see the log"))
        self.flush()

    def fault(self, error: Any, method: bytes = b"\0\0\0\0") -> None:
        if not self.is_closed:
            self._close()
            self.reply(0, commands.Connection.Close, **amqp.reason(error.reply_code, error.reply_text, method))

    def _close(self) -> None:
        """End all sessions; exclusive queues go. A second call does nothing."""
        self.is_closed = True
        self._behind.clear()
        sessions = list(self._sessions.values())
        self._sessions.clear()
        endings = [(f"end {session!r}", partial(_exhaust, session)) for session in sessions]
        release = ("delete its exclusive queues", partial(self._client.host.release_owner, self))
        amqp.end_each(self, [*endings, release], _log)

    def __repr__(self) -> str:
        return f"<direct link {self._name!r}>"


def _exhaust(session: amqp.Session) -> None:
    for _ in session.end():
        pass


@lru_cache(maxsize=1024)
def _names(names: bytes) -> tuple[str, str]:
    """Exchange and routing key; most messages have those of another one."""
    exchange, at = wire.decode_short_string(names, 0)
    return exchange, wire.decode_short_string(names, at)[0]
