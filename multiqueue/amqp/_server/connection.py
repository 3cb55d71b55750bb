"""A connection of the server, from its first byte to its last.

Parts       `reader` makes frames of bytes, `gate` says when it may, `writer` writes, `sessions` are its channels. Here
            are the handshake, the transport's word, long work, time, and the end.
State       All of a connection belongs to its I/O thread. Other threads come in through `post`.
Long work   Work on another thread ends by itself all that must not be undone. Its follow-up on the I/O thread answers,
            and is left out when the connection has ended meanwhile. A fault that comes while a commit is under way
            waits for it: the session of that commit is another thread's until then.
Ending      docs/design/amqp.md. While a commit is under way, its session and the exclusive queues end when it is done:
            a client that gets an exclusive name next sees its commits done or undone, and none comes later (leases of
            the Spark source rest on this).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, cast

from ...broker import BrokerError, BrokerQueue, Compat, PutOff, Submission, VirtualHost, give_way
from .._session.confirms import CommitReports
from .._session.consumer import SessionConsumer
from .._session.effects import AfterCommit, Client, Served, Step, Work, end_each, fail
from .._session.figures import ChannelFigures, ConnectionFigures
from .._session.session import Session, to_wait_for, want
from .._wire.errors import AmqpError, ConnectionFault, reason
from .._wire.frames import (
    HEARTBEAT,
    MIN_FRAME_MAX,
    OLD_PROTOCOL_HEADERS,
    PROTOCOL_HEADERS,
    PUBLISH,
    HeartbeatMonitor,
)
from .._wire.methods import commands
from .access import Access, Rights, User, is_loopback
from .frame_io import FrameReader, FrameWriter, ReadGate
from .handshake import ConnectionMachine, ConnectionState, check_limit, claim, common_name
from .io_thread import LARGE_FRAMES, IoThread, Piecework
from .settings import ServerSettings
from .strangers import Logins, Newcomer, Newcomers, QuietLog

_log = logging.getLogger("multiqueue.amqp")
_numbers = itertools.count(1)
REFUSED_AFTER = 1.0  # seconds; longer than hashes take that may wait (`logins`)
_ALARM = "alarm"
_COMMIT = "commit"
_LOGIN = "login"
_NEXT_TURN = "next turn"
_LITTLE = 16 * 1024  # bytes: a read of more is of a peer that waits for rates, which large commits are good for
_MOST_BODY = 4 * 2**20  # bytes: a longer body gets no memory ahead, or a peer could reserve much by sending little


class ServerPort(Protocol):
    """A server, as its connections know it."""

    settings: ServerSettings
    access: Access
    compat: Compat
    max_connections: int
    max_message_bytes: int
    properties: dict[str, Any]
    alarms: frozenset[str]
    strangers: QuietLog
    newcomers: Newcomers
    logins: Logins
    is_closed: bool

    @property
    def is_healthy(self) -> bool: ...

    def admit(self, connection: Any) -> bool: ...
    def take_place(self, connection: Any, user: User, peer: str) -> int | None: ...
    def forget(self, connection: Any) -> None: ...
    def let_go(self) -> None: ...
    def check_channels(self, user: User) -> None: ...
    def check_connections(self, user: User, host: VirtualHost) -> None: ...
    def channel_opened(self) -> None: ...
    def channel_closed(self, virtual_host: str, figures: ChannelFigures) -> None: ...
    def virtual_host(self, name: str) -> VirtualHost: ...
    def offload(self, work: Callable[[], object]) -> None: ...
    def offload_long(self, work: Callable[[], object]) -> None: ...
    def status_json(self, user: User) -> bytes: ...


class Owner:
    """Owns a connection's exclusive queues, and has published its messages. It outlives the connection cheaply."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __repr__(self) -> str:
        return f"<connection {self.name}>"


class ServerConnection(asyncio.BufferedProtocol):
    """One client, and the effects of its sessions."""

    user: User  # set by the login
    client: Client  # set when a virtual host is opened, before any session exists

    def __init__(self, server: ServerPort, io: IoThread, newcomer: Newcomer | None = None) -> None:
        settings = server.settings
        self.server = server
        self.settings = settings
        self.io = io
        self.post: Callable[..., None] = io.post
        self.notify: Callable[[SessionConsumer], None] = io.turns.notify
        self.awaits_turn: bool = False
        self.machine: ConnectionMachine = ConnectionMachine()
        self._monitor = HeartbeatMonitor()
        self.sessions: dict[int, Session] = {}
        self.gate: ReadGate = ReadGate(self.sessions, lambda frames: self.reader.process(frames), lambda: self.flush())
        self.writer: FrameWriter = FrameWriter(
            self, settings.frame_max, settings.write_buffer_bytes, partial(self.gate.pause, "replies")
        )
        self.flush: Callable[[], None] = self.writer.flush
        self.reader: FrameReader = FrameReader(self, self.sessions, self.machine, self.gate, self.writer, self._monitor)
        self.piecework: Piecework = Piecework(io.do_piece, self.flush)
        self.committing: Served | None = None  # the session whose commit is under way; it is that thread's meanwhile
        self.late_fault: tuple[AmqpError | BrokerError, bytes] | None = None  # waits for the commit
        self.postponed: set[AfterCommit] = set()  # steps of methods that wait for commits
        self.client_properties: dict[str, object] = {}
        self.is_lost: bool = False
        self.has_let_go: bool = False  # of all its sessions: it waits for the peer's last word alone
        self._has_published = False  # something that the publisher may not have handed in yet
        self._transport = cast(asyncio.Transport, None)  # until connection_made
        self.newcomer: Newcomer | None = newcomer  # until it has logged in, and has one of its user's places
        self._limit_reached: int | None = None  # how many places its user has, where it got none
        self._login: Future[None] | None = None  # its password is being hashed
        self._heartbeat = 0
        self._timer: asyncio.TimerHandle | None = None
        self._channel_max = settings.channel_max
        self._offered: tuple[str, ...] = ()
        # For figures.
        self._peer: tuple[str, int] = ("", 0)
        self._here: tuple[str, int] = ("", 0)
        self._cipher: tuple[str, str] | None = None  # of TLS: its protocol, and the cipher
        self._mechanism = ""
        self._connected_at = time.time()
        self.name: str = f"#{next(_numbers)}"
        self.owner: Owner = Owner(self.name)

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.gate.transport = self._transport
        self.writer.use(self._transport)
        peer, here = (transport.get_extra_info(key) or ("", 0) for key in ("peername", "sockname"))
        self._peer, self._here = (str(peer[0]), int(peer[1])), (str(here[0]), int(here[1]))
        cipher = transport.get_extra_info("cipher")
        self._cipher = None if cipher is None else (str(cipher[1]), str(cipher[0]))
        self.name = self.owner.name = f"{peer[0]}:{peer[1]} -> {here[0]}:{here[1]}"
        high = self.settings.write_buffer_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        if self.newcomer is not None:
            self.newcomer.cut = lambda: self.post(self.abort)
        if not self.server.admit(self):
            if self.server.is_closed:
                self._transport.abort()
            else:
                self.cut("%s: refused, there are %d connections", self.server.max_connections)
            return
        patience = self.settings.handshake_timeout
        self._set_timer(patience, partial(self.cut, "%s: not open after %g s, cut", patience))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.io.buffer_for(self.reader.splitter.frame_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        data = self.io.read_buffer[:nbytes]
        self.reader.receive(data if self.reader.splitter.frame_bytes > LARGE_FRAMES else bytes(data))
        if nbytes < _LITTLE:
            give_way()

    def eof_received(self) -> None:
        """The peer sends nothing further; that is its end."""

    def connection_lost(self, exc: BaseException | None) -> None:
        self.writer.lose()
        while list(self.gate.reasons) == [_NEXT_TURN]:
            self.gate.resume(_NEXT_TURN)  # what was read is done
        self.is_lost = True
        self._cancel_timer()
        self._arrived()
        if self._login is not None:
            self._login.cancel()
        self.gate.lose()
        if self.committing is not None:
            # Those that are ours, so that no messages wait for the other thread.
            self.piecework.add(self._end_sessions(), lambda _: None)
        else:
            self.finish()

    def pause_writing(self) -> None:
        self.writer.is_held_back = True
        self._want_or_not()

    def resume_writing(self) -> None:
        self.writer.caught_up()
        self._want_or_not()
        self.gate.resume("replies")

    @property
    def is_behind(self) -> bool:
        """Whether something that the peer has sent is still to be done. On its I/O thread."""
        if self.committing is not None or self.piecework.is_under_way:
            return True
        if self.is_lost or self.reader.is_deaf or self._transport.is_closing():
            return False
        if reasons := self.gate.reasons:
            return bool(self.postponed) or _NEXT_TURN in reasons
        return self.reader.is_in_the_middle or self.gate.has_unread()

    def _want_or_not(self) -> None:
        want(self.sessions, not self.is_held_back)

    # -- what sessions ask for

    def status_json(self) -> bytes:
        return self.server.status_json(self.user)

    @property
    def is_held_back(self) -> bool:
        return self.writer.is_held_back or self.piecework.is_under_way

    @property
    def is_closed(self) -> bool:
        return self.server.is_closed

    @property
    def alarms(self) -> frozenset[str]:
        return self.server.alarms

    def took_turn(self) -> None:
        self.awaits_turn = False
        self.flush()

    def new_session(self, number: int) -> Session:
        most = self._channel_max  # open at a time: as RabbitMQ, with any numbers
        if len(self.sessions) >= most:
            opened = len(self.sessions)
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({most})"
            raise ConnectionFault(530, text)
        self.server.check_channels(self.user)
        self.server.channel_opened()
        return Session(number, self.client, self.writer, self)

    def forget(self, session: Served) -> None:
        known = self.sessions.get(session.number)
        if known is not None and known is session:
            self._take_out(known)

    def _take_out(self, session: Session) -> None:
        del self.sessions[session.number]
        self.server.channel_closed(self.client.host.name, session.figures())

    def throttle(self, queues: tuple[BrokerQueue, ...]) -> None:
        """Queues ask their producers to wait for room. Nothing is read until they have it. Where this connection's own
        acks may make the room, it waits for no more than the queue's way to its store."""
        others = to_wait_for(self.sessions, queues)
        for queue in queues:
            if queue in self.gate.reasons:
                continue
            when = queue.when_room if queue in others else queue.when_caught_up
            if when(partial(self.post, self.gate.resume, queue)):
                self.gate.pause(queue, softly=True)

    def publishes(self) -> None:
        """The client publishes. While there is an alarm, this was the last that is read of it. A client that only
        consumes is never held: its acks are what makes room."""
        self._has_published = True
        alarms = self.server.alarms
        if not alarms or _ALARM in self.gate.reasons or self.is_lost:
            return
        self.gate.pause(_ALARM, softly=True)
        if self._can("connection.blocked"):
            self._reply(commands.Connection.Blocked, reason=f"low on {' & '.join(sorted(alarms))}")
        self.flush()

    def alarm_changed(self) -> None:
        """An alarm has begun or ended. Where one begins, `publishes` looks."""
        if self.is_lost or self.server.alarms or _ALARM not in self.gate.reasons:
            return
        if self._can("connection.blocked"):
            self._reply(commands.Connection.Unblocked)
        self.gate.resume(_ALARM)
        self.flush()

    def hand_in(self) -> None:
        """End a run of publishes: the store has it before anything that follows, and before we wait."""
        if not self._has_published:
            return
        self._has_published = False
        publisher = self.client.publisher
        try:
            publisher.hand_in()
            if publisher.is_held_back(partial(self.post, self.gate.resume, publisher)):
                self.gate.pause(publisher, softly=True)
        except BaseException as error:  # noqa: BLE001  # every one ends a channel or a connection
            fail(self, None, error, PUBLISH)

    def end_turn(self) -> None:
        """Very much was read at once: other connections have their turns before the rest is done."""
        self.gate.pause(_NEXT_TURN)
        self.io.do_piece(partial(self.gate.resume, _NEXT_TURN))

    # -- long work

    def do_in_pieces(
        self, work: Iterator[object], session: Served, method: bytes, then: Callable[[], object] = lambda: None
    ) -> None:
        """See `Effects.do_in_pieces`. Other connections have their turns between the pieces. Nothing is read or
        delivered meanwhile, so that no consumer of this connection sees half of it."""

        def done(error: BaseException | None) -> None:
            self._answer(then if error is None else partial(_raise, error), session, method)
            if work in self.gate.reasons:
                self._want_or_not()
                self.gate.resume(work)

        self.piecework.add(work, done)
        if self.piecework.is_under_way:
            self.gate.pause(work)
            self._want_or_not()

    def offload(self, work: Work, session: Served) -> None:
        self.server.offload(partial(self._work, work, self._came_back))  # raises when no thread can be had
        self.committing = session
        self.gate.pause(_COMMIT)

    def offload_long(self, work: Work, session: Served, method: bytes) -> None:
        def came_back(answer: Callable[[], object], error: BaseException | None) -> None:
            if self.machine.is_running and session.is_open and not self.is_lost:
                self._answer(answer, session, method)
            self.gate.resume(came_back)
            self.flush()

        self.gate.pause(came_back)
        self.server.offload_long(partial(self._work, work, came_back))

    def postpone(self, step: AfterCommit, session: Served, method: bytes, commit: Submission | PutOff) -> None:
        self.postponed.add(step)
        self.gate.pause(step)
        commit.add_done_callback(lambda error: self.post(self._committed, step, session, method, error))

    def _work(self, work: Work, came_back: Callable[..., object]) -> None:
        """On another thread: do it, and have the I/O thread go on with what it has returned or raised."""
        try:
            answer, error = work(), None
        except BaseException as failure:  # noqa: BLE001  # belongs to the connection, or to the channel
            answer, error = partial(_raise, failure), failure
        self.post(came_back, answer, error)

    def _came_back(self, answer: Callable[[], object], error: BaseException | None) -> None:
        session, self.committing = self.committing, None
        if self.is_lost:
            if error is not None:
                extra = {"connection": self.name}
                _log.warning("%r: its last request failed after its end: %s", self, error, extra=extra)
            self.finish()
            return
        if self.late_fault is not None:
            self.fault(*self.late_fault)
        else:
            self._answer(answer, session, b"\0\x5a\0\x14")  # tx.commit
            self.gate.resume(_COMMIT)
        self.flush()

    def _committed(self, step: AfterCommit, session: Served, method: bytes, error: BaseException | None) -> None:
        self.postponed.remove(step)
        if self.machine.is_running and not self.is_lost:
            self._answer(partial(step, error), session, method)
            self.gate.resume(step)
            self.flush()

    def _answer(self, answer: Callable[[], object], session: Served | None, method: bytes) -> None:
        try:
            answer()
        except BaseException as failure:  # noqa: BLE001  # every one ends a channel or a connection
            fail(self, session, failure, method)

    # -- the handshake

    @property
    def protocol_headers(self) -> Mapping[bytes, tuple[int, int]]:
        """The protocol headers that a client may begin with, and the version that `connection.start` tells it."""
        is_old = self.server.compat.says("the header of AMQP 0-8 begins a connection")
        return {**PROTOCOL_HEADERS, **OLD_PROTOCOL_HEADERS} if is_old else PROTOCOL_HEADERS

    def start(self, major: int, minor: int) -> None:
        self.machine.started()
        certificate = self._transport.get_extra_info("peercert")
        self._offered = ("PLAIN", "AMQPLAIN", "EXTERNAL") if certificate else ("PLAIN", "AMQPLAIN")
        self._reply(
            commands.Connection.Start,
            version_major=major,
            version_minor=minor,
            server_properties=self.server.properties | {"healthy": self.server.is_healthy},
            mechanisms=" ".join(self._offered),
            locales="en_US",
        )
        self.flush()

    def call_connection(self, method: Any) -> None:
        if isinstance(method, commands.Connection.StartOk):
            self._log_in(method)
        elif isinstance(method, commands.Connection.TuneOk):
            self._tune(method)
        elif isinstance(method, commands.Connection.Open):
            self._open(method)
        elif isinstance(method, commands.Connection.Close):
            self._closed_by_client()
        elif isinstance(method, commands.Connection.CloseOk):
            self.close_transport()
        elif isinstance(method, commands.Connection.UpdateSecret):
            self._reply(commands.Connection.UpdateSecretOk)

    def _log_in(self, method: Any) -> None:
        self.client_properties = method.client_properties
        self._mechanism = method.mechanism[:40]
        self._asked_at = self.io.loop.time()
        try:
            certificate = self._transport.get_extra_info("peercert")
            user, password = claim(method.mechanism, method.response, self._offered, common_name(certificate))
        except ValueError as error:
            self._refuse(str(error))
            return
        known = password is None or self.server.access.look(user, password)
        if password is None or known is not None:
            self._logged_in(user, known is True)
            return
        self.gate.pause(_LOGIN, softly=True)
        told = partial(self.post, self._verified, user)
        self._login = self.server.logins.verify(self._peer[0], user, password, told)
        if self._login is None:
            self._refuse(f"user '{user}': too many wait for an answer")

    def _verified(self, name: str, is_right: bool) -> None:
        self._login = None
        if self.is_lost or self._transport.is_closing() or self.machine.state is not ConnectionState.TUNING:
            return  # the peer, or the server, has not waited for it
        self._logged_in(name, is_right)
        self.gate.resume(_LOGIN)
        self.flush()

    def _logged_in(self, name: str, is_right: bool) -> None:
        user = self.server.access.user(name)
        if user is None or not is_right:
            self._refuse(f"user '{name}': invalid credentials")
        elif user.loopback_only and not is_loopback(self._peer[0]):
            self._refuse(f"user '{name}' can only connect via localhost")
        else:
            self.user = user
            self._limit_reached = self.server.take_place(self, user, self._peer[0])
            if self._limit_reached is None:
                self._arrived()
            elif self.newcomer is not None:
                self.newcomer.was_refused = True
            offer = self.settings
            self._reply(
                commands.Connection.Tune,
                channel_max=offer.channel_max,
                frame_max=offer.frame_max,
                heartbeat=offer.heartbeat,
            )

    def _arrived(self) -> None:
        newcomer, self.newcomer = self.newcomer, None
        if newcomer is not None:
            self.server.newcomers.leave(newcomer)

    def cut(self, why: str, *figures: object) -> None:
        """Cut a stranger; `why` is the format of a line for the log, with its name first."""
        self.server.strangers.warning(why, self.name, *figures)
        self._transport.abort()

    def _refuse(self, why: str) -> None:
        """Say no, `REFUSED_AFTER` seconds after it asked: a stranger must not learn how long the check took."""
        self.server.strangers.warning("%s: %s login refused: %s", self.name, self._mechanism, why)
        if self.newcomer is not None:
            self.newcomer.was_refused = True
        self.gate.pause("refused", softly=True)
        left = self._asked_at + REFUSED_AFTER - self.io.loop.time()
        self._set_timer(max(0.0, min(left, self.settings.handshake_timeout)), self._say_no)

    def _say_no(self) -> None:
        if self._can("authentication_failure_close"):
            text = f"Login was refused using authentication mechanism {self._mechanism}."
            self.fault(ConnectionFault(403, f"{text} For details see the broker logfile."))
            self.flush()
            return
        self.reader.is_deaf = True
        self.close_transport()

    def _tune(self, method: Any) -> None:
        check_limit("channel_max", self.settings.channel_max, method.channel_max)
        is_small = self.server.compat.says("a frame may have 4096 bytes at most")
        least = MIN_FRAME_MAX if is_small else min(2 * MIN_FRAME_MAX, self.settings.frame_max)
        check_limit("frame_max", self.settings.frame_max, method.frame_max, least)
        self._channel_max = method.channel_max
        self.writer.frame_max = self.reader.splitter.frame_max = method.frame_max
        self.reader.splitter.most_body = min(_MOST_BODY, self.server.max_message_bytes)
        self._heartbeat = method.heartbeat

    def _open(self, method: Any) -> None:
        if self._limit_reached is not None:  # as RabbitMQ, not before: clients tell of a close that comes now
            refused = f"connection refused for user '{self.user.name}'"
            raise ConnectionFault(530, f"{refused}: user connection limit ({self._limit_reached}) is reached")
        name = method.virtual_host
        host = self._host(name)
        rights = Rights(self.user, name)
        self.server.check_connections(self.user, host)
        self.client = Client(
            host=host,
            owner=self.owner,
            user=self.user.name,
            check=rights.check,
            check_topic=rights.check_topic if rights.has_topics else None,
            publisher=host.publisher(CommitReports(self.post, self.flush).report),
            max_message_bytes=self.server.max_message_bytes,
            hears_of_cancels=self._can("consumer_cancel_notify"),
        )
        if self._host(name) is not host:  # it may have gone before this was found among its connections
            raise self._down(name)
        self._reply(commands.Connection.OpenOk)
        self._cancel_timer()
        if self._heartbeat:
            self._set_timer(self._heartbeat / 2, self._tick)
        _log.info("%s: user '%s' opened vhost '%s'", self.name, self.user.name, name, extra={"connection": self.name})

    def _host(self, name: str) -> VirtualHost:
        host = self.server.virtual_host(name)
        if host.failure is not None:
            raise self._down(name)
        return host

    def _down(self, name: str) -> ConnectionFault:
        refused = f"access to vhost '{name}' refused for user '{self.user.name}'"
        return ConnectionFault(541, f"{refused}: vhost '{name}' is down")

    def is_in(self, host: VirtualHost) -> bool:
        """True once it has opened this virtual host."""
        client = getattr(self, "client", None)
        return client is not None and client.host is host

    def _can(self, capability: str) -> bool:
        """Whether the client said that it knows an extension."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    def _reply(self, method: Any, **fields: Any) -> None:
        self.writer.reply(0, method, **fields)

    # -- time

    def _set_timer(self, seconds: float, action: Callable[[], object]) -> None:
        self._cancel_timer()
        self._timer = self.io.loop.call_later(seconds, action)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._set_timer(self._heartbeat / 2, self._tick)
        if self._monitor.tick(listening=not self.gate.reasons):
            text, extra = "%s: missed heartbeats, timeout: %d s", {"connection": self.name}
            _log.warning(text, self.name, self._heartbeat, extra=extra)
            self._transport.abort()
        else:
            self.writer.send(HEARTBEAT)
            self.flush()

    # -- the end

    @property
    def is_open(self) -> bool:
        """True once the client has opened a virtual host."""
        return hasattr(self, "client")

    def failed(self, error: BaseException) -> None:
        _log.error("%s: failed", self.name, exc_info=error, extra={"connection": self.name})
        self.fault(ConnectionFault(541, "an internal error; see the broker's log"))
        self.flush()

    def fault(self, error: AmqpError | BrokerError, method: bytes = b"\0\0\0\0") -> None:
        if self.is_lost or self.machine.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        if self.committing is not None:  # its session is another thread's until it is back
            self.late_fault = error, method
            return
        if self.newcomer is not None:
            self.server.strangers.warning("%s: closed before it was admitted: %s", self.name, error)
        else:
            level = logging.INFO if error.reply_code == 320 else logging.WARNING
            _log.log(level, "%s: closed: %s", self.name, error, extra={"connection": self.name})
        self.machine.closed_by_server()
        self.piecework.add(self._end_sessions(), partial(self._say_close, error, method))

    def _say_close(self, error: AmqpError | BrokerError, method: bytes, _: BaseException | None) -> None:
        self._reply(commands.Connection.Close, **reason(error.reply_code, error.reply_text, method))
        self._let_go()
        if not self.is_lost:
            self._set_timer(self.settings.handshake_timeout, self._transport.abort)
        self.gate.open()  # reasons not to read no longer matter: only the answer does

    def shut_down(self) -> None:
        if self.machine.is_running:
            self.close_by_operator("broker forced connection closure with reason 'shutdown'")
        else:
            self.close_transport()

    def close_by_operator(self, why: str) -> None:
        self.fault(ConnectionFault(320, why))
        self.flush()

    def abort(self) -> None:
        self._transport.abort()

    def close_transport(self, *, listens: bool = False) -> None:
        """With `listens`, what the peer sends until its end is read and dropped: the kernel answers bytes to a closed
        socket with a reset, and a client that was still writing would lose the answer to its close."""
        self.flush()
        if listens and not self.is_lost and not self._transport.is_closing() and self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the peer has left without our answer, as the loop will tell
                self._transport.write_eof()
            self.writer.lose()
            self.gate.open()
        else:
            self._transport.close()
        if not self.is_lost:
            # A peer that does not read would keep what is left to be written, and us, for ever.
            self._set_timer(self.settings.handshake_timeout, self._transport.abort)

    def _closed_by_client(self) -> None:
        def close(_: BaseException | None) -> None:
            end_each(self, [("delete its exclusive queues", self._release_owner)])
            self._reply(commands.Connection.CloseOk)
            self._let_go()
            self.reader.is_deaf = True
            self.close_transport(listens=True)

        self.piecework.add(self._end_sessions(), close)

    def _let_go(self) -> None:
        self.has_let_go = True
        self.server.let_go()

    def _end_sessions(self) -> Iterator[None]:
        """Deliver nothing further; what is returned ends the sessions, a piece at each step. But for one that is
        another thread's: it ends later."""
        endings: list[Iterator[None]] = []
        steps: list[Step] = []
        for session in list(self.sessions.values()):
            if session is self.committing:
                for consumer in session.consumers.values():
                    steps.append((f"stop {consumer!r}", partial(consumer.want, False)))
            else:
                endings.append(session.end())
                self._take_out(session)
        end_each(self, steps)
        return itertools.chain.from_iterable(endings)

    def finish(self) -> None:
        def end(_: BaseException | None) -> None:
            end_each(self, [("delete its exclusive queues", self._release_owner)])
            end_each(self, [("be forgotten", partial(self.server.forget, self))])

        self.piecework.add(self._end_sessions(), end)

    def _release_owner(self) -> None:
        if self.is_open:
            self.client.host.release_owner(self.owner)

    # -- figures

    def figures(self, known: ConnectionFigures | None = None) -> ConnectionFigures:
        """A connection that is open in figures: those that are known, if its channels and consumers are. Any thread."""
        if known is not None:
            has = [(each.number, len(each.consumers)) for each in list(self.sessions.values())]
            if has == [(each.number, len(each.consumers)) for each in known.channels]:
                return known
        return ConnectionFigures(
            name=self.name,
            user=self.user.name,
            virtual_host=self.client.host.name,
            state=self._state(),
            peer_host=self._peer[0],
            peer_port=self._peer[1],
            host=self._here[0],
            port=self._here[1],
            tls=self._cipher is not None,
            mechanism=self._mechanism,
            client_properties=self.client_properties,
            connected_at=self._connected_at,
            heartbeat=self._heartbeat,
            frame_max=self.writer.frame_max,
            channel_max=self._channel_max,
            received_bytes=self.reader.received_bytes,
            sent_bytes=self.writer.sent_bytes,
            unsent_bytes=self._unsent_bytes(),
            cipher=self._cipher,
            channels=tuple(each.figures() for each in list(self.sessions.values())),
        )

    def _state(self) -> str:
        if not self.machine.is_running:
            return self.machine.state.value
        reasons = tuple(self.gate.reasons)
        if _ALARM in reasons:
            return "blocked"
        if self.server.alarms:
            return "blocking"
        return "flow" if any(isinstance(each, BrokerQueue) for each in reasons) else self.machine.state.value

    def _unsent_bytes(self) -> int:
        while True:
            try:
                return self._transport.get_write_buffer_size()
            except RuntimeError:
                pass  # the I/O thread has changed the buffer meanwhile

    def __repr__(self) -> str:
        return f"<connection {self.name}>"


def _raise(error: BaseException) -> None:
    raise error
