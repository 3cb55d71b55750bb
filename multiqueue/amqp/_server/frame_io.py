"""Bytes into a connection and out of it: from bytes to frames to sessions, and from replies and deliveries to bytes.

Promise     Bytes that cannot be frames end the connection once the frames before them are done. The bytes that wait for
            a slow reader are bounded: its consumers want nothing while it is behind, and when its replies are more than
            four times the write buffer, nothing further is read from it. While a reason not to read stands, frames that
            came before it wait in order, and none is lost when it ends.
Runs        Publishes that stand next to each other go to a store together. Any other frame, and the end of the
            frames that are there, hands them in first. docs/decisions/0875-publishes-in-runs.md
Softly      Reasons that are about publishing (a queue without room, an alarm), and those before the login, let us read
            on until 64 KiB wait: so a peer that leaves is noticed, and a close or cancel among them is done, with what
            stands before it. The frames behind it wait on.
State       All belongs to the connection's I/O thread. Frames are collected until a turn ends, and written at once. The
            part that pauses reading for a reason also resumes it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from .._session.confirms import Confirms
from .._session.consumer import Sender, SessionConsumer
from .._session.effects import PIECE, Effects, fail
from .._session.machine import CANCEL, CHANNEL_CLOSE, ChannelState
from .._session.session import Session
from .._wire.errors import REPLY_NAMES, ConnectionFault, FrameError
from .._wire.frames import (
    ACK,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    MIN_FRAME_MAX,
    PROTOCOL_HEADER,
    PUBLISH,
    Content,
    Frame,
    FrameSplitter,
    HeartbeatMonitor,
    acks_in_a_row,
    contents_in_a_row,
    deliver_frames,
    deliver_pieces,
    encode_get_ok,
    encode_return,
    encode_settlement,
)
from .._wire.methods import commands, decode_method, encode_method
from .handshake import CLOSE, DROPS_WHAT_IT_DOES_NOT_KNOW, ConnectionMachine, ConnectionState
from .strangers import Newcomer

_RUN: Final = 64  # publishes that are done at once: their queue's lock is held for some 100 us
_MOST_OF_A_STRANGER: Final = 8 * 1024  # bytes that may wait for a login: a frame of 4 KiB is all that has to be said
_TURN: Final = 1536  # frames that are dealt with between two looks at the sockets: 512 publishes, some 10 ms
_NO_METHOD: Final = b"\0\0\0\0"
_METHOD: Final = 7  # as many frames more as any other method counts for
_IN_A_MESSAGE: Final = (ChannelState.HEADER, ChannelState.BODY)
_LARGE: Final = 16 * 1024  # bytes; a reply beyond that is written now, and bodies that a peer may not fetch
_AT_ONCE: Final = 1024 * 1024  # bytes of bodies for one that keeps up: each write wakes it, and costs a call
_GATHERED: Final = 1024  # bytes of a piece; from here on a copy costs more than to give the system many pieces
_MOST_PIECES: Final = 512  # of one call; the system takes 1,024
_SELECTORS: Final = "asyncio.selector_events"
_FLUSH_PIECES: Final = 64  # frames of replies before they are written, so that a slow reader is noticed
_REPLIES: Final = 4  # times the write buffer that replies may wait in before nothing further is read
_READ_AHEAD: Final = 64 * 1024  # bytes; what a connection that is paused softly may have waiting
_CLOSE_OK_FRAME: Final = encode_method(0, commands.Connection.CloseOk)


@dataclass(eq=False, repr=False)
class FrameWriter:
    """The way out of a connection; `too_far_behind` is called when its peer does not fetch its replies."""

    _connection: Sender
    frame_max: int
    _buffer_bytes: int
    _too_far_behind: Callable[[], None]
    pieces: list[bytes | memoryview] = field(default_factory=list)  # to be written; always the same list
    confirming: dict[Confirms, None] = field(default_factory=dict)
    is_held_back: bool = False  # the peer reads too slowly: its consumers want nothing
    sent_bytes: int = 0
    transport: asyncio.Transport | None = None  # while there is one to write to
    _bodies_bytes: int = 0  # of deliveries among the pieces
    _takes_all: bool = False  # the socket took all that it was given last
    _descriptor: int | None = None  # of its socket, where bytes may go there without it
    _unread_bytes: int = 0  # written since `is_held_back`: replies, for no consumer wants anything then

    def use(self, transport: asyncio.Transport) -> None:
        """Write to this transport from now on."""
        self.transport = transport
        # TLS encrypts on the way, and the transports of other loops queue bytes that we cannot see.
        is_plain = type(transport).__module__ == _SELECTORS
        self._descriptor = transport.get_extra_info("socket").fileno() if is_plain and hasattr(os, "writev") else None

    def lose(self) -> None:
        self.transport = None
        self.pieces.clear()

    def send(self, data: bytes) -> None:
        """Frames to be written when the present turn ends, or now if they are large."""
        self.pieces.append(data)
        if len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Write what there is to write. A turn on the I/O thread ends with this."""
        if self.confirming and not self._connection.awaits_turn:
            for confirms in self.confirming:
                self.confirm(confirms)
            self.confirming.clear()
        self._bodies_bytes = 0
        if self.pieces and self.transport is not None:
            if self.transport.is_closing():  # asyncio would log each write after the peer has left
                self.pieces.clear()
                return
            # The last two frames of a body are five pieces, and the last frame may be short.
            if max(map(len, self.pieces[-5:])) >= _GATHERED and self._send_at_once(self.transport):
                return
            data = b"".join(self.pieces)
            self.pieces.clear()
            self.sent_bytes += len(data)
            if self.is_held_back:
                self._unread_bytes += len(data)
                if self._unread_bytes > _REPLIES * self._buffer_bytes:
                    self._too_far_behind()
            self.transport.write(memoryview(data))  # of a view no rest is copied

    def _send_at_once(self, transport: asyncio.Transport) -> bool:
        """Give the pieces to the socket as they are, if nothing waits before them; False when it did not take all."""
        pieces = self.pieces
        self._takes_all = False
        if self._descriptor is None or transport.get_write_buffer_size():
            return False
        try:
            sent = os.writev(self._descriptor, pieces[:_MOST_PIECES])
        except OSError:  # it is full, or the transport will meet this too
            return False
        self.sent_bytes += sent
        at = 0
        while at < len(pieces) and sent >= len(pieces[at]):
            sent -= len(pieces[at])
            at += 1
        if sent:
            pieces[at] = memoryview(pieces[at])[sent:]
        del pieces[:at]
        self._takes_all = not pieces
        return self._takes_all

    def caught_up(self) -> None:
        self.is_held_back = False
        self._unread_bytes = 0

    def reply(self, number: int, method: Any, /, **fields: Any) -> None:
        self.send(encode_method(number, method, **fields))

    def deliver_all(
        self, number: int, consumer: SessionConsumer, first_tag: int, redelivered: list[bool], contents: list[Content]
    ) -> None:
        sizes = [len(body) for _, _, body in contents]
        if min(sizes) > 0 and max(sizes) <= min(_LARGE, self.frame_max - FRAME_OVERHEAD):
            self.pieces.append(deliver_frames(number, consumer.prefix, first_tag, redelivered, contents))
            return
        for tag, flag, size, content in zip(count(first_tag), redelivered, sizes, contents):
            self.pieces += deliver_pieces(number, consumer.prefix, tag, flag, content, self.frame_max)
            self._bodies_bytes += size
            if self._bodies_bytes >= (_AT_ONCE if self._takes_all else _LARGE):
                self.flush()

    def got(self, number: int, tag: int, redelivered: bool, left: int, content: Content) -> None:
        self.send(encode_get_ok(number, tag, redelivered, left, content, self.frame_max))

    def returned(self, number: int, code: int, content: Content) -> None:
        self.send(encode_return(number, code, REPLY_NAMES[code], content, self.frame_max))

    def confirm(self, confirms: Confirms) -> None:
        number = confirms.number
        for each in confirms.take():
            self.pieces.append(encode_settlement(number, each))

    def __repr__(self) -> str:
        return repr(self._connection)


class ReadGate:
    """Between a connection's socket and its sessions; `process` does frames in order, and keeps those it cannot do."""

    def __init__(
        self, sessions: Mapping[int, Session], process: Callable[[list[Frame]], None], flush: Callable[[], None]
    ) -> None:
        self._sessions = sessions
        self._process = process
        self._flush = flush
        self.transport: asyncio.Transport | None = None  # while there is one to read from
        self.reasons: dict[object, bool] = {}  # to do nothing further; True: but to read on for a while
        self.pending_bytes: int = 0  # of frames that wait, and of a body that has begun behind them, about
        self._pending: deque[Frame] = deque()
        self._is_reading = True
        self._is_passing = False  # the soft reasons do not hold the frames that are dealt with now

    def lose(self) -> None:
        self.transport = None
        self._drop()

    def open(self) -> None:
        """Drop every reason, and what waits: the peer's answer to a close is all that is read now."""
        self.reasons.clear()
        self._drop()
        self._read_or_not()

    def _drop(self) -> None:
        self._pending.clear()
        self.pending_bytes = 0

    @property
    def is_shut(self) -> bool:
        return bool(self.reasons) and not (self._is_passing and self._is_soft)

    @property
    def _is_soft(self) -> bool:
        return all(self.reasons.values())

    def pause(self, reason: object, *, softly: bool = False) -> None:
        """Do nothing further while this reason stands. Read nothing either, unless it is a soft one."""
        self.reasons[reason] = softly
        self._read_or_not()

    def resume(self, reason: object) -> None:
        if reason not in self.reasons:
            return
        del self.reasons[reason]
        if self.transport is None:
            return
        if self.reasons:
            self._let_close(0)
        else:
            frames = list(self._pending)
            self._drop()
            self._process(frames)
        self._read_or_not()
        self._flush()

    def has_unread(self) -> bool:
        """Whether bytes, or the end, stand in the socket."""
        number = -1 if self.transport is None else self.transport.get_extra_info("socket").fileno()
        if number < 0:
            return False
        with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as peeking:
            try:
                peeking.setblocking(False)
                peeking.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return False
            except OSError:
                pass  # the loop will meet it too
        return True

    def _read_or_not(self) -> None:
        """Read while there is no reason not to; with soft ones alone, until there is enough that waits."""
        transport = self.transport
        reads = not self.reasons or (self._is_soft and self.pending_bytes < _READ_AHEAD)
        if transport is not None and reads is not self._is_reading and not transport.is_closing():
            self._is_reading = reads
            (transport.resume_reading if reads else transport.pause_reading)()

    def keep(self, frames: list[Frame]) -> None:
        """Frames wait: those that have come behind a reason, or those that a passage left, which go first again."""
        if self._is_passing:
            self._pending.extendleft(reversed(frames))
            return
        before = len(self._pending)
        self._pending.extend(frames)
        self.pending_bytes += _size(frames)
        self._let_close(before)
        self._read_or_not()

    def _let_close(self, start: int) -> None:
        """Do what waits up to the last end in it, where nothing but publishing is held. No end is before `start`. The
        publishes before it are done too, though there is no room: they are few, and a client that closes a channel or a
        connection has a right to know that they are done."""
        if not self._is_soft:
            return
        ends = [at for at in range(start, len(self._pending)) if self._ends_something(self._pending[at])]
        if ends:
            frames = [self._pending.popleft() for _ in range(ends[-1] + 1)]
            self._is_passing = True
            try:
                self._process(frames)
            finally:
                self._is_passing = False
            self.pending_bytes = _size(self._pending)

    def _ends_something(self, frame: Frame) -> bool:
        """Whether the client closes the connection or an open channel, or cancels a consumer that is there. A client
        cannot begin anew what it has ended while the connection is held, so no publish gets past an alarm."""
        kind, number, payload = frame
        if kind != FRAME_METHOD:
            return False
        if not number:
            return payload[:4] == CLOSE
        session = self._sessions.get(number)
        if session is None:
            return False
        if payload[:4] == CANCEL:
            tag = payload[5 : 5 + payload[4]] if len(payload) > 4 else b""
            return any(each.encode() == tag for each in session.consumers)
        return payload[:4] == CHANNEL_CLOSE


def _size(frames: list[Frame] | deque[Frame]) -> int:
    return sum(len(payload) + FRAME_OVERHEAD for _, _, payload in frames)


class ReaderPort(Effects, Protocol):
    """A connection, as its reader knows it."""

    newcomer: Newcomer | None

    @property
    def alarms(self) -> frozenset[str]: ...
    @property
    def protocol_headers(self) -> Mapping[bytes, tuple[int, int]]: ...
    def start(self, major: int, minor: int) -> None: ...
    def call_connection(self, method: Any) -> None: ...
    def new_session(self, number: int) -> Session: ...
    def hand_in(self) -> None: ...
    def end_turn(self) -> None: ...
    def cut(self, why: str) -> None: ...
    def close_transport(self) -> None: ...


@dataclass(eq=False, repr=False)
class FrameReader:
    """The way into a connection."""

    _connection: ReaderPort
    _sessions: dict[int, Session]
    _machine: ConnectionMachine
    _gate: ReadGate
    _writer: FrameWriter
    _monitor: HeartbeatMonitor
    received_bytes: int = 0
    is_deaf: bool = False  # what comes from now on cannot be read as frames
    splitter: FrameSplitter = field(default_factory=partial(FrameSplitter, MIN_FRAME_MAX, in_pieces=True))
    _beginning: bytes = b""  # of the protocol header
    _tail: bytes = b""

    @property
    def is_in_the_middle(self) -> bool:
        is_half_here = any(each.machine.state in _IN_A_MESSAGE for each in self._sessions.values())
        return is_half_here or self.splitter.pending_bytes > 0

    def receive(self, data: bytes | memoryview) -> None:
        self._monitor.heard = True
        self.received_bytes += len(data)
        if self.is_deaf:
            self._listen_for_close_ok(bytes(data))
            return
        if self._machine.state is ConnectionState.HEADER:
            rest = self._receive_beginning(bytes(data))
            if rest is None:
                return
            data = rest
        begun = self.splitter.begun_bytes
        try:
            frames = self.splitter.feed(data)
        except FrameError as error:
            self.process(error.frames)
            self.is_deaf = True
            self._connection.fault(error)
        else:
            if self._gate.is_shut:
                self._gate.pending_bytes += max(0, self.splitter.begun_bytes - begun)
            self.process(frames)
        self._writer.flush()

    def _receive_beginning(self, data: bytes) -> bytes | None:
        """The bytes behind the protocol header once it is whole; None while it is not, or when it is wrong."""
        self._beginning = begun = self._beginning + data
        headers = self._connection.protocol_headers
        if not any(known.startswith(begun[:8]) for known in headers):
            self.is_deaf = True
            self._writer.send(PROTOCOL_HEADER)  # the version that is spoken here
            self._connection.close_transport()
            return None
        if len(begun) < 8:
            return None
        self._beginning = b""
        self._connection.start(*headers[begun[:8]])
        return begun[8:]

    def _listen_for_close_ok(self, data: bytes) -> None:
        """The stream is out of step, but the answer to our close may be in it: then all has been said."""
        self._tail = (self._tail + data)[-2 * len(_CLOSE_OK_FRAME) :] if len(data) < 64 else data
        if _CLOSE_OK_FRAME in self._tail:
            self._connection.close_transport()

    def process(self, frames: list[Frame]) -> None:
        if self._gate.is_shut:
            left = frames
        else:
            try:
                left = self._receive_each(frames)
            finally:
                self._connection.hand_in()
        if left or self._gate.is_shut:
            self._gate.keep(left)
            if self._connection.newcomer is not None and self._gate.pending_bytes > _MOST_OF_A_STRANGER:
                self._connection.cut("%s: cut, it says too much before its login")

    def _receive_each(self, frames: list[Frame]) -> list[Frame]:
        """Deal with frames until there is a reason to pause, or others are to have a turn; those that are left."""
        gate, connection, writer = self._gate, self._connection, self._writer
        reasons, pieces = gate.reasons, writer.pieces
        at, end, turn = 0, len(frames), _TURN
        while at < end:
            if at >= turn:
                connection.end_turn()
                return frames[at:]
            kind, number, payload = frames[at]
            done = 0
            if kind == FRAME_METHOD:
                if (method := payload[:4]) == PUBLISH:
                    done = self._receive_run(frames, at)
                else:
                    connection.hand_in()
                    if method == ACK:
                        done = self._receive_run(frames, at)
                    if not done:
                        turn -= _METHOD
            if not done:
                self._receive(kind, number, payload)
            at += done or 1
            if len(pieces) > _FLUSH_PIECES:
                writer.flush()
            if reasons and gate.is_shut:
                return frames[at:]
        return []

    def _receive_run(self, frames: list[Frame], at: int) -> int:
        """Deal with the acks of single messages, or the whole publishes, that begin at `at`, all at once; how many
        frames that were: 0 when there is something else about the first one, which is for `_receive` then."""
        _, number, payload = frames[at]
        session = self._sessions.get(number)
        if session is None or self._machine.state is not ConnectionState.RUNNING or not session.is_open:
            return 0
        done, method = 0, payload[:4]
        try:
            if method == ACK:
                if tags := acks_in_a_row(frames, at, PIECE):
                    done = len(tags)
                    session.deliveries.settle_each(tags, "accept", session.transaction)
            # While an alarm holds publishers, nothing is done behind a publish.
            elif contents := contents_in_a_row(frames, at, 1 if self._connection.alarms else _RUN):
                done = 3 * len(contents)  # where one of them raises: its channel ends
                done = 3 * session.receive_contents(contents)
        except BaseException as error:  # noqa: BLE001  # as in _receive
            fail(self._connection, session, error, method)
        return done

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        session: Session | None = None
        try:
            if kind == FRAME_METHOD and len(payload) < 4 and self._machine.state not in DROPS_WHAT_IT_DOES_NOT_KNOW:
                octets = ",".join(map(str, payload))
                raise ConnectionFault(501, f"type 1, all octets = <<{octets}>>: unknown_frame")  # in RabbitMQ's words
            if number and kind <= FRAME_BODY:
                if self._machine.state is not ConnectionState.RUNNING and not self._machine.check_channel_frame():
                    return
                session = self._sessions.get(number)
                if session is None:
                    session = self._connection.new_session(number)
                    session.receive(kind, payload)
                    if session.is_open:
                        self._sessions[number] = session
                else:
                    session.receive(kind, payload)
            elif kind == FRAME_METHOD:
                # What does not decode has not come, and moves nothing.
                method = decode_method(payload) if self._machine.expects(payload[:4]) else None
                if self._machine.receive(payload[:4]):
                    self._connection.call_connection(method)
            elif kind in (FRAME_HEADER, FRAME_BODY):
                raise ConnectionFault(505, "a content frame on channel 0")
            else:
                self._machine.check_heartbeat(number, payload)
        except BaseException as error:  # noqa: BLE001  # every one ends a channel or a connection
            named = payload[:4] if kind == FRAME_METHOD else PUBLISH
            # Of a channel that may not be opened RabbitMQ names no method.
            fail(self._connection, session, error, _NO_METHOD if number and session is None else named)
